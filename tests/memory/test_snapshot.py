"""Memory snapshots: sizes and peaks against an allocator of the tests, and files that mean harm."""

from __future__ import annotations

import io
import pickle
import pickletools
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope
from tests.support.allocator import Allocator, frame

from stepscope.importers.torch_memory.unpickle import unpickled
from stepscope.trace.errors import InputError

MIB = 1 << 20


@pytest.fixture
def stepscope(tmp_path: Path) -> Stepscope:
    """The command line with an empty cache."""
    return Stepscope(tmp_path / "cache")


def dump(path: Path, snapshot: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(snapshot, protocol))
    return path


def busy(seed: int, before: int) -> Allocator:
    """An allocator after many requests; the first ones are not in its history."""
    rng, made = random.Random(seed), Allocator()
    made.recording = False
    live: list[int] = []
    for number in range(900):
        if number == before:
            made.recording = True
            made.peak = made.allocated
        if live and rng.random() < 0.47:
            made.free(live.pop(rng.randrange(len(live))))
        elif rng.random() < 0.02:
            made.trim()
        else:
            size = rng.choice([300, 5000, 700_000, 3 * MIB + 17, 9 * MIB, 31 * MIB - 5])
            live.append(made.alloc(rng.randint(size // 2, size)))
    return made


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_the_replay_knows_what_the_allocator_gave(
    seed: int, protocol: int, reader: Stepscope, tmp_path: Path
) -> None:
    made = busy(seed, 0)
    path = dump(tmp_path / "s.pickle", made.snapshot(), protocol)
    document = reader.json("memory", path)
    (device,) = document["devices"]
    assert device["peak"]["allocated_bytes"] == made.peak
    rows = reader("query", path, "-f", "csv",
                  "SELECT total_allocated_bytes FROM memory_event").stdout.split()[1:]  # fmt: skip
    assert [int(row) for row in rows] == made.history
    f = device["fragmentation"]
    blocks = [block for segment in made.segments.values() for block in segment]
    free = [block[1] for block in blocks if block[2] == "inactive"]
    assert f["reserved_bytes"] == made.reserved
    assert f["allocated_bytes"] == made.allocated
    assert f["largest_free_bytes"] == max(free)
    assert f["inactive_split_bytes"] + f["free_segment_bytes"] == sum(free)
    assert f["rounding_bytes"] == made.allocated - sum(b[3] for b in blocks if b[3])


@pytest.mark.parametrize("seed", range(4))
def test_a_history_that_begins_late_ends_at_the_same(
    seed: int, reader: Stepscope, tmp_path: Path
) -> None:
    made = busy(seed, 400)
    (device,) = reader.json("memory", dump(tmp_path / "s.pickle", made.snapshot()))["devices"]
    # what was there before and is released in the history is known by its request only
    assert device["peak"]["allocated_bytes"] == pytest.approx(made.peak, rel=0.02)
    assert device["timeline"]["allocated_bytes"][-1] == made.allocated
    parts = device["peak"]["by_category_bytes"]
    assert sum(parts.values()) == device["peak"]["allocated_bytes"]


def stack(*places: tuple[str, str]) -> list[dict[str, Any]]:
    """Frames, innermost first."""
    return [frame(function, file, 10 + at) for at, (function, file) in enumerate(places)]


SITE = "/venv/lib/python3.11/site-packages/torch"
MAIN = ("<module>", "/home/me/train.py")
CALL = ("_call_impl", f"{SITE}/nn/modules/module.py")
MAKE = stack(("__init__", f"{SITE}/nn/modules/linear.py"), ("__init__", "/home/me/model.py"), MAIN)
FORWARD = stack(("forward", f"{SITE}/nn/modules/linear.py"), CALL, ("forward", "/home/me/model.py"),
                CALL, MAIN)  # fmt: skip
STATE = stack(("_init_group", f"{SITE}/optim/adam.py"), ("step", f"{SITE}/optim/adam.py"), MAIN)
BATCH = stack(("load", "/home/me/data.py"), MAIN)


def training(steps: int, leak: int = 0) -> Allocator:
    """A model of two layers that is trained; nothing is released before its time."""
    made = Allocator()
    weights = [made.alloc(size, MAKE) for size in (6 * MIB, 3 * MIB)]
    states: list[int] = []
    for _ in range(steps):
        batch = made.alloc(2 * MIB, BATCH)
        kept = [made.alloc(5 * MIB, FORWARD), made.alloc(4 * MIB, FORWARD)]
        if leak:
            made.alloc(leak, FORWARD[1:])
        gradients = []
        for size in (3 * MIB, 6 * MIB):
            detail = made.alloc(7 * MIB)
            gradients.append(made.alloc(size))
            made.free(detail)
            made.free(kept.pop())
        if not states:
            states = [made.alloc(size, STATE) for size in (6 * MIB, 6 * MIB, 3 * MIB, 3 * MIB)]
        for gradient in [*gradients, batch]:
            made.free(gradient)
    assert weights
    return made


def test_categories_and_holders_of_a_training(reader: Stepscope, tmp_path: Path) -> None:
    made = training(6)
    path = dump(tmp_path / "s.pickle", made.snapshot())
    (device,) = reader.json("memory", path, "--at", "end")["devices"]
    blocks = [block for segment in made.segments.values() for block in segment]
    weights, states = (sum(b[1] for b in blocks if b[4] == frames) for frames in (MAKE, STATE))
    assert device["moment"]["by_category_bytes"] == {
        "parameter": weights,
        "optimizer_state": states,
    }
    held = {(h["category"], h["line"]): h["bytes"] for h in device["holders"]}
    assert held["parameter", "__init__() /home/me/model.py:11"] == weights >= 9 * MIB
    (device,) = reader.json("memory", path)["devices"]
    assert device["peak"]["allocated_bytes"] == made.peak
    parts = device["peak"]["by_category_bytes"]
    assert parts["optimizer_state"] == states
    assert {"gradient", "activation", "autograd_detail", "input"} <= parts.keys()
    assert len(device["steps"]) == 6
    assert not device["growth"]["grows"]


def test_a_leak_is_found_with_who_keeps_it(reader: Stepscope, tmp_path: Path) -> None:
    made = training(8, leak=3 * MIB // 2)
    (device,) = reader.json("memory", dump(tmp_path / "s.pickle", made.snapshot()))["devices"]
    growth = device["growth"]
    assert growth["grows"]
    assert growth["bytes_per_step"] == 3 * MIB // 2
    assert growth["p_value"] < 0.01
    assert growth["holders"][0]["line"] == "forward() /home/me/model.py:12"


def test_a_refused_request_is_explained(reader: Stepscope, tmp_path: Path) -> None:
    made = Allocator()
    live = [made.alloc(11 * MIB, FORWARD) for _ in range(8)]
    for address in live[::2]:
        made.free(address)
    made.refuse(30 * MIB, 1 * MIB)
    path = dump(tmp_path / "broken.pickle", made.snapshot())
    (device,) = reader.json("memory", path, "--at", "oom")["devices"]
    (refused,) = device["out_of_memory"]
    assert (refused["requested_bytes"], refused["missing_bytes"]) == (30 * MIB, 0)
    assert "no free block is large enough" in refused["message"]
    assert device["moment"]["allocated_bytes"] == made.allocated
    made.refuse(300 * MIB, 1 * MIB)
    (device,) = reader.json("memory", dump(tmp_path / "full.pickle", made.snapshot()))["devices"]
    last = device["out_of_memory"][-1]
    assert last["missing_bytes"] == 299 * MIB - (made.reserved - made.allocated)
    assert "missing even without fragmentation" in last["message"]


def test_other_commands_say_what_a_snapshot_is(stepscope: Stepscope, tmp_path: Path) -> None:
    path = dump(tmp_path / "s.pickle", training(3).snapshot())
    assert "stepscope memory explains it" in stepscope("diagnose", path, expect=2).stderr


class Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("/tmp/stepscope-was-here", "w"))


def nested(depth: int) -> bytes:
    """A dict whose key is a tuple nested that deep: hashing it overflows the C stack."""
    return b"\x80\x04}(" + b")" + b"\x85" * depth + b"K\x01s."


HARMS = {
    "call": pickle.dumps({"segments": Harm()}, 4),
    "old call": b"\x80\x02X\x08\x00\x00\x00segmentscos\nsystem\n(S'true'\ntR.",
    "persistent": b"\x80\x04\x8c\x08segmentsQ.",
    "extension": b"\x80\x02X\x08\x00\x00\x00segments\x82\x01.",
    "deep tuple": b"\x80\x04\x8c\x08segments0" + nested(200_000)[2:],
    "deep key": b"\x80\x04\x8c\x08segments}(" + b"K\x01\x85" + b"\x85" * 100_000 + b"K\x01s.",
    "huge memo": b"\x80\x04\x8c\x08segmentsr\xff\xff\xff\x7f.",
    "huge text": b"\x80\x04\x8c\x08segments\x8d" + struct.pack("<Q", 1 << 60) + b"x.",
    "huge number": b"\x80\x04\x8c\x08segments\x8b" + struct.pack("<i", 1 << 30) + b"x.",
    "cut short": pickle.dumps(training(2).snapshot(), 4)[:-300],
    "empty lists": b"\x80\x04\x8c\x08segments" + b"]" * 8_000_000 + b".",
    "wrong parts": pickle.dumps({"segments": 3}, 4),
    "no parts": pickle.dumps(["segments", "device_traces"], 4),
}


@pytest.mark.parametrize("what", HARMS)
def test_harmful_files_are_refused_in_one_line(
    what: str, stepscope: Stepscope, tmp_path: Path
) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(HARMS[what])
    line = stepscope.refuses("memory", path)
    assert str(path) in line
    assert not Path("/tmp/stepscope-was-here").exists()
    if "call" in what:
        assert "would run code" in line


def test_shared_lists_do_not_multiply(stepscope: Stepscope, tmp_path: Path) -> None:
    event = {"action": "alloc", "addr": 1 << 20, "size": 512, "time_us": 1, "frames": []}
    events = [event] * 40_000
    path = dump(tmp_path / "s.pickle", {"segments": [], "device_traces": [events] * 40_000})
    assert "more often than" in stepscope.refuses("memory", path)


def test_plain_data_comes_out_as_pickle_gives_it(tmp_path: Path) -> None:
    rng = random.Random(3)

    def value(depth: int) -> Any:
        kinds = [None, True, False, rng.randrange(-(1 << 62), 1 << 62), rng.random(), "tëxt" * 90,
                 (1, -2), (), (1,), (2**33, 3, 4), rng.randrange(70_000)]  # fmt: skip
        if depth and rng.random() < 0.7:
            items = [value(depth - 1) for _ in range(rng.randrange(9))]
            return items if rng.random() < 0.5 else {str(i): item for i, item in enumerate(items)}
        return rng.choice(kinds)

    for protocol in (2, 3, 4, 5):
        for _ in range(40):
            found = {"segments": value(5)}
            data = pickle.dumps(found, protocol)
            assert unpickled(data, tmp_path) == found
            assert unpickled(pickletools.optimize(data), tmp_path) == found


def test_every_operation_that_is_not_plain_data_is_refused(tmp_path: Path) -> None:
    plain = {"MARK", "STOP", "POP", "BININT", "BININT1", "BININT2", "NONE", "NEWTRUE", "NEWFALSE",
             "BINFLOAT", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "SETITEM", "SETITEMS",
             "APPEND", "APPENDS", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "MEMOIZE",
             "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "LONG1", "BINUNICODE", "SHORT_BINUNICODE",
             "BINUNICODE8", "FRAME"}  # fmt: skip
    for operation in pickletools.opcodes:
        if operation.name in plain:
            continue
        data = b"\x80\x04" + operation.code.encode("latin-1") + b"\0" * 16 + b"."
        with pytest.raises(InputError):
            unpickled(data, tmp_path)
    buffer = io.BytesIO()
    pickle.Pickler(buffer, 4).dump({1, 2})
    with pytest.raises(InputError):
        unpickled(buffer.getvalue(), tmp_path)


def model_of(made: Allocator, layers: int) -> None:
    """The layers of one forward pass: each keeps some of what it allocates for the backward."""
    for _ in range(layers):
        made.alloc(4 * MIB, FORWARD)
        short = [made.alloc(3 * MIB, FORWARD[2:]), made.alloc(2 * MIB, FORWARD[1:])]
        for address in short:
            made.free(address)


def test_layers_are_no_steps_that_leak(reader: Stepscope, tmp_path: Path) -> None:
    made = Allocator()
    model_of(made, 12)
    ends = ("norm", "scale", "head", "shift", "softmax", "pick", "loss")
    head = [stack((name, "/home/me/model.py"), MAIN) for name in ends]
    for frames in head:
        made.alloc(MIB, frames)
    (device,) = reader.json("memory", dump(tmp_path / "s.pickle", made.snapshot()))["devices"]
    assert not device["steps"]
    assert device["growth"] is None


def test_what_may_be_layers_is_said_so(reader: Stepscope, tmp_path: Path) -> None:
    made = Allocator()
    model_of(made, 12)
    (device,) = reader.json("memory", dump(tmp_path / "s.pickle", made.snapshot()))["devices"]
    assert "layers of one forward pass" in device["growth"]["message"]


def test_a_loop_over_parameters_is_no_loop_of_steps(reader: Stepscope, tmp_path: Path) -> None:
    made = Allocator()
    model_of(made, 40)
    for _ in range(12):
        made.alloc(6 * MIB, STATE)
        for address in [made.alloc(9 * MIB, STATE[1:]), made.alloc(8 * MIB, STATE[1:])]:
            made.free(address)
    (device,) = reader.json("memory", dump(tmp_path / "s.pickle", made.snapshot()))["devices"]
    assert len(device["steps"]) != 12
