// CUDA's side: CUPTI's activity records become rows.
#pragma once
#include "process.h"

namespace stepscope {
namespace activity {

bool attach(Process& process);  // finds and subscribes to CUPTI; false leaves CUDA untraced
bool attached();  // CUPTI is, or was, ours
void enable();
void disable();
void let_go();                    // leaves CUPTI, for good; flush and drain before
void stand_aside();               // flushes and leaves CUPTI at once, for another profiler
void flush(bool forced);          // asks CUPTI for finished buffers
void drain(Process& process);     // converts the buffers that came back
void forget();                    // in a forked child
void describe(Text& json);        // counts, for the closing block

}  // namespace activity
}  // namespace stepscope
