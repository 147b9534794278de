"""What the jobs of the ninth set are made of: their models, and how they are dealt out."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from job_programs import DEVICE, LAST, RANK, WORLD
from models import size
from program import SMALL
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.nn.attention.bias import causal_lower_right
from torch.utils.data import Dataset

SHORT = torch.float32 if SMALL else torch.bfloat16
"""What is computed without autocast, and what travels."""

Turn = tuple[Tensor, Tensor]
Look = Callable[[Tensor, Tensor, Tensor], Tensor]


# --- what several programs have ---------------------------------------------------------------


def turn_of(places: Tensor, channels: int) -> Turn:
    """Cosines and sines of rotary positions, for (..., heads, channels)."""
    speeds = 10_000.0 ** -(torch.arange(0, channels, 2, device=DEVICE) / channels)
    angles = places[..., None, None] * speeds
    return angles.cos().to(SHORT), angles.sin().to(SHORT)


def turned(x: Tensor, turn: Turn) -> Tensor:
    (a, b), (cos, sin) = x.chunk(2, -1), turn
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


def looks(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """Attention of (rows, places, heads, channels)."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return fn.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


class Layer(nn.Module):
    """Attention with rotary positions, and a gated product; as in Llama.

    Args:
        look: attention over (rows, places, heads, channels).
    """

    def __init__(self, width: int, inner: int, look: Look) -> None:
        super().__init__()
        self.heads, self.look = width // 64 or 1, look
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.wide = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, turn: Turn) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        y = self.look(turned(q, turn), turned(k, turn), v)
        x = x + self.out(y.flatten(2))
        gate, up = self.wide(self.norm2(x)).chunk(2, -1)
        return x + self.down(fn.silu(gate) * up)


def channels_of(width: int) -> int:
    return width // (width // 64 or 1)


# --- four ranks: a pipeline -------------------------------------------------------------------


class Stage(nn.Module):
    """A part of a language model: the first one embeds, the last one has the output."""

    def __init__(self, layers: int, width: int, inner: int, vocab: int) -> None:
        super().__init__()
        look = partial(looks, causal=True)
        self.embed = nn.Embedding(vocab, width) if RANK == 0 else None
        self.layers = nn.ModuleList(Layer(width, inner, look) for _ in range(layers))
        ends = (nn.RMSNorm(width), nn.Linear(width, vocab, bias=False))
        self.ends = nn.Sequential(*ends) if RANK == LAST else None

    def forward(self, x: Tensor, turn: Turn) -> Tensor:
        x = x if self.embed is None else self.embed(x)
        for layer in self.layers:
            x = layer(x, turn)
        return x if self.ends is None else self.ends(x)


def passed(sent: Tensor | None, to: int, room: Tensor | None, source: int) -> Tensor | None:
    """Send to one neighbour and receive from one, at once; the ends of the pipeline have one."""
    ways = []
    if sent is not None and 0 <= to <= LAST:
        ways.append(dist.P2POp(dist.isend, sent, to))
    if room is not None and 0 <= source <= LAST:
        ways.append(dist.P2POp(dist.irecv, room, source))
    else:
        room = None
    if ways:
        for wait in dist.batch_isend_irecv(ways):
            wait.wait()
    return room


# --- four ranks: tensor parallel --------------------------------------------------------------


class Columns(torch.autograd.Function):
    """A product whose outputs are dealt out; backward the parts of its input's gradient are summed.

    ``early``: the sum is under way while the weights' gradient is computed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, early: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.early = early
        return fn.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        into = grad @ weight
        wait = dist.all_reduce(into, async_op=True) if ctx.early else None
        of_weight = grad.flatten(0, -2).t() @ x.flatten(0, -2)
        if wait is None:
            dist.all_reduce(into)
        else:
            wait.wait()
        return into, of_weight, None


class Rows(torch.autograd.Function):
    """A product whose inputs are dealt out: parts of the output are summed, and waited for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, waits: list[Any]) -> Tensor:
        ctx.save_for_backward(x, weight)
        out = fn.linear(x, weight)
        waits.append(dist.all_reduce(out, async_op=True))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.flatten(0, -2).t() @ x.flatten(0, -2), None


class Branch(nn.Module):
    """What is added to the residual stream: attention, or a wide product; this rank's part.

    Args:
        heads: of this rank, of attention; 0 for a wide product.
    """

    def __init__(self, width: int, heads: int, *, early: bool) -> None:
        super().__init__()
        self.heads, self.early = heads, early
        inside = width // WORLD if heads else 4 * width // WORLD
        self.norm = nn.LayerNorm(width)
        self.first = nn.Parameter(0.02 * torch.randn(inside * (3 if heads else 1), width))
        self.second = nn.Parameter(0.02 * torch.randn(width, inside))

    def forward(self, x: Tensor, waits: list[Any]) -> Tensor:
        h = Columns.apply(self.norm(x), self.first, self.early)
        if self.heads:
            q, k, v = h.unflatten(-1, (3, self.heads, -1)).unbind(-3)
            h = looks(q, k, v, causal=False).flatten(2)
        else:
            h = fn.gelu(h)
        return Rows.apply(h, self.second, waits)


class Slices(nn.Module):
    """A vision transformer whose layers are dealt out over the ranks, as in Megatron.

    Args:
        early: a half of the batch is summed while the other one computes.
    """

    def __init__(self, width: int, layers: int, classes: int, places: int, *, early: bool) -> None:
        super().__init__()
        self.early = early
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.where = nn.Parameter(0.02 * torch.randn(1, places, width))
        heads = width // 64 // WORLD or 1
        self.branches = nn.ModuleList(
            Branch(width, heads * (1 - number % 2), early=early) for number in range(2 * layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.where
        parts = list(x.chunk(2)) if self.early else [x]
        coming: list[tuple[Tensor, list[Any]] | None] = [None] * len(parts)
        for branch in self.branches:
            for at in range(len(parts)):
                parts[at] = self.arrived(parts[at], coming[at])
                waits: list[Any] = []
                coming[at] = branch(parts[at], waits), waits
                if not self.early:
                    waits.pop().wait()
        whole = [self.arrived(part, more) for part, more in zip(parts, coming, strict=True)]
        return self.head(self.norm(torch.cat(whole)).mean(1))

    @staticmethod
    def arrived(x: Tensor, coming: tuple[Tensor, list[Any]] | None) -> Tensor:
        if coming is None:
            return x
        out, waits = coming
        while waits:
            waits.pop().wait()
        return x + out


# --- four ranks: a long text in pieces --------------------------------------------------------


class AllKeys(torch.autograd.Function):
    """The chunks of all ranks in the order of the text; backward each gets its gradients back."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, order: Tensor) -> Tensor:
        ctx.order = order
        every = mine.new_empty(WORLD * len(mine), *mine.shape[1:])
        dist.all_gather_into_tensor(every, mine.contiguous())
        return every.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        there = grad.new_empty(grad.shape).index_copy_(0, ctx.order, grad)
        mine = grad.new_empty(len(grad) // WORLD, *grad.shape[1:])
        dist.reduce_scatter_tensor(mine, there)
        return mine, None


class OverRanks:
    """Causal attention of this rank's chunks over all chunks before them, whoever has these.

    Args:
        held: the chunks of each rank.
    """

    def __init__(self, held: Sequence[Sequence[int]]) -> None:
        self.mine = held[RANK]
        every = torch.tensor([chunk for chunks in held for chunk in chunks])
        self.order = every.argsort().to(DEVICE)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        long = q.shape[1]
        keys, values = AllKeys.apply(torch.stack([k, v], 2), self.order).flatten(0, 1).unbind(1)
        found = []
        for row, chunk in enumerate(self.mine):
            seen = (chunk + 1) * long
            one, their, of = (x.transpose(0, 1)[None] for x in (q[row], keys[:seen], values[:seen]))
            bias = causal_lower_right(long, seen)
            found.append(fn.scaled_dot_product_attention(one, their, of, attn_mask=bias))
        return torch.cat(found).transpose(1, 2)


class LongText(nn.Module):
    """A byte-level language model of which each rank computes some chunks of one long text."""

    def __init__(self, width: int, layers: int, look: Look) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.layers = nn.ModuleList(Layer(width, 3 * width, look) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, x: Tensor, turn: Turn) -> Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, turn)
        return self.head(self.norm(h))


# --- four ranks: one of them is slow ----------------------------------------------------------


class Residual(nn.Module):
    """Two convolutions, after a norm each."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        same = before == after and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(fn.relu(self.norm1(x), inplace=True))
        return self.skip(x) + self.conv2(fn.relu(self.norm2(h), inplace=True))


class Seen(nn.Module):
    """A residual network of three levels."""

    def __init__(self, width: int, blocks: Sequence[int], out: int) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.MaxPool2d(2)]
        before = width
        for level, number in enumerate(blocks):
            for place in range(number):
                after = width << level
                parts.append(Residual(before, after, 2 if level and not place else 1))
                before = after
        self.parts = nn.Sequential(*parts, nn.BatchNorm2d(before), nn.ReLU(inplace=True))
        self.head = nn.Linear(before, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.parts(x).mean((2, 3)))


class Captions(nn.Module):
    """Pictures and their captions side by side."""

    def __init__(self, pictures: nn.Module, width: int, layers: int, vocab: int, out: int) -> None:
        super().__init__()
        self.pictures, self.embed = pictures, nn.Embedding(vocab, width)
        look = partial(looks, causal=False)
        self.layers = nn.ModuleList(Layer(width, 3 * width, look) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, out, bias=False)
        self.scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, x: Tensor, text: Tensor, turn: Turn) -> tuple[Tensor, Tensor, Tensor]:
        h = self.embed(text)
        for layer in self.layers:
            h = layer(h, turn)
        said = self.head(self.norm(h).mean(1))
        return fn.normalize(self.pictures(x)), fn.normalize(said), self.scale.exp()


class AllRows(torch.autograd.Function):
    """The rows of all ranks; backward the gradients that all have for this rank's are summed."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor) -> Tensor:
        every = mine.new_empty(WORLD * len(mine), mine.shape[1])
        dist.all_gather_into_tensor(every, mine.contiguous())
        return every

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        mine = grad.new_empty(len(grad) // WORLD, grad.shape[1])
        dist.reduce_scatter_tensor(mine, grad.contiguous())
        return mine


# --- two ranks: communication -----------------------------------------------------------------


class Shards(nn.Module):
    """A language model of few and wide layers."""

    def __init__(self, width: int, layers: int, vocab: int) -> None:
        super().__init__()
        look = partial(looks, causal=True)
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Layer(width, 8 * width // 3, look) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, x: Tensor, turn: Turn) -> Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, turn)
        return self.head(self.norm(h))


class Trip:
    """An exchange of equal parts between all ranks, forward and backward.

    Args:
        early: what stands between leaving and arriving is computed meanwhile.
    """

    def __init__(self, group: Any, *, early: bool) -> None:
        self.group, self.early = group, early
        self.wait: Any = None

    def start(self, rows: Tensor) -> Tensor:
        rows = rows.contiguous()
        there = torch.empty_like(rows)
        self.wait = dist.all_to_all_single(there, rows, group=self.group, async_op=self.early)
        self.sent = rows  # it must live until it is sent
        return there

    def end(self) -> None:
        if self.wait is not None:
            self.wait.wait()
        self.wait = self.sent = None


class Leave(torch.autograd.Function):
    """Rows leave; backward, their gradients have come."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, trip: Trip) -> Tensor:
        ctx.trip = trip
        return trip.start(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.trip.end()
        return grad, None


class Arrive(torch.autograd.Function):
    """Rows have come; backward, their gradients leave."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, trip: Trip) -> Tensor:
        ctx.trip = trip
        trip.end()
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.trip.start(grad), None


class Choosing(nn.Module):
    """Experts choose as many tokens each, of all ranks; one more expert is for all tokens."""

    def __init__(self, width: int, inner: int, local: int, group: Any, *, early: bool) -> None:
        super().__init__()
        self.group, self.early, self.count = group, early, local * WORLD
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, self.count, bias=False)
        self.wide, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)
        self.first = nn.Parameter(0.02 * torch.randn(local, width, inner))
        self.second = nn.Parameter(0.02 * torch.randn(local, inner, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).flatten(0, 1)
        each = 6 * len(y) // self.count
        weights, chosen = self.gate(y).float().softmax(-1).t().topk(each)
        y = y.to(SHORT)
        out, back = Trip(self.group, early=self.early), Trip(self.group, early=self.early)
        there = Leave.apply(y.index_select(0, chosen.flatten()), out)
        gate, up = self.wide(y).chunk(2, -1)
        for_all = fn.silu(gate) * up
        there = Arrive.apply(there, out).view(WORLD, len(self.first), each, -1)
        there = there.transpose(0, 1).flatten(1, 2)
        h = torch.bmm(fn.gelu(torch.bmm(there, self.first)), self.second).to(SHORT)
        h = h.view(len(self.first), WORLD, each, -1).transpose(0, 1).flatten(0, 2)
        here = Leave.apply(h, back)
        for_all = self.down(for_all)
        here = Arrive.apply(here, back) * weights.flatten()[:, None].to(SHORT)
        found = for_all.to(SHORT).index_add(0, chosen.flatten(), here)
        return x + found.view_as(x)


class Experts(nn.Module):
    """Attention and experts in turn."""

    def __init__(self, width: int, layers: int, vocab: int, group: Any, *, early: bool) -> None:
        super().__init__()
        self.embed, self.heads = nn.Embedding(vocab, width), width // 64 or 1
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers + 1))
        self.qkvs = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.experts = nn.ModuleList(
            Choosing(width, width // 2, 8, group, early=early) for _ in range(layers)
        )
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h, norms = self.embed(x), iter(self.norms)
        for qkv, out, experts in zip(self.qkvs, self.outs, self.experts, strict=True):
            q, k, v = qkv(next(norms)(h)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
            h = h + out(looks(q, k, v, causal=False).flatten(2))
            h = experts(h)
        return self.head(next(norms)(h))


# --- two ranks: uneven work -------------------------------------------------------------------


class Crossed(nn.Module):
    """Features are multiplied by each other, then pass wide layers; as in DCN."""

    def __init__(self, features: int, width: int, numbers: int, layers: int, wide: int) -> None:
        super().__init__()
        self.numbers = nn.Sequential(
            nn.Linear(numbers, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.ReLU()
        )
        whole = (features + 1) * width
        self.crosses = nn.ModuleList(nn.Linear(whole, whole) for _ in range(layers))
        self.top = nn.Sequential(
            nn.Linear(whole, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 1)
        )

    def forward(self, numbers: Tensor, pooled: Tensor) -> Tensor:
        first = torch.cat([self.numbers(numbers), pooled], 1)
        h = first
        for cross in self.crosses:
            h = first * cross(h) + h
        return self.top(h)[:, 0]


def dealt(costs: Sequence[int], most: int) -> list[list[int]]:
    """The tables of each rank, the dearest first to the rank with least; none has too many."""
    found: list[list[int]] = [[] for _ in range(WORLD)]
    for table in sorted(range(len(costs)), key=lambda at: -costs[at]):
        free = [tables for tables in found if len(tables) < most]
        min(free, key=lambda tables: sum(costs[at] for at in tables)).append(table)
    return found


# --- two ranks: the hosts wait ----------------------------------------------------------------


class Lars(torch.optim.Optimizer):
    """SGD in which each parameter moves in proportion to its norm.

    Args:
        reads: both norms are read to see whether they are 0.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, reads: bool) -> None:
        super().__init__(parameters, {"lr": 0.1, "momentum": 0.9, "decay": 1e-4, "trust": 1e-3})
        self.reads = reads

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.moved(p, group)

    def moved(self, p: Tensor, group: dict[str, Any]) -> None:
        grad = p.grad.add(p, alpha=group["decay"])
        weight, slope = p.norm(), grad.norm()
        if self.reads:
            weight, slope = weight.item(), slope.item()
            grad.mul_(group["trust"] * weight / slope if weight > 0 and slope > 0 else 1.0)
        else:
            moving = (weight > 0) & (slope > 0)
            grad.mul_(torch.where(moving, group["trust"] * weight / slope, 1.0))
        state = self.state[p]
        if "speed" not in state:
            state["speed"] = torch.zeros_like(p)
        p.add_(state["speed"].mul_(group["momentum"]).add_(grad), alpha=-group["lr"])


# --- two ranks: now and then ------------------------------------------------------------------


class Painted(nn.Module):
    """Pictures of which a quarter is seen, and the rest is painted; as masked autoencoders do."""

    def __init__(self, width: int, layers: int, narrow: int, few: int, side: int) -> None:
        super().__init__()
        look = partial(looks, causal=False)
        self.cut, self.seen = (side // 16) ** 2, (side // 16) ** 2 // 4
        self.into, self.between = nn.Linear(768, width), nn.Linear(width, narrow)
        self.layers = nn.ModuleList(Layer(width, 3 * width, look) for _ in range(layers))
        self.painting = nn.ModuleList(Layer(narrow, 3 * narrow, look) for _ in range(few))
        self.hidden = nn.Parameter(torch.zeros(1, 1, narrow))
        self.norm, self.out = nn.RMSNorm(width), nn.Linear(narrow, 768)

    def forward(self, patches: Tensor, order: Tensor, turns: Sequence[Turn]) -> Tensor:
        kept = order[:, : self.seen]
        wide, narrow = turns

        def of(table: Tensor, places: Tensor) -> Tensor:
            return table.index_select(0, places.flatten()).unflatten(0, places.shape)

        h = self.into(patches.gather(1, kept[..., None].expand(-1, -1, patches.shape[-1])))
        seen = of(wide[0], kept), of(wide[1], kept)
        for layer in self.layers:
            h = layer(h, seen)
        h = self.between(self.norm(h))
        h = torch.cat([h, self.hidden.to(h.dtype).expand(len(h), self.cut - self.seen, -1)], 1)
        every = of(narrow[0], order), of(narrow[1], order)
        for layer in self.painting:
            h = layer(h, every)
        return self.out(h[:, self.seen :])


# --- two ranks: input -------------------------------------------------------------------------


class Spans(Dataset[tuple[Tensor, Tensor]]):
    """Texts in tokens; spans of them are cut out and are to be said again, as for T5."""

    def __init__(self, vocab: int, source: int, target: int) -> None:
        rng = np.random.default_rng(RANK)
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        words = ["".join(rng.choice(letters, int(rng.integers(1, 10)))) for _ in range(5000)]
        self.ids = {word: 200 + at % (vocab - 300) for at, word in enumerate(words[:4000])}
        self.vocab, self.source, self.target = vocab, source, target
        self.pattern = re.compile(r"\w+|[^\w\s]")
        self.texts = []
        for _ in range(size(200, 4)):
            many = 2 * source // 3  # each with a comma behind it
            drawn = rng.integers(0, len(words), many) * rng.random(many)
            self.texts.append("".join(f"{words[int(at)].title()}, " for at in drawn))

    def __len__(self) -> int:
        return 1_000_000

    def token(self, word: str) -> int:
        """A word's number; those that are unknown share some."""
        found = self.ids.get(word)
        return 100 + zlib.crc32(word.encode()) % 100 if found is None else found

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rng, text = np.random.default_rng(index), self.texts[index % len(self.texts)]
        ids = [self.token(word) for word in self.pattern.findall(text.lower())]
        first = int(rng.integers(0, len(ids) - self.source))
        ids = ids[first : first + self.source]
        source: list[int] = []
        target: list[int] = []
        at = 0
        while at < len(ids):
            kept, cut = (int(n) for n in rng.geometric((1 / 17, 1 / 3)))
            mark = self.vocab - 1 - len(target) % 90
            source += [*ids[at : at + kept], mark]
            target += [mark, *ids[at + kept : at + kept + cut]]
            at += kept + cut
        return self.padded(source, self.source), self.padded(target, self.target)

    @staticmethod
    def padded(ids: list[int], length: int) -> Tensor:
        row = np.zeros(length, np.int64)
        row[: min(len(ids), length)] = ids[:length]
        return torch.from_numpy(row)


class Attends(nn.Module):
    """Attention to itself or to another text."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads, self.norm = width // 64 or 1, nn.LayerNorm(width)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, of: Tensor | None, *, causal: bool) -> Tensor:
        h = self.norm(x)
        q = self.q(h).unflatten(-1, (self.heads, -1))
        k, v = self.kv(h if of is None else of).unflatten(-1, (2, self.heads, -1)).unbind(-3)
        return x + self.out(looks(q, k, v, causal=causal).flatten(2))


class Restored(nn.Module):
    """An encoder of a text with gaps, and a decoder of what was there."""

    def __init__(self, width: int, layers: int, fewer: int, vocab: int, longest: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(longest, width)
        nn.init.normal_(self.embed.weight, std=0.02)  # it is the output's weight, too
        self.own = nn.ModuleList(Attends(width) for _ in range(layers + fewer))
        self.other = nn.ModuleList(Attends(width) for _ in range(fewer))
        self.wide = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                nn.Linear(4 * width, width),
            )
            for _ in self.own
        )  # fmt: skip
        self.norm, self.layers = nn.LayerNorm(width), layers

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.embed(source) + self.place.weight[: source.shape[1]]
        y = self.embed(target) + self.place.weight[: target.shape[1]]
        for number, (own, wide) in enumerate(zip(self.own, self.wide, strict=True)):
            if number < self.layers:
                x = own(x, None, causal=False)
                x = x + wide(x)
            else:
                y = own(y, None, causal=True)
                y = self.other[number - self.layers](y, x, causal=False)
                y = y + wide(y)
        return fn.linear(self.norm(y), self.embed.weight)
