// NVTX events as rows in the calling thread's chunk: one clock read, one table lookup, one
// 48-byte store.
#pragma once
#include "nvtx_abi.h"
#include "process.h"

namespace stepscope {
namespace nvtx {

struct Registered {  // a domain or a string that the program holds a handle of
  uint32_t id, generation;
  char text[];
};

void append(const void* row);  // one NvtxRow or NvtxBytes
// Texts of the program by number; 0 for null.
uint32_t text_id(const char* text, size_t length);
uint32_t text_id(const char* text);
uint32_t wide_id(const wchar_t* text);
uint32_t message_id(const Event& event);
// Handles of domains and strings, which the program keeps; their texts are numbered again after a
// fork.
Registered* registered(const char* text);
Registered* registered(const wchar_t* text);
uint32_t id_of(const void* handle);
bool sane(const Event* event);  // whether it is whole up to its message
// Records an event with its attributes, or with a name only.
void event(NvtxOp op, const void* domain, const Event* e, uint64_t id);
void plain(NvtxOp op, uint32_t name, uint64_t id, uint32_t domain = 0);
void append_payloads(const PayloadData* parts, size_t count);
int depth(int change);  // of the thread's push ranges in the default domain
uint64_t next_range();  // number of a start/end range

// Capture by the name of a range: from its push to its pop, or from its start to its end.
bool starts_capture(uint32_t domain, uint32_t name);
void note_push(uint32_t domain, uint32_t name);
void note_pop(uint32_t domain);
void note_start(uint64_t range);
void note_end(uint64_t range);

// The payload extension's functions, in the order of their slots.
constexpr size_t kPayloadFunctions = 8;
extern const intptr_t payload_functions[kPayloadFunctions];

}  // namespace nvtx
}  // namespace stepscope
