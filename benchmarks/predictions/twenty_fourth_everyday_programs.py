"""A twenty-fourth set for one GPU: a dozen slow scripts as ordinary teams have them.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, Residual, done, precision, size, transformer_layers
from program import Program, Running, phase
from single_programs import entered, loaded
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 405 pairs"
pair = entered(PROGRAMS)
SHORT = torch.bfloat16
LAST: Any = torch.channels_last


# --- speech ---------------------------------------------------------------------------------------


def sound(h: Tensor, where: str) -> None:
    """Stop where values went wrong."""
    if not torch.isfinite(h).all():
        raise FloatingPointError(f"not finite after {where}")


class Mixes(nn.Module):
    """The convolutions of a Conformer's layer."""

    def __init__(self, width: int, near: int) -> None:
        super().__init__()
        self.norm, self.between = nn.LayerNorm(width), nn.BatchNorm1d(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.near = nn.Conv1d(width, width, near, padding=near // 2, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        h = fn.glu(self.up(self.norm(x)), -1).transpose(1, 2)
        h = fn.silu(self.between(self.near(h))).transpose(1, 2)
        return x + self.down(h)


class Conforms(nn.Module):
    """Attention, convolutions and two linear layers, each of them watched or not."""

    def __init__(self, width: int, heads: int, near: int, *, watched: bool) -> None:
        super().__init__()
        self.looks, self.feeds = transformer_layers(width, 1, heads)
        self.mixes, self.norm, self.watched = Mixes(width, near), nn.LayerNorm(width), watched

    def forward(self, x: Tensor) -> Tensor:
        for name in ("looks", "mixes", "feeds"):
            x = getattr(self, name)(x)
            if self.watched:
                sound(x, name)
        return self.norm(x)


@pair(
    "host_sync",
    "speech",
    "the checks that each block's output is finite, left from a search for NaN, are removed",
    marks="phases",
)
def who_speaks_when_finite_checks_in_blocks(repaired: bool) -> Running:
    """Which of two people speak in each frame, in either order; a Conformer; autocast to BF16."""
    batch, long, bands, people = size(32, 2), size(600, 12), size(80, 8), 2
    width, heads, layers, near = size(256, 16), size(4, 2), size(12, 2), size(15, 3)
    first, last = nn.Linear(bands, width), nn.Linear(width, people)
    body = nn.Sequential(
        *(Conforms(width, heads, near, watched=not repaired) for _ in range(layers))
    )
    model = nn.ModuleList([first, body, last]).to(DEVICE)
    heard, spoke = noise(batch, long, bands), labels(2, batch, long, people).float()

    def loss_of() -> Tensor:
        said = last(body(first(heard))).float()
        orders = [
            fn.binary_cross_entropy_with_logits(said, true, reduction="none").mean((1, 2))
            for true in (spoke, spoke.flip(2))
        ]
        return torch.minimum(*orders).mean()

    return fit(loss_of, adam(model))


# --- recordings in memory -------------------------------------------------------------------------


class Along(nn.Module):
    """Two convolutions along the time, beside a short cut."""

    def __init__(self, width: int, near: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(width, width, near, padding=near // 2, bias=False),
            nn.BatchNorm1d(width), nn.ReLU(True),
            nn.Conv1d(width, width, near, padding=near // 2, bias=False),
            nn.BatchNorm1d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(x + self.layers(x))


@pair(
    "blocking_copy",
    "signals",
    "recordings lie in pinned memory, and batches are copied with non_blocking=True",
    marks="steps",
)
def seizures_in_recordings_slices_of_plain_array(repaired: bool) -> Running:
    """Whether half a minute of 64 electrodes has a seizure; the recordings fit in memory; TF32."""
    batch, many, electrodes, long = size(64, 2), size(8, 2), size(64, 4), size(4096, 64)
    width, layers, near = size(128, 8), size(12, 2), 7
    chance = np.random.default_rng(0)
    array = chance.standard_normal((many * batch, electrodes, long), np.float32)
    recordings = torch.from_numpy(array)
    seizures = torch.from_numpy(chance.integers(0, 2, many * batch))
    if repaired and DEVICE.type == "cuda":
        recordings, seizures = recordings.pin_memory(), seizures.pin_memory()
    model = nn.Sequential(
        nn.Conv1d(electrodes, width, 15, 4, 7, bias=False), nn.BatchNorm1d(width), nn.ReLU(True),
        *(Along(width, near) for _ in range(layers)),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 2),
    ).to(DEVICE)  # fmt: skip
    update, made = adam(model), 0

    def step() -> None:
        nonlocal made
        at = made % many * batch
        with phase("get_batch"):
            seen = recordings[at : at + batch].to(DEVICE, non_blocking=repaired)
            true = seizures[at : at + batch].to(DEVICE, non_blocking=repaired)
        with phase("forward"):
            loss = fn.cross_entropy(model(seen), true)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            done(update)
        made += 1

    return Running(step, enter=precision("high"))


# --- pictures from files --------------------------------------------------------------------------


class Tiles(Dataset[tuple[Tensor, Tensor]]):
    """Compressed tiles of four bands with their masks; turned, mirrored and normed when read."""

    def __init__(self, tiles: int, side: int, kinds: int) -> None:
        chance = np.random.default_rng(0)
        self.side, self.tiles, self.masks = side, list[bytes](), list[bytes]()
        grain = side // 16
        for _ in range(tiles):
            land = 16 * chance.integers(0, 14, (4, 16, 16)).repeat(grain, 1).repeat(grain, 2)
            seen = (land + chance.integers(0, 3, land.shape)).astype(np.uint8)
            mask = chance.integers(0, kinds, (16, 16)).repeat(grain, 0).repeat(grain, 1)
            self.tiles.append(zlib.compress(seen.tobytes()))
            self.masks.append(zlib.compress(mask.astype(np.uint8).tobytes()))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        chance, number = np.random.default_rng(index), index % len(self.tiles)
        seen = np.frombuffer(zlib.decompress(self.tiles[number]), np.uint8)
        mask = np.frombuffer(zlib.decompress(self.masks[number]), np.uint8)
        turns = int(chance.integers(4))
        x: np.ndarray[Any, Any] = np.rot90(seen.reshape(4, self.side, self.side), turns, (1, 2))
        y: np.ndarray[Any, Any] = np.rot90(mask.reshape(self.side, self.side), turns)
        if chance.random() < 0.5:
            x, y = x[:, :, ::-1], y[:, ::-1]
        x = np.ascontiguousarray(x, np.float32) / 255
        x = (x - x.mean((1, 2), keepdims=True)) / (x.std((1, 2), keepdims=True) + 1e-3)
        return torch.from_numpy(x), torch.from_numpy(np.ascontiguousarray(y, np.int64))


def twice(before: int, after: int) -> nn.Module:
    """Two convolutions, as U-Nets have them."""
    parts: list[nn.Module] = []
    for inside in (before, after):
        parts += [nn.Conv2d(inside, after, 3, padding=1, bias=False)]
        parts += [nn.BatchNorm2d(after), nn.ReLU(True)]
    return nn.Sequential(*parts)


class Floods(nn.Module):
    """A U-Net."""

    def __init__(self, bands: int, width: int, levels: int, kinds: int) -> None:
        super().__init__()
        wide = [width << level for level in range(levels)]
        self.downs = nn.ModuleList(twice(a, b) for a, b in zip([bands, *wide], wide, strict=False))
        pairs = list(zip(wide[1:], wide, strict=False))[::-1]
        self.grows = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.ups = nn.ModuleList(twice(2 * b, b) for _, b in pairs)
        self.last = nn.Conv2d(width, kinds, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for down in self.downs:
            x = down(fn.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        kept.pop()
        for grow, up in zip(self.grows, self.ups, strict=True):
            x = up(torch.cat([kept.pop(), grow(x)], 1))
        return self.last(x)


@pair(
    "input_starvation",
    "vision",
    "the DataLoader gets 4 workers instead of none, its default",
)
def floods_from_space_tiles_inflated_in_loop(repaired: bool) -> Running:
    """What is under water in tiles of a satellite; a U-Net; autocast to BF16, channels last."""
    batch, side, kinds = size(16, 2), size(256, 32), 3
    batches = loaded(Tiles(size(256, 4), side, kinds), batch, 4 if repaired else 0)
    model = Floods(4, size(96, 8), size(4, 2), kinds).to(DEVICE, memory_format=LAST)

    def loss_of() -> Tensor:
        seen, true = batches()
        return fn.cross_entropy(model(seen.to(memory_format=LAST)).float(), true)

    run = fit(loss_of, sgd(model))
    run.settle += getattr(batches, "ahead", 0)
    return run


# --- targets --------------------------------------------------------------------------------------

Targets = tuple[Tensor, Tensor, Tensor]


def bump(radius: int) -> np.ndarray[Any, Any]:
    """The hill over a centre, as CenterNet draws it."""
    sigma = (2 * radius + 1) / 6
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    hill: np.ndarray[Any, Any] = np.exp(-(x * x + y * y) / (2 * sigma * sigma))
    return hill


def drawn_by_numpy(boxes: np.ndarray[Any, Any], kinds: int, side: int) -> Targets:
    """Heat, places and sizes of a batch: box by box."""
    batch, many, _ = boxes.shape
    heat = np.zeros((batch, kinds, side, side), np.float32)
    places, shapes = np.zeros((batch, many), np.int64), np.zeros((batch, many, 2), np.float32)
    for i in range(batch):
        for j in range(many):
            kind, x, y, wide, high = (int(value) for value in boxes[i, j])
            radius = max(min(wide, high) * 3 // 10, 1)
            hill = bump(radius)
            left, right = min(x, radius), min(side - x, radius + 1)
            top, bottom = min(y, radius), min(side - y, radius + 1)
            part = heat[i, kind, y - top : y + bottom, x - left : x + right]
            over = hill[radius - top : radius + bottom, radius - left : radius + right]
            np.maximum(part, over, out=part)
            places[i, j] = y * side + x
            shapes[i, j] = wide, high
    made = (torch.from_numpy(part).to(DEVICE) for part in (heat, places, shapes))
    return next(made), next(made), next(made)


def drawn_at_once(boxes: Tensor, kinds: int, side: int) -> Targets:
    """The same for all boxes together, where the batch is."""
    kind, x, y, wide, high = boxes.unbind(-1)
    radius = (torch.minimum(wide, high) * 3 // 10).clamp_min(1)[..., None]
    line = torch.arange(side, device=boxes.device)
    right, down = (line - x[..., None])[..., None, :], (line - y[..., None])[..., :, None]
    sigma = ((2 * radius + 1) / 6)[..., None]
    hills = torch.exp(-(right * right + down * down) / (2 * sigma * sigma))
    reach = radius[..., None]
    hills = hills * ((right.abs() <= reach) & (down.abs() <= reach))
    batch = len(boxes)
    maps = kind + kinds * torch.arange(batch, device=boxes.device)[:, None]
    heat = torch.zeros(batch * kinds, side * side, device=boxes.device)
    index = maps.flatten()[:, None].expand(-1, side * side)
    heat.scatter_reduce_(0, index, hills.flatten(0, 1).flatten(1), "amax")
    shapes = torch.stack([wide, high], -1).float()
    return heat.view(batch, kinds, side, side), y * side + x, shapes


def centres(said: Tensor, heat: Tensor) -> Tensor:
    """The focal loss of CornerNet."""
    chance = said.sigmoid().clamp(1e-4, 1 - 1e-4)
    there = heat.eq(1).float()
    hits = chance.log() * (1 - chance).square() * there
    misses = (1 - chance).log() * chance.square() * (1 - heat).pow(4) * (1 - there)
    return -(hits.sum() + misses.sum()) / there.sum().clamp_min(1)


@pair(
    "host_compute",
    "vision",
    "heat maps are drawn on the GPU for all boxes at once, not box by box with NumPy",
    marks="phases",
)
def parking_lots_heat_maps_drawn_with_numpy(repaired: bool) -> Running:
    """Where vehicles stand and how large they are, by their centres; BF16, channels last."""
    batch, side, kinds, many = size(16, 2), size(128, 16), size(12, 3), size(24, 3)
    width, blocks, sets = size(96, 8), size(7, 1), 4
    chance = np.random.default_rng(0)
    corners = chance.integers(0, side, (sets, batch, many, 2))
    forms = chance.integers(side // 16, side // 3, (sets, batch, many, 2))
    whats = chance.integers(0, kinds, (sets, batch, many, 1))
    boxes = np.concatenate([whats, corners, forms], -1)
    given = torch.from_numpy(boxes).to(DEVICE)
    stem = nn.Conv2d(3, width, 7, 4, 3, bias=False)
    body = nn.Sequential(*(Residual(width, width, 1) for _ in range(blocks)))
    heads = nn.ModuleList(
        nn.Sequential(nn.Conv2d(width, 64, 3, padding=1), nn.ReLU(True), nn.Conv2d(64, outputs, 1))
        for outputs in (kinds, 2)
    )
    model = nn.ModuleList([stem, body, heads]).to(DEVICE, memory_format=LAST)
    seen = noise(batch, 3, 4 * side, 4 * side).to(memory_format=LAST)
    update, made = adam(model), 0

    def step() -> None:
        nonlocal made
        at = made % sets
        with phase("targets"):
            if repaired:
                heat, places, shapes = drawn_at_once(given[at], kinds, side)
            else:
                heat, places, shapes = drawn_by_numpy(boxes[at], kinds, side)
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            h = body(stem(seen))
            hot, sized = (head(h).float() for head in heads)
            index = places[:, :, None].expand(-1, -1, 2)
            sized = sized.flatten(2).transpose(1, 2).gather(1, index)
            loss = centres(hot, heat) + 0.1 * fn.l1_loss(sized, shapes)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            done(update)
        made += 1

    return Running(step, enter=precision("high"))


# --- views ----------------------------------------------------------------------------------------


def views_one_by_one(photos: Tensor, part: int, chances: Tensor) -> Tensor:
    """A part of each photo, perhaps mirrored, in other light and perhaps grey."""
    room, made = photos.shape[-1] - part + 1, []
    for photo, (top, left, mirror, light, contrast, grey) in zip(
        photos, chances.tolist(), strict=True
    ):
        y, x = int(top * room), int(left * room)
        view = photo[:, y : y + part, x : x + part]
        if mirror < 0.5:
            view = view.flip(2)
        view = view * (0.6 + 0.8 * light)
        mean = view.mean()
        view = (view - mean) * (0.6 + 0.8 * contrast) + mean
        if grey < 0.2:
            view = view.mean(0, keepdim=True).expand(3, -1, -1)
        made.append((view.clamp(0, 1) - 0.45) / 0.25)
    return torch.stack(made)


def views_at_once(photos: Tensor, part: int, chances: Tensor) -> Tensor:
    """The same of all photos together."""
    room, many = photos.shape[-1] - part + 1, len(photos)
    top, left, mirror, light, contrast, grey = chances.unbind(1)
    line = torch.arange(part, device=photos.device)
    y = (top * room).long()[:, None] + line
    x = (left * room).long()[:, None] + torch.where(mirror[:, None] < 0.5, part - 1 - line, line)
    who = torch.arange(many, device=photos.device)[:, None, None, None]
    channel = torch.arange(3, device=photos.device)[:, None, None]
    view = photos[who, channel, y[:, None, :, None], x[:, None, None, :]]
    view = view * (0.6 + 0.8 * light)[:, None, None, None]
    mean = view.mean((1, 2, 3), keepdim=True)
    view = (view - mean) * (0.6 + 0.8 * contrast)[:, None, None, None] + mean
    view = torch.where(grey[:, None, None, None] < 0.2, view.mean(1, keepdim=True), view)
    return (view.clamp(0, 1) - 0.45) / 0.25


@pair(
    "small_kernels",
    "contrastive",
    "views are made of the whole batch by a few operations, not of one photo after the other",
    marks="steps",
)
def photos_of_wardrobes_views_picture_by_picture(repaired: bool) -> Running:
    """Which two views are of one garment, as in SimCLR; they are made on the GPU; BF16."""
    batch, side, part, width = size(64, 3), size(160, 40), size(128, 32), size(64, 8)
    parts: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    before = width
    for level in range(size(4, 2)):
        after = width << level
        parts += [Residual(before, after, 2 if level else 1), Residual(after, after, 1)]
        before = after
    model = nn.Sequential(
        *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(before, before), nn.ReLU(True), nn.Linear(before, size(128, 8)),
    ).to(DEVICE, memory_format=LAST)  # fmt: skip
    photos = torch.rand(batch, 3, side, side, device=DEVICE)
    own = torch.eye(2 * batch, dtype=torch.bool, device=DEVICE)
    other = torch.arange(2 * batch, device=DEVICE).roll(batch)

    def view() -> Tensor:
        if repaired:
            return views_at_once(photos, part, torch.rand(batch, 6, device=DEVICE))
        return views_one_by_one(photos, part, torch.rand(batch, 6))

    def loss_of() -> Tensor:
        both = torch.cat([view(), view()]).to(memory_format=LAST)
        codes = fn.normalize(model(both).float(), dim=1)
        alike = (codes @ codes.T / 0.1).masked_fill(own, float("-inf"))
        return fn.cross_entropy(alike, other)

    return fit(loss_of, sgd(model))


# --- optimizers -----------------------------------------------------------------------------------


class Crosses(nn.Module):
    """Products of all pairs of fields beside a tower; as in DeepFM."""

    def __init__(self, rows: list[int], width: int, facts: int, wide: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(many, width) for many in rows)
        inside = len(rows) * width + facts
        self.tower = nn.Sequential(
            nn.Linear(inside, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(),
            nn.Linear(wide, wide // 2), nn.ReLU(), nn.Linear(wide // 2, 1),
        )  # fmt: skip

    def forward(self, ids: Tensor, facts: Tensor) -> Tensor:
        found = [table(ids[:, at]) for at, table in enumerate(self.tables)]
        fields = torch.stack(found, 1)
        crossed = fields.sum(1).square() - fields.square().sum(1)
        tower = self.tower(torch.cat([fields.flatten(1), facts], 1))
        return tower[:, 0] + 0.5 * crossed.sum(1)


@pair(
    "fused_optimizer",
    "recommender",
    "torch.optim.AdamW gets fused=True",
)
def rented_films_tables_by_default_adamw(repaired: bool) -> Running:
    """Whether somebody rents a film; 165 million weights in tables, with dense gradients; TF32."""
    most = [1_200_000, 800_000, 300_000, 200_000, 50_000, 20_000, 5_000, 1_000, 200, 50, 24, 7]
    rows = [size(many, min(many, 50)) for many in most]
    batch, width, facts, wide = size(32_768, 16), size(64, 4), size(16, 2), size(1024, 16)
    with torch.device(DEVICE):
        model = Crosses(rows, width, facts, wide)
        for weights in model.tables.parameters():
            nn.init.normal_(weights, std=0.01)
    ids = torch.stack([labels(many, batch) for many in rows], 1)
    known, rented = noise(batch, facts), labels(2, batch).float()
    more: dict[str, Any] = {"fused": True} if repaired else {}
    update = torch.optim.AdamW(model.parameters(), lr=1e-3, **more)

    def loss_of() -> Tensor:
        return fn.binary_cross_entropy_with_logits(model(ids, known), rented)

    return fit(loss_of, update, bf16=False)


# --- compilers ------------------------------------------------------------------------------------


class Modulated(nn.Module):
    """A layer whose norms are scaled, shifted and gated by the time and the class; as in DiT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.six = nn.Linear(width, 6 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.six(fn.silu(c))[:, None].chunk(6, -1)
        h = self.norm(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate1 * self.out(seen)
        h = self.norm(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(fn.gelu(self.up(h), approximate="tanh"))


class Covers(nn.Module):
    """Such layers over squares of latents."""

    rates: Tensor

    def __init__(
        self, width: int, layers: int, heads: int, channels: int, places: int, kinds: int
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 2, 2)
        self.place = nn.Parameter(0.02 * torch.randn(places, width))
        self.kinds = nn.Embedding(kinds, width)
        self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(Modulated(width, heads) for _ in range(layers))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, 4 * channels)
        self.register_buffer("rates", torch.exp(-torch.arange(32) * 0.28))

    def forward(self, x: Tensor, time: Tensor, kind: Tensor) -> Tensor:
        angles = 1000 * time[:, None] * self.rates
        c = self.time(torch.cat([angles.cos(), angles.sin()], 1)) + self.kinds(kind)
        h = self.first(x).flatten(2).transpose(1, 2) + self.place
        for layer in self.layers:
            h = layer(h, c)
        return self.last(self.norm(h))


@pair(
    "compile",
    "diffusion",
    "model = torch.compile(model)",
    marks="profiler",
    compiles=True,
)
def album_covers_diffusion_transformer_eager(repaired: bool) -> Running:
    """Latents of album covers of a genre, by velocities from noise to them; autocast to BF16."""
    batch, side, channels, kinds = size(48, 2), size(32, 8), 4, size(60, 3)
    width, layers, heads = size(512, 16), size(10, 2), size(8, 2)
    places = (side // 2) ** 2
    model = Covers(width, layers, heads, channels, places, kinds).to(DEVICE)
    used: Any = torch.compile(model) if repaired else model
    latents, genres = noise(batch, channels, side, side), labels(kinds, batch)

    def loss_of() -> Tensor:
        start, time = torch.randn_like(latents), torch.rand(batch, device=DEVICE)
        mixed = torch.lerp(start, latents, time[:, None, None, None])
        wanted = fn.pixel_unshuffle(latents - start, 2).flatten(2).transpose(1, 2)
        return fn.mse_loss(used(mixed, time, genres).float(), wanted)

    return fit(loss_of, adam(model))


# --- attention ------------------------------------------------------------------------------------


class Tunes(nn.Module):
    """Causal attention as small teaching models have it, with the slow branch or the quick one."""

    seen: Tensor

    def __init__(self, width: int, heads: int, long: int, *, flash: bool) -> None:
        super().__init__()
        self.heads, self.flash = heads, flash
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        if not flash:
            self.register_buffer("seen", torch.tril(torch.ones(long, long)).view(1, 1, long, long))

    def attention(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.attend(x).split(c, dim=2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        if self.flash:
            y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (k.size(-1) ** -0.5)
            scores = scores.masked_fill(self.seen[:, :, :t, :t] == 0, float("-inf"))
            y = fn.softmax(scores, dim=-1) @ v
        return self.project(y.transpose(1, 2).contiguous().view(b, t, c))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


@pair(
    "unfused_attention",
    "music",
    "scaled_dot_product_attention with is_causal instead of the branch for older versions",
)
def fiddle_tunes_branch_for_old_versions(repaired: bool) -> Running:
    """The next event of a tune, by a decoder in the manner of nanoGPT; autocast to BF16."""
    batch, long, events = size(24, 2), size(512, 12), size(384, 20)
    width, heads, layers = size(768, 16), size(12, 2), size(8, 2)
    embed, place = nn.Embedding(events, width), nn.Embedding(long, width)
    body = nn.Sequential(*(Tunes(width, heads, long, flash=repaired) for _ in range(layers)))
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, events, bias=False))
    model = nn.ModuleList([embed, place, body, last]).to(DEVICE)
    played = labels(events, batch, long + 1)

    def loss_of() -> Tensor:
        said = last(body(embed(played[:, :-1]) + place.weight))
        return fn.cross_entropy(said.flatten(0, 1).float(), played[:, 1:].flatten())

    return fit(loss_of, adam(model), clip=1.0)


# --- precision ------------------------------------------------------------------------------------


class Bonds(nn.Module):
    """Messages from both ends of a bond and what is known of it."""

    def __init__(self, width: int, facts: int) -> None:
        super().__init__()
        self.message = nn.Sequential(
            nn.Linear(2 * width + facts, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.own = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, h: Tensor, source: Tensor, target: Tensor, facts: Tensor) -> Tensor:
        ends = [h.index_select(0, source), h.index_select(0, target), facts]
        sent = self.message(torch.cat(ends, 1))
        heard = torch.zeros_like(h).index_add(0, target, sent)
        return self.norm(h + self.own(torch.cat([h, heard], 1)))


@pair(
    "low_precision_unused",
    "graph",
    'torch.set_float32_matmul_precision("high"): TF32 in place of full single precision',
    marks="phases",
)
def solubility_of_molecules_without_tf32(repaired: bool) -> Running:
    """How well molecules dissolve, by messages along bonds and near atoms; single precision."""
    graphs, atoms, bonds = size(1024, 4), size(20, 5), size(200, 12)
    width, facts, layers, kinds = size(128, 8), size(64, 4), size(5, 2), size(100, 6)
    embed = nn.Embedding(kinds, width)
    body = nn.ModuleList(Bonds(width, facts) for _ in range(layers))
    last = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
    model = nn.ModuleList([embed, body, last]).to(DEVICE)
    first = torch.arange(graphs, device=DEVICE)[:, None] * atoms
    source, target = ((labels(atoms, graphs, bonds) + first).flatten() for _ in range(2))
    known, what = noise(graphs * bonds, facts), labels(kinds, graphs * atoms)
    whose = torch.arange(graphs, device=DEVICE).repeat_interleave(atoms)
    solved = noise(graphs)

    def loss_of() -> Tensor:
        h = embed(what)
        for layer in body:
            h = layer(h, source, target, known)
        whole = torch.zeros(graphs, width, device=DEVICE).index_add(0, whose, h)
        return fn.l1_loss(last(whole / atoms)[:, 0], solved)

    return fit(loss_of, adam(model), bf16=False, matmul="high" if repaired else "highest")


class Rows(nn.Module):
    """Two linear layers over what is known of a customer, beside a short cut."""

    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm1d(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(drop),
            nn.Linear(2 * width, width), nn.Dropout(drop),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


@pair(
    "double_precision",
    "tabular",
    "the table is made float32 when it is read, so that model.double() is not needed",
    others=("low_precision_unused",),
    marks="steps",
)
def defaults_on_loans_model_made_double(repaired: bool) -> Running:
    """Which loans are not paid back; NumPy's table has doubles, and the model was made to fit."""
    many, batch, facts = size(400_000, 60), size(65_536, 16), size(60, 6)
    width, layers = size(192, 8), size(8, 2)
    chance = np.random.default_rng(0)
    table, late = chance.standard_normal((many, facts)), chance.integers(0, 2, many) * 1.0
    if repaired:
        table, late = table.astype(np.float32), late.astype(np.float32)
    known, true = torch.from_numpy(table).to(DEVICE), torch.from_numpy(late).to(DEVICE)
    model = nn.Sequential(
        nn.Linear(facts, width), *(Rows(width, 0.1) for _ in range(layers)),
        nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 1),
    )  # fmt: skip
    model = model.to(DEVICE) if repaired else model.double().to(DEVICE)

    def loss_of() -> Tensor:
        rows = torch.randint(many, (batch,), device=DEVICE)
        said = model(known.index_select(0, rows))[:, 0]
        return fn.binary_cross_entropy_with_logits(said, true.index_select(0, rows))

    return fit(loss_of, adam(model), bf16=False, matmul="highest")


# --- kernels --------------------------------------------------------------------------------------


class Calendar(nn.Module):
    """A vector for each hour, day of the week and month."""

    def __init__(self, width: int, *, looked_up: bool) -> None:
        super().__init__()
        self.looked_up = looked_up
        self.hour, self.day, self.month = (
            nn.Parameter(0.02 * torch.randn(many, width)) for many in (24, 7, 12)
        )

    def forward(self, hour: Tensor, day: Tensor, month: Tensor) -> Tensor:
        if self.looked_up:
            found = (fn.embedding(hour, self.hour), fn.embedding(day, self.day))
            return found[0] + found[1] + fn.embedding(month, self.month)
        return self.hour[hour] + self.day[day] + self.month[month]


@pair(
    "inefficient_kernel",
    "forecasting",
    "the calendar's vectors are found by embedding, not by indexing of parameters",
)
def bikes_for_rent_calendar_by_indexing(repaired: bool) -> Running:
    """How many bicycles stations will lend, by two weeks of hours; an encoder; BF16."""
    batch, long, ahead, facts = size(64, 2), size(336, 12), size(24, 3), size(8, 2)
    width, heads, layers = size(384, 16), size(6, 2), size(6, 2)
    calendar = Calendar(width, looked_up=repaired)
    first, last = nn.Linear(facts, width), nn.Linear(width, ahead)
    body = nn.Sequential(*transformer_layers(width, layers, heads), nn.LayerNorm(width))
    model = nn.ModuleList([calendar, first, last, body]).to(DEVICE)
    hours = labels(8760, batch, 1) + torch.arange(long, device=DEVICE)
    when = (hours % 24, hours // 24 % 7, hours // 730 % 12)
    lent, wanted = noise(batch, long, facts), noise(batch, ahead)

    def loss_of() -> Tensor:
        h = body(first(lent) + calendar(*when))
        return fn.smooth_l1_loss(last(h.mean(1)).float(), wanted)

    return fit(loss_of, adam(model), decay=True)


# --- bytes ----------------------------------------------------------------------------------------


@pair(
    "memory_bound_kernels",
    "health",
    "scores of codes are made at the hidden places only, not at all with -100 elsewhere",
    marks="phases",
)
def diagnoses_in_histories_scores_at_all_places(repaired: bool) -> Running:
    """Hidden diagnoses in the histories of patients, as BERT guesses words; weights in BF16."""
    batch, long, codes, hidden = size(16, 2), size(512, 12), size(30_528, 64), size(77, 2)
    width, heads, layers, ages = size(768, 16), size(12, 2), size(8, 2), size(110, 5)
    embed, age, place = (nn.Embedding(many, width) for many in (codes, ages, long))
    body = nn.Sequential(*transformer_layers(width, layers, heads), nn.LayerNorm(width))
    last = nn.Sequential(
        nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, codes)
    )
    model = nn.ModuleList([embed, age, place, body, last]).to(DEVICE, SHORT)
    told, old = labels(codes, batch, long), labels(ages, batch, long)
    places = torch.rand(batch, long, device=DEVICE).argsort(1)[:, :hidden]
    true = labels(codes, batch, hidden)
    everywhere = torch.full((batch, long), -100, device=DEVICE).scatter(1, places, true)
    flat = (places + long * torch.arange(batch, device=DEVICE)[:, None]).flatten()

    def loss_of() -> Tensor:
        h = body(embed(told) + age(old) + place.weight).flatten(0, 1)
        if repaired:
            return fn.cross_entropy(last(h.index_select(0, flat)).float(), true.flatten())
        return fn.cross_entropy(last(h).float(), everywhere.flatten())

    return fit(loss_of, adam(model), bf16=False, clip=1.0)
