"""A twenty-fourth set for one GPU: faults that textbooks and tuning guides show, drawn by lot.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, Residual, classified, done, precision, size, training, transformer_layers
from program import Program, Running, phase
from single_programs import entered, loaded
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 405 pairs, opened"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
SHORT = torch.bfloat16
LAST: Any = torch.channels_last


# --- numbers for the log --------------------------------------------------------------------------


def convolved(many: int, before: int, after: int, stride: int = 1) -> list[nn.Module]:
    """So many convolutions of three by three, each with its norm; the first one may stride."""
    parts: list[nn.Module] = []
    for number in range(many):
        first = number == 0
        parts += [
            nn.Conv2d(before if first else after, after, 3, stride if first else 1, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        ]
    return parts


@pair(
    "host_sync",
    "vision",
    "losses and hits of all attributes stay on the device and are read every 50 steps",
    marks="phases",
)
def attributes_of_portraits_read_by_item(repaired: bool) -> Running:
    """Hat, beard, glasses and 21 more, each by a head of its own; autocast to BF16."""
    batch, side, width, many = size(256, 2), size(128, 32), size(64, 8), size(24, 3)
    body = nn.Sequential(
        *convolved(1, 3, width, 2),
        *convolved(2, width, width),
        *convolved(2, width, 2 * width, 2),
        *convolved(3, 2 * width, 4 * width, 2),
        *convolved(3, 4 * width, 8 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    heads = nn.ModuleList(nn.Linear(8 * width, 2) for _ in range(many))
    model = nn.ModuleList([body, heads]).to(DEVICE, memory_format=LAST)
    seen = noise(batch, 3, side, side).to(memory_format=LAST)
    true = labels(2, many, batch)
    update = adam(model)
    losses, hits = [0.0] * many, [0.0] * many
    sums = torch.zeros(many, 2, device=DEVICE)
    made = 0

    def step() -> Tensor:
        nonlocal made
        made += 1
        kept = []
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            h = body(seen)
            total = torch.zeros((), device=DEVICE)
            for number, head in enumerate(heads):
                said = head(h).float()
                loss = fn.cross_entropy(said, true[number])
                right = (said.argmax(1) == true[number]).float().mean()
                if repaired:
                    kept += [loss.detach(), right]
                else:
                    losses[number] += loss.item()
                    hits[number] += right.item()
                total = total + loss
        if repaired:
            sums.add_(torch.stack(kept).view(many, 2))
            if made % 50 == 0:
                for number, (loss_sum, hit_sum) in enumerate(sums.tolist()):
                    losses[number], hits[number] = loss_sum, hit_sum
        with phase("backward"):
            total.backward()
        with phase("optimizer"):
            done(update)
        return total.detach()

    return Running(step, enter=precision("high"))


# --- samples for the log --------------------------------------------------------------------------


class Letters(nn.Module):
    """A decoder over single letters."""

    def __init__(self, letters: int, long: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(letters, width), nn.Embedding(long, width)
        self.body = nn.Sequential(*transformer_layers(width, layers, heads, causal=True))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        h = self.embed(text) + self.place.weight[: text.shape[1]]
        return self.last(self.norm(self.body(h)))

    def sample(self, many: int) -> list[int]:
        """So many letters after a first one."""
        text, found = torch.zeros(1, 1, dtype=torch.long, device=DEVICE), []
        with torch.no_grad():
            for _ in range(many):
                chances = self(text)[:, -1].float().softmax(-1)
                following = torch.multinomial(chances, 1)
                text = torch.cat([text, following], 1)
                found.append(int(following.item()))
        return found


@pair(
    "step_jitter",
    "language",
    "no samples in the loop: whoever wants to read some draws them from a checkpoint",
    marks="steps",
    period=8,
)
def plays_by_letters_sampled_every_8(repaired: bool) -> Running:
    """A model of letters, as in a lecture, shows what it writes by now; autocast to BF16."""
    batch, long, letters = size(64, 2), size(512, 8), size(96, 20)
    width, layers, heads, drawn = size(512, 16), size(8, 2), size(8, 2), size(32, 3)
    model = Letters(letters, long, width, layers, heads).to(DEVICE)
    text = labels(letters, batch, long + 1)
    alphabet = [chr(33 + number) for number in range(letters)]
    shown: list[str] = []

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(text[:, :-1]).flatten(0, 1).float(), text[:, 1:].flatten())

    def show(made: int, _loss: Tensor) -> None:
        if repaired or made % 8 != 7:
            return
        model.eval()
        with torch.autocast(DEVICE.type, SHORT):
            found = model.sample(drawn)
        model.train()
        shown[:] = [*shown[-9:], "".join(alphabet[number] for number in found)]

    return fit(loss_of, adam(model), clip=1.0, decay=True, after=show)


# --- scores that nobody needs ---------------------------------------------------------------------


@pair(
    "memory_bound_kernels",
    "language",
    "scores of words are computed for the answers only, not for all tokens of the prompts",
)
def orders_followed_scores_of_prompts_too(repaired: bool) -> Running:
    """A decoder learns to answer; of 512 tokens the last 128 are the answer; autocast to BF16."""
    batch, long, answer, words = size(12, 2), size(512, 12), size(128, 4), size(50_304, 40)
    width, layers, heads = size(768, 16), size(12, 2), size(12, 2)
    embed, place = nn.Embedding(words, width), nn.Embedding(long, width)
    body = nn.Sequential(*transformer_layers(width, layers, heads, causal=True))
    norm, last = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
    model = nn.ModuleList([embed, place, body, norm, last]).to(DEVICE)
    text = labels(words, batch, long + 1)
    true = text[:, 1:].clone()
    true[:, :-answer] = -100
    if repaired:
        true = true[:, -answer:].contiguous()

    def loss_of() -> Tensor:
        h = norm(body(embed(text[:, :-1]) + place.weight))
        if repaired:
            h = h[:, -answer:]
        return fn.cross_entropy(last(h).flatten(0, 1).float(), true.flatten(), ignore_index=-100)

    return fit(loss_of, adam(model), clip=1.0)


# --- metrics --------------------------------------------------------------------------------------


def spans(tags: list[str]) -> set[tuple[str, int, int]]:
    """What is named in a sentence: its kind, where it begins and where it ends."""
    found = set()
    begin, kind = -1, ""
    for place, tag in enumerate([*tags, "O"]):
        goes_on = tag.startswith("I-") and tag[2:] == kind
        if begin >= 0 and not goes_on:
            found.add((kind, begin, place))
            begin, kind = -1, ""
        if tag != "O" and not goes_on:
            begin, kind = place, tag[2:]
    return found


def spans_in_python(said: Tensor, true: Tensor, names: list[str]) -> Tensor:
    """How many spans are right, how many were said, and how many there are."""
    right = of_said = of_true = 0
    for one, other in zip(said.tolist(), true.tolist(), strict=True):
        found, there = spans([names[n] for n in one]), spans([names[n] for n in other])
        right += len(found & there)
        of_said += len(found)
        of_true += len(there)
    return torch.tensor([right, of_said, of_true])


def bounds(tags: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each place its kind, whether a span begins there, and where that would end."""
    long = tags.shape[1]
    kind = torch.where(tags > 0, (tags - 1) // 2, -1)
    goes_on = (tags > 0) & (tags % 2 == 0)
    goes_on[:, 1:] &= kind[:, 1:] == kind[:, :-1]
    goes_on[:, 0] = False
    places = torch.arange(long, device=tags.device).expand_as(tags)
    stops = torch.where(goes_on, long, places).roll(-1, 1)
    stops[:, -1] = long
    return kind, (tags > 0) & ~goes_on, stops.flip(1).cummin(1).values.flip(1)


def spans_on_device(said: Tensor, true: Tensor) -> Tensor:
    """The same numbers by operations on whole batches."""
    (kind, begins, stops), (kind2, begins2, stops2) = bounds(said), bounds(true)
    right = begins & begins2 & (kind == kind2) & (stops == stops2)
    return torch.stack([right.sum(), begins.sum(), begins2.sum()])


def sentences(many: int, long: int, kinds: int) -> Tensor:
    """Tags of made-up sentences: a third of the words belongs to names of up to four words."""
    chance = np.random.default_rng(0)
    tags = np.zeros((many, long), np.int64)
    for row in tags:
        place = 0
        while place < long:
            place += int(chance.integers(1, 9))
            kind, words = int(chance.integers(kinds)), int(chance.integers(1, 5))
            row[place : place + words] = 2 + 2 * kind
            row[place : place + 1] = 1 + 2 * kind
            place += words
    return torch.from_numpy(tags)


@pair(
    "host_compute",
    "language",
    "spans are compared by operations on the device, sums read every 100 steps, not by Python sets",
    marks="phases",
)
def names_in_news_spans_scored_in_python(repaired: bool) -> Running:
    """Persons, places and the like are tagged by an encoder; F1 of spans is logged; BF16."""
    batch, long, words, kinds = size(48, 2), size(128, 10), size(30_000, 40), size(8, 2)
    width, layers, heads = size(768, 16), size(8, 2), size(12, 2)
    names = ["O", *(f"{part}-{kind}" for kind in range(kinds) for part in "BI")]
    embed, place = nn.Embedding(words, width), nn.Embedding(long, width)
    body = nn.Sequential(*transformer_layers(width, layers, heads))
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(names)))
    model = nn.ModuleList([embed, place, body, last]).to(DEVICE)
    many = 8
    texts = labels(words, many, batch, long)
    all_true = sentences(many * batch, long, kinds).view(many, batch, long).to(DEVICE)
    update = adam(model)
    counts = torch.zeros(3, dtype=torch.long, device=DEVICE if repaired else "cpu")
    log: list[float] = []
    made = 0

    def step() -> Tensor:
        nonlocal made
        text, true = texts[made % many], all_true[made % many]
        made += 1
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            said = last(body(embed(text) + place.weight)).float()
            loss = fn.cross_entropy(said.flatten(0, 1), true.flatten())
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            done(update)
        with phase("metrics"):
            tags = said.detach().argmax(-1)
            if repaired:
                counts.add_(spans_on_device(tags, true))
            else:
                counts.add_(spans_in_python(tags, true, names))
            if made % 100 == 0:
                right, of_said, of_true = counts.tolist()
                log.append(2 * right / max(of_said + of_true, 1))
        return loss.detach()

    return Running(step, enter=precision("high"))


# --- precision ------------------------------------------------------------------------------------


class Steered(nn.Module):
    """A layer whose norms are shifted and scaled, and its results weighed, by the noise's level."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.steer = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.steer(level)[:, None].chunk(6, -1)
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        h = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate1 * self.out(h)
        return x + gate2 * self.feed(self.norm2(x) * (1 + scale2) + shift2)


@pair(
    "lower_precision",
    "diffusion",
    "the forward pass runs under autocast to BF16 instead of in TF32",
    marks="profiler",
)
def wallpapers_denoised_by_transformer_in_tf32(repaired: bool) -> Running:
    """Noise in latent pictures of patterns is told by a transformer of patches."""
    batch, side, square, channels = size(32, 2), size(32, 8), 2, 4
    width, layers, heads = size(768, 16), size(10, 2), size(12, 2)
    inside = channels * square * square
    first, places = nn.Linear(inside, width), nn.Embedding((side // square) ** 2, width)
    level = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
    body = nn.ModuleList(Steered(width, heads) for _ in range(layers))
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, inside))
    model = nn.ModuleList([first, places, level, body, last]).to(DEVICE)
    rates = torch.exp(-math.log(10_000) * torch.arange(width // 2, device=DEVICE) / (width // 2))
    clean = noise(batch, (side // square) ** 2, inside)
    kept = torch.cos(torch.linspace(0, 0.5 * math.pi, 1001, device=DEVICE)[:-1]).square()

    def loss_of() -> Tensor:
        times, added = labels(1000, batch), torch.randn_like(clean)
        share = kept[times][:, None, None]
        noisy = share.sqrt() * clean + (1 - share).sqrt() * added
        angles = times[:, None] * rates
        steer = level(torch.cat([angles.sin(), angles.cos()], 1))
        h = first(noisy) + places.weight
        for layer in body:
            h = layer(h, steer)
        return fn.mse_loss(last(h).float(), added)

    return fit(loss_of, adam(model), bf16=repaired)


# --- checkpoints ----------------------------------------------------------------------------------


class Twice(nn.Sequential):
    """Two convolutions with their norms."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        )  # fmt: skip


class Outlines(nn.Module):
    """A U-Net as in the first paper, with norms."""

    def __init__(self, width: int, levels: int, kinds: int) -> None:
        super().__init__()
        sizes = [width << level for level in range(levels)]
        self.downs = nn.ModuleList(
            Twice(3 if level == 0 else now // 2, now) for level, now in enumerate(sizes)
        )
        self.wider = nn.ModuleList(nn.ConvTranspose2d(2 * s, s, 2, 2) for s in sizes[-2::-1])
        self.ups = nn.ModuleList(Twice(2 * s, s) for s in sizes[-2::-1])
        self.last = nn.Conv2d(width, kinds, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level, down in enumerate(self.downs):
            x = down(fn.max_pool2d(x, 2) if level else x)
            kept.append(x)
        kept.pop()
        for wider, up in zip(self.wider, self.ups, strict=True):
            x = up(torch.cat([kept.pop(), wider(x)], 1))
        return self.last(x)


class Saves:
    """Writes a model's weights, in the loop or from a copy by a thread."""

    def __init__(self, model: nn.Module, *, aside: bool) -> None:
        self.model, self.folder = model, Path(tempfile.mkdtemp(prefix="exam-"))
        self.copies: dict[str, Tensor] = {}
        self.thread: threading.Thread | None = None
        if aside:
            for name, value in model.state_dict().items():
                copy = torch.empty_like(value, device="cpu")
                self.copies[name] = copy.pin_memory() if CUDA else copy

    def save(self) -> None:
        file = self.folder / "last.pt"
        if not self.copies:
            torch.save(self.model.state_dict(), file)
            return
        self.wait()
        for name, value in self.model.state_dict().items():
            self.copies[name].copy_(value, non_blocking=True)
        copied = torch.cuda.Event() if CUDA else None
        if copied:
            copied.record()

        def write() -> None:
            if copied:
                copied.synchronize()
            torch.save(self.copies, file)

        self.thread = threading.Thread(target=write)
        self.thread.start()

    def wait(self) -> None:
        if self.thread:
            self.thread.join()
            self.thread = None

    def close(self) -> None:
        self.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@pair(
    "checkpoint_stall",
    "vision",
    "weights are copied to pinned memory and written from there by a thread",
    marks="steps",
    period=8,
)
def roads_from_planes_weights_saved_every_8(repaired: bool) -> Running:
    """Roads are outlined in pictures taken from planes; autocast to BF16, channels last."""
    batch, side, width, levels, kinds = size(32, 2), size(256, 32), size(48, 4), size(5, 3), 3
    model = Outlines(width, levels, kinds).to(DEVICE, memory_format=LAST)
    seen = noise(batch, 3, side, side).to(memory_format=LAST)
    true = labels(kinds, batch, side, side)
    saves = Saves(model, aside=repaired)

    def after(made: int, _loss: Tensor) -> None:
        if made % 8 == 7:
            saves.save()

    run = fit(lambda: fn.cross_entropy(model(seen).float(), true), sgd(model), after=after)
    run.leave, run.close = saves.wait, saves.close
    return run


# --- copies ---------------------------------------------------------------------------------------


class Bands(nn.Module):
    """A residual network over small squares of many bands, at one scale."""

    def __init__(self, bands: int, width: int, blocks: int, kinds: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(bands, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.body = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False),
            )
            for _ in range(blocks)
        )  # fmt: skip
        self.last = nn.Linear(width, kinds)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for block in self.body:
            h = h + block(h)
        return self.last(h.mean((2, 3)))


@pair(
    "blocking_copy",
    "earth",
    "the cubes lie in pinned memory and are copied with non_blocking=True",
)
def crops_by_200_bands_cubes_in_plain_memory(repaired: bool) -> Running:
    """What grows on a field, by spectra of its surroundings; autocast to BF16, channels last."""
    batch, bands, side, kinds, many = size(256, 2), size(200, 6), size(16, 8), size(17, 3), 6
    model = Bands(bands, size(256, 8), size(8, 1), kinds).to(DEVICE, memory_format=LAST)
    cubes = [torch.randn(batch, bands, side, side) for _ in range(many)]
    kinds_of = [torch.randint(0, kinds, (batch,)) for _ in range(many)]
    if repaired and CUDA:
        cubes, kinds_of = [x.pin_memory() for x in cubes], [y.pin_memory() for y in kinds_of]
    turn = itertools.cycle(zip(cubes, kinds_of, strict=True))

    def loss_of() -> Tensor:
        cube, true = next(turn)
        x = cube.to(DEVICE, non_blocking=repaired)
        y = true.to(DEVICE, non_blocking=repaired)
        return fn.cross_entropy(model(x.contiguous(memory_format=LAST)).float(), y)

    return fit(loss_of, sgd(model))


# --- targets --------------------------------------------------------------------------------------


def maps_by_numpy(joints: np.ndarray[Any, Any], high: int, wide: int, spread: int) -> Tensor:
    """A bell around each joint on a map of its own, as code for poses has it."""
    maps = np.zeros((*joints.shape[:2], high, wide), np.float32)
    reach = 3 * spread
    for one, body in zip(maps, joints, strict=True):
        for joint, (right, down) in enumerate(body):
            x0, y0 = int(right + 0.5), int(down + 0.5)
            left, top = x0 - reach, y0 - reach
            if left >= wide or top >= high or x0 + reach < 0 or y0 + reach < 0:
                continue
            x = np.arange(2 * reach + 1, dtype=np.float32)
            y = x[:, np.newaxis]
            bell = np.exp(-((x - reach) ** 2 + (y - reach) ** 2) / (2 * spread**2))
            from_x, from_y = max(0, -left), max(0, -top)
            to_x, to_y = min(left + len(x), wide) - left, min(top + len(x), high) - top
            one[joint, top + from_y : top + to_y, left + from_x : left + to_x] = bell[
                from_y:to_y, from_x:to_x
            ]
    return torch.from_numpy(maps)


def maps_on_device(joints: Tensor, high: int, wide: int, spread: int) -> Tensor:
    """The same maps by a few operations on all joints."""
    middle = (joints + 0.5).trunc()[..., None]
    x = torch.arange(wide, device=joints.device) - middle[:, :, 0]
    y = torch.arange(high, device=joints.device) - middle[:, :, 1]
    reach = 3 * spread
    across = torch.exp(-x.square() / (2 * spread**2)) * (x.abs() <= reach)
    along = torch.exp(-y.square() / (2 * spread**2)) * (y.abs() <= reach)
    return along[..., None] * across[..., None, :]


@pair(
    "host_compute",
    "vision",
    "maps of the joints are computed on the device for all at once, not by NumPy one by one",
)
def skiers_poses_maps_by_numpy(repaired: bool) -> Running:
    """Joints of skiers are found on maps a quarter as large as the picture; BF16, channels last."""
    batch, joints, width, outside = size(64, 2), size(17, 3), size(64, 8), size(256, 8)
    high, wide, spread, many = size(64, 16), size(56, 16), size(2, 1), 4
    blocks = (3, 4, 6, 3) if CUDA else (1, 1, 1, 1)
    parts: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    before = width
    for level, deep in enumerate(blocks):
        for block in range(deep):
            parts.append(Residual(before, width << level, 2 if level and not block else 1))
            before = width << level
    for _ in range(3):
        parts += [
            nn.ConvTranspose2d(before, outside, 4, 2, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
        ]
        before = outside
    model = nn.Sequential(*parts, nn.Conv2d(outside, joints, 1)).to(DEVICE, memory_format=LAST)
    seen = noise(batch, 3, 4 * high, 4 * wide).to(memory_format=LAST)
    chance = np.random.default_rng(0)
    places = chance.uniform(0, 1, (many, batch, joints, 2)) * [wide - 1, high - 1]
    on_host = torch.from_numpy(places.astype(np.float32))
    if CUDA:
        on_host = on_host.pin_memory()
    turn = itertools.cycle(range(many))

    def loss_of() -> Tensor:
        now = on_host[next(turn)]
        if repaired:
            true = maps_on_device(now.to(DEVICE, non_blocking=True), high, wide, spread)
        else:
            made = maps_by_numpy(now.numpy(), high, wide, spread)
            true = made.to(DEVICE, non_blocking=True)
        return fn.mse_loss(model(seen).float(), true)

    return fit(loss_of, adam(model))


# --- attention ------------------------------------------------------------------------------------


class Listens(nn.Module):
    """A layer of an encoder, its attention as the paper's formula has it or fused."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (
            layer(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        if self.fused:
            seen = fn.scaled_dot_product_attention(q, k, v)
        else:
            scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
            seen = torch.matmul(torch.softmax(scores, dim=-1), v)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.norm2(x))


@pair(
    "unfused_attention",
    "speech",
    "fn.scaled_dot_product_attention(q, k, v) in place of both products and the softmax",
    marks="phases",
)
def dialects_heard_attention_by_formula(repaired: bool) -> Running:
    """An encoder tells the unit of each frame of speech in dialects; autocast to BF16."""
    batch, frames, pitches, units = size(24, 2), size(512, 12), size(80, 6), size(500, 7)
    width, layers, heads = size(768, 16), size(6, 2), size(12, 2)
    first = nn.Sequential(
        nn.Conv1d(pitches, width, 3, padding=1), nn.GELU(),
        nn.Conv1d(width, width, 3, 2, padding=1), nn.GELU(),
    )  # fmt: skip
    place = nn.Embedding(frames, width)
    body = nn.Sequential(*(Listens(width, heads, fused=repaired) for _ in range(layers)))
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, units))
    model = nn.ModuleList([first, place, body, last]).to(DEVICE)
    heard, true = noise(batch, pitches, 2 * frames), labels(units, batch, frames)

    def loss_of() -> Tensor:
        h = body(first(heard).transpose(1, 2) + place.weight)
        return fn.cross_entropy(last(h).flatten(0, 1).float(), true.flatten())

    return fit(loss_of, adam(model), clip=1.0)


# --- input ----------------------------------------------------------------------------------------


class Doodles(Dataset[tuple[Tensor, int]]):
    """Drawings of a few strokes, kept as compressed JSON, turned and resampled for each use."""

    def __init__(self, many: int, points: int, kinds: int) -> None:
        chance = np.random.default_rng(0)
        self.points, self.kinds = points, kinds
        self.rows: list[bytes] = []
        for number in range(many):
            strokes = []
            for _ in range(int(chance.integers(4, 9))):
                walk = chance.integers(-9, 10, (2, int(chance.integers(10, 31)))).cumsum(1) + 128
                strokes.append([line.tolist() for line in walk])
            row = {"word": number % kinds, "recognized": True, "drawing": strokes}
            self.rows.append(zlib.compress(json.dumps(row).encode()))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        chance = np.random.default_rng(index)
        row = json.loads(zlib.decompress(self.rows[index % len(self.rows)]))
        strokes = [np.array(stroke, np.float32) for stroke in row["drawing"]]
        line = np.concatenate(strokes, 1)
        lifted = np.concatenate([np.arange(stroke.shape[1]) == 0 for stroke in strokes])
        far = np.concatenate([[0.0], np.hypot(*np.diff(line, axis=1)).cumsum()])
        wanted = np.linspace(0, far[-1], self.points)
        x, y = (np.interp(wanted, far, part) for part in line)
        pen = np.zeros(self.points)
        pen[np.searchsorted(wanted, far[lifted]).clip(0, self.points - 1)] = 1
        angle, scale = chance.uniform(-0.3, 0.3), chance.uniform(0.8, 1.2)
        x, y = (x - x.mean()) * scale, (y - y.mean()) * scale
        most = max(np.abs(x).max(), np.abs(y).max(), 1e-3)
        turned = np.stack(
            [
                (math.cos(angle) * x - math.sin(angle) * y) / most,
                (math.sin(angle) * x + math.cos(angle) * y) / most,
                pen,
            ],
            1,
        )
        turned[:, :2] += 0.01 * chance.standard_normal((self.points, 2))
        return torch.from_numpy(turned.astype(np.float32)), row["word"]


class Draws(nn.Module):
    """An encoder over points of a line."""

    def __init__(self, points: int, width: int, layers: int, heads: int, kinds: int) -> None:
        super().__init__()
        self.first, self.place = nn.Linear(3, width), nn.Embedding(points, width)
        self.body = nn.Sequential(*transformer_layers(width, layers, heads), nn.LayerNorm(width))
        self.last = nn.Linear(width, kinds)

    def forward(self, line: Tensor) -> Tensor:
        return self.last(self.body(self.first(line) + self.place.weight).mean(1))


@pair(
    "input_starvation",
    "drawings",
    "the DataLoader gets 4 workers instead of none",
    marks="profiler",
)
def doodles_of_pupils_decoded_in_the_loop(repaired: bool) -> Running:
    """What a pupil drew, by the points of its lines in turn; autocast to BF16."""
    batch, points, kinds = size(80, 2), size(128, 16), size(345, 5)
    batches = loaded(Doodles(size(4000, 8), points, kinds), batch, 4 if repaired else 0)
    model = Draws(points, size(768, 16), size(10, 2), size(12, 2), kinds).to(DEVICE)
    return training(model, batches, classified)


# --- small kernels --------------------------------------------------------------------------------


def regressor(facts: int, width: int, layers: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for number in range(layers):
        parts += [nn.Linear(width if number else facts, width), nn.SiLU()]
    return nn.Sequential(*parts, nn.Linear(width, 2))


class Together(nn.Module):
    """All members of an ensemble, the weights of a layer in one tensor."""

    def __init__(self, members: list[nn.Sequential]) -> None:
        super().__init__()
        layers = [[part for part in one if isinstance(part, nn.Linear)] for one in members]
        deep = range(len(layers[0]))
        self.weights = nn.ParameterList(
            torch.stack([one[n].weight.detach().T for one in layers]) for n in deep
        )
        self.biases = nn.ParameterList(
            torch.stack([one[n].bias.detach()[None] for one in layers]) for n in deep
        )

    def forward(self, x: Tensor) -> Tensor:
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, fn.silu(x) if number else x, weight)
        return x


class Apart(nn.Module):
    """All members of an ensemble, one after the other."""

    def __init__(self, members: list[nn.Sequential]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [member(rows) for member, rows in zip(self.members, x, strict=True)]


@pair(
    "launch_bound",
    "tabular",
    "weights of all members are stacked, and a layer of all is one batched product, no loop",
    marks="steps",
)
def batteries_ensemble_member_by_member(repaired: bool) -> Running:
    """How long batteries last, and how sure that is, by 32 small networks; TF32."""
    many, rows, facts = size(32, 3), size(5120, 6), size(64, 5)
    width, layers = size(512, 8), size(4, 2)
    members = [regressor(facts, width, layers) for _ in range(many)]
    model: nn.Module = (Together(members) if repaired else Apart(members)).to(DEVICE)
    facts_of, lives = noise(many, rows, facts), noise(many, rows)

    def surprise(said: Tensor, true: Tensor) -> Tensor:
        mean, spread = said[..., 0], fn.softplus(said[..., 1]) + 1e-4
        return 0.5 * (spread.log() + (mean - true).square() / spread).mean()

    def loss_of() -> Tensor:
        said = model(facts_of)
        if repaired:
            return many * surprise(said, lives)
        parts = [surprise(one, true) for one, true in zip(said, lives, strict=True)]
        return torch.stack(parts).sum()

    return fit(loss_of, adam(model), bf16=False)


# --- chains ---------------------------------------------------------------------------------------


def chosen_softly(scores: Tensor, drawn: Tensor, heat: float) -> tuple[Tensor, Tensor]:
    """Shares of codes by Gumbel's noise, and how far the chances are from equal ones."""
    scores = scores.float()
    gumbel = -torch.log(-torch.log(drawn + 1e-9) + 1e-9)
    shares = ((scores + gumbel) / heat).softmax(-1)
    logs = scores.log_softmax(-1)
    far = (logs.exp() * (logs + math.log(scores.shape[-1]))).sum(-1).mean()
    return shares, far


def with_norm(width: int) -> nn.Module:
    return nn.Sequential(
        nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1),
        nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1),
    )  # fmt: skip


class Pieces(nn.Module):
    """Pictures to codes and back; codes are chosen softly."""

    def __init__(self, width: int, blocks: int, codes: int, choose: Callable[..., Any]) -> None:
        super().__init__()
        self.choose, self.codes = choose, codes
        self.first = nn.Sequential(
            nn.Conv2d(3, width // 2, 4, 2, 1), nn.SiLU(), nn.Conv2d(width // 2, width, 4, 2, 1)
        )
        self.inward = nn.ModuleList(with_norm(width) for _ in range(blocks))
        self.scores = nn.Linear(width, codes)
        self.book = nn.Linear(codes, width, bias=False)
        self.outward = nn.ModuleList(with_norm(width) for _ in range(blocks))
        self.last = nn.Sequential(
            nn.ConvTranspose2d(width, width // 2, 4, 2, 1), nn.SiLU(),
            nn.ConvTranspose2d(width // 2, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x: Tensor, heat: float) -> tuple[Tensor, Tensor]:
        h = self.first(x)
        for block in self.inward:
            h = h + block(h)
        scores = self.scores(h.permute(0, 2, 3, 1))
        drawn = torch.rand(scores.shape, device=scores.device)
        shares, far = self.choose(scores, drawn, heat)
        h = self.book(shares).permute(0, 3, 1, 2)
        for block in self.outward:
            h = h + block(h)
        return self.last(h), far


@pair(
    "fusion_opportunity",
    "vision",
    "torch.compile of the function that draws shares of codes and their divergence",
    compiles=True,
)
def azulejos_in_codes_drawn_softly_compile(repaired: bool) -> Running:
    """A discrete autoencoder of painted tiles, by Gumbel's trick; autocast to BF16."""
    batch, side, codes = size(16, 2), size(128, 16), size(4096, 12)
    choose: Any = torch.compile(chosen_softly) if repaired else chosen_softly
    model = Pieces(size(256, 16), size(4, 1), codes, choose).to(DEVICE, memory_format=LAST)
    seen = noise(batch, 3, side, side).to(memory_format=LAST)

    def loss_of() -> Tensor:
        back, far = model(seen, 0.9)
        return fn.mse_loss(back.float(), seen) + 1e-3 * far

    return fit(loss_of, adam(model))
