// The raw file: blocks of fixed-width little-endian rows. docs: importers/stepscope/layout.py, which a
// test holds against the sizes below.
#pragma once
#include <cstdint>

namespace stepscope {

constexpr uint32_t kBlockMagic = 0x32425353;  // "SSB2"; "SSB1" until format 1
constexpr uint32_t kChunkMagic = 0x31435353;  // "SSC1"
constexpr uint32_t kFormatVersion = 2;

enum BlockKind : uint16_t {
  kMeta = 1,      // JSON
  kStrings = 2,   // {u32 id, u32 bytes, text, padding to 8}
  kNvtx = 3,      // NvtxRow
  kKernel = 4,    // KernelRow
  kCopy = 5,      // CopyRow
  kSet = 6,       // SetRow
  kApi = 7,       // ApiRow
  kSync = 8,      // SyncRow
  kOverhead = 9,  // OverheadRow
  kGraph = 10,    // GraphRow
  kEvent = 11,    // EventRow
  kMemory = 12,   // MemoryRow
  kStream = 13,   // StreamRow
  kApiName = 14,  // ApiNameRow
  kClock = 15,    // ClockRow
  kState = 16,    // StateRow
};

struct BlockHeader {
  uint32_t magic;
  uint16_t kind;
  uint16_t row_bytes;  // 0: not rows
  uint32_t rows;
  uint32_t bytes;   // of the payload that follows
  uint32_t crc;     // CRC-32 of this header, with 0 here, and the payload
  uint32_t thread;  // of NVTX rows
  uint64_t sequence;  // of the chunk that an NVTX or string block came from, from 1; else 0
  uint64_t time_ns;   // when it was written
};
static_assert(sizeof(BlockHeader) == 40);

struct KernelRow {
  uint64_t start, end, graph_node;
  uint32_t correlation, symbol, name, device, context, stream;
  int32_t grid[3], block[3];
  uint32_t static_shared, dynamic_shared, local, registers, graph;
  uint32_t reserved;
};
static_assert(sizeof(KernelRow) == 96);

struct CopyRow {
  uint64_t start, end, bytes, graph_node;
  uint32_t correlation, device, context, stream;
  uint32_t src_device, dst_device, graph;
  uint8_t kind, src_memory, dst_memory, flags;
};
static_assert(sizeof(CopyRow) == 64);

struct SetRow {
  uint64_t start, end, bytes, graph_node;
  uint32_t correlation, device, context, stream, value, graph, memory, reserved;
};
static_assert(sizeof(SetRow) == 64);

struct ApiRow {
  uint64_t start, end;
  uint32_t correlation, thread;
  uint32_t call;  // cbid; kDriverCall set for the driver
  uint32_t result;
};
static_assert(sizeof(ApiRow) == 32);
constexpr uint32_t kDriverCall = 0x80000000u;

struct SyncRow {
  uint64_t start, end, event_sync;
  uint32_t correlation, type, context, stream, event, reserved;
};
static_assert(sizeof(SyncRow) == 48);

struct OverheadRow {
  uint64_t start, end;
  uint32_t kind, object_kind, thread, reserved;
};
static_assert(sizeof(OverheadRow) == 32);

struct GraphRow {
  uint64_t start, end;
  uint32_t correlation, graph, device, context, stream, reserved;
};
static_assert(sizeof(GraphRow) == 40);

struct EventRow {
  uint64_t device_time, event_sync;  // 0 where the version has none
  uint32_t correlation, context, stream, event, device, reserved;
};
static_assert(sizeof(EventRow) == 40);

struct MemoryRow {
  uint64_t time, address, bytes;
  uint32_t correlation, operation, kind, device, context, stream;
};
static_assert(sizeof(MemoryRow) == 48);

struct StreamRow {
  uint32_t context, stream, priority, flag;
};
static_assert(sizeof(StreamRow) == 16);

struct ApiNameRow {
  uint32_t call, name;
};
static_assert(sizeof(ApiNameRow) == 8);

struct ClockRow {
  uint64_t monotonic, realtime, raw;
};
static_assert(sizeof(ClockRow) == 24);

struct StateRow {
  uint64_t time;
  uint32_t recording;  // 1 begins, 0 ends
  uint32_t reason;     // StateReason
};
static_assert(sizeof(StateRow) == 16);
enum StateReason : uint32_t {
  kReasonStart = 0,
  kReasonProfilerApi = 1,
  kReasonNvtx = 2,
  kReasonHook = 3,
  kReasonExternal = 4,
  kReasonTime = 5,
  kReasonSize = 6,
  kReasonExit = 7,
};

enum NvtxOp : uint8_t {
  kPush = 1,
  kPop = 2,
  kStart = 3,
  kEnd = 4,
  kMark = 5,
  kCategoryName = 6,  // category, name
  kThreadName = 7,    // id: thread, name
  kSchema = 8,        // id: schema id, name: JSON text
  kBytes = 9,         // payload bytes of the row before, see NvtxBytes
};

struct NvtxRow {
  uint64_t time;
  uint8_t op, payload_type, has_color, reserved;
  uint32_t name, domain, category, color, reserved2;  // name, domain: string ids, 0 none
  uint64_t payload, id;                               // id: of start/end ranges
};
static_assert(sizeof(NvtxRow) == 48);

struct NvtxBytes {  // follows its event; as many as the payload needs
  uint64_t schema;
  uint8_t op, used, reserved[2];
  uint32_t total;
  uint8_t bytes[32];
};
static_assert(sizeof(NvtxBytes) == sizeof(NvtxRow));

struct ChunkHeader {  // in the shared pool, 64 bytes, then the payload
  uint32_t magic;
  uint32_t state;  // ChunkState, atomic
  uint16_t kind, row_bytes;
  uint32_t thread;
  uint32_t used;  // bytes of payload, atomic
  uint32_t reserved;
  uint64_t sequence;
  uint8_t reserved2[32];
};
static_assert(sizeof(ChunkHeader) == 64);
enum ChunkState : uint32_t { kFree = 0, kFilling = 1, kFull = 2 };
constexpr uint32_t kChunkBytes = 64 * 1024;
constexpr uint32_t kChunkCapacity = kChunkBytes - sizeof(ChunkHeader);

}  // namespace stepscope
