// NVTX's interface to tools, as far as it is used: numbers and layouts of its public headers
// (version 3; version 2 has the same core).
#pragma once
#include <cstddef>
#include <cstdint>

namespace stepscope {
namespace nvtx {

struct Event {  // nvtxEventAttributes_t
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  union {
    uint64_t u64;
    int64_t i64;
    double f64;
    uint32_t u32;
    int32_t i32;
    float f32;
  } payload;
  int32_t message_type;
  union {
    const char* ascii;
    const wchar_t* wide;
    const void* registered;
  } message;
};
static_assert(sizeof(Event) == 48);

constexpr int32_t kAscii = 1, kWide = 2, kRegistered = 3;
constexpr int32_t kPayloadExtended = static_cast<int32_t>(0xDFBD0009);

struct PayloadData {  // nvtxPayloadData_t
  uint64_t schema;
  size_t size;
  const void* data;
};

struct SchemaEntry {  // nvtxPayloadSchemaEntry_t
  uint64_t flags, type;
  const char *name, *description;
  uint64_t array_or_union, offset;
  const void *semantics, *reserved;
};
static_assert(sizeof(SchemaEntry) == 64);

struct Schema {  // nvtxPayloadSchemaAttr_t
  uint64_t field_mask;
  const char* name;
  uint64_t type, flags;
  const SchemaEntry* entries;
  size_t entry_count, static_size, alignment;
  uint64_t id;
  void* extension;
};
constexpr uint64_t kHasName = 1 << 1, kHasEntries = 1 << 4, kHasCount = 1 << 5, kHasSize = 1 << 6,
                   kHasId = 1 << 8;

struct Segment {
  size_t id, slot_count;
  intptr_t* slots;
};
struct Module {  // nvtxExtModuleInfo_t
  uint16_t version, struct_size, module, compatibility;
  size_t segment_count;
  Segment* segments;
  void* get_export;
  const void* info;
};
constexpr uint16_t kPayloadModule = 2;

using Function = void (*)();
struct Callbacks {
  size_t struct_size;
  int (*get_table)(int module, Function*** table, unsigned* size);
};
using GetExport = const void* (*)(uint32_t);
constexpr uint32_t kExportCallbacks = 1;
constexpr int kCore = 1, kCore2 = 5;

}  // namespace nvtx
}  // namespace stepscope
