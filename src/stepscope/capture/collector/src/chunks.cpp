#include "chunks.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

namespace stepscope {
namespace {

constexpr uint32_t kHeapChunks = 512;  // 32 MiB: then rows are dropped rather than memory taken

// PyTorch's workers hand batches over through the same memory and die when it is full: it is used
// only while three quarters of it stay free.
bool has_room(int file, uint64_t bytes) {
  struct statvfs room;
  if (fstatvfs(file, &room)) return false;
  uint64_t free = uint64_t{room.f_bavail} * room.f_frsize;
  uint64_t whole = uint64_t{room.f_blocks} * room.f_frsize;
  return free >= bytes && free - bytes >= whole / 4 * 3;
}

uint32_t state_of(ChunkHeader* chunk) { return __atomic_load_n(&chunk->state, __ATOMIC_ACQUIRE); }
void set_state(ChunkHeader* chunk, uint32_t state) {
  __atomic_store_n(&chunk->state, state, __ATOMIC_RELEASE);
}

}  // namespace

void Chunks::open(const char* folder, const char* base, uint32_t bytes) {
  if (!folder[0] || bytes < kChunkBytes) return;
  snprintf(path_, sizeof path_, "%s/%s.pool", folder, base);
  int file = ::open(path_, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) {
    path_[0] = 0;
    return;
  }
  bytes = bytes / kChunkBytes * kChunkBytes;
  // Reserved now: touching a page that the file system cannot provide would kill the program.
  void* pool = has_room(file, bytes) && posix_fallocate(file, 0, bytes) == 0
                   ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                   : MAP_FAILED;
  ::close(file);
  if (pool == MAP_FAILED) {
    ::unlink(path_);
    path_[0] = 0;
    return;
  }
  pool_ = static_cast<uint8_t*>(pool);
  count_ = bytes / kChunkBytes;
}

ChunkHeader* Chunks::acquire(BlockKind kind, uint16_t row_bytes, uint32_t thread) {
  Guard guard(mutex_);
  ChunkHeader* found = nullptr;
  for (uint32_t i = 0; i < count_ && !found; i++) {
    auto* chunk = reinterpret_cast<ChunkHeader*>(pool_ + uint64_t{(cursor_ + i) % count_} * kChunkBytes);
    if (state_of(chunk) == kFree) {
      found = chunk;
      cursor_ = (cursor_ + i) % count_;  // the same one again: it is warm
    }
  }
  if (!found) {
    if (heap_count_ >= kHeapChunks) return nullptr;
    found = static_cast<ChunkHeader*>(malloc(kChunkBytes));
    auto* entry = static_cast<Heap*>(malloc(sizeof(Heap)));
    if (!found || !entry) {
      free(found);
      free(entry);
      return nullptr;
    }
    *entry = {heap_, found};
    heap_ = entry;
    heap_count_++;
  }
  found->magic = kChunkMagic;
  found->kind = kind;
  found->row_bytes = row_bytes;
  found->thread = thread;
  found->sequence = ++sequence_;
  __atomic_store_n(&found->used, 0, __ATOMIC_RELEASE);
  set_state(found, kFilling);
  return found;
}

void Chunks::finish(ChunkHeader* chunk) { set_state(chunk, kFull); }

void Chunks::write(Sink& sink, ChunkHeader* chunk) {
  uint32_t used = __atomic_load_n(&chunk->used, __ATOMIC_ACQUIRE);
  uint16_t row = chunk->row_bytes;
  if (used)
    sink.write(static_cast<BlockKind>(chunk->kind), row, row ? used / row : 1, payload(chunk), used,
               chunk->thread, chunk->sequence);
}

void Chunks::drain(Sink& sink, bool all) {
  // Texts last: what a row names was noted before it, and another thread may still note both.
  drain(sink, all, false);
  drain(sink, all, true);
}

void Chunks::drain(Sink& sink, bool all, bool texts) {
  for (uint32_t i = 0; i < count_; i++) {
    auto* chunk = reinterpret_cast<ChunkHeader*>(pool_ + uint64_t{i} * kChunkBytes);
    uint32_t state = state_of(chunk);
    if ((state == kFull || (all && state == kFilling)) && (chunk->kind == kStrings) == texts) {
      write(sink, chunk);
      if (state == kFull) set_state(chunk, kFree);
    }
  }
  Guard guard(mutex_);
  for (Heap** place = &heap_; *place;) {
    Heap* entry = *place;
    uint32_t state = state_of(entry->chunk);
    if ((entry->chunk->kind == kStrings) != texts) {
      place = &entry->next;
      continue;
    }
    if (state == kFull) {
      write(sink, entry->chunk);
      *place = entry->next;
      heap_count_--;
      free(entry->chunk);
      free(entry);
      continue;
    }
    if (all) write(sink, entry->chunk);
    place = &entry->next;
  }
}

void Chunks::remove() {
  if (path_[0]) ::unlink(path_);
  path_[0] = 0;
}

void Chunks::forget() {
  mutex_.reset();
  if (pool_) munmap(pool_, uint64_t{count_} * kChunkBytes);
  pool_ = nullptr;
  heap_ = nullptr;  // leaked: a few chunks, once a fork
  count_ = cursor_ = heap_count_ = 0;
  sequence_ = 0;
  path_[0] = 0;
}

}  // namespace stepscope
