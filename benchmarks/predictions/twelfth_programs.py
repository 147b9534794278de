"""Programs of the twelfth set: equilibria, holograms, tomography, events; few and large kernels.

What the host does of a fault has the same size in each step: loops and NumPy over arrays of one
size, copies of one size, no files. Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, Attends, Feeds, endless, precision, size
from program import Program, Running
from single_programs import entered
from tenth_pictures_programs import scaled
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 222 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
LAST = torch.channels_last


# --- equilibria -------------------------------------------------------------------------------


def four_convs(width: int, outputs: int) -> nn.Sequential:
    """What corrects pictures of two channels, by four convolutions and one for the outputs."""
    return nn.Sequential(
        nn.Conv2d(2, width, 3, 1, 1), nn.ReLU(True),
        nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(True),
        nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(True),
        nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(True),
        nn.Conv2d(width, outputs, 3, 1, 1),
    )  # fmt: skip


class Cell(nn.Module):
    """What is applied until nothing changes; ``u`` says what was seen."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, wide), nn.Linear(wide, width)
        self.norm = nn.LayerNorm(width)
        for layer in (self.up, self.down):  # it comes to rest slowly
            nn.init.normal_(layer.weight, std=1.4 * layer.in_features**-0.5)

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        return self.norm(u + self.down(fn.relu(self.up(z))))


@pair(
    "host_sync",
    "vision",
    "residuals of the solver stay on the device and are read every 50 steps",
)
def equilibrium_residuals_asked(repaired: bool) -> Running:
    """A deep equilibrium over patches: the solver may stop early, and never does; TF32."""
    batch, places, inside = size(72, 2), size(256, 4), size(768, 12)
    width, wide, most, classes = size(1024, 16), size(2048, 32), size(24, 3), size(256, 4)
    into, cell = nn.Linear(inside, width), Cell(width, wide)
    last = nn.Linear(width, classes)
    model = nn.ModuleList([into, cell, last]).to(DEVICE)
    patches, y = noise(batch * places, inside), labels(classes, batch)
    trace: list[Any] = []
    made = 0

    def solved(u: Tensor) -> Tensor:
        z = torch.zeros_like(u)
        trace.clear()
        with torch.no_grad():
            for _ in range(most):
                new = cell(z, u)
                if repaired:
                    trace.append((new - z).norm() / (new.norm() + 1e-5))
                    z = new
                    continue
                off = (new - z).norm().item()
                z = new
                trace.append(off / (new.norm().item() + 1e-5))
                if trace[-1] < 1e-4:
                    break
        return z

    def loss_of() -> Tensor:
        nonlocal made
        u = into(patches)
        z = solved(u)
        for _ in range(3):  # gradients of the last applications stand for those of all
            z = cell(z, u)
        if repaired and made % 50 == 49:
            torch.stack(trace).tolist()
        made += 1
        return fn.cross_entropy(last(z.view(batch, places, -1).mean(1)), y)

    return fit(loss_of, adam(model), bf16=False, clip=1.0)


# --- machines ---------------------------------------------------------------------------------


class Bar:
    """What is shown of an epoch, in one line."""

    def __init__(self) -> None:
        self.sink, self.shown = io.StringIO(), 0

    def show(self, **values: float) -> None:
        self.sink.seek(0)
        self.sink.write(", ".join(f"{key}={value:.4g}" for key, value in values.items()))
        self.shown += 1


@pair("host_sync", "series", "the bar is told the loss every 50 steps, not after each")
def turbines_loss_in_the_bar(repaired: bool) -> Running:
    """Hours that are left to turbines, of forty sensors, each with limits of its own."""
    batch, length, sensors = size(80, 2), size(256, 8), size(40, 3)
    width, heads = size(1536, 16), size(24, 2)
    limits = [(-3.0 - 0.1 * i, 3.0 + 0.1 * i, 0.2 * i, 1.0 + 0.05 * i) for i in range(sensors)]
    layers: list[nn.Module] = [nn.Linear(sensors, width)]
    for _ in range(size(3, 1)):
        layers += [Attends(width, heads, causal=True), Feeds(width)]
    model = nn.Sequential(*layers, nn.LayerNorm(width), nn.Linear(width, 1)).to(DEVICE)
    raw, left = noise(sensors, batch, length), torch.rand(batch, length, device=DEVICE)
    update, bar, made = adam(model), Bar(), 0

    def readings() -> Tensor:
        found = []
        for row, (low, high, middle, spread) in zip(raw, limits, strict=True):
            found.append((row.clamp(low, high) - middle) / spread)
        return torch.stack(found, -1)

    def step() -> None:
        nonlocal made
        x = readings()
        with torch.autocast(DEVICE.type, torch.bfloat16):
            found = model(x)[..., 0]
        loss = fn.huber_loss(found.float(), left)
        loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)
        if not repaired or made % 50 == 49:
            bar.show(loss=loss.item(), step=made)
        made += 1

    return Running(step, enter=precision("high"))


# --- tomography -------------------------------------------------------------------------------


def rays_through(side: int, angles: int, detectors: int) -> np.ndarray[Any, Any]:
    """What each pixel adds to each ray: a row a ray."""
    at = np.arange(side, dtype=np.float32) - (side - 1) / 2
    x, y = (part.ravel() for part in np.meshgrid(at, at))
    where = (np.arange(detectors, dtype=np.float32) - (detectors - 1) / 2) * (
        1.5 * side / detectors
    )
    rows = []
    for k in range(angles):
        along = x * np.float32(math.cos(math.pi * k / angles))
        along = along + y * np.float32(math.sin(math.pi * k / angles))
        rows.append(np.maximum(1 - np.abs(along[None] - where[:, None]), 0) / np.float32(side))
    return np.concatenate(rows)


class Scanner:
    """Rays of a scanner, and back."""

    def __init__(self, side: int, angles: int, detectors: int) -> None:
        self.rays = torch.from_numpy(rays_through(side, angles, detectors))


class Refines(nn.Module):
    """A picture, and what its rays lack, become a better picture; a few times."""

    def __init__(self, scanner: Scanner, side: int, width: int, times: int, *, kept: bool) -> None:
        super().__init__()
        self.side, self.kept, self.scanner = side, kept, scanner
        if kept:
            self.register_buffer("rays", scanner.rays, persistent=False)
        self.times = nn.ModuleList(four_convs(width, 1) for _ in range(times))

    def forward(self, seen: Tensor) -> Tensor:
        rays = self.rays if self.kept else self.scanner.rays.to(seen.device)
        x = seen @ rays
        for refine in self.times:
            lack = (seen - x @ rays.t()) @ rays
            both = torch.stack([x, lack], 1).unflatten(2, (self.side, self.side))
            x = x + refine(both.contiguous(memory_format=LAST)).flatten(1)
        return x


@pair(
    "blocking_copy",
    "science",
    "the matrix of the rays is a buffer of the module and stays on the GPU",
    marks="steps",
)
def scanner_rays_are_no_buffer(repaired: bool) -> Running:
    """Pictures of few rays, refined by convolutions; TF32."""
    batch, side = size(64, 2), size(64, 8)
    scanner = Scanner(side, size(64, 6), size(64, 8))
    model = Refines(scanner, side, size(192, 8), size(3, 1), kept=repaired)
    model = model.to(DEVICE).to(memory_format=LAST)
    true = torch.rand(batch, side * side, device=DEVICE)
    seen = true @ scanner.rays.to(DEVICE).t()
    seen = seen + 0.01 * torch.randn_like(seen)
    return fit(lambda: fn.mse_loss(model(seen), true), adam(model), bf16=False, decay=True)


# --- holograms --------------------------------------------------------------------------------


class Modulator:
    """The device in front of the laser shows patterns; here it only counts them."""

    def __init__(self) -> None:
        self.shown, self.pattern = 0, torch.zeros(1)

    def show(self, pattern: Tensor) -> None:
        self.pattern = pattern
        self.shown += 1


class Patterns(nn.Module):
    """A phase for each pixel, of the picture that light shall make."""

    def __init__(self, width: int, layers: int, factor: int) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.PixelUnshuffle(factor), nn.Conv2d(factor**2, width, 3, 1, 1)]
        for _ in range(layers):
            parts += [nn.SiLU(), nn.Conv2d(width, width, 3, 1, 1)]
        parts += [nn.SiLU(), nn.Conv2d(width, factor**2, 3, 1, 1), nn.PixelShuffle(factor)]
        self.layers = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pair(
    "blocking_copy",
    "physics",
    "patterns go to two page-locked buffers in turn, and are shown when their copy is over",
)
def holograms_shown_each_step(repaired: bool) -> Running:
    """Light from a pattern of phases shall be a picture; the modulator shows each pattern."""
    batch, side = size(8, 2), size(1024, 16)
    model = Patterns(size(256, 8), size(5, 1), 4).to(DEVICE).to(memory_format=LAST)
    wanted = torch.rand(batch, 1, side, side, device=DEVICE)
    rate = torch.fft.fftfreq(side, device=DEVICE).square()
    spread = torch.polar(torch.ones(side, side, device=DEVICE), -40 * (rate[:, None] + rate))
    scale = nn.Parameter(torch.ones((), device=DEVICE))
    update = torch.optim.AdamW([*model.parameters(), scale], lr=1e-4, fused=True)
    modulator = Modulator()
    buffers = [torch.zeros(batch, 1, side, side, pin_memory=CUDA) for _ in range(2)]
    over: list[Any] = [torch.cuda.Event() if CUDA else None for _ in range(2)]
    made = 0

    def shown_later(pattern: Tensor) -> None:
        nonlocal made
        buffer, event = buffers[made % 2], over[made % 2]
        if made > 1:  # what was copied two steps ago
            if event is not None:
                event.synchronize()
            modulator.show(buffer)
        buffer.copy_(pattern, non_blocking=True)
        if event is not None:
            event.record()
        made += 1

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            phases = model(wanted)
        phases = math.pi * phases.float().tanh()
        field = torch.polar(torch.ones_like(phases), phases)
        there = torch.fft.ifft2(torch.fft.fft2(field, norm="ortho") * spread, norm="ortho")
        loss = fn.mse_loss(scale * there.abs(), wanted)
        loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)
        if repaired:
            shown_later(phases.detach())
        else:
            modulator.show(phases.detach().cpu())

    return Running(step, enter=precision("high"))


# --- knowledge --------------------------------------------------------------------------------


@pair(
    "host_compute",
    "graph",
    "known answers lie on the device, where ranks are compared; the sum is read every 100 steps",
)
def entities_known_answers_in_sets(repaired: bool) -> Running:
    """An entity, its neighbours and a relation; which other entity is meant?"""
    batch, near, entities = size(2048, 4), size(15, 3), size(40_000, 60)
    width, heads, first = size(1024, 16), size(16, 2), size(50, 5)
    names, kinds = nn.Embedding(entities, width), nn.Embedding(size(512, 4), width)
    for table in (names, kinds):
        nn.init.normal_(table.weight, std=0.02)
    layers: list[nn.Module] = []
    for _ in range(size(3, 1)):
        layers += [Attends(width, heads), Feeds(width)]
    model = nn.ModuleList([names, kinds, nn.Sequential(*layers, nn.LayerNorm(width))]).to(DEVICE)
    around, kind = labels(entities, batch, near), labels(size(512, 4), batch, near)
    known = labels(entities, batch, 8)
    right = known[:, 0].contiguous()
    sets = [frozenset(row) for row in known.tolist()]
    parts = 1 / torch.arange(1, first + 1, device=DEVICE)
    update, log = adam(model, weight_decay=0.0), {"found": 0.0}
    total, made = torch.zeros((), device=DEVICE), 0

    def ranked(scores: Tensor) -> None:
        top = scores.topk(first).indices
        if repaired:
            hits = (top[:, :, None] == known[:, None]).any(-1)
            total.add_((hits * parts).sum() / batch)
            if made % 100 == 99:
                log["found"] = total.item() / 100
                total.zero_()
            return
        found = 0.0
        every = top.flatten().tolist()
        for number, own in enumerate(sets):
            for rank, entity in enumerate(every[number * first : (number + 1) * first]):
                if entity in own:
                    found += 1 / (rank + 1)
        log["found"] = found / batch

    def step() -> None:
        nonlocal made
        with torch.autocast(DEVICE.type, torch.bfloat16):
            h = model[2](names(around) + kinds(kind))[:, 0]
            scores = h @ names.weight.t()
            loss = fn.cross_entropy(scores, right, label_smoothing=0.1)
        loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)
        ranked(scores.detach())
        made += 1

    return Running(step, enter=precision("high"))


# --- sleep ------------------------------------------------------------------------------------


class Night(nn.Module):
    """Stages of sleep, from waves of several places of the head."""

    def __init__(self, places: int, width: int, layers: int, stages: int) -> None:
        super().__init__()
        self.into = nn.Conv1d(places, width, 64, 32, 16)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(8, width), nn.GELU(), nn.Conv1d(width, width, 5, 1, 2))
            for _ in range(layers)
        )
        self.out = nn.Conv1d(width, stages, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        for layer in self.layers:
            h = h + layer(h)
        return self.out(h)


def smoothed(stages: np.ndarray[Any, Any], wide: int) -> np.ndarray[Any, Any]:
    """Single wrong stages vanish: the median of those around."""
    around = np.lib.stride_tricks.sliding_window_view(stages, wide, axis=1)
    return np.median(around, axis=-1).astype(np.int64)


def kappa(found: np.ndarray[Any, Any], true: np.ndarray[Any, Any], stages: int) -> float:
    """Agreement beyond chance."""
    counts = np.bincount((found * stages + true).ravel(), minlength=stages**2)
    share = counts.reshape(stages, stages) / counts.sum()
    chance = float((share.sum(0) * share.sum(1)).sum())
    return (float(np.trace(share)) - chance) / (1 - chance + 1e-9)


@pair(
    "host_compute",
    "series",
    "the agreement of the step before is computed while the device works on the next",
)
def sleep_agreement_of_smoothed_stages(repaired: bool) -> Running:
    """FP16 with a scaler; stages of a batch are smoothed by NumPy and compared."""
    batch, places, length = size(48, 2), size(8, 2), size(30_720, 1024)
    stages, wide, width = 5, 15, size(1024, 16)
    model = Night(places, width, size(7, 1), stages).to(DEVICE)
    x, frames = noise(batch, places, length), length // 32
    y = labels(stages, batch, frames)
    true = y[:, wide // 2 : frames - wide // 2].cpu().numpy()
    half = torch.float16 if CUDA else torch.bfloat16
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=CUDA, init_scale=2.0**10)
    update, log = adam(model), {"kappa": 0.0}
    buffers = [torch.zeros(batch, frames, dtype=torch.uint8, pin_memory=CUDA) for _ in range(2)]
    over: list[Any] = [torch.cuda.Event() if CUDA else None for _ in range(2)]
    made = 0

    def judge(found: Tensor) -> None:
        log["kappa"] = kappa(smoothed(found.numpy(), wide), true, stages)

    def judged_later(found: Tensor) -> None:
        buffers[made % 2].copy_(found, non_blocking=True)
        if over[made % 2] is not None:
            over[made % 2].record()
        if made:  # this step is enqueued: there is time for the one before
            if over[(made - 1) % 2] is not None:
                over[(made - 1) % 2].synchronize()
            judge(buffers[(made - 1) % 2])

    def step() -> None:
        nonlocal made
        update.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, half):
            scores = model(x)
        loss = fn.cross_entropy(scores.float(), y)
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        found = scores.detach().argmax(1).to(torch.uint8)
        if repaired:
            judged_later(found)
        else:
            judge(found.cpu())
        made += 1

    return Running(step, enter=precision("high"))


# --- magnetic resonance -----------------------------------------------------------------------


class Slices(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Pictures of a knee of which only some lines of frequencies are kept."""

    def __init__(self, side: int) -> None:
        self.side = side
        at = np.linspace(-1, 1, side, dtype=np.float32)
        self.bump = np.exp(-2 * (at[:, None] ** 2 + at**2))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        rng = np.random.default_rng(index)
        true = self.bump * rng.standard_normal((self.side, self.side), dtype=np.float32)
        lines = np.zeros(self.side, dtype=np.float32)
        lines[rng.permutation(self.side)[: self.side // 4]] = 1
        waves = np.fft.fft2(true, norm="ortho").astype(np.complex64) * lines
        seen = np.fft.ifft2(waves, norm="ortho").astype(np.complex64)
        scale = np.float32(np.abs(seen).max())
        pictures = np.stack([seen.real, seen.imag]) / scale
        return (
            torch.from_numpy(pictures.astype(np.float32)),
            torch.from_numpy(true / scale),
            torch.from_numpy(lines),
        )


class Unrolled(nn.Module):
    """Convolutions, then the frequencies that are known again; a few times."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.times = nn.ModuleList(four_convs(width, 2) for _ in range(times))

    def forward(self, seen: Tensor, lines: Tensor) -> Tensor:
        x = seen
        for layers in self.times:
            x = x + layers(x.contiguous(memory_format=LAST)).float()
            off = torch.complex(x[:, 0] - seen[:, 0], x[:, 1] - seen[:, 1])
            off = torch.fft.ifft2(torch.fft.fft2(off) * lines[:, None])
            x = x - torch.stack([off.real, off.imag], 1)
        return x


@pair(
    "input_starvation",
    "science",
    "slices are made by eight workers instead of on the training thread",
)
def knee_slices_lines_left_out_main(repaired: bool) -> Running:
    """Lines are left out by NumPy as a slice is asked for."""
    batch, side, workers = size(16, 2), size(256, 16), size(8, 1) if repaired else 0
    model = Unrolled(size(160, 8), size(3, 1)).to(DEVICE).to(memory_format=LAST)
    more: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 2} if workers else {}
    loader = DataLoader(Slices(side), batch, num_workers=workers, pin_memory=CUDA, **more)
    held: dict[str, Any] = {"batches": endless(loader)}
    del loader  # workers end with what holds them

    def loss_of() -> Tensor:
        seen, true, lines = (part.to(DEVICE, non_blocking=True) for part in next(held["batches"]))
        found = model(seen, lines)
        return fn.l1_loss((found.square().sum(1) + 1e-9).sqrt(), true.abs())

    run = fit(loss_of, adam(model), clip=1.0, settle=2 + 2 * workers)
    run.close = held.clear
    return run


# --- programs ---------------------------------------------------------------------------------


class Heads(nn.Module):
    """The next words of a program, each by a head of its own, all with one table."""

    def __init__(self, vocab: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        nn.init.normal_(self.embed.weight, std=0.02)
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [Attends(width, max(width // 64, 1), causal=True), Feeds(width)]
        self.trunk, self.norm = nn.Sequential(*parts), nn.LayerNorm(width)
        self.heads = nn.ModuleList(nn.Linear(width, width) for _ in range(heads))

    def loss(self, ids: Tensor) -> Tensor:
        far = len(self.heads)
        h = self.norm(self.trunk(self.embed(ids[:, :-far])))
        total = torch.zeros((), device=ids.device)
        for k, head in enumerate(self.heads):
            scores = (h + fn.silu(head(h))) @ self.embed.weight.t()
            right = ids[:, k + 1 : ids.shape[1] - far + k + 1]
            total = total + fn.cross_entropy(scores.flatten(0, 1), right.flatten())
        return total / far


@pair(
    "checkpoint_stall",
    "language",
    "the state is handed to the registry every 1000 steps, not every 8",
    period=8,
)
def program_words_handed_over_every_8(repaired: bool) -> Running:
    """Two micro-batches; an evaluator asks a registry in memory for the newest state."""
    batch, length, vocab, far = size(12, 2), size(1024, 8), size(4096, 32), size(3, 2)
    model = Heads(vocab, size(1536, 16), size(2, 1), far).to(DEVICE)
    ids, registry = labels(vocab, batch, length + far), {"newest": b""}
    every = 1000 if repaired else 8

    def hand_over(made: int, _loss: Tensor) -> None:
        if made % every == every - 2:
            buffer = io.BytesIO()
            torch.save({"model": model.state_dict(), "step": made}, buffer)
            registry["newest"] = buffer.getvalue()

    run = fit(lambda: model.loss(ids), adam(model), micro=2, clip=1.0, after=hand_over)
    run.close = registry.clear
    return run


# --- jets -------------------------------------------------------------------------------------


class Jet(nn.Module):
    """Particles of a jet, one by one, then their sum."""

    def __init__(self, inside: int, width: int, wide: int) -> None:
        super().__init__()
        self.each = nn.Sequential(
            nn.Linear(inside, width), nn.ReLU(True), nn.Linear(width, width), nn.ReLU(True),
            nn.Linear(width, width), nn.ReLU(True), nn.Linear(width, width), nn.ReLU(True),
        )  # fmt: skip
        self.all = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, wide), nn.ReLU(True), nn.Linear(wide, wide),
            nn.ReLU(True), nn.Linear(wide, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.all(self.each(x).sum(1))[:, 0]


@pair(
    "step_jitter",
    "points",
    "the threshold is set anew every 1000 steps, not every 6",
    period=6,
)
def jets_threshold_set_every_6(repaired: bool) -> Running:
    """A trigger of a collider: what share of ordinary jets passes is held by a threshold."""
    batch, many, inside = size(2048, 4), size(48, 3), size(16, 4)
    model = Jet(inside, size(2048, 16), size(4096, 16)).to(DEVICE)
    x, y = noise(batch, many, inside), torch.rand(batch, device=DEVICE).round()
    ordinary = noise(size(8, 2), batch, many, inside)
    every, cut = 1000 if repaired else 6, {"score": 0.0, "passes": 0.0}

    def set_anew(made: int, _loss: Tensor) -> None:
        if made % every != every - 3:
            return
        model.eval()
        with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
            scores = torch.cat([model(part) for part in ordinary]).float()
        cut["score"] = torch.quantile(scores, 0.99).item()
        cut["passes"] = (scores > cut["score"]).float().mean().item()
        model.train()

    def loss_of() -> Tensor:
        return fn.binary_cross_entropy_with_logits(model(x).float(), y)

    return fit(loss_of, sgd(model), decay=True, after=set_anew)


# --- events -----------------------------------------------------------------------------------


class Remembers(nn.Module):
    """A convolutional LSTM's cell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates = nn.Conv2d(2 * width, 4 * width, 3, 1, 1)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        take, drop, put, new = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = drop.sigmoid() * c + put.sigmoid() * new.tanh()
        return take.sigmoid() * c.tanh(), c


class Frames(nn.Module):
    """Frames from counts of events; the two lower levels remember."""

    def __init__(self, bins: int, width: int) -> None:
        super().__init__()
        self.into = nn.Sequential(
            nn.Conv2d(bins, width, 5, 2, 2), nn.ReLU(True),
            nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(True),
        )  # fmt: skip
        self.smaller = nn.ModuleList(nn.Conv2d(width * n, 2 * width * n, 3, 2, 1) for n in (1, 2))
        self.cells = nn.ModuleList(Remembers(2 * width * n) for n in (1, 2))
        self.larger = nn.ModuleList(
            nn.ConvTranspose2d(2 * width * n, width * n, 2, 2) for n in (2, 1)
        )
        self.mixed = nn.ModuleList(nn.Conv2d(width * n, width * n, 3, 1, 1) for n in (2, 1))
        self.out = nn.ConvTranspose2d(width, 1, 2, 2)

    def forward(self, x: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        h, kept, new = self.into(x), [], []
        for k, (smaller, cell) in enumerate(zip(self.smaller, self.cells, strict=True)):
            kept.append(h)
            h, c = cell(fn.relu(smaller(h)), states[2 * k], states[2 * k + 1])
            new += [h, c]
        for larger, mix in zip(self.larger, self.mixed, strict=True):
            h = fn.relu(mix(larger(h) + kept.pop()))
        return self.out(h), new


@pair(
    "cpu_offload",
    "video",
    "what the cells remember of each recording stays on the GPU",
)
def events_memories_of_recordings(repaired: bool) -> Running:
    """Three groups of recordings in turn; each goes on where it was left."""
    batch, side, bins, width = size(48, 2), size(128, 16), size(5, 2), size(128, 8)
    model = Frames(bins, width).to(DEVICE).to(memory_format=LAST)
    x = noise(3, batch, bins, side, side)
    y = torch.rand(3, batch, 1, side, side, device=DEVICE)
    rests = torch.device("cpu") if not repaired else DEVICE
    memories: dict[int, list[Tensor]] = {}
    for group in range(3):
        memories[group] = [
            torch.zeros(
                batch, width * n, side // (2 * n), side // (2 * n),
                dtype=torch.bfloat16, device=rests,
            ).contiguous(memory_format=LAST)
            for n in (2, 2, 4, 4)
        ]  # fmt: skip
    update, made = adam(model), 0

    def step() -> None:
        nonlocal made
        states = [part.to(DEVICE) for part in memories[made % 3]]
        loss = torch.zeros((), device=DEVICE)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            for seen, true in zip(x, y, strict=True):
                found, states = model(seen.contiguous(memory_format=LAST), states)
                loss = loss + fn.l1_loss(found.float(), true)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update.step()
        update.zero_grad(set_to_none=True)
        memories[made % 3] = [part.detach().to(rests) for part in states]
        made += 1

    return Running(step, enter=precision("high"), close=memories.clear)


# --- lips -------------------------------------------------------------------------------------


class Mouth(nn.Module):
    """Two convolutions beside what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(x + self.layers(x))


class Lips(nn.Module):
    """The word that a mouth says: frames with their neighbours, each alone, then in their order."""

    def __init__(self, width: int, words: int, blocks: int) -> None:
        super().__init__()
        self.front = nn.Conv3d(1, width // 4, (5, 7, 7), (1, 4, 4), (2, 3, 3))
        self.first = nn.Sequential(
            nn.Conv2d(width // 4, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)
        )
        self.fine = nn.Sequential(*(Mouth(width) for _ in range(blocks)))
        self.smaller = nn.Conv2d(width, 2 * width, 2, 2)
        self.coarse = nn.Sequential(*(Mouth(2 * width) for _ in range(blocks // 2)))
        self.order = nn.Conv1d(2 * width, 2 * width, 5, 1, 2)
        self.out = nn.Linear(2 * width, words)

    def forward(self, x: Tensor) -> Tensor:
        h = self.front(x)
        b, c, t, high, wide = h.shape
        h = h.transpose(1, 2).reshape(b * t, c, high, wide).contiguous(memory_format=LAST)
        h = self.coarse(self.smaller(self.fine(self.first(h))))
        h = h.mean((2, 3)).reshape(b, t, -1).transpose(1, 2)
        return self.out(fn.relu(self.order(h)).mean(2))


def within_memory(step: Callable[[], object], *, first: bool) -> Callable[[], None]:
    """Once more, with nothing kept, if there was too little memory; or so from the first."""

    def attempt() -> None:
        if first and CUDA:
            torch.cuda.empty_cache()
        try:
            step()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            step()

    return attempt


@pair(
    "allocator_churn",
    "video",
    "the cache is emptied after an attempt for which there was too little memory, not before each",
    marks="phases",
)
def lips_tried_with_no_cache(repaired: bool) -> Running:
    """FP16 with a scaler; a step is tried again if there was too little memory for it."""
    batch, frames, side, words = size(16, 2), size(32, 3), size(96, 16), size(500, 4)
    model = Lips(size(256, 8), words, size(4, 2)).to(DEVICE)
    for part in (model.first, model.fine, model.smaller, model.coarse):
        part.to(memory_format=LAST)
    x, y = noise(batch, 1, frames, side, side), labels(words, batch)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(x).float(), y, label_smoothing=0.1)

    run = scaled(loss_of, adam(model, weight_decay=0.01))
    return Running(within_memory(run.step, first=not repaired), enter=run.enter)
