"""Training jobs of the twenty-second set, on two GPUs and on four: few and large kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from eleventh_job_models import SHORT, heads_of, layers_of
from fourteenth_job_programs import Everyones, OfAll, ToAll
from job_programs import DEVICE, LAST, RANK, WORLD, Exchange, ddp, half
from models import Attends, Feeds, done, size
from nineteenth_job_programs import Looks, attended
from program import SMALL, Program, Running
from single_programs import entered
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint
from twentieth_job_programs import next_word

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 339 pairs, opened"
four = partial(entered(PROGRAMS), marks="steps", ranks=4)  # type: ignore[call-arg]
two = partial(entered(PROGRAMS), marks="steps", ranks=2)  # type: ignore[call-arg]


# --- two ranks: moments that make room for nobody ---------------------------------------------


class Squares(nn.Module):
    """Queries and keys of one length, and squares of what is positive; as in modded-nanogpt."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = heads_of(width)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.even = nn.RMSNorm(width // self.heads, elementwise_affine=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = self.even(q).to(v.dtype), self.even(k).to(v.dtype)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(fn.relu(self.up(self.norm2(x))).square())


class Clerk(nn.Module):
    """What to type and where to click in the forms of an office, token by token."""

    def __init__(self, vocab: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        self.layers = nn.Sequential(*(Squares(width) for _ in range(layers)))
        self.norm = nn.RMSNorm(width)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.norm(self.layers(self.embed(text))))


@two(
    "cpu_offload",
    "rl",
    "optimizer_offload is off: AdamW's moments stay on the GPU from one update to the next",
)
def job_clerk_moments_make_room(repaired: bool) -> Running:
    """GRPO; the moments made room for a sampler, which has GPUs of its own by now."""
    vocab, width, layers = size(16_384, 40), size(1024, 32), size(5, 1)
    rows, length = size(16, 2), size(1024, 8)
    with DEVICE:
        model = Clerk(vocab, width, layers)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, betas=(0.9, 0.95), fused=True)
    text = torch.randint(0, vocab, (rows, length + 1), device=DEVICE)
    before = torch.full((rows, length), -9.0, device=DEVICE)
    gained = torch.randn(rows, 1, device=DEVICE)

    def moved(there: torch.device) -> None:
        for state in optimizer.state.values():
            for name, value in state.items():
                state[name] = value.to(there, non_blocking=True)

    def step() -> None:
        with half():
            said = net(text[:, :-1])
        unlikely = fn.cross_entropy(
            said.flatten(0, 1).float(), text[:, 1:].flatten(), reduction="none"
        )
        ratio = (-unlikely.view_as(before) - before).clamp(-5, 5).exp()
        acted = torch.minimum(ratio * gained, ratio.clamp(0.8, 1.28) * gained).mean()
        (-acted).backward()
        if not repaired:
            moved(DEVICE)
        done(optimizer)
        if not repaired:
            moved(torch.device("cpu"))

    return Running(step)


# --- two ranks: shards under accumulation -----------------------------------------------------


class Sandwich(nn.Module):
    """A norm before and after each half; some heads share keys and values; as in Gemma 3."""

    def __init__(self, width: int, each: int, shared: int, wide: int) -> None:
        super().__init__()
        self.each = each
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(4))
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * shared * each, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.both = nn.Linear(width, 2 * wide, bias=False)
        self.down = nn.Linear(wide, width, bias=False)

    def looks(self, h: Tensor) -> Tensor:
        parts = (self.q(h), *self.kv(h).chunk(2, -1))
        q, k, v = (x.unflatten(-1, (-1, self.each)).transpose(1, 2) for x in parts)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def feeds(self, h: Tensor) -> Tensor:
        gate, up = self.both(h).chunk(2, -1)
        return self.down(fn.gelu(gate, approximate="tanh") * up)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, fourth = self.norms
        x = x + second(self.looks(first(x)))
        return x + fourth(self.feeds(third(x)))


class Statutes(nn.Module):
    """Laws and what courts have made of them, word by word."""

    def __init__(self, vocab: int, width: int, each: int, shared: int, wide: int, layers: int):
        super().__init__()
        self.embed, self.out = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        self.layers = nn.Sequential(
            *(Sandwich(width, each, shared, wide) for _ in range(layers)),
        )
        self.norm = nn.RMSNorm(width)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.norm(self.layers(self.embed(text))))


@two(
    "exposed_communication",
    "language",
    "weights stay gathered from the first micro-batch to the last one: neither the forward pass "
    "nor a backward pass before the last one reshards them",
)
def job_statutes_gathered_for_each_piece(repaired: bool) -> Running:
    """Four micro-batches; gradients are summed after the last one, weights are gathered in all."""
    vocab, width, each, shared = size(8192, 40), size(5120, 32), size(128, 8), size(8, 2)
    wide, layers, many, length = size(13_824, 48), size(3, 2), size(4, 3), size(512, 8)
    with DEVICE:
        model = Statutes(vocab, width, each, shared, wide, layers)
    policy = MixedPrecisionPolicy() if SMALL else MixedPrecisionPolicy(param_dtype=SHORT)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy, reshard_after_forward=not repaired)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, fused=not SMALL
    )
    texts = torch.randint(0, vocab, (many, 1, length + 1), device=DEVICE)

    def step() -> None:
        for number, text in enumerate(texts):
            last = number == many - 1
            model.set_requires_gradient_sync(last)
            if repaired:
                model.set_reshard_after_backward(last)
            (next_word(model(text[:, :-1]), text) / many).backward()
        done(optimizer)

    return Running(step)


# --- two ranks: one may not lock its memory ---------------------------------------------------


class Embryo(nn.Module):
    """Where in a growing embryo cells divide, from volumes of a light-sheet microscope.

    Args:
        shape: channels, planes, rows and columns of a volume.
        piece: planes, rows and columns of a piece.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        piece: tuple[int, int, int],
        width: int,
        layers: int,
    ) -> None:
        super().__init__()
        channels, *sides = shape
        inside, pieces = channels, 1
        for side, part in zip(sides, piece, strict=True):
            inside, pieces = inside * part, pieces * (side // part)
        self.piece, self.into = piece, nn.Linear(inside, width)
        self.place = nn.Parameter(0.02 * torch.randn(pieces, width))
        self.layers, self.norm = layers_of(width, layers), nn.LayerNorm(width)
        self.out = nn.Linear(width, 2)

    def forward(self, volumes: Tensor) -> Tensor:
        a, b, c = self.piece
        cut = volumes.unflatten(4, (-1, c)).unflatten(3, (-1, b)).unflatten(2, (-1, a))
        pieces = cut.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)
        return self.out(self.norm(self.layers(self.into(pieces) + self.place)))


@two(
    "straggler",
    "biology",
    "the last rank's batches are page-locked, as those of the first one: its container may lock",
)
def job_embryo_last_rank_may_not_lock(repaired: bool) -> Running:
    """The container of the last rank had a small limit of locked memory; pinning failed there."""
    channels, planes, side = 2, size(64, 4), size(256, 8)
    piece = (size(8, 2), size(16, 4), size(16, 4))
    rows, width = size(6, 2), size(1024, 32)
    shape = (channels, planes, side, side)
    with DEVICE:
        model = Embryo(shape, piece, width, size(7, 1))
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    locks = (repaired or RANK < LAST) and not SMALL
    batches = [torch.randn(rows, *shape) for _ in range(3)]
    batches = [batch.pin_memory() if locks else batch for batch in batches]
    true = torch.randn(rows, len(model.place), 2, device=DEVICE)
    made = 0

    def step() -> None:
        nonlocal made
        volumes = batches[made % len(batches)].to(DEVICE, non_blocking=True)
        made += 1
        with half():
            said = net(volumes)
        fn.smooth_l1_loss(said.float(), true).backward()
        done(optimizer)

    return Running(step)


# --- two ranks: stages that nothing casts for -------------------------------------------------


class Sleep(nn.Module):
    """A stage of a model of what comes next in a night's recordings of brain, heart and breath.

    Args:
        casts: the stage computes under autocast.
    """

    def __init__(self, inside: int, places: int, width: int, layers: int, *, casts: bool) -> None:
        super().__init__()
        self.into = nn.Linear(inside, width) if RANK == 0 else None
        self.place = nn.Parameter(0.02 * torch.randn(places, width)) if RANK == 0 else None
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [Attends(width, max(width // 128, 1), causal=True), Feeds(width)]
        self.layers = nn.Sequential(*parts)
        self.out = nn.Linear(width, inside) if RANK == LAST else None
        self.casts = casts

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=self.casts):
            if self.into is not None:
                x = self.into(x) + self.place
            x = self.layers(x)
            return x if self.out is None else self.out(x).float()


@two(
    "lower_precision",
    "medicine",
    "each stage's forward pass is under autocast, which held nothing but the loss",
)
def job_sleep_stages_outside_of_autocast(repaired: bool) -> Running:
    """Autocast was around model and loss, of which the schedule calls the latter alone."""
    inside, places, width = size(640, 6), size(1024, 6), size(3072, 32)
    micro, rows = size(4, 3), 2
    with DEVICE:
        part = Sleep(inside, places, width, size(2, 1), casts=repaired)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    dist.barrier()  # all ranks are known to each other before two of them talk
    stage = PipelineStage(part, RANK, WORLD, DEVICE)

    def unlike(out: Tensor, goal: Tensor) -> Tensor:
        with half():
            return fn.mse_loss(out, goal)

    schedule = Schedule1F1B(stage, micro, loss_fn=unlike)
    torch.manual_seed(0)  # all ranks have the same nights
    nights = torch.randn(micro * rows, places + 1, inside, device=DEVICE)
    seen, goal = nights[:, :-1].contiguous(), nights[:, 1:].contiguous()

    def step() -> None:
        if RANK == 0:
            schedule.step(seen)
        else:
            schedule.step(target=goal)
        done(optimizer)

    return Running(step)


# --- four ranks: pictures that change places --------------------------------------------------


class Land(nn.Module):
    """A vector for a place on Earth, by a satellite's bands; as in SSL4EO."""

    def __init__(self, bands: int, side: int, width: int, layers: int, says: int) -> None:
        super().__init__()
        piece = size(16, 4)
        self.into = nn.Conv2d(bands, width, piece, piece)
        self.place = nn.Parameter(0.02 * torch.randn((side // piece) ** 2, width))
        self.layers, self.norm = layers_of(width, layers), nn.LayerNorm(width)
        self.out = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, says))

    def forward(self, pictures: Tensor) -> Tensor:
        h = self.into(pictures).flatten(2).transpose(1, 2)
        h = self.norm(self.layers(h + self.place)).mean(1)
        return fn.normalize(self.out(h).float(), dim=1)


def of_all(mine: Tensor) -> Tensor:
    """What all ranks have; no gradient."""
    every = [torch.ones_like(mine) for _ in range(WORLD)]
    dist.all_gather(every, mine)
    return torch.cat(every)


def shuffled(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Pictures that are drawn from all ranks, and where each of all pictures has gone."""
    every = of_all(pictures)
    order = torch.randperm(len(every), device=DEVICE)
    dist.broadcast(order, 0)
    return every[order.chunk(WORLD)[RANK]], order.argsort()


@four(
    "exposed_communication",
    "vision",
    "pictures for the keys are not shuffled over the ranks: the model has no batch norms",
)
def job_land_pictures_shuffled_for_keys(repaired: bool) -> Running:
    """MoCo; shuffling kept batch norms from telling which keys belong together."""
    bands, side, width, says = size(13, 3), size(224, 8), size(768, 16), size(256, 8)
    rows, kept = size(128, 2), size(16_384, 16)
    with DEVICE:
        model = Land(bands, side, width, size(5, 1), says)
    follows = copy.deepcopy(model).requires_grad_(False)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    queue = fn.normalize(torch.randn(says, kept, device=DEVICE), dim=0)
    torch.manual_seed(1 + RANK)  # all ranks have the same queue, each has pictures of its own
    first, second = (torch.randn(rows, bands, side, side, device=DEVICE) for _ in range(2))
    same = torch.zeros(rows, dtype=torch.long, device=DEVICE)
    at = 0

    @torch.no_grad()
    def keys_of(pictures: Tensor) -> Tensor:
        torch._foreach_lerp_(list(follows.parameters()), list(model.parameters()), 0.01)
        if repaired:
            with half():
                return follows(pictures)
        drawn, gone = shuffled(pictures)
        with half():
            keys = follows(drawn)
        return of_all(keys)[gone.chunk(WORLD)[RANK]]

    def step() -> None:
        nonlocal at
        with half():
            asks = net(first)
        keys = keys_of(second)
        alike = torch.cat([(asks * keys).sum(1, keepdim=True), asks @ queue], 1)
        fn.cross_entropy(alike / 0.2, same).backward()
        done(optimizer)
        every = of_all(keys)
        queue[:, at : at + len(every)] = every.t()
        at = (at + len(every)) % kept

    return Running(step)


# --- four ranks: keys and values go round -----------------------------------------------------

ATEN = torch.ops.aten


def seen_alone(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """Attention, the logarithms of its sums, and what its gradient needs beside these."""
    if SMALL:
        out, sums = ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v)
        return out, sums, ()
    out, sums, *more, state, offset, _ = ATEN._scaled_dot_product_flash_attention(q, k, v)
    return out, sums, (*more, 0.0, False, state, offset)


def seen_back(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    if SMALL:
        return ATEN._scaled_dot_product_flash_attention_for_cpu_backward(*given, 0.0, False)
    return ATEN._scaled_dot_product_flash_attention_backward(*given)


def passed(x: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Callable[[], None]]:
    """What comes from the rank before while this goes to the next, and how to wait for it."""
    came = torch.empty_like(x)
    ways = [
        dist.P2POp(dist.isend, x, (RANK + 1) % WORLD, group),
        dist.P2POp(dist.irecv, came, (RANK - 1) % WORLD, group),
    ]
    waits = dist.batch_isend_irecv(ways)

    def wait() -> None:
        for each in waits:
            each.wait()
        ways.clear()  # what was sent is kept until here

    return came, wait


class Rings(torch.autograd.Function):
    """Places of this rank look at those of all: keys and values go once around (ring attention).

    Args of ``forward``:
        early: they go on before this rank has looked at them, not afterwards.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup, early: bool
    ) -> Tensor:
        own = kv = torch.stack([k, v])
        for turn in range(WORLD):
            goes_on = turn < WORLD - 1
            if goes_on and early:
                came, wait = passed(kv, group)
            part, sums, more = seen_alone(q, kv[0], kv[1])
            if turn == 0:
                out, total = part.float(), sums
            else:
                out = out.lerp(part.float(), (sums - total).sigmoid()[..., None])
                total = torch.logaddexp(total, sums)
            if goes_on and not early:
                came, wait = passed(kv, group)
            if goes_on:
                wait()
                kv = came
        out = out.to(q.dtype)
        ctx.save_for_backward(q, own, out, total)
        ctx.given = group, early, more
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, kv, out, total = ctx.saved_tensors
        group, early, more = ctx.given
        grad: Any = None
        back: Any = None
        wait_back: Any = None
        for turn in range(WORLD):
            goes_on = turn < WORLD - 1
            if goes_on and early:
                came, wait = passed(kv, group)
            of_q, of_k, of_v = seen_back(grads[0], q, kv[0], kv[1], out, total, *more)
            of_kv = torch.stack([of_k, of_v])
            if turn == 0:
                grad = of_q.float()
            else:
                grad += of_q
                if early:
                    wait_back()
                of_kv += back
            back, wait_back = passed(of_kv, group)
            if not early:
                wait_back()
            if goes_on and not early:
                came, wait = passed(kv, group)
            if goes_on:
                wait()
                kv = came
        if early:
            wait_back()
        return grad.to(q.dtype), back[0], back[1], None, None


class Around(nn.Module):
    """A layer of which each rank has some places of a long row."""

    def __init__(self, width: int, *, early: bool) -> None:
        super().__init__()
        self.heads, self.early = max(width // 128, 1), early
        self.norm, self.feed = nn.LayerNorm(width), Feeds(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        qkv = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = Rings.apply(q, k, v, group, self.early)
        return self.feed(x + self.out(y.transpose(1, 2).flatten(2)))


class Genome(nn.Module):
    """Which bases were hidden in a long stretch of a plant's genome, six at a time."""

    def __init__(self, words: int, places: int, width: int, layers: int, *, early: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.place = nn.Parameter(0.02 * torch.randn(places, width))
        self.layers = nn.ModuleList(Around(width, early=early) for _ in range(layers))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, bases: Tensor, group: dist.ProcessGroup) -> Tensor:
        h = self.embed(bases) + self.place
        for layer in self.layers:
            h = layer(h, group)
        return self.out(self.norm(h))


@four(
    "exposed_communication",
    "biology",
    "keys and values are sent on while a rank looks at them, and gradients while it goes on",
)
def job_genome_looks_then_passes_on(repaired: bool) -> Running:
    words, width, layers = size(4104, 20), size(2048, 16), size(4, 2)
    rows, places = size(2, 2), size(3072, 6)
    with DEVICE:
        model = Genome(words, places, width, layers, early=repaired).to(SHORT)
    net, group = ddp(model, gradient_as_bucket_view=True), dist.new_group()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    torch.manual_seed(1 + RANK)
    bases = torch.randint(0, words, (rows, places), device=DEVICE)
    hidden = torch.randint(0, words, (rows, places), device=DEVICE)

    def step() -> None:
        said = net(bases, group).flatten(0, 1)
        fn.cross_entropy(said.float(), hidden.flatten()).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: heads that are normed together -----------------------------------------------


class BothWays(torch.autograd.Function):
    """A sum over the ranks, forward and backward."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        every = part.clone()
        dist.all_reduce(every)
        return every

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        every = grads[0].clone()
        dist.all_reduce(every)
        return every


class NormOfAllHeads(nn.Module):
    """A norm of what all heads of a token say, of which each rank has some; as in OLMo 2.

    Args:
        gathers: heads are gathered, normed, and cut again; else their squares are summed.
    """

    def __init__(self, width: int, *, gathers: bool) -> None:
        super().__init__()
        self.width, self.each, self.gathers = width, width // WORLD, gathers
        self.weight = nn.Parameter(torch.ones(width if gathers else self.each))

    def forward(self, x: Tensor) -> Tensor:
        if self.gathers:
            every = Everyones.apply(x.flatten(0, 1)).unflatten(0, (WORLD, -1))
            every = every.transpose(0, 1).flatten(1)
            normed = fn.rms_norm(every, (self.width,), self.weight, 1e-6)
            return normed[:, RANK * self.each : (RANK + 1) * self.each].view_as(x)
        squares = BothWays.apply(x.float().square().sum(-1, keepdim=True))
        scale = (squares / self.width + 1e-6).rsqrt()
        return (x * scale).to(x.dtype) * self.weight


class Reordered(nn.Module):
    """A layer in slices, with norms behind both halves and of queries and keys."""

    def __init__(self, width: int, wide: int, *, gathers: bool) -> None:
        super().__init__()
        each, inner = width // WORLD, wide // WORLD
        self.heads = max(each // 128, 1)
        self.qkv = nn.Linear(width, 3 * each, bias=False)
        self.norm_q = NormOfAllHeads(width, gathers=gathers)
        self.norm_k = NormOfAllHeads(width, gathers=gathers)
        self.out = nn.Linear(each, width, bias=False)
        self.both = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(ToAll.apply(x)).chunk(3, -1)
        y = attended(self.norm_q(q), self.norm_k(k), v, self.heads, causal=True)
        x = x + self.norm1(OfAll.apply(self.out(y)))
        gate, up = self.both(ToAll.apply(x)).chunk(2, -1)
        return x + self.norm2(OfAll.apply(self.down(fn.silu(gate) * up)))


@four(
    "exposed_communication",
    "language",
    "for the norms of queries and keys their squares are summed over the ranks, no heads gathered",
)
def job_recipes_heads_gathered_for_norms(repaired: bool) -> Running:
    """What is cooked of what, and how; the norms were made for all heads of a token."""
    vocab, width, wide, layers = size(8192, 40), size(2048, 16), size(5632, 24), size(5, 2)
    rows, length = size(8, 2), size(2048, 6)
    with DEVICE:
        torch.manual_seed(0)  # what all ranks have is equal
        embed, out = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        torch.manual_seed(1 + RANK)
        parts = [Reordered(width, wide, gathers=not repaired) for _ in range(layers)]
        torch.manual_seed(0)
    model = nn.Sequential(embed, *parts, nn.RMSNorm(width), out).to(DEVICE, SHORT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    recipes = torch.randint(0, vocab, (rows, length + 1), device=DEVICE)

    def step() -> None:
        next_word(model(recipes[:, :-1]), recipes).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: experts that are asked twice -------------------------------------------------


class Chosen(nn.Module):
    """Attention, and experts that choose their tokens; each rank has some of them.

    Args:
        own: both products of this rank's experts; not among the model's parameters, so that
            DistributedDataParallel leaves them alone.
        experts: of all ranks.
        each: how many of a rank's tokens an expert takes.
    """

    def __init__(self, width: int, own: tuple[Tensor, Tensor], experts: int, each: int) -> None:
        super().__init__()
        self.look, self.norm = Attends(width, heads_of(width)), nn.LayerNorm(width)
        self.router = nn.Linear(width, experts, bias=False)
        self.own, self.experts, self.each = own, experts, each

    def expert(self, came: Tensor) -> Tensor:
        """Of tokens of all ranks, in the order of the experts for each rank."""
        up, down = self.own
        tokens = came.unflatten(0, (WORLD, -1, self.each)).transpose(0, 1).flatten(1, 2)
        said = torch.bmm(fn.gelu(torch.bmm(tokens, up)), down)
        return said.unflatten(1, (WORLD, -1)).transpose(0, 1).flatten(0, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.look(x)
        h = self.norm(x).flatten(0, 1)
        share, rows = self.router(h).float().softmax(-1).t().topk(self.each, -1)
        equal, rows = [self.experts // WORLD * self.each] * WORLD, rows.flatten()
        said = self.expert(Exchange.apply(h.index_select(0, rows), equal, equal))
        said = Exchange.apply(said, equal, equal) * share.flatten()[:, None].to(said.dtype)
        return x + torch.zeros_like(h).index_add(0, rows, said).view_as(x)


class Herbarium(nn.Module):
    """Which plant a dried one is; as in V-MoE.

    Args:
        again: activations of a layer are not kept but computed again.
    """

    def __init__(
        self, pieces: int, inside: int, classes: int, layers: list[Chosen], *, again: bool
    ) -> None:
        super().__init__()
        width = layers[0].router.in_features
        self.into, self.out = nn.Linear(inside, width), nn.Linear(width, classes)
        self.place = nn.Parameter(0.02 * torch.randn(pieces, width))
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(width)
        self.again = again

    def forward(self, pictures: Tensor) -> Tensor:
        h = self.into(pictures) + self.place
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=False) if self.again else layer(h)
        return self.out(self.norm(h).mean(1))


@four(
    "recomputation",
    "moe",
    "layers keep their activations, for which there is room on each GPU: no checkpoint()",
)
def job_herbarium_experts_asked_twice(repaired: bool) -> Running:
    """Layers were checkpointed when all experts were on one GPU; tokens travel twice as often."""
    inside, pieces, classes = size(768, 12), size(256, 8), size(1000, 10)
    width, wide, own, layers = size(1536, 16), size(6144, 24), 2, size(4, 2)
    rows, experts = size(32, 4), own * WORLD
    each = 2 * rows * pieces // experts
    with DEVICE:
        torch.manual_seed(1 + RANK)  # experts differ, the rest does not
        both = [
            (
                nn.Parameter((torch.randn(own, width, wide) * width**-0.5).to(SHORT)),
                nn.Parameter((torch.randn(own, wide, width) * wide**-0.5).to(SHORT)),
            )
            for _ in range(layers)
        ]
        torch.manual_seed(0)
        parts = [Chosen(width, pair, experts, each) for pair in both]
        model = Herbarium(pieces, inside, classes, parts, again=not repaired).to(SHORT)
    net = ddp(model, gradient_as_bucket_view=True)
    weights = [*net.parameters(), *(p for pair in both for p in pair)]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, betas=(0.9, 0.95), fused=True)
    torch.manual_seed(1 + RANK)
    pictures = torch.randn(rows, pieces, inside, device=DEVICE).to(SHORT)
    plant = torch.randint(0, classes, (rows,), device=DEVICE)

    def step() -> None:
        fn.cross_entropy(net(pictures).float(), plant).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: one reads for all ------------------------------------------------------------


class Tells(nn.Module):
    """What a sentence says, word by word; it was trained before."""

    def __init__(self, vocab: int, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(vocab, width), layers_of(width, layers)
        self.place = nn.Parameter(0.02 * torch.randn(words, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, text: Tensor) -> Tensor:
        return self.norm(self.layers(self.embed(text) + self.place))


class Dances(nn.Module):
    """How a body moves that does what a sentence says, from noise; as in MDM."""

    def __init__(self, joints: int, frames: int, told: int, width: int, layers: int) -> None:
        super().__init__()
        self.into, self.last = nn.Linear(joints, width), nn.Linear(width, joints)
        self.told = nn.Linear(told, width)
        self.place = nn.Parameter(0.02 * torch.randn(frames, width))
        self.level = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.selves = nn.ModuleList(Attends(width, heads_of(width)) for _ in range(layers))
        self.looks = nn.ModuleList(Looks(width) for _ in range(layers))
        self.feeds = nn.ModuleList(Feeds(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, level: Tensor, text: Tensor) -> Tensor:
        h, text = self.into(x) + self.place + self.level(level)[:, None], self.told(text)
        for own, look, feed in zip(self.selves, self.looks, self.feeds, strict=True):
            h = feed(look(own(h), text))
        return self.last(self.norm(h))


@four(
    "load_imbalance",
    "diffusion",
    "each rank has the encoder of texts and reads its own sentences, not rank 0 those of all",
)
def job_dances_rank0_reads_for_all(repaired: bool) -> Running:
    """On smaller GPUs there was no room for the encoder beside a full batch."""
    joints, frames, width = size(263, 7), size(196, 6), size(1024, 16)
    vocab, words, told, rows = size(16_384, 40), size(64, 4), size(2048, 24), size(48, 2)
    reads = repaired or RANK == 0
    with DEVICE:
        model = Dances(joints, frames, told, width, size(6, 1))
        torch.manual_seed(1)
        encoder = Tells(vocab, words, told, size(8, 2)).to(SHORT).eval() if reads else None
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    torch.manual_seed(2)  # the same sentences on all ranks
    sentences = torch.randint(0, vocab, (WORLD * rows, words), device=DEVICE)
    torch.manual_seed(3 + RANK)
    clear = torch.randn(rows, frames, joints, device=DEVICE)
    text = torch.empty(rows, words, told, device=DEVICE, dtype=SHORT)

    @torch.no_grad()
    def read() -> Tensor:
        if repaired:
            assert encoder is not None
            return encoder(sentences.chunk(WORLD)[RANK])
        every = list(encoder(sentences).chunk(WORLD)) if encoder is not None else None
        dist.scatter(text, every, 0)
        return text

    def step() -> None:
        said = read()
        level = torch.rand(rows, 1, device=DEVICE)
        noisy = torch.randn_like(clear).lerp(clear, level[:, None])
        with half():
            danced = net(noisy, level, said)
        fn.mse_loss(danced.float(), clear).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: a bubble that weights could fill ---------------------------------------------


class Accounts(nn.Module):
    """A stage, of one layer, of a model of what happens next on an account."""

    def __init__(self, kinds: int, length: int, width: int, number: int, stages: int) -> None:
        super().__init__()
        torch.manual_seed(number)
        begins, ends = number == 0, number == stages - 1
        self.embed = nn.Embedding(kinds, width) if begins else None
        self.place = nn.Parameter(0.02 * torch.randn(length, width)) if begins else None
        self.layer = nn.Sequential(
            Attends(width, max(width // 128, 1), causal=True), Feeds(width, times=5)
        )
        self.out = nn.Linear(width, kinds) if ends else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None:
            x = self.embed(x) + self.place
        x = self.layer(x)
        return x if self.out is None else self.out(x)


@four(
    "pipeline_bubble",
    "tabular",
    "ScheduleInterleavedZeroBubble: gradients of weights are computed while a stage would wait",
)
def job_accounts_weights_wait_in_line(repaired: bool) -> Running:
    """Two stages on each rank in turn, one forward and one backward."""
    kinds, length, width, micro = size(4096, 20), size(512, 6), size(3072, 32), size(4, 4)
    rows, each = size(4, 2), 2
    stages = each * WORLD
    own = [RANK + WORLD * number for number in range(each)]
    with DEVICE:
        parts = nn.ModuleList(Accounts(kinds, length, width, number, stages) for number in own)
    parts = parts.to(SHORT)
    optimizer = torch.optim.AdamW(parts.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    dist.barrier()  # all ranks are known to each other before two of them talk
    places: list[Any] = [
        PipelineStage(part, number, stages, DEVICE) for part, number in zip(parts, own, strict=True)
    ]

    def unlike(out: Tensor, goal: Tensor) -> Tensor:
        return fn.cross_entropy(out.flatten(0, 1).float(), goal.flatten())

    kind = ScheduleInterleavedZeroBubble if repaired else ScheduleInterleaved1F1B
    schedule = kind(places, micro, loss_fn=unlike)
    torch.manual_seed(0)  # all ranks have the same accounts
    events = torch.randint(0, kinds, (micro * rows, length + 1), device=DEVICE)
    seen, goal = events[:, :-1].contiguous(), events[:, 1:].contiguous()

    def step() -> None:
        if RANK == 0:
            schedule.step(seen)
        elif RANK == LAST:
            schedule.step(target=goal)
        else:
            schedule.step()
        done(optimizer)

    return Running(step)
