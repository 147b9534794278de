// NVTX's payload extension: binary data with a schema. NCCL describes its collectives so.
#include "nvtx_rows.h"

namespace stepscope {
namespace nvtx {
namespace {

uint64_t g_schema_ids = uint64_t{1} << 32;  // atomic; NVTX's range for ids given by tools

uint64_t schema_register(const void*, const Schema* s) {
  if (!s) return 0;
  uint64_t id = s->field_mask & kHasId && s->id
                    ? s->id
                    : __atomic_fetch_add(&g_schema_ids, 1, __ATOMIC_RELAXED);
  Text json;
  json.add("{\"name\":");
  json.quote(s->field_mask & kHasName && s->name ? s->name : "");
  json.format(",\"size\":%zu,\"entries\":[", s->field_mask & kHasSize ? s->static_size : 0);
  size_t count = s->field_mask & kHasEntries && s->entries ? s->entry_count : 0;
  for (size_t i = 0; i < count && i < 256; i++) {
    const SchemaEntry& entry = s->entries[i];
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
uint64_t enum_register(const void*, const Schema* s) {
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

void with_payload(NvtxOp op, const void* domain, const PayloadData* parts, size_t count,
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
void mark_payload(const void* d, const PayloadData* p, size_t n) {
  with_payload(kMark, d, p, n, 0);
}
int push_payload(const void* d, const PayloadData* p, size_t n) {
  with_payload(kPush, d, p, n, 0);
  note_push(id_of(d), 0);
  return 0;
}
int pop_payload(const void* d, const PayloadData* p, size_t n) {
  with_payload(kPop, d, p, n, 0);
  note_pop(id_of(d));
  return 0;
}
uint64_t start_payload(const void* d, const PayloadData* p, size_t n) {
  uint64_t id = next_range();
  with_payload(kStart, d, p, n, id);
  return id;
}
void end_payload(const void* d, uint64_t id, const PayloadData* p, size_t n) {
  with_payload(kEnd, d, p, n, id);
}
uint8_t domain_enabled(const void*) { return 1; }

}  // namespace

const intptr_t payload_functions[kPayloadFunctions] = {
    reinterpret_cast<intptr_t>(schema_register), reinterpret_cast<intptr_t>(enum_register),
    reinterpret_cast<intptr_t>(mark_payload),    reinterpret_cast<intptr_t>(push_payload),
    reinterpret_cast<intptr_t>(pop_payload),     reinterpret_cast<intptr_t>(start_payload),
    reinterpret_cast<intptr_t>(end_payload),     reinterpret_cast<intptr_t>(domain_enabled)};

}  // namespace nvtx
}  // namespace stepscope
