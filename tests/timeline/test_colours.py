"""Each colour has one meaning, can be told from those beside it, and stands out from the page."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import stepscope
from stepscope.diagnosis.cause import causes
from stepscope.render import palette
from stepscope.timeline.classes import CLASSES
from stepscope.timeline.colours import (
    COLOURS,
    NAMED,
    OF_CAUSE,
    Colour,
    colour_of,
    drawn_classes,
    meaning,
)

XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
SIGHT = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
         [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip
LEAST = {"all cones": 20.0, "protanopia": 8.0, "deuteranopia": 6.5, "tritanopia": 8.0}
"""Distance in CIELAB of colours that stand in one row; some 2 can just be told apart."""

WORK = [k for k, c in COLOURS.items() if c.section in ("What the GPU does", "Kernels by category")]
COPIES = [k for k, c in COLOURS.items() if c.section == "Copies by direction"]
IDLE = [meaning(key) for key in CLASSES if key.startswith("idle_")]
BUSY = ["compute", "communication", "copy", "memset"]
ROWS = {
    "a stream": [*WORK, *COPIES],
    "idle time": IDLE,
    "a step": [*IDLE, *BUSY],
    "phases of a step": ["forward", "backward", "optimizer", "phase_none", *BUSY],
    "calls": ["launch", "sync", "copy_call", "allocation", "module", "other"],
    "states of a thread": ["running", "runnable", "sleeping", "disk", "stopped"],
    "steps": ["steady", "aside"],
    "memory": [key for key in COLOURS if key.startswith("held_")],
}


def linear(css: str) -> np.ndarray:
    value = np.array([int(css[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = XYZ @ rgb / (XYZ @ np.ones(3))
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def apart(one: str, other: str, sight: str = "all cones") -> float:
    seen = [lab(np.clip(SIGHT[sight] @ linear(css), 0, 1)) for css in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("row", ROWS)
def test_colours_of_one_row_are_told_apart(row: str, sight: str) -> None:
    least = LEAST[sight] if row != "steps" else 15
    close = [
        (one, other, apart(COLOURS[one].css, COLOURS[other].css, sight))
        for one, other in itertools.combinations(dict.fromkeys(ROWS[row]), 2)
    ]
    assert [found for found in close if found[2] < least] == []


def test_no_colour_has_two_meanings() -> None:
    all_ = {key: colour.css for key, colour in COLOURS.items()}
    all_ |= {f"name {i}": css for i, css in enumerate(NAMED)}
    pairs = itertools.combinations(all_.items(), 2)
    assert [(a, b) for (a, one), (b, other) in pairs if apart(one, other) < 5] == []


def test_what_had_one_colour_has_several() -> None:
    for group in (
        ("idle_blocking_copy", "busy_compute", "kernel_matmul"),
        ("idle_input_starvation", "kernel_optimizer"),
        ("idle_host_sync", "busy_communication"),
    ):
        assert len({colour_of(key) for key in group}) == len(group)
    assert COLOURS[OF_CAUSE["straggler"]].css not in {
        colour_of("idle_host_sync"),
        colour_of("busy_communication"),
    }


def test_calls_have_the_colour_of_the_idle_time_that_they_cause() -> None:
    for call, cause in (
        ("api_sync", "idle_host_sync"),
        ("api_launch", "idle_launch_bound"),
        ("api_copy", "idle_blocking_copy"),
        ("api_allocation", "idle_allocator_churn"),
        ("lock_waiting", "idle_gil_contention"),
    ):
        assert colour_of(call) == colour_of(cause)


@pytest.mark.parametrize(("key", "colour"), COLOURS.items())
def test_colours_stand_out_from_both_pages(key: str, colour: Colour) -> None:
    if key in ("found", "counter"):
        return  # framed in black; filled and outlined
    light = float((XYZ @ linear(colour.css))[1]) + 0.05
    dark = float((XYZ @ linear("#14181e"))[1]) + 0.05
    assert 1.05 / light >= 1.4
    assert light / dark >= 1.2


def test_every_class_and_cause_has_a_colour() -> None:
    assert [c["key"] for c in drawn_classes()] == list(CLASSES)
    for cause in causes():
        known = f"idle_{cause}" in CLASSES or cause in OF_CAUSE
        assert known or cause == "insufficient_data"


def test_all_views_draw_from_one_place() -> None:
    page = Path(stepscope.__file__).parent / "server" / "ui" / "src"
    neutral = {"#10141a", "#ffffff", "#85898f"}  # text on a box, and a class that nobody knows
    for file in page.rglob("*.ts"):
        found = set(re.findall(r"#[0-9a-f]{6}\b", file.read_text(encoding="utf-8")))
        assert found <= neutral, file.name
    assert palette.KINDS["compute"] == colour_of("busy_compute")
    assert {key[5:]: colour_of(key) for key in CLASSES if key.startswith("idle_")} == palette.CAUSES
