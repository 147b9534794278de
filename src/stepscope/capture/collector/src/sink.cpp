#include "sink.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>

namespace stepscope {
namespace {

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

bool is_stream_of_rows(uint16_t kind) {
  return kind >= kNvtx && kind <= kMemory;
}

}  // namespace

uint32_t crc32(const void* data, size_t bytes) {
  const uint8_t* p = static_cast<const uint8_t*>(data);
  uint32_t crc = 0xFFFFFFFFu;
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

bool Sink::open(const char* folder, const char* base) {
  snprintf(folder_, sizeof folder_, "%s", folder);
  snprintf(base_, sizeof base_, "%s", base);
  char path[4300];
  snprintf(path, sizeof path, "%s/%s.raw", folder, base);
  descriptor_ = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  return descriptor_ >= 0;
}

void Sink::write(BlockKind kind, uint16_t row_bytes, uint32_t rows, const void* data,
                 uint32_t bytes, uint32_t thread, uint64_t sequence) {
  Guard guard(mutex_);
  if (descriptor_ < 0) return;
  BlockHeader header{kBlockMagic, kind,   row_bytes, rows, bytes, crc32(data, bytes),
                     thread,      sequence, now_ns()};
  int target = keep_ns_ && is_stream_of_rows(kind) ? segment(header.time_ns) : descriptor_;
  if (failed_ || !put(target, header, data)) {
    failed_ = true;
    dropped_++;
    return;
  }
  bytes_ += sizeof header + bytes;
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
  if (segment_ >= 0) ::close(segment_);
  char path[4300];
  if (segment_number_ > kRingSegments) {
    snprintf(path, sizeof path, "%s/%s.%06u.raw", folder_, base_, segment_number_ - kRingSegments - 1);
    ::unlink(path);
  }
  snprintf(path, sizeof path, "%s/%s.%06u.raw", folder_, base_, segment_number_++);
  segment_ = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  segment_since_ = time;
  return segment_;
}

void Sink::close() {
  Guard guard(mutex_);
  if (descriptor_ >= 0) ::close(descriptor_);
  if (segment_ >= 0) ::close(segment_);
  descriptor_ = segment_ = -1;
}

void Sink::forget() {
  mutex_.reset();
  if (descriptor_ >= 0) ::close(descriptor_);  // closes the child's copy only
  if (segment_ >= 0) ::close(segment_);
  descriptor_ = segment_ = -1;
  bytes_ = dropped_ = segment_since_ = 0;
  segment_number_ = 0;
  failed_ = false;
}

}  // namespace stepscope
