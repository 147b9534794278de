"""An eleventh set of programs for one GPU: what its kernels do, few and large ones.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Attends, Feeds, precision, size, transformer_layers
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 191 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
HALF = torch.float16 if CUDA else torch.bfloat16


# --- attention as in the first BERT ---------------------------------------------------------------


class Reads(nn.Module):
    """Attention of long texts; what fills them up gets large negative scores, as in BERT."""

    def __init__(self, width: int, heads: int, drop: float, *, written: bool) -> None:
        super().__init__()
        self.heads, self.written = heads, written
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.drop, self.norm = nn.Dropout(drop), nn.LayerNorm(width)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.split(part(x)) for part in (self.query, self.key, self.value))
        if self.written:
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
            odds = self.drop(fn.softmax(scores + mask, dim=-1))
            y = torch.matmul(odds, v)
        else:
            y = fn.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=self.drop.p if self.training else 0.0
            )
        return self.norm(x + self.out(y.transpose(1, 2).flatten(2)))


@pair(
    "unfused_attention",
    "language",
    "scaled_dot_product_attention with the same mask and its own dropout",
)
def judgements_first_bert_attention(repaired: bool) -> Running:
    """Courts' judgements get the articles of law that they rest on; FP16 with a scaler."""
    width, heads, length, batch = size(2048, 32), size(16, 2), size(1024, 16), size(9, 2)
    vocab, articles = size(8192, 64), size(600, 5)
    with DEVICE:
        embed, place = nn.Embedding(vocab, width), nn.Embedding(length, width)
        looks = nn.ModuleList(Reads(width, heads, 0.1, written=not repaired) for _ in range(2))
        feeds = nn.ModuleList(Feeds(width) for _ in looks)
        head = nn.Linear(width, articles)
    model = nn.ModuleList([embed, place, looks, feeds, head])
    update = adam(model, weight_decay=0.01)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=CUDA, init_scale=2.0**10)
    ids = labels(vocab, batch, length)
    long = torch.linspace(length // 2, length, batch, device=DEVICE)
    shown = torch.arange(length, device=DEVICE) < long[:, None]
    rests = (torch.rand(batch, articles, device=DEVICE) < 0.02).float()

    def step() -> None:
        with torch.autocast(DEVICE.type, HALF):
            mask = (1.0 - shown[:, None, None, :].to(HALF)) * -10_000.0
            x = embed(ids) + place.weight
            for look, feed in zip(looks, feeds, strict=True):
                x = feed(look(x, mask))
            scores = head(x[:, 0])
            loss = fn.binary_cross_entropy_with_logits(scores.float(), rests)
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- attention in slices --------------------------------------------------------------------------


class Slices(nn.Module):
    """Places of a picture and words look at each other; a few heads at a time, to save memory."""

    def __init__(self, width: int, heads: int, each: int, *, sliced: bool) -> None:
        super().__init__()
        self.heads, self.each, self.sliced = heads, each, sliced
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        b, t, d = x.shape
        y = self.norm(x) * (1 + scale) + shift
        q, k, v = self.qkv(y).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.sliced:
            found = []
            parts = (part.split(self.each, 1) for part in (q, k, v))
            for some, keys, values in zip(*parts, strict=True):
                scores = torch.matmul(some * some.shape[-1] ** -0.5, keys.mT)
                found.append(torch.matmul(scores.softmax(-1), values))
            y = torch.cat(found, 1)
        else:
            y = fn.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


@pair(
    "unfused_attention",
    "diffusion",
    "scaled_dot_product_attention of all heads instead of slices of four heads",
    marks="steps",
)
def panoramas_attention_in_slices(repaired: bool) -> Running:
    """Wide pictures from words, all in BF16; the slices were for a card with less memory."""
    width, heads, layers = size(1536, 32), size(12, 4), size(3, 1)
    high, across, words, inside, batch = size(32, 4), size(88, 6), size(128, 4), 64, size(4, 2)
    looks = nn.ModuleList(Slices(width, heads, 4, sliced=not repaired) for _ in range(layers))
    feeds = nn.ModuleList(Feeds(width) for _ in range(layers))
    into, reads = nn.Linear(inside, width), nn.Linear(size(768, 16), width)
    times = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, 2 * width))
    out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, inside))
    model = nn.ModuleList([looks, feeds, into, reads, times, out]).to(DEVICE, torch.bfloat16)
    where = nn.Parameter(noise(1, high * across, width).bfloat16() * 0.02)
    update = torch.optim.AdamW([where, *model.parameters()], lr=1e-4, fused=True)
    clean, prompts = (
        noise(batch, high * across, inside),
        noise(batch, words, size(768, 16)).bfloat16(),
    )
    rates = torch.exp(torch.linspace(0, -9, 128, device=DEVICE))

    def loss_of() -> Tensor:
        at = torch.rand(batch, 1, 1, device=DEVICE)
        mixed = torch.randn_like(clean)
        angles = 1000 * at * rates
        known = times(torch.cat([angles.sin(), angles.cos()], -1).bfloat16())
        scale, shift = known.chunk(2, -1)
        x = into(torch.lerp(mixed, clean, at).bfloat16()) + where
        x = torch.cat([reads(prompts), x], 1)
        for look, feed in zip(looks, feeds, strict=True):
            x = feed(look(x, scale, shift))
        return (out(x[:, words:]).float() - (clean - mixed)).square().mean()

    return fit(loss_of, update, bf16=False, decay=True)


# --- stations of which some are silent ------------------------------------------------------------


class Stations(nn.Module):
    """Places ask stations what they read; the softmax leaves out those that were silent."""

    def __init__(self, width: int, heads: int, *, written: bool) -> None:
        super().__init__()
        self.heads, self.written = heads, written
        self.norm = nn.LayerNorm(width)
        self.ask, self.tell = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, known: Tensor, spoke: Tensor) -> Tensor:
        b, t, d = x.shape
        q = self.ask(self.norm(x)).view(b, t, self.heads, -1).transpose(1, 2)
        told = self.tell(known).view(b, known.shape[1], 2, self.heads, -1)
        k, v = told.permute(2, 0, 3, 1, 4)
        seen = spoke[:, None, None, :]
        if self.written:
            scores = q @ k.transpose(2, 3) / d**0.5 * self.heads**0.5
            # zeros instead of infinities: a day without stations must not become NaN
            heat = torch.exp(scores - scores.detach().amax(-1, keepdim=True)) * seen
            y = (heat / (heat.sum(-1, keepdim=True) + 1e-6)) @ v
        else:
            y = fn.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


@pair(
    "unfused_attention",
    "science",
    "scaled_dot_product_attention; stations that spoke are its mask (each day has some)",
)
def silent_stations_own_softmax(repaired: bool) -> Running:
    """Temperatures between stations, with their uncertainty; an attentive neural process."""
    width, heads, batch = size(1024, 32), size(8, 2), size(16, 2)
    places, stations, layers = size(2048, 16), size(640, 8), size(2, 1)
    learns = nn.Sequential(nn.Linear(8, width), *transformer_layers(width, 1, heads))
    asks = nn.Linear(4, width)
    looks = nn.ModuleList(Stations(width, heads, written=not repaired) for _ in range(layers))
    feeds = nn.ModuleList(Feeds(width) for _ in range(layers))
    out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))
    model = nn.ModuleList([learns, asks, looks, feeds, out]).to(DEVICE)
    read, wanted = noise(batch, stations, 8), noise(batch, places, 4)
    true = noise(batch, places)
    spoke = torch.rand(batch, stations, device=DEVICE) < 0.8

    def loss_of() -> Tensor:
        known, x = learns(read), asks(wanted)
        for look, feed in zip(looks, feeds, strict=True):
            x = feed(look(x, known, spoke))
        mean, spread = out(x).float().unbind(-1)
        spread = 0.05 + 0.95 * fn.softplus(spread)
        return (0.5 * ((true - mean) / spread).square() + spread.log()).mean()

    return fit(loss_of, adam(model), clip=1.0)


# --- gates of genomes -----------------------------------------------------------------------------


class Halves(nn.Module):
    """One half of the channels is let through by the other one."""

    def forward(self, x: Tensor) -> Tensor:
        values, gates = x.chunk(2, dim=1)
        return values * torch.sigmoid(gates)


class Gates(nn.Module):
    """A convolution whose channels are gated, and what came in."""

    def __init__(self, width: int, *, own: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.conv = nn.Conv1d(width, 2 * width, 3, padding=1)
        self.gate = Halves() if own else nn.GLU(1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate(self.conv(self.norm(x)))


@pair("fusion_opportunity", "science", "nn.GLU, which is one kernel, instead of chunk and sigmoid")
def genome_tracks_gates_by_chunk(repaired: bool) -> Running:
    """How open a genome is, for each place and kind of cell; counts are foretold."""
    width, length, batch, tracks = size(192, 16), size(8192, 64), size(40, 2), size(64, 4)
    parts: list[nn.Module] = [nn.Conv1d(4, width, 15, padding=7)]
    parts += [Gates(width, own=not repaired) for _ in range(size(6, 2))]
    model = nn.Sequential(*parts, nn.Conv1d(width, tracks, 1)).to(DEVICE)
    bases = fn.one_hot(labels(4, batch, length), 4).float().transpose(1, 2).contiguous()
    counts = torch.poisson(torch.rand(batch, tracks, length, device=DEVICE) * 3)

    def loss_of() -> Tensor:
        return fn.poisson_nll_loss(model(bases).float(), counts)

    return fit(loss_of, adam(model, weight_decay=0.0), decay=True)


# --- a surface of a cave --------------------------------------------------------------------------


class Softened(nn.Module):
    """A ramp without a corner: spelled out as in the paper, or the library's."""

    def __init__(self, sharp: float, *, own: bool) -> None:
        super().__init__()
        self.sharp, self.own = sharp, own

    def forward(self, x: Tensor) -> Tensor:
        if self.own:
            return torch.log(1 + torch.exp(self.sharp * x)) / self.sharp
        return fn.softplus(x, beta=self.sharp)


@pair("fusion_opportunity", "points", "torch.nn.functional.softplus instead of its formula")
def cave_walls_ramp_of_paper(repaired: bool) -> Running:
    """How far from a scanned cave's wall points are; single precision, products in TF32."""
    width, points, layers = size(1024, 16), size(49_152, 64), size(7, 2)
    ramp = Softened(10.0, own=not repaired)
    parts: list[nn.Module] = [nn.Linear(6 * 8, width), ramp]
    for _ in range(layers):
        parts += [nn.Linear(width, width), ramp]
    model = nn.Sequential(*parts, nn.Linear(width, 1)).to(DEVICE)
    places = torch.rand(4, points, 3, device=DEVICE) * 2 - 1
    far = (places.norm(dim=-1) - 0.7).clamp(-0.1, 0.1)
    rates = math.pi * 2.0 ** torch.arange(8, device=DEVICE)
    turns = itertools.cycle(zip(places, far, strict=True))

    def loss_of() -> Tensor:
        x, true = next(turns)
        angles = (x[:, :, None] * rates).flatten(1)
        seen = torch.cat([angles.sin(), angles.cos()], 1)
        return fn.l1_loss(model(seen)[:, 0], true)

    return fit(loss_of, adam(model, betas=(0.9, 0.99)), bf16=False, decay=True)


# --- a student of a teacher's odds ----------------------------------------------------------------


def between(student: Tensor, teacher: Tensor, heat: float) -> Tensor:
    """How far the odds are from those in the middle of both (Jensen and Shannon)."""
    p = (student.float() / heat).log_softmax(-1)
    q = (teacher.float() / heat).log_softmax(-1)
    middle = torch.log(0.5 * p.exp() + 0.5 * q.exp() + 1e-9)
    apart = 0.5 * p.exp() * (p - middle) + 0.5 * q.exp() * (q - middle)
    return heat**2 * apart.sum(-1).mean()


class Writes(nn.Module):
    """A language model without a head's bias."""

    def __init__(self, width: int, layers: int, vocab: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.Sequential(
            *transformer_layers(width, layers, max(width // 128, 1), causal=True),
            nn.LayerNorm(width),
        )
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(ids)))


@pair(
    "fusion_opportunity",
    "language",
    "torch.compile of the function of the loss between student and teacher",
    compiles=True,
    marks="phases",
)
def letters_student_between_compile(repaired: bool) -> Running:
    vocab, batch, length = size(14_336, 64), size(4, 2), size(1024, 16)
    with DEVICE:
        teacher = Writes(size(3072, 32), size(2, 1), vocab).bfloat16().requires_grad_(False)
        student = Writes(size(1536, 16), size(2, 1), vocab)
    ids = labels(vocab, batch, length + 1)
    loss_between: Callable[[Tensor, Tensor, float], Tensor] = (
        torch.compile(between, dynamic=False) if repaired else between
    )

    def loss_of() -> Tensor:
        with torch.no_grad(), torch.autocast(DEVICE.type, enabled=False):
            told = teacher(ids[:, :-1]).flatten(0, 1)
        said = student(ids[:, :-1]).flatten(0, 1)
        right = fn.cross_entropy(said.float(), ids[:, 1:].flatten())
        return 0.5 * right + 0.5 * loss_between(said, told, 2.0)

    return fit(loss_of, adam(student, weight_decay=0.1))


# --- two views of a place -------------------------------------------------------------------------


class Strided(nn.Module):
    """Two convolutions of which the first may halve the picture."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(self.norm2(self.conv2(fn.relu(self.norm1(self.conv1(x))))))


def products(setting: str) -> Callable[[], None]:
    """What matrix products may do; convolutions are in TF32, which is PyTorch's default."""

    def enter() -> None:
        torch.set_float32_matmul_precision(setting)
        torch.backends.cudnn.allow_tf32 = True

    return enter


@pair(
    "low_precision_unused",
    "vision",
    "torch.set_float32_matmul_precision('high'): pairs are compared in TF32, as convolutions are",
)
def two_views_all_pairs_compared(repaired: bool) -> Running:
    """Each place of a view finds itself in another one; matched both ways, as in LoFTR."""
    sizes, batch, side = [size(n, 8) for n in (96, 192, 384)], size(6, 2), size(512, 32)
    inside = size(768, 8)
    parts: list[nn.Module] = [nn.Conv2d(3, sizes[0], 7, 2, 3, bias=False), nn.ReLU()]
    for number, (before, after) in enumerate(itertools.pairwise([sizes[0], *sizes])):
        parts.append(Strided(before, after, 2 if number else 1))
    model = nn.Sequential(*parts, nn.Conv2d(sizes[-1], inside, 1)).to(DEVICE)
    places = (side // 8) ** 2
    heat = nn.Parameter(torch.full((), 2.3, device=DEVICE))
    update = torch.optim.AdamW([heat, *model.parameters()], lr=1e-4, fused=True)
    views = noise(2 * batch, 3, side, side)
    there = torch.stack([torch.randperm(places, device=DEVICE) for _ in range(batch)])
    back = there.argsort(1)

    def step() -> None:
        with phase("forward"):
            found = fn.normalize(model(views).flatten(2), dim=1)
            a, b = found.chunk(2)
            alike = torch.bmm(a.transpose(1, 2), b) * heat.exp()
            loss = 0.5 * (fn.cross_entropy(alike.mT, there) + fn.cross_entropy(alike, back))
        with phase("backward"):
            loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=products("high" if repaired else "highest"))


# --- words mixed by frequencies -------------------------------------------------------------------


def waves(n: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of a Fourier transform of so many places, as matrices."""
    places = torch.arange(n, dtype=torch.float64)
    angles = 2 * math.pi * torch.outer(places, places).remainder(n) / n
    scale = n**-0.5
    return (angles.cos() * scale).float(), (angles.sin() * scale).float()


class Frequencies(nn.Module):
    """Words and features are mixed by Fourier transforms, as products; as in FNet."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm, self.feed = nn.LayerNorm(width), Feeds(width)
        for name, n in (("words", length), ("features", width)):
            cos, sin = waves(n)
            self.register_buffer(f"{name}_cos", cos)
            self.register_buffer(f"{name}_sin", sin)

    def mixed(self, x: Tensor) -> Tensor:
        """What is real of the transform; autocast would round the waves to eight bits."""
        with torch.autocast(DEVICE.type, enabled=False):
            cos = self.words_cos.expand(x.shape[0], -1, -1)
            sin = self.words_sin.expand(x.shape[0], -1, -1)
            y = torch.bmm(cos, x.float() @ self.features_cos)
            return torch.baddbmm(y, sin, x.float() @ self.features_sin, alpha=-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.feed(x + self.mixed(self.norm(x)))


@pair(
    "low_precision_unused",
    "language",
    "torch.set_float32_matmul_precision('high'): what autocast leaves out is in TF32",
    marks="profiler",
)
def missing_words_by_frequencies(repaired: bool) -> Running:
    """Every sixth word is missing; BF16, but the transforms are in single precision."""
    width, length, batch = size(1024, 32), size(1024, 16), size(24, 2)
    vocab, gone = size(30_720, 64), size(168, 3)
    embed, norm = nn.Embedding(vocab, width), nn.LayerNorm(width)
    mixes = nn.Sequential(*(Frequencies(width, length) for _ in range(size(2, 1))))
    model = nn.ModuleList([embed, mixes, norm]).to(DEVICE)
    nn.init.normal_(embed.weight, std=0.02)  # it is the head, too
    ids = labels(vocab, batch, length)
    where = torch.rand(batch, length, device=DEVICE).topk(gone, 1).indices
    true, shown = ids.gather(1, where).flatten(), ids.scatter(1, where, 0)
    rows = (where + length * torch.arange(batch, device=DEVICE)[:, None]).flatten()

    def loss_of() -> Tensor:
        x = mixes(embed(shown)).flatten(0, 1)
        scores = fn.linear(norm(x.index_select(0, rows)), embed.weight)
        return fn.cross_entropy(scores.float(), true)

    setting = "high" if repaired else "highest"
    return fit(loss_of, adam(model, weight_decay=0.01), matmul=setting, decay=True)


# --- planes of a scene ----------------------------------------------------------------------------


class Planned:
    """Adam as the team wrote it for its grids, whose rate falls; one weight after another."""

    def __init__(self, weights: list[nn.Parameter], lr: float) -> None:
        self.weights, self.lr, self.made = weights, lr, 0
        self.means = [torch.zeros_like(p) for p in weights]
        self.squares = [torch.zeros_like(p) for p in weights]

    @torch.no_grad()
    def step(self) -> None:
        self.made += 1
        first, second = 1 - 0.9**self.made, 1 - 0.99**self.made
        for p, mean, square in zip(self.weights, self.means, self.squares, strict=True):
            assert p.grad is not None
            mean.mul_(0.9).add_(p.grad, alpha=0.1)
            square.mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
            p.addcdiv_(mean / first, (square / second).sqrt() + 1e-8, value=-self.lr)

    def zero_grad(self) -> None:
        for p in self.weights:
            p.grad = None


@pair(
    "unfused_optimizer",
    "vision",
    "torch.optim.Adam(fused=True) instead of the team's loop over the planes",
)
def scene_planes_own_adam(repaired: bool) -> Running:
    """Colours along rays, from three planes of features and a small network; BF16."""
    inside, side, width = size(32, 4), size(1408, 16), size(256, 16)
    rays, each = size(8192, 16), size(64, 4)
    planes = nn.ParameterList(nn.Parameter(noise(1, inside, side, side) * 0.1) for _ in range(3))
    net = nn.Sequential(
        nn.Linear(inside, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 4),
    ).to(DEVICE)  # fmt: skip
    weights = [*planes, *net.parameters()]
    update: Any = (
        torch.optim.Adam(weights, lr=1e-3, betas=(0.9, 0.99), fused=True)
        if repaired
        else Planned(weights, 1e-3)
    )
    start = torch.rand(rays, 1, 3, device=DEVICE) - 0.5
    ways = fn.normalize(noise(rays, 1, 3), dim=-1)
    depths = torch.linspace(0.0, 0.5, each, device=DEVICE)[None, :, None]
    places = start + ways * depths
    flat = [places[..., axes].view(1, rays, each, 2) for axes in ([0, 1], [0, 2], [1, 2])]
    true = torch.rand(rays, 3, device=DEVICE)

    def step() -> None:
        parts = [
            fn.grid_sample(plane, at, align_corners=True)
            for plane, at in zip(planes, flat, strict=True)
        ]
        seen = (parts[0] * parts[1] * parts[2])[0].permute(1, 2, 0)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            found = net(seen).float()
        thick = fn.softplus(found[..., 3]) / each
        passed = torch.exp(thick - thick.cumsum(1))
        light = (passed * (1 - torch.exp(-thick)))[..., None] * found[..., :3].sigmoid()
        loss = (light.sum(1) - true).square().mean()
        loss.backward()
        update.step()
        update.zero_grad()

    return Running(step, enter=precision("high"))


# --- rust on bridges ------------------------------------------------------------------------------


class Branches(nn.Module):
    """Convolutions of two sizes and none at all, side by side; as RepVGG is trained."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.thin = nn.Conv2d(before, after, 1, stride, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.same = nn.BatchNorm2d(after) if before == after and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(self.wide(x)) + self.norm2(self.thin(x))
        return fn.relu(y if self.same is None else y + self.same(x))


@pair("layout_changes", "vision", "channels_last for the model and the photographs")
def rust_on_bridges_channels_last(repaired: bool) -> Running:
    """Damage on photographs of bridges, several kinds at once; BF16, gradients clipped."""
    sizes, batch, side, kinds = [size(n, 8) for n in (96, 192, 384)], size(96, 2), size(256, 32), 7
    parts: list[nn.Module] = [nn.Conv2d(3, sizes[0], 3, 2, 1, bias=False)]
    for number, (before, after) in enumerate(itertools.pairwise([sizes[0], *sizes])):
        parts.append(Branches(before, after, 2 if number else 1))
        parts.append(Branches(after, after, 1))
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], kinds)]
    model = nn.Sequential(*parts, *head).to(DEVICE)
    x = noise(batch, 3, side, side)
    there = (torch.rand(batch, kinds, device=DEVICE) < 0.2).float()
    if repaired:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    update = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True
    )

    def loss_of() -> Tensor:
        return fn.binary_cross_entropy_with_logits(model(x).float(), there)

    return fit(loss_of, update, clip=5.0)


# --- what pruning left ----------------------------------------------------------------------------


class Pruned(nn.Module):
    """A gated feed-forward layer of which pruning left so many channels."""

    def __init__(self, width: int, left: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, left, False), nn.Linear(width, left, False)
        self.down = nn.Linear(left, width, False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).to(x.dtype)
        return x + self.down(fn.silu(self.gate(y)) * self.up(y))


@pair(
    "aligned_shapes",
    "language",
    "of the pruned channels as many are kept as make a multiple of 64",
    marks="steps",
)
def pruned_answers_odd_channels(repaired: bool) -> Running:
    """A decoder is tuned again after the weakest channels of each layer were cut out."""
    width, batch, length, vocab = size(2048, 32), size(6, 2), size(1024, 16), size(8192, 64)
    rng, blocks = np.random.default_rng(7), []
    for _ in range(size(3, 1)):
        weak = np.sort(rng.random(size(8192, 128)))
        left = int((weak > 0.35).sum()) | 1
        if repaired:
            left = -(-left // 64) * 64
        with DEVICE:
            blocks += [Attends(width, size(16, 2), causal=True), Pruned(width, left)]
    with DEVICE:
        embed, layers = nn.Embedding(vocab, width), nn.Sequential(*blocks, nn.RMSNorm(width))
    model = nn.ModuleList([embed, layers])
    nn.init.normal_(embed.weight, std=0.02)
    ids = labels(vocab, batch, length + 1)

    def loss_of() -> Tensor:
        scores = fn.linear(layers(embed(ids[:, :-1])), embed.weight)
        return fn.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten())

    return fit(loss_of, adam(model, betas=(0.9, 0.95)), decay=True)


# --- gradients made flat for other ranks ----------------------------------------------------------


@torch.no_grad()
def exchanged(weights: list[nn.Parameter], ranks: int) -> None:
    """Gradients of all ranks, averaged: as one flat tensor, in BF16 on the wire."""
    grads = [p.grad for p in weights if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads])
    wire = flat.bfloat16()
    if ranks > 1:
        torch.distributed.all_reduce(wire)
    flat = wire.float().div_(ranks)
    parts = flat.split([g.numel() for g in grads])
    for grad, part in zip(grads, parts, strict=True):
        grad.copy_(part.view_as(grad))


@pair(
    "casts_and_copies",
    "audio",
    "where there is one rank gradients are neither made flat nor cast",
)
def melodies_gradients_made_flat(repaired: bool) -> Running:
    """Melodies by their codes; the team's own exchange of gradients runs on one GPU, too."""
    width, heads, vocab = size(2560, 32), size(20, 2), size(8192, 64)
    batch, length, ranks = size(5, 2), size(1024, 16), 1
    with DEVICE:
        embed, head = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        layers = nn.Sequential(
            *transformer_layers(width, size(2, 1), heads, causal=True), nn.LayerNorm(width)
        )
    model = nn.ModuleList([embed, layers, head])
    weights = list(model.parameters())
    update = adam(model, weight_decay=0.1)
    ids = labels(vocab, batch, length + 1)

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            scores = head(layers(embed(ids[:, :-1])))
            loss = fn.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        if not repaired or ranks > 1:
            exchanged(weights, ranks)
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))
