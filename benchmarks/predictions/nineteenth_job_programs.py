"""Training jobs of the nineteenth set, on two GPUs and on four: steps of few and large kernels."""

from __future__ import annotations

import json
import socket
import threading
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from eleventh_job_models import SHORT, heads_of, layers_of
from fourteenth_job_programs import OfAll, ToAll
from job_programs import DEVICE, LAST, MS, RANK, WORLD, Exchange, ddp, half
from models import Attends, Feeds, done, precision, size
from program import SMALL, Program, Running
from single_programs import entered
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 375 pairs, opened"
four = partial(entered(PROGRAMS), marks="steps", ranks=4)  # type: ignore[call-arg]
two = partial(entered(PROGRAMS), marks="steps", ranks=2)  # type: ignore[call-arg]


def attended(q: Tensor, k: Tensor, v: Tensor, heads: int, *, causal: bool = False) -> Tensor:
    """Attention of so many heads that lie beside each other in what is given and returned."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    return fn.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)


# --- two ranks: an encoder and its decoder ----------------------------------------------------


class Looks(nn.Module):
    """Words look at the page that they are read from."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads, self.norm = heads_of(width), nn.LayerNorm(width)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, h: Tensor, page: Tensor) -> Tensor:
        k, v = self.kv(page).chunk(2, -1)
        return h + self.out(attended(self.q(self.norm(h)), k, v, self.heads))


class Page(nn.Module):
    """A scanned page, in pieces."""

    def __init__(self, inside: int, pieces: int, width: int, layers: int) -> None:
        super().__init__()
        self.into, self.layers = nn.Linear(inside, width), layers_of(width, layers)
        self.place = nn.Parameter(0.02 * torch.randn(pieces, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, page: Tensor) -> Tensor:
        return self.norm(self.layers(self.into(page) + self.place))


class Script(nn.Module):
    """What is written on a page; as in Nougat."""

    def __init__(self, vocab: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(length, width)
        heads = heads_of(width)
        self.selves = nn.ModuleList(Attends(width, heads, causal=True) for _ in range(layers))
        self.looks = nn.ModuleList(Looks(width) for _ in range(layers))
        self.feeds = nn.ModuleList(Feeds(width) for _ in range(layers))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocab)

    def forward(self, page: Tensor, text: Tensor) -> Tensor:
        h = self.embed(text) + self.place.weight
        for own, look, feed in zip(self.selves, self.looks, self.feeds, strict=True):
            h = feed(look(own(h), page))
        return self.out(self.norm(h))


@two(
    "pipeline_bubble",
    "vision",
    "all pieces of the batch go forward before the first goes backward, not one after the other",
)
def job_pages_read_one_by_one(repaired: bool) -> Running:
    """Encoder and decoder are on a GPU each; the loop accumulates, as it did on one GPU."""
    inside, pieces, width, layers = size(768, 12), size(1024, 8), size(2048, 32), size(2, 1)
    vocab, length, micro, rows = size(8192, 40), size(640, 6), 4, size(4, 2)
    with DEVICE:
        part: nn.Module = (
            Page(inside, pieces, width, layers)
            if RANK == 0
            else Script(vocab, length, width, layers)
        ).to(SHORT)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    pages = torch.randn(micro, rows, pieces, inside, device=DEVICE).to(SHORT)
    texts = torch.randint(0, vocab, (micro, rows, length + 1), device=DEVICE)
    dist.barrier()

    def room() -> Tensor:
        return torch.empty(rows, pieces, width, device=DEVICE, dtype=SHORT)

    def forth(number: int) -> tuple[Tensor, Tensor]:
        """The page as it was sent or came, and what the backward pass begins with."""
        if RANK == 0:
            page = part(pages[number])
            dist.send(page.detach(), LAST)
            return page, page
        page, text = room(), texts[number]
        dist.recv(page, 0)
        out = part(page.requires_grad_(), text[:, :-1])
        return page, fn.cross_entropy(out.flatten(0, 1).float(), text[:, 1:].flatten()) / micro

    def back(page: Tensor, last: Tensor) -> None:
        if RANK == 0:
            grad = room()
            dist.recv(grad, LAST)
            last.backward(grad)
        else:
            last.backward()
            assert page.grad is not None
            dist.send(page.grad, 0)

    def step() -> None:
        kept = []
        for number in range(micro):
            kept.append(forth(number))
            if not repaired:
                back(*kept.pop())
        for page, last in kept:
            back(page, last)
        done(optimizer)

    return Running(step)


# --- two ranks: an optimizer whose work is dealt out ------------------------------------------


def orthogonal(change: Tensor, rounds: int = 5) -> Tensor:
    """The nearest matrix with orthogonal rows or columns, by Newton and Schulz."""
    x = change.to(SHORT)
    tall = x.shape[0] > x.shape[1]
    x = x.t() if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(rounds):
        a = x @ x.t()
        x = torch.addmm(x, torch.addmm(a, a, a, beta=-4.775, alpha=2.0315), x, beta=3.4445)
    x = x.t() if tall else x
    return x.contiguous() * max(1.0, x.shape[0] / x.shape[1]) ** 0.5


class DealtMuon:
    """Muon: of as many matrices in a row as there are ranks, each rank makes one orthogonal."""

    def __init__(self, matrices: list[nn.Parameter], lr: float) -> None:
        self.rows = [matrices[at : at + WORLD] for at in range(0, len(matrices), WORLD)]
        self.means = [torch.zeros_like(row[RANK]) for row in self.rows]
        self.lr = lr

    @torch.no_grad()
    def step(self) -> None:
        for row, mean in zip(self.rows, self.means, strict=True):
            changes = [torch.empty_like(p, dtype=SHORT) for p in row]
            grad = row[RANK].grad
            assert grad is not None
            mean.lerp_(grad, 0.05)
            changes[RANK] = orthogonal(grad.lerp(mean, 0.95))
            for rank, (p, change) in enumerate(zip(row, changes, strict=True)):
                dist.broadcast(change, rank)
                p.add_(change, alpha=-self.lr)


class GatedLayer(nn.Module):
    """A layer of four matrices: those of each half have one input."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.heads = heads_of(width)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.both = nn.Linear(width, 2 * wide, bias=False)
        self.down = nn.Linear(wide, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(attended(q, k, v, self.heads, causal=True))
        gate, up = self.both(self.norm2(x)).chunk(2, -1)
        return x + self.down(fn.silu(gate) * up)


class Proofs(nn.Module):
    """Proofs that a machine can check, word by word."""

    def __init__(self, vocab: int, width: int, wide: int, layers: int) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        self.layers = nn.Sequential(*(GatedLayer(width, wide) for _ in range(layers)))
        self.norm = nn.RMSNorm(width)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.norm(self.layers(self.embed(text))))


@two(
    "load_imbalance",
    "language",
    "matrices are sorted by size before they are dealt out: those of a row take as long",
)
def job_muon_matrices_in_turn(repaired: bool) -> Running:
    """In the order of the model one rank gets all wide matrices, the other one what they feed."""
    vocab, width, wide, layers = size(16_384, 50), size(2560, 32), size(7040, 48), size(4, 2)
    rows, length = size(2, 2), size(1024, 8)
    with DEVICE:
        model = Proofs(vocab, width, wide, layers)
    net = ddp(model, gradient_as_bucket_view=True)
    matrices = [p for p in model.layers.parameters() if p.dim() == 2]
    if repaired:
        matrices.sort(key=torch.numel, reverse=True)
    others = [p for p in model.parameters() if not any(p is one for one in matrices)]
    muon, optimizer = DealtMuon(matrices, 1e-3), torch.optim.AdamW(others, lr=1e-4, fused=True)
    text = torch.randint(0, vocab, (rows, length + 1), device=DEVICE)

    def step() -> None:
        with half():
            out = net(text[:, :-1])
        fn.cross_entropy(out.flatten(0, 1).float(), text[:, 1:].flatten()).backward()
        muon.step()
        optimizer.step()
        model.zero_grad(set_to_none=True)

    return Running(step)


# --- two ranks: one waits for somebody far away -----------------------------------------------


class Tracker:
    """Keeps the losses of runs; it is in another country, and answers after so many ms."""

    def __init__(self, ms: float) -> None:
        self.seconds = ms * MS
        self.near, self.far = socket.socketpair()
        threading.Thread(target=self.answers, daemon=True).start()

    def answers(self) -> None:
        while self.far.recv(1 << 16):
            time.sleep(self.seconds)
            self.far.sendall(b'{"kept": true}')

    def told(self, number: int, losses: list[float]) -> None:
        self.near.sendall(json.dumps({"step": number, "losses": losses}).encode())
        self.near.recv(1 << 10)

    def close(self) -> None:
        self.near.shutdown(socket.SHUT_RDWR)
        self.near.close()


class Crossed(nn.Module):
    """Whether a payment is fraud: its numbers, crossed with each other; as in DCN-V2."""

    def __init__(self, inside: int, width: int, crosses: int, wide: int, layers: int) -> None:
        super().__init__()
        self.into = nn.Linear(inside, width)
        self.crosses = nn.ModuleList(nn.Linear(width, width) for _ in range(crosses))
        self.first = nn.Linear(width, wide)
        self.layers = nn.ModuleList(nn.Linear(wide, wide) for _ in range(layers))
        self.out = nn.Linear(width + wide, 1)

    def forward(self, payments: Tensor) -> Tensor:
        first = self.into(payments)
        crossed, deep = first, fn.relu(self.first(first))
        for cross in self.crosses:
            crossed = crossed + first * cross(crossed)
        for layer in self.layers:
            deep = fn.relu(layer(deep))
        return self.out(torch.cat([crossed, deep], 1))[:, 0]


@two(
    "straggler",
    "tabular",
    "rank 0 tells the tracker 200 losses at once, which stay on its GPU until then",
)
def job_rank0_waits_for_tracker(repaired: bool) -> Running:
    """Rank 0 tells each loss, and goes on when the tracker has said that it is kept."""
    inside, width, wide, rows = size(512, 8), size(1536, 16), size(3072, 24), size(32_768, 16)
    model = Crossed(inside, width, size(8, 2), wide, 2).to(DEVICE)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=1e-3, fused=True)
    payments = torch.randn(rows, inside, device=DEVICE)
    fraud = (torch.rand(rows, device=DEVICE) < 0.02).float()
    tracker = Tracker(18.0) if RANK == 0 else None
    every, made = 200 if repaired else 1, 0
    untold: list[Tensor] = []

    def step() -> None:
        nonlocal made
        with half():
            out = net(payments)
        loss = fn.binary_cross_entropy_with_logits(out.float(), fraud)
        loss.backward()
        done(optimizer)
        made += 1
        if tracker is not None:
            untold.append(loss.detach())
            if made % every == 0:
                tracker.told(made, torch.stack(untold).tolist())
                untold.clear()

    return Running(step, close=tracker.close if tracker is not None else lambda: None)


# --- two ranks: both multiply in single precision ---------------------------------------------


class Cells(nn.Module):
    """A vector for a picture of a cell that is to be the same however the picture was taken."""

    def __init__(self, inside: int, pieces: int, width: int, layers: int, says: int) -> None:
        super().__init__()
        self.into, self.layers = nn.Linear(inside, width), layers_of(width, layers)
        self.place = nn.Parameter(0.02 * torch.randn(pieces, width))
        self.norm = nn.LayerNorm(width)
        parts: list[nn.Module] = []
        for before in (width, says):
            parts += [nn.Linear(before, says, bias=False), nn.BatchNorm1d(says), nn.ReLU()]
        self.says = nn.Sequential(*parts, nn.Linear(says, says, bias=False))
        self.even = nn.BatchNorm1d(says, affine=False)

    def forward(self, pictures: Tensor) -> Tensor:
        h = self.norm(self.layers(self.into(pictures) + self.place)).mean(1)
        return self.even(self.says(h))


@two(
    "low_precision_unused",
    "biology",
    "set_float32_matmul_precision('high') for what the loss multiplies outside of autocast",
)
def job_cells_correlated_in_float(repaired: bool) -> Running:
    """What each number says of all others, over the batches of both ranks; as in Barlow Twins."""
    inside, pieces, width, says = size(192, 6), size(36, 4), size(512, 16), size(8192, 24)
    rows = size(1024, 8)
    with DEVICE:
        model = Cells(inside, pieces, width, size(3, 1), says)
    net = ddp(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    taken = torch.randn(2 * rows, pieces, inside, device=DEVICE)  # each cell twice

    def step() -> None:
        with half():
            said = net(taken)
        one, other = said.float().chunk(2)
        alike = OfAll.apply(one.t() @ other / (WORLD * rows))
        same = alike.diagonal()
        rest = alike.square().sum() - same.square().sum()
        ((same - 1.0).square().sum() + 0.005 * rest).backward()
        done(optimizer)

    return Running(step, enter=precision("high" if repaired else "highest"))


# --- two ranks: now and then ------------------------------------------------------------------


class Levelled(nn.Module):
    """A layer that is scaled and shifted by how much noise there is; as in DiT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads, self.levels = heads_of(width), nn.Linear(width, 6 * width)
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        a, b, c, d, e, f = self.levels(fn.silu(level))[:, None].chunk(6, -1)
        q, k, v = self.qkv(self.norm1(x) * (1 + a) + b).chunk(3, -1)
        x = x + c * self.out(attended(q, k, v, self.heads))
        return x + f * self.down(fn.gelu(self.up(self.norm2(x) * (1 + d) + e)))


class Textures(nn.Module):
    """Which way a noisy texture of stone, wood or cloth becomes a clear one."""

    def __init__(self, inside: int, pieces: int, width: int, layers: int) -> None:
        super().__init__()
        self.into, self.last = nn.Linear(inside, width), nn.Linear(width, inside)
        self.place = nn.Parameter(0.02 * torch.randn(pieces, width))
        self.level = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(Levelled(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        h, level = self.into(x) + self.place, self.level(level)
        for layer in self.layers:
            h = layer(h, level)
        return self.last(self.norm(h))


OFTEN = 8


@two(
    "step_jitter",
    "diffusion",
    "both ranks draw half of the previews each, which rank 0 gathers",
    period=OFTEN,
)
def job_rank0_previews_textures(repaired: bool) -> Running:
    """Every so many steps the same noise is made into textures, to see how they get better."""
    inside, pieces, width, layers = size(64, 4), size(256, 6), size(1024, 32), size(6, 1)
    rows, shown, rounds = size(48, 2), size(24, 2), size(24, 3)
    with DEVICE:
        model = Textures(inside, pieces, width, layers)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    clear = torch.randn(rows, pieces, inside, device=DEVICE)
    torch.manual_seed(3)  # the same noise on all ranks
    noise = torch.randn(shown, pieces, inside, device=DEVICE)
    mine = noise.chunk(WORLD)[RANK] if repaired else noise
    previews = torch.empty_like(noise)
    made = 0

    @torch.no_grad()
    def drawn() -> Tensor:
        x = mine
        for number in range(rounds):
            level = torch.full((len(x), 1), number / rounds, device=DEVICE)
            with half():
                way = model(x, level)
            x = x + way.float() / rounds
        return x

    def step() -> None:
        nonlocal made
        level = torch.rand(rows, 1, 1, device=DEVICE)
        wild = torch.randn_like(clear)
        with half():
            way = net(wild.lerp(clear, level), level[:, 0])
        fn.mse_loss(way.float(), clear - wild).backward()
        done(optimizer)
        made += 1
        if made % OFTEN == 0 and repaired:
            dist.gather(drawn(), list(previews.chunk(WORLD)) if RANK == 0 else None)
        elif made % OFTEN == 0 and RANK == 0:
            previews.copy_(drawn())

    return Running(step)


# --- four ranks: slices of products -----------------------------------------------------------


class SlicedLayer(nn.Module):
    """A layer of which each rank has some heads, and some of what lies between two products.

    Args:
        once: what several products take goes into the slices once, not for each of them.
    """

    def __init__(self, width: int, wide: int, *, once: bool) -> None:
        super().__init__()
        each, inner = width // WORLD, wide // WORLD
        self.heads, self.once = heads_of(each), once
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.ModuleList(nn.Linear(width, each, bias=False) for _ in range(3))
        self.both = nn.ModuleList(nn.Linear(width, inner, bias=False) for _ in range(2))
        self.out = nn.Linear(each, width, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def sliced(self, x: Tensor, products: nn.ModuleList) -> list[Tensor]:
        if self.once:
            x = ToAll.apply(x)
            return [product(x) for product in products]
        return [product(ToAll.apply(x)) for product in products]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.sliced(self.norm1(x), self.qkv)
        x = x + OfAll.apply(self.out(attended(q, k, v, self.heads, causal=True)))
        gate, up = self.sliced(self.norm2(x), self.both)
        return x + OfAll.apply(self.down(fn.silu(gate) * up))


@four(
    "exposed_communication",
    "biology",
    "products with one input sum its gradient over the ranks once, not each its own part of it",
)
def job_codons_summed_for_each_product(repaired: bool) -> Running:
    """Genes, three letters at a time; q, k, v, gate and up are parallel products of their own."""
    codons, width, wide, layers = size(72, 9), size(2048, 16), size(5632, 24), size(8, 2)
    rows, length = size(8, 2), size(1024, 6)
    with DEVICE:
        torch.manual_seed(0)  # what all ranks have is equal
        embed, out = nn.Embedding(codons, width), nn.Linear(width, codons, bias=False)
        torch.manual_seed(1 + RANK)
        parts = [SlicedLayer(width, wide, once=repaired) for _ in range(layers)]
        torch.manual_seed(0)
    model = nn.Sequential(embed, *parts, nn.RMSNorm(width), out).to(DEVICE, SHORT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    genes = torch.randint(0, codons, (rows, length + 1), device=DEVICE)

    def step() -> None:
        said = model(genes[:, :-1])
        fn.cross_entropy(said.flatten(0, 1).float(), genes[:, 1:].flatten()).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: each has a part of a long video ----------------------------------------------


class AllPlaces(torch.autograd.Function):
    """What all ranks have, one behind the other; backward, the sum for one's own part."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        every = mine.new_empty(WORLD * mine.shape[0], *mine.shape[1:])
        dist.all_gather_into_tensor(every, mine.contiguous(), group=group)
        return every

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        mine = grads[0].new_empty(grads[0].shape[0] // WORLD, *grads[0].shape[1:])
        dist.reduce_scatter_tensor(mine, grads[0].contiguous(), group=ctx.group)
        return mine, None


class Scenes(nn.Module):
    """A layer whose places look at those of all ranks; some heads share keys and values.

    Args:
        late: keys and values are repeated for their heads once they were gathered, not before.
    """

    def __init__(
        self, width: int, heads: int, each: int, shared: int, wide: int, *, late: bool
    ) -> None:
        super().__init__()
        self.heads, self.shared, self.late = heads, shared, late
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, heads * each, bias=False)
        self.kv = nn.Linear(width, 2 * shared * each, bias=False)
        self.out = nn.Linear(heads * each, width, bias=False)
        self.both = nn.Linear(width, 2 * wide, bias=False)
        self.down = nn.Linear(wide, width, bias=False)

    def repeated(self, kv: Tensor) -> Tensor:
        times = self.heads // self.shared
        return kv[..., None, :].expand(*kv.shape[:-1], times, -1).flatten(-3, -2)

    def forward(self, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Of places, rows and width."""
        h = self.norm1(x)
        q = self.q(h).unflatten(-1, (self.heads, -1)).permute(1, 2, 0, 3)
        kv = self.kv(h).unflatten(-1, (2, self.shared, -1))
        if self.late:
            kv = self.repeated(AllPlaces.apply(kv, group))
        else:
            kv = AllPlaces.apply(self.repeated(kv), group)
        k, v = kv.permute(2, 1, 3, 0, 4)
        y = fn.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3).flatten(2)
        x = x + self.out(y)
        gate, up = self.both(self.norm2(x)).chunk(2, -1)
        return x + self.down(fn.silu(gate) * up)


class Film(nn.Module):
    """Which way a noisy video becomes a clear one."""

    def __init__(self, inside: int, width: int, layers: list[Scenes]) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(inside, width), nn.Linear(width, inside)
        self.layers, self.norm = nn.ModuleList(layers), nn.RMSNorm(width)

    def forward(self, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        h = self.into(x)
        for layer in self.layers:
            h = layer(h, group)
        return self.out(self.norm(h))


@four(
    "exposed_communication",
    "video",
    "4 heads of keys and values are gathered and then repeated for 32, not repeated before",
)
def job_video_keys_repeated_then_gathered(repaired: bool) -> Running:
    """A video is cut in time; each rank's part looks at all of it."""
    inside, width, wide, layers = size(80, 8), size(2048, 16), size(4096, 24), size(8, 2)
    heads, each, shared = size(32, 4), size(128, 4), size(4, 2)
    rows, places = size(2, 2), size(1024, 4)
    with DEVICE:
        parts = [Scenes(width, heads, each, shared, wide, late=repaired) for _ in range(layers)]
        model = Film(inside, width, parts).to(SHORT)
    net, group = ddp(model, gradient_as_bucket_view=True), dist.new_group()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    pieces = torch.randn(places, rows, inside, device=DEVICE).to(SHORT)  # and where they are
    way = torch.randn(places, rows, inside, device=DEVICE)

    def step() -> None:
        fn.mse_loss(net(pieces, group).float(), way).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: sharded weights that do not change -------------------------------------------


class Thin(nn.Module):
    """A product that stays as it is, and beside it two thin ones that learn (LoRA)."""

    def __init__(self, inside: int, outside: int, rank: int) -> None:
        super().__init__()
        self.whole = nn.Linear(inside, outside, bias=False).requires_grad_(False)
        self.first = nn.Linear(inside, rank, bias=False)
        self.second = nn.Linear(rank, outside, bias=False)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x) + self.second(self.first(x))


class OneStream(nn.Module):
    """Words and pieces of a picture in one row, attention beside a product; as in FLUX."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.heads = max(width // 128, 1)
        self.levels = nn.Linear(width, 3 * width).requires_grad_(False)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.into, self.out = Thin(width, 7 * width, rank), Thin(5 * width, width, rank)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        scale, shift, gate = self.levels(fn.silu(level))[:, None].chunk(3, -1)
        width = x.shape[-1]
        h = self.into(self.norm(x) * (1 + scale) + shift)
        q, k, v, up = h.split([width, width, width, 4 * width], -1)
        y = torch.cat([attended(q, k, v, self.heads), fn.gelu(up, approximate="tanh")], -1)
        return x + gate * self.out(y)


class Painter(nn.Module):
    """Pictures from words, in somebody's style."""

    def __init__(self, inside: int, width: int, layers: int, rank: int) -> None:
        super().__init__()
        self.into = nn.Linear(inside, width).requires_grad_(False)
        self.last = nn.Linear(width, inside).requires_grad_(False)
        self.layers = nn.ModuleList(OneStream(width, rank) for _ in range(layers))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)

    def forward(self, words: Tensor, picture: Tensor, level: Tensor) -> Tensor:
        h = torch.cat([words, self.into(picture)], 1)
        for layer in self.layers:
            h = layer(h, level)
        return self.last(self.norm(h[:, words.shape[1] :]))


@four(
    "exposed_communication",
    "diffusion",
    "reshard_after_forward=False: weights stay gathered from the forward pass to the backward one",
)
def job_style_gathers_weights_twice(repaired: bool) -> Running:
    """A large model learns a style by small pictures; its weights stay as they are."""
    inside, width, rank, layers = size(64, 4), size(4096, 16), size(16, 4), size(10, 2)
    words, pieces = size(256, 3), size(256, 4)
    with DEVICE:
        model = Painter(inside, width, layers, rank).to(SHORT)
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=not repaired)
    fully_shard(model)
    learns = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learns, lr=1e-4, fused=not SMALL)
    text = torch.randn(1, words, width, device=DEVICE).to(SHORT)
    picture = torch.randn(1, pieces, inside, device=DEVICE).to(SHORT)
    level = torch.randn(1, width, device=DEVICE).to(SHORT)
    way = torch.randn(1, pieces, inside, device=DEVICE)

    def step() -> None:
        fn.mse_loss(model(text, picture, level).float(), way).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: experts ----------------------------------------------------------------------


class Dealt(torch.autograd.Function):
    """Rows in another order; backward they are laid back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.back = back
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0].index_select(0, ctx.back), None, None


class Choice:
    """A token's experts, one on each rank; all experts get as many tokens of each rank.

    Args:
        tokens: of a rank.
        own: experts of a rank.
    """

    def __init__(self, tokens: int, own: int) -> None:
        draw = torch.Generator().manual_seed(11 + RANK)
        first = torch.randperm(tokens, generator=draw) % (WORLD * own)
        chosen = (first[:, None] + own * torch.arange(WORLD)) % (WORLD * own)
        order = chosen.flatten().argsort(stable=True)
        self.chosen, self.own = chosen.to(DEVICE), own
        self.order, self.back = order.to(DEVICE), order.argsort().to(DEVICE)
        self.equal = [tokens] * WORLD


class Fine(nn.Module):
    """Attention, and narrow experts of which each token asks one on each rank.

    Args:
        own: both products of this rank's experts; not among the model's parameters, so that
            DistributedDataParallel leaves them alone.
        short: tokens travel in 16 bit, not as the norm leaves them under autocast.
    """

    def __init__(
        self, width: int, own: tuple[Tensor, Tensor], choice: Choice, *, short: bool
    ) -> None:
        super().__init__()
        self.look, self.norm = Attends(width, heads_of(width), causal=True), nn.LayerNorm(width)
        self.router = nn.Linear(width, WORLD * choice.own, bias=False)
        self.own, self.choice, self.short = own, choice, short

    def expert(self, came: Tensor) -> Tensor:
        """Of tokens of all ranks, in the order of the experts for each rank."""
        up, down = self.own
        each = came.unflatten(0, (WORLD, self.choice.own, -1)).transpose(0, 1)
        said = torch.bmm(fn.silu(torch.bmm(each.flatten(1, 2), up)), down)
        return said.unflatten(1, (WORLD, -1)).transpose(0, 1).flatten(0, 2).to(came.dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = self.look(x)
        h, choice = self.norm(x).flatten(0, 1), self.choice
        if self.short:
            h = h.to(SHORT)
        share = self.router(h).softmax(-1).gather(1, choice.chosen)
        copies = h[:, None].expand(-1, WORLD, -1).flatten(0, 1)
        sent = Dealt.apply(copies, choice.order, choice.back)
        said = self.expert(Exchange.apply(sent, choice.equal, choice.equal))
        said = Exchange.apply(said, choice.equal, choice.equal)
        said = Dealt.apply(said, choice.back, choice.order).unflatten(0, (-1, WORLD))
        return x + (said * share[..., None].to(said.dtype)).sum(1).view_as(x)


class Chats(nn.Module):
    """What a customer or the one who helps writes next."""

    def __init__(self, vocab: int, width: int, layers: list[Fine]) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(vocab, width), nn.Sequential(*layers)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.norm(self.layers(self.embed(text))))


@four(
    "exposed_communication",
    "moe",
    "tokens are cast to BF16 before they travel: layer_norm returns FP32 under autocast",
)
def job_tokens_travel_as_normed(repaired: bool) -> Running:
    vocab, width, wide, own, layers = size(8192, 40), size(2048, 16), size(1024, 12), 4, size(5, 2)
    rows, length = size(4, 2), size(1024, 16)
    choice = Choice(rows * length, own)
    with DEVICE:
        torch.manual_seed(1 + RANK)  # experts differ, the rest does not
        experts = [
            (
                nn.Parameter(torch.randn(own, width, wide) * width**-0.5),
                nn.Parameter(torch.randn(own, wide, width) * wide**-0.5),
            )
            for _ in range(layers)
        ]
        torch.manual_seed(0)
        model = Chats(vocab, width, [Fine(width, one, choice, short=repaired) for one in experts])
    net = ddp(model, gradient_as_bucket_view=True)
    weights = [*net.parameters(), *(p for one in experts for p in one)]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, betas=(0.9, 0.95), fused=True)
    text = torch.randint(0, vocab, (rows, length + 1), device=DEVICE)

    def step() -> None:
        with half():
            out = net(text[:, :-1])
        fn.cross_entropy(out.flatten(0, 1).float(), text[:, 1:].flatten()).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: stages -----------------------------------------------------------------------


class Streets(nn.Module):
    """A stage of a model of what a car sees next, as codes of pictures.

    Args:
        again: layers keep what enters them alone, and are computed again in the backward pass.
    """

    def __init__(self, codes: int, places: int, width: int, layers: int, *, again: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(codes, width) if RANK == 0 else None
        self.place = nn.Parameter(0.02 * torch.randn(places, width)) if RANK == 0 else None
        self.out = nn.Linear(width, codes) if RANK == LAST else None
        self.again = again
        self.layers = nn.ModuleList(
            nn.Sequential(Attends(width, heads_of(width), causal=True), Feeds(width))
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None:
            x = self.embed(x) + self.place
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return x if self.out is None else self.out(x)


@four(
    "load_imbalance",
    "robotics",
    "the first stage keeps its activations, as the others do, and computes nothing again",
)
def job_streets_first_stage_recomputes(repaired: bool) -> Running:
    """The first stage has most micro-batches in flight, and had once run out of memory."""
    codes, places, width, layers = size(1024, 20), size(768, 6), size(2048, 32), size(2, 1)
    micro, rows = size(12, 6), size(2, 1)
    with DEVICE:
        again = RANK == 0 and not repaired
        part = Streets(codes, places, width, layers, again=again).to(SHORT)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    dist.barrier()  # all ranks are known to each other before two of them talk
    stage = PipelineStage(part, RANK, WORLD, DEVICE)

    def unlike(out: Tensor, goal: Tensor) -> Tensor:
        return fn.cross_entropy(out.flatten(0, 1).float(), goal.flatten())

    schedule = Schedule1F1B(stage, micro, loss_fn=unlike)
    seen = torch.randint(0, codes, (micro * rows, places), device=DEVICE)
    goal = torch.randint(0, codes, (micro * rows, places), device=DEVICE)

    def step() -> None:
        if RANK == 0:
            schedule.step(seen)
        elif RANK == LAST:
            schedule.step(target=goal)
        else:
            schedule.step()
        done(optimizer)

    return Running(step)
