// Calls of the CUDA API that are not worth their record: queries and getters of some 100 ns that
// frameworks make for every launch. They neither enqueue, wait nor allocate. Queries that tell what
// a thread is about (cudaEventQuery, cudaPointerGetAttributes) are kept.
#pragma once
#include <cstdint>

namespace stepscope {

// CUPTI's callback ids of the runtime, stable over versions.
constexpr uint16_t kQueryOnlyRuntimeCalls[] = {
    3,              // cudaGetDeviceCount
    10, 11, 12, 209,  // cudaGetLastError, cudaPeekAtLastError, cudaGetErrorString, ...Name
    15,             // cudaFuncGetAttributes
    17,             // cudaGetDevice
    200,            // cudaDeviceGetAttribute
    203, 237,       // cudaStreamGetPriority
    207, 210, 251, 329, 432, 433,       // cudaOccupancy*
    317, 318,       // cudaStreamIsCapturing
    324, 325, 409, 410, 461, 462,       // cudaStreamGetCaptureInfo
    327,            // cudaThreadExchangeStreamCaptureMode
    336,            // cudaGetFuncBySymbol
    406, 407, 468, 469,                 // cudaGetDriverEntryPoint*
};

// The driver's are told by name: every release adds new versions of them under new ids.
constexpr const char* kQueryOnlyDriverParts[] = {
    "Get", "SetAttribute", "cuCtxPush", "cuCtxPop", "cuCtxSetCurrent", "cuOccupancy", "cuTensorMap",
    "IsCapturing", "IsLoaded", "ExchangeStreamCaptureMode",
};
constexpr const char* kKeptDriverParts[] = {"MemGetInfo", "PointerGet", "cuIpcGet"};

}  // namespace stepscope
