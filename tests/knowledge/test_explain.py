"""The knowledge base: every entry is whole, found by the names that captures show, and true to the
commands that it names."""

from __future__ import annotations

import json
import re
import shlex

import click
import pytest
from tests.cli.command import Stepscope

from stepscope.api.terms import explain_term, terms
from stepscope.cli.main import cli
from stepscope.diagnosis.cause import causes
from stepscope.knowledge.entry import KINDS, Entry, entries, synonyms
from stepscope.knowledge.remedies import remedies
from stepscope.trace.errors import UsageError

ALL = list(entries().values())

SEEN = {
    "pt_main_thread": "main_thread",
    "python3": "main_thread",
    "pt_autograd_0": "autograd_thread",
    "pt_data_worker": "data_worker",
    "pt_data_pin": "pin_memory_thread",
    "pt_nccl_watchdg": "nccl_watchdog",
    "pt_nccl_heartbt": "nccl_heartbeat",
    "cuda-EvtHandlr": "cuda_event_handler",
    "cuda00001400006": "cuda_event_handler",
    "CUPTI worker thread": "cupti_thread",
    "cudaLaunchKernelExC_v11060": "cudaLaunchKernel",
    "cuLaunchKernelEx": "cudaLaunchKernel",
    "cudaMemcpyAsync_v3020": "cudaMemcpyAsync",
    "cudaStreamIsCapturing_v10000": "cudaFuncGetAttributes",
    "cudaEventRecordWithFlags": "cudaEventRecord",
    "cuMemcpyHtoDAsync_v2": "cudaMemcpyAsync",
    "ncclGroupEnd": "ncclGroupEnd",
    "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": "cupti_multiple_subscribers",
    "ERR_NVGPUCTRPERM": "err_nvgpuctrperm",
    "WARNING: profiler clears events at the end of each cycle": "profiler_clears_events",
    "profiler clears nothing": None,
    "torch.OutOfMemoryError": "out_of_memory",
    "No kernels were profiled": "no_gpu_records",
    "GPU 3: CUDA out of memory. Tried to allocate 20.00 MiB": "out_of_memory",
}
"""Names and messages as captures and terminals show them -> the entry; None where none is meant."""


@pytest.mark.parametrize(("name", "wanted"), SEEN.items())
def test_a_name_as_it_is_seen_finds_its_one_entry(name: str, wanted: str | None) -> None:
    assert [e.id for e in ALL if e.is_named(name)] == ([wanted] if wanted else [])


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.id)
def test_an_entry_is_whole(entry: Entry) -> None:
    assert entry.kind in KINDS
    assert entry.meaning.rstrip().endswith(".")
    known = {m.id for m in terms()}
    assert not set(entry.see) - known, "what it refers to exists"
    assert entry.id not in entry.see
    for pattern in entry.names:
        assert not re.fullmatch(pattern, ""), "a pattern that finds everything"
        assert not re.fullmatch(pattern, "some_other_thread")
    for command in re.findall(r"`(stepscope [^`]+)`", " ".join([entry.reading, *entry.remedies])):
        _, name, *arguments = shlex.split(command)
        found = cli.get_command(click.Context(cli), name)
        assert found is not None, command
        if arguments:
            found.make_context(name, arguments, **cli.context_settings)


@pytest.mark.parametrize(
    ("term", "kind", "id_"),
    [
        ("host_sync", "cause", "host_sync"),
        ("Host-Sync", "cause", "host_sync"),
        ("launch queue", "term", "launch_queue"),
        ("long scoreboard", "stall reason", "long_scoreboard"),
        ("cuda_gpu_kern_sum", "report", "cuda_gpu_kern_sum"),
        ("tensor_bound", "limiter", "tensor_bound"),
        ("wave_quantisation", "lever", "wave_quantisation"),
        ("unresolved_correlation", "import problem", "unresolved_correlation"),
        ("gpu_op", "table", "gpu_op"),
        ("matmul", "kernel category", "matmul"),
        ("gpu_op.start_ns", "column of the table gpu_op", "gpu_op.start_ns"),
        ("pt_autograd_7", "thread", "autograd_thread"),
        ("CUDA graphs", "term", "cuda_graph"),
        ("correlationId", "term", "correlation_id"),
        ("stall_barrier", "stall reason", "barrier"),
        ("wave quantization", "lever", "wave_quantisation"),
        (".item()", "term", "read_back"),
        ("num_workers", "term", "data_loader_options"),
        ("share_of_step", "field of Finding, diagnose --format json", "Finding.share_of_step"),
        ("exposed_copy", "column of the table step", "step.exposed_copy_ns"),
        ("sgemm_128x64_nn", "kernel", "sgemm_128x64_nn"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>()",
            "kernel",
            "vectorized_elementwise_kernel [Add]",
        ),
    ],
)
def test_a_term_is_found_in_every_registry(term: str, kind: str, id_: str) -> None:
    found = explain_term(term).found
    assert (kind, id_) in [(m.kind, m.id) for m in found]
    assert all(m.meaning for m in found)


ASKED = {
    "fusion_opportunity": ["kernel fusion", "unfused"],
    "unfused_attention": ["flash attention", "SDPA"],
    "blocking_copy": ["pageable", ".cuda()", ".to(device)"],
    "input_starvation": ["dataloader worker", "tokenizer", "DALI", "collate_fn"],
    "compilation_or_warmup": ["warmup", "first step"],
    "step_jitter": ["jitter", "outlier step"],
    "checkpoint_stall": ["torch.save", "checkpoints"],
    "host_bound": ["CPU bound", "host-bound"],
    "dispatch": ["eager mode", "dispatcher"],
    "garbage_collection": ["GC", "gc.collect"],
    "caching_allocator": ["memory fragmentation", "expandable_segments"],
    "graph_break": ["graph breaks", "recompiles", "dynamic shapes"],
    "link": ["NVLink", "PCIe", "InfiniBand", "GPUDirect RDMA"],
    "parallelism": ["MoE", "tensor parallelism", "pipeline parallel"],
    "pipeline_bubble": ["1F1B", "bubble"],
    "nccl": ["NCCL", "RCCL", "ring"],
    "hang": ["deadlock", "flight recorder"],
    "xid": ["Xid 79", "ECC errors"],
    "memcpy": ["H2D", "DtoH", "host to device"],
    "step": ["ProfilerStep#3", "iteration"],
    "idle_gap": ["idle", "idle time"],
    "noise": ["p-value", "confidence interval"],
    "numa": ["CPU affinity"],
    "shared_gpu": ["MIG", "time slicing"],
    "flop": ["TFLOPS", "FLOPs"],
    "thread_block": ["grid", "CTA"],
    "tile": ["split-k", "wgmma"],
    "divergence": ["warp divergence"],
    "uncoalesced": ["coalescing"],
    "lower_precision": ["quantization", "INT8"],
    "communicator": ["process group"],
}
"""What people ask for -> the id of what is meant."""


@pytest.mark.parametrize(
    ("term", "wanted"), [(term, id_) for id_, terms_ in ASKED.items() for term in terms_]
)
def test_what_people_call_it_is_found(term: str, wanted: str) -> None:
    assert wanted in [m.id for m in explain_term(term).found]


def test_other_names_are_of_things_that_are_known() -> None:
    assert not synonyms().keys() - {m.id for m in terms()}
    assert not synonyms().keys() & entries().keys(), "these stand in the entry"
    for pattern in (pattern for patterns in synonyms().values() for pattern in patterns):
        assert not re.fullmatch(pattern, "")


def test_a_column_of_many_tables_is_found_in_each() -> None:
    found = explain_term("correlation_id").found
    assert [m.id for m in found][:1] == ["correlation_id"], "the term of that name comes alone"
    assert {"gpu_op.end_ns", "api_call.end_ns"} <= {m.id for m in explain_term("end_ns").found}


def test_every_cause_says_what_helps() -> None:
    assert remedies().keys() == causes().keys()
    for id_, cause in causes().items():
        (found,) = [m for m in explain_term(id_).found if m.kind == "cause"]
        assert found.remedies == remedies()[id_], cause.title
        for command in re.findall(r"`stepscope ([^`]+)`", " ".join(found.remedies)):
            name, *arguments = shlex.split(command)
            known = cli.get_command(click.Context(cli), name)
            assert known is not None, command
            if arguments:
                known.make_context(name, arguments, **cli.context_settings)


@pytest.mark.parametrize("term", ["no such thing", "attention please"])
def test_words_are_no_kernels(term: str) -> None:
    with pytest.raises(UsageError, match="nothing is known"):
        explain_term(term)


@pytest.mark.parametrize("term", ["", "  ", "?!"])
def test_no_term_is_refused(term: str) -> None:
    with pytest.raises(UsageError, match="name a term"):
        explain_term(term)


def test_an_unknown_term_gives_the_nearest() -> None:
    with pytest.raises(UsageError, match="near: host_sync"):
        explain_term("host_synk")


def test_the_command(reader: Stepscope) -> None:
    shown = reader("explain", "cudaFree")
    assert "cudaFree (call)" in shown.stdout
    assert "→ remove empty_cache()" in shown.stdout
    answer = json.loads(reader("explain", "cudaFree", "--format", "json").stdout)
    assert answer["schema"] == "stepscope.explain/1"
    assert answer["found"][0]["see"] == ["allocator_churn", "cudaMalloc"]
    missing = reader("explain", "no", "such", "thing", expect=2)
    assert "nothing is known by the name 'no such thing'" in missing.stderr
    listed = reader("explain", "--list")
    assert all(entry.id in listed.stdout for entry in ALL)
