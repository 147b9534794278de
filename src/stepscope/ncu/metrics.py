"""The metrics that Stepscope asks for: one entry each, with every name versions have given them.

Sections and labels are those of Nsight Compute, so that figures can be found again in its pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        key: Stepscope's short name.
        label: as ``ncu --page details`` shows it; empty where it shows none.
        unit: base unit.
        names: NVIDIA's names, the newest first.
        section: identifier of the section that collects it.
        labels: further labels of other versions.
    """

    key: str
    label: str
    unit: str
    names: tuple[str, ...]
    section: str
    labels: tuple[str, ...] = ()


SECTIONS: Final = {
    "SpeedOfLight": "GPU Speed Of Light Throughput",
    "LaunchStats": "Launch Statistics",
    "Occupancy": "Occupancy",
    "ComputeWorkloadAnalysis": "Compute Workload Analysis",
    "MemoryWorkloadAnalysis": "Memory Workload Analysis",
    "MemoryWorkloadAnalysis_Tables": "Memory Workload Analysis Tables",
    "SchedulerStats": "Scheduler Statistics",
    "WarpStateStats": "Warp State Statistics",
    "InstructionStats": "Instruction Statistics",
    "SourceCounters": "Source Counters",
    "SpeedOfLight_HierarchicalSingleRooflineChart": "Hierarchical Roofline, Single Precision",
    "SpeedOfLight_HierarchicalDoubleRooflineChart": "Hierarchical Roofline, Double Precision",
    "SpeedOfLight_HierarchicalHalfRooflineChart": "Hierarchical Roofline, Half Precision",
    "SpeedOfLight_HierarchicalTensorRooflineChart": "Hierarchical Roofline, Tensor Core",
}
"""Section identifier (``ncu --section``) -> title."""

_PCT = ".avg.pct_of_peak_sustained_elapsed"
_ACTIVE = ".avg.pct_of_peak_sustained_active"
_TENSOR = "sm__ops_path_tensor_src_"
_TENSOR_OP = "sm__ops_path_tensor_op_"
_SINGLE = "SpeedOfLight_HierarchicalSingleRooflineChart"
_DOUBLE = "SpeedOfLight_HierarchicalDoubleRooflineChart"
_HALF = "SpeedOfLight_HierarchicalHalfRooflineChart"


def _m(
    key: str, label: str, unit: str, *names: str, also: tuple[str, ...] = ()
) -> tuple[str, str, str, tuple[str, ...], tuple[str, ...]]:
    return key, label, unit, names, also


_ENTRIES: Final = {
    "SpeedOfLight": (
        _m("duration", "Duration", "ns", "gpu__time_duration.sum", "gpu__time_duration.avg"),
        _m("elapsed_cycles", "Elapsed Cycles", "cycle", "gpc__cycles_elapsed.max"),
        _m("sm_active_cycles", "SM Active Cycles", "cycle", "sm__cycles_active.avg"),
        _m("sm_throughput", "Compute (SM) Throughput", "%", f"sm__throughput{_PCT}",
           also=("SM [%]", "Compute (SM) [%]", "SOL SM")),
        _m("memory_throughput", "Memory Throughput", "%", f"gpu__compute_memory_throughput{_PCT}",
           f"gpu__compute_memory_sol_throughput{_PCT}", also=("Memory [%]", "SOL Memory")),
        _m("l1_throughput", "L1/TEX Cache Throughput", "%", f"l1tex__throughput{_ACTIVE}",
           f"l1tex__throughput{_PCT}", also=("SOL L1/TEX Cache",)),
        _m("l2_throughput", "L2 Cache Throughput", "%", f"lts__throughput{_PCT}",
           also=("SOL L2 Cache",)),
        _m("dram_throughput", "DRAM Throughput", "%", f"gpu__dram_throughput{_PCT}",
           f"dram__throughput{_PCT}", also=("SOL DRAM",)),
        _m("sm_frequency", "SM Frequency", "hz", "gpc__cycles_elapsed.avg.per_second",
           "smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second"),
        _m("dram_frequency", "DRAM Frequency", "hz", "dram__cycles_elapsed.avg.per_second"),
        _m("memory_throughput_max", "", "%",
           "gpu__compute_memory_throughput.max.pct_of_peak_sustained_elapsed"),
    ),
    "LaunchStats": (
        _m("grid_size", "Grid Size", "", "launch__grid_size"),
        _m("block_size", "Block Size", "", "launch__block_size"),
        _m("threads", "Threads", "thread", "launch__thread_count"),
        _m("registers", "Registers Per Thread", "register/thread", "launch__registers_per_thread"),
        _m("shared_static", "Static Shared Memory Per Block", "byte/block",
           "launch__shared_mem_per_block_static"),
        _m("shared_dynamic", "Dynamic Shared Memory Per Block", "byte/block",
           "launch__shared_mem_per_block_dynamic"),
        _m("shared_driver", "Driver Shared Memory Per Block", "byte/block",
           "launch__shared_mem_per_block_driver"),
        _m("shared_config", "Shared Memory Configuration Size", "byte",
           "launch__shared_mem_config_size"),
        _m("waves", "Waves Per SM", "", "launch__waves_per_multiprocessor"),
        _m("sm_count", "# SMs", "SM", "launch__sm_count", "device__attribute_multiprocessor_count"),
        _m("cluster_size", "Cluster Size", "", "launch__cluster_size"),
    ),
    "Occupancy": (
        _m("theoretical_occupancy", "Theoretical Occupancy", "%",
           "sm__maximum_warps_per_active_cycle_pct"),
        _m("theoretical_warps", "Theoretical Active Warps per SM", "warp",
           "sm__maximum_warps_avg_per_active_cycle"),
        _m("achieved_occupancy", "Achieved Occupancy", "%",
           f"sm__warps_active{_ACTIVE}"),
        _m("achieved_warps", "Achieved Active Warps Per SM", "warp",
           "sm__warps_active.avg.per_cycle_active"),
        _m("limit_blocks", "Block Limit SM", "block", "launch__occupancy_limit_blocks"),
        _m("limit_registers", "Block Limit Registers", "block",
           "launch__occupancy_limit_registers"),
        _m("limit_shared", "Block Limit Shared Mem", "block", "launch__occupancy_limit_shared_mem"),
        _m("limit_warps", "Block Limit Warps", "block", "launch__occupancy_limit_warps"),
        _m("limit_barriers", "Block Limit Barriers", "block", "launch__occupancy_limit_barriers"),
    ),
    "ComputeWorkloadAnalysis": (
        _m("ipc_elapsed", "Executed Ipc Elapsed", "inst/cycle",
           "sm__inst_executed.avg.per_cycle_elapsed"),
        _m("ipc_active", "Executed Ipc Active", "inst/cycle",
           "sm__inst_executed.avg.per_cycle_active"),
        _m("ipc_issued", "Issued Ipc Active", "inst/cycle",
           "sm__inst_issued.avg.per_cycle_active"),
        _m("issue_slots_busy", "Issue Slots Busy", "%", f"sm__inst_issued{_PCT}",
           f"sm__inst_issued{_ACTIVE}"),
        _m("sm_busy", "SM Busy", "%", f"sm__instruction_throughput{_PCT}",
           f"sm__instruction_throughput{_ACTIVE}"),
        _m("pipe_alu", "", "%", f"sm__pipe_alu_cycles_active{_PCT}",
           f"sm__inst_executed_pipe_alu{_PCT}", f"sm__inst_executed_pipe_alu{_ACTIVE}"),
        _m("pipe_fma", "", "%", f"sm__pipe_fma_cycles_active{_PCT}",
           f"sm__inst_executed_pipe_fma{_PCT}", f"sm__inst_executed_pipe_fma{_ACTIVE}"),
        _m("pipe_fp64", "", "%", f"sm__pipe_fp64_cycles_active{_PCT}",
           f"sm__inst_executed_pipe_fp64{_PCT}", f"sm__inst_executed_pipe_fp64{_ACTIVE}"),
        _m("pipe_tensor", "", "%", f"sm__pipe_tensor_cycles_active{_PCT}",
           f"sm__pipe_tensor_op_hmma_cycles_active{_PCT}",
           f"sm__inst_executed_pipe_tensor{_PCT}", f"sm__inst_executed_pipe_tensor{_ACTIVE}",
           f"sm__pipe_tensor_cycles_active{_ACTIVE}"),
        _m("pipe_xu", "", "%", f"sm__inst_executed_pipe_xu{_PCT}",
           f"sm__inst_executed_pipe_xu{_ACTIVE}"),
        _m("pipe_lsu", "", "%", f"sm__inst_executed_pipe_lsu{_PCT}",
           f"sm__inst_executed_pipe_lsu{_ACTIVE}"),
        _m("pipe_adu", "", "%", f"sm__inst_executed_pipe_adu{_PCT}",
           f"sm__inst_executed_pipe_adu{_ACTIVE}"),
        _m("pipe_tma", "", "%", f"sm__pipe_tma_cycles_active{_PCT}",
           f"sm__inst_executed_pipe_tma{_PCT}"),
    ),
    "MemoryWorkloadAnalysis": (
        _m("dram_bandwidth", "DRAM Bandwidth", "byte/s", "dram__bytes.sum.per_second",
           also=("Memory Throughput",)),
        _m("memory_busy", "Mem Busy", "%",
           f"gpu__compute_memory_access_throughput{_PCT}"),
        _m("memory_max_bandwidth", "Max Bandwidth", "%",
           f"gpu__compute_memory_request_throughput{_PCT}"),
        _m("memory_pipes_busy", "Mem Pipes Busy", "%", f"sm__memory_throughput{_PCT}"),
        _m("l1_hit_rate", "L1/TEX Hit Rate", "%", "l1tex__t_sector_hit_rate.pct"),
        _m("l2_hit_rate", "L2 Hit Rate", "%", "lts__t_sector_hit_rate.pct"),
        _m("local_spilling_requests", "Local Memory Spilling Requests", "",
           "derived__local_spilling_requests"),
        _m("dram_read_bytes", "", "byte", "dram__bytes_read.sum"),
        _m("dram_write_bytes", "", "byte", "dram__bytes_write.sum"),
    ),
    "MemoryWorkloadAnalysis_Tables": (
        *(
            _m(f"{space}_{op}_{what}", "", unit,
               f"l1tex__t_{what}_pipe_lsu_mem_{space}_op_{op}.sum")
            for space, ops in (("global", ("ld", "st", "red", "atom")), ("local", ("ld", "st")))
            for op in ops
            for what, unit in (("requests", "request"), ("sectors", "sector"))
        ),
        _m("shared_wavefronts", "", "wavefront", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"),
        _m("shared_conflicts", "", "", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"),
        *(
            _m(f"shared_conflicts_{op}", "", "",
               f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum")
            for op in ("ld", "st")
        ),
        _m("l1_to_l2_read_sectors", "", "sector", "lts__t_sectors_srcunit_tex_op_read.sum"),
        _m("l2_sectors", "", "sector", "lts__t_sectors.sum"),
        _m("l2_tex_sectors", "", "sector", "lts__t_sectors_srcunit_tex.sum"),
        _m("l2_read_hit_rate", "", "%", "lts__t_sector_op_read_hit_rate.pct"),
    ),
    "SchedulerStats": (
        _m("active_warps", "Active Warps Per Scheduler", "warp",
           "smsp__warps_active.avg.per_cycle_active"),
        _m("eligible_warps", "Eligible Warps Per Scheduler", "warp",
           "smsp__warps_eligible.avg.per_cycle_active"),
        _m("issued_warps", "Issued Warp Per Scheduler", "",
           "smsp__issue_active.avg.per_cycle_active"),
        _m("no_eligible", "No Eligible", "%", f"smsp__issue_inst0{_ACTIVE}"),
        _m("one_eligible", "One or More Eligible", "%", f"smsp__issue_active{_ACTIVE}"),
    ),
    "WarpStateStats": (
        _m("cycles_per_issue", "Warp Cycles Per Issued Instruction", "cycle",
           "smsp__average_warp_latency_per_inst_issued.ratio"),
        _m("cycles_per_instruction", "Warp Cycles Per Executed Instruction", "cycle",
           "smsp__average_warps_active_per_inst_executed.ratio"),
        _m("threads_per_instruction", "Avg. Active Threads Per Warp", "",
           "smsp__thread_inst_executed_per_inst_executed.ratio"),
        _m("unpredicated_threads", "Avg. Not Predicated Off Threads Per Warp", "",
           "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"),
    ),
    "InstructionStats": (
        _m("instructions", "Executed Instructions", "inst", "smsp__inst_executed.sum",
           "sm__inst_executed.sum", "inst_executed"),
        _m("instructions_scheduler", "Avg. Executed Instructions Per Scheduler", "inst",
           "smsp__inst_executed.avg"),
        _m("issued", "Issued Instructions", "inst", "smsp__inst_issued.sum"),
        _m("issued_scheduler", "Avg. Issued Instructions Per Scheduler", "inst",
           "smsp__inst_issued.avg"),
    ),
    "SourceCounters": (
        _m("branch_instructions", "Branch Instructions", "inst",
           "smsp__inst_executed_op_branch.sum"),
        _m("branch_ratio", "Branch Instructions Ratio", "%",
           "derived__smsp__inst_executed_op_branch_pct"),
        _m("branch_efficiency", "Branch Efficiency", "%",
           "smsp__sass_average_branch_targets_threads_uniform.pct"),
        _m("divergent_branches", "Avg. Divergent Branches", "branches",
           "smsp__sass_branch_targets_threads_divergent.avg"),
        _m("l2_theoretical_sectors", "", "sector", "memory_l2_theoretical_sectors_global"),
        _m("l2_ideal_sectors", "", "sector", "memory_l2_theoretical_sectors_global_ideal"),
        _m("shared_wavefronts_source", "", "wavefront", "memory_l1_wavefronts_shared"),
        _m("shared_wavefronts_ideal", "", "wavefront", "memory_l1_wavefronts_shared_ideal"),
        _m("global_loads", "", "inst", "smsp__sass_inst_executed_op_global_ld.sum",
           "smsp__inst_executed_op_global_ld.sum", "sass__inst_executed_global_loads"),
        _m("load_bytes_per_sector", "", "byte/sector",
           "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"),
        _m("store_bytes_per_sector", "", "byte/sector",
           "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio"),
    ),
    _SINGLE: (
        *(
            _m(f"flops_{op}32", "", "inst/cycle",
               f"smsp__sass_thread_inst_executed_op_f{op}_pred_on.sum.per_cycle_elapsed")
            for op in ("add", "mul", "fma")
        ),
        _m("peak_fma32", "", "inst/cycle",
           "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained"),
        _m("sm_rate", "", "hz", "sm__cycles_elapsed.avg.per_second"),
        _m("smsp_rate", "", "hz", "smsp__cycles_elapsed.avg.per_second"),
        _m("dram_peak", "", "byte/cycle", "dram__bytes.sum.peak_sustained"),
        _m("l2_bandwidth", "", "byte/s", "derived__lts__lts2xbar_bytes.sum.per_second"),
        _m("l2_peak", "", "byte/cycle", "derived__lts__lts2xbar_bytes.sum.peak_sustained"),
        _m("l2_rate", "", "hz", "lts__cycles_elapsed.avg.per_second"),
        _m("l1_bandwidth", "", "byte/s",
           "derived__l1tex__lsu_writeback_bytes_mem_lgds.sum.per_second",
           "derived__l1tex__lsu_writeback_bytes_mem_lg.sum.per_second",
           "derived__l1tex__lsu_writeback_bytes.sum.per_second"),
        _m("l1_peak", "", "byte/cycle",
           "derived__l1tex__lsu_writeback_bytes_mem_lgds.sum.peak_sustained",
           "derived__l1tex__lsu_writeback_bytes_mem_lg.sum.peak_sustained",
           "derived__l1tex__lsu_writeback_bytes.sum.peak_sustained"),
        _m("l1_rate", "", "hz", "l1tex__cycles_elapsed.avg.per_second"),
        _m("peak_flops32", "", "inst/cycle",
           "derived__sm__sass_thread_inst_executed_op_ffma_pred_on_x2"),
    ),
    _DOUBLE: (
        *(
            _m(f"flops_{op}64", "", "inst/cycle",
               f"smsp__sass_thread_inst_executed_op_d{op}_pred_on.sum.per_cycle_elapsed")
            for op in ("add", "mul", "fma")
        ),
        _m("peak_fma64", "", "inst/cycle",
           "sm__sass_thread_inst_executed_op_dfma_pred_on.sum.peak_sustained"),
        _m("peak_flops64", "", "inst/cycle",
           "derived__sm__sass_thread_inst_executed_op_dfma_pred_on_x2"),
    ),
    _HALF: (
        *(
            _m(f"flops_{op}16", "", "inst/cycle",
               f"smsp__sass_thread_inst_executed_op_h{op}_pred_on.sum.per_cycle_elapsed")
            for op in ("add", "mul", "fma")
        ),
        _m("peak_fma16", "", "inst/cycle",
           "sm__sass_thread_inst_executed_op_hfma_pred_on.sum.peak_sustained"),
        _m("peak_flops16", "", "inst/cycle",
           "derived__sm__sass_thread_inst_executed_op_hfma_pred_on_x4"),
    ),
    "SpeedOfLight_HierarchicalTensorRooflineChart": (
        # until 2024: one kind for all operands
        _m("tensor_any_cycle", "", "op/cycle", "derived__smsp__inst_executed_pipe_tensor_x512"),
        _m("tensor_any_peak", "", "op/cycle", "derived__sm__inst_executed_pipe_tensor_x512"),
        *(
            entry
            for kind, name, dense in (
                ("fp16", "fp16", ("hgmma_src_fp16", "hmma_src_fp16_dst_fp32")),
                ("bf16", "bf16_dst_fp32", ("hgmma_src_bf16_dst_fp32", "hmma_src_bf16_dst_fp32")),
                ("tf32", "tf32_dst_fp32", ("hgmma_src_tf32_dst_fp32", "hmma_src_tf32_dst_fp32")),
                ("fp64", "fp64", ()),
                ("fp8", "fp8_sparsity_off", ()),
                ("int8", "int8", ("igmma_src_int8", "imma_src_int8")),
            )
            for entry in (
                _m(f"tensor_{kind}", "", "op/s", f"{_TENSOR}{name}.sum.per_second"),
                _m(f"tensor_{kind}_cycle", "", "op/cycle",
                   f"{_TENSOR}{name}.sum.per_cycle_elapsed"),
                # the peak of all paths together counts sparse products, which are rare
                _m(f"tensor_{kind}_peak", "", "op/cycle",
                   *(f"{_TENSOR_OP}{path}_sparsity_off.sum.peak_sustained" for path in dense),
                   f"{_TENSOR}{name}.sum.peak_sustained"),
            )
        ),
    ),
}  # fmt: skip

METRICS: Final = {
    key: Metric(key, label, unit, names, section, also)
    for section, entries in _ENTRIES.items()
    for key, label, unit, names, also in entries
}
"""Every metric by key."""

STALLS_METRIC: Final = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
"""Warps that wait for a reason, for each issued instruction: cycles of the warp's latency."""

SAMPLES_METRIC: Final = "smsp__pcsamp_warps_issue_stalled_{}"
"""Warp samples taken while waiting for a reason."""

BREAKDOWNS: Final = {
    "compute": f"breakdown:sm__throughput{_PCT}",
    "memory": f"breakdown:gpu__compute_memory_throughput{_PCT}",
}
"""Metrics whose value lists the metrics that a throughput is the maximum of."""


def by_label() -> dict[tuple[str, str], str]:
    """(section title or identifier, label) -> metric name, for ``ncu --csv --page details``.

    Labels that only one section has stand under an empty section, too: titles of sections change.
    """
    found: dict[tuple[str, str], str] = {}
    sections: dict[str, set[str]] = {}
    for metric in METRICS.values():
        for label in (metric.label, *metric.labels):
            if label:
                sections.setdefault(label, set()).add(metric.section)
                for section in (metric.section, SECTIONS[metric.section], ""):
                    found.setdefault((section, label), metric.names[0])
    for label, having in sections.items():
        if len(having) > 1:
            del found["", label]
    return found
