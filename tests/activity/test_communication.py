"""What is communication, by the names that kernels have in their libraries' sources."""

from __future__ import annotations

import pytest

from stepscope.activity.communication import (
    KNOWN,
    also_computes,
    is_communication,
    known_kernels,
    qualified_name,
)
from stepscope.collectives import kinds


@pytest.mark.parametrize(
    ("name", "does"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t", "all_gather"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "send_recv"),
        ("ncclSymkDevKernel_ReduceScatter_LD_sum_bf16", "reduce_scatter"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "unknown"),
        ("void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", "unknown"),
        ("void cross_device_reduce_1stage<__nv_bfloat16, 4>(...)", "all_reduce"),
        ("void vllm::cross_device_reduce_2stage<__half, 8>(vllm::RankData*)", "all_reduce"),
        ("void aiter::cross_device_reduce_2stage_write_mode<__hip_bfloat16, 8>()", "all_reduce"),
        (
            "void (anonymous namespace)::all_reduce_one_shot_push_kernel<__nv_bfloat16, 8u, true>"
            "((anonymous namespace)::AllReducePushData)",
            "all_reduce",
        ),
        (
            "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*, long*)",
            "all_to_all",
        ),
        ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>(int4*)", "all_to_all"),
        ("void dpsk::ep::internode::cached_notify<false>(int, int)", "barrier"),
        ("void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*)", "local"),
        ("void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)", "all_to_all"),
        ("void deep_ep::legacy::intranode::combine<__nv_bfloat16, 8>()", "all_to_all"),
        ("void deep_ep::elastic::hybrid_dispatch_impl<8>()", "all_to_all"),
        ("_ZN7deep_ep9intranode8dispatchILi8EEEvPv", "all_to_all"),
        ("void hybrid_ep::dispatch_kernel<unsigned short>(hybrid_ep::param)", "all_to_all"),
        (
            "void (anonymous namespace)::dispatchKernel<10u, true, true>(std::byte*)",
            "all_to_all",
        ),
        ("void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::Args)", "all_to_all"),
        ("EpCombineIntraNodeKernel_bf16", "all_to_all"),
        ("void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8, false>()", "all_to_all"),
        ("void oneShotAllReduceKernel<__nv_bfloat16, 4, true, false>()", "all_reduce"),
        ("multimem_all_reduce_kernel<c10::BFloat16, 16>", "all_reduce"),
        ("void two_shot_all_reduce_kernel_inplace<float, 16, 8>()", "all_reduce"),
        ("void multimem_all_gather_kernel<16>(char*, char*)", "all_gather"),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<4, __nv_fp8_e4m3>()", "reduce_scatter"),
        ("void userbuffers_fp16_sum_inplace_gpu_rw_ag<2>(int)", "all_gather"),
        ("kuserbuffers_pushrecv(int, int, int*)", "send_recv"),
        ("void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>>()", "all_reduce"),
        ("alltoall_on_stream_kernel<char, (threadgroup_t)2>", "all_to_all"),
        ("void mscclpp::collective::allreducePacket<__half>()", "all_reduce"),
        ("RaggedAllToAllKernelImpl<8l>", "all_to_all"),
        ("allToAllV(void*, void*, long*, unsigned long, int)", "all_to_all"),
    ],
)
def test_kernels_of_libraries(name: str, does: str) -> None:
    known = known_kernels(name)
    assert known is not None
    assert known.does == does
    assert not known.computes


@pytest.mark.parametrize(
    "name",
    [
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
        "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8>()",
        "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<1, 8>()",
        "void aiter::allreduce_fusion_kernel_2stage<__hip_bfloat16, 8>()",
        "void deep_gemm::sm100_fp8_fp4_mega_moe_impl<1024u>(void*)",
        "kernel_gemm_allreduce",
        "gemm_reduce_scatter_kernel",
    ],
)
def test_fused_kernels_are_both(name: str) -> None:
    assert is_communication(name)
    assert also_computes(name)


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
        "gather_kernel",
        "void at::native::vectorized_gather_kernel<16, long>(char*)",
        "combine",
        "dispatch",
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>>()",
        "moe_combine_kernel",
        "void moe::dispatch<8>(int*)",
        "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*, int*>::Policy>()",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<lambda>>",
        "triton_red_fused_add_sum_0",
        "void (anonymous namespace)::softmax_warp_forward<float>()",
        "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32",
        "void foo<deep_ep::internode::Config>(int)",
        "barrier",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>()",
        "permute_kernel",
        "scatter_reduce_kernel",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
        "",
    ],
)
def test_ordinary_kernels(name: str) -> None:
    assert not is_communication(name)


def test_every_entry_says_what_it_does_and_where_it_comes_from() -> None:
    for known in KNOWN:
        assert known.does in kinds.KINDS
        assert "/" in known.source.split(":")[0]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("void a::b<c::d<int>>(e*)", "a::b"),
        ("(anonymous namespace)::k(int)", "k"),
        ("_ZN12_GLOBAL__N_114dispatchKernelILj10EEEvv", "dispatchKernel"),
        ("_Z9my_kernelPf", "my_kernel"),
        ("EpDispatchKernel.kd", "EpDispatchKernel"),
    ],
)
def test_qualified_names(name: str, plain: str) -> None:
    assert qualified_name(name) == plain
