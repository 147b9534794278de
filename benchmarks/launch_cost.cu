// What recording adds to one launch of an empty kernel and to calls that only ask, by what CUPTI is
// told to record. A training step of thousands of launches feels it; the rest of CUPTI it does not.
//
//   nvcc -O2 -arch=native benchmarks/launch_cost.cu -o launch_cost -lcupti
//   for what in none kernel kernel,runtime kernel,runtime,driver; do ./launch_cost $what; done
//   nsys profile -t cuda -o /tmp/n ./launch_cost none           # the same program under another tool
//
// Prints the median of single launches, warm and after the caches were emptied, and what ten calls
// of cudaGetDevice and cudaPeekAtLastError add. Machines of clouds differ by a third from run to
// run: take several and compare the least. Times are ns, by the processor's time-stamp counter.
#include <cuda_runtime.h>
#include <cupti.h>
#include <unistd.h>
#include <x86intrin.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr size_t kBufferBytes = 512 << 10, kCacheBytes = 3 << 20;
constexpr int kRounds = 3, kLaunches = 4000, kInFlight = 500;
constexpr struct {
  const char* name;
  int kind;
} kKinds[] = {{"kernel", 10}, {"runtime", 5},  {"driver", 4},   {"copy", 1},  {"set", 2},
              {"sync", 38},   {"event", 36},   {"overhead", 17}, {"graph", 51}, {"memory", 49}};

std::mutex g_lock;
std::vector<uint8_t*> g_free;
std::vector<std::pair<uint8_t*, size_t>> g_full;
unsigned long long g_records = 0;

uint64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

void requested(uint8_t** buffer, size_t* bytes, size_t* most) {
  std::lock_guard<std::mutex> guard(g_lock);
  *buffer = nullptr;
  if (!g_free.empty()) {
    *buffer = g_free.back();
    g_free.pop_back();
  }
  if (!*buffer) *buffer = static_cast<uint8_t*>(aligned_alloc(64, kBufferBytes));
  *bytes = kBufferBytes;
  *most = 0;
}

void completed(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  std::lock_guard<std::mutex> guard(g_lock);
  g_full.emplace_back(buffer, valid);
}

void take() {  // another thread reads the records, as every collector does
  std::vector<std::pair<uint8_t*, size_t>> mine;
  {
    std::lock_guard<std::mutex> guard(g_lock);
    mine.swap(g_full);
  }
  for (auto& [buffer, valid] : mine) {
    CUpti_Activity* record = nullptr;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) g_records++;
    std::lock_guard<std::mutex> guard(g_lock);
    g_free.push_back(buffer);
  }
}

void record(const char* what) {
  static CUpti_SubscriberHandle subscriber;
  auto ignore = [](void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {};
  if (cuptiSubscribe(&subscriber, ignore, nullptr) != CUPTI_SUCCESS) {
    fprintf(stderr, "CUPTI cannot be used: there is no driver, or another tool uses it\n");
    exit(1);
  }
  cuptiActivityRegisterTimestampCallback(now);
  cuptiActivityRegisterCallbacks(requested, completed);
  for (auto& it : kKinds)
    if (strstr(what, it.name)) cuptiActivityEnable(static_cast<CUpti_ActivityKind>(it.kind));
  std::thread([] {
    for (;;) {
      usleep(2000);
      take();
    }
  }).detach();
}

__global__ void nothing() {}

double g_ticks_per_ns = 1;
char* g_cache = nullptr;

void launches(int count, int asked, bool cold, std::vector<double>& out) {
  int device;
  for (int i = 0; i < count; i++) {
    if (cold)
      for (size_t at = 0; at < kCacheBytes; at += 64) g_cache[at]++;
    uint64_t begin = __rdtsc();
    for (int j = 0; j < asked; j++) {
      cudaGetDevice(&device);
      cudaPeekAtLastError();
    }
    nothing<<<1, 32>>>();
    out.push_back((__rdtsc() - begin) / g_ticks_per_ns);
    if (i % kInFlight == kInFlight - 1) cudaDeviceSynchronize();  // the queue is never full
  }
  cudaDeviceSynchronize();
}

double median(std::vector<double>& times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "none";
  if (strcmp(what, "none")) record(what);
  g_cache = static_cast<char*>(calloc(1, kCacheBytes));
  uint64_t ns = now(), ticks = __rdtsc();
  usleep(200000);
  g_ticks_per_ns = double(__rdtsc() - ticks) / (now() - ns);
  std::vector<double> unused, warm, asking, cold;
  launches(kLaunches, 0, false, unused);
  for (int i = 0; i < kRounds; i++) {
    launches(kLaunches, 0, false, warm);
    launches(kLaunches / 4, 5, false, asking);
    launches(kLaunches / 4, 0, true, cold);
  }
  double launch = median(warm);
  if (strcmp(what, "none")) {
    cuptiActivityFlushAll(1);
    usleep(10000);
  }
  printf("%-28s launch %6.0f ns, cold %6.0f ns; ten calls that ask %6.0f ns; %llu records\n", what,
         launch, median(cold), median(asking) - launch, g_records);
  fflush(stdout);
  _exit(0);
}
