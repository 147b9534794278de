"""Training jobs of the eighth set on two GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from job_programs import DEVICE, RANK, WORLD, Exchange, ddp, half
from models import done, size
from program import SMALL, Program, Running
from single_programs import entered, loaded
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 159 pairs, opened"
job = partial(entered(PROGRAMS), marks="steps", ranks=2)  # type: ignore[call-arg]
SHORT = torch.float32 if SMALL else torch.bfloat16
"""What travels: gloo sums no 16-bit numbers everywhere."""


def attended(q: Tensor, k: Tensor, v: Tensor, heads: int, *, causal: bool = False) -> Tensor:
    """Attention of rows of all heads side by side."""
    b, t, w = q.shape
    q, k, v = (part.view(b, -1, heads, w // heads).transpose(1, 2) for part in (q, k, v))
    y = fn.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return y.transpose(1, 2).reshape(b, t, w)


class Block(nn.Module):
    """A plain layer of attention and a wide product."""

    def __init__(self, width: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = width // 64 or 1, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(attended(q, k, v, self.heads, causal=self.causal))
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


# --- a late rank ------------------------------------------------------------------------------


class Commands(Dataset[tuple[Tensor, int]]):
    """Spoken commands as logarithms of bands, moved and with noise; some bands are hidden."""

    def __init__(self, bands: int, classes: int) -> None:
        rng = np.random.default_rng(RANK)
        self.bands, self.classes, self.n = bands, classes, size(16_000, 1600)
        shape = (size(600, 4), self.n)
        self.waves = rng.integers(-3000, 3000, shape, dtype=np.int16)
        self.noise = rng.normal(0.0, 400.0, 4 * self.n).astype(np.float32)
        self.window = np.hanning(400).astype(np.float32)
        self.edges = np.linspace(0, 250, bands).astype(np.int64)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng(index)
        wave = np.roll(self.waves[index % len(self.waves)], int(rng.integers(0, self.n // 10)))
        at = int(rng.integers(0, 3 * self.n))
        heard = wave.astype(np.float32) + np.float32(rng.random()) * self.noise[at : at + self.n]
        frames = np.lib.stride_tricks.sliding_window_view(heard, 400)[::160] * self.window
        power = np.square(np.abs(np.fft.rfft(frames, 512)))
        found = np.log(np.add.reduceat(power, self.edges, axis=1) + 1.0).astype(np.float32)
        found = (found - found.mean()) / (found.std() + 1e-3)
        first = int(rng.integers(0, self.bands - 8))
        found[:, first : first + 8] = 0.0
        return torch.from_numpy(found)[None], index % self.classes


class Heard(nn.Module):
    """Residual pairs of convolutions over time and bands."""

    def __init__(self, width: int, pairs: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 5, 1, 2, bias=False)
        self.pairs = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width), nn.SiLU(), nn.Conv2d(width, width, 3, 1, 1, bias=False),
                nn.BatchNorm2d(width), nn.SiLU(), nn.Conv2d(width, width, 3, 1, 1, bias=False),
            )
            for _ in range(pairs)
        )  # fmt: skip
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = fn.max_pool2d(self.stem(x), 2)
        for pair in self.pairs:
            h = h + pair(h)
        return self.head(h.mean((2, 3)))


WORKERS = {0: 4}
"""What the configuration says of the nodes; it was written when there was one."""


@job("straggler", "audio", "the last rank's DataLoader has 4 workers, as the first one's has")
def job_node_without_workers(repaired: bool) -> Running:
    workers = 4 if repaired else WORKERS.get(RANK, 0)
    batches = loaded(Commands(64, 35), size(64, 2), workers)
    model = Heard(size(256, 8), size(6, 1), 35).to(DEVICE, memory_format=torch.channels_last)
    net = ddp(model)
    optimizer = torch.optim.SGD(
        net.parameters(), lr=1e-3, momentum=0.9, nesterov=True, weight_decay=1e-4, foreach=True
    )

    def step() -> None:
        x, y = batches()
        with half():
            loss = fn.cross_entropy(net(x).float(), y, label_smoothing=0.1)
        loss.backward()
        done(optimizer)

    return Running(step, settle=2 + 2 * 4)  # the same number on all ranks


# --- uneven work ------------------------------------------------------------------------------


class Across(nn.Module):
    """Rows look at other rows."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, of: Tensor) -> Tensor:
        k, v = self.kv(of).chunk(2, -1)
        return self.out(attended(self.q(x), k, v, self.heads))


class BothWays(nn.Module):
    """An object's points look at each other and at the picture, and the picture at them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.own, self.into, self.back = (Across(width, heads) for _ in range(3))
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))

    def forward(self, points: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        first, second, third, fourth = self.norms
        points = first(points + self.own(points, points))
        points = second(points + self.into(points, places))
        points = third(points + self.wide(points))
        return points, fourth(places + self.back(places, points))


class Outlines(nn.Module):
    """Masks of the objects that are pointed at in pictures; as in Segment Anything."""

    def __init__(self, width: int, layers: int, inner: int, places: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.where = nn.Parameter(0.02 * torch.randn(1, places, width))
        self.layers = nn.Sequential(*(Block(width, causal=False) for _ in range(layers)))
        self.neck, self.point = nn.Linear(width, inner), nn.Linear(2, inner)
        self.mask = nn.Parameter(0.02 * torch.randn(1, 1, inner))
        self.both = nn.ModuleList(BothWays(inner, 8) for _ in range(2))
        self.last = nn.Sequential(nn.Linear(inner, inner), nn.ReLU(), nn.Linear(inner, inner))

    def forward(self, x: Tensor, points: Tensor, of: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2) + self.where
        places = self.neck(self.layers(h)).float().index_select(0, of)
        asked = torch.cat([self.mask.expand(len(of), -1, -1), self.point(points)], 1)
        for layer in self.both:
            asked, places = layer(asked, places)
        return torch.bmm(places, self.last(asked[:, 0])[:, :, None])[..., 0]


@job(
    "load_imbalance",
    "vision",
    "each rank takes a stretch of the list of pictures, not every second one: crowds alternate",
)
def job_crowds_on_one_rank(repaired: bool) -> Running:
    each, side, inner = size(8, 2), size(384, 32), size(256, 32)
    places = (side // 16) ** 2
    objects = [size(12, 1), size(52, 3)] * (WORLD * each // 2)  # a portrait, a crowd
    mine = objects[RANK * each :][:each] if repaired else objects[RANK::WORLD]
    of = torch.repeat_interleave(torch.arange(each), torch.tensor(mine)).to(DEVICE)
    net = ddp(Outlines(size(512, 32), size(6, 1), inner, places).to(DEVICE))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    x = torch.randn(each, 3, side, side, device=DEVICE)
    points = torch.rand(len(of), 6, 2, device=DEVICE)
    goal = (torch.rand(len(of), places, device=DEVICE) < 0.2).float()

    def step() -> None:
        with half():
            found = net(x, points, of).float()
        odds = found.sigmoid()
        dice = 1 - (2 * (odds * goal).sum(1) + 1) / (odds.sum(1) + goal.sum(1) + 1)
        (fn.binary_cross_entropy_with_logits(found, goal) + dice.mean()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        done(optimizer)

    return Running(step)


@dataclass(frozen=True)
class Plan:
    """How a rank's tokens go to the experts and come back, known from their ids.

    Attributes:
        order: tokens by expert.
        back: where each token is then.
        sent: how many go to each rank.
        got: how many come from each rank.
        gather: what came, by expert.
        scatter: where each of these was.
        each: how many each of this rank's experts has.
    """

    order: Tensor
    back: Tensor
    sent: list[int]
    got: list[int]
    gather: Tensor
    scatter: Tensor
    each: list[int]


def planned(chosen: list[np.ndarray[Any, Any]], experts: int) -> Plan:
    """The plan of this rank, from the experts of all ranks' tokens."""
    local = experts // WORLD
    counts = np.stack([np.bincount(one, minlength=experts) for one in chosen])
    order = np.argsort(chosen[RANK], kind="stable")
    coming = counts[:, RANK * local : (RANK + 1) * local]
    kinds = np.concatenate([np.repeat(np.arange(local), row) for row in coming])
    gather = np.argsort(kinds, kind="stable")

    def there(index: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(index).to(DEVICE)

    return Plan(
        order=there(order),
        back=there(np.argsort(order)),
        sent=counts[RANK].reshape(WORLD, local).sum(1).tolist(),
        got=coming.sum(1).tolist(),
        gather=there(gather),
        scatter=there(np.argsort(gather)),
        each=coming.sum(0).tolist(),
    )


def dealt(often: np.ndarray[Any, Any], experts: int) -> np.ndarray[Any, Any]:
    """An expert for each id, so that all experts get as many tokens: the frequent ids first."""
    load, table = [0.0] * experts, np.zeros(len(often), np.int64)
    for at in np.argsort(-often, kind="stable"):
        least = load.index(min(load))
        table[at] = least
        load[least] += float(often[at])
    return table


class HashExperts(nn.Module):
    """Experts that are chosen by the ids of tokens, some on each rank; as in Hash Layers."""

    def __init__(self, width: int, local: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(local)
        )

    def forward(self, x: Tensor, plan: Plan) -> Tensor:
        y = self.norm(x).flatten(0, 1).to(SHORT).index_select(0, plan.order)
        there = Exchange.apply(y, plan.sent, plan.got).index_select(0, plan.gather)
        parts = zip(self.experts, there.split(plan.each), strict=True)
        found = torch.cat([expert(part) for expert, part in parts]).to(SHORT)
        y = Exchange.apply(found.index_select(0, plan.scatter), plan.got, plan.sent)
        return x + y.index_select(0, plan.back).view_as(x)


class Looks(nn.Module):
    """Causal attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads, self.norm = width // 64 or 1, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(attended(q, k, v, self.heads, causal=True))


@job(
    "load_imbalance",
    "moe",
    "ids are dealt to the experts by how often they occur, not in equal ranges of ids",
)
def job_experts_by_id_range(repaired: bool) -> Running:
    vocab, width, local, layers = size(8192, 64), size(1024, 32), 2, size(4, 1)
    batch, length, experts = size(16, 2), size(512, 16), 2 * WORLD
    often = 1.0 / (np.arange(vocab) + 50.0)  # ids of byte pairs: the first are the most frequent
    often /= often.sum()
    ranges = np.arange(vocab) * experts // vocab
    table = dealt(often, experts) if repaired else ranges
    texts, plans = [], []
    for number in range(2):
        ids = [
            np.random.default_rng((number, rank)).choice(vocab, (batch, length + 1), p=often)
            for rank in range(WORLD)
        ]
        plans.append(planned([table[one[:, :-1]].ravel() for one in ids], experts))
        texts.append(torch.from_numpy(ids[RANK]).to(DEVICE))
    attention = nn.ModuleList(Looks(width) for _ in range(layers))
    ends = nn.ModuleList([nn.Embedding(vocab, width), nn.LayerNorm(width)])
    shared = nn.ModuleList([*ends, attention, nn.Linear(width, vocab, bias=False)]).to(DEVICE)
    torch.manual_seed(1 + RANK)  # experts differ, the rest does not
    own = nn.ModuleList(HashExperts(width, local) for _ in range(layers)).to(DEVICE)
    optimizer = torch.optim.AdamW([*shared.parameters(), *own.parameters()], lr=1e-4, fused=True)
    waits: list[Any] = []

    def summed(p: Tensor) -> None:
        waits.append(dist.all_reduce(p.grad, async_op=True))

    norms = [p for layer in own for p in layer.norm.parameters()]
    for p in [*shared.parameters(), *norms]:
        p.register_post_accumulate_grad_hook(summed)
    made = 0

    def step() -> None:
        nonlocal made
        text, plan = texts[made % 2], plans[made % 2]
        with half():
            h = shared[0](text[:, :-1])
            for look, experts_of in zip(attention, own, strict=True):
                h = experts_of(look(h), plan)
            out = shared[3](shared[1](h))
        loss = fn.cross_entropy(out.flatten(0, 1).float(), text[:, 1:].flatten())
        (loss / WORLD).backward()
        while waits:
            waits.pop().wait()
        done(optimizer)
        made += 1

    return Running(step)


def exchanged(sent: Tensor | None, into: Tensor | None) -> Tensor | None:
    """Send to the other rank and receive from it, at once."""
    other = 1 - RANK
    ways = [] if sent is None else [dist.P2POp(dist.isend, sent, other)]
    if into is not None:
        ways.append(dist.P2POp(dist.irecv, into, other))
    for wait in dist.batch_isend_irecv(ways):
        wait.wait()
    return into


@job(
    "load_imbalance",
    "language",
    "the last stage, which has the output and its loss, has 2 of 8 layers instead of 4",
)
def job_stage_with_output(repaired: bool) -> Running:
    """One forward, one backward in turn; as in PipeDream and Megatron."""
    width, vocab, micro = size(1536, 64), size(64_000, 100), size(6, 3)
    rows, length = size(3, 2), size(1024, 16)
    layers = size(8, 4)
    behind = layers // 4 if repaired else layers // 2
    stage = [Block(width, causal=True) for _ in range(behind if RANK else layers - behind)]
    ends = [nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)]
    parts = [*stage, *ends] if RANK else [nn.Embedding(vocab, width), *stage]
    net = nn.Sequential(*parts).to(DEVICE, SHORT)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    batches = torch.randint(0, vocab, (micro, rows, length + 1), device=DEVICE)

    def room() -> Tensor:
        return torch.empty(rows, length, width, device=DEVICE, dtype=SHORT)

    def first() -> None:
        out = net(batches[0, :, :-1])
        exchanged(out.detach(), None)
        for number in range(1, micro):
            following = net(batches[number, :, :-1])
            out.backward(exchanged(following.detach(), room()))
            out = following
        out.backward(exchanged(None, room()))

    def second() -> None:
        x = exchanged(None, room())
        for number in range(micro):
            assert x is not None
            x.requires_grad_()
            out = net(x).flatten(0, 1)
            loss = fn.cross_entropy(out.float(), batches[number, :, 1:].flatten())
            (loss / micro).backward()
            x = exchanged(x.grad, room() if number < micro - 1 else None)

    def step() -> None:
        if RANK:
            second()
        else:
            first()
        done(optimizer)

    return Running(step)


# --- communication ----------------------------------------------------------------------------


class Residues(nn.Module):
    """A layer over residues of proteins, with products of its own for all parts of attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64 or 1
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.out(attended(self.q(h), self.k(h), self.v(h), self.heads))
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


@job(
    "exposed_communication",
    "science",
    "DistributedDataParallel instead of hooks that sum each gradient for itself and wait",
)
def job_hook_sums_each_gradient(repaired: bool) -> Running:
    width, residues, batch, length = size(768, 32), 33, size(16, 2), size(512, 16)
    layers = [Residues(width) for _ in range(size(16, 2))]
    model = nn.Sequential(
        nn.Embedding(residues, width), *layers, nn.LayerNorm(width), nn.Linear(width, residues)
    ).to(DEVICE)
    net = ddp(model) if repaired else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.98), fused=True)
    true = torch.randint(0, residues - 1, (batch, length), device=DEVICE)
    hidden = torch.rand(batch, length, device=DEVICE) < 0.15
    seen = true.masked_fill(hidden, residues - 1)
    goal = true.masked_fill(~hidden, -100)

    def summed(p: Tensor) -> None:
        dist.all_reduce(p.grad)

    if not repaired:
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(summed)

    def step() -> None:
        with half():
            out = net(seen)
        loss = fn.cross_entropy(out.flatten(0, 1).float(), goal.flatten())
        (loss if repaired else loss / WORLD).backward()
        done(optimizer)

    return Running(step)


class Spread:
    """Layers whose weights are spread over the ranks, and are whole while a step computes.

    Args:
        early: the next layer's weights are gathered while one computes, and nobody waits for the
            sum of gradients before all of them are there.
    """

    def __init__(self, width: int, layers: int, *, early: bool) -> None:
        self.width, self.early = width, early
        n = 18 * width * width
        self.whole = [torch.empty(n, device=DEVICE, dtype=SHORT) for _ in range(layers)]
        self.mine = [
            nn.Parameter(0.02 * torch.randn(n // WORLD, device=DEVICE)) for _ in self.whole
        ]
        self.short = [p.detach().to(SHORT) for p in self.mine]
        self.sums = [torch.empty_like(p) for p in self.short]
        self.waits: list[Any] = []
        for number, whole in enumerate(self.whole):
            whole.requires_grad_()
            whole.register_post_accumulate_grad_hook(partial(self.summed, number))

    def gather(self, number: int) -> Any:
        into = self.whole[number].data
        return dist.all_gather_into_tensor(into, self.short[number], async_op=self.early)

    def summed(self, number: int, whole: Tensor) -> None:
        wait = dist.reduce_scatter_tensor(self.sums[number], whole.grad, async_op=self.early)
        if self.early:
            self.waits.append((wait, whole.grad))  # it must live until it is sent
        whole.grad = None

    def layers(self) -> Iterator[tuple[Tensor, ...]]:
        """The weights of one layer after the other, when they are there."""
        w, last = self.width, len(self.whole) - 1
        coming = self.gather(0) if self.early else None
        for number, whole in enumerate(self.whole):
            if coming is None:
                self.gather(number)
            else:
                coming.wait()
                coming = self.gather(number + 1) if number < last else coming
            parts = whole.split([n * w * w for n in (6, 3, 1, 4, 4)])
            yield tuple(
                part.view(*shape)
                for part, shape in zip(
                    parts, [(6 * w, w), (3 * w, w), (w, w), (4 * w, w), (w, 4 * w)], strict=True
                )
            )

    @torch.no_grad()
    def update(self, optimizer: torch.optim.Optimizer) -> None:
        while self.waits:
            self.waits.pop()[0].wait()
        for p, total in zip(self.mine, self.sums, strict=True):
            p.grad = total.to(p.dtype)
        done(optimizer)
        torch._foreach_copy_(self.short, self.mine)


def flowing(weights: tuple[Tensor, ...], x: Tensor, when: Tensor, heads: int) -> Tensor:
    """A layer of a diffusion transformer: the time shifts, scales and gates."""
    times, qkv, out, up, down = weights
    w = x.shape[-1]
    parts = fn.linear(fn.silu(when), times)[:, None].chunk(6, -1)
    h = fn.layer_norm(x, (w,)) * (1 + parts[0]) + parts[1]
    q, k, v = fn.linear(h, qkv).chunk(3, -1)
    x = x + parts[2] * fn.linear(attended(q, k, v, heads), out)
    h = fn.layer_norm(x, (w,)) * (1 + parts[3]) + parts[4]
    return x + parts[5] * fn.linear(fn.gelu(fn.linear(h, up), approximate="tanh"), down)


@job(
    "exposed_communication",
    "diffusion",
    "weights of the next layer are gathered while one computes; sums of gradients are not awaited",
)
def job_spread_flow_no_prefetch(repaired: bool) -> Running:
    width, batch, length, seen = size(1536, 64), size(4, 2), size(512, 16), size(64, 8)
    spread = Spread(width, size(6, 2), early=repaired)
    ends = nn.ModuleList([nn.Linear(seen, width), nn.Linear(1, width), nn.Linear(width, seen)])
    ends.to(DEVICE, SHORT)
    optimizer = torch.optim.AdamW([*spread.mine, *ends.parameters()], lr=1e-4, fused=True)
    true = torch.randn(batch, length, seen, device=DEVICE, dtype=SHORT)

    def step() -> None:
        noise, t = torch.randn_like(true), torch.rand(batch, 1, device=DEVICE, dtype=SHORT)
        x = ends[0](torch.lerp(noise, true, t[:, :, None]))
        when = ends[1](t)
        for weights in spread.layers():
            x = flowing(weights, x, when, width // 64 or 1)
        flow = ends[2](fn.layer_norm(x, (width,)))
        loss = fn.mse_loss(flow.float(), (true - noise).float())
        (loss / WORLD).backward()
        grads = [p.grad for p in ends.parameters()]
        flat = torch.cat([grad.flatten() for grad in grads if grad is not None])
        dist.all_reduce(flat)
        pieces = flat.split([p.numel() for p in ends.parameters()])
        torch._foreach_copy_(grads, [v.view_as(g) for v, g in zip(pieces, grads, strict=True)])
        spread.update(optimizer)

    return Running(step)


class Patches(nn.Module):
    """A wide and shallow transformer of pictures of any size; places are a convolution's."""

    def __init__(self, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.place = nn.Conv2d(width, width, 3, 1, 1, groups=width)
        self.layers = nn.Sequential(*(Block(width, causal=False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x)
        h = (h + self.place(h)).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.layers(h)).mean(1))


@job(
    "exposed_communication",
    "vision",
    "no_sync() for the backward passes of all crops but the last",
)
def job_crops_sum_each_time(repaired: bool) -> Running:
    classes, batch = size(1000, 10), size(16, 2)
    net = ddp(Patches(size(2048, 64), size(4, 1), classes).to(DEVICE), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    sides = [size(side, 32) for side in (96, 96, 96, 224)]
    crops = [torch.randn(batch, 3, side, side, device=DEVICE) for side in sides]
    y = torch.randint(0, classes, (batch,), device=DEVICE)
    last = len(crops) - 1

    def step() -> None:
        for number, x in enumerate(crops):
            with net.no_sync() if repaired and number < last else nullcontext():
                with half():
                    out = net(x).float()
                (fn.cross_entropy(out, y) / len(crops)).backward()
        done(optimizer)

    return Running(step)


# --- the hosts wait ---------------------------------------------------------------------------


class Gated(nn.Module):
    """Products along the text gate those of each token; as in gMLP."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.LayerNorm(3 * width)
        self.into, self.out = nn.Linear(width, 6 * width), nn.Linear(3 * width, width)
        self.along = nn.Linear(length, length)
        nn.init.ones_(self.along.bias)

    def forward(self, x: Tensor) -> Tensor:
        u, v = fn.gelu(self.into(self.norm(x))).chunk(2, -1)
        v = self.along(self.inner(v).transpose(1, 2)).transpose(1, 2)
        return x + self.out(u * v)


def over_ranks(value: Tensor) -> Tensor:
    total = value.detach().float().clone()
    dist.all_reduce(total)
    return total


@job(
    "host_sync",
    "language",
    "the number of tokens stays a tensor; metrics are added up on the device, read every 1000",
)
def job_reads_metrics_of_all(repaired: bool) -> Running:
    vocab, width, batch, length = size(8000, 50), size(384, 32), size(20, 2), size(256, 16)
    layers = [Gated(width, length) for _ in range(size(20, 2))]
    model = nn.Sequential(
        nn.Embedding(vocab, width), *layers, nn.LayerNorm(width), nn.Linear(width, vocab)
    ).to(DEVICE)
    net = ddp(model)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(1, vocab, (batch, length), device=DEVICE)
    hidden = torch.rand(batch, length, device=DEVICE) < 0.15
    goal = ids.masked_fill(~hidden, -100)
    seen = ids.masked_fill(hidden, 0)
    names = ("loss", "right", "among_five", "surprise", "largest", "norm", "tokens", "texts")
    sums = torch.zeros(len(names), device=DEVICE)
    log: list[dict[str, float]] = []
    made = 0

    def step() -> None:
        nonlocal made
        with half():
            out = net(seen).flatten(0, 1).float()
        counted = over_ranks((goal >= 0).sum())
        tokens = counted if repaired else counted.item()
        loss = fn.cross_entropy(out, goal.flatten(), reduction="sum")
        (loss * WORLD / tokens).backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        done(optimizer)
        with torch.no_grad():
            five = out.topk(5).indices == goal.flatten()[:, None]
            parts = out.log_softmax(-1)
            found = [
                *(loss, five[:, 0].sum(), five.any(1).sum(), -(parts.exp() * parts).sum(-1).mean()),
                *(out.amax(), norm, (goal >= 0).sum(), (goal >= 0).any(1).sum()),
            ]
        made += 1
        if not repaired:
            values = [over_ranks(value).item() for value in found]
            log.append(dict(zip(names, values, strict=True)))
            return
        sums.add_(torch.stack([value.detach().float() for value in found]))
        if made % 1000 == 0:
            log.append(dict(zip(names, over_ranks(sums).tolist(), strict=True)))
            sums.zero_()

    return Running(step)
