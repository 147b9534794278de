"""``compare``, ``gate`` and ``history`` as commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.captures import DATA, unpack

from stepscope.cli.main import cli
from stepscope.compare.kernels import each_name_once
from stepscope.compare.result import KernelDifference
from stepscope.render import fitted
from stepscope.trace.errors import InputError, UsageError


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("commands")
    names = ("cnn_small", "cnn_disk")
    first, second = (unpack(DATA / "nsys" / f"{n}.sqlite.xz", folder) for n in names)
    return str(first), str(second)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


compare, gate, history = "compare", "gate", "history"


def run(command: str, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, [command, *arguments], standalone_mode=False)
    if done.exception:
        raise done.exception
    return int(done.return_value or 0), done.output


def test_every_format_of_a_comparison(captures: tuple[str, str], tmp_path: Path) -> None:
    code, text = run(compare, *captures)
    assert code == 0
    assert text.startswith("Slower: the step is 15.4 times as long")
    assert "input_starvation" in text
    assert run(compare, *captures, "-f", "markdown")[1].startswith("### Slower")
    document = json.loads(run(compare, *captures, "-f", "json")[1])
    assert document["schema"] == "stepscope.compare/3"
    assert sum(p["difference_ns"] for p in document["parts"]) == document["step"]["difference_ns"]
    assert document["runs"] == []
    page = tmp_path / "c.html"
    assert run(compare, *captures, "-f", "html", "-o", str(page))[1] == ""
    assert page.read_text().lower().startswith("<!doctype html>")


def test_a_capture_against_itself_and_a_trend(captures: tuple[str, str]) -> None:
    assert run(compare, captures[0], captures[0])[1].startswith("No difference")
    document = json.loads(run(compare, *captures, captures[0], "-f", "json")[1])
    assert document["schema"] == "stepscope.trend/2"
    assert [row["since_previous"] for row in document["rows"]] == [
        "no_difference", "slower", "faster",
    ]  # fmt: skip
    repeated = json.loads(
        run(compare, *captures, "--repeat-before", captures[0], "--repeat-before", captures[0],
            "--repeat-after", captures[1], "-f", "json")[1]
    )  # fmt: skip
    assert repeated["step"]["run_noise_measured"]
    assert len(repeated["before"]) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a"],
        ["a", "b", "--before", "c"],
        ["--before", "c"],
        ["a", "b", "c", "-f", "html"],
        ["a", "b", "--by", "tree", "--run-noise", "0.1"],
        ["a", "b", "--by", "name", "--repeat-after", "c"],
    ],
)
def test_a_wrong_comparison_is_one_sentence(arguments: list[str]) -> None:
    with pytest.raises(UsageError):
        run(compare, *arguments)


def test_a_gate_writes_what_it_is_asked_for(captures: tuple[str, str], tmp_path: Path) -> None:
    good, bad = captures
    code, text = run(gate, good, "--save-baseline", "base.json")
    assert code == 0
    assert text.startswith("Saved 1 capture to base.json; the step takes 10.0")
    assert text.endswith(" No checks were requested.\n")
    assert run(gate, good, "--baseline", "base.json")[0] == 0
    code, text = run(
        gate, bad, "--baseline", "base.json", "--budget", "step_ms=20", "--junit", "j.xml",
        "--gitlab", "g.json", "--github", "--summary", "s.md",
    )  # fmt: skip
    assert code == 1
    assert text.startswith("Failed: 2 of 2 checks fail")
    assert "moved most (per step): input_starvation" in text
    assert text.count("::error ") == 2
    assert "<failure" in (tmp_path / "j.xml").read_text()
    assert len(json.loads((tmp_path / "g.json").read_text())) == 2
    run(gate, bad, "--budget", "step_ms=20", "--summary", "s.md")
    assert (tmp_path / "s.md").read_text().count("### Failed") == 2  # appended
    document = json.loads(run(gate, good, "--budget", "step_ms=20", "-f", "json")[1])
    assert document["passed"] is True
    with pytest.raises(UsageError, match="nothing to check"):
        run(gate, good)
    with pytest.raises(InputError):
        run(gate, good, "--config", "none.toml")


def test_a_gate_says_what_it_saved(captures: tuple[str, str]) -> None:
    run(gate, captures[0], "--save-baseline", "base.json")
    both = (captures[0], "--save-baseline", "base.json", "--budget", "step_ms=1000")
    text = run(gate, *both)[1]
    assert text.startswith("Passed: 1 of 1 checks")
    assert "- Saved 1 capture to base.json, which now holds 2\n" in text
    saved = json.loads(run(gate, *both, "-f", "json")[1])["saved"]
    assert saved == {"path": "base.json", "added": 1, "runs": 3}
    assert json.loads(run(gate, captures[0], "--budget", "step_ms=9", "-f", "json")[1])[
        "saved"
    ] is None  # fmt: skip


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (
            gate,
            (
                "{0}",
                "--baseline",
                "{0}",
                "--budget",
                "peak_memory_bytes=1",
                "--budget",
                "step_ms=1",
            ),
        ),
        (compare, ("{0}", "{1}")),
        (compare, ("{0}", "{1}", "{0}")),
    ],
)
def test_no_command_advises_options_that_it_lacks(
    command: str, arguments: tuple[str, ...], captures: tuple[str, str]
) -> None:
    text = run(command, *(word.format(*captures) for word in arguments))[1]
    offered = OPTION.findall(run(command, "--help")[1])
    advised = set(OPTION.findall(re.sub(r"`?(nsys|ncu|stepscope run|torchrun) [^;)]*", "", text)))
    assert advised, "the text names how to measure the noise between runs"
    assert advised <= set(offered)


def test_a_history_is_kept(
    captures: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = run(history, "add", *captures, "--name", "cnn", "--revision", "abc")
    assert code == 0
    assert text.splitlines()[0].startswith("entry 1: cnn, step 10.0")
    assert "abc" in run(history, "list")[1]
    assert len(json.loads(run(history, "list", "-f", "json")[1])["entries"]) == 2
    assert run(history, "list", "-f", "csv")[1].count("\n") == 3
    run(history, "list", "-f", "parquet", "-o", "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size > 0
    plotted = " ".join(run(history, "plot")[1].split())
    assert plotted.startswith(
        "step_ms of cnn, 2 runs, too few to find a change of level: that takes about 12 runs, at "
        "least 3 on each side of it the last run, entry 2, is +1"
    )
    assert "% against the median of the 1 run before it (15" in plotted
    assert json.loads(run(history, "plot", "-f", "json")[1])["marks"] == []
    assert run(history, "plot", "-f", "html")[1].lower().startswith("<!doctype html>")
    assert "No change" in run(history, "bisect")[1]
    assert run(history, "keep", "--latest", "1")[1] == "1 run removed\n"
    assert run(history, "copy", "--to", "folder/")[1] == "1 of 1 run copied\n"
    assert "copied; 1 was there" in run(history, "copy", "--to", "folder/")[1]
    assert "cnn" in run(history, "list", "--file", "folder")[1]
    monkeypatch.setenv("STEPSCOPE_HISTORY", "folder")
    assert run(history, "plot", "--by", "added")[1].startswith("step_ms of cnn, 1 run")
    pytest.importorskip("tensorboardX", reason="needs tensorboardX, which the lock holds")
    assert run(history, "log", "--log", "tensorboard=tb")[1] == "1 run sent\n"
    run(history, "add", captures[0], "--name", "b", "--log", "tensorboard=tb")
    assert sorted(path.name for path in (tmp_path / "tb").iterdir()) == ["b", "cnn"]
    wrongs = (["add"], ["list", "x"], ["keep"], ["list", "-f", "parquet"], ["copy"], ["log"])
    for wrong in (*wrongs, ["log", "--log", "x"]):
        with pytest.raises(UsageError):
            run(history, *wrong)


def test_a_missing_history_is_one_sentence() -> None:
    with pytest.raises(InputError, match="history add"):
        run(history, "list")


def test_no_command_writes_over_what_it_reads(captures: tuple[str, str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.sqlite"
    mine.write_bytes(Path(captures[0]).read_bytes())
    before, name = mine.read_bytes(), str(mine)
    budget = ("--budget", "step_ms=1e9")
    for arguments in (
        (compare, name, captures[1], "-o", name),
        (gate, name, *budget, "--junit", name),
        (gate, name, *budget, "--summary", name),
        ("export", name, "-t", "chrome", "-o", name, "--force"),
        ("report", name, "-o", name),
        ("ui", name, "--static", name, "--force"),
        ("ui", name, "--static", str(tmp_path / "." / "mine.sqlite"), "--force"),
    ):
        with pytest.raises(UsageError, match="is read by this call"):
            run(*arguments)
        assert mine.read_bytes() == before
    run(history, "add", name, "--file", "h.sqlite")
    for format_ in ("csv", "parquet"):
        with pytest.raises(UsageError, match="is read by this call"):
            run(history, "list", "--file", "h.sqlite", "-f", format_, "-o", "h.sqlite")


def test_history_refuses_a_format_that_an_action_does_not_have(captures: tuple[str, str]) -> None:
    run(history, "add", captures[0])
    for arguments in (("keep", "--latest", "1", "-f", "csv"), ("plot", "-f", "csv"),
                      ("list", "-f", "html"), ("bisect", "-f", "html")):  # fmt: skip
        with pytest.raises(UsageError, match="has no --format"):
            run(history, *arguments)
    with pytest.raises(UsageError, match="writes no file"):
        run(history, "bisect", "-o", "x")


def test_history_refuses_what_ends_with_the_process(captures: tuple[str, str]) -> None:
    run(history, "add", captures[0])
    for arguments in (("copy", "--to", "memory://x"), ("add", captures[0], "--file", "memory://x"),
                      ("list", "--file", "simplecache::memory://x")):  # fmt: skip
        with pytest.raises(UsageError, match="memory of this process"):
            run(history, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "--latest", "3"), "history list has no --latest"),
        (("keep", "--latest", "3", "--figure", "step_ms"), "history keep has no --figure"),
        (("add", "x", "--good", "x"), "history add has no --good"),
        (("copy", "--to", "./stepscope-history.sqlite"), "itself; name another"),
        (("bisect",), "bisect needs two runs at least, and there is 1"),
        (("list", "--name", "zzz"), "no run of 'zzz' is in"),
    ],
)
def test_history_refuses_what_would_not_count(
    captures: tuple[str, str], arguments: tuple[str, ...], message: str
) -> None:
    run(history, "add", captures[0])
    with pytest.raises(UsageError, match=message):
        run(history, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "--before", "x"), "go together"),
        (("compare", "x", "--before", "x"), "not both"),
        (("compare", "x", "y", "z", "-f", "html"), "a trend, which has no --format html"),
        (("compare", "x", "y", "--run-noise", "nan"), "--run-noise is a share"),
        (("compare", "x.sqlite", "y", "-o", "x.sqlite"), "is read by this call"),
        (("gate", "x.sqlite", "--budget", "step_ms=1", "--junit", "x.sqlite"), "is read by"),
        (("gate", "x.sqlite", "--save-baseline", "x.sqlite"), "is read by this call"),
        (("gate", "x.sqlite", "--budget", "step_ms=-5"), "is never below 0"),
        (("gate", "x.sqlite"), "nothing to check"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.sqlite").write_bytes(b"no capture: reading it would say so")
    with pytest.raises(UsageError, match=message):
        run(*arguments)


def test_captures_of_other_jobs_are_not_judged_as_one(
    captures: tuple[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in range(2):
        source = DATA.parent / "ranks" / f"ddp_imbalance.rank{rank}.sqlite.xz"
        unpack(source, folder)
    with pytest.raises(UsageError, match="runs of the same job"):
        run(gate, str(folder), captures[0], "--budget", "step_ms=1e9")


def test_a_bisection_of_few_runs_says_that_they_are_few(captures: tuple[str, str]) -> None:
    for capture in captures:
        run(history, "add", capture, "--name", "x")
    output = run(history, "bisect")[1]
    told = " ".join(output.split())
    assert told.endswith("takes about 12 runs, at least 3 on each side of it, and there are 2.")
    as_json = json.loads(run(history, "bisect", "-f", "json")[1])
    assert as_json["message"] == told
    assert run(history, "keep", "--latest", "1")[1] == "1 run removed\n"


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_comparison_fits_the_terminal(
    width: int, captures: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for wanted in (captures, (*captures, captures[0])):
        with monkeypatch.context() as patch:
            patch.setattr(fitted, "terminal_width", lambda: width)
            lines = run(compare, *wanted)[1].splitlines()
        # the path of a capture is not broken, so that it can be copied
        assert max(len(line) for line in lines if captures[0][:20] not in line) <= width


def test_kernels_of_one_name_are_one_row() -> None:
    def kernel(name: str, relation: str, ns: int) -> KernelDifference:
        names = [name]
        return KernelDifference(
            relation, [] if relation == "new" else names, names, "x", None, None, 1.0, 2.0, 10,
            10 + ns, ns, 1.5, True,
        )  # fmt: skip

    given = [kernel("a", "new", 50), kernel("b", "same", 60), kernel("a", "new", 20),
             kernel("a", "same", -5)]  # fmt: skip
    found = each_name_once(given)
    assert [(k.after[0], k.relation, k.difference_ns, n) for k, n in found] == [
        ("a", "new", 70, 2), ("b", "same", 60, 1), ("a", "same", -5, 1),
    ]  # fmt: skip
    assert (found[0][0].calls_after, found[0][0].each_ratio) == (4.0, None)
    assert sum(k.difference_ns for k, _ in found) == sum(k.difference_ns for k in given)
