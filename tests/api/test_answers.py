"""What is kept of a job answers as a fresh look does, or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.build import Build
from tests.test_layering import ARROWS, PARTS

import stepscope
from stepscope.api import Job
from stepscope.api.answers import Answers, JobRevision
from stepscope.cache import artifacts, revisions
from stepscope.cache.arrays import ArrayWriter
from stepscope.cache.revisions import code_digest
from stepscope.cache.store import Cache
from stepscope.simulation.changes import Change, Free, LaunchesFree
from stepscope.trace.errors import InputError
from stepscope.trace.trace import RankTrace, Trace


def build(folder: Path, wait: float = 600) -> Path:
    """A small trace with waits, as a folder of its own."""
    made = Build()
    for i in range(8):
        at = i * 2000.0
        made.range(at, at + 1990, f"step_{i}")
        made.kernel(at + 20, at + 700, call=(at + 5, at + 15))
        made.range(at + 700, at + 700 + wait, "dataload")
        made.kernel(at + wait + 720, at + wait + 900, call=(at + wait + 705, at + wait + 715))
    return made.trace(folder).folder


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return build(tmp_path)


@pytest.fixture
def opened(capture: Path, tmp_path: Path) -> Callable[..., Job]:
    """Opens the capture again, always with the same cache."""
    return lambda *paths, **options: Job(
        list(paths) or [capture], cache=Cache(tmp_path / "cache"), **options
    )


class LookedAgainError(Exception):
    """Somebody explained the job."""


@pytest.fixture
def only_kept(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, nothing is explained any more."""

    def never(*_: object) -> None:
        raise LookedAgainError

    return lambda: monkeypatch.setattr("stepscope.breakdown.explain.explain", never)


def files(folder: Path) -> list[Path]:
    return sorted((folder / "cache").rglob("answers-*"))


def everything(job: Job) -> list[Any]:
    """What a job says, every question once."""
    diagnosis = job.diagnose()
    return [
        diagnosis,
        job.profile(),
        job.critical_path(),
        job.critical_path(3),
        job.whatif([Free("host_compute")]),
        job.whatif([LaunchesFree()]),
        job.communication,
        job.operator_rooflines(),
        job.steps.to_pylist(),
        job.kernels.to_pylist(),
        job.operators().to_pylist(),
        job.query("SELECT * FROM idle_gap ORDER BY ALL").to_pylist(),
        job.query("SELECT * FROM prediction ORDER BY ALL").to_pylist(),
        job.verify(msgspec.json.encode(diagnosis)),
    ]


def test_the_second_answer_is_the_first_without_another_look(
    opened: Callable[..., Job], only_kept: Callable[[], None]
) -> None:
    first = everything(opened())
    only_kept()
    again = everything(opened())
    assert again == first
    assert [type(one) for one in again] == [type(one) for one in first]
    # equal to the digit, and an integer stays one
    assert msgspec.json.encode(again[0]) == msgspec.json.encode(first[0])
    assert msgspec.json.encode(again[1]) == msgspec.json.encode(first[1])
    assert again[-1].verified
    assert again[-1].checked > 20


def test_a_report_with_another_figure_is_still_refused(
    opened: Callable[..., Job], only_kept: Callable[[], None]
) -> None:
    report = msgspec.json.encode(opened().diagnose())
    mean = str(opened().diagnose().step_ns.mean).encode()
    only_kept()
    assert not opened().verify(report.replace(mean, str(int(mean) + 1).encode())).verified


def set_back(path: Path, stat: os.stat_result) -> None:
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_changed_capture_is_looked_at_again(
    opened: Callable[..., Job], capture: Path, tmp_path: Path
) -> None:
    before = opened().diagnose()
    (tmp_path / "later").mkdir()
    later = build(tmp_path / "later", wait=800)
    shutil.rmtree(capture)
    later.rename(capture)
    after = opened().diagnose()
    assert after != before
    assert after == Job([capture], cache=Cache(tmp_path / "empty")).diagnose()


def test_a_table_written_anew_with_its_old_size_and_time_counts_as_changed(
    opened: Callable[..., Job], capture: Path, only_kept: Callable[[], None]
) -> None:
    opened().diagnose()
    table = capture / "gpu_op.parquet"
    stat, data = table.stat(), table.read_bytes()
    table.write_bytes(data)
    set_back(table, stat)
    only_kept()
    with pytest.raises(LookedAgainError):
        opened().diagnose()


def test_a_changed_file_of_another_format_is_looked_at_again(
    tmp_path: Path, opened: Callable[..., Job]
) -> None:
    text = """{{"traceEvents": [
    {{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10, "dur": 50,
      "args": {{"device": 0, "stream": 7, "correlation": 1}}}},
    {{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": {at}, "dur": 50,
      "args": {{"device": 0, "stream": 7, "correlation": 2}}}}],
    "deviceProperties": [{{"id": 0, "name": "GPU"}}]}}"""
    file = tmp_path / "trace.json"
    file.write_text(text.format(at=100))
    before = opened(file, step="none").diagnose()
    file.write_text(text.format(at=900))
    after = opened(file, step="none").diagnose()
    assert after.step_ns.mean > before.step_ns.mean


def test_options_and_paths_have_answers_of_their_own(
    opened: Callable[..., Job],
    capture: Path,
    tmp_path: Path,
    only_kept: Callable[[], None],
) -> None:
    usual = opened().diagnose()
    link = tmp_path / "link.stepscope"
    link.symlink_to(capture)
    ceilings = tmp_path / "ceilings.json"
    figures = '"dram_bytes_per_s": 1e12, "fp32_flop_per_s": 1e13, "fp64_flop_per_s": 1e12'
    about = '"schema": "stepscope.ceilings/2", "device": "GPU", "measured_at": ""'
    ceilings.write_text(f"{{{about}, {figures}}}")
    others: list[tuple[tuple[Path, ...], dict[str, Any]]] = [
        ((), {"step": "none"}),
        ((), {"step_kernel": "gemm"}),
        ((), {"step": "dataload"}),
        ((link,), {}),
        ((), {"ceilings": ceilings}),
    ]
    found = [opened(*paths, **options).diagnose() for paths, options in others]
    assert len({msgspec.json.encode(one) for one in [usual, *found]}) == len(found) + 1
    only_kept()
    assert opened().diagnose() == usual
    for (paths, options), one in zip(others, found, strict=True):
        assert opened(*paths, **options).diagnose() == one
    ceilings.write_text(ceilings.read_text().replace("1e13", "2e13"))
    with pytest.raises(LookedAgainError):
        opened(ceilings=ceilings).diagnose()


def test_other_changes_have_other_predictions(
    opened: Callable[..., Job], only_kept: Callable[[], None]
) -> None:
    asked: list[list[Change]] = [
        [LaunchesFree()],
        [Free("host_compute")],
        [LaunchesFree(), Free("host_compute")],
    ]
    first = [opened().whatif(one) for one in asked]
    only_kept()
    assert [opened().whatif(one) for one in asked] == first
    with pytest.raises(LookedAgainError):
        opened().whatif([Free("input_starvation")])


def test_again_believes_nothing_that_was_kept(
    opened: Callable[..., Job], only_kept: Callable[[], None]
) -> None:
    opened().diagnose()
    only_kept()
    with pytest.raises(LookedAgainError):
        opened(again=True).diagnose()


def damaged(content: bytes) -> Iterator[bytes]:
    """A file as disks and other programs leave it."""
    yield b""
    yield content[: len(content) // 2]
    yield content + b"x"
    yield b"\0" * len(content)
    for place in range(0, len(content), max(1, len(content) // 60)):
        yield content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :]


def test_a_damaged_answer_is_found_anew(tmp_path: Path, capture: Path) -> None:
    rank_trace = RankTrace(Trace(capture), 0, "")

    def fresh() -> Answers:
        return Answers(JobRevision([rank_trace], ["told"]), Cache(tmp_path / "cache"), again=False)

    answer = {"figure": 0.1, "texts": ["a", "b"] * 40}
    fresh().find("question", dict, lambda: answer)
    (file,) = files(tmp_path)
    for content in damaged(file.read_bytes()):
        file.unlink()
        file.write_bytes(content)
        made: list[int] = []

        def make(made: list[int] = made) -> dict[str, Any]:
            made.append(1)
            return answer

        assert fresh().find("question", dict, make) == answer
        if made:  # a byte between the arrays means nothing; all others are noticed
            assert fresh().find("question", dict, lambda: {}) == answer  # and repaired
    file.unlink()
    file.mkdir()
    assert fresh().find("question", dict, lambda: answer) == answer


def test_the_answer_of_another_question_is_not_taken(tmp_path: Path, capture: Path) -> None:
    rank_trace = RankTrace(Trace(capture), 0, "")

    def fresh(*reply: str, rank: int = 0) -> Answers:
        rank_traces = [RankTrace(rank_trace.trace, rank, "")]
        return Answers(JobRevision(rank_traces, reply), Cache(tmp_path / "cache"), again=False)

    asked = [(fresh("a", "b"), "c"), (fresh("a"), "b"), (fresh("ab"), "c"), (fresh("a", "bc"), "")]
    for number, (one, question) in enumerate(asked):
        one.find(question, int, lambda number=number: number)  # type: ignore[misc]
    again = [(fresh("a", "b"), "c"), (fresh("a"), "b"), (fresh("ab"), "c"), (fresh("a", "bc"), "")]
    assert [one.find(question, int, lambda: -1) for one, question in again] == [0, 1, 2, 3]
    assert fresh("a", "b", rank=1).find("c", int, lambda: -1) == -1
    one, other, *_ = files(tmp_path)
    shutil.copy(one, other)
    assert -1 in [a.find(q, int, lambda: -1) for a, q in [(fresh(*t), q) for t, q in (
        (("a", "b"), "c"), (("a",), "b"), (("ab",), "c"), (("a", "bc"), ""))]]  # fmt: skip


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_where_nothing_can_be_kept_the_answer_comes_all_the_same(
    number: int, opened: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = opened().diagnose()
    for file in files(tmp_path):
        file.unlink()

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(ArrayWriter, "add", refuse)
        assert opened().diagnose() == expected
    assert not files(tmp_path)  # nothing is left, not even a part
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    assert Job(opened().given, cache=Cache(blocked / "cache")).diagnose() == expected


def test_several_at_once_answer_the_same_and_leave_one_file(capture: Path, tmp_path: Path) -> None:
    def ask(number: int) -> list[int]:
        rank_traces = [RankTrace(Trace(capture), 0, "")]
        found = Answers(
            JobRevision(rank_traces, []), Cache(tmp_path / "cache"), again=number % 5 == 0
        )
        return found.find("question", list[int], lambda: list(range(20_000)))

    with ThreadPoolExecutor(8) as pool:
        assert all(found == list(range(20_000)) for found in pool.map(ask, range(40)))
    assert len(files(tmp_path)) == 1


def test_errors_are_told_each_time(tmp_path: Path) -> None:
    made = Build()
    made.range(0, 10, "step_1")
    folder = made.trace(tmp_path).folder
    for _ in range(2):
        with pytest.raises(InputError, match="no GPU work"):
            Job([folder], cache=Cache(tmp_path / "cache")).diagnose()
    assert not files(tmp_path)


def test_only_so_many_answers_are_kept(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "_MOST_OF_A_KIND", 5)
    for number in range(9):
        rank_traces = [RankTrace(Trace(capture), 0, "")]
        one = Answers(JobRevision(rank_traces, []), Cache(tmp_path / "cache"), again=False)
        one.find(f"question {number}", int, lambda: 1)
    assert len(files(tmp_path)) == 5


def test_other_code_gives_other_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Path(stepscope.__file__).parent
    copy = tmp_path / "stepscope"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", "static", "ui"))
    digest = code_digest.__wrapped__
    here = digest()
    monkeypatch.setattr(stepscope, "__file__", str(copy / "__init__.py"))
    assert digest() == here  # where it is installed does not count
    for room in revisions.ROOMS:
        file = next((copy / room).rglob("[a-z]*.py"))
        stat, content = file.stat(), file.read_bytes()
        file.write_bytes(content[:-2] + b" " + content[-1:])
        set_back(file, stat)
        assert digest() != here, room
        file.write_bytes(content)
    moved = copy / "gaps" / "idle.py"
    moved.rename(copy / "gaps" / "idle2.py")
    assert digest() != here
    moved.with_name("idle2.py").rename(moved)
    (copy / "cli" / "main.py").write_text("")  # how an answer is shown does not count
    assert digest() == here
    monkeypatch.setattr(revisions, "_libraries", lambda: ["numpy-99.dist-info"])
    assert digest() != here
    shutil.rmtree(copy / "gaps")  # code that cannot be read is known to nobody
    assert digest() != digest()


def test_the_versions_of_libraries_are_known() -> None:
    found = revisions._libraries()
    assert [name.partition("-")[0] for name in found] == ["duckdb", "msgspec", "numpy", "pyarrow"]


def test_every_room_that_an_opened_job_reaches_counts() -> None:
    parts, new = set(), {".job"}
    while new:
        parts |= new
        arrows = set().union(*(PARTS["api"][part[1:]] for part in parts))
        new = {arrow for arrow in arrows if arrow.startswith(".")} - parts
    reached, new = {"api"}, {arrow.split(".")[0] for arrow in arrows - parts}
    while new:
        reached |= new
        new = {arrow.split(".")[0] for room in new for arrow in ARROWS[room]} - reached
    assert set(revisions.ROOMS) == reached - {"data"}  # the bundled capture is input, not code


def test_what_changes_meanwhile_is_not_kept(
    opened: Callable[..., Job],
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank_trace = RankTrace(Trace(capture), 0, "")

    def edited() -> int:
        file = capture / "gpu_op.parquet"
        file.write_bytes(file.read_bytes())
        return 1

    kept = Answers(JobRevision([rank_trace], []), Cache(tmp_path / "cache"), again=False)
    kept.find("question", int, edited)
    assert not files(tmp_path)
    monkeypatch.setattr(code_digest, "__wrapped__", lambda: "edited while it was computed")
    opened().diagnose()
    assert not files(tmp_path)
