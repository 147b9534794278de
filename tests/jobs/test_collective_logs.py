"""Logs of NCCL Inspector: who comes last, which link is slow, whose log ends early."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.inspector_logs import Job, job

from stepscope.api import Job as Captures
from stepscope.api.digests import diagnose_digests
from stepscope.importers.flight_recorder import looks_like_dump
from stepscope.importers.nccl_inspector import looks_like_log, read_log
from stepscope.jobs.job_result import JobDiagnosis
from stepscope.jobs.logs import bus_factor
from stepscope.jobs.logs_find import chance
from stepscope.render.job import job_text
from stepscope.trace.errors import InputError


def only(found: JobDiagnosis) -> Any:
    assert found.collective_logs is not None
    (one,) = found.collective_logs.findings
    return one


def shares(found: JobDiagnosis) -> list[str]:
    assert found.collective_logs is not None
    return found.collective_logs.cannot_tell


def test_a_healthy_job_has_bandwidths_and_no_finding(tmp_path: Path) -> None:
    """Eight ranks of two machines; who comes last is drawn, by up to 30 us."""
    draw = random.Random(1)
    made = job(2, 4)
    for _ in range(60):
        late = {member: draw.randrange(30) for member in range(8)}
        made.collective("0x7f", range(8), 1000, late_us=late, size=1 << 20)
    found = diagnose_digests([made.write(tmp_path / "logs", packed=True)])
    assert (found.verdict, found.job.ranks, found.job.nodes) == ("collectives_even", 8, 2)
    assert (found.job.world_size, found.job.missing_ranks, found.stuck) == (8, [], [])
    logs = found.collective_logs
    assert logs is not None
    assert (logs.findings, logs.logs, logs.operations) == ([], 8, 480)
    (row,) = logs.rows
    assert (row.name, row.operation, row.bytes, row.matched) == (
        "0..7 (0x7f)", "AllReduce", 1 << 20, 60,
    )  # fmt: skip
    # 1 MiB in 1 ms, twice 7 eighths of it on each link
    assert row.transfer_ns == 1_000_000
    assert row.bus_gbs == row.bus_low_gbs == row.bus_high_gbs
    assert row.bus_gbs == pytest.approx(1048576 * 14 / 8 / 1e6, abs=1e-3)
    assert 0 < row.waiting_ns < 30_000
    # a single communicator cannot be compared with another one
    assert any("no communicator has another one like it" in text for text in shares(found))
    text = job_text(found, 120)
    assert "no rank comes last beyond chance" in text
    assert "1.8" in text


@pytest.mark.parametrize(("nodes", "each"), [(1, 4), (2, 4), (4, 4)])
def test_a_late_rank_has_the_shortest_kernels(tmp_path: Path, nodes: int, each: int) -> None:
    """Rank 2 comes 400 us after the others to every second collective, which take 1 ms."""
    draw = random.Random(2)
    made = job(nodes, each)
    every = range(nodes * each)
    for number in range(80):
        late = {member: draw.randrange(8) for member in every}
        late[2] += 400 * (number % 2)
        made.collective("0xa", every, 1000, late_us=late, label="default_pg")
    one = only(diagnose_digests([made.write(tmp_path)]))
    assert (one.kind, one.ranks, one.looked_at, one.showing) == ("late_rank", [2], 80, 40)
    waits = 400_000 * (len(every) - 1) / len(every)  # the mean of all ranks
    assert one.excess_ns == pytest.approx(waits, rel=0.03)
    assert one.share == pytest.approx(waits * 40 / (40 * 1.4e6 + 40 * 1e6), rel=0.03)
    assert one.score is None or one.score > one.threshold
    assert "rank 2 (node0, process 1002) comes last to 40 of 80 AllReduces" in one.message
    assert "default_pg" in one.message


def test_the_root_of_a_broadcast_is_not_late_because_it_ends_early(tmp_path: Path) -> None:
    made = job(1, 4)
    for _ in range(40):
        made.collective("0xa", range(4), 300, late_us={0: 400}, name="Broadcast")
        made.collective("0xa", range(4), 500)
    found = diagnose_digests([made.write(tmp_path)])
    assert found.collective_logs is not None
    assert found.collective_logs.findings == []
    row = next(r for r in found.collective_logs.rows if r.operation == "Broadcast")
    assert (row.transfer_ns, row.waiting_ns, row.last) == (700_000, 0, "")
    assert any("a rank may end Broadcast before the others" in text for text in shares(found))


def test_a_machine_is_late_as_a_whole(tmp_path: Path) -> None:
    draw = random.Random(3)
    made = job(4, 2)
    for _ in range(60):
        late = {member: draw.randrange(20) + 300 * (member // 2 == 3) for member in range(8)}
        made.collective("0xb", range(8), 500, late_us=late)
    one = only(diagnose_digests([made.write(tmp_path)]))
    assert (one.kind, one.ranks, one.node, one.showing) == ("late_node", [6, 7], "node3", 60)


def grid(slow: float, draw: random.Random) -> Job:
    """16 machines in rows and columns of 4: each rank is in two communicators.

    Transfers of rank 5, in row 1 and column 1, take so many times as long.
    """
    made = job(16, 1)
    for _ in range(30):
        for line in range(4):
            for id_, members in (
                (f"row{line}", [4 * line + k for k in range(4)]),
                (f"col{line}", [4 * k + line for k in range(4)]),
            ):
                took = 1000 * (slow if 5 in members else 1) + draw.randrange(20)
                late = {member: draw.randrange(6) for member in members}
                made.collective(id_, members, round(took), late_us=late)
    return made


def test_a_slow_link_is_that_of_the_rank_whose_communicators_are_slow(tmp_path: Path) -> None:
    one = only(diagnose_digests([grid(1.5, random.Random(4)).write(tmp_path / "slow")]))
    assert one.kind == "slow_communicator"
    assert sorted(one.communicators) == ["col1", "row1"]
    assert one.members == ["rank 1 of communicator row1 (node5, process 1050)"]
    assert one.node == "node5"
    assert one.excess_ns == pytest.approx(500_000, rel=0.02)
    assert one.score is not None
    assert one.threshold is not None
    assert one.score > one.threshold
    assert "1.50 times" in one.message
    even = diagnose_digests([grid(1.0, random.Random(4)).write(tmp_path / "even")])
    assert even.collective_logs is not None
    assert even.collective_logs.findings == []


def test_of_few_communicators_alike_the_slow_one_is_told_but_not_whose_link(
    tmp_path: Path,
) -> None:
    """Three rails: a sign test over the collectives, as there is no spread to speak of."""
    made = job(3, 3)
    for number in range(20):
        for rail in range(3):
            took = 1000 + 7 * number % 13 + 300 * (rail == 2)
            made.collective(f"0x{rail}", [rail, 3 + rail, 6 + rail], took, name="ReduceScatter")
    one = only(diagnose_digests([made.write(tmp_path)]))
    assert (one.kind, one.communicators, one.score) == ("slow_communicator", ["0x2"], None)
    assert len(one.members) == 3
    assert one.node == ""
    assert "stays open" in one.message
    assert one.operation == "ReduceScatter"


def test_a_log_that_ends_before_the_others_is_a_hang(tmp_path: Path) -> None:
    made = job(1, 4)
    for number in range(30):
        made.collective("0xc", range(4), 200, silent=[3] if number >= 21 else [])
    found = diagnose_digests([made.write(tmp_path)])
    assert found.verdict == "hang"
    (stuck,) = found.stuck
    # all take part in each: rank 3 did in those up to 29, only its lines are missing
    assert (stuck.sequence, stuck.name) == (30, "AllReduce")
    assert (stuck.arrived, stuck.never_arrived, stuck.not_recorded) == ([0, 1, 2], [3], [])
    assert "the log of rank 3 (node0, process 1003) ends at AllReduce number 20" in stuck.message
    assert "those of 3 other ranks at number 29" in stuck.message
    assert "wait for it in number 30" in stuck.message


def test_lost_lines_and_copies_of_a_running_job_are_no_hang(tmp_path: Path) -> None:
    """Lines that are lost now and then may be the last ones; ends all over tell nothing."""
    made = job(1, 4)
    for number in range(40):
        made.collective("0xc", range(4), 200, silent=[1] if number % 10 == 9 else [])
    assert diagnose_digests([made.write(tmp_path / "lost")]).stuck == []
    made = job(1, 4)
    for number in range(40):
        made.collective("0xc", range(4), 200, silent=[m for m in range(4) if number > 30 + 2 * m])
    found = diagnose_digests([made.write(tmp_path / "running")])
    assert found.stuck == []
    assert any("as those of a job do that still runs" in text for text in shares(found))


def test_missing_logs_and_a_single_one_are_told(tmp_path: Path) -> None:
    made = job(1, 4)
    for _ in range(20):
        made.collective("0xd", range(4), 200, late_us={3: 100})
    found = diagnose_digests([made.write(tmp_path / "three", without=[3])])
    assert (found.job.world_size, found.job.missing_ranks) == (4, [3])
    assert any("of its ranks 3" in text for text in shares(found))
    assert found.collective_logs is not None
    assert found.collective_logs.findings == []  # rank 3 is late, and its log is not there
    found = diagnose_digests([made.write(tmp_path / "one", without=[0, 1, 2])])
    assert found.verdict == "insufficient_data"
    (text,) = shares(found)
    assert "one rank only" in text
    assert "NCCL_INSPECTOR_DUMP_DIR" in text


def test_few_collectives_are_too_few(tmp_path: Path) -> None:
    made = job(1, 4)
    for _ in range(5):
        made.collective("0xd", range(4), 200, late_us={3: 1000})
    found = diagnose_digests([made.write(tmp_path)])
    assert found.verdict == "insufficient_data"
    assert any("1 communicator has fewer than 8 collectives" in text for text in shares(found))
    assert found.collective_logs is not None
    (row,) = found.collective_logs.rows
    assert (row.matched, row.last, row.last_share) == (5, "3", 1.0)


def test_timestamps_tell_a_late_end_from_an_early_begin(tmp_path: Path) -> None:
    made = job(1, 4, verbose=True)
    for _ in range(30):
        made.collective("0xe", range(4), 500, longer_us={1: 200})
    found = diagnose_digests([made.write(tmp_path / "ends")])
    one = only(found)
    assert (one.kind, one.ranks, one.showing) == ("ends_late", [1], 30)
    assert one.excess_ns == 200_000
    assert not any("timestamps" in text for text in shares(found))
    made = job(1, 4, verbose=True)
    for _ in range(30):  # as long in the log, but because it comes first
        made.collective("0xe", range(4), 500, late_us={0: 200, 2: 200, 3: 200})
    found = diagnose_digests([made.write(tmp_path / "begins")])
    assert found.collective_logs is not None
    assert found.collective_logs.findings == []


def test_who_is_late_because_it_waits_elsewhere_is_told(tmp_path: Path) -> None:
    """Rank 1 is late; rank 0 waits for it in their pair, and is late itself in its other one."""
    made = job(2, 2)
    for _ in range(30):
        made.collective("tp0", [0, 1], 100, late_us={1: 400})
        made.collective("tp1", [2, 3], 100)
        made.collective("dp0", [0, 2], 300, late_us={0: 350})
        made.collective("dp1", [1, 3], 300, late_us={1: 350})
        made.collective("world", range(4), 50)
    found = diagnose_digests([made.write(tmp_path)])
    assert found.collective_logs is not None
    late = {tuple(f.ranks): f.message for f in found.collective_logs.findings}
    assert set(late) == {(0,), (1,)}
    assert "it waits itself for rank 1" in late[0,]
    assert "waits itself" not in late[1,]


def test_a_slow_pair_of_ranks_is_told_from_messages(tmp_path: Path) -> None:
    made = job(9, 1)
    for number in range(20):
        for sender in range(9):
            took = 100 + (number * sender) % 5 + 150 * (sender == 4)
            made.message("0xf", range(9), (sender, (sender + 1) % 9), took, waits_us=number * 10)
    one = only(diagnose_digests([made.write(tmp_path)]))
    assert (one.kind, one.ranks) == ("slow_pair", [4, 5])
    assert one.excess_ns == pytest.approx(150_000, rel=0.05)


def test_a_process_of_several_gpus_and_repeated_numbers(tmp_path: Path) -> None:
    """One process with all ranks; a captured graph may repeat a number."""
    made = job(1, 4)
    for _ in range(24):
        made.collective("0x1", range(4), 300, late_us={2: 100})
        made.counts["0x1", "AllReduce"] -= made.counts["0x1", "AllReduce"] % 2
    whole = [line for process in made.processes for line in process.lines]
    for line in whole:
        line["metadata"]["pid"] = 1
    path = tmp_path / "node0-pid1.log"
    path.write_text("".join(json.dumps(line) + "\n" for line in whole))
    found = diagnose_digests([path])
    one = only(found)
    assert (one.kind, one.ranks, one.showing) == ("late_rank", [2], 24)
    assert found.job.ranks == 4


def test_damage_and_doubles_are_one_clear_line(tmp_path: Path) -> None:
    made = job(1, 2)
    for _ in range(9):
        made.collective("0x2", range(2), 300)
    folder = made.write(tmp_path / "logs")
    first, second = sorted(folder.iterdir())
    assert looks_like_log(first)
    assert not looks_like_dump(first)
    with pytest.raises(InputError, match=r"a log of NCCL Inspector.* stepscope job reads those"):
        Captures(first)
    text = first.read_text()
    (tmp_path / "copy.log").write_text(text)
    found = diagnose_digests([folder, tmp_path / "copy.log"])
    assert any("both hold rank 0 of communicator 0x2" in text for text in found.warnings)
    first.write_text(text[:-80])  # the program ended while it wrote
    assert len(read_log(first).number) == 8
    lines = text.splitlines()
    for damaged in (lines[1][:50], lines[1].replace('"rank":0', '"rank":7'), '{"header":{}}', "x"):
        first.write_text("\n".join([lines[0], damaged, *lines[2:]]) + "\n")
        with pytest.raises(InputError, match="line 2 is damaged"):
            read_log(first)
        assert "is damaged" in diagnose_digests([folder]).job.skipped[0].reason
    second.unlink()
    with pytest.raises(InputError, match="line 2 is damaged"):
        diagnose_digests([folder])
    other = json.loads(lines[0])
    del other["coll_perf"]
    first.write_text(json.dumps(other) + "\n")
    with pytest.raises(InputError, match="holds no operation"):
        read_log(first)


def test_lines_of_a_batch_are_of_the_communicator_that_it_began_with(tmp_path: Path) -> None:
    """Format 4.3: one line with the communicator, then operations without it."""
    made = job(1, 2)
    for number in range(9):
        made.collective("0x2", range(2), 300, late_us={1: 40 * number})
        made.collective("0x5", range(2), 200)
    folder = made.write(tmp_path / "logs")
    whole = {path.name: read_log(path) for path in folder.iterdir()}
    for path in folder.iterdir():
        lines = []
        for text in path.read_text().splitlines():
            line = json.loads(text)
            about = line["metadata"] | {"inspector_output_format_version": "v4.3"}
            counts = {"coll_records": 1, "coll_dropped_total": 0, "p2p_records": 0}
            lines += [{"header": line["header"], "metadata": about, "dump_stats": counts}]
            lines += [{"coll_perf": line["coll_perf"]}, {"proxy_trace": {"record_type": "step"}}]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert looks_like_log(path)
        found, expected = read_log(path), whole[path.name]
        assert found.ranks == expected.ranks
        assert found.rank.tolist() == expected.rank.tolist()
        assert found.time_ns.tolist() == expected.time_ns.tolist()
        assert found.dropped == {}
    # an operation of which nothing tells the communicator is not given to another one
    alone = json.dumps({"coll_perf": json.loads(text)["coll_perf"]})
    path.write_text(f"{text}\n{alone}\n")
    with pytest.raises(InputError, match="line 2 is damaged: it tells no communicator"):
        read_log(path)


def test_records_that_the_plugin_dropped_are_told(tmp_path: Path) -> None:
    """Counts grow from batch to batch; those of one log are not those of another."""
    made = job(1, 2)
    for number in range(12):
        made.collective("0x2", range(2), 300, late_us={1: 40 * (number % 2)})
    folder = made.write(tmp_path / "logs")
    whole = diagnose_digests([folder])
    assert not any("dropped" in warning for warning in whole.warnings)
    first, _ = sorted(folder.iterdir())
    lines = []
    for number, text in enumerate(first.read_text().splitlines()):
        line = json.loads(text)
        counts = {"coll_records": 1, "coll_dropped_total": 7 * number, "p2p_dropped_total": 3}
        lines += [{"header": line["header"], "metadata": line["metadata"], "dump_stats": counts}]
        lines += [{"coll_perf": line["coll_perf"]}]
    first.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_log(first).dropped == {"coll": 77, "p2p": 3}
    (told,) = [w for w in diagnose_digests([folder]).warnings if "dropped" in w]
    assert "at least 80 records (coll 77, p2p 3) that 1 of 2 logs" in told
    assert first.name in told


def test_digests_give_the_ranks_of_processes(tmp_path: Path, reader: Any) -> None:
    """Two captures of one machine; their processes log communicators without a world."""
    from tests.support.captures import DATA, unpack

    captures = [unpack(DATA.parent / "ranks" / f"ddp_imbalance.rank{r}.sqlite.xz") for r in (0, 1)]
    reader("digest", *captures, "-o", tmp_path / "digests")
    from stepscope.api.digest_files import read_digests

    digests = [d for f in sorted((tmp_path / "digests").iterdir()) for d in read_digests(f)]
    made = job(1, 2)
    # inside the communicator the ranks are the other way round
    for process, digest in zip(made.processes, reversed(digests), strict=True):
        process.hostname, process.pid = digest.hostname, digest.facts["process_id"]
    for _ in range(20):
        made.collective("0x3", range(2), 300, late_us={0: 200})
    logs = made.write(tmp_path / "logs")
    shown = json.loads(reader("job", tmp_path / "digests", logs, "--format", "json").stdout)
    (one,) = shown["collective_logs"]["findings"]
    assert (one["kind"], one["ranks"]) == ("late_rank", [1])
    assert one["communicators"] == ["1,0 (0x3)"]
    assert shown["verdict"] != "collectives_even"
    page = reader("job", logs, "--format", "html").stdout
    assert "Logged collectives" in page
    text = reader("job", logs).stdout
    assert "comes last to 20 of 20 AllReduces" in " ".join(text.split())


def test_figures_by_hand() -> None:
    assert chance(8, 8, 0.5) == pytest.approx(1 / 256)
    assert chance(1, 2, 0.5) == pytest.approx(0.75)
    assert (chance(0, 5, 0.5), chance(6, 5, 0.5), chance(5, 5, 1.0)) == (1.0, 0.0, 1.0)
    assert chance(100_000, 100_000, 0.999) == pytest.approx(0.999**100_000)
    # what the plugin's own documentation gives of two operations of eight ranks
    assert bus_factor("AllReduce", 8) * 17179869184 / 61974e3 == pytest.approx(485.119099)
    assert bus_factor("ReduceScatter", 8) * 2147483648 / 41057e3 == pytest.approx(366.134533)
    assert bus_factor("AllReduce", 4) == 1.5
    assert bus_factor("AllGather", 4) == bus_factor("ReduceScatter", 4) == 3
