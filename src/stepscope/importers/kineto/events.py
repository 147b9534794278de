"""The shape of trace events, their fast decoding, and a tolerant one for near-JSON.

One struct holds every field that is read from any kind of event. Fields stand in the order in
which Kineto writes them, because the decoder looks for the next key after the last one found.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, Generic, Literal, TypeVar

import msgspec

MISSING = -(2**63)
"""Stands for an absent integer until the column is written."""

NO_TEXT = msgspec.Raw(b"")
NO_TRIPLE = (MISSING, MISSING, MISSING)
_NAN = math.nan

Time = TypeVar("Time", float, Decimal)
Word = TypeVar("Word", bound=str)
KnownWord = Literal[
    "X",
    "s",
    "f",
    "i",
    "M",
    "cpu_op",
    "kernel",
    "cuda_runtime",
    "cuda_driver",
    "ac2g",
    "fwdbwd",
    "python_function",
    "gpu_memcpy",
    "gpu_memset",
    "user_annotation",
    "gpu_user_annotation",
    "overhead",
    "cpu_instant_event",
    "cuda_sync",
    "Trace",
]


def _key(name: str, default: Any = MISSING) -> Any:
    return msgspec.field(default=default, name=name)


class Args(msgspec.Struct, gc=False):
    """What the ``args`` object of an event may hold; ``Raw`` fields are JSON text.

    ``grid`` is a text in operators that are kernels of Triton, as Inductor writes its launch.
    """

    external_id: int | None = _key("External id")
    sequence_number: int | None = _key("Sequence number")
    forward_thread: int | None = _key("Fwd thread id")
    concrete_inputs: msgspec.Raw = _key("Concrete Inputs", NO_TEXT)
    input_types: msgspec.Raw = _key("Input type", NO_TEXT)
    input_shapes: msgspec.Raw = _key("Input Dims", NO_TEXT)
    device: int | None = _key("device")
    context: int | None = _key("context")
    stream: int | str | None = _key("stream")
    correlation: int | None = _key("correlation")
    registers: int | None = _key("registers per thread")
    shared_bytes: int | None = _key("shared memory")
    grid: tuple[int, int, int] | str | None = _key("grid", NO_TRIPLE)
    block: tuple[int, int, int] | None = _key("block", NO_TRIPLE)
    graph_id: int | None = _key("graph id")
    graph_node_id: int | None = _key("graph node id")
    bytes: int | None = _key("bytes")
    python_parent_id: int | None = _key("Python parent id")
    python_id: int | None = _key("Python id")
    total_reserved: int | None = _key("Total Reserved")
    total_allocated: int | None = _key("Total Allocated")
    memory_bytes: int | None = _key("Bytes")
    device_id: int | None = _key("Device Id")
    device_type: int | None = _key("Device Type")
    address: int | None = _key("Addr")
    in_device: int | None = _key("inDevice")
    in_context: int | None = _key("inContext")
    old_external_id: int | None = _key("external id")
    wait_on_event: int | None = _key("wait_on_cuda_event_id")
    collective: msgspec.Raw = _key("Collective name", NO_TEXT)
    in_elements: msgspec.Raw = _key("In msg nelems", NO_TEXT)
    out_elements: msgspec.Raw = _key("Out msg nelems", NO_TEXT)
    group_size: msgspec.Raw = _key("Group size", NO_TEXT)
    dtype: msgspec.Raw = _key("dtype", NO_TEXT)
    in_splits: msgspec.Raw = _key("In split size", NO_TEXT)
    out_splits: msgspec.Raw = _key("Out split size", NO_TEXT)
    group_name: msgspec.Raw = _key("Process Group Name", NO_TEXT)
    group_description: msgspec.Raw = _key("Process Group Description", NO_TEXT)
    group_ranks: msgspec.Raw = _key("Process Group Ranks", NO_TEXT)
    sequence: msgspec.Raw = _key("Seq", NO_TEXT)
    rank: msgspec.Raw = _key("Rank", NO_TEXT)
    trace_rank: msgspec.Raw = _key("rank", NO_TEXT)
    size: msgspec.Raw = _key("size", NO_TEXT)
    name: msgspec.Raw = _key("name", NO_TEXT)
    labels: msgspec.Raw = _key("labels", NO_TEXT)


class Event(msgspec.Struct, Generic[Time, Word], gc=False):
    """One trace event. ``ts`` and ``dur`` are microseconds."""

    ph: Word = ""  # type: ignore[assignment]
    cat: Word = ""  # type: ignore[assignment]
    name: str = ""
    pid: int | str | None = MISSING
    tid: int | str | None = MISSING
    ts: Time = _NAN  # type: ignore[assignment]
    dur: float = _NAN
    args: Args | None = None
    id: int | str | None = MISSING


NO_ARGS = Args()

KNOWN = msgspec.json.Decoder(list[Event[float, KnownWord]])
"""Decodes an array of events of today's categories; these words cost no new objects."""

FLOAT = msgspec.json.Decoder(list[Event[float, str]])
"""The same for any category. Exact to the nanosecond for times below 2**43 microseconds."""

DECIMAL = msgspec.json.Decoder(list[Event[Decimal, str]])
"""The same with exact decimal times, for microseconds since 1970 with a fraction."""

STRICT_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a strict decoder raises for text that it does not accept."""


_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|(?<![\w.])[-+]?(?:nan|inf(?:inity)?)\b(?:\(ind\))?', re.I | re.S
)
_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)', re.S)
_NAME = re.compile(r'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|id|args|s)"\s*:)', re.S)
_ARGS = re.compile(r',\s*"args"\s*:\s*\{')
_BARE_QUOTE = re.compile(r'(?<!\\)"')
_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")

_INT_ARGS = {
    field.encode_name: field.name
    for field in msgspec.structs.fields(Args)
    if field.default == MISSING
}
_RAW_ARGS = {
    field.encode_name: field.name
    for field in msgspec.structs.fields(Args)
    if field.type is msgspec.Raw
}
_TRIPLES = ("grid", "block")


def repair(text: str) -> tuple[str, int, int]:
    """Turn near-JSON, as profilers have written it, into JSON.

    Returns:
        The text with numbers that are not finite as null, and backslashes that escape nothing
        doubled; how many such numbers, and how many strings that JSON forbids, there were.
    """
    numbers = strings = 0

    def token(match: re.Match[str]) -> str:
        nonlocal numbers, strings
        found = match.group()
        if found.startswith('"'):
            mended = _ESCAPE.sub(lambda m: m[0] if m[1] else r"\\", found)
            strings += mended != found or _CONTROL.search(found) is not None
            return mended
        numbers += 1
        return "null"

    return _TOKEN.sub(token, text), numbers, strings


class Tolerant:
    """Decodes single events that the strict decoder refused, counting what it had to mend.

    Attributes:
        invalid_text: events with control characters, invalid UTF-8 or invalid escapes.
        invalid_number: values that are not finite numbers, read as absent.
        bad_value: values of another type than the field has, read as absent.
    """

    def __init__(self) -> None:
        self.invalid_text = 0
        self.invalid_number = 0
        self.bad_value = 0

    def decode(self, raw: bytes, *, exact: bool) -> Event[Any, Any] | None:
        """Decode the text of one event.

        Args:
            raw: text from ``{`` to ``}``.
            exact: keep decimal times, as ``DECIMAL`` does.

        Returns:
            The event, or None when the text is not one JSON object.
        """
        text = raw.decode("utf-8", "replace")
        mended, numbers, strings = repair(text)
        found = _load(mended, exact=exact)
        if found is None:  # profilers write annotations with bare quotes in their names
            quoted = _NAME.sub(
                lambda m: m[1] + _BARE_QUOTE.sub(r'\\"', m[2]) + m[3], mended, count=1
            )
            found = _load(quoted, exact=exact)
            strings += 1
        if found is None:
            return None
        self.invalid_number += numbers
        event = self._event(found)
        self.invalid_text += bool(
            strings or "\ufffd" in text or event.name != found.get("name", "")
        )
        return event

    def salvage(self, raw: bytes, *, exact: bool) -> Event[Any, Any] | None:
        """Decode an event without its ``args``, which could not be decoded.

        Args:
            raw: text from ``{`` to ``}``.
            exact: keep decimal times, as ``DECIMAL`` does.
        """
        args = _ARGS.search(raw.decode("utf-8", "replace"))
        if args is None:
            return None
        event = self.decode(args.string[: args.start()].encode() + b"}", exact=exact)
        self.bad_value += event is not None
        return event

    def _event(self, found: dict[str, Any]) -> Event[Any, Any]:
        args = found.get("args")
        event: Event[Any, Any] = Event(
            ph=_clean(found.get("ph", "")),
            cat=_clean(found.get("cat") or ""),
            name=_clean(found.get("name", "")),
            pid=_identifier(found.get("pid")),
            tid=_identifier(found.get("tid")),
            ts=_time(found.get("ts")),
            dur=_time(found.get("dur"), exact=False),
            args=self._args(args) if isinstance(args, dict) else None,
            id=_identifier(found.get("id")),
        )
        return event

    def _args(self, found: dict[str, Any]) -> Args:
        args = Args()
        for key, value in found.items():
            if value is None:
                continue
            if key in _RAW_ARGS:
                setattr(args, _RAW_ARGS[key], msgspec.Raw(_json_text(value)))
            elif key in _INT_ARGS:
                number = _integer(value)
                if number is not None:
                    setattr(args, _INT_ARGS[key], number)
                elif key != "stream":  # ROCm writes addresses there
                    self.bad_value += 1
            elif key in _TRIPLES:
                numbers = [_integer(v) for v in value] if isinstance(value, list) else []
                if len(numbers) == len(NO_TRIPLE) and None not in numbers:
                    setattr(args, key, tuple(numbers))
                elif key == "grid" and isinstance(value, str):
                    args.grid = value
                else:
                    self.bad_value += 1
        return args


def _load(text: str, *, exact: bool) -> dict[str, Any] | None:
    """The JSON object that a text is; None when it is not one."""
    number = Decimal if exact else float
    try:
        found = json.loads(text, strict=False, parse_float=number, parse_constant=float)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _clean(value: Any) -> str:
    """Text without control characters and lone surrogates."""
    return _CONTROL.sub("\ufffd", value if isinstance(value, str) else str(value))


def _json_text(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, default=float)
    return text.encode("utf-8", "replace")


def _identifier(value: Any) -> int | str:
    return value if isinstance(value, int | str) else MISSING


def _integer(value: Any) -> int | None:
    """The integer that a JSON value states, also as text; None where it states none."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number == value or isinstance(value, str) else None


def _time(value: Any, *, exact: bool = True) -> Any:
    """Microseconds; NaN where the value is no finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        return math.nan
    return value if exact and isinstance(value, int | Decimal) else number
