// The memory that CUPTI writes its records to: handed out, taken back full, reused.
#pragma once
#include "cupti_abi.h"

namespace stepscope {
namespace buffers {

struct Full {
  uint8_t* data;
  void* context;
  size_t valid;
  uint32_t stream;
};

void prepare();  // a few, before the first is asked for
void requested(uint8_t** buffer, size_t* bytes, size_t* most);                    // for CUPTI
void completed(void* context, uint32_t stream, uint8_t* data, size_t, size_t valid);  // for CUPTI
Full* take(uint32_t* count);  // those that came back since; the caller frees the list
void give_back(uint8_t* data);
uint64_t made();
void forget();  // in a forked child

}  // namespace buffers
}  // namespace stepscope
