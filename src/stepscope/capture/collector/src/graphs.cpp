#include "graphs.h"

#include "util.h"

namespace stepscope {
namespace graphs {
namespace {

// Beginnings of the driver's functions; the runtime's call them. A capture that has begun counts:
// its graph comes later.
constexpr const char* kMakers[] = {"cuStreamBeginCapture", "cuGraphCreate", "cuGraphInstantiate"};
constexpr uint32_t kMostIds = 2048, kUnknownInARow = 64;

bool g_makers[kMostIds];
bool g_made = false;  // atomic

}  // namespace

void watch(const cupti::Library& cupti, void* subscriber) {
  uint32_t unknown = 0;
  for (uint32_t id = 1; id < kMostIds && unknown < kUnknownInARow; id++) {
    const char* name = nullptr;
    bool known = cupti.GetCallbackName(cupti::kDomainDriver, id, &name) == cupti::kSuccess && name;
    unknown = known ? 0 : unknown + 1;
    if (!known) continue;
    for (const char* maker : kMakers)
      if (!strncmp(name, maker, strlen(maker))) {
        g_makers[id] = true;
        cupti.EnableCallback(1, subscriber, cupti::kDomainDriver, id);
        break;
      }
  }
}

bool is_maker(int domain, uint32_t id) {
  return domain == cupti::kDomainDriver && id < kMostIds && g_makers[id];
}

void note_made() { __atomic_store_n(&g_made, true, __ATOMIC_RELEASE); }
bool made() { return __atomic_load_n(&g_made, __ATOMIC_ACQUIRE); }

void forget() {
  g_made = false;
  memset(g_makers, 0, sizeof g_makers);
}

}  // namespace graphs
}  // namespace stepscope
