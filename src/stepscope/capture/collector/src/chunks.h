// Where hot threads write: chunks of 64 KiB in memory that outlives the process.
#pragma once
#include "format.h"
#include "sink.h"

namespace stepscope {

class Chunks {
 public:
  // Maps FOLDER/BASE.pool; without room there, chunks come from the heap and die with the process.
  void open(const char* folder, const char* base, uint32_t bytes);
  // A chunk in state kFilling, or null when the bound on memory is reached.
  ChunkHeader* acquire(BlockKind kind, uint16_t row_bytes, uint32_t thread);
  // Hands a chunk to the writer; true when the writer should be woken.
  void finish(ChunkHeader* chunk);
  // Writes all full chunks, and with `all` those being filled too.
  void drain(Sink& sink, bool all);
  void remove();  // the file: everything in it has been written
  void forget();  // in a forked child
  bool shared() const { return pool_ != nullptr; }
  const char* path() const { return path_; }

 private:
  struct Heap {
    Heap* next;
    ChunkHeader* chunk;
  };
  void write(Sink& sink, ChunkHeader* chunk);
  void drain(Sink& sink, bool all, bool texts);

  Mutex mutex_;
  uint8_t* pool_ = nullptr;
  uint32_t count_ = 0, cursor_ = 0, heap_count_ = 0;
  uint64_t sequence_ = 0;
  Heap* heap_ = nullptr;
  char path_[4300] = "";
};

inline uint8_t* payload(ChunkHeader* chunk) { return reinterpret_cast<uint8_t*>(chunk + 1); }

}  // namespace stepscope
