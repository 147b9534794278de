"""A sixteenth set for one GPU: what hosts shuffle, ask, park, prune, file and decode.

Needs PyTorch and NumPy only; no weights are loaded. The kernels are few and large, so that the
device paces the repaired sides.
"""

from __future__ import annotations

import functools
import shutil
import sqlite3
import zlib
from pathlib import Path

import numpy as np
import torch
from fourth_programs import adam, fit, noise
from models import DEVICE, precision, size
from program import Program, Running
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


# --- what is inside a container, by muons ---------------------------------------------------------


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
    model = Crystal(inside, size(1280, 16), size(7, 2), told=repaired).to(DEVICE, SHORT)
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
    points, inside, width, parts = size(81_920, 16), size(96, 6), size(1024, 16), size(6, 2)
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


# --- currents of the sea, by few weights ----------------------------------------------------------


class Sparse(nn.Linear):
    """A layer of which a mask leaves some weights."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(inside, outside)
        self.register_buffer("mask", torch.ones(outside, inside))

    def forward(self, x: Tensor) -> Tensor:
        return fn.linear(x, self.weight * self.mask, self.bias)


@pair(
    "step_jitter",
    "ocean",
    "weights are ranked, and the smallest masked, every 1000 steps, not every 8",
    period=8,
)
def currents_weights_ranked_every_8(repaired: bool) -> Running:
    """A network for buoys is thinned out while it learns."""
    rows, inside, width = size(114_688, 16), size(512, 8), size(1792, 16)
    parts: list[nn.Module] = [Sparse(inside, width), nn.SiLU()]
    for _ in range(size(3, 2)):
        parts += [Sparse(width, width), nn.SiLU()]
    model = nn.Sequential(*parts, nn.Linear(width, 2)).to(DEVICE)
    layers = [part for part in model if isinstance(part, Sparse)]
    seen, current = noise(rows, inside), noise(rows, 2)
    every = 1000 if repaired else 8

    @torch.no_grad()
    def thin(number: int, _loss: Tensor) -> None:
        if number % every != every - 1:
            return
        sizes = torch.cat([layer.weight.abs().flatten() for layer in layers]).cpu().numpy()
        least = float(np.partition(sizes, len(sizes) // 2)[len(sizes) // 2])
        for layer in layers:
            layer.mask.copy_(layer.weight.abs() >= least)

    return fit(lambda: fn.mse_loss(model(seen).float(), current), adam(model), after=thin)


# --- a fleet's engines ----------------------------------------------------------------------------


@pair(
    "checkpoint_stall",
    "fleet",
    "the weights are filed for the fleet every 1000 steps, not every 10",
    period=10,
)
def ferries_weights_filed_every_10(repaired: bool) -> Running:
    """How much fuel will a ferry need? Ships read the weights from a database."""
    rows, inside, width = size(65_536, 16), size(256, 8), size(1024, 16)
    model = nn.Sequential(
        nn.Linear(inside, width), *(Wide(width) for _ in range(size(2, 2))), nn.Linear(width, 1)
    ).to(DEVICE)
    logs, fuel = noise(rows, inside), noise(rows)
    folder, every = Path(scratch()), 1000 if repaired else 10
    base = sqlite3.connect(folder / "fleet.db", check_same_thread=False)
    base.execute("CREATE TABLE weights (name TEXT PRIMARY KEY, value BLOB)")
    base.commit()

    def file_away(number: int, _loss: Tensor) -> None:
        if number % every != every - 1:
            return
        with base:  # one transaction: ships see all of the new weights or none
            for name, value in model.state_dict().items():
                data = memoryview(value.cpu().numpy()).cast("B")
                base.execute("INSERT OR REPLACE INTO weights VALUES (?, ?)", (name, data))

    def close() -> None:
        base.close()
        shutil.rmtree(folder, ignore_errors=True)

    run = fit(lambda: fn.l1_loss(model(logs)[:, 0].float(), fuel), adam(model), after=file_away)
    return Running(run.step, run.enter, close=close)


# --- bridges that hum -----------------------------------------------------------------------------


class Hums(Dataset[tuple[Tensor, int]]):
    """Recordings of bridges, compressed; some are kept as they were decoded."""

    def __init__(self, recordings: int, shape: tuple[int, int], kept: int | None) -> None:
        rng = np.random.default_rng(7)
        self.shape = shape
        some = np.cumsum(rng.integers(-3, 4, shape, dtype=np.int16), 1, dtype=np.int16)
        self.packed = [
            zlib.compress(np.roll(some, 8 * i, 0).tobytes(), 1) for i in range(recordings)
        ]
        self.decoded = functools.lru_cache(maxsize=kept)(self.decode)

    def decode(self, number: int) -> Tensor:
        data = np.frombuffer(bytearray(zlib.decompress(self.packed[number])), dtype=np.int16)
        return torch.from_numpy(data).view(self.shape)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        number = index % len(self.packed)
        return self.decoded(number), number % 10


@pair(
    "input_starvation",
    "structures",
    "the cache of decoded recordings holds all 48; of 32, read in turn, none was left when needed",
)
def bridges_cache_smaller_than_epoch(repaired: bool) -> Running:
    batch, frames, inside, width = size(16, 2), size(1024, 8), size(256, 8), size(1536, 16)
    data = Hums(size(48, 6), (frames, inside), None if repaired else size(32, 4))
    model = nn.Sequential(
        nn.Linear(inside, width), *(Wide(width) for _ in range(size(4, 2))), nn.Linear(width, 10)
    ).to(DEVICE, SHORT)
    batches = iter(DataLoader(data, batch, pin_memory=CUDA))

    def loss_of() -> Tensor:
        heard, bridge = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        said = model(heard.to(SHORT).div_(64.0)).float().mean(1)
        return fn.cross_entropy(said, bridge)

    return fit(loss_of, adam(model), bf16=False, settle=4)
