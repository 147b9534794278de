"""The file format of speedscope: one evented profile a track, times in nanoseconds."""

from __future__ import annotations

import json
from collections.abc import Iterator

from stepscope.export.pieces import CHUNK, begins_and_ends, pieces
from stepscope.timeline.timeline import Timeline


def write(timeline: Timeline) -> Iterator[bytes]:
    """The file, in parts."""
    yield b'{"$schema":"https://www.speedscope.app/file-format-schema.json","profiles":['
    first = True
    for track in timeline.tracks:
        if track.kind != "slices":
            continue
        for piece in pieces(timeline, track):
            if not len(piece.rows):
                continue
            content = track.slices
            time, begins, row = begins_and_ends(content, piece.rows)
            name = f"{timeline.group_of(track)} / {piece.title}"
            yield (
                ("" if first else ",")
                + f'{{"type":"evented","name":{json.dumps(name)},"unit":"nanoseconds",'
                + f'"startValue":{int(time[0])},"endValue":{int(time[-1])},"events":['
            ).encode()
            for at in range(0, len(time), CHUNK):
                part = slice(at, at + CHUNK)
                events = ",".join(
                    f'{{"type":"{"O" if begin else "C"}","frame":{frame},"at":{when}}}'
                    for begin, frame, when in zip(
                        begins[part].tolist(),
                        content.name[row[part]].tolist(),
                        time[part].tolist(),
                        strict=True,
                    )
                )
                yield ("," if at else "").encode() + events.encode()
            yield b"]}"
            first = False
    yield b'],"shared":{"frames":['
    texts = timeline.names.texts
    for at in range(0, len(texts), CHUNK):
        frames = ",".join(json.dumps({"name": text}) for text in texts[at : at + CHUNK])
        yield ("," if at else "").encode() + frames.encode()
    yield b']},"exporter":"stepscope"}\n'
