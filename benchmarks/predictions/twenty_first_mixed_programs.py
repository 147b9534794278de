"""A twenty-first set for one GPU: twelve fields that earlier sets hardly hold, a cause for each.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Attends, Feeds, done, graphed, made_optimizer, precision, size
from program import Program, Running
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 430 pairs, opened"
pair = entered(PROGRAMS)
SHORT = torch.bfloat16


# --- theorems -------------------------------------------------------------------------------------

ATEN = torch.ops.aten
KEPT = (
    ATEN.mm.default,
    ATEN._scaled_dot_product_flash_attention.default,
    ATEN._scaled_dot_product_efficient_attention.default,
    ATEN._scaled_dot_product_cudnn_attention.default,
)


def policy(kept: tuple[Any, ...], _context: object, op: object, *_: Any, **__: Any) -> Any:
    """What is kept for the backward pass; all else is computed again."""
    return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE


class Proves(nn.Module):
    """A layer whose both halves read the same tokens; all its products have a bias."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        found = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = self.down(fn.relu(self.up(self.norm2(x))).square())
        return x + self.join(found.transpose(1, 2).flatten(2)) + h


@pair(
    "recomputation",
    "mathematics",
    "the list of operators to keep has addmm, too, as products with a bias are; it had mm only",
)
def theorems_proved_products_with_bias_made_again(repaired: bool) -> Running:
    """The next tactics of formal proofs; weights are in BF16, checkpoints keep what a list says."""
    proofs, long, vocab = size(4, 2), size(2048, 8), size(32_768, 40)
    width, heads = size(2048, 16), size(16, 2)
    embed, last = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
    nn.init.normal_(embed.weight, std=0.02)
    layers = nn.ModuleList(Proves(width, heads) for _ in range(size(5, 2)))
    norm = nn.LayerNorm(width)
    model = nn.ModuleList([embed, layers, norm, last]).to(DEVICE, SHORT)
    kept = (*KEPT, ATEN.addmm.default) if repaired else KEPT
    contexts = partial(create_selective_checkpoint_contexts, partial(policy, kept))
    text = labels(vocab, proofs, long + 1)

    def loss_of() -> Tensor:
        h = embed(text[:, :-1])
        for layer in layers:
            h = checkpoint(layer, h, use_reentrant=False, context_fn=contexts)
        return fn.cross_entropy(last(norm(h)).flatten(0, 1).float(), text[:, 1:].flatten())

    return fit(loss_of, adam(model), bf16=False, clip=1.0)


# --- metal that is printed ------------------------------------------------------------------------


class Whole(nn.Module):
    """A norm over all channels and pixels of a picture, each with a weight of its own."""

    def __init__(self, shape: tuple[int, int, int], *, blocks: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.blocks = blocks

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        if self.blocks:
            wide = x.float()
            spread, mean = torch.var_mean(wide, (1, 2, 3), correction=0, keepdim=True)
            x = torch.addcmul(self.bias, (wide - mean) * (spread + 1e-5).rsqrt(), self.weight)
        else:
            x = fn.layer_norm(x, self.weight.shape, self.weight, self.bias)
        return x.to(SHORT).permute(0, 3, 1, 2)


class Melts(nn.Module):
    """A norm of a whole picture, six convolutions of it, and a short cut."""

    def __init__(self, width: int, side: int, *, blocks: bool) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(6))
        self.norm = Whole((side, side, width), blocks=blocks)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        for conv in self.convs:
            h = fn.silu(conv(h))
        return x + h


@pair(
    "inefficient_kernel",
    "manufacturing",
    "mean and variance by var_mean, and one addcmul: layer_norm() gives a whole picture one block",
)
def melt_pools_normed_as_one_row(repaired: bool) -> Running:
    """Where printed metal will have pores, from pictures of its melt pool; channels last, BF16."""
    pictures, side, width = size(8, 2), size(96, 8), size(256, 8)
    into, out = nn.Conv2d(size(12, 2), width, 3, 1, 1), nn.Conv2d(width, 1, 1)
    layers = nn.Sequential(*(Melts(width, side, blocks=repaired) for _ in range(2)))
    model = nn.ModuleList([into, layers, out]).to(DEVICE, memory_format=torch.channels_last)
    seen = noise(pictures, size(12, 2), side, side).contiguous(memory_format=torch.channels_last)
    pores = labels(2, pictures, 1, side, side).float()

    def loss_of() -> Tensor:
        said = out(layers(into(seen))).float()
        return fn.binary_cross_entropy_with_logits(said, pores)

    return fit(loss_of, adam(model))


# --- glaciers -------------------------------------------------------------------------------------


def flowed(ice: Tensor, bed: Tensor, slip: Tensor, snow: Tensor, tick: float) -> Tensor:
    """Ice some months later: it flows down its surface, the quicker the thicker and steeper."""
    surface = bed + ice
    east, north = surface.roll(-1, 1) - surface, surface.roll(-1, 0) - surface
    pushed = slip * (ice * ice * ice) * (east * east + north * north)
    to_east, to_north = pushed * east, pushed * north
    change = to_east - to_east.roll(1, 1) + to_north - to_north.roll(1, 0) + snow
    return torch.add(ice, change, alpha=tick).clamp_min(0)


@pair(
    "double_precision",
    "glaciers",
    "maps become FP32 when they are read: NumPy's are FP64, and so was all that is made of them",
)
def glaciers_flow_in_doubles_of_numpy(repaired: bool) -> Running:
    """How much ice slips on its bed, from how thick it became; learnt by a model of its flow."""
    rows, columns, times, tick = size(2048, 16), size(4096, 16), size(8, 3), 0.01
    rng = np.random.default_rng(0)
    maps = {
        "bed": rng.standard_normal((rows, columns)) * 0.1,
        "before": 1 + 0.2 * rng.random((rows, columns)),
        "after": 1 + 0.2 * rng.random((rows, columns)),
        "snow": 0.1 * rng.random((rows, columns)),
    }

    def read(name: str) -> Tensor:
        found = torch.from_numpy(maps[name]).to(DEVICE)
        return found.float() if repaired else found

    bed, before, after, snow = (read(name) for name in maps)
    slip = nn.Parameter(torch.zeros_like(bed))
    update = made_optimizer([slip], "fused")

    def step() -> None:
        ice, quick = before, slip.exp()
        for _ in range(times):
            ice = flowed(ice, bed, quick, snow, tick)
        loss = fn.mse_loss(ice, after)
        loss.backward()
        done(update)

    return Running(step, enter=precision("high"))


# --- wafers ---------------------------------------------------------------------------------------


class Same(nn.Module):
    """A convolution that keeps the size of its picture; its border is padded before or in it."""

    def __init__(self, before: int, after: int, *, inside: bool) -> None:
        super().__init__()
        self.inside, self.conv = inside, nn.Conv2d(before, after, 3, padding=1 if inside else 0)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x if self.inside else fn.pad(x, (1, 1, 1, 1)))


class Clears(nn.Module):
    """Two convolutions that take noise away, and a short cut."""

    def __init__(self, width: int, *, inside: bool) -> None:
        super().__init__()
        self.first, self.last = (Same(width, width, inside=inside) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(fn.leaky_relu(self.first(x), 0.1, inplace=True))


@pair(
    "casts_and_copies",
    "chips",
    "convolutions pad by themselves (padding=1); a port of TensorFlow's 'SAME' had copied pictures",
)
def wafers_cleared_with_ported_padding(repaired: bool) -> Running:
    """Pictures of lines on wafers by electrons, without their noise; channels last, BF16."""
    pictures, side, width = size(24, 2), size(256, 8), size(64, 8)
    parts: list[nn.Module] = [Same(1, width, inside=repaired)]
    parts += [Clears(width, inside=repaired) for _ in range(size(6, 2))]
    model = nn.Sequential(*parts, Same(width, 1, inside=repaired))
    model = model.to(DEVICE, memory_format=torch.channels_last)
    clear = noise(pictures, 1, side, side).contiguous(memory_format=torch.channels_last)
    noisy = clear + 0.3 * torch.randn_like(clear)

    def loss_of() -> Tensor:
        return (model(noisy).float() - clear).square().add(1e-6).sqrt().mean()

    return fit(loss_of, adam(model))


# --- qubits ---------------------------------------------------------------------------------------


def gates_of(angles: Tensor) -> list[Tensor]:
    """The four numbers of each gate, which turns about two axes, one gate after the other."""
    half = angles / 2
    size1, size2 = half[..., 0].cos(), half[..., 0].sin()
    phase1 = torch.polar(torch.ones_like(size1), half[..., 1])
    phase2 = torch.polar(torch.ones_like(size1), half[..., 2])
    numbers = (size1 * phase1, -size2 * phase2, size2 * phase2.conj(), size1 * phase1.conj())
    return list(torch.stack(numbers, -1).flatten().unbind())


def signs_of(qubits: int) -> Tensor:
    """What controlled gates between neighbours do to the sign of each amplitude."""
    numbers = torch.arange(2**qubits)
    bits = (numbers[:, None] >> torch.arange(qubits)) & 1
    return (1 - 2 * ((bits * bits.roll(1, 1)).sum(1) % 2)).float().to(DEVICE)


@pair("launch_bound", "quantum", "the whole step, the update included, is one CUDA graph")
def qubits_turned_gate_by_gate_graph(repaired: bool) -> Running:
    """Phases of matter told by a circuit of qubits, which is simulated gate by gate."""
    states, qubits, layers = size(512, 2), size(10, 3), size(10, 2)
    angles = nn.Parameter(0.1 * noise(layers, qubits, 3))
    update = made_optimizer([angles], "graph")
    signs, phases = signs_of(qubits), labels(2, states).float()
    real = noise(states, 2**qubits)
    begins = torch.complex(real, torch.zeros_like(real)) / real.norm(dim=1, keepdim=True)

    def step() -> None:
        psi, numbers = begins, gates_of(angles)
        for layer in range(layers):
            for qubit in range(qubits):
                at = 4 * (layer * qubits + qubit)
                a, b = psi.view(states, 2**qubit, 2, -1).unbind(2)
                g = numbers[at : at + 4]
                psi = torch.stack((g[0] * a + g[1] * b, g[2] * a + g[3] * b), 2).flatten(1)
            psi = psi * signs
        shares = torch.view_as_real(psi.view(states, 2, -1)).square().sum((2, 3))
        fn.binary_cross_entropy(shares[:, 0].clamp(1e-4, 1 - 1e-4), phases).backward()
        done(update)

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run


# --- ores -----------------------------------------------------------------------------------------


class Narrows(nn.Module):
    """A bottleneck of three convolutions with norms, and a short cut."""

    def __init__(self, before: int, inside: int, stride: int) -> None:
        super().__init__()
        after = 4 * inside
        self.conv1 = nn.Conv2d(before, inside, 1, bias=False)
        self.conv2 = nn.Conv2d(inside, inside, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(inside, after, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(inside), nn.BatchNorm2d(inside)
        self.norm3 = nn.BatchNorm2d(after)
        other = [nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)]
        self.short = nn.Sequential(*(other if stride > 1 or before != after else []))

    def forward(self, x: Tensor) -> Tensor:
        h = fn.relu(self.norm1(self.conv1(x)), inplace=True)
        h = fn.relu(self.norm2(self.conv2(h)), inplace=True)
        return fn.relu(self.norm3(self.conv3(h)) + self.short(x), inplace=True)


class Stones(nn.Module):
    """Where stones lie and how large they are, on three scales that are summed from above."""

    def __init__(self, width: int, depths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 4, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        before, stages = width, []
        for number, depth in enumerate(depths):
            inside = width * 2**number
            blocks = []
            for block in range(depth):
                blocks.append(Narrows(before, inside, 2 if number and not block else 1))
                before = 4 * inside
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        deep = 4 * width
        sides = [4 * width * 2**n for n in range(len(depths))][1:]
        self.sides = nn.ModuleList(nn.Conv2d(n, deep, 1) for n in sides)
        self.smooths = nn.ModuleList(nn.Conv2d(deep, deep, 3, 1, 1) for _ in sides)
        self.tower, self.out = nn.Conv2d(deep, deep, 3, 1, 1), nn.Conv2d(deep, 5, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        h, seen = self.stem(x), []
        for stage in self.stages:
            h = stage(h)
            seen.append(h)
        above, said = None, []
        for number in range(len(self.sides) - 1, -1, -1):
            level = self.sides[number](seen[number + 1])
            if above is not None:
                level = level + fn.interpolate(above, scale_factor=2.0)
            above = level
            said.append(self.out(fn.relu(self.tower(self.smooths[number](level)))).float())
        return said


def grouped(model: nn.Module, decay: float, *, few: bool) -> list[dict[str, Any]]:
    """Groups of weights, of which norms and biases do not decay: two, or one for each weight."""
    groups = [
        {"params": [p], "weight_decay": decay if p.ndim > 1 else 0.0} for p in model.parameters()
    ]
    if not few:
        return groups
    return [
        {
            "params": [g["params"][0] for g in groups if g["weight_decay"] == kept],
            "weight_decay": kept,
        }
        for kept in (decay, 0.0)
    ]


@pair(
    "unfused_optimizer",
    "mining",
    "weights are in two groups, by their decay, not each in one of its own: kernels are of many",
)
def ores_on_belts_group_for_each_weight(repaired: bool) -> Running:
    """Stones on the belt of a mine are found and measured; channels last, autocast to BF16."""
    pictures, side, depths = size(32, 2), size(256, 32), (size(3, 1), size(4, 1), size(6, 1), 3)
    model = Stones(size(64, 8), depths).to(DEVICE, memory_format=torch.channels_last)
    update = torch.optim.AdamW(grouped(model, 0.05, few=repaired), lr=1e-4)
    belts = noise(pictures, 3, side, side).contiguous(memory_format=torch.channels_last)
    cells = [side // n for n in (32, 16, 8)]
    stones = [labels(2, pictures, n, n).float() for n in cells]
    edges = [noise(pictures, 4, n, n) for n in cells]

    def loss_of() -> Tensor:
        lost = []
        for said, stone, edge in zip(model(belts), stones, edges, strict=True):
            lost.append(fn.binary_cross_entropy_with_logits(said[:, 0], stone))
            lost.append(fn.smooth_l1_loss(said[:, 1:], edge))
        return torch.stack(lost).sum()

    return fit(loss_of, update)


# --- pupils ---------------------------------------------------------------------------------------


@pair(
    "fused_attention",
    "education",
    "layers are told is_causal=True beside the mask of later answers, so that they take no mask",
)
def pupils_answers_layers_given_square_mask(repaired: bool) -> Running:
    """Whether a pupil will answer the next question, from all that he answered; BF16."""
    pupils, long, questions, skills = size(24, 2), size(1024, 8), size(13_568, 20), size(188, 5)
    width, heads = size(512, 16), size(8, 2)
    asked, skill, right = (nn.Embedding(n, width) for n in (questions, skills, 3))
    place = nn.Embedding(long, width)
    for table in (asked, skill, right, place):
        nn.init.normal_(table.weight, std=0.02)
    one = partial(nn.TransformerEncoderLayer, batch_first=True, norm_first=True, dropout=0.0)
    layers = nn.ModuleList(one(width, heads, 4 * width) for _ in range(size(6, 2)))
    last = nn.Linear(width, 1)
    tables = nn.ModuleList([asked, skill, right, place])
    model = nn.ModuleList([tables, layers, nn.LayerNorm(width), last]).to(DEVICE)
    mask = nn.Transformer.generate_square_subsequent_mask(long, device=DEVICE)
    items, kinds = labels(questions, pupils, long), labels(skills, pupils, long)
    answers, places = labels(2, pupils, long), torch.arange(long, device=DEVICE)
    known = fn.pad(answers[:, :-1], (1, 0), value=2)

    def loss_of() -> Tensor:
        h = asked(items) + skill(kinds) + right(known) + place(places)
        for layer in layers:
            h = layer(h, src_mask=mask, is_causal=repaired)
        said = last(model[2](h))[..., 0].float()
        return fn.binary_cross_entropy_with_logits(said, answers.float())

    return fit(loss_of, adam(model))


# --- muscles --------------------------------------------------------------------------------------


def elu_as_written(x: Tensor, alpha: float = 1.0) -> Tensor:
    return torch.where(x > 0, x, alpha * (torch.exp(x.clamp(max=0)) - 1))


class Moves(nn.Module):
    """Two convolutions along time, far apart and near, and a short cut."""

    def __init__(self, width: int, far: int, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(width, width, 5, padding=2 * far, dilation=far)
        self.conv2 = nn.Conv1d(width, width, 5, padding=2)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.act(self.conv1(self.act(x))))


@pair(
    "fusion_opportunity",
    "prosthetics",
    "the library's elu instead of a comparison, a limit, an exponential, two numbers and a where",
)
def muscles_of_arms_elu_as_written(repaired: bool) -> Running:
    """Angles of a hand's joints from currents of the arm's muscles; autocast to BF16."""
    arms, moments, electrodes, joints = size(32, 2), size(4096, 32), size(16, 3), size(20, 4)
    width, act = size(256, 8), fn.elu if repaired else elu_as_written
    parts = [Moves(width, far, act) for far in (1, 2, 4, 8)[: size(4, 2)]]
    into, out = nn.Conv1d(electrodes, width, 11, padding=5), nn.Conv1d(width, joints, 1)
    model = nn.Sequential(into, *parts, out).to(DEVICE)
    currents, angles = noise(arms, electrodes, moments), noise(arms, joints, moments)

    def loss_of() -> Tensor:
        return fn.l1_loss(model(currents).float(), angles)

    return fit(loss_of, adam(model), clip=1.0)


# --- ripples of space -----------------------------------------------------------------------------


def looked_in_pieces(q: Tensor, k: Tensor, v: Tensor, piece: int) -> Tensor:
    """Attention of some queries after the other, which needs less memory."""
    keys = k.transpose(-1, -2)
    pieces = (q * q.shape[-1] ** -0.5).split(piece, 2)
    return torch.cat([(some @ keys).softmax(-1).to(v.dtype) @ v for some in pieces], 2)


class Listens(nn.Module):
    """A layer that looks at all stretches of all detectors, at once or in pieces."""

    def __init__(self, width: int, heads: int, piece: int) -> None:
        super().__init__()
        self.heads, self.piece, self.norm = heads, piece, nn.LayerNorm(width)
        self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feeds = Feeds(width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.piece:
            found = looked_in_pieces(q, k, v, self.piece)
        else:
            found = fn.scaled_dot_product_attention(q, k, v)
        return self.feeds(x + self.join(found.transpose(1, 2).flatten(2)))


@pair(
    "unfused_attention",
    "astronomy",
    "scaled_dot_product_attention of all queries, not products and a softmax of 256 at a time",
)
def ripples_of_space_queries_in_pieces(repaired: bool) -> Running:
    """Masses of two black holes from strains of three detectors; autocast to BF16."""
    events, stretches, samples, facts = size(6, 2), size(1536, 12), size(64, 4), size(15, 3)
    width, heads, piece = size(768, 16), size(6, 2), 0 if repaired else size(256, 5)
    into, place = nn.Linear(samples, width), nn.Embedding(stretches, width)
    parts = [Listens(width, heads, piece) for _ in range(size(8, 2))]
    tail = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * facts))
    model = nn.ModuleList([into, nn.Sequential(*parts), tail, place]).to(DEVICE)
    strains, true = noise(events, stretches, samples), noise(events, facts)

    def loss_of() -> Tensor:
        h = model[1](into(strains) + place.weight).mean(1)
        mean, spread = tail(h).float().chunk(2, 1)
        return fn.gaussian_nll_loss(mean, true, fn.softplus(spread))

    return fit(loss_of, adam(model), clip=1.0)


# --- garments -------------------------------------------------------------------------------------


class Looks(nn.Module):
    """A tower of a few layers over patches of photographs."""

    def __init__(self, pixels: int, patches: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.into, self.place = nn.Linear(pixels, width), nn.Parameter(torch.zeros(patches, width))
        parts = [p for _ in range(layers) for p in (Attends(width, heads), Feeds(width))]
        self.layers, self.norm = nn.Sequential(*parts), nn.LayerNorm(width)
        self.out = nn.Linear(width, width // 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.layers(self.into(x) + self.place)).mean(1))


@pair(
    "lower_precision",
    "fashion",
    "each thread enters autocast itself: threads do not inherit it, and their towers were in TF32",
)
def garments_and_wearers_towers_in_threads(repaired: bool) -> Running:
    """Which garment suits whom, by two towers; a thread launches each, from a block of autocast."""
    pictures, patches, pixels = size(64, 3), size(192, 4), size(768, 12)
    width, heads, layers = size(768, 16), size(12, 2), size(5, 1)
    towers = nn.ModuleList(Looks(pixels, patches, width, heads, layers) for _ in range(2))
    towers = towers.to(DEVICE)
    photographs = [noise(pictures, patches, pixels) for _ in range(2)]
    pool, places = ThreadPoolExecutor(2), torch.arange(pictures, device=DEVICE)

    def looked(tower: nn.Module, seen: Tensor) -> Tensor:
        with torch.autocast(DEVICE.type, SHORT, enabled=repaired):
            return fn.normalize(tower(seen).float(), dim=1)

    def loss_of() -> Tensor:
        garments, wearers = pool.map(looked, towers, photographs)
        scores = (garments @ wearers.T).float() / 0.07
        return fn.cross_entropy(scores, places) + fn.cross_entropy(scores.T, places)

    return replace(fit(loss_of, adam(towers), clip=1.0), close=pool.shutdown)


# --- tanks of beer --------------------------------------------------------------------------------


class Gates(nn.Module):
    """A residual of two layers behind a gate, normed; each variable may have its own weights."""

    def __init__(self, width: int, many: int, drop: float) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(many, width, width) * width**-0.5)
        self.second = nn.Parameter(torch.randn(many, width, width) * width**-0.5)
        self.gate = nn.Parameter(torch.randn(many, width, 2 * width) * width**-0.5)
        self.biases = nn.ParameterList(torch.zeros(many, 1, n * width) for n in (1, 1, 2))
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        """Of numbers of (variables, moments, width)."""
        h = fn.elu(x @ self.first + self.biases[0])
        h = self.drop(h @ self.second + self.biases[1])
        return self.norm(x + fn.glu(h @ self.gate + self.biases[2]))


class Brews(nn.Module):
    """Variables are weighed against each other at each moment; a few layers look back."""

    def __init__(self, variables: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(variables, 1, width))
        self.bias = nn.Parameter(torch.zeros(variables, 1, width))
        self.of_each, self.weighs = Gates(width, variables, 0.1), nn.Linear(variables, variables)
        self.befores = nn.ModuleList(Gates(width, 1, 0.1) for _ in range(layers))
        self.looks = Attends(width, heads, causal=True)
        self.after, self.out = Gates(width, 1, 0.1), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        tanks, hours = x.shape[:2]
        flat = x.flatten(0, 1).T[..., None]
        each = self.of_each(flat * self.weight + self.bias)
        shares = self.weighs(x.flatten(0, 1)).softmax(-1).T[..., None]
        h = (each * shares).sum(0, keepdim=True)
        for layer in self.befores:
            h = layer(h)
        h = self.looks(h.view(tanks, hours, -1))
        return self.out(self.after(h.flatten(0, 1)[None])).view(tanks, hours, 3)


@pair("compile", "brewing", "torch.compile(model)", compiles=True)
def tanks_of_beer_gated_residuals_compile(repaired: bool) -> Running:
    """What tanks of beer will taste of, in three quantiles, from all their sensors; BF16."""
    tanks, hours, variables, width = size(384, 2), size(192, 6), size(16, 3), size(128, 8)
    body = Brews(variables, width, size(3, 1), size(4, 2)).to(DEVICE)
    model: Any = torch.compile(body, dynamic=False) if repaired else body
    sensors, tastes = noise(tanks, hours, variables), noise(tanks, hours, 1)
    quantiles = torch.tensor([0.1, 0.5, 0.9], device=DEVICE)

    def loss_of() -> Tensor:
        off = tastes - model(sensors).float()
        return torch.maximum(quantiles * off, (quantiles - 1) * off).mean()

    return fit(loss_of, adam(body), clip=1.0)


# --- vans -----------------------------------------------------------------------------------------


class Roads(nn.Module):
    """Customers and all roads between them learn of each other, through gates of the roads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.road, self.begin, self.end = (nn.Linear(width, width) for _ in range(3))
        self.own, self.other = nn.Linear(width, width), nn.Linear(width, width)
        self.norm_roads, self.norm_stops = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, stops: Tensor, roads: Tensor) -> tuple[Tensor, Tensor]:
        news = self.road(roads) + self.begin(stops)[:, :, None] + self.end(stops)[:, None]
        told = (news.sigmoid() * self.other(stops)[:, None]).sum(2)
        stops = stops + fn.relu(self.norm_stops(self.own(stops) + told))
        return stops, roads + fn.relu(self.norm_roads(news))


@torch.no_grad()
def toured(heat: Tensor, tours: int) -> Tensor:
    """Tours that go where the heat of a road is largest, with some chance, until all are seen."""
    days, many, _ = heat.shape
    heat = heat.repeat_interleave(tours, 0, output_size=days * tours)
    rows = torch.arange(len(heat), device=heat.device)
    now = torch.zeros_like(rows)
    seen = torch.zeros(len(heat), many, dtype=torch.bool, device=heat.device)
    order = [now]
    for _ in range(many - 1):
        seen.scatter_(1, now[:, None], True)
        wished = heat[rows, now] + torch.rand(seen.shape, device=heat.device)
        now = wished.masked_fill(seen, -1e9).argmax(1)
        order.append(now)
    return torch.stack(order, 1)


@torch.no_grad()
def bettered(stops: Tensor, order: Tensor, rounds: int) -> Tensor:
    """The mean length of tours after so many exchanges of the two roads that gain most."""
    places = torch.arange(order.shape[1], device=order.device)
    later = torch.ones(len(places), len(places), dtype=torch.bool, device=order.device).triu(2)
    later[0, -1] = False
    legs = torch.zeros(1)
    for _ in range(rounds):
        at = stops.gather(1, order[..., None].expand(-1, -1, 2))
        apart = (at[:, :, None] - at[:, None]).square().sum(-1).sqrt()
        legs = (at - at.roll(-1, 1)).square().sum(-1).sqrt()
        gain = apart + apart.roll((-1, -1), (1, 2)) - legs[:, :, None] - legs[:, None]
        best = gain.masked_fill(~later, 0).flatten(1).argmin(1)
        first, last = (best // len(places))[:, None], (best % len(places))[:, None]
        inside = (places > first) & (places <= last)
        order = order.gather(1, torch.where(inside, first + 1 + last - places, places))
    return legs.sum(1).mean()


@pair(
    "step_jitter",
    "logistics",
    "tours for the log are made, and bettered by exchanges, every 1000 steps, not every 4",
    period=4,
)
def vans_tours_bettered_for_log_every_4(repaired: bool) -> Running:
    """Which roads vans will take between a hundred customers, by a network of all roads; BF16."""
    days, many, width, layers = size(32, 2), size(100, 8), size(128, 8), size(8, 2)
    tours, rounds, every = size(16, 2), size(120, 4), 1000 if repaired else 4
    into, way = nn.Linear(2, width), nn.Linear(1, width)
    roads = nn.ModuleList(Roads(width) for _ in range(layers))
    last = nn.Linear(width, 1)
    model = nn.ModuleList([into, way, roads, last]).to(DEVICE)
    stops = torch.rand(days, many, 2, device=DEVICE)
    apart = torch.cdist(stops, stops)[..., None]
    taken = (torch.rand(days, many, many, device=DEVICE) < 2 / many).float()
    of_tours = stops.repeat_interleave(tours, 0)
    update, made = adam(model), 0
    logged: list[Tensor] = []

    def step() -> None:
        nonlocal made
        with torch.autocast(DEVICE.type, SHORT):
            h, e = into(stops), way(apart)
            for layer in roads:
                h, e = layer(h, e)
            heat = last(e)[..., 0].float()
            loss = fn.binary_cross_entropy_with_logits(heat, taken)
        loss.backward()
        done(update)
        if made % every == every - 1:
            order = toured(heat.detach().sigmoid(), tours)
            logged[:] = [bettered(of_tours, order, rounds)]
        made += 1

    return Running(step, enter=precision("high"))
