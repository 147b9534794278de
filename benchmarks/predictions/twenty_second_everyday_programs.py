"""A twenty-second set for one GPU: faults of notebooks, copied settings and habits.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, Attends, Feeds, done, precision, size, transformer_layers
from program import Program, Running, phase
from single_programs import entered, loaded
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 339 pairs"
pair = entered(PROGRAMS)
SHORT = torch.bfloat16
LAST = torch.channels_last


# --- nights with wristbands -----------------------------------------------------------------------


class OneHead(nn.Module):
    """Attention with a single head, whose queries and keys are narrower than the layer."""

    def __init__(self, width: int, inside: int, *, four: bool) -> None:
        super().__init__()
        self.norm, self.four = nn.LayerNorm(width), four
        self.query, self.key, self.value = (nn.Linear(width, inside) for _ in range(3))
        self.out = nn.Linear(inside, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = self.query(h), self.key(h), self.value(h)
        if self.four:
            q, k, v = q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
        seen = fn.scaled_dot_product_attention(q, k, v)
        return x + self.out(seen.squeeze(1) if self.four else seen)


@pair(
    "unfused_attention",
    "series",
    "q, k and v get a dimension of one head: of three dimensions the fused kernels take none",
)
def nights_of_wristbands_head_has_no_dimension(repaired: bool) -> Running:
    """When a child falls asleep and wakes, by its wrist's movements; autocast to BF16."""
    batch, long, each, told = size(12, 2), size(2880, 12), size(24, 4), 2
    width, inside, layers = size(512, 16), size(128, 8), size(6, 2)
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [OneHead(width, inside, four=repaired), Feeds(width)]
    into, body = nn.Linear(each, width), nn.Sequential(*parts)
    places = nn.ParameterList([nn.Parameter(0.02 * torch.randn(long, width))])
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, told))
    model = nn.ModuleList([into, body, places, last]).to(DEVICE)
    moved = noise(batch, long, each)
    true = (torch.rand(batch, long, told, device=DEVICE) < 0.01).float()

    def loss_of() -> Tensor:
        said = last(body(into(moved) + places[0]))
        return fn.binary_cross_entropy_with_logits(said.float(), true)

    return fit(loss_of, adam(model), decay=True)


# --- polymers -------------------------------------------------------------------------------------


class Bonds(nn.Module):
    """Messages along bonds, filtered by what is known of these, and a small network."""

    def __init__(self, width: int, known: int) -> None:
        super().__init__()
        self.filters = nn.Linear(known, width)
        self.net = nn.Sequential(
            nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(),
            nn.Linear(2 * width, width),
        )  # fmt: skip

    def forward(self, x: Tensor, of: Tensor, to: Tensor, bonds: Tensor) -> Tensor:
        told = x.index_select(0, of) * self.filters(bonds)
        return x + self.net(torch.zeros_like(x).index_add(0, to, told))


def reproducible(run: Running) -> Running:
    """As the notebook's function for all seeds has it."""
    enter = run.enter

    def asked() -> None:
        enter()
        torch.use_deterministic_algorithms(True, warn_only=True)

    run.enter, run.leave = asked, lambda: torch.use_deterministic_algorithms(False)
    return run


@pair(
    "inefficient_kernel",
    "graph",
    "seed_everything() no longer asks for deterministic algorithms: sums by index are atomic",
)
def polymers_melt_seeds_of_a_notebook(repaired: bool) -> Running:
    """Five properties of polymers, from their atoms and what lies near each; in TF32."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    atoms, near, known, kinds = size(40_000, 40), size(30, 3), size(32, 4), size(64, 8)
    width, layers, polymers, told = size(128, 8), size(4, 2), size(400, 4), 5
    embed = nn.Embedding(kinds, width)
    body = nn.ModuleList(Bonds(width, known) for _ in range(layers))
    last = nn.Linear(width, told)
    model = nn.ModuleList([embed, body, last]).to(DEVICE)
    kind, true = labels(kinds, atoms), noise(polymers, told)
    each = atoms // polymers
    whose = torch.arange(atoms, device=DEVICE) // each
    of = torch.arange(atoms, device=DEVICE).repeat_interleave(near)
    to = whose[of] * each + labels(each, len(of))
    bonds = torch.rand(len(of), known, device=DEVICE)

    def loss_of() -> Tensor:
        x = embed(kind)
        for layer in body:
            x = layer(x, of, to, bonds)
        said = last(x.new_zeros(polymers, width).index_add(0, whose, x) / each)
        return fn.l1_loss(said, true)

    run = fit(loss_of, adam(model), bf16=False)
    return run if repaired else reproducible(run)


# --- cars below balconies -------------------------------------------------------------------------


class FrozenNorm(nn.Module):
    """Batch normalisation whose numbers stay what they are.

    Args:
        width: channels.
        same: whether the numbers take the type of what they scale.
    """

    weight: Tensor
    bias: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, width: int, *, same: bool) -> None:
        super().__init__()
        self.same = same
        for name, value in (("weight", 1.0), ("bias", 0.0), ("mean", 0.0), ("var", 1.0)):
            self.register_buffer(name, torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.var + 1e-5).rsqrt()
        bias = self.bias - self.mean * scale
        scale, bias = scale.reshape(1, -1, 1, 1), bias.reshape(1, -1, 1, 1)
        if self.same:
            scale, bias = scale.to(x.dtype), bias.to(x.dtype)
        return x * scale + bias


class Bottleneck(nn.Module):
    """Three convolutions beside a short cut, as in ResNet-50."""

    def __init__(self, before: int, width: int, stride: int, *, same: bool) -> None:
        super().__init__()
        after = 4 * width
        self.layers = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False),
            FrozenNorm(width, same=same),
            nn.ReLU(True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            FrozenNorm(width, same=same),
            nn.ReLU(True),
            nn.Conv2d(width, after, 1, bias=False),
            FrozenNorm(after, same=same),
        )
        self.short: nn.Module = nn.Identity()
        if before != after:
            short = nn.Conv2d(before, after, 1, stride, bias=False)
            self.short = nn.Sequential(short, FrozenNorm(after, same=same))

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(self.layers(x) + self.short(x), True)


def tower(width: int, out: int) -> nn.Sequential:
    """What says one thing of each place, on all levels."""
    parts: list[nn.Module] = []
    for _ in range(4):
        parts += [nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(True)]
    return nn.Sequential(*parts, nn.Conv2d(width, out, 3, 1, 1))


@pair(
    "memory_bound_kernels",
    "vision",
    "scale and bias of frozen norms take the type of the pictures: in FP32 they made all of it so",
    marks="phases",
)
def cars_below_balconies_frozen_norms_in_float(repaired: bool) -> Running:
    """Boxes around parked cars, as RetinaNet; its norms are frozen; autocast to BF16."""
    batch, side, width, kinds, boxes = size(8, 2), size(640, 64), size(64, 4), size(8, 2), 9
    stem = nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False), FrozenNorm(width, same=repaired),
        nn.ReLU(True), nn.MaxPool2d(3, 2, 1),
    )  # fmt: skip
    stages, before = nn.ModuleList(), width
    for number, many in enumerate((3, 4, 6, 3)):
        inside, parts = width << number, []
        for block in range(size(many, 1)):
            stride = 2 if number and not block else 1
            parts.append(Bottleneck(before, inside, stride, same=repaired))
            before = 4 * inside
        stages.append(nn.Sequential(*parts))
    sides = nn.ModuleList(nn.Conv2d(width * m, 4 * width, 1) for m in (8, 16, 32))
    smooth = nn.ModuleList(nn.Conv2d(4 * width, 4 * width, 3, 1, 1) for _ in range(3))
    names, places = tower(4 * width, boxes * kinds), tower(4 * width, boxes * 4)
    model = nn.ModuleList([stem, stages, sides, smooth, names, places])
    model = model.to(DEVICE).to(memory_format=LAST)
    seen = noise(batch, 3, side, side).contiguous(memory_format=LAST)
    sizes = [side // 8, side // 16, side // 32]
    named = [(torch.rand(batch, boxes * kinds, s, s, device=DEVICE) < 0.01).float() for s in sizes]
    true = [noise(batch, boxes * 4, s, s) for s in sizes]

    def loss_of() -> Tensor:
        h, levels = stem(seen), []
        for stage in stages:
            h = stage(h)
            levels.append(h)
        maps = [side(level) for side, level in zip(sides, levels[1:], strict=True)]
        for number in (1, 0):
            maps[number] = maps[number] + fn.interpolate(maps[number + 1], scale_factor=2.0)
        total = torch.zeros((), device=DEVICE)
        for number, layer in enumerate(smooth):
            level = layer(maps[number])
            said = names(level).float()
            total = total + fn.binary_cross_entropy_with_logits(said, named[number])
            total = total + fn.smooth_l1_loss(places(level).float(), true[number])
        return total

    return fit(loss_of, sgd(model))


# --- recipes --------------------------------------------------------------------------------------


class Parallel(nn.Module):
    """Attention and network beside each other; all heads share keys and values; as in Falcon."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.each, self.norm = heads, width // heads, nn.LayerNorm(width)
        self.qkv = nn.Linear(width, width + 2 * self.each, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = self.qkv(h).split([self.heads * self.each, self.each, self.each], -1)
        q = q.unflatten(-1, (self.heads, self.each)).transpose(1, 2)
        k, v = (part[:, None].expand(-1, self.heads, -1, -1) for part in (k, v))
        seen = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(seen.transpose(1, 2).flatten(2)) + self.down(fn.gelu(self.up(h)))


@pair(
    "larger_batch",
    "language",
    "two texts at a time and four times a step (gradient_accumulation_steps), not one and eight",
)
def recipes_written_one_at_a_time_eight_times(repaired: bool) -> Running:
    """All weights learn from recipes; eight of them are a step; the model is in BF16."""
    each, texts, long, words = 2 if repaired else 1, 8, size(384, 8), size(32_000, 40)
    width, heads, layers = size(3072, 16), size(24, 2), size(4, 2)
    with torch.device(DEVICE):
        embed = nn.Embedding(words, width)
        body = nn.Sequential(*(Parallel(width, heads) for _ in range(layers)))
        last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words, bias=False))
    model = nn.ModuleList([embed, body, last]).to(SHORT)
    turns = cycle(labels(words, texts, long + 1).split(each))

    def loss_of() -> Tensor:
        text = next(turns)
        said = last(body(embed(text[:, :-1]))).float()
        return fn.cross_entropy(said.flatten(0, 1), text[:, 1:].flatten())

    return fit(loss_of, adam(model), bf16=False, micro=texts // each)


# --- customers who leave --------------------------------------------------------------------------


class CrossedRows(nn.Module):
    """Cross layers and a deep network beside them, as in DCN V2."""

    def __init__(self, known: int, kinds: int, columns: int, width: int, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(kinds, (width - known) // columns)
        self.crosses = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.deep = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1))
                for _ in range(layers)
            )
        )
        self.last = nn.Linear(2 * width, 1)

    def forward(self, known: Tensor, kinds: Tensor) -> Tensor:
        first = torch.cat([known, self.table(kinds).flatten(1)], -1)
        x = first
        for cross in self.crosses:
            x = first * cross(x) + x
        return self.last(torch.cat([x, self.deep(first)], -1))[:, 0]


@pair(
    "step_jitter",
    "tabular",
    "the rows that are held out are scored every 1000 steps, not every 5",
    marks="steps",
    period=5,
)
def customers_leave_held_out_rows_every_5(repaired: bool) -> Running:
    """Who ends a contract; the notebook had begun with a small sample; autocast to BF16."""
    batch, parts, every = size(16_384, 8), size(8, 2), 1000 if repaired else 5
    known, columns, kinds = size(64, 4), size(31, 3), size(50_000, 20)
    width, layers = size(2048, 16), size(4, 2)
    model = CrossedRows(known, kinds, columns, width, layers).to(DEVICE)
    update = adam(model)

    def drawn(rows: int) -> tuple[Tensor, Tensor, Tensor]:
        left = (torch.rand(rows, device=DEVICE) < 0.2).float()
        return noise(rows, known), labels(kinds, rows, columns), left

    rows, held_out, made = drawn(batch), [drawn(batch) for _ in range(parts)], 0

    def loss_of(numbers: Tensor, codes: Tensor, left: Tensor) -> Tensor:
        return fn.binary_cross_entropy_with_logits(model(numbers, codes).float(), left)

    def scored() -> float:
        model.eval()
        with torch.no_grad(), torch.autocast(DEVICE.type, SHORT):
            total = torch.stack([loss_of(*part) for part in held_out]).mean()
        model.train()
        return total.item()

    def step() -> None:
        nonlocal made
        with torch.autocast(DEVICE.type, SHORT):
            loss = loss_of(*rows)
        loss.backward()
        done(update)
        if made % every == 0:
            scored()
        made += 1

    return Running(step, enter=precision("high"))


# --- faces of comics ------------------------------------------------------------------------------


class Leaky(nn.Module):
    """The library's, or as it was written before there was one."""

    def __init__(self, *, library: bool) -> None:
        super().__init__()
        self.library = library

    def forward(self, x: Tensor) -> Tensor:
        return fn.leaky_relu(x, 0.2) if self.library else torch.maximum(x, 0.2 * x)


@pair(
    "fusion_opportunity",
    "gan",
    "the library's leaky_relu instead of a maximum of x and 0.2 x, ported from TensorFlow",
)
def faces_of_comics_leaky_by_maximum(repaired: bool) -> Running:
    """Faces of comics are drawn, and told from true ones; autocast to BF16."""
    batch, side, width, drawn = size(96, 4), size(128, 16), size(64, 4), size(128, 8)
    few, levels = 4, size(5, 2)
    painter: list[nn.Module] = [
        nn.Unflatten(1, (drawn, 1, 1)),
        nn.ConvTranspose2d(drawn, 8 * width, few, bias=False),
    ]
    judge: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1), Leaky(library=repaired)]
    before = 8 * width
    for number in range(levels):
        after = max(width, before // 2) if number else before
        painter += [
            nn.BatchNorm2d(before), Leaky(library=repaired), nn.Upsample(scale_factor=2),
            nn.Conv2d(before, after, 3, 1, 1, bias=False),
        ]  # fmt: skip
        before = after
    painter += [
        nn.BatchNorm2d(before), Leaky(library=repaired), nn.Conv2d(before, 3, 3, 1, 1), nn.Tanh(),
    ]  # fmt: skip
    before = width
    for _ in range(levels):
        after = min(2 * before, 8 * width)
        judge += [nn.Conv2d(before, after, 4, 2, 1), Leaky(library=repaired)]
        before = after
    judge += [nn.Flatten(), nn.Linear(before * (side >> levels) ** 2, 1)]
    paints = nn.Sequential(*painter).to(DEVICE).to(memory_format=LAST)
    judges = nn.Sequential(*judge).to(DEVICE).to(memory_format=LAST)
    of_painter, of_judge = adam(paints), adam(judges)
    true = noise(batch, 3, side, side).tanh().contiguous(memory_format=LAST)
    weights = list(paints.parameters())

    def step() -> None:
        with torch.autocast(DEVICE.type, SHORT):
            made = paints(noise(batch, drawn))
            loss = fn.softplus(-judges(true).float()) + fn.softplus(judges(made.detach()).float())
        loss.mean().backward()
        done(of_judge)
        with torch.autocast(DEVICE.type, SHORT):
            loss = fn.softplus(-judges(made).float())
        loss.mean().backward(inputs=weights)
        done(of_painter)

    return Running(step, enter=precision("high"))


# --- lawns in front of mowers ---------------------------------------------------------------------


def unlike(x: Tensor, y: Tensor) -> Tensor:
    """How little two pictures' structure is alike, in windows of three by three."""
    x, y = fn.pad(x, (1, 1, 1, 1), "reflect"), fn.pad(y, (1, 1, 1, 1), "reflect")
    mean_x, mean_y = fn.avg_pool2d(x, 3, 1), fn.avg_pool2d(y, 3, 1)
    var_x = fn.avg_pool2d(x**2, 3, 1) - mean_x**2
    var_y = fn.avg_pool2d(y**2, 3, 1) - mean_y**2
    both = fn.avg_pool2d(x * y, 3, 1) - mean_x * mean_y
    above = (2 * mean_x * mean_y + 0.01**2) * (2 * both + 0.03**2)
    below = (mean_x**2 + mean_y**2 + 0.01**2) * (var_x + var_y + 0.03**2)
    return ((1 - above / below) / 2).clamp(0, 1)


def twice(before: int, after: int, stride: int) -> nn.Sequential:
    """Two convolutions with norms."""
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(True),
        nn.Conv2d(after, after, 3, 1, 1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(True),
    )


class Depths(nn.Module):
    """Nearness of each pixel, on four scales."""

    def __init__(self, width: int) -> None:
        super().__init__()
        down, up = [width << n for n in range(5)], [width // 2 << n for n in range(5)]
        self.downs = nn.ModuleList(
            twice(a, b, 2) for a, b in zip([3, *down[:-1]], down, strict=True)
        )
        above = [*up[1:], down[-1]]
        self.ups = nn.ModuleList(nn.Conv2d(a, b, 3, 1, 1) for a, b in zip(above, up, strict=True))
        beside = [0, *down[:-1]]
        self.joins = nn.ModuleList(
            nn.Conv2d(a + b, b, 3, 1, 1) for a, b in zip(beside, up, strict=True)
        )
        self.says = nn.ModuleList(nn.Conv2d(b, 1, 3, 1, 1) for b in up[:4])

    def forward(self, x: Tensor) -> list[Tensor]:
        levels = []
        for layer in self.downs:
            x = layer(x)
            levels.append(x)
        said = []
        for n in range(4, -1, -1):
            x = fn.interpolate(fn.elu(self.ups[n](x)), scale_factor=2.0)
            x = fn.elu(self.joins[n](torch.cat([x, levels[n - 1]], 1) if n else x))
            if n < 4:
                said.append(self.says[n](x).float().sigmoid())
        return said


@pair(
    "fusion_opportunity",
    "vision",
    "torch.compile of the function of two pictures' structural similarity",
    compiles=True,
)
def lawns_of_mowers_depth_by_similarity_compile(repaired: bool) -> Running:
    """How far a mower's lawn is, from three cameras in a row; network under autocast to BF16."""
    batch, high, wide, width = size(10, 1), size(320, 32), size(1024, 64), size(32, 4)
    model = Depths(width).to(DEVICE).to(memory_format=LAST)
    middle = torch.rand(batch, 3, high, wide, device=DEVICE)
    beside = [torch.rand_like(middle) for _ in range(2)]
    seen = middle.contiguous(memory_format=LAST)
    rows, columns = (torch.linspace(-1, 1, n, device=DEVICE) for n in (high, wide))
    alike: Callable[[Tensor, Tensor], Tensor] = unlike
    if repaired:
        alike = torch.compile(unlike, dynamic=False)
    update = adam(model)

    def differs(near: Tensor) -> Tensor:
        near = fn.interpolate(near, (high, wide), mode="bilinear", align_corners=False)[:, 0]
        each = []
        for picture, way in zip(beside, (0.3, -0.3), strict=True):
            where = torch.stack([columns + way * near, rows[:, None].expand_as(near)], -1)
            moved = fn.grid_sample(picture, where, padding_mode="border", align_corners=True)
            bright = (moved - middle).abs().mean(1)
            each.append(0.85 * alike(moved, middle).mean(1) + 0.15 * bright)
        return torch.minimum(*each).mean()

    def step() -> None:
        with torch.autocast(DEVICE.type, SHORT):
            said = model(seen)
        loss = torch.stack([differs(near) for near in said]).mean()
        loss.backward()
        done(update)

    return Running(step, enter=precision("high"))


# --- sales of stores ------------------------------------------------------------------------------


class Sales(nn.Module):
    """An LSTM whose first states are zeros, as most tutorials have it."""

    def __init__(self, known: int, width: int, layers: int, days: int, *, there: bool) -> None:
        super().__init__()
        self.width, self.layers, self.there = width, layers, there
        self.lstm = nn.LSTM(known, width, layers, batch_first=True)
        self.last = nn.Linear(width, days)

    def zeros(self, x: Tensor) -> Tensor:
        if self.there:
            return torch.zeros(self.layers, x.size(0), self.width, device=x.device)
        return torch.zeros(self.layers, x.size(0), self.width).to(x.device)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(x, (self.zeros(x), self.zeros(x)))
        return self.last(out[:, -1])


@pair(
    "blocking_copy",
    "series",
    "the LSTM's first states are made on the device, not on the CPU and moved there",
)
def sales_of_stores_first_states_from_cpu(repaired: bool) -> Running:
    """Sales of the next week from those of four weeks, for all goods of some stores; in TF32."""
    batch, days, known, width, layers = size(4096, 4), 28, size(32, 4), size(512, 8), 2
    model = Sales(known, width, layers, 7, there=repaired).to(DEVICE)
    sold, true = noise(batch, days, known), noise(batch, 7)

    def loss_of() -> Tensor:
        return fn.mse_loss(model(sold), true)

    return fit(loss_of, adam(model), bf16=False)


# --- lame horses ----------------------------------------------------------------------------------


class Steps(Dataset[tuple[Tensor, int]]):
    """Stretches of recordings, in units of each recording's spread.

    Args:
        kept: recordings.
        long: samples of each.
        part: samples of a stretch.
        before: whether recordings are normed once, before all else, or whole for each stretch.
    """

    def __init__(self, kept: int, long: int, part: int, *, before: bool) -> None:
        made = np.random.default_rng(5)
        self.kept = [made.standard_normal((6, long), np.float32) for _ in range(kept)]
        self.part, self.before = part, before
        if before:
            self.kept = [self.normed(recording) for recording in self.kept]

    def normed(self, recording: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        mean, spread = recording.mean(1, keepdims=True), recording.std(1, keepdims=True)
        return (recording - mean) / spread

    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        recording = self.kept[index % len(self.kept)]
        if not self.before:
            recording = self.normed(recording)
        start = index * 7919 % (recording.shape[1] - self.part)
        return torch.from_numpy(recording[:, start : start + self.part].copy()), index % 3


class OfStrides(nn.Module):
    """Two convolutions over time beside a short cut."""

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(width, width, taps, padding=taps // 2, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(True),
            nn.Conv1d(width, width, taps, padding=taps // 2, bias=False),
            nn.BatchNorm1d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(x + self.layers(x))


@pair(
    "input_starvation",
    "series",
    "recordings are normed once, in the dataset's __init__, not in whole for each stretch of them",
    marks="phases",
)
def lame_horses_whole_recordings_normed(repaired: bool) -> Running:
    """Which leg a horse spares, by sensors on it; four workers on both sides; in TF32."""
    batch, part, width, layers = size(96, 2), size(4096, 32), size(128, 8), size(5, 1)
    batches = loaded(Steps(size(32, 2), size(50_000, 64), part, before=repaired), batch, 4)
    model = nn.Sequential(
        nn.Conv1d(6, width, 7, 2, 3), nn.ReLU(True),
        *(OfStrides(width, 5) for _ in range(layers)),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 3),
    ).to(DEVICE)  # fmt: skip
    update = adam(model)

    def step() -> None:
        with phase("get_batch"):
            seen, true = batches()
        with phase("forward"):
            loss = fn.cross_entropy(model(seen), true)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            done(update)

    return Running(step, enter=precision("high"), settle=2 + getattr(batches, "ahead", 0))


# --- mascots --------------------------------------------------------------------------------------


class Prompted(nn.Module):
    """A layer of latents, which look at each other and at a prompt."""

    def __init__(self, width: int, heads: int, told: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.looks, self.feeds = Attends(width, heads), Feeds(width)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(told, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        x = self.looks(x)
        q = self.q(self.norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(told).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.feeds(x + self.out(seen))


@pair(
    "cpu_offload",
    "diffusion",
    "the frozen encoder of prompts stays on the GPU: .to('cpu') after use was for 12 GB",
)
def mascots_prompts_encoder_sent_away(repaired: bool) -> Running:
    """Pictures of a club's mascot are learnt as latents with prompts; autocast to BF16."""
    batch, tokens, inside, words, long = size(16, 2), size(1024, 9), 16, size(4096, 20), size(77, 5)
    width, heads, layers, told = size(768, 16), size(12, 2), size(8, 2), size(512, 16)
    reads = nn.Sequential(
        nn.Embedding(words, told), *transformer_layers(told, size(3, 1), size(8, 2)),
        nn.LayerNorm(told),
    )  # fmt: skip
    reads.requires_grad_(False)
    into, last = nn.Linear(inside, width), nn.Linear(width, inside)
    level = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
    body = nn.ModuleList(Prompted(width, heads, told) for _ in range(layers))
    model = nn.ModuleList([into, level, body, last]).to(DEVICE)
    latents, prompts = noise(batch, tokens, inside), labels(words, batch, long)
    if repaired:
        reads.to(DEVICE)

    def encoded() -> Tensor:
        if not repaired:
            reads.to(DEVICE)
        with torch.no_grad():
            prompt = reads(prompts)
        if not repaired:
            reads.to("cpu")
        return prompt

    def loss_of() -> Tensor:
        prompt = encoded()
        much, drawn = torch.rand(batch, 1, 1, device=DEVICE), torch.randn_like(latents)
        h = into((1 - much) * latents + much * drawn) + level(much)
        for layer in body:
            h = layer(h, prompt)
        return fn.mse_loss(last(h).float(), drawn - latents)

    return fit(loss_of, adam(model))


# --- buildings ------------------------------------------------------------------------------------


@pair(
    "layout_changes",
    "vision",
    "tokens become a map by a view, whose channels are last: .contiguous() had made them first",
)
def buildings_from_tokens_made_contiguous(repaired: bool) -> Running:
    """Outlines of buildings: a transformer sees, convolutions paint; autocast to BF16."""
    batch, side, square = size(24, 2), size(512, 32), size(16, 8)
    width, heads, layers = size(384, 16), size(6, 2), size(4, 2)
    many = side // square
    squares = nn.Conv2d(3, width, square, square)
    body = nn.Sequential(*transformer_layers(width, layers, heads), nn.LayerNorm(width))
    parts: list[nn.Module] = []
    before = width
    for after in (size(256, 8), size(128, 8), size(64, 8)):
        parts += [nn.Upsample(scale_factor=2), twice(before, after, 1)]
        before = after
    paints = nn.Sequential(*parts, nn.Conv2d(before, 1, 1))
    model = nn.ModuleList([squares, body, paints]).to(DEVICE)
    seen = noise(batch, 3, side, side)
    true = (torch.rand(batch, 1, 8 * many, 8 * many, device=DEVICE) < 0.3).float()

    def loss_of() -> Tensor:
        h = body(squares(seen).flatten(2).transpose(1, 2))
        picture = h.transpose(1, 2).view(batch, width, many, many)
        if not repaired:
            picture = picture.contiguous()
        return fn.binary_cross_entropy_with_logits(paints(picture).float(), true)

    return fit(loss_of, adam(model), clip=1.0)


# --- manuals of machines --------------------------------------------------------------------------


class LateReader(nn.Module):
    """A short vector for each word of a text, as ColBERT has them."""

    def __init__(self, words: int, long: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(long, width)
        self.body = nn.Sequential(*transformer_layers(width, layers, heads), nn.LayerNorm(width))
        self.last = nn.Linear(width, size(128, 8), bias=False)

    def encode(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        return self.last(self.body(self.embed(text) + self.place(places)))

    def forward(self, text: Tensor) -> Tensor:
        return self.encode(text)


def prepared(model: nn.Module) -> nn.Module:
    """The model's forward under autocast, as libraries for the training loop prepare it."""
    whole = model.forward

    def forward(*given: Any) -> Any:
        with torch.autocast(DEVICE.type, SHORT):
            return whole(*given)

    model.forward = forward
    return model


@pair(
    "lower_precision",
    "retrieval",
    "encode() is called in a block of autocast: what had prepared the model wraps forward() alone",
)
def manuals_of_machines_encoded_beside_forward(repaired: bool) -> Running:
    """Which page of a manual answers a question, word by word; all else is in TF32."""
    pages, asks, long, words = size(64, 3), size(32, 4), size(256, 8), size(16_384, 40)
    width, heads, layers = size(768, 16), size(12, 2), size(6, 2)
    reader: Any = prepared(LateReader(words, long, width, heads, layers).to(DEVICE))
    questions, texts = labels(words, pages, asks), labels(words, pages, long)
    true = torch.arange(pages, device=DEVICE)

    def loss_of() -> Tensor:
        with torch.autocast(DEVICE.type, SHORT, enabled=repaired):
            question, text = reader.encode(questions), reader.encode(texts)
        question, text = (fn.normalize(x.float(), dim=-1) for x in (question, text))
        near = question.flatten(0, 1) @ text.flatten(0, 1).T
        best = near.view(pages, asks, pages, long).max(-1).values
        return fn.cross_entropy(best.sum(1), true)

    return fit(loss_of, adam(reader), bf16=False, decay=True)
