"""An eighth set of programs for one GPU: the host's faults in proteins, genomes, play and pictures.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import (
    DEVICE,
    Attends,
    Feeds,
    endless,
    graphed,
    made_optimizer,
    precision,
    size,
    transformer_layers,
)
from program import Program, Running, phase
from single_programs import entered, loaded
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as fn
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 159 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


def encoder(width: int, layers: int, heads: int) -> nn.Sequential:
    return nn.Sequential(*transformer_layers(width, layers, heads), nn.LayerNorm(width))


# --- proteins ---------------------------------------------------------------------------------


class Folded(nn.Module):
    """A layer over residues; padding takes no part in its second half."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attends, self.norm = Attends(width, heads), nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, seen: Tensor, kept: Any) -> Tensor:
        x = self.attends(x, seen)
        y = self.norm(x)
        fed = torch.zeros_like(x)
        fed[kept] = self.feed(y[kept]).to(x.dtype)
        return x + fed


@pair(
    "host_sync",
    "science",
    "the batch brings the places of its residues as numbers, not as masks that each layer searches",
)
def residues_padding_masks(repaired: bool) -> Running:
    width, batch, length, kinds = size(512, 32), size(16, 3), size(512, 24), 33
    embed, head = nn.Embedding(kinds, width), nn.Linear(width, kinds)
    layers = nn.ModuleList(Folded(width, size(8, 2)) for _ in range(size(10, 2)))
    model = nn.ModuleList([embed, layers, head]).to(DEVICE)
    # as many residues in each batch: its lengths are the same, in another order
    lengths = np.linspace(0.3 * length, length, batch).astype(np.int64)
    batches = []
    for number in range(4):
        rng = np.random.default_rng(number)
        kept = np.arange(length) < rng.permutation(lengths)[:, None]
        places = np.argwhere(kept)
        hidden = np.zeros_like(kept)
        some = places[rng.permutation(len(places))[: len(places) // 7]]
        hidden[some[:, 0], some[:, 1]] = True

        def given(mask: Any) -> Any:
            if repaired:
                return tuple(torch.from_numpy(at).to(DEVICE) for at in mask.nonzero())
            return torch.from_numpy(mask).to(DEVICE)

        ids = torch.from_numpy(rng.integers(1, kinds, kept.shape)).to(DEVICE)
        seen = torch.from_numpy(kept).to(DEVICE)[:, None, None]
        covered = ids.masked_fill(torch.from_numpy(hidden).to(DEVICE), 0)
        batches.append((ids, covered, seen, given(kept), given(hidden)))
    turn = itertools.cycle(batches)

    def loss_of() -> Tensor:
        ids, covered, seen, kept, hidden = next(turn)
        h = embed(covered)
        for layer in layers:
            h = layer(h, seen, kept)
        return fn.cross_entropy(head(h[hidden]).float(), ids[hidden])

    return fit(loss_of, adam(model), clip=1.0, decay=True)


class Structure(nn.Module):
    """What a residue is part of (helix, sheet, ...): a chain of states over convolutions."""

    def __init__(self, width: int, layers: int, heads: int, states: int) -> None:
        super().__init__()
        self.embed = nn.Linear(24, width)
        self.near = nn.Conv1d(width, width, 9, padding=4)
        self.body = encoder(width, layers, heads)
        self.head = nn.Linear(width, states)
        self.change = nn.Parameter(torch.randn(states, states) * 0.1)

    def forward(self, profile: Tensor, states: Tensor) -> Tensor:
        h = self.embed(profile)
        h = self.body(h + fn.gelu(self.near(h.transpose(1, 2))).transpose(1, 2))
        scores = self.head(h)
        true = scores.gather(2, states[..., None]).sum((1, 2))
        pairs = states[:, :-1] * self.change.shape[1] + states[:, 1:]
        true = true + self.change.flatten().expand(len(profile), -1).gather(1, pairs).sum(1)
        alpha = scores[:, 0]
        for at in range(1, profile.shape[1]):
            alpha = (alpha[:, :, None] + self.change).logsumexp(1) + scores[:, at]
        return (alpha.logsumexp(1) - true).mean()


@pair("launch_bound", "science", "the whole step is one CUDA graph", marks="steps")
def structure_states_graph(repaired: bool) -> Running:
    batch, length, states = size(96, 2), size(128, 8), size(8, 3)
    model = Structure(size(512, 16), size(6, 1), size(8, 2), states).to(DEVICE)
    update = made_optimizer(model.parameters(), "graph")
    profile, true = noise(batch, length, 24).softmax(-1), labels(states, batch, length)
    weights = list(model.parameters())

    def step() -> None:
        update.zero_grad(set_to_none=True)
        model(profile, true).backward()
        nn.utils.clip_grad_norm_(weights, 5.0)
        update.step()

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run


# --- genomes ----------------------------------------------------------------------------------


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Batches of windows: their bases, one-hot, and what was measured along them, in bins."""

    def __init__(self, bases: int, tracks: int, batch: int, length: int, each: int) -> None:
        rng = np.random.default_rng(0)
        self.codes = rng.integers(0, 4, bases, dtype=np.uint8)
        self.cover = rng.integers(0, 400, (bases, tracks), dtype=np.int16)
        self.batch, self.length, self.each = batch, length, each

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng(number)
        bases, goals = [], []
        for start in rng.integers(0, len(self.codes) - self.length, self.batch):
            codes = self.codes[start : start + self.length]
            cover = self.cover[start : start + self.length]
            if rng.random() < 0.5:  # the other strand
                codes, cover = 3 - codes[::-1], cover[::-1]
            bases.append(np.eye(4, dtype=np.float32)[codes].T)
            binned = cover.astype(np.float32).reshape(-1, self.each, cover.shape[1]).mean(1)
            high = np.quantile(binned, 0.98, axis=0).astype(np.float32)
            binned = np.where(binned > high, high + np.sqrt(np.maximum(binned - high, 0)), binned)
            goals.append(np.log1p(binned).T)
        return torch.from_numpy(np.stack(bases)), torch.from_numpy(np.stack(goals))


class Far(nn.Module):
    """A residual convolution with holes; as in Basenji."""

    def __init__(self, width: int, apart: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.GELU(), nn.Conv1d(width, width // 2, 3, padding=apart, dilation=apart, bias=False),
            nn.BatchNorm1d(width // 2), nn.GELU(), nn.Conv1d(width // 2, width, 1, bias=False),
            nn.BatchNorm1d(width), nn.Dropout(0.2),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


@pair(
    "input_starvation",
    "science",
    "windows come from a DataLoader of 6 workers, not from a function in the loop",
    marks="phases",
)
def genome_windows_in_loop(repaired: bool) -> Running:
    tracks, width, workers = size(8, 2), size(384, 16), 6
    data = Windows(size(2_000_000, 4000), tracks, size(12, 2), size(24_576, 512), size(128, 32))
    pools = (4, 4, 8) if size(1, 0) else (4, 4, 2)
    parts: list[nn.Module] = []
    for before, after, pool in zip(
        (4, width, width), (width, width, 2 * width), pools, strict=True
    ):
        parts += [nn.Conv1d(before, after, 11, padding=5, bias=False), nn.BatchNorm1d(after)]
        parts += [nn.GELU(), nn.MaxPool1d(pool)]
    parts += [Far(2 * width, 2**i) for i in range(size(8, 2))]
    model = nn.Sequential(*parts, nn.GELU(), nn.Conv1d(2 * width, tracks, 1)).to(DEVICE)
    numbers = itertools.count()

    def in_loop() -> tuple[Tensor, ...]:
        made = data[next(numbers)]
        pinned = (part.pin_memory() if CUDA else part for part in made)
        return tuple(part.to(DEVICE, non_blocking=True) for part in pinned)

    batches = loaded(data, None, workers) if repaired else in_loop  # type: ignore[arg-type]

    def loss_of() -> Tensor:
        with phase("get_batch"):
            x, y = batches()
        return fn.poisson_nll_loss(model(x).float(), y)

    return fit(loss_of, adam(model), clip=0.5, settle=2 + (2 * workers if repaired else 0))


# --- control ----------------------------------------------------------------------------------


class Plays(nn.Module):
    """Pictures of a game; several choices at once, and what the state is worth."""

    def __init__(self, width: int, hidden: int, choices: tuple[int, ...]) -> None:
        super().__init__()
        self.choices = choices
        self.body = nn.Sequential(
            nn.Conv2d(4, width, 8, 4), nn.ReLU(), nn.Conv2d(width, 2 * width, 4, 2), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(2 * width * 7 * 7, hidden), nn.ReLU(),
        )  # fmt: skip
        self.actor, self.critic = nn.Linear(hidden, sum(choices)), nn.Linear(hidden, 1)

    def forward(self, seen: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        h = self.body(seen)
        return self.actor(h).split(self.choices, -1), self.critic(h)[:, 0]


@pair(
    "host_sync",
    "rl",
    "distributions are made with validate_args=False: nothing is checked on the host",
    marks="steps",
)
def game_choices_checked(repaired: bool) -> Running:
    side, choices = 84, (9, 6, 5, 4, 3, 3, 2)
    parts, many = size(4, 2), size(1280, 4)
    model = Plays(size(64, 4), size(1024, 16), choices).to(DEVICE)
    update = torch.optim.Adam(model.parameters(), lr=2.5e-4, eps=1e-5, fused=True)
    n = parts * many
    pictures = torch.randint(0, 256, (n, 4, side, side), dtype=torch.uint8, device=DEVICE)
    actions = torch.stack([labels(c, n) for c in choices], 1)
    odds, gains, worth = noise(n) * 0.1 - 9.5, noise(n), noise(n)
    checks: dict[str, Any] = {"validate_args": False} if repaired else {}
    weights = list(model.parameters())

    def step() -> None:
        order = torch.rand(n, device=DEVICE).argsort()
        for at in order.chunk(parts):
            scores, value = model(pictures[at].float() / 255.0)
            chances = [Categorical(logits=s, **checks) for s in scores]
            done = actions[at]
            now = torch.stack([c.log_prob(done[:, i]) for i, c in enumerate(chances)]).sum(0)
            chaos = torch.stack([c.entropy() for c in chances]).sum(0).mean()
            share, gain = (now - odds[at]).exp(), gains[at]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy = torch.maximum(-gain * share, -gain * share.clamp(0.9, 1.1)).mean()
            off = 0.5 * (value - worth[at]).square().mean()
            update.zero_grad(set_to_none=True)
            (policy - 0.01 * chaos + 0.5 * off).backward()
            nn.utils.clip_grad_norm_(weights, 0.5)
            update.step()

    return Running(step, enter=precision("high"))


class Made:
    """What is made ahead, two at a time: in a thread of the program, or in a process."""

    def __init__(self, make: Callable[[int], Any], seed: int, *, process: bool) -> None:
        self.make, self.seed, self.parent = make, seed, os.getpid()
        if process:
            context = multiprocessing.get_context("fork")
            self.ready: Any = context.Queue(2)
            self.stopped: Any = context.Event()
            self.worker: Any = context.Process(target=self.work, daemon=True)
        else:
            self.ready, self.stopped = queue.Queue(2), threading.Event()
            self.worker = threading.Thread(target=self.work, daemon=True)
        self.worker.start()

    def work(self) -> None:
        apart = os.getpid() != self.parent
        for number in itertools.count(self.seed, 1000):
            made = self.make(number)
            while True:
                if self.stopped.is_set() or (apart and os.getppid() != self.parent):
                    if apart:
                        self.ready.cancel_join_thread()
                    return
                try:
                    self.ready.put(made, timeout=1.0)
                    break
                except queue.Full:
                    pass

    def close(self) -> None:
        self.stopped.set()
        if isinstance(self.worker, threading.Thread):
            self.worker.join(5.0)
        else:
            self.worker.terminate()
            self.worker.join(5.0)


def walks(places: int, moves: int, side: int) -> Callable[[int], Any]:
    """Walks through mazes, as Python's lists: what is around, the move, what it gave."""
    plan = random.Random(0)
    maze = [[plan.random() < 0.25 for _ in range(side)] for _ in range(side)]
    ways = ((0, 1), (1, 0), (0, -1), (-1, 0))
    near = tuple(itertools.product((-1, 0, 1), repeat=2))

    def make(seed: int) -> Any:
        draw = random.Random(seed)
        rows = []
        for _ in range(places):
            y, x = draw.randrange(side), draw.randrange(side)
            goal_y, goal_x = draw.randrange(side), draw.randrange(side)
            for _ in range(moves):
                move = int(draw.random() * 4)
                down, right = ways[move]
                new_y, new_x = (y + down) % side, (x + right) % side
                if not maze[new_y][new_x]:
                    y, x = new_y, new_x
                gave = 10 if (y, x) == (goal_y, goal_x) else -1
                rows.append([
                    *(maze[(y + a) % side][(x + b) % side] for a, b in near),
                    goal_y - y, goal_x - x, move, gave,
                ])  # fmt: skip
        return np.array(rows, dtype=np.int16).reshape(places, moves, 13)

    return make


@pair(
    "gil_contention",
    "rl",
    "the two actors are processes, not threads beside the learner",
    record=("--waits",),
)
def maze_actors_in_threads(repaired: bool) -> Running:
    places, moves, side = size(28, 2), size(48, 4), size(24, 6)
    width = size(1024, 16)
    body = nn.Sequential(
        nn.Linear(11, width), nn.LayerNorm(width), nn.SiLU(),
        *(Feeds(width, 2) for _ in range(size(6, 1))),
    )  # fmt: skip
    actor, critic = nn.Linear(width, 4), nn.Linear(width, 1)
    model = nn.ModuleList([body, actor, critic]).to(DEVICE)
    actors = [Made(walks(places, moves, side), seed, process=repaired) for seed in range(2)]

    def loss_of() -> Tensor:
        walked = torch.from_numpy(np.concatenate([made.ready.get() for made in actors]))
        walked = (walked.pin_memory() if CUDA else walked).to(DEVICE, non_blocking=True)
        seen, moved, gave = walked[..., :11].float(), walked[..., 11].long(), walked[..., 12]
        h = body(seen)
        odds, value = actor(h).float().log_softmax(-1), critic(h).float()[..., 0]
        now = odds.gather(-1, moved[..., None])[..., 0]
        share = (now.detach() + 1.3863).exp().clamp(max=1.0)
        # the corrected worth of the states, from the last one backwards; as in IMPALA
        worth, more, sums = value.detach(), torch.zeros_like(value[:, 0]), []
        after = torch.cat([worth[:, 1:], worth[:, -1:]], 1)
        off = share * (gave + 0.99 * after - worth)
        for t in reversed(range(moves)):
            more = off[:, t] + 0.99 * share[:, t] * more
            sums.append(more)
        goal = torch.stack(sums[::-1], 1)
        gain = share * (gave + 0.99 * (after + goal) - worth)
        chaos = -(odds.exp() * odds).sum(-1).mean()
        return (-gain * now).mean() + 0.5 * (worth + goal - value).square().mean() - 0.01 * chaos

    run = fit(loss_of, adam(model), clip=40.0, settle=5)
    run.close = lambda: [made.close() for made in actors]
    return run


# --- pictures with masks ----------------------------------------------------------------------


def twice(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
        nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
    )  # fmt: skip


class Outlines(nn.Module):
    """A class for each pixel: down, up, and what was seen on the way down."""

    def __init__(self, before: int, width: int, levels: int, classes: int) -> None:
        super().__init__()
        sizes = [width * 2**i for i in range(levels)]
        self.downs = nn.ModuleList(
            twice(a, b) for a, b in zip([before, *sizes], sizes, strict=False)
        )
        self.ups = nn.ModuleList(twice(a + b, a) for a, b in itertools.pairwise(sizes))
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for number, down in enumerate(self.downs):
            x = down(fn.max_pool2d(x, 2) if number else x)
            kept.append(x)
        x = kept.pop()
        for up in reversed(self.ups):
            x = up(torch.cat([fn.interpolate(x, scale_factor=2.0), kept.pop()], 1))
        return self.out(x)


@pair(
    "host_sync",
    "vision",
    "ReduceLROnPlateau gets the mean loss of 100 steps, not the loss of each",
    marks="profiler",
)
def cells_plateau_each_step(repaired: bool) -> Running:
    batch, stored, side, classes = size(16, 2), size(320, 40), size(256, 32), 3
    model = Outlines(3, size(32, 4), size(4, 2), classes).to(DEVICE)
    x, y = noise(batch, 3, stored, stored).sigmoid(), labels(classes, batch, stored, stored)
    update = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, fused=True)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(update, factor=0.5, patience=5000)
    scaler = torch.amp.GradScaler("cuda", enabled=CUDA)
    draw = random.Random(0)
    total, made = torch.zeros((), device=DEVICE), 0

    def altered() -> tuple[Tensor, Tensor]:
        """Each picture cut, turned over, and seen in another light, on the device."""
        pictures, masks = [], []
        for picture, mask in zip(x, y, strict=True):
            top, left = draw.randrange(stored - side), draw.randrange(stored - side)
            way = [draw.choice((-1, -2))]
            a = picture[:, top : top + side, left : left + side].flip(way)
            masks.append(mask[top : top + side, left : left + side].flip(way))
            a = a.lerp(a.mean(0, keepdim=True), draw.random() * 0.5)
            a = (a * draw.uniform(0.8, 1.2) + draw.uniform(-0.1, 0.1)).clamp(0, 1)
            a = a.pow(draw.uniform(0.8, 1.25))
            pictures.append(a + 0.02 * torch.randn_like(a))
        return torch.stack(pictures), torch.stack(masks)

    def step() -> None:
        nonlocal made
        pictures, masks = altered()
        with torch.autocast(DEVICE.type, torch.float16, enabled=CUDA):
            scores = model(pictures)
        odds, goal = scores.float().softmax(1), fn.one_hot(masks, classes).movedim(-1, 1)
        both = (odds * goal).sum((2, 3))
        dice = (2 * both + 1) / (odds.sum((2, 3)) + goal.sum((2, 3)) + 1)
        loss = fn.cross_entropy(scores.float(), masks) + 1 - dice.mean()
        scaler.scale(loss).backward()
        scaler.step(update)  # a fused update looks for infinities on the device
        scaler.update()
        update.zero_grad(set_to_none=True)
        made += 1
        if not repaired:
            plateau.step(loss.detach())
            return
        total.add_(loss.detach())
        if made % 100 == 0:
            plateau.step(total.item() / 100)
            total.zero_()

    return Running(step, enter=precision("high"))


@dataclass
class Tiles:
    """Tiles of what satellites saw, and where they lie."""

    bands: Tensor
    masks: Tensor
    places: list[tuple[int, int]]


class PinnedTiles(Tiles):
    """A DataLoader pins a batch of a type that it does not know only if it has this method."""

    def pin_memory(self) -> PinnedTiles:
        return PinnedTiles(self.bands.pin_memory(), self.masks.pin_memory(), self.places)


Scene = tuple[Tensor, Tensor, tuple[int, int]]


class Scenes(Dataset[Scene]):
    """Tiles of a scene of several bands."""

    def __init__(self, bands: int, side: int, tile: int, classes: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self.seen = torch.randn(bands, side, side, generator=draw)
        self.kinds = torch.randint(0, classes, (side, side), generator=draw)
        self.tile, self.free = tile, side - tile

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Scene:
        top, left = index * 7919 % self.free, index * 104_729 % self.free
        down, right = slice(top, top + self.tile), slice(left, left + self.tile)
        return self.seen[:, down, right], self.kinds[down, right], (top, left)


def tiles_of(items: list[Scene]) -> Tiles:
    bands, masks, places = zip(*items, strict=True)
    return Tiles(torch.stack(bands), torch.stack(masks), list(places))


def pinned_tiles_of(items: list[Scene]) -> PinnedTiles:
    tiles = tiles_of(items)
    return PinnedTiles(tiles.bands, tiles.masks, tiles.places)


@pair(
    "blocking_copy",
    "vision",
    "the class of the batches has a pin_memory method, so that pin_memory=True has an effect",
)
def satellite_tiles_unpinned_class(repaired: bool) -> Running:
    bands, tile, classes, workers = size(10, 3), size(256, 32), 12, 4
    data = Scenes(bands, size(640, 80), tile, classes)
    loader = DataLoader(
        data, size(8, 2), num_workers=size(workers, 1), pin_memory=CUDA, prefetch_factor=2,
        persistent_workers=True, collate_fn=pinned_tiles_of if repaired else tiles_of,
    )  # fmt: skip
    batches = endless(loader)
    model = Outlines(bands, size(64, 4), size(5, 2), classes).to(DEVICE)

    def loss_of() -> Tensor:
        batch = next(batches)
        x = batch.bands.to(DEVICE, non_blocking=True)
        y = batch.masks.to(DEVICE, non_blocking=True)
        return fn.cross_entropy(model(x).float(), y, label_smoothing=0.05)

    return fit(loss_of, adam(model), decay=True, settle=2 + 2 * workers)
