// What the collector holds in one process, and its life: birth at the first NVTX or CUDA call,
// a writer thread, fork, and every kind of end.
#pragma once
#include "chunks.h"
#include "config.h"
#include "sink.h"
#include "strings.h"

namespace stepscope {

struct Process {
  Sink sink;
  Chunks chunks;
  Strings strings;
  uint64_t born_ns = 0;
  uint64_t nvtx_dropped = 0;  // atomic
};

// The process's state, made on first use; null when nothing can or should be recorded.
Process* process();
// The number of this process in its line of forks: what was made before a fork is not ours.
uint32_t generation();

// Whether this process's capture ends or has ended: nothing is taken any more.
bool ended();
// Whether recording has ever begun in this process.
bool ever_recorded();
// Whether NVTX events are recorded now.
bool nvtx_wanted();
bool recording();
// Begins or ends recording; idempotent, from any thread.
void start_recording(StateReason reason);
void stop_recording(StateReason reason);
// Ends recording for good: CUPTI is left, so that the program runs as if it had never been there.
void end_recording(StateReason reason);
// Whether what happened in these ns may belong to recorded work: CUPTI traces graphs at all times.
bool may_be_recorded(uint64_t start, uint64_t end);

bool is_ours();  // whether the calling thread works for the collector now
void wake_writer();
// Notes what went wrong, or what a reader should know, in the file.
void remark(const char* severity, const char* pattern, ...) __attribute__((format(printf, 2, 3)));
// Writes everything that is held and ends recording; waits for the writer up to limit_ms.
void finish(const char* how, int limit_ms);
// Registers the handler of normal exit once more: handlers run in reverse order, and ours has to
// run before the driver's.
void register_exit();
void release_thread();  // the calling thread ends: its chunk is complete
void forget_thread();   // in a forked child: its chunk is the parent's

}  // namespace stepscope

#define STEPSCOPE_EXPORT extern "C" __attribute__((visibility("default")))
