// The functions that NVTX calls in the program's threads, and how it finds them.
#include "nvtx_rows.h"

namespace stepscope {
namespace nvtx {
namespace {

int push(const void* domain, const Event* e) {
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
uint64_t start(const void* domain, const Event* e, uint32_t name) {
  uint64_t id = next_range();
  bool begins = false;
  if (config().range == Range::kNvtx)
    begins = starts_capture(id_of(domain), e && sane(e) ? message_id(*e) : name);
  if (e) event(kStart, domain, e, id);
  else plain(kStart, name, id);
  if (begins) note_start(id);
  return id;
}
void end(const void* domain, uint64_t id) {
  plain(kEnd, 0, id, id_of(domain));
  note_end(id);
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

void mark_ex(const Event* e) { event(kMark, nullptr, e, 0); }
void mark_a(const char* m) { plain(kMark, text_id(m), 0); }
void mark_w(const wchar_t* m) { plain(kMark, wide_id(m), 0); }
uint64_t start_ex(const Event* e) { return start(nullptr, e, 0); }
uint64_t start_a(const char* m) { return start(nullptr, nullptr, text_id(m)); }
uint64_t start_w(const wchar_t* m) { return start(nullptr, nullptr, wide_id(m)); }
void end_plain(uint64_t id) { end(nullptr, id); }
int push_ex(const Event* e) { return push(nullptr, e); }
int push_a(const char* m) { return push_text(text_id(m)); }
int push_w(const wchar_t* m) { return push_text(wide_id(m)); }
int pop_plain() { return pop(nullptr); }
void category_a(uint32_t c, const char* m) { name_category(nullptr, c, text_id(m)); }
void category_w(uint32_t c, const wchar_t* m) { name_category(nullptr, c, wide_id(m)); }
void thread_a(uint32_t t, const char* m) { name_thread(t, text_id(m)); }
void thread_w(uint32_t t, const wchar_t* m) { name_thread(t, wide_id(m)); }

void domain_mark(const void* d, const Event* e) { event(kMark, d, e, 0); }
uint64_t domain_start(const void* d, const Event* e) { return start(d, e, 0); }
void domain_category_a(const void* d, uint32_t c, const char* m) { name_category(d, c, text_id(m)); }
void domain_category_w(const void* d, uint32_t c, const wchar_t* m) {
  name_category(d, c, wide_id(m));
}
const void* register_a(const void*, const char* m) { return registered(m); }
const void* register_w(const void*, const wchar_t* m) { return registered(m); }
const void* domain_a(const char* m) { return registered(m); }
const void* domain_w(const wchar_t* m) { return registered(m); }

template <class F>
Function plain_pointer(F* function) {
  return reinterpret_cast<Function>(function);
}

}  // namespace
}  // namespace nvtx
}  // namespace stepscope

using namespace stepscope;

// Called once for every copy of NVTX in the process, from any thread.
STEPSCOPE_EXPORT int InitializeInjectionNvtx2(nvtx::GetExport get_export) {
  if (!config().valid || !get_export) return 0;
  auto* callbacks = static_cast<const nvtx::Callbacks*>(get_export(nvtx::kExportCallbacks));
  if (!callbacks || !process()) return 0;
  using namespace nvtx;
  Function core[] = {
      nullptr,
      plain_pointer(mark_ex), plain_pointer(mark_a), plain_pointer(mark_w),
      plain_pointer(start_ex), plain_pointer(start_a), plain_pointer(start_w),
      plain_pointer(end_plain),
      plain_pointer(push_ex), plain_pointer(push_a), plain_pointer(push_w),
      plain_pointer(pop_plain),
      plain_pointer(category_a), plain_pointer(category_w),
      plain_pointer(thread_a), plain_pointer(thread_w)};
  Function core2[] = {
      nullptr,
      plain_pointer(domain_mark), plain_pointer(domain_start), plain_pointer(end),
      plain_pointer(push), plain_pointer(pop),
      nullptr, nullptr,  // resources are not recorded
      plain_pointer(domain_category_a), plain_pointer(domain_category_w),
      plain_pointer(register_a), plain_pointer(register_w),
      plain_pointer(domain_a), plain_pointer(domain_w)};
  struct {
    int module;
    Function* functions;
    unsigned count;
  } modules[] = {{kCore, core, sizeof core / sizeof *core},
                 {kCore2, core2, sizeof core2 / sizeof *core2}};
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
  for (size_t s = 0; s < module->segment_count; s++)
    for (size_t i = 0; i < nvtx::kPayloadFunctions && i < module->segments[s].slot_count; i++)
      module->segments[s].slots[i] = nvtx::payload_functions[i];
  return 1;
}

// Ranges of the Python hook. Each domain nests by itself, so a range may be told after its end.
STEPSCOPE_EXPORT void stepscope_range(const char* domain, const char* name, uint64_t begin_ns,
                                      uint64_t end_ns) {
  if (is_ours() || !nvtx_wanted()) return;
  NvtxRow row{};
  row.op = kPush;
  row.time = begin_ns;
  row.name = nvtx::text_id(name);
  row.domain = nvtx::text_id(domain);
  nvtx::append(&row);
  row.op = kPop;
  row.time = end_ns;
  nvtx::append(&row);
}
STEPSCOPE_EXPORT void stepscope_push(const char* name) {
  nvtx::plain(kPush, nvtx::text_id(name), 0, nvtx::text_id("stepscope"));
}
STEPSCOPE_EXPORT void stepscope_pop() { nvtx::plain(kPop, 0, 0, nvtx::text_id("stepscope")); }
