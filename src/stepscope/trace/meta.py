"""What a trace says about itself: the content of ``meta.json``."""

from __future__ import annotations

import msgspec

from stepscope.trace.checksums import StoredFile
from stepscope.trace.problems import Problem
from stepscope.trace.schema import SCHEMA_VERSION


class MissingTable(msgspec.Struct, frozen=True):
    """A canonical table that the source does not hold.

    Attributes:
        table: canonical table name, or ``osrt`` for the calls of the operating system's runtime,
            a part of ``api_call``.
        reason: why it is absent, in one sentence.
        flag: the capture flag or option that would provide it.
    """

    table: str
    reason: str
    flag: str


class Meta(msgspec.Struct, kw_only=True):
    """Metadata of one trace.

    Attributes:
        schema_version: layout version of the tables beside this file.
        source: ``nsys``, ``kineto``, ... : which importer read it.
        source_version: version of the tool that wrote the input, where it says so.
        input_name: file name of the input, without folder.
        input_digest: content key of the input (BLAKE2b, hexadecimal).
        origin_epoch_ns: wall-clock time of time zero, ns since 1970; None where unknown.
        window_start_ns: begin of the captured window, ns since the origin.
        window_end_ns: end of the captured window, ns since the origin.
        rank: this process's rank; None where the source does not say.
        rank_source: where the rank was read from (metadata, environment, file name, ...).
        world_size: number of ranks of the job; None where unknown.
        hostname: machine; empty where unknown.
        command: command line; empty where unknown.
        capture_options: what the capture recorded, e.g. ``{"with_stack": "1"}``.
        environment: driver and library versions, e.g. ``{"cuda_driver": "13000"}``.
        rows: number of rows of every table present.
        missing: tables the source does not hold, and how to get them.
        problems: counted import problems.
        files: what the file of each table was when it was written; None in what earlier versions
            stored, where damage is not noticed.
    """

    schema_version: int = SCHEMA_VERSION
    source: str = ""
    source_version: str = ""
    input_name: str = ""
    input_digest: str = ""
    origin_epoch_ns: int | None = None
    window_start_ns: int = 0
    window_end_ns: int = 0
    rank: int | None = None
    rank_source: str = ""
    world_size: int | None = None
    hostname: str = ""
    command: str = ""
    capture_options: dict[str, str] = msgspec.field(default_factory=dict)
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    rows: dict[str, int] = msgspec.field(default_factory=dict)
    missing: list[MissingTable] = msgspec.field(default_factory=list)
    problems: list[Problem] = msgspec.field(default_factory=list)
    files: dict[str, StoredFile] | None = None
