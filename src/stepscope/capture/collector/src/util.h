// Small tools. Nothing here allocates in static constructors or needs a destructor: the library
// must survive the exit of its process in any order.
#pragma once
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

namespace stepscope {

inline uint64_t clock_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000ull + static_cast<uint64_t>(now.tv_nsec);
}
inline uint64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }
inline uint32_t thread_id() { return static_cast<uint32_t>(syscall(SYS_gettid)); }

class Mutex {
 public:
  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }
  void reset() { mutex_ = PTHREAD_MUTEX_INITIALIZER; }  // in a forked child

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

class Guard {
 public:
  explicit Guard(Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Guard() { mutex_.unlock(); }
  Guard(const Guard&) = delete;

 private:
  Mutex& mutex_;
};

// A text that grows; never shrinks, freed by clear() only.
class Text {
 public:
  void add(const char* text, size_t length) {
    if (used_ + length + 1 > room_) {
      room_ = (used_ + length + 1) * 2;
      data_ = static_cast<char*>(realloc(data_, room_));
    }
    memcpy(data_ + used_, text, length);
    used_ += length;
    data_[used_] = 0;
  }
  void add(const char* text) { add(text, strlen(text)); }
  void format(const char* pattern, ...) __attribute__((format(printf, 2, 3))) {
    char small[512];
    va_list arguments;
    va_start(arguments, pattern);
    int length = vsnprintf(small, sizeof small, pattern, arguments);
    va_end(arguments);
    if (length > 0) add(small, static_cast<size_t>(length) < sizeof small ? length : sizeof small - 1);
  }
  // A JSON string, quotes included; bytes over 127 pass as they are.
  void quote(const char* text, size_t length) {
    add("\"", 1);
    for (size_t i = 0; i < length; i++) {
      unsigned char c = static_cast<unsigned char>(text[i]);
      if (c == '"' || c == '\\') {
        char escaped[2] = {'\\', static_cast<char>(c)};
        add(escaped, 2);
      } else if (c < 0x20) {
        format("\\u%04x", c);
      } else {
        add(text + i, 1);
      }
    }
    add("\"", 1);
  }
  void quote(const char* text) { quote(text, strlen(text)); }
  const char* data() const { return data_ ? data_ : ""; }
  size_t size() const { return used_; }
  void clear() {
    free(data_);
    data_ = nullptr;
    used_ = room_ = 0;
  }

 private:
  char* data_ = nullptr;
  size_t used_ = 0, room_ = 0;
};

// Fixed-width rows on their way into one block.
template <class Row>
class Rows {
 public:
  Row* add() {
    if (count_ == room_) {
      room_ = room_ ? room_ * 2 : 1024;
      rows_ = static_cast<Row*>(realloc(rows_, room_ * sizeof(Row)));
    }
    Row* row = rows_ + count_++;
    memset(row, 0, sizeof(Row));
    return row;
  }
  const Row* data() const { return rows_; }
  uint32_t count() const { return count_; }
  void clear() { count_ = 0; }

 private:
  Row* rows_ = nullptr;
  uint32_t count_ = 0, room_ = 0;
};

}  // namespace stepscope
