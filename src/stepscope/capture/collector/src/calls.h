// Calls of the CUDA API that are not worth their record: queries and getters of some 100 ns that
// frameworks make for every launch. They neither enqueue, wait nor allocate. Queries that tell what
// a thread is about (cudaEventQuery, cudaPointerGetAttributes) are kept.
#pragma once
#include <cstdint>

namespace stepscope {

// CUPTI's callback ids, stable over versions.
constexpr uint16_t kDullRuntimeCalls[] = {
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
constexpr uint16_t kDullDriverCalls[] = {
    2, 3, 4, 5, 7, 8, 9, 259,  // cuDriverGetVersion, cuDeviceGet*, cuDeviceTotalMem
    14, 15, 16,     // cuCtxPushCurrent, cuCtxPopCurrent, cuCtxGetDevice
    23,             // cuModuleGetFunction
    35, 246,        // cuMemGetAddressRange
    85,             // cuFuncGetAttribute
    135, 137,       // cuGetExportTable, cuCtxGetLimit
    296, 303, 304,  // cuCtxGetApiVersion, cuCtxSetCurrent, cuCtxGetCurrent
    323, 324,       // cuCtxPushCurrent, cuCtxPopCurrent
    332,            // cuDeviceGetPCIBusId
    368, 369, 434, 435, 574, 575,       // cuStreamGetPriority, Flags, Attribute
    372, 373,       // cuGetErrorString, cuGetErrorName
    374, 384, 451, 452, 543, 675, 676,  // cuOccupancy*
    391, 392,       // cuCtxGetFlags, cuDevicePrimaryCtxGetState
    482, 647,       // cuDeviceGetUuid
    483, 484, 759, 760, 774, 775,       // cuStreamGetCtx, cuStreamGetDevice
    499, 500,       // cuStreamIsCapturing
    536, 537, 629, 630, 729, 730,       // cuStreamGetCaptureInfo
    566,            // cuFuncGetModule
    626, 677,       // cuGetProcAddress
    681, 682, 683, 686, 700,            // cuLibraryGet*, cuKernelGetFunction, GetAttribute
    693, 694, 695,  // cuStreamGetId, cuCtxGetId
    697, 698, 699, 781,                 // cuTensorMap*: build a descriptor on the host
    718, 719,       // cuFuncGetName, cuKernelGetName
    733, 734,       // cuFuncGetParamInfo, cuKernelGetParamInfo
    741,            // cuFuncIsLoaded
    754,            // cuKernelGetLibrary
};

}  // namespace stepscope
