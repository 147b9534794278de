"""A sixteenth set for one GPU: what hosts shuffle, ask, park, prune, file, decode, check and free.

Needs PyTorch and NumPy only; no weights are loaded. The kernels are few and large, so that the
device paces the repaired sides.
"""

from __future__ import annotations

import functools
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, precision, size
from program import Program, Running, phase
from single_programs import entered, scratch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 303 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
SHORT = torch.bfloat16


class Wide(nn.Module):
    """A wide layer after a norm, beside what enters."""

    def __init__(self, width: int, times: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, times * width), nn.Linear(times * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(fn.silu(self.up(self.norm(x))))


# --- what is inside a container, by muons -----------------------------------------------------------


class Cargo(nn.Module):
    """How dense each cell of a container is, from the tracks that crossed it."""

    def __init__(self, inside: int, width: int, layers: int, cells: int) -> None:
        super().__init__()
        self.into = nn.Linear(inside, width)
        self.layers = nn.Sequential(*(Wide(width) for _ in range(layers)))
        self.out = nn.Linear(width, cells)

    def forward(self, tracks: Tensor) -> Tensor:
        h = self.layers(self.into(tracks))
        return self.out(h.mean(1))


@pair(
    "blocking_copy",
    "physics",
    "the scans are page-locked after they were shuffled, not before: an index makes a new tensor",
)
def muons_shuffled_after_pinning(repaired: bool) -> Running:
    scans, tracks, inside = size(24, 2), size(1024, 8), size(768, 8)
    model = Cargo(inside, size(1280, 16), size(4, 2), size(4096, 12)).to(DEVICE, SHORT)
    dense = torch.rand(scans, size(4096, 12), device=DEVICE)
    batches = 4
    some = torch.randn(scans, tracks, inside)
    known = torch.cat([some.roll(turn, 1) for turn in range(batches)])
    order = torch.randperm(len(known))
    if repaired:
        known = known[order]
        known = known.pin_memory() if CUDA else known
    else:
        known = known.pin_memory() if CUDA else known
        known = known[order]
    made = 0

    def loss_of() -> Tensor:
        nonlocal made
        first = made % batches * scans
        made += 1
        seen = known[first : first + scans].to(DEVICE, non_blocking=True)
        return fn.mse_loss(model(seen.to(SHORT)).float(), dense)

    return fit(loss_of, adam(model), bf16=False)


# --- crystals, each with an atom that is not there ------------------------------------------------


class Lattice(nn.Module):
    """Atoms tell their crystal, and the crystal tells all its atoms."""

    def __init__(self, width: int, *, told: bool) -> None:
        super().__init__()
        self.told, self.atoms = told, Wide(width)
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor, crystals: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        rows = len(x) if self.told else None
        owner = torch.repeat_interleave(counts, output_size=rows)
        sums = torch.zeros_like(crystals).index_add(0, owner, x)
        own = sums / counts[:, None].to(x.dtype)
        crystals = crystals + fn.silu(self.mix(self.norm(own)))
        spread = torch.repeat_interleave(crystals, counts, 0, output_size=rows)
        return self.atoms(x + spread), crystals


class Crystal(nn.Module):
    """The energy of a crystal."""

    def __init__(self, inside: int, width: int, layers: int, *, told: bool) -> None:
        super().__init__()
        self.into = nn.Linear(inside, width)
        self.layers = nn.ModuleList(Lattice(width, told=told) for _ in range(layers))
        self.out = nn.Linear(width, 1)

    def forward(self, atoms: Tensor, counts: Tensor) -> Tensor:
        x = self.into(atoms)
        crystals = x.new_zeros(len(counts), x.shape[1])
        for layer in self.layers:
            x, crystals = layer(x, crystals, counts)
        return self.out(crystals)[:, 0]


@pair(
    "host_sync",
    "materials",
    "repeat_interleave is told the number of atoms, so that it need not read the sum of counts",
)
def crystals_repeated_for_their_atoms(repaired: bool) -> Running:
    crystals, mean, inside = size(384, 4), size(40, 3), size(256, 8)
    counts = torch.full((crystals,), mean, device=DEVICE)
    counts[::2] += mean // 2  # small cells and large ones
    counts[1::2] -= mean // 2
    model = Crystal(inside, size(1024, 16), size(7, 2), told=repaired).to(DEVICE, SHORT)
    atoms = noise(crystals * mean, inside).to(SHORT)
    energies = torch.randn(crystals, device=DEVICE)

    def loss_of() -> Tensor:
        return fn.smooth_l1_loss(model(atoms, counts).float(), energies)

    return fit(loss_of, adam(model), bf16=False)


# --- wings ----------------------------------------------------------------------------------------


@pair(
    "cpu_offload",
    "aerodynamics",
    "the gradients that each part of the data gave last lie on the GPU, where there is room",
)
def wings_gradients_of_parts_on_cpu(repaired: bool) -> Running:
    """Pressure on a wing, learnt by SAGA: a step is corrected by the part's gradient before."""
    points, inside, width, parts = size(32_768, 16), size(96, 6), size(1024, 16), size(6, 2)
    model = nn.Sequential(
        nn.Linear(inside, width), *(Wide(width, 2) for _ in range(size(3, 2))), nn.LayerNorm(width),
        nn.Linear(width, 4),
    ).to(DEVICE)  # fmt: skip
    weights = list(model.parameters())
    update = torch.optim.SGD(weights, lr=1e-3, fused=True)
    wings, pressure = noise(points, inside), noise(points, 4)
    place = DEVICE if repaired else torch.device("cpu")
    before = [[torch.zeros_like(w, device=place) for w in weights] for _ in range(parts)]
    mean = [torch.zeros_like(w) for w in weights]
    made = 0

    def step() -> None:
        nonlocal made
        known = before[made % parts]
        made += 1
        with torch.autocast(DEVICE.type, SHORT):
            loss = fn.mse_loss(model(wings).float(), pressure)
        loss.backward()
        with torch.no_grad():
            grads = [w.grad for w in weights]
            change = [g - old.to(DEVICE) for g, old in zip(grads, known, strict=True)]
            for old, grad in zip(known, grads, strict=True):
                old.copy_(grad)
            for grad, by, m in zip(grads, change, mean, strict=True):
                grad.copy_(by + m)
            torch._foreach_add_(mean, change, alpha=1 / parts)
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))
