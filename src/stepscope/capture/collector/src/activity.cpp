#include "activity.h"

#include "api_calls.h"
#include "calls.h"
#include "convert.h"
#include "cupti_library.h"
#include "devices.h"

namespace stepscope {
namespace activity {
namespace {

// Small, because a buffer with one unfinished record in it only comes back when it is full: this
// bounds what a killed process loses.
constexpr size_t kBufferBytes = 512 * 1024;
constexpr int kReadyBuffers = 8;  // touched beforehand: a page fault would hit a launching thread

cupti::Library g_cupti;
void* g_subscriber = nullptr;
bool g_attached = false, g_enabled = false;
uint32_t g_version = 0;
Mutex g_lists, g_kinds;
uint8_t* g_free = nullptr;     // singly linked through its first word
struct Full {
  uint8_t* data;
  void* context;
  size_t valid;
  uint32_t stream;
};
Full* g_full = nullptr;
uint32_t g_full_count = 0, g_full_room = 0;
uint64_t g_buffers = 0, g_records = 0, g_dropped = 0;
bool g_described = false;
int g_exit_registered = 0;

const char* text_of(cupti::Result result) {
  const char* text = nullptr;
  if (g_cupti.GetResultString) g_cupti.GetResultString(result, &text);
  return text ? text : "unknown error";
}

uint64_t timestamp() { return now_ns(); }

void on_requested(uint8_t** buffer, size_t* bytes, size_t* most) {
  {
    Guard guard(g_lists);
    *buffer = g_free;
    if (g_free) memcpy(&g_free, g_free, sizeof g_free);
    else g_buffers++;
  }
  if (!*buffer) *buffer = static_cast<uint8_t*>(aligned_alloc(64, kBufferBytes));
  *bytes = *buffer ? kBufferBytes : 0;
  *most = 0;
}

void give_back(uint8_t* buffer) {
  Guard guard(g_lists);
  memcpy(buffer, &g_free, sizeof g_free);
  g_free = buffer;
}

void on_completed(void* context, uint32_t stream, uint8_t* buffer, size_t, size_t valid) {
  {
    Guard guard(g_lists);
    if (g_full_count == g_full_room) {
      g_full_room = g_full_room ? g_full_room * 2 : 256;
      g_full = static_cast<Full*>(realloc(g_full, g_full_room * sizeof(Full)));
    }
    g_full[g_full_count++] = {buffer, context, valid, stream};
  }
  wake_writer();
}

void on_callback(void*, int domain, uint32_t id, const void* data) {
  if (domain == cupti::kDomainResource) {
    // The driver registers handlers of its own while it makes a context: ours must come after.
    if (id == cupti::kContextCreated &&
        __atomic_fetch_add(&g_exit_registered, 1, __ATOMIC_RELAXED) < 4)
      register_exit();
    if (id == cupti::kContextDestroyStarting && g_enabled) flush(true);
    return;
  }
  api_calls::on_call(domain, id, data);
  if (!data || config().range != Range::kProfilerApi) return;
  int site;
  memcpy(&site, data, sizeof site);
  bool driver = domain == cupti::kDomainDriver;
  if (id == (driver ? cupti::kDriverProfilerStart : cupti::kRuntimeProfilerStart) &&
      site == cupti::kSiteExit)
    start_recording(kReasonProfilerApi);
  if (id == (driver ? cupti::kDriverProfilerStop : cupti::kRuntimeProfilerStop) &&
      site == cupti::kSiteEnter)
    stop_recording(kReasonProfilerApi);
}

void describe_attached(Process& p) {
  Text json;
  json.format("{\"type\":\"cupti\",\"version\":%u,\"path\":", g_version);
  json.quote(g_cupti.path);
  json.add("}");
  p.sink.json(json);
  json.clear();
}

void switch_kind(int kind, bool on) {
  if (api_calls::takes(kind)) return;
  if (!on) {
    g_cupti.ActivityDisable(kind);
    return;
  }
  cupti::Result result = g_cupti.ActivityEnable(kind);
  if (result != cupti::kSuccess)
    remark("warning", "CUPTI does not record activity kind %d: %s", kind, text_of(result));
}

}  // namespace

bool attached() { return g_attached; }

bool attach(Process& process) {
  if (g_attached) return true;
  char why[4400];
  if (!cupti::open_library(g_cupti, config().cupti, why, sizeof why)) {
    remark("error", "%s", why);
    return false;
  }
  g_cupti.GetVersion(&g_version);
  cupti::Result result = g_cupti.Subscribe(&g_subscriber, on_callback, nullptr);
  if (result != cupti::kSuccess) {
    remark("error",
           result == cupti::kMultipleSubscribers
               ? "another profiler already uses CUPTI in this process (%s); GPU work is not "
                 "recorded: switch the other one off, or record with it"
               : "CUPTI refused to be used: %s; GPU work is not recorded",
           text_of(result));
    return false;
  }
  constexpr struct {
    int domain;
    uint32_t id;
  } kWatched[] = {{cupti::kDomainDriver, cupti::kDriverProfilerStart},
                  {cupti::kDomainDriver, cupti::kDriverProfilerStop},
                  {cupti::kDomainRuntime, cupti::kRuntimeProfilerStart},
                  {cupti::kDomainRuntime, cupti::kRuntimeProfilerStop},
                  {cupti::kDomainResource, cupti::kContextCreated},
                  {cupti::kDomainResource, cupti::kContextDestroyStarting}};
  for (auto& it : kWatched) g_cupti.EnableCallback(1, g_subscriber, it.domain, it.id);
  if (g_cupti.SetThreadIdType) g_cupti.SetThreadIdType(cupti::kThreadIdSystem);
  if (g_cupti.ActivityRegisterTimestampCallback &&
      g_cupti.ActivityRegisterTimestampCallback(timestamp) == cupti::kSuccess) {
    convert::set_clock_offset(0);
  } else {  // CUPTI then reads the wall clock
    convert::set_clock_offset(static_cast<int64_t>(clock_ns(CLOCK_REALTIME) - now_ns()));
  }
  result = g_cupti.ActivityRegisterCallbacks(on_requested, on_completed);
  if (result != cupti::kSuccess) {
    remark("error", "CUPTI takes no buffers: %s; GPU work is not recorded", text_of(result));
    return false;
  }
  for (int i = 0; i < kReadyBuffers; i++)
    if (auto* buffer = static_cast<uint8_t*>(aligned_alloc(64, kBufferBytes))) {
      memset(buffer, 0, kBufferBytes);
      give_back(buffer);
    }
  api_calls::prepare(g_cupti, g_subscriber);
  g_attached = true;
  describe_attached(process);
  return true;
}

void enable() {
  if (!g_attached) return;
  Guard guard(g_kinds);
  if (g_enabled) return;
  g_enabled = true;
  api_calls::enable(true);
  for (int i = 0; i < config().kind_count; i++) switch_kind(config().kinds[i], true);
  if (!config().filter_api) return;
  for (uint16_t id : kDullRuntimeCalls)
    if (g_cupti.ActivityEnableRuntimeApi) g_cupti.ActivityEnableRuntimeApi(id, 0);
}

void disable() {
  if (!g_attached) return;
  Guard guard(g_kinds);
  if (!g_enabled) return;
  g_enabled = false;
  api_calls::enable(false);
  for (int i = 0; i < config().kind_count; i++) switch_kind(config().kinds[i], false);
}

void flush(bool forced) {
  if (!g_attached || (forced && !driver_alive())) return;
  g_cupti.ActivityFlushAll(forced ? cupti::kForced : 0);
}

void drain(Process& process) {
  if (!g_attached) return;
  api_calls::drain(process);
  for (;;) {
    Full* full;
    uint32_t count;
    {
      Guard guard(g_lists);
      full = g_full;
      count = g_full_count;
      g_full = nullptr;
      g_full_count = g_full_room = 0;
    }
    if (!count) return;
    if (!g_described) {  // now, because a killed process writes no closing block
      g_described = true;
      Text json;
      json.add("{\"type\":\"devices\",");
      add_devices(json);
      json.add("}");
      process.sink.json(json);
      json.clear();
      register_exit();
    }
    for (uint32_t i = 0; i < count; i++) {
      g_records += convert::buffer(process, g_cupti, full[i].data, full[i].valid);
      size_t dropped = 0;
      g_cupti.ActivityGetNumDroppedRecords(full[i].context, full[i].stream, &dropped);
      if (dropped) {
        g_dropped += dropped;
        remark("error", "CUPTI dropped %zu records", dropped);
      }
      give_back(full[i].data);
    }
    free(full);
  }
}

void forget() {
  // The driver does not work in a forked child, so nothing comes back any more.
  g_attached = g_enabled = g_described = false;
  g_lists.reset();
  g_kinds.reset();
  g_free = nullptr;
  g_full = nullptr;
  g_full_count = g_full_room = 0;
  g_exit_registered = 0;
  g_buffers = g_records = g_dropped = 0;
  convert::forget();
  api_calls::forget();
}

void describe(Text& json) {
  json.format("\"cupti_records\":%llu,\"cupti_dropped\":%llu,\"cupti_buffers\":%llu,",
              static_cast<unsigned long long>(g_records),
              static_cast<unsigned long long>(g_dropped),
              static_cast<unsigned long long>(g_buffers));
}

}  // namespace activity
}  // namespace stepscope

using namespace stepscope;

// Called by the driver inside cuInit.
STEPSCOPE_EXPORT int InitializeInjection() {
  Process* p = process();
  if (p && activity::attach(*p)) {
    // Recording may have begun with the first NVTX event, before there was a driver.
    if (recording()) activity::enable();
  }
  return 1;
}
