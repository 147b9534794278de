// What the file says about the process, in JSON blocks and clock rows.
#pragma once
#include "process.h"

namespace stepscope {

void write_meta(Process& process);     // who it is
void write_clock(Process& process);    // the monotonic clock beside the wall clock
// Names of the threads that live now; at the end most of those that mattered still do.
void write_threads(Process& process);
void write_end(Process& process, const char* how);  // how it ended, and what was dropped

}  // namespace stepscope
