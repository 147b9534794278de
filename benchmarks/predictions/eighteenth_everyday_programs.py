"""An eighteenth set for one GPU: faults that most users have, four of them of the host.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import (
    DEVICE,
    Attends,
    Feeds,
    done,
    graphed,
    made_optimizer,
    precision,
    size,
    transformer_layers,
)
from program import Program, Running, phase
from single_programs import entered, loaded
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 351 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
SHORT = torch.bfloat16


# --- coasts ---------------------------------------------------------------------------------------


def conv_norm(before: int, after: int, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(after),
    ]


class Basic(nn.Module):
    """Two convolutions beside a short cut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *conv_norm(width, width), nn.ReLU(True), *conv_norm(width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(x + self.layers(x))


class Scales(nn.Module):
    """All scales are seen side by side, and then told to each other; as in HRNet."""

    def __init__(self, widths: Sequence[int], blocks: int) -> None:
        super().__init__()
        self.own = nn.ModuleList(
            nn.Sequential(*(Basic(width) for _ in range(blocks))) for width in widths
        )
        self.told = nn.ModuleList(
            nn.ModuleList(self.way(widths, i, j) for j in range(len(widths)))
            for i in range(len(widths))
        )

    @staticmethod
    def way(widths: Sequence[int], to: int, of: int) -> nn.Module:
        if of == to:
            return nn.Identity()
        if of > to:
            return nn.Sequential(
                *conv_norm(widths[of], widths[to], 1), nn.Upsample(scale_factor=2 ** (of - to))
            )
        parts: list[nn.Module] = []
        for step in range(of, to):
            after = widths[to] if step == to - 1 else widths[of]
            parts += [*conv_norm(widths[of], after, 3, 2), nn.ReLU(True)]
        return nn.Sequential(*parts[:-1])

    def forward(self, scales: list[Tensor]) -> list[Tensor]:
        seen = [own(x) for own, x in zip(self.own, scales, strict=True)]
        joined = []
        for ways in self.told:
            h = ways[0](seen[0])
            for way, x in zip(list(ways)[1:], seen[1:], strict=True):
                h = h + way(x)
            joined.append(fn.relu(h))
        return joined


class Coasts(nn.Module):
    """What covers the ground, of each four by four pixels."""

    def __init__(self, widths: Sequence[int], modules: int, blocks: int, classes: int) -> None:
        super().__init__()
        first = widths[0]
        self.stem = nn.Sequential(
            *conv_norm(3, first, 3, 2), nn.ReLU(True), *conv_norm(first, first, 3, 2), nn.ReLU(True)
        )
        self.starts = nn.ModuleList(
            nn.Sequential(*conv_norm(a, b, 3, 2), nn.ReLU(True)) for a, b in pairwise(widths)
        )
        self.scales = nn.Sequential(*(Scales(widths, blocks) for _ in range(modules)))
        total = sum(widths)
        self.last = nn.Sequential(
            *conv_norm(total, total, 1), nn.ReLU(True), nn.Conv2d(total, classes, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        scales = [self.stem(x)]
        for start in self.starts:
            scales.append(start(scales[-1]))
        scales = self.scales(scales)
        side = scales[0].shape[-2:]
        same = [scales[0], *(fn.interpolate(h, size=side) for h in scales[1:])]
        return self.last(torch.cat(same, 1))


@pair(
    "layout_changes",
    "vision",
    "channels_last for the network and its pictures",
    marks="steps",
)
def coasts_parallel_scales_channels_first(repaired: bool) -> Running:
    """Land, water and what lies between, from the air; autocast to BF16, as PyTorch lays it out."""
    batch, side, classes = size(24, 2), size(512, 32), size(16, 4)
    model = Coasts([size(64, 4), size(128, 6), size(256, 8)], size(2, 1), size(2, 1), classes)
    model = model.to(DEVICE)
    photos = noise(batch, 3, side, side)
    if repaired:
        model = model.to(memory_format=torch.channels_last)
        photos = photos.contiguous(memory_format=torch.channels_last)
    cover = labels(classes, batch, side // 4, side // 4)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(photos).float(), cover)

    return fit(loss_of, adam(model), decay=True)


# --- electricity ----------------------------------------------------------------------------------


class Dense(nn.Module):
    """Two layers beside a third one, normed; as in TiDE."""

    def __init__(self, before: int, wide: int, after: int, drop: float = 0.1) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(before, wide), nn.Linear(wide, after)
        self.short, self.drop = nn.Linear(before, after), nn.Dropout(drop)
        self.norm = nn.LayerNorm(after)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.short(x) + self.drop(self.down(fn.relu(self.up(x)))))


class Electricity(nn.Module):
    """What was used, and what is known of each hour, also of those to come."""

    def __init__(self, past: int, future: int, known: int, width: int, layers: int) -> None:
        super().__init__()
        few, told = 4, size(16, 4)
        self.future, self.told = future, told
        self.knows = nn.Sequential(nn.Linear(known, 32), nn.ReLU(), nn.Linear(32, few))
        inside = past + (past + future) * few
        self.encodes = nn.Sequential(
            Dense(inside, width, width), *(Dense(width, width, width) for _ in range(layers))
        )
        self.decodes = nn.Sequential(
            *(Dense(width, width, width) for _ in range(layers)),
            nn.Linear(width, future * told),
        )
        self.each_hour = nn.Sequential(nn.Linear(told + few, 64), nn.ReLU(), nn.Linear(64, 1))
        self.straight = nn.Linear(past, future)

    def forward(self, used: Tensor, known: Tensor) -> Tensor:
        hours = self.knows(known)
        h = self.decodes(self.encodes(torch.cat([used, hours.flatten(1)], 1)))
        both = torch.cat([h.view(-1, self.future, self.told), hours[:, -self.future :]], -1)
        return self.each_hour(both)[..., 0] + self.straight(used)


@pair(
    "low_precision_unused",
    "series",
    "torch.set_float32_matmul_precision('high') at the top of the script, which had said nothing",
)
def electricity_dense_encoder_without_tf32(repaired: bool) -> Running:
    """What customers use in the next four days, without attention; in single precision."""
    customers, past, future, known = size(4096, 4), size(512, 12), size(96, 4), size(8, 3)
    model = Electricity(past, future, known, size(1536, 16), size(2, 1)).to(DEVICE)
    used, coming = noise(customers, past), noise(customers, future)
    hours = noise(customers, past + future, known)

    def loss_of() -> Tensor:
        return fn.mse_loss(model(used, hours), coming)

    precise = "high" if repaired else "highest"
    return fit(loss_of, adam(model), bf16=False, matmul=precise)


# --- loans ----------------------------------------------------------------------------------------


class LooksAt(nn.Module):
    """Attention with heads of a width of their own, and what comes in is added."""

    def __init__(self, width: int, heads: int, each: int, *, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.each, self.by_hand = heads, each, by_hand
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * heads * each, bias=False)
        self.out = nn.Linear(heads * each, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.by_hand:
            suits = torch.einsum("bhid,bhjd->bhij", q, k) * self.each**-0.5
            shares = suits.softmax(dim=-1)
            seen = torch.einsum("bhij,bhjd->bhid", shares, v)
        else:
            seen = fn.scaled_dot_product_attention(q, k, v)
        return x + self.out(seen.transpose(1, 2).flatten(2))


class GatedFeeds(nn.Module):
    """Widens, half of which gates the other half, and narrows again."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        kept, gate = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(kept * fn.gelu(gate))


class Loans(nn.Module):
    """Columns of a row look at each other, and then rows of the batch do; as in SAINT."""

    def __init__(
        self, kinds: int, named: int, numbers: int, width: int, layers: int, *, by_hand: bool
    ) -> None:
        super().__init__()
        columns = named + numbers + 1
        self.names = nn.Embedding(named * kinds, width)
        self.register_buffer("begins", torch.arange(named) * kinds)
        self.scale = nn.Parameter(torch.randn(numbers, width) * 0.1)
        self.shift = nn.Parameter(torch.randn(numbers, width) * 0.1)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.over_columns = nn.ModuleList(
            nn.Sequential(LooksAt(width, 8, size(16, 2), by_hand=by_hand), GatedFeeds(width))
            for _ in range(layers)
        )
        wide = columns * width
        self.over_rows = nn.ModuleList(
            nn.Sequential(LooksAt(wide, 8, size(64, 4), by_hand=by_hand), GatedFeeds(wide))
            for _ in range(layers)
        )
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))

    def forward(self, names: Tensor, numbers: Tensor) -> Tensor:
        rows = len(names)
        said = numbers[..., None] * self.scale + self.shift
        x = torch.cat([self.first.expand(rows, -1, -1), self.names(names + self.begins), said], 1)
        for columns, across in zip(self.over_columns, self.over_rows, strict=True):
            x = columns(x)
            x = across(x.flatten(1)[None])[0].view(x.shape)
        return self.last(x[:, 0])


@pair(
    "unfused_attention",
    "tabular",
    "scaled_dot_product_attention instead of two einsums and a softmax, for columns and for rows",
)
def loans_rows_look_at_rows_by_einsum(repaired: bool) -> Running:
    """Who will pay a loan back, by what all others of the batch did; autocast to BF16."""
    rows, kinds, named, numbers = size(6144, 6), size(200, 5), size(23, 3), size(24, 4)
    model = Loans(kinds, named, numbers, size(32, 8), size(2, 1), by_hand=not repaired).to(DEVICE)
    names, values = labels(kinds, rows, named), noise(rows, numbers)
    paid = labels(2, rows)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(names, values).float(), paid)

    return fit(loss_of, adam(model))


# --- treebanks ------------------------------------------------------------------------------------


class Pairs(nn.Module):
    """How well each word goes with each other one: a product of both; as in biaffine parsers."""

    def __init__(self, width: int, arcs: int, kinds: int, names: int) -> None:
        super().__init__()
        self.arcs, self.kinds = nn.Linear(width, 2 * arcs), nn.Linear(width, 2 * kinds)
        self.arc = nn.Parameter(torch.randn(arcs, arcs) / arcs)
        self.heads = nn.Linear(arcs, 1, bias=False)
        self.kind = nn.Parameter(torch.randn(kinds, names * kinds) / kinds)

    def forward(self, h: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of all heads, and of the names of the arc to the true head."""
        of, to = fn.gelu(self.arcs(h)).chunk(2, -1)
        heads = of @ self.arc @ to.transpose(1, 2) + self.heads(to).transpose(1, 2)
        of, to = fn.gelu(self.kinds(h)).chunk(2, -1)
        to = to.gather(1, truth[..., None].expand_as(to))
        names = (of @ self.kind).unflatten(-1, (-1, to.shape[-1]))
        return heads, (names @ to[..., None])[..., 0]


@pair(
    "fused_optimizer",
    "language",
    "AdamW(fused=True) instead of AdamW as it comes",
    marks="phases",
)
def treebanks_adamw_as_it_comes(repaired: bool) -> Running:
    """Heads of words in a hundred languages, whose pieces make a large table; autocast to BF16."""
    batch, long, pieces = size(64, 2), size(160, 6), size(250_112, 50)
    width, names = size(768, 16), size(40, 3)
    with torch.device(DEVICE):
        embed, places = nn.Embedding(pieces, width), nn.Embedding(long, width)
        parts = transformer_layers(width, size(6, 1), size(12, 2))
        layers = nn.Sequential(*parts, nn.LayerNorm(width))
        pairs = Pairs(width, size(512, 8), size(128, 4), names)
    model = nn.ModuleList([embed, places, layers, pairs])
    text, heads = labels(pieces, batch, long), labels(long, batch, long)
    kinds = labels(names, batch, long)

    def loss_of() -> Tensor:
        found, named = pairs(layers(embed(text) + places.weight), heads)
        right = fn.cross_entropy(found.flatten(0, 1).float(), heads.flatten())
        return right + fn.cross_entropy(named.flatten(0, 1).float(), kinds.flatten())

    return fit(loss_of, adam(model, fused=True if repaired else None), decay=True)


# --- pictures drawn along edges -------------------------------------------------------------------


class Resolves(nn.Module):
    """Two convolutions, told how much noise there is; beyond the first level a look around."""

    def __init__(self, before: int, after: int, noisy: int, heads: int) -> None:
        super().__init__()
        groups = size(32, 4)
        self.norm1, self.norm2 = nn.GroupNorm(groups, before), nn.GroupNorm(groups, after)
        self.conv1 = nn.Conv2d(before, after, 3, 1, 1)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1)
        self.noisy = nn.Linear(noisy, after)
        self.short = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        self.looks = nn.Sequential(Attends(after, heads), Feeds(after)) if heads else None

    def forward(self, x: Tensor, noisy: Tensor) -> Tensor:
        h = self.conv1(fn.silu(self.norm1(x))) + self.noisy(noisy)[..., None, None]
        h = self.short(x) + self.conv2(fn.silu(self.norm2(h)))
        if self.looks is None:
            return h
        seen = self.looks(h.flatten(2).transpose(1, 2))
        return seen.transpose(1, 2).unflatten(2, h.shape[2:])


class Downwards(nn.Module):
    """The half that goes down, and the middle."""

    def __init__(self, channels: int, widths: Sequence[int], noisy: int, heads: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, widths[0], 3, 1, 1)
        befores = (widths[0], *widths[:-1])
        self.levels = nn.ModuleList(
            Resolves(a, b, noisy, heads * (n > 0))
            for n, (a, b) in enumerate(zip(befores, widths, strict=True))
        )
        self.downs = nn.ModuleList(nn.Conv2d(w, w, 3, 2, 1) for w in widths[:-1])
        self.middle = Resolves(widths[-1], widths[-1], noisy, heads)

    def forward(
        self, x: Tensor, noisy: Tensor, hint: Tensor | None, *, spares: bool
    ) -> list[Tensor]:
        """What each level saw, and the middle."""
        h = self.first(x)
        h, kept = h if hint is None else h + hint, []
        for n, level in enumerate(self.levels):
            h = called(level, h, noisy, spares=spares)
            kept.append(h)
            h = self.downs[n](h) if n < len(self.downs) else h
        return [*kept, called(self.middle, h, noisy, spares=spares)]


def called(layer: nn.Module, h: Tensor, noisy: Tensor, *, spares: bool) -> Tensor:
    return checkpoint(layer, h, noisy, use_reentrant=False) if spares else layer(h, noisy)


class Controlled(nn.Module):
    """A network that stays as it is, and a copy of its half that learns; as in ControlNet."""

    def __init__(
        self, channels: int, widths: Sequence[int], heads: int, seen: Sequence[int], *, spares: bool
    ) -> None:
        super().__init__()
        self.spares, noisy = spares, 4 * widths[0]
        self.noisy = nn.Sequential(nn.Linear(1, noisy), nn.SiLU(), nn.Linear(noisy, noisy))
        self.down = Downwards(channels, widths, noisy, heads)
        afters = (widths[0], *widths[:-1])
        self.ups = nn.ModuleList(
            Resolves(2 * b, a, noisy, heads * (n > 0))
            for n, (a, b) in reversed(list(enumerate(zip(afters, widths, strict=True))))
        )
        self.last = nn.Conv2d(widths[0], channels, 3, 1, 1)
        self.requires_grad_(False)
        self.copy = copy.deepcopy(self.down).requires_grad_()
        parts: list[nn.Module] = []
        for before, after in pairwise((3, *seen)):
            parts += [nn.Conv2d(before, after, 3, 2, 1), nn.SiLU()]
        self.hint = nn.Sequential(*parts, nn.Conv2d(seen[-1], widths[0], 3, 1, 1))
        self.zeros = nn.ModuleList(nn.Conv2d(w, w, 1) for w in (*widths, widths[-1]))
        for zero in self.zeros:
            nn.init.zeros_(zero.weight)

    def forward(self, x: Tensor, level: Tensor, edges: Tensor) -> Tensor:
        noisy = fn.silu(self.noisy(level[:, None]))
        control = self.copy(x, noisy, self.hint(edges), spares=self.spares)
        kept = self.down(x, noisy, None, spares=False)
        joined = [h + zero(c) for h, c, zero in zip(kept, control, self.zeros, strict=True)]
        h = joined.pop()
        for n, up in enumerate(self.ups):
            h = called(up, torch.cat([h, joined.pop()], 1), noisy, spares=self.spares)
            if n < len(self.ups) - 1:
                h = fn.interpolate(h, scale_factor=2.0)
        return self.last(h)


@pair(
    "recomputation",
    "diffusion",
    "neither network is checkpointed: the option came with the command of the README, for 16 GB",
)
def edges_controlled_checkpointing_of_readme(repaired: bool) -> Running:
    """Pictures from noise, along drawn edges; what was learnt before stays; channels last."""
    batch, side, channels = size(20, 2), size(64, 8), 4
    widths = (size(320, 8), size(640, 16), size(1280, 16))
    seen = (size(32, 4), size(96, 4), size(256, 8))
    with torch.device(DEVICE):
        model = Controlled(channels, widths, size(10, 2), seen, spares=not repaired)
    model = model.to(memory_format=torch.channels_last)
    learns = [p for p in model.parameters() if p.requires_grad]
    latents, edges = noise(batch, channels, side, side), noise(batch, 3, 8 * side, 8 * side)
    edges = edges.contiguous(memory_format=torch.channels_last)

    def loss_of() -> Tensor:
        dark, level = torch.randn_like(latents), torch.rand(batch, device=DEVICE)
        share = level[:, None, None, None]
        noisy = (1 - share).sqrt() * latents + share.sqrt() * dark
        said = model(noisy.contiguous(memory_format=torch.channels_last), level, edges)
        return fn.mse_loss(said.float(), dark)

    return fit(loss_of, torch.optim.AdamW(learns, lr=1e-5, fused=True))


# --- bytes ----------------------------------------------------------------------------------------


def gelu_of_gpt(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x.pow(3.0))))


class Reads(nn.Module):
    """A decoder's layer."""

    def __init__(self, width: int, heads: int, *, by_hand: bool) -> None:
        super().__init__()
        self.looks, self.norm = Attends(width, heads, causal=True), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.by_hand = by_hand

    def forward(self, x: Tensor) -> Tensor:
        x = self.looks(x)
        h = self.up(self.norm(x))
        h = gelu_of_gpt(h) if self.by_hand else fn.gelu(h, approximate="tanh")
        return x + self.down(h)


class InPatches(nn.Module):
    """A large decoder reads patches of bytes, a small one the bytes of each; as in MegaByte."""

    def __init__(
        self, patch: int, patches: int, wide: int, width: int, layers: int, *, by_hand: bool
    ) -> None:
        super().__init__()
        self.patch, each = patch, wide // patch
        self.embed, self.near = nn.Embedding(256, each), nn.Embedding(256, width)
        self.places = nn.Parameter(torch.randn(patches, wide) * 0.02)
        far = (Reads(wide, max(wide // 64, 1), by_hand=by_hand) for _ in range(max(layers - 1, 1)))
        self.far = nn.Sequential(*far)
        self.into = nn.Linear(each, width)
        close = (Reads(width, max(width // 64, 1), by_hand=by_hand) for _ in range(layers))
        self.close = nn.Sequential(*close, nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, text: Tensor) -> Tensor:
        b, t = text.shape
        before = fn.pad(text, (self.patch, -self.patch))
        h = self.embed(before).view(b, t // self.patch, -1) + self.places
        h = self.into(self.far(h).view(-1, self.patch, self.embed.embedding_dim))
        last = fn.pad(text.view(-1, self.patch), (1, -1))
        return self.close(h + self.near(last))


@pair(
    "fusion_opportunity",
    "language",
    "fn.gelu(approximate='tanh') instead of its formula, as GPT-2's code has it",
    marks="profiler",
)
def bytes_in_patches_gelu_by_hand(repaired: bool) -> Running:
    """Bytes of any file, one after the other, without a tokeniser; autocast to BF16."""
    batch, patch, patches = size(6, 2), size(16, 4), size(512, 4)
    wide, width = size(1024, 16), size(512, 8)
    model = InPatches(patch, patches, wide, width, size(3, 1), by_hand=not repaired).to(DEVICE)
    text = labels(256, batch, patch * patches)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(text).flatten(0, 1).float(), text.flatten())

    return fit(loss_of, adam(model), clip=1.0)


# --- logs of servers ------------------------------------------------------------------------------


class OneMore(nn.Module):
    """The norm of Gemma: by the root of the mean square, times one and a weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (y * (1.0 + self.weight.float())).type_as(x)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Sandwich(nn.Module):
    """A layer with norms before and after both of its halves; as in Gemma's second version."""

    def __init__(self, width: int, heads: int, groups: int, wide: int) -> None:
        super().__init__()
        self.heads, self.groups, self.each = heads, groups, width // heads
        self.norms = nn.ModuleList(OneMore(width) for _ in range(4))
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.each, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, wide, bias=False) for _ in range(2))
        self.down = nn.Linear(wide, width, bias=False)

    def looks(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = self.kv(x).view(b, t, 2, self.groups, -1).permute(2, 0, 3, 1, 4)
        q, k = turned(q, cos, sin).to(v.dtype), turned(k, cos, sin).to(v.dtype)
        k, v = (y.repeat_interleave(self.heads // self.groups, 1) for y in (k, v))
        seen = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.norms[1](self.looks(self.norms[0](x), cos, sin))
        y = self.norms[2](x)
        y = self.down(fn.gelu(self.gate(y), approximate="tanh") * self.up(y))
        return x + self.norms[3](y)


class Logs(nn.Module):
    """The next piece of a log."""

    def __init__(self, pieces: int, long: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed, self.scale = nn.Embedding(pieces, width), width**0.5
        nn.init.normal_(self.embed.weight, std=0.02)
        self.layers = nn.ModuleList(
            Sandwich(width, heads, heads // 2, 4 * width) for _ in range(layers)
        )
        self.norm, each = OneMore(width), width // heads
        rates = 10_000.0 ** -(torch.arange(0, each, 2) / each)
        angles = (torch.arange(long)[:, None] * rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, text: Tensor) -> Tensor:
        h = self.embed(text) * self.scale
        for layer in self.layers:
            h = layer(h, self.cos, self.sin)
        return self.norm(h) @ self.embed.weight.T


@pair(
    "fusion_opportunity",
    "language",
    "torch.compile(model)",
    marks="steps",
    compiles=True,
)
def logs_of_servers_sandwiched_norms_compile(repaired: bool) -> Running:
    """What a server writes next, so that what it should not write is seen; autocast to BF16."""
    batch, long, pieces = size(16, 2), size(1024, 8), size(4096, 24)
    model: Any = Logs(pieces, long, size(1024, 16), size(8, 2), size(3, 1)).to(DEVICE)
    weights = adam(model)
    text = labels(pieces, batch, long + 1)
    net = torch.compile(model, dynamic=False) if repaired else model

    def loss_of() -> Tensor:
        said = net(text[:, :-1]).flatten(0, 1)
        return fn.cross_entropy(said.float(), text[:, 1:].flatten())

    return fit(loss_of, weights, clip=1.0)


# --- many labels ----------------------------------------------------------------------------------


class ManyLabels(nn.Module):
    """Words in windows of three lengths, largest features of parts of the text; as in XML-CNN."""

    def __init__(self, words: int, each: int, width: int, parts: int, few: int, many: int) -> None:
        super().__init__()
        self.embed, self.parts = nn.Embedding(words, each), parts
        self.windows = nn.ModuleList(nn.Conv1d(each, width, n, padding=n // 2) for n in (3, 5, 9))
        self.few = nn.Linear(3 * width * parts, few)
        self.last = nn.Linear(few, many)

    def forward(self, text: Tensor) -> Tensor:
        h = self.embed(text).transpose(1, 2)
        long = text.shape[1] // self.parts
        found = [fn.max_pool1d(fn.relu(window(h)), long).flatten(1) for window in self.windows]
        return self.last(fn.dropout(fn.relu(self.few(torch.cat(found, 1))), 0.1))


def surprise(scores: Tensor, truth: Tensor) -> Tensor:
    """The cross entropy of each label by itself."""
    p = torch.sigmoid(scores)
    return -(truth * torch.log(p + 1e-7) + (1 - truth) * torch.log(1 - p + 1e-7)).mean()


@pair(
    "fusion_opportunity",
    "retrieval",
    "binary_cross_entropy_with_logits instead of a sigmoid, its logarithms and their sum",
)
def patents_many_labels_cross_entropy_by_hand(repaired: bool) -> Running:
    """Which of many keywords a patent has; autocast to BF16."""
    texts, long, words = size(512, 3), size(512, 16), size(60_000, 40)
    many, each = size(131_072, 20), size(12, 2)
    with torch.device(DEVICE):
        model = ManyLabels(words, size(256, 8), size(256, 8), 8, size(1024, 16), many)
    text, keys = labels(words, texts, long), labels(many, texts, each)
    loss_by = fn.binary_cross_entropy_with_logits if repaired else surprise

    def loss_of() -> Tensor:
        truth = torch.zeros(texts, many, device=DEVICE).scatter_(1, keys, 1.0)
        return loss_by(model(text).float(), truth)

    return fit(loss_of, adam(model))


# --- stems of songs -------------------------------------------------------------------------------


def coloured(x: Any, rng: np.random.Generator) -> Any:
    """Louder and softer frequencies, as another microphone would have them."""
    waves = np.fft.rfft(x, axis=1)
    gains = np.exp(rng.normal(0.0, 0.3, 16))
    along = np.linspace(0, 15, waves.shape[1])
    return np.fft.irfft(waves * np.interp(along, np.arange(16), gains), axis=1).astype(np.float32)


class Stems(Dataset[tuple[Tensor, Tensor]]):
    """Four instruments of four songs are mixed as if they were one song; what is sung is asked."""

    def __init__(self, songs: int, samples: int) -> None:
        rng = np.random.default_rng(0)
        self.songs = rng.standard_normal((songs, 4, 2, 2 * samples), dtype=np.float32)
        self.samples = samples

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng(index)
        parts = []
        for part in range(4):
            begin = int(rng.integers(self.samples))
            song = self.songs[int(rng.integers(len(self.songs))), part]
            x = song[:, begin : begin + self.samples] * np.float32(rng.uniform(0.25, 1.25))
            echo = int(rng.integers(1, self.samples // 4))
            x = x + np.float32(0.3) * np.roll(x, echo, axis=1)
            x = x[::-1] if rng.random() < 0.5 else x
            x = coloured(x, rng) if part == 0 else x
            parts.append((x - x.mean()) / (x.std() + np.float32(1e-5)))
        mix = np.sum(parts, axis=0)
        return torch.from_numpy(mix), torch.from_numpy(np.ascontiguousarray(parts[0]))


class Unmixes(nn.Module):
    """Ever fewer samples of ever more features, and back again; as in the Wave-U-Net."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.downs = nn.ModuleList(
            nn.Conv1d(a, b, 15, padding=7) for a, b in pairwise((2, *widths))
        )
        ups = [(a + b, b) for a, b in pairwise((widths[-1], *widths[::-1]))]
        self.middle = nn.Conv1d(widths[-1], widths[-1], 15, padding=7)
        self.ups = nn.ModuleList(nn.Conv1d(a, b, 5, padding=2) for a, b in ups)
        self.last = nn.Conv1d(widths[0] + 2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, kept = x, []
        for down in self.downs:
            h = fn.leaky_relu(down(h), 0.2)
            kept.append(h)
            h = h[..., ::2]
        h = fn.leaky_relu(self.middle(h), 0.2)
        for up in self.ups:
            h = fn.interpolate(h, scale_factor=2.0)
            h = fn.leaky_relu(up(torch.cat([h, kept.pop()], 1)), 0.2)
        return torch.tanh(self.last(torch.cat([h, x], 1)))


@pair(
    "input_starvation",
    "audio",
    "the DataLoader gets 8 workers instead of none, its default",
)
def stems_of_songs_mixed_by_main_thread(repaired: bool) -> Running:
    """What is sung, out of a mix of instruments, which is made anew each time; autocast to BF16."""
    batch, samples = size(16, 2), size(32_768, 256)
    data = Stems(size(12, 2), samples)
    batches = loaded(data, batch, 8 if repaired else 0)
    model = Unmixes([size(w, 4) for w in (128, 192, 256, 320, 384, 512)]).to(DEVICE)

    def loss_of() -> Tensor:
        mix, sung = batches()
        return fn.l1_loss(model(mix).float(), sung)

    return fit(loss_of, adam(model), settle=2 + getattr(batches, "ahead", 0))


# --- bearings -------------------------------------------------------------------------------------


class Causal(nn.Module):
    """Two convolutions that see the past only, further apart in each layer; as in a TCN."""

    def __init__(self, before: int, width: int, apart: int) -> None:
        super().__init__()
        self.cut = 2 * apart
        self.conv1 = nn.Conv1d(before, width, 3, padding=self.cut, dilation=apart)
        self.conv2 = nn.Conv1d(width, width, 3, padding=self.cut, dilation=apart)

    def forward(self, x: Tensor) -> Tensor:
        h = fn.dropout(fn.relu(self.conv1(x)[..., : -self.cut].contiguous()), 0.1)
        h = fn.dropout(fn.relu(self.conv2(h)[..., : -self.cut].contiguous()), 0.1)
        return fn.relu(x + h)


@pair(
    "blocking_copy",
    "series",
    "recordings are page-locked when they are read, and copied with non_blocking=True",
    marks="phases",
)
def bearings_of_trains_never_pinned(repaired: bool) -> Running:
    """How long a bearing will last, by how it shakes; all recordings fit into the host's memory."""
    batch, sensors, samples = size(64, 2), size(32, 3), size(8192, 64)
    width, kinds = size(256, 8), size(12, 3)
    recorded = [torch.randn(batch, sensors, samples) for _ in range(size(6, 2))]
    if repaired and CUDA:
        recorded = [x.pin_memory() for x in recorded]
    first = nn.Conv1d(sensors, width, 8, 4, 2)
    layers = nn.Sequential(*(Causal(width, width, 2**n) for n in range(size(5, 2))))
    last = nn.Linear(width, kinds)
    model = nn.ModuleList([first, layers, last]).to(DEVICE)
    lasts = labels(kinds, batch)
    update, made = adam(model), 0

    def step() -> None:
        nonlocal made
        with phase("get_batch"):
            shakes = recorded[made % len(recorded)].to(DEVICE, non_blocking=repaired)
        made += 1
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            said = last(layers(first(shakes))[..., -1])
            loss = fn.cross_entropy(said.float(), lasts)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            done(update)

    return Running(step, enter=precision("high"))


# --- crops of pictures ----------------------------------------------------------------------------


class SeesCrops(nn.Module):
    """A vision transformer for crops of two sizes, and the head that tells them apart."""

    def __init__(
        self,
        inside: int,
        lengths: Sequence[int],
        width: int,
        layers: int,
        heads: int,
        wide: int,
        kinds: int,
    ) -> None:
        super().__init__()
        self.into = nn.Linear(inside, width)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.ParameterList(torch.randn(n + 1, width) * 0.02 for n in lengths)
        self.layers = nn.Sequential(*transformer_layers(width, layers, heads), nn.LayerNorm(width))
        few = max(wide // 8, 4)
        self.head = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, few))
        self.kinds = nn.Parameter(torch.randn(kinds, few))

    def forward(self, sizes: Sequence[Tensor]) -> Tensor:
        """Scores of all crops, those of the first size first."""
        found = []
        for crops, places in zip(sizes, self.places, strict=False):
            h = self.into(crops)
            h = torch.cat([self.first.expand(len(h), -1, -1).to(h.dtype), h], 1) + places
            found.append(self.layers(h)[:, 0])
        h = fn.normalize(self.head(torch.cat(found)), dim=-1)
        return fn.linear(h, fn.normalize(self.kinds, dim=-1)).float()


def clipped_one_by_one(weights: Sequence[nn.Parameter], most: float) -> list[float]:
    norms = []
    for p in weights:
        if p.grad is None:
            continue
        norm = p.grad.norm(2)
        norms.append(norm.item())
        times = most / (norm + 1e-6)
        if times < 1:
            p.grad.mul_(times)
    return norms


def clipped_together(weights: Sequence[nn.Parameter], most: float) -> Tensor:
    grads = [p.grad for p in weights if p.grad is not None]
    norms = torch.stack(torch._foreach_norm(grads))
    times = (most / (norms + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(grads, list(times.unbind()))
    return norms


@pair(
    "host_sync",
    "contrastive",
    "each gradient is scaled by the smaller of one and the ratio; none is read, nor asked for",
)
def crops_of_pictures_gradients_clipped_one_by_one(repaired: bool) -> Running:
    """Crops of a picture are told by its slow average to be alike; as in DINO; autocast to BF16."""
    photos, local, inside = size(96, 2), size(6, 2), size(768, 10)
    lengths, kinds = (size(196, 4), size(36, 2)), size(32_768, 24)
    how = (inside, lengths, size(512, 16), size(4, 1), size(8, 2), size(2048, 16), kinds)
    student = SeesCrops(*how).to(DEVICE)
    teacher = copy.deepcopy(student).requires_grad_(False)
    learnt, kept = list(student.parameters()), list(teacher.parameters())
    large = noise(2 * photos, lengths[0], inside)
    small = noise(local * photos, lengths[1], inside)
    centre = torch.zeros(kinds, device=DEVICE)
    clipped = clipped_together if repaired else clipped_one_by_one
    update = adam(student)

    def step() -> None:
        with torch.autocast(DEVICE.type, SHORT):
            with torch.no_grad():
                aims = teacher([large])
                shares = ((aims - centre) / 0.04).softmax(-1).view(2, photos, kinds)
            said = student([large, small]) / 0.1
            likely = said.log_softmax(-1).view(2 + local, photos, kinds)
            total = likely.sum(0)
            loss = sum(-(shares[i] * (total - likely[i])).sum(-1).mean() for i in range(2))
            loss = loss / (2 * (1 + local))
        loss.backward()
        clipped(learnt, 3.0)
        done(update)
        with torch.no_grad():
            torch._foreach_lerp_(kept, learnt, 0.004)
            centre.lerp_(aims.mean(0), 0.1)

    return Running(step, enter=precision("high"))


# --- names in other letters -----------------------------------------------------------------------


class Spells(nn.Module):
    """Letters are read, and those of another script written, one by one; as Bahdanau did."""

    def __init__(self, letters: int, each: int, width: int) -> None:
        super().__init__()
        self.reads, self.writes = nn.Embedding(letters, each), nn.Embedding(letters, each)
        self.over = nn.GRU(each, width // 2, batch_first=True, bidirectional=True)
        self.key, self.query = nn.Linear(width, width), nn.Linear(width, width)
        self.suits = nn.Linear(width, 1)
        self.cell = nn.GRUCell(each + width, width)
        self.last = nn.Linear(2 * width, letters)

    def forward(self, name: Tensor, other: Tensor) -> Tensor:
        found, _ = self.over(self.reads(name))
        keys, letters = self.key(found), self.writes(other)
        h, told = found[:, -1], []
        for n in range(other.shape[1]):
            suits = self.suits(torch.tanh(self.query(h)[:, None] + keys))
            seen = (suits.softmax(1) * found).sum(1)
            h = self.cell(torch.cat([letters[:, n], seen], 1), h)
            told.append(self.last(torch.cat([h, seen], 1)))
        return torch.stack(told, 1)


@pair("launch_bound", "language", "the whole step is one CUDA graph")
def names_in_other_letters_one_by_one_graph(repaired: bool) -> Running:
    """Names of people in another script; the true letters are given; TF32."""
    batch, long, letters = size(384, 3), size(28, 5), size(256, 20)
    model = Spells(letters, size(128, 4), size(512, 8)).to(DEVICE)
    update = made_optimizer(model.parameters(), "graph")
    names, others = labels(letters, batch, long), labels(letters, batch, long + 1)

    def step() -> None:
        said = model(names, others[:, :-1]).flatten(0, 1)
        fn.cross_entropy(said, others[:, 1:].flatten()).backward()
        done(update)

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run
