#include "nvtx_rows.h"

#include "seen.h"

namespace stepscope {
namespace nvtx {
namespace {

struct Thread {
  ChunkHeader* chunk;
  uint32_t id, generation;
  int depth;  // of push ranges in the default domain
};
// One pointer: a large thread-local block can make dlopen fail.
__thread Thread* t_thread __attribute__((tls_model("initial-exec")));
pthread_key_t g_key;
pthread_once_t g_key_once = PTHREAD_ONCE_INIT;
uint64_t g_range_ids = 0;  // atomic

void end_thread(void* thread) {
  t_thread = static_cast<Thread*>(thread);
  release_thread();
}
void make_key() { pthread_key_create(&g_key, end_thread); }

Thread* thread_of(Process& p) {
  Thread* t = t_thread;
  if (!t || t->generation != generation()) {
    pthread_once(&g_key_once, make_key);
    if (!t) t = static_cast<Thread*>(calloc(1, sizeof(Thread)));
    if (!t) return nullptr;
    *t = {nullptr, thread_id(), generation(), t->depth};
    t_thread = t;
    pthread_setspecific(g_key, t);
  }
  if (!t->chunk || t->chunk->used + sizeof(NvtxRow) > kChunkCapacity) {
    if (t->chunk) {
      p.chunks.finish(t->chunk);
      wake_writer();
    }
    t->chunk = p.chunks.acquire(kNvtx, sizeof(NvtxRow), t->id);
  }
  return t;
}

}  // namespace

void append(const void* row) {
  // A thread may work on while the capture ends. Its texts are no longer taken then, and a row of it
  // would stand there without its name.
  if (ended()) return;
  Thread* t = t_thread;
  if (!t || !t->chunk || t->generation != generation() ||
      t->chunk->used + sizeof(NvtxRow) > kChunkCapacity) {
    Process* p = process();
    if (!p) return;
    t = thread_of(*p);
    if (!t || !t->chunk) {
      __atomic_fetch_add(&p->nvtx_dropped, 1, __ATOMIC_RELAXED);
      return;
    }
  }
  ChunkHeader* chunk = t->chunk;
  memcpy(payload(chunk) + chunk->used, row, sizeof(NvtxRow));
  __atomic_store_n(&chunk->used, chunk->used + sizeof(NvtxRow), __ATOMIC_RELEASE);
}

uint32_t text_id(const char* text, size_t length) {
  Process* p = process();
  return p ? p->strings.id(text, length) : 0;
}
uint32_t text_id(const char* text) { return text ? text_id(text, strlen(text)) : 0; }
uint32_t wide_id(const wchar_t* text) {
  Process* p = process();
  return p ? p->strings.wide(text) : 0;
}

Registered* registered(const char* text) {
  size_t length = text ? strlen(text) : 0;
  auto* found = static_cast<Registered*>(calloc(1, sizeof(Registered) + length + 1));
  if (found && text) memcpy(found->text, text, length);
  return found;
}
Registered* registered(const wchar_t* text) {
  Text narrow;
  for (; text && *text; text++) {
    char c = *text < 0x80 ? static_cast<char>(*text) : '?';
    narrow.add(&c, 1);
  }
  Registered* found = registered(narrow.data());
  narrow.clear();
  return found;
}

uint32_t id_of(const void* handle) {
  auto* it = const_cast<Registered*>(static_cast<const Registered*>(handle));
  if (!it) return 0;
  if (__atomic_load_n(&it->generation, __ATOMIC_ACQUIRE) != generation()) {
    it->id = text_id(it->text);
    __atomic_store_n(&it->generation, generation(), __ATOMIC_RELEASE);
  }
  return it->id;
}

uint32_t message_id(const Event& e) {
  if (e.message_type == kAscii) return text_id(e.message.ascii);
  if (e.message_type == kWide) return wide_id(e.message.wide);
  if (e.message_type == kRegistered) return id_of(e.message.registered);
  return 0;
}

void append_payloads(const PayloadData* parts, size_t count) {
  constexpr size_t kMost = 4096;  // of one part
  for (size_t i = 0; parts && i < count && i < 16; i++) {
    size_t size = parts[i].data ? parts[i].size : 0;
    if (size == SIZE_MAX) size = strnlen(static_cast<const char*>(parts[i].data), kMost);
    if (size > kMost) size = kMost;
    for (size_t at = 0; at < size;) {
      NvtxBytes row{};
      row.schema = parts[i].schema;
      row.op = kBytes;
      row.total = static_cast<uint32_t>(size);
      size_t part = size - at < sizeof row.bytes ? size - at : sizeof row.bytes;
      row.used = static_cast<uint8_t>(part);
      memcpy(row.bytes, static_cast<const uint8_t*>(parts[i].data) + at, part);
      append(&row);
      at += part;
    }
  }
}

// Size of an event up to its message, which every version has.
bool sane(const Event* e) { return e && e->size >= sizeof(Event); }

void event(NvtxOp op, const void* domain, const Event* e, uint64_t id) {
  uint32_t domain_id = id_of(domain);
  uint32_t name = sane(e) ? message_id(*e) : 0;
  if (op == kPush || op == kStart) seen::note(name, domain_id);
  if (op != kMark && config().range == Range::kNvtx && starts_capture(domain_id, name))
    start_recording(kReasonNvtx);
  if (!nvtx_wanted()) return;
  NvtxRow row{};
  row.time = now_ns();
  row.op = op;
  row.domain = domain_id;
  row.name = name;
  row.id = id;
  const PayloadData* parts = nullptr;
  size_t count = 0;
  if (sane(e)) {
    row.category = e->category;
    row.has_color = e->color_type == 1;
    row.color = e->color;
    if (e->payload_type == kPayloadExtended) {
      parts = reinterpret_cast<const PayloadData*>(static_cast<uintptr_t>(e->payload.u64));
      count = static_cast<uint32_t>(e->reserved);
    } else {
      row.payload_type = static_cast<uint8_t>(e->payload_type);
      row.payload = e->payload.u64;
    }
  }
  append(&row);
  if (parts) append_payloads(parts, count);
}

void plain(NvtxOp op, uint32_t name, uint64_t id, uint32_t domain) {
  if (op == kPush || op == kStart) {
    seen::note(name, domain);
    if (config().range == Range::kNvtx && starts_capture(domain, name))
      start_recording(kReasonNvtx);
  }
  if (!nvtx_wanted()) return;
  NvtxRow row{};
  row.time = now_ns();
  row.op = op;
  row.name = name;
  row.id = id;
  row.domain = domain;
  append(&row);
}

int depth(int change) {
  Thread* t = t_thread;
  if (!t) return 0;
  t->depth += change;
  if (t->depth < 0) t->depth = 0;
  return change > 0 ? t->depth - 1 : t->depth;
}

uint64_t next_range() { return __atomic_add_fetch(&g_range_ids, 1, __ATOMIC_RELAXED); }

}  // namespace nvtx

using nvtx::Thread;
using nvtx::t_thread;

void release_thread() {
  Thread* t = t_thread;
  if (!t) return;
  if (t->chunk && t->generation == generation()) {
    Process* p = process();
    if (p) p->chunks.finish(t->chunk);
  }
  t->chunk = nullptr;
  t->generation = 0;
}

void forget_thread() {
  if (t_thread) {
    t_thread->chunk = nullptr;
    t_thread->generation = 0;
  }
}

}  // namespace stepscope
