"""What the page is told about a timeline, as JSON. The page's TypeScript is made from these types.

Times are whole ns on the job's clock; arrays that are texts are base64 of little-endian numbers.
"""

from __future__ import annotations

from typing import Final, Literal, TypedDict

# --- tracks --------------------------------------------------------------------------------------


class DrawnClass(TypedDict):
    """A class of what is drawn."""

    key: str
    message: str
    meaning: str
    colour: str


class LegendEntry(TypedDict):
    """What a colour means."""

    key: str
    colour: str
    message: str
    section: str


class Classes(TypedDict):
    """What is drawn, the position is the code; what colours mean; those of causes without time."""

    classes: list[DrawnClass]
    legend: list[LegendEntry]
    causes: dict[str, str]


class Missing(TypedDict):
    """A table that a trace lacks."""

    table: str
    reason: str
    flag: str


class RankInfo(TypedDict):
    """A rank's trace; what is added to its times to be on the job's clock, ns."""

    rank: int
    path: str
    source: str
    host: str
    offset: int
    missing: list[Missing]


class TrackInfo(TypedDict):
    """A track without its content."""

    id: int
    title: str
    group: str
    kind: Literal["slices", "counter"]
    table: str
    path: str
    rank: int
    thread: int
    device: int
    explained: bool
    unit: str


class TimelineLayout(Classes):
    """The tracks of a timeline."""

    begin: int
    end: int
    members: list[RankInfo]
    tracks: list[TrackInfo]


Kind = Literal["f8", "f4", "u4", "u1"]

ROW_ARRAYS: Final[dict[str, Kind]] = {
    **{"start": "f8", "end": "f8", "row": "u4", "name": "u4", "code": "u1"},
    **{"column": "u4", "share": "f4", "dominant": "u1", "count": "u4"},
}
"""Arrays of one depth of a track: slices, then columns of those that are too short to be drawn."""
COUNTER_ARRAYS: Final[dict[str, Kind]] = {
    **{"column": "u4", "low": "f4", "high": "f4", "last": "f4"},
    **{"before": "f4", "limits": "f4"},
}


class TileRow(TypedDict):
    """Arrays of one depth of a track: kind, place behind the header, length."""

    track: int
    depth: int
    arrays: dict[str, tuple[Kind, int, int]]


class TileHeader(TypedDict):
    """What stands before the arrays of a tile."""

    begin: int
    bucket: int
    columns: int
    depths: dict[int, int]
    rows: list[TileRow]
    names: dict[int, str]


# --- rows ----------------------------------------------------------------------------------------


class Place(TypedDict):
    """Where a row is drawn."""

    track: int
    row: int
    depth: int
    start: int
    end: int
    name: str


class Links(TypedDict):
    """Rows that one is linked to: whether they come later, and how many more there are."""

    message: str
    forward: bool
    ends: list[Place]
    more: int


class SameName(TypedDict):
    """Rows of one name on a track: how many, which of them this one is, ns of all."""

    count: int
    number: int
    total: int


_Class = TypedDict("_Class", {"class": str})


class Details(Place, _Class):
    """A row in full."""

    table: str
    facts: list[tuple[str, str | int | float | bool]]
    same: SameName
    arrows: Links
    links: list[Links]


class NamedRows(TypedDict):
    """Rows of one name, and one of them."""

    name: str
    count: int
    total: int
    track: int
    row: int


class Hits(TypedDict):
    """Rows whose names match."""

    total: int
    hits: list[Place]
    names: list[NamedRows]


class FoundInstance(TypedDict):
    """Where a cause is seen, what is responsible, and kernels of other ranks that wait then."""

    begin: int
    end: int
    cost: int
    rank: int
    what: str
    tracks: list[int]
    thread: int
    responsible: list[Responsible]
    waiting: list[Place]


class Responsible(Place):
    """What is responsible, and for how long."""

    overlap: int


class Instance(FoundInstance):
    """Which it is of how many, the largest first, and whether it is the typical one."""

    number: int
    of: int
    typical: bool


# --- windows -------------------------------------------------------------------------------------


class DeviceStatistics(TypedDict):
    """Where a device's time goes, ns."""

    title: str
    busy: dict[str, int]
    idle: int
    idle_by_cause: dict[str, int]
    categories: dict[str, int]
    kernels: list[NamedRows]


class ThreadStatistics(TypedDict):
    """CUDA calls of a thread that begin in the window, and ns by class inside it."""

    title: str
    calls: int
    kinds: dict[str, int]


class Statistics(TypedDict):
    """Where the time of a window goes."""

    begin: int
    end: int
    devices: list[DeviceStatistics]
    threads: list[ThreadStatistics]


class TableColumns(TypedDict):
    """One row a group: quantiles are interpolated, shares are of the wall time of all devices."""

    group: list[int]
    names: list[list[str]]
    count: list[int]
    total_ns: list[int]
    mean_ns: list[float]
    median_ns: list[float]
    p95_ns: list[float]
    share: list[float]
    longest_kernel: list[str]


class TableAnswer(TypedDict):
    """GPU time by a key of ``GROUPINGS``, the longest first; groups ``left_out``."""

    by: str
    begin: int
    end: int
    wall_ns: int
    steps: int
    keys: list[str]
    left_out: int
    columns: TableColumns


class Instances(TypedDict):
    """Where the operations of one row of a table are drawn, in order of time."""

    total: int
    start: list[int]
    end: list[int]
    track: list[int]
    row: list[int]
    depth: list[int]


class FlameNodes(TypedDict):
    """Nodes of a tree; parents stand before their children."""

    parent: list[int]
    name: list[int]
    total: list[int]
    own: list[int]
    count: list[int]


class FlameAnswer(TypedDict):
    """A tree; ``left_out`` nodes are too light. The unit is ns or samples; ``kinds`` there are."""

    total: int
    left_out: int
    names: list[str]
    nodes: FlameNodes
    unit: str
    kinds: list[str]
    kind: str


class FlameOfWindow(FlameAnswer):
    """... and its window."""

    begin: int
    end: int


# --- steps side by side --------------------------------------------------------------------------


class Outlier(TypedDict):
    """An outlier step, and what takes longer in it than in a normal one."""

    step: int
    normal: int
    excess_ns: int
    message: str


class DeviceSteps(TypedDict):
    """The steps of one device in short."""

    rank: int
    device: int
    found: str
    message: str
    set_aside: str
    first: int
    last: int
    count: int
    median: int
    outliers: list[Outlier]
    ranges: list[str]


class DeviceFigures(DeviceSteps):
    """... and figures of each; times are packed as doubles."""

    missing: int
    begin: str
    end: str
    zero: str
    columns: dict[str, str]


class StepsAnswer(DeviceFigures):
    """... what the devices are called, and which it is."""

    titles: list[str]
    number: int


GridArray = Literal["busy", "busy_code", "idle", "idle_code", "phase"]


class GridHeader(TypedDict):
    """What stands before the arrays of a picture, which have one byte a cell, row by row."""

    rows: int
    columns: int
    group: int
    begin: int
    bucket: int
    arrays: list[GridArray]


# --- a page without a server ---------------------------------------------------------------------


class PackedFact(TypedDict, total=False):
    """A column of rows: its values, or codes of texts; -1 for nothing."""

    values: str
    texts: dict[int, str]
    codes: str


class PackedSlices(TypedDict):
    """Rows of a track."""

    start: str
    end: str
    depth: str
    name: str
    code: str
    facts: dict[str, PackedFact]


class PackedSamples(TypedDict):
    """Samples of a counter."""

    time: str
    value: str


class Extract(TypedDict):
    """A window of the timeline by itself."""

    layout: TimelineLayout
    tracks: dict[int, PackedSlices | PackedSamples]
    names: dict[int, str]


class PackedGroups(TypedDict):
    """Groups of the operations."""

    keys: list[str]
    names: dict[int, list[str]]
    code: str


class PackedTables(TypedDict):
    """The operations that tables are made of; bounds and first and last steady step by device."""

    start: str
    ns: str
    steady: str
    track: str
    row: str
    depth: str
    kernel: str
    kernels: dict[int, str]
    groups: dict[str, PackedGroups]
    bounds: list[list[int]]
    steps: list[tuple[int, int]]


class ExtractOfPanels(TypedDict):
    """What the panels need: no tables without GPU work, flame graphs by kind, weight and reverse.

    Links are five numbers each, see ``linked_rows``.
    """

    tables: PackedTables | None
    flames: dict[str, FlameAnswer]
    links: str


class PackedZero(TypedDict):
    """Time zero of each step, and how many lack it."""

    at: str
    missing: int


class PackedDevice(TypedDict):
    """The steps of one device: figures, time zero by alignment, pieces with codes by colouring."""

    figures: DeviceFigures
    zero: dict[str, PackedZero]
    start: str
    length: str
    step: str
    codes: dict[str, str]
    phases: bool


class PackedSteps(TypedDict):
    """The steps of all devices."""

    titles: list[str]
    devices: list[PackedDevice]
