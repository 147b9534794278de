"""A seventh set of programs for one GPU: small models of many kinds, most of them bound by the GPU.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import gc
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Experts, Residual, graphed, made_optimizer, precision, size
from program import Program, Running, phase
from single_programs import entered, loaded
from sixth_programs import Rms
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 156 pairs, opened"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- a decoder with grouped queries -------------------------------------------------------------


class Layer(nn.Module):
    """Grouped queries, rotary places, a gated linear unit; as in Llama."""

    def __init__(self, width: int, heads: int, shared: int, wide: int, length: int) -> None:
        super().__init__()
        self.heads, self.shared, each = heads, shared, width // heads
        self.norm1, self.norm2 = Rms(width), Rms(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * shared * each, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, wide, bias=False)
        self.up, self.down = nn.Linear(width, wide, bias=False), nn.Linear(wide, width, bias=False)
        rates = 10_000.0 ** (-torch.arange(0, each, 2) / each)
        angles = torch.arange(length)[:, None] * rates
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def turned(self, x: Tensor) -> Tensor:
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        y = self.norm1(x)
        q = self.q(y).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = self.kv(y).view(b, t, 2, self.shared, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(
            self.turned(q), self.turned(k), v, is_causal=True, enable_gqa=True
        )
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        y = self.norm2(x)
        return x + self.down(fn.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """A language model of such layers."""

    def __init__(
        self, width: int, layers: int, heads: int, shared: int, wide: int, vocab: int, length: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(
            Layer(width, heads, shared, wide, length) for _ in range(layers)
        )
        self.norm, self.head = Rms(width), nn.Linear(width, vocab, bias=False)
        self.spares = False

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.spares else layer(x)
        return self.head(self.norm(x))


def following(model: nn.Module, ids: Tensor) -> Tensor:
    return fn.cross_entropy(model(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


@pair(
    "aligned_shapes", "language", "a gated width of 2816 (a multiple of 256), not int(8/3 * 1024)"
)
def grouped_queries_unrounded_width(repaired: bool) -> Running:
    width, length, vocab = size(1024, 64), size(1024, 16), size(8192, 64)
    wide = size(2816, 176) if repaired else int(8 * width / 3)
    model = Decoder(width, size(6, 2), size(16, 4), size(4, 2), wide, vocab, length).to(DEVICE)
    ids = labels(vocab, size(8, 2), length)
    return fit(lambda: following(model, ids), adam(model, weight_decay=0.1), clip=1.0)


class Adapted(nn.Module):
    """A frozen layer with a product of two thin ones beside it."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.into = nn.Linear(frozen.in_features, rank, bias=False)
        self.out = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + 2.0 * self.out(self.into(x))


@pair(
    "casts_and_copies",
    "language",
    "frozen weights are kept in BF16, not cast from FP32 whenever they are used",
    marks="steps",
)
def lora_frozen_weights_recast(repaired: bool) -> Running:
    width, length, vocab = size(4096, 64), size(768, 16), size(8192, 64)
    wide, heads, shared = size(11_008, 128), size(32, 4), size(8, 2)
    with DEVICE:
        model = Decoder(width, size(3, 2), heads, shared, wide, vocab, length)
    model.requires_grad_(False)
    for layer in model.layers:
        for name in ("q", "kv", "gate", "up", "down"):
            setattr(layer, name, Adapted(getattr(layer, name), size(16, 4)))
    model.to(DEVICE)
    if repaired:
        for part in model.modules():
            if isinstance(part, nn.Linear) and not part.weight.requires_grad:
                part.bfloat16()
    model.spares = True
    learnt = [p for p in model.parameters() if p.requires_grad]
    ids = labels(vocab, size(2, 2), length)
    return fit(
        lambda: following(model, ids), torch.optim.AdamW(learnt, lr=1e-4, fused=True), clip=0.3
    )


# --- experts ----------------------------------------------------------------------------------


class Switch(Experts):
    """Experts that take so many tokens each; all their weights are two tensors."""

    def __init__(self, width: int, wide: int, experts: int, tokens: int) -> None:
        super().__init__(width, wide, experts)
        self.each = tokens * 5 // (4 * experts)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).flatten(0, 1)
        odds = self.router(y).float().softmax(-1)
        most, chosen = odds.max(-1)
        taken = fn.one_hot(chosen, odds.shape[1])
        order = taken.t().contiguous().cumsum(1).t()
        place = ((order - 1) * taken).sum(-1)
        kept = place < self.each
        seat = (chosen * self.each + place).masked_fill(~kept, self.each * odds.shape[1])
        seats = y.new_zeros(self.each * odds.shape[1] + 1, y.shape[1])
        given = seats.index_add(0, seat, y)[:-1].view(odds.shape[1], self.each, -1)
        found = torch.bmm(fn.gelu(torch.bmm(given, self.up)), self.down).flatten(0, 1)
        found = torch.cat([found, found.new_zeros(1, found.shape[1])])
        back = found.index_select(0, seat) * (most * kept)[:, None].to(found.dtype)
        return x + back.view_as(x)


class Looks(nn.Module):
    """Plain attention, without places."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


@pair("unfused_optimizer", "moe", "AdamW(amsgrad=True, fused=True) instead of foreach=False")
def stacked_experts_amsgrad_loop(repaired: bool) -> Running:
    width, experts, vocab = size(1024, 32), size(6, 2), size(8192, 64)
    batch, length = size(12, 2), size(512, 16)
    parts: list[nn.Module] = [nn.Embedding(vocab, width)]
    for _ in range(2):
        parts.append(Looks(width, size(16, 2), causal=True))
        parts.append(Switch(width, 4 * width, experts, batch * length))
    model = nn.Sequential(*parts, nn.LayerNorm(width), nn.Linear(width, vocab)).to(DEVICE)
    ids = labels(vocab, batch, length)
    how: dict[str, Any] = {"fused": True} if repaired else {"fused": False, "foreach": False}
    return fit(lambda: following(model, ids), adam(model, amsgrad=True, **how))


# --- a detector -------------------------------------------------------------------------------


class Pyramid(nn.Module):
    """A residual network, a pyramid of features and a head that all levels share; as in FCOS."""

    def __init__(self, width: int, inner: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.ModuleList(
            nn.Sequential(Residual(a, b, 1 if a == b else 2), Residual(b, b, 1))
            for a, b in itertools.pairwise(sizes)
        )
        self.sides = nn.ModuleList(nn.Conv2d(n, inner, 1) for n in sizes[2:])
        self.last = nn.Conv2d(inner, inner, 3, 2, 1)
        self.kinds, self.boxes = self.tower(inner, classes), self.tower(inner, 5)

    @staticmethod
    def tower(inner: int, out: int) -> nn.Module:
        parts: list[nn.Module] = []
        for _ in range(2):
            parts += [nn.Conv2d(inner, inner, 3, 1, 1), nn.GroupNorm(8, inner), nn.ReLU()]
        return nn.Sequential(*parts, nn.Conv2d(inner, out, 3, 1, 1))

    def forward(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        x, kept = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            kept.append(x)
        levels: list[Tensor] = []
        for side, found in zip(reversed(self.sides), reversed(kept), strict=False):
            x = side(found)
            levels.insert(0, x + fn.interpolate(levels[0], scale_factor=2.0) if levels else x)
        levels.append(self.last(levels[-1]))
        return [
            (
                self.kinds(x).permute(0, 2, 3, 1).flatten(0, 2),
                self.boxes(x).permute(0, 2, 3, 1).flatten(0, 2),
            )
            for x in levels
        ]


def apart(a: Tensor, b: Tensor) -> Tensor:
    """One less the overlap of boxes, given by distances to their four sides."""

    def area(box: Tensor) -> Tensor:  # prod() would ask the device for zeros in its backward
        return (box[:, 0] + box[:, 2]) * (box[:, 1] + box[:, 3])

    inter = area(torch.minimum(a, b))
    return 1 - inter / (area(a) + area(b) - inter)


@pair(
    "host_sync",
    "vision",
    "places without an object are weighted by zero; the host neither picks nor counts",
    marks="phases",
)
def pyramid_positive_places(repaired: bool) -> Running:
    classes, batch, side = size(80, 5), size(16, 2), size(512, 64)
    model = Pyramid(size(64, 8), size(256, 16), classes).to(DEVICE)
    x, levels = noise(batch, 3, side, side), []
    for stride in (8, 16, 32, 64):
        n = batch * (side // stride) ** 2
        positive = torch.rand(n, device=DEVICE) < 0.06
        kind = labels(classes, n)
        levels.append((positive, kind, torch.rand(n, 4, device=DEVICE) + 0.5, kind * 0.01))

    def loss_of() -> Tensor:
        total = torch.zeros((), device=DEVICE)
        for (kinds, boxes), (positive, kind, true, middle) in zip(model(x), levels, strict=True):
            goal = fn.one_hot(kind, classes) * positive[:, None]
            hard = (kinds.float().sigmoid() - goal).square()
            parts = fn.binary_cross_entropy_with_logits(
                kinds.float(), goal.float(), reduction="none"
            )
            loss = (hard * parts).sum()
            far, central = boxes[:, :4].float().clamp(-4, 4).exp(), boxes[:, 4].float()
            if repaired:
                some = positive.sum().clamp(min=1)
                loss = loss + (apart(far, true) * positive).sum()
                parts = fn.binary_cross_entropy_with_logits(central, middle, reduction="none")
                loss = loss + (parts * positive).sum()
            else:
                some = positive.sum().item()
                if some > 0:
                    loss = loss + apart(far[positive], true[positive]).sum()
                    loss = loss + fn.binary_cross_entropy_with_logits(
                        central[positive], middle[positive], reduction="sum"
                    )
                some = max(some, 1)
            total = total + loss / some
        return total

    return fit(loss_of, adam(model), decay=True)


# --- volumes, clips and pictures --------------------------------------------------------------


def volume_convs(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(before, after, 3, 1, 1, bias=False), nn.InstanceNorm3d(after, affine=True),
        nn.LeakyReLU(0.01),
        nn.Conv3d(after, after, 3, 1, 1, bias=False), nn.InstanceNorm3d(after, affine=True),
        nn.LeakyReLU(0.01),
    )  # fmt: skip


class Volumes(nn.Module):
    """A class for each voxel; as in nnU-Net."""

    def __init__(self, width: int, before: int, classes: int, levels: int) -> None:
        super().__init__()
        sizes = [width * 2**i for i in range(levels)]
        self.downs = nn.ModuleList(
            volume_convs(a, b) for a, b in zip([before, *sizes], sizes, strict=False)
        )
        self.rises = nn.ModuleList(
            nn.ConvTranspose3d(b, a, 2, 2) for a, b in itertools.pairwise(sizes)
        )
        self.ups = nn.ModuleList(volume_convs(2 * a, a) for a in sizes[:-1])
        self.out = nn.Conv3d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for number, down in enumerate(self.downs):
            x = down(fn.max_pool3d(x, 2) if number else x)
            kept.append(x)
        x = kept.pop()
        for rise, up in zip(reversed(self.rises), reversed(self.ups), strict=True):
            x = up(torch.cat([rise(x), kept.pop()], 1))
        return self.out(x)


@pair("blocking_copy", "vision", "volumes and labels are pinned and copied non_blocking")
def volumes_pageable(repaired: bool) -> Running:
    classes, side, batch = 4, size(96, 16), size(2, 1)
    model = Volumes(size(24, 4), 4, classes, size(4, 2)).to(DEVICE)
    stored = [
        (
            torch.randn(batch, 4, side, side, side),
            torch.randint(0, classes, (batch, side, side, side)),
        )
        for _ in range(2)
    ]
    if repaired and CUDA:
        stored = [(x.pin_memory(), y.pin_memory()) for x, y in stored]
    turn = 0

    def loss_of() -> Tensor:
        nonlocal turn
        x, y = (part.to(DEVICE, non_blocking=repaired) for part in stored[turn % 2])
        turn += 1
        scores = model(x).float()
        odds, goal = scores.softmax(1), fn.one_hot(y, classes).movedim(-1, 1)
        both = (odds * goal).sum((2, 3, 4))
        dice = (2 * both + 1) / (odds.sum((2, 3, 4)) + goal.sum((2, 3, 4)) + 1)
        return fn.cross_entropy(scores, y) + 1 - dice.mean()

    update = torch.optim.SGD(
        model.parameters(), lr=1e-3, momentum=0.99, nesterov=True, weight_decay=3e-5, fused=True
    )
    return fit(loss_of, update, bf16=False, clip=12.0)


class Turned(nn.Module):
    """A convolution over space, then one over time, beside a short way; as in R(2+1)D."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.space = nn.Conv3d(before, after, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False)
        self.time = nn.Conv3d(after, after, (3, 1, 1), 1, (1, 0, 0), bias=False)
        self.norm1, self.norm2 = nn.BatchNorm3d(after), nn.BatchNorm3d(after)
        self.short = nn.Conv3d(before, after, 1, (1, stride, stride), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = fn.relu(self.norm1(self.space(x)))
        return fn.relu(self.norm2(self.time(h)) + self.short(x))


@pair(
    "allocator_churn",
    "vision",
    "torch.cuda.empty_cache() between the backward pass and the optimizer is removed",
    marks="profiler",
)
def video_convs_room_for_optimizer(repaired: bool) -> Running:
    width, frames, side, batch = size(64, 8), size(16, 4), size(112, 16), size(8, 2)
    parts: list[nn.Module] = [Turned(3, width, 2)]
    for number in range(4):
        before = width * 2 ** max(number - 1, 0)
        after = width * 2**number
        parts += [Turned(before, after, 2 if number else 1), Turned(after, after, 1)]
    top = nn.Linear(8 * width, 400)
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool3d(1), nn.Flatten(), top).to(DEVICE)
    x, y = noise(batch, 3, frames, side, side), labels(400, batch)
    update = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, fused=True)

    def step() -> None:
        fn.cross_entropy(model(x), y, label_smoothing=0.1).backward()
        if not repaired and CUDA:
            torch.cuda.empty_cache()
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


class Sharper(nn.Module):
    """Pictures of four times as many pixels a side; as EDSR."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1)
            )
            for _ in range(blocks)
        )
        self.middle = nn.Conv2d(width, width, 3, 1, 1)
        self.rises = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3, 1, 1), nn.PixelShuffle(2),
            nn.Conv2d(width, 4 * width, 3, 1, 1), nn.PixelShuffle(2),
            nn.Conv2d(width, 3, 3, 1, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        h = x
        for block in self.blocks:
            h = h + 0.1 * block(h)
        return self.rises(x + self.middle(h))


@pair("layout_changes", "vision", "channels_last for the model and its pictures", marks="steps")
def sharper_pictures_channels_last(repaired: bool) -> Running:
    batch, side = size(16, 2), size(64, 8)
    model = Sharper(size(128, 8), size(16, 2)).to(DEVICE)
    x, y = noise(batch, 3, side, side), noise(batch, 3, 4 * side, 4 * side)
    if repaired:
        model = model.to(memory_format=torch.channels_last)
        x, y = (part.to(memory_format=torch.channels_last) for part in (x, y))
    return fit(lambda: fn.l1_loss(model(x).float(), y), adam(model), decay=True)


# --- diffusion --------------------------------------------------------------------------------


class Context(nn.Module):
    """Places look at each other and at a text; as in a latent diffusion model."""

    def __init__(self, width: int, heads: int, text: int, *, written: bool) -> None:
        super().__init__()
        self.heads, self.written = heads, written
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qs = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.kvs = nn.ModuleList(nn.Linear(n, 2 * width, bias=False) for n in (width, text))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.into, self.back = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def looked(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, n, d = q.shape
        q, k, v = (
            part.view(b, -1, self.heads, d // self.heads).transpose(1, 2) for part in (q, k, v)
        )
        if self.written:
            q, k, v = (part.flatten(0, 1) for part in (q, k, v))
            empty = q.new_empty(q.shape[0], q.shape[1], k.shape[1])
            scale = (d // self.heads) ** -0.5
            scores = torch.baddbmm(empty, q, k.transpose(1, 2), beta=0, alpha=scale)
            y = torch.bmm(scores.softmax(-1).to(v.dtype), v).view(b, self.heads, n, -1)
        else:
            y = fn.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).reshape(b, n, d)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        for norm, q, kv, out, given in zip(
            self.norms, self.qs, self.kvs, self.outs, (None, text), strict=False
        ):
            y = norm(x)
            k, v = kv(y if given is None else given).chunk(2, -1)
            x = x + out(self.looked(q(y), k, v))
        a, b = self.into(self.norms[2](x)).chunk(2, -1)
        return x + self.back(a * fn.gelu(b))


class Latents(nn.Module):
    """Two sizes of convolutions, each with looks at the text."""

    def __init__(self, width: int, text: int, heads: int, *, written: bool) -> None:
        super().__init__()
        sizes = (width, 2 * width, width)
        self.first, self.last = nn.Conv2d(4, width, 3, 1, 1), nn.Conv2d(width, 4, 3, 1, 1)
        self.convs = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(8, n), nn.SiLU(), nn.Conv2d(n, n, 3, 1, 1)) for n in sizes
        )
        self.times = nn.ModuleList(nn.Linear(64, n) for n in sizes)
        self.looks = nn.ModuleList(Context(n, heads, text, written=written) for n in sizes)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.up = nn.Conv2d(3 * width, width, 3, 1, 1)

    def level(self, number: int, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        x = x + self.convs[number](x + self.times[number](time)[:, :, None, None])
        b, c, h, w = x.shape
        y = self.looks[number](x.flatten(2).transpose(1, 2), text)
        return y.transpose(1, 2).reshape(b, c, h, w)

    def forward(self, x: Tensor, t: Tensor, text: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(torch.arange(32, device=x.device) * -0.28)
        time = torch.cat([angles.sin(), angles.cos()], 1)
        kept = self.level(0, self.first(x), time, text)
        h = self.level(1, self.down(kept), time, text)
        h = self.up(torch.cat([fn.interpolate(h, scale_factor=2.0), kept], 1))
        return self.last(self.level(2, h, time, text))


@pair(
    "unfused_attention",
    "diffusion",
    "scaled_dot_product_attention instead of baddbmm, softmax and bmm",
    marks="phases",
)
def latents_look_by_baddbmm(repaired: bool) -> Running:
    batch, side, text, words = size(5, 2), size(48, 8), size(768, 16), size(77, 5)
    model = Latents(size(512, 16), text, size(8, 2), written=not repaired).to(DEVICE)
    x, told = noise(batch, 4, side, side), noise(batch, words, text)

    def loss_of() -> Tensor:
        drawn, t = torch.randn_like(x), torch.rand(batch, device=DEVICE)
        share = t[:, None, None, None]
        return fn.mse_loss(
            model((1 - share) * x + share * drawn, 1000 * t, told).float(), drawn - x
        )

    return fit(loss_of, adam(model, weight_decay=1e-2), clip=1.0)


class Modulated(nn.Module):
    """A layer whose norms are scaled, shifted and gated by the time; as in DiT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.say = nn.Linear(width, 6 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    @staticmethod
    def normed(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        x = x.float()
        y = (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-6)
        return y * (1 + scale) + shift

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        b, t, d = x.shape
        scale1, shift1, gate1, scale2, shift2, gate2 = (
            part.tanh() for part in self.say(fn.silu(c))[:, None].chunk(6, -1)
        )
        qkv = self.qkv(self.normed(x, scale1, shift1)).view(b, t, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + gate1 * self.out(y)
        h = self.up(self.normed(x, scale2, shift2))
        h = 0.5 * h * (1 + torch.tanh(0.79788456 * (h + 0.044715 * h * h * h)))
        return x + gate2 * self.down(h)


class Patches(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, places: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(16, width), nn.Linear(width, 16)
        self.place, self.time = nn.Parameter(torch.randn(places, width)), nn.Linear(64, width)
        self.layers = nn.ModuleList(Modulated(width, heads) for _ in range(layers))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(torch.arange(32, device=x.device) * -0.28)
        c = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        h = self.into(x) + self.place
        for layer in self.layers:
            h = layer(h, c)
        return self.out(h)


@pair("fusion_opportunity", "diffusion", "torch.compile(model)", compiles=True)
def modulated_patches_compile(repaired: bool) -> Running:
    batch, places = size(40, 2), size(256, 8)
    model: Any = Patches(size(768, 32), size(6, 2), size(12, 2), places).to(DEVICE)
    if repaired:
        model = torch.compile(model)
    x, drawn, t = noise(batch, places, 16), noise(batch, places, 16), 1000 * noise(batch).abs()
    return fit(lambda: fn.mse_loss(model(x + drawn, t).float(), drawn), adam(model))


class Waves(nn.Module):
    """Gated convolutions, wider and wider apart, over sound; as in DiffWave."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, width, 1), nn.Conv1d(width, 1, 1)
        self.far = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding=2 ** (i % 8), dilation=2 ** (i % 8))
            for i in range(layers)
        )
        self.mixes = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))
        self.times = nn.ModuleList(nn.Linear(64, width) for _ in range(layers))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(torch.arange(32, device=x.device) * -0.28)
        time = torch.cat([angles.sin(), angles.cos()], 1)
        h = fn.relu(self.first(x))
        total = torch.zeros_like(h)
        for far, mix, early in zip(self.far, self.mixes, self.times, strict=True):
            a, b = far(h + early(time)[..., None]).chunk(2, 1)
            on, skip = mix(a.tanh() * b.sigmoid()).chunk(2, 1)
            h, total = (h + on) * 0.5**0.5, total + skip
        return self.last(fn.relu(total))


@pair(
    "cpu_offload",
    "audio",
    "the average of the weights is kept on the device, not on the CPU",
    marks="steps",
)
def waves_average_on_cpu(repaired: bool) -> Running:
    batch, samples = size(4, 2), size(16_384, 256)
    model = Waves(size(256, 8), size(12, 3)).to(DEVICE)
    x, drawn, t = noise(batch, 1, samples), noise(batch, 1, samples), 100 * noise(batch).abs()
    weights = [p.detach() for p in model.parameters()]
    place = DEVICE if repaired else torch.device("cpu")
    averages = [w.to(place, copy=True) for w in weights]

    def average(_number: int, _loss: Tensor) -> None:
        if repaired:
            torch._foreach_lerp_(averages, weights, 1e-3)
            return
        for kept, w in zip(averages, weights, strict=True):
            kept.lerp_(w.to("cpu"), 1e-3)

    return fit(lambda: fn.l1_loss(model(x + drawn, t).float(), drawn), adam(model), after=average)


# --- speech -----------------------------------------------------------------------------------


class Inside(nn.Module):
    """The convolutions of a conformer's layer."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.norm, self.batch = nn.LayerNorm(width), nn.BatchNorm1d(width)
        self.into, self.out = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.along = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        h = fn.glu(self.into(self.norm(x).transpose(1, 2)), 1)
        return x + self.out(fn.silu(self.batch(self.along(h)))).transpose(1, 2)


class Halfway(nn.Module):
    """Half of a feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * self.layers(x)


class Conformer(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, bins: int, signs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv1d(bins, width, 3, 2, 1), nn.SiLU(), nn.Conv1d(width, width, 3, 2, 1), nn.SiLU()
        )
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [Halfway(width), Looks(width, heads, causal=False), Inside(width, 15)]
            parts += [Halfway(width), nn.LayerNorm(width)]
        self.layers, self.head = nn.Sequential(*parts), nn.Linear(width, signs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.first(x).transpose(1, 2)))


@pair("low_precision_unused", "audio", "autocast to BF16 instead of FP32", marks="profiler")
def conformer_phones_bf16(repaired: bool) -> Running:
    bins, frames, batch, signs = size(80, 8), size(1600, 64), size(20, 2), size(128, 8)
    model = Conformer(size(512, 16), size(6, 2), size(8, 2), bins, signs).to(DEVICE)
    x, y = noise(batch, bins, frames), labels(signs, batch, frames // 4)
    return fit(
        lambda: fn.cross_entropy(model(x).flatten(0, 1).float(), y.flatten()),
        adam(model),
        bf16=repaired,
        matmul="high" if repaired else "highest",
        clip=5.0,
        decay=True,
    )


# --- series -----------------------------------------------------------------------------------


class Curves(Dataset[tuple[Tensor, Tensor]]):
    """Loads of a grid: gaps filled, outliers cut by medians, season and trend taken away."""

    def __init__(self, lines: int, past: int, ahead: int) -> None:
        self.lines, self.past, self.ahead = lines, past, ahead

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng(index)
        n = self.past + self.ahead
        hours = np.arange(n, dtype=np.float32)
        walk = rng.standard_normal((self.lines, n), dtype=np.float32).cumsum(1) * np.float32(0.05)
        shifts = rng.uniform(0, 6.28, (self.lines, 1)).astype(np.float32)
        x = walk + np.sin(hours * np.float32(0.2618) + shifts) + rng.gumbel(size=walk.shape)
        holes = rng.random(x.shape) < 0.02
        for line, hole in zip(x, holes, strict=True):
            line[hole] = np.interp(hours[hole], hours[~hole], line[~hole])
        middle = np.median(x, 1, keepdims=True)
        far = np.median(np.abs(x - middle), 1, keepdims=True) + 1e-6
        x = np.clip(x, middle - 6 * far, middle + 6 * far)
        waves = np.fft.rfft(x, axis=1)
        waves[:, :4] *= 0.1
        x = np.fft.irfft(waves, n, axis=1).astype(np.float32)
        x = (x - x.mean(1, keepdims=True)) / (x.std(1, keepdims=True) + np.float32(1e-5))
        return torch.from_numpy(x[:, : self.past]), torch.from_numpy(x[:, self.past :])


class Forecast(nn.Module):
    """Each line is cut into patches that look at each other; as PatchTST."""

    def __init__(self, width: int, layers: int, heads: int, past: int, ahead: int) -> None:
        super().__init__()
        self.patch, places = nn.Linear(16, width), past // 16
        self.place = nn.Parameter(torch.randn(places, width) * 0.02)
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [Looks(width, heads, causal=False), Halfway(width)]
        self.layers = nn.Sequential(*parts, nn.LayerNorm(width))
        self.head = nn.Linear(width * places, ahead)

    def forward(self, x: Tensor) -> Tensor:
        b, lines, past = x.shape
        h = self.patch(x.reshape(b * lines, past // 16, 16)) + self.place
        return self.head(self.layers(h).flatten(1)).view(b, lines, -1)


@pair("input_starvation", "series", "12 workers instead of 3", marks="phases")
def curves_three_workers(repaired: bool) -> Running:
    lines, past, ahead = size(16, 2), size(1024, 64), size(96, 8)
    workers = 12 if repaired else 3
    batches = loaded(Curves(lines, past, ahead), size(48, 2), workers)
    model = Forecast(size(384, 16), size(4, 1), size(8, 2), past, ahead).to(DEVICE)

    def loss_of() -> Tensor:
        with phase("get_batch"):
            x, y = batches()
        return fn.smooth_l1_loss(model(x).float(), y)

    return fit(loss_of, adam(model), clip=1.0, settle=2 + 2 * workers)


# --- a field of light -------------------------------------------------------------------------


class Light(nn.Module):
    """Density and colour of places, and what a ray through them shows; as NeRF."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Linear(63, width), nn.ReLU()]
        for _ in range(layers):
            parts += [nn.Linear(width, width), nn.ReLU()]
        self.body, self.dense = nn.Sequential(*parts), nn.Linear(width, 1)
        self.colour = nn.Sequential(
            nn.Linear(width + 3, width // 2), nn.ReLU(), nn.Linear(width // 2, 3), nn.Sigmoid()
        )
        self.register_buffer("rates", 2.0 ** torch.arange(10))

    def forward(self, start: Tensor, way: Tensor, depths: Tensor) -> Tensor:
        places = start[:, None] + way[:, None] * depths[:, None]
        angles = (places[..., None] * self.rates).flatten(-2)
        h = self.body(torch.cat([places, angles.sin(), angles.cos()], -1))
        thick = fn.softplus(self.dense(h)[..., 0].float()) * (depths[1] - depths[0])
        before = torch.exp(-(thick.cumsum(-1) - thick))
        weight = before * (1 - torch.exp(-thick))
        colour = self.colour(torch.cat([h, way[:, None].expand_as(places).to(h.dtype)], -1))
        return (weight[..., None] * colour).sum(1)


def rays(pose: np.ndarray[Any, Any], x: Any, y: Any, side: int) -> tuple[Any, Any]:
    """Starts and directions of the rays through these pixels."""
    far = 1.2 * side
    ways = np.stack([(x - side / 2) / far, -(y - side / 2) / far, -np.ones_like(x)], -1)
    ways = (ways[..., None, :] * pose[:3, :3]).sum(-1)
    ways = ways / np.linalg.norm(ways, axis=-1, keepdims=True)
    return np.broadcast_to(pose[:3, 3], ways.shape), ways


@pair(
    "host_compute",
    "vision",
    "rays are made for the chosen pixels only, not by NumPy for the whole picture",
    others=("host_sync",),
)
def rays_of_whole_picture(repaired: bool) -> Running:
    side, many = size(256, 16), size(3072, 16)
    model = Light(size(256, 16), size(7, 1)).to(DEVICE)
    depths = torch.linspace(2.0, 6.0, size(96, 8), device=DEVICE)
    picture = noise(side * side, 3).sigmoid()
    rng = np.random.default_rng(0)
    poses = rng.standard_normal((100, 4, 4))
    shown: list[float] = []
    made = 0

    def loss_of() -> Tensor:
        nonlocal made
        pose = poses[made % len(poses)]
        made += 1
        chosen = rng.choice(side * side, many)
        if repaired:
            start, way = rays(pose, chosen % side * 1.0, chosen // side * 1.0, side)
        else:
            x, y = np.meshgrid(np.arange(side) * 1.0, np.arange(side) * 1.0)
            starts, ways = rays(pose, x, y, side)
            start, way = starts.reshape(-1, 3)[chosen], ways.reshape(-1, 3)[chosen]
        given = (torch.from_numpy(np.ascontiguousarray(part)) for part in (start, way))
        start, way = (part.float().to(DEVICE) for part in given)
        true = picture[torch.from_numpy(chosen).to(DEVICE)]
        return fn.mse_loss(model(start, way, depths), true)

    def show(_number: int, loss: Tensor) -> None:
        shown[:] = [loss.item()]

    return fit(loss_of, adam(model), bf16=False, after=show)


# --- control ----------------------------------------------------------------------------------


class Policy(nn.Module):
    """What to do, and what it is worth."""

    def __init__(self, width: int, sees: int, does: int) -> None:
        super().__init__()
        self.actor, self.critic = (self.tower(width, sees, n) for n in (does, 1))
        self.spread = nn.Parameter(torch.zeros(does))

    @staticmethod
    def tower(width: int, sees: int, out: int) -> nn.Module:
        parts: list[nn.Module] = [nn.Linear(sees, width), nn.LayerNorm(width), nn.ELU()]
        for _ in range(2):
            parts += [nn.Linear(width, width), nn.LayerNorm(width), nn.ELU()]
        return nn.Sequential(*parts, nn.Linear(width, out))


@pair("launch_bound", "rl", "the whole update of all minibatches is one CUDA graph", marks="steps")
def clipped_policy_update_graph(repaired: bool) -> Running:
    sees, does, parts, many = size(48, 6), size(12, 2), size(8, 2), size(2048, 8)
    model = Policy(size(256, 16), sees, does).to(DEVICE)
    update = made_optimizer(model.parameters(), "graph")
    states, actions = noise(parts, many, sees), noise(parts, many, does)
    odds, gains, worth = noise(parts, many) - 17.0, noise(parts, many), noise(parts, many)
    weights = list(model.parameters())

    def step() -> None:
        for part in range(parts):
            update.zero_grad(set_to_none=True)
            mean, value = model.actor(states[part]), model.critic(states[part])[:, 0]
            spread = model.spread.exp()
            off = ((actions[part] - mean) / spread).square()
            now = (-0.5 * off - model.spread - 0.91893853).sum(-1)
            gain = gains[part]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            share = (now - odds[part]).clamp(-10, 10).exp()
            policy = torch.maximum(-gain * share, -gain * share.clamp(0.8, 1.2)).mean()
            chaos = (0.5 + 0.91893853 + model.spread).sum()
            loss = policy + (value - worth[part]).square().mean() - 0.01 * chaos
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 0.5)
            update.step()

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run


# --- rare steps -------------------------------------------------------------------------------


@pair(
    "checkpoint_stall",
    "vision",
    "weights are saved every 1000 steps, not every 5",
    period=5,
    marks="phases",
)
def masked_pictures_saves(repaired: bool) -> Running:
    width, batch, side, patch = size(512, 32), size(160, 2), size(224, 32), 16
    places = (side // patch) ** 2
    seen = places // 4
    into, out = nn.Linear(3 * patch**2, width), nn.Linear(width, 3 * patch**2)
    parts: list[nn.Module] = []
    for number in range(size(8, 2)):
        parts += [Looks(width, size(8, 2), causal=False), Halfway(width)]
        middle = 2 * number + 2
    coder, decoder = (
        nn.Sequential(*parts[: middle * 3 // 4]),
        nn.Sequential(*parts[middle * 3 // 4 :]),
    )
    model = nn.ModuleList([into, coder, decoder, out]).to(DEVICE)
    where = nn.Parameter(noise(1, places, width) * 0.02)
    hidden = nn.Parameter(noise(1, 1, width) * 0.02)
    update = torch.optim.AdamW([where, hidden, *model.parameters()], lr=1e-4, fused=True)
    x = noise(batch, places, 3 * patch**2)
    memory = Path("/dev/shm")  # a disk's time differs from file to file
    fast = memory.is_dir() and shutil.disk_usage(memory).free > 4 * 2**30
    folder = Path(tempfile.mkdtemp(prefix="exam-", dir=memory if fast else None))

    def loss_of() -> Tensor:
        order = torch.rand(batch, places, device=DEVICE).argsort(1)
        kept = order[:, :seen, None]
        h = (into(x) + where).gather(1, kept.expand(-1, -1, width))
        h = coder(h)
        full = (hidden + where).expand(batch, -1, -1).to(h.dtype)
        h = out(decoder(full.scatter(1, kept.expand(-1, -1, width), h)))
        lost = torch.ones(batch, places, device=DEVICE).scatter(1, order[:, :seen], 0.0)
        return ((h.float() - x).square().mean(-1) * lost).sum() / lost.sum()

    def save(number: int, _loss: Tensor) -> None:
        if number % (1000 if repaired else 5) == (999 if repaired else 3):
            torch.save(model.state_dict(), folder / "last.pt")

    run = fit(loss_of, update, after=save)
    run.close = lambda: shutil.rmtree(folder, ignore_errors=True)
    return run


@pair(
    "step_jitter",
    "recommender",
    "gc.collect() every 4 steps is removed",
    period=4,
    record=("--gc",),
)
def histories_gc_every_4(repaired: bool) -> Running:
    """The histories of all users are Python's lists, which the collector walks through."""
    items, length, batch = size(50_000, 64), size(200, 8), size(128, 2)
    width = size(256, 16)
    histories = [{"user": i, "seen": [i % 97, i % 89]} for i in range(size(60_000, 20))]
    embed = nn.Embedding(items, width)
    parts: list[nn.Module] = []
    for _ in range(size(4, 1)):
        parts += [Looks(width, size(4, 2), causal=True), Halfway(width), nn.Dropout(0.2)]
    model = nn.ModuleList([embed, nn.Sequential(*parts, nn.LayerNorm(width))]).to(DEVICE)
    ids, wrong = labels(items, batch, length + 1), labels(items, batch, length, size(32, 4))

    def loss_of() -> Tensor:
        h = model[1](embed(ids[:, :-1]))
        right = (h * embed(ids[:, 1:])).sum(-1, keepdim=True)
        other = torch.einsum("btd,btnd->btn", h.to(torch.bfloat16), embed(wrong).to(torch.bfloat16))
        scores = torch.cat([right.float(), other.float()], -1)
        return -scores.log_softmax(-1)[..., 0].mean()

    def collect(number: int, _loss: Tensor) -> None:
        if not repaired and number % 4 == 2:
            gc.collect()
            len(histories)

    return fit(loss_of, adam(model), after=collect)


# --- levers -----------------------------------------------------------------------------------


class Thin(nn.Module):
    """Wider inside, each channel by itself, channels weighted; as in EfficientNet."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        wide = 4 * before
        self.into = nn.Sequential(
            nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.SiLU(),
        )  # fmt: skip
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, before, 1), nn.SiLU(),
            nn.Conv2d(before, wide, 1), nn.Sigmoid(),
        )  # fmt: skip
        self.out = nn.Sequential(nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after))
        self.same = before == after and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        h = self.out(h * self.weigh(h))
        return x + h if self.same else h


def thin(width: int, depth: int) -> nn.Module:
    parts: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width)]
    before = width
    for level in range(4):
        for number in range(depth):
            after = width * 2**level
            parts.append(Thin(before, after, 2 if number == 0 else 1))
            before = after
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 100))


@pair("larger_batch", "vision", "twice the batch", samples=2.0, marks="profiler")
def taught_thin_convs_twice(repaired: bool) -> Running:
    batch, side = size(64, 2) * (2 if repaired else 1), size(160, 32)
    student, teacher = thin(size(24, 4), 2).to(DEVICE), thin(size(48, 8), 3).to(DEVICE)
    teacher.requires_grad_(False).eval()
    x, y = noise(batch, 3, side, side), labels(100, batch)

    def loss_of() -> Tensor:
        with torch.no_grad():
            goal = (teacher(x).float() / 4).softmax(-1)
        mine = student(x).float()
        told = fn.kl_div((mine / 4).log_softmax(-1), goal, reduction="batchmean")
        return fn.cross_entropy(mine, y) + 16 * told

    return fit(loss_of, adam(student), decay=True)
