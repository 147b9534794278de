"""A comparison, or a trend of several runs, as plain text and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.compare.kernels import each_name_once
from stepscope.compare.work import WORK, does_other_work
from stepscope.render.fitted import ALWAYS, Column, fitted, wrapped
from stepscope.render.markdown import escape
from stepscope.render.text import clean, milliseconds
from stepscope.trace.units import signed_milliseconds as change
from stepscope.trace.units import signed_percent

if TYPE_CHECKING:
    from stepscope.compare.result import Comparison, FindingDifference, PlaceDifference
    from stepscope.compare.trend import Trend

Rows = list[tuple[str, ...]]
_ROWS = 12
_BRACKETS = "in brackets: idle time of the cause where it is too small a share to be found"
_INDENT = "  "
_SHORTEST_NAME = 24
_USUAL = 40
_WEIGHTS = {
    **{"difference": ALWAYS, "step": ALWAYS, "step ms": ALWAYS},
    **{"calls": 10, "a call": 12, "+/-": 20, "host": 25, "before": 30, "after": 31},
}
"""What is left out first of a table that finds no room: the smallest."""
_LEAST_NS = 1000  # shorter differences are not worth a line


def compare_text(c: Comparison, width: int | None = None) -> str:
    """A comparison for the terminal; as wide as it takes without a width."""
    lines = wrapped(clean(c.message, 600) + ".", width)
    for line in facts(c):
        lines += wrapped(clean(line, 300), width)
    for title, head, rows in sections(c):
        lines += ["", *wrapped(title, width), *columns(head, rows, width)]
    return "\n".join([*lines, *_notes(_remarks(c), width)]) + "\n"


def _remarks(c: Comparison) -> list[str]:
    """What stands below the tables."""
    predicted = [p.message for p in c.predictions]
    not_recorded = [one.message for one in c.not_recorded]
    return [*predicted, *not_recorded, *setup_lines(c), *c.warnings]


def _notes(notes: Sequence[str], width: int | None) -> list[str]:
    """Remarks, each once."""
    lines = [""] if notes else []
    for note in dict.fromkeys(notes):
        lines += wrapped(f"- {clean(note, 400)}", width, hang=2)
    return lines


def compare_markdown(c: Comparison) -> str:
    """A comparison for a pull request."""
    lines = [f"### {escape(c.message)}.", "", *(escape(line) + "  " for line in facts(c))]
    for number, (title, head, rows) in enumerate(sections(c)):
        table = [
            "| " + " | ".join(head) + " |",
            "|---|" + "---:|" * (len(head) - 1),
            *("| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows),
        ]
        if number:  # the budget is read first, the rest on demand
            lines += ["", f"<details><summary>{title}</summary>", "", *table, "", "</details>"]
        else:
            lines += ["", *table]
    if notes := _remarks(c):
        lines += ["", *(f"- {escape(note)}" for note in notes)]
    return "\n".join(lines) + "\n"


def trend_text(t: Trend, width: int | None = None) -> str:
    """Several runs for the terminal."""
    head, rows = trend_rows(t)
    return "\n".join([*columns(head, rows, width), *_notes(t.warnings, width)]) + "\n"


def trend_markdown(t: Trend) -> str:
    """Several runs as a Markdown table."""
    head, rows = trend_rows(t)
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows]
    lines += ["", *(f"- {escape(note)}" for note in t.warnings)]
    return "\n".join(lines) + "\n"


def trend_rows(t: Trend) -> tuple[tuple[str, ...], Rows]:
    """Head and rows of a trend."""
    head = ("run", "step", "against first", "since first", "since previous", "moved most")
    rows: Rows = [
        (
            named(row.paths),
            milliseconds(row.step_ns),
            signed_percent(row.ratio_to_first - 1),
            row.since_first.replace("_", " "),
            row.since_previous.replace("_", " "),
            f"{row.moved} ({change(row.moved_ns)})" if row.moved else "",
        )
        for row in t.rows
    ]
    return head, rows


def facts(c: Comparison) -> list[str]:
    """The figures behind the verdict, in sentences."""
    s = c.step
    spread = "measured" if s.run_noise_measured else "assumed"
    return [
        f"before: {', '.join(named(run) for run in c.before)}; "
        f"after: {', '.join(named(run) for run in c.after)}",
        f"difference {change(s.difference_ns)} (95 % from the steps: {change(s.low_ns)} to "
        f"{change(s.high_ns)}); ratio {s.ratio:.3f} (95 % with noise between runs and set-up: "
        f"{s.ratio_low:.3f} to {s.ratio_high:.3f}); steps "
        f"{'+'.join(map(str, s.before_steps))} and {'+'.join(map(str, s.after_steps))}; "
        f"standard deviation of runs of the same code {100 * s.run_noise:.1f} % ({spread})",
    ]


def setup_lines(c: Comparison) -> list[str]:
    """What differs beside the code."""
    return [
        f"{'differs and confounds' if s.weight == 'confounds' else 'differs'}: {s.name} "
        f"({clean(s.before, 60)} / {clean(s.after, 60)}): {s.message}"
        for s in c.setup
        if s.name != WORK  # the verdict says it
    ]


def sections(c: Comparison) -> list[tuple[str, tuple[str, ...], Rows]]:
    """Title, head and rows of each table that has any."""
    time = ("before", "after", "difference")
    found: list[tuple[str, tuple[str, ...], Rows]] = [
        (
            "Where the time of a step went (the differences add up to that of the step)",
            ("part", *time, "+/-"),
            [
                (p.part, milliseconds(p.before_ns), milliseconds(p.after_ns),
                 change(p.difference_ns), milliseconds(p.error_ns))
                for p in c.parts
                if p.difference_ns or p.before_ns
            ],
        ),
        (
            "Findings" + (f" ({_BRACKETS})" if any(map(_in_brackets, c.findings)) else ""),
            ("cause", "status", *time),
            [
                (f.cause, f.fate, _time(f.before_ns, f.start_ns, f.idle_before_ns),
                 _time(f.after_ns, f.end_ns, f.idle_after_ns), change(f.end_ns - f.start_ns))
                for f in c.findings
            ],
        ),
    ]  # fmt: skip
    if does_other_work(c.setup):
        return found[:1]  # nothing of one program is another program's
    changed = each_name_once([k for k in c.kernels if k.changed])
    found.append(
        (
            f"Kernels that changed (time per step; unchanged ones vary by up to "
            f"{100 * c.kernel_floor:.1f} %)"
            + (f"; {len(changed) - _ROWS:,} more changed less" if changed[_ROWS:] else ""),
            ("kernel", "relation", "calls", *time, "a call"),
            [
                (kernel_name(k.before, k.after) + (f" ({n} variants)" if n > 1 else ""), k.relation,
                 f"{k.calls_before:g} / {k.calls_after:g}", milliseconds(k.before_ns),
                 milliseconds(k.after_ns), change(k.difference_ns),
                 signed_percent(k.each_ratio - 1) if k.each_ratio else "")
                for k, n in changed[:_ROWS]
            ],
        )
    )  # fmt: skip
    for title, places, inner in (
        ("Ranges", c.ranges, ", nested ranges included"),
        ("Operators", c.operators, ""),
    ):
        about = f"{title} (time per step: on the host, and of the device work they launch{inner})"
        found.append((about, ("name", "host", *time), _places(places)[:_ROWS]))
    found.append(
        (
            "Communication (time per step and rank)",
            ("kind", "ranks", "calls", "waiting", "transfer", "not covered"),
            [
                (x.kind, str(x.group_size), f"{x.count_before:g} / {x.count_after:g}",
                 _both(x.waiting_before_ns, x.waiting_after_ns),
                 _both(x.transfer_before_ns, x.transfer_after_ns),
                 _both(x.exposed_before_ns, x.exposed_after_ns))
                for x in c.collectives[:_ROWS]
            ],
        )
    )  # fmt: skip
    return [section for section in found if section[2]]


def _places(places: Sequence[PlaceDifference]) -> Rows:
    """Ranges or operators that both runs recorded and that differ."""
    rows: Rows = []
    for p in places:
        host = _less(p.host_before_ns, p.host_after_ns)
        device = _less(p.device_before_ns, p.device_after_ns)
        if max(abs(host or 0), abs(device or 0)) >= _LEAST_NS:
            cells = [_shown(p.device_before_ns), _shown(p.device_after_ns)]
            signed = ["" if ns is None else change(ns) for ns in (host, device)]
            rows.append((p.name, signed[0], *cells, signed[1]))
    return rows


def _less(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _shown(ns: int | None) -> str:
    return "" if ns is None else milliseconds(ns)


def kernel_name(before: Sequence[str], after: Sequence[str]) -> str:
    """Short names of matched kernels."""
    sides = [" + ".join(side[:2]) + (f" + {len(side) - 2} more" if side[2:] else "")
             for side in (before, after)]  # fmt: skip
    if sides[0] == sides[1] or not sides[1]:
        return sides[0]
    return f"{sides[0]} -> {sides[1]}" if sides[0] else sides[1]


def named(paths: Sequence[str]) -> str:
    """The inputs of a run, short."""
    shown = ", ".join(clean(path, 60) for path in paths[:2])
    return shown + (f" and {len(paths) - 2} more" if paths[2:] else "")


def columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> list[str]:
    """Aligned columns: the first, a name, to the left, the others to the right."""
    cells = [[clean(cell, 60) for cell in column] for column in zip(*rows, strict=True)]
    cells = cells or [[] for _ in head]
    table = [
        Column(title, column, ALWAYS if number == 0 else _WEIGHTS.get(title, _USUAL),
               least=_SHORTEST_NAME if number == 0 else None, tail=title == "run")
        for number, (title, column) in enumerate(zip(head, cells, strict=True))
    ]  # fmt: skip
    room = None if width is None else width - len(_INDENT)
    return [(_INDENT + line).rstrip() for line in fitted(table, room, rule=False)]


def _time(found_ns: int | None, counted_ns: int, idle_ns: int | None) -> str:
    """A finding's time as its difference counts it, or idle time of what is no finding."""
    if found_ns is not None:
        return milliseconds(counted_ns)
    return f"[{milliseconds(idle_ns)}]" if idle_ns else ""


def _in_brackets(f: FindingDifference) -> bool:
    sides = ((f.before_ns, f.idle_before_ns), (f.after_ns, f.idle_after_ns))
    return any(found is None and idle for found, idle in sides)


def _both(before: int, after: int) -> str:
    return f"{milliseconds(before)} / {milliseconds(after)}"
