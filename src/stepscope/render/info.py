"""What a trace holds, as text."""

from __future__ import annotations

from stepscope.render.fitted import wrapped
from stepscope.render.text import clean, milliseconds
from stepscope.trace.trace import RankTrace

_LONGEST_LINE = 1000


def info_text(rank_trace: RankTrace, width: int | None = None) -> str:
    """One trace: origin, environment, tables, what is missing, problems.

    Args:
        rank_trace: it.
        width: characters to which sentences are broken; None for one line each.
    """
    trace, meta = rank_trace.trace, rank_trace.trace.meta
    window = milliseconds(meta.window_end_ns - meta.window_start_ns)
    version = f" {clean(meta.source_version)}" if meta.source_version else ""
    lines = [
        clean(str(trace.path), 400),
        f"  source    {meta.source}{version}, window {window}",
        f"  rank      {rank_trace.rank} ({clean(rank_trace.rank_source)})"
        + (f" of {meta.world_size}" if meta.world_size else ""),
    ]
    if meta.command:
        lines.append(f"  command   {clean(meta.command, 300)}")
    pairs = {**meta.environment, **meta.capture_options}
    lines += [f"  {clean(key, 40)}: {clean(value, 200)}" for key, value in sorted(pairs.items())]
    lines.append("  tables")
    lines += [f"    {table:16} {rows:>12,}" for table, rows in sorted(meta.rows.items())]
    lacking = [a for a in meta.missing if not meta.rows.get(a.table)]
    partly = [a for a in meta.missing if meta.rows.get(a.table)]
    for title, several in (("missing", lacking), ("missing in part", partly)):
        lines += [f"  {title}"] if several else []
        for a in several:
            lines += wrapped(f"    {a.table:16} {a.reason}; get it with {a.flag}", width, hang=21)
    if meta.problems:
        lines.append("  problems")
        for problem in meta.problems:
            detail = f" [{clean(problem.detail)}]" if problem.detail else ""
            message = f"{problem.count:,} x {problem.message}; {problem.remedy}{detail}"
            lines += wrapped(f"    {problem.severity:10} {message}", width, hang=15)
    return "\n".join(clean(line, _LONGEST_LINE) for line in lines) + "\n"
