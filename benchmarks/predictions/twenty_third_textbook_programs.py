"""A twenty-third set for one GPU: the first examples that guides to performance give.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import (
    DEVICE,
    Residual,
    classified,
    done,
    precision,
    size,
    training,
    transformer_layers,
)
from program import Program, Running, phase
from single_programs import entered, loaded
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 369 pairs, opened"
pair = entered(PROGRAMS)
SHORT = torch.bfloat16
LAST: Any = torch.channels_last


# --- synchronisation ------------------------------------------------------------------------------


class Reviews(nn.Module):
    """An encoder of PyTorch's own layers, which tells how content a customer is."""

    def __init__(
        self, words: int, long: int, width: int, layers: int, heads: int, kinds: int
    ) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(long, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True)
            for _ in range(layers)
        )
        self.last = nn.Linear(width, kinds)

    def forward(self, text: Tensor) -> Tensor:
        h = self.embed(text) + self.place.weight
        for layer in self.layers:
            h = layer(h)
        return self.last(h[:, 0])


@pair(
    "host_sync",
    "language",
    "clip_grad_norm_ instead of .norm(2).item() for each parameter",
    marks="phases",
)
def reviews_of_hotels_norms_of_gradients_by_item(repaired: bool) -> Running:
    """Stars that a hotel was given, by what was written; gradients are clipped; BF16."""
    batch, long, words, kinds = size(64, 2), size(256, 8), size(24_000, 40), 5
    width, layers, heads, most = size(512, 16), size(16, 2), size(8, 2), 1.0
    model = Reviews(words, long, width, layers, heads, kinds).to(DEVICE)
    text, stars = labels(words, batch, long), labels(kinds, batch)
    weights = list(model.parameters())
    update = adam(model)

    def clip() -> None:
        if repaired:
            nn.utils.clip_grad_norm_(weights, most)
            return
        total = 0.0
        for p in weights:
            if p.grad is not None:
                total += p.grad.detach().norm(2).item() ** 2
        factor = min(most / (math.sqrt(total) + 1e-6), 1.0)
        for p in weights:
            if p.grad is not None:
                p.grad.mul_(factor)

    def step() -> None:
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            loss = fn.cross_entropy(model(text).float(), stars)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            clip()
            done(update)

    return Running(step, enter=precision("high"))


# --- workers --------------------------------------------------------------------------------------


class Fruits(Dataset[tuple[Tensor, int]]):
    """Pictures of fruits: a part of each, perhaps mirrored, in other light and with noise."""

    def __init__(self, pictures: int, side: int, part: int, kinds: int) -> None:
        chance = np.random.default_rng(0)
        self.pictures = chance.integers(0, 256, (pictures, 3, side, side), np.uint8)
        self.part, self.kinds = part, kinds

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        chance = np.random.default_rng(index)
        top, left = chance.integers(0, self.pictures.shape[-1] - self.part, 2)
        x = self.pictures[index % len(self.pictures)]
        x = x[:, top : top + self.part, left : left + self.part]
        if chance.random() < 0.5:
            x = x[:, :, ::-1]
        x = x.astype(np.float32) / 255
        x = (x - 0.5) * np.float32(chance.uniform(0.6, 1.4)) + 0.5
        x = x + np.float32(chance.uniform(-0.2, 0.2))
        x = x + 0.05 * chance.standard_normal(x.shape, np.float32)
        x = (np.clip(x, 0, 1) - np.float32(0.45)) / np.float32(0.25)
        return torch.from_numpy(np.ascontiguousarray(x)), index % self.kinds


def wide_resnet(width: int, blocks: int, kinds: int) -> nn.Module:
    """A few wide residual stages behind a stem."""
    parts: list[nn.Module] = [
        nn.Conv2d(3, width // 2, 7, 2, 3, bias=False), nn.BatchNorm2d(width // 2), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    before = width // 2
    for level in range(3):
        for block in range(blocks):
            after = width << level
            parts.append(Residual(before, after, 2 if level and not block else 1))
            before = after
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, kinds))


@pair(
    "input_starvation",
    "vision",
    "the DataLoader gets 12 workers instead of 4",
    marks="phases",
)
def fruits_on_scales_four_workers(repaired: bool) -> Running:
    """A scale in a shop sees what lies on it; autocast to BF16, channels last."""
    batch, side, part, kinds = size(80, 2), size(192, 40), size(144, 32), size(81, 4)
    batches = loaded(Fruits(size(256, 4), side, part, kinds), batch, 12 if repaired else 4)
    model = wide_resnet(size(160, 8), size(6, 1), kinds).to(DEVICE, memory_format=LAST)
    return training(model, batches, classified)


# --- what workers do ------------------------------------------------------------------------------


class Dishes(Dataset[tuple[Tensor, int]]):
    """Photographs of dishes, made small for each use of them or once beforehand."""

    def __init__(self, photos: int, side: int, part: int, kinds: int, *, small: bool) -> None:
        self.part, self.kinds, self.small = part, kinds, small
        drawn = torch.Generator().manual_seed(0)
        found = (
            torch.randint(0, 256, (3, side, side), dtype=torch.uint8, generator=drawn)
            for _ in range(photos)
        )
        self.photos = [self.resized(photo) if small else photo for photo in found]

    def resized(self, photo: Tensor) -> Tensor:
        kept = fn.interpolate(
            photo[None].float() / 255, (self.part, self.part), mode="bilinear", antialias=True
        )
        return kept[0]

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        photo = self.photos[index % len(self.photos)]
        x = photo if self.small else self.resized(photo)
        if index % 2:
            x = x.flip(2)
        return (x - 0.45) / 0.25, index % self.kinds


class Grouped(nn.Module):
    """A bottleneck with groups of channels, beside a short cut; as in ResNeXt."""

    def __init__(self, before: int, inside: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(before, inside, 1, bias=False), nn.BatchNorm2d(inside), nn.ReLU(True),
            nn.Conv2d(inside, inside, 3, stride, 1, groups=groups, bias=False),
            nn.BatchNorm2d(inside), nn.ReLU(True),
            nn.Conv2d(inside, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.short: nn.Module = nn.Identity()
        if before != after or stride > 1:
            self.short = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(self.layers(x) + self.short(x), True)


def resnext(width: int, blocks: int, groups: int, kinds: int) -> nn.Module:
    parts: list[nn.Module] = [
        nn.Conv2d(3, width // 2, 7, 2, 3, bias=False), nn.BatchNorm2d(width // 2), nn.ReLU(True),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    before = width // 2
    for level in range(4):
        inside = width << level
        for block in range(blocks):
            stride = 2 if level and not block else 1
            parts.append(Grouped(before, inside, 2 * inside, stride, groups))
            before = 2 * inside
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, kinds))


@pair(
    "input_starvation",
    "vision",
    "photographs are made small once, beforehand, not by the workers for each use",
    marks="phases",
)
def dishes_of_canteens_resized_for_each_use(repaired: bool) -> Running:
    """Which dish is on a tray; eight workers on both sides; autocast to BF16, channels last."""
    batch, side, part, kinds = size(64, 2), size(512, 64), size(192, 32), size(140, 4)
    data = Dishes(size(64, 4), side, part, kinds, small=repaired)
    batches = loaded(data, batch, 8)
    model = resnext(size(128, 16), size(2, 1), size(32, 4), kinds)
    return training(model.to(DEVICE, memory_format=LAST), batches, classified)


# --- tensor cores ---------------------------------------------------------------------------------


class Next(nn.Module):
    """Over the neighbours of each channel, then two linear layers; as in ConvNeXt."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x).permute(0, 2, 3, 1))
        h = self.scale * self.down(fn.gelu(self.up(h)))
        return x + h.permute(0, 3, 1, 2)


def convnext(width: int, blocks: tuple[int, ...], kinds: int) -> nn.Module:
    parts: list[nn.Module] = [nn.Conv2d(3, width, 4, 4)]
    for level, many in enumerate(blocks):
        now = width << level
        if level:
            parts += [nn.GroupNorm(1, now // 2), nn.Conv2d(now // 2, now, 2, 2)]
        parts += [Next(now) for _ in range(many)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(now, kinds))


@pair(
    "low_precision_unused",
    "vision",
    'torch.set_float32_matmul_precision("high"): products in TF32, not FP32, the default',
)
def minerals_in_thin_sections_default_precision(repaired: bool) -> Running:
    """Which mineral a microscope sees; all in single precision; convolutions may use TF32."""
    batch, side, kinds = size(32, 2), size(224, 64), size(60, 4)
    blocks = (3, 3, 9, 3) if DEVICE.type == "cuda" else (1, 1)
    model = convnext(size(96, 8), blocks, kinds).to(DEVICE)
    seen, true = noise(batch, 3, side, side), labels(kinds, batch)
    run = fit(lambda: fn.cross_entropy(model(seen), true), adam(model), bf16=False)

    def enter() -> None:
        precision("high")()
        torch.set_float32_matmul_precision("high" if repaired else "highest")

    run.enter = enter
    return run


# --- attention ------------------------------------------------------------------------------------


def attention(query: Tensor, key: Tensor, value: Tensor, drop: float) -> Tensor:
    """Scaled dot products, as most tutorials have them."""
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    shares = fn.dropout(fn.softmax(scores, dim=-1), drop)
    return torch.matmul(shares, value)


class AfterNorm(nn.Module):
    """A layer of an encoder that norms what it has added, as in the first paper."""

    def __init__(self, width: int, heads: int, drop: float, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.drop, self.fused = heads, drop, fused
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Dropout(drop), nn.Linear(4 * width, width)
        )
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        if self.fused:
            seen = fn.scaled_dot_product_attention(q, k, v, dropout_p=self.drop)
        else:
            seen = attention(q, k, v, self.drop)
        seen = self.out(seen.transpose(1, 2).flatten(2))
        x = self.norm1(x + fn.dropout(seen, self.drop))
        return self.norm2(x + fn.dropout(self.feed(x), self.drop))


@pair(
    "unfused_attention",
    "biology",
    "scaled_dot_product_attention instead of matmul, softmax, dropout and matmul",
    marks="steps",
)
def genes_of_yeasts_attention_of_a_tutorial(repaired: bool) -> Running:
    """Hidden pieces of genomes are guessed; an encoder by the first paper; autocast to BF16."""
    batch, long, pieces = size(8, 2), size(1024, 8), size(4096, 20)
    width, heads, layers = size(640, 16), size(10, 2), size(8, 2)
    embed, place = nn.Embedding(pieces, width), nn.Embedding(long, width)
    body = nn.Sequential(*(AfterNorm(width, heads, 0.1, fused=repaired) for _ in range(layers)))
    last = nn.Linear(width, pieces)
    model = nn.ModuleList([embed, place, body, last]).to(DEVICE)
    seen, true = labels(pieces, batch, long), labels(pieces, batch, long)

    def loss_of() -> Tensor:
        said = last(body(embed(seen) + place.weight))
        return fn.cross_entropy(said.flatten(0, 1).float(), true.flatten())

    return fit(loss_of, adam(model))


# --- bytes ----------------------------------------------------------------------------------------


@pair(
    "lower_precision",
    "tabular",
    "autocast to BF16 around forward pass and loss: norms, activations and dropout move half",
)
def rents_of_flats_layers_in_single_precision(repaired: bool) -> Running:
    """What a flat costs a month, by many facts of it; layers with norm and dropout; TF32."""
    rows, facts, width, layers = size(49_152, 8), size(192, 6), size(512, 16), size(10, 2)
    parts: list[nn.Module] = []
    for number in range(layers):
        parts += [nn.Linear(width if number else facts, width), nn.BatchNorm1d(width), nn.GELU()]
        parts.append(nn.Dropout(0.1))
    model = nn.Sequential(*parts, nn.Linear(width, 1)).to(DEVICE)
    flats, rents = noise(rows, facts), noise(rows, 1)
    return fit(lambda: fn.mse_loss(model(flats).float(), rents), adam(model), bf16=repaired)


# --- layouts --------------------------------------------------------------------------------------


def leaky(before: int, after: int, kernel: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(after),
        nn.LeakyReLU(0.1, True),
    )


class Dark(nn.Module):
    """Half of the channels, and all of them again; as in Darknet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(leaky(width, width // 2, 1), leaky(width // 2, width, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


@pair(
    "layout_changes",
    "vision",
    "model and pictures are made channels last by .to(memory_format=torch.channels_last)",
)
def goods_on_shelves_default_layout(repaired: bool) -> Running:
    """Which of many goods fills a picture, by the 53 layers of a detector; autocast to BF16."""
    batch, side, kinds, width = size(32, 2), size(256, 64), size(900, 5), size(32, 4)
    parts: list[nn.Module] = [leaky(3, width, 3)]
    for level, many in enumerate((1, 2, 8, 8, 4) if DEVICE.type == "cuda" else (1, 1)):
        now = width << (level + 1)
        parts += [leaky(now // 2, now, 3, 2), *(Dark(now) for _ in range(many))]
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(now, kinds)]
    model = nn.Sequential(*parts).to(DEVICE)
    seen, true = noise(batch, 3, side, side), labels(kinds, batch)
    if repaired:
        model = model.to(memory_format=LAST)
        seen = seen.to(memory_format=LAST)
    return fit(lambda: fn.cross_entropy(model(seen).float(), true), sgd(model))


# --- checkpointing --------------------------------------------------------------------------------


@pair(
    "recomputation",
    "vision",
    "gradient checkpointing is switched off: 80 GB hold the activations of all layers",
    marks="phases",
)
def maps_of_old_cities_checkpointing_left_on(repaired: bool) -> Running:
    """The century of a map, by a large vision transformer; autocast to BF16."""
    batch, side, square, kinds = size(16, 2), size(384, 32), size(16, 8), 9
    width, heads, layers = size(1024, 16), size(16, 2), size(12, 2)
    squares = nn.Conv2d(3, width, square, square)
    places = nn.Embedding((side // square) ** 2, width)
    body = nn.ModuleList(nn.Sequential(*transformer_layers(width, 1, heads)) for _ in range(layers))
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, kinds))
    model = nn.ModuleList([squares, places, body, last]).to(DEVICE)
    seen, true = noise(batch, 3, side, side), labels(kinds, batch)

    def loss_of() -> Tensor:
        h = squares(seen).flatten(2).transpose(1, 2) + places.weight
        for layer in body:
            h = layer(h) if repaired else checkpoint(layer, h, use_reentrant=False)
        return fn.cross_entropy(last(h.mean(1)).float(), true)

    return fit(loss_of, adam(model))


# --- batches --------------------------------------------------------------------------------------


@pair(
    "larger_batch",
    "language",
    "batches of two texts instead of one: most memory was free",
    samples=2.0,
    marks="steps",
)
def contracts_continued_batch_of_one(repaired: bool) -> Running:
    """A model of wide layers goes on with contracts, one text of 512 tokens a batch; BF16."""
    batch, long, words = 2 if repaired else 1, size(512, 8), size(16_000, 40)
    width, heads, layers = size(2048, 16), size(16, 2), size(8, 2)
    with torch.device(DEVICE):
        embed, place = nn.Embedding(words, width), nn.Embedding(long, width)
        body = nn.Sequential(*transformer_layers(width, layers, heads, causal=True))
        last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words, bias=False))
    model = nn.ModuleList([embed, place, body, last])
    text = labels(words, batch, long + 1)

    def loss_of() -> Tensor:
        said = last(body(embed(text[:, :-1]) + place.weight))
        return fn.cross_entropy(said.flatten(0, 1).float(), text[:, 1:].flatten())

    return fit(loss_of, adam(model))


# --- sizes ----------------------------------------------------------------------------------------


class Hears(nn.Module):
    """A layer of a decoder: what was said, what was asked, and two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.looks, self.feeds = transformer_layers(width, 1, heads, causal=True)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, asked: Tensor) -> Tensor:
        x = self.looks(x)
        q = self.q(self.norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(asked).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.feeds(x + self.out(seen))


@pair(
    "aligned_shapes",
    "language",
    "the vocabulary of 32317 is padded to 32320, a multiple of 8",
)
def subtitles_translated_vocabulary_of_32317(repaired: bool) -> Running:
    """Subtitles in another language, by an encoder and a decoder; autocast to BF16."""
    batch, long, words = size(192, 2), size(40, 5), size(32_317, 37)
    rows = size(32_320, 40) if repaired else words
    width, heads, layers = size(512, 16), size(8, 2), size(4, 1)
    embeds = nn.ModuleList(nn.Embedding(rows, width) for _ in range(2))
    places = nn.Embedding(long, width)
    encoder = nn.Sequential(*transformer_layers(width, layers, heads), nn.LayerNorm(width))
    decoder = nn.ModuleList(Hears(width, heads) for _ in range(layers))
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, rows))
    model = nn.ModuleList([embeds, places, encoder, decoder, last]).to(DEVICE)
    heard, said = labels(words, batch, long), labels(words, batch, long + 1)

    def loss_of() -> Tensor:
        asked = encoder(embeds[0](heard) + places.weight)
        h = embeds[1](said[:, :-1]) + places.weight
        for layer in decoder:
            h = layer(h, asked)
        return fn.cross_entropy(last(h).flatten(0, 1).float(), said[:, 1:].flatten())

    return fit(loss_of, adam(model))


# --- mixed precision ------------------------------------------------------------------------------


class Gates(nn.Module):
    """Half of the channels, mixed over the places, gate the others; as in gMLP."""

    def __init__(self, width: int, inside: int, places: int) -> None:
        super().__init__()
        self.norm, self.norm_gate = nn.LayerNorm(width), nn.LayerNorm(inside // 2)
        self.up, self.down = nn.Linear(width, inside), nn.Linear(inside // 2, width)
        self.mix = nn.Linear(places, places)

    def forward(self, x: Tensor) -> Tensor:
        one, other = fn.gelu(self.up(self.norm(x))).chunk(2, -1)
        gate = self.mix(self.norm_gate(other).transpose(1, 2)).transpose(1, 2)
        return x + self.down(one * (1 + gate))


@pair(
    "lower_precision",
    "vision",
    "mixed precision: autocast to BF16 around forward pass and loss, where TF32 was",
)
def feathers_found_trained_without_autocast(repaired: bool) -> Running:
    """Which bird lost a feather, by layers with gates and no attention."""
    batch, side, square, kinds = size(64, 2), size(256, 16), size(16, 8), size(300, 5)
    width, inside, layers = size(768, 16), size(3072, 32), size(12, 2)
    places = (side // square) ** 2
    squares = nn.Conv2d(3, width, square, square)
    body = nn.Sequential(*(Gates(width, inside, places) for _ in range(layers)))
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, kinds))
    model = nn.ModuleList([squares, body, last]).to(DEVICE)
    seen, true = noise(batch, 3, side, side), labels(kinds, batch)

    def loss_of() -> Tensor:
        h = body(squares(seen).flatten(2).transpose(1, 2))
        return fn.cross_entropy(last(h.mean(1)).float(), true)

    return fit(loss_of, adam(model), bf16=repaired)


# --- compilers ------------------------------------------------------------------------------------


class RootMean(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(x.dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys, turned by their places."""
    one, other = x.chunk(2, -1)
    return x * cos + torch.cat([-other, one], -1) * sin


class Herd(nn.Module):
    """A layer with root-mean-square norms, places that turn, and a gated feed-forward."""

    def __init__(self, width: int, heads: int, inside: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, RootMean(width), RootMean(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inside, bias=False) for _ in range(2))
        self.down = nn.Linear(inside, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (
            layer(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        seen = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(fn.silu(self.gate(h)) * self.up(h))


class Herds(nn.Module):
    """Such layers between an embedding and scores of words."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self, words: int, long: int, width: int, layers: int, heads: int, inside: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Herd(width, heads, inside) for _ in range(layers))
        self.norm, self.last = RootMean(width), nn.Linear(width, words, bias=False)
        half = width // heads // 2
        rates = 10_000.0 ** (-torch.arange(half) / half)
        angles = torch.outer(torch.arange(long), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, text: Tensor) -> Tensor:
        h = self.embed(text)
        for layer in self.layers:
            h = layer(h, self.cos, self.sin)
        return self.last(self.norm(h))


@pair(
    "compile",
    "language",
    "model = torch.compile(model)",
    compiles=True,
)
def fables_told_model_compiled(repaired: bool) -> Running:
    """A small model in the manner of Llama learns to tell fables; autocast to BF16."""
    batch, long, words = size(10, 2), size(1024, 8), size(12_288, 40)
    width, layers, heads, inside = size(1024, 16), size(6, 2), size(16, 2), size(2816, 24)
    model = Herds(words, long, width, layers, heads, inside).to(DEVICE)
    text = labels(words, batch, long + 1)
    used: Any = torch.compile(model) if repaired else model

    def loss_of() -> Tensor:
        return fn.cross_entropy(used(text[:, :-1]).flatten(0, 1).float(), text[:, 1:].flatten())

    return fit(loss_of, adam(model))
