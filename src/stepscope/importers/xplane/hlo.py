"""Compiled programs, as the profile holds them: which line of Python an instruction comes from.

XLA fuses operations into kernels that it names after the fusion, so that a kernel inside a command
buffer (a CUDA graph), of which the profile only says which buffer it is in, still leads to its
instruction: ``loop_add_fusion_3`` is the instruction ``loop_add_fusion.3``. Fusions that are alike
share the kernel of the first one, and what a library computes (cuBLAS, cuDNN) has the library's
names: these are known by their place, for a command buffer executes its instructions in the order
of the program (:meth:`Program.in_order`). Where kernels and program do not fit, nothing is told.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Final

from stepscope.importers.common.protobuf import DamageError, varint, walk
from stepscope.importers.xplane.space import Plane, Span

# HloProto, HloModuleProto, HloComputationProto, HloInstructionProto, OpMetadata in
# xla/service/hlo.proto and xla/xla_data.proto
_MODULE: Final = 1
_MODULE_NAME, _COMPUTATIONS, _STACKS = 1, 3, 17
_COMPUTATION_ID, _INSTRUCTIONS = 5, 2
_ENTRY_ID: Final = 6
_NAME, _OPCODE, _METADATA, _INSTRUCTION_ID = 1, 2, 7, 35
_SCHEDULE: Final = 7
_SCOPE, _FILE, _LINE, _FRAME = 2, 3, 4, 15
_FILES, _FUNCTIONS, _LOCATIONS, _FRAMES = 1, 2, 3, 4
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_]")
_ID: Final = re.compile(r"\(\d+\)$")
_NUMBER: Final = re.compile(r"_\d+$")
_LIBRARY: Final = "custom-call"
_EXECUTED: Final = frozenset({"fusion", "custom-call", "copy", "sort"})
"""Instructions that become kernels where they stand."""
_LONGEST: Final = 20_000
_FITS: Final = 0.8
"""So many of the kernels must have their place in the program, else nothing is told by place."""
_SUFFIX: Final = re.compile(r"\.kd$")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a compiled program.

    Attributes:
        name: its name in HLO.
        opcode: what it is: ``fusion``, ``custom-call``, ...
        scope: path of the traced functions, as in ``jit(step)/jvp()/dot_general``.
        source: ``file:line`` in Python; empty where nothing is told.
        number: its id in the program.
    """

    name: str
    opcode: str
    scope: str
    source: str
    number: int = 0


@dataclass
class Program:
    """The instructions of one module, by what its kernels are called."""

    by_kernel: dict[str, Instruction] = field(default_factory=dict)
    by_name: dict[str, Instruction] = field(default_factory=dict)
    schedule: list[Instruction] = field(default_factory=list)

    def instruction(self, kernel: str, operation: str) -> Instruction | None:
        """What a kernel computes.

        Args:
            kernel: its name.
            operation: the instruction that the profile names, or the command buffer it lies in.
        """
        found = self.by_name.get(operation)
        return found or self.by_kernel.get(_SUFFIX.sub("", kernel))

    def in_order(self, kernels: Sequence[str]) -> list[Instruction | None]:
        """The instruction of each kernel of one launch, by its place among the others.

        Args:
            kernels: names of the kernels of a command buffer, in the order they ran.

        Returns:
            One a kernel; all None where kernels and program do not fit.
        """
        found: list[Instruction | None] = [None] * len(kernels)
        run = [made for made in self.schedule if made.opcode in _EXECUTED]
        if not run or len(kernels) > _LONGEST or len(run) > _LONGEST:
            return found
        ran = [_stem(_SUFFIX.sub("", k)) if k in self.by_kernel else _LIBRARY for k in kernels]
        program = [
            _LIBRARY if made.opcode == "custom-call" else _stem(_UNSAFE.sub("_", made.name))
            for made in run
        ]
        same = SequenceMatcher(None, ran, program, autojunk=False).get_matching_blocks()
        if sum(block.size for block in same) < _FITS * len(kernels):
            return found
        for block in same:
            found[block.a : block.a + block.size] = run[block.b : block.b + block.size]
        return found

    def add(self, made: Instruction) -> None:
        """Take over an instruction."""
        self.by_name[made.name] = made
        self.by_kernel[_UNSAFE.sub("_", made.name)] = made


def programs_of(plane: Plane) -> dict[str, Program]:
    """The modules in the plane ``/host:metadata``, by name.

    Of several programs of one name nothing is told: which one ran is not known.

    Raises:
        DamageError: one cannot be read.
    """
    found: dict[str, Program] = {}
    twice: set[str] = set()
    for name, stats in plane.metadata():
        for span in (*stats.blobs("Hlo Proto"), *stats.blobs("hlo_proto")):
            title = _ID.sub("", name)
            if title in found:
                twice.add(title)
            found[title] = _program(plane.data, span)
    return {name: program for name, program in found.items() if name not in twice}


def _program(data: mmap.mmap, span: Span) -> Program:
    program = Program()
    for number, begin, end, _ in walk(data, span.begin, span.end):
        if number != _MODULE:
            continue
        parts = list(walk(data, begin, end))
        stacks = [_Stacks(data, a, b) for n, a, b, _ in parts if n == _STACKS]
        lines = stacks[0] if stacks else None
        entry = next((value for n, _, _, value in parts if n == _ENTRY_ID), None)
        last: list[Instruction] = []
        for n, a, b, _ in parts:
            if n != _COMPUTATIONS:
                continue
            inner = list(walk(data, a, b))
            of_entry = any(m == _COMPUTATION_ID and value == entry for m, _, _, value in inner)
            made = [_instruction(data, c, d, lines) for m, c, d, _ in inner if m == _INSTRUCTIONS]
            if of_entry:
                last = made
            else:
                for instruction in made:
                    program.add(instruction)
        order = next((_scheduled(data, a, b, entry) for n, a, b, _ in parts if n == _SCHEDULE), [])
        known = {instruction.number: instruction for instruction in last}
        program.schedule = [known[i] for i in order if i in known] or last
        for instruction in last:  # the outermost ones are those that become kernels
            program.add(instruction)
    return program


def _instruction(data: mmap.mmap, begin: int, end: int, lines: _Stacks | None) -> Instruction:
    name = opcode = scope = source = ""
    own = 0
    for number, a, b, content in walk(data, begin, end):
        if number == _NAME:
            name = _text(data, a, b)
        elif number == _INSTRUCTION_ID:
            own = content
        elif number == _OPCODE:
            opcode = _text(data, a, b)
        elif number == _METADATA:
            file, line, frame = "", 0, 0
            for n, c, d, value in walk(data, a, b):
                if n == _SCOPE:
                    scope = _text(data, c, d)
                elif n == _FILE:
                    file = _text(data, c, d)
                elif n == _LINE:
                    line = value
                elif n == _FRAME:
                    frame = value
            source = f"{file}:{line}" if file and line else ""
            if not source and frame and lines is not None:
                source = lines.source(frame)
    return Instruction(name, opcode, scope, source, own)


def _scheduled(data: mmap.mmap, begin: int, end: int, entry: int | None) -> list[int]:
    """Ids of the entry computation's instructions in the order in which they are executed."""
    for _, a, b, _ in walk(data, begin, end):
        computation, found = 0, []
        for number, c, d, value in walk(data, a, b):
            if number == 1:
                computation = value
            elif number == 2:
                for _, at, to, _ in walk(data, c, d):
                    found += _packed(data, at, to)
        if computation == entry:
            return found
    return []


def _packed(data: mmap.mmap, begin: int, end: int) -> list[int]:
    """The numbers in one field, which may be one or many."""
    found = []
    at = begin
    while at < end:
        number, at = varint(data, at, end)
        found.append(number)
    return found


class _Stacks:
    """Files and lines, by the number of a frame (``StackFrameIndexProto``)."""

    def __init__(self, data: mmap.mmap, begin: int, end: int) -> None:
        self._files: list[str] = []
        self._lines: list[tuple[int, int]] = []
        self._frames: list[int] = []
        for number, a, b, _ in walk(data, begin, end):
            if number == _FILES:
                self._files.append(_text(data, a, b))
            elif number == _LOCATIONS:
                held = dict(_values(data, a, b))
                self._lines.append((held.get(1, 0), held.get(3, 0)))
            elif number == _FRAMES:
                self._frames.append(dict(_values(data, a, b)).get(1, 0))

    def source(self, frame: int) -> str:
        """``file:line`` of a frame, numbered from 1; empty where it is not there."""
        if not 0 < frame <= len(self._frames):
            return ""
        place = self._frames[frame - 1]
        if not 0 < place <= len(self._lines):
            return ""
        file, line = self._lines[place - 1]
        return f"{self._files[file - 1]}:{line}" if 0 < file <= len(self._files) else ""


def _values(data: mmap.mmap, begin: int, end: int) -> Iterator[tuple[int, int]]:
    return ((number, value) for number, _, _, value in walk(data, begin, end))


def _text(data: mmap.mmap, begin: int, end: int) -> str:
    if end - begin > 1 << 16:
        raise DamageError("a name of more than 64 KiB")
    return data[begin:end].decode("utf-8", "replace")


def _stem(name: str) -> str:
    """A kernel's or instruction's name without its number: alike ones have the same."""
    return _NUMBER.sub("", name)
