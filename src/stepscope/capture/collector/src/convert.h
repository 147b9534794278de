// CUPTI's records to rows.
#pragma once
#include "cupti_library.h"
#include "process.h"

namespace stepscope {
namespace convert {

// Writes the records of one buffer; returns how many there were. Writer thread only.
uint64_t buffer(Process& process, const cupti::Library& cupti, uint8_t* data, size_t valid);
// Writes and clears what was noted in callbacks. Writer thread only.
void noted(Process& process, const cupti::Library& cupti, Rows<ApiRow>& calls,
           Rows<SyncRow>& syncs, Rows<EventRow>& events);
// What CUPTI's times are ahead of the monotonic clock, ns.
void set_clock_offset(int64_t ns);
void forget();

}  // namespace convert
}  // namespace stepscope
