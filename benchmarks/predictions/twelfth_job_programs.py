"""Training jobs of the twelfth set, on four GPUs: steps of few and large kernels."""

from __future__ import annotations

import math
import struct
import zlib
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from eleventh_job_models import SHORT, layers_of
from job_programs import DEVICE, RANK, WORLD, ddp
from models import done, size
from program import SMALL, Program, Running
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 222 pairs"
four = partial(entered(PROGRAMS), marks="steps", ranks=4)  # type: ignore[call-arg]


class Patches(nn.Module):
    """Layers between two linear maps: from pieces of a signal, and to what is said of each."""

    def __init__(self, inside: int, places: int, width: int, layers: int, outside: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(inside, width), nn.Linear(width, outside)
        self.place = nn.Parameter(0.02 * torch.randn(places, width))
        self.layers, self.norm = layers_of(width, layers), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.layers(self.into(x) + self.place)))


# --- one rank has more to do on its host ------------------------------------------------------


def png(grey: np.ndarray[Any, Any]) -> bytes:
    """A picture in shades of grey, as files and dashboards have it."""
    tall, wide = grey.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checked

    lines = np.concatenate([np.zeros((tall, 1), np.uint8), grey], 1)  # no filters
    head = struct.pack(">IIBBBBB", wide, tall, 8, 0, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 6)
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@four(
    "straggler",
    "medicine",
    "rank 0 draws restored X-rays for the dashboard every 500 steps, not in each",
)
def job_rank0_draws_xrays(repaired: bool) -> Running:
    """X-rays are restored from a tenth of the dose."""
    piece, across, rows = size(16, 4), size(16, 3), size(64, 4)
    places, inside = across * across, piece * piece
    model = Patches(inside, places, size(1536, 32), size(4, 1), inside).to(DEVICE, SHORT)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-4, betas=(0.9, 0.95), fused=True)
    true = torch.rand(rows, places, inside, device=DEVICE).to(SHORT)
    given = torch.poisson(true.float() * 30).div(30).to(SHORT)
    every = 500 if repaired else 1
    made = 0
    shown: dict[int, bytes] = {}

    def drawn(one: Tensor) -> bytes:
        """An X-ray as it was given, restored, as it is, and what is wrong, in a square."""
        four_of = torch.stack([given[0], one, true[0], (one - true[0]).abs()])
        grey = four_of.float().clamp(0, 1).mul(255).to(torch.uint8)
        grid = grey.view(2, 2, across, across, piece, piece).permute(0, 2, 4, 1, 3, 5)
        return png(grid.reshape(2 * across * piece, -1).cpu().numpy())

    def step() -> None:
        nonlocal made
        out = net(given)
        fn.l1_loss(out.float(), true.float()).backward()
        done(optimizer)
        made += 1
        if RANK == 0 and made % every == 0:
            shown[made % 10] = drawn(out[0].detach())

    return Running(step)


# --- ranks are given unequal work -------------------------------------------------------------

ARCHIVES = (92, 68, 56, 40)
"""How many of 256 recordings each of four hospitals has."""


@four(
    "load_imbalance",
    "medicine",
    "hearts of all hospitals are dealt out evenly, not a rank the share of one hospital",
)
def job_hospitals_by_their_archives(repaired: bool) -> Running:
    """Each rank reads the archive of a hospital; larger ones give more to each batch."""
    leads, piece, places, findings = size(12, 3), size(20, 4), size(256, 8), size(71, 5)
    shares = [size(share, share // 20) for share in ARCHIVES]
    of_all = sum(shares)
    rows = of_all // WORLD if repaired else shares[RANK]
    model = Patches(leads * piece, places, size(1536, 32), size(4, 1), findings)
    net = ddp(model.to(DEVICE, SHORT), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    hearts = torch.randn(rows, places, leads * piece, device=DEVICE).to(SHORT)
    found = (torch.rand(rows, findings, device=DEVICE) < 0.05).float()

    def step() -> None:
        odds = net(hearts).float().mean(1)
        loss = fn.binary_cross_entropy_with_logits(odds, found, reduction="sum")
        (loss * WORLD / (of_all * findings)).backward()  # the mean of all ranks' hearts
        done(optimizer)

    return Running(step)


# --- communication ----------------------------------------------------------------------------


class Walks(nn.Module):
    """Which entity is missing on a walk through a graph of facts; what is known of each is fixed.

    Args:
        known: a vector for each entity, made long ago by another model.
    """

    def __init__(self, known: Tensor, places: int, width: int, layers: int) -> None:
        super().__init__()
        self.walk = Patches(known.shape[1], places, width, layers, width).to(DEVICE, SHORT)
        self.asked = nn.Linear(known.shape[1], width).to(DEVICE, SHORT)
        self.missing = nn.Parameter(torch.zeros(known.shape[1], device=DEVICE, dtype=SHORT))
        self.register_buffer("known", known)

    def forward(self, walk: Tensor, hidden: Tensor, others: Tensor) -> Tensor:
        seen = fn.embedding(walk, self.known).to(SHORT)
        h = self.walk(torch.where(hidden[..., None], self.missing, seen))
        at_first = h[:, 0]
        every = torch.cat([walk[:, 0], others])
        return at_first @ self.asked(fn.embedding(every, self.known).to(SHORT)).t()


@four(
    "exposed_communication",
    "graph",
    "broadcast_buffers=False: what is known of entities is the same on all ranks, and stays so",
)
def job_known_entities_sent_each_step(repaired: bool) -> Running:
    """DistributedDataParallel sends buffers from rank 0 before each forward pass, if it may."""
    entities, knows, width = size(262_144, 60), size(1024, 12), size(1536, 32)
    rows, places = size(96, 4), size(128, 6)
    known = torch.randn(entities, knows, device=DEVICE)
    model = Walks(known, places, width, size(4, 1))
    net = ddp(model, broadcast_buffers=not repaired, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    walk = torch.randint(0, entities, (rows, places), device=DEVICE)
    others = torch.randint(0, entities, (size(8192, 10),), device=DEVICE)
    hidden = torch.rand(rows, places, device=DEVICE) < 0.1
    hidden[:, 0] = True
    same = torch.arange(rows, device=DEVICE)

    def step() -> None:
        scores = net(walk, hidden, others).float() / math.sqrt(width)
        fn.cross_entropy(scores, same).backward()
        done(optimizer)

    return Running(step)


class Borders(torch.autograd.Function):
    """Rows of the neighbours' strips above and below one's own; the last strip meets the first.

    Of a strip either everything travels to all ranks, or what lies at its borders.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int, whole: bool) -> tuple[Tensor, Tensor]:
        sent = x if whole else torch.cat([x[:, :rows], x[:, -rows:]], 1)
        ctx.rows, ctx.whole, ctx.shape, ctx.sent = rows, whole, x.shape, sent.shape
        every = x.new_empty(WORLD * sent.shape[0], *sent.shape[1:])
        dist.all_gather_into_tensor(every, sent.contiguous())
        strips = every.view(WORLD, *sent.shape)
        above = strips[(RANK - 1) % WORLD][:, -rows:].clone()
        return above, strips[(RANK + 1) % WORLD][:, :rows].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        rows = ctx.rows
        back = grads[0].new_zeros(WORLD, *ctx.sent)
        back[(RANK - 1) % WORLD][:, -rows:] = grads[0]
        back[(RANK + 1) % WORLD][:, :rows] = grads[1]
        mine = back.new_empty(ctx.sent)
        dist.reduce_scatter_tensor(mine, back.flatten(0, 1))
        if ctx.whole:
            return mine, None, None
        grad = mine.new_zeros(ctx.shape)
        grad[:, :rows] = mine[:, :rows]
        grad[:, -rows:] = mine[:, rows:]
        return grad, None, None


class Stirs(nn.Module):
    """Two convolutions over a strip of the plasma, for which the strip needs two rows more."""

    def __init__(self, width: int, *, whole: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=(0, 1))
        self.conv2 = nn.Conv2d(width, width, 3, padding=(0, 1))
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        """Channels come last in x: batch, height, width, channels."""
        above, below = Borders.apply(x, 2, self.whole)
        wider = torch.cat([above, x, below], 1).permute(0, 3, 1, 2)
        h = self.conv2(fn.gelu(self.conv1(wider)))
        return x + h.permute(0, 2, 3, 1)


class Plasma(nn.Module):
    """The next state of a plasma in a ring, of which each rank has a part."""

    def __init__(self, fields: int, width: int, layers: int, *, whole: bool) -> None:
        super().__init__()
        self.lift, self.out = nn.Linear(fields, width), nn.Linear(width, fields)
        self.layers = nn.Sequential(*(Stirs(width, whole=whole) for _ in range(layers)))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(self.lift(x)))


@four(
    "exposed_communication",
    "science",
    "two rows at each border of a strip are gathered, not strips as a whole",
)
def job_plasma_strips_gathered_whole(repaired: bool) -> Running:
    batch, tall, wide, fields = size(3, 1), size(128, 6), size(512, 8), size(8, 3)
    model = Plasma(fields, size(256, 8), size(5, 2), whole=not repaired).to(DEVICE, SHORT)
    net = ddp(model.to(memory_format=torch.channels_last))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    now = torch.randn(batch, tall, wide, fields, device=DEVICE).to(SHORT)
    later = torch.randn(batch, tall, wide, fields, device=DEVICE)

    def step() -> None:
        fn.mse_loss(net(now).float(), later).backward()
        done(optimizer)

    return Running(step)


# --- copies -----------------------------------------------------------------------------------


@four(
    "blocking_copy",
    "science",
    "the bank of features is page-locked, and nobody waits for what is written into it",
)
def job_galaxies_features_banked(repaired: bool) -> Running:
    """What is found in pieces of spectra is kept on the host, and clustered once an epoch."""
    piece, places, rows, width = size(32, 4), size(256, 6), size(64, 3), size(1536, 32)
    kept, batches = size(1024, 8), 4
    model = Patches(piece, places, width, size(4, 1), kept).to(DEVICE, SHORT)
    net = ddp(model, gradient_as_bucket_view=True)
    head = nn.Linear(kept, piece).to(DEVICE, SHORT)
    said = ddp(head)
    weights = [*net.parameters(), *said.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
    light = torch.randn(rows, places, piece, device=DEVICE).to(SHORT)
    faint = torch.rand(rows, places, 1, device=DEVICE) < 0.3
    shape = (batches, rows, places, kept)
    bank = torch.zeros(shape, pin_memory=repaired and not SMALL)
    made = 0

    def step() -> None:
        nonlocal made
        found = net(light.masked_fill(faint, 0.0))
        slot = bank[made % batches]
        slot.copy_(found.detach().float(), non_blocking=repaired)
        loss = ((said(found) - light).float().square() * faint).mean()
        loss.backward()
        done(optimizer)
        made += 1

    return Running(step)
