"""Compiled programs, as the profile holds them: which line of Python an instruction comes from.

XLA fuses operations into kernels that it names after the fusion, so that a kernel inside a command
buffer (a CUDA graph), of which the profile only says which buffer it is in, still leads to its
instruction: ``loop_add_fusion_3`` is the instruction ``loop_add_fusion.3``. What a library computes
(cuBLAS, cuDNN) has the library's names, and there no instruction is told.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from stepscope.importers.common.protobuf import DamageError, walk
from stepscope.importers.xplane.space import Plane, Span

# HloProto, HloModuleProto, HloComputationProto, HloInstructionProto, OpMetadata in
# xla/service/hlo.proto and xla/xla_data.proto
_MODULE: Final = 1
_MODULE_NAME, _COMPUTATIONS, _STACKS = 1, 3, 17
_COMPUTATION_ID, _INSTRUCTIONS = 5, 2
_ENTRY_ID: Final = 6
_NAME, _METADATA = 1, 7
_SCOPE, _FILE, _LINE, _FRAME = 2, 3, 4, 15
_FILES, _FUNCTIONS, _LOCATIONS, _FRAMES = 1, 2, 3, 4
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_]")
_ID: Final = re.compile(r"\(\d+\)$")
_SUFFIX: Final = re.compile(r"\.kd$")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a compiled program.

    Attributes:
        name: its name in HLO.
        scope: path of the traced functions, as in ``jit(step)/jvp()/dot_general``.
        source: ``file:line`` in Python; empty where nothing is told.
    """

    name: str
    scope: str
    source: str


@dataclass
class Program:
    """The instructions of one module, by what its kernels are called."""

    by_kernel: dict[str, Instruction] = field(default_factory=dict)
    by_name: dict[str, Instruction] = field(default_factory=dict)

    def instruction(self, kernel: str, operation: str) -> Instruction | None:
        """What a kernel computes.

        Args:
            kernel: its name.
            operation: the instruction that the profile names, or the command buffer it lies in.
        """
        found = self.by_name.get(operation)
        return found or self.by_kernel.get(_SUFFIX.sub("", kernel))

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
        for instruction in last:  # the outermost ones are those that become kernels
            program.add(instruction)
    return program


def _instruction(data: mmap.mmap, begin: int, end: int, lines: _Stacks | None) -> Instruction:
    name = scope = source = ""
    for number, a, b, _ in walk(data, begin, end):
        if number == _NAME:
            name = _text(data, a, b)
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
    return Instruction(name, scope, source)


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
