#include "buffers.h"

#include <stdlib.h>

#include "process.h"

namespace stepscope {
namespace buffers {
namespace {

// Small, because a buffer with one unfinished record in it only comes back when it is full: this
// bounds what a killed process loses.
constexpr size_t kBytes = 512 * 1024;
constexpr int kReady = 8;  // touched beforehand: a page fault would hit a launching thread

Mutex g_lists;
uint8_t* g_free = nullptr;  // singly linked through its first word
Full* g_full = nullptr;
uint32_t g_full_count = 0, g_full_room = 0;
uint64_t g_made = 0;

}  // namespace

void prepare() {
  for (int i = 0; i < kReady; i++)
    if (auto* data = static_cast<uint8_t*>(aligned_alloc(64, kBytes))) {
      memset(data, 0, kBytes);
      give_back(data);
    }
}

void requested(uint8_t** buffer, size_t* bytes, size_t* most) {
  {
    Guard guard(g_lists);
    *buffer = g_free;
    if (g_free) memcpy(&g_free, g_free, sizeof g_free);
    else g_made++;
  }
  if (!*buffer) *buffer = static_cast<uint8_t*>(aligned_alloc(64, kBytes));
  *bytes = *buffer ? kBytes : 0;
  *most = 0;
}

void completed(void* context, uint32_t stream, uint8_t* data, size_t, size_t valid) {
  {
    Guard guard(g_lists);
    if (g_full_count == g_full_room) {
      g_full_room = g_full_room ? g_full_room * 2 : 256;
      g_full = static_cast<Full*>(realloc(g_full, g_full_room * sizeof(Full)));
    }
    g_full[g_full_count++] = {data, context, valid, stream};
  }
  wake_writer();
}

Full* take(uint32_t* count) {
  Guard guard(g_lists);
  Full* full = g_full;
  *count = g_full_count;
  g_full = nullptr;
  g_full_count = g_full_room = 0;
  return full;
}

void give_back(uint8_t* data) {
  Guard guard(g_lists);
  memcpy(data, &g_free, sizeof g_free);
  g_free = data;
}

uint64_t made() { return g_made; }

void forget() {
  g_lists.reset();
  g_free = nullptr;
  g_full = nullptr;
  g_full_count = g_full_room = 0;
  g_made = 0;
}

}  // namespace buffers
}  // namespace stepscope
