"""A gate's verdict for people and for the systems that run it."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape as xml
from xml.sax.saxutils import quoteattr

from stepscope.render.fitted import wrapped
from stepscope.render.markdown import escape
from stepscope.render.text import clean, milliseconds, plural
from stepscope.trace.units import signed_milliseconds

if TYPE_CHECKING:
    from stepscope.compare.gate import Check, GateResult

_WORDS = {"pass": "pass", "fail": "FAIL", "cannot_tell": "CANNOT TELL"}
_LONG = 500
_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def gate_text(g: GateResult, width: int | None = None) -> str:
    """The verdict for the terminal, broken to its width."""
    lines = wrapped(_headline(g) + ".", width)
    for c in g.checks:
        text = f"{_WORDS[c.status]:<12}{clean(c.message, _LONG)}"
        lines += wrapped(text, width, indent=2, hang=14)
    for note in _notes(g):
        lines += wrapped(f"- {clean(note, _LONG)}", width, hang=2)
    return "\n".join(lines) + "\n"


def gate_markdown(g: GateResult) -> str:
    """The verdict for a job summary."""
    lines = [f"### {escape(_headline(g))}", ""]
    if g.checks:
        lines += ["| check | verdict | |", "|---|---|---|"]
    lines += [
        f"| {escape(c.name)} | {_WORDS[c.status]} | {escape(clean(c.message, _LONG))} |"
        for c in g.checks
    ]
    notes = _notes(g)
    if notes:
        lines += ["", *(f"- {escape(clean(note, _LONG))}" for note in notes)]
    return "\n".join(lines) + "\n"


def junit(g: GateResult) -> str:
    """JUnit XML: one test case a check; what cannot be told is an error, unless it is allowed."""
    failed = sum(c.status == "fail" for c in g.checks)
    errors = sum(c.status == "cannot_tell" for c in g.checks) if not g.passed else 0
    skipped = sum(c.status == "cannot_tell" for c in g.checks) - errors
    counts = f'tests="{len(g.checks)}" failures="{failed}" errors="{errors}" skipped="{skipped}"'
    cases = "".join(_case(g, c, errors > 0) for c in g.checks)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites {counts}>\n<testsuite name="stepscope.gate" {counts}>\n{cases}'
        "</testsuite>\n</testsuites>\n"
    )


def github(g: GateResult) -> str:
    """Workflow commands of GitHub Actions: an annotation for each check that did not pass."""
    place = f"file={_property(g.rules)}," if g.rules else ""
    lines = []
    for c in g.checks:
        if c.status == "pass":
            continue
        level = "error" if c.status == "fail" else "warning"
        stated = "\n".join([clean(c.message, _LONG), *(clean(n, _LONG) for n in _notes(g)[:4])])
        title = _property(f"stepscope gate: {clean(c.name)}")
        lines.append(f"::{level} {place}title={title}::{_data(stated)}\n")
    return "".join(lines)


def gitlab(g: GateResult) -> str:
    """GitLab's code-quality report: an entry for each check that did not pass."""
    entries = []
    for c in g.checks:
        if c.status == "pass":
            continue
        causes = "; ".join(_notes(g)[:1])
        entries.append(
            {
                "description": clean(f"{c.message}. {causes}".strip(), _LONG),
                "check_name": f"stepscope.gate.{clean(c.name)}",
                "fingerprint": hashlib.sha256(f"stepscope.gate {c.name}".encode()).hexdigest(),
                "severity": "major" if c.status == "fail" else "minor",
                "location": {"path": g.rules or "stepscope.toml", "lines": {"begin": 1}},
            }
        )
    return json.dumps(entries, indent=2) + "\n"


def _headline(g: GateResult) -> str:
    step = milliseconds(g.step_ns)
    if not g.checks:
        return f"{_saved(g)}; the step takes {step}. No checks were requested"
    bad = sum(c.status == "fail" for c in g.checks)
    unknown = sum(c.status == "cannot_tell" for c in g.checks)
    if g.passed:
        judged = len(g.checks) - unknown
        stated = f"Passed: {judged} of {len(g.checks)} checks" if judged else "Nothing failed"
        unjudged = f", {unknown} cannot be told" if unknown else ""
        return f"{stated}{unjudged}; the step takes {step}"
    parts = [f"{bad} of {len(g.checks)} checks fail"] if bad else []
    parts += [f"{unknown} cannot be told"] if unknown else []
    return f"Failed: {', '.join(parts)}; the step takes {step}"


def _notes(g: GateResult) -> list[str]:
    against = any(c.name == "baseline" for c in g.checks)
    notes = []
    if g.causes and (not g.passed or against):
        if against:
            moved = ", ".join(f"{m.name} {signed_milliseconds(m.difference_ns)}" for m in g.causes)
            notes.append(f"moved most (per step): {moved}")
        else:
            most = ", ".join(f"{m.name} {milliseconds(m.difference_ns)}" for m in g.causes)
            notes.append(f"takes most of the step beside compute: {most}")
    notes += [f"kernel: {stated}" for stated in g.kernels]
    saved = [_saved(g)] if g.saved and g.checks else []  # without checks it is the headline
    return [*notes, *g.warnings, *saved]


def _saved(g: GateResult) -> str:
    """Where the captures went."""
    if g.saved is None:
        return "Nothing was saved"
    s = g.saved
    whole = "" if s.runs == s.added else f", which now holds {s.runs:,}"
    return f"Saved {plural(s.added, 'capture')} to {clean(s.path, _LONG)}{whole}"


def _case(g: GateResult, c: Check, unknown_fails: bool) -> str:
    name = quoteattr(_plain(clean(c.name)))
    stated = _plain(clean(c.message, _LONG))
    body = xml("\n".join(_plain(clean(note, _LONG)) for note in [stated, *_notes(g)]))
    inside = f"<system-out>{xml(stated)}</system-out>"
    if c.status == "fail":
        inside = f"<failure message={quoteattr(stated)}>{body}</failure>"
    elif c.status == "cannot_tell" and unknown_fails:
        inside = f"<error message={quoteattr(stated)}>{body}</error>"
    elif c.status == "cannot_tell":
        inside = f"<skipped message={quoteattr(stated)}/>"
    return f'<testcase classname="stepscope.gate" name={name}>{inside}</testcase>\n'


def _plain(text: str) -> str:
    """Text that XML 1.0 can hold."""
    return _NOT_XML.sub("\ufffd", text)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
