"""Stored tracks show what built ones show, and read only what is looked at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.build import Build
from tests.support.captures import DATA, unpack
from tests.support.tiles import decode

from stepscope.api import Job
from stepscope.api.inputs import bundled_capture
from stepscope.api.stored import DIAGNOSIS, TRACKS
from stepscope.cache.arrays import ArrayFile, ArrayWriter, NotWholeError
from stepscope.cache.store import Cache
from stepscope.intervals import mipmap
from stepscope.intervals.lod import Columns
from stepscope.timeline import stored
from stepscope.timeline.stored import StoredSlices
from stepscope.timeline.track import Slices, slices
from stepscope.timeline.writing import write_slices
from stepscope.trace.errors import GivenUpError, StorageError

Ints = npt.NDArray[np.int64]
ids = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(0, 400), st.integers(0, 3)),
    min_size=1,
    max_size=120,
)


def built(rows: list[tuple[int, int, int]]) -> Slices:
    table = np.array(sorted((s, -n, k) for s, n, k in rows), np.int64)
    start, end = table[:, 0], table[:, 0] - table[:, 1]
    number = np.arange(len(rows))
    return slices(start, end, number % 7, table[:, 2].astype(np.uint8), number)


def stored_as(made: Slices, folder: Path, offset: int = 0) -> StoredSlices:
    writer = ArrayWriter(folder / "slices.npz")
    reply = write_slices(writer, "0", made)
    writer.close({})
    file = ArrayFile(folder / "slices.npz")
    return StoredSlices(file, "0", reply, offset, lambda names: names)


def shares(
    made: Slices, window: tuple[Ints, Columns], begin: int, bucket: int, count: int
) -> npt.NDArray[np.float64]:
    """Busy share of each column of one depth: of its columns and of what is shown one by one."""
    rows, columns = window
    found = np.zeros(count)
    found[columns.index] += columns.covered_ns
    edges = begin + bucket * np.arange(count + 1)
    moments = np.zeros(count)
    reach = begin
    for row in rows.tolist():  # slices of one depth may overlap in part
        low, high = max(int(made.start[row]), reach), int(made.end[row])
        reach = max(reach, high)
        moments += np.maximum(np.minimum(edges[1:], high) - np.maximum(edges[:-1], low), 0)
    return (found + moments) / bucket


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids, st.integers(0, 9), st.integers(-3, 40), st.integers(1, 60))
def test_a_level_says_what_the_slices_say(
    tmp_path: Path, rows: list[tuple[int, int, int]], power: int, first: int, count: int
) -> None:
    """At every width that is a power of two: the same columns and the same slices, exactly."""
    bucket = 1 << power
    begin = first * bucket
    made = built(rows)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mipmap, "FEWEST", 1)
        patched.setattr(mipmap, "SMALLER", 1)
        patched.setattr(mipmap, "LEAST_COLUMNS", 2)
        kept = stored_as(made, tmp_path)
    assert kept.depths == made.depths
    for wanted, got in zip(
        made.window(begin, bucket, count), kept.window(begin, bucket, count), strict=True
    ):
        assert got[0].tolist() == wanted[0].tolist()
        for field in ("index", "covered_ns", "count"):
            assert getattr(got[1], field).tolist() == getattr(wanted[1], field).tolist()
        # where two classes cover as much, either may be shown
        covers = got[1].covered_ns > 0
        assert set(got[1].dominant[covers].tolist()) <= set(made.code.tolist())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids, st.integers(1, 700), st.integers(-50, 2000), st.integers(1, 40), st.integers(-99, 99))
def test_any_width_on_any_clock_is_right_within_a_pixel(
    tmp_path: Path,
    rows: list[tuple[int, int, int]],
    bucket: int,
    begin: int,
    count: int,
    offset: int,
) -> None:
    """What no level fits is made from a narrower one: no slice is lost, no share far off."""
    made = built(rows)
    moved = built([(s + offset, n, k) for s, n, k in rows])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mipmap, "FEWEST", 1)
        patched.setattr(mipmap, "SMALLER", 1)
        kept = stored_as(made, tmp_path, offset)
    for wanted, got in zip(
        moved.window(begin, bucket, count), kept.window(begin, bucket, count), strict=True
    ):
        assert got[0].tolist() == wanted[0].tolist()
        one, other = (np.cumsum(shares(moved, w, begin, bucket, count)) for w in (wanted, got))
        assert np.abs(one - other).max(initial=0) <= 0.25  # columns
        # what begins at the edge of the window may be counted on its other side
        inside = slice(1, count - 1)
        begun = [np.bincount(w[1].index, w[1].count, count) for w in (wanted, got)]
        assert (
            np.abs(np.cumsum(begun[0]) - np.cumsum(begun[1]))[inside].max(initial=0)
            <= max(np.bincount((moved.start - begin) // bucket % count).max(), 1) * 2
        )


def test_every_slice_is_in_every_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short events never vanish: each level counts or shows all of them."""
    monkeypatch.setattr(mipmap, "FEWEST", 1)
    random = np.random.default_rng(3)
    rows = [(int(s), int(n), 0) for s, n in zip(
        random.integers(0, 10**7, 5000), random.lognormal(4, 2, 5000).astype(int), strict=True
    )]  # fmt: skip
    made = built(rows)
    kept = stored_as(made, tmp_path)
    low, high = kept._levels.powers()
    assert high > low
    for power in range(low, high + 1):
        columns = (int(made.end.max()) >> power) + 1
        shown = sum(
            len(long) + int(c.count.sum()) for long, c in kept.window(0, 1 << power, columns)
        )
        assert shown == len(made)


def test_levels_are_bounded_by_the_track(tmp_path: Path) -> None:
    """All levels together have fewer entries than there are slices."""
    random = np.random.default_rng(4)
    start = np.cumsum(random.integers(1, 3000, 60_000))
    end = start + random.integers(1, 1500, 60_000)
    number = np.arange(60_000)
    made = slices(start, end, number % 9, (number % 5).astype(np.uint8), number)
    kept = stored_as(made, tmp_path)
    levels = kept._levels
    assert 0 < len(levels.index) + len(levels.long) < len(made)
    assert (tmp_path / "slices.npz").stat().st_size < 45 * len(made)


def test_a_window_of_a_large_track_touches_few_rows(tmp_path: Path) -> None:
    """Counted, not timed: a picture reads a bounded number of rows, however long the track is."""
    touched: list[int] = []

    class Counted(np.ndarray[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            found = self.view(np.ndarray)[key]
            if not isinstance(key, slice):  # a slice is a view: nothing is read
                touched.append(np.size(found))
            return found

    n = 300_000
    start = np.arange(n) * 1000
    number = np.arange(n)
    made = slices(start, start + 700, number % 9, (number % 5).astype(np.uint8), number)
    kept = stored_as(made, tmp_path)
    for name in ("start", "end", "code"):
        object.__setattr__(kept, name, getattr(kept, name).view(Counted))
    width = 1500
    whole = 1 << int(np.log2(n * 1000 / width))
    for bucket in (whole, whole * 3 // 2, whole >> 6, 1 << 10, 1 << 4):
        touched.clear()
        middle = n * 500 // bucket * bucket
        list(kept.window(middle - width // 2 * bucket, bucket, width))
        assert sum(touched) < 40 * width, bucket
        assert sum(touched) < n // 5


# --- a whole job -----------------------------------------------------------------------------


def kept_job(cache: Path, capture: Path | None = None) -> Job:
    path = capture or bundled_capture()
    job = Job([path], cache=Cache(cache))
    job.views.store_timeline(lambda _: None)
    return Job([path], cache=Cache(cache))


@pytest.fixture
def small_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mipmap, "FEWEST", 64)


@pytest.fixture(scope="module")
def small_kept(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The bundled capture, its timeline stored with levels that only large ones have otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mipmap, "FEWEST", 64)
        return kept_job(tmp_path_factory.mktemp("small") / "cache")


def test_stored_and_built_timelines_give_the_same_answers(
    tmp_path: Path, small_levels: None, small_kept: Job
) -> None:
    fresh = Job([bundled_capture()], cache=Cache(tmp_path / "other"))
    kept = small_kept
    assert kept.timeline.stored[0] is not None
    assert fresh.timeline.stored[0] is None
    assert kept.timeline.layout() == fresh.timeline.layout()
    random = np.random.default_rng(2)
    plain = [t.id for t in fresh.timeline.tracks if not t.explained]
    begin, span = fresh.timeline.begin_ns, fresh.timeline.end_ns - fresh.timeline.begin_ns
    for power in range(8, 22, 2):  # what a page of 128 pixels and more asks for
        low = (begin + int(random.integers(0, span))) >> power << power
        one, other = (s.timeline.tile(plain, low, 1 << power, 700) for s in (fresh, kept))
        for wanted, got in zip(named(decode(one)), named(decode(other)), strict=True):
            assert got[:3] == wanted[:3]
            for key in wanted[3]:
                assert got[3][key] == wanted[3][key], (key, power)
    for number in plain:
        content = fresh.timeline.track(number).slices
        assert kept.timeline.track(number).slices.id.tolist() == content.id.tolist()
        for row in random.integers(0, max(1, len(content)), min(5, len(content))).tolist():
            assert kept.views.asker.row(number, row) == fresh.views.asker.row(number, row)
            for step in (-1, 1):
                for same in (True, False):
                    asked = (number, row, step)
                    assert kept.views.asker.near(*asked, same=same) == fresh.views.asker.near(
                        *asked, same=same
                    )
    for text, regex in (("gemm", False), ("data", False), ("^cuda.*Launch", True), ("[", False)):
        assert kept.views.asker.search(text, regex=regex) == fresh.views.asker.search(
            text, regex=regex
        )
    half = begin + span // 3, begin + span // 2
    assert kept.views.statistics(*half, explained=False) == fresh.views.statistics(
        *half, explained=False
    )


def named(tile: dict[str, Any]) -> list[Any]:
    """What a tile shows, with names instead of their numbers."""
    return [
        (
            row["track"],
            row["depth"],
            [tile["names"][str(n)] for n in row["arrays"].get("name", [])],
            {k: np.asarray(v).tolist() for k, v in row["arrays"].items() if k != "name"},
        )
        for row in tile["rows"]
    ]


@pytest.mark.parametrize("power", [14, 17, 20, 22])
def test_every_pixel_of_a_stored_level_says_what_sql_says(
    small_levels: None, small_kept: Job, power: int
) -> None:
    job = small_kept
    stream = next(t for t in job.timeline.tracks if t.title == "Stream 7")
    content = stream.slices
    assert isinstance(content, StoredSlices)
    bucket, count = 1 << power, 300
    begin = (30_000_000 >> power) << power
    answer = job.query(
        f"""
        WITH c AS (SELECT {begin} + i * {bucket} AS low, {begin} + (i + 1) * {bucket} AS high, i
                   FROM range({count}) t(i))
        SELECT i, sum(least(end_ns, high) - greatest(start_ns, low))::DOUBLE AS busy
        FROM c JOIN gpu_op ON start_ns < high AND end_ns > low GROUP BY i ORDER BY i
        """
    ).to_pydict()
    expected = np.zeros(count)
    expected[answer["i"]] = answer["busy"]
    (window,) = content.window(begin, bucket, count)
    got = shares(content, window, begin, bucket, count) * bucket
    assert got.tolist() == pytest.approx(expected.tolist(), abs=1e-3)


def test_the_diagnosis_is_kept_with_what_it_shows(tmp_path: Path) -> None:
    from stepscope.server.background import diagnosis_of

    first = kept_job(tmp_path / "cache")
    assert first.views.diagnosed() is None
    answer = diagnosis_of(first)
    first.views.store_diagnosis(answer)
    again = Job([bundled_capture()], cache=Cache(tmp_path / "cache"))
    again.views.explains_elsewhere = True  # nothing is explained again
    assert again.views.diagnosed() == answer
    fresh = Job([bundled_capture()], cache=Cache(tmp_path / "other"))
    for title in ("Steps", "Idle, by cause"):
        number = next(t.id for t in fresh.timeline.tracks if t.title == title)
        one, other = (s.timeline.track(number).slices for s in (fresh, again))
        assert one.start.tolist() == other.start.tolist()
        assert [fresh.timeline.names.texts[n] for n in one.name] == [
            again.timeline.names.texts[n] for n in other.name
        ]
        # the first and the last slice of each cause, and each step
        rows = {int(np.flatnonzero(one.name == n)[end]) for n in set(one.name) for end in (0, -1)}
        for row in sorted(rows):
            assert fresh.views.asker.row(number, row) == again.views.asker.row(number, row)
    # another path to the same capture has another diagnosis: it names the path
    link = tmp_path / "link.sqlite"
    link.symlink_to(bundled_capture())
    assert Job([link], cache=Cache(tmp_path / "cache")).views.diagnosed() is None


def test_without_a_diagnosis_a_large_job_is_not_explained_here(tmp_path: Path) -> None:
    job = kept_job(tmp_path / "cache")
    job.views.explains_elsewhere = True
    idle = next(t.id for t in job.timeline.tracks if t.explained)
    with pytest.raises(Exception, match="not explained yet"):
        job.timeline.track(idle)


def test_ranks_keep_their_clock(tmp_path: Path) -> None:
    captures = [unpack(p, tmp_path) for p in sorted((DATA.parent / "ranks").glob("*.xz"))]
    first = Job(captures, cache=Cache(tmp_path / "cache"))
    offsets = list(first.timeline.offsets_ns)
    assert first.views.stored_timeline_is_missing()
    first.views.store_timeline(lambda _: None)
    again = Job(captures, cache=Cache(tmp_path / "cache"))
    assert not again.views.stored_timeline_is_missing()
    assert again.timeline.offsets_ns == offsets
    assert all(one is not None for one in again.timeline.stored)
    moved = next(i for i, offset in enumerate(offsets) if offset)
    for one, other in zip(first.timeline.tracks, again.timeline.tracks, strict=True):
        assert (one.path, one.title) == (other.path, other.title)
        if one.rank_trace == moved and not one.explained:
            assert one.slices.start.tolist() == other.slices.start.tolist()
            wanted = [first.timeline.names.texts[n] for n in one.slices.name[:50]]
            assert [again.timeline.names.texts[n] for n in other.slices.name[:50]] == wanted
    assert again.views.asker.search("nccl", regex=False) == first.views.asker.search(
        "nccl", regex=False
    )


# --- files that cannot be used -------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["cut", "empty", "index", "tail", "head", "text"])
def test_a_damaged_file_is_not_read_and_made_anew(tmp_path: Path, harm: str) -> None:
    job = kept_job(tmp_path / "cache")
    assert job.timeline.stored[0] is not None
    path = job.timeline.stored[0].file.path
    del job
    data = path.read_bytes()
    path.unlink()  # other processes map the old file: it is replaced, never changed
    path.write_bytes(
        {
            "cut": data[: len(data) // 2],
            "empty": b"",
            "index": data[:-60] + b"\0" * 20 + data[-40:],
            "tail": data[:-22] + b"STEPARR0" * 3,
            "head": b"STEPARR0" + data[8:],
            "text": b"not a file of ours" * 100,
        }[harm]
    )
    again = Job([bundled_capture()], cache=Cache(tmp_path / "cache"))
    assert again.views.stored_timeline_is_missing()
    assert again.timeline.stored[0] is None
    assert again.timeline.tile([2], 0, 1 << 20, 100)
    again.views.store_timeline(lambda _: None)
    assert path.read_bytes() == data


def flipped(path: Path) -> None:
    """Flip a bit in the middle, in a file of its own: others have the old one mapped."""
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 16
    path.unlink()
    path.write_bytes(bytes(data))


def tracks_of(job: Job) -> Path:
    assert job.timeline.stored[0] is not None
    return job.timeline.stored[0].file.path


def test_a_flipped_bit_in_a_small_file_makes_it_absent(tmp_path: Path) -> None:
    job = kept_job(tmp_path / "cache")
    path = tracks_of(job)
    whole = path.read_bytes()
    flipped(path)
    again = Job([bundled_capture()], cache=Cache(tmp_path / "cache"))
    assert again.views.stored_timeline_is_missing()
    again.views.store_timeline(lambda _: None)
    assert path.read_bytes() == whole


def test_a_flipped_bit_in_a_large_file_is_told_to_who_meets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.cache.arrays._SMALL_BYTES", 0)
    job = kept_job(tmp_path / "cache")
    path = tracks_of(job)
    assert job.views.timeline_is_whole()
    flipped(path)
    again = Job([bundled_capture()], cache=Cache(tmp_path / "cache"))
    assert not again.views.stored_timeline_is_missing()  # both ends are sound
    with pytest.raises(StorageError, match="damaged and has been removed"):
        list(map(again.timeline.track, [track.id for track in again.timeline.tracks]))
    assert not path.exists()


def test_a_flipped_bit_in_a_large_file_is_found_by_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.cache.arrays._SMALL_BYTES", 0)
    path = tracks_of(kept_job(tmp_path / "cache"))
    flipped(path)
    again = Job([bundled_capture()], cache=Cache(tmp_path / "cache"))
    assert not again.views.timeline_is_whole()
    assert not path.exists()
    assert Job(
        [bundled_capture()], cache=Cache(tmp_path / "cache")
    ).views.stored_timeline_is_missing()


def test_a_flipped_bit_in_a_stored_diagnosis_makes_it_absent(tmp_path: Path) -> None:
    job = kept_job(tmp_path / "cache")
    job.views.store_diagnosis(b"{}")
    assert job.views.diagnosed() == b"{}"
    path = next((tmp_path / "cache").rglob(f"{DIAGNOSIS}.npz"))
    data = path.read_bytes()
    at = data.index(b"{}")
    path.unlink()
    path.write_bytes(data[:at] + b"[}" + data[at + 2 :])
    again = Job([bundled_capture()], cache=Cache(tmp_path / "cache"))
    assert again.views.diagnosed() is None


def test_files_of_another_version_or_trace_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_job(tmp_path / "cache")
    monkeypatch.setattr(stored, "REVISION", stored.REVISION + 1)
    job = Job([bundled_capture()], cache=Cache(tmp_path / "cache"))
    assert job.views.stored_timeline_is_missing()


def test_a_trace_folder_that_changed_is_stored_anew(tmp_path: Path) -> None:
    def trace(name: str, at: float) -> Path:
        b = Build()
        b.kernel(at, at + 5, call=(1, 2), name="k")
        (tmp_path / name).mkdir(exist_ok=True)
        return b.trace(tmp_path / name).folder

    one = trace("one", 10)
    job = kept_job(tmp_path / "cache", one)
    assert not job.views.stored_timeline_is_missing()
    assert not list(one.glob("*.npz"))  # never beside the input
    for file in trace("two", 30).iterdir():
        file.replace(one / file.name)
    again = Job([one], cache=Cache(tmp_path / "cache"))
    assert again.views.stored_timeline_is_missing()
    stream = next(t for t in again.timeline.tracks if t.title == "Stream 7")
    assert stream.slices.start.tolist() == [30_000]


def test_half_written_files_are_never_read(tmp_path: Path) -> None:
    cache, path = Cache(tmp_path), tmp_path / "x.npz"

    def interrupted() -> None:
        with cache.replacing(path) as file, ArrayWriter(file) as writer:
            writer.add("a", np.arange(5))
            looked_at()
            raise KeyboardInterrupt

    def looked_at() -> None:
        (part,) = tmp_path.glob("tmp-*")
        with pytest.raises(NotWholeError):
            ArrayFile(part)
        assert not path.exists()
        os.utime(part, (0, 0))  # old, but somebody is writing it
        cache.shrink()
        assert part.exists()

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_any_numpy_reads_them(tmp_path: Path) -> None:
    writer = ArrayWriter(tmp_path / "x.npz")
    writer.add("a", np.arange(5))
    writer.add("ä/b", iter([np.arange(3), np.arange(2)]), "<u2", 5)
    writer.add("none", np.zeros(0, np.uint8))
    writer.close({"said": 1}, "of this")
    file = ArrayFile(tmp_path / "x.npz", "of this")
    assert file.about == {"said": 1}
    with np.load(tmp_path / "x.npz") as found:
        assert found["a"].tolist() == file["a"].tolist() == [0, 1, 2, 3, 4]
        assert found["ä/b"].tolist() == file["ä/b"].tolist() == [0, 1, 2, 0, 1]
        assert found["none"].tolist() == file["none"].tolist() == []
    for name in ("a", "ä/b"):  # whoever searches it copies nothing
        assert file[name].ctypes.data % 64 == 0
    with pytest.raises(NotWholeError):
        ArrayFile(tmp_path / "x.npz", "of that")


def test_an_interrupted_store_leaves_nothing(tmp_path: Path) -> None:
    job = Job([bundled_capture()], cache=Cache(tmp_path / "cache"))

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.views.store_timeline(stop)
    assert job.views.stored_timeline_is_missing()
    assert not list((tmp_path / "cache").rglob("tmp-*"))


def test_the_cache_counts_and_removes_them(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    job = Job([bundled_capture()], cache=cache)
    before = cache.entries()[0].bytes
    former = cache.entries()[0].folder / "timeline.arrays"  # of a version before
    former.write_bytes(b"STEPARR1")
    job.views.store_timeline(lambda _: None)
    assert not former.exists()
    path = next((tmp_path / "cache").rglob(f"{TRACKS}.npz"))
    assert cache.entries()[0].bytes == before + path.stat().st_size
    assert not list((tmp_path / "cache").rglob(f"{DIAGNOSIS}.npz"))


# --- a question that nobody waits for any more ---------------------------------------------------


def test_a_superseded_tile_stops_after_the_row_it_is_at(tmp_path: Path) -> None:
    job = Job([bundled_capture()], cache=Cache(tmp_path / "cache"))
    asked: list[int] = []

    def gone() -> bool:
        asked.append(1)
        return len(asked) > 3

    plain = [t.id for t in job.timeline.tracks if not t.explained]
    with pytest.raises(GivenUpError):
        job.timeline.tile(plain, 0, 1 << 20, 100, gone)
    assert len(asked) == 4
    made = [t for t in job.timeline.tracks if t._content is not None]
    assert len(made) < len(plain)  # the others were not even built


def test_looking_makes_no_entry_of_a_folder_elsewhere(tmp_path: Path) -> None:
    b = Build()
    b.kernel(10, 20, call=(1, 2), name="k")
    folder = b.trace(tmp_path).folder
    job = Job([folder], cache=Cache(tmp_path / "cache"))
    assert job.timeline.tile([2], 0, 1 << 10, 10)
    assert job.views.diagnosed() is None
    assert not (tmp_path / "cache").exists()
    job.views.store_timeline(lambda _: None)
    assert len(Cache(tmp_path / "cache").entries()) == 1
