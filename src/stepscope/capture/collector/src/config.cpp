#include "config.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace stepscope {
namespace {

constexpr int kLongestLine = 16384;  // the launcher refuses longer values
Config g_config;
pthread_once_t g_once = PTHREAD_ONCE_INIT;

void copy(char* target, size_t room, const char* value) {
  strncpy(target, value, room - 1);
  target[room - 1] = 0;
}

void set(const char* key, const char* value) {
  Config& c = g_config;
  auto is = [key](const char* name) { return strcmp(key, name) == 0; };
  auto number = [value] { return strtoull(value, nullptr, 10); };
  if (is("folder")) copy(c.folder, sizeof c.folder, value);
  if (is("pool")) copy(c.pool, sizeof c.pool, value);
  if (is("cupti")) copy(c.cupti, sizeof c.cupti, value);
  if (is("nvtx_name")) copy(c.nvtx_name, sizeof c.nvtx_name, value);
  if (is("nvtx_domain")) copy(c.nvtx_domain, sizeof c.nvtx_domain, value);
  if (is("ranks")) copy(c.ranks, sizeof c.ranks, value);
  if (is("filter_api")) c.filter_api = number() != 0;
  if (is("flush_ms")) c.flush_ns = number() * 1000000;
  if (is("max_bytes")) c.max_bytes = number();
  if (is("start_ns")) c.start_ns = number();
  if (is("stop_ns")) c.stop_ns = number();
  if (is("duration_ns")) c.duration_ns = number();
  if (is("ring_ns")) c.ring_ns = number();
  if (is("ranges")) c.ranges = number();
  if (is("pool_bytes")) c.pool_bytes = static_cast<uint32_t>(number());
  if (is("range")) {
    c.range = !strcmp(value, "profiler") ? Range::kProfilerApi
              : !strcmp(value, "nvtx")   ? Range::kNvtx
              : !strcmp(value, "external") ? Range::kExternal
                                           : Range::kProcess;
  }
  if (is("kinds")) {
    char* rest = const_cast<char*>(value);
    while (*rest && c.kind_count < 64) {
      c.kinds[c.kind_count++] = static_cast<int>(strtol(rest, &rest, 10));
      if (*rest == ',') rest++;
      else break;
    }
  }
}

void read() {
  const char* path = getenv("STEPSCOPE_CAPTURE");
  FILE* file = path ? fopen(path, "re") : nullptr;
  if (!file) return;
  g_config.flush_ns = 500000000;
  g_config.pool_bytes = 8 << 20;
  char* line = static_cast<char*>(malloc(kLongestLine));
  while (line && fgets(line, kLongestLine, file)) {
    line[strcspn(line, "\n")] = 0;
    char* value = strchr(line, '=');
    if (!value) continue;
    *value++ = 0;
    set(line, value);
  }
  free(line);
  fclose(file);
  g_config.valid = g_config.folder[0] != 0;
}

}  // namespace

const Config& config() {
  pthread_once(&g_once, read);
  return g_config;
}

}  // namespace stepscope
