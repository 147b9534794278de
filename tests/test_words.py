"""The field's words: private ones that were here before do not come back."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parent.parent

NAMES = {
    "lane": "gpu, GpuTimeline",
    "lanes": "gpus",
    "Lane": "GpuTimeline",
    "Member": "RankTrace",
    "says": "message",
    "look_alikes": "differential",
    "remark": "warning",
    "remarks": "warnings",
    "because": "root_cause, reasons",
    "silence": "untraced_cpu",
    "silences": "untraced_cpu",
    "turnaround": "kernel_gap",
    "turnaround_ns": "kernel_gap_ns",
    "fills": "memsets",
    "multiprocessors": "sms",
    "lexicon": "string_table",
    "Lexicon": "StringTable",
    "bear": "contain",
    "mend": "repair",
    "dull": "query_only",
    "read_things": "read_processes_threads_devices",
    "owned": "attributed",
    "owners": "attributed",
    "unsure_ns": "uncertain_ns",
    "doubt_ns": "overhead_ns",
    "credit_ns": "max_gain_ns",
    "odd_steps": "outlier_steps",
    "absent": "missing",
    "Absent": "MissingTable",
    "attained": "achieved",
    "Beside": "Sidecar",
    "Against": "ReportDiff",
    "said": "what was said, by its name",
    "told": "what was told, by its name",
    "_told": "what was told, by its name",
    "_said": "what was said, by its name",
    "told_by": "marked_by",
    "doubt": "overhead, uncertain",
    "unsure": "uncertain",
    "because_of": "caused_by",
    "_because": "_reason",
    "shelf": "cache",
    "shelves": "cache",
    "desk": "handler",
    "credit": "max_gain",
    "reckon": "compute",
    "attains": "achieves",
    "anew": "again",
}
"""Identifiers that were private names, and what engineers of this field call the thing."""

PROSE = {
    r"\blanes?\b": "GPU timeline",
    r"\blook-alikes?\b": "differential",
    r"\bmultiprocessors?\b": "SM",
    r"\bgeneral cores\b": "CUDA cores",
    r"\battain\w*": "achieve",
    r"\breckon\w*": "use, compute",
    r"\banew\b": "again",
    r"\bodd steps?\b": "outlier step",
    r"\bmatrix products?\b": "GEMM",
    r"\bdata sheets?\b": "datasheet",
    r"\bkernel famil(y|ies)\b": "kernel category",
    r"\blexicon\b": "string table",
    r"\bglobal lock\b": "GIL",
    r"\bturnaround gaps?\b": "kernel-to-kernel gap",
    r"\bdevice's own turnaround\b": "kernel-to-kernel gap",
    r"\bhost's lead\b": "run-ahead",
    r"\bstretch of silence\b": "untraced CPU time",
    r"\b(fp|tf|bf)\d+ products\b": "GEMMs",
    r"\bmended\b": "repaired",
}
"""Words in docstrings, messages and documents, as regular expressions."""

ELSEWHERE = r"""
    \b[lL]anes?\b | \w+Says\b | \b(g_)?dull\w* | \w*Dull\w* | \b(told|said)_ | \banew\b
    | \breckon\w* | \battain\w* | \bmultiprocessors?\b | \blexicon\b
"""
"""The same in the page's TypeScript and the collector's C++, whose comments count as well."""

ALLOWED = "old name: new name"
"""A comment on a line that reads what earlier versions wrote, or names another's term."""


LITERAL = re.compile(
    r"""(\bf|\brf|\bfr)? (?: "{3} (?: \\. | . )*? "{3} | '{3} (?: \\. | . )*? '{3}
    | " (?: \\. | [^"\\\n] )* " | ' (?: \\. | [^'\\\n] )* ' ) | [#] [^\n]*""",
    re.DOTALL | re.VERBOSE,
)
"""A text or a comment of Python; a group has what makes it an f-string, which holds code."""
NAME = re.compile(rf"\b(?:{'|'.join(NAMES)})\b")
IN_PROSE = re.compile("|".join(PROSE))
"""For texts in lower case: to ignore case takes far longer, and most texts have none of this."""


def python_files() -> list[Path]:
    return sorted(f for room in ("src", "tools") for f in (ROOT / room).rglob("*.py"))


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def old_words(text: str) -> list[str]:
    """The private words of a text of Python: line, word, and what to write."""
    lines = text.splitlines()
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if any(ALLOWED in line for line in lines[token.start[0] - 1 : token.end[0]]):
            continue
        if token.type == tokenize.NAME and token.string in NAMES:
            found.append(f"{token.start[0]}: {token.string} -> {NAMES[token.string]}")
        elif token.type in (tokenize.STRING, tokenize.COMMENT):
            found += [f"{token.start[0]}: {word}" for word in old_prose(token.string)]
    return found


def suspect(text: str) -> bool:
    """Whether a text of Python may have private words; to take every text apart takes seconds."""
    code = LITERAL.sub(lambda match: match[0] if match[1] else " ", text)
    return bool(IN_PROSE.search(text.lower()) or NAME.search(code))


def old_prose(text: str) -> list[str]:
    """The private words of a text for people, and what to write."""
    if not IN_PROSE.search(text.lower()):
        return []
    return [
        f"{match[0]} -> {new}"
        for old, new in PROSE.items()
        for match in re.finditer(old, text, re.IGNORECASE)
    ]


def test_code_uses_the_words_of_the_field() -> None:
    found = {
        str(file.relative_to(ROOT)): words
        for file in python_files()
        if suspect(text := file.read_text()) and (words := old_words(text))
    }
    assert not found


def test_page_and_collector_use_the_words_of_the_field() -> None:
    found = {
        f"{file.relative_to(ROOT)}:{number}": match[0]
        for room in ("server/ui/src", "server/ui/tests", "capture/collector/src", "native/src")
        for file in sorted((ROOT / "src/stepscope" / room).rglob("*.*"))
        if file.suffix in (".ts", ".css", ".cpp", ".h")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if (match := re.search(ELSEWHERE, line, re.VERBOSE))
    }
    assert not found


def test_documents_use_the_words_of_the_field() -> None:
    found = {
        str(file.relative_to(ROOT)): words
        for file in documents()
        if (words := old_prose(file.read_text()))
    }
    assert not found


def test_old_words_are_found() -> None:
    assert old_words("lane = 1  # the lane\n") == [
        "1: lane -> gpu, GpuTimeline",
        "1: lane -> GPU timeline",
    ]
    assert not old_words("known['says']\nlane = 1  # old name: new name\n")
    assert old_prose("Reckon with it") == ["Reckon -> use, compute"]


def test_files_with_old_words_are_suspect() -> None:
    assert [old for old in PROSE if old != old.lower()] == []  # they look at lower case
    for text in (
        "'a'; says = 'b'",
        "it.says  # it's",
        r'"\"\\"; says',
        "# Odd steps",
        "f('''\n')'''+Lane)",
    ):
        assert old_words(text)
        assert suspect(text)
    for text in ('"""It says."""', "'it\\' says' # said", "r'''it's\nsays''' + ''", "sayings"):
        assert not old_words(text)
        assert not suspect(text)
