#include "cupti_library.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>

#include <type_traits>

namespace stepscope {
namespace cupti {
namespace {

constexpr const char* kNames[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8",
                                  "libcupti.so.11.7"};

// Where CUDA's libraries were loaded from tells which major version the program uses, and where
// the CUPTI of the same installation is.
struct Loaded {
  int major;
  char folder[3072];
};

int look(dl_phdr_info* info, size_t, void* data) {
  auto* found = static_cast<Loaded*>(data);
  const char* path = info->dlpi_name;
  const char* name = path ? strstr(path, "libcudart.so.") : nullptr;
  if (!name || found->folder[0]) return 0;
  found->major = atoi(name + strlen("libcudart.so."));
  snprintf(found->folder, sizeof found->folder, "%.*s", static_cast<int>(name - path), path);
  return 0;
}

void* try_open(const char* path, int mode) { return dlopen(path, RTLD_NOW | RTLD_GLOBAL | mode); }

void* find(const char* candidates, char* path, size_t room) {
  for (const char* name : kNames)
    if (void* handle = try_open(name, RTLD_NOLOAD)) return handle;
  Loaded loaded{};
  dl_iterate_phdr(look, &loaded);
  char soname[32];
  snprintf(soname, sizeof soname, loaded.major == 11 ? "libcupti.so.11.8" : "libcupti.so.%d",
           loaded.major);
  constexpr const char* kSubfolders[] = {"", "../../cuda_cupti/lib/", "../extras/CUPTI/lib64/"};
  for (const char* subfolder : kSubfolders) {
    if (!loaded.folder[0]) break;
    snprintf(path, room, "%s%s%s", loaded.folder, subfolder, soname);
    if (void* handle = try_open(path, 0)) return handle;
  }
  char* list = strdup(candidates);
  void* handle = nullptr;
  // First those of the program's version, then any.
  for (int strict = loaded.major ? 1 : 0; strict >= 0 && !handle; strict--) {
    snprintf(path, room, "%s", candidates);
    snprintf(list, strlen(candidates) + 1, "%s", candidates);
    char* rest = list;
    while (char* one = strsep(&rest, ":")) {
      if (!*one || (strict && !strstr(one, soname))) continue;
      if ((handle = try_open(one, 0))) break;
    }
  }
  free(list);
  for (const char* name : kNames) {
    if (handle) break;
    handle = try_open(name, 0);
  }
  return handle;
}

}  // namespace

bool open_library(Library& library, const char* candidates, char* why, size_t room) {
  void* handle = find(candidates, library.path, sizeof library.path);
  if (!handle) {
    snprintf(why, room, "no libcupti was found, so GPU work is not recorded; install PyTorch with "
                        "CUDA, or the package nvidia-cuda-cupti, or set STEPSCOPE_CUPTI");
    return false;
  }
  bool whole = true;
  auto load = [&](auto& function, const char* name, bool optional = false) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (!function && !optional) whole = false;
  };
  load(library.Subscribe, "cuptiSubscribe");
  load(library.Unsubscribe, "cuptiUnsubscribe");
  load(library.EnableCallback, "cuptiEnableCallback");
  load(library.GetVersion, "cuptiGetVersion");
  load(library.GetResultString, "cuptiGetResultString");
  load(library.GetCallbackName, "cuptiGetCallbackName");
  load(library.SetThreadIdType, "cuptiSetThreadIdType", true);
  load(library.ActivityRegisterTimestampCallback, "cuptiActivityRegisterTimestampCallback", true);
  load(library.ActivityRegisterCallbacks, "cuptiActivityRegisterCallbacks");
  load(library.ActivityEnable, "cuptiActivityEnable");
  load(library.ActivityDisable, "cuptiActivityDisable");
  load(library.ActivityFlushAll, "cuptiActivityFlushAll");
  load(library.ActivityGetNextRecord, "cuptiActivityGetNextRecord");
  load(library.ActivityGetNumDroppedRecords, "cuptiActivityGetNumDroppedRecords");
  load(library.ActivityEnableRuntimeApi, "cuptiActivityEnableRuntimeApi", true);
  load(library.GetStreamIdEx, "cuptiGetStreamIdEx", true);
  load(library.Finalize, "cuptiFinalize", true);
  Dl_info where;
  if (library.Subscribe && dladdr(reinterpret_cast<void*>(library.Subscribe), &where))
    snprintf(library.path, sizeof library.path, "%s", where.dli_fname);
  if (!whole) snprintf(why, room, "%s lacks functions that are needed; GPU work is not recorded",
                       library.path);
  return whole;
}

}  // namespace cupti
}  // namespace stepscope
