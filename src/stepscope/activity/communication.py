"""Kernels that move data between GPUs, by library, with the public source of each name.

Every other part of the analysis asks here what is communication and what it does. The names are
those of the ``__global__`` functions in the sources given: ``owner/repository: path``. Names that
ordinary kernels have as well (``combine``, ``dispatch``, ``barrier``) count only inside the
namespace of their library.

What the framework or an enclosing range says about a launch decides before the kernel's name does
(``collectives.calls``): a ``ncclDevKernel_SendRecv`` under ``c10d::alltoall_base_`` is an
all-to-all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

from stepscope.trace.text import LONGEST_JUDGED


@dataclass(frozen=True)
class Kernels:
    """Communication kernels of one library that do the same.

    Attributes:
        library: the library that has them.
        pattern: searched for in the kernel's qualified name, without parameters and ignoring case.
        does: kind of communication (``collectives.kinds.KINDS``).
        source: where the names come from, ``owner/repository: path``.
        whole: where the qualified name is an ordinary one, what the name with its parameters must
            hold as well.
        computes: whether the same kernel also computes what would be kernels of its own: a matrix
            product, a normalisation, an expert.
    """

    library: str
    pattern: str
    does: str
    source: str
    whole: str = ""
    computes: bool = False


_DEEP_EP = r"(?<![a-z])(deep_ep|dpsk::ep|uccl::ep)::(\w+::)*"

KNOWN: Final = (
    # NCCL and RCCL name the operation in the kernel, but for those that hold them all.
    Kernels("NCCL", r"^nccl\w*?all_?reduce", "all_reduce",
            "NVIDIA/nccl: src/device/generate.py, src/device/symmetric/generate.py"),
    Kernels("NCCL", r"^nccl\w*?reduce_?scatter", "reduce_scatter",
            "NVIDIA/nccl: src/device/generate.py, src/device/symmetric/generate.py"),
    Kernels("NCCL", r"^nccl\w*?all_?gather", "all_gather",
            "NVIDIA/nccl: src/device/generate.py, src/device/symmetric/generate.py"),
    Kernels("NCCL", r"^nccl\w*?all_?to_?all", "all_to_all",
            "ROCm/rccl: src/device/alltoall_pivot.h; NVIDIA/nccl: src/device"),
    Kernels("NCCL", r"^nccl\w*?send_?recv", "send_recv", "NVIDIA/nccl: src/device/generate.py"),
    Kernels("NCCL", r"^nccl\w*?broadcast", "broadcast", "NVIDIA/nccl: src/device/generate.py"),
    Kernels("NCCL", r"^nccl\w*?_reduce", "reduce", "NVIDIA/nccl: src/device/generate.py"),
    Kernels("NCCL", r"^nccl", "unknown", "NVIDIA/nccl: src/device/common.cu"),
    Kernels("RCCL", r"^rccl|^msccl(?!pp)", "unknown",
            "ROCm/rccl: src/device/common.h, src/device/msccl_kernel_impl.h"),
    # expert parallelism: tokens travel to their experts (dispatch) and back (combine)
    Kernels("HybridEP", r"(?<![a-z])hybrid_ep::(\w+::)*(dispatch|combine)_kernel", "all_to_all",
            "deepseek-ai/DeepEP, branch hybrid-ep: csrc/hybrid_ep/backend/hybrid_ep_backend.cuh"),
    Kernels("HybridEP", r"(?<![a-z])hybrid_ep::(\w+::)*(device|rdma)_sync_kernel", "barrier",
            "deepseek-ai/DeepEP, branch hybrid-ep: csrc/hybrid_ep/backend/hybrid_ep_backend.cuh"),
    Kernels("HybridEP", r"(?<![a-z])ag_nvl_kernel", "all_gather",
            "deepseek-ai/DeepEP, branch hybrid-ep: csrc/hybrid_ep/extension/allgather.cu"),
    Kernels("DeepEP", _DEEP_EP + r"(\w*dispatch|\w*combine)(_impl)?$", "all_to_all",
            "deepseek-ai/DeepEP: csrc/kernels/legacy/internode.cu, intranode.cu, internode_ll.cu, "
            "csrc/kernels/elastic/dispatch.hpp, combine.hpp"),
    Kernels("DeepEP", _DEEP_EP + r"(\w*notify\w*|barrier(_impl)?)$", "barrier",
            "deepseek-ai/DeepEP: csrc/kernels/legacy/internode.cu, intranode.cu"),
    Kernels("DeepEP", _DEEP_EP + r"get_dispatch_layout$", "local",
            "deepseek-ai/DeepEP: csrc/kernels/legacy/layout.cu"),
    Kernels("DeepEP", _DEEP_EP + r"pp_(send|recv)_impl$", "send_recv",
            "deepseek-ai/DeepEP: csrc/kernels/elastic/pp_send_recv.hpp"),
    Kernels("pplx-kernels", r"(?<![a-z])pplx::(\w+::)*\w*(dispatch|combine)\w*$|"
            r"(?<![a-z])a2a_(dispatch|combine)_(send|recv)", "all_to_all",
            "perplexityai/pplx-kernels: csrc/all_to_all/all_to_all.h; "
            "perplexityai/pplx-garden: p2p-all-to-all"),
    Kernels("pplx-kernels", r"^(dispatch|combine)Kernel$", "all_to_all",
            "perplexityai/pplx-kernels: csrc/all_to_all/internode_dispatch.cu, "
            "intranode_combine.cu",
            whole=r"Kernel<.*(true|false|\(bool\)[01]), ?(true|false|\(bool\)[01])>"),
    Kernels("MORI", r"(?<![a-z])Ep(Dispatch|Combine)\w+", "all_to_all",
            "ROCm/mori: src/ops/dispatch_combine"),
    Kernels("MORI", r"(?<![a-z])OneShotAll2all\w*Kernel", "all_to_all",
            "ROCm/mori: src/collective"),
    Kernels("MORI", r"(?<![a-z])(OneShotAllGather|AllGather(Ring|Sdma|Reduced|AsyncWait)"
            r"|InterNodeRingAllGather)\w*Kernel", "all_gather", "ROCm/mori: src/collective"),
    Kernels("MORI", r"(?<![a-z])ReduceScatterAllGatherFusedKernel", "all_reduce",
            "ROCm/mori: src/collective"),
    Kernels("MORI", r"(?<![a-z])(Sdma)?ReduceScatter\w*Kernel", "reduce_scatter",
            "ROCm/mori: src/collective"),
    Kernels("TensorRT-LLM", r"(?<![a-z])moeA2A(Dispatch|Combine)Kernel|(?<![a-z])moeAllToAllKernel"
            r"|(?<![a-z])helixAllToAllKernel", "all_to_all",
            "NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/communicationKernels/"
            "moeAlltoAllKernels.cu, cpp/tensorrt_llm/kernels/fusedMoeCommKernels.cu, "
            "helixAllToAll.cu; flashinfer-ai/flashinfer: include/flashinfer/comm/"
            "trtllm_alltoall.cuh"),
    Kernels("FlashInfer", r"(?<![a-z])ulysses_a2a_kernel", "all_to_all",
            "flashinfer-ai/flashinfer: include/flashinfer/comm/ulysses_all_to_all.cuh"),
    Kernels("DeepGEMM", r"mega_moe_impl", "all_to_all",
            "deepseek-ai/DeepGEMM: deep_gemm/include/deep_gemm/impls/sm100_fp8_fp4_mega_moe.cuh",
            computes=True),
    # PyTorch's symmetric memory
    Kernels("PyTorch", r"(?<![a-z])(multimem|one_shot|two_shot|multimem_one_shot|"
            r"multimem_two_shot)_all_reduce_kernel|(?<![a-z])(one|two)_shot_all_reduce\w*kernel",
            "all_reduce",
            "pytorch/pytorch: torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu"),
    Kernels("PyTorch", r"(?<![a-z])multimem_one_shot_reduce_kernel", "reduce",
            "pytorch/pytorch: torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu"),
    Kernels("PyTorch", r"(?<![a-z])multimem_all_gather_kernel", "all_gather",
            "pytorch/pytorch: torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu"),
    Kernels("PyTorch", r"(?<![a-z])(allToAllV|exchangeSplitAndOffset)\w*$", "all_to_all",
            "pytorch/pytorch: torch/csrc/distributed/c10d/symm_mem/nvshmem_extension.cu"),
    # all-reduces that inference engines write for small messages
    Kernels("vLLM, SGLang, AITER", r"(?<![a-z])cross_device_reduce_\w+|"
            r"(?<![a-z])all_reduce_(one|two)_shot_\w*kernel", "all_reduce",
            "vllm-project/vllm: csrc/custom_all_reduce.cuh; sgl-project/sglang: "
            "sgl-kernel/csrc/allreduce/custom_all_reduce.cuh; ROCm/aiter: "
            "csrc/include/custom_all_reduce.cuh"),
    Kernels("AITER", r"(?<![a-z])(qknorm_)?allreduce_fusion_kernel_[12]stage\w*|"
            r"(?<![a-z])allreduce_(mhc|rmsnorm)_\w+", "all_reduce",
            "ROCm/aiter: csrc/include/custom_all_reduce.cuh, quick_all_reduce.cuh", computes=True),
    Kernels("AITER", r"(?<![a-z])reduce_scatter_(cross_device_store|split_\w+dim\w*)",
            "reduce_scatter", "ROCm/aiter: csrc/include/custom_all_reduce.cuh"),
    Kernels("AITER", r"(?<![a-z])aiter::allgather_(naive|vec|lastdim)", "all_gather",
            "ROCm/aiter: csrc/include/custom_all_reduce.cuh"),
    Kernels("quickreduce", r"(?<![a-z])allreduce_prototype_(one|two)shot|"
            r"(?<![a-z])quickreduce::", "all_reduce",
            "mk1-project/quickreduce: csrc/quick_reduce.h; vllm-project/vllm: "
            "csrc/quickreduce/quick_reduce.h"),
    Kernels("TensorRT-LLM, FlashInfer",
            r"(?<![a-z])(moe(reduce|finalize)_)?allreduce_fusion_kernel_(one|two)shot_\w+|"
            r"(?<![a-z])(lamport_style_)?one_shot_(prenorm_)?all_reduce_norm_kernel|"
            r"(?<![a-z])oneshotAllreduceFusionKernel|(?<![a-z])rmsNormLamport", "all_reduce",
            "NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/communicationKernels/"
            "allReduceFusionKernels.cu, moeAllReduceFusionKernels.cu; flashinfer-ai/flashinfer: "
            "include/flashinfer/comm/trtllm_allreduce.cuh, trtllm_mnnvl_allreduce.cuh",
            computes=True),
    Kernels("TensorRT-LLM, FlashInfer", r"(?<![a-z])(lowPrecision)?(one|two)ShotAllReduceKernel",
            "all_reduce",
            "NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/customAllReduceKernels.cu; "
            "flashinfer-ai/flashinfer: include/flashinfer/comm/trtllm_allreduce.cuh"),
    Kernels("FlashInfer", r"(?<![a-z])mixed_comm::allgather_kernel", "all_gather",
            "flashinfer-ai/flashinfer: include/flashinfer/comm/mixed_comm.cuh"),
    Kernels("FlashInfer", r"(?<![a-z])mixed_comm::reducescatter_kernel", "reduce_scatter",
            "flashinfer-ai/flashinfer: include/flashinfer/comm/mixed_comm.cuh"),
    Kernels("FlashInfer", r"(?<![a-z])mixed_comm::\w*allreduce\w*kernel|"
            r"(?<![a-z])pcie_ipc::ipc_\w+_kernel|(?<![a-z])push_oneshot_param_kernel", "all_reduce",
            "flashinfer-ai/flashinfer: include/flashinfer/comm/mixed_comm.cuh, "
            "pcie_ipc_all_reduce.cuh"),
    Kernels("XLA", r"(?<![a-z])(OneShot|TwoShot)?AllReduceKernelImpl", "all_reduce",
            "openxla/xla: xla/stream_executor/gpu/all_reduce_kernel_lib.cu.h"),
    Kernels("XLA", r"(?<![a-z])RaggedAllToAll\w*Kernel", "all_to_all",
            "openxla/xla: xla/stream_executor/gpu/ragged_all_to_all_device_kernel_lib.cu.h"),
    # Transformer Engine hides tensor-parallel communication under GEMMs with these
    Kernels("Transformer Engine", r"(?<![a-z])userbuffers_fp16_sum_inplace_gpu_\w+_rs",
            "reduce_scatter",
            "NVIDIA/TransformerEngine: transformer_engine/common/comm_gemm_overlap/userbuffers/"
            "userbuffers.cu"),
    Kernels("Transformer Engine", r"(?<![a-z])userbuffers_fp16_sum_inplace_gpu_\w+_ag",
            "all_gather",
            "NVIDIA/TransformerEngine: transformer_engine/common/comm_gemm_overlap/userbuffers/"
            "userbuffers.cu"),
    Kernels("Transformer Engine", r"(?<![a-z])userbuffers_fp16_sum_inplace", "all_reduce",
            "NVIDIA/TransformerEngine: transformer_engine/common/comm_gemm_overlap/userbuffers/"
            "userbuffers.cu"),
    Kernels("Transformer Engine", r"(?<![a-z])kuserbuffers_(push|pull)\w+", "send_recv",
            "NVIDIA/TransformerEngine: transformer_engine/common/comm_gemm_overlap/userbuffers/"
            "userbuffers.cu"),
    # NVSHMEM's own kernels; those that use it from inside are named by their library
    Kernels("NVSHMEM", r"(?<![a-z])alltoall_on_stream_kernel", "all_to_all",
            "NVIDIA/nvshmem: src/host/stream/coll/alltoall/alltoall.cu"),
    Kernels("NVSHMEM", r"(?<![a-z])fcollect_on_stream_kernel", "all_gather",
            "NVIDIA/nvshmem: src/host/stream/coll/fcollect/fcollect.cu"),
    Kernels("NVSHMEM", r"(?<![a-z])reducescatter_on_stream_kernel", "reduce_scatter",
            "NVIDIA/nvshmem: src/host/stream/coll/reducescatter/reducescatter_common.cuh"),
    Kernels("NVSHMEM", r"(?<![a-z])rdxn_on_stream_kernel|nvshmemi_reduce_kernel", "all_reduce",
            "NVIDIA/nvshmem: src/host/stream/coll/rdxn/reduce_common.cuh"),
    Kernels("NVSHMEM", r"(?<![a-z])broadcast_on_stream_kernel", "broadcast",
            "NVIDIA/nvshmem: src/host/stream/coll/broadcast/broadcast.cu"),
    Kernels("NVSHMEM", r"(?<![a-z])(barrier|sync)_on_stream_kernel", "barrier",
            "NVIDIA/nvshmem: src/host/stream/coll/barrier/barrier.cu"),
    Kernels("NVSHMEM", r"(?<![a-z])nvshmemi?_(proxy_|transfer_|signal|barrier|rma)\w*|"
            r"(?<![a-z])nvshmemx?_", "unknown", "NVIDIA/nvshmem: src/host/comm/rma.cu"),
    Kernels("MSCCL++", r"(?<![a-z])mscclpp::(\w+::)*allreduce\w*", "all_reduce",
            "microsoft/mscclpp: src/ext/collectives/allreduce"),
    Kernels("MSCCL++", r"(?<![a-z])mscclpp::(\w+::)*allgather\w*", "all_gather",
            "microsoft/mscclpp: src/ext/collectives/allgather"),
    Kernels("MSCCL++", r"(?<![a-z])mscclpp::(\w+::)*alltoall\w*", "all_to_all",
            "microsoft/mscclpp: src/ext/collectives"),
    Kernels("MSCCL++", r"(?<![a-z])mscclpp(::|_)", "unknown",
            "microsoft/mscclpp: src/core/include/execution_kernel.hpp"),
    # What is not named above but says both what it does and how: shared by several libraries.
    Kernels("other", r"(?<![a-z])(gemm|matmul)_?(all_?reduce|ar)(?![a-z])|"
            r"(?<![a-z])(all_?reduce)_?(gemm|matmul)", "all_reduce",
            "ByteDance-Seed/Triton-distributed: python/triton_dist/kernels/nvidia/"
            "gemm_allreduce.py", computes=True),
    Kernels("other", r"(?<![a-z])(gemm|matmul)_?(reduce_?scatter)", "reduce_scatter",
            "ByteDance-Seed/Triton-distributed: python/triton_dist/kernels/nvidia/"
            "gemm_reduce_scatter.py", computes=True),
    Kernels("other", r"(?<![a-z])(all_?gather|ag)_(group_)?(gemm|matmul)", "all_gather",
            "ByteDance-Seed/Triton-distributed: python/triton_dist/kernels/nvidia/"
            "allgather_gemm.py", computes=True),
    Kernels("other", r"(?<![a-z])all_?reduce_?(kernel|(one|two)_?shot|multimem|nvls)|"
            r"((one|two)_?shot|multimem|nvls|symm_?mem)_?all_?reduce", "all_reduce",
            "ByteDance-Seed/Triton-distributed: python/triton_dist/kernels/nvidia/allreduce.py"),
    Kernels("other", r"((one|two)_?shot|multimem|nvls|symm_?mem)_?all_?gather|"
            r"all_?gather_?(push|pull|multimem|nvls)", "all_gather",
            "ByteDance-Seed/Triton-distributed: python/triton_dist/kernels/nvidia/allgather.py"),
    Kernels("other", r"(?<![a-z])(ragged_)?all_?to_?all(?![a-z])\w*", "all_to_all",
            "ByteDance-Seed/Triton-distributed: python/triton_dist/kernels/nvidia/ep_a2a.py"),
)  # fmt: skip
"""The first entry that fits decides."""

_PATTERNS: Final = tuple(
    (known, re.compile(known.pattern, re.IGNORECASE), re.compile(known.whole)) for known in KNOWN
)
_ANY: Final = re.compile("|".join(f"(?:{known.pattern})" for known in KNOWN), re.IGNORECASE)
_PREFIXES: Final = re.compile(r"\(anonymous namespace\)::|^(?:static |__global__ )*void ")
_MANGLED: Final = re.compile(r"^_ZN?[KVr]*(?=\d)")
_MANGLED_ANONYMOUS: Final = "_GLOBAL__N_1"


def qualified_name(name: str) -> str:
    """A kernel's name with its namespaces, without return type, template and call parameters.

    Names that nobody demangled (as AMD's tools and JIT compilers leave them) are taken apart as far
    as that goes: ``_ZN7deep_ep9intranode8dispatchILi8EEEvPv`` is ``deep_ep::intranode::dispatch``.
    """
    plain = _PREFIXES.sub("", name[:LONGEST_JUDGED])
    mangled = _MANGLED.match(plain)
    if mangled:
        rest, found = plain[mangled.end() :], []
        while length := re.match(r"\d+", rest):
            size = int(length[0])
            found.append(rest[length.end() : length.end() + size])
            rest = rest[length.end() + size :]
        return "::".join(part for part in found if part != _MANGLED_ANONYMOUS)
    return re.split(r"[<(]", plain, maxsplit=1)[0].strip().removesuffix(".kd")


@cache
def known_kernels(name: str) -> Kernels | None:
    """What is known of a kernel that moves data between GPUs; None where it is no such kernel."""
    plain = qualified_name(name)
    if not _ANY.search(plain):
        return None
    return next(
        (
            known
            for known, pattern, whole in _PATTERNS
            if pattern.search(plain) and whole.search(name)
        ),
        None,
    )


def is_communication(name: str) -> bool:
    """Whether a kernel moves data between GPUs, by its name."""
    return known_kernels(name) is not None


def also_computes(name: str) -> bool:
    """Whether a communication kernel also computes, by its name."""
    known = known_kernels(name)
    return known is not None and known.computes
