"""Which digests are of one job: what is left out, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from stepscope.jobs.digest import Digest
from stepscope.jobs.job_result import Skipped
from stepscope.trace.units import shown

_APART_NS: Final = 3_600_000_000_000
"""Captures further apart are of different runs: clocks that nobody sets are off by minutes."""


def of_one_job(digests: Sequence[Digest]) -> tuple[list[Digest], list[Skipped], list[str]]:
    """The digests that can be ranks of one job, what was left out, and what was assumed.

    Ranks that nothing tells are numbered in the order of the digests. Where digests disagree about
    the number of ranks or the time, the most count; of two digests of one device of one rank the
    first counts.
    """
    skipped: list[Skipped] = []
    warnings: list[str] = []
    kept = _with_steps(list(digests), skipped)
    kept = _of_one_size(kept, skipped)
    kept = _of_one_time(kept, skipped)
    kept = _of_one_kind(kept, skipped)
    if any(digest.facts["rank"] is None for digest in kept):
        kept = [
            replace(digest, facts={**digest.facts, "rank": number})
            for number, digest in enumerate(kept)
        ]
        if len(kept) > 1:
            warnings.append(
                "ranks are numbered in the order of the digests, because not every one tells its "
                "rank"
            )
    return _each_once(kept, skipped), skipped, warnings


def _with_steps(digests: list[Digest], skipped: list[Skipped]) -> list[Digest]:
    kept = []
    for digest in digests:
        steps = digest.ints("steps", "wall_ns")
        sound = len(steps) > 0 and bool((steps > 0).all()) and bool((np.diff(
            digest.ints("steps", "begin_ns")) > 0).all())  # fmt: skip
        if sound:
            kept.append(digest)
        else:
            skipped.append(Skipped(digest.path, f"the digest of rank {digest.rank} has no steps"))
    return kept


def _of_one_size(digests: list[Digest], skipped: list[Skipped]) -> list[Digest]:
    sizes = Counter(d.facts["world_size"] for d in digests if d.facts["world_size"])
    if len(sizes) < 2:
        return digests
    size = sizes.most_common(1)[0][0]
    kept = []
    for digest in digests:
        own = digest.facts["world_size"]
        if own and own != size:
            skipped.append(
                Skipped(digest.path, f"it is of a job of {own} ranks, most are of one of {size}")
            )
        else:
            kept.append(digest)
    return kept


def _of_one_time(digests: list[Digest], skipped: list[Skipped]) -> list[Digest]:
    known = [d.facts["origin_epoch_ns"] for d in digests if d.facts["origin_epoch_ns"] is not None]
    if len(known) < 2:
        return digests
    middle = int(np.median(np.array(known, np.int64)))
    kept = []
    for digest in digests:
        at = digest.facts["origin_epoch_ns"]
        if at is not None and abs(at - middle) > _APART_NS and len(digests) > 2:
            skipped.append(
                Skipped(
                    digest.path,
                    f"its capture lies {shown(abs(at - middle), 'ns')} from that of the others, so "
                    "it is of another run",
                )
            )
        else:
            kept.append(digest)
    return kept


def _of_one_kind(digests: list[Digest], skipped: list[Skipped]) -> list[Digest]:
    """Without those whose steps are something else: whole captures among training steps."""
    kinds = Counter(digest.facts["step_kind"] for digest in digests)
    if len(kinds) < 2:
        return digests
    usual, count = kinds.most_common(1)[0]
    if count <= len(digests) / 2:
        return digests
    kept = []
    for digest in digests:
        if digest.facts["step_kind"] == "whole_capture" != usual:
            reason = f"no steps were found in the capture of rank {digest.rank}"
            skipped.append(Skipped(digest.path, reason))
        else:
            kept.append(digest)
    return kept


def _each_once(digests: list[Digest], skipped: list[Skipped]) -> list[Digest]:
    """Each device of a rank once; a rank is one process, which may have several devices."""
    kept: list[Digest] = []
    first: dict[int, Digest] = {}
    devices: set[tuple[int, int]] = set()
    for digest in digests:
        facts = digest.facts
        other = first.setdefault(digest.rank, digest)
        again = (digest.rank, facts["device"] or 0) in devices
        if again or facts["process_id"] != other.facts["process_id"]:
            same = again and facts["capture_digest"] == other.facts["capture_digest"]
            why = "is given twice" if same else f"is told by {other.path} as well"
            skipped.append(Skipped(digest.path, f"rank {digest.rank} {why}; the first counts"))
            continue
        devices.add((digest.rank, facts["device"] or 0))
        kept.append(digest)
    return kept
