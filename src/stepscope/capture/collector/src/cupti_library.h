// Finds libcupti and its functions. Never linked: the program's own copy is the right one.
#pragma once
#include "cupti_abi.h"

namespace stepscope {
namespace cupti {

struct Library {
  Result (*Subscribe)(void** subscriber, Callback callback, void* user);
  Result (*Unsubscribe)(void* subscriber);
  Result (*EnableCallback)(uint32_t enable, void* subscriber, int domain, uint32_t id);
  Result (*GetVersion)(uint32_t* version);
  Result (*GetResultString)(Result result, const char** text);
  Result (*GetCallbackName)(int domain, uint32_t id, const char** name);
  Result (*SetThreadIdType)(int type);                       // may be null
  Result (*ActivityRegisterTimestampCallback)(Timestamp);    // may be null
  Result (*ActivityRegisterCallbacks)(BufferRequested, BufferCompleted);
  Result (*ActivityEnable)(int kind);
  Result (*ActivityDisable)(int kind);
  Result (*ActivityFlushAll)(uint32_t flag);
  Result (*ActivityGetNextRecord)(uint8_t* buffer, size_t valid, uint8_t** record);
  Result (*ActivityGetNumDroppedRecords)(void* context, uint32_t stream, size_t* dropped);
  Result (*ActivityEnableRuntimeApi)(uint32_t id, uint8_t enable);  // may be null
  Result (*GetStreamIdEx)(void* context, uintptr_t stream, uint8_t per_thread,
                          uint32_t* id);  // may be null
  Result (*Finalize)();                  // may be null
  char path[4096];
};

// Calls run(id, name) for every function of a domain that a callback can be set for.
template <class Run>
void each_function(const Library& library, int domain, Run run) {
  constexpr uint32_t kUnknownInARow = 64;  // releases leave holes
  for (uint32_t id = 1, unknown = 0; id < kMostIds && unknown < kUnknownInARow; id++) {
    const char* name = nullptr;
    bool known = library.GetCallbackName(domain, id, &name) == kSuccess && name;
    unknown = known ? 0 : unknown + 1;
    if (known) run(id, name);
  }
}

// Fills the table; on failure false, and `why` holds one sentence.
bool open_library(Library& library, const char* candidates, char* why, size_t room);

}  // namespace cupti
}  // namespace stepscope
