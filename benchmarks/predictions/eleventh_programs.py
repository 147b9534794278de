"""Programs of the eleventh set: welds, materials, spectra, shots, games; few and wide kernels.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import (
    DEVICE,
    Feeds,
    endless,
    graphed,
    half,
    precision,
    size,
    transformer_layers,
)  # fmt: skip
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 191 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
HALF = torch.float16 if CUDA else torch.bfloat16


def normed(before: int, after: int, stride: int = 1) -> nn.Module:
    """A convolution, normalised."""
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(True)
    )


# --- radiographs of welds ---------------------------------------------------------------------


class Seams(nn.Module):
    """What is wrong with each pixel of a weld, seen at three energies: two scales, joined."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.fine = nn.Sequential(normed(3, width), normed(width, width))
        self.coarse = nn.Sequential(normed(width, 2 * width, 2), normed(2 * width, 2 * width))
        self.rise = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.last = nn.Sequential(normed(2 * width, width), nn.Conv2d(width, classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x)
        return self.last(torch.cat([fine, self.rise(self.coarse(fine))], 1))


@pair(
    "host_sync",
    "vision",
    "overlaps of the classes are summed on the device and read every 100 steps",
)
def weld_tiles_overlap_of_classes(repaired: bool) -> Running:
    """Each tile's overlap is taken for every class as soon as it was looked at."""
    classes, parts, batch, side = size(5, 3), size(3, 2), size(12, 2), size(256, 16)
    model = Seams(size(128, 8), classes).to(DEVICE, memory_format=torch.channels_last)
    update = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True, fused=True)
    x = [
        noise(batch, 3, side, side).contiguous(memory_format=torch.channels_last)
        for _ in range(parts)
    ]
    y = [labels(classes, batch, side, side) for _ in range(parts)]
    totals: list[Any] = [0.0] * classes
    if repaired:
        totals = [torch.zeros((), device=DEVICE) for _ in range(classes)]
    shown: list[float] = []
    made = 0

    def meet(scores: Tensor, true: Tensor) -> None:
        guess = scores.argmax(1)
        for kind in range(classes):
            mine, right = guess == kind, true == kind
            overlap = (mine & right).sum() / (mine | right).sum().clamp(min=1)
            totals[kind] += overlap if repaired else overlap.item()

    def step() -> None:
        nonlocal made
        update.zero_grad(set_to_none=True)
        for part in range(parts):
            with half("bf16"):
                scores = model(x[part])
                loss = fn.cross_entropy(scores.float(), y[part]) / parts
            meet(scores.detach(), y[part])
            loss.backward()
        update.step()
        made += 1
        if made % 100 == 0:
            shown[:] = torch.stack(totals).tolist() if repaired else totals
            for kind in range(classes):
                totals[kind] *= 0

    return Running(step, enter=precision("high"))


# --- laws of materials ------------------------------------------------------------------------


def law(width: int, inside: int, outside: int) -> nn.Module:
    """Stress of strain and history."""
    parts: list[nn.Module] = [nn.Linear(inside, width), nn.SiLU()]
    for _ in range(3):
        parts += [nn.Linear(width, width), nn.SiLU()]
    return nn.Sequential(*parts, nn.Linear(width, outside))


@pair(
    "host_sync",
    "science",
    "elements of each material are looked up once, before the training; no mask in the step",
    marks="steps",
)
def material_laws_by_mask(repaired: bool) -> Running:
    """A law for each material of a structure; which element is of which never changes."""
    kinds, each, width = size(10, 3), size(20_480, 8), size(1536, 16)
    laws = nn.ModuleList(law(width, 16, 6) for _ in range(kinds)).to(DEVICE)
    update = adam(laws, weight_decay=0.0)
    material = (torch.arange(kinds * each) % kinds)[torch.randperm(kinds * each)].to(DEVICE)
    strains = [noise(kinds * each, 6) * 0.01 for _ in range(4)]
    history, stress = noise(kinds * each, 10), noise(kinds * each, 6)
    volume = torch.rand(kinds * each, device=DEVICE) + 0.5
    total = float(kinds * each)
    places = [(material == kind).nonzero()[:, 0] for kind in range(kinds)] if repaired else []
    made = 0

    def step() -> None:
        nonlocal made
        strain = strains[made % len(strains)]
        made += 1
        for kind, stiff in enumerate(laws):
            here = places[kind] if repaired else material == kind
            found = stiff(torch.cat([strain[here], history[here]], 1))
            off = (found - stress[here]).square().mean(1)
            loss = (off * volume[here]).sum() / total
            loss.backward()  # each law by itself, so that only its activations are kept
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- spectra of galaxies ----------------------------------------------------------------------


class Dense(nn.Module):
    """A wide layer beside its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.wide = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + fn.gelu(self.wide(self.norm(x)))


@pair(
    "host_sync",
    "science",
    "gradients are scaled by the smaller of one and the ratio, on the device; none is asked",
)
def spectra_gradients_clipped_if_large(repaired: bool) -> Running:
    """Adaptive clipping, each gradient by the norm of its weight; FP16 with scaled losses."""
    pixels, width, rows = size(4096, 32), size(3072, 16), size(12_288, 4)
    with DEVICE:
        parts = [Dense(width) for _ in range(size(10, 2))]
        into, out = nn.Linear(pixels, width, bias=False), nn.Linear(width, pixels, bias=False)
    model = nn.Sequential(into, *parts, out)
    update = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=CUDA, init_scale=2.0**14)
    x = noise(rows, pixels)
    hidden = torch.rand(rows, pixels, device=DEVICE) < 0.2
    seen = x.masked_fill(hidden, 0.0)
    weights = list(model.parameters())

    def clip(share: float = 0.01) -> None:
        for weight in weights:
            assert weight.grad is not None
            most = weight.detach().norm().clamp(min=1e-3) * share
            norm = weight.grad.norm()
            if repaired:
                weight.grad.mul_((most / (norm + 1e-6)).clamp(max=1.0))
            elif norm > most:
                weight.grad.mul_(most / (norm + 1e-6))

    def step() -> None:
        update.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, HALF):
            loss = fn.mse_loss(model(seen).float(), x)
        scaler.scale(loss).backward()
        scaler.unscale_(update)
        clip()
        scaler.step(update)
        scaler.update()

    return Running(step, enter=precision("high"))


# --- shots of a seismic survey ----------------------------------------------------------------


class Arrivals(nn.Module):
    """When the first wave reaches each receiver: patches of eight traces and eight samples."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(64, width, 1)
        self.body = nn.Sequential(*(normed(width, width) for _ in range(layers)))
        self.out = nn.Conv2d(width, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        patches = fn.pixel_unshuffle(x, 8).contiguous(memory_format=torch.channels_last)
        scores = self.out(self.body(self.into(patches)))  # each patch: its traces, then the time
        return scores.permute(0, 2, 1, 3).flatten(0, 2)


@pair(
    "blocking_copy",
    "science",
    "shots and picks are moved to page-locked memory once, so that non_blocking=True has an effect",
)
def shot_gathers_from_numpy(repaired: bool) -> Running:
    """All gathers lie in the host's memory as NumPy read them."""
    kept, batch, traces, samples = size(3, 2), size(24, 2), size(256, 16), size(2048, 64)
    rng = np.random.default_rng(0)
    gathers = rng.standard_normal((kept, batch, 1, traces, samples), dtype=np.float32)
    picks = rng.integers(0, samples // 8, (kept, batch * traces))
    shots, goals = torch.from_numpy(gathers), torch.from_numpy(picks)
    if repaired and CUDA:
        shots, goals = shots.pin_memory(), goals.pin_memory()
    model = Arrivals(size(512, 8), size(3, 1)).to(DEVICE, memory_format=torch.channels_last)
    turn = 0

    def loss_of() -> Tensor:
        nonlocal turn
        x = shots[turn % kept].to(DEVICE, non_blocking=True)
        y = goals[turn % kept].to(DEVICE, non_blocking=True)
        turn += 1
        return fn.cross_entropy(model(x).float(), y)

    return fit(loss_of, adam(model), decay=True)


# --- motion between pictures ------------------------------------------------------------------


class Motion(nn.Module):
    """Where each pixel goes, learnt from the pictures alone; TF32."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(96, width, 1)
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.LeakyReLU(0.1, inplace=True), nn.Conv2d(width, width, 3, 1, 1)]
        self.body, self.out = nn.Sequential(*parts), nn.Conv2d(width, 3, 1)

    def forward(self, both: Tensor) -> tuple[Tensor, Tensor]:
        patches = fn.pixel_unshuffle(both, 4).contiguous(memory_format=torch.channels_last)
        found = self.out(self.body(self.into(patches)))
        found = fn.interpolate(found, scale_factor=4.0, mode="bilinear")
        return found[:, :2].tanh() * 0.2, found[:, 2:].sigmoid()


@pair(
    "blocking_copy",
    "vision",
    "maps for the preview go to page-locked buffers that stay, on a stream of their own",
    marks="steps",
)
def flow_kept_for_the_preview(repaired: bool) -> Running:
    """What was found for the last four batches stays on the host; a preview is drawn seldom."""
    batch, rows, columns = size(8, 2), size(384, 16), size(512, 24)
    model = Motion(size(512, 8), size(5, 1)).to(DEVICE, memory_format=torch.channels_last)
    update = adam(model, fused=False, foreach=True)
    first, then = noise(batch, 3, rows, columns), noise(batch, 3, rows, columns)
    both = torch.cat([first, then], 1)
    down, across = torch.linspace(-1, 1, rows), torch.linspace(-1, 1, columns)
    grid = torch.stack(torch.meshgrid(down, across, indexing="ij")[::-1], -1).to(DEVICE)
    last: deque[Tensor] = deque(maxlen=4)
    buffers: list[Tensor] = []
    if repaired:
        buffers = [torch.empty(batch, 6, rows, columns, pin_memory=CUDA) for _ in range(4)]
    downwards = torch.cuda.Stream() if repaired and CUDA else None
    drawn: list[float] = []
    made = 0

    def keep(maps: Tensor) -> None:
        if not repaired:
            last.append(maps.cpu())
            return
        if downwards is None:
            buffers[made % 4].copy_(maps)
            return
        downwards.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(downwards):
            buffers[made % 4].copy_(maps, non_blocking=True)
        maps.record_stream(downwards)

    def step() -> None:
        nonlocal made
        way, covered = model(both)
        warped = fn.grid_sample(then, grid + way.permute(0, 2, 3, 1), align_corners=True)
        off = ((warped - first).square() + 1e-4).sqrt().mean(1, keepdim=True)
        rough = way.diff(dim=2).abs().mean() + way.diff(dim=3).abs().mean()
        loss = (off * (1 - covered) + 0.5 * covered).mean() + 0.1 * rough
        loss.backward()
        keep(torch.cat([way, warped, covered], 1).detach().contiguous())
        update.step()
        update.zero_grad(set_to_none=True)
        made += 1
        if made % 1000 == 0:
            if downwards is not None:
                downwards.synchronize()
            drawn[:] = [float(maps[0, 0].mean()) for maps in (buffers if repaired else last)]

    return Running(step, enter=precision("high"))


# --- captions, learnt from a reward -----------------------------------------------------------

RUNS = (1, 2, 3, 4)
"""Lengths of the runs of words that are compared with the true captions."""


def runs_of(words: list[int], n: int) -> Counter[tuple[int, ...]]:
    return Counter(zip(*(words[i:] for i in range(n)), strict=False))


def counted(said: list[list[int]], true: list[list[Counter[tuple[int, ...]]]]) -> list[float]:
    """The share of the runs of each caption that the true one has, each as often as there."""
    found = []
    for words, known in zip(said, true, strict=True):
        share = 0.0
        for n, right in zip(RUNS, known, strict=True):
            mine = runs_of(words, n)
            share += sum(min(many, right[run]) for run, many in mine.items()) / mine.total()
        found.append(share / len(RUNS))
    return found


def coded(words: Tensor, n: int, vocab: int) -> Tensor:
    """Each run of ``n`` words as one number."""
    places = words.shape[1] - n + 1
    code = words[:, :places]
    for i in range(1, n):
        code = code * vocab + words[:, i : i + places]
    return code


def compared(said: Tensor, true: list[Tensor], vocab: int) -> Tensor:
    """The same share, by comparing all runs with all on the device."""
    share = torch.zeros(len(said), device=DEVICE)
    for n, right in zip(RUNS, true, strict=True):
        code = coded(said, n, vocab)
        same = code[:, :, None] == code[:, None, :]
        known = (code[:, :, None] == right[:, None, :]).sum(2)
        earlier = same.tril(-1).any(2)
        share += (torch.minimum(same.sum(2), known) * ~earlier).sum(1) / code.shape[1]
    return share / len(RUNS)


class Captions(nn.Module):
    """A picture's patches look at each other; learnt queries, one for each word, look at them."""

    def __init__(self, width: int, layers: int, heads: int, words: int, vocab: int) -> None:
        super().__init__()
        self.into, self.heads = nn.Linear(size(768, 24), width), heads
        self.body = nn.Sequential(*transformer_layers(width, layers, heads), nn.LayerNorm(width))
        self.ask = nn.Parameter(torch.randn(words, width) * 0.02)
        self.kv, self.feeds = nn.Linear(width, 2 * width), Feeds(width)
        self.out = nn.Linear(width, vocab)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(self.into(x))
        b, t, d = x.shape
        k, v = self.kv(x).view(b, t, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        q = self.ask.to(k.dtype).view(1, -1, self.heads, d // self.heads).transpose(1, 2)
        q = q.expand(b, -1, -1, -1).contiguous()
        y = fn.scaled_dot_product_attention(q, k, v)
        return self.out(self.feeds(y.transpose(1, 2).reshape(b, -1, d)))


@pair(
    "host_compute",
    "vision",
    "runs of words are compared on the device, all with all, not counted by Python in the step",
)
def captions_runs_of_words_counted(repaired: bool) -> Running:
    """Captions are drawn, compared with the true ones, and learnt by how much they share."""
    batch, patches, words, vocab = size(192, 3), size(196, 8), size(24, 6), size(8192, 64)
    model = Captions(size(1024, 16), size(3, 1), size(16, 2), words, vocab).to(DEVICE)
    x, true = noise(batch, patches, size(768, 24)), labels(vocab, batch, words)
    known = [[runs_of(caption, n) for n in RUNS] for caption in true.tolist()]
    codes = [coded(true, n, vocab) for n in RUNS]

    def loss_of() -> Tensor:
        scores = model(x).float()
        with torch.no_grad():
            chance = torch.empty_like(scores).exponential_().log_()
            said = (scores - chance).argmax(-1)
            if repaired:
                reward = compared(said, codes, vocab)
            else:
                reward = torch.tensor(counted(said.tolist(), known), device=DEVICE)
            gain = reward - reward.mean()
        odds = -fn.cross_entropy(scores.flatten(0, 1), said.flatten(), reduction="none")
        return -(odds.view(batch, words).mean(1) * gain).mean()

    return fit(loss_of, adam(model), clip=1.0)


# --- losses that jump -------------------------------------------------------------------------


class Telling:
    """Whether a loss is far above the last ones, by the library's mean and deviation."""

    def __init__(self, losses: list[float]) -> None:
        self.last = deque(losses, maxlen=len(losses))

    def jumps(self, loss: float) -> bool:
        far = loss > statistics.mean(self.last) + 8 * statistics.stdev(self.last)
        if not far:
            self.last.append(loss)
        return far


class Summing(Telling):
    """The same by sums that are kept up to date; losses less the first mean, to be exact."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__(losses)
        self.about = statistics.fmean(losses)
        self.sum = sum(x - self.about for x in losses)
        self.squares = sum((x - self.about) ** 2 for x in losses)

    def jumps(self, loss: float) -> bool:
        n, x = len(self.last), loss - self.about
        spread = ((self.squares - self.sum**2 / n) / (n - 1)) ** 0.5
        if x > self.sum / n + 8 * spread:
            return True
        old = self.last[0] - self.about
        self.sum += x - old
        self.squares += x * x - old * old
        self.last.append(loss)
        return False


@pair(
    "host_compute",
    "language",
    "mean and deviation of the last losses are kept as sums, not computed anew in each step",
    others=("host_sync",),
    marks="phases",
)
def spikes_told_by_statistics(repaired: bool) -> Running:
    """A batch whose loss jumps is left out; 12,000 losses of the run before are known."""
    vocab, batch, length, width = size(8192, 64), size(12, 2), size(1024, 16), size(1536, 16)
    layers = transformer_layers(width, size(3, 1), size(16, 2), causal=True)
    body = nn.Sequential(nn.Embedding(vocab, width), *layers, nn.LayerNorm(width))
    model = nn.Sequential(body, nn.Linear(width, vocab, bias=False)).to(DEVICE)
    update = adam(model, weight_decay=0.1)
    rng = np.random.default_rng(0)
    before = rng.normal(np.log(vocab) + 0.2, 0.3, size(12_000, 20)).tolist()
    guard = (Summing if repaired else Telling)(before)
    ids = [labels(vocab, batch, length + 1) for _ in range(4)]
    made = left = 0

    def step() -> None:
        nonlocal made, left
        words = ids[made % len(ids)]
        made += 1
        with phase("forward"), half("bf16"):
            scores = model(words[:, :-1]).flatten(0, 1).float()
            loss = fn.cross_entropy(scores, words[:, 1:].flatten())
        if guard.jumps(loss.item()):
            left += 1
            return
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            update.step()
            update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- loaders ----------------------------------------------------------------------------------


def fed(
    data: Dataset[Any], batch: int, workers: int
) -> tuple[Callable[[], Any], Callable[[], object]]:
    """The next batch of a DataLoader, on the device, and what ends its workers."""
    more: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 2} if workers else {}
    loader = DataLoader(
        data, batch, num_workers=size(workers, min(workers, 1)), pin_memory=CUDA, **more
    )
    batches = endless(loader)

    def following() -> Any:
        return tuple(part.to(DEVICE, non_blocking=True) for part in next(batches))

    def close() -> None:
        batches.close()  # type: ignore[attr-defined]
        loader._iterator = None  # its workers end with it

    return following, close


class Sweeps(Dataset[tuple[Tensor, Tensor]]):
    """A laser's points around a car, turned by chance and counted in cells of three dimensions."""

    def __init__(self, points: int, side: int, levels: int) -> None:
        self.points, self.side, self.levels = points, side, levels

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rng, n, side = np.random.default_rng(index), self.points, self.side
        far = rng.gamma(2.0, 9.0, n)
        round_, high, shine = rng.uniform(0, 6.2832, n), rng.normal(0.5, 1.0, n), rng.random(n)
        turn = rng.uniform(0, 6.2832)
        places = np.stack([far * np.cos(round_), far * np.sin(round_)], 1)
        places = places @ np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        cells = np.floor((places + 50.0) * (side / 100.0)).astype(np.int64)
        level = np.clip((high + 2.0) * (self.levels / 5.0), 0, self.levels - 1).astype(np.int64)
        inside = ((cells >= 0) & (cells < side)).all(1)
        ground = cells[inside, 1] * side + cells[inside, 0]
        many = self.levels * side * side
        counts = np.bincount(level[inside] * side * side + ground, minlength=many)
        bright = np.zeros(side * side)
        np.maximum.at(bright, ground, shine[inside])
        counts = np.minimum(counts, 255).astype(np.int16).reshape(self.levels, side, side)
        planes = np.empty((self.levels + 1, side, side), np.uint8)
        planes[:-1], planes[-1] = counts, (bright * 255).reshape(side, side)
        rows = counts[:, ::2] + counts[:, 1::2]
        near = rows[:, :, ::2] + rows[:, :, 1::2]
        return torch.from_numpy(planes), torch.from_numpy(near.argmax(0))


@pair("input_starvation", "vision", "the DataLoader gets 10 workers instead of 2")
def sweeps_gridded_by_two(repaired: bool) -> Running:
    side, levels, width = size(192, 16), size(15, 3), size(512, 8)
    workers = 10 if repaired else 2
    draw, close = fed(Sweeps(size(30_000, 100), side, levels), size(12, 2), workers)
    model = nn.Sequential(
        normed(levels + 1, width // 4),
        normed(width // 4, width, 2),
        *(normed(width, width) for _ in range(size(7, 1))),
        nn.Conv2d(width, levels, 1),
    ).to(DEVICE, memory_format=torch.channels_last)

    def loss_of() -> Tensor:
        x, y = draw()
        x = x.to(torch.float32, memory_format=torch.channels_last) / 255
        return fn.cross_entropy(model(x).float(), y)

    run = fit(loss_of, adam(model), settle=2 + 2 * workers)
    run.close = close
    return run


class Games(Dataset[tuple[Tensor, Tensor]]):
    """Games of five in a row, replayed: the board before each move, and the lines on it."""

    def __init__(self, side: int, moves: int) -> None:
        self.side, self.moves = side, moves

    def __len__(self) -> int:
        return 1_000_000

    def line(self, board: dict[tuple[int, int], int], place: tuple[int, int]) -> int:
        """The longest line of one colour through this stone."""
        colour, most = board[place], 1
        for down, across in ((0, 1), (1, 0), (1, 1), (1, -1)):
            found = 1
            for sign in (1, -1):
                row, column = place[0] + sign * down, place[1] + sign * across
                while board.get((row, column)) == colour:
                    found += 1
                    row, column = row + sign * down, column + sign * across
            most = max(most, found)
        return most

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        order = np.random.default_rng(index).permutation(self.side**2)[: self.moves + 1].tolist()
        board: dict[tuple[int, int], int] = {}
        planes = np.zeros((self.moves, 5, self.side, self.side), np.float32)
        for number in range(self.moves):
            place = divmod(order[number], self.side)
            board[place] = number % 2
            here = planes[number]
            for (row, column), colour in board.items():
                mine = colour != number % 2  # who moves next did not move last
                here[0 if mine else 1, row, column] = 1.0
                here[2 if mine else 3, row, column] = self.line(board, (row, column)) / 5
            here[4, place[0], place[1]] = 1.0
        return torch.from_numpy(planes), torch.tensor(order[1:])


class Tower(nn.Module):
    """Two convolutions beside their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = normed(width, width)
        self.second = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(x + self.second(self.first(x)))


@pair(
    "input_starvation",
    "rl",
    "games are replayed by 8 workers of the DataLoader, not by the training thread",
)
def five_in_a_row_replayed(repaired: bool) -> Running:
    side, moves, games, width = size(15, 5), size(48, 4), size(20, 2), size(320, 8)
    workers = 8 if repaired else 0
    draw, close = fed(Games(side, moves), games, workers)
    model = nn.Sequential(
        normed(5, width), *(Tower(width) for _ in range(size(4, 1))), nn.Conv2d(width, 1, 1)
    ).to(DEVICE, memory_format=torch.channels_last)
    update = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)

    def loss_of() -> Tensor:
        boards, move = draw()
        x = boards.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        return fn.cross_entropy(model(x).flatten(1).float(), move.flatten())

    run = fit(loss_of, update, decay=True, settle=2 + 2 * workers)
    run.close = close
    return run


# --- rare steps -------------------------------------------------------------------------------


class Long(nn.Module):
    """A convolution as long as the sequence, by waves, and its gate; as in Hyena."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.length, self.norm = length, nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        fades = torch.exp(-torch.arange(length) / (0.1 * length))
        self.taps = nn.Parameter(torch.randn(width, length) * 0.02 * fades)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.into(self.norm(x)).transpose(1, 2).chunk(3, 1)
        n = 2 * self.length
        waves = torch.fft.rfft((a * b).contiguous(), n) * torch.fft.rfft(self.taps, n)
        y = torch.fft.irfft(waves, n)[..., : self.length] * c
        return x + self.out(y.transpose(1, 2))


@pair(
    "checkpoint_stall",
    "science",
    "weights are written as arrays every 2000 steps, not every 10",
    period=10,
)
def motifs_saved_as_arrays(repaired: bool) -> Running:
    """Hidden words of genomes; another program reads the weights by NumPy."""
    vocab, batch, length, width = size(1024, 64), size(8, 2), size(4096, 32), size(768, 16)
    parts: list[nn.Module] = []
    for _ in range(size(2, 1)):
        parts += [Long(width, length), Feeds(width)]
    body = nn.Sequential(nn.Embedding(vocab, width), *parts, nn.LayerNorm(width))
    model = nn.ModuleList([body, nn.Linear(width, vocab)]).to(DEVICE)
    ids = labels(vocab, batch, length)
    hidden = torch.randperm(batch * length, device=DEVICE)[: batch * length // 8]
    true = ids.flatten()[hidden]
    given = ids.flatten().index_fill(0, hidden, 0).view_as(ids)
    memory = Path("/dev/shm")  # a disk's time differs from file to file
    fast = memory.is_dir() and shutil.disk_usage(memory).free > 4 * 2**30
    folder = Path(tempfile.mkdtemp(prefix="exam-", dir=memory if fast else None))

    def loss_of() -> Tensor:
        found = model[0](given).flatten(0, 1).index_select(0, hidden)
        return fn.cross_entropy(model[1](found), true)

    def save(number: int, _loss: Tensor) -> None:
        if number % (2000 if repaired else 10) == (1999 if repaired else 5):
            arrays = {name: part.cpu().numpy() for name, part in model.state_dict().items()}
            np.savez(folder / "last.npz", **arrays)

    run = fit(loss_of, adam(model), bf16=False, after=save)
    run.close = lambda: shutil.rmtree(folder, ignore_errors=True)
    return run


@pair(
    "step_jitter",
    "science",
    "the range of the share of right calls is drawn anew every 1000 steps, not every 6",
    period=6,
)
def variants_bootstrap_every_6(repaired: bool) -> Running:
    """Pictures of reads over a variant; forward and backward pass are one CUDA graph."""
    batch, reads, span, width = size(192, 4), size(64, 8), size(96, 8), size(384, 8)
    model = nn.Sequential(
        normed(6, width, 2),
        *(normed(width, width) for _ in range(size(4, 1))),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3),
    ).to(DEVICE, memory_format=torch.channels_last)  # fmt: skip
    update = adam(model)
    x = noise(batch, 6, reads, span).contiguous(memory_format=torch.channels_last)
    y = labels(3, batch)
    hits = torch.zeros(batch, dtype=torch.bool, device=DEVICE)
    kept = torch.zeros(6, batch, dtype=torch.bool, device=DEVICE)
    rng = np.random.default_rng(0)
    shown: list[tuple[float, float]] = []
    made = 0

    def learn() -> None:
        update.zero_grad(set_to_none=True)  # the graph writes its gradients in place
        with half("bf16"):
            scores = model(x).float()
            loss = fn.cross_entropy(scores, y)
        loss.backward()
        hits.copy_(scores.detach().argmax(1) == y)

    once = graphed(Running(learn, enter=precision("high")))

    def step() -> None:
        nonlocal made
        once.step()
        update.step()
        kept[made % 6].copy_(hits)
        if made % (1000 if repaired else 6) == (999 if repaired else 3):
            right = kept.flatten().cpu().numpy()
            shares = [rng.choice(right, len(right)).mean() for _ in range(size(4000, 10))]
            low, high = np.quantile(shares, (0.025, 0.975))
            shown[:] = [(float(low), float(high))]
        made += 1

    return Running(step, enter=once.enter)
