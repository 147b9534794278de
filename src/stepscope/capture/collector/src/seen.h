// Which ranges a program opens before recording has begun: where it never does, the launcher says
// what there was instead. Names and counts only, and nothing of it once recording has begun.
#pragma once
#include "process.h"

namespace stepscope {
namespace seen {

// A range was opened; text numbers of its name and domain. Takes no lock.
void note(uint32_t name, uint32_t domain);
// Writes what has been seen up to now as a JSON block; nothing where recording has begun.
void write(Process& process);
void forget();  // in a forked child

// When to write: seldom, since each block repeats the one before, for processes that are killed.
class Times {
 public:
  bool due(uint64_t now_ns);

 private:
  uint64_t next_ns_ = 0, pause_ns_ = 500000000;
};

}  // namespace seen
}  // namespace stepscope
