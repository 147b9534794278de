#include "activity.h"

#include "api_calls.h"
#include "buffers.h"
#include "calls.h"
#include "convert.h"
#include "cupti_library.h"
#include "devices.h"
#include "graphs.h"

namespace stepscope {
namespace activity {
namespace {

constexpr uint32_t kTakenOutFrom = 130000;  // CUPTI as of CUDA 13.0; older ones were not tried

cupti::Library g_cupti;
void* g_subscriber = nullptr;
bool g_attached = false;  // CUPTI is, or was, ours
bool g_live = false;      // atomic: it is
bool g_enabled = false;
bool g_leaving = false;   // atomic: the next launch takes CUPTI out of the process
uint32_t g_version = 0;
Mutex g_kinds;
uint64_t g_records = 0, g_dropped = 0;
bool g_described = false;
int g_exit_registered = 0;

const char* text_of(cupti::Result result) {
  const char* text = nullptr;
  if (g_cupti.GetResultString) g_cupti.GetResultString(result, &text);
  return text ? text : "unknown error";
}

uint64_t timestamp() { return now_ns(); }

bool live() { return __atomic_load_n(&g_live, __ATOMIC_ACQUIRE); }

// At the exit of a launch: CUPTI wants to be taken out inside a callback.
void leave() {
  if (!__atomic_exchange_n(&g_leaving, false, __ATOMIC_ACQ_REL) || graphs::made()) return;
  g_cupti.Finalize();
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
  if (graphs::is_maker(domain, id)) graphs::note_made();
  if (!data) return;
  int site;
  memcpy(&site, data, sizeof site);
  if (__atomic_load_n(&g_leaving, __ATOMIC_ACQUIRE)) {
    if (site == cupti::kSiteExit) leave();
    return;
  }
  api_calls::on_call(domain, id, data);
  if (config().range != Range::kProfilerApi) return;
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
  if (kind == cupti::kGraphTrace && live()) return;  // on as long as CUPTI is ours
  if (!on) {
    g_cupti.ActivityDisable(kind);
    return;
  }
  cupti::Result result = g_cupti.ActivityEnable(kind);
  if (result != cupti::kSuccess)
    remark("warning", "CUPTI does not record activity kind %d: %s", kind, text_of(result));
}

// From here on CUPTI is not ours; false where it was not before.
bool give_up() {
  Guard guard(g_kinds);
  if (!live()) return false;
  __atomic_store_n(&g_live, false, __ATOMIC_RELEASE);
  if (config().wants(cupti::kGraphTrace)) switch_kind(cupti::kGraphTrace, false);
  return true;
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
  result = g_cupti.ActivityRegisterCallbacks(buffers::requested, buffers::completed);
  if (result != cupti::kSuccess) {
    remark("error", "CUPTI takes no buffers: %s; GPU work is not recorded", text_of(result));
    return false;
  }
  buffers::prepare();
  graphs::watch(g_cupti, g_subscriber);
  api_calls::prepare(g_cupti, g_subscriber);
  // A graph that was made while this was off, and is launched while it is on, crashes the driver
  // (CUDA 13.0): so it is on before there are any. What lies outside recording is left out.
  if (config().wants(cupti::kGraphTrace)) switch_kind(cupti::kGraphTrace, true);
  g_attached = true;
  __atomic_store_n(&g_live, true, __ATOMIC_RELEASE);
  describe_attached(process);
  return true;
}

void enable() {
  Guard guard(g_kinds);
  if (!live() || g_enabled) return;
  g_enabled = true;
  api_calls::enable(true);
  for (int i = 0; i < config().kind_count; i++) switch_kind(config().kinds[i], true);
  if (!config().filter_api) return;
  for (uint16_t id : kQueryOnlyRuntimeCalls)
    if (g_cupti.ActivityEnableRuntimeApi) g_cupti.ActivityEnableRuntimeApi(id, 0);
}

void disable() {
  Guard guard(g_kinds);
  if (!live() || !g_enabled) return;
  g_enabled = false;
  api_calls::enable(false);
  for (int i = 0; i < config().kind_count; i++) switch_kind(config().kinds[i], false);
}

void stand_aside() {
  flush(true);
  if (give_up()) g_cupti.Unsubscribe(g_subscriber);
}

// What stays of CUPTI after recording costs launches 5 to 10 % (H200, CUDA 13.0), and taking
// ourselves off it changes nothing: only taking it out does. With CUDA graphs that is not possible,
// since their launches fail afterwards; then others can at least use it.
void let_go() {
  if (!give_up()) return;
  if (graphs::made() || !g_cupti.Finalize || g_version < kTakenOutFrom) {
    g_cupti.Unsubscribe(g_subscriber);
    return;
  }
  __atomic_store_n(&g_leaving, true, __ATOMIC_RELEASE);
  g_cupti.EnableCallback(1, g_subscriber, cupti::kDomainRuntime, cupti::kRuntimeLaunchKernel);
  constexpr uint32_t kDriverLaunches[] = {cupti::kDriverLaunchKernel, cupti::kDriverLaunchKernelEx};
  for (uint32_t id : kDriverLaunches)
    g_cupti.EnableCallback(1, g_subscriber, cupti::kDomainDriver, id);
}

void flush(bool forced) {
  if (!live() || (forced && !driver_alive())) return;
  g_cupti.ActivityFlushAll(forced ? cupti::kForced : 0);
}

void drain(Process& process) {
  if (!g_attached) return;
  api_calls::drain(process);
  for (;;) {
    uint32_t count;
    buffers::Full* full = buffers::take(&count);
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
      buffers::give_back(full[i].data);
    }
    free(full);
  }
}

void forget() {
  // The driver does not work in a forked child, so nothing comes back any more.
  g_attached = g_live = g_enabled = g_described = g_leaving = false;
  g_kinds.reset();
  g_exit_registered = 0;
  g_records = g_dropped = 0;
  buffers::forget();
  graphs::forget();
  convert::forget();
  api_calls::forget();
}

void describe(Text& json) {
  json.format("\"cupti_records\":%llu,\"cupti_dropped\":%llu,\"cupti_buffers\":%llu,",
              static_cast<unsigned long long>(g_records),
              static_cast<unsigned long long>(g_dropped),
              static_cast<unsigned long long>(buffers::made()));
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
