"""The documentation is current, complete and true: what it shows runs, what it names exists."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from tests.support.captures import DATA, unpack

from stepscope.api import Job
from stepscope.cli.main import cli
from stepscope.cli.registry import commands as all_commands
from stepscope.derived import derived_tables
from stepscope.diagnosis import predictions as prediction_module
from stepscope.diagnosis.cause import causes
from stepscope.diagnosis.result import Diagnosis
from stepscope.gaps import idle as gaps
from stepscope.gaps import untraced_cpu as untraced_cpu_
from stepscope.importers.registry import importers
from stepscope.trace.problems import DECLARED
from stepscope.trace.schema import TABLES
from tools.docs.__main__ import main, pages_by_hand, stale_files
from tools.docs.consoles import commands_in, executed
from tools.docs.markdown import attributes, prose, table
from tools.docs.reference import PAGES
from tools.docs.snippets import demo_job, filled

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
PAGES_BY_HAND = pages_by_hand(ROOT)
EVERY_PAGE = [*PAGES_BY_HAND, *sorted(REFERENCE.glob("*.md"))]
CAPTURES = DATA / "nsys"
KINETO = Path(__file__).parent / "importers" / "kineto_data" / "with_stack.json.zst"


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    language: str
    text: str


def blocks_in(page: Path) -> Iterator[Block]:
    found = re.finditer(
        r"^```([^\n]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    for match in found:
        yield Block(page, match[1], match[2])


BLOCKS = [block for page in PAGES_BY_HAND for block in blocks_in(page)]


# --- the generated pages -------------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_generated_is_current() -> None:
    stale = [name_of(path) for path, _ in stale_files(ROOT)]
    assert not stale, "run python3 dev.py docs"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path / "README.md")
    main(["--root", str(tmp_path)])
    return tmp_path


@pytest.mark.slow  # beside the test above: a worker generates everything once
def test_check_names_every_stale_file_and_writing_repairs_it(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / "docs/reference/causes.md").unlink()
    (copy / "docs/reference/old.md").write_text("of a page that is gone")
    readme = copy / "README.md"
    readme.write_text(readme.read_text().replace("input_starvation ", "input_stagnation "))
    image = copy / "docs/images/demo.svg"
    image.write_text(image.read_text().replace("GPU", "CPU"))
    capsys.readouterr()
    assert main(["--check", "--root", str(copy)]) == 1
    stale = {line.removeprefix("stale: ") for line in capsys.readouterr().out.splitlines()}
    expected = {"docs/reference/causes.md", "docs/reference/old.md", "README.md"}
    assert stale == expected | {"docs/images/demo.svg"}
    assert main(["--root", str(copy)]) == 0
    assert main(["--check", "--root", str(copy)]) == 0
    assert not (copy / "docs/reference/old.md").exists()


def test_a_folder_that_is_no_repository_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--root", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_output_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="no end"):
        filled("<!-- output: demo -->\n")


def test_a_session_is_run_and_its_output_put_in_place() -> None:
    session = "$ stepscope demo --list | head -1\nold\n$ stepscope info \\\n  none\n"
    page = f"a\n```console\n{session}```\nb\n"
    made = executed(page)
    assert executed(made) == made
    lines = made.splitlines()
    assert lines[2] == "$ stepscope demo --list | head -1"
    assert lines[3].startswith("starved.sqlite ")
    assert lines[4:6] == ["$ stepscope info \\", "  none"]
    assert lines[6] == "stepscope: none does not exist; check the path"
    assert lines[7:] == ["exit code 2", "```", "b"]
    assert commands_in('$ a "b\nc"\noutput\n$ d\n') == ('a "b\nc"', "d")


def test_markdown_helpers() -> None:
    def documented() -> None:
        """Say it.

        Attributes:
            a: first,
                over two lines.
            b: ``second`` of :class:`~x.Y`.

        Raises:
            c: not an attribute.
        """

    assert attributes(documented) == {
        "a": "first, over two lines.",
        "b": "``second`` of :class:`~x.Y`.",
    }
    assert prose("``second`` of :class:`~x.Y`\n<b>") == "`second` of `Y` &lt;b>"
    assert table(("a",), [("x|y\nz",)]) == "| a |\n| --- |\n| x\\|y z |\n"


def heading(page: str, title: str, level: int = 2) -> bool:
    return f"\n{'#' * level} {title}\n" in text_of(page)


def test_every_command_cause_table_problem_and_importer_has_its_section() -> None:
    assert [n for n in all_commands() if not heading("commands.md", n)] == []
    assert [n for n in causes() if not heading("causes.md", n)] == []
    assert [
        n for n in (*TABLES, *derived_tables(), "prediction") if not heading("tables.md", n, 3)
    ] == []
    assert [n for n in DECLARED if not heading("problems.md", n)] == []
    assert [i.name for i in importers() if not heading("importers.md", i.name)] == []


def test_every_column_option_charge_and_evidence_appears() -> None:
    columns = [c for derived in derived_tables().values() for c in derived.columns]
    columns += prediction_module.COLUMNS
    columns += [column.name for spec in TABLES.values() for column in spec.columns]
    assert [c for c in columns if f"| `{c}` |" not in text_of("tables.md")] == []
    options = {
        opt
        for command in commands().values()
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for opt in parameter.opts
    }
    assert [o for o in options if f"`{o}`" not in text_of("commands.md")] == []
    idle = text_of("idle-time.md")
    assert [c for c in gaps.CAUSES if f"`{c}`" not in idle] == []
    assert [e for e in untraced_cpu_.EVIDENCE if e not in idle] == []


def test_every_cause_says_all_that_it_should() -> None:
    for cause in causes().values():
        section = text_of("causes.md").split(f"\n## {cause.id}\n")[1].split("\n## ")[0]
        for part in (cause.title, cause.definition, cause.prediction, cause.reference):
            assert prose(part) in section
        for label in ("Detected by", "Differential", "Reported from"):
            assert re.search(rf"^- {label}: \S", section, re.MULTILINE), f"{cause.id}: {label}"


def test_the_schema_fits_what_is_printed() -> None:
    schema = json.loads(text_of("diagnosis.schema.json"))
    with demo_job() as job:
        printed = json.loads(msgspec.json.encode(job.diagnose()))
    fits(printed, schema, schema["$defs"])
    assert schema["$ref"] == f"#/$defs/{Diagnosis.__name__}"


def fits(value: Any, wanted: dict[str, Any], defs: dict[str, Any]) -> None:
    """Check a value against the few words of JSON Schema that the contract uses."""
    if "$ref" in wanted:
        wanted = defs[wanted["$ref"].rpartition("/")[2]]
    if "anyOf" in wanted:
        for choice in wanted["anyOf"]:
            try:
                return fits(value, choice, defs)
            except AssertionError:
                continue
        raise AssertionError(f"{value!r} fits none of {wanted['anyOf']}")
    if "enum" in wanted:
        assert value in wanted["enum"]
        return None
    python = {"object": dict, "array": list, "string": str, "integer": int, "number": int | float,
              "boolean": bool}  # fmt: skip
    kind = wanted["type"]
    assert value is None if kind == "null" else isinstance(value, python[kind])
    if kind == "object" and "properties" in wanted:
        assert set(wanted["required"]) <= value.keys() <= wanted["properties"].keys()
        for key, item in value.items():
            fits(item, wanted["properties"][key], defs)
    elif kind == "array" and isinstance(wanted.get("items"), dict):
        for item in value:
            fits(item, wanted["items"], defs)
    return None


# --- links and names -----------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", EVERY_PAGE, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        assert "://" not in target, f"{target} is not relative"
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.is_file(), f"{name_of(page)}: {target}"
        assert there.is_relative_to(ROOT)
        assert not anchor or anchor in anchors(there), f"{name_of(page)}: {target}"


def test_every_page_is_reached_from_the_index() -> None:
    linked = re.findall(r"\]\(([^)#\s]+)", (ROOT / "docs/index.md").read_text(encoding="utf-8"))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in EVERY_PAGE[1:]}
    assert pages - {"index.md"} <= set(linked)
    assert set(PAGES) <= {Path(link).name for link in linked}


@pytest.mark.parametrize(
    "file", [*EVERY_PAGE, REFERENCE / "diagnosis.schema.json", ROOT / "docs/images/demo.svg"],
    ids=name_of,
)  # fmt: skip
def test_nothing_of_this_machine_or_of_a_registry(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".svg":  # the name of the format, which nothing fetches
        text = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    for placeholder in (
        *("postgresql://USER@HOST/DATABASE", "s3://bucket/history"),
        *("s3://traces/run-17/", "gs://traces/run-17/", "tcp://head:8786"),
        *("stepscope://schema", "stepscope://findings/ID", "http://localhost:8000/v1"),
        *(
            "s3://traces/run-17/",
            "gs://traces/run-17/",
            "`https://`",
            "tcp://head:8786",
            "(s3://, gs://, https://)",
            "tcp://HOST:8786",
        ),
    ):
        text = text.replace(placeholder, "")
    assert "://" not in text
    assert not re.search(r"@import|@font-face|url\((?!#)", text)
    assert not re.search(r"\b(pypi|pythonhosted|conda-forge|artifactory|nexus)\b", text, re.I)
    assert not re.search(r"(?<![\w.~$])/(home|root|work|tmp|usr|opt|var|Users|mnt)/", text)
    assert str(ROOT) not in text
    host = socket.gethostname()
    assert len(host) < 6 or host not in text


def test_the_glossary_is_in_order_and_says_each_term_in_two_sentences() -> None:
    entries = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").split("\n### ")[1:]
    terms = [entry.partition("\n")[0] for entry in entries]
    assert terms == sorted(terms, key=lambda term: re.sub(r"\W", "", term.lower()))
    for entry in entries:
        term, _, text = entry.partition("\n")
        sentences = re.findall(r"[.?](?: (?=[A-Z`\[\d])|$)", text.strip(), re.MULTILINE)
        assert len(sentences) == 2, f"{term}: {len(sentences)} sentences"
        assert re.search(r"\]\((reference|guides|how-it-works)", text), f"{term}: no link"


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 120


# --- commands and SQL ----------------------------------------------------------------------------


@cache
def commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in all_commands()}
    return {name: command for name, command in found.items() if command is not None}


def shell_lines(page: Path) -> list[str]:
    """Shell commands of a page, in blocks and in the text."""
    blocks = "\n".join(
        "\n".join(commands_in(b.text)) if b.text.startswith("$ ") else b.text
        for b in blocks_in(page)
        if b.language in ("sh", "bash", "console")
    )
    text = blocks.replace("\\\n", " ")
    lines, quoted = [""], False
    for character in text:  # a quoted text may hold line ends
        quoted ^= character == '"'
        if character == "\n" and not quoted:
            lines.append("")
        else:
            lines[-1] += " " if character == "\n" else character
    body = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    lines += re.findall(r"`(stepscope [^`]+)`", body)
    return [line.removeprefix("$ ").strip() for line in lines]


OURS = [
    (page, line) for page in PAGES_BY_HAND for line in shell_lines(page) if line[:9] == "stepscope"
]


def ident(value: object) -> str | None:
    return name_of(value) if isinstance(value, Path) else None


def test_the_guides_show_commands() -> None:
    assert {shlex.split(line)[1] for _, line in OURS} == set(all_commands())


@pytest.mark.parametrize(("page", "line"), OURS, ids=ident)
def test_commands_exist_with_their_options(page: Path, line: str) -> None:
    _, name, *arguments = shlex.split(line.partition(" | ")[0], comments=True)
    assert name in commands(), f"{name_of(page)}: {line}"
    if not arguments and name != "demo":
        return  # the text speaks of the command
    # raises on a wrong option or value
    try:
        context = commands()[name].make_context(name, arguments, **cli.context_settings)
    except click.exceptions.Exit as end:  # an option that answers at once, such as --list
        if end.exit_code:
            raise
        return
    sql = context.params.get("sql")
    if sql and not re.match(r"(?i)describe", sql):
        assert re.match(r"(?i)select\b", sql)


@pytest.mark.parametrize("page", PAGES_BY_HAND, ids=name_of)
def test_commands_of_the_developer_exist(page: Path) -> None:
    known = set(re.findall(r'^    "(\w+)": \(', (ROOT / "dev.py").read_text(), re.MULTILINE))
    assert known
    for line in shell_lines(page):
        if found := re.match(r"python3 dev\.py (\w+)", line):
            assert found[1] in known


@pytest.fixture(scope="module")
def demo() -> Iterator[Job]:
    with demo_job() as job:
        yield job


@pytest.fixture(scope="module")
def with_stack() -> Job:
    return Job([KINETO])


SQL = [block for block in BLOCKS if block.language.startswith("sql")]


def test_the_query_guide_has_recipes_for_both_sources() -> None:
    assert {block.language for block in SQL} == {"sql", "sql pytorch"}


@pytest.mark.parametrize("block", SQL, ids=lambda block: " ".join(block.text.split()[:6]))
def test_recipes_run_and_give_rows(block: Block, demo: Job, with_stack: Job) -> None:
    job = with_stack if block.language == "sql pytorch" else demo
    answer = job.query(block.text)
    assert answer.num_rows > 0
    assert all(
        answer.num_rows > answer.column(name).null_count or name == "evidence"
        for name in answer.column_names
    ), "a column is empty"


def test_queries_in_commands_run(demo: Job) -> None:
    queries = [shlex.split(line, comments=True) for _, line in OURS if " query " in line]
    statements = {word for words in queries for word in words if re.match("SELECT|DESCRIBE", word)}
    assert len(statements) > 5
    for statement in statements:
        assert demo.query(statement).num_rows > 0


def test_the_accounting_recipe_shows_the_identity(demo: Job) -> None:
    (recipe,) = (block.text for block in SQL if "off_by_ns" in block.text)
    assert demo.query(recipe).column("off_by_ns").to_pylist() == [0]


# --- claims --------------------------------------------------------------------------------------


def predictions(header: str) -> list[list[str]]:
    """The rows of the table that begins with a header, a text a cell, without code marks."""
    text = (ROOT / "docs/how-it-works.md").read_text(encoding="utf-8")
    rows = text.split(header)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]


def milliseconds(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


@pytest.mark.parametrize("row", predictions("| capture | planted |"), ids=lambda row: row[0])
def test_the_table_of_predictions_is_true(row: list[str], unpacked: Callable[[str], Path]) -> None:
    capture, _, step, verdict, predicted, bounds = row
    diagnosis = Job([unpacked(capture)]).diagnose()
    gpu = diagnosis.accounting[0]
    first, last = diagnosis.trace.steady_steps
    assert diagnosis.verdict == verdict
    mean = gpu.wall_ns / (last - first + 1) / 1e6
    assert milliseconds(step) == [pytest.approx(mean, abs=0.06)]
    if not diagnosis.findings:
        assert not predicted
        assert not bounds
        return
    finding = diagnosis.findings[0]
    assert milliseconds(predicted) == [pytest.approx(finding.predicted_step_ns / 1e6, abs=0.06)]
    assert milliseconds(bounds) == [
        pytest.approx(finding.prediction_low_ns / 1e6, abs=0.06),
        pytest.approx(finding.prediction_high_ns / 1e6, abs=0.06),
    ]


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in predictions("| capture | change |")
        if (CAPTURES / f"{row[0]}.sqlite.xz").exists()
    ],
    ids=lambda row: row[0],
)
def test_the_table_of_changes_is_true(row: list[str]) -> None:
    capture, change, step, predicted, bounds, ratio, _ = row
    diagnosis = Job([unpack(CAPTURES / f"{capture}.sqlite.xz")]).diagnose()
    first, last = diagnosis.trace.steady_steps
    mean = diagnosis.accounting[0].wall_ns / (last - first + 1)
    (finding,) = (finding for finding in diagnosis.findings if finding.cause == change)
    shown = [mean, finding.predicted_step_ns, finding.prediction_low_ns, finding.prediction_high_ns]
    assert [*milliseconds(step), *milliseconds(predicted), *milliseconds(bounds)] == [
        pytest.approx(value / 1e6, abs=0.06) for value in shown
    ]
    assert float(ratio) == pytest.approx(finding.predicted_step_ns / mean, abs=0.006)
