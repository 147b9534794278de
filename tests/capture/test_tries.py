"""Fixes applied to programs from outside, with a torch made of paper."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.capture.conftest import Program
from tests.support.paper_torch import TRAIN, write

from stepscope.api.tries import (
    TryOptions,
    _applied,
    _as_run,
    plan_of_tries,
    predicted_by,
    try_fixes,
)
from stepscope.capture import tries, trying
from stepscope.capture.tries import one_core
from stepscope.capture.trying import CONFIGURATION, Runs, TrialRun, run_once
from stepscope.compare.tried import TrySession
from stepscope.diagnosis.cause import causes
from stepscope.diagnosis.lever import levers
from stepscope.trace.errors import InputError, UsageError


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = write(tmp_path / "packages")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.delenv("RANK", raising=False)
    return folder


class Runner:
    """Runs programs with fixes, once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0

    def command(self, text: str) -> tuple[str, ...]:
        path = self.folder / "train.py"
        path.write_text(textwrap.dedent(text))
        return sys.executable, str(path)

    def once(self, text: str, names: str, *, steps: int = 0, warmup: int = 2) -> TrialRun:
        self.number += 1
        runs = Runs(self.command(text), self.folder / f"run{self.number}", steps, warmup)
        return run_once(runs, "one", names, shown=False)

    def session(self, text: str, *names: str, **options: Any) -> tuple[TrySession, int, list[str]]:
        self.number += 1
        heard: list[str] = []
        options = {"rounds": 1, "diagnosed": False} | options
        output = str(self.folder / f"session{self.number}")
        wanted = TryOptions(self.command(text), names, output, **options)
        result, code = try_fixes(wanted, heard.append)
        return result, code, heard


@pytest.fixture
def runner(torch: Path, tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def changes(run: TrialRun) -> dict[str, dict[str, Any]]:
    assert run.output is not None
    assert run.exit_code == 0, run.output.read_text()
    (process,) = run.processes
    return {one["name"]: one for one in process["changes"]}


# --- the registry --------------------------------------------------------------------------------


def test_every_fix_says_what_it_repairs() -> None:
    found = tries.declared()
    assert len(found) == 16
    known = {*causes(), *levers()}
    for one in found.values():
        assert {*one.repairs, *one.further, *one.eases} <= known, one.name
        assert one.repairs or one.eases or one.name == "prefetch"
        assert one.summary[-1] not in ".!", one.name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("fast", "there is no try 'fast'; there are allocator=expandable, bf16-autocast"),
        ("workers", "workers needs a number from 1"),
        ("workers=0", "workers needs a number from 1"),
        ("workers=4x", "workers needs a number from 1"),
        ("pin-memory=1", "pin-memory takes no value"),
        ("pin_memory", "there is no try 'pin_memory'"),
        ("allocator=other", "allocator takes one value; write allocator=expandable"),
        ("tf32,tf32", "tf32 is named twice"),
        (" , ", "names no fix"),
        ("../base", "there is no try"),
    ],
)
def test_names_that_are_refused(text: str, problem: str) -> None:
    with pytest.raises(tries.UnknownTryError, match=problem):
        tries.chosen(text)


def test_fixes_are_loaded_in_the_order_in_which_they_are_applied() -> None:
    found = [module.TRY.name for module, _ in tries.chosen("compile,prefetch=4,workers=2")]
    assert found == ["workers", "prefetch", "compile"]


# --- what they do to a program -------------------------------------------------------------------


SHOW = """
    import gc
    print("RESULT", loader.given, optimizer.given, gc.isenabled(), len(model.own))
"""


def test_many_fixes_at_once(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPER_CUDA", "1")
    names = (
        "workers=3,persistent-workers,prefetch=4,pin-memory,fused-optimizer,tf32,compile,"
        "no-gc-in-steps,cudnn-benchmark,channels-last,allocator=expandable,no-sync-debug"
    )
    text = f"{TRAIN}{textwrap.dedent(SHOW)}print(torch.precision, torch.cuda.mode)\n"
    run = runner.once(text, names)
    assert run.output is not None
    shown = run.output.read_text()
    fused = {"foreach": None, "fused": True}
    assert f"RESULT (3, True, 4, True) {fused} False 1\nhigh warn\n" == shown
    found = changes(run)
    assert {one["refused"] for one in found.values()} == {""}
    assert all(one["applied"] >= 1 for one in found.values()), found
    places = {name: next(iter(one["places"])) for name, one in found.items() if one["places"]}
    script = str(runner.folder / "train.py")
    assert places["workers"] == f"{script}:5"
    assert places["fused-optimizer"] == f"{script}:6"


def test_a_run_without_fixes_is_timed_and_its_losses_are_kept(runner: Runner) -> None:
    run = runner.once(TRAIN, "", warmup=3)
    (process,) = run.processes
    assert process["changes"] == []
    assert process["steps"] == 20
    assert len(process["lengths_ns"]) == 17
    assert process["losses"] == [[i, 0.5 / (i + 1)] for i in range(20)]


def test_steps_end_the_program_in_the_usual_way(runner: Runner) -> None:
    text = f"try:\n{textwrap.indent(TRAIN, '    ')}\nfinally: print('closed')\nprint('never')\n"
    run = runner.once(text, "", steps=6, warmup=2)
    assert run.exit_code == 0
    assert run.output is not None
    assert run.output.read_text() == "closed\n"
    assert run.made == 8
    assert len(run.processes[0]["lengths_ns"]) == 6


def test_autocast_from_the_forward_to_the_backward_pass(runner: Runner) -> None:
    text = TRAIN.replace("loss.backward()", "print(torch.autocast.on); loss.backward()")
    run = runner.once(text.replace("optimizer.step()", "print(torch.autocast.on)\n"
                                   "    optimizer.step()"), "bf16-autocast,compile")  # fmt: skip
    assert run.output is not None
    assert run.output.read_text().split() == ["True", "False"] * 20
    assert changes(run)["bf16-autocast"]["applied"] == 20


def test_a_module_runs_and_is_stored_as_without_fixes(runner: Runner) -> None:
    text = """
        import copy, pickle, torch
        call = torch.nn.Module.__call__
        class Shown(torch.nn.Module):
            def forward(self, x):
                seen.append(call.__code__.co_name)
                return x
        model, seen = torch.nn.Module(Shown(), torch.nn.Conv2d()), []
        optimizer = torch.optim.SGD(model.parameters())
        for i in range(3):
            model(torch.Tensor(dim=4))
            optimizer.step()
            stored = pickle.loads(pickle.dumps(model.own))
            print(len(stored), [one(model, (1,)) for one in copy.deepcopy(model.own).values()])
        print(seen, call.__code__.co_name, call is torch.nn.Module.__call__)
    """
    run = runner.once(text, "channels-last")
    assert changes(run)["channels-last"]["applied"] == 1
    assert run.output is not None
    assert run.output.read_text().splitlines() == [
        *["1 [None]"] * 3, "['__call__', '__call__', '__call__'] __call__ True"
    ]  # fmt: skip


def test_copies_that_need_not_block(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPER_CUDA", "1")
    text = """
        import torch
        for pinned in (True, False):
            x = torch.Tensor(pinned=pinned)
            print(x.to("cuda").moves, x.to("cuda", None, False, True).moves, x.cuda().moves,
                  x.to(torch.device("cpu")).moves[1:], x.to("float16").moves, x.cuda(0).moves)
        torch.optim.SGD([x]).step()
    """
    run = runner.once(text, "non-blocking")
    assert run.output is not None
    first, second = run.output.read_text().splitlines()
    free = "{'non_blocking': True}"
    assert first == (
        f"['cuda', {free}] ['cuda', None, {{'copy': True, 'non_blocking': True}}] "
        f"['cuda', {free}] [{{}}] ['float16', {{}}] ['cuda', 0, {free}]"
    )
    assert "non_blocking" not in second
    found = changes(run)["non-blocking"]
    assert found["applied"] == 4
    assert list(found["left"].values()) == [4]


REFUSALS: list[tuple[str, str, str, str]] = [
    # fix, what stands in the script, what it is replaced by, why it is refused or changes nothing
    ("pin-memory", "", "", "no CUDA device"),
    ("tf32", "", "", "compute capability 8.0"),
    ("no-sync-debug", "", "", "no CUDA device"),
    ("fused-optimizer", "", "", "not on a CUDA device"),
    ("fused-optimizer", "SGD(", "Rprop(", "Rprop has no fused="),
    ("foreach-optimizer", "SGD(", "Rprop(", "Rprop has no foreach="),
    ("fused-optimizer", "p for p in", "fused=True, params=", "fused already"),
    ("persistent-workers", "", "", "has no workers"),
    ("prefetch=8", "", "", "has no workers"),
    ("prefetch=999", "20)", "20, num_workers=1)", "DataLoader does not take it: too many"),
    ("compile", "optimizer =", "model.compile(); optimizer =", "compiled already"),
    ("bf16-autocast", "optimizer =", "torch.amp.GradScaler(); optimizer =", "GradScaler"),
    ("bf16-autocast", "    loss = ", "    torch.autocast.on = True; loss = ", "uses autocast"),
    ("channels-last", "torch.nn.Conv2d()", "torch.nn.Linear()", "no convolution"),
    ("cudnn-benchmark", "torch.nn.Conv2d()", "torch.nn.Linear()", "no convolution"),
    ("no-gc-in-steps", "import torch\n", "import torch, gc; gc.disable()\n", "turned garbage"),
    ("allocator=expandable", "", "", "does not use CUDA"),
    ("workers=2", "20)", "20, num_workers=2)", "2 workers already"),
    ("one-core", "import torch\n", "import torch, os; del os.sched_setaffinity\n", "a thread on"),
]


@pytest.mark.parametrize(("name", "old", "new", "why"), REFUSALS)
def test_what_is_refused_or_changes_nothing(
    runner: Runner, name: str, old: str, new: str, why: str
) -> None:
    text = TRAIN.replace(old, new, 1) if old else TRAIN
    assert not old or text != TRAIN
    (found,) = changes(runner.once(text, name)).values()
    assert why in " ".join([found["refused"], *found["left"]])
    assert found["refused"] or not found["applied"]


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


WHERE_THREADS_ARE = """
import multiprocessing, os, subprocess, sys, threading
def say(what): print(what, *sorted(os.sched_getaffinity(0)), flush=True)
say("steps")
thread = threading.Thread(target=say, args=("thread",))
thread.start()
thread.join()
process = multiprocessing.get_context("fork").Process(target=say, args=("fork",))
process.start()
process.join()
code = "import os; print('new', *sorted(os.sched_getaffinity(0)))"
subprocess.run([sys.executable, "-c", code])
say("after")
"""


@pytest.mark.skipif(len(cores()) < 2, reason="needs two cores and Linux")
def test_what_launches_stays_on_one_core_and_nothing_else_does(runner: Runner) -> None:
    run = runner.once(TRAIN + WHERE_THREADS_ARE, "one-core")
    (found,) = changes(run).values()
    assert run.output is not None
    told = {name: list(map(int, of)) for name, *of in map(str.split, run.output.open())}
    assert found["applied"] == 1
    (core,) = told["steps"]
    assert found["notes"] == [f"the thread of the steps and 0 of autograd's stay on core {core}"]
    others = dict.fromkeys(("thread", "fork", "new"), cores())
    assert told == {"steps": [core], "after": [core]} | others


def test_each_rank_of_a_machine_chooses_from_cores_of_its_own() -> None:
    def mine(cores: list[int], **variables: str) -> list[int]:
        return one_core.share_of(cores, *one_core._place(variables))

    ten = list(range(10))
    parts = [mine(ten, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="3") for rank in range(3)]
    assert parts == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    for variables in ({}, {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "3"}, {"LOCAL_RANK": "x"}):
        assert mine([4, 7], **variables) == [4, 7]
    assert mine([4], LOCAL_RANK="0", LOCAL_WORLD_SIZE="2") == [4]


@pytest.mark.skipif(len(cores()) < 2, reason="needs two cores and Linux")
def test_the_quickest_core_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    one, other = cores()[:2]
    takes = {one: iter([5] * 8), other: iter([4, 4, 4, 9, 4, 4, 4, 4])}
    monkeypatch.setattr(one_core, "_loop_ns", lambda: next(takes[min(os.sched_getaffinity(0))]))
    try:
        assert one_core.quickest([one, other]) == one  # the other one was slow once
    finally:
        os.sched_setaffinity(0, before)


def test_datasets_that_workers_cannot_share(runner: Runner) -> None:
    text = """
        import torch, multiprocessing
        from torch.utils.data import DataLoader, IterableDataset
        class Stream(IterableDataset):
            def __iter__(self): return iter([1])
        class Sharded(IterableDataset):
            def __iter__(self): return iter([get_worker_info()])
        class ByMethod(IterableDataset):
            def part(self): return share()
            def __iter__(self): return iter([self.part()])
        class Inherited(ByMethod):
            def __iter__(self): return super().__iter__()
        def share(): return get_worker_info()
        class OnGpu:
            def __init__(self): self.data = [torch.Tensor(where="cuda")]
        loaders = [DataLoader(CHOICE)]
        print(loaders[0].given[0])
        torch.optim.SGD([torch.Tensor()]).step()
    """
    for choice, why in (
        ("Stream()", "does not ask get_worker_info"),
        ("Sharded()", ""),
        ("ByMethod()", ""),
        ("Inherited()", ""),
        ("Stream(), worker_init_fn=lambda _: share()", ""),
        ("OnGpu()", "holds CUDA tensors"),
        ("[lambda: 1], multiprocessing_context='spawn'", "cannot be pickled"),
    ):
        run = runner.once(text.replace("CHOICE", choice), "workers=2")
        (found,) = changes(run).values()
        assert why in found["refused"]
        assert bool(found["refused"]) == bool(why)
        assert run.output is not None
        assert run.output.read_text() == ("0\n" if why else "2\n")


def test_workers_of_loaders_and_other_children_apply_nothing(runner: Runner) -> None:
    text = f"""
{TRAIN}
import multiprocessing
def child():
    print("child", DataLoader([1]).given[0], flush=True)
one = multiprocessing.get_context("fork").Process(target=child, daemon=True)
one.start()
one.join()
"""
    run = runner.once(text, "workers=2")
    assert run.output is not None
    assert run.output.read_text() == "child 0\n"
    assert changes(run)["workers"]["applied"] == 1


def collections(runner: Runner, made: str) -> tuple[list[int], TrialRun]:
    """Objects alive in cycles after each of 101 steps that make objects, without collections."""
    text = f"""
import torch
class Cycle:
    alive = 0
    def __init__(self): self.me = self; Cycle.alive += 1
    def __del__(self): Cycle.alive -= 1
optimizer, history, alive = torch.optim.SGD([torch.Tensor()]), [], []
for i in range(1, 102):
    alive.append(Cycle.alive)
    {made}
    optimizer.step()
print(alive[1:])
"""
    run = runner.once(text, "no-gc-in-steps")
    assert run.output is not None
    assert changes(run)["no-gc-in-steps"]["applied"] == 1
    return json.loads(run.output.read_text()), run


def test_few_objects_are_all_collected_now_and_then(runner: Runner) -> None:
    alive, _ = collections(runner, "Cycle()")
    assert alive[8:49] == list(range(1, 42))  # after the early steps nothing is collected
    assert alive[49] == alive[99] == 0
    assert max(alive) == 49


def test_what_is_alive_is_not_looked_at_again(runner: Runner) -> None:
    many = "history = [*history, *([k] for k in range(30_000))][-120_000:]; i % 10 or Cycle()"
    alive, run = collections(runner, many)
    notes = changes(run)["no-gc-in-steps"]["notes"]
    assert "next to no garbage" in notes[0]
    assert alive[49] == 4  # step 50's own one is collected; those of the steps before are not seen
    assert len(notes) == 1


def test_what_was_passed_over_is_collected_once_memory_has_grown(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAPER_CUDA", "1")
    many = "history = [*history, *([k] for k in range(30_000))][-120_000:]"
    held = "torch.cuda.memory_allocated = lambda: Cycle.alive * 2**31"
    alive, _ = collections(runner, f"{many}\n    {held}\n    if i == 9: Cycle()")
    assert alive[8] == alive[48] == 1
    assert alive[49] == 0


def test_many_objects_are_collected_where_steps_leave_garbage(runner: Runner) -> None:
    alive, _ = collections(runner, "history += [[Cycle()] for k in range(10_000)]; history.clear()")
    assert max(alive) == alive[98] == 10_000 * 49
    assert alive[49] == alive[99] == 0


def test_of_several_ranks_the_slowest_counts(runner: Runner) -> None:
    text = f"""
import os, subprocess, sys, time
if "RANK" not in os.environ:
    ranks = [subprocess.Popen([sys.executable, __file__], env={{**os.environ, "RANK": rank}})
             for rank in "10"]
    sys.exit(max(rank.wait() for rank in ranks))
{TRAIN.replace("    loss.b", "    time.sleep(0.05 * int(os.environ['RANK'])); loss.b")}
"""
    run = runner.once(text, "workers=2")
    assert run.exit_code == 0
    assert [process["rank"] for process in run.processes] == ["0", "1"]
    judged = _as_run(run)
    assert judged.lengths_ns == run.processes[1]["lengths_ns"]
    assert min(judged.lengths_ns) >= 50e6
    (applied,) = _applied("workers=2", [run])
    assert applied.count == 2


def test_a_program_that_does_not_end_with_its_steps_is_ended(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trying, "_ENDING_S", 0.2)
    text = f"""
import time
try:
{textwrap.indent(TRAIN, "    ")}
except SystemExit: pass
time.sleep(1000)
"""
    run = runner.once(text, "", steps=5)
    assert run.exit_code == 0
    assert len(run.processes[0]["lengths_ns"]) == 5


# --- sessions ------------------------------------------------------------------------------------


def test_a_session(runner: Runner, capfd: pytest.CaptureFixture[str]) -> None:
    text = f"import os, sys\n{TRAIN}\nprint('trained', os.environ['STEPSCOPE_TRY']); sys.exit(0)"
    result, code, heard = runner.session(text, "workers=20", rounds=2)
    assert code == 0
    (one,) = result.tried
    assert one.step is not None
    before, low, high = one.step.before_ns, one.step.low_ns, one.step.high_ns
    expected = "keep" if high < before else "worse" if low > before else "no_difference"
    assert one.verdict == expected
    assert one.step.before_steps == one.step.after_steps == [15, 15]
    assert one.losses.alike == "bit_equal"
    assert list(one.applied[0].places) == [f"{runner.folder / 'train.py'}:6"]
    assert one.applied[0].lines == "DataLoader(..., num_workers=20)"
    assert capfd.readouterr().out == "trained before\n"  # the first run's output is its own
    assert "STEPSCOPE_TRY tells it" in heard[0]
    kept = sorted(path.parent.name for path in Path(result.folder).glob("*/output.txt"))
    assert kept == ["round1-workers20", "round2-before", "round2-workers20"]
    assert json.loads(Path(result.folder, "try.json").read_text())["schema"] == "stepscope.try/1"


def test_the_exit_code_of_the_program_is_passed_on(runner: Runner) -> None:
    result, code, _ = runner.session(f"{TRAIN}\nraise SystemExit(3)", "workers=2")
    assert code == 3
    assert result.tried == []
    assert "ended with 3 without any fix" in result.warnings[0]


def test_a_program_that_fails_with_a_fix_only(runner: Runner) -> None:
    text = f"{TRAIN}\nraise SystemExit(7 if loader.given[0] else 0)"
    result, code, heard = runner.session(text, "workers=2")
    assert code == 0
    assert [one.verdict for one in result.tried] == ["failed"]
    assert any("exit code 7; its output is in" in line for line in heard)


def test_each_fix_by_itself_and_what_changes_nothing(runner: Runner) -> None:
    result, code, _ = runner.session(TRAIN, "workers=2,fused-optimizer", "prefetch=4",
                                     each=True, rounds=2)  # fmt: skip
    assert code == 0
    verdicts = {one.names[0]: one.verdict for one in result.tried}
    assert verdicts["fused-optimizer"] == "refused"
    assert verdicts["prefetch=4"] == "changed_nothing"
    assert verdicts["workers=2"] in ("keep", "no_difference", "worse")
    runs = {one.names[0]: len(one.exit_codes) for one in result.tried}
    assert runs == {"workers=2": 2, "fused-optimizer": 1, "prefetch=4": 1}


@pytest.mark.parametrize(
    "mistake",
    [
        "DataLoader()",
        "DataLoader([1], prefetch_factor=999)",
        "torch.optim.SGD([])",
        "model(1, 2, 3)",
        "torch.Tensor().backward(1)",
        "sys.exit('bye')",
        "raise KeyboardInterrupt",
    ],
)
def test_mistakes_of_the_program_are_told_as_without_us(runner: Runner, mistake: str) -> None:
    text = TRAIN.replace("loader =", f"import sys\n{mistake}\nloader =", 1)
    alone = subprocess.run(runner.command(text), capture_output=True, text=True, check=False)
    names = "workers=2,foreach-optimizer,bf16-autocast,non-blocking"
    run = runner.once(text, names)
    assert run.output is not None
    assert run.output.read_text() == alone.stdout + alone.stderr
    assert alone.stderr
    assert run.exit_code == (alone.returncode if alone.returncode >= 0 else 128 - alone.returncode)


def test_a_fix_that_changes_training(runner: Runner) -> None:
    text = TRAIN.replace("value / (i + 1)", "value / (i + 1) + 0.1 * (i * loader.given[0])")
    result, _, _ = runner.session(text, "workers=2", rounds=2)
    assert result.tried[0].verdict == "changed_training"
    assert result.tried[0].losses.repeats == 0.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import torch", "made no optimizer steps"),
        (f"{TRAIN}\nimport os; os._exit(0)", "made optimizer steps and left no times"),
    ],
)
def test_programs_whose_steps_cannot_be_timed(runner: Runner, text: str, why: str) -> None:
    result, code, _ = runner.session(text, "workers=2")
    assert code == 0
    assert result.tried == []
    assert why in result.warnings[0]


def test_too_few_steps_to_compare(runner: Runner) -> None:
    result, _, _ = runner.session(TRAIN, "workers=2", warmup=19)
    assert [one.verdict for one in result.tried] == ["not_measured"]


# --- predictions ---------------------------------------------------------------------------------


def diagnosis(*findings: tuple[str, int]) -> str:
    rows = [
        {"cause": cause, "predicted_step_ns": ns, "prediction_low_ns": ns,
         "prediction_high_ns": ns * 2}
        for cause, ns in findings
    ]  # fmt: skip
    return json.dumps(
        {
            "schema": "stepscope.diagnosis/2",
            "step_ns": {"mean": 100},
            "findings": rows,
            "levers": [],
        }
    )


def test_a_stored_diagnosis_predicts_by_its_ratio(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_text(diagnosis(("input_starvation", 40), ("unfused_optimizer", 90)))
    found = predicted_by(str(path))
    one = found.of(("input_starvation", "unfused_optimizer"))
    assert one is not None
    assert (one.cause, one.step_ns, one.high_ns) == ("input_starvation", 4e8, 8e8)
    assert found.of(("host_sync",)) is None


def test_a_further_repair_has_its_own_prediction(tmp_path: Path) -> None:
    """A finding predicts TF32, and autocast to BF16 beside it."""
    path = tmp_path / "d.json"
    told = json.loads(diagnosis(("low_precision_unused", 60)))
    told["findings"][0]["further"] = {
        "repair": "autocast to BF16", "predicted_step_ns": 50, "prediction_low_ns": 45,
        "prediction_high_ns": 70,
    }  # fmt: skip
    path.write_text(json.dumps(told))
    found = predicted_by(str(path))
    fixes = tries.declared()
    bf16, tf32 = (found.of(fixes[n].repairs, fixes[n].further) for n in ("bf16-autocast", "tf32"))
    assert bf16 is not None
    assert (bf16.cause, bf16.step_ns, bf16.low_ns) == ("low_precision_unused", 5e8, 4.5e8)
    assert tf32 is not None
    assert tf32.step_ns == 6e8


def test_the_lesser_of_two_repairs_has_its_own_prediction(tmp_path: Path) -> None:
    """A finding predicts autocast to BF16, as TF32 gains little beside it, which is told, too."""
    path = tmp_path / "d.json"
    told = json.loads(diagnosis(("low_precision_unused", 40)))
    told["findings"][0]["further"] = {
        "repair": "TF32", "predicted_step_ns": 90, "prediction_low_ns": 85,
        "prediction_high_ns": 95, "is_first": True,
    }  # fmt: skip
    path.write_text(json.dumps(told))
    found = predicted_by(str(path))
    fixes = tries.declared()
    bf16, tf32 = (found.of(fixes[n].repairs, fixes[n].further) for n in ("bf16-autocast", "tf32"))
    assert bf16 is not None
    assert tf32 is not None
    assert (bf16.step_ns, tf32.step_ns, tf32.high_ns) == (4e8, 9e8, 9.5e8)


def test_what_is_no_diagnosis_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_text("{}")
    with pytest.raises(InputError):
        predicted_by(str(path))


def test_auto_takes_what_the_diagnosis_names(runner: Runner) -> None:
    path = runner.folder / "d.json"
    path.write_text(diagnosis(("launch_bound", 50), ("step_jitter", 80), ("straggler", 60)))
    result, code, _ = runner.session(TRAIN, "auto", against=str(path), each=True)
    assert code == 0
    assert [one.names for one in result.tried] == [["compile"], ["no-gc-in-steps"]]
    assert any("the diagnosis predicts nothing for compile" in text for text in result.warnings)
    path.write_text(diagnosis(("straggler", 60)))
    result, code, _ = runner.session(TRAIN, "auto", against=str(path))
    assert (result.tried, code) == ([], 0)
    assert "names straggler, which no fix" in result.warnings[0]


def test_a_run_is_recorded_for_the_diagnosis_first(
    program: Program, torch: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = TRAIN.replace("    loss.backward()", "    launch(20); loss.backward()")
    script = program.script(f"print('runs as', os.environ['STEPSCOPE_TRY'])\n{training}")
    output = str(program.folder / "tried")
    wanted = TryOptions((sys.executable, str(script)), ("workers=2",), output, rounds=1)
    result, code = try_fixes(wanted, program.output.append)
    assert code == 0, program.output
    assert capfd.readouterr().out == "runs as recorded\n"  # the output of the first run is its own
    assert [path.name for path in Path(output, "recorded").iterdir()] == ["rank0.stepscope"]
    kept = Path(output, "round1-before", "output.txt").read_text()
    assert kept == "runs as before\n"
    (one,) = result.tried
    # what the diagnosis says of a program that does nothing is not at stake
    silent = any("predicts nothing for workers=2" in warning for warning in result.warnings)
    assert one.prediction is not None or silent
    assert one.applied[0].count == 1


def test_a_prediction_is_judged(runner: Runner) -> None:
    path = runner.folder / "d.json"
    path.write_text(diagnosis(("input_starvation", 99)))
    result, _, _ = runner.session(TRAIN, "workers=2", against=str(path))
    prediction = result.tried[0].prediction
    assert prediction is not None
    assert result.tried[0].step is not None
    assert prediction.step_ns == round(0.99 * result.tried[0].step.before_ns)


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"names": ("workers=2",), "rounds": 0}, "--rounds is 0"),
        ({"names": ("workers=2",), "steps": 2}, "needs 3 steps"),
        ({"names": ("workers=2",), "warmup": 0}, "--warmup is 0"),
        ({"names": ("auto", "tf32")}, "give it alone"),
        ({"names": ("auto",), "diagnosed": False}, "give it alone"),
        ({"names": ("quick",)}, "there is no try 'quick'"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    wanted = TryOptions(**{"command": (sys.executable,), "output": str(tmp_path / "o")} | options)
    with pytest.raises(UsageError, match=why):
        try_fixes(wanted, print)
    assert not (tmp_path / "o").exists()


def test_the_plan_is_told_without_running() -> None:
    wanted = TryOptions(("python", "my train.py"), ("workers=2,tf32",), each=True, rounds=1)
    assert plan_of_tries(wanted) == [
        "recorded, 10 steps: python 'my train.py'",
        "round 1, as it is: python 'my train.py'",
        "round 1, with workers=2: python 'my train.py'",
        "round 1, with tf32: python 'my train.py'",
    ]


def test_the_files_of_a_run_are_its_owners_alone(runner: Runner) -> None:
    runner.once(TRAIN, "")
    folder = runner.folder / "run1" / "one"
    assert {path.stat().st_mode & 0o077 for path in (folder, folder / CONFIGURATION)} == {0}


def test_the_program_is_watched_with_the_standard_library_only(
    runner: Runner, stepscope_modules: Callable[[str], set[str]]
) -> None:
    assert not {m for m in stepscope_modules("workers=2") if m.partition(".")[0] == "stepscope"}


@pytest.fixture
def stepscope_modules(runner: Runner) -> Callable[[str], set[str]]:
    def modules(names: str) -> set[str]:
        run = runner.once(f"{TRAIN}\nimport sys; print(*sys.modules)", names)
        assert run.output is not None
        return set(run.output.read_text().split())

    return modules


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_with_pytorch_itself(tmp_path: Path) -> None:
    text = """
        import gc, torch
        from torch.utils.data import DataLoader
        torch.manual_seed(0)
        torch.set_num_threads(1)
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(),
                                  torch.nn.Linear(144, 10))
        optimizer = torch.optim.AdamW((p for p in net.parameters()), lr=1e-3)
        for epoch in range(2):
            for x in DataLoader(torch.arange(24 * 192.0).reshape(24, 3, 8, 8), batch_size=4):
                loss = net(x / 1e3).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(loss.dtype, gc.isenabled(), optimizer.param_groups[0]["foreach"],
              net[0].weight.is_contiguous(memory_format=torch.channels_last))
    """
    names = (
        "workers=1,persistent-workers,bf16-autocast,foreach-optimizer,no-gc-in-steps,channels-last"
    )
    run = Runner(tmp_path).once(text, names)
    assert run.output is not None
    assert run.output.read_text() == "torch.bfloat16 False True True\n"
    found = changes(run)
    assert {one["refused"] for one in found.values()} == {""}
    assert all(one["applied"] for one in found.values()), found
    assert len(run.processes[0]["losses"]) == 12


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("compiled", ["model = torch.compile(model, backend=backend)",
                                      "model.compile(backend=backend)"])  # fmt: skip
def test_a_program_that_compiles_is_compiled_as_without_fixes(
    tmp_path: Path, compiled: str
) -> None:
    text = f"""
        import torch
        graphs = []
        def backend(module, inputs):
            graphs.append(len(module.graph.nodes))
            return module.forward
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.GELU()))
        {compiled}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(8):
            loss = model(torch.ones(2, 4)).sum()
            loss.backward()
            optimizer.step()
        print(graphs)
    """
    runner = Runner(tmp_path)
    shown = []
    for names in ("", "tf32", "compile", "channels-last"):
        run = runner.once(text, names)
        assert run.output is not None
        assert run.exit_code == 0, run.output.read_text()
        shown.append(run.output.read_text())
    assert len(set(shown)) == 1
