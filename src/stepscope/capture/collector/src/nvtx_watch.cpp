#include "nvtx_rows.h"

namespace stepscope {
namespace nvtx {
namespace {

struct Watched {
  uint32_t generation, name, domain;
  uint32_t thread;   // whose push began it; 0 none
  int depth;         // of push ranges of that domain above it
  uint64_t range;    // start/end range that began it
};
Watched g_watched;  // changed by the watched thread, and by others only while nobody watches

void know_watched() {
  if (g_watched.generation == generation()) return;
  g_watched = {generation(), text_id(config().nvtx_name), text_id(config().nvtx_domain), 0, 0, 0};
  if (!config().nvtx_domain[0]) g_watched.domain = 0;
}

}  // namespace

bool starts_capture(uint32_t domain, uint32_t name) {
  know_watched();
  return name && name == g_watched.name && !g_watched.thread && !g_watched.range &&
         (!config().nvtx_domain[0] || domain == g_watched.domain);
}

void note_push(uint32_t domain, uint32_t name) {
  if (config().range != Range::kNvtx) return;
  know_watched();
  if (g_watched.thread == thread_id() && domain == g_watched.domain) {
    g_watched.depth++;
  } else if (starts_capture(domain, name)) {
    g_watched.domain = domain;
    g_watched.depth = 0;
    g_watched.thread = thread_id();
  }
}

void note_pop(uint32_t domain) {
  if (config().range != Range::kNvtx || g_watched.thread != thread_id() ||
      domain != g_watched.domain)
    return;
  if (g_watched.depth-- > 0) return;
  stop_recording(kReasonNvtx);
  g_watched.thread = 0;
  if (!config().nvtx_domain[0]) g_watched.domain = 0;
}

void note_start(uint64_t range) { g_watched.range = range; }

void note_end(uint64_t range) {
  if (!range || g_watched.range != range) return;
  stop_recording(kReasonNvtx);
  g_watched.range = 0;
}

}  // namespace nvtx
}  // namespace stepscope
