#include "describe.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/utsname.h>

#include "activity.h"

namespace stepscope {
namespace {

constexpr const char* kVariables[] = {
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "SLURM_PROCID",
    "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
    "PMIX_RANK", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "CUDA_VISIBLE_DEVICES"};

void add_environment(Text& json) {
  json.add("\"environment\":{");
  bool first = true;
  for (const char* name : kVariables)
    if (const char* value = getenv(name)) {
      if (!first) json.add(",");
      json.quote(name);
      json.add(":");
      json.quote(value);
      first = false;
    }
  json.add("}");
}

void add_command(Text& json) {
  static char line[16384];
  int file = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  ssize_t length = file < 0 ? 0 : ::read(file, line, sizeof line - 1);
  if (file >= 0) ::close(file);
  json.add("\"command\":[");
  for (ssize_t at = 0; at < length;) {
    size_t part = strnlen(line + at, static_cast<size_t>(length - at));
    if (at) json.add(",");
    json.quote(line + at, part);
    at += static_cast<ssize_t>(part) + 1;
  }
  json.add("]");
}

}  // namespace

void write_clock(Process& p) {
  Rows<ClockRow> rows;
  ClockRow* row = rows.add();
  row->monotonic = now_ns();
  row->realtime = clock_ns(CLOCK_REALTIME);
  row->raw = clock_ns(CLOCK_MONOTONIC_RAW);
  row->monotonic += (now_ns() - row->monotonic) / 2;
  p.sink.write(kClock, rows);
}

void write_threads(Process& p) {
  DIR* folder = opendir("/proc/self/task");
  if (!folder) return;
  Text json;
  json.add("{\"type\":\"threads\",\"names\":{");
  bool first = true;
  while (dirent* entry = readdir(folder)) {
    char path[320], name[64];
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
    int file = entry->d_name[0] == '.' ? -1 : ::open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : ::read(file, name, sizeof name);
    if (file >= 0) ::close(file);
    if (length <= 1) continue;
    json.add(first ? "" : ",");
    first = false;
    json.quote(entry->d_name);
    json.add(":");
    json.quote(name, static_cast<size_t>(length - 1));
  }
  closedir(folder);
  json.add("}}");
  p.sink.json(json);
  json.clear();
}

void write_meta(Process& p) {
  utsname system{};
  uname(&system);
  Text json;
  json.format("{\"type\":\"process\",\"format\":%u,\"pid\":%d,\"parent\":%d,\"born_ns\":%llu,",
              kFormatVersion, getpid(), getppid(), static_cast<unsigned long long>(p.born_ns));
  json.add("\"host\":");
  json.quote(system.nodename);
  json.add(",\"pool\":");
  json.quote(p.chunks.path());
  constexpr const char* kWhen[] = {"process", "profiler", "nvtx", "external"};
  json.format(",\"when\":\"%s\",\"ring_ns\":%llu,", kWhen[static_cast<int>(config().range)],
              static_cast<unsigned long long>(config().ring_ns));
  add_environment(json);
  json.add(",");
  add_command(json);
  json.add("}");
  p.sink.json(json);
  json.clear();
}

void write_end(Process& p, const char* how, uint64_t ended_ns) {
  Text json;
  json.format("{\"type\":\"end\",\"how\":\"%s\",\"time_ns\":%llu,\"dropped_blocks\":%llu,"
              "\"dropped_texts\":%llu,\"dropped_nvtx\":%llu,",
              how, static_cast<unsigned long long>(ended_ns ? ended_ns : now_ns()),
              static_cast<unsigned long long>(p.sink.dropped_blocks()),
              static_cast<unsigned long long>(p.strings.dropped()),
              static_cast<unsigned long long>(__atomic_load_n(&p.nvtx_dropped, __ATOMIC_RELAXED)));
  activity::describe(json);
  add_environment(json);  // again: programs set their rank after they have begun
  json.add("}");
  p.sink.json(json);
  json.clear();
}

}  // namespace stepscope
