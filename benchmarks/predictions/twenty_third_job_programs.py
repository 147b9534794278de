"""Training jobs of the twenty-third set, on two GPUs and on four: few and large kernels."""

from __future__ import annotations

import copy
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from eleventh_job_models import SHORT, heads_of, layers_of
from fourteenth_job_programs import Everyones, OfAll, SlicedLoss, ToAll
from job_programs import DEVICE, LAST, RANK, WORLD, Exchange, ddp, half
from models import Attends, Feeds, done, size
from nineteenth_job_programs import attended
from program import SMALL, Program, Running
from single_programs import entered
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 369 pairs, opened"
four = partial(entered(PROGRAMS), marks="steps", ranks=4)  # type: ignore[call-arg]
two = partial(entered(PROGRAMS), marks="steps", ranks=2)  # type: ignore[call-arg]


# --- four ranks: scores of all words ----------------------------------------------------------


class AllColumns(torch.autograd.Function):
    """The columns of all ranks, side by side; backward, each rank's own ones."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor) -> Tensor:
        every = [torch.empty_like(mine) for _ in range(WORLD)]
        dist.all_gather(every, mine.contiguous())
        return torch.cat(every, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].chunk(WORLD, -1)[RANK].contiguous()


class Slice(nn.Module):
    """A layer of which each rank has some heads, and some columns of a gated feed-forward."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        each, inner = width // WORLD, wide // WORLD
        self.heads = max(each // 128, 1)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * each, bias=False)
        self.out = nn.Linear(each, width, bias=False)
        self.both = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(ToAll.apply(self.norm1(x))).chunk(3, -1)
        x = x + OfAll.apply(self.out(attended(q, k, v, self.heads, causal=True)))
        gate, up = self.both(ToAll.apply(self.norm2(x))).chunk(2, -1)
        return x + OfAll.apply(self.down(fn.gelu(gate, approximate="tanh") * up))


@four(
    "exposed_communication",
    "language",
    "each rank computes the loss of its own words' scores; two numbers a token are summed, and no "
    "scores are gathered",
)
def job_shaders_scores_of_all_words(repaired: bool) -> Running:
    """Programs for graphics, token by token; the output has its words on four ranks."""
    vocab, width, wide, layers = size(65_536, 48), size(2048, 16), size(8192, 24), size(6, 2)
    rows, length = size(4, 2), size(2048, 6)
    own = vocab // WORLD
    with DEVICE:
        torch.manual_seed(0)  # what all ranks have is equal
        embed = nn.Embedding(vocab, width)
        torch.manual_seed(1 + RANK)
        parts = [Slice(width, wide) for _ in range(layers)]
        out = nn.Linear(width, own, bias=False)
    body = nn.Sequential(embed, *parts, nn.RMSNorm(width, device=DEVICE)).to(SHORT)
    out = out.to(SHORT)
    weights = [*body.parameters(), *out.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, betas=(0.9, 0.95), fused=True)
    torch.manual_seed(2)
    text = torch.randint(0, vocab, (rows, length + 1), device=DEVICE)
    after = text[:, 1:].flatten()

    def step() -> None:
        scores = out(ToAll.apply(body(text[:, :-1]))).flatten(0, 1)
        if repaired:
            loss = SlicedLoss.apply(scores, after, RANK * own)
        else:
            loss = fn.cross_entropy(AllColumns.apply(scores).float(), after)
        loss.backward()
        done(optimizer)

    return Running(step)


# --- four ranks: heads of all places ----------------------------------------------------------


def places_of_all(x: Tensor, *, gathers: bool) -> Tensor:
    """Some heads at all places, of all heads at some places; as in DeepSpeed-Ulysses.

    Args:
        x: rows, own places, features of all heads.
        gathers: all heads of all places are gathered, of which own heads are kept.
    """
    rows, own, features = x.shape
    if gathers:
        every = Everyones.apply(x.flatten(0, 1)).view(WORLD, rows, own, features)
        mine = every.chunk(WORLD, -1)[RANK]
    else:
        sent = x.unflatten(-1, (WORLD, -1)).permute(2, 0, 1, 3).flatten(0, 2)
        equal = [rows * own] * WORLD
        mine = Exchange.apply(sent, equal, equal).view(WORLD, rows, own, -1)
    return mine.transpose(0, 1).flatten(1, 2)


def heads_of_all(x: Tensor, *, gathers: bool) -> Tensor:
    """The way back: all heads at own places, of own heads at all places."""
    rows, places, each = x.shape
    own = places // WORLD
    sent = x.unflatten(1, (WORLD, own)).transpose(0, 1)
    if gathers:
        every = Everyones.apply(sent.flatten(0, 2)).view(WORLD, WORLD, rows, own, each)
        came = every[:, RANK]
    else:
        equal = [rows * own] * WORLD
        came = Exchange.apply(sent.flatten(0, 2), equal, equal).view(WORLD, rows, own, each)
    return came.permute(1, 2, 0, 3).flatten(2)


class Turns(nn.Module):
    """A layer whose attention has some heads on each rank, and all else some places.

    Args:
        gathers: heads and places change by gathering both.
    """

    def __init__(self, width: int, *, gathers: bool) -> None:
        super().__init__()
        self.heads, self.gathers = max(width // 128 // WORLD, 1), gathers
        self.norm, self.feed = nn.LayerNorm(width), Feeds(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (
            places_of_all(part(h), gathers=self.gathers) for part in (self.q, self.k, self.v)
        )
        y = heads_of_all(attended(q, k, v, self.heads), gathers=self.gathers)
        return self.feed(x + self.out(y))


class Radar(nn.Module):
    """What rain gauges and radars show next, from a mosaic that is dealt out in pieces."""

    def __init__(self, inside: int, places: int, width: int, layers: int, *, gathers: bool) -> None:
        super().__init__()
        self.into, self.last = nn.Linear(inside, width), nn.Linear(width, inside)
        self.place = nn.Parameter(0.02 * torch.randn(places, width))
        self.layers = nn.Sequential(*(Turns(width, gathers=gathers) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.layers(self.into(x) + self.place)))


@four(
    "exposed_communication",
    "weather",
    "queries, keys, values and what was seen go to the rank that needs them (all_to_all_single), "
    "not to all ranks",
)
def job_radar_heads_and_places_gathered(repaired: bool) -> Running:
    inside, width, layers = size(512, 6), size(2048, 16), size(3, 2)
    rows, own = size(4, 2), size(2048, 3)
    with DEVICE:
        model = Radar(inside, own, width, layers, gathers=not repaired).to(SHORT)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    torch.manual_seed(1 + RANK)
    now, later = torch.randn(2, rows, own, inside, device=DEVICE).to(SHORT)

    def step() -> None:
        fn.smooth_l1_loss(net(now).float(), later.float()).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: pictures of several sizes ----------------------------------------------------


def convolved(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, bias=False),
        nn.BatchNorm2d(after),
        nn.SiLU(inplace=True),
    )


class Again(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(convolved(width, width), convolved(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Finds(nn.Module):
    """Parcels on a belt, at three scales, without anchors; as in YOLO."""

    def __init__(self, width: int, says: int) -> None:
        super().__init__()
        self.stem = convolved(3, width, 2)
        widths = [width * 2**stage for stage in range(5)]
        self.stages = nn.ModuleList(
            nn.Sequential(convolved(before, after, 2), Again(after))
            for before, after in pairwise(widths)
        )
        self.outs = nn.ModuleList(nn.Conv2d(after, says, 1) for after in widths[2:])

    def forward(self, pictures: Tensor) -> list[Tensor]:
        h, found = self.stages[0](self.stem(pictures)), []
        for stage, out in zip(self.stages[1:], self.outs, strict=True):
            h = stage(h)
            found.append(out(h))
        return found


@four(
    "load_imbalance",
    "vision",
    "the size of a step's pictures is drawn by the number of the step: all ranks have the same one",
    period=4,
)
def job_parcels_each_rank_draws_sizes(repaired: bool) -> Running:
    """Sizes change from step to step, so that near and far parcels are found; each has its turn."""
    width, says, rows = size(64, 4), size(32, 3), size(32, 2)
    sides = [size(448, 32), size(736, 64), size(544, 32), size(640, 64)]
    with DEVICE:
        model = Finds(width, says).to(memory_format=torch.channels_last)
    net = ddp(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, nesterov=True, fused=True)
    belts = []
    for side in sides:
        pictures = torch.randn(rows, 3, side, side, device=DEVICE)
        true = [
            torch.rand(rows, says, side // n, side // n, device=DEVICE).round() for n in (8, 16, 32)
        ]
        belts.append((pictures.to(memory_format=torch.channels_last), true))
    made = 0

    def step() -> None:
        nonlocal made
        pictures, true = belts[(made if repaired else made + RANK) % len(belts)]
        made += 1
        with half():
            found = net(pictures)
        losses = [
            fn.binary_cross_entropy_with_logits(said.float(), goal)
            for said, goal in zip(found, true, strict=True)
        ]
        sum(losses[1:], losses[0]).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: an average of the weights ----------------------------------------------------


class Even(nn.Module):
    """Queries and keys of one length, a gated feed-forward, no biases."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.heads = max(width // 128, 1)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.norm_q, self.norm_k = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = (nn.Linear(width, n * width, bias=False) for n in (3, 1))
        self.both = nn.Linear(width, 2 * wide, bias=False)
        self.down = nn.Linear(wide, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k = self.norm_q(q), self.norm_k(k)
        x = x + self.out(attended(q, k, v, self.heads))
        gate, up = self.both(self.norm2(x)).chunk(2, -1)
        return x + self.down(fn.silu(gate) * up)


class Fonts(nn.Module):
    """Which way a noisy sheet of letters becomes a clear one, in the manner of a few of them.

    The level of noise and the letters that are given are tokens beside the pieces of the sheet.
    """

    def __init__(self, inside: int, pieces: int, width: int, wide: int, layers: int) -> None:
        super().__init__()
        self.into, self.last = nn.Linear(inside, width), nn.Linear(width, inside)
        self.given, self.level = nn.Linear(inside, width), nn.Linear(1, width)
        self.place = nn.Parameter(0.02 * torch.randn(pieces, width))
        self.layers = nn.ModuleList(Even(width, wide) for _ in range(layers))
        self.norm = nn.RMSNorm(width)

    def forward(self, noisy: Tensor, level: Tensor, given: Tensor) -> Tensor:
        sheet = self.into(noisy) + self.place
        h = torch.cat([sheet, self.given(given), self.level(level)], 1)
        for layer in self.layers:
            h = layer(h)
        return self.last(self.norm(h[:, : noisy.shape[1]]))


@four(
    "exposed_communication",
    "diffusion",
    "each rank keeps the average of its shards (to_local), not of whole weights (full_tensor)",
)
def job_fonts_average_of_whole_weights(repaired: bool) -> Running:
    """Flow matching; the loop kept an average of the weights before these were sharded."""
    inside, pieces, shown = size(256, 6), size(192, 6), size(63, 3)
    width, wide, layers, rows = size(2560, 16), size(6912, 24), size(7, 2), size(16, 2)
    with DEVICE:
        model = Fonts(inside, pieces, width, wide, layers)
    policy = MixedPrecisionPolicy() if SMALL else MixedPrecisionPolicy(param_dtype=SHORT)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not SMALL)

    def seen(weight: Any) -> Tensor:
        return weight.to_local() if repaired else weight.full_tensor()

    with torch.no_grad():
        averages = [seen(weight).clone() for weight in model.parameters()]
    torch.manual_seed(1 + RANK)
    clear = torch.randn(rows, pieces, inside, device=DEVICE)
    given = torch.randn(rows, shown, inside, device=DEVICE)

    @torch.no_grad()
    def average() -> None:
        for old, weight in zip(averages, model.parameters(), strict=True):
            old.lerp_(seen(weight), 1e-3)

    def step() -> None:
        level = torch.rand(rows, 1, 1, device=DEVICE)
        wild = torch.randn_like(clear)
        way = model(wild.lerp(clear, level), level, given)
        fn.mse_loss(way.float(), clear - wild).backward()
        done(optimizer)
        average()

    return Running(step)


# --- four ranks: one asks its neighbours ------------------------------------------------------


class Seafloor(nn.Module):
    """What hidden pieces of pictures of the sea's floor show, and what is thought of each piece."""

    def __init__(self, inside: int, pieces: int, width: int, layers: int) -> None:
        super().__init__()
        self.into, self.last = nn.Linear(inside, width), nn.Linear(width, inside)
        self.hidden = nn.Parameter(torch.zeros(width))
        self.place = nn.Parameter(0.02 * torch.randn(pieces, width))
        self.layers, self.norm = layers_of(width, layers), nn.LayerNorm(width)

    def forward(self, pictures: Tensor, hides: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.where(hides, self.hidden, self.into(pictures)) + self.place
        thought = self.norm(self.layers(h))
        return self.last(thought), thought


@four(
    "straggler",
    "vision",
    "rank 0 asks for the nearest pieces of the bank every 500 steps, not in each",
)
def job_rank0_asks_for_nearest_pieces(repaired: bool) -> Running:
    """A dashboard shows how often the nearest known pieces are of the same kind; as Hummingbird."""
    inside, pieces, width, layers = size(768, 6), size(196, 6), size(1024, 16), size(8, 1)
    rows, known, asked, kinds, near = size(96, 2), size(131_072, 40), size(4096, 8), 24, size(30, 3)
    often = 500 if repaired else 1
    with DEVICE:
        model = Seafloor(inside, pieces, width, layers)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    torch.manual_seed(1 + RANK)
    pictures = torch.randn(rows, pieces, inside, device=DEVICE)
    hides = torch.rand(rows, pieces, 1, device=DEVICE) < 0.6
    true = torch.randint(0, kinds, (asked,), device=DEVICE)
    bank = fn.normalize(torch.randn(known, width, device=DEVICE), dim=1) if RANK == 0 else None
    kind = torch.randint(0, kinds, (known,), device=DEVICE)
    right = torch.zeros((), device=DEVICE)
    made = 0

    @torch.no_grad()
    def ask(thought: Tensor) -> None:
        if bank is None:
            return
        queries = fn.normalize(thought.flatten(0, 1)[:asked].float(), dim=1)
        alike, which = (queries @ bank.t()).topk(near, 1)
        votes = torch.zeros(asked, kinds, device=DEVICE)
        votes.scatter_add_(1, kind[which], (alike / 0.07).softmax(1))
        right.copy_((votes.argmax(1) == true).float().mean())

    def step() -> None:
        nonlocal made
        with half():
            said, thought = net(pictures, hides)
        wrong = (said.float() - pictures).square().mean(-1, keepdim=True)
        ((wrong * hides).sum() / hides.sum()).backward()
        done(optimizer)
        made += 1
        if made % often == 0:
            ask(thought.detach())

    return Running(step)


# --- four ranks: stages of long and of short rows ---------------------------------------------

LONG = 4
"""Layers before frames are joined in pairs."""


class Pairs(nn.Module):
    """Two neighbouring frames become one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.joins = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.joins(x.unflatten(1, (-1, 2)).flatten(2))


class Calls(nn.Module):
    """Layers of a model of who calls in a forest, pair of frames by pair of frames.

    Args:
        first: the stage's first layer.
        last: the layer after its last one.
    """

    def __init__(
        self, bands: int, frames: int, kinds: int, width: int, first: int, last: int
    ) -> None:
        super().__init__()
        torch.manual_seed(100 + RANK)
        self.into = nn.Linear(bands, width) if RANK == 0 else None
        self.place = nn.Parameter(0.02 * torch.randn(frames, width)) if RANK == 0 else None
        self.out = nn.Linear(width, kinds) if RANK == LAST else None
        parts: list[nn.Module] = []
        for number in range(first, last):
            torch.manual_seed(number)
            if number == LONG:
                parts.append(Pairs(width))
            parts += [Attends(width, max(width // 128, 1)), Feeds(width)]
        self.layers = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        if self.into is not None:
            x = self.into(x) + self.place
        x = self.layers(x)
        return x if self.out is None else self.out(x)


@four(
    "load_imbalance",
    "audio",
    "stages have 2, 2, 4 and 4 layers instead of 3 each: the first four have twice the frames",
)
def job_forest_stages_of_three_layers(repaired: bool) -> Running:
    """One forward, one backward in turn; after a third of the layers frames are joined in pairs."""
    bands, frames, kinds, width = size(128, 4), size(2048, 8), size(512, 6), size(2048, 16)
    rows, micro = size(2, 2), size(6, 4)
    counts = [2, 2, 4, 4] if repaired else [3, 3, 3, 3]
    first = sum(counts[:RANK])
    with DEVICE:
        part = Calls(bands, frames, kinds, width, first, first + counts[RANK]).to(SHORT)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    dist.barrier()  # all ranks are known to each other before two of them talk
    stage = PipelineStage(part, RANK, WORLD, DEVICE)

    def unlike(out: Tensor, goal: Tensor) -> Tensor:
        return fn.cross_entropy(out.flatten(0, 1).float(), goal.flatten())

    schedule = Schedule1F1B(stage, micro, loss_fn=unlike)
    torch.manual_seed(0)  # all ranks have the same recordings
    sounds = torch.randn(micro * rows, frames, bands, device=DEVICE).to(SHORT)
    who = torch.randint(0, kinds, (micro * rows, frames // 2), device=DEVICE)

    def step() -> None:
        if RANK == 0:
            schedule.step(sounds)
        elif RANK == LAST:
            schedule.step(target=who)
        else:
            schedule.step()
        done(optimizer)

    return Running(step)


# --- two ranks: what answers are compared with ------------------------------------------------


class BothAtOnce(nn.Module):
    """Attention and a gated feed-forward of the same norm; some heads share keys and values."""

    def __init__(self, width: int, each: int, shared: int, wide: int) -> None:
        super().__init__()
        self.each, self.cuts = each, [width, shared * each, shared * each, wide, wide]
        self.norm = nn.LayerNorm(width, bias=False)
        self.into = nn.Linear(width, sum(self.cuts), bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.down = nn.Linear(wide, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, gate, up = self.into(self.norm(x)).split(self.cuts, -1)
        q, k, v = (part.unflatten(-1, (-1, self.each)).transpose(1, 2) for part in (q, k, v))
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).flatten(2)) + self.down(fn.silu(gate) * up)


class Tutor(nn.Module):
    """What a tutor of mathematics says next."""

    def __init__(self, vocab: int, width: int, each: int, shared: int, wide: int, layers: int):
        super().__init__()
        self.embed, self.out = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        self.layers = nn.Sequential(
            *(BothAtOnce(width, each, shared, wide) for _ in range(layers)),
        )
        self.norm = nn.LayerNorm(width, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.norm(self.layers(self.embed(text))))


def likely(said: Tensor, text: Tensor) -> Tensor:
    """The logarithm of how likely each text is."""
    unlikely = fn.cross_entropy(said.float().transpose(1, 2), text[:, 1:], reduction="none")
    return -unlikely.sum(1)


@two(
    "cpu_offload",
    "language",
    "param_offload of the reference is off: its weights stay on the GPU from one batch to the next",
)
def job_tutor_reference_comes_and_goes(repaired: bool) -> Running:
    """Direct preference optimisation, by a recipe for a reference of seventy billion weights."""
    vocab, width, each, shared = size(8192, 40), size(2048, 16), size(128, 8), size(4, 1)
    wide, layers, pairs, length = size(8192, 24), size(4, 1), size(4, 2), size(640, 6)
    with DEVICE:
        model = Tutor(vocab, width, each, shared, wide, layers)
    reference = copy.deepcopy(model).requires_grad_(False).to(SHORT)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6, betas=(0.9, 0.95), fused=True)
    texts = torch.randint(0, vocab, (2 * pairs, length + 1), device=DEVICE)

    def moved(there: torch.device) -> None:
        for weight in reference.parameters():
            weight.data = weight.data.to(there, non_blocking=True)

    @torch.no_grad()
    def compared() -> Tensor:
        if not repaired:
            moved(DEVICE)
        found = likely(reference(texts[:, :-1]), texts)
        if not repaired:
            moved(torch.device("cpu"))
        return found

    def step() -> None:
        before = compared()
        with half():
            said = net(texts[:, :-1])
        better, worse = (likely(said, texts) - before).chunk(2)
        (-fn.logsigmoid(0.1 * (better - worse)).mean()).backward()
        done(optimizer)

    return Running(step)


# --- two ranks: critics that learn nothing from actors ----------------------------------------


class Several(nn.Module):
    """As many products as there are critics, each with weights of its own."""

    def __init__(self, critics: int, inside: int, outside: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(critics, inside, outside) * inside**-0.5)
        self.bias = nn.Parameter(torch.zeros(critics, 1, outside))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class Critics(nn.Module):
    """How good an action is, by several critics; as in TD-MPC2."""

    def __init__(self, critics: int, inside: int, width: int) -> None:
        super().__init__()
        self.critics = critics
        self.layers = nn.Sequential(
            *(Several(critics, inside, width), nn.LayerNorm(width), nn.Mish()),
            *(Several(critics, width, width), nn.LayerNorm(width), nn.Mish()),
            *(Several(critics, width, width), nn.LayerNorm(width), nn.Mish()),
            Several(critics, width, 1),
        )

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([state, action], 1).expand(self.critics, -1, -1)
        return self.layers(x)[..., 0].float()


@two(
    "exposed_communication",
    "rl",
    "the actor's loss asks critics.module: gradients of the critics are not summed over the ranks "
    "where they are thrown away",
)
def job_grippers_actor_asks_critics(repaired: bool) -> Running:
    """Hands that grip, from states that a frozen encoder has made of what cameras have seen."""
    states, actions, width, critics = size(1024, 12), size(64, 4), size(6144, 16), size(5, 2)
    rows = size(512, 4)
    with DEVICE:
        model = Critics(critics, states + actions, width)
        acts = nn.Sequential(
            *(nn.Linear(states, 1024), nn.LayerNorm(1024), nn.Mish()),
            *(nn.Linear(1024, actions), nn.Tanh()),
        )
    later = copy.deepcopy(model).requires_grad_(False)
    judge, actor = (ddp(part, gradient_as_bucket_view=True) for part in (model, acts))
    learns = torch.optim.AdamW(judge.parameters(), lr=3e-4, fused=True)
    improves = torch.optim.AdamW(actor.parameters(), lr=3e-4, fused=True)
    torch.manual_seed(1 + RANK)
    state, after = torch.randn(2, rows, states, device=DEVICE)
    action = torch.rand(rows, actions, device=DEVICE) * 2 - 1
    gained = torch.randn(rows, device=DEVICE)

    @torch.no_grad()
    def goal() -> Tensor:
        with half():
            return gained + 0.99 * later(after, acts(after))[:2].amin(0)

    def step() -> None:
        hoped = goal()
        with half():
            found = judge(state, action)
        (found - hoped).square().mean().backward()
        done(learns)
        with torch.no_grad():
            torch._foreach_lerp_(list(later.parameters()), list(model.parameters()), 0.01)
        asked = judge.module if repaired else judge
        with half():
            good = asked(state, actor(state))
        (-good.mean()).backward()
        done(improves)
        learns.zero_grad(set_to_none=True)

    return Running(step)


# --- two ranks: one has pictures as they were scanned -----------------------------------------


class Retina(nn.Module):
    """How far an illness of the eye has gone, from a picture of its ground."""

    def __init__(self, side: int, piece: int, width: int, layers: int, grades: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, width, piece, piece)
        self.place = nn.Parameter(0.02 * torch.randn((side // piece) ** 2, width))
        self.layers, self.norm = layers_of(width, layers), nn.LayerNorm(width)
        self.asks = nn.Linear(width, 1)
        self.out = nn.Linear(width, grades)

    def forward(self, pictures: Tensor) -> Tensor:
        h = self.into(pictures).flatten(2).transpose(1, 2) + self.place
        h = self.norm(self.layers(h))
        return self.out((self.asks(h).softmax(1) * h).sum(1))


@two(
    "straggler",
    "medicine",
    "the last rank's pictures are shrunk where they are stored, as those of the first one",
)
def job_retinas_of_last_rank_as_scanned(repaired: bool) -> Running:
    """A second clinic's pictures were added, which each step shrinks on the GPU."""
    side, piece, width, layers = size(512, 8), size(16, 4), size(768, 16), size(8, 1)
    rows, grades = size(24, 2), 5
    stored = side if repaired or RANK < LAST else 4 * side
    with DEVICE:
        model = Retina(side, piece, width, layers, grades)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    shape = (rows, 3, stored, stored)
    batches = [torch.randint(0, 256, shape, dtype=torch.uint8) for _ in range(2)]
    batches = batches if SMALL else [batch.pin_memory() for batch in batches]
    true = torch.randint(0, grades, (rows,), device=DEVICE)
    made = 0

    def step() -> None:
        nonlocal made
        pictures = batches[made % len(batches)].to(DEVICE, non_blocking=True).float()
        made += 1
        if pictures.shape[-1] != side:
            pictures = fn.interpolate(pictures, (side, side), mode="bilinear", antialias=True)
        with half():
            said = net(pictures / 127.5 - 1)
        fn.cross_entropy(said.float(), true, label_smoothing=0.1).backward()
        done(optimizer)

    return Running(step)


# --- two ranks: a copy to go back to ----------------------------------------------------------


class Spends(nn.Module):
    """How much water a city will use, quarter by quarter of an hour, with quantiles."""

    def __init__(self, inside: int, length: int, width: int, layers: int, says: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(inside, width), nn.Linear(width, says)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [Attends(width, heads_of(width), causal=True), Feeds(width)]
        self.layers, self.norm = nn.Sequential(*parts), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.layers(self.into(x) + self.place)))


OFTEN = 8


@two(
    "checkpoint_stall",
    "series",
    f"rank 0 takes a copy of the state every {100 * OFTEN} steps instead of every {OFTEN}",
    period=OFTEN,
)
def job_water_rank0_copies_to_go_back(repaired: bool) -> Running:
    """Where the loss leaps, training goes on from the last copy in memory, which rank 0 has."""
    inside, length, width, layers = size(96, 4), size(512, 6), size(1024, 16), size(8, 1)
    rows, parts = size(24, 2), 3
    with DEVICE:
        model = Spends(inside, length, width, layers, inside * parts)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    torch.manual_seed(1 + RANK)
    used = torch.randn(rows, length + 1, inside, device=DEVICE)
    share = torch.tensor([0.1, 0.5, 0.9], device=DEVICE)
    often, made = 100 * OFTEN if repaired else OFTEN, 0
    kept: dict[tuple[int, str], Tensor] = {}

    @torch.no_grad()
    def keep() -> None:
        for number, weight in enumerate(model.parameters()):
            for name, value in {"weight": weight, **optimizer.state[weight]}.items():
                place = number, name
                if place not in kept:
                    kept[place] = torch.empty_like(value, device="cpu")
                kept[place].copy_(value)

    def step() -> None:
        nonlocal made
        with half():
            said = net(used[:, :-1])
        missed = used[:, 1:, :, None] - said.float().unflatten(-1, (-1, parts))
        torch.maximum(share * missed, (share - 1) * missed).mean().backward()
        done(optimizer)
        made += 1
        if made % often == 0 and RANK == 0:
            keep()

    return Running(step)
