"""What was asked for and never came: said, with what there was instead; and its bounds hold."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.capture.conftest import Program, texts
from tests.capture.test_hook import TRAIN
from tests.capture.test_hook import torch as torch  # noqa: PLC0414 - a fixture
from tests.cli.command import Stepscope

from stepscope.capture.errors import CaptureError
from stepscope.capture.launcher import prepare
from stepscope.capture.options import Options
from stepscope.importers.registry import convert
from stepscope.trace.errors import InputError
from stepscope.trace.trace import Trace

NO_GPU = "nvtx.nvtx_load()"
RANGES = """
    for i in range(40):
        push(f"step_{i}"); push("forward"); pop(); push("forward"); pop(); pop()
    d = nvtx.domain(b"lib"); s = nvtx.registered(d, b"inside")
    nvtx.domain_push(d, s, 0, 0.0); nvtx.domain_pop(d)
    launch(3) if "cuda" in sys.argv else None
"""


def output(program: Program, text: str, **options: Any) -> str:
    """The one sentence about a run of which nothing was recorded; it leaves nothing."""
    outcome = program.record(text, **options)
    assert outcome.exit_code == 0
    assert outcome.raw == []
    assert not outcome.folder.exists()
    (line,) = outcome.warnings
    assert line.startswith("nothing was recorded: ")
    return line.removeprefix("nothing was recorded: ")


# --- ranges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [NO_GPU, "nvtx.nvtx_load(); cuda.fake_init()"])
def test_a_range_that_was_never_opened(program: Program, start: str) -> None:
    """With a GPU, where nothing is kept outside of recording, and without."""
    opened = (
        "it opened the ranges 'forward' (80 times), 'step_0' and 39 like it (40 times), "
        "'inside'@lib (1 time)"
    )
    answer = output(program, RANGES, start=start, range="forwards")
    assert answer == f"the range forwards was never opened (did you mean 'forward'?); {opened}"
    answer = output(program, RANGES, start=start, range="nowhere")
    assert answer == f"the range nowhere was never opened; {opened}"
    answer = output(program, RANGES, start=start, range="inside@library")
    assert answer == (
        "the range inside was opened, but in the domain lib, not in library; give --range "
        "inside@lib"
    )
    answer = output(program, RANGES, start=start, range="forward@lib")
    assert "outside of any domain, not in lib; give --range forward" in answer
    answer = output(program, RANGES, start=start, range="cudaProfilerApi")
    assert answer.startswith("the program never called cudaProfilerStart (in PyTorch")
    assert (", nor used CUDA at all" in answer) == (start == NO_GPU)
    assert answer.endswith(f"{opened}; give one of them with --range")


def test_a_program_without_ranges(program: Program) -> None:
    assert output(program, "launch(5)", range="train") == (
        "the range train was never opened; the program opened no NVTX ranges"
    )


def test_many_names_are_summed_up(program: Program) -> None:
    text = """
        for name in ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j"): push(name); pop()
        for i in range(6000): push(f"id {i}"); pop()
        push("x" * 300); pop()
    """
    answer = output(program, text, range="train")
    assert "'id 0' and " in answer
    assert "'f' (1 time), 'g' (1 time), 3 more, and others 1,9" in answer
    assert len(answer) < 500


def test_what_a_killed_program_had_opened_is_known(program: Program) -> None:
    outcome = program.record(
        'for _ in range(100): push("forward"); pop(); time.sleep(0.02)\n'
        "os.kill(os.getpid(), signal.SIGKILL)",
        range="train",
    )
    assert outcome.exit_code == 137
    (line,) = [line for line in outcome.warnings if "never opened" in line]
    assert "it opened the ranges 'forward' (" in line


def test_forked_workers_count_their_own(program: Program) -> None:
    answer = output(
        program,
        """
        push("parent"); pop()
        for _ in range(3):
            if os.fork() == 0: push("child"); pop(); sys.exit()
            os.wait()
        """,
        range="train",
    )
    assert answer.endswith("it opened the ranges 'child' (3 times), 'parent' (1 time)")


def test_a_rank_in_which_the_range_was_not_opened(program: Program) -> None:
    outcome = program.record(
        """
        import subprocess
        if "RANK" not in os.environ:
            [subprocess.run([sys.executable, __file__], env={**os.environ, "RANK": str(r)})
             for r in range(2)]
        else:
            nvtx.nvtx_load(); cuda.fake_init()
            push("train" + os.environ["RANK"]); launch(5); pop()
        """,
        start="",
        range="train1",
    )
    assert [raw.name for raw in outcome.raw] == ["rank1"]
    (line,) = outcome.warnings
    assert line.startswith("rank0: nothing was recorded: the range train1 was never opened")
    assert "'train0' (1 time)" in line


def test_fewer_ranges_than_asked_for(program: Program) -> None:
    text = 'for _ in range(2): push("train"); launch(); pop()'
    outcome = program.record(text, range="train", ranges=5)
    assert outcome.warnings == ["the range train was opened 2 times, of the 5 of --ranges"]
    assert program.record(text, range="train", ranges=2).warnings == []


def test_a_range_without_gpu_work(program: Program) -> None:
    outcome = program.record('push("train"); pop(); launch(5)', range="train")
    assert outcome.warnings == ["no GPU work was recorded while the range train was open (1 time)"]


def test_a_range_named_by_a_number(program: Program) -> None:
    trace = program.trace('push("0"); launch(5); pop(); launch(9)', range="0")
    assert trace.rows("gpu_op") == 5


# --- steps ----------------------------------------------------------------------------------------


def test_steps_without_an_optimizer(program: Program, torch: Path) -> None:
    for backend in ("collector", "torch"):
        outcome = program.record('push("mine"); launch(5); pop()', steps=4, backend=backend)
        (line,) = outcome.warnings
        assert "did not import torch.optim, so it made no optimizer steps" in line
        assert ("'mine' (1 time)" in line) == (backend == "collector")
        assert not list(outcome.folder.glob("*.txt"))
    answer = output(program, "from torch.optim import Optimizer; launch(5)", steps=4)
    assert answer.startswith("the program made no optimizer steps of torch.optim; record without")


def test_steps_of_no_python(program: Program, stepscope: Stepscope) -> None:
    done = stepscope(
        *("run", "--steps", "3", "--backend", "collector", "-o", program.folder / "o"),
        *("--", "true"),
    )
    assert "no Python of the program counted optimizer steps" in done.stderr


def test_a_warm_up_beyond_the_steps(program: Program, torch: Path) -> None:
    for backend in ("collector", "torch"):
        outcome = program.record(TRAIN, steps=4, warmup=20, backend=backend)
        (line,) = outcome.warnings
        assert (
            "the program made 12 optimizer steps of torch.optim, and the first 20 are let pass "
            "(--warmup); give --warmup 11"
        ) in line
        assert outcome.exit_code == 0


def test_fewer_steps_than_asked_for(program: Program, torch: Path) -> None:
    for backend in ("collector", "torch"):
        outcome = program.record(TRAIN, steps=10, warmup=5, backend=backend)
        assert outcome.warnings == [
            "the program made 12 optimizer steps, so 7 of the 10 of --steps were recorded after "
            "the 5 of --warmup"
        ]
    assert program.record(TRAIN, steps=7, warmup=5).warnings == []


def test_steps_of_a_killed_program_are_counted(program: Program, torch: Path) -> None:
    text = TRAIN.replace(
        "one.step(); other.step()",
        "one.step(); i == 8 and (time.sleep(1), os.kill(os.getpid(), 9))",
    )
    outcome = program.record(text, steps=10, warmup=12)
    assert any("the program made 9 optimizer steps" in line for line in outcome.warnings)


def test_slow_steps_of_a_short_program(program: Program, torch: Path) -> None:
    outcome = program.record("launch(5)", ring_s=5.0, slow_step=2.0)
    (line,) = outcome.warnings
    assert line.startswith("--slow-step judged no step: the program did not import torch.optim")
    assert program.record(TRAIN, ring_s=5.0, slow_step=2.0).warnings == []


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [NO_GPU, "nvtx.nvtx_load(); cuda.fake_init()"])
def test_a_delay_past_the_end(program: Program, start: str) -> None:
    answer = output(program, 'push("a"); pop()', start=start, delay_s=600)
    assert "before the 600 s of --delay were over" in answer


def test_a_duration_past_the_end(program: Program) -> None:
    outcome = program.record("launch()", duration_s=600)
    (line,) = outcome.warnings
    assert line.startswith("the program ended before the 600 s of --duration were over; it ran for")


def test_nobody_said_when_to_begin(program: Program) -> None:
    answer = output(program, "launch()", paused=True)
    assert answer.startswith("stepscope capture start was not called in the ")


# --- programs without CUDA ------------------------------------------------------------------------

OUTSIDE_AND_IN = """
    for i in range(3):
        push(f"out{i}"); pop(); time.sleep(0.002)
        push("train"); push("in"); pop(); pop(); time.sleep(0.002)
    push("after"); pop()
"""


def names(program: Program, text: str, **options: Any) -> list[str]:
    return texts(program.trace(text, start=NO_GPU, **options), "range", "name")


def test_a_range_bounds_a_program_without_cuda(program: Program) -> None:
    assert names(program, OUTSIDE_AND_IN, range="train") == ["train", "in"] * 3
    assert names(program, OUTSIDE_AND_IN, range="train", ranges=1) == ["train", "in"]


def test_steps_bound_a_program_without_cuda(program: Program, torch: Path) -> None:
    text = """
        from torch.optim import Optimizer
        one = Optimizer()
        for i in range(8): push(f"mine {i}"); pop(); one.step(); time.sleep(0.002)
    """
    found = names(program, text, steps=2, warmup=3)
    assert sorted(found) == ["mine 3", "mine 4", "step_0", "step_1"]


def test_a_word_from_the_program_bounds_it_without_cuda(program: Program) -> None:
    root = str(Path(__file__).parents[2] / "src")
    found = names(
        program,
        f"""
        sys.path.insert(0, {root!r})
        import stepscope
        push("before"); pop(); time.sleep(0.002)
        with stepscope.profile(): push("in"); pop()
        time.sleep(0.002); push("after"); pop()
        """,
        paused=True,
    )
    assert found == ["in"]


def test_workers_without_cuda_record_within_their_parents_window(program: Program) -> None:
    text = """
        def worker(name):
            if os.fork() == 0: push(name); time.sleep(0.01); pop(); sys.exit()
            os.wait()
        worker("before"); time.sleep(0.05)
        push("train"); worker("within"); pop()
        time.sleep(0.05); worker("between"); time.sleep(0.05)
        push("train"); worker("again"); pop()
        time.sleep(0.05); worker("after")
    """
    assert sorted(names(program, text, range="train")) == ["again", "train", "train", "within"]


def test_a_ring_bounds_a_program_without_cuda(program: Program) -> None:
    """Also where its few events fill no block before the end."""
    text = 'for i in range(200): push(f"r{i}"); pop(); time.sleep(0.01)'
    trace = program.trace(text, start=NO_GPU, ring_s=0.5)
    rows = trace.arrow("range").to_pylist()
    assert rows[-1]["name"] == "r199"
    assert 1 < len(rows) < 100
    assert trace.meta.window_end_ns - trace.meta.window_start_ns == 500_000_000
    assert min(row["end_ns"] for row in rows) >= trace.meta.window_start_ns


def test_what_a_family_may_record_is_over_for_its_later_children(program: Program) -> None:
    """--duration counts from the first process's begin, not from each worker's."""
    text = """
        push("first"); pop(); time.sleep(1.2)
        if os.fork() == 0: push("late child"); pop(); sys.exit()
        os.wait()
    """
    assert names(program, text, duration_s=0.4) == ["first"]


def test_a_size_bounds_what_is_kept_outside_of_ranges(program: Program) -> None:
    """A program without CUDA may be a worker: what it tells is kept until the capture is read."""
    text = """
        for i in range(200):
            for _ in range(1000): push("out"); pop()
            time.sleep(0.005)
    """
    outcome = program.record(text, start=NO_GPU, range="train", max_bytes=1_000_000, keep_raw=True)
    (path,) = (outcome.folder / "raw").rglob("*.raw")
    assert path.stat().st_size < 8_000_000  # of 19 MB
    assert any("limit of 1000000 bytes was reached" in line for line in outcome.warnings)


def test_a_capture_that_began_nowhere_is_no_trace_of_everything(program: Program) -> None:
    """Raw files that were kept say themselves that recording waited for a range."""
    program.record(OUTSIDE_AND_IN, start=NO_GPU, range="nowhere", keep_raw=True)
    (raw,) = (program.folder / "run1" / "raw").glob("rank*")
    with pytest.raises(InputError, match="no ranges"):
        convert(raw, program.folder / "t.stepscope")


# --- values in the recorder's configuration -------------------------------------------------------


@pytest.mark.parametrize("character", ["\n", "\r", "\x0b", "\x1b", "\x7f", "\t"])
def test_no_value_makes_a_line_of_its_own(tmp_path: Path, character: str) -> None:
    text = f"a{character}hook=profiler"
    for name, more in (
        ("-o", {"output": tmp_path / text}),
        ("--range", {"range": text}),
        ("--range", {"range": f"a@{text}"}),
        ("--kernel", {"kernel": text, "backend": "ncu"}),
    ):
        options = {"output": tmp_path / "o", "backend": "collector"} | more
        with pytest.raises(CaptureError, match=f"^{name} holds the control character"):
            prepare(Options(("true",), **options))  # type: ignore[arg-type]


def test_a_newline_is_refused_before_anything_is_made(stepscope: Stepscope, tmp_path: Path) -> None:
    message = stepscope.refuses("run", "-o", tmp_path / "a\nhook=profiler", "--", "true")
    assert "-o holds the control character" in message
    message = stepscope.refuses("run", "-o", tmp_path / "%q{NAME}", "--", "true", NAME="a\nb")
    assert "-o holds the control character" in message
    assert not any(tmp_path.glob("a*"))


def test_nor_does_the_folder_in_which_it_lies(
    stepscope: Stepscope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "a\nrange=nvtx"
    inside.mkdir()
    monkeypatch.chdir(inside)
    message = stepscope.refuses("run", "--backend", "collector", "-o", "o", "--", "true")
    assert "the one it lies in) holds the control character '\\n'" in message
    assert list(inside.iterdir()) == []


def test_values_that_would_be_cut_are_refused(stepscope: Stepscope, tmp_path: Path) -> None:
    for option, value in (
        ("--range", "x" * 600),
        ("--range", "ä" * 300),
        ("--range", f"a@{'x' * 300}"),
        ("--ranks", ",".join(map(str, range(2000)))),
    ):
        message = stepscope.refuses("run", option, value, "-o", tmp_path / "o", "--", "true")
        assert f"{option} has more than" in message
    # and what is not refused arrives whole
    done = stepscope(
        *("run", "--backend", "collector", "--ranks", ",".join(map(str, range(900))), "-o"),
        *(tmp_path / "o", "--", sys.executable, "-c", "pass"),
        RANK="899",
    )
    assert "processes here have rank" not in done.stderr


def test_a_folder_whose_name_is_no_utf8(stepscope: Stepscope, tmp_path: Path) -> None:
    """Parquet files cannot be written there, so it is said before the program starts."""
    folder = tmp_path / os.fsdecode(b"gr\xfc\xdfe")
    message = stepscope.refuses("run", "-o", folder, "--", "true")
    assert "-o is no UTF-8" in message
    assert not folder.exists()


def test_arguments_that_are_no_utf8_reach_the_program(
    program: Program, stepscope: Stepscope
) -> None:
    script = program.script("assert os.fsencode(sys.argv[1]) == b'\\xfc'; launch(5)")
    folder = program.folder / "o"
    arguments = ("run", "--no-diagnose", "--backend", "collector", "-o", folder, "--")
    stepscope(*arguments, sys.executable, script, os.fsdecode(b"\xfc"))
    trace = Trace(folder / "rank0.stepscope")
    assert trace.rows("gpu_op") == 5
    assert trace.meta.origin_epoch_ns is not None  # what the launcher wrote could be read
