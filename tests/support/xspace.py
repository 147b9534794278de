"""Profiles of XLA, written for tests: planes with lines of events, and their tables of names."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.protobuf import field as put
from tests.support.protobuf import varint

Told = dict[str, int | float | str | bytes]


@dataclass(frozen=True)
class Ref:
    """A text that stands in the table of the names of stats."""

    text: str


@dataclass(frozen=True)
class Event:
    """One event; times in ns after the line's."""

    name: str
    start_ns: float
    duration_ns: float
    answer: dict[str, int | float | str | bytes | Ref] = field(default_factory=dict)


class Numbers(dict[str, int]):
    """Numbers of texts, given out as they are first asked for."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self) + 1
        return self[text]


def plane(
    name: str,
    lines: dict[str, list[Event]],
    answer: dict[str, int | float | str | bytes | Ref] | None = None,
    *,
    timestamp_ns: int = 0,
    metadata: dict[str, dict[str, bytes]] | None = None,
) -> bytes:
    """One plane."""
    names, stats = Numbers(), Numbers()

    def stat(key: str, value: int | float | str | bytes | Ref) -> bytes:
        made = put(1, stats[key])
        if isinstance(value, Ref):
            return made + put(7, stats[value.text])
        if isinstance(value, float):
            return made + put(2, value)
        if isinstance(value, int):
            return made + put(4, value)
        return made + put(5 if isinstance(value, str) else 6, value)

    body = put(2, name)
    for number, (title, events) in enumerate(lines.items(), 1):
        line = put(1, number) + put(2, title) + put(3, timestamp_ns)
        for event in events:
            made = put(1, names[event.name]) + put(2, round(event.start_ns * 1000))
            made += put(3, round(event.duration_ns * 1000))
            made += b"".join(put(4, stat(k, v)) for k, v in event.answer.items())
            line += put(4, made)
        body += put(3, line)
    held = dict.fromkeys(names, b"")
    for text, of_name in (metadata or {}).items():
        held[text] = b"".join(put(5, stat(k, v)) for k, v in of_name.items())
        names[text]
    own = b"".join(put(6, stat(k, v)) for k, v in (answer or {}).items())
    for text, number in names.items():
        body += put(4, put(1, number) + put(2, put(1, number) + put(2, text) + held[text]))
    for text, number in stats.items():
        body += put(5, put(1, number) + put(2, put(1, number) + put(2, text)))
    return put(1, body + own)


def program(name: str, instructions: list[tuple[str, str, str, str, int]]) -> bytes:
    """An HloProto of one computation, which is not written in the order of its schedule.

    Args:
        name: of the module.
        instructions: name, opcode, scope, file and line of each, in the order of their execution.
    """
    files = list(dict.fromkeys(file for _, _, _, file, _ in instructions))
    frames, made = b"", []
    for number, (title, opcode, scope, file, line) in enumerate(instructions, 1):
        location = put(1, files.index(file) + 1) + put(3, line)
        frames += put(3, location) + put(4, put(1, number))
        what = put(7, put(2, scope) + put(15, number))
        made.append(put(2, put(1, title) + put(2, opcode) + what + put(35, 200 + number)))
    stacks = b"".join(put(1, file) for file in files) + frames
    order = b"".join(varint(201 + number) for number in range(len(made)))
    schedule = put(1, put(1, 9) + put(2, put(1, order)))
    computation = put(1, "main") + b"".join(reversed(made)) + put(5, 9)
    whole = put(1, name) + put(3, computation) + put(6, 9) + put(7, schedule) + put(17, stacks)
    return put(1, whole)


KERNEL_DETAILS = "regs:32 static_shared:16 dynamic_shared:1024 grid:64,2,1 block:256,1,1 occ_pct:50"
COPY_DETAILS = "kind_src:pinned kind_dst:device size:4096 dest:0 async:1"


def training(steps: int = 6, host_ns: int = 0) -> bytes:
    """A loop of steps: a copy, two kernels in a command buffer, one of a library; host work before.

    Args:
        steps: how many.
        host_ns: Python work before each step, ns.
    """
    stream: list[Event] = []
    copies: list[Event] = []
    host: list[Event] = []
    os_line: list[Event] = []
    at, work_ns = 1_000_000, 3_000_000
    for step in range(steps):
        call = 10 * step + 1
        host.append(Event("train", at, host_ns + 900_000, {"step_num": step, "_r": 1}))
        if host_ns:
            host.append(Event("$data.py:7 load", at, host_ns))
        begin = at + host_ns
        host.append(Event("PjitFunction(train_step)", begin + 100_000, 700_000))
        host.append(Event("PjitFunction(train_step)", begin + 101_000, 690_000))
        host.append(Event("jit_train_step:XLA GPU module", begin + 200_000, 500_000))
        host.append(Event("command_buffer_1", begin + 210_000, 400_000))
        graph = {"correlation_id": call, "device_id": 0}
        host.append(Event("cuGraphLaunch (CudaGraph:3)", begin + 220_000, 300_000, {**graph}))
        host.append(Event("MemcpyH2D", begin + 110_000, 20_000, {"correlation_id": call + 1}))
        host.append(
            Event(
                "MemoryAllocation", begin + 105_000, 0,
                {"allocator_name": Ref("GPU_0_bfc"), "allocation_bytes": 512, "addr": 4096 * step,
                 "bytes_allocated": 512 * (step + 1)},
            )
        )  # fmt: skip
        os_line.append(Event("BUFFER_FLUSH", begin + 720_000, 5_000))
        known: dict[str, int | float | str | bytes | Ref] = {
            "correlation_id": call, "context_id": b"$$1", "cuda_graph_id": 3,
            "kernel_details": Ref(KERNEL_DETAILS), "hlo_op": Ref("command_buffer_1"),
            "hlo_module": Ref("jit_train_step"), "tf_op": Ref("XlaModule:"),
        }  # fmt: skip
        gpu = begin + 300_000
        part = (work_ns - 40_000) // 4
        # the third one is alike the first, whose code it shares
        kernels = ("loop_add_fusion_2", "gemm_library", "loop_add_fusion_2", "wrapped_convert")
        for number, name in enumerate(kernels):
            answer = {**known, "cuda_graph_node_id": 3 << 32 | number}
            stream.append(Event(name, gpu + number * (part + 10_000), part, answer))
        stream.append(
            Event("Memset 0", gpu + work_ns, 1_000, {
                "correlation_id": call, "Memset_details": Ref("kind:device num_bytes:64 async:1"),
            })
        )  # fmt: skip
        copies.append(
            Event("MemcpyH2D", begin + 140_000, 2_000, {
                "correlation_id": call + 1, "memcpy_details": Ref(COPY_DETAILS),
            })
        )  # fmt: skip
        at += host_ns + work_ns + 20_000
    made = [
        ("loop_add_fusion.2", "fusion", "jit(train_step)/jvp()/add", "model.py", 21),
        ("bitcast.4", "bitcast", "jit(train_step)/reshape", "model.py", 22),
        ("custom-call.9", "custom-call", "jit(train_step)/jvp()/dot_general", "model.py", 25),
        ("loop_add_fusion.3", "fusion", "jit(train_step)/add", "model.py", 28),
        ("wrapped_convert", "fusion", "jit(train_step)/convert_element_type", "model.py", 30),
    ]
    return b"".join(
        (
            plane(
                "/host:metadata", {}, {"process_id": 4711, "jaxlib_version": "9.9"},
                metadata={"jit_train_step(7)": {"Hlo Proto": program("jit_train_step", made)}},
            ),
            plane(
                "/device:GPU:0",
                {"Stream #14(Compute,Memset)": stream, "Stream #15(MemcpyH2D)": copies},
                {"device_vendor": "Nvidia", "gpu_device_name": "NVIDIA H200", "core_count": 132,
                 "clock_rate": 1980000, "compute_cap_major": 9, "compute_cap_minor": 0,
                 "memory_bandwidth": 4_800_000_000_000, "memory_size": 150_000_000_000},
                timestamp_ns=500,
            ),
            plane(
                "/host:CPU", {"python3": host, "Host Threads/4712": os_line}, {}, timestamp_ns=500
            ),
            plane(
                "Task Environment", {},
                {"profile_start_time": 1_790_000_000_000_000_000,
                 "profile_stop_time": 1_790_000_000_500_000_000},
            ),
            put(4, "node7"),
        )
    )  # fmt: skip
