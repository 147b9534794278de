// CUPTI's interface as far as it is used, declared again from its documentation: numbers, function
// types, and (cupti_fields.def) where fields stand in its records.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stepscope {
namespace cupti {

enum Kind : int {
  kMemcpy = 1, kMemset = 2, kDriver = 4, kRuntime = 5, kConcurrentKernel = 10, kOverhead = 17,
  kMemcpyPtoP = 22, kCudaEvent = 36, kStream = 37, kSynchronization = 38, kMemory2 = 49,
  kGraphTrace = 51,
};
enum Domain : int { kDomainDriver = 1, kDomainRuntime = 2, kDomainResource = 3 };
constexpr uint32_t kMostIds = 2048;       // of the functions of a domain: beyond all so far
constexpr int kSuccess = 0, kMaxLimitReached = 12, kMultipleSubscribers = 39;
constexpr uint32_t kForced = 1;           // CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
constexpr int kThreadIdSystem = 1;        // CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM
constexpr int kSiteEnter = 0, kSiteExit = 1;  // first field of the data of an API callback
constexpr uint32_t kDriverProfilerStart = 308, kDriverProfilerStop = 309;
constexpr uint32_t kRuntimeProfilerStart = 171, kRuntimeProfilerStop = 172;
constexpr uint32_t kRuntimeLaunchKernel = 211, kDriverLaunchKernel = 307, kDriverLaunchKernelEx = 652;
constexpr uint32_t kContextCreated = 1, kContextDestroyStarting = 2;
enum SyncType : uint32_t { kSyncEvent = 1, kSyncStreamWait = 2, kSyncStream = 3, kSyncContext = 4 };

// What a callback of an API function is told: CUpti_CallbackData.
struct CallbackData {
  int site;
  const char* function;
  const void* arguments;  // the function's, in a struct
  const void* result;
  const char* symbol;
  void* context;
  uint32_t context_number;
  uint64_t* kept;  // carries a value from entry to exit
  uint32_t correlation;
};

using Result = int;
using Callback = void (*)(void* user, int domain, uint32_t id, const void* data);
using BufferRequested = void (*)(uint8_t** buffer, size_t* bytes, size_t* most_records);
using BufferCompleted = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t bytes,
                                 size_t valid);
using Timestamp = uint64_t (*)();

template <class T>
struct Field {
  size_t offset;
  T operator()(const uint8_t* record) const {
    T value;
    memcpy(&value, record + offset, sizeof value);
    return value;
  }
};

#define FIELD(record, name, type, offset) \
  namespace record {                      \
  constexpr Field<type> name{offset};     \
  }
namespace field {
#include "cupti_fields.def"
}
#undef FIELD

}  // namespace cupti
}  // namespace stepscope
