#include "process.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>

#include <new>

#include "activity.h"
#include "describe.h"
#include "seen.h"

extern "C" void stepscope_range(const char*, const char*, uint64_t, uint64_t);

namespace stepscope {
namespace {

enum Life : int { kFresh, kLiving, kEnding, kDead };

constexpr uint64_t kPollNs = 50000000;           // control word, limits
constexpr uint64_t kLateNs = 5000000000ull;      // what was launched in a range may run after it
constexpr uint64_t kClockNs = 60000000000ull;    // clock tuples for aligning machines
constexpr uint32_t kWorkerPool = 1 << 20;        // of a forked child
alignas(Process) uint8_t g_storage[sizeof(Process)];
Process& g_process = *reinterpret_cast<Process*>(g_storage);
int g_life = kFresh;  // atomic
Mutex g_birth, g_switch;
bool g_recording = false;  // atomic
uint64_t g_recorded_first = 0, g_recorded_since = 0, g_recorded_until = 0;
uint64_t g_limited_since = 0;  // --duration counts from here; a forked child goes on with it
uint64_t g_over_since = 0;  // recording has ended for good then
uint64_t g_ranges = 0;
uint32_t g_generation = 1;
// Set where this thread works for us: its own waits are not the program's.
__thread bool t_ours __attribute__((tls_model("initial-exec"))) = false;
bool g_once = false;  // fork handlers and such, once a library
sem_t g_wake;
int g_finished = 0;  // atomic: the writer has written everything
const char* g_how = "";
uint64_t g_ended_ns = 0;  // atomic; fetching and writing what is left comes after it
struct sigaction g_old_term;

int life() { return __atomic_load_n(&g_life, __ATOMIC_ACQUIRE); }
void set_life(int life) { __atomic_store_n(&g_life, life, __ATOMIC_RELEASE); }

bool over() { return __atomic_load_n(&g_over_since, __ATOMIC_ACQUIRE) != 0; }

void sleep_ms(long ms) {
  timespec pause{ms / 1000, ms % 1000 * 1000000};
  nanosleep(&pause, nullptr);
}

void write_state(Process& p, bool recording, StateReason reason, uint64_t time) {
  StateRow row{time, recording, reason};
  p.sink.write(kState, sizeof row, 1, &row, sizeof row);
}

// The launcher's control file holds two numbers: 1 record, 2 do not, and a count of orders.
void obey_control() {
  static uint32_t obeyed_of = 0, obeyed = 0;
  if (obeyed_of != g_generation) {
    obeyed_of = g_generation;
    obeyed = 0;
  }
  // Opened again each time: the program may close descriptors, and reuse their numbers.
  char path[4300];
  snprintf(path, sizeof path, "%s/control", config().folder);
  int file = ::open(path, O_RDONLY | O_CLOEXEC);
  uint32_t order[2];
  ssize_t got = file < 0 ? 0 : pread(file, order, sizeof order, 0);
  if (file >= 0) ::close(file);
  if (got != sizeof order || order[1] == obeyed) return;
  obeyed = order[1];
  if (order[0] == 1) start_recording(kReasonExternal);
  if (order[0] == 2) stop_recording(kReasonExternal);
}

void obey_limits(Process& p) {
  const Config& c = config();
  uint64_t now = now_ns();
  bool recording = __atomic_load_n(&g_recording, __ATOMIC_ACQUIRE);
  if (!recording && c.range == Range::kProcess && c.start_ns && now >= c.start_ns &&
      !g_recorded_since)
    start_recording(kReasonTime);
  if (recording && ((c.stop_ns && now >= c.stop_ns) ||
                    (c.duration_ns && now - g_limited_since >= c.duration_ns))) {
    end_recording(kReasonTime);
  }
  // Without a GPU, NVTX events are kept outside of recording, too.
  if (c.max_bytes && !c.ring_ns && !over() && p.sink.bytes() >= c.max_bytes) {
    remark("warning", "the limit of %llu bytes was reached; recording ended there",
           static_cast<unsigned long long>(c.max_bytes));
    end_recording(kReasonSize);
  }
}

void* write_all(void*) {
  pthread_setname_np(pthread_self(), "stepscope");
  t_ours = true;
  Process& p = g_process;
  uint64_t flushed = now_ns(), clock = flushed;
  bool let_go = false;
  seen::Times seen_times;
  while (life() == kLiving) {
    timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += kPollNs;
    if (until.tv_nsec >= 1000000000) {
      until.tv_nsec -= 1000000000;
      until.tv_sec++;
    }
    sem_timedwait(&g_wake, &until);
    if (life() != kLiving) break;
    obey_control();
    obey_limits(p);
    uint64_t now = now_ns();
    if (now - flushed >= config().flush_ns) {
      activity::flush(false);
      flushed = now;
    }
    p.chunks.drain(p.sink, false);
    activity::drain(p);
    if (seen_times.due(now)) seen::write(p);
    // Two flushes later: what was launched last has come back.
    uint64_t over_since = __atomic_load_n(&g_over_since, __ATOMIC_ACQUIRE);
    if (over_since && !let_go && now > over_since + 2 * config().flush_ns) {
      let_go = true;
      activity::flush(true);
      activity::drain(p);
      activity::let_go();
    }
    if (now - clock >= kClockNs) {
      write_clock(p);
      write_threads(p);
      clock = now;
    }
  }
  activity::flush(true);
  p.chunks.drain(p.sink, false);
  activity::drain(p);
  p.chunks.drain(p.sink, true);
  write_clock(p);
  write_threads(p);
  seen::write(p);
  write_end(p, g_how, __atomic_load_n(&g_ended_ns, __ATOMIC_ACQUIRE));
  p.sink.close();
  p.chunks.remove();
  __atomic_store_n(&g_finished, 1, __ATOMIC_RELEASE);
  return nullptr;
}

bool start_writer() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals belong to the program's threads
  pthread_t thread;
  bool started = pthread_create(&thread, nullptr, write_all, nullptr) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (started) pthread_detach(thread);
  return started;
}

void note_over() {  // with g_switch held
  if (!g_over_since) __atomic_store_n(&g_over_since, now_ns(), __ATOMIC_RELEASE);
}

void await_writer(int limit_ms) {
  for (int waited = 0; waited < limit_ms && !__atomic_load_n(&g_finished, __ATOMIC_ACQUIRE);
       waited++)
    sleep_ms(1);
}

void on_exit_() { finish("exit", 5000); }

void on_fork_child() {
  forget_thread();  // its chunk is the parent's
  g_generation++;
  g_birth.reset();
  g_switch.reset();
  if (life() != kFresh) {
    g_process.sink.forget();
    g_process.chunks.forget();
    g_process.strings.forget();
    g_process.nvtx_dropped = 0;
  }
  activity::forget();
  seen::forget();
  bool ended = over();  // for the whole family, which a child born later belongs to
  g_recording = false;
  g_recorded_first = g_recorded_since = g_recorded_until = g_over_since = g_ranges = 0;
  g_finished = 0;
  set_life(ended ? kDead : kFresh);
}

// Only installed where the program left the default, which would end it at once.
void on_term(int number) {
  int error = errno;
  finish("SIGTERM", 1000);
  sigaction(number, &g_old_term, nullptr);
  errno = error;
  raise(number);
}

void prepare_once() {
  if (g_once) return;
  g_once = true;
  pthread_atfork(nullptr, nullptr, on_fork_child);
  struct sigaction now;
  if (sigaction(SIGTERM, nullptr, &now) == 0 && !(now.sa_flags & SA_SIGINFO) &&
      now.sa_handler == SIG_DFL) {
    struct sigaction ours {};
    ours.sa_handler = on_term;
    ours.sa_flags = SA_RESTART;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGTERM, &ours, &g_old_term);
  }
  register_exit();
  using Take = void (*)(void (*)(const char*, const char*, uint64_t, uint64_t));
  if (auto take = reinterpret_cast<Take>(dlsym(RTLD_DEFAULT, "stepscope_record_waits")))
    take(stepscope_range);
}

constexpr const char* kRanks[] = {"RANK",     "OMPI_COMM_WORLD_RANK", "PMIX_RANK",
                                  "PMI_RANK", "MV2_COMM_WORLD_RANK",  "SLURM_PROCID"};

// Whether this process's rank is one of those asked for; a process without a rank is. One that is
// not leaves an empty file, by which the launcher can tell which ranks there were.
bool of_wanted_rank() {
  const char* rank = nullptr;
  for (size_t i = 0; config().ranks[0] && !rank && i < sizeof kRanks / sizeof *kRanks; i++)
    rank = getenv(kRanks[i]);
  if (!rank) return true;
  char listed[64], path[4300];
  snprintf(listed, sizeof listed, ",%s,", rank);
  if (strstr(config().ranks, listed)) return true;
  if (!rank[strspn(rank, "0123456789")] && strlen(rank) < 10) {
    snprintf(path, sizeof path, "%s/left-out-rank%s.txt", config().folder, rank);
    int file = ::open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0) ::close(file);
  }
  return false;
}

class Ours {
 public:
  Ours() : before_(t_ours) { t_ours = true; }
  ~Ours() { t_ours = before_; }

 private:
  bool before_;
};

Process* give_birth() {
  Ours ours;
  Guard guard(g_birth);
  if (life() == kLiving) return &g_process;
  if (life() != kFresh || !config().valid) return nullptr;
  if (!of_wanted_rank()) {
    set_life(kDead);
    return nullptr;
  }
  if (g_generation == 1) new (&g_process) Process();
  Process& p = g_process;
  p.born_ns = now_ns();
  char base[96];
  snprintf(base, sizeof base, "p%d-%llx", getpid(), static_cast<unsigned long long>(p.born_ns));
  if (!p.sink.open(config().folder, base)) {
    set_life(kDead);
    return nullptr;
  }
  p.sink.keep_only(config().ring_ns);
  // Workers are many, and their threads few.
  uint32_t pool = config().pool_bytes;
  p.chunks.open(config().pool, base, g_generation > 1 && pool > kWorkerPool ? kWorkerPool : pool);
  p.strings.open(&p.chunks);
  sem_init(&g_wake, 0, 0);
  prepare_once();
  write_meta(p);
  write_clock(p);
  set_life(kLiving);
  if (config().range == Range::kProcess && now_ns() >= config().start_ns)
    start_recording(kReasonStart);
  if (!start_writer()) {
    p.sink.close();
    set_life(kDead);
    return nullptr;
  }
  return &g_process;
}

}  // namespace

Process* process() {
  int state = life();
  if (state == kLiving) return &g_process;
  return state == kFresh ? give_birth() : nullptr;
}

bool recording() { return __atomic_load_n(&g_recording, __ATOMIC_ACQUIRE); }

bool ended() {
  int state = life();
  return state == kEnding || state == kDead;
}

bool is_ours() { return t_ours; }

uint32_t generation() { return g_generation; }

bool ever_recorded() { return g_recorded_first != 0; }

bool nvtx_wanted() {
  if (__atomic_load_n(&g_recording, __ATOMIC_RELAXED)) return true;
  // Processes without a GPU (workers) do not see the triggers of their parent; what lies outside
  // the parent's window is left out when the capture is read.
  if (life() == kFresh) {  // a forked child's first event
    process();
    if (__atomic_load_n(&g_recording, __ATOMIC_RELAXED)) return true;
  }
  return life() == kLiving && config().range != Range::kProcess && !over() &&
         !activity::attached();
}

void start_recording(StateReason reason) {
  Process* p = process();
  if (!p) return;
  Guard guard(g_switch);
  if (g_recording || g_over_since) return;
  if (config().start_ns && now_ns() < config().start_ns) return;
  g_recorded_since = now_ns();
  if (!g_recorded_first) g_recorded_first = g_recorded_since;
  if (!g_limited_since || config().range != Range::kProcess) g_limited_since = g_recorded_since;
  write_state(*p, true, reason, g_recorded_since);
  activity::enable();
  __atomic_store_n(&g_recording, true, __ATOMIC_RELEASE);
}

void stop_recording(StateReason reason) {
  Process* p = process();
  if (!p) return;
  Guard guard(g_switch);
  if (!g_recording) return;
  __atomic_store_n(&g_recording, false, __ATOMIC_RELEASE);
  // Before CUPTI is switched off, which takes its time: that is no part of what was recorded.
  g_recorded_until = now_ns();
  write_state(*p, false, reason, g_recorded_until);
  activity::disable();
  if (config().ranges && ++g_ranges == config().ranges) note_over();
  wake_writer();
}

void end_recording(StateReason reason) {
  stop_recording(reason);
  Guard guard(g_switch);
  note_over();
}

bool may_be_recorded(uint64_t start, uint64_t end) {
  if (!g_recorded_first || end < g_recorded_first) return false;
  if (recording() && end >= g_recorded_since) return true;
  return g_recorded_until && start <= g_recorded_until + kLateNs;
}

void wake_writer() { sem_post(&g_wake); }

void remark(const char* severity, const char* pattern, ...) {
  Process* p = process();
  if (!p) return;
  char text[1024];
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  Text json;
  json.format("{\"type\":\"remark\",\"severity\":\"%s\",\"time_ns\":%llu,\"text\":", severity,
              static_cast<unsigned long long>(now_ns()));
  json.quote(text);
  json.add("}");
  p->sink.json(json);
  json.clear();
}

// Async-signal-safe: SIGTERM's handler calls it.
void finish(const char* how, int limit_ms) {
  Ours ours;
  int living = kLiving;
  if (!__atomic_compare_exchange_n(&g_life, &living, kEnding, false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE)) {
    // Another thread is at it, or this one, which a signal interrupted: a process that ended now
    // would cut the writer off.
    if (living == kEnding) await_writer(limit_ms);
    return;
  }
  g_how = how;
  __atomic_store_n(&g_ended_ns, now_ns(), __ATOMIC_RELEASE);
  sem_post(&g_wake);
  await_writer(limit_ms);
  __atomic_store_n(&g_recording, false, __ATOMIC_RELEASE);
  set_life(kDead);
}

void register_exit() { atexit(on_exit_); }

}  // namespace stepscope

using namespace stepscope;

// For the optional hook in Python, through ctypes.
STEPSCOPE_EXPORT void stepscope_start() { start_recording(kReasonHook); }
STEPSCOPE_EXPORT void stepscope_stop() { stop_recording(kReasonHook); }
STEPSCOPE_EXPORT void stepscope_end() { end_recording(kReasonHook); }
STEPSCOPE_EXPORT void stepscope_stand_aside() {
  end_recording(kReasonHook);
  activity::stand_aside();
}
STEPSCOPE_EXPORT void stepscope_remark(const char* severity, const char* text) {
  remark(severity, "%s", text);
}
STEPSCOPE_EXPORT uint32_t stepscope_format() { return kFormatVersion; }
