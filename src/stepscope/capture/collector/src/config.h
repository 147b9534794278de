// What the launcher asked for: the file that STEPSCOPE_CAPTURE names, lines of "key=value".
#pragma once
#include <cstdint>

namespace stepscope {

enum class Range { kProcess, kProfilerApi, kNvtx, kExternal };

struct Config {
  bool valid;
  char folder[4096];   // raw files go here
  char pool[4096];     // folder in memory for NVTX chunks; empty: heap only
  char cupti[8192];    // candidates for libcupti, separated by ':'
  char nvtx_name[512];
  char nvtx_domain[256];
  char ranks[8192];    // ",0,3,": only processes of these ranks record; empty: all
  int kinds[64];       // CUPTI activity kinds to record
  int kind_count;
  Range range;
  bool filter_api;
  uint64_t flush_ns;
  uint64_t max_bytes;    // of one process's file; 0: no limit
  uint64_t start_ns;     // monotonic time before which nothing is recorded; 0: none
  uint64_t stop_ns;      // monotonic time after which nothing is recorded; 0: none
  uint64_t duration_ns;  // stop this long after recording began; 0: none
  uint64_t ring_ns;      // keep only this much; 0: everything
  uint64_t ranges;       // recording is over after so many ranges; 0: it never is
  uint32_t pool_bytes;

  bool wants(int kind) const {
    for (int i = 0; i < kind_count; i++)
      if (kinds[i] == kind) return true;
    return false;
  }
};

// Reads the file once a process; a missing or damaged file leaves valid false.
const Config& config();

}  // namespace stepscope
