"""A tenth set of programs for one GPU: wide layers and large pictures, bound by the GPU.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import Any

import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Attends, Feeds, Residual, done, half, precision, size, transformer_layers
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 179 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
HALF = torch.float16 if CUDA else torch.bfloat16


# --- a decoder whose scores fall with the distance ------------------------------------------------


def slopes(heads: int) -> Tensor:
    """How fast the scores of each head fall, as in ALiBi."""
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=DEVICE) / heads)


class Distant(nn.Module):
    """Attention with a bias for each head and distance; written as in BLOOM, or the library's."""

    def __init__(self, width: int, heads: int, *, written: bool) -> None:
        super().__init__()
        self.heads, self.written, self.norm = heads, written, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, bias: Tensor, later: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.written:
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias
            scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
            y = scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v
        else:
            y = fn.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


@pair(
    "unfused_attention",
    "language",
    "scaled_dot_product_attention; its mask holds the biases of the distances, made once",
)
def distances_biased_decoder_written(repaired: bool) -> Running:
    width, heads, length = size(2048, 32), size(16, 2), size(1792, 16)
    vocab, batch = size(8192, 64), size(3, 2)
    looks = nn.ModuleList(Distant(width, heads, written=not repaired) for _ in range(size(2, 2)))
    feeds = nn.ModuleList(Feeds(width) for _ in looks)
    embed, norm = nn.Embedding(vocab, width), nn.LayerNorm(width)
    model = nn.ModuleList([embed, looks, feeds, norm]).to(DEVICE)
    nn.init.normal_(embed.weight, std=0.02)  # it is the head, too
    places = torch.arange(length, device=DEVICE)
    later = places[None, :] > places[:, None]
    away = (places[None, :] - places[:, None]) * slopes(heads)[:, None, None]
    if repaired:
        away = away.masked_fill(later, -torch.inf)
    bias = away[None].to(torch.bfloat16)
    turns = itertools.cycle(labels(vocab, 4, batch, length + 1))

    def loss_of() -> Tensor:
        ids = next(turns)
        x = embed(ids[:, :-1])
        for look, feed in zip(looks, feeds, strict=True):
            x = feed(look(x.to(torch.bfloat16), bias, later))
        scores = fn.linear(norm(x), embed.weight).flatten(0, 1)
        return fn.cross_entropy(scores.float(), ids[:, 1:].flatten())

    return fit(loss_of, adam(model, betas=(0.9, 0.95), weight_decay=0.1), decay=True)


# --- pictures to latents and back ----------------------------------------------------------------


class Swish(nn.Module):
    """An activation as some write it, or the library's."""

    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self.own = own

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x) if self.own else fn.silu(x)


def normed_conv(before: int, after: int, *, own: bool) -> nn.Module:
    groups = min(32, before // 2)
    return nn.Sequential(
        nn.GroupNorm(groups, before, eps=1e-6), Swish(own=own), nn.Conv2d(before, after, 3, 1, 1)
    )


class Twice(nn.Module):
    """Two such convolutions, and what came in."""

    def __init__(self, width: int, *, own: bool) -> None:
        super().__init__()
        self.convs = nn.Sequential(*(normed_conv(width, width, own=own) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.convs(x)


@pair(
    "fusion_opportunity",
    "diffusion",
    "fn.silu instead of x * torch.sigmoid(x)",
    others=("layout_changes",),
)
def latent_pictures_own_swish(repaired: bool) -> Running:
    """An autoencoder with means and variances, that a diffusion model is to work on."""
    sizes, inside = [size(n, 8) for n in (128, 256, 512)], 4
    batch, side, own = size(5, 2), size(256, 16), not repaired
    coder: list[nn.Module] = [nn.Conv2d(3, sizes[0], 3, 1, 1)]
    for number, width in enumerate(sizes):
        coder.append(Twice(width, own=own))
        if number + 1 < len(sizes):
            coder.append(nn.Conv2d(width, sizes[number + 1], 3, 2, 1))
    coder.append(normed_conv(sizes[-1], 2 * inside, own=own))
    decoder: list[nn.Module] = [nn.Conv2d(inside, sizes[-1], 3, 1, 1)]
    for number, width in reversed(list(enumerate(sizes))):
        decoder.append(Twice(width, own=own))
        if number:
            decoder += [nn.Conv2d(width, sizes[number - 1], 3, 1, 1), nn.Upsample(scale_factor=2)]
    decoder.append(normed_conv(sizes[0], 3, own=own))
    model = nn.ModuleList([nn.Sequential(*coder), nn.Sequential(*decoder)]).to(DEVICE)
    pictures = torch.randint(0, 256, (8 * batch, 3, side, side), dtype=torch.uint8, device=DEVICE)
    turns = itertools.cycle(range(0, 8 * batch, batch))

    def loss_of() -> Tensor:
        at = next(turns)
        x = pictures[at : at + batch].float() / 127.5 - 1
        mean, spread = model[0](x).float().chunk(2, 1)
        spread = spread.clamp(-30, 20)
        latent = mean + (0.5 * spread).exp() * torch.randn_like(mean)
        far = (mean.square() + spread.exp() - 1 - spread).mean()
        return fn.l1_loss(model[1](latent).float(), x) + 1e-6 * far

    return fit(loss_of, adam(model, betas=(0.5, 0.9)))


# --- pictures as words ---------------------------------------------------------------------------


class Codes(nn.Module):
    """The code of each vector that points most nearly its way; in single precision, as advised."""

    def __init__(self, width: int, inner: int, codes: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, inner), nn.Linear(inner, width)
        self.codes = nn.Parameter(torch.randn(codes, inner) * inner**-0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.into(x)
        with torch.autocast(DEVICE.type, enabled=False):
            z = fn.normalize(z.float(), dim=-1)
            codes = fn.normalize(self.codes, dim=-1)
            with torch.no_grad():
                nearest = (z.flatten(0, 1) @ codes.t()).argmax(-1)
            found = fn.embedding(nearest, codes).view_as(z)
            loss = (found - z.detach()).square().mean() + 0.25 * (
                z - found.detach()
            ).square().mean()
        return self.out(z + (found - z).detach()), loss


@pair(
    "low_precision_unused",
    "vision",
    "set_float32_matmul_precision('high'): the codes are found in TF32",
    marks="steps",
)
def picture_words_exact_codebook(repaired: bool) -> Running:
    """Patches become words of a codebook, from which the picture is made again; as in ViT-VQGAN."""
    width, side, patch = size(1024, 32), size(256, 32), 8
    batch, heads, codes = size(16, 2), size(16, 2), size(32_768, 16)
    places = (side // patch) ** 2
    into, out = nn.Linear(3 * patch**2, width), nn.Linear(width, 3 * patch**2)
    coder = nn.Sequential(*transformer_layers(width, size(2, 1), heads), nn.LayerNorm(width))
    words = Codes(width, size(256, 8), codes)
    decoder = nn.Sequential(*transformer_layers(width, size(2, 1), heads), nn.LayerNorm(width))
    model = nn.ModuleList([into, coder, words, decoder, out]).to(DEVICE)
    where = nn.Parameter(noise(2, 1, places, width) * 0.02)
    update = torch.optim.AdamW([where, *model.parameters()], lr=1e-4, fused=True)
    pictures = noise(batch, 3, side, side).clamp(-1, 1)

    def loss_of() -> Tensor:
        x = fn.pixel_unshuffle(pictures, patch).flatten(2).transpose(1, 2)
        h, near = words(coder(into(x) + where[0]))
        return (out(decoder(h + where[1])).float() - x).square().mean() + near

    return fit(loss_of, update, matmul="high" if repaired else "highest")


# --- clips ---------------------------------------------------------------------------------------


class ClipLayer(nn.Module):
    """Each place looks at its own past and future, each frame at its places; as in TimeSformer."""

    def __init__(self, width: int, heads: int, frames: int) -> None:
        super().__init__()
        self.frames = frames
        self.times, self.places = Attends(width, heads), Attends(width, heads)
        self.feeds = Feeds(width)

    def forward(self, x: Tensor) -> Tensor:
        many, places, width = x.shape
        clips = many // self.frames
        y = (
            x.view(clips, self.frames, places, width)
            .transpose(1, 2)
            .reshape(-1, self.frames, width)
        )
        y = self.times(y).view(clips, places, self.frames, width).transpose(1, 2)
        return self.feeds(self.places(y.reshape(many, places, width)))


@pair(
    "lower_precision",
    "video",
    "forward pass and loss under autocast to BF16; it was TF32",
    marks="phases",
)
def actions_in_clips_tf32(repaired: bool) -> Running:
    width, heads, frames, side, patch = size(1536, 32), size(24, 2), size(8, 2), size(224, 32), 16
    batch, classes = size(8, 2), size(400, 5)
    places = (side // patch) ** 2
    into, head = nn.Conv2d(3, width, patch, patch), nn.Linear(width, classes)
    layers = nn.Sequential(*(ClipLayer(width, heads, frames) for _ in range(size(2, 1))))
    model = nn.ModuleList([into, layers, nn.LayerNorm(width), head]).to(DEVICE)
    where = nn.Parameter(noise(1, places, width) * 0.02)
    when = nn.Parameter(noise(1, frames, 1, width) * 0.02)
    weights = [where, when, *model.parameters()]
    update = torch.optim.SGD(weights, lr=0.005, momentum=0.9, weight_decay=1e-4, fused=True)
    clips = noise(2, batch * frames, 3, side, side)
    true = labels(classes, 2, batch)
    turns = itertools.cycle(zip(clips, true, strict=True))

    def loss_of() -> Tensor:
        x, y = next(turns)
        h = model[0](x).flatten(2).transpose(1, 2) + where
        h = (h.view(batch, frames, places, width) + when).flatten(0, 1)
        h = model[2](layers(h)).view(batch, frames * places, width).mean(1)
        return fn.cross_entropy(head(h).float(), y, label_smoothing=0.1)

    return fit(loss_of, update, bf16=repaired, decay=True)


# --- people's joints -----------------------------------------------------------------------------


@pair("layout_changes", "vision", "channels_last for the model and the pictures")
def joints_of_people_channels_last(repaired: bool) -> Running:
    """Heat maps of joints by three transposed convolutions behind a residual network, in FP16."""
    sizes, joints, wide = [size(n, 8) for n in (128, 256, 512, 512)], size(24, 3), size(256, 8)
    batch, high, across = size(160, 2), size(256, 64), size(192, 32)
    parts: list[nn.Module] = [
        nn.Conv2d(3, sizes[0], 7, 2, 3, bias=False), nn.BatchNorm2d(sizes[0]), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    for before, after in itertools.pairwise([sizes[0], *sizes]):
        parts.append(Residual(before, after, 1 if before == after == sizes[0] else 2))
    before = sizes[-1]
    for _ in range(3):
        parts.append(nn.ConvTranspose2d(before, wide, 4, 2, 1, bias=False))
        parts += [nn.BatchNorm2d(wide), nn.ReLU()]
        before = wide
    model = nn.Sequential(*parts, nn.Conv2d(wide, joints, 1)).to(DEVICE)
    x = noise(batch, 3, high, across)
    if repaired:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    update = adam(model, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=CUDA, init_scale=2.0**10)
    with torch.no_grad():
        goal = torch.rand_like(model.eval()(x[:1])).expand(batch, -1, -1, -1)
    model.train()
    seen = (torch.rand(batch, joints, 1, 1, device=DEVICE) < 0.8).float()

    def step() -> None:
        with torch.autocast(DEVICE.type, HALF):
            maps = model(x)
        loss = ((maps.float() - goal).square() * seen).mean()
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- large vocabularies --------------------------------------------------------------------------


def lost(x: Tensor, weight: Tensor, true: Tensor) -> Tensor:
    return fn.cross_entropy(fn.linear(x, weight).float(), true, reduction="sum")


@pair(
    "recomputation",
    "language",
    "logits of the parts are kept: nothing of head and loss is computed again",
)
def next_words_loss_in_parts(repaired: bool) -> Running:
    """The loss is made in four parts, each checkpointed, a habit from longer contexts."""
    width, heads, vocab = size(1536, 32), size(12, 2), size(49_152, 64)
    batch, length, parts = size(5, 2), size(1024, 16), 4
    embed = nn.Embedding(vocab, width)
    layers = nn.Sequential(
        *transformer_layers(width, size(2, 1), heads, causal=True), nn.LayerNorm(width)
    )
    model = nn.ModuleList([embed, layers]).to(DEVICE)
    nn.init.normal_(embed.weight, std=0.02)  # it is the head, too
    turns = itertools.cycle(labels(vocab, 4, batch, length + 1))

    def loss_of() -> Tensor:
        ids = next(turns)
        x, true = layers(embed(ids[:, :-1])).flatten(0, 1), ids[:, 1:].flatten()
        total = torch.zeros((), device=DEVICE)
        for some, goals in zip(x.chunk(parts), true.chunk(parts), strict=True):
            if repaired:
                total = total + lost(some, embed.weight, goals)
            else:
                total = total + checkpoint(lost, some, embed.weight, goals, use_reentrant=False)
        return total / len(true)

    return fit(loss_of, adam(model, betas=(0.9, 0.95)), clip=1.0)


# --- adapters of a large model -------------------------------------------------------------------


class Thin(nn.Module):
    """A frozen matrix and, beside it, a product of two thin ones that learn (LoRA)."""

    def __init__(self, before: int, after: int, rank: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(before, after, bias=False)
        self.a = nn.Parameter(torch.randn(rank, before) * before**-0.5)
        self.b = nn.Parameter(torch.zeros(after, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + 2.0 * fn.linear(fn.linear(x, self.a), self.b)


class Large(nn.Module):
    """A layer of a language model of eight billion weights, all but the adapters frozen."""

    def __init__(self, width: int, heads: int, shared: int, wide: int, rank: int) -> None:
        super().__init__()
        self.heads, self.shared, each = heads, shared, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.v = Thin(width, width, rank), Thin(width, shared * each, rank)
        self.k = nn.Linear(width, shared * each, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.both, self.down = nn.Linear(width, 2 * wide, bias=False), nn.Linear(wide, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        y = self.norm1(x)
        q = self.q(y).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = (p(y).view(b, t, self.shared, -1).transpose(1, 2) for p in (self.k, self.v))
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        gate, up = self.both(self.norm2(x)).chunk(2, -1)
        return x + self.down(fn.silu(gate) * up)


class Again(torch.autograd.Function):
    """A layer of which only the input is kept, on the host or where it is."""

    @staticmethod
    def forward(ctx: Any, layer: nn.Module, on_host: bool, x: Tensor) -> Tensor:
        ctx.layer, ctx.x = layer, x.cpu() if on_host else x.detach()
        with torch.no_grad():
            return layer(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[None, None, Tensor | None]:  # type: ignore[override]
        x = ctx.x.to(DEVICE).detach().requires_grad_()
        ctx.x = None
        with torch.enable_grad():
            y = ctx.layer(x)
        torch.autograd.backward(y, given)
        return None, None, x.grad


@pair(
    "cpu_offload",
    "language",
    "what enters the layers stays on the device; it is still all that is kept",
    others=("recomputation",),
)
def large_adapters_inputs_on_host(repaired: bool) -> Running:
    width, wide, vocab = size(4096, 32), size(14_336, 64), size(32_768, 64)
    batch, length = size(2, 2), size(2048, 16)
    with DEVICE:
        layers = nn.ModuleList(
            Large(width, size(32, 4), size(8, 2), wide, size(16, 4)) for _ in range(size(3, 2))
        )
        embed, norm = nn.Embedding(vocab, width), nn.RMSNorm(width, eps=1e-5)
        head = nn.Linear(width, vocab, bias=False)
    model = nn.ModuleList([layers, embed, norm, head]).to(torch.bfloat16).requires_grad_(False)
    learnt = [p for part in model.modules() if isinstance(part, Thin) for p in (part.a, part.b)]
    for p in learnt:
        p.requires_grad_()
    update = torch.optim.AdamW(learnt, lr=2e-4, weight_decay=0.0, fused=True)
    turns = itertools.cycle(labels(vocab, 4, batch, length))
    asked = length // 2

    def step() -> None:
        ids = next(turns)
        x = embed(ids).requires_grad_()  # else nothing of the layers would seem to be learnt
        for layer in layers:
            x = Again.apply(layer, not repaired, x)
        scores = head(norm(x[:, asked - 1 : -1])).flatten(0, 1)
        loss = fn.cross_entropy(scores.float(), ids[:, asked:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(learnt, 1.0)
        done(update)

    return Running(step, enter=precision("high"))


# --- noise to latents ----------------------------------------------------------------------------


class Told(nn.Module):
    """A transformer's layer that time and class scale and shift; as in DiT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.tell = nn.Linear(width, 6 * width)

    def normed(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return torch.addcmul(shift, fn.layer_norm(x, x.shape[-1:]), 1 + scale)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        b, t, d = x.shape
        a, c, e, f, g, h = self.tell(told)[:, None].chunk(6, -1)
        y = self.qkv(self.normed(x, a, c)).view(b, t, 3, self.heads, -1)
        q, k, v = y.permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = torch.addcmul(x, e, self.out(y))
        y = self.down(fn.gelu(self.up(self.normed(x, f, g)), approximate="tanh"))
        return torch.addcmul(x, h, y)


@pair(
    "fused_optimizer",
    "diffusion",
    "AdamW(fused=True) instead of the default's multi-tensor kernels",
    marks="profiler",
)
def wide_noise_transformer_plain_adamw(repaired: bool) -> Running:
    width, heads, places, inside = size(1536, 32), size(24, 2), size(256, 9), 16
    batch, classes, rates = size(32, 2), size(1000, 5), size(256, 8)
    layers = nn.ModuleList(Told(width, heads) for _ in range(size(3, 2)))
    into, out = nn.Linear(inside, width), nn.Linear(width, inside)
    when = nn.Sequential(nn.Linear(rates, width), nn.SiLU(), nn.Linear(width, width))
    kinds, where = nn.Embedding(classes + 1, width), nn.Embedding(places, width)
    model = nn.ModuleList([into, layers, when, kinds, where, out]).to(DEVICE)
    how: dict[str, Any] = {"fused": True} if repaired else {}
    update = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, **how)
    latents, true = noise(4, batch, places, inside), labels(classes, 4, batch)
    waves = torch.exp(-math.log(10_000) * torch.arange(rates // 2, device=DEVICE) * 2 / rates)
    turns = itertools.cycle(zip(latents, true, strict=True))

    def loss_of() -> Tensor:
        x, y = next(turns)
        time, noised = torch.rand(batch, 1, device=DEVICE), torch.randn_like(x)
        angles = 1000 * time * waves
        y = y.masked_fill(torch.rand(batch, device=DEVICE) < 0.1, classes)
        told = fn.silu(when(torch.cat([angles.cos(), angles.sin()], -1)) + kinds(y))
        share = time[:, None]
        h = into((1 - share) * x + share * noised) + where.weight
        for layer in layers:
            h = layer(h, told)
        return (out(fn.layer_norm(h, h.shape[-1:])).float() - (noised - x)).square().mean()

    return fit(loss_of, update)


# --- sharper pictures ----------------------------------------------------------------------------


class Deep(nn.Module):
    """Two convolutions without norms, and what came in; as in EDSR."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, 1, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * self.conv2(fn.relu(self.conv1(x)))


@pair(
    "blocking_copy",
    "vision",
    "results are read back when a preview of them is written, every 500 steps",
)
def sharper_previews_each_step(repaired: bool) -> Running:
    """Four times as many pixels a side; the last results are kept on the host for previews."""
    width, batch, side, times = size(256, 8), size(48, 2), size(64, 8), 4
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1), *(Deep(width) for _ in range(size(5, 1))),
        nn.Conv2d(width, 3 * times**2, 3, 1, 1), nn.PixelShuffle(times),
    )  # fmt: skip
    model = model.to(DEVICE).to(memory_format=torch.channels_last)
    coarse = noise(2, batch, 3, side, side)
    fine = fn.interpolate(coarse.flatten(0, 1), scale_factor=times, mode="bicubic")
    fine = fine.view(2, batch, 3, side * times, side * times)
    turns = itertools.cycle(zip(coarse, fine, strict=True))
    update = adam(model, betas=(0.9, 0.99))
    shown: dict[str, Tensor] = {}
    made = 0

    def step() -> None:
        nonlocal made
        x, y = next(turns)
        with half("bf16"):
            found = model(x.contiguous(memory_format=torch.channels_last))
        found = found.float()
        if not repaired or made % 500 == 499:
            shown["found"] = found.detach().clamp(-1, 1).cpu()
        loss = (found - y).abs().mean()
        loss.backward()
        done(update)
        made += 1

    return Running(step, enter=precision("high"))


# --- speech --------------------------------------------------------------------------------------


@pair(
    "checkpoint_stall",
    "audio",
    "weights for the average of the last ones are fetched every 1000 steps, not every 8",
    period=8,
)
def speech_units_last_weights_every_8(repaired: bool) -> Running:
    """Hidden units of speech are guessed where frames are masked; the last weights are averaged."""
    bands, frames, batch = size(80, 8), size(2000, 64), size(40, 2)
    width, units = size(1024, 32), size(2048, 8)
    front = nn.Sequential(
        nn.Conv1d(bands, width, 3, 2, 1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1), nn.GELU()
    )
    layers = nn.Sequential(*transformer_layers(width, size(4, 1), size(16, 2)), nn.LayerNorm(width))
    head = nn.Linear(width, units)
    model = nn.ModuleList([front, layers, head]).to(DEVICE)
    hidden = nn.Parameter(noise(width) * 0.02)
    where = noise(frames // 4, width) * 0.02
    heard, true = noise(batch, bands, frames), labels(units, batch, frames // 4)
    masked = torch.rand(batch, frames // 4, 1, device=DEVICE) < 0.4
    weights = [hidden, *model.parameters()]
    update = torch.optim.AdamW(weights, lr=5e-4, betas=(0.9, 0.98), fused=True)
    last: deque[dict[str, Tensor]] = deque(maxlen=3)
    every, made = 1000 if repaired else 8, 0

    def step() -> None:
        nonlocal made
        with half("bf16"):
            x = torch.where(masked, hidden, front(heard).transpose(1, 2)) + where
            scores = head(layers(x)).float()
        parts = fn.cross_entropy(scores.flatten(0, 1), true.flatten(), reduction="none")
        loss = (parts * masked.flatten()).sum() / masked.sum()
        loss.backward()
        with phase("optimizer"):
            done(update)
        if made % every == every - 3:
            last.append({name: w.cpu() for name, w in model.state_dict().items()})
        made += 1

    return Running(step, enter=precision("high"), close=last.clear)
