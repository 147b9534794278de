// NVTX events become rows in the calling thread's chunk: one clock read, one table lookup, one
// 48-byte store.
#include "nvtx_abi.h"

#include "process.h"

namespace stepscope {
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
uint64_t g_range_ids = 0;   // atomic
uint64_t g_schema_ids = uint64_t{1} << 32;  // atomic; NVTX's range for ids given by tools

struct Registered {  // a domain or a string that the program holds a handle of
  uint32_t id, generation;
  char text[];
};

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

void append(const void* row) {
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

uint32_t message_id(const nvtx::Event& e) {
  if (e.message_type == nvtx::kAscii) return text_id(e.message.ascii);
  if (e.message_type == nvtx::kWide) return wide_id(e.message.wide);
  if (e.message_type == nvtx::kRegistered) return id_of(e.message.registered);
  return 0;
}

void append_payloads(const nvtx::PayloadData* parts, size_t count) {
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
bool sane(const nvtx::Event* e) { return e && e->size >= sizeof(nvtx::Event); }

bool starts_capture(uint32_t domain, uint32_t name);

void event(NvtxOp op, const void* domain, const nvtx::Event* e, uint64_t id) {
  uint32_t domain_id = id_of(domain);
  uint32_t name = sane(e) ? message_id(*e) : 0;
  if (op != kMark && config().range == Range::kNvtx && starts_capture(domain_id, name))
    start_recording(kReasonNvtx);
  if (!nvtx_wanted()) return;
  NvtxRow row{};
  row.time = now_ns();
  row.op = op;
  row.domain = domain_id;
  row.name = name;
  row.id = id;
  const nvtx::PayloadData* parts = nullptr;
  size_t count = 0;
  if (sane(e)) {
    row.category = e->category;
    row.has_color = e->color_type == 1;
    row.color = e->color;
    if (e->payload_type == nvtx::kPayloadExtended) {
      parts = reinterpret_cast<const nvtx::PayloadData*>(static_cast<uintptr_t>(e->payload.u64));
      count = static_cast<uint32_t>(e->reserved);
    } else {
      row.payload_type = static_cast<uint8_t>(e->payload_type);
      row.payload = e->payload.u64;
    }
  }
  append(&row);
  if (parts) append_payloads(parts, count);
}

void plain(NvtxOp op, uint32_t name, uint64_t id, uint32_t domain = 0) {
  if ((op == kPush || op == kStart) && config().range == Range::kNvtx &&
      starts_capture(domain, name))
    start_recording(kReasonNvtx);
  if (!nvtx_wanted()) return;
  NvtxRow row{};
  row.time = now_ns();
  row.op = op;
  row.name = name;
  row.id = id;
  row.domain = domain;
  append(&row);
}

// --- capture by the name of a range: from its push to its pop -------------------------------------

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

// --- the functions that NVTX calls ---------------------------------------------------------------

int depth(int change) {
  Thread* t = t_thread;
  if (!t) return 0;
  t->depth += change;
  if (t->depth < 0) t->depth = 0;
  return change > 0 ? t->depth - 1 : t->depth;
}
uint64_t next_range() { return __atomic_add_fetch(&g_range_ids, 1, __ATOMIC_RELAXED); }

int push(const void* domain, const nvtx::Event* e) {
  event(kPush, domain, e, 0);
  if (config().range == Range::kNvtx) note_push(id_of(domain), sane(e) ? message_id(*e) : 0);
  return domain ? 0 : depth(1);
}
int push_text(uint32_t name) {
  plain(kPush, name, 0);
  note_push(0, name);
  return depth(1);
}
int pop(const void* domain) {
  uint32_t id = id_of(domain);
  plain(kPop, 0, 0, id);
  note_pop(id);
  return domain ? 0 : depth(-1);
}
uint64_t start(const void* domain, const nvtx::Event* e, uint32_t name) {
  uint64_t id = next_range();
  bool begins = false;
  if (config().range == Range::kNvtx)
    begins = starts_capture(id_of(domain), e && sane(e) ? message_id(*e) : name);
  if (e) event(kStart, domain, e, id);
  else plain(kStart, name, id);
  if (begins) g_watched.range = id;
  return id;
}
void end(const void* domain, uint64_t id) {
  plain(kEnd, 0, id, id_of(domain));
  if (g_watched.range == id && id) {
    stop_recording(kReasonNvtx);
    g_watched.range = 0;
  }
}
void name_category(const void* domain, uint32_t category, uint32_t name) {
  NvtxRow row{};
  row.time = now_ns();
  row.op = kCategoryName;
  row.domain = id_of(domain);
  row.category = category;
  row.name = name;
  append(&row);
}
void name_thread(uint32_t thread, uint32_t name) {
  NvtxRow row{};
  row.time = now_ns();
  row.op = kThreadName;
  row.id = thread;
  row.name = name;
  append(&row);
}

void mark_ex(const nvtx::Event* e) { event(kMark, nullptr, e, 0); }
void mark_a(const char* m) { plain(kMark, text_id(m), 0); }
void mark_w(const wchar_t* m) { plain(kMark, wide_id(m), 0); }
uint64_t start_ex(const nvtx::Event* e) { return start(nullptr, e, 0); }
uint64_t start_a(const char* m) { return start(nullptr, nullptr, text_id(m)); }
uint64_t start_w(const wchar_t* m) { return start(nullptr, nullptr, wide_id(m)); }
void end_plain(uint64_t id) { end(nullptr, id); }
int push_ex(const nvtx::Event* e) { return push(nullptr, e); }
int push_a(const char* m) { return push_text(text_id(m)); }
int push_w(const wchar_t* m) { return push_text(wide_id(m)); }
int pop_plain() { return pop(nullptr); }
void category_a(uint32_t c, const char* m) { name_category(nullptr, c, text_id(m)); }
void category_w(uint32_t c, const wchar_t* m) { name_category(nullptr, c, wide_id(m)); }
void thread_a(uint32_t t, const char* m) { name_thread(t, text_id(m)); }
void thread_w(uint32_t t, const wchar_t* m) { name_thread(t, wide_id(m)); }

void domain_mark(const void* d, const nvtx::Event* e) { event(kMark, d, e, 0); }
uint64_t domain_start(const void* d, const nvtx::Event* e) { return start(d, e, 0); }
void domain_category_a(const void* d, uint32_t c, const char* m) { name_category(d, c, text_id(m)); }
void domain_category_w(const void* d, uint32_t c, const wchar_t* m) {
  name_category(d, c, wide_id(m));
}
const void* register_a(const void*, const char* m) { return registered(m); }
const void* register_w(const void*, const wchar_t* m) { return registered(m); }
const void* domain_a(const char* m) { return registered(m); }
const void* domain_w(const wchar_t* m) { return registered(m); }

// --- the payload extension: binary data with a schema (NCCL describes its collectives so) ---------

uint64_t schema_register(const void*, const nvtx::Schema* s) {
  if (!s) return 0;
  uint64_t id = s->field_mask & nvtx::kHasId && s->id
                    ? s->id
                    : __atomic_fetch_add(&g_schema_ids, 1, __ATOMIC_RELAXED);
  Text json;
  json.add("{\"name\":");
  json.quote(s->field_mask & nvtx::kHasName && s->name ? s->name : "");
  json.format(",\"size\":%zu,\"entries\":[", s->field_mask & nvtx::kHasSize ? s->static_size : 0);
  size_t count = s->field_mask & nvtx::kHasEntries && s->entries ? s->entry_count : 0;
  for (size_t i = 0; i < count && i < 256; i++) {
    const nvtx::SchemaEntry& entry = s->entries[i];
    json.format("%s{\"flags\":%llu,\"type\":%llu,\"detail\":%llu,\"offset\":%llu,\"name\":",
                i ? "," : "", static_cast<unsigned long long>(entry.flags),
                static_cast<unsigned long long>(entry.type),
                static_cast<unsigned long long>(entry.array_or_union),
                static_cast<unsigned long long>(entry.offset));
    json.quote(entry.name ? entry.name : "");
    json.add("}");
  }
  json.add("]}");
  NvtxRow row{};
  row.time = now_ns();
  row.op = kSchema;
  row.id = id;
  row.name = text_id(json.data(), json.size());
  json.clear();
  append(&row);
  return id;
}
uint64_t enum_register(const void*, const nvtx::Schema* s) {
  // Values of enumerations are recorded as numbers; nvtxPayloadEnumAttr_t keeps its id elsewhere.
  struct Enum {
    uint64_t field_mask;
    const char* name;
    const void* entries;
    size_t count, size;
    uint64_t id;
  };
  auto* e = reinterpret_cast<const Enum*>(s);
  return e && e->field_mask & (1 << 5) && e->id
             ? e->id
             : __atomic_fetch_add(&g_schema_ids, 1, __ATOMIC_RELAXED);
}

void with_payload(NvtxOp op, const void* domain, const nvtx::PayloadData* parts, size_t count,
                  uint64_t id) {
  if (!nvtx_wanted()) return;
  NvtxRow row{};
  row.time = now_ns();
  row.op = op;
  row.domain = id_of(domain);
  row.id = id;
  append(&row);
  append_payloads(parts, count);
}
void mark_payload(const void* d, const nvtx::PayloadData* p, size_t n) {
  with_payload(kMark, d, p, n, 0);
}
int push_payload(const void* d, const nvtx::PayloadData* p, size_t n) {
  with_payload(kPush, d, p, n, 0);
  note_push(id_of(d), 0);
  return 0;
}
int pop_payload(const void* d, const nvtx::PayloadData* p, size_t n) {
  with_payload(kPop, d, p, n, 0);
  note_pop(id_of(d));
  return 0;
}
uint64_t start_payload(const void* d, const nvtx::PayloadData* p, size_t n) {
  uint64_t id = next_range();
  with_payload(kStart, d, p, n, id);
  return id;
}
void end_payload(const void* d, uint64_t id, const nvtx::PayloadData* p, size_t n) {
  with_payload(kEnd, d, p, n, id);
}
uint8_t domain_enabled(const void*) { return 1; }

template <class F>
nvtx::Function plain_pointer(F* function) {
  return reinterpret_cast<nvtx::Function>(function);
}

}  // namespace

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

using namespace stepscope;

// Called once for every copy of NVTX in the process, from any thread.
STEPSCOPE_EXPORT int InitializeInjectionNvtx2(nvtx::GetExport get_export) {
  if (!config().valid || !get_export) return 0;
  auto* callbacks = static_cast<const nvtx::Callbacks*>(get_export(nvtx::kExportCallbacks));
  if (!callbacks || !process()) return 0;
  nvtx::Function core[] = {
      nullptr,
      plain_pointer(mark_ex), plain_pointer(mark_a), plain_pointer(mark_w),
      plain_pointer(start_ex), plain_pointer(start_a), plain_pointer(start_w),
      plain_pointer(end_plain),
      plain_pointer(push_ex), plain_pointer(push_a), plain_pointer(push_w),
      plain_pointer(pop_plain),
      plain_pointer(category_a), plain_pointer(category_w),
      plain_pointer(thread_a), plain_pointer(thread_w)};
  nvtx::Function core2[] = {
      nullptr,
      plain_pointer(domain_mark), plain_pointer(domain_start), plain_pointer(end),
      plain_pointer(push), plain_pointer(pop),
      nullptr, nullptr,  // resources are not recorded
      plain_pointer(domain_category_a), plain_pointer(domain_category_w),
      plain_pointer(register_a), plain_pointer(register_w),
      plain_pointer(domain_a), plain_pointer(domain_w)};
  struct {
    int module;
    nvtx::Function* functions;
    unsigned count;
  } modules[] = {{nvtx::kCore, core, sizeof core / sizeof *core},
                 {nvtx::kCore2, core2, sizeof core2 / sizeof *core2}};
  for (auto& module : modules) {
    nvtx::Function** table = nullptr;
    unsigned size = 0;
    if (!callbacks->get_table(module.module, &table, &size) || !table) continue;
    for (unsigned i = 1; i < size && i < module.count; i++)
      if (module.functions[i] && table[i]) *table[i] = module.functions[i];
  }
  return 1;
}

STEPSCOPE_EXPORT int InitializeInjectionNvtxExtension(nvtx::Module* module) {
  if (!config().valid || !module || module->module != nvtx::kPayloadModule) return 0;
  intptr_t functions[] = {
      reinterpret_cast<intptr_t>(schema_register), reinterpret_cast<intptr_t>(enum_register),
      reinterpret_cast<intptr_t>(mark_payload), reinterpret_cast<intptr_t>(push_payload),
      reinterpret_cast<intptr_t>(pop_payload), reinterpret_cast<intptr_t>(start_payload),
      reinterpret_cast<intptr_t>(end_payload), reinterpret_cast<intptr_t>(domain_enabled)};
  for (size_t s = 0; s < module->segment_count; s++)
    for (size_t i = 0; i < 8 && i < module->segments[s].slot_count; i++)
      module->segments[s].slots[i] = functions[i];
  return 1;
}

// Ranges of the Python hook. Each domain nests by itself, so a range may be told after its end.
STEPSCOPE_EXPORT void stepscope_range(const char* domain, const char* name, uint64_t begin_ns,
                                      uint64_t end_ns) {
  if (is_ours() || !nvtx_wanted()) return;
  NvtxRow row{};
  row.op = kPush;
  row.time = begin_ns;
  row.name = text_id(name);
  row.domain = text_id(domain);
  append(&row);
  row.op = kPop;
  row.time = end_ns;
  append(&row);
}
STEPSCOPE_EXPORT void stepscope_push(const char* name) {
  plain(kPush, text_id(name), 0, text_id("stepscope"));
}
STEPSCOPE_EXPORT void stepscope_pop() { plain(kPop, 0, 0, text_id("stepscope")); }
