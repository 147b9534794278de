"""A twentieth set for one GPU: faults that most users have, two of them of the host.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Attends, Feeds, done, precision, size, transformer_layers
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 400 pairs, opened"
pair = entered(PROGRAMS)
SHORT = torch.bfloat16


# --- enzymes --------------------------------------------------------------------------------------


def turned(x: Tensor) -> Tensor:
    """The second half of the features, negated, before the first."""
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


class Residues(nn.Module):
    """A layer over residues, whose first dimension is the length; as in ESM-2."""

    def __init__(self, width: int, heads: int, *, by_bmm: bool) -> None:
        super().__init__()
        self.heads, self.by_bmm = heads, by_bmm
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def looks(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        long, batch, width = x.shape
        parts = (part(x) for part in (self.q, self.k, self.v))
        q, k, v = (p.view(long, batch * self.heads, -1).transpose(0, 1) for p in parts)
        q, k = (p * cos + turned(p) * sin for p in (q, k))
        if self.by_bmm:
            scores = torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2))
            shares = torch.softmax(scores, dim=-1, dtype=torch.float32).type_as(scores)
            seen = torch.bmm(shares, v)
        else:
            split = (part.unflatten(0, (batch, self.heads)) for part in (q, k, v))
            seen = fn.scaled_dot_product_attention(*split).flatten(0, 1)
        return self.out(seen.transpose(0, 1).reshape(long, batch, width))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.looks(self.norm1(x), cos, sin)
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


@pair(
    "unfused_attention",
    "biology",
    "scaled_dot_product_attention instead of two torch.bmm and a softmax in FP32 between them",
    marks="steps",
)
def enzymes_residues_hidden_scores_by_bmm(repaired: bool) -> Running:
    """Residues of enzymes that were hidden are guessed; autocast to BF16."""
    batch, long, kinds = size(40, 2), size(512, 8), size(64, 9)
    width, heads, layers = size(640, 16), size(20, 2), size(6, 2)
    embed, last = nn.Embedding(kinds, width), nn.Linear(width, kinds)
    body = nn.ModuleList(Residues(width, heads, by_bmm=not repaired) for _ in range(layers))
    norm = nn.LayerNorm(width)
    model = nn.ModuleList([embed, body, norm, last]).to(DEVICE)
    true = labels(kinds - 1, long, batch)
    hidden = torch.rand(long, batch, device=DEVICE) < 0.15
    seen = true.masked_fill(hidden, kinds - 1)
    goal = true.masked_fill(~hidden, -100).flatten()
    half = width // heads // 2
    turns = torch.arange(half, device=DEVICE) * (-9.2 / half)
    angles = torch.arange(long, device=DEVICE)[:, None] * turns.exp().repeat(2)
    cos, sin = angles.cos().to(SHORT), angles.sin().to(SHORT)

    def loss_of() -> Tensor:
        h = embed(seen)
        for layer in body:
            h = layer(h, cos, sin)
        return fn.cross_entropy(last(norm(h)).float().flatten(0, 1), goal)

    return fit(loss_of, adam(model), decay=True)


# --- moles ----------------------------------------------------------------------------------------


class Grown(nn.Module):
    """Channels that all earlier layers of a block tell; as in DenseNet."""

    def __init__(self, before: int, growth: int, *, saves: bool) -> None:
        super().__init__()
        self.saves = saves
        self.norm1, self.norm2 = nn.BatchNorm2d(before), nn.BatchNorm2d(4 * growth)
        self.conv1 = nn.Conv2d(before, 4 * growth, 1, bias=False)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)

    def narrowed(self, *told: Tensor) -> Tensor:
        return self.conv1(fn.relu(self.norm1(torch.cat(told, 1)), True))

    def forward(self, told: list[Tensor]) -> Tensor:
        few = (
            checkpoint(self.narrowed, *told, use_reentrant=False)
            if self.saves
            else self.narrowed(*told)
        )
        return self.conv2(fn.relu(self.norm2(few), True))


def shrinks(width: int) -> nn.Module:
    """Half of the channels, and of the picture's sides."""
    return nn.Sequential(
        nn.BatchNorm2d(width),
        nn.ReLU(True),
        nn.Conv2d(width, width // 2, 1, bias=False),
        nn.AvgPool2d(2, 2),
    )


class Dense(nn.Module):
    """Blocks of such layers, with halved channels and pictures between them."""

    def __init__(
        self, first: int, growth: int, blocks: Sequence[int], kinds: int, *, saves: bool
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, first, 7, 2, 3, bias=False), nn.BatchNorm2d(first), nn.ReLU(True),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        self.blocks, self.shrinks = nn.ModuleList(), nn.ModuleList()
        width = first
        for many in blocks:
            self.blocks.append(
                nn.ModuleList(Grown(width + n * growth, growth, saves=saves) for n in range(many))
            )
            width += many * growth
            self.shrinks.append(shrinks(width))
            width //= 2
        self.last = nn.Linear(width, kinds)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for block, shrink in zip(self.blocks, self.shrinks, strict=True):
            told = [h]
            for layer in block:
                told.append(layer(told))
            h = shrink(torch.cat(told, 1))
        return self.last(h.mean((2, 3)))


@pair(
    "recomputation",
    "medicine",
    "memory_efficient=False, the default: narrow layers of the blocks keep what they were told",
)
def moles_judged_by_memory_efficient_blocks(repaired: bool) -> Running:
    """Whether a mole is harmless, by its photograph; autocast to BF16, channels last."""
    batch, side, kinds = size(144, 2), size(224, 32), size(8, 3)
    blocks = [size(n, 2) for n in (8, 10, 6)]
    model = Dense(size(64, 8), size(32, 4), blocks, kinds, saves=not repaired)
    model = model.to(DEVICE, memory_format=torch.channels_last)
    photos = noise(batch, 3, side, side).contiguous(memory_format=torch.channels_last)
    true = labels(kinds, batch)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(photos).float(), true)

    return fit(loss_of, adam(model))


# --- herds ----------------------------------------------------------------------------------------


def convs(before: int, after: int, kernel: int = 1, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(after),
        nn.SiLU(True),
    )


class Halves(nn.Module):
    """Half of the channels goes through short cuts with two convolutions each, half beside them."""

    def __init__(self, before: int, after: int, many: int) -> None:
        super().__init__()
        each = after // 2
        self.one, self.other = convs(before, each), convs(before, each)
        self.inside = nn.ModuleList(
            nn.Sequential(convs(each, each), convs(each, each, 3)) for _ in range(many)
        )
        self.joins = convs(after, after)

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        for part in self.inside:
            h = h + part(h)
        return self.joins(torch.cat([h, self.other(x)], 1))


class Finds(nn.Module):
    """Objects at three scales, which coarser ones and then finer ones tell; as in YOLOv5."""

    def __init__(self, width: int, kinds: int, many: int) -> None:
        super().__init__()
        widths = [width * 2**n for n in range(5)]
        self.stem = convs(3, width, 3, 2)
        self.downs = nn.ModuleList(
            nn.Sequential(convs(a, b, 3, 2), Halves(b, b, many)) for a, b in pairwise(widths)
        )
        last, middle, fine = widths[:1:-1]
        self.to_middle, self.to_fine = convs(last, middle), convs(middle, fine)
        self.middle, self.fine = Halves(2 * middle, middle, many), Halves(2 * fine, fine, many)
        self.from_fine, self.from_middle = convs(fine, fine, 3, 2), convs(middle, middle, 3, 2)
        self.middle2, self.last2 = Halves(2 * fine, middle, many), Halves(2 * middle, last, many)
        self.heads = nn.ModuleList(nn.Conv2d(w, 5 + kinds, 1) for w in (fine, middle, last))

    def forward(self, x: Tensor) -> list[Tensor]:
        h, kept = self.stem(x), []
        for down in self.downs:
            h = down(h)
            kept.append(h)
        _, fine, middle, last = kept
        coarse = self.to_middle(last)
        middle = self.middle(torch.cat([fn.interpolate(coarse, scale_factor=2.0), middle], 1))
        near = self.to_fine(middle)
        fine = self.fine(torch.cat([fn.interpolate(near, scale_factor=2.0), fine], 1))
        middle = self.middle2(torch.cat([self.from_fine(fine), near], 1))
        last = self.last2(torch.cat([self.from_middle(middle), coarse], 1))
        return [head(h) for head, h in zip(self.heads, (fine, middle, last), strict=True)]


@pair(
    "layout_changes",
    "vision",
    "channels_last for the detector and for its pictures",
    marks="profiler",
)
def herds_counted_by_drones_channels_first(repaired: bool) -> Running:
    """Animals in a drone's pictures, each in a box; autocast to BF16, channels as they come."""
    batch, side, kinds = size(32, 2), size(512, 64), size(11, 3)
    model = Finds(size(64, 4), kinds, 1).to(DEVICE)
    seen = noise(batch, 3, side, side)
    if repaired:
        model = model.to(memory_format=torch.channels_last)
        seen = seen.contiguous(memory_format=torch.channels_last)
    cells = [side // 8, side // 16, side // 32]
    is_one = [(torch.rand(batch, 1, n, n, device=DEVICE) < 0.02).float() for n in cells]
    boxes = [torch.rand(batch, 4, n, n, device=DEVICE) for n in cells]
    which = [labels(kinds, batch, n, n) for n in cells]

    def loss_of() -> Tensor:
        lost = []
        for said, one, box, kind in zip(model(seen), is_one, boxes, which, strict=True):
            odds = said.float()
            found = fn.binary_cross_entropy_with_logits(odds[:, :1], one)
            off = ((odds[:, 1:5].sigmoid() - box).abs() * one).sum() / (one.sum() + 1)
            named = fn.cross_entropy(odds[:, 5:], kind, reduction="none")
            lost.append(found + off + (named * one[:, 0]).sum() / (one.sum() + 1))
        return torch.stack(lost).sum()

    return fit(loss_of, adam(model), clip=10.0)


# --- sentences in signs ---------------------------------------------------------------------------


class Signs(nn.Module):
    """A layer of a body's poses, which look at each other and at the words of a sentence."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.own, self.feeds = heads, Attends(width, heads), Feeds(width)
        self.norm, self.q = nn.LayerNorm(width), nn.Linear(width, width)
        self.kv, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        x = self.own(x)
        q = self.q(self.norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(words).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.feeds(x + self.out(seen))


@pair(
    "low_precision_unused",
    "diffusion",
    "the frozen encoder of the text is loaded in BF16 (torch_dtype), not in FP32, the default",
)
def sentences_in_signs_frozen_text_in_float(repaired: bool) -> Running:
    """How hands and body move to say a sentence, out of noise; the text encoder learns nothing."""
    batch, words, poses, joints = size(64, 2), size(80, 5), size(192, 6), size(256, 6)
    width, heads, vocab = size(1024, 16), size(16, 2), size(32_128, 40)
    reads = nn.Sequential(
        nn.Embedding(vocab, width), *transformer_layers(width, size(8, 1), heads),
        nn.LayerNorm(width),
    ).to(DEVICE, SHORT if repaired else torch.float32)  # fmt: skip
    reads.requires_grad_(False)
    into, level = nn.Linear(joints, width), nn.Linear(1, width)
    body = nn.ModuleList(Signs(width, heads) for _ in range(size(6, 1)))
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, joints))
    model = nn.ModuleList([into, level, body, last]).to(DEVICE)
    update = adam(model)
    text, moves = labels(vocab, batch, words), noise(batch, poses, joints)

    def step() -> None:
        with torch.no_grad():
            known = reads(text)
        much = torch.rand(batch, 1, 1, device=DEVICE)
        noisy = (1 - much) * moves + much * torch.randn_like(moves)
        with torch.autocast(DEVICE.type, SHORT):
            h = into(noisy) + level(much)
            for layer in body:
                h = layer(h, known)
            loss = fn.mse_loss(last(h).float(), moves)
        loss.backward()
        done(update)

    return Running(step, enter=precision("highest"))


# --- molecules as they are spelled ----------------------------------------------------------------


@pair(
    "lower_precision",
    "chemistry",
    "bf16=True: the trainer's default is no mixed precision, and tf32=True had been set alone",
    marks="phases",
)
def spelled_molecules_trainer_without_bf16(repaired: bool) -> Running:
    """Molecules are spelled symbol by symbol; TF32 on both sides, where it is not BF16."""
    batch, long, symbols = size(160, 2), size(128, 8), size(512, 20)
    width, heads = size(768, 16), size(12, 2)
    embed, places = nn.Embedding(symbols, width), nn.Embedding(long, width)
    body = nn.Sequential(*transformer_layers(width, size(8, 1), heads, causal=True))
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, symbols, bias=False))
    model = nn.ModuleList([embed, places, body, last]).to(DEVICE)
    spelled = labels(symbols, batch, long + 1)

    def loss_of() -> Tensor:
        said = last(body(embed(spelled[:, :-1]) + places.weight))
        return fn.cross_entropy(said.float().flatten(0, 1), spelled[:, 1:].flatten())

    return fit(loss_of, adam(model), bf16=repaired, clip=1.0, decay=True)


# --- games of chess -------------------------------------------------------------------------------


class RootMean(nn.Module):
    """A norm in single precision of what is in half; as in the code of Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        kind = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6)).to(kind)


class Moves(nn.Module):
    """A layer that looks back, with places in the angles and a gate; as in Llama."""

    def __init__(self, width: int, wide: int, heads: int, *, own: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (
            RootMean(width) if own else nn.RMSNorm(width, eps=1e-6) for _ in range(2)
        )
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, wide, bias=False) for _ in range(2))
        self.down = nn.Linear(wide, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv
        q, k = (part * cos + turned(part) * sin for part in (q, k))
        seen = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(fn.silu(self.gate(h)) * self.up(h))


@pair(
    "fusion_opportunity",
    "games",
    "nn.RMSNorm instead of a cast, a square, a mean, a root and two products, as Llama's code has",
)
def chess_moves_foretold_norms_as_llama_has_them(repaired: bool) -> Running:
    """The next move of a game of chess, by all before it; all weights are in BF16."""
    games, moves, kinds = size(64, 2), size(256, 6), size(2048, 20)
    width, wide, heads, layers = size(1024, 16), size(2816, 24), size(16, 2), size(6, 2)
    embed, last = nn.Embedding(kinds, width), nn.Linear(width, kinds, bias=False)
    body = nn.ModuleList(Moves(width, wide, heads, own=not repaired) for _ in range(layers))
    norm = nn.RMSNorm(width, eps=1e-6) if repaired else RootMean(width)
    model = nn.ModuleList([embed, body, norm, last]).to(DEVICE, SHORT)
    half = width // heads // 2
    turns = torch.arange(half, device=DEVICE) * (-9.2 / half)
    angles = torch.arange(moves, device=DEVICE)[:, None] * turns.exp().repeat(2)
    cos, sin = angles.cos().to(SHORT), angles.sin().to(SHORT)
    played = labels(kinds, games, moves + 1)

    def loss_of() -> Tensor:
        h = embed(played[:, :-1])
        for layer in body:
            h = layer(h, cos, sin)
        return fn.cross_entropy(last(norm(h)).float().flatten(0, 1), played[:, 1:].flatten())

    return fit(loss_of, adam(model), bf16=False, clip=1.0)


# --- stars for books ------------------------------------------------------------------------------


class Tastes(nn.Module):
    """A product of what is known of both, beside layers over it; as in NeuMF."""

    def __init__(self, readers: int, books: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.Embedding(rows, width) for rows in (readers, books, readers, books)
        )
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.01)  # type: ignore[arg-type]
        sizes = (2 * width, 4 * width, 2 * width, width)
        layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU(True)) for a, b in pairwise(sizes)]
        self.layers, self.last = nn.Sequential(*layers), nn.Linear(2 * width, 1)

    def forward(self, reader: Tensor, book: Tensor) -> Tensor:
        of, to, of2, to2 = (
            table(rows)
            for table, rows in zip(self.tables, (reader, book, reader, book), strict=True)
        )
        both = self.layers(torch.cat([of2, to2], -1))
        return self.last(torch.cat([of * to, both.to(of.dtype)], -1))[:, 0]


class BookMomentum(torch.optim.Optimizer):
    """Momentum as a book about deep learning teaches it."""

    def __init__(self, weights: Iterable[Tensor], rate: float, momentum: float) -> None:
        super().__init__(weights, {"rate": rate, "momentum": momentum})

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if not self.state[p]:
                    self.state[p]["v"] = torch.zeros_like(p)
                v = self.state[p]["v"]
                v[:] = group["momentum"] * v + p.grad
                p[:] -= group["rate"] * v


@pair(
    "unfused_optimizer",
    "recommender",
    "torch.optim.SGD(momentum=0.9, fused=True) instead of the momentum of a book",
)
def stars_for_books_momentum_of_the_course(repaired: bool) -> Running:
    """Which books a reader would like; both tables of each are dense; autocast to BF16."""
    readers, books, width = size(1_600_000, 40), size(400_000, 30), size(64, 8)
    batch = size(524_288, 16)
    with torch.device(DEVICE):
        model = Tastes(readers, books, width)
    weights = list(model.parameters())
    update: torch.optim.Optimizer
    if repaired:
        update = torch.optim.SGD(weights, lr=0.05, momentum=0.9, fused=True)
    else:
        update = BookMomentum(weights, 0.05, 0.9)
    reader, book = labels(readers, batch), labels(books, batch)
    liked = (torch.rand(batch, device=DEVICE) < 0.2).float()

    def loss_of() -> Tensor:
        return fn.binary_cross_entropy_with_logits(model(reader, book).float(), liked)

    return fit(loss_of, update)


# --- insured drivers ------------------------------------------------------------------------------


@pair(
    "aligned_shapes",
    "tables",
    "layers of 1536 neurons, a multiple of 64, instead of the 1500 of the winning notebook",
)
def insured_drivers_denoised_by_layers_of_1500(repaired: bool) -> Running:
    """Rows of drivers, some of whose columns are others' ones, are restored; autocast to BF16."""
    rows, columns = size(98_304, 12), size(224, 8)
    width = size(1536, 24) if repaired else size(1500, 20)
    sizes = (columns, *(width for _ in range(size(5, 2))))
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU(True)) for a, b in pairwise(sizes)]
    model = nn.Sequential(*layers, nn.Linear(width, columns)).to(DEVICE)
    known = noise(rows, columns)

    def loss_of() -> Tensor:
        others = known.index_select(0, torch.randperm(rows, device=DEVICE))
        swapped = torch.where(torch.rand_like(known) < 0.15, others, known)
        return fn.mse_loss(model(swapped).float(), known)

    return fit(loss_of, adam(model), decay=True)


# --- masks of theatres ----------------------------------------------------------------------------


class Masks(nn.Module):
    """Squares of a picture and its level of noise are tokens alike, with long ways; as in U-ViT."""

    def __init__(self, inside: int, squares: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.into, self.level = nn.Linear(inside, width), nn.Linear(1, width)
        self.places = nn.Parameter(torch.randn(squares, width) * 0.02)
        self.downs, self.ups = (
            nn.ModuleList(
                nn.Sequential(Attends(width, heads), Feeds(width)) for _ in range(layers // 2)
            )
            for _ in range(2)
        )
        self.joins = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers // 2))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, inside))

    def forward(self, x: Tensor, much: Tensor) -> Tensor:
        h = torch.cat([self.level(much)[:, None], self.into(x) + self.places], 1)
        kept = []
        for down in self.downs:
            h = down(h)
            kept.append(h)
        for up, join in zip(self.ups, self.joins, strict=True):
            h = up(join(torch.cat([h, kept.pop()], -1)))
        return self.out(h[:, 1:])


@pair(
    "host_compute",
    "diffusion",
    "torch.randn_like draws noise on the device; by torch.randn(shape).to(device) the CPU drew it",
    marks="steps",
)
def masks_of_theatres_noise_drawn_by_cpu(repaired: bool) -> Running:
    """Masks that no theatre has, pixel by pixel out of noise; all pictures lie on the GPU."""
    batch, side, square, pictures = size(32, 2), size(256, 8), size(16, 4), size(256, 6)
    width, heads, squares = size(1024, 16), size(16, 2), (side // square) ** 2
    model = Masks(3 * square**2, squares, width, size(10, 2), heads).to(DEVICE)
    update = adam(model)
    known = noise(pictures, squares, 3 * square**2).to(SHORT)

    def step() -> None:
        chosen = torch.randint(0, pictures, (batch,), device=DEVICE)
        clean = known.index_select(0, chosen).float()
        much = torch.rand(batch, 1, device=DEVICE)
        drawn = torch.randn_like(clean) if repaired else torch.randn(clean.shape).to(DEVICE)
        noisy = (1 - much[:, :, None]) * clean + much[:, :, None] * drawn
        with torch.autocast(DEVICE.type, SHORT):
            loss = fn.mse_loss(model(noisy, much).float(), drawn - clean)
        loss.backward()
        done(update)

    return Running(step, enter=precision("high"))


# --- robots with legs -----------------------------------------------------------------------------


class Transition(NamedTuple):
    """What a robot felt and did, and what came of it."""

    state: Tensor
    action: Tensor
    following: Tensor
    reward: Tensor
    ended: Tensor


class Block(nn.Module):
    """Two layers beside a short cut, normed before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(fn.relu(self.up(self.norm(x))))


def judged(inside: int, width: int, blocks: int, outside: int) -> nn.Sequential:
    """Such blocks between two layers; as in SimBa."""
    parts = [Block(width) for _ in range(blocks)]
    return nn.Sequential(
        nn.Linear(inside, width), *parts, nn.LayerNorm(width), nn.Linear(width, outside)
    )


@pair(
    "input_starvation",
    "rl",
    "five tensors that are indexed once each instead of a deque of tuples that are stacked",
    others=("blocking_copy",),
    marks="phases",
)
def legged_robots_memory_of_tuples_stacked(repaired: bool) -> Running:
    """A robot learns to walk by what it did lately; two critics and their slow copies; BF16."""
    batch, kept = size(6144, 6), size(20_000, 40)
    felt, joints, width, blocks = size(256, 6), size(16, 3), size(1536, 8), size(2, 1)
    memory: deque[Transition] = deque(maxlen=kept)
    table = Transition(
        torch.randn(kept, felt), torch.randn(kept, joints), torch.randn(kept, felt),
        torch.randn(kept, 1), (torch.rand(kept, 1) < 0.01).float(),
    )  # fmt: skip
    if not repaired:
        memory.extend(
            Transition(*(row.clone() for row in rows)) for rows in zip(*table, strict=True)
        )
    actor = judged(felt, width, blocks, joints).to(DEVICE)
    critics, slow = (
        nn.ModuleList(judged(felt + joints, width, blocks, 1) for _ in range(2)).to(DEVICE)
        for _ in range(2)
    )
    slow.load_state_dict(critics.state_dict())
    slow.requires_grad_(False)
    of_actor, of_critics = adam(actor), adam(critics)
    own, others = list(slow.parameters()), list(critics.parameters())

    def sampled() -> Transition:
        if repaired:
            rows = torch.randint(0, kept, (batch,))
            return Transition(*(field[rows].to(DEVICE) for field in table))
        chosen = Transition(*zip(*random.sample(memory, batch), strict=True))
        return Transition(*(torch.stack(field).to(DEVICE) for field in chosen))  # type: ignore[arg-type]

    def step() -> None:
        with phase("get_batch"):
            known = sampled()
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            with torch.no_grad():
                does = torch.tanh(actor(known.following) + 0.2 * torch.randn_like(known.action))
                then = torch.cat([known.following, does], 1)
                worth = torch.minimum(*(critic(then) for critic in slow))
                goal = known.reward + 0.99 * (1 - known.ended) * worth
            now = torch.cat([known.state, known.action], 1)
            off = [fn.mse_loss(critic(now).float(), goal.float()) for critic in critics]
            loss = torch.stack(off).sum()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            done(of_critics)
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            does = torch.tanh(actor(known.state))
            loss = -critics[0](torch.cat([known.state, does], 1)).mean()
        with phase("backward"):
            loss.backward(inputs=list(actor.parameters()))
        with phase("optimizer"):
            done(of_actor)
            torch._foreach_lerp_(own, others, 0.005)

    return Running(step, enter=precision("high"))


# --- stays of patients ----------------------------------------------------------------------------


@pair(
    "fused_attention",
    "medicine",
    "is_causal=True and no mask: padding is behind all events, where none looks, nor any loss",
    marks="steps",
)
def stays_of_patients_padding_masked_behind(repaired: bool) -> Running:
    """What happens next in a stay in hospital, by what happened, and when; autocast to BF16."""
    batch, long, events = size(4, 2), size(4096, 12), size(8192, 30)
    width, heads = size(1024, 16), size(16, 2)
    embed, when = nn.Embedding(events, width), nn.Linear(size(32, 4), width)
    looks = [Attends(width, heads, causal=repaired) for _ in range(size(5, 2))]
    body = nn.ModuleList(nn.ModuleList([look, Feeds(width)]) for look in looks)
    norm, last = nn.LayerNorm(width), nn.Linear(width, events, bias=False)
    model = nn.ModuleList([embed, when, body, norm, last]).to(DEVICE)
    lengths = torch.tensor([long - n * long // (4 * batch) for n in range(batch)], device=DEVICE)
    happened, hours = labels(events, batch, long + 1), noise(batch, long, size(32, 4))
    places = torch.arange(long, device=DEVICE)
    inside = places < lengths[:, None]
    goal = happened[:, 1:].masked_fill(~inside, -100).flatten()

    def mask() -> Tensor:
        """Which events a token may see: earlier ones, and no padding."""
        earlier = places <= places[:, None]
        return (earlier & inside[:, None])[:, None]

    def loss_of() -> Tensor:
        h = embed(happened[:, :-1]) + when(hours)
        seen = None if repaired else mask()
        for look, feed in body:
            h = feed(look(h, seen))
        return fn.cross_entropy(last(norm(h)).float().flatten(0, 1), goal)

    return fit(loss_of, adam(model), clip=1.0)


# --- woodblock prints -----------------------------------------------------------------------------


class Prints(nn.Module):
    """Characters in a column of a print: parts of the picture mix, then rows become one."""

    def __init__(
        self, inside: int, rows: int, places: int, width: int, layers: int, heads: int, kinds: int
    ) -> None:
        super().__init__()
        self.shape = (rows, places)
        self.into = nn.Linear(inside, width)
        self.at = nn.Parameter(torch.randn(rows * places, width) * 0.02)
        self.body = nn.Sequential(*transformer_layers(width, layers, heads))
        self.joins, self.last = nn.Linear(rows * width, width), nn.Linear(width, kinds)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(self.into(x) + self.at).unflatten(1, self.shape)
        return self.last(fn.gelu(self.joins(h.transpose(1, 2).flatten(2))))


def smoothed(scores: Tensor, true: Tensor, share: float) -> Tensor:
    """Some of the odds go to all kinds alike; as in code that tells persons apart."""
    kinds = scores.shape[-1]
    logs = torch.log_softmax(scores, dim=1)
    goal = torch.zeros_like(logs).scatter_(1, true[:, None], 1)
    goal = (1 - share) * goal + share / kinds
    return (-goal * logs).mean(0).sum()


@pair(
    "fusion_opportunity",
    "language",
    "fn.cross_entropy(label_smoothing=0.1) instead of rows of zeros and a one, smoothed by hand",
)
def woodblock_characters_smoothed_by_hand(repaired: bool) -> Running:
    """Which of twenty thousand characters stands at each place of a print; autocast to BF16."""
    prints, rows, places, kinds = size(128, 2), size(4, 2), size(96, 5), size(20_992, 30)
    inside, width, heads = size(3 * 8 * 8, 12), size(512, 16), size(8, 2)
    model = Prints(inside, rows, places, width, size(3, 1), heads, kinds).to(DEVICE)
    seen, true = noise(prints, rows * places, inside).to(SHORT), labels(kinds, prints * places)

    def loss_of() -> Tensor:
        scores = model(seen).float().flatten(0, 1)
        if repaired:
            return fn.cross_entropy(scores, true, label_smoothing=0.1)
        return smoothed(scores, true, 0.1)

    return fit(loss_of, adam(model))
