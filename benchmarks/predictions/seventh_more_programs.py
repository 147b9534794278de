"""Programs of the seventh set: models written by hand in plain PyTorch, as researchers do."""

from __future__ import annotations

import gc
import itertools
import math
from typing import Any

import numpy as np
import torch
from models import DEVICE, graphed, half, made_optimizer, precision, size, training
from program import Program, Running
from single_programs import copied, entered, fixed
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 156 pairs, opened"
pair = entered(PROGRAMS)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


# --- fusion -----------------------------------------------------------------------------------


def splatted(at: Tensor, centre: Tensor, wide: Tensor, turn: Tensor, opaque: Tensor) -> Tensor:
    """How much of each ellipse is seen at each point, front to back: views, points, ellipses."""
    dx, dy = (at[None, :, None, i] - centre[:, None, :, i] for i in range(2))
    cos, sin = torch.cos(turn)[:, None], torch.sin(turn)[:, None]
    along, across = cos * dx + sin * dy, cos * dy - sin * dx
    narrow = torch.exp(-wide)[:, None]
    power = (along * narrow[..., 0]).square() + (across * narrow[..., 1]).square()
    alpha = (torch.sigmoid(opaque)[:, None] * torch.exp(-0.5 * power)).clamp(max=0.99)
    dark = torch.log1p(-alpha)
    return alpha * torch.exp(dark.cumsum(-1) - dark)


class Ellipses(nn.Module):
    """Pictures made of coloured ellipses, each view with its own."""

    def __init__(self, views: int, many: int) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.rand(views, many, 2) * 2.0 - 1.0)
        self.wide = nn.Parameter(torch.full((views, many, 2), -2.0))
        self.turn = nn.Parameter(torch.zeros(views, many))
        self.opaque = nn.Parameter(torch.zeros(views, many))
        self.colour = nn.Parameter(torch.rand(views, many, 3))


@pair(
    "fusion_opportunity",
    "vision",
    "torch.compile of the function that splats",
    compiles=True,
)
def ellipses_splatted_compile(repaired: bool) -> Running:
    views, side, many = size(6, 2), size(256, 8), size(256, 8)
    model = Ellipses(views, many).to(DEVICE)
    line = torch.linspace(-1.0, 1.0, side, device=DEVICE)
    at = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).view(-1, 2)
    pictures = torch.rand(views, side * side, 3, device=DEVICE)
    function: Any = torch.compile(splatted) if repaired else splatted

    def loss_of(net: Any, wanted: Tensor) -> Tensor:
        seen = function(at, net.centre, net.wide, net.turn, net.opaque)
        return fn.l1_loss(seen @ net.colour, wanted)

    return training(model, fixed(pictures), loss_of, kind="fp32", optimizer="foreach")


# --- attention --------------------------------------------------------------------------------


class TriangleAttention(nn.Module):
    """Pairs that begin (or end) at one residue look at each other; the third side weighs."""

    def __init__(self, width: int, heads: int, *, ending: bool, written: bool) -> None:
        super().__init__()
        self.heads, self.ending, self.written = heads, ending, written
        self.norm, self.before = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.side = nn.Linear(width, 3 * width), nn.Linear(width, heads, bias=False)
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, z: Tensor) -> Tensor:
        if self.ending:
            z = z.transpose(0, 1)
        y = self.norm(z)
        rows, long, width = y.shape
        q, k, v = self.qkv(y).view(rows, long, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        third = self.side(y).permute(2, 0, 1).contiguous()[None]
        if self.written:
            scores = torch.einsum("rhqd,rhkd->rhqk", q, k) * q.shape[-1] ** -0.5 + third
            found = torch.einsum("rhqk,rhkd->rhqd", scores.softmax(-1).to(v.dtype), v)
        else:
            mask = third.expand(rows, -1, -1, -1)
            found = fn.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        found = found.transpose(1, 2).reshape(rows, long, width)
        z = z + self.out(found * torch.sigmoid(self.gate(y)))
        z = z + self.down(fn.relu(self.up(self.before(z))))
        return z.transpose(0, 1) if self.ending else z


@pair(
    "unfused_attention",
    "science",
    "scaled_dot_product_attention with the bias of the third side as attn_mask",
    marks="phases",
)
def triangle_attention_written(repaired: bool) -> Running:
    long, width, bins = size(320, 8), size(128, 8), size(64, 4)
    layers = (
        TriangleAttention(width, size(4, 2), ending=i % 2 == 1, written=not repaired)
        for i in range(size(6, 2))
    )
    model = nn.Sequential(
        nn.Linear(size(64, 4), width), *layers, nn.LayerNorm(width), nn.Linear(width, bins)
    ).to(DEVICE)
    data = noise(long, long, size(64, 4)), torch.randint(0, bins, (long * long,), device=DEVICE)

    def loss_of(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        z = net(batch[0])
        return fn.cross_entropy((z + z.transpose(0, 1)).float().flatten(0, 1), batch[1])

    return training(model, fixed(data), loss_of)


# --- precision, casts and shapes --------------------------------------------------------------


class Looking(nn.Module):
    """Layers of a transformer without a mask."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.qkvs = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))

    def forward(self, h: Tensor) -> Tensor:
        b, t, _ = h.shape
        parts = zip(self.qkvs, self.outs, self.ups, self.downs, strict=True)
        for i, (qkv, out, up, down) in enumerate(parts):
            q, k, v = qkv(self.norms[2 * i](h)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = fn.scaled_dot_product_attention(q, k, v)
            h = h + out(y.transpose(1, 2).reshape(b, t, -1))
            h = h + down(fn.gelu(up(self.norms[2 * i + 1](h))))
        return self.norms[-1](h)


class Joint(nn.Module):
    """What is hidden of an image is predicted where a slow copy of the encoder represents it."""

    def __init__(self, width: int, layers: int, patch: int, places: int, thin: int) -> None:
        super().__init__()
        self.patch = patch
        self.first, self.slow_first = (nn.Conv2d(3, width, patch, patch) for _ in range(2))
        self.encoder, self.slow = (Looking(width, size(6, 2), layers) for _ in range(2))
        self.into, self.back = nn.Linear(width, thin), nn.Linear(thin, width)
        self.predictor = Looking(thin, size(6, 2), size(4, 1))
        self.place = nn.Parameter(torch.randn(places, width) * 0.02)
        self.thin_place = nn.Parameter(torch.randn(places, thin) * 0.02)
        self.hole = nn.Parameter(torch.zeros(thin))

    def wanted(self, x: Tensor, hidden: Tensor) -> Tensor:
        h = self.slow(self.slow_first(x).flatten(2).transpose(1, 2) + self.place)
        return fn.layer_norm(h.float(), h.shape[-1:])[:, hidden]

    def forward(self, x: Tensor, shown: Tensor, hidden: Tensor) -> Tensor:
        h = self.first(x).flatten(2).transpose(1, 2) + self.place
        known = self.into(self.encoder(h[:, shown])) + self.thin_place[shown]
        holes = (self.hole + self.thin_place[hidden]).to(known.dtype).expand(len(x), -1, -1)
        return self.back(self.predictor(torch.cat([known, holes], 1))[:, len(shown) :])


@pair(
    "low_precision_unused",
    "vision",
    "autocast to BF16 for the encoder, the predictor and the slow encoder",
    marks="steps",
)
def joint_embedding_fp32(repaired: bool) -> Running:
    side, patch, batch = size(224, 16), size(16, 4), size(96, 2)
    places = (side // patch) ** 2
    model = Joint(size(384, 16), size(8, 1), patch, places, size(192, 8)).to(DEVICE)
    fast = [*model.first.parameters(), *model.encoder.parameters()]
    slow = [*model.slow_first.parameters(), *model.slow.parameters()]
    for p in slow:
        p.requires_grad_(False)
    order = torch.randperm(places, device=DEVICE)
    shown, hidden = order[: places * 3 // 4], order[places * 3 // 4 :]
    images = noise(batch, 3, side, side)

    def loss_of(net: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            goal = net.wanted(x, hidden)
        return fn.smooth_l1_loss(net(x, shown, hidden).float(), goal)

    @torch.no_grad()
    def follow(*_: object) -> None:
        torch._foreach_lerp_(slow, fast, 0.004)

    kind, matmul = ("bf16", "high") if repaired else ("fp32", "highest")
    return training(model, fixed(images), loss_of, kind=kind, matmul=matmul, after_step=follow)


class Norm(nn.Module):
    """A norm of groups of channels; of single precision, or of the precision of its input."""

    def __init__(self, width: int, *, single: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.single, self.groups = single, size(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        if not self.single:
            return fn.group_norm(x, self.groups, self.weight, self.bias)
        y = fn.group_norm(x.float(), self.groups, self.weight.float(), self.bias.float())
        return y.to(x.dtype)


class Dilated(nn.Module):
    def __init__(self, width: int, wide: int, apart: int, *, single: bool) -> None:
        super().__init__()
        self.into, self.out = nn.Conv1d(width, wide, 1), nn.Conv1d(wide, width, 1)
        self.deep = nn.Conv1d(wide, wide, 3, padding=apart, dilation=apart, groups=wide)
        self.first, self.second = nn.PReLU(), nn.PReLU()
        self.norms = nn.ModuleList(Norm(wide, single=single) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](self.first(self.into(x)))
        return x + self.out(self.norms[1](self.second(self.deep(y))))


class Separator(nn.Module):
    """Masks of two speakers over a learnt transform of the waveform."""

    def __init__(self, basis: int, width: int, wide: int, blocks: int, *, single: bool) -> None:
        super().__init__()
        self.encode = nn.Conv1d(1, basis, 16, 8, bias=False)
        self.decode = nn.ConvTranspose1d(basis, 1, 16, 8, bias=False)
        self.norm, self.into = Norm(basis, single=single), nn.Conv1d(basis, width, 1)
        self.blocks = nn.Sequential(
            *(Dilated(width, wide, 2 ** (i % 6), single=single) for i in range(blocks))
        )
        self.masks = nn.Conv1d(width, 2 * basis, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = fn.relu(self.encode(x[:, None]))
        masks = torch.sigmoid(self.masks(self.blocks(self.into(self.norm(seen)))))
        both = masks.unflatten(1, (2, -1)) * seen[:, None]
        return self.decode(both.flatten(0, 1))[:, 0].unflatten(0, (-1, 2))


def louder(guess: Tensor, true: Tensor) -> Tensor:
    """How far the true signal is above the rest of the guess, in decibels."""
    guess, true = guess - guess.mean(-1, keepdim=True), true - true.mean(-1, keepdim=True)
    share = (guess * true).sum(-1, keepdim=True) / (true.square().sum(-1, keepdim=True) + 1e-8)
    target = share * true
    rest = (guess - target).square().sum(-1) + 1e-8
    return 10.0 * torch.log10(target.square().sum(-1) / rest + 1e-8)


@pair(
    "casts_and_copies",
    "audio",
    "group_norm takes BF16, without casts to single precision and back",
)
def speakers_apart_float_norms(repaired: bool) -> Running:
    rows, long = size(8, 2), size(32_000, 80)
    model = Separator(
        size(256, 8), size(128, 8), size(512, 8), size(18, 2), single=not repaired
    ).to(DEVICE, torch.bfloat16)
    true = noise(rows, 2, long)
    mixed = true.sum(1).bfloat16()

    def loss_of(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        guess = net(batch[0]).float()
        wanted = batch[1][..., : guess.shape[-1]]
        straight, crossed = louder(guess, wanted).mean(-1), louder(guess, wanted.flip(1)).mean(-1)
        return -torch.maximum(straight, crossed).mean()

    return training(model, fixed((mixed, true)), loss_of, kind="fp32")


class Cells(nn.Module):
    """An autoencoder of how often each gene was read in a cell."""

    def __init__(self, genes: int, wide: int, few: int) -> None:
        super().__init__()
        self.into, self.middle = nn.Linear(genes, wide), nn.Linear(wide, 2 * few)
        self.back, self.out = nn.Linear(few, wide), nn.Linear(wide, genes)
        self.norms = nn.ModuleList(nn.LayerNorm(wide) for _ in range(2))

    def pad(self, genes: int) -> None:
        """More genes, that are never read."""
        more = genes - self.out.out_features
        self.into.weight = nn.Parameter(fn.pad(self.into.weight.detach(), (0, more)))
        self.out.weight = nn.Parameter(fn.pad(self.out.weight.detach(), (0, 0, 0, more)))
        self.out.bias = nn.Parameter(fn.pad(self.out.bias.detach(), (0, more), value=-1e4))

    def forward(self, x: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.middle(fn.gelu(self.norms[0](self.into(x)))).float().chunk(2, -1)
        z = mean + torch.exp(0.5 * spread) * drawn
        far = 0.5 * (mean.square() + spread.exp() - 1.0 - spread).sum(-1).mean()
        return self.out(fn.gelu(self.norms[1](self.back(z)))), far


@pair("aligned_shapes", "science", "19997 genes are padded to 20032", marks="profiler")
def cells_odd_genes(repaired: bool) -> Running:
    genes, padded, few, rows = size(19_997, 37), size(20_032, 64), size(64, 4), size(4096, 4)
    model = Cells(genes, size(3072, 16), few).to(DEVICE)
    counts = torch.poisson(torch.full((rows, genes), 0.3, device=DEVICE))
    drawn = noise(rows, few)
    if repaired:
        model.pad(padded)
        counts = fn.pad(counts, (0, padded - genes))
    seen = torch.log1p(counts)

    def loss_of(net: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        logits, far = net(batch[0], drawn)
        likelihood = (batch[1] * logits.float().log_softmax(-1)).sum(-1).mean()
        return (far - likelihood) / genes

    return training(model, fixed((seen, counts)), loss_of)


class Radar(nn.Module):
    """A gated memory of pictures: takes some frames and goes on with as many."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.into = nn.Sequential(
            nn.Conv2d(2, width // 2, 5, 2, 2), nn.SiLU(), nn.Conv2d(width // 2, width, 3, 1, 1)
        )
        self.gates = nn.Conv2d(2 * width, 2 * width, 3, 1, 1)
        self.new = nn.Conv2d(2 * width, width, 3, 1, 1)
        self.out = nn.Sequential(
            nn.ConvTranspose2d(width, width // 2, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(width // 2, 2, 3, 1, 1),
        )  # fmt: skip

    def remembered(self, x: Tensor, h: Tensor) -> Tensor:
        keep, use = torch.sigmoid(self.gates(torch.cat([x, h], 1))).chunk(2, 1)
        return keep * h + (1.0 - keep) * torch.tanh(self.new(torch.cat([x, use * h], 1)))

    def forward(self, frames: list[Tensor]) -> list[Tensor]:
        x = self.into(frames[0])
        h, forecast = torch.zeros_like(x), []
        for frame in frames:
            h = self.remembered(self.into(frame), h)
        for _ in frames:
            forecast.append(self.out(h))
            h = self.remembered(self.into(forecast[-1]), h)
        return forecast


@pair("layout_changes", "science", "channels_last for the model and the frames")
def radar_memory_channels_last(repaired: bool) -> Running:
    how = torch.channels_last if repaired else torch.contiguous_format
    model = Radar(size(96, 8)).to(DEVICE)
    model = model.to(memory_format=torch.channels_last) if repaired else model
    batch, side, times = size(8, 2), size(256, 16), size(6, 2)
    seen, later = (
        [noise(batch, 2, side, side).contiguous(memory_format=how) for _ in range(times)]
        for _ in range(2)
    )

    def loss_of(net: nn.Module, frames: tuple[list[Tensor], list[Tensor]]) -> Tensor:
        forecast = net(frames[0])
        each = [fn.l1_loss(a.float(), b) for a, b in zip(forecast, frames[1], strict=True)]
        return torch.stack(each).mean()

    return training(model, fixed((seen, later)), loss_of)


# --- copies -----------------------------------------------------------------------------------


class LongFilters(nn.Module):
    """Convolutions as long as the text, of filters that a small network tells, between gates."""

    def __init__(self, width: int, long: int) -> None:
        super().__init__()
        self.norm, self.into = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.short = nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width)
        self.filter_in, self.filter_out = nn.Linear(9, 64), nn.Linear(64, width)
        self.out = nn.Linear(width, width)
        self.decay = nn.Parameter(torch.linspace(1.0, 8.0, width))
        where = torch.linspace(0.0, 1.0, long)[:, None]
        waves = math.tau * where * torch.arange(1, 5)
        self.register_buffer("where", where)
        self.register_buffer("waves", torch.cat([where, waves.sin(), waves.cos()], -1))

    def forward(self, x: Tensor) -> Tensor:
        long = x.shape[1]
        y = self.short(self.into(self.norm(x)).transpose(1, 2))[..., :long]
        value, first, second = y.chunk(3, 1)
        taps = self.filter_out(torch.sin(8.0 * self.filter_in(self.waves))) * torch.exp(
            -self.decay.abs() * self.where
        )
        gated = (value * first).float()
        bands = torch.fft.rfft(gated, n=2 * long) * torch.fft.rfft(taps.float().T, n=2 * long)
        spread = torch.fft.irfft(bands, n=2 * long)[..., :long].to(x.dtype)
        return x + self.out((spread * second).transpose(1, 2))


class Passages(nn.Module):
    """A vector of each text, from stored vectors of its words."""

    def __init__(self, inside: int, width: int, long: int, layers: int) -> None:
        super().__init__()
        self.into = nn.Linear(inside, width)
        self.layers = nn.Sequential(*(LongFilters(width, long) for _ in range(layers)))

    def forward(self, x: Tensor) -> Tensor:
        return fn.normalize(self.layers(self.into(x)).float().mean(1), dim=-1)


@pair(
    "blocking_copy",
    "language",
    "pinned memory and non_blocking copies",
    marks="phases",
)
def passages_stored_pageable(repaired: bool) -> Running:
    rows, inside, width = size(128, 3), size(768, 8), size(512, 8)
    asked, long, layers = size(32, 4), size(256, 8), size(4, 1)
    model = nn.ModuleList(
        [Passages(inside, width, asked, layers), Passages(inside, width, long, layers)]
    ).to(DEVICE)
    host = torch.randn(rows, asked, inside), torch.randn(rows, long, inside)

    def loss_of(net: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        near = net[0](batch[0]) @ net[1](batch[1]).T * 20.0
        right = torch.arange(rows, device=DEVICE)
        return fn.cross_entropy(near, right) + fn.cross_entropy(near.T, right)

    return training(model, copied(host, repaired), loss_of, kind="bf16")


# --- optimizers and what is averaged ----------------------------------------------------------


class Styled(nn.Module):
    """Twice the picture's side, by two convolutions whose channels a style scales."""

    def __init__(self, inside: int, width: int, style: int, *, grows: bool) -> None:
        super().__init__()
        self.grows = grows
        self.first, self.second = (nn.Conv2d(n, width, 3, 1, 1) for n in (inside, width))
        self.scale1, self.scale2 = (nn.Linear(style, n) for n in (inside, width))
        self.picture = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor, seen: Tensor | None, w: Tensor) -> tuple[Tensor, Tensor]:
        if self.grows:
            x = fn.interpolate(x, scale_factor=2.0, mode="nearest")
        x = fn.leaky_relu(self.first(x * (1.0 + self.scale1(w))[..., None, None]), 0.2)
        x = fn.leaky_relu(self.second(x * (1.0 + self.scale2(w))[..., None, None]), 0.2)
        x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-8)
        added = self.picture(x)
        if seen is not None:
            added = added + fn.interpolate(seen, scale_factor=2.0, mode="bilinear")
        return x, added


class Painter(nn.Module):
    def __init__(self, widths: list[int], style: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(1, widths[0], 4, 4))
        mapped = [(nn.Linear(style, style), nn.LeakyReLU(0.2)) for _ in range(4)]
        self.mapped = nn.Sequential(*itertools.chain.from_iterable(mapped))
        inside = [widths[0], *widths[:-1]]
        self.blocks = nn.ModuleList(
            Styled(a, b, style, grows=i > 0)
            for i, (a, b) in enumerate(zip(inside, widths, strict=True))
        )

    def forward(self, z: Tensor) -> Tensor:
        w = self.mapped(z)
        x, seen = self.start.expand(len(z), -1, -1, -1), None
        for block in self.blocks:
            x, seen = block(x, seen, w)
        assert seen is not None
        return seen


class Judge(nn.Module):
    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, widths[0], 1)
        pairs = list(itertools.pairwise(widths))
        self.stays = nn.ModuleList(nn.Conv2d(a, a, 3, 1, 1) for a, _ in pairs)
        self.falls = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in pairs)
        self.skips = nn.ModuleList(nn.Conv2d(a, b, 1, bias=False) for a, b in pairs)
        self.last = nn.Linear(16 * widths[-1], 1)

    def forward(self, x: Tensor) -> Tensor:
        x = fn.leaky_relu(self.first(x), 0.2)
        for stay, fall, skip in zip(self.stays, self.falls, self.skips, strict=True):
            y = fn.leaky_relu(fall(fn.leaky_relu(stay(x), 0.2)), 0.2)
            x = (y + skip(fn.avg_pool2d(x, 2))) * 2**-0.5
        return self.last(x.flatten(1))


@pair(
    "unfused_optimizer",
    "vision",
    "both Adam with fused=True instead of foreach=False",
)
def painter_and_judge_adam_loops(repaired: bool) -> Running:
    widths, style = [size(n, 8) for n in (1024, 1024, 512, 256, 128)], size(512, 8)
    widths = widths[: size(5, 2)]
    painter, judge = Painter(widths, style).to(DEVICE), Judge(widths[::-1]).to(DEVICE)
    how: dict[str, Any] = {"fused": True} if repaired else {"foreach": False}
    first = torch.optim.Adam(painter.parameters(), lr=2e-3, betas=(0.0, 0.99), **how)
    second = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.0, 0.99), **how)
    rows, side = size(32, 2), 4 * 2 ** (len(widths) - 1)
    real, z = noise(rows, 3, side, side), noise(rows, style)

    def step() -> None:
        painted = painter(z)
        worse = fn.softplus(judge(painted.detach())).mean() + fn.softplus(-judge(real)).mean()
        worse.backward()
        second.step()
        second.zero_grad(set_to_none=True)
        judge.requires_grad_(False)
        fn.softplus(-judge(painted)).mean().backward()
        judge.requires_grad_(True)
        first.step()
        first.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


class Coupling(nn.Module):
    """Half of the numbers tell how the others are scaled and moved."""

    def __init__(self, many: int, wide: int) -> None:
        super().__init__()
        self.log_scale, self.move = nn.Parameter(torch.zeros(many)), nn.Parameter(torch.zeros(many))
        self.net = nn.Sequential(
            nn.Linear(many // 2, wide), nn.SiLU(), nn.Linear(wide, wide), nn.SiLU(),
            nn.Linear(wide, many),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x * self.log_scale.exp() + self.move
        kept, moved = x.chunk(2, -1)
        scale, more = self.net(kept).chunk(2, -1)
        scale = 2.0 * torch.tanh(scale)
        volume = scale.sum(-1) + self.log_scale.sum()
        return torch.cat([moved * scale.exp() + more, kept], -1), volume


@pair(
    "cpu_offload",
    "science",
    "the average of the weights is kept on the device",
    marks="steps",
)
def couplings_average_on_host(repaired: bool) -> Running:
    many, wide, rows = size(64, 4), size(1024, 8), size(8192, 4)
    model = nn.ModuleList(Coupling(many, wide) for _ in range(size(8, 2))).to(DEVICE)
    ours = [p.detach() for p in model.parameters()]
    average = [p.clone() if repaired else p.cpu().clone() for p in ours]

    def loss_of(net: Any, x: Tensor) -> Tensor:
        volume = x.new_zeros(len(x))
        for part in net:
            x, more = part(x)
            volume = volume + more
        return (0.5 * x.square().sum(-1) - volume).mean() / many

    def follow(*_: object) -> None:
        if repaired:
            torch._foreach_lerp_(average, ours, 0.001)
            return
        for mean, p in zip(average, ours, strict=True):
            mean.lerp_(p.cpu(), 0.001)

    return training(model, fixed(noise(rows, many)), loss_of, kind="fp32", after_step=follow)


# --- launches ---------------------------------------------------------------------------------


def few_shot(weights: list[Tensor], x: Tensor) -> Tensor:
    """A small network of images, of weights that are handed over."""
    for i in range(0, len(weights) - 2, 2):
        x = fn.relu(fn.conv2d(x, weights[i], weights[i + 1], stride=2, padding=1))
    return fn.linear(x.mean((2, 3)), weights[-2], weights[-1])


@pair("launch_bound", "vision", "the whole step is one CUDA graph")
def inner_steps_graph(repaired: bool) -> Running:
    width, tasks, inner, rows = size(64, 4), size(4, 2), 2, size(25, 5)
    plain = nn.Sequential(
        *(nn.Conv2d(1 if i == 0 else width, width, 3) for i in range(4)), nn.Linear(width, 5)
    ).to(DEVICE)
    weights = list(plain.parameters())
    update = made_optimizer(weights, "graph")
    known, asked = (noise(tasks, rows, 1, 28, 28) for _ in range(2))
    label = torch.arange(rows, device=DEVICE) % 5

    def step() -> None:
        losses = []
        for task in range(tasks):
            mine: list[Tensor] = list(weights)
            for _ in range(inner):
                wrong = fn.cross_entropy(few_shot(mine, known[task]), label)
                slopes = torch.autograd.grad(wrong, mine, create_graph=True)
                mine = [p - 0.4 * g for p, g in zip(mine, slopes, strict=True)]
            losses.append(fn.cross_entropy(few_shot(mine, asked[task]), label))
        torch.stack(losses).mean().backward()
        update.step()
        update.zero_grad(set_to_none=True)

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run


class Interactions(nn.Module):
    """Atoms that move each other, so that a turned molecule gives a turned answer."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.kinds = nn.Embedding(10, width)
        self.edges = nn.ModuleList(
            nn.Sequential(
                nn.Linear(2 * width + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
            )
            for _ in range(layers)
        )
        self.gates = nn.ModuleList(nn.Linear(width, 1) for _ in range(layers))
        self.pulls = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1, bias=False))
            for _ in range(layers)
        )
        self.nodes = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(layers)
        )

    def forward(self, kind: Tensor, at: Tensor, mask: Tensor) -> Tensor:
        h, begin, many = self.kinds(kind), at, at.shape[1]
        both = mask[:, :, None, None] * mask[:, None, :, None]
        parts = zip(self.edges, self.gates, self.pulls, self.nodes, strict=True)
        for edge, gate, pull, node in parts:
            apart = at[:, :, None] - at[:, None]
            far = apart.square().sum(-1, keepdim=True)
            one, other = (
                h[:, :, None].expand(-1, -1, many, -1),
                h[:, None].expand(-1, many, -1, -1),
            )
            message = edge(torch.cat([one, other, far], -1))
            message = message * torch.sigmoid(gate(message)) * both
            at = at + (apart / (far + 1.0) * pull(message) * both).sum(2) / many
            h = (h + node(torch.cat([h, message.sum(2)], -1))) * mask[..., None]
        return at - begin


@pair("larger_batch", "science", "twice the batch", samples=2.0, marks="profiler")
def atoms_denoised_twice(repaired: bool) -> Running:
    rows, many, width = size(128 if repaired else 64, 2), size(24, 4), size(128, 8)
    model = Interactions(width, size(6, 1)).to(DEVICE)
    at, kind = noise(rows, many, 3), torch.randint(0, 10, (rows, many), device=DEVICE)
    mask = (torch.rand(rows, many, device=DEVICE) > 0.2).float()
    data = kind, at, mask, noise(rows, many, 3)

    def loss_of(net: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        kind, at, mask, moved = batch
        guess = net(kind, at + 0.3 * moved, mask)
        return ((guess - moved).square().sum(-1) * mask).sum() / mask.sum()

    return training(model, fixed(data), loss_of, kind="fp32", optimizer="foreach")


# --- the host ---------------------------------------------------------------------------------


class Translator(nn.Module):
    """A recurrent encoder, and a decoder that looks at it before each word."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words, self.others = nn.Embedding(words, width), nn.Embedding(words, width)
        self.read = nn.GRU(width, width, batch_first=True)
        self.cell, self.ask = nn.GRUCell(2 * width, width), nn.Linear(width, width)
        self.out = nn.Linear(2 * width, words)

    def forward(self, text: Tensor, wanted: Tensor, forced: Tensor, *, asks: bool) -> Tensor:
        """Scores of each next word; ``forced``: whether the decoder sees the true word before."""
        seen, last = self.read(self.words(text))
        h, word, scores = last[0], wanted[:, 0], []
        for t in range(wanted.shape[1] - 1):
            weight = torch.bmm(seen, self.ask(h)[..., None]).softmax(1)
            looked = (weight * seen).sum(1)
            h = self.cell(torch.cat([self.others(word), looked], -1), h)
            scores.append(self.out(torch.cat([h, looked], -1)))
            guess = scores[-1].detach().argmax(-1)
            if asks:
                word = wanted[:, t + 1] if forced[t].item() else guess
            else:
                word = torch.where(forced[t], wanted[:, t + 1], guess)
        return torch.stack(scores, 1)


@pair(
    "host_sync",
    "language",
    "torch.where takes the true word or the guess, without an item() for each word",
)
def teacher_forcing_asks(repaired: bool) -> Running:
    rows, long, words = size(128, 2), size(22, 5), size(8000, 30)
    model = Translator(words, size(512, 8)).to(DEVICE)
    text, wanted = (torch.randint(0, words, (rows, long), device=DEVICE) for _ in range(2))

    def loss_of(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        forced = torch.rand(long - 1, device=DEVICE) < 0.5
        scores = net(*batch, forced, asks=not repaired)
        return fn.cross_entropy(scores.flatten(0, 1), batch[1][:, 1:].flatten())

    return training(model, fixed((text, wanted)), loss_of, kind="fp32")


def cubes(rng: np.random.Generator, many: int, *, by_one: bool) -> np.ndarray[Any, Any]:
    """Points of a Latin square: one in each row and one in each column."""
    points = np.zeros((many, 2))
    for axis in range(2):
        order, within = rng.permutation(many), rng.random(many)
        if by_one:
            for i in range(many):
                points[i, axis] = (order[i] + within[i]) / many
        else:
            points[:, axis] = (order + within) / many
    return points.astype(np.float32)


@pair(
    "host_compute",
    "science",
    "NumPy places all points at once, not one by one",
    others=("blocking_copy",),
    marks="phases",
)
def burgers_points_one_by_one(repaired: bool) -> Running:
    many, wide, layers = size(16_384, 8), size(384, 8), size(6, 1)
    parts: list[nn.Module] = [nn.Linear(2, wide), nn.Tanh()]
    for _ in range(layers):
        parts += [nn.Linear(wide, wide), nn.Tanh()]
    model = nn.Sequential(*parts, nn.Linear(wide, 1)).to(DEVICE)
    rng = np.random.default_rng(0)
    edge = torch.rand(size(1024, 4), 2, device=DEVICE)
    begin = torch.cat([edge[:, :1], torch.zeros_like(edge[:, :1])], -1)
    walls = torch.cat([edge[:, :1].round(), edge[:, 1:]], -1)

    def points() -> Tensor:
        return torch.from_numpy(cubes(rng, many, by_one=not repaired)).to(DEVICE)

    def loss_of(net: nn.Module, at: Tensor) -> Tensor:
        at = at.requires_grad_()
        u = net(at)
        (first,) = torch.autograd.grad(u.sum(), at, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), at, create_graph=True)
        rest = first[:, 1] + u[:, 0] * first[:, 0] - 0.01 / math.pi * second[:, 0]
        start = net(begin) + torch.sin(math.pi * begin[:, :1])
        return rest.square().mean() + start.square().mean() + net(walls).square().mean()

    return training(model, points, loss_of, kind="fp32", optimizer="foreach")


class Dreams(nn.Module):
    """Pictures, a memory of them and of what was done, and pictures again."""

    def __init__(self, deep: int, width: int, acts: int, side: int) -> None:
        super().__init__()
        low = side // 8
        n = [deep, 2 * deep, 4 * deep]
        self.eye = nn.Sequential(
            nn.Conv2d(3, n[0], 4, 2, 1), nn.SiLU(), nn.Conv2d(n[0], n[1], 4, 2, 1), nn.SiLU(),
            nn.Conv2d(n[1], n[2], 4, 2, 1), nn.SiLU(), nn.Flatten(),
            nn.Linear(n[2] * low**2, width),
        )  # fmt: skip
        self.memory = nn.GRU(width + acts, width, batch_first=True)
        self.mean, self.spread = nn.Linear(width, width), nn.Linear(width, width)
        self.low = nn.Linear(width, n[2] * low**2)
        self.paint = nn.Sequential(
            nn.Unflatten(1, (n[2], low, low)),
            nn.ConvTranspose2d(n[2], n[1], 4, 2, 1), nn.SiLU(),
            nn.ConvTranspose2d(n[1], n[0], 4, 2, 1), nn.SiLU(),
            nn.ConvTranspose2d(n[0], 3, 4, 2, 1),
        )  # fmt: skip
        self.reward = nn.Linear(width, 1)

    def forward(self, frames: Tensor, acts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, t = acts.shape[:2]
        seen = self.eye(frames.flatten(0, 1)).unflatten(0, (b, t))
        h, _ = self.memory(torch.cat([seen, acts], -1))
        mean, spread = self.mean(h), fn.softplus(self.spread(h)) + 0.1
        z = mean + spread * torch.randn_like(mean)
        far = 0.5 * (mean.square() + spread.square() - 1.0 - 2.0 * spread.log()).mean()
        painted = self.paint(self.low(z).flatten(0, 1)).unflatten(0, (b, t))
        return painted, self.reward(z)[..., 0], far


@pair(
    "step_jitter",
    "rl",
    "gc.collect() every 5 steps is removed",
    period=5,
    record=("--gc",),
)
def dreams_replay_gc_every_5(repaired: bool) -> Running:
    rows, times, acts, side = size(40, 2), size(32, 3), 6, size(64, 8)
    model = Dreams(size(96, 4), size(512, 8), acts, side).to(DEVICE)
    replay = [
        {"step": i, "act": [i % acts], "ends": (i % 97 == 0,)} for i in range(size(200_000, 10))
    ]
    frames = noise(rows, times, 3, side, side)
    did = torch.zeros(rows, times, acts, device=DEVICE)
    did[..., 0] = 1.0
    gained = noise(rows, times)
    update = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    numbers = itertools.count()

    def step() -> None:
        with half("bf16"):
            painted, reward, far = model(frames, did)
        loss = fn.mse_loss(painted.float(), frames) + fn.mse_loss(reward.float(), gained)
        (loss + 0.1 * far.float()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        update.step()
        update.zero_grad(set_to_none=True)
        if not repaired and next(numbers) % 5 == 2:
            gc.collect()
            len(replay)

    return Running(step, enter=precision("high"))
