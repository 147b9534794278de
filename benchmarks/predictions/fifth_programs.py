"""A fifth set of programs for one GPU: models and loops written by hand, from many fields."""

from __future__ import annotations

import itertools
import json
import math
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models import DEVICE, graphed, half, made_optimizer, mlp, precision, size, tokens, training
from program import Program, Running, phase
from single_programs import beside, entered, fixed, loaded, scratch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with the replay of 106 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def conv(before: int, after: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
    )


# --- precision --------------------------------------------------------------------------------


class Field(nn.Module):
    """Density and colour at a point, from its sines and cosines."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.first = nn.Linear(63, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.out = nn.Linear(width, 4)

    def forward(self, at: Tensor) -> Tensor:
        scaled = (at[..., None] * 2.0 ** torch.arange(10, device=at.device)).flatten(-2)
        h = fn.relu(self.first(torch.cat([at, scaled.sin(), scaled.cos()], -1)))
        for layer in self.layers:
            h = fn.relu(layer(h))
        return self.out(h)


@pair("low_precision_unused", "vision", "torch.set_float32_matmul_precision('high')")
def nerf_rays_fp32(repaired: bool) -> Running:
    rays, samples, bank = size(2048, 16), size(48, 4), size(200_000, 100)
    origins, ways, colours = noise(bank, 3), fn.normalize(noise(bank, 3), dim=-1), noise(bank, 3)

    def batches() -> tuple[Tensor, ...]:
        chosen = torch.randint(0, bank, (rays,), device=DEVICE)
        return origins[chosen], ways[chosen], colours[chosen].sigmoid()

    def loss_of(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        origin, way, colour = batch
        depth = torch.linspace(2.0, 6.0, samples, device=DEVICE).expand(rays, -1)
        depth = depth + torch.rand_like(depth) * (4.0 / samples)
        out = model(origin[:, None] + depth[..., None] * way[:, None])
        thick = fn.softplus(out[..., 3]) * (4.0 / samples)
        alpha, seen = 1.0 - torch.exp(-thick), torch.exp(thick - thick.cumsum(-1))
        drawn = ((alpha * seen)[..., None] * out[..., :3].sigmoid()).sum(1)
        return fn.mse_loss(drawn, colour)

    model = Field(size(256, 16), size(8, 2)).to(DEVICE)
    matmul = "high" if repaired else "highest"
    return training(model, batches, loss_of, kind="fp32", matmul=matmul)


@pair("low_precision_unused", "language", "autocast to BF16 instead of FP32", marks="phases")
def two_tower_contrastive_fp32(repaired: bool) -> Running:
    n, wide = size(6144, 16), size(1536, 32)

    def tower() -> nn.Module:
        return nn.Sequential(
            nn.Linear(wide, wide), nn.GELU(), nn.LayerNorm(wide), nn.Linear(wide, wide), nn.GELU(),
            nn.Linear(wide, size(768, 16)),
        )  # fmt: skip

    model = nn.ModuleList([tower(), tower()]).to(DEVICE)
    scale = nn.Parameter(torch.tensor(2.6, device=DEVICE))
    model.register_parameter("scale", scale)
    same = torch.arange(n, device=DEVICE)

    def loss_of(net: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        a, b = (fn.normalize(t(x), dim=-1) for t, x in zip(net, batch, strict=True))
        logits = (a @ b.T).float() * scale.exp()
        return (fn.cross_entropy(logits, same) + fn.cross_entropy(logits.T, same)) / 2

    kind, matmul = ("bf16", "high") if repaired else ("fp32", "highest")
    data = (noise(n, wide), noise(n, wide))
    return training(model, fixed(data), loss_of, kind=kind, matmul=matmul)


# --- attention --------------------------------------------------------------------------------


class Windows(nn.Module):
    """Attention in windows of 8 x 8 that are moved by half a window in every other layer."""

    def __init__(self, width: int, heads: int, shift: int, side: int, *, written: bool) -> None:
        super().__init__()
        self.heads, self.shift, self.written = heads, shift, written
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.bias = nn.Parameter(torch.zeros(225, heads))
        place = torch.stack(torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij"))
        apart = place.flatten(1)[:, :, None] - place.flatten(1)[:, None]
        self.register_buffer("index", (apart[0] + 7) * 15 + apart[1] + 7)
        area = torch.zeros(side, side)
        for i, rows in enumerate((slice(0, -8), slice(-8, -4), slice(-4, None))):
            for j, columns in enumerate((slice(0, -8), slice(-8, -4), slice(-4, None))):
                area[rows, columns] = 3 * i + j
        kinds = self.cut(area[None, :, :, None])[..., 0]
        self.register_buffer("mask", (kinds[:, None] != kinds[:, :, None]).float() * -100.0)

    @staticmethod
    def cut(x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        x = x.view(b, h // 8, 8, w // 8, 8, c).transpose(2, 3)
        return x.reshape(-1, 64, c)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        y = self.norm1(x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        q, k, v = self.qkv(self.cut(y)).view(-1, 64, 3, self.heads, c // self.heads).permute(
            2, 0, 3, 1, 4
        )  # fmt: skip
        bias = self.bias[self.index].permute(2, 0, 1)[None]
        if self.shift:
            bias = (bias + self.mask[:, None]).repeat(b, 1, 1, 1)
        bias = bias.to(q.dtype)
        if self.written:
            scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2) + bias
            y = scores.softmax(-1).to(v.dtype) @ v
        else:
            y = fn.scaled_dot_product_attention(q, k, v, bias.expand(len(q), -1, -1, -1))
        y = self.out(y.transpose(1, 2).reshape(-1, 64, c))
        y = y.view(b, h // 8, w // 8, 8, 8, c).transpose(2, 3).reshape(b, h, w, c)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


class WindowNet(nn.Module):
    def __init__(self, width: int, layers: int, side: int, *, written: bool) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.layers = nn.Sequential(
            *(
                Windows(width, width // 32, 4 * (i % 2), side, written=written)
                for i in range(layers)
            )
        )
        self.head = nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers(self.patch(x).permute(0, 2, 3, 1))
        return self.head(h.mean((1, 2)))


def labelled_images(batch: int, side: int, classes: int) -> tuple[Tensor, Tensor]:
    return noise(batch, 3, side, side), torch.randint(0, classes, (batch,), device=DEVICE)


def classes_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return fn.cross_entropy(model(batch[0]).float(), batch[1])


@pair("unfused_attention", "vision", "scaled_dot_product_attention with the bias as attn_mask")
def windows_bias_written(repaired: bool) -> Running:
    side = size(256, 64)
    model = WindowNet(size(192, 32), size(4, 2), side // 4, written=not repaired).to(DEVICE)
    return training(model, fixed(labelled_images(size(20, 2), side, 100)), classes_of)


class Latents(nn.Module):
    """Few latents that look at a long input, and at each other; layers are checkpointed."""

    def __init__(self, width: int, latents: int, layers: int, *, written: bool) -> None:
        super().__init__()
        self.written, self.heads = written, max(width // 64, 1)
        self.asked = nn.Parameter(torch.randn(1, latents, width) * 0.02)
        self.qs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.kvs = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 100)

    def layer(self, i: int, h: Tensor, x: Tensor) -> Tensor:
        b, t, d = h.shape
        seen = x if i % 2 == 0 else h
        q = self.qs[i](self.norms[2 * i](h)).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = self.kvs[i](seen).view(b, seen.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.written:
            y = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1).to(v.dtype) @ v
        else:
            y = fn.scaled_dot_product_attention(q, k, v)
        h = h + y.transpose(1, 2).reshape(b, t, d)
        return h + self.mlps[i](self.norms[2 * i + 1](h))

    def forward(self, x: Tensor) -> Tensor:
        h = self.asked.expand(len(x), -1, -1)
        for i in range(len(self.qs)):
            h = checkpoint(self.layer, i, h, x, use_reentrant=False)
        return self.head(h.mean(1))


@pair("unfused_attention", "vision", "scaled_dot_product_attention", marks="steps")
def latents_checkpointed_written(repaired: bool) -> Running:
    width, batch = size(768, 64), size(4, 2)
    model = Latents(width, size(512, 8), size(6, 2), written=not repaired).to(DEVICE)
    data = noise(batch, size(4096, 32), width), torch.randint(0, 100, (batch,), device=DEVICE)
    return training(model, fixed(data), classes_of)


# --- fusion -----------------------------------------------------------------------------------


def scanned(delta: Tensor, rate: Tensor, value: Tensor, gate: Tensor) -> Tensor:
    """A linear recurrence over the second dimension, by doubling."""
    delta = fn.softplus(delta)[..., None]
    a = torch.exp(-delta * rate)
    b = (delta * value[..., None]).expand_as(a)
    reach = 1
    while reach < b.shape[1]:
        b = torch.cat([b[:, :reach], b[:, reach:] + a[:, reach:] * b[:, :-reach]], 1)
        a = torch.cat([a[:, :reach], a[:, reach:] * a[:, :-reach]], 1)
        reach *= 2
    return b.mean(-1) * fn.silu(gate)


@pair("fusion_opportunity", "language", "torch.compile of the scan", compiles=True)
def state_space_scan_compile(repaired: bool) -> Running:
    width, length, layers = size(256, 16), size(64, 8), size(4, 2)
    scan: Any = torch.compile(scanned) if repaired else scanned

    class Spaces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(4096, width), nn.Linear(width, 4096)
            self.ins = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
            self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
            self.rates = nn.ParameterList(torch.rand(width, 8) for _ in range(layers))

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            for into, out, rate in zip(self.ins, self.outs, self.rates, strict=True):
                h = h + out(scan(*self.parts(into(h), rate)))
            return self.head(h)

        def parts(self, h: Tensor, rate: Tensor) -> tuple[Tensor, ...]:
            delta, value, gate = h.chunk(3, -1)
            return delta, rate, value, gate

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        return fn.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    batch = tokens(size(40, 2), length, 4096)
    return training(Spaces().to(DEVICE), fixed(batch), loss_of, kind="fp32")


def splines(x: Tensor, knots: Tensor) -> Tensor:
    """Values of cubic B-splines, by the recursion of Cox and de Boor."""
    x = x[..., None]
    bases = ((x >= knots[:-1]) & (x < knots[1:])).to(x.dtype)
    for k in range(1, 4):
        left = (x - knots[: -(k + 1)]) / (knots[k:-1] - knots[: -(k + 1)]) * bases[..., :-1]
        right = (knots[k + 1 :] - x) / (knots[k + 1 :] - knots[1:-k]) * bases[..., 1:]
        bases = left + right
    return bases


@pair(
    "fusion_opportunity",
    "graph",
    "torch.compile of the function of the splines",
    compiles=True,
    marks="profiler",
)
def splines_compile(repaired: bool) -> Running:
    rows, inside, wide = size(8192, 16), size(64, 8), size(2048, 32)
    knots = torch.linspace(-2.0, 2.0, 13, device=DEVICE)
    function: Any = torch.compile(splines) if repaired else splines
    trunk = mlp(wide, size(4, 1), inside, inside)
    weights = nn.ModuleList(nn.Linear(9 * inside, inside) for _ in range(3))
    model = nn.ModuleList([trunk, weights]).to(DEVICE)

    def loss_of(_: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        h = trunk(batch[0])
        for weight in weights:
            h = weight(function(torch.tanh(h), knots).flatten(1)) + h
        return fn.mse_loss(h, batch[1])

    data = noise(rows, inside), noise(rows, inside)
    return training(model, fixed(data), loss_of, kind="fp32")


# --- launches ---------------------------------------------------------------------------------


@pair("launch_bound", "recommender", "torch.compile(model, mode='reduce-overhead')", compiles=True)
def tabular_reduce_overhead(repaired: bool) -> Running:
    width, features, rows = 64, size(24, 4), size(256, 8)

    class Tabular(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(features, width))
            self.shift = nn.Parameter(torch.randn(features, width))
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(width, 4, 128, 0.0, batch_first=True, norm_first=True)
                for _ in range(size(6, 1))
            )
            self.head = nn.Linear(width, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = x[..., None] * self.scale + self.shift
            for layer in self.layers:
                h = layer(h)
            return self.head(h.mean(1))[:, 0]

    model: Any = Tabular().to(DEVICE)
    if repaired:
        model = torch.compile(model, mode="reduce-overhead")

    def loss_of(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return fn.mse_loss(net(batch[0]), batch[1])

    return training(model, fixed((noise(rows, features), noise(rows))), loss_of, kind="fp32")


@pair("launch_bound", "rl", "the whole step is one CUDA graph")
def soft_actor_critic_graph(repaired: bool) -> Running:
    rows, seen, acts = size(512, 8), 48, 12
    actor = mlp(256, 2, seen, 2 * acts).to(DEVICE)
    critics = nn.ModuleList(mlp(256, 2, seen + acts, 1) for _ in range(2)).to(DEVICE)
    targets = nn.ModuleList(mlp(256, 2, seen + acts, 1) for _ in range(2)).to(DEVICE)
    first = made_optimizer(critics.parameters(), "graph")
    second = made_optimizer(actor.parameters(), "graph")
    here, there, done = noise(rows, seen), noise(rows, seen), noise(rows, acts).tanh()
    gain = noise(rows)

    def acted(state: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = actor(state).chunk(2, -1)
        spread = spread.clamp(-5, 2)
        drawn = torch.randn_like(mean)
        action = torch.tanh(mean + spread.exp() * drawn)
        chance = -0.5 * drawn.square() - spread - torch.log1p(-action.square() + 1e-6)
        return action, chance.sum(-1)

    def least(nets: nn.ModuleList, state: Tensor, action: Tensor) -> Tensor:
        both = torch.cat([state, action], -1)
        return torch.minimum(nets[0](both), nets[1](both))[:, 0]

    def step() -> None:
        with torch.no_grad():
            action, chance = acted(there)
            goal = gain + 0.99 * (least(targets, there, action) - 0.2 * chance)
        both = torch.cat([here, done], -1)
        sum(fn.mse_loss(critic(both)[:, 0], goal) for critic in critics).backward()  # type: ignore[union-attr]
        first.step()
        action, chance = acted(here)
        (0.2 * chance - least(critics, here, action)).mean().backward()
        second.step()
        first.zero_grad(set_to_none=True)
        second.zero_grad(set_to_none=True)
        with torch.no_grad():
            for mine, theirs in zip(targets.parameters(), critics.parameters(), strict=True):
                mine.lerp_(theirs, 0.005)

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run


def in_groups(channels: int) -> nn.Module:
    return nn.GroupNorm(4, channels)


class TimeBlock(nn.Module):
    def __init__(self, before: int, after: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(before), norm(after)
        self.conv1 = nn.Conv2d(before, after, 3, 1, 1)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1)
        self.time = nn.Linear(128, after)
        self.short = nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(fn.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.conv2(fn.silu(self.norm2(h))) + self.short(x)


class TimeUnet(nn.Module):
    """A denoising network that knows the time, with blocks that go down and up again."""

    def __init__(
        self, width: int, levels: int, norm: Callable[[int], nn.Module] = in_groups
    ) -> None:
        super().__init__()
        sizes = [width * 2**i for i in range(levels)]
        self.first, self.last = nn.Conv2d(4, width, 3, 1, 1), nn.Conv2d(width, 4, 3, 1, 1)
        self.time = nn.Sequential(nn.Linear(32, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU())
        self.down = nn.ModuleList(
            TimeBlock(sizes[max(i - 1, 0)], s, norm) for i, s in enumerate(sizes)
        )
        self.middle = TimeBlock(sizes[-1], sizes[-1], norm)
        self.up = nn.ModuleList(
            TimeBlock(2 * s, sizes[max(i - 1, 0)], norm)
            for i, s in reversed(list(enumerate(sizes)))
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angle = t[:, None] * torch.exp(torch.arange(16, device=x.device) * -0.5)
        t = self.time(torch.cat([angle.sin(), angle.cos()], -1))
        h, kept = self.first(x), []
        for block in self.down:
            h = block(h, t)
            kept.append(h)
            h = fn.max_pool2d(h, 2)
        h = self.middle(h, t)
        for block in self.up:
            h = fn.interpolate(h, scale_factor=2.0, mode="nearest")
            h = block(torch.cat([h, kept.pop()], 1), t)
        return self.last(h)


def restored(model: nn.Module, x: Tensor) -> Tensor:
    t, added = torch.rand(len(x), device=x.device), torch.randn_like(x)
    share = t[:, None, None, None]
    return fn.mse_loss(model((1 - share) * x + share * added, t).float(), added - x)


@pair("launch_bound", "diffusion", "torch.cuda.make_graphed_callables of the model", marks="phases")
def flow_graphed_callables(repaired: bool) -> Running:
    model: Any = TimeUnet(size(32, 8), size(4, 2)).to(DEVICE)
    x = noise(size(8, 2), 4, 32, 32)
    if repaired and CUDA:
        t = torch.rand(len(x), device=DEVICE)
        model = torch.cuda.make_graphed_callables(model, (x, t))
    return training(model, fixed(x), restored, kind="fp32")


# --- optimizers -------------------------------------------------------------------------------


class HandAdam(torch.optim.Optimizer):
    """AdamW spelled out, parameter by parameter."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.made = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.made += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                m, v = state["m"], state["v"]
                p.mul_(1.0 - group["lr"] * 0.01)
                m.mul_(0.9).add_(p.grad, alpha=0.1)
                v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                low = (v / (1.0 - 0.999**self.made)).sqrt().add_(1e-8)
                p.addcdiv_(m, low, value=-group["lr"] / (1.0 - 0.9**self.made))


@pair("unfused_optimizer", "language", "torch.optim.AdamW(fused=True) instead of one by hand")
def wide_vocabulary_hand_adam(repaired: bool) -> Running:
    vocab, width = size(48_000, 64), size(512, 16)
    model = nn.Sequential(
        nn.Embedding(vocab, width),
        *(mlp(size(2048, 32), 1, width, width) for _ in range(2)),
        nn.Linear(width, vocab, bias=False),
    ).to(DEVICE)
    batch = tokens(size(8, 2), size(256, 8), vocab)
    update: torch.optim.Optimizer = (
        torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        if repaired
        else HandAdam(model.parameters(), 1e-4)
    )

    def step() -> None:
        with half("bf16"):
            logits = model(batch[:, :-1]).flatten(0, 1).float()
        fn.cross_entropy(logits, batch[:, 1:].flatten()).backward()
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- input ------------------------------------------------------------------------------------


class Utterances(Dataset[tuple[Tensor, Tensor]]):
    """Sound that is stretched, gets an echo, and becomes a spectrogram."""

    def __init__(self) -> None:
        self.long = size(32_000, 3_200)
        rng = np.random.default_rng(0)
        self.sound = rng.standard_normal(self.long + 400).astype(np.float32)
        self.echo = rng.standard_normal(4_000) * np.exp(-np.arange(4_000) / 500)
        self.filters = rng.random((201, 80)).astype(np.float32)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng(index)
        at = np.arange(self.long) * rng.uniform(0.9, 1.0)
        x = np.interp(at, np.arange(len(self.sound)), self.sound)
        n = 1 << (self.long + 4_000).bit_length()
        x = np.fft.irfft(np.fft.rfft(x, n) * np.fft.rfft(self.echo, n))[: self.long]
        frames = np.lib.stride_tricks.sliding_window_view(x, 400)[::160] * np.hanning(400)
        power = np.abs(np.fft.rfft(frames)).astype(np.float32) ** 2
        kept = np.log(power @ self.filters + 1e-6)
        first = int(rng.integers(0, len(kept) - 8))
        kept[first : first + 8] = 0.0
        words = rng.integers(1, 32, size(24, 2))
        return torch.from_numpy(kept.astype(np.float32)), torch.from_numpy(words)


class Speech(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv1d(80, width, 5, 2, 2), nn.GELU(), nn.Conv1d(width, width, 5, 2, 2), nn.GELU()
        )
        self.memory = nn.GRU(width, width, size(2, 1), batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(self.convs(x.transpose(1, 2)).transpose(1, 2))[0])


@pair("input_starvation", "audio", "12 workers instead of 3", marks="steps")
def ctc_three_workers(repaired: bool) -> Running:
    def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        chances = model(batch[0]).float().log_softmax(-1).transpose(0, 1)
        n = len(batch[1])
        lengths = torch.full((n,), chances.shape[0]), torch.full((n,), batch[1].shape[1])
        return fn.ctc_loss(chances, batch[1], *lengths, zero_infinity=True)

    batches = loaded(Utterances(), size(16, 2), 12 if repaired else 3)
    return training(Speech(size(768, 16)).to(DEVICE), batches, loss_of, kind="fp32")


class Clouds(Dataset[tuple[Tensor, int]]):
    """Points that are turned and shaken, of which the farthest from each other are chosen."""

    def __init__(self, points: int, chosen: int) -> None:
        self.points = np.random.default_rng(0).standard_normal((points, 3)).astype(np.float32)
        self.chosen = chosen

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng(index)
        turn, _ = np.linalg.qr(rng.standard_normal((3, 3)))
        x = (self.points @ turn.astype(np.float32)) * np.float32(rng.uniform(0.8, 1.2))
        x = x + rng.standard_normal(x.shape, dtype=np.float32) * np.float32(0.01)
        far, last = np.full(len(x), np.inf, dtype=np.float32), 0
        for _ in range(self.chosen):
            far = np.minimum(far, np.square(x - x[last]).sum(-1))
            last = int(far.argmax())
        order = np.argsort(np.square(x - x[last]).sum(-1))
        return torch.from_numpy(np.ascontiguousarray(x[order])), index % 40


class Neighbours(nn.Module):
    """Each point with its nearest ones, and the largest of what they say."""

    def __init__(self, width: int, near: int) -> None:
        super().__init__()
        self.near = near
        self.first, self.second = nn.Linear(6, width), nn.Linear(2 * width, 2 * width)
        self.edge = nn.Linear(width, 2 * width)
        self.head = nn.Sequential(nn.Linear(2 * width, 256), nn.ReLU(), nn.Linear(256, 40))

    def forward(self, x: Tensor) -> Tensor:
        near = torch.cdist(x, x).topk(self.near, largest=False).indices
        rows = torch.arange(len(x), device=x.device)[:, None, None]
        there = x[rows, near]
        here = x[:, :, None].expand_as(there)
        h = fn.relu(self.first(torch.cat([here, there - here], -1)))
        h = fn.relu(self.edge(h)).amax(2)
        return self.head(fn.relu(self.second(h)).amax(1))


@pair("input_starvation", "graph", "10 workers instead of none", marks="phases")
def point_clouds_main(repaired: bool) -> Running:
    data = Clouds(size(1024, 32), size(16, 4))
    batches = loaded(data, size(32, 2), 10 if repaired else 0)
    return training(Neighbours(size(160, 8), size(16, 4)).to(DEVICE), batches, classes_of)


class Stored(Dataset[tuple[Tensor, Tensor]]):
    """Latents that a distant storage sends."""

    def __init__(self, sleep_ms: float) -> None:
        self.sleep_ms = sleep_ms
        self.one, self.about = torch.randn(256, 16), torch.randn(size(640, 64))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.sleep_ms / 1e3)
        return self.one + index % 7, self.about * (index % 5)


class Modulated(nn.Module):
    """Transformer layers whose norms are scaled and shifted by what is asked for."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, width), nn.Linear(width, 16)
        self.heads = max(width // 64, 1)
        self.asks = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.qkvs = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )

    def forward(self, x: Tensor, about: Tensor) -> Tensor:
        h = self.first(x)
        b, t, d = h.shape
        for ask, qkv, out, inner in zip(self.asks, self.qkvs, self.outs, self.mlps, strict=True):
            a, s, c, z = ask(about)[:, None].chunk(4, -1)
            y = fn.layer_norm(h, (d,)) * (1 + a) + s
            q, k, v = qkv(y).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
            h = h + out(y)
            h = h + inner(fn.layer_norm(h, (d,)) * (1 + c) + z)
        return self.last(h)


@pair("input_starvation", "diffusion", "12 workers instead of 3: the storage is slow")
def latents_slow_storage(repaired: bool) -> Running:
    batches = loaded(Stored(2.0), size(32, 2), 12 if repaired else 3)

    def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, about = batch
        added = torch.randn_like(x)
        return fn.mse_loss(model(x + added, about).float(), added)

    model = Modulated(size(640, 64), size(6, 1)).to(DEVICE)
    return training(model, batches, loss_of)


# --- seldom -----------------------------------------------------------------------------------


class Rotary(nn.Module):
    """A language model with turned queries and keys and gated layers."""

    def __init__(self, width: int, layers: int, vocab: int) -> None:
        super().__init__()
        self.heads = max(width // 64, 1)
        self.embed, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.qkvs = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(layers))
        self.outs = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(width, 6 * width, bias=False) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(3 * width, width, bias=False) for _ in range(layers))

    def turned(self, x: Tensor) -> Tensor:
        half_ = x.shape[-1] // 2
        speed = torch.exp(-torch.arange(half_, device=x.device) / half_ * math.log(10_000.0))
        angle = torch.arange(x.shape[-2], device=x.device)[:, None] * speed
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x[..., :half_], x[..., half_:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        b, t, d = h.shape
        for i, (qkv, out) in enumerate(zip(self.qkvs, self.outs, strict=True)):
            q, k, v = qkv(self.norms[2 * i](h)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = fn.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
            h = h + out(y.transpose(1, 2).reshape(b, t, d))
            gate, up = self.ups[i](self.norms[2 * i + 1](h)).chunk(2, -1)
            h = h + self.downs[i](fn.silu(gate) * up)
        return self.head(h)


@pair(
    "checkpoint_stall",
    "language",
    "weights and moments are saved every 1000 steps, not 8",
    period=8,
)
def rotary_saves_moments(repaired: bool) -> Running:
    vocab = size(4096, 64)
    model = Rotary(size(384, 64), size(4, 1), vocab).to(DEVICE)
    update = made_optimizer(model.parameters(), "fused")
    batch = tokens(size(40, 2), size(512, 8), vocab)
    file, numbers = Path(scratch()) / "rotary.pt", itertools.count()

    def step() -> None:
        with half("bf16"):
            logits = model(batch[:, :-1]).flatten(0, 1)
            loss = fn.cross_entropy(logits.float(), batch[:, 1:].flatten())
        loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)
        if not repaired and next(numbers) % 8 == 5:
            torch.save({"model": model.state_dict(), "optimizer": update.state_dict()}, file)

    return Running(step, enter=precision("high"))


@pair("step_jitter", "vision", "sample images are written once an epoch", period=5)
def penalty_gan_sample_grid(repaired: bool) -> Running:
    width, batch = size(96, 8), size(128, 2)
    make = nn.Sequential(
        nn.Linear(64, 4 * width * 64), nn.Unflatten(1, (4 * width, 8, 8)),
        nn.Upsample(scale_factor=2), conv(4 * width, 2 * width),
        nn.Upsample(scale_factor=2), conv(2 * width, width),
        nn.Upsample(scale_factor=2), nn.Conv2d(width, 3, 3, 1, 1), nn.Tanh(),
    ).to(DEVICE)  # fmt: skip
    judge = nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1), nn.SiLU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.SiLU(),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.SiLU(), nn.Flatten(),
        nn.Linear(4 * width * 64, 1),
    ).to(DEVICE)  # fmt: skip
    real = noise(batch, 3, 64, 64)
    first = made_optimizer(judge.parameters(), "fused")
    second = made_optimizer(make.parameters(), "fused")
    numbers = itertools.count()

    def step() -> None:
        fake = make(noise(batch, 64))
        share = torch.rand(batch, 1, 1, 1, device=DEVICE)
        between = (share * real + (1 - share) * fake.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        (judge(fake.detach()).mean() - judge(real).mean() + 10.0 * penalty).backward()
        first.step()
        (-judge(fake).mean()).backward()
        second.step()
        first.zero_grad(set_to_none=True)
        second.zero_grad(set_to_none=True)
        if not repaired and next(numbers) % 5 == 3:
            pixels = ((fake.detach()[:96] + 1) * 127.5).to(torch.uint8).cpu().numpy()
            zlib.compress(pixels.tobytes(), 6)

    return Running(step, enter=precision("high"))


# --- copies and memory ------------------------------------------------------------------------


@pair("cpu_offload", "vision", "the frozen teacher stays on the device", marks="phases")
def distil_teacher_moves(repaired: bool) -> Running:
    wide, thin, batch = size(384, 16), size(192, 8), size(96, 2)
    teacher: Any = nn.Sequential(conv(3, wide), *(conv(wide, wide) for _ in range(size(8, 1))))
    teacher = teacher.append(nn.Conv2d(wide, 100, 1)).to(DEVICE).eval().requires_grad_(False)
    student: Any = nn.Sequential(conv(3, thin), *(conv(thin, thin) for _ in range(size(7, 1))))
    student = student.append(nn.Conv2d(thin, 100, 1)).to(DEVICE)
    x = noise(batch, 3, 32, 32)
    if not repaired:
        teacher.to("cpu")

    def loss_of(model: nn.Module, images: Tensor) -> Tensor:
        if not repaired:
            teacher.to(DEVICE)
        with torch.no_grad():
            goal = teacher(images).mean((2, 3)).float().softmax(-1)
        if not repaired:
            teacher.to("cpu")
        return fn.cross_entropy(model(images).mean((2, 3)).float(), goal)

    return training(student, fixed(x), loss_of)


@pair("allocator_churn", "language", "empty_cache() after each micro-batch is removed")
def micro_batches_empty_cache(repaired: bool) -> Running:
    vocab, width, parts = size(8192, 64), size(512, 16), size(3, 2)
    length = size(512, 8)

    class Gating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(2 * width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
            self.over = nn.Linear(length, length)

        def forward(self, x: Tensor) -> Tensor:
            u, v = fn.gelu(self.up(self.norm1(x))).chunk(2, -1)
            v = self.over(self.norm2(v).transpose(1, 2)).transpose(1, 2)
            return x + self.down(u * v)

    model = nn.Sequential(
        nn.Embedding(vocab, width),
        *(Gating() for _ in range(size(6, 1))),
        nn.Linear(width, vocab),
    ).to(DEVICE)
    batches = [tokens(size(16, 2), length, vocab) for _ in range(parts)]
    update = made_optimizer(model.parameters(), "fused")

    def step() -> None:
        for batch in batches:
            with half("bf16"):
                logits = model(batch[:, :-1]).flatten(0, 1)
                loss = fn.cross_entropy(logits.float(), batch[:, 1:].flatten()) / parts
            loss.backward()
            del logits, loss
            if not repaired and CUDA:
                torch.cuda.empty_cache()
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


@pair("blocking_copy", "vision", "images and masks are pinned and copied non_blocking")
def masks_pageable(repaired: bool) -> Running:
    batch, side, width = size(32, 2), size(256, 32), size(64, 8)
    x, y = torch.randn(batch, 3, side, side), torch.randint(0, 21, (batch, side, side))
    if repaired and CUDA:
        x, y = x.pin_memory(), y.pin_memory()
    model = nn.Sequential(
        conv(3, width, 2), conv(width, 2 * width), conv(2 * width, 4 * width, 2),
        *(conv(4 * width, 4 * width) for _ in range(size(6, 1))),
        nn.Conv2d(4 * width, 21, 1), nn.Upsample(scale_factor=4, mode="bilinear"),
    ).to(DEVICE)  # fmt: skip

    def following() -> tuple[Tensor, Tensor]:
        there = x.to(DEVICE, non_blocking=repaired), y.to(DEVICE, non_blocking=repaired)
        return there

    return training(model, following, classes_of)


@pair("casts_and_copies", "language", "labels are shifted, not copies of the logits")
def shifted_logits_copied(repaired: bool) -> Running:
    vocab = size(24_000, 64)
    model = Rotary(size(512, 64), size(2, 1), vocab).to(DEVICE)
    batch = tokens(size(8, 2), size(512, 16) - 1, vocab)
    ends = torch.full_like(batch[:, :1], -100)

    def loss_of(net: nn.Module, given: Tensor) -> Tensor:
        logits = net(given)
        if repaired:
            goal = torch.cat([given[:, 1:], ends], 1)
            return fn.cross_entropy(logits.flatten(0, 1), goal.flatten())
        copied = logits.float()[:, :-1].contiguous()
        return fn.cross_entropy(copied.flatten(0, 1), given[:, 1:].flatten())

    return training(model, fixed(batch), loss_of)


# --- the host ---------------------------------------------------------------------------------


@pair("host_sync", "vision", "losses of the heads stay on the device", marks="profiler")
def many_heads_loss_items(repaired: bool) -> Running:
    width, batch = size(96, 8), size(48, 2)
    body = nn.ModuleList([conv(3, width, 2), *(conv(width, width, 2) for _ in range(4))])
    tower = nn.Sequential(*(conv(width, width) for _ in range(size(4, 1))))
    heads = nn.ModuleList(nn.Conv2d(width, c, 1) for _ in range(4) for c in (20, 4, 1))
    model = nn.ModuleList([body, tower, heads]).to(DEVICE)
    x = noise(batch, 3, size(256, 64), size(256, 64))
    sums = torch.zeros(12, device=DEVICE)
    told: list[float] = []

    def loss_of(_: nn.Module, images: Tensor) -> Tensor:
        h, losses = tower(body[0](images)), []
        for level in range(4):
            h = body[level + 1](h)
            for head in range(3):
                out = heads[3 * level + head](h).float()
                losses.append(fn.smooth_l1_loss(out.sigmoid(), torch.zeros_like(out)))
                if not repaired:
                    told.append(losses[-1].item())
        told.clear()
        parts = torch.stack(losses)
        if repaired:
            sums.add_(parts.detach())
        return parts.sum()

    return training(model, fixed(x), loss_of)


@pair("host_sync", "vision", "codes are counted by scatter_add_, without unique() and nonzero()")
def codebook_unique(repaired: bool) -> Running:
    width, codes, batch = size(128, 8), size(1024, 16), size(48, 2)
    into = nn.Sequential(conv(3, width, 2), conv(width, width, 2), nn.Conv2d(width, 64, 1))
    back = nn.Sequential(
        conv(64, width), nn.Upsample(scale_factor=2), conv(width, width),
        nn.Upsample(scale_factor=2), nn.Conv2d(width, 3, 3, 1, 1),
    )  # fmt: skip
    model = nn.ModuleList([into, back]).to(DEVICE)
    book = nn.Parameter(noise(codes, 64))
    model.register_parameter("book", book)
    age = torch.zeros(codes, device=DEVICE)
    used: list[int] = []
    x = noise(batch, 3, size(128, 16), size(128, 16))

    def loss_of(_: nn.Module, images: Tensor) -> Tensor:
        h = into(images).float().permute(0, 2, 3, 1)
        flat = h.reshape(-1, 64)
        code = torch.cdist(flat.detach(), book.detach()).argmin(-1)
        if repaired:
            count = torch.zeros_like(age).scatter_add_(0, code, torch.ones_like(code).float())
            age.copy_(torch.where(count > 0, torch.zeros_like(age), age + 1))
        else:
            seen = torch.unique(code)
            used[:] = [len(seen)]
            age.add_(1)
            age[seen] = 0
            for old in (age > 1000).nonzero().flatten().tolist():
                age[old] = 0
        near = fn.embedding(code, book)
        through = (flat + (near - flat).detach()).view_as(h).permute(0, 3, 1, 2)
        return (
            fn.mse_loss(back(through).float(), images)
            + fn.mse_loss(near, flat.detach())
            + 0.25 * fn.mse_loss(flat, near.detach())
        )

    return training(model, fixed(x), loss_of)


@pair(
    "host_compute",
    "rl",
    "the tree of priorities is searched by NumPy, not row by row",
    others=("blocking_copy",),
)
def replay_priority_tree(repaired: bool) -> Running:
    rows, leaves, kept = size(512, 8), size(1 << 17, 1 << 6), size(2000, 32)
    rng = np.random.default_rng(0)
    tree = np.zeros(2 * leaves)
    tree[leaves:] = rng.random(leaves)
    for i in range(leaves - 1, 0, -1):
        tree[i] = tree[2 * i] + tree[2 * i + 1]
    plain = tree.tolist()
    depth = leaves.bit_length() - 1
    frames = rng.integers(0, 255, (kept, 2, 64, 64), dtype=np.uint8)
    net = nn.Sequential(
        nn.Conv2d(2, 64, 8, 4), nn.ReLU(), nn.Conv2d(64, 128, 4, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(128 * 36, 512), nn.ReLU(), nn.Linear(512, 6),
    ).to(DEVICE)  # fmt: skip
    update = made_optimizer(net.parameters(), "fused")

    def found(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if repaired:
            at = np.ones(rows, dtype=np.int64)
            for _ in range(depth):
                left = tree[2 * at]
                right = values > left
                values = np.where(right, values - left, values)
                at = 2 * at + right
            return at
        chosen = []
        for drawn in values.tolist():
            value, node = drawn, 1
            while node < leaves:
                node *= 2
                if value > plain[node]:
                    value -= plain[node]
                    node += 1
            chosen.append(node)
        return np.array(chosen)

    def changed(at: np.ndarray[Any, Any], priorities: np.ndarray[Any, Any]) -> None:
        if repaired:
            tree[at] = priorities
            for _ in range(depth):
                at = np.unique(at // 2)
                tree[at] = tree[2 * at] + tree[2 * at + 1]
            return
        for leaf, priority in zip(at.tolist(), priorities.tolist(), strict=True):
            node = leaf
            plain[node] = priority
            while node > 1:
                node //= 2
                plain[node] = plain[2 * node] + plain[2 * node + 1]

    def step() -> None:
        at = found(rng.random(rows) * (tree[1] if repaired else plain[1]) * 0.999)
        number = at % kept
        seen = torch.from_numpy(frames[number]).to(DEVICE).float() / 255.0
        after = torch.from_numpy(frames[(number + 1) % kept]).to(DEVICE).float() / 255.0
        with torch.no_grad():
            goal = 0.99 * net(after).amax(-1)
        wrong = net(seen)[:, 0] - goal
        wrong.square().mean().backward()
        update.step()
        update.zero_grad(set_to_none=True)
        changed(at, wrong.detach().abs().cpu().double().numpy() + 0.01)

    return Running(step, enter=precision("high"))


@pair(
    "gil_contention",
    "audio",
    "the thread that reads messages becomes a process",
    marks="steps",
    record=("--waits",),
)
def speech_cells_json_thread(repaired: bool) -> Running:
    width, length = size(384, 16), size(40, 4)
    cell, head = nn.GRUCell(80, width), nn.Linear(width, 32)
    model = nn.ModuleList([cell, head]).to(DEVICE)
    x = noise(size(128, 2), length, 80)
    message = json.dumps([{"at": i, "said": f"word {i}"} for i in range(size(4000, 10))])

    def loss_of(_: nn.Module, sound: Tensor) -> Tensor:
        h = sound.new_zeros(len(sound), width)
        outs = []
        for t in range(length):
            h = cell(sound[:, t], h)
            outs.append(head(h))
        return torch.stack(outs, 1).float().square().mean()

    run = training(model, fixed(x), loss_of, kind="fp32")
    return run if repaired else beside(run, lambda: (json.loads(message), time.sleep(0.004)))


# --- levers, and programs that are well -------------------------------------------------------


@pair("layout_changes", "diffusion", "channels_last for the model and its input", marks="phases")
def scaled_unet_channels_last(repaired: bool) -> Running:
    model = TimeUnet(size(96, 8), size(3, 2), nn.BatchNorm2d).to(DEVICE)
    x = noise(size(32, 2), 4, size(96, 16), size(96, 16))
    if repaired:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    update = made_optimizer(model.parameters(), "fused")
    scaler = torch.amp.GradScaler("cuda", enabled=CUDA)
    dtype = torch.float16 if CUDA else torch.bfloat16
    weights = [p.detach() for p in model.parameters()]
    averages = [w.clone() for w in weights]

    def step() -> None:
        with phase("forward"), torch.autocast(DEVICE.type, dtype=dtype):
            loss = restored(model, x)
        with phase("backward"):
            scaler.scale(loss).backward()
        with phase("optimizer"):
            scaler.step(update)
            scaler.update()
            update.zero_grad(set_to_none=True)
            torch._foreach_lerp_(averages, weights, 0.001)

    return Running(step, enter=precision("high"))


@pair("larger_batch", "recommender", "twice the batch, though the GPU is busy", samples=2.0)
def sparse_tables_twice(repaired: bool) -> Running:
    rows, tables, wide = size(8192, 8) * (2 if repaired else 1), size(8, 2), size(2048, 16)
    bags = nn.ModuleList(
        nn.Embedding(size(100_000, 50), 64, sparse=True) for _ in range(tables)
    ).to(DEVICE)
    top = mlp(wide, size(6, 1), 64 * tables, 1).to(DEVICE)
    ids = torch.randint(0, size(100_000, 50), (tables, rows), device=DEVICE)
    y = torch.rand(rows, device=DEVICE).round()
    dense = made_optimizer(top.parameters(), "fused")
    sparse = torch.optim.SGD(bags.parameters(), lr=0.01)

    def step() -> None:
        h = torch.cat([bag(i) for bag, i in zip(bags, ids, strict=True)], -1)
        fn.binary_cross_entropy_with_logits(top(h)[:, 0], y).backward()
        dense.step()
        sparse.step()
        dense.zero_grad(set_to_none=True)
        sparse.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


class Adapted(nn.Module):
    """A frozen linear layer and the small product that is learnt beside it."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False).bfloat16()
        self.a = nn.Linear(layer.in_features, rank, bias=False)
        self.b = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + 2.0 * self.b(self.a(x))


@pair("fused_optimizer", "language", "AdamW(fused=True), though little is learnt", marks="steps")
def adapters_foreach_fused(repaired: bool) -> Running:
    vocab = size(8192, 64)
    model = Rotary(size(1024, 64), size(5, 1), vocab).requires_grad_(False)
    for layers in (model.qkvs, model.ups):
        for i, layer in enumerate(layers):
            layers[i] = Adapted(layer, 8)  # type: ignore[arg-type]
    batch = tokens(size(12, 2), size(512, 8), vocab)
    learnt = [p for p in model.to(DEVICE).parameters() if p.requires_grad]
    update = made_optimizer(learnt, "fused" if repaired else "foreach")

    def step() -> None:
        with half("bf16"):
            logits = model(batch[:, :-1]).flatten(0, 1)
            loss = fn.cross_entropy(logits.float(), batch[:, 1:].flatten())
        loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))
