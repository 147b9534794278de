// The process's raw file.
#pragma once
#include <cstddef>
#include <cstdint>

#include "format.h"
#include "util.h"

namespace stepscope {

class Sink {
 public:
  // Creates FOLDER/BASE.raw; false when it cannot be written.
  bool open(const char* folder, const char* base);
  // Appends one block. After a failed write (disk full) everything is dropped and counted.
  void write(BlockKind kind, uint16_t row_bytes, uint32_t rows, const void* data, uint32_t bytes,
             uint32_t thread = 0, uint64_t sequence = 0);
  template <class Row>
  void write(BlockKind kind, Rows<Row>& rows) {
    if (rows.count())
      write(kind, sizeof(Row), rows.count(), rows.data(), rows.count() * sizeof(Row));
    rows.clear();
  }
  void json(const Text& text) {
    write(kMeta, 0, 1, text.data(), static_cast<uint32_t>(text.size()));
  }
  void close();
  void forget();  // in a forked child: the descriptor is the parent's
  // Ring mode: rows go to BASE.N.raw, of which the newest cover the last keep_ns.
  void keep_only(uint64_t keep_ns) { keep_ns_ = keep_ns; }

  uint64_t bytes() const { return bytes_; }
  uint64_t dropped_blocks() const { return dropped_; }
  const char* base() const { return base_; }

 private:
  struct Place {  // which file a descriptor stands for
    uint64_t device = 0, inode = 0;
  };
  static bool is_ours(int descriptor, const Place& place, uint64_t& size);
  static int open_file(const char* path, int flags, Place& place);
  static void shut(int descriptor, const Place& place);
  void report_failure(int error);
  bool make_room(int descriptor, uint64_t& size);
  void note_tail(bool rows, uint64_t at, const BlockHeader& header, const void* data);
  bool put(int descriptor, const BlockHeader& header, const void* data);
  int segment(uint64_t time);

  Mutex mutex_;
  int descriptor_ = -1, segment_ = -1;
  uint64_t bytes_ = 0, dropped_ = 0, keep_ns_ = 0, segment_since_ = 0;
  uint64_t last_rows_ = UINT64_MAX;  // where the file's last block of rows begins, if near its end
  size_t tail_bytes_ = 0;
  char tail_[8192];  // the blocks behind it
  uint32_t segment_number_ = 0;
  bool reported_ = false;  // why nothing is written
  Place place_, segment_place_;
  char folder_[4096] = "";
  char base_[128] = "";
};

uint32_t crc32(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace stepscope
