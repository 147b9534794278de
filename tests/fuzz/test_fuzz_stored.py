"""What Stepscope stored itself, damaged: the same answer, or the damage is said, in one line.

Every case goes through the command line and is compared with the answer of the whole capture. The
cases are seeded, so every run tries the same ones; STEPSCOPE_FUZZ_ROUNDS=50 tries more, and
STEPSCOPE_FUZZ_FIRST=1000 others.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope, entries, is_one_line, left_over
from tests.support.captures import DATA, unpack
from tests.support.raw import write_raw

from stepscope.importers.registry import convert

ROUNDS = int(os.environ.get("STEPSCOPE_FUZZ_ROUNDS", "1"))
CASES = 4 * ROUNDS
FIRST = int(os.environ.get("STEPSCOPE_FUZZ_FIRST", "0"))
TABLES = {
    "gpu_op": "start_ns, end_ns, correlation_id, name",
    "api_call": "start_ns, end_ns, name, thread_id",
    "range": "start_ns, end_ns, name",
}
SUMS = " UNION ALL ".join(
    f"SELECT '{table}', count(*), bit_xor(hash({columns})) FROM {table}"
    for table, columns in TABLES.items()
)
RAW_TABLES = ("gpu_op", "api_call", "range", "metric_sample", "thread_state", "cpu_sample",
              "stack_frame", "thread")  # fmt: skip
METADATA = {"damaged_block", "damaged_file", "torn_end"}


def harm(folder: Path, other: Path, choose: random.Random) -> str:
    """Damage something in a folder; tells what."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "lock")
    sizes = [path.stat().st_size for path in files]
    path = choose.choices(files, sizes if choose.random() < 0.5 else None)[0]
    data = bytearray(path.read_bytes())
    at = choose.randrange(len(data))
    kind = choose.choice(["flip", "flip", "flip", "flips", "zero", "cut", "grow", "gone", "swap"])
    match kind:
        case "flip" | "flips":
            for _ in range(1 if kind == "flip" else choose.randrange(2, 50)):
                data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        case "zero":
            size = choose.choice([1, 8, 64, 4096])
            data[at : at + size] = bytes(len(data[at : at + size]))
        case "cut":
            del data[at:]
        case "grow":
            data[at:at] = choose.randbytes(choose.choice([1, 100]))
        case "swap":
            twin = choose.choice([p for p in (other / path.name, *files) if p.is_file()])
            data = bytearray(twin.read_bytes())
    path.unlink()
    if kind != "gone":
        path.write_bytes(data)
    return f"{kind} {path.name}"


def cases(name: str, count: int = CASES) -> Iterator[tuple[str, random.Random]]:
    for case in range(FIRST, FIRST + count):
        yield f"{name} {case}", random.Random(f"{name} {case}")


@dataclass
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    def is_refusal(self) -> bool:
        """Whether it refused, as it should: in one line, with nothing that looks like an answer."""
        if self.code != 2:
            return False
        is_one_line(self.err)
        assert self.out == ""
        return True


def ask(stepscope: Stepscope, *arguments: str | Path) -> Answer:
    done = stepscope.ends(*arguments)
    assert "Traceback" not in done.stderr
    return Answer(done.returncode, done.stdout, done.stderr)


def trying(name: str, body: Callable[[random.Random], str], count: int = CASES) -> list[str]:
    """Try the cases; returns what each did."""
    found = []
    for seed, choose in cases(name, count):
        try:
            found.append(body(choose))
        except BaseException as error:
            error.add_note(f"seed {seed!r}")
            raise
    return found


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two small captures of another tool."""
    folder = tmp_path_factory.mktemp("sources")
    return [
        unpack(DATA / "nsys" / "cnn_small.sqlite.xz", folder),
        DATA / "kineto" / "cnn_small.json.gz",
    ]


@pytest.fixture(scope="module")
def own(sources: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two captures that were stored as tables."""
    folder = tmp_path_factory.mktemp("own")
    made = [folder / f"{number}.stepscope" for number in range(len(sources))]
    for source, target in zip(sources, made, strict=True):
        convert(source, target)
    return made


def copied(folder: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    return target


def warning_of(answer: Answer) -> str:
    """The line that warns of damage; notes on problems stand before it."""
    return is_one_line(answer.err.splitlines(keepends=True)[-1])


def without_problems(document: str) -> Any:
    """An answer without what it says of the capture's state."""
    known = json.loads(document)
    if isinstance(known, dict):
        known.pop("problems", None)
    return known


def own_capture(
    command: tuple[str, ...], own: list[Path], tmp_path: Path, cases_: int
) -> list[str]:
    stepscope = Stepscope(tmp_path / "cache")
    folder = copied(own[0], tmp_path / "mine.stepscope")
    name, *more = command
    whole = ask(stepscope, name, folder, *more)
    assert whole.code == 0

    def body(choose: random.Random) -> str:
        what = harm(copied(own[0], folder), own[1], choose)
        found = ask(stepscope, name, folder, *more)
        if found.is_refusal():
            return "refused"
        assert found.code == 0, what
        assert without_problems(found.out) == without_problems(whole.out), what
        if found.err != whole.err:
            assert "is damaged" in warning_of(found), what
            return "warned"
        assert found.out == whole.out, what
        return "same"

    return trying(" ".join(command[:1]), body, cases_)


def test_an_own_capture_that_is_asked(own: list[Path], tmp_path: Path) -> None:
    """What the query needs is refused, what it does not need is warned of."""
    found = own_capture(("query", SUMS, "--format", "json"), own, tmp_path, 2 * CASES)
    assert {"refused", "warned"} <= set(found)


def test_an_own_capture_that_is_diagnosed(own: list[Path], tmp_path: Path) -> None:
    found = own_capture(("diagnose", "--format", "json"), own, tmp_path, CASES // 3)
    assert "refused" in found


def test_the_warning_says_what_can_still_be_asked(own: list[Path], tmp_path: Path) -> None:
    stepscope = Stepscope(tmp_path / "cache")
    folder = copied(own[0], tmp_path / "mine.stepscope")
    table = folder / "sync.parquet"
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    found = ask(stepscope, "query", folder, "SELECT count(*) FROM gpu_op")
    assert found.code == 0
    line = warning_of(found)
    assert "sync.parquet is damaged (its content does not match its checksum)" in line
    assert "can still be asked" in line
    refused = stepscope.refuses("query", folder, "SELECT count(*) FROM sync")
    assert "sync.parquet is damaged" in refused
    assert "can still be asked (api_call" in refused
    problems = stepscope.json("info", folder)["traces"][0]["meta"]["problems"]
    assert [p["scope"] for p in problems if p["id"] == "damaged_table"] == [["sync"]]


def test_a_capture_without_checksums_is_read_and_says_so(own: list[Path], tmp_path: Path) -> None:
    stepscope = Stepscope(tmp_path / "cache")
    whole = stepscope.json("query", own[0], SUMS)
    folder = copied(own[0], tmp_path / "old.stepscope")
    meta = json.loads((folder / "meta.json").read_bytes())
    del meta["files"], meta["seal"]
    (folder / "meta.json").write_text(json.dumps(meta))
    assert stepscope.json("query", folder, SUMS) == whole
    problems = stepscope.json("info", folder)["traces"][0]["meta"]["problems"]
    assert "no_checksums" in {problem["id"] for problem in problems}


def test_a_cache_entry_is_made_anew_without_a_word(sources: list[Path], tmp_path: Path) -> None:
    stepscope = Stepscope(tmp_path / "cache")
    command = ("query", sources[0], SUMS, "--format", "json")
    whole = ask(stepscope, *command)
    ask(stepscope, "info", sources[1])
    first, second = entries(stepscope.cache)
    entry, other = (first, second) if (first / "sync.parquet").exists() else (second, first)
    good = copied(entry, tmp_path / "good")

    def body(choose: random.Random) -> str:
        what = harm(copied(good, entry), other, choose)
        found = ask(stepscope, *command)
        assert (found.code, found.out, found.err) == (0, whole.out, whole.err), what
        assert {first.name, second.name} == set(left_over(stepscope.cache)), what
        return "same"

    trying("cache", body)


def stored_report(stepscope: Stepscope, capture: Path) -> bytes:
    return stepscope("diagnose", capture, "--format", "json").stdout.encode()


FIGURES = ("time_ns_per_step", "share_of_step", "predicted_step_ns", "prediction_low_ns",
           "prediction_high_ns", "cause", "evidence")  # fmt: skip


def figures(report: bytes) -> Any:
    """What ``verify`` vouches for."""
    known = json.loads(report)
    found = [{name: finding[name] for name in FIGURES} for finding in known["findings"]]
    for finding in found:
        finding["evidence"] = [(e["figure"], e["value"]) for e in finding["evidence"]]
    return [found, known["accounting"], known["step_ns"]]


def test_a_stored_diagnosis(own: list[Path], tmp_path: Path) -> None:
    stepscope = Stepscope(tmp_path / "cache")
    whole = stored_report(stepscope, own[0])
    path = tmp_path / "report.json"

    def body(choose: random.Random) -> str:
        data = bytearray(whole)
        at = choose.randrange(len(data))
        match choose.choice(["flip", "flip", "digit", "digit", "cut", "zero"]):
            case "flip":
                data[at] ^= 1 << choose.randrange(8)
            case "digit":
                places = [place for place, byte in enumerate(data) if chr(byte).isdigit()]
                data[choose.choice(places)] = ord(choose.choice("0123456789"))
            case "cut":
                del data[at:]
            case "zero":
                data[at : at + 8] = bytes(len(data[at : at + 8]))
        path.write_bytes(data)
        found = ask(stepscope, "verify", path, own[0])
        if found.is_refusal():
            return "refused"
        assert found.code in (0, 1)
        if found.code == 0:
            assert figures(bytes(data)) == figures(whole)
        return ("verified", "differs")[found.code]

    trying("report", body, CASES // 2)


def test_a_raw_capture(tmp_path: Path) -> None:
    stepscope = Stepscope(tmp_path / "cache")
    good, other = write_raw(tmp_path / "good"), write_raw(tmp_path / "other", 300_000)
    folder = tmp_path / "rank0"
    sums = " UNION ALL ".join(
        f"SELECT '{table}', count(*), bit_xor(hash({table})) FROM {table}" for table in RAW_TABLES
    )

    def asked() -> tuple[Answer, set[str]]:
        found = ask(stepscope, "query", folder, sums, "--format", "json")
        if found.is_refusal():
            return found, METADATA
        (reply,) = stepscope.json("info", folder)["traces"]
        return found, {problem["id"] for problem in reply["meta"]["problems"]}

    copied(good, folder)
    whole, problems = asked()
    assert whole.code == 0, whole.err
    assert not problems & METADATA
    assert '"count_star()": 0' not in whole.out

    def body(choose: random.Random) -> str:
        what = harm(copied(good, folder), other, choose)
        found, problems = asked()
        assert found.code in (0, 2), what
        assert found.out == whole.out or problems & METADATA, what
        return "refused" if found.code else "same" if found.out == whole.out else "said"

    assert "said" in trying("raw", body)
