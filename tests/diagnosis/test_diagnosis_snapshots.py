"""What is diagnosed of every labelled capture, and of runs made to show the causes that none shows.

A captured file is a row by itself; a run made in Python has a row in ``MADE``. Each cause and each
lever is found in one of them. Captures are diagnosed once a test run, whoever asks first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.breakdown.test_outliers import step
from tests.diagnosis.test_kernel_causes import BF16, CAST, NORM, SUM, Steps, elementwise, layers
from tests.diagnosis.test_offload_and_input import SIZES, offloading
from tests.diagnosis.test_ranks import job_of
from tests.diagnosis.test_recomputation import checkpointed
from tests.diagnosis.test_recomputation import steps as training_steps
from tests.simulation.test_events import contended, untraced
from tests.support.build import Build
from tests.support.captures import BUNDLED, DATA, unpack
from tests.support.pipeline import gpipe, played
from tests.support.snapshots import FOLDER, Snapshot, left_over, short

from stepscope.api import Job
from stepscope.diagnosis.cause import causes
from stepscope.diagnosis.lever import levers
from stepscope.diagnosis.result import Diagnosis, Finding

TUTORIALS = BUNDLED.parent / "tutorials"
JOBS = {
    "ranks": DATA.parent / "ranks",
    "exposed": TUTORIALS / "exposed",
    "straggler": TUTORIALS / "straggler",
}
FILES = {
    f"{path.parent.name}-{path.name}": [path]
    for folder in (
        *(BUNDLED.parent, TUTORIALS, DATA.parent / "levers"),
        *(DATA / "jax", DATA / "kineto", DATA / "nsys"),
    )
    for path in sorted(folder.iterdir())
    if path.name.endswith((".sqlite.xz", ".json.xz", ".json.gz"))
} | {name: sorted(folder.glob("*.xz")) for name, folder in JOBS.items()}


def steps_of(launch: Callable[[Steps], object]) -> Callable[[Path], Job]:
    """Six steps of the kernels that are launched."""

    def make(folder: Path) -> Job:
        made = Steps()
        for number in range(6):
            begin = made.host
            launch(made)
            made.build.range(begin, made.host, f"step_{number}")
        return made.diagnose(folder)[1]

    return make


def kernels(work: list[tuple[str, float]], **more: float) -> Callable[[Steps], object]:
    return lambda made: [made.launch(kernel, length, **more) for kernel, length in work]  # type: ignore[arg-type]


def built(fill: Callable[[Build], object]) -> Callable[[Path], Job]:
    def make(folder: Path) -> Job:
        build = Build()
        fill(build)
        return Job([build.trace(folder).folder])

    return make


def compiling(build: Build) -> None:
    for begin in untraced(build):
        build.api(begin + 7_800, begin + 7_900, "cuModuleLoadData", api="driver")


def jittering(build: Build) -> None:
    at = 0.0
    for number in range(20):
        at = step(build, at, number, extra=8 if number % 5 == 4 else 0)


def waiting_on_the_device(build: Build) -> None:
    for number in range(12):
        at = number * 10_000.0
        build.range(at, at + 10_000, f"step {number}")
        for k in range(300):
            build.kernel(at + 100 + 33 * k, at + 125 + 33 * k, call=(at + k * 2, at + k * 2 + 1))


def unlaunched(build: Build) -> None:
    for number in range(12):
        for k in range(5):
            build.kernel(
                number * 10_000 + 1_000 * k, number * 10_000 + 1_000 * k + 500, name=f"k{k}"
            )


def waves(made: Steps) -> None:
    """GEMMs of one block an SM by their registers, whose grid is a quarter more than the GPU."""
    for _ in range(10):
        made.launch(BF16, 500.0, blocks=165)
        made.build.rows["gpu_op"][-1] |= {"block_x": 384, "registers": 168}
    made.build.rows["device"][-1] |= {"compute_major": 9, "compute_minor": 0}


SPELLED = [elementwise("pow"), SUM, elementwise("add"), elementwise("rsqrt"), elementwise("mul")]
DOUBLE = (
    "void at::native::vectorized_elementwise_kernel<2, at::native::CUDAFunctor_add<double>, "
    "std::array<char*, 3ul> >(int)"
)
AMPERE = "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel)"
STREAMED = [(elementwise("gelu"), 2.5), (NORM, 2.5), (CAST, 2.5), (BF16, 1.0)]

MADE: dict[str, Callable[[Path], Job]] = {
    "compilation_or_warmup": built(compiling),
    "cpu_offload": built(lambda build: offloading(build, SIZES, host=20_000)),
    "double_precision": steps_of(kernels([(BF16, 99.0), (DOUBLE, 30.0)] * 9)),
    "fusion_opportunity": steps_of(kernels([(BF16, 99.0), *((k, 30.0) for k in SPELLED)] * 4)),
    "fused_attention": steps_of(kernels([(BF16, 99.0), (AMPERE, 400.0), (NORM, 9.0)] * 9)),
    "gil_contention": built(contended),
    "inefficient_kernel": steps_of(
        lambda made: (kernels([*layers()])(made), made.launch(SUM, 900.0, blocks=4))
    ),
    "insufficient_data": built(unlaunched),
    "load_imbalance": lambda folder: job_of(
        folder, range(4), work=lambda rank, _: 14_000 if rank == 2 else 8_000,
        grid=lambda rank, _: 112 if rank == 2 else 64,
    ),
    "memory_bound_kernels": steps_of(kernels(STREAMED * 20, every=1.2)),
    "pipeline_bubble": lambda folder: played(folder, gpipe(2, 4, lambda stage: 1_000.0)),
    "recomputation": lambda folder: training_steps(checkpointed).diagnose(folder)[1],
    "small_kernels": built(waiting_on_the_device),
    "step_jitter": built(jittering),
    "wave_quantisation": steps_of(waves),
}  # fmt: skip
"""Cause or lever -> a run that shows it, a cause first."""


def names() -> list[str]:
    return [*FILES, *MADE]


def milliseconds(ns: float) -> str:
    return f"{short(ns / 1e6)} ms"


def finding_text(finding: Finding) -> str:
    low, high = finding.prediction_low_ns, finding.prediction_high_ns
    lines = [
        f"{finding.cause}: {finding.severity}, {short(finding.share_of_step)} of the step",
        f"  predicted {milliseconds(finding.predicted_step_ns)}, "
        f"{milliseconds(low)} to {milliseconds(high)}",
        f"  {finding.message}",
    ]
    lines += [f"  {name} {place}" for name, place in finding.where.texts().items()]
    lines += [f"  ranks {finding.ranks}"] if len(finding.ranks) > 1 else []
    lines += [f"  because of {finding.root_cause}"] if finding.root_cause else []
    lines += [f"  unreliable: {finding.unreliable}"] if finding.unreliable else []
    return "\n".join(lines)


def summary(diagnosis: Diagnosis) -> str:
    run = diagnosis.trace
    first, last = run.steady_steps
    lines = [
        f"verdict {diagnosis.verdict}",
        f"{run.steps} steps, {first} to {last} steady, {run.step.kind} by {run.step.found_by}",
        f"step {milliseconds(diagnosis.step_ns.mean)}",
    ]
    lines += [f"  inside: {part.count} {part.kind}" for part in run.step.inner]
    for gpu in diagnosis.accounting:
        parts = ("compute", "exposed_communication", "exposed_copy", "memset", "idle")
        shares = {part: getattr(gpu, f"{part}_ns") / gpu.wall_ns for part in parts}
        idle = {cause: ns / gpu.wall_ns for cause, ns in gpu.idle_by_cause_ns.items()}
        for title, found in ((f"rank {gpu.rank} device {gpu.device}", shares), ("  idle", idle)):
            some = [f"{name} {share:.1%}" for name, share in found.items() if share >= 5e-4]
            lines += [f"{title}: {', '.join(some)}"] if some else []
    for title, listed in (("findings", diagnosis.findings), ("levers", diagnosis.levers)):
        lines += [f"\n{title}:", *map(finding_text, listed)] if listed else []
    return "\n".join(lines)


def test_every_cause_and_lever_is_found_somewhere() -> None:
    folder = Path(__file__).parent / FOLDER
    text = "\n".join(path.read_text() for path in folder.glob("*"))
    known = causes().keys() | levers().keys()
    assert {name for name in known if not re.search(rf"^(verdict )?{name}\b", text, re.M)} == set()
    assert not left_over(__file__, (f"{name}.txt" for name in names()))


@pytest.mark.parametrize("name", names())
def test_what_is_diagnosed(name: str, snapshot: Snapshot, tmp_path: Path) -> None:
    job = MADE[name](tmp_path) if name in MADE else Job([unpack(path) for path in FILES[name]])
    diagnosis = job.diagnose()
    if name in MADE:
        assert name in (diagnosis.verdict, *(lever.cause for lever in diagnosis.levers))
    snapshot(summary(diagnosis), f"{name}.txt")
