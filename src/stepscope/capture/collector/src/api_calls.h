// Calls of the CUDA API that are noted in callbacks of their own: those of the driver, and those
// that order streams and wait.
//
// Why not CUPTI's records of the kinds DRIVER, SYNCHRONIZATION and CUDA_EVENT: each of them makes
// CUPTI handle every driver function, so that every cudaGetDevice costs some 200 ns instead of 30,
// also where its record is switched off. A callback touches the functions it is set for.
#pragma once
#include "cupti_library.h"
#include "process.h"

namespace stepscope {
namespace api_calls {

bool takes(int kind);  // whether a kind of activity is noted here, so that CUPTI must not record it
// What each callback id is; calls nothing of CUDA.
void prepare(const cupti::Library& cupti, void* subscriber);
void enable(bool on);
void on_call(int domain, uint32_t id, const void* data);
void drain(Process& process);
void forget();  // in a forked child

}  // namespace api_calls
}  // namespace stepscope
