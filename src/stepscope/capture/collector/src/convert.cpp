#include "convert.h"

#include <cxxabi.h>

#include "calls.h"

namespace stepscope {
namespace convert {
namespace {

using namespace cupti::field;

constexpr uint32_t kMostCalls = 4096;  // callback ids known so far stay under 1000

struct Batch {
  Rows<KernelRow> kernels;
  Rows<CopyRow> copies;
  Rows<SetRow> sets;
  Rows<ApiRow> calls;
  Rows<OverheadRow> overheads;
  Rows<GraphRow> graphs;
  Rows<MemoryRow> memories;
  Rows<StreamRow> streams;
  Rows<ApiNameRow> names;
};
Batch g_batch;  // kept between buffers: its memory is reused

struct Symbol {
  const char* pointer;
  char* copy;  // what stood there: addresses are reused when modules are unloaded
  uint32_t symbol, name;
};
constexpr uint32_t kSymbolSlots = 1 << 14;
Symbol* g_symbols = nullptr;
uint8_t g_named[2][kMostCalls];
uint8_t g_query_only[kMostCalls];
bool g_query_only_known = false;
int64_t g_offset = 0;

void know_query_only() {
  if (g_query_only_known) return;
  g_query_only_known = true;
  for (uint16_t id : kQueryOnlyRuntimeCalls) g_query_only[id] = 1;
}

void name_kernel(Process& p, const char* text, uint32_t* symbol, uint32_t* name) {
  *symbol = *name = 0;
  if (!text) return;
  if (!g_symbols) g_symbols = static_cast<Symbol*>(calloc(kSymbolSlots, sizeof(Symbol)));
  uint64_t at = (reinterpret_cast<uintptr_t>(text) >> 3) * 0x9E3779B97F4A7C15ull >> 50;
  Symbol* slot = nullptr;
  for (uint32_t i = 0; g_symbols && i < 64; i++) {
    slot = &g_symbols[(at + i) % kSymbolSlots];
    if (slot->pointer == text || !slot->pointer) break;
    slot = nullptr;
  }
  if (slot && slot->pointer && !strcmp(slot->copy, text)) {
    *symbol = slot->symbol;
    *name = slot->name;
    return;
  }
  int status = 0;
  char* plain = abi::__cxa_demangle(text, nullptr, nullptr, &status);
  *symbol = p.strings.id(text);
  *name = status == 0 && plain ? p.strings.id(plain) : *symbol;
  free(plain);
  if (slot) {
    free(slot->copy);
    *slot = {text, strdup(text), *symbol, *name};
    if (!slot->copy) slot->pointer = nullptr;
  }
}

void name_call(Process& p, const cupti::Library& cupti, bool driver, uint32_t id) {
  if (id >= kMostCalls || g_named[driver][id]) return;
  g_named[driver][id] = 1;
  const char* name = nullptr;
  if (cupti.GetCallbackName(driver ? cupti::kDomainDriver : cupti::kDomainRuntime, id, &name) ||
      !name)
    return;
  ApiNameRow* row = g_batch.names.add();
  row->call = id | (driver ? kDriverCall : 0);
  row->name = p.strings.id(name);
}

uint64_t time_of(uint64_t ns) { return ns ? ns - static_cast<uint64_t>(g_offset) : 0; }

void kernel(Process& p, const uint8_t* r) {
  KernelRow* row = g_batch.kernels.add();
  row->start = time_of(Kernel::start(r));
  row->end = time_of(Kernel::end(r));
  row->graph_node = Kernel::graphNodeId(r);
  row->correlation = Kernel::correlationId(r);
  name_kernel(p, Kernel::name(r), &row->symbol, &row->name);
  row->device = Kernel::deviceId(r);
  row->context = Kernel::contextId(r);
  row->stream = Kernel::streamId(r);
  row->grid[0] = Kernel::gridX(r);
  row->grid[1] = Kernel::gridY(r);
  row->grid[2] = Kernel::gridZ(r);
  row->block[0] = Kernel::blockX(r);
  row->block[1] = Kernel::blockY(r);
  row->block[2] = Kernel::blockZ(r);
  row->static_shared = static_cast<uint32_t>(Kernel::staticSharedMemory(r));
  row->dynamic_shared = static_cast<uint32_t>(Kernel::dynamicSharedMemory(r));
  row->local = Kernel::localMemoryPerThread(r);
  row->registers = Kernel::registersPerThread(r);
  row->graph = Kernel::graphId(r);
}

void copy(const uint8_t* r) {
  CopyRow* row = g_batch.copies.add();
  row->start = time_of(Memcpy::start(r));
  row->end = time_of(Memcpy::end(r));
  row->bytes = Memcpy::bytes(r);
  row->graph_node = Memcpy::graphNodeId(r);
  row->correlation = Memcpy::correlationId(r);
  row->device = row->src_device = row->dst_device = Memcpy::deviceId(r);
  row->context = Memcpy::contextId(r);
  row->stream = Memcpy::streamId(r);
  row->graph = Memcpy::graphId(r);
  row->kind = Memcpy::copyKind(r);
  row->src_memory = Memcpy::srcKind(r);
  row->dst_memory = Memcpy::dstKind(r);
  row->flags = Memcpy::flags(r);
}

void copy_between(const uint8_t* r) {
  CopyRow* row = g_batch.copies.add();
  row->start = time_of(MemcpyPtoP::start(r));
  row->end = time_of(MemcpyPtoP::end(r));
  row->bytes = MemcpyPtoP::bytes(r);
  row->graph_node = MemcpyPtoP::graphNodeId(r);
  row->correlation = MemcpyPtoP::correlationId(r);
  row->device = MemcpyPtoP::deviceId(r);
  row->src_device = MemcpyPtoP::srcDeviceId(r);
  row->dst_device = MemcpyPtoP::dstDeviceId(r);
  row->context = MemcpyPtoP::contextId(r);
  row->stream = MemcpyPtoP::streamId(r);
  row->graph = MemcpyPtoP::graphId(r);
  row->kind = MemcpyPtoP::copyKind(r);
  row->src_memory = MemcpyPtoP::srcKind(r);
  row->dst_memory = MemcpyPtoP::dstKind(r);
  row->flags = MemcpyPtoP::flags(r);
}

void set(const uint8_t* r) {
  SetRow* row = g_batch.sets.add();
  row->start = time_of(Memset::start(r));
  row->end = time_of(Memset::end(r));
  row->bytes = Memset::bytes(r);
  row->graph_node = Memset::graphNodeId(r);
  row->correlation = Memset::correlationId(r);
  row->device = Memset::deviceId(r);
  row->context = Memset::contextId(r);
  row->stream = Memset::streamId(r);
  row->value = Memset::value(r);
  row->graph = Memset::graphId(r);
  row->memory = Memset::memoryKind(r);
}

void call(Process& p, const cupti::Library& cupti, const uint8_t* r, bool driver) {
  uint32_t id = API::cbid(r);
  if (!driver && config().filter_api && id < kMostCalls && g_query_only[id]) return;
  name_call(p, cupti, driver, id);
  ApiRow* row = g_batch.calls.add();
  row->start = time_of(API::start(r));
  row->end = time_of(API::end(r));
  row->correlation = API::correlationId(r);
  row->thread = API::threadId(r);
  row->call = id | (driver ? kDriverCall : 0);
  row->result = API::returnValue(r);
}

void overhead(const uint8_t* r) {
  OverheadRow* row = g_batch.overheads.add();
  row->start = time_of(Overhead::start(r));
  row->end = time_of(Overhead::end(r));
  row->kind = Overhead::overheadKind(r);
  row->object_kind = Overhead::objectKind(r);
  row->thread = Overhead::objectId(r);
}

void graph(const uint8_t* r) {
  if (!may_be_recorded(time_of(GraphTrace::start(r)), time_of(GraphTrace::end(r)))) return;
  GraphRow* row = g_batch.graphs.add();
  row->start = time_of(GraphTrace::start(r));
  row->end = time_of(GraphTrace::end(r));
  row->correlation = GraphTrace::correlationId(r);
  row->graph = GraphTrace::graphId(r);
  row->device = GraphTrace::deviceId(r);
  row->context = GraphTrace::contextId(r);
  row->stream = GraphTrace::streamId(r);
}

void memory(const uint8_t* r) {
  MemoryRow* row = g_batch.memories.add();
  row->time = time_of(Memory::timestamp(r));
  row->address = Memory::address(r);
  row->bytes = Memory::bytes(r);
  row->correlation = Memory::correlationId(r);
  row->operation = Memory::memoryOperationType(r);
  row->kind = Memory::memoryKind(r);
  row->device = Memory::deviceId(r);
  row->context = Memory::contextId(r);
  row->stream = Memory::streamId(r);
}

void stream(const uint8_t* r) {
  StreamRow* row = g_batch.streams.add();
  row->context = Stream::contextId(r);
  row->stream = Stream::streamId(r);
  row->priority = Stream::priority(r);
  row->flag = Stream::flag(r);
}

}  // namespace

void set_clock_offset(int64_t ns) { g_offset = ns; }

void forget() {
  g_symbols = nullptr;  // the texts must be numbered again
  memset(g_named, 0, sizeof g_named);
}

void noted(Process& p, const cupti::Library& cupti, Rows<ApiRow>& calls, Rows<SyncRow>& syncs,
           Rows<EventRow>& events) {
  for (uint32_t i = 0; i < calls.count(); i++)
    name_call(p, cupti, true, calls.data()[i].call & ~kDriverCall);
  p.sink.write(kApiName, g_batch.names);
  p.sink.write(kApi, calls);
  p.sink.write(kSync, syncs);
  p.sink.write(kEvent, events);
}

uint64_t buffer(Process& p, const cupti::Library& cupti, uint8_t* data, size_t valid) {
  know_query_only();
  uint64_t records = 0;
  uint8_t* r = nullptr;
  while (valid && cupti.ActivityGetNextRecord(data, valid, &r) == cupti::kSuccess) {
    records++;
    int kind;
    memcpy(&kind, r, sizeof kind);
    switch (kind) {
      case cupti::kConcurrentKernel: kernel(p, r); break;
      case cupti::kRuntime: call(p, cupti, r, false); break;
      case cupti::kDriver: call(p, cupti, r, true); break;
      case cupti::kMemcpy: copy(r); break;
      case cupti::kMemcpyPtoP: copy_between(r); break;
      case cupti::kMemset: set(r); break;
      case cupti::kOverhead: overhead(r); break;
      case cupti::kGraphTrace: graph(r); break;
      case cupti::kMemory2: memory(r); break;
      case cupti::kStream: stream(r); break;
      default: break;
    }
  }
  p.sink.write(kApiName, g_batch.names);
  p.sink.write(kKernel, g_batch.kernels);
  p.sink.write(kCopy, g_batch.copies);
  p.sink.write(kSet, g_batch.sets);
  p.sink.write(kApi, g_batch.calls);
  p.sink.write(kOverhead, g_batch.overheads);
  p.sink.write(kGraph, g_batch.graphs);
  p.sink.write(kMemory, g_batch.memories);
  p.sink.write(kStream, g_batch.streams);
  return records;
}

}  // namespace convert
}  // namespace stepscope
