#include "graphs.h"

#include "util.h"

namespace stepscope {
namespace graphs {
namespace {

// Beginnings of the driver's functions; the runtime's call them. A capture that has begun counts:
// its graph comes later.
constexpr const char* kMakers[] = {"cuStreamBeginCapture", "cuGraphCreate", "cuGraphInstantiate"};

bool g_makers[cupti::kMostIds];
bool g_made = false;  // atomic

}  // namespace

void watch(const cupti::Library& cupti, void* subscriber) {
  cupti::each_function(cupti, cupti::kDomainDriver, [&](uint32_t id, const char* name) {
    for (const char* maker : kMakers)
      if (!strncmp(name, maker, strlen(maker))) g_makers[id] = true;
    if (g_makers[id]) cupti.EnableCallback(1, subscriber, cupti::kDomainDriver, id);
  });
}

bool is_maker(int domain, uint32_t id) {
  return domain == cupti::kDomainDriver && id < cupti::kMostIds && g_makers[id];
}

void note_made() { __atomic_store_n(&g_made, true, __ATOMIC_RELEASE); }
bool made() { return __atomic_load_n(&g_made, __ATOMIC_ACQUIRE); }

void forget() {
  g_made = false;
  memset(g_makers, 0, sizeof g_makers);
}

}  // namespace graphs
}  // namespace stepscope
