#include "sink.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "config.h"

namespace stepscope {
namespace {

constexpr int kGone = -2;  // open, but the program closed it and it cannot be opened again
constexpr int kRingSegments = 4;  // so that at least three quarters of the wanted time is kept

struct CrcTables {
  uint32_t t[8][256];
  constexpr CrcTables() : t() {
    for (uint32_t i = 0; i < 256; i++) {
      uint32_t c = i;
      for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
      t[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
      for (int s = 1; s < 8; s++) t[s][i] = (t[s - 1][i] >> 8) ^ t[0][t[s - 1][i] & 255];
  }
};
constexpr CrcTables kCrc;

// Not fstat: programs that are linked with it need glibc 2.33.
int status_of(int descriptor, struct stat* found) {
  return static_cast<int>(syscall(SYS_fstat, descriptor, found));
}

bool is_stream_of_rows(uint16_t kind) {
  return kind >= kNvtx && kind <= kMemory;
}

}  // namespace

uint32_t crc32(const void* data, size_t bytes, uint32_t before) {
  const uint8_t* p = static_cast<const uint8_t*>(data);
  uint32_t crc = ~before;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    uint32_t low, high;
    memcpy(&low, p, 4);
    memcpy(&high, p + 4, 4);
    low ^= crc;
    crc = kCrc.t[7][low & 255] ^ kCrc.t[6][(low >> 8) & 255] ^ kCrc.t[5][(low >> 16) & 255] ^
          kCrc.t[4][low >> 24] ^ kCrc.t[3][high & 255] ^ kCrc.t[2][(high >> 8) & 255] ^
          kCrc.t[1][(high >> 16) & 255] ^ kCrc.t[0][high >> 24];
  }
  for (; bytes; bytes--, p++) crc = (crc >> 8) ^ kCrc.t[0][(crc ^ *p) & 255];
  return ~crc;
}

// The program may have closed every descriptor, and its own file may now stand under our number.
bool Sink::is_ours(int descriptor, const Place& place, uint64_t& size) {
  struct stat found;
  if (status_of(descriptor, &found) || found.st_dev != place.device || found.st_ino != place.inode)
    return false;
  size = static_cast<uint64_t>(found.st_size);
  return true;
}

int Sink::open_file(const char* path, int flags, Place& place) {
  int descriptor = ::open(path, O_WRONLY | O_APPEND | O_CLOEXEC | flags, 0600);
  struct stat found;
  if (descriptor < 0 || status_of(descriptor, &found)) return -1;
  place = {found.st_dev, found.st_ino};
  return descriptor;
}

// Says once why nothing more is written, where the launcher looks and where there is still room.
void Sink::report_failure(int error) {
  if (reported_ || !config().pool[0]) return;
  reported_ = true;
  char path[4300], text[16];
  snprintf(path, sizeof path, "%s/%s.failed", config().pool, base_);
  int file = ::open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return;
  int length = snprintf(text, sizeof text, "%d\n", error);
  if (::write(file, text, static_cast<size_t>(length)) < 0) reported_ = false;
  ::close(file);
}

bool Sink::open(const char* folder, const char* base) {
  snprintf(folder_, sizeof folder_, "%s", folder);
  snprintf(base_, sizeof base_, "%s", base);
  char path[4300];
  snprintf(path, sizeof path, "%s/%s.raw", folder, base);
  descriptor_ = open_file(path, O_CREAT, place_);
  return descriptor_ >= 0;
}

void Sink::write(BlockKind kind, uint16_t row_bytes, uint32_t rows, const void* data,
                 uint32_t bytes, uint32_t thread, uint64_t sequence) {
  Guard guard(mutex_);
  if (descriptor_ == -1) return;
  BlockHeader header{kBlockMagic, kind, row_bytes, rows, bytes, 0, thread, sequence, now_ns()};
  header.crc = crc32(data, bytes, crc32(&header, sizeof header));
  bool ring = keep_ns_ && is_stream_of_rows(kind);
  int target = ring ? segment(header.time_ns) : descriptor_;
  uint64_t size = 0;
  if (!is_ours(target, ring ? segment_place_ : place_, size)) {
    char path[4300];
    if (ring) snprintf(path, sizeof path, "%s/%s.%06u.raw", folder_, base_, segment_number_ - 1);
    else snprintf(path, sizeof path, "%s/%s.raw", folder_, base_);
    Place place;
    target = open_file(path, 0, place);
    (ring ? segment_ : descriptor_) = target >= 0 ? target : kGone;
    (ring ? segment_place_ : place_) = place;
    if (target < 0 || !is_ours(target, place, size)) {
      report_failure(errno);
      dropped_++;
      return;
    }
  }
  bool rows_of_file = !ring && is_stream_of_rows(kind);
  bool written = put(target, header, data);
  if (!written) {
    report_failure(errno);
    // No torn block stays: there may be room again later.
    if (ftruncate(target, static_cast<off_t>(size)) == 0) {}
    dropped_++;
    written = !ring && !rows_of_file && make_room(target, size) && put(target, header, data);
    if (!written && ftruncate(target, static_cast<off_t>(size)) == 0) {}
  }
  if (!written) return;
  bytes_ += sizeof header + bytes;
  if (!ring) note_tail(rows_of_file, size, header, data);
}

// What describes the capture, its end above all, is worth more than the rows before it: the last
// block of rows goes, and what was written behind it moves up.
bool Sink::make_room(int descriptor, uint64_t& size) {
  if (last_rows_ >= size || ftruncate(descriptor, static_cast<off_t>(last_rows_))) return false;
  size = last_rows_ + tail_bytes_;
  last_rows_ = UINT64_MAX;
  for (size_t done = 0; done < tail_bytes_;) {
    ssize_t more = ::write(descriptor, tail_ + done, tail_bytes_ - done);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) return false;
    done += static_cast<size_t>(more);
  }
  return true;
}

// Remembers the last block of rows in the file and the small blocks behind it.
void Sink::note_tail(bool rows, uint64_t at, const BlockHeader& header, const void* data) {
  if (rows) {
    last_rows_ = at;
    tail_bytes_ = 0;
    return;
  }
  if (tail_bytes_ + sizeof header + header.bytes > sizeof tail_) {
    last_rows_ = UINT64_MAX;  // too much stands behind it
    return;
  }
  memcpy(tail_ + tail_bytes_, &header, sizeof header);
  memcpy(tail_ + tail_bytes_ + sizeof header, data, header.bytes);
  tail_bytes_ += sizeof header + header.bytes;
}

bool Sink::put(int descriptor, const BlockHeader& header, const void* data) {
  iovec parts[2] = {{const_cast<BlockHeader*>(&header), sizeof header},
                    {const_cast<void*>(data), header.bytes}};
  iovec* part = parts;
  int left = header.bytes ? 2 : 1;
  while (left) {
    ssize_t done = ::writev(descriptor, part, left);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return false;
    while (left && static_cast<size_t>(done) >= part->iov_len) {
      done -= static_cast<ssize_t>(part->iov_len);
      part++;
      left--;
    }
    if (left) {
      part->iov_base = static_cast<char*>(part->iov_base) + done;
      part->iov_len -= static_cast<size_t>(done);
    }
  }
  return true;
}

int Sink::segment(uint64_t time) {
  if (segment_ >= 0 && time - segment_since_ < keep_ns_ / kRingSegments) return segment_;
  shut(segment_, segment_place_);
  char path[4300];
  if (segment_number_ > kRingSegments) {
    snprintf(path, sizeof path, "%s/%s.%06u.raw", folder_, base_, segment_number_ - kRingSegments - 1);
    ::unlink(path);
  }
  snprintf(path, sizeof path, "%s/%s.%06u.raw", folder_, base_, segment_number_++);
  segment_ = open_file(path, O_CREAT, segment_place_);
  segment_since_ = time;
  return segment_;
}

void Sink::close() {
  Guard guard(mutex_);
  shut(descriptor_, place_);
  shut(segment_, segment_place_);
  descriptor_ = segment_ = -1;
}

void Sink::shut(int descriptor, const Place& place) {
  uint64_t size;
  if (descriptor >= 0 && is_ours(descriptor, place, size)) ::close(descriptor);
}

void Sink::forget() {
  mutex_.reset();
  shut(descriptor_, place_);  // closes the child's copy only
  shut(segment_, segment_place_);
  descriptor_ = segment_ = -1;
  bytes_ = dropped_ = segment_since_ = 0;
  last_rows_ = UINT64_MAX;
  segment_number_ = 0;
  reported_ = false;
}

}  // namespace stepscope
