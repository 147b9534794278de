"""The file format of speedscope: one evented profile a track, times in nanoseconds."""

from __future__ import annotations

import json
from collections.abc import Iterator

from stepscope.analysis.timeline.timeline import Timeline
from stepscope.export.pieces import begins_and_ends, pieces

REFERENCE = "speedscope's file-format-schema"


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
            frames = content.name[row]
            events = ",".join(
                f'{{"type":"{"O" if begin else "C"}","frame":{frame},"at":{at}}}'
                for begin, frame, at in zip(
                    begins.tolist(), frames.tolist(), time.tolist(), strict=True
                )
            )
            name = f"{timeline.group_of(track)} / {piece.title}"
            yield (
                ("" if first else ",")
                + f'{{"type":"evented","name":{json.dumps(name)},"unit":"nanoseconds",'
                + f'"startValue":{int(time[0])},"endValue":{int(time[-1])},"events":[{events}]}}'
            ).encode()
            first = False
    texts = ",".join(json.dumps({"name": text}) for text in timeline.names.texts)
    yield f'],"shared":{{"frames":[{texts}]}},"exporter":"stepscope"}}\n'.encode()
