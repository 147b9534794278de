"""A nineteenth set for one GPU: four faults of the host, eight of kernels, as issues tell them.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Attends, Feeds, done, graphed, made_optimizer, precision, size
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 375 pairs, opened"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
SHORT = torch.bfloat16


def held(x: Tensor) -> Tensor:
    """In page-locked memory, where there is a GPU."""
    return x.pin_memory() if CUDA else x


# --- reports of X-rays ----------------------------------------------------------------------------


class Tells(nn.Module):
    """A report, word by word: each looks at the picture anew; as in Show, Attend and Tell."""

    def __init__(self, words: int, seen: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.of_seen, self.of_state = nn.Linear(seen, width), nn.Linear(width, width)
        self.weighs, self.gate = nn.Linear(width, 1), nn.Linear(width, seen)
        self.cell = nn.LSTMCell(width + seen, width)
        self.start, self.memory = nn.Linear(seen, width), nn.Linear(seen, width)
        self.last = nn.Linear(width, words)

    def forward(self, seen: Tensor, words: Tensor, long: list[int]) -> Tensor:
        """What is said of all words; reports are in the order of their lengths, longest first."""
        mean, keys, read = seen.mean(1), self.of_seen(seen), self.embed(words)
        h, c = self.start(mean), self.memory(mean)
        said = []
        for word in range(max(long)):
            still = sum(n > word for n in long)
            h, c = h[:still], c[:still]
            suits = self.weighs(fn.relu(keys[:still] + self.of_state(h)[:, None]))
            found = (suits.softmax(1) * seen[:still]).sum(1)
            found = torch.sigmoid(self.gate(h)) * found
            h, c = self.cell(torch.cat([read[:still, word], found], 1), (h, c))
            said.append(h)
        return self.last(torch.cat(said))


def frozen_tower(widths: tuple[int, ...], convs: tuple[int, ...]) -> nn.Module:
    """Convolutions and a pooling a scale, which learn nothing."""
    parts: list[nn.Module] = []
    before = 3
    for width, many in zip(widths, convs, strict=True):
        for _ in range(many):
            conv = nn.Conv2d(before, width, 3, 1, 1)
            nn.init.kaiming_normal_(conv.weight)
            parts += [conv, nn.ReLU(True)]
            before = width
        parts.append(nn.MaxPool2d(2))
    return nn.Sequential(*parts).requires_grad_(False)


@pair(
    "host_sync",
    "medicine",
    "lengths stay the numbers that the collator had; none is read back behind the frozen network",
    others=("launch_bound",),
)
def reports_of_xrays_lengths_read_back(repaired: bool) -> Running:
    """Reports of X-rays of the chest; the network that sees is frozen, BF16, channels last."""
    pictures, side, most, words = size(48, 3), size(320, 32), size(24, 5), size(4096, 30)
    widths = (size(64, 4), size(128, 4), size(256, 4), size(512, 8), size(512, 8))
    tower = frozen_tower(widths, tuple(size(many, 1) for many in (2, 2, 3, 3, 3)))
    tower = tower.to(DEVICE, SHORT, memory_format=torch.channels_last)
    model = Tells(words, widths[-1], size(512, 8)).to(DEVICE)
    seen = noise(pictures, 3, side, side).to(SHORT, memory_format=torch.channels_last)
    lengths = [most - n * most // (2 * pictures) for n in range(pictures)]
    on_device = torch.tensor(lengths, device=DEVICE)
    report = labels(words, pictures, most + 1)
    picks = [report[: sum(n > word for n in lengths), word + 1] for word in range(max(lengths))]
    true = torch.cat(picks)

    def loss_of() -> Tensor:
        with torch.no_grad():
            found = tower(seen).flatten(2).transpose(1, 2)
        long = lengths if repaired else on_device.tolist()
        return fn.cross_entropy(model(found, report[:, :-1], long).float(), true)

    return fit(loss_of, adam(model))


# --- drones that follow a path --------------------------------------------------------------------


class Liquid(nn.Module):
    """Neurons whose time constants follow what they get; solved by a few steps a moment."""

    def __init__(self, given: int, neurons: int, unfolds: int) -> None:
        super().__init__()
        self.unfolds = unfolds
        for name, before in (("in", given), ("of", neurons)):
            self.register_parameter(f"w_{name}", nn.Parameter(torch.rand(before, neurons) / before))
            self.register_parameter(f"mu_{name}", nn.Parameter(torch.rand(before, neurons)))
            self.register_parameter(f"slope_{name}", nn.Parameter(3 + torch.rand(before, neurons)))
            sign = 2.0 * (torch.rand(before, neurons) > 0.5) - 1
            self.register_parameter(f"rests_{name}", nn.Parameter(sign))
        self.leak, self.rest = nn.Parameter(torch.ones(neurons)), nn.Parameter(torch.zeros(neurons))
        self.holds = nn.Parameter(torch.full((neurons,), 0.5))

    def open(self, v: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """What synapses carry, and how far they are open."""
        w, mu, slope, rests = (
            getattr(self, f"{part}_{name}") for part in ("w", "mu", "slope", "rests")
        )
        opened = w * torch.sigmoid(slope * (v[:, :, None] - mu))
        return (opened * rests).sum(1), opened.sum(1)

    def forward(self, x: Tensor, v: Tensor) -> Tensor:
        carried, opened = self.open(x, "in")
        holds = self.holds * self.unfolds
        for _ in range(self.unfolds):
            own_carried, own_opened = self.open(v, "of")
            above = holds * v + self.leak * self.rest + own_carried + carried
            v = above / (holds + self.leak + own_opened + opened + 1e-6)
        return v


@pair("launch_bound", "robotics", "the whole step is one CUDA graph")
def drones_steered_by_liquid_neurons_graph(repaired: bool) -> Running:
    """How a drone steers, from what it saw at the last moments; single precision, TF32."""
    flights, moments, seen, neurons = size(128, 3), size(20, 3), size(32, 4), size(64, 6)
    cell = Liquid(seen, neurons, size(4, 2)).to(DEVICE)
    sees = nn.Sequential(nn.Linear(size(512, 8), 128), nn.GELU(), nn.Linear(128, seen)).to(DEVICE)
    steers = nn.Linear(neurons, 4).to(DEVICE)
    model = nn.ModuleList([cell, sees, steers])
    update = made_optimizer(model.parameters(), "graph")
    frames, true = noise(flights, moments, size(512, 8)), noise(flights, moments, 4)
    rest = torch.zeros(flights, neurons, device=DEVICE)

    def step() -> None:
        found, v, said = sees(frames), rest, []
        for moment in range(moments):
            v = cell(found[:, moment], v)
            said.append(steers(v))
        fn.mse_loss(torch.stack(said, 1), true).backward()
        done(update)

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run


# --- sherds of pots -------------------------------------------------------------------------------


class Groups(nn.Module):
    """Half of the points, each with its nearest ones, scaled by how they scatter; as PointMLP."""

    def __init__(self, width: int, near: int) -> None:
        super().__init__()
        self.near = near
        self.gain, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.into = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.ReLU(True))
        self.first = nn.Sequential(
            nn.Linear(2 * width, width), nn.ReLU(True), nn.Linear(width, 2 * width)
        )
        self.then = nn.Sequential(
            nn.Linear(2 * width, 2 * width), nn.ReLU(True), nn.Linear(2 * width, 2 * width)
        )

    def forward(self, places: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        clouds, points, width = h.shape
        kept, own = places[:, ::2], h[:, ::2]
        with torch.no_grad():
            nearest = torch.cdist(kept, places).topk(self.near, largest=False).indices
            starts = torch.arange(clouds, device=h.device)[:, None, None] * points
            rows = (nearest + starts).flatten()
        group = h.flatten(0, 1).index_select(0, rows).view(clouds, -1, self.near, width)
        group = group - own[:, :, None]
        group = group / (group.float().std((1, 2, 3), keepdim=True).to(h.dtype) + 1e-5)
        group = group * self.gain.to(h.dtype) + self.shift.to(h.dtype)
        both = torch.cat([group, own[:, :, None].expand_as(group)], -1)
        g = self.into(both)
        g = fn.relu(g + self.first(g)).amax(2)
        return kept, fn.relu(g + self.then(g))


@pair(
    "input_starvation",
    "points",
    "NumPy stacks the arrays before they become a tensor; a list of arrays is read item by item",
    others=("blocking_copy",),
    marks="phases",
)
def sherds_from_lists_of_arrays(repaired: bool) -> Running:
    """To which kind of pot a scanned sherd belonged, from places of its points."""
    clouds, points, kinds, width = size(24, 2), size(512, 32), size(60, 4), size(192, 4)
    scans = [
        np.random.default_rng(n).standard_normal((points, 3), dtype=np.float32)
        for n in range(size(512, 6))
    ]
    near = size(24, 4)
    into = nn.Linear(3, width)
    groups = nn.ModuleList(Groups(width * 2**n, near) for n in range(3))
    model = nn.ModuleList([into, groups, nn.Linear(8 * width, kinds)]).to(DEVICE)
    true, update = labels(kinds, clouds), adam(model)
    rng = np.random.default_rng(0)

    def batch() -> Tensor:
        chosen = [scans[n] for n in rng.integers(0, len(scans), clouds)]
        return torch.from_numpy(np.stack(chosen)) if repaired else torch.tensor(chosen)

    def step() -> None:
        with phase("get_batch"):
            scanned = batch()
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            places = scanned.to(DEVICE)
            h = into(places)
            for group in groups:
                places, h = group(places, h)
            loss = fn.cross_entropy(model[2](h.amax(1)).float(), true)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            done(update)

    return Running(step, enter=precision("high"))


# --- tunes of prompts -----------------------------------------------------------------------------


class Hears(nn.Module):
    """A layer that looks back, and at the words of a prompt."""

    def __init__(self, width: int, heads: int, words: int) -> None:
        super().__init__()
        self.heads, self.back = heads, Attends(width, heads, causal=True)
        self.norm, self.q = nn.LayerNorm(width), nn.Linear(width, width)
        self.kv, self.out = nn.Linear(words, 2 * width), nn.Linear(width, width)
        self.feeds = Feeds(width)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        x = self.back(x)
        q = self.q(self.norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(words).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.feeds(x + self.out(found))


class FromHost:
    """A frozen layer whose weights lie on the host and are fetched whenever it is called."""

    def __init__(self, layer: nn.Module, *, locked: bool) -> None:
        self.layer = layer.to(SHORT).requires_grad_(False)
        given = dict(self.layer.named_parameters())
        self.kept = {name: held(w.data) if locked else w.data for name, w in given.items()}

    def __call__(self, x: Tensor) -> Tensor:
        there = {name: w.to(DEVICE, non_blocking=True) for name, w in self.kept.items()}
        return torch.func.functional_call(self.layer, there, (x,))


@pair(
    "blocking_copy",
    "music",
    "the offloaded layers' weights are page-locked, without which non_blocking=True has no effect",
)
def tunes_of_prompts_layers_from_pageable(repaired: bool) -> Running:
    """Four books of codes of a tune, from a prompt; what reads prompts stays on the host."""
    tunes, long, books, codes = size(16, 2), size(500, 8), 4, size(2048, 20)
    width, heads, words = size(1024, 16), size(16, 2), size(64, 5)
    reads: list[FromHost] = []
    for _ in range(size(10, 1)):
        reads.append(FromHost(Attends(width, heads), locked=repaired))
        reads.append(FromHost(Feeds(width), locked=repaired))
    embeds = nn.ModuleList(nn.Embedding(codes, width) for _ in range(books))
    layers = nn.ModuleList(Hears(width, heads, width) for _ in range(size(6, 1)))
    lasts = nn.ModuleList(nn.Linear(width, codes) for _ in range(books))
    model = nn.ModuleList([embeds, layers, nn.LayerNorm(width), lasts]).to(DEVICE)
    tune, prompt = labels(codes, books, tunes, long + 1), noise(tunes, words, width).to(SHORT)

    def loss_of() -> Tensor:
        read = prompt
        with torch.no_grad(), torch.autocast(DEVICE.type, enabled=False):
            for part in reads:
                read = part(read)
        h = torch.stack([e(t[:, :-1]) for e, t in zip(embeds, tune, strict=True)]).sum(0)
        for layer in layers:
            h = layer(h, read)
        h = model[2](h)
        lost = [
            fn.cross_entropy(last(h).flatten(0, 1).float(), t[:, 1:].flatten())
            for last, t in zip(lasts, tune, strict=True)
        ]
        return torch.stack(lost).mean()

    return fit(loss_of, adam(model), clip=1.0)


# --- circuits -------------------------------------------------------------------------------------


class Isomorphism(nn.Module):
    """Sums over neighbours, beside what a node has; as in GIN."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.zeros(()))
        self.layers = nn.Sequential(
            nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(True),
            nn.Linear(2 * width, width), nn.BatchNorm1d(width), nn.ReLU(True),
        )  # fmt: skip

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        sent = fn.relu(x).index_select(0, source)
        return self.layers((1 + self.own) * x + torch.zeros_like(x).index_add(0, target, sent))


@pair(
    "inefficient_kernel",
    "graph",
    "virtual nodes are handed out by index_select, whose gradient atomics sum, not by an index",
)
def circuits_virtual_nodes_by_index(repaired: bool) -> Running:
    """How long signals of circuits take; a node beyond each graph is seen by all nodes of it."""
    graphs, nodes, width, layers = size(40, 3), size(4608, 8), size(128, 8), size(4, 2)
    every = graphs * nodes
    of_graph = torch.arange(graphs, device=DEVICE).repeat_interleave(nodes, output_size=every)
    starts = (torch.arange(every, device=DEVICE) // nodes * nodes).repeat(3)
    source = labels(nodes, 3 * every) + starts
    target = torch.arange(every, device=DEVICE).repeat(3)
    into, virtual = nn.Linear(16, width), nn.Parameter(0.1 * torch.randn(width))
    sums = nn.ModuleList(Isomorphism(width) for _ in range(layers))
    beyond = nn.ModuleList(
        nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(True), nn.Linear(2 * width, width))
        for _ in range(layers - 1)
    )
    last = nn.Linear(width, 1)
    model = nn.ModuleList([into, nn.ParameterList([virtual]), sums, beyond, last]).to(DEVICE)
    kept: Any = model[1]
    gates, takes = noise(every, 16), noise(every, 1)

    def loss_of() -> Tensor:
        h, above = into(gates), kept[0].expand(graphs, -1)
        for number, layer in enumerate(sums):
            h = h + (above.index_select(0, of_graph) if repaired else above[of_graph])
            if number < layers - 1:
                pooled = torch.zeros_like(above).index_add(0, of_graph, h) / nodes
                above = above + beyond[number](above + pooled)
            h = h + layer(h, source, target)
        return fn.smooth_l1_loss(last(h), takes)

    return fit(loss_of, adam(model), bf16=False)


# --- bodies of walkers ----------------------------------------------------------------------------


def turns_of(axes: Tensor) -> Tensor:
    """Matrices of rotations, from axes that are as long as the angles."""
    angle = (axes.square().sum(-1, keepdim=True) + 1e-8).sqrt()
    x, y, z = (axes / angle).unbind(-1)
    none = torch.zeros_like(x)
    cross = torch.stack([none, -z, y, z, none, -x, -y, x, none], -1).unflatten(-1, (3, 3))
    sin, cos = angle.sin()[..., None], angle.cos()[..., None]
    return torch.eye(3, device=axes.device) + sin * cross + (1 - cos) * (cross @ cross)


class Body(nn.Module):
    """A body's surface, from its shape and how its joints are turned; as in SMPL."""

    def __init__(self, corners: int, joints: int, shapes: int, *, small: bool) -> None:
        super().__init__()
        self.small, self.joints = small, joints
        self.register_buffer("rest", torch.randn(corners, 3))
        self.register_buffer("shapes", 0.01 * torch.randn(shapes, corners * 3))
        self.register_buffer("bends", 0.01 * torch.randn((joints - 1) * 9, corners * 3))
        self.register_buffer("finds", torch.rand(joints, corners) * 2 / corners)
        self.register_buffer("holds", (4 * torch.randn(corners, joints)).softmax(1))
        self.parents = [max(0, (n - 1) // 2) for n in range(joints)]

    def chained(self, turns: Tensor, joints: Tensor) -> Tensor:
        """How each joint's part of the body moves, along the chain from the pelvis."""
        steps = torch.cat([joints[:, :1], joints[:, 1:] - joints[:, self.parents[1:]]], 1)
        moves = fn.pad(torch.cat([turns, steps[..., None]], -1), (0, 0, 0, 1))
        moves = moves + fn.pad(moves.new_ones(1, 1, 1, 1), (3, 0, 3, 0))
        chain = [moves[:, 0]]
        for number in range(1, self.joints):
            chain.append(chain[self.parents[number]] @ moves[:, number])
        there = torch.stack(chain, 1)
        back = (there[..., :3, :3] @ joints[..., None])[..., 0]
        shift = there[..., :3, 3] - back
        return torch.cat([there[..., :3, :3], shift[..., None]], -1)

    def forward(self, shape: Tensor, turns: Tensor) -> Tensor:
        people = shape.shape[0]
        shaped = self.rest + (shape @ self.shapes).view(people, -1, 3)
        joints = torch.matmul(self.finds, shaped)
        bent = (turns[:, 1:] - torch.eye(3, device=turns.device)).flatten(1)
        posed = shaped + (bent @ self.bends).view(people, -1, 3)
        moves = torch.matmul(self.holds, self.chained(turns, joints).flatten(2))
        moves = moves.unflatten(-1, (3, 4))
        if self.small:
            return torch.matmul(moves, fn.pad(posed, (0, 1), value=1.0)[..., None])[..., 0]
        return (moves[..., :3] * posed[..., None, :]).sum(-1) + moves[..., 3]


@pair(
    "inefficient_kernel",
    "motion",
    "corners are moved by a product and a sum over three elements, not by millions of small GEMMs",
)
def walkers_bodies_skinned_by_small_products(repaired: bool) -> Running:
    """Bodies of people who walk, from what a network saw in frames of films; TF32."""
    frames, patches, seen = size(384, 3), size(49, 4), size(1024, 8)
    corners, joints, shapes, width = size(6890, 20), size(24, 5), size(10, 2), size(512, 16)
    into, own = nn.Linear(seen, width), nn.Parameter(0.02 * torch.randn(patches, width))
    parts = [p for _ in range(5) for p in (Attends(width, size(8, 2)), Feeds(width))]
    layers, last = nn.Sequential(*parts, nn.LayerNorm(width)), nn.Linear(width, joints * 3 + shapes)
    nn.init.normal_(last.weight, std=0.01)
    model = nn.ModuleList([into, nn.ParameterList([own]), layers, last]).to(DEVICE)
    body = Body(corners, joints, shapes, small=not repaired).to(DEVICE)
    kept: Any = model[1]
    features, true = noise(frames, patches, seen), noise(frames, corners, 3)

    def loss_of() -> Tensor:
        said = last(layers(into(features) + kept[0]).mean(1))
        turns = turns_of(said[:, : joints * 3].unflatten(1, (joints, 3)))
        return fn.l1_loss(body(said[:, joints * 3 :], turns), true)

    return fit(loss_of, adam(model), bf16=False)


# --- fields from above ----------------------------------------------------------------------------


class Crosses(nn.Module):
    """Some look at others; the greatest score is taken off before the softmax, by hand or not."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm, self.of_others = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, others: Tensor) -> Tensor:
        q = self.q(self.norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        kv = self.kv(self.of_others(others)).unflatten(-1, (2, self.heads, -1))
        k, v = kv.permute(2, 0, 3, 1, 4)
        if self.fused:
            found = fn.scaled_dot_product_attention(q, k, v)
        else:
            scores = torch.einsum("bhid,bhjd->bhij", q * q.shape[-1] ** -0.5, k)
            scores = scores - scores.amax(-1, keepdim=True).detach()
            found = torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)
        return x + self.out(found.transpose(1, 2).flatten(2))


class Recurs(nn.Module):
    """Few latents read many patches, think, and write what they found; as in RIN."""

    def __init__(self, width: int, heads: int, thinks: int, *, fused: bool) -> None:
        super().__init__()
        self.reads = Crosses(width, heads, fused=fused)
        parts = [p for _ in range(thinks) for p in (Attends(width, heads), Feeds(width))]
        self.thinks = nn.Sequential(Feeds(width), *parts)
        self.writes, self.feeds = Crosses(width, heads, fused=fused), Feeds(width)

    def forward(self, patches: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
        latents = self.thinks(self.reads(latents, patches))
        return self.feeds(self.writes(patches, latents)), latents


@pair(
    "unfused_attention",
    "diffusion",
    "scaled_dot_product_attention, where einsums, a subtraction of the maximum and a softmax were",
)
def fields_from_above_read_by_latents(repaired: bool) -> Running:
    """Noise is taken from pictures of fields; 4096 patches meet 256 latents only."""
    pictures, side, patch = size(16, 2), size(256, 16), 4
    width, heads, few = size(512, 16), size(8, 2), size(256, 5)
    many = (side // patch) ** 2
    into, out = nn.Linear(3 * patch**2, width), nn.Linear(width, 3 * patch**2)
    own = nn.Parameter(0.02 * torch.randn(many, width))
    start = nn.Parameter(0.02 * torch.randn(few, width))
    blocks = nn.ModuleList(Recurs(width, heads, size(3, 1), fused=repaired) for _ in range(3))
    model = nn.ModuleList([into, nn.ParameterList([own, start]), blocks, out]).to(DEVICE)
    kept: Any = model[1]
    true, dark = noise(pictures, many, 3 * patch**2), noise(pictures, many, 3 * patch**2)
    share = torch.rand(pictures, 1, 1, device=DEVICE)

    def loss_of() -> Tensor:
        h = into((1 - share) * true + share * dark) + kept[0]
        latents = kept[1].expand(pictures, -1, -1)
        for block in blocks:
            h, latents = block(h, latents)
        return fn.mse_loss(out(h).float(), dark)

    return fit(loss_of, adam(model))


# --- claims that nobody made ----------------------------------------------------------------------


class MakesRows(nn.Module):
    """Rows of a table from noise; each layer is laid beside what it was given; as in CTGAN."""

    def __init__(self, dark: int, width: int, columns: int, each: int) -> None:
        super().__init__()
        self.each = each
        self.first, self.then = nn.Linear(dark, width), nn.Linear(dark + width, width)
        self.norm1, self.norm2 = nn.BatchNorm1d(width), nn.BatchNorm1d(width)
        self.out = nn.Linear(dark + 2 * width, columns * each)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, fn.relu(self.norm1(self.first(x)))], 1)
        x = torch.cat([x, fn.relu(self.norm2(self.then(x)))], 1)
        drawn = self.out(x).float().unflatten(1, (-1, self.each))
        return fn.gumbel_softmax(drawn, tau=0.2).flatten(1)


@pair(
    "low_precision_unused",
    "tables",
    "the critic's step, its penalty included, is in a block of autocast, as the generator's is",
)
def claims_made_up_critic_outside_autocast(repaired: bool) -> Running:
    """Claims to an insurance that nobody made; eight rows at a time are judged together."""
    rows, pack, columns, each = size(32_768, 32), 8, size(64, 3), size(16, 2)
    dark, width, wide = size(128, 8), size(1024, 8), columns * each
    makes = MakesRows(dark, width, columns, each).to(DEVICE)
    critic = nn.Sequential(
        nn.Linear(pack * wide, width), nn.LeakyReLU(0.2), nn.Dropout(0.5),
        nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Dropout(0.5), nn.Linear(width, 1),
    ).to(DEVICE)  # fmt: skip
    true = noise(rows, columns, each).softmax(-1).flatten(1)
    of_critic, of_makes = adam(critic, betas=(0.5, 0.9)), adam(makes, betas=(0.5, 0.9))

    def judged() -> Tensor:
        with torch.no_grad(), torch.autocast(DEVICE.type, SHORT):
            made = makes(noise(rows, dark))
        with torch.autocast(DEVICE.type, SHORT, enabled=repaired):
            packed = true.view(-1, pack * wide), made.view(-1, pack * wide)
            share = torch.rand(rows // pack, 1, device=DEVICE)
            between = (share * packed[0] + (1 - share) * packed[1]).requires_grad_()
            said = critic(between).sum()
            (slope,) = torch.autograd.grad(said, between, create_graph=True)
            penalty = (slope.float().norm(dim=1) - 1).square().mean()
            return critic(packed[1]).mean() - critic(packed[0]).mean() + 10 * penalty

    def step() -> None:
        judged().backward()
        done(of_critic)
        with torch.autocast(DEVICE.type, SHORT):
            lost = -critic(makes(noise(rows, dark)).view(-1, pack * wide)).mean()
        lost.backward(inputs=list(makes.parameters()))
        done(of_makes)

    return Running(step, enter=precision("highest"))


# --- plankton -------------------------------------------------------------------------------------


class Norm(nn.LayerNorm):
    """A norm that widens what it is given, as for FP16, or takes it as it is."""

    def __init__(self, width: int, *, widens: bool) -> None:
        super().__init__(width)
        self.widens = widens

    def forward(self, x: Tensor) -> Tensor:
        if not self.widens:
            return super().forward(x)
        weight, bias = self.weight.float(), self.bias.float()
        return fn.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps).to(x.dtype)


class Turned(nn.Module):
    """A layer with four norms; places turn queries and keys; as in EVA-02."""

    def __init__(self, width: int, heads: int, *, widens: bool) -> None:
        super().__init__()
        self.heads, wide = heads, width * 8 // 3
        self.norm1, self.norm2 = Norm(width, widens=widens), Norm(width, widens=widens)
        self.inner, self.gated = Norm(width, widens=widens), Norm(wide, widens=widens)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, wide), nn.Linear(width, wide)
        self.down = nn.Linear(wide, width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv
        q, k = (part * cos + part.roll(1, -1) * sin for part in (q, k))
        found = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(self.inner(found))
        h = self.norm2(x)
        return x + self.down(self.gated(fn.silu(self.gate(h)) * self.up(h)))


@pair(
    "casts_and_copies",
    "vision",
    "norms take BF16, which they sum in FP32 anyway, without casts to FP32 and back around each",
)
def plankton_norms_cast_for_half(repaired: bool) -> Running:
    """Kinds of plankton under a microscope in the sea; all weights are in BF16."""
    pictures, side, kinds = size(96, 2), size(16, 3), size(103, 5)
    width, heads, layers = size(768, 24), size(12, 2), size(6, 2)
    into, last = nn.Linear(3 * 14**2, width), nn.Linear(width, kinds)
    body = nn.ModuleList(Turned(width, heads, widens=not repaired) for _ in range(layers))
    final = Norm(width, widens=not repaired)
    model = nn.ModuleList([into, body, final, last]).to(DEVICE, SHORT)
    angles = noise(side**2, width // heads).to(SHORT)
    cos, sin = angles.cos(), angles.sin()
    seen, true = noise(pictures, side**2, 3 * 14**2).to(SHORT), labels(kinds, pictures)

    def loss_of() -> Tensor:
        h = into(seen)
        for layer in body:
            h = layer(h, cos, sin)
        return fn.cross_entropy(last(final(h).mean(1)).float(), true)

    return fit(loss_of, adam(model), bf16=False)


# --- rain on windscreens --------------------------------------------------------------------------


class NoActivation(nn.Module):
    """Halves that multiply each other are all that bends; as in NAFNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.joins = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, width, 1)
        self.near = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
        self.weighs = nn.Conv2d(width, width, 1)
        self.up, self.down = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, width, 1)
        self.beta = nn.Parameter(0.1 * torch.ones(1, width, 1, 1))
        self.gamma = nn.Parameter(0.1 * torch.ones(1, width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.near(self.wide(over_channels(self.norm1, x))).chunk(2, 1)
        h = a * b
        h = self.joins(h * self.weighs(h.mean((2, 3), keepdim=True)))
        x = x + h * self.beta.to(h.dtype)
        a, b = self.up(over_channels(self.norm2, x)).chunk(2, 1)
        h = self.down(a * b)
        return x + h * self.gamma.to(h.dtype)


def over_channels(norm: nn.Module, x: Tensor) -> Tensor:
    """Norms see the channels of each pixel."""
    return norm(x.permute(0, 2, 3, 1)).to(x.dtype).permute(0, 3, 1, 2)


def kept_not(part: Callable[[Tensor], Tensor], x: Tensor, *, again: bool) -> Tensor:
    """What a part gives, with what lies in it computed again for the gradient, or kept."""
    return checkpoint(part, x, use_reentrant=False) if again else part(x)


class Stage(nn.Module):
    """Blocks of one scale."""

    def __init__(self, width: int, blocks: int, *, again: bool) -> None:
        super().__init__()
        self.again = again
        self.blocks = nn.ModuleList(NoActivation(width) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = kept_not(block, x, again=self.again)
        return x


class Cleans(nn.Module):
    """Takes drops off a picture, at three scales."""

    def __init__(self, width: int, blocks: tuple[int, int, int], *, again: bool) -> None:
        super().__init__()
        self.again, widths = again, [width, 2 * width, 4 * width]
        self.first, self.last = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, 3, 3, 1, 1)
        self.down_blocks, self.up_blocks = (
            nn.ModuleList(
                Stage(w, many, again=again) for w, many in zip(widths, blocks, strict=True)
            )
            for _ in range(2)
        )
        self.downs = nn.ModuleList(nn.Conv2d(a, b, 2, 2) for a, b in pairwise(widths))
        self.ups = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        h, seen = self.first(x), []
        for number, stage in enumerate(self.down_blocks):
            h = kept_not(stage, self.downs[number - 1](h) if number else h, again=self.again)
            seen.append(h)
        for number in (2, 1, 0):
            h = h if number == 2 else self.ups[number](h) + seen[number]
            h = kept_not(self.up_blocks[number], h, again=self.again)
        return x + self.last(h)


@pair(
    "recomputation",
    "vision",
    "neither the stages nor the blocks in them are checkpointed: both were, and it all has room",
)
def windscreens_drops_checkpointed_twice(repaired: bool) -> Running:
    """Pictures through windscreens without the drops; BF16, channels last."""
    pictures, side, many = size(6, 2), size(256, 16), size(2, 1)
    model = Cleans(size(64, 4), (many, many, many), again=not repaired)
    model = model.to(DEVICE, memory_format=torch.channels_last)
    wet = noise(pictures, 3, side, side).contiguous(memory_format=torch.channels_last)
    dry = noise(pictures, 3, side, side).contiguous(memory_format=torch.channels_last)

    def loss_of() -> Tensor:
        return fn.l1_loss(model(wet).float(), dry)

    return fit(loss_of, adam(model), clip=0.5)


# --- clouds of a climate model --------------------------------------------------------------------


def adan(p: Tensor, g: Tensor, last: Tensor, m: Tensor, d: Tensor, s: Tensor) -> None:
    """A step of Adan, without its corrections for the first steps.

    Args:
        p: weights.
        g: their gradient.
        last: the gradient of the step before, negated.
        m: mean of the gradients.
        d: mean of how they change.
        s: mean of the squares.
    """
    last.add_(g)
    m.mul_(0.98).add_(g, alpha=0.02)
    d.mul_(0.92).add_(last, alpha=0.08)
    last.mul_(0.92).add_(g)
    s.mul_(0.99).addcmul_(last, last, value=0.01)
    under = s.sqrt().add_(1e-8)
    p.mul_(1 - 1e-4 * 0.02)
    p.addcdiv_(m, under, value=-1e-4)
    p.addcdiv_(d, under, value=-1e-4 * 0.92)
    last.zero_().sub_(g)


class Adan(torch.optim.Optimizer):
    """Goes through the weights one by one."""

    def __init__(self, weights: Any, update: Callable[..., None]) -> None:
        super().__init__(weights, {})
        self.update = update

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p]
                if not kept:
                    kept.update({name: torch.zeros_like(p) for name in ("last", "m", "d", "s")})
                self.update(p, p.grad, kept["last"], kept["m"], kept["d"], kept["s"])


class Emulates(nn.Module):
    """What clouds do to a column of air: wide layers with short cuts."""

    def __init__(self, given: int, width: int, layers: int, told: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(given, width), nn.Linear(width, told)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        h = fn.leaky_relu(self.into(x), 0.15)
        for layer in self.layers:
            h = h + fn.leaky_relu(layer(h), 0.15)
        return self.out(h)


@pair(
    "unfused_optimizer",
    "science",
    "torch.compile of the update of a tensor, which was sixteen kernels, one an operation",
    compiles=True,
)
def clouds_emulated_adan_of_the_paper(repaired: bool) -> Running:
    """Heat and moisture of columns of air in a climate model; Adan as its repository has it."""
    columns, given, told = size(4096, 8), size(560, 8), size(368, 4)
    model = Emulates(given, size(4096, 16), size(8, 2), told).to(DEVICE)
    air, after = noise(columns, given), noise(columns, told)
    update: Any = torch.compile(adan, dynamic=False) if repaired else adan

    def loss_of() -> Tensor:
        return fn.smooth_l1_loss(model(air).float(), after)

    return fit(loss_of, Adan(model.parameters(), update))


# --- patients who come back -----------------------------------------------------------------------


def dropped(x: Tensor, share: float) -> Tensor:
    """Dropout as a book has it."""
    mask = (torch.rand(x.shape, device=x.device) > share).float()
    return mask * x / (1.0 - share)


class Ensembles(nn.Module):
    """A layer that many members share; each scales what goes in and comes out; as in TabM."""

    def __init__(self, before: int, after: int, members: int, *, own: bool) -> None:
        super().__init__()
        self.own, self.linear = own, nn.Linear(before, after, bias=False)
        signs = 2.0 * torch.randint(0, 2, (members, before)) - 1
        self.given, self.gives = nn.Parameter(signs), nn.Parameter(torch.ones(members, after))
        self.bias = nn.Parameter(torch.zeros(members, after))

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x * self.given.to(x.dtype))
        h = fn.relu(torch.addcmul(self.bias.to(h.dtype), h, self.gives.to(h.dtype)))
        return dropped(h, 0.1) if self.own else fn.dropout(h, 0.1)


@pair(
    "fusion_opportunity",
    "tables",
    "torch.nn.functional.dropout instead of a draw, a comparison, a cast, a product and a quotient",
)
def patients_back_own_dropout(repaired: bool) -> Running:
    """Which patients come back within a month; 32 members of an ensemble learn at once."""
    patients, facts, members, width = size(6144, 8), size(256, 8), size(32, 3), size(512, 8)
    sizes = (facts, width, width, width)
    layers = [Ensembles(a, b, members, own=not repaired) for a, b in pairwise(sizes)]
    model, last = nn.Sequential(*layers).to(DEVICE), nn.Linear(width, 2).to(DEVICE)
    known = noise(patients, facts).to(SHORT)
    true = labels(2, patients)[:, None].expand(-1, members).flatten()

    def loss_of() -> Tensor:
        said = last(model(known[:, None].expand(-1, members, -1)))
        return fn.cross_entropy(said.flatten(0, 1).float(), true)

    return fit(loss_of, adam(model, last))
