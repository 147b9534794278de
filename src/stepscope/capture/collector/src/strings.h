// Texts, each stored once a process under a number from 1.
#pragma once
#include "chunks.h"

namespace stepscope {

class Strings {
 public:
  // The text's number; 0 for null, and when there are too many texts to keep.
  uint32_t id(const char* text, size_t length);
  uint32_t id(const char* text) { return text ? id(text, strlen(text)) : 0; }
  uint32_t wide(const wchar_t* text);
  uint64_t dropped() const { return dropped_; }
  void open(Chunks* chunks) { chunks_ = chunks; }
  // Calls back with every text that there is by now; takes no lock.
  void each(void (*take)(void*, uint32_t id, const char* text, uint32_t length), void* to);
  void forget();  // in a forked child: numbers start again

 private:
  struct Entry {
    uint64_t hash;
    uint32_t id, length;
    char text[];
  };
  struct Table {
    uint64_t mask;
    Entry* slots[];
  };
  static Table* make(uint64_t slots);
  Entry* find(Table* table, uint64_t hash, const char* text, size_t length);
  void record(uint32_t id, const char* text, uint32_t length);

  Mutex mutex_;
  Table* table_ = nullptr;  // replaced as a whole when it grows; readers need no lock
  Chunks* chunks_ = nullptr;
  ChunkHeader* chunk_ = nullptr;
  uint32_t count_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace stepscope
