#include "seen.h"

namespace stepscope {
namespace seen {
namespace {

constexpr uint32_t kMost = 4096;      // distinct names
constexpr uint32_t kLongestName = 100;

struct Count {
  uint32_t times, domain;  // atomic
};
Count g_counts[kMost];
uint32_t g_more = 0, g_any = 0;  // atomic

struct Name {
  const char* text;
  uint32_t length;
};

void take(void* to, uint32_t id, const char* text, uint32_t length) {
  if (id < kMost) static_cast<Name*>(to)[id] = {text, length};
}

void quote(Text& json, const Name& name) {
  json.quote(name.text ? name.text : "", name.length < kLongestName ? name.length : kLongestName);
}

}  // namespace

void note(uint32_t name, uint32_t domain) {
  if (config().range == Range::kProcess || ever_recorded() || !name) return;
  __atomic_store_n(&g_any, 1, __ATOMIC_RELAXED);
  if (name >= kMost) {
    __atomic_fetch_add(&g_more, 1, __ATOMIC_RELAXED);
    return;
  }
  __atomic_store_n(&g_counts[name].domain, domain, __ATOMIC_RELAXED);
  __atomic_fetch_add(&g_counts[name].times, 1, __ATOMIC_RELAXED);
}

void write(Process& process) {
  if (ever_recorded() || !__atomic_load_n(&g_any, __ATOMIC_RELAXED)) return;
  auto* names = static_cast<Name*>(calloc(kMost, sizeof(Name)));
  if (!names) return;
  process.strings.each(take, names);
  Text json;
  json.format("{\"type\":\"seen\",\"more\":%u,\"ranges\":[",
              __atomic_load_n(&g_more, __ATOMIC_RELAXED));
  bool first = true;
  for (uint32_t id = 1; id < kMost; id++) {
    uint32_t times = __atomic_load_n(&g_counts[id].times, __ATOMIC_RELAXED);
    uint32_t domain = __atomic_load_n(&g_counts[id].domain, __ATOMIC_RELAXED);
    if (!times || !names[id].text) continue;
    json.add(first ? "[" : ",[");
    first = false;
    quote(json, names[id]);
    json.add(",");
    quote(json, domain < kMost ? names[domain] : Name{nullptr, 0});
    json.format(",%u]", times);
  }
  json.add("]}");
  process.sink.json(json);
  json.clear();
  free(names);
}

void forget() {
  if (g_any) memset(g_counts, 0, sizeof g_counts);
  g_more = g_any = 0;
}

bool Times::due(uint64_t now_ns) {
  if (ever_recorded() || !__atomic_load_n(&g_any, __ATOMIC_RELAXED)) return false;
  if (!next_ns_) next_ns_ = now_ns + pause_ns_;
  if (now_ns < next_ns_) return false;
  pause_ns_ *= 2;
  next_ns_ = now_ns + pause_ns_;
  return true;
}

}  // namespace seen
}  // namespace stepscope
