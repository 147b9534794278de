"""Programs of the fourteenth set: what the host asks, computes, loads, copies and launches.

Two of them launch many small kernels; most of the others a few hundred large ones. Needs PyTorch
and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import copy
import mmap
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, endless, graphed, half, precision, size, training, transformer_layers
from program import Program, Running
from single_programs import ahead, entered, scratch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 242 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- claims of patents ------------------------------------------------------------------------


@pair(
    "unfused_optimizer",
    "language",
    "one AdamW(fused=True) after the backward pass, not one of each weight in its hook",
    marks="steps",
)
def claims_adam_in_hooks_of_weights(repaired: bool) -> Running:
    """Classes of claims; each weight is updated as soon as its gradient is there, which was to
    save the memory of the gradients."""
    batch, length, width, kinds = size(24, 2), size(512, 12), size(640, 16), size(640, 7)
    embed = nn.Embedding(size(16_384, 50), width)
    layers = nn.Sequential(*transformer_layers(width, size(8, 2), size(10, 2)))
    model = nn.ModuleList([embed, layers, nn.LayerNorm(width), nn.Linear(width, kinds)]).to(DEVICE)
    words, kind = labels(size(16_384, 50), batch, length), labels(kinds, batch)
    weights = list(model.parameters())
    how = {"lr": 1e-4, "weight_decay": 0.05}
    if repaired:
        whole = torch.optim.AdamW(weights, fused=True, **how)
    else:
        own = {p: torch.optim.AdamW([p], foreach=False, **how) for p in weights}

        def update(p: Tensor) -> None:
            own[p].step()
            own[p].zero_grad()

        for p in weights:
            p.register_post_accumulate_grad_hook(update)

    def step() -> None:
        h = embed(words)
        h = model[2](layers(h).mean(1))
        fn.cross_entropy(model[3](h), kind, label_smoothing=0.1).backward()
        if repaired:
            whole.step()
            whole.zero_grad()

    return Running(step, enter=precision("high"))


# --- answers that are rewarded by rules -------------------------------------------------------


class Answers(nn.Module):
    """A language model that tells how likely each token of what it is given was."""

    def __init__(self, vocab: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*transformer_layers(width, layers, heads, causal=True))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        given, asked = ids[:, :-1], ids[:, 1:]
        h = self.embed(given) + self.place.weight[: given.shape[1]]
        scores = self.head(self.norm(self.layers(h))).float()
        return -fn.cross_entropy(scores.flatten(0, 1), asked.flatten(), reduction="none").view(
            asked.shape
        )


@pair(
    "host_compute",
    "rl",
    "different triples of tokens are counted on the device by a sort, not by sets of tuples",
)
def answers_repetitions_in_python_sets(repaired: bool) -> Running:
    """Groups of answers to one question; those that repeat themselves get less than the others."""
    groups, each, length, vocab = size(6, 2), size(8, 3), size(512, 14), size(8192, 9)
    model = Answers(vocab, length, size(768, 16), size(3, 1), size(12, 2)).to(DEVICE)
    bank = labels(vocab, 4, groups * each, length)  # what another engine answered
    with torch.no_grad(), half("bf16"):
        before = torch.stack([model(ids) for ids in bank])
    update, made, long = adam(model), 0, 3

    def shares_by_sets(ids: Tensor) -> Tensor:
        """The share of triples that are not repetitions."""
        shares = []
        for row in ids.tolist():
            seen, total = set(), 0
            for triple in zip(*(row[i:] for i in range(long)), strict=False):
                seen.add(triple)
                total += 1
            shares.append(len(seen) / total)
        return torch.tensor(shares, device=DEVICE)

    def shares_by_sort(ids: Tensor) -> Tensor:
        triples = (ids[:, :-2] * vocab + ids[:, 1:-1]) * vocab + ids[:, 2:]
        ordered = triples.sort(1).values
        different = (ordered[:, 1:] != ordered[:, :-1]).sum(1) + 1
        return different.float() / triples.shape[1]

    rewarded = shares_by_sort if repaired else shares_by_sets

    def step() -> None:
        nonlocal made
        ids, then = bank[made % 4], before[made % 4]
        shares = rewarded(ids).view(groups, each)
        worth = (shares - shares.mean(1, keepdim=True)) / (shares.std(1, keepdim=True) + 1e-4)
        with half("bf16"):
            now = model(ids)
        ratio = torch.exp(now - then)
        worth = worth.view(-1, 1)
        gain = torch.minimum(ratio * worth, ratio.clamp(0.8, 1.2) * worth)
        far = torch.exp(then - now) - (then - now) - 1
        loss = (0.04 * far - gain).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        update.step()
        update.zero_grad(set_to_none=True)
        made += 1

    return Running(step, enter=precision("high"))


# --- speech out of noise ----------------------------------------------------------------------


class Denoises(nn.Module):
    """What was added to a spectrogram, told how much noise there is."""

    def __init__(self, bands: int, frames: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.into, self.place = nn.Linear(bands, width), nn.Parameter(torch.zeros(frames, width))
        self.level = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.Sequential(*transformer_layers(width, layers, heads))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, bands)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        h = self.into(x) + self.place + self.level(level[:, None])[:, None]
        return self.out(self.norm(self.layers(h)))


class LevelsOnHost:
    """Levels are drawn as often as their last losses say; the losses are kept by NumPy."""

    def __init__(self, levels: int, kept: int) -> None:
        self.losses, self.rng = np.ones((levels, kept)), np.random.default_rng(3)

    def shares(self) -> np.ndarray:
        weights = np.sqrt((self.losses**2).mean(1))
        return 0.999 * weights / weights.sum() + 0.001 / len(weights)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        shares = self.shares()
        drawn = self.rng.choice(len(shares), count, p=shares)
        weight = 1 / (len(shares) * shares[drawn])
        return torch.from_numpy(drawn).to(DEVICE), torch.from_numpy(weight).float().to(DEVICE)

    def update(self, levels: Tensor, losses: Tensor) -> None:
        numbers = [level.item() for level in levels]
        values = [loss.item() for loss in losses]
        for number, value in zip(numbers, values, strict=True):
            self.losses[number, :-1] = self.losses[number, 1:]
            self.losses[number, -1] = value


class LevelsOnDevice:
    """The same, in tensors."""

    def __init__(self, levels: int, kept: int) -> None:
        self.losses = torch.ones(levels, kept, device=DEVICE)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        weights = self.losses.square().mean(1).sqrt()
        shares = 0.999 * weights / weights.sum() + 0.001 / len(weights)
        drawn = torch.searchsorted(shares.cumsum(0), torch.rand(count, device=DEVICE))
        drawn = drawn.clamp_(max=len(shares) - 1)
        return drawn, 1 / (len(shares) * shares[drawn])

    def update(self, levels: Tensor, losses: Tensor) -> None:
        self.losses[levels] = torch.cat([self.losses[levels, 1:], losses[:, None]], 1)


@pair(
    "host_sync",
    "diffusion",
    "losses of the levels of noise are kept on the device, and levels are drawn there",
)
def spoken_noise_levels_drawn_by_losses(repaired: bool) -> Running:
    batch, frames, bands, levels = size(96, 3), size(256, 8), size(80, 6), size(1000, 20)
    model = Denoises(bands, frames, size(1024, 16), size(3, 1), size(16, 2)).to(DEVICE)
    sampler = LevelsOnDevice(levels, 10) if repaired else LevelsOnHost(levels, 10)
    spoken, update = noise(batch, frames, bands), adam(model, weight_decay=0.0)
    kept = torch.cos(torch.linspace(0, 1.55, levels, device=DEVICE))

    def step() -> None:
        drawn, weight = sampler.draw(batch)
        added = torch.randn_like(spoken)
        part = kept[drawn][:, None, None]
        with half("bf16"):
            found = model(part * spoken + (1 - part.square()).sqrt() * added, drawn / levels)
        losses = (found.float() - added).square().mean((1, 2))
        sampler.update(drawn, losses.detach())
        (losses * weight).mean().backward()
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- a network for each column ----------------------------------------------------------------


class Additive(nn.Module):
    """A sum of curves: a small network for each column, which people can look at."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.curves = nn.ModuleList(
            nn.Sequential(
                nn.Linear(1, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                nn.Linear(width, 1, bias=False),
            )
            for _ in range(columns)
        )  # fmt: skip
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        columns = x.unsqueeze(-1).unbind(1)
        parts = [curve(column) for curve, column in zip(self.curves, columns, strict=True)]
        return torch.cat(parts, 1)


@pair(
    "launch_bound",
    "tabular",
    "the whole step, the draw of rows and the update included, is one CUDA graph",
)
def readmissions_curve_of_each_column_graph(repaired: bool) -> Running:
    """Who comes back to the hospital? A neural additive model over forty measurements."""
    rows, drawn, columns = size(400_000, 90), size(81_920, 24), size(40, 3)
    model = Additive(columns, size(64, 8)).to(DEVICE)
    table, back = noise(rows, columns), labels(2, rows).float()
    update = adam(model, weight_decay=0.0, capturable=CUDA)

    def loss_of() -> Tensor:
        chosen = torch.randint(0, rows, (drawn,), device=DEVICE)
        parts = fn.dropout(model(table[chosen]), 0.1)
        score = parts.sum(1) + model.bias
        own = fn.binary_cross_entropy_with_logits(score, back[chosen])
        return own + 1e-3 * parts.square().mean()

    run = fit(loss_of, update, bf16=False)
    return graphed(run) if repaired else run


# --- patterns that grow -----------------------------------------------------------------------


class Grows(nn.Module):
    """A cell looks at its neighbours and changes itself a little, now and then, many times."""

    looks: Tensor

    def __init__(self, channels: int, hidden: int, times: int) -> None:
        super().__init__()
        self.channels, self.times = channels, times
        same = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
        across = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 8
        looks = torch.stack([same, across, across.t()])[:, None].repeat(channels, 1, 1, 1)
        self.register_buffer("looks", looks)
        self.first = nn.Conv2d(3 * channels, hidden, 1)
        self.last = nn.Conv2d(hidden, channels, 1, bias=False)
        nn.init.normal_(self.last.weight, std=1e-3)

    def alive(self, x: Tensor) -> Tensor:
        return fn.max_pool2d(x[:, 3:4].detach(), 3, 1, 1) > 0.1

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            before = self.alive(x)
            seen = fn.conv2d(x, self.looks, padding=1, groups=self.channels)
            change = self.last(fn.relu(self.first(seen)))
            fires = torch.rand_like(x[:, :1]) < 0.5
            x = x + change * fires
            x = x * (before & self.alive(x))
        return x


@pair(
    "launch_bound",
    "vision",
    "torch.cuda.make_graphed_callables of the cells, which holds all their changes",
)
def grown_patterns_graphed_callables(repaired: bool) -> Running:
    """Cells learn to grow a picture and to keep it; states to go on from are kept in a pool."""
    pool, batch, side, channels = size(512, 6), size(24, 2), size(64, 8), size(16, 5)
    cells = Grows(channels, size(128, 8), size(24, 2)).to(DEVICE)
    states = torch.rand(pool, channels, side, side, device=DEVICE)
    picture = torch.rand(4, side, side, device=DEVICE)
    update, weights = adam(cells, weight_decay=0.0), list(cells.parameters())
    enter = precision("high")
    grow = cells
    if repaired and CUDA:
        enter()  # what is captured keeps the precision of now
        grow = torch.cuda.make_graphed_callables(cells, (states[:batch].clone(),))

    def step() -> None:
        chosen = torch.randint(0, pool, (batch,), device=DEVICE)
        grown = grow(states[chosen])
        loss = fn.mse_loss(grown[:, :4], picture.expand(batch, -1, -1, -1))
        loss.backward()
        with torch.no_grad():
            for p in weights:
                assert p.grad is not None
                p.grad.div_(p.grad.norm() + 1e-8)
        update.step()
        update.zero_grad(set_to_none=True)
        states[chosen] = grown.detach()

    return Running(step, enter=enter)


# --- games of many actors ---------------------------------------------------------------------


class Again(nn.Module):
    """Two convolutions, whose result is added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, 1, 1)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(fn.relu(self.conv1(fn.relu(x))))


class Plays(nn.Module):
    """What to do, and what a frame is worth."""

    def __init__(self, channels: int, width: int, moves: int) -> None:
        super().__init__()
        c = channels
        self.sees = nn.Sequential(
            nn.Conv2d(4, c, 5, 2, 2), Again(c), nn.Conv2d(c, 2 * c, 3, 2, 1), Again(2 * c),
            nn.Conv2d(2 * c, 4 * c, 3, 2, 1), Again(4 * c), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
            nn.Flatten(), nn.Linear(64 * c, width), nn.ReLU(),
        )  # fmt: skip
        self.moves, self.worth = nn.Linear(width, moves), nn.Linear(width, 1)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        h = self.sees(frames.float() / 255)
        return self.moves(h).float(), self.worth(h).float()[:, 0]


@pair(
    "blocking_copy",
    "rl",
    "the slots that actors fill are page-locked once, so that the copy need not wait",
)
def actors_slots_in_shared_memory(repaired: bool) -> Running:
    """A learner of many actors (as IMPALA): `non_blocking` waits all the same, since memory that
    processes share is not page-locked."""
    slots, actors, long, side = 4, size(56, 2), size(24, 4), size(84, 24)
    moves = size(18, 4)
    model = Plays(size(64, 4), size(512, 8), moves).to(DEVICE)
    some = torch.randint(0, 256, (long, actors, 4, side, side), dtype=torch.uint8)
    filled = []
    for slot in range(slots):
        if repaired:
            frames = torch.empty(some.shape, dtype=torch.uint8, pin_memory=CUDA)
        else:  # as actors that were forked see it
            shared = mmap.mmap(-1, some.numel())
            frames = torch.frombuffer(shared, dtype=torch.uint8).view(some.shape)
        filled.append(frames.copy_(some.roll(slot, 0)))
    did, log_then = labels(moves, long, actors), -fn.softplus(noise(long, actors))
    rewards, update, made, decay = noise(long, actors), adam(model), 0, 0.99

    @torch.no_grad()
    def traces(log_now: Tensor, worth: Tensor) -> tuple[Tensor, Tensor]:
        """What frames are worth by what came after, corrected for actors that lag (V-trace)."""
        weight = torch.exp(log_now - log_then).clamp_(max=1.0)
        later = torch.cat([worth[1:], worth[-1:]])
        errors = weight * (rewards + decay * later - worth)
        total, totals = torch.zeros_like(errors[0]), []
        for t in range(long - 1, -1, -1):
            total = torch.addcmul(errors[t], weight[t], total, value=decay)
            totals.append(total)
        better = worth + torch.stack(totals[::-1])
        after = torch.cat([better[1:], worth[-1:]])
        return better, weight * (rewards + decay * after - worth)

    def step() -> None:
        nonlocal made
        frames = filled[made % slots].to(DEVICE, non_blocking=True)
        with half("bf16"):
            scores, worth = model(frames.flatten(0, 1))
        logs = scores.log_softmax(1).view(long, actors, -1)
        log_now = logs.gather(2, did[..., None])[..., 0]
        worth = worth.view(long, actors)
        better, gain = traces(log_now.detach(), worth.detach())
        spread = (logs.exp() * logs).sum(2).mean()
        loss = 0.5 * fn.mse_loss(worth, better) - (log_now * gain).mean() + 0.01 * spread
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 40.0)
        update.step()
        update.zero_grad(set_to_none=True)
        made += 1

    return Running(step, enter=precision("high"), close=filled.clear)


# --- few scans --------------------------------------------------------------------------------


class Scans(Dataset[tuple[Tensor, Tensor]]):
    """A few hundred scans in memory: a part of each, mirrored or not, lighter or darker."""

    def __init__(self, count: int, side: int, part: int) -> None:
        rng = np.random.default_rng(7)
        few = rng.random((16, side, side), dtype=np.float32)
        self.scans = few[np.arange(count) % 16]
        self.marks = (self.scans > 0.7).astype(np.uint8)
        self.part = part

    def __len__(self) -> int:
        return len(self.scans)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng(index)
        y, x = rng.integers(0, self.scans.shape[1] - self.part, 2)
        there = np.s_[index, y : y + self.part, x : x + self.part]
        scan = self.scans[there] * rng.uniform(0.8, 1.2) + rng.uniform(-0.1, 0.1)
        marks = self.marks[there]
        if rng.random() < 0.5:
            scan, marks = scan[:, ::-1], marks[:, ::-1]
        scan = np.ascontiguousarray(scan, dtype=np.float32)
        return torch.from_numpy(scan)[None], torch.from_numpy(np.ascontiguousarray(marks))


class Dilated(nn.Module):
    """A residual layer that looks further, at the same size."""

    def __init__(self, channels: int, apart: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(16, channels)
        self.near = nn.Conv2d(channels, channels, 3, padding=1)
        self.far = nn.Conv2d(channels, channels, 3, padding=apart, dilation=apart)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.far(fn.silu(self.near(self.norm(x))))


@pair(
    "input_starvation",
    "medicine",
    "persistent_workers=True: workers stay from one short epoch to the next",
    period=12,
    marks="profiler",
)
def scans_workers_begin_each_epoch(repaired: bool) -> Running:
    """Is it a vessel? 384 scans are all there are, so that an epoch is twelve batches."""
    batch, part, channels = size(32, 2), size(256, 16), size(256, 16)
    data = Scans(12 * batch, size(320, 24), part)
    loader = DataLoader(
        data, batch, shuffle=True, drop_last=True, num_workers=size(4, 1), pin_memory=CUDA,
        persistent_workers=repaired,
    )  # fmt: skip
    scans: Iterator[Any] = endless(loader)
    model = nn.Sequential(
        nn.PixelUnshuffle(4), nn.Conv2d(16, channels, 3, padding=1),
        *(Dilated(channels, 2**i) for i in range(size(4, 2))),
        nn.Conv2d(channels, 16, 1), nn.PixelShuffle(4),
    ).to(DEVICE)  # fmt: skip

    def following() -> tuple[Tensor, Tensor]:
        scan, marks = next(scans)
        return scan.to(DEVICE, non_blocking=True), marks.to(DEVICE, non_blocking=True)

    def overlap(net: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
        """Cross-entropy, and the share of pixels that are not in both."""
        scores, true = net(given[0]).float()[:, 0], given[1].float()
        found = scores.sigmoid()
        both = 2 * (found * true).sum((1, 2)) / (found + true).sum((1, 2)).clamp_min(1.0)
        return fn.binary_cross_entropy_with_logits(scores, true) + 1 - both.mean()

    def close() -> None:
        scans.close()  # type: ignore[attr-defined]
        if (left := getattr(loader, "_iterator", None)) is not None:
            left._shutdown_workers()

    return training(model, ahead(following, 8), overlap, close=close)


# --- ears of wheat ----------------------------------------------------------------------------


def normed(before: int, after: int, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
    ]  # fmt: skip


@pair(
    "step_jitter",
    "vision",
    "the averaged weights get their statistics every 1000 steps, not every 8",
    period=8,
)
def wheat_statistics_of_average_every_8(repaired: bool) -> Running:
    """How many ears are where? Averaged weights need statistics of their own to be looked at."""
    batch, side, c = size(96, 2), size(320, 16), size(64, 4)
    model = nn.Sequential(
        *normed(3, c, 2), *normed(c, 2 * c, 2), *normed(2 * c, 2 * c), *normed(2 * c, 2 * c),
        *normed(2 * c, 4 * c, 2), *normed(4 * c, 4 * c), *normed(4 * c, 4 * c),
        *normed(4 * c, 4 * c), nn.Conv2d(4 * c, 1, 1), nn.Softplus(),
    ).to(DEVICE)  # fmt: skip
    averaged = copy.deepcopy(model)
    pairs = list(averaged.parameters()), list(model.parameters())
    x, ears = noise(batch, 3, side, side), torch.rand(batch, 1, side // 8, side // 8, device=DEVICE)
    some = [(x.roll(turn, 0),) for turn in range(size(4, 1))] * 2
    update = adam(model, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=CUDA, init_scale=2.0**10)
    short = torch.float16 if CUDA else torch.bfloat16
    every, made = 1000 if repaired else 8, 0

    def step() -> None:
        nonlocal made
        with torch.autocast(DEVICE.type, short):
            found = model(x)
        loss = fn.mse_loss(found.float(), ears)
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        update.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(*pairs, 0.001)
        made += 1
        if made % every == 0:
            with torch.autocast(DEVICE.type, short):
                update_bn(some, averaged)

    return Running(step, enter=precision("high"))


# --- a league of players ----------------------------------------------------------------------


class Bets(nn.Module):
    """A residual layer over what a player knows of the cards."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(fn.glu(self.up(self.norm(x)), -1))


@pair(
    "checkpoint_stall",
    "rl",
    "a player joins the league every 1000 updates, not every 10",
    period=10,
    marks="phases",
)
def players_join_league_every_10(repaired: bool) -> Running:
    """A player learns against earlier ones, which are pickled for the processes that play."""
    hands, knows, width, bets = size(49_152, 12), size(384, 8), size(1024, 16), size(24, 4)
    player = nn.Sequential(
        nn.Linear(knows, width), *(Bets(width) for _ in range(size(4, 2))), nn.LayerNorm(width),
        nn.Linear(width, bets),
    ).to(DEVICE)  # fmt: skip
    update, league = adam(player, weight_decay=0.0), Path(scratch())
    known, regrets = noise(hands, knows), noise(hands, bets)
    every = 1000 if repaired else 10

    def loss_of() -> Tensor:
        return fn.smooth_l1_loss(player(known).float(), regrets)

    def joins(made: int, _loss: Tensor) -> None:
        if made % every == every - 3:
            weights = {name: t.cpu().numpy() for name, t in player.state_dict().items()}
            number = made // every % 4
            (league / f"player-{number}.pkl").write_bytes(pickle.dumps(weights, protocol=4))

    def close() -> None:
        shutil.rmtree(league, ignore_errors=True)

    run = fit(loss_of, update, clip=1.0, after=joins)
    return Running(run.step, run.enter, run.leave, close, run.settle)
