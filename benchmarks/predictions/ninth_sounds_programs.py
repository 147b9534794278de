"""Programs of the ninth set for one GPU that hear sounds, and one that sees series.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, done, precision, size, transformer_layers
from program import Program, Running
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 155 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- sound ------------------------------------------------------------------------------------


def mels(bins: int, frequencies: int) -> Tensor:
    """Triangles over frequencies, wider and wider apart."""
    edges = torch.linspace(0, 1, bins + 2).square() * (frequencies - 1)
    at, low, middle, high = torch.arange(frequencies), edges[:-2], edges[1:-1], edges[2:]
    up = (at[:, None] - low) / (middle - low).clamp_min(1e-3)
    down = (high - at[:, None]) / (high - middle).clamp_min(1e-3)
    return torch.minimum(up, down).clamp_min(0).to(DEVICE)


class Spectrogram(nn.Module):
    """The logarithm of a mel spectrogram, on the device."""

    def __init__(self, bins: int, points: int, hop: int) -> None:
        super().__init__()
        self.points, self.hop = points, hop
        self.register_buffer("window", torch.hann_window(points, device=DEVICE))
        self.register_buffer("bins", mels(bins, points // 2 + 1))

    def forward(self, wave: Tensor) -> Tensor:
        waves = torch.stft(wave, self.points, self.hop, window=self.window, return_complex=True)
        power = torch.view_as_real(waves).square().sum(-1)
        return (power.transpose(1, 2) @ self.bins + 1e-5).log().transpose(1, 2)


@pair("host_sync", "speech", "places of the masks are drawn by the host, not read from the device")
def jasper_masks_read_back(repaired: bool) -> Running:
    batch, samples, width, signs = size(32, 2), size(96_000, 512), size(640, 16), size(64, 5)
    bins = size(80, 16)
    heard = Spectrogram(bins, size(512, 64), size(160, 16))
    parts: list[nn.Module] = [nn.Conv1d(bins, width, 11, 2, 5, bias=False)]
    for _ in range(size(12, 2)):
        parts += [nn.BatchNorm1d(width), nn.ReLU(), nn.Conv1d(width, width, 11, 1, 5, bias=False)]
    model = nn.Sequential(*parts, nn.BatchNorm1d(width), nn.ReLU(), nn.Conv1d(width, signs, 1))
    model.to(DEVICE)
    wave = noise(batch, samples)
    frames = samples // heard.hop + 1
    y = labels(signs, batch, (frames + 1) // 2)
    dice = random.Random(0)

    def drawn(low: int, high: int) -> int:
        if repaired:
            return dice.randrange(low, high)
        return int(torch.randint(low, high, (1,), device=DEVICE))

    def masked(x: Tensor) -> Tensor:
        for one in x:
            wide = drawn(1, bins // 4)
            first = drawn(0, bins - wide)
            one[first : first + wide] = 0
            for _ in range(2):
                wide = drawn(1, frames // 8)
                first = drawn(0, frames - wide)
                one[:, first : first + wide] = 0
        return x

    def loss_of() -> Tensor:
        with torch.autocast(DEVICE.type, enabled=False):
            x = heard(wave)
            x = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3)
        return fn.cross_entropy(model(masked(x)).float(), y, label_smoothing=0.05)

    return fit(loss_of, adam(model), decay=True)


class Resounds(nn.Module):
    """Sound from a spectrogram: wider in time, and convolutions of three lengths; as HiFi-GAN."""

    def __init__(self, bins: int, width: int, rises: tuple[int, ...]) -> None:
        super().__init__()
        self.first, now = nn.Conv1d(bins, width, 7, 1, 3), width
        self.rises, self.fields = nn.ModuleList(), nn.ModuleList()
        for rise in rises:
            now //= 2
            self.rises.append(nn.ConvTranspose1d(2 * now, now, 2 * rise, rise, rise // 2))
            self.fields.append(
                nn.ModuleList(
                    nn.Conv1d(now, now, k, padding=d * (k // 2), dilation=d)
                    for k in (3, 7, 11)
                    for d in (1, 3)
                )
            )
        self.last = nn.Conv1d(now, 1, 7, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for rise, fields in zip(self.rises, self.fields, strict=True):
            x = rise(fn.leaky_relu(x, 0.1))
            total = torch.zeros_like(x)
            for near, far in zip(fields[::2], fields[1::2], strict=True):
                h = x + near(fn.leaky_relu(x, 0.1))
                total = total + h + far(fn.leaky_relu(h, 0.1))
            x = total / 3
        return self.last(fn.leaky_relu(x)).tanh()[:, 0]


class Periods(nn.Module):
    """Judges sound that is folded by so many samples."""

    def __init__(self, width: int, period: int) -> None:
        super().__init__()
        self.period = period
        sizes = [1, width, 4 * width, 8 * width, 8 * width]
        self.layers = nn.ModuleList(
            nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0)) for a, b in itertools.pairwise(sizes)
        )
        self.last = nn.Conv2d(sizes[-1], 1, (3, 1), 1, (1, 0))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = x[:, : x.shape[1] // self.period * self.period].view(x.shape[0], 1, -1, self.period)
        found = []
        for layer in self.layers:
            x = fn.leaky_relu(layer(x), 0.1)
            found.append(x)
        return [*found, self.last(x)]


@pair("larger_batch", "audio", "twice the batch", samples=2.0, marks="profiler")
def folded_vocoder_twice_the_batch(repaired: bool) -> Running:
    batch, bins, rises = size(8, 2) * (2 if repaired else 1), size(80, 8), (8, 8, 4)
    hop, samples = math.prod(rises), size(32, 4) * math.prod(rises)
    heard = Spectrogram(bins, size(1024, 512), hop)
    speaker = Resounds(bins, size(128, 16), rises).to(DEVICE)
    judges = nn.ModuleList(Periods(size(16, 2), n) for n in (2, 3, 5, 7, 11)).to(DEVICE)
    how = {"lr": 2e-4, "betas": (0.8, 0.99), "fused": True}
    speaks = torch.optim.AdamW(speaker.parameters(), **how)
    tells = torch.optim.AdamW(judges.parameters(), **how)
    wave = noise(batch, samples) * 0.1
    goal = heard(wave)
    given = goal[..., :-1].contiguous()

    def step() -> None:
        made = speaker(given)
        loss = torch.zeros((), device=DEVICE)
        for judge in judges:
            true, false = judge(wave)[-1], judge(made.detach())[-1]
            loss = loss + (1 - true).square().mean() + false.square().mean()
        loss.backward()
        done(tells)
        judges.requires_grad_(False)
        loss = 45 * fn.l1_loss(heard(made), goal)
        for judge in judges:
            with torch.no_grad():
                true = judge(wave)
            false = judge(made)
            loss = loss + (1 - false[-1]).square().mean()
            for a, b in zip(true[:-1], false[:-1], strict=True):
                loss = loss + 2 * fn.l1_loss(b, a)
        loss.backward()
        done(speaks)
        judges.requires_grad_(True)

    return Running(step, enter=precision("high"))


# --- series -----------------------------------------------------------------------------------


class Survey(IterableDataset[tuple[Tensor, Tensor, int]]):
    """Brightness of stars in shards; each is folded by the period that explains it best."""

    def __init__(self, shards: int, length: int, bands: int) -> None:
        self.shards, self.length, self.bands = shards, length, bands

    def star(self, number: int) -> tuple[Tensor, Tensor, int]:
        rng = np.random.default_rng(number)
        times = np.sort(rng.uniform(0, 400, self.length))
        true = rng.uniform(0.5, 20)
        x = np.sin(6.2832 * times / true + rng.uniform(0, 6.28, (self.bands, 1)))
        x = x + rng.standard_normal(x.shape) * 0.3
        x = (x - np.median(x, 1, keepdims=True)) / x.std(1, keepdims=True)
        best, period = -1.0, 1.0
        for tried in np.append(rng.uniform(0.5, 20, 23), true):
            place = (times / tried % 1.0 * 32).astype(np.int64)
            many = np.bincount(place, minlength=32) + 1e-3
            power = (np.bincount(place, x[0], 32) ** 2 / many).sum()
            if power > best:
                best, period = power, tried
        order = np.argsort(times / period % 1.0)
        phases = (times / period % 1.0)[order].astype(np.float32)
        curve = np.ascontiguousarray(x[:, order], dtype=np.float32)
        return torch.from_numpy(curve), torch.from_numpy(phases), number % 10

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        mine = range(self.shards)[first::every]
        if mine:
            for turn in itertools.count():
                for shard in mine:
                    yield from (self.star(1000 * (64 * turn + shard) + n) for n in range(1000))


class Stars(nn.Module):
    """Kinds of stars, by their folded curves in patches of four."""

    def __init__(self, width: int, layers: int, heads: int, bands: int) -> None:
        super().__init__()
        self.into = nn.Linear(4 * (bands + 1), width)
        parts = transformer_layers(width, layers, heads)
        self.layers = nn.Sequential(*parts, nn.LayerNorm(width))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        x = torch.cat([x, places[:, None]], 1)
        x = x.unflatten(-1, (-1, 4)).transpose(1, 2).flatten(2)
        return self.head(self.layers(self.into(x)).mean(1))


@pair(
    "input_starvation",
    "series",
    "the survey is cut into 24 shards, not 2, so that all 12 workers have some",
    marks="steps",
)
def star_shards_for_two_workers(repaired: bool) -> Running:
    length, bands, workers = size(1024, 32), 6, size(12, 1)
    data = Survey(24 if repaired else 2, length, bands)
    loader = DataLoader(
        data, size(64, 2), num_workers=workers, pin_memory=CUDA, prefetch_factor=2
    )  # fmt: skip
    batches: Any = iter(loader)
    model = Stars(size(512, 16), size(6, 1), size(8, 2), bands).to(DEVICE)

    def loss_of() -> Tensor:
        x, places, kinds = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        return fn.cross_entropy(model(x, places), kinds)

    run = fit(loss_of, adam(model), bf16=False, clip=1.0, settle=2 + 2 * workers)
    run.close = batches._shutdown_workers
    return run
