"""A twenty-third set for one GPU: faults that one meets first in other people's code.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import cycle, pairwise
from typing import Any

import torch
from fourth_programs import CUDA, adam, fit, labels, noise, sgd
from models import DEVICE, done, graphed, precision, size, transformer_layers
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 369 pairs"
pair = entered(PROGRAMS)
SHORT = torch.bfloat16
LAST = torch.channels_last


# --- tea leaves -----------------------------------------------------------------------------------


class Inverted(nn.Module):
    """Wider, over the neighbours of each channel by itself, weighed, and narrow again."""

    def __init__(self, before: int, after: int, stride: int, times: int = 2) -> None:
        super().__init__()
        wide = times * before
        self.widens = nn.Sequential(
            nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.GELU(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.GELU(),
        )  # fmt: skip
        self.weighs = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, before, 1), nn.SiLU(True),
            nn.Conv2d(before, wide, 1), nn.Sigmoid(),
        )  # fmt: skip
        self.narrows = nn.Conv2d(wide, after, 1)
        self.short = nn.Conv2d(before, after, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = self.widens(x)
        return self.short(x) + self.narrows(h * self.weighs(h))


def kernels_of_attention(*, fused: bool) -> None:
    """Whether scaled_dot_product_attention may take fused kernels, in the whole program."""
    torch.backends.cuda.enable_flash_sdp(fused)
    torch.backends.cuda.enable_mem_efficient_sdp(fused)
    torch.backends.cuda.enable_cudnn_sdp(fused)


@pair(
    "unfused_attention",
    "vision",
    "what seeds the run no longer forbids the fused kernels of scaled_dot_product_attention",
)
def tea_leaves_graded_seeds_forbid_fused_kernels(repaired: bool) -> Running:
    """How good dried leaves are: convolutions, then attention; as in CoAtNet; autocast to BF16."""
    batch, side, grades = size(32, 2), size(384, 32), 12
    width, heads, layers = size(768, 16), size(12, 2), size(7, 2)
    first, second, third = size(64, 4), size(96, 8), size(192, 8)
    stem = nn.Sequential(
        nn.Conv2d(3, first, 3, 2, 1, bias=False), nn.BatchNorm2d(first), nn.GELU(),
        Inverted(first, second, 2), Inverted(second, third, 2), nn.Conv2d(third, width, 2, 2),
    ).to(memory_format=LAST)  # fmt: skip
    body = nn.Sequential(*transformer_layers(width, layers, heads), nn.LayerNorm(width))
    last = nn.Linear(width, grades)
    model = nn.ModuleList([stem, body, last]).to(DEVICE)
    seen = noise(batch, 3, side, side).contiguous(memory_format=LAST)
    true = labels(grades, batch)

    def loss_of() -> Tensor:
        h = body(stem(seen).flatten(2).transpose(1, 2))
        return fn.cross_entropy(last(h.mean(1)).float(), true)

    def enter() -> None:
        precision("high")()
        kernels_of_attention(fused=repaired)

    run = fit(loss_of, adam(model))
    run.enter, run.leave = enter, lambda: kernels_of_attention(fused=True)
    return run


# --- stars that vary ------------------------------------------------------------------------------


class Rhythms(nn.Module):
    """Sines and cosines of moments, at rates that are learnt."""

    def __init__(self, rates: int) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.logspace(-2, 1.5, rates))

    def forward(self, when: Tensor) -> Tensor:
        angles = when[..., None] * self.rates
        return torch.cat([angles.sin(), angles.cos()], -1)


@pair(
    "double_precision",
    "series",
    "times since the first night become FP32 when they are read: tables of Julian dates are FP64",
)
def stars_that_vary_moments_in_julian_days(repaired: bool) -> Running:
    """What kind of star it is, by its brightness in uneven nights; autocast to BF16."""
    batch, long, rates, kinds = size(96, 2), size(1024, 8), size(512, 4), 10
    width, heads, layers = size(256, 16), size(4, 2), size(4, 1)
    rhythms, into = Rhythms(rates), nn.Linear(2 * rates + size(8, 2), width)
    body = nn.Sequential(*transformer_layers(width, layers, heads), nn.LayerNorm(width))
    last = nn.Linear(width, kinds)
    model = nn.ModuleList([rhythms, into, body, last]).to(DEVICE)
    nights = 59_000 + 900 * torch.rand(batch, long, dtype=torch.float64, device=DEVICE)
    when = nights.sort(1).values
    when = when - when[:, :1]
    if repaired:
        when = when.float()
    bright, true = noise(batch, long, size(8, 2)), labels(kinds, batch)

    def loss_of() -> Tensor:
        moments = rhythms(when).to(bright.dtype)
        h = body(into(torch.cat([moments, bright], -1)))
        return fn.cross_entropy(last(h.amax(1)).float(), true)

    return fit(loss_of, adam(model), clip=1.0)


# --- bottles --------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """Narrow, over the neighbours, wide again, beside a short cut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        inside = after // 4
        self.layers = nn.Sequential(
            nn.Conv2d(before, inside, 1, bias=False), nn.BatchNorm2d(inside), nn.ReLU(True),
            nn.Conv2d(inside, inside, 3, stride, 1, bias=False), nn.BatchNorm2d(inside),
            nn.ReLU(True), nn.Conv2d(inside, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.short: nn.Module = nn.Identity()
        if before != after or stride > 1:
            self.short = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(self.layers(x) + self.short(x), True)


class Fire(nn.Module):
    """Few channels, of which many are made by two kinds of convolutions; as in SqueezeNet."""

    def __init__(self, before: int, few: int, many: int) -> None:
        super().__init__()
        self.few = nn.Sequential(
            nn.Conv2d(before, few, 1, bias=False), nn.BatchNorm2d(few), nn.ReLU(True)
        )
        self.small, self.large = nn.Conv2d(few, many, 1), nn.Conv2d(few, many, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.few(x)
        return fn.relu(torch.cat([self.small(x), self.large(x)], 1), True)


@pair(
    "lower_precision",
    "vision",
    "the teacher is asked within the block of autocast, not before it, where it was in TF32",
)
def bottles_on_belts_teacher_asked_before_autocast(repaired: bool) -> Running:
    """A small network for a belt's camera learns from a large one that says what bottle it is."""
    batch, side, kinds, base = size(64, 2), size(224, 32), size(120, 5), size(64, 4)
    parts: list[nn.Module] = [
        nn.Conv2d(3, base, 7, 2, 3, bias=False), nn.BatchNorm2d(base), nn.ReLU(True),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    before = base
    for level, many in enumerate((3, 4, 6, 3) if CUDA else (1, 1)):
        after = 4 * base << level
        for block in range(many):
            parts.append(Bottleneck(before, after, 2 if level and not block else 1))
            before = after
    teacher = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, kinds))
    teacher = teacher.to(DEVICE).to(memory_format=LAST).eval().requires_grad_(False)
    few, many = size(32, 4), size(128, 8)
    model = nn.Sequential(
        nn.Conv2d(3, few, 3, 2, 1), nn.ReLU(True), nn.MaxPool2d(3, 2, 1),
        Fire(few, few, many), Fire(2 * many, few, many), nn.MaxPool2d(3, 2, 1),
        Fire(2 * many, 2 * few, 2 * many), Fire(4 * many, 2 * few, 2 * many),
        nn.Conv2d(4 * many, kinds, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    ).to(DEVICE).to(memory_format=LAST)  # fmt: skip
    seen = noise(batch, 3, side, side).contiguous(memory_format=LAST)
    true, warm = labels(kinds, batch), 4.0
    update = sgd(model)

    def told() -> Tensor:
        with torch.no_grad():
            return teacher(seen)

    def step() -> None:
        wanted = None if repaired else told()
        with torch.autocast(DEVICE.type, SHORT):
            if wanted is None:
                wanted = told()
            said = model(seen)
        goal = (wanted.float() / warm).softmax(1)
        near = fn.kl_div((said.float() / warm).log_softmax(1), goal, reduction="batchmean")
        loss = warm**2 * near + fn.cross_entropy(said.float(), true)
        loss.backward()
        done(update)

    return Running(step, enter=precision("high"))


# --- shoes ----------------------------------------------------------------------------------------


class Coded(nn.Module):
    """Two convolutions, each of which is given the code as further channels."""

    def __init__(self, width: int, code: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(width + code, width, 3, 1, 1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        h = fn.relu(self.norm1(self.one(torch.cat([x, code], 1))), True)
        return x + self.norm2(self.two(torch.cat([h, code], 1)))


@pair(
    "layout_changes",
    "vision",
    "the code's map gets channels last, too: joined with an expanded one, all get channels first",
)
def shoes_from_sketches_code_expanded_to_map(repaired: bool) -> Running:
    """Shoes of many kinds from one sketch, by a code; as in BicycleGAN; autocast to BF16."""
    batch, side, width, code = size(32, 2), size(256, 16), size(64, 8), 8
    into = nn.Conv2d(3, width, 4, 2, 1)
    blocks = nn.ModuleList(Coded(width, code) for _ in range(size(9, 2)))
    last = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(width, 3, 3, 1, 1), nn.Tanh())
    says = nn.Linear(code, code)
    model = nn.ModuleList([into, blocks, last, says]).to(DEVICE).to(memory_format=LAST)
    sketch = noise(batch, 3, side, side).contiguous(memory_format=LAST)
    true = noise(batch, 3, side, side).tanh().contiguous(memory_format=LAST)
    drawn = noise(batch, code)

    def loss_of() -> Tensor:
        h = into(sketch)
        around = says(drawn).to(h.dtype)[:, :, None, None].expand(-1, -1, *h.shape[2:])
        if repaired:
            around = around.contiguous(memory_format=LAST)
        for block in blocks:
            h = block(h, around)
        return fn.l1_loss(last(h).float(), true)

    return fit(loss_of, adam(model))


# --- puzzles --------------------------------------------------------------------------------------


@pair(
    "casts_and_copies",
    "language",
    "one block of autocast around all rounds, not one in each, which casts all weights anew",
)
def puzzles_of_newspapers_autocast_in_each_round(repaired: bool) -> Running:
    """Squares of letters are filled by a few layers that go over their own result again."""
    batch, cells, signs, rounds = size(8, 2), size(256, 9), size(64, 12), size(6, 3)
    width, heads, layers = size(2048, 16), size(16, 2), size(3, 1)
    with torch.device(DEVICE):
        embed, place = nn.Embedding(signs, width), nn.Embedding(cells, width)
        body = nn.Sequential(*transformer_layers(width, layers, heads), nn.LayerNorm(width))
        last = nn.Linear(width, signs)
    model = nn.ModuleList([embed, place, body, last])
    asked, true = labels(signs, batch, cells), labels(signs, batch, cells)
    places = torch.arange(cells, device=DEVICE)

    update = adam(model)

    def half() -> torch.autocast:
        return torch.autocast(DEVICE.type, SHORT)

    def thought(given: Tensor) -> Tensor:
        h = torch.zeros_like(given)
        for _ in range(rounds):
            with nullcontext() if repaired else half():
                h = body(h + given)
        return h

    def step() -> None:
        given = embed(asked) + place(places)
        with half() if repaired else nullcontext():
            h = thought(given)
        with half():
            said = last(h)
        loss = fn.cross_entropy(said.float().flatten(0, 1), true.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        done(update)

    return Running(step, enter=precision("high"))


# --- gearboxes ------------------------------------------------------------------------------------


def apart_by_pairs(x: Tensor) -> Tensor:
    """Squared distances of all rows, by all their differences."""
    first = x[None].expand(len(x), -1, -1)
    second = x[:, None].expand(-1, len(x), -1)
    return ((first - second) ** 2).sum(2)


def apart_by_product(x: Tensor) -> Tensor:
    """The same by the rows' squares and one product."""
    square = x.pow(2).sum(1)
    return square[:, None] + square[None] - 2 * (x @ x.T)


def discrepancy(apart: Tensor, kernels: int = 5) -> Tensor:
    """How unlike the halves of a batch are, by kernels of several widths."""
    many = len(apart)
    wide = apart.detach().sum() / (many**2 - many) / 2 ** (kernels // 2)
    near = sum(torch.exp(-apart / (wide * 2**number)) for number in range(kernels))
    here, there = near.view(2, many // 2, 2, many // 2).mean((1, 3))
    return here[0] + there[1] - here[1] - there[0]


@pair(
    "memory_bound_kernels",
    "series",
    "distances by squares and a product of the features, not by the differences of all pairs",
)
def gearboxes_of_other_loads_kernels_of_all_pairs(repaired: bool) -> Running:
    """Which tooth is worn, on a machine under a load that nobody labelled; autocast to BF16."""
    batch, samples, faults = size(256, 3), size(4096, 128), 9
    widths = (size(64, 4), size(128, 4), size(256, 8))
    parts: list[nn.Module] = [nn.Conv1d(1, widths[0], 64, 4, 30, bias=False)]
    parts += [nn.BatchNorm1d(widths[0]), nn.ReLU(True)]
    for before, after in pairwise((widths[0], *widths)):
        for given, stride in ((before, 1), (after, 2)):
            parts.append(nn.Conv1d(given, after, 5, stride, 2, bias=False))
            parts += [nn.BatchNorm1d(after), nn.ReLU(True)]
    known = size(1024, 8)
    body = nn.Sequential(*parts, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(after, known))
    last = nn.Linear(known, faults)
    model = nn.ModuleList([body, last]).to(DEVICE)
    seen, true = noise(2 * batch, 1, samples), labels(faults, batch)
    apart: Callable[[Tensor], Tensor] = apart_by_product if repaired else apart_by_pairs

    def loss_of() -> Tensor:
        with torch.autocast(DEVICE.type, SHORT):
            found = body(seen)
            said = last(found[:batch])
        unlike = discrepancy(apart(found.float()))
        return fn.cross_entropy(said.float(), true) + 0.5 * unlike

    return fit(loss_of, adam(model), bf16=False)


# --- laws -----------------------------------------------------------------------------------------


class Sentences(nn.Module):
    """A vector for each text, as BERT reads it: the mean of what it says of the words."""

    def __init__(self, words: int, long: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(long, width)
        self.body = nn.Sequential(*transformer_layers(width, layers, heads), nn.LayerNorm(width))

    def forward(self, text: Tensor) -> Tensor:
        with torch.autocast(DEVICE.type, SHORT):
            h = self.body(self.embed(text) + self.place.weight[: text.shape[1]])
        return fn.normalize(h.float().mean(1), dim=-1)


def alike(found: Tensor, sharp: float = 20.0) -> Tensor:
    """Each question's own answer among the answers to all."""
    question, answer = found.chunk(2)
    true = torch.arange(len(question), device=found.device)
    return fn.cross_entropy(sharp * question @ answer.T, true)


@pair(
    "recomputation",
    "retrieval",
    "the plain loss of ranking, not the cached one, which reads all texts a second time",
    marks="steps",
)
def laws_found_by_questions_loss_with_cached_gradients(repaired: bool) -> Running:
    """Which paragraph answers a question, against all others of a batch that has room as it is."""
    texts, piece, long, words = size(768, 4), size(128, 2), size(128, 6), size(16_384, 40)
    width, heads, layers = size(512, 16), size(8, 2), size(6, 2)
    model = Sentences(words, long, width, heads, layers).to(DEVICE)
    text = labels(words, texts, long)
    update = adam(model)

    def cached() -> Tensor:
        """The loss, whose backward pass reads the texts again, some at a time."""
        with torch.no_grad():
            found = [model(some) for some in text.split(piece)]
        kept = [part.requires_grad_() for part in found]
        loss = alike(torch.cat(kept))
        loss.backward()
        loss = loss.detach().requires_grad_()

        def again(scale: Tensor) -> None:
            with torch.enable_grad():
                for some, part in zip(text.split(piece), kept, strict=True):
                    assert part.grad is not None
                    surrogate = (model(some) * part.grad).sum() * scale
                    surrogate.backward()

        loss.register_hook(again)
        return loss

    def step() -> None:
        loss = alike(model(text)) if repaired else cached()
        loss.backward()
        done(update)

    return Running(step, enter=precision("high"))


# --- podcasts -------------------------------------------------------------------------------------


class Crossed(nn.Module):
    """Fields of a row look at each other, with a short cut; as in AutoInt."""

    def __init__(self, before: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(before, 3 * width, bias=False)
        self.short = nn.Linear(before, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return fn.relu(seen + self.short(x))


@pair(
    "fused_optimizer",
    "recommender",
    "AdamW(fused=True) instead of capturable=True, which came with a recipe for CUDA graphs",
)
def podcasts_offered_optimizer_of_a_recipe_for_graphs(repaired: bool) -> Running:
    """Whether a listener stays; all fields have rows in one large table; autocast to BF16."""
    batch, fields, rows, inside = size(6144, 4), size(32, 4), size(4_000_000, 400), size(64, 8)
    width, heads = size(128, 8), size(4, 2)
    with torch.device(DEVICE):
        table = nn.Embedding(rows, inside)
        crosses = nn.Sequential(
            Crossed(inside, width, heads), Crossed(width, width, heads), nn.Flatten()
        )
        deep = nn.Sequential(
            nn.Linear(fields * inside, 8 * width), nn.ReLU(True), nn.Linear(8 * width, width),
            nn.ReLU(True),
        )  # fmt: skip
        last = nn.Linear(fields * width + width, 1)
    model = nn.ModuleList([table, crosses, deep, last])
    nn.init.normal_(table.weight, std=0.01)
    flags = {"fused": True} if repaired else {"capturable": CUDA}
    update = torch.optim.AdamW(model.parameters(), lr=1e-3, **flags)
    seen, true = labels(rows, batch, fields), labels(2, batch, 1).float()

    def loss_of() -> Tensor:
        x = table(seen)
        said = last(torch.cat([crosses(x), deep(x.flatten(1))], 1))
        return fn.binary_cross_entropy_with_logits(said.float(), true)

    return fit(loss_of, update)


# --- folds of chains ------------------------------------------------------------------------------


class Dilated(nn.Module):
    """Two convolutions over pairs of places, further apart in each block; as in trRosetta."""

    def __init__(self, width: int, apart: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=apart, dilation=apart, bias=False),
            nn.InstanceNorm2d(width, affine=True), nn.ELU(), nn.Dropout(0.15),
            nn.Conv2d(width, width, 3, padding=apart, dilation=apart, bias=False),
            nn.InstanceNorm2d(width, affine=True),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return fn.elu(x + self.layers(x))


@pair(
    "larger_batch",
    "biology",
    "two chains at a time instead of one (forward, backward and update are a graph on both sides)",
    samples=2.0,
)
def peptides_of_ants_one_chain_at_a_time(repaired: bool) -> Running:
    """How far residues are from each other, of crops of one length; autocast to BF16."""
    chains, long, told = 2 if repaired else 1, size(192, 8), size(48, 4)
    pairs = size(32, 2)
    width, blocks, bins = size(64, 8), size(24, 2), size(40, 5)
    into = nn.Conv2d(2 * told + pairs, width, 1)
    body = nn.Sequential(*(Dilated(width, 2 ** (n % 5)) for n in range(blocks)))
    last = nn.Conv2d(width, bins, 1)
    model = nn.ModuleList([into, body, last]).to(DEVICE)
    alone, both = noise(chains, told, long), noise(chains, pairs, long, long)
    true = labels(bins, chains, long, long)
    across = (-1, -1, -1, long)

    def loss_of() -> Tensor:
        rows = alone[..., None].expand(*across)
        h = body(into(torch.cat([rows, rows.transpose(2, 3), both], 1)))
        said = last(h).float()
        return fn.cross_entropy(0.5 * (said + said.transpose(2, 3)), true)

    return graphed(fit(loss_of, adam(model, capturable=CUDA)))


# --- claims ---------------------------------------------------------------------------------------


class Compares(nn.Module):
    """Each word of a text with the words of another that are like it."""

    def __init__(self, words: int, width: int, kinds: int, drop: float) -> None:
        super().__init__()

        def two(before: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(before, width), nn.ReLU(), nn.Dropout(drop),
                nn.Linear(width, width), nn.ReLU(), nn.Dropout(drop),
            )  # fmt: skip

        self.embed = nn.Embedding(words, width)
        self.embed.requires_grad_(False)
        self.project = nn.Linear(width, width)
        self.likes, self.joins, self.sums = two(width), two(2 * width), two(2 * width)
        self.last = nn.Linear(width, kinds)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        a, b = self.project(self.embed(one)), self.project(self.embed(other))
        scores = self.likes(a) @ self.likes(b).mT
        beside_a = scores.softmax(2).to(b.dtype) @ b
        beside_b = scores.softmax(1).to(a.dtype).mT @ a
        first = self.joins(torch.cat([a, beside_a], -1)).sum(1)
        second = self.joins(torch.cat([b, beside_b], -1)).sum(1)
        return self.last(self.sums(torch.cat([first, second], -1)))


@pair(
    "aligned_shapes",
    "language",
    "words' vectors of 300 numbers are filled up to 304, a multiple of 8, and so are all layers",
)
def claims_of_politicians_vectors_of_300(repaired: bool) -> Running:
    """Whether an article bears a claim out, by known vectors of words; autocast to BF16."""
    batch, long, words, kinds = size(1536, 3), size(128, 6), size(40_000, 50), 3
    width = size(304, 16) if repaired else size(300, 12)
    model = Compares(words, width, kinds, 0.2).to(DEVICE)
    claim, article = labels(words, batch, long), labels(words, batch, long)
    true = labels(kinds, batch)
    update = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(claim, article).float(), true)

    return fit(loss_of, update, clip=5.0)


# --- near misses ----------------------------------------------------------------------------------


class Moves(nn.Module):
    """Over time, then over places, beside a short cut."""

    def __init__(self, before: int, after: int, stride: int, times: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(before, after, (times, 1, 1), padding=(times // 2, 0, 0), bias=False),
            nn.BatchNorm3d(after), nn.ReLU(True),
            nn.Conv3d(after, after, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False),
            nn.BatchNorm3d(after),
        )  # fmt: skip
        self.short = nn.Conv3d(before, after, 1, (1, stride, stride), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(self.layers(x) + self.short(x), True)


class TwoSpeeds(nn.Module):
    """A wide network sees few frames, a narrow one all of them, and tells; as in SlowFast."""

    def __init__(self, width: int, levels: int, fewer: int, kinds: int) -> None:
        super().__init__()
        thin = width // 4
        self.fewer, self.pool = fewer, nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1))
        wide, narrow = [width << n for n in range(levels)], [thin << n for n in range(levels)]
        self.slow_in = nn.Conv3d(3, width, (1, 7, 7), (1, 2, 2), (0, 3, 3), bias=False)
        self.fast_in = nn.Conv3d(3, thin, (1, 7, 7), (1, 2, 2), (0, 3, 3), bias=False)
        self.tells = nn.ModuleList(
            nn.Conv3d(n, 2 * n, (5, 1, 1), (fewer, 1, 1), (2, 0, 0)) for n in (thin, *narrow[:-1])
        )
        self.slow, self.fast = nn.ModuleList(), nn.ModuleList()
        before, few = width, thin
        for n in range(levels):
            stride = 2 if n else 1
            self.slow.append(Moves(before + 2 * few, wide[n], stride, 3 if n > 1 else 1))
            self.fast.append(Moves(few, narrow[n], stride, 3))
            before, few = wide[n], narrow[n]
        self.last = nn.Linear(before + few, kinds)

    def forward(self, clip: Tensor) -> Tensor:
        slow = self.pool(fn.relu(self.slow_in(clip[:, :, :: self.fewer])))
        fast = self.pool(fn.relu(self.fast_in(clip)))
        for tells, wide, narrow in zip(self.tells, self.slow, self.fast, strict=True):
            slow, fast = wide(torch.cat([slow, tells(fast)], 1)), narrow(fast)
        return self.last(torch.cat([slow.mean((2, 3, 4)), fast.mean((2, 3, 4))], 1))


@pair(
    "blocking_copy",
    "video",
    "clips are uploaded as the bytes that they are, and divided by 255 on the GPU, not before",
    marks="phases",
)
def near_misses_on_roads_clips_uploaded_in_float(repaired: bool) -> Running:
    """Whether it was close, by a dashboard's camera; clips are page-locked; autocast to BF16."""
    batch, frames, side, kinds = size(32, 2), size(32, 8), size(192, 32), 4
    model: nn.Module = TwoSpeeds(size(64, 16), size(4, 2), 4, kinds).to(DEVICE)
    model = model.to(memory_format=torch.channels_last_3d)
    kept = []
    for _ in range(2):
        clip = torch.randint(0, 256, (batch, 3, frames, side, side), dtype=torch.uint8)
        if not repaired:
            clip = clip.float() / 255
        kept.append(clip.pin_memory() if CUDA else clip)
    clips, true = cycle(kept), labels(kinds, batch)
    update = sgd(model)

    def step() -> None:
        with phase("get_batch"):
            clip = next(clips).to(DEVICE, non_blocking=True)
            if repaired:
                clip = clip.float() / 255
            clip = clip.contiguous(memory_format=torch.channels_last_3d)
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            loss = fn.cross_entropy(model(clip).float(), true)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            done(update)

    return Running(step, enter=precision("high"))


# --- hands of signers -----------------------------------------------------------------------------


class Hourglass(nn.Module):
    """Down and up again by halves, with what was there on each scale."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        self.beside, self.down, self.up = (Bottleneck(width, width, 1) for _ in range(3))
        self.inside: nn.Module = (
            Hourglass(width, levels - 1) if levels > 1 else Bottleneck(width, width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        low = self.up(self.inside(self.down(fn.max_pool2d(x, 2))))
        return self.beside(x) + fn.interpolate(low, scale_factor=2.0)


def adaptive_wing(
    said: Tensor, true: Tensor, omega: float = 14.0, theta: float = 0.5, eps: float = 1.0
) -> Tensor:
    """Bent most where the true map is large, straight for large errors; as in its paper."""
    alpha = 2.1
    delta = (true - said).abs()
    power = alpha - true
    ratio = theta / eps
    steep = omega * (1 / (1 + ratio**power)) * power * ratio ** (power - 1) / eps
    shift = theta * steep - omega * torch.log(1 + ratio**power)
    bent = omega * torch.log(1 + (delta / eps) ** power)
    return torch.where(delta < theta, bent, steep * delta - shift).mean()


@pair(
    "fusion_opportunity",
    "vision",
    "torch.compile of the function that is the adaptive wing loss",
    compiles=True,
)
def hands_of_signers_adaptive_wing_compile(repaired: bool) -> Running:
    """Maps of where joints are, by two hourglasses, one after the other; autocast to BF16."""
    batch, side, width, joints = size(64, 2), size(256, 32), size(256, 8), size(98, 3)
    stem = nn.Sequential(
        nn.Conv2d(3, width // 4, 7, 2, 3, bias=False), nn.BatchNorm2d(width // 4), nn.ReLU(True),
        nn.MaxPool2d(2), Bottleneck(width // 4, width, 1),
    )  # fmt: skip
    glasses = nn.ModuleList(Hourglass(width, size(4, 2)) for _ in range(2))
    says = nn.ModuleList(nn.Conv2d(width, joints, 1) for _ in range(2))
    back = nn.Conv2d(joints, width, 1)
    model = nn.ModuleList([stem, glasses, says, back]).to(DEVICE).to(memory_format=LAST)
    seen = noise(batch, 3, side, side).contiguous(memory_format=LAST)
    true = torch.rand(batch, joints, side // 4, side // 4, device=DEVICE)
    true = true.contiguous(memory_format=LAST)
    loss_by: Any = torch.compile(adaptive_wing, dynamic=False) if repaired else adaptive_wing

    def loss_of() -> Tensor:
        h = stem(seen)
        inner = glasses[0](h)
        first = says[0](inner)
        second = says[1](glasses[1](h + inner + back(first)))
        return loss_by(first.float(), true) + loss_by(second.float(), true)

    return fit(loss_of, adam(model))
