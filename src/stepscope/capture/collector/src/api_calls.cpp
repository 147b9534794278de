#include "api_calls.h"

#include "calls.h"
#include "convert.h"
#include "graphs.h"

namespace stepscope {
namespace api_calls {
namespace {

using cupti::kMostIds;
constexpr uint32_t kNoStream = 0xFFFFFFFF;
constexpr uint32_t kWakeRows = 4096;
constexpr uint32_t kEventSlots = 1 << 13;

enum What : uint8_t { kNothing, kCall, kEventWait, kStreamWait, kStreamSync, kContextSync, kRecord };

// Functions that wait or order streams, by the beginning of their names: versions and per-thread
// variants have endings. Where their arguments hold the stream and the event, in words; -1: none.
constexpr struct {
  const char* begins;
  What what;
  int8_t stream, event;
} kOrdering[] = {
    {"cudaEventSynchronize", kEventWait, -1, 0}, {"cuEventSynchronize", kEventWait, -1, 0},
    {"cudaStreamWaitEvent", kStreamWait, 0, 1},  {"cuStreamWaitEvent", kStreamWait, 0, 1},
    {"cudaStreamSynchronize", kStreamSync, 0, -1}, {"cuStreamSynchronize", kStreamSync, 0, -1},
    {"cudaDeviceSynchronize", kContextSync, -1, -1}, {"cuCtxSynchronize", kContextSync, -1, -1},
    {"cudaEventRecord", kRecord, 1, 0},          {"cuEventRecord", kRecord, 1, 0},
};

struct Id {
  What what;
  int8_t stream, event;
  bool per_thread;
};

struct Recording {
  uintptr_t event;
  uint64_t number;
};

struct Noted {
  Rows<ApiRow> calls;
  Rows<SyncRow> syncs;
  Rows<EventRow> events;
};

const cupti::Library* g_cupti = nullptr;
void* g_subscriber = nullptr;
Id g_ids[2][kMostIds];
bool g_syncs = false, g_events = false, g_calls = false;
bool g_on = false;  // atomic
uint64_t g_since = 0;
Mutex g_rows;
Noted g_noted, g_writing;
Recording g_recordings[kEventSlots];  // the newest of an event; a collision forgets the older one
uint64_t g_recorded = 0;
__thread uint32_t t_thread __attribute__((tls_model("initial-exec"))) = 0;
// Calls of the runtime that order streams and are under way: those of the driver beneath are
// theirs. Beneath other calls of the runtime the driver's are noted, and left out when the capture
// is read: they have the number of the call above them.
__thread uint32_t t_within __attribute__((tls_model("initial-exec"))) = 0;
// When that was begun to be counted: a call that was under way when recording ended has no exit.
__thread uint64_t t_since __attribute__((tls_model("initial-exec"))) = 0;

bool is_query_only(const char* name) {
  for (const char* part : kKeptDriverParts)
    if (strstr(name, part)) return false;
  for (const char* part : kQueryOnlyDriverParts)
    if (strstr(name, part)) return true;
  return false;
}

Id classify(bool driver, const char* name) {
  Id id{g_calls && driver && !is_query_only(name) ? kCall : kNothing, -1, -1, strstr(name, "_ptsz") != nullptr};
  for (auto& it : kOrdering) {
    if (strncmp(name, it.begins, strlen(it.begins))) continue;
    if (it.what == kRecord ? !g_events : !g_syncs) continue;
    id.what = it.what;
    id.stream = it.stream;
    id.event = it.event;
  }
  return id;
}

Recording& recording_of(uintptr_t event) {
  return g_recordings[(event >> 3) * 0x9E3779B97F4A7C15ull >> 51];
}

uint32_t stream_id(const Id& id, void* context, uintptr_t handle) {
  // 1 and 2 stand for the legacy and the thread's default stream.
  uint8_t per_thread = id.per_thread || handle == 2;
  if (handle <= 2) handle = 0;
  uint32_t number = kNoStream;
  if (!g_cupti->GetStreamIdEx || g_cupti->GetStreamIdEx(context, handle, per_thread, &number))
    return kNoStream;
  return number;
}

uintptr_t word(const void* arguments, int index) {
  uintptr_t value = 0;
  if (arguments && index >= 0)
    memcpy(&value, static_cast<const char*>(arguments) + index * sizeof value, sizeof value);
  return value;
}

uint32_t short_name(uintptr_t event) { return static_cast<uint32_t>(event >> 3); }

void note_order(const Id& id, const cupti::CallbackData& call, uint32_t stream, uint64_t start,
                uint64_t end) {  // with g_rows held
  uintptr_t event = word(call.arguments, id.event);
  if (id.what == kRecord) {
    Recording& slot = recording_of(event);
    slot = {event, ++g_recorded};
    EventRow* row = g_noted.events.add();
    row->event_sync = slot.number;
    row->correlation = call.correlation;
    row->context = call.context_number;
    row->stream = stream;
    row->event = short_name(event);
    return;
  }
  SyncRow* row = g_noted.syncs.add();
  row->start = start;
  row->end = end;
  row->correlation = call.correlation;
  row->type = id.what == kEventWait    ? cupti::kSyncEvent
              : id.what == kStreamWait ? cupti::kSyncStreamWait
              : id.what == kStreamSync ? cupti::kSyncStream
                                       : cupti::kSyncContext;
  row->context = call.context_number;
  row->stream = stream;
  if (id.event < 0) return;
  row->event = short_name(event);
  if (recording_of(event).event == event) row->event_sync = recording_of(event).number;
}

void note(const Id& id, bool driver, uint32_t number, const cupti::CallbackData& call,
          uint64_t start, uint64_t end) {
  uint32_t stream = id.stream < 0
                        ? kNoStream
                        : stream_id(id, call.context, word(call.arguments, id.stream));
  bool many = false;
  {
    Guard guard(g_rows);
    if (driver && g_calls) {
      uint32_t result = 0;
      if (call.result) memcpy(&result, call.result, sizeof result);
      if (!t_thread) t_thread = thread_id();
      *g_noted.calls.add() = {start, end, call.correlation, t_thread, number | kDriverCall, result};
      many = g_noted.calls.count() % kWakeRows == 0;
    }
    if (id.what != kCall) note_order(id, call, stream, start, end);
  }
  if (many) wake_writer();
}

}  // namespace

bool takes(int kind) {
  return kind == cupti::kSynchronization || kind == cupti::kCudaEvent ||
         (kind == cupti::kDriver && config().filter_api);
}

void prepare(const cupti::Library& cupti, void* subscriber) {
  g_cupti = &cupti;
  g_subscriber = subscriber;
  g_syncs = config().wants(cupti::kSynchronization);
  g_events = config().wants(cupti::kCudaEvent);
  g_calls = config().wants(cupti::kDriver) && config().filter_api;
  for (int driver = 0; driver < 2; driver++) {
    int domain = driver ? cupti::kDomainDriver : cupti::kDomainRuntime;
    cupti::each_function(cupti, domain, [driver](uint32_t id, const char* name) {
      g_ids[driver][id] = classify(driver, name);
    });
  }
  // Watched for their own sake, and never to be switched off.
  g_ids[1][cupti::kDriverProfilerStart].what = g_ids[1][cupti::kDriverProfilerStop].what = kNothing;
}

void enable(bool on) {
  if (!g_cupti) return;
  if (on) g_since = now_ns();
  __atomic_store_n(&g_on, on, __ATOMIC_RELEASE);
  for (int driver = 0; driver < 2; driver++) {
    int domain = driver ? cupti::kDomainDriver : cupti::kDomainRuntime;
    for (uint32_t id = 1; id < kMostIds; id++)
      if (g_ids[driver][id].what && !graphs::is_maker(domain, id))  // those are always watched
        g_cupti->EnableCallback(on, g_subscriber, domain, id);
  }
}

void on_call(int domain, uint32_t number, const void* data) {
  bool driver = domain == cupti::kDomainDriver;
  // Without CUPTI: a forked child, where the callbacks of its parent still stand.
  if (!g_cupti || number >= kMostIds || !g_ids[driver][number].what) return;
  if (!__atomic_load_n(&g_on, __ATOMIC_ACQUIRE)) return;
  const Id& id = g_ids[driver][number];
  cupti::CallbackData call;
  memcpy(&call, data, sizeof call);
  if (t_since != g_since) {
    t_since = g_since;
    t_within = 0;
  }
  if (call.site == cupti::kSiteEnter) {
    if (!driver) t_within++;
    if (call.kept) *call.kept = now_ns();
    return;
  }
  if (!driver && t_within) t_within--;
  if (driver && t_within) return;
  uint64_t end = now_ns(), start = call.kept ? *call.kept : 0;
  // A call that was under way when recording began had no entry to note.
  if (start >= g_since && start <= end) note(id, driver, number, call, start, end);
}

void drain(Process& process) {
  if (!g_cupti) return;
  {
    Guard guard(g_rows);
    Noted empty = g_writing;
    g_writing = g_noted;
    g_noted = empty;
  }
  convert::noted(process, *g_cupti, g_writing.calls, g_writing.syncs, g_writing.events);
}

void forget() {
  g_rows.reset();
  g_cupti = nullptr;
  g_on = false;
  g_noted.calls.clear();
  g_noted.syncs.clear();
  g_noted.events.clear();
  t_thread = t_within = 0;
  g_recorded = 0;
  memset(g_recordings, 0, sizeof g_recordings);
}

}  // namespace api_calls
}  // namespace stepscope
