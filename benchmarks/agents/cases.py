"""Labelled captures as questions to an agent: planted causes, healthy runs, unanswerable ones.

Where the repaired program was measured, the answer's prediction is scored as a ratio of steps:
predicted over recorded against repaired over faulty, both untraced (the exam of predictions), or
both recorded by the same tool (the others).
"""

from __future__ import annotations

import gzip
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "predictions"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from program import half
from store import CAPTURES, unpack_capture
from tests.support.captures import DATA, SHARED, unpack

from stepscope.api import Job

HEALTHY, UNKNOWN = "healthy", "unknown"
SETS = ("planted", "healthy", "unanswerable", "jobs", "exam")
_HEALTHY = {  # captures of the same program without the plant, by the stem of their name
    "gpt1024": ("gpt1024_healthy", ("sync_item", "pageable_h2d", "host_compute",
                                    "checkpoint_spike", "alloc_churn")),
    "gpt": ("gpt_healthy", ("tokenize", "pageable", "sync_layers", "mask_select")),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One question.

    Attributes:
        name: of the capture.
        kind: which of ``SETS``.
        paths: the capture, or those of its ranks.
        answer: a cause, ``healthy`` or ``unknown``.
        others: causes that are as right: planted as well.
        ratio: repaired over faulty step; None where it was not measured.
    """

    name: str
    kind: str
    paths: tuple[Path, ...]
    answer: str
    others: tuple[str, ...] = ()
    ratio: float | None = None


def cases(scratch: Path, kinds: tuple[str, ...] = SETS) -> Iterator[Case]:
    """All questions of some sets; captures that are not here are left out.

    Args:
        scratch: where captures are unpacked.
        kinds: which sets.
    """
    for case in (*_fixtures(scratch), *_shared(scratch), *_unanswerable(scratch)):
        if case.kind in kinds:
            yield case
    if "exam" in kinds:
        yield from _exam(scratch)


def _fixtures(scratch: Path) -> Iterator[Case]:
    """The captures that the tests hold, with the step of the healthy capture where there is one."""
    labels = json.loads((DATA / "truth.json").read_text())
    for label in labels:
        file = DATA / label["file"]
        stem = file.name.partition(".")[0]
        healthy = label["cause"] == "gpu_bound_healthy"
        yield Case(
            name=f"{stem} ({label['source']})",
            kind="healthy" if healthy else "planted",
            paths=(unpack(file, scratch),),
            answer=HEALTHY if healthy else label["cause"],
            ratio=_recorded_ratio(stem, file.parent, scratch),
        )


def _recorded_ratio(stem: str, folder: Path, scratch: Path) -> float | None:
    """The healthy over the faulty step, both as recorded; None without such a pair."""
    model, _, plant = stem.partition("_")
    healthy, plants = _HEALTHY.get(model, ("", ()))
    if plant not in plants or not (folder / f"{healthy}.sqlite.xz").exists():
        return None
    after, before = (
        Job(unpack(folder / f"{name}.sqlite.xz", scratch)).diagnose().step_ns.mean
        for name in (healthy, stem)
    )
    return after / before


_RECORDED = {  # ms a step under Nsight Systems; ../shared/data/README.md
    "starved_main": ("input_starvation", 20.4 / 34.5),
    "sync_item": ("host_sync", 20.4 / 28.7),
    "pageable_h2d": ("blocking_copy", 20.4 / 50.6),
    "host_compute": ("host_compute", 20.4 / 59.8),
    "launch_bound": ("launch_bound", None),
    "healthy": (HEALTHY, None),
    "healthy_osrt": (HEALTHY, None),
}
_UNTRACED = {  # ms a step, faulty and repaired; ../shared/data/h200-2/README.md
    "graph_healthy": (HEALTHY, None),
    "cpu_offload": ("cpu_offload", 14.4 / 2461),
    "diffusion_pointwise": ("fusion_opportunity", 9.9 / 62.6),
    "moe_a2a": ("load_imbalance", 21.1 / 36.0),
    "ddp_noisy_gpu2": ("straggler", 19.7 / 43.4),
}


def _shared(scratch: Path) -> Iterator[Case]:
    """Captures beside the repository, with the step times of their README."""
    folders = {"h200/nsys": _RECORDED, "h200-2": _UNTRACED}
    folders["h200/nsys"] |= {"ddp_straggler": ("straggler", None)}
    for folder, labels in folders.items():
        for name, (answer, ratio) in labels.items():
            found = sorted((SHARED / folder).glob(f"{name}.*sqlite.xz"))
            if not found:
                continue
            kind = "jobs" if len(found) > 1 else "healthy" if answer == HEALTHY else "planted"
            into = scratch / folder
            into.mkdir(parents=True, exist_ok=True)
            paths = tuple(unpack(file, into) for file in found)
            yield Case(f"{name} (shared)", kind, paths, answer, ratio=ratio)


def _unanswerable(scratch: Path) -> Iterator[Case]:
    """Captures that do not hold the answer: no GPU work, one rank of two, no steps at all."""
    trace = {"schemaVersion": 1, "traceEvents": []}
    for number in range(40):
        event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1}
        trace["traceEvents"].append(event | {"ts": 1000 * number, "dur": 900})
    on_the_cpu = scratch / "on_the_cpu.json.gz"
    on_the_cpu.write_bytes(gzip.compress(json.dumps(trace).encode()))
    yield Case("no GPU work", "unanswerable", (on_the_cpu,), UNKNOWN)
    empty = scratch / "empty.sqlite"
    empty.write_bytes(b"")
    yield Case("an empty file", "unanswerable", (empty,), UNKNOWN)
    for name in ("moe_a2a", "ddp_noisy_gpu2"):
        for file in sorted((SHARED / "h200-2").glob(f"{name}.rank1.sqlite.xz")):
            alone = scratch / "alone" / name
            alone.mkdir(parents=True, exist_ok=True)
            path = unpack(file, alone)
            yield Case(f"{name}, one rank of 4", "unanswerable", (path,), UNKNOWN)


def _exam(scratch: Path) -> Iterator[Case]:
    """Pairs of the exam of predictions: a faulty and a repaired program, both measured untraced.

    Of its development half: single results of the other are not looked at.
    """
    for file in sorted(CAPTURES.glob("*.json")):
        truth = json.loads(file.read_text())
        if half(truth["written_after"]) != "development":
            continue
        source = "own" if "own" in truth["recorded"] else "kineto"
        before, after = (statistics.mean(truth[side]["mean_ms"]) for side in ("before", "after"))
        into = scratch / truth["name"]
        into.mkdir(exist_ok=True)
        yield Case(
            name=f"{truth['name']} ({source})",
            kind="exam",
            paths=tuple(unpack_capture(CAPTURES / f"{truth['name']}.{source}.tar.xz", into)),
            answer=truth["cause"],
            others=tuple(truth["others"]),
            ratio=after / before / truth.get("samples", 1.0),
        )
