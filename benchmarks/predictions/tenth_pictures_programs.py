"""Programs of the tenth set: pictures, volumes, clips, sound and long texts, bound by the GPU.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, Attends, Feeds, Residual, precision, size
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 179 pairs, opened"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
HALF = torch.float16 if CUDA else torch.bfloat16


def scaled(
    loss_of: Callable[[], Tensor], update: torch.optim.Optimizer, *, clip: float = 0.0
) -> Running:
    """FP16 with scaled losses; fused optimizers skip infinite gradients without asking."""
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=CUDA, init_scale=2.0**10)
    weights = [p for group in update.param_groups for p in group["params"]]

    def step() -> None:
        update.zero_grad(set_to_none=True)
        with phase("forward"), torch.autocast(DEVICE.type, HALF):
            loss = loss_of()
        with phase("backward"):
            scaler.scale(loss).backward()
        with phase("optimizer"):
            if clip:
                scaler.unscale_(update)
                nn.utils.clip_grad_norm_(weights, clip)
            scaler.step(update)
            scaler.update()

    return Running(step, enter=precision("high"))


# --- classes of pixels ------------------------------------------------------------------------


class Narrow(nn.Module):
    """A residual layer that is narrow inside, as in ResNet-50."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        inside = after // 4
        self.layers = nn.Sequential(
            nn.Conv2d(before, inside, 1, bias=False), nn.BatchNorm2d(inside), nn.ReLU(True),
            nn.Conv2d(inside, inside, 3, stride, 1, bias=False), nn.BatchNorm2d(inside),
            nn.ReLU(True), nn.Conv2d(inside, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.short: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.short = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(self.layers(x) + self.short(x))


def smoothed(before: int, after: int, kernel: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(True),
    )


class Streets(nn.Module):
    """Means over large fields join the deep features, and early ones the result."""

    def __init__(self, width: int, inner: int, classes: int, depths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(smoothed(3, width, 3), nn.MaxPool2d(2), smoothed(width, width, 3))
        before, stages = width, []
        for level, depth in enumerate(depths):
            after = 4 * width * 2**level
            layers = [Narrow(before, after, 2)]
            layers += [Narrow(after, after, 1) for _ in range(depth - 1)]
            stages.append(nn.Sequential(*layers))
            before = after
        self.stages = nn.ModuleList(stages)
        self.fields = nn.ModuleList(smoothed(before, inner, 1) for _ in range(3))
        self.deep = smoothed(before + 3 * inner, inner, 3)
        self.early = smoothed(4 * width, inner // 4, 1)
        self.both = nn.Sequential(smoothed(inner + inner // 4, inner, 3), smoothed(inner, inner, 3))
        self.last = nn.Conv2d(inner, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept, full = [], x.shape[-1]
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
            kept.append(x)
        side, parts = x.shape[-1], [x]
        for number, field in enumerate(self.fields):
            mean = field(fn.avg_pool2d(x, side // 2**number))
            parts.append(fn.interpolate(mean, size=side, mode="bilinear"))
        x = fn.interpolate(self.deep(torch.cat(parts, 1)), size=kept[0].shape[-1], mode="bilinear")
        x = self.both(torch.cat([x, self.early(kept[0])], 1))
        return fn.interpolate(self.last(x).float(), size=full, mode="bilinear")


@pair("layout_changes", "vision", "channels_last for the model and the pictures")
def streets_fields_channels_last(repaired: bool) -> Running:
    batch, side, classes = size(12, 2), size(512, 64), size(19, 4)
    model = Streets(size(64, 4), size(256, 8), classes, (3, 4, 6) if CUDA else (1, 1, 1))
    model, x = model.to(DEVICE), noise(batch, 3, side, side)
    if repaired:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    y = labels(classes, batch, side, side)
    return scaled(lambda: fn.cross_entropy(model(x), y, label_smoothing=0.05), sgd(model))


# --- speech -----------------------------------------------------------------------------------


class Hearing(nn.Module):
    """A layer whose sums may leave the range of FP16: they are cut to it, as in T5 and BART."""

    def __init__(self, width: int, heads: int, *, asks: bool) -> None:
        super().__init__()
        self.looks, self.feeds, self.asks = Attends(width, heads), Feeds(width), asks

    def cut(self, h: Tensor) -> Tensor:
        most = torch.finfo(h.dtype).max - 1000
        if not self.asks:
            return torch.clamp(h, -most, most)
        if h.dtype == HALF and torch.isinf(h).any():
            h = torch.clamp(h, -most, most)
        return h

    def forward(self, h: Tensor) -> Tensor:
        return self.cut(self.feeds(self.cut(self.looks(h))))


class Listener(nn.Module):
    """Log mel bands become odds of word pieces, each fourth frame."""

    def __init__(
        self, bands: int, width: int, layers: int, heads: int, pieces: int, frames: int, asks: bool
    ) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv1d(bands, width, 3, 2, 1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1), nn.GELU()
        )
        self.place = nn.Parameter(torch.randn(frames // 4, width) * 0.02)
        self.layers = nn.Sequential(*(Hearing(width, heads, asks=asks) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, pieces)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).transpose(1, 2)
        return self.head(self.norm(self.layers(h + self.place.to(h.dtype))))


@pair(
    "host_sync",
    "audio",
    "activations are cut to the range of FP16 without asking whether any is infinite",
)
def word_pieces_infinities_asked(repaired: bool) -> Running:
    bands, frames, batch = size(80, 8), size(1472, 64), size(24, 2)
    width, pieces, long = size(512, 16), size(1024, 12), size(60, 4)
    model = Listener(
        bands, width, size(14, 2), size(8, 2), pieces, frames, asks=not repaired
    ).to(DEVICE)  # fmt: skip
    x, words = noise(batch, bands, frames), 1 + labels(pieces - 1, batch, long)
    heard, said = (frames // 4,) * batch, (long,) * batch

    def loss_of() -> Tensor:
        odds = model(x).float().log_softmax(-1).transpose(0, 1)
        return fn.ctc_loss(odds, words, heard, said, zero_infinity=True)

    return scaled(loss_of, adam(model, weight_decay=1e-3), clip=1.0)


# --- sounds -----------------------------------------------------------------------------------


def bands_of(many: int, bins: int) -> Tensor:
    """Triangles over the bins of a spectrum, evenly apart in mel."""
    top = 2595 * math.log10(1 + 16_000 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, many + 2) / 2595) - 1) / 16_000 * (bins - 1)
    at = torch.arange(bins, dtype=torch.float32)[:, None]
    low, mid, high = edges[:-2], edges[1:-1], edges[2:]
    up, down = (at - low) / (mid - low + 1e-3), (high - at) / (high - mid + 1e-3)
    return torch.minimum(up, down).clamp(min=0)


class Sounds(nn.Module):
    """Classes of ten seconds of sound by convolutions over its log mel bands."""

    def __init__(self, widths: list[int], window: int, bands: int, classes: int) -> None:
        super().__init__()
        self.window = window
        self.register_buffer("shape", torch.hann_window(window))
        self.register_buffer("bands", bands_of(bands, window // 2 + 1))
        parts: list[nn.Module] = []
        for before, after in zip([1, *widths], widths, strict=False):
            for first in (before, after):
                parts.append(nn.Conv2d(first, after, 3, 1, 1, bias=False))
                parts += [nn.BatchNorm2d(after), nn.ReLU(True)]
            parts.append(nn.AvgPool2d(2))
        self.convs, self.norm = nn.Sequential(*parts), nn.BatchNorm2d(bands)
        self.inside, self.head = nn.Linear(widths[-1], widths[-1]), nn.Linear(widths[-1], classes)

    def seen(self, x: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(DEVICE.type, enabled=False):
            found = torch.stft(
                x, self.window, self.window * 5 // 16, window=self.shape, return_complex=True
            )
            power = found.real.square() + found.imag.square()
            return (power.transpose(1, 2) @ self.bands).clamp(min=1e-7).log()

    def forward(self, x: Tensor) -> Tensor:
        h = self.seen(x)
        h = self.norm(h.transpose(1, 2)[..., None]).permute(0, 3, 2, 1)
        h = self.convs(h.contiguous()).mean(3)
        return self.head(fn.relu(self.inside(h.mean(2) + h.amax(2))))


@pair(
    "blocking_copy",
    "audio",
    "the waves are pinned once, and copied with non_blocking=True",
    marks="steps",
)
def sound_events_waves_from_numpy(repaired: bool) -> Running:
    batch, long, classes = size(32, 2), size(320_000, 2048), size(527, 6)
    widths = [size(64, 4) * 2**i for i in range(4)]
    model = Sounds(widths, size(1024, 128), size(64, 16), classes).to(DEVICE)
    rng = np.random.default_rng(0)
    # what was decoded lies in memory as one array; a batch is a slice of it, which costs nothing
    waves = torch.from_numpy(rng.standard_normal((4 * batch, long), dtype=np.float32))
    events = torch.from_numpy((rng.random((4 * batch, classes)) < 0.01).astype(np.float32))
    if repaired and CUDA:
        waves, events = waves.pin_memory(), events.pin_memory()
    turn = 0

    def loss_of() -> Tensor:
        nonlocal turn
        rows = slice(turn % 4 * batch, (turn % 4 + 1) * batch)
        turn += 1
        x = waves[rows].to(DEVICE, non_blocking=repaired)
        y = events[rows].to(DEVICE, non_blocking=repaired)
        share = 0.5 + 0.5 * torch.rand(batch, 1, device=DEVICE)
        x, y = (share * part + (1 - share) * part.flip(0) for part in (x, y))
        return fn.binary_cross_entropy_with_logits(model(x).float(), y)

    return fit(loss_of, adam(model), decay=True)


# --- a long context ---------------------------------------------------------------------------


class Angles(nn.Module):
    """Queries and keys meet by their angle, times a learnt sharpness of each head."""

    def __init__(self, width: int, heads: int, *, written: bool) -> None:
        super().__init__()
        self.heads, self.written, self.norm = heads, written, nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.sharp = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = fn.normalize(q, dim=-1), fn.normalize(k, dim=-1)
        sharp = self.sharp.clamp(max=math.log(100.0)).exp()
        if self.written:
            scores = (q @ k.transpose(-1, -2)) * sharp
            later = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
            y = scores.softmax(-1, dtype=torch.float32).to(v.dtype) @ v
        else:
            y = fn.scaled_dot_product_attention(q * sharp, k, v, is_causal=True, scale=1.0)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


@pair(
    "unfused_attention",
    "language",
    "scaled_dot_product_attention of queries that are sharpened before, with scale=1.0",
)
def long_ledgers_sharpened_angles(repaired: bool) -> Running:
    """Entries of a ledger, each a kind and an amount; the next kind is foretold."""
    width, length, kinds = size(1024, 32), size(3584, 24), size(2048, 32)
    parts: list[nn.Module] = []
    for _ in range(size(4, 2)):
        parts += [Angles(width, size(8, 2), written=not repaired), Feeds(width)]
    body = nn.Sequential(*parts, nn.LayerNorm(width), nn.Linear(width, kinds))
    model = nn.ModuleList([nn.Embedding(kinds, width), nn.Linear(1, width), body]).to(DEVICE)
    ids, amounts = labels(kinds, 1, length + 1), noise(1, length, 1)

    def loss_of() -> Tensor:
        h = model[0](ids[:, :-1]) + model[1](amounts)
        return fn.cross_entropy(model[2](h).float().flatten(0, 1), ids[:, 1:].flatten())

    return fit(loss_of, adam(model), clip=1.0)


# --- experts ----------------------------------------------------------------------------------


class Chosen(nn.Module):
    """Each expert takes the tokens that suit it best, as many as every other one."""

    def __init__(self, width: int, experts: int, each: int) -> None:
        super().__init__()
        self.each, self.norm = each, nn.LayerNorm(width)
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).flatten(0, 1)
        odds = self.router(y).float().softmax(-1)
        weights, rows = odds.t().topk(self.each, -1)
        total = torch.zeros_like(y)
        for expert, weight, row in zip(self.experts, weights, rows, strict=True):
            found = expert(y.index_select(0, row)) * weight[:, None]
            total = total.index_add(0, row, found.to(total.dtype))
        return x + total.view_as(x)


@pair(
    "unfused_optimizer",
    "moe",
    "AdamW(fused=True), which needs no more room than foreach=False does",
)
def experts_choose_room_for_adamw(repaired: bool) -> Running:
    width, experts, vocab = size(1024, 16), size(8, 2), size(8192, 32)
    batch, length = size(8, 2), size(1024, 16)
    parts: list[nn.Module] = [nn.Embedding(vocab, width)]
    for _ in range(size(5, 2)):
        parts.append(Attends(width, size(16, 2)))
        parts.append(Chosen(width, experts, 2 * batch * length // experts))
    model = nn.Sequential(*parts, nn.LayerNorm(width), nn.Linear(width, vocab)).to(DEVICE)
    ids, hidden = labels(vocab, batch, length), torch.rand(batch, length, device=DEVICE) < 0.3
    given, goals = ids.masked_fill(hidden, 0), ids.masked_fill(~hidden, -100).flatten()
    # many tensors at once would need room for another copy of all weights
    how: dict[str, bool] = {"fused": True} if repaired else {"fused": False, "foreach": False}

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(given).float().flatten(0, 1), goals)

    return fit(loss_of, adam(model, weight_decay=0.05, **how), clip=1.0)


# --- a large vocabulary -----------------------------------------------------------------------


def capped(logits: Tensor, goals: Tensor, counts: Tensor) -> Tensor:
    """Of logits that stay between -30 and 30; smoothed, and sums of odds are kept near one."""
    x = torch.tanh(logits.float() / 30.0) * 30.0
    most = x.amax(-1, keepdim=True).detach()
    total = ((x - most).exp().sum(-1, keepdim=True).log() + most)[:, 0]
    right = x.gather(-1, goals[:, None])[:, 0]
    each = 0.9 * (total - right) + 0.1 * (total - x.mean(-1)) + 1e-4 * total.square()
    return (each * counts).sum() / counts.sum()


@pair(
    "fusion_opportunity",
    "language",
    "torch.compile of the loss, which caps the logits",
    compiles=True,
)
def answers_capped_logits_compile(repaired: bool) -> Running:
    """A base is taught to answer; its embedding, which is its head, too, stays as it is."""
    width, vocab = size(2048, 32), size(128_256, 128)
    batch, length, prompt = size(2, 2), size(768, 16), size(192, 4)
    embed = nn.Embedding(vocab, width, device=DEVICE, dtype=torch.bfloat16).requires_grad_(False)
    nn.init.normal_(embed.weight, std=0.05)
    parts: list[nn.Module] = []
    for _ in range(size(3, 2)):
        parts += [Attends(width, size(16, 2), causal=True), Feeds(width)]
    body = nn.Sequential(*parts, nn.LayerNorm(width)).to(DEVICE)
    loss: Any = torch.compile(capped) if repaired else capped
    ids = labels(vocab, batch, length + 1)
    counts = torch.ones(batch, length, device=DEVICE)
    counts[:, :prompt] = 0

    def loss_of() -> Tensor:
        logits = fn.linear(body(embed(ids[:, :-1]).float()), embed.weight)
        return loss(logits.flatten(0, 1), ids[:, 1:].flatten(), counts.flatten())

    return fit(loss_of, adam(body), clip=1.0, decay=True)


# --- sharper pictures -------------------------------------------------------------------------


class Dense(nn.Module):
    """Each convolution sees what all before it found."""

    def __init__(self, width: int, grows: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(width + i * grows, grows if i < 4 else width, 3, 1, 1) for i in range(5)
        )

    def forward(self, x: Tensor) -> Tensor:
        found = x
        for conv in self.convs[:-1]:
            found = torch.cat([found, fn.leaky_relu(conv(found), 0.2)], 1)
        return x + 0.2 * self.convs[-1](found)


class Sharper(nn.Module):
    """Four times as many pixels a side, as ESRGAN makes them."""

    def __init__(self, width: int, grows: int, blocks: int, *, spares: bool) -> None:
        super().__init__()
        self.spares, self.first = spares, nn.Conv2d(3, width, 3, 1, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(*(Dense(width, grows) for _ in range(3))) for _ in range(blocks)
        )
        self.trunk = nn.Conv2d(width, width, 3, 1, 1)
        self.ups = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(2))
        self.last = nn.Conv2d(width, 3, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = low = self.first(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.spares else block(h)
        h = low + self.trunk(h)
        for up in self.ups:
            h = fn.leaky_relu(up(fn.interpolate(h, scale_factor=2.0)), 0.2)
        return self.last(h)


@pair("recomputation", "vision", "the dense blocks keep their activations, which fit")
def dense_sharpener_checkpointed(repaired: bool) -> Running:
    batch, side = size(16, 2), size(64, 8)
    model = Sharper(size(64, 8), size(32, 4), size(8, 2), spares=not repaired).to(DEVICE)
    model = model.to(memory_format=torch.channels_last)
    x, y = noise(batch, 3, side, side), noise(batch, 3, 4 * side, 4 * side)
    x = x.to(memory_format=torch.channels_last)
    return fit(lambda: fn.l1_loss(model(x).float(), y), adam(model), decay=True)


# --- diffusion --------------------------------------------------------------------------------


class Timed(nn.Module):
    """A transformer's layer whose norms and sums depend on the time and the class."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.how = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        b, t, d = x.shape
        s1, a1, g1, s2, a2, g2 = self.how(fn.silu(when))[:, None].chunk(6, -1)
        h = self.norms[0](x) * (1 + s1) + a1
        q, k, v = self.qkv(h).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + g1 * self.out(y)
        h = self.norms[1](x) * (1 + s2) + a2
        return x + g2 * self.down(fn.gelu(self.up(h), approximate="tanh"))


class Flowing(nn.Module):
    """The way from noise to latents, of patches of two by two; as in SiT."""

    def __init__(
        self, width: int, layers: int, heads: int, places: int, inside: int, classes: int
    ) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(inside, width), nn.Linear(width, inside)
        self.place = nn.Parameter(torch.randn(places, width) * 0.02)
        self.kinds = nn.Embedding(classes + 1, width)
        self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(Timed(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, t: Tensor, kind: Tensor) -> Tensor:
        angles = 1000 * t[:, None] * torch.exp(torch.arange(32, device=x.device) * -0.28)
        when = self.time(torch.cat([angles.sin(), angles.cos()], 1)) + self.kinds(kind)
        h = self.into(x) + self.place
        for layer in self.layers:
            h = layer(h, when)
        return self.out(self.norm(h))


@pair(
    "lower_precision",
    "diffusion",
    "the model is called under autocast to BF16, which held the loss only",
    marks="phases",
)
def latent_flow_autocast_too_late(repaired: bool) -> Running:
    batch, places, inside, classes = size(24, 2), size(256, 9), 16, size(1000, 5)
    model = Flowing(size(1024, 16), size(7, 2), size(16, 2), places, inside, classes).to(DEVICE)
    weights = [p.detach() for p in model.parameters()]
    slow = [w.clone() for w in weights]
    x, kinds = noise(batch, places, inside), labels(classes, batch)

    def loss_of() -> Tensor:
        t, drawn = torch.rand(batch, device=DEVICE), torch.randn_like(x)
        kind = torch.where(torch.rand(batch, device=DEVICE) < 0.1, classes, kinds)
        mixed = torch.lerp(drawn, x, t[:, None, None])
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=repaired):
            way = model(mixed, t, kind)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            return fn.mse_loss(way.float(), x - drawn)

    def average(_number: int, _loss: Tensor) -> None:
        torch._foreach_lerp_(slow, weights, 1e-4)

    return fit(loss_of, adam(model, weight_decay=0.0), bf16=False, clip=1.0, after=average)


class Denoised(nn.Module):
    """Two convolutions, normed and told the time, beside what came in."""

    def __init__(self, before: int, after: int, time: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(4, n) for n in (before, after))
        self.convs = nn.ModuleList(nn.Conv2d(n, after, 3, 1, 1) for n in (before, after))
        self.time, self.short = nn.Linear(time, after), nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        h = self.convs[0](fn.silu(self.norms[0](x))) + self.time(when)[:, :, None, None]
        return self.short(x) + self.convs[1](fn.silu(self.norms[1](h)))


class Pixels(nn.Module):
    """The noise in a picture; the smallest level is looked at as a whole."""

    def __init__(self, sizes: list[int], heads: int) -> None:
        super().__init__()
        time = 4 * sizes[0]
        self.time = nn.Sequential(nn.Linear(64, time), nn.SiLU(), nn.Linear(time, time), nn.SiLU())
        self.first, self.last = (
            nn.Conv2d(3, sizes[0], 3, 1, 1),
            nn.Sequential(
                nn.GroupNorm(4, sizes[0]), nn.SiLU(), nn.Conv2d(sizes[0], 3, 3, 1, 1)
            ),
        )  # fmt: skip
        wide = [sizes[0], *sizes]
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        for before, after in zip(wide, sizes, strict=False):
            self.downs.append(Denoised(before, after, time))
            self.downs.append(Denoised(after, after, time))
            self.ups.insert(0, Denoised(2 * after, before, time))
            self.ups.insert(0, Denoised(2 * after, after, time))
        self.middle = nn.ModuleList(Denoised(sizes[-1], sizes[-1], time) for _ in range(2))
        self.looks = Attends(sizes[-1], heads)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(torch.arange(32, device=x.device) * -0.28)
        when, kept = self.time(torch.cat([angles.sin(), angles.cos()], 1)), []
        h = self.first(x)
        for number, down in enumerate(self.downs):
            if number and number % 2 == 0:
                h = fn.avg_pool2d(h, 2)
            h = down(h, when)
            kept.append(h)
        h = self.middle[0](h, when)
        h = self.looks(h.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(h.shape)
        h = self.middle[1](h, when)
        for number, up in enumerate(self.ups):
            if number and number % 2 == 0:
                h = fn.interpolate(h, scale_factor=2.0)
            h = up(torch.cat([h, kept.pop()], 1), when)
        return self.last(h)


@pair(
    "low_precision_unused",
    "diffusion",
    "cuDNN may use TF32, too, as matrix products do already",
)
def pixel_noise_convs_kept_exact(repaired: bool) -> Running:
    batch, side = size(16, 2), size(64, 8)
    model = Pixels([size(n, 8) for n in (128, 256, 256)], size(4, 2)).to(DEVICE)
    x, steps = noise(batch, 3, side, side), size(1000, 10)
    kept = torch.linspace(0.9999, 0.98, steps, device=DEVICE).cumprod(0)

    def loss_of() -> Tensor:
        t, drawn = torch.randint(0, steps, (batch,), device=DEVICE), torch.randn_like(x)
        share = kept[t][:, None, None, None]
        guess = model(share.sqrt() * x + (1 - share).sqrt() * drawn, t.float())
        return fn.mse_loss(guess, drawn)

    run = fit(loss_of, adam(model), bf16=False, clip=1.0)

    def enter() -> None:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = repaired

    run.enter = enter
    return run


# --- clips ------------------------------------------------------------------------------------


class Stored(Dataset[tuple[Tensor, int]]):
    """Clips of which the first frame and what changes after it are stored, as codecs do."""

    def __init__(self, frames: int, side: int) -> None:
        rng = np.random.default_rng(0)
        self.frames, self.side, high, wide = frames, side, side * 5 // 4, side * 7 // 4
        self.firsts = rng.integers(0, 256, (4, 3, high, wide), dtype=np.int16)
        self.moves = rng.integers(-6, 7, (4, 6 * frames, 3, high, wide), dtype=np.int16)
        self.colours = np.array(
            [[1.0, 0.0, 1.402], [1.0, -0.344, -0.714], [1.0, 1.772, 0.0]], dtype=np.float32
        )

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rng, kept = np.random.default_rng(index), []
        frame = self.firsts[index % 4].copy()
        top = int(rng.integers(0, frame.shape[1] - self.side + 1))
        left = int(rng.integers(0, frame.shape[2] - self.side + 1))
        bright = np.float32(rng.uniform(0.8, 1.2))
        for number, move in enumerate(self.moves[index % 4]):
            frame += move
            np.clip(frame, 0, 255, out=frame)
            if number % 6 == 5:
                part = frame[:, top : top + self.side, left : left + self.side].astype(np.float32)
                part[1:] -= 128
                seen = (self.colours @ part.reshape(3, -1)) * bright
                kept.append(seen.clip(0, 255).astype(np.uint8).reshape(part.shape))
        return torch.from_numpy(np.stack(kept)), index % 10


class Shifted(Residual):
    """Some channels come from the frame before, as many from the one after it; as in TSM."""

    def __init__(self, before: int, after: int, stride: int, frames: int) -> None:
        super().__init__(before, after, stride)
        self.frames = frames

    def forward(self, x: Tensor) -> Tensor:
        h = x.view(-1, self.frames, *x.shape[1:])
        part = h.shape[2] // 8
        soon, past, rest = h.split([part, part, h.shape[2] - 2 * part], 2)
        soon = torch.cat([soon[:, 1:], torch.zeros_like(soon[:, :1])], 1)
        past = torch.cat([torch.zeros_like(past[:, :1]), past[:, :-1]], 1)
        return super().forward(torch.cat([soon, past, rest], 2).flatten(0, 1))


@pair(
    "input_starvation",
    "vision",
    "12 workers, not an eighth of the CPUs, which was meant for eight GPUs",
    marks="profiler",
)
def moving_clips_share_of_workers(repaired: bool) -> Running:
    batch, frames, side = size(16, 2), size(8, 2), size(160, 32)
    width, workers = size(128, 8), size(12 if repaired else 16 // 8, 1)
    parts: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)
    ]  # fmt: skip
    before = width
    for level in range(4):
        for number in range(2):
            parts.append(Shifted(before, width * 2**level, 1 if number else 2, frames))
            before = width * 2**level
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10)]
    model = nn.Sequential(*parts).to(DEVICE)
    loader = DataLoader(
        Stored(frames, side), batch, num_workers=workers, pin_memory=CUDA, prefetch_factor=2
    )
    batches: Any = iter(loader)
    mean = torch.tensor([123.7, 116.3, 103.5], device=DEVICE)[:, None, None]

    def loss_of() -> Tensor:
        x, y = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        scores = model((x.flatten(0, 1).float() - mean) / 58.0)
        return fn.cross_entropy(scores.view(len(y), frames, -1).float().mean(1), y)

    run = fit(loss_of, sgd(model), decay=True, settle=2 + 2 * workers)
    run.close = batches._shutdown_workers
    return run


# --- volumes ----------------------------------------------------------------------------------


class Cube(nn.Module):
    """Two convolutions over a volume, and what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv3d(width, width, 3, 1, 1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm3d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = fn.relu(self.norms[0](self.convs[0](x)))
        return fn.relu(x + self.norms[1](self.convs[1](h)))


class Organs(nn.Module):
    """A class for each voxel; what goes down is added to what comes up, as in V-Net."""

    def __init__(self, width: int, levels: int, classes: int) -> None:
        super().__init__()
        sizes = [width * 2**i for i in range(levels)]
        self.first, self.last = nn.Conv3d(4, width, 3, 1, 1), nn.Conv3d(width, classes, 1)
        self.downs = nn.ModuleList(Cube(n) for n in sizes)
        self.ups = nn.ModuleList(Cube(n) for n in sizes[:-1])
        self.smaller = nn.ModuleList(nn.Conv3d(n, 2 * n, 2, 2) for n in sizes[:-1])
        self.larger = nn.ModuleList(nn.ConvTranspose3d(2 * n, n, 2, 2) for n in sizes[:-1])

    def forward(self, x: Tensor) -> Tensor:
        kept, x = [], self.first(x)
        for number, down in enumerate(self.downs):
            x = down(self.smaller[number - 1](x) if number else x)
            kept.append(x)
        kept.pop()
        for larger, up in zip(reversed(self.larger), reversed(self.ups), strict=True):
            x = up(larger(x) + kept.pop())
        return self.last(x)


@pair(
    "allocator_churn",
    "volumes",
    "torch.cuda.empty_cache() between the teacher and the student is removed",
)
def organs_teacher_makes_room(repaired: bool) -> Running:
    """Half of the volumes have no labels: the student agrees there with its own average."""
    side, each, classes = size(80, 8), size(2, 1), size(8, 3)
    model, teacher = (Organs(size(32, 4), size(4, 2), classes).to(DEVICE) for _ in range(2))
    teacher.load_state_dict(model.state_dict())
    teacher.requires_grad_(False)
    weights, averages = ([p.detach() for p in net.parameters()] for net in (model, teacher))
    x, y = noise(2 * each, 4, side, side, side), labels(classes, each, side, side, side)

    def loss_of() -> Tensor:
        with torch.no_grad():
            told = teacher(x[each:] + 0.1 * torch.randn_like(x[each:])).float().softmax(1)
        if not repaired:
            torch.cuda.empty_cache()  # the student needs all the room that there is
        scores = model(x).float()
        agree = (scores[each:].softmax(1) - told).square().mean()
        return fn.cross_entropy(scores[:each], y) + 10.0 * agree

    def average(_number: int, _loss: Tensor) -> None:
        torch._foreach_lerp_(averages, weights, 0.01)

    return fit(loss_of, sgd(model), after=average)
