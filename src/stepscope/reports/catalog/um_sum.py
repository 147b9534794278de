"""Unified memory: migrations and page faults."""

from __future__ import annotations

import numpy as np

from stepscope.tabular.maths import dictionary, group, nullable, text_ranks
from stepscope.tabular.needs import COPIES, CPU_FAULTS, GPU_FAULTS
from stepscope.tabular.report import Answer, Argument, Arguments, Column, Report, limit
from stepscope.tabular.source import Rows, Source
from stepscope.trace.frame import BoolArray, IntArray

_SECOND_NS = 1_000_000_000


def _migrations(source: Source, kind: str) -> Rows:
    copies = source.of_kind("gpu_op", "kind", "memcpy")
    return copies.where(copies.equals("copy_kind", (kind,)))


def _faults(source: Source, kind: str) -> Rows:
    return source.of_kind("page_fault", "kind", kind)


def _by_address(source: Source, arguments: Arguments) -> Answer:
    to_device = _migrations(source, "UVM HtoD")
    to_host = _migrations(source, "UVM DtoH")
    cpu, gpu = _faults(source, "cpu"), _faults(source, "gpu")
    address = np.concatenate(
        [to_device["virtual_address"], to_host["virtual_address"], cpu["address"], gpu["address"]]
    )
    groups, firsts = group(address)
    ends = np.cumsum([len(to_device), len(to_host), len(cpu)])
    in_device, in_host, in_cpu, in_gpu = np.split(groups, ends)
    number = len(firsts)
    htod, has_htod = _sum(in_device, to_device["bytes"], number)
    dtoh, has_dtoh = _sum(in_host, to_host["bytes"], number)
    on_cpu, has_cpu = _sum(in_cpu, np.ones(len(cpu), np.int64), number)
    on_gpu, has_gpu = _sum(in_gpu, gpu["faults"], number)
    busy = (
        _sum(in_device, to_device.duration, number)[0] + _sum(in_host, to_host.duration, number)[0]
    )
    # whole operations a second, as Nsight Systems computes it
    rate = (htod + dtoh) * (_SECOND_NS // np.maximum(busy, 1))
    known = busy > 0
    order = np.lexsort((address[firsts], -np.where(known, rate, -1)))[limit(arguments)]
    return [
        address[firsts][order],
        nullable(htod[order], ~has_htod[order]),
        nullable(dtoh[order], ~has_dtoh[order]),
        nullable(on_cpu[order], ~has_cpu[order]),
        nullable(on_gpu[order], ~has_gpu[order]),
        nullable(rate[order], ~known[order]),
    ]


def _sum(groups: IntArray, values: IntArray, number: int) -> tuple[IntArray, BoolArray]:
    total = np.zeros(number, np.int64)
    np.add.at(total, groups, values)
    return total, np.asarray(np.bincount(groups, minlength=number) > 0, dtype=bool)


def _totals(source: Source, _: Arguments) -> Answer:
    to_device = _migrations(source, "UVM HtoD")
    to_host = _migrations(source, "UVM DtoH")
    cpu, gpu = _faults(source, "cpu"), _faults(source, "gpu")
    addresses = [to_device["virtual_address"], to_host["virtual_address"]]
    addresses += [cpu["address"], gpu["address"]]
    # as in Nsight Systems: the extremes exist only where all four kinds do
    complete = all(len(part) for part in addresses)
    low = min(int(part.min()) for part in addresses) if complete else -1
    high = max(int(part.max()) for part in addresses) if complete else -1

    def total(values: IntArray) -> object:
        return nullable(np.array([int(values.sum()) if len(values) else -1]))

    return [
        total(to_device["bytes"]),
        total(to_host["bytes"]),
        np.array([len(cpu)]),
        total(gpu["faults"]),
        nullable(np.array([low])),
        nullable(np.array([high])),
    ]


def _by_instruction(source: Source, _: Arguments) -> Answer:
    cpu = _faults(source, "cpu")
    texts = cpu.texts("instruction")
    groups, firsts = group(cpu["instruction"])
    count = np.bincount(groups, minlength=len(firsts))
    code = cpu["instruction"][firsts]
    order = np.lexsort((np.append(text_ranks(texts), -1)[code], -count))
    return [count[order], dictionary(code[order], texts)]


_UNIFIED = (CPU_FAULTS, GPU_FAULTS, COPIES)
REPORTS = [
    Report(
        "um_sum",
        "Unified Memory Analysis Summary",
        "Migrations and page faults of unified memory by virtual address, fastest migration first.",
        (
            Column("Virtual Address", "addr", "address that migrated or was touched"),
            Column("HtoD Migration size", "mem", "bytes migrated to the device"),
            Column("DtoH Migration size", "mem", "bytes migrated to the host"),
            Column("CPU Page Faults", doc="faults of the CPU"),
            Column(" GPU Page Faults", doc="faults of the GPU"),
            Column("Migration Throughput", "thru", "bytes times whole operations a second"),
        ),
        _by_address,
        arguments=(Argument("rows", "show the first N rows (-1: all)", 10, low=-1),),
        aliases=("unifiedmemory",),
        needs=_UNIFIED,
    ),
    Report(
        "um_total_sum",
        "Unified Memory Totals Summary",
        "Sums over all migrations and page faults of unified memory. The address range is empty "
        "unless there were migrations both ways and faults of both sides.",
        (
            Column("Total HtoD Migration Size", "mem", "bytes migrated to the device"),
            Column("Total DtoH Migration Size", "mem", "bytes migrated to the host"),
            Column("Total CPU Page Faults", doc="faults of the CPU"),
            Column("Total GPU PageFaults", doc="faults of the GPU"),
            Column("Minimum Virtual Address", "addr", "lowest address"),
            Column("Maximum Virtual Address", "addr", "highest address"),
        ),
        _totals,
        aliases=("unifiedmemorytotals",),
        needs=_UNIFIED,
    ),
    Report(
        "um_cpu_page_faults_sum",
        "Unified Memory CPU Page Faults Summary",
        "Page faults of the CPU by the instruction that touched the page. Most first.",
        (
            Column("CPU Page Faults", doc="number of faults"),
            Column("CPU Instruction Address", doc="code that touched the page"),
        ),
        _by_instruction,
        aliases=("umcpupagefaults",),
        needs=(CPU_FAULTS,),
    ),
]
