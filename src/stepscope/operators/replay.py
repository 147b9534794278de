"""A small PyTorch program that runs an operator again, with the inputs that a trace recorded.

What a trace names is untrusted: nothing of it is written but names that are plain words, numbers,
booleans and short words in quotes.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from stepscope.activity.device import Reader
from stepscope.intervals.distinct import distinct_rows
from stepscope.operators.calltree import OPERATOR, call_tree
from stepscope.trace.errors import UsageError

_NAME: Final = re.compile(r"([A-Za-z_]\w{0,60})::([A-Za-z_]\w{0,90})")
_WORD: Final = re.compile(r"[\w.:+-]{0,40}")
_DTYPES: Final = {
    "float": "float32", "double": "float64", "c10::BFloat16": "bfloat16", "c10::Half": "float16",
    "int": "int32", "long int": "int64", "long": "int64", "short int": "int16", "short": "int16",
    "signed char": "int8", "unsigned char": "uint8", "bool": "bool",
    "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
    "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
}  # fmt: skip
"""Type of a tensor's elements as PyTorch records it -> as a program writes it."""
_SHOWN: Final = 3

_PROGRAM: Final = '''"""Runs {name} again with inputs that a profile recorded; made by Stepscope.

Values are random, tensors contiguous. Needs PyTorch and nothing else: python FILE [--device cpu]
"""

import argparse
import statistics
import time

import torch

NAMESPACE, OPERATOR = {namespace!r}, {operator!r}

CASES = [
    # (inputs, calls in the profile, recorded device time a call in us, recorded host time in us);
    # an input is a tensor ("t", shape, type), a list of such, or a value
{cases}
]


def made(given, device):
    if isinstance(given, list) and given and all(isinstance(one, tuple) for one in given):
        return [made(one, device) for one in given]
    if not isinstance(given, tuple):
        return given
    _, shape, kind = given
    dtype = getattr(torch, kind)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.float32 if dtype.is_floating_point else torch.complex64
        return torch.randn(shape, device=device, dtype=wide).to(dtype)
    return torch.zeros(shape, device=device, dtype=dtype)  # also valid as an index


def timed(call, device, repeats=30):
    for _ in range(5):
        call()
    found = []
    for _ in range(repeats):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            call()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) * 1e3)
        else:
            begin = time.perf_counter()
            call()
            found.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(found)


def bound(packet, arguments):
    """A call of the overload that takes these arguments, some of which go by name."""
    error = TypeError("no overload takes so many inputs")
    for name in packet.overloads():
        overload = getattr(packet, name)
        accepted = overload._schema.arguments
        if len(accepted) < len(arguments):
            continue
        pairs = list(zip(accepted, arguments))
        plain = [value for one, value in pairs if not one.kwarg_only]
        named = {{one.name: value for one, value in pairs if one.kwarg_only}}
        try:
            overload(*plain, **named)
        except Exception as why:
            error = why
        else:
            return lambda: overload(*plain, **named)
    raise error


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = parser.parse_args().device
    packet = getattr(getattr(torch.ops, NAMESPACE), OPERATOR)
    for inputs, calls, on_device, on_host in CASES:
        with torch.no_grad():
            try:
                call = bound(packet, [made(one, device) for one in inputs])
                spent = timed(call, device)
            except Exception as error:
                print(f"{{inputs}}: cannot be run again: {{str(error).splitlines()[0]}}")
                continue
        print(
            f"{{inputs}}: {{spent:.1f}} us; recorded {{on_device:.1f}} us on the device, "
            f"{{on_host:.1f}} us on the host, {{calls}} calls"
        )


if __name__ == "__main__":
    main()
'''


def replay_script(reads: Sequence[Reader], operator: str, limit: int) -> str:
    """The program.

    Args:
        reads: give the tables of each trace.
        operator: name of the operator, as ``aten::mm``.
        limit: distinct inputs to take, those of most time; 0 for all.

    Raises:
        UsageError: the traces hold no such operator, or not its shapes.
    """
    parts = _NAME.fullmatch(operator)
    if parts is None:
        raise UsageError(f"{operator[:60]!r} is no operator; name one as aten::mm")
    found: dict[tuple[str, str, str], list[float]] = {}
    near: dict[str, int] = {}
    for read in reads:
        tree = call_tree(read, python=False)
        table = tree.operators
        if not len(table):
            continue
        for text in table.texts["name"]:
            near[text] = near.get(text, 0) + 1
        rows = np.flatnonzero(tree.kind == OPERATOR)
        rows = rows[table.equals("name", operator)[tree.row[rows]]]
        rows = rows[table["input_shapes"][tree.row[rows]] >= 0]
        if not len(rows):
            continue
        of = tree.row[rows]
        columns = ("input_shapes", "input_types", "concrete_inputs")
        first, number = distinct_rows([table[column][of] for column in columns])
        sums = [
            np.bincount(number, weights=values[rows])
            for values in (np.ones(len(tree)), tree.device_ns, tree.duration_ns)
        ]
        for at, row in enumerate(first.tolist()):
            key = tuple(table.text(column, int(of[row])) for column in columns)
            before = found.setdefault(key, [0.0, 0.0, 0.0])  # type: ignore[arg-type]
            for place, values in enumerate(sums):
                before[place] += float(values[at])
    cases = []
    for key in sorted(found, key=lambda key: (-found[key][1], -found[key][2], key)):
        inputs = _inputs(*key)
        if inputs is not None:
            calls, device, host = found[key]
            cases.append(
                f"    ({inputs!r}, {round(calls)}, {device / calls / 1e3:.3f}, "
                f"{host / calls / 1e3:.3f}),"
            )
    if not cases:
        raise UsageError(_why_not(operator, near))
    return _PROGRAM.format(
        name=operator,
        namespace=parts[1],
        operator=parts[2],
        cases="\n".join(cases[: limit or None]),
    )


def _why_not(operator: str, known: dict[str, int]) -> str:
    if operator in known:
        return (
            f"the inputs of {operator} are not recorded, or are none that can be made again; "
            "capture with torch.profiler.profile(record_shapes=True)"
        )
    import difflib

    close = difflib.get_close_matches(operator, list(known), _SHOWN)
    close = [name for name in close if _NAME.fullmatch(name)]
    stated = f"; did you mean {', '.join(close)}?" if close else ""
    return f"the captures hold no operator {operator}{stated}"


def _inputs(shapes: str, types: str, scalars: str) -> list[Any] | None:
    """Inputs of one call as the program holds them; None where they cannot be made again."""
    try:
        sizes, kinds = json.loads(shapes), json.loads(types or "[]")
        values = json.loads(scalars or "[]")
        if not kinds:  # names of NVTX ranges tell sizes only
            kinds = ["float" if size else "" for size in sizes]
        found = [
            _input(size, str(kind), str(values[at]) if at < len(values) else "")
            for at, (size, kind) in enumerate(zip(sizes, kinds, strict=True))
        ]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    while found and found[-1] is None:  # arguments by keyword, and defaults
        found.pop()
    return found if any(isinstance(one, tuple | list) for one in found) else None


def _input(size: Any, kind: str, value: str) -> Any:
    if kind in _DTYPES:
        return "t", _sizes(size), _DTYPES[kind]
    if kind == "TensorList":
        return [("t", _sizes(one), "float32") for one in size]
    if not value:
        return None
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = value if _WORD.fullmatch(value) else None
    plain = found if isinstance(found, list | tuple) else [found]
    if all(isinstance(one, bool | int | float | type(None)) for one in plain):
        return list(found) if isinstance(found, tuple) else found
    return found if isinstance(found, str) and _WORD.fullmatch(found) else None


def _sizes(size: Any) -> list[int]:
    if not isinstance(size, list) or not all(isinstance(one, int) and one >= 0 for one in size):
        raise ValueError("no shape")
    return size
