"""Where reports and rules differ from Nsight Systems on purpose, and why.

Everything else is meant to be equal to the digit; the conformance tests compare every cell.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """One difference.

    Attributes:
        where: reports, rules or outputs concerned.
        theirs: what nsys 2023.4 does.
        ours: what Stepscope does.
        why: the reason.
    """

    where: str
    theirs: str
    ours: str
    why: str


DIFFERENCES = (
    Difference(
        "nvtx_pushpop_trace, nvtx_gpu_proj_*",
        "two ranges of a thread with equal bounds disappear, with all ranges inside them",
        "both are shown, the first recorded as the outer one",
        "each counts as the other's parent, so their tree has no root",
    ),
    Difference(
        "nvtx_* with --filter-time or --filter-nvtx",
        "ranges lose their domain's name",
        "the name stays",
        "the event that names the domain lies outside the window and is filtered, too",
    ),
    Difference(
        "um_* with a filter",
        "CPU page faults are not filtered",
        "they are",
        "their table has no end time, which the filter asks for",
    ),
    Difference(
        "cuda_memcpy_async, cuda_memcpy_sync, cuda_memset_sync",
        "copies and calls of different processes are joined when their ids are equal",
        "both must be of one process",
        "correlation ids are unique in a process only; the extra rows are false",
    ),
    Difference(
        "cuda_memset_sync",
        "prints the advice of cuda_api_sync",
        "has its own",
        "a slip in the tool",
    ),
    Difference(
        "nvtx-name",
        "of ranges that begin at the same time an arbitrary one counts as the innermost",
        "the shortest counts",
        "the order is undefined there",
    ),
    Difference(
        "rows that are equal in all sort keys",
        "stand in the order of the export's tables",
        "stand in order of start",
        "newer exports are in no order at all",
    ),
    Difference(
        "cuda_gpu_mem_size_sum in bytes (mem=B)",
        "a median is written 6 or 6.0 by row; the deviation's 16th digit depends on the row order",
        "one form a column; above 100,000 operations the 16th digit may differ",
        "a column has one type",
    ),
    Difference(
        "CSV and TSV without rows",
        "nothing is written",
        "the header is written",
        "readers of CSV fail on an empty file",
    ),
    Difference(
        "CSV",
        "a value is quoted when it holds a comma",
        "also when it holds a quotation mark or a line break",
        "otherwise the file cannot be read back",
    ),
    Difference(
        "JSON",
        "quotation marks are not escaped, empty values are texts",
        "valid JSON; an empty value is null",
        "a parser must be able to read it",
    ),
    Difference(
        "column, table",
        "thousands are separated where the locale says so",
        "always, by commas; nofmt turns it off",
        "the same output everywhere",
    ),
    Difference(
        "all outputs",
        "progress and SKIPPED lines are mixed into standard output",
        "they go to standard error, and SKIPPED names the capture option that provides the data",
        "standard output can then be piped",
    ),
    Difference(
        "unknown reports, arguments, formats",
        "exit status 0",
        "one line with the nearest name, exit status 2",
        "a script must notice",
    ),
    Difference(
        "names with control characters",
        "printed as they are",
        "each is replaced by U+FFFD",
        "traces are untrusted text",
    ),
    Difference(
        "--sqlite, --force-export",
        "the export is written beside the report, or to the file that --sqlite names",
        "nothing is written there: --sqlite names an export to read instead of the report, and "
        "--force-export reads the capture again whatever export or cached import of it exists",
        "an input folder may be read-only, and the cache serves every later question",
    ),
    Difference(
        "--report-dir",
        "the working folder is searched for reports, too",
        "only folders that are named are",
        "a report is a program",
    ),
)
