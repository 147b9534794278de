// What the file says about the process, in JSON blocks and clock rows.
#pragma once
#include "process.h"

namespace stepscope {

void write_meta(Process& process);     // who it is
void write_clock(Process& process);    // the monotonic clock beside the wall clock
// Names of the threads that live now; at the end most of those that mattered still do.
void write_threads(Process& process);
// How it ended, when the program did, and what was dropped.
void write_end(Process& process, const char* how, uint64_t ended_ns);

}  // namespace stepscope
