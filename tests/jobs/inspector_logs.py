"""Logs as NCCL Inspector writes them, of jobs whose every time is chosen by the test.

A collective begins on each rank when that rank comes, and ends on all at once: its transfer after
the last has come. The line of a rank says how long its kernel ran, in whole microseconds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EPOCH_US = 1_748_030_000_000_000


@dataclass
class Process:
    """A process that logs: machine, process id, and the lines so far."""

    hostname: str
    pid: int
    lines: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Job:
    """Processes, and the clock of the job in microseconds."""

    processes: list[Process]
    clock_us: int = 0
    verbose: bool = False
    counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def collective(
        self,
        communicator: str,
        members: Sequence[int],
        transfer_us: int,
        *,
        late_us: dict[int, int] | None = None,
        longer_us: dict[int, int] | None = None,
        name: str = "AllReduce",
        size: int = 1 << 20,
        silent: Sequence[int] = (),
        label: str = "",
    ) -> None:
        """One collective.

        Args:
            communicator: its id.
            members: processes, in the order of their ranks inside it.
            transfer_us: from the last one's begin to the end.
            late_us: process -> how much after the others it comes.
            longer_us: process -> how much after the others its kernel ends.
            name: the collective.
            size: message size, B.
            silent: processes whose line is lost.
            label: name of the communicator; empty as older versions write none.
        """
        late, longer = late_us or {}, longer_us or {}
        number = self.counts[communicator, name] = self.counts.get((communicator, name), -1) + 1
        last = max(late.get(member, 0) for member in members)
        hosts = {self.processes[member].hostname for member in members}
        for rank, member in enumerate(members):
            begin = self.clock_us + late.get(member, 0)
            end = self.clock_us + last + transfer_us + longer.get(member, 0)
            if member in silent:
                continue
            facts: dict[str, Any] = {
                "coll": name,
                "coll_sn": number,
                "coll_msg_size_bytes": size,
                "coll_exec_time_us": end - begin,
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": round(size / 1e3 / (end - begin), 6),
                "coll_busbw_gbs": round(size / 1e3 / (end - begin), 6),
            }
            if self.verbose:
                facts |= _trace(EPOCH_US + begin, EPOCH_US + end)
            self._write(member, communicator, rank, len(members), len(hosts), label, end,
                        {"coll_perf": facts})  # fmt: skip
        self.clock_us += last + transfer_us + 100

    def message(
        self, communicator: str, members: Sequence[int], pair: tuple[int, int], transfer_us: int,
        waits_us: int = 0, size: int = 1 << 20,
    ) -> None:  # fmt: skip
        """A message between two ranks of a communicator; its receiver waits for its sender."""
        hosts = {self.processes[member].hostname for member in members}
        for name, own, peer, took in (
            ("Send", pair[0], pair[1], transfer_us),
            ("Recv", pair[1], pair[0], transfer_us + waits_us),
        ):
            number = self.counts[communicator, str(own)] = (
                self.counts.get((communicator, str(own)), 0) + 1
            )
            facts = {"p2p": name, "p2p_sn": number, "p2p_peer": peer, "p2p_msg_size_bytes": size,
                     "p2p_exec_time_us": took, "p2p_timing_source": "kernel_gpu",
                     "p2p_algobw_gbs": 1.0, "p2p_busbw_gbs": 1.0}  # fmt: skip
            self._write(members[own], communicator, own, len(members), len(hosts), "",
                        self.clock_us + took, {"p2p_perf": facts})  # fmt: skip
        self.clock_us += transfer_us + waits_us + 10

    def _write(
        self, member: int, communicator: str, rank: int, size: int, nodes: int, label: str,
        end_us: int, facts: dict[str, Any],
    ) -> None:  # fmt: skip
        process = self.processes[member]
        header = {"id": communicator, "rank": rank, "n_ranks": size, "nnodes": nodes}
        if label:
            header["comm_name"] = label
        about = {"inspector_output_format_version": "v4.0", "git_rev": "",
                 "rec_mechanism": "nccl_profiler_interface",
                 "dump_timestamp_us": EPOCH_US + end_us + 250,
                 "hostname": process.hostname, "pid": process.pid}  # fmt: skip
        process.lines.append({"header": header, "metadata": about, **facts})

    def write(self, folder: Path, *, packed: bool = False, without: Sequence[int] = ()) -> Path:
        """The folder of logs, one file a process."""
        folder.mkdir(parents=True, exist_ok=True)
        for number, process in enumerate(self.processes):
            if number in without or not process.lines:
                continue
            text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in process.lines)
            path = folder / f"{process.hostname}-pid{process.pid}.log"
            if packed:
                path.with_suffix(".log.gz").write_bytes(gzip.compress(text.encode()))
            else:
                path.write_text(text)
        return folder


def job(nodes: int, each: int, *, verbose: bool = False) -> Job:
    """A job of so many machines with so many processes each."""
    return Job(
        [Process(f"node{n}", 1000 + 10 * n + p) for n in range(nodes) for p in range(each)],
        verbose=verbose,
    )


def _trace(begin_us: int, end_us: int) -> dict[str, Any]:
    """What is logged of two channels: the second begins and ends a microsecond inside."""
    return {
        "event_trace_sn": {
            "coll_start_sn": 1,
            "coll_stop_sn": 2,
            "kernel_events": [
                {"channel_id": c, "kernel_start_sn": 3 + c, "kernel_stop_sn": 8 + c,
                 "kernel_record_sn": 6 + c} for c in (0, 1)
            ],
        },
        "event_trace_ts": {
            "coll_start_ts": begin_us - 20,
            "coll_stop_ts": begin_us - 15,
            "kernel_events": [
                {"channel_id": c, "kernel_start_ts": begin_us + c, "kernel_stop_ts": end_us - c,
                 "kernel_record_ts": end_us - c} for c in (0, 1)
            ],
        },
    }  # fmt: skip
