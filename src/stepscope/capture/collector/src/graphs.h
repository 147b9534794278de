// Whether the process ever made a CUDA graph: CUPTI must not be taken out of it then.
#pragma once
#include "cupti_library.h"

namespace stepscope {
namespace graphs {

void watch(const cupti::Library& cupti, void* subscriber);
bool is_maker(int domain, uint32_t id);  // whether a callback is of a function that makes graphs
void note_made();
bool made();
void forget();  // in a forked child

}  // namespace graphs
}  // namespace stepscope
