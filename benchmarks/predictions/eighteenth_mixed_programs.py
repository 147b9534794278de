"""An eighteenth set for one GPU: three faults of the host, nine of kernels, each of another cause.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, Attends, Feeds, done, precision, size, transformer_layers
from program import Program, Running, phase
from single_programs import entered, scratch
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 351 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
SHORT = torch.bfloat16


def held(x: Tensor) -> Tensor:
    """In page-locked memory, where there is a GPU."""
    return x.pin_memory() if CUDA else x


# --- grippers -------------------------------------------------------------------------------------


class Moves(nn.Module):
    """Two convolutions over time, scaled and shifted by what the robot sees; diffusion policy."""

    def __init__(self, before: int, after: int, sees: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(before, after, 5, padding=2)
        self.conv2 = nn.Conv1d(after, after, 5, padding=2)
        self.norm1, self.norm2 = nn.GroupNorm(8, after), nn.GroupNorm(8, after)
        self.seen = nn.Sequential(nn.Mish(), nn.Linear(sees, 2 * after))
        self.short = nn.Conv1d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, sees: Tensor) -> Tensor:
        h = fn.mish(self.norm1(self.conv1(x)))
        scale, shift = self.seen(sees)[..., None].chunk(2, 1)
        h = fn.mish(self.norm2(self.conv2(scale * h + shift)))
        return h + self.short(x)


class Gripper(nn.Module):
    """How noisy actions become the ones that were shown, at two rates of time."""

    def __init__(self, joints: int, width: int, sees: int) -> None:
        super().__init__()
        self.level = nn.Linear(1, sees)
        self.into, self.near = Moves(joints, width, sees), Moves(width, width, sees)
        self.down = nn.Conv1d(width, 2 * width, 3, 2, 1)
        self.far = nn.ModuleList(Moves(2 * width, 2 * width, sees) for _ in range(2))
        self.up = nn.ConvTranspose1d(2 * width, width, 4, 2, 1)
        self.join = Moves(2 * width, width, sees)
        self.out = nn.Conv1d(width, joints, 1)

    def forward(self, x: Tensor, level: Tensor, sees: Tensor) -> Tensor:
        sees = sees + self.level(level[:, None])
        near = self.near(self.into(x, sees), sees)
        h = self.down(near)
        for moves in self.far:
            h = moves(h, sees)
        return self.out(self.join(torch.cat([self.up(h), near], 1), sees))


@pair(
    "host_sync",
    "robotics",
    "detect_anomaly is off: no gradient is asked whether it has a NaN, which had long been found",
)
def grippers_anomalies_still_detected(repaired: bool) -> Running:
    """Actions of an arm from noise; anomalies were looked for once, and the flag stayed."""
    batch, moments, joints, sees = size(1536, 2), size(32, 8), size(16, 4), size(512, 8)
    model = Gripper(joints, size(512, 8), sees).to(DEVICE)
    shown, seen = noise(batch, joints, moments), noise(batch, sees)

    def loss_of() -> Tensor:
        dark, level = torch.randn_like(shown), torch.rand(batch, device=DEVICE)
        share = level[:, None, None]
        said = model((1 - share) * shown + share * dark, level, seen)
        return fn.mse_loss(said.float(), dark)

    run = fit(loss_of, adam(model))

    def step() -> None:
        with torch.autograd.set_detect_anomaly(not repaired):
            run.step()

    return replace(run, step=step)


# --- seen pictures from brains --------------------------------------------------------------------


class Brain(nn.Module):
    """From voxels to what describes the picture that was seen; as in MindEye."""

    def __init__(self, voxels: int, width: int, blocks: int, code: int) -> None:
        super().__init__()
        self.into = nn.Sequential(nn.Linear(voxels, width), nn.LayerNorm(width), nn.GELU())
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())
            for _ in range(blocks)
        )
        self.out = nn.Linear(width, code)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out(h)


@pair(
    "input_starvation",
    "medicine",
    "the array is taken from its .npz archive once: each access by its name reads all of it anew",
    marks="phases",
)
def brains_voxels_read_by_name_of_array(repaired: bool) -> Running:
    """Which pictures people saw in the scanner; all of a person's trials are in one archive."""
    trials, voxels, code = size(1536, 12), size(4096, 8), size(1024, 8)
    batch, width = size(1024, 4), size(8192, 16)
    file = Path(scratch()) / "person.npz"
    rng = np.random.default_rng(0)
    np.savez(file, voxels=rng.standard_normal((trials, voxels), dtype=np.float32))
    archive = np.load(file)
    stays = archive["voxels"] if repaired else None
    with torch.device(DEVICE):
        model = Brain(voxels, width, size(6, 1), code)
    codes, update = fn.normalize(noise(trials, code), dim=1), adam(model)

    def rows_of(chosen: Any) -> Tensor:
        found = archive["voxels"] if stays is None else stays
        return held(torch.from_numpy(found[chosen])).to(DEVICE, non_blocking=True)

    def step() -> None:
        with phase("get_batch"):
            chosen = rng.integers(0, trials, batch)
            rows = rows_of(chosen)
            which = held(torch.from_numpy(chosen)).to(DEVICE, non_blocking=True)
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            said = fn.normalize(model(rows).float(), dim=1)
            loss = 1 - (said * codes[which]).sum(1).mean()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            done(update)

    return Running(step, enter=precision("high"))


# --- scans of rooms -------------------------------------------------------------------------------


class Serial(nn.Module):
    """Points in the order of a curve through space look within windows of it."""

    def __init__(self, width: int, heads: int, window: int, layers: int, code: int) -> None:
        super().__init__()
        self.window = window
        self.into = nn.Linear(8, width)
        self.layers = nn.Sequential(
            *(part for _ in range(layers) for part in (Attends(width, heads), Feeds(width, 2)))
        )
        self.out = nn.Linear(width, code)

    def forward(self, points: Tensor) -> Tensor:
        h = self.layers(self.into(points).unflatten(0, (-1, self.window)))
        return fn.normalize(self.out(h).flatten(0, 1).float(), dim=1)


@pair(
    "host_compute",
    "points",
    "NumPy's Generator draws 2048 points of all; RandomState.choice permutes all of them for that",
)
def rooms_hardest_points_by_permutation(repaired: bool) -> Running:
    """Codes of points by which two scans of a room are laid on each other; hardest contrast."""
    points, chosen, window = size(393_216, 256), size(2048, 16), size(256, 16)
    model = Serial(size(64, 8), size(2, 2), window, 2, size(32, 8)).to(DEVICE)
    first, second = noise(points, 8), noise(points, 8)
    fits = torch.randperm(points, device=DEVICE)
    rng: Any = np.random.default_rng(0) if repaired else np.random.RandomState(0)

    def drawn() -> Tensor:
        places = rng.choice(points, chosen, replace=False)
        return torch.from_numpy(places).to(DEVICE, non_blocking=True)

    def loss_of() -> Tensor:
        here, there = model(first), model(second)
        left, right, same = drawn(), drawn(), drawn()
        a, b = here.index_select(0, same), there.index_select(0, fits[same])
        near = fn.relu((a - b).square().sum(1) - 0.1).mean()
        of_a = (2 - 2 * a @ there.index_select(0, right).T).float()
        of_b = (2 - 2 * b @ here.index_select(0, left).T).float()
        hardest = torch.stack([of_a.min(1).values, of_b.min(1).values]).clamp_min(1e-6).sqrt()
        return near + fn.relu(1.4 - hardest).square().mean()

    return fit(loss_of, sgd(model))


# --- galaxies -------------------------------------------------------------------------------------


class Galaxies(nn.Module):
    """Convolutions with norms at three scales, and what shape a galaxy has."""

    def __init__(self, widths: tuple[int, ...], kinds: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.downs = nn.ModuleList(
            nn.Conv2d(a, b, 3, 2, 1, bias=False) for a, b in pairwise(widths)
        )
        self.convs = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(w, w, 3, 1, 1, bias=False) for _ in range(2)) for w in widths
        )
        self.norms = nn.ModuleList(
            nn.ModuleList(nn.BatchNorm2d(w) for _ in range(2)) for w in widths
        )
        self.out = nn.Linear(widths[-1], kinds)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for number, (convs, norms) in enumerate(zip(self.convs, self.norms, strict=True)):
            if number:
                h = self.downs[number - 1](h)
            for conv, norm in zip(convs, norms, strict=True):
                h = h + fn.silu(norm(conv(h)))
        return self.out(h.mean((2, 3)))


@pair(
    "step_jitter",
    "vision",
    "the Hessian's largest eigenvalue is measured every 1000 steps, not every 6",
    period=6,
)
def galaxies_sharpness_of_loss_every_6(repaired: bool) -> Running:
    """Shapes of galaxies; how sharply the loss is bent is followed by power iterations."""
    pictures, side, kinds = size(96, 2), size(96, 16), size(37, 5)
    widths = (size(128, 4), size(256, 6), size(512, 8))
    model = Galaxies(widths, kinds).to(DEVICE, memory_format=torch.channels_last)
    seen = noise(pictures, 3, side, side).contiguous(memory_format=torch.channels_last)
    votes = fn.softmax(noise(pictures, kinds), 1)
    weights = list(model.parameters())
    sharpness = torch.zeros((), device=DEVICE)
    every = 1000 if repaired else 6

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(seen).float(), votes)

    def measured(made: int, _loss: Tensor) -> None:
        if made % every != every - 1:
            return
        with torch.autocast(DEVICE.type, SHORT):
            loss = loss_of()
        slopes = torch.autograd.grad(loss, weights, create_graph=True)
        way: Any = [torch.randn_like(w) for w in weights]
        for last in (False, True):
            whole = torch.stack(torch._foreach_norm(way)).norm() + 1e-12
            way = torch._foreach_div(way, whole)
            bent = torch.autograd.grad(slopes, weights, way, retain_graph=not last)
            found = torch.stack([(a * b).sum() for a, b in zip(way, bent, strict=True)])
            sharpness.copy_(found.sum())
            way = list(bent)

    return fit(loss_of, sgd(model), after=measured)


# --- streets from their maps ----------------------------------------------------------------------


class ByClass(nn.Module):
    """A norm whose scale and shift are those of the class that a pixel has; as in CLADE."""

    def __init__(self, kinds: int, width: int, *, by_index: bool) -> None:
        super().__init__()
        self.by_index = by_index
        self.norm = nn.InstanceNorm2d(width, affine=False)
        self.gains = nn.Parameter(torch.ones(kinds, width) + 0.1 * torch.randn(kinds, width))
        self.shifts = nn.Parameter(0.1 * torch.randn(kinds, width))

    def of_pixels(self, table: Tensor, kinds: Tensor) -> Tensor:
        found = table[kinds] if self.by_index else fn.embedding(kinds, table)
        return found.permute(0, 3, 1, 2)

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        gain, shift = self.of_pixels(self.gains, kinds), self.of_pixels(self.shifts, kinds)
        return self.norm(x) * gain + shift


class Painted(nn.Module):
    """Paints a street by its map: coarse scales know the classes, fine ones sharpen."""

    def __init__(self, kinds: int, widths: tuple[int, ...], each: int, *, by_index: bool) -> None:
        super().__init__()
        self.start = nn.Embedding(kinds, widths[0])
        self.norms, self.convs = nn.ModuleList(), nn.ModuleList()
        for before, after in pairwise((widths[0], *widths[:2])):
            for number in range(each):
                inside = before if number == 0 else after
                self.norms.append(ByClass(kinds, inside, by_index=by_index))
                self.convs.append(nn.Conv2d(inside, after, 3, 1, 1))
        self.fine = nn.ModuleList()
        for before, after in pairwise(widths[1:]):
            parts: list[nn.Module] = [nn.Upsample(scale_factor=2)]
            for number in range(3):
                parts += [nn.Conv2d(after if number else before, after, 3, 1, 1, bias=False)]
                parts += [nn.BatchNorm2d(after), nn.LeakyReLU(0.2, inplace=True)]
            self.fine.append(nn.Sequential(*parts))
        self.each, self.out = each, nn.Conv2d(widths[-1], 3, 3, 1, 1)

    def forward(self, maps: list[Tensor]) -> Tensor:
        h = self.start(maps[0]).permute(0, 3, 1, 2)
        for number, (norm, conv) in enumerate(zip(self.norms, self.convs, strict=True)):
            if number == self.each:
                h = fn.interpolate(h, scale_factor=2.0)
            h = conv(fn.leaky_relu(norm(h, maps[number // self.each]), 0.2))
        for part in self.fine:
            h = part(h)
        return torch.tanh(self.out(h))


@pair(
    "inefficient_kernel",
    "vision",
    "the rows of classes are looked up by embedding(), whose gradient many blocks sum, not indexed",
)
def streets_painted_rows_of_classes_indexed(repaired: bool) -> Running:
    """Pictures of streets from maps with twenty classes; one warp sums an indexed row's."""
    pictures, kinds, side = size(16, 2), size(20, 4), size(32, 4)
    widths = (size(512, 8), size(256, 8), size(192, 6), size(96, 4))
    model = Painted(kinds, widths, size(3, 1), by_index=not repaired)
    model = model.to(DEVICE, memory_format=torch.channels_last)
    fine = labels(kinds, pictures, 2 * side, 2 * side)
    maps = [fine[:, ::2, ::2].contiguous(), fine]
    true = noise(pictures, 3, 8 * side, 8 * side).tanh()

    def loss_of() -> Tensor:
        return fn.l1_loss(model(maps).float(), true)

    return fit(loss_of, adam(model))


# --- dancers --------------------------------------------------------------------------------------


class AlongOne(nn.Module):
    """Joints look at each other within a frame, or frames within a joint: the last axis but one."""

    def __init__(self, width: int, heads: int, *, five: bool) -> None:
        super().__init__()
        self.heads, self.five, self.norm = heads, five, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feeds = Feeds(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[:2]
        qkv = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(3, 0, 1, 4, 2, 5)
        if self.five:
            found = fn.scaled_dot_product_attention(q, k, v)
        else:
            flat = (part.flatten(0, 1) for part in (q, k, v))
            found = fn.scaled_dot_product_attention(*flat).unflatten(0, rows)
        return self.feeds(x + self.out(found.transpose(2, 3).flatten(3)))


@pair(
    "unfused_attention",
    "video",
    "people and joints are one dimension of q, k and v: with five the fused kernels take none",
)
def dancers_joints_beside_people(repaired: bool) -> Running:
    """Joints in space from joints in films of dancers; layers look along joints, then frames."""
    people, frames, joints = size(32, 2), size(243, 9), size(17, 3)
    width, heads = size(512, 16), size(8, 2)
    layers = nn.ModuleList(AlongOne(width, heads, five=not repaired) for _ in range(4))
    into, last = nn.Linear(3, width), nn.Linear(width, 3)
    model = nn.ModuleList([into, layers, last]).to(DEVICE)
    flat, true = noise(people, frames, joints, 3), noise(people, frames, joints, 3)

    def loss_of() -> Tensor:
        h = into(flat)
        for layer in layers:
            h = layer(h).transpose(1, 2)
        return (last(h).float() - true).norm(dim=-1).mean()

    return fit(loss_of, adam(model), clip=1.0)


# --- genomes of plants ----------------------------------------------------------------------------


class Reads(nn.Module):
    """A layer for both directions; places turn the halves of queries and keys."""

    def __init__(self, width: int, heads: int, long: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feeds = Feeds(width)
        each = width // heads // 2
        rates = 10_000.0 ** -(torch.arange(each) / each)
        angles = torch.arange(long)[:, None] * rates
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def turned(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x: Tensor, kept: Tensor | None) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.turned(q), self.turned(k)
        y = fn.scaled_dot_product_attention(q, k, v, attn_mask=kept)
        return self.feeds(x + self.out(y.transpose(1, 2).reshape(b, t, d)))


@pair(
    "fused_attention",
    "biology",
    "no mask of padding, since windows of a genome have none: any mask keeps flash attention out",
)
def plants_windows_masked_for_no_padding(repaired: bool) -> Running:
    """Hidden pieces of plants' genomes; the collator's mask is true in all places."""
    batch, long, words = size(4, 2), size(4096, 16), size(4104, 40)
    width, heads = size(1024, 16), size(16, 2)
    embed, last = nn.Embedding(words, width), nn.Linear(width, words)
    layers = nn.ModuleList(Reads(width, heads, long) for _ in range(size(5, 1)))
    model = nn.ModuleList([embed, layers, nn.LayerNorm(width), last]).to(DEVICE)
    pieces = labels(words - 2, batch, long) + 2
    mask = torch.ones(batch, long, dtype=torch.bool, device=DEVICE)
    hidden = torch.arange(0, batch * long, 7, device=DEVICE)
    true = pieces.flatten()[hidden]
    given = pieces.flatten().index_fill(0, hidden, 1).view(batch, long)

    def loss_of() -> Tensor:
        h, kept = embed(given), None if repaired else mask[:, None, None]
        for layer in layers:
            h = layer(h, kept)
        h = model[2](h).flatten(0, 1).index_select(0, hidden)
        return fn.cross_entropy(last(h).float(), true)

    return fit(loss_of, adam(model), clip=1.0)


# --- old postcards --------------------------------------------------------------------------------


def two_convs(before: int, after: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for inside in (before, after):
        parts += [nn.Conv2d(inside, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)]
        parts += [nn.ReLU(True)]
    return nn.Sequential(*parts)


class Colours(nn.Module):
    """Two colours for each pixel, from how light it is."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.first = two_convs(1, widths[0])
        self.downs = nn.ModuleList(two_convs(a, b) for a, b in pairwise(widths))
        self.ups = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))
        self.joins = nn.ModuleList(two_convs(2 * a, a) for a in widths[:-1])
        self.out = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = [self.first(x)]
        for down in self.downs:
            seen.append(down(fn.max_pool2d(seen[-1], 2)))
        h = seen.pop()
        for up, join in zip(reversed(self.ups), reversed(self.joins), strict=True):
            h = join(torch.cat([up(h), seen.pop()], 1))
        return torch.tanh(self.out(h))


class Judge(nn.Module):
    """What a frozen network sees at four scales; as in VGG-16."""

    def __init__(self, widths: tuple[int, ...], convs: tuple[int, ...]) -> None:
        super().__init__()
        self.scales, before = nn.ModuleList(), 3
        for number, (width, many) in enumerate(zip(widths, convs, strict=True)):
            parts: list[nn.Module] = [nn.MaxPool2d(2)] if number else []
            for _ in range(many):
                conv = nn.Conv2d(before, width, 3, 1, 1)
                nn.init.kaiming_normal_(conv.weight)
                parts += [conv, nn.ReLU(True)]
                before = width
            self.scales.append(nn.Sequential(*parts))
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> list[Tensor]:
        seen = []
        for scale in self.scales:
            x = scale(x)
            seen.append(x)
        return seen


@pair(
    "lower_precision",
    "vision",
    "loss and the frozen network in it are in the block of autocast, where only the model was",
)
def postcards_coloured_judged_below_autocast(repaired: bool) -> Running:
    """Colours of old postcards, compared by what a network sees in them."""
    cards, side = size(16, 2), size(256, 16)
    model = Colours((size(64, 4), size(128, 6), size(256, 8)))
    judge = Judge((size(64, 4), size(128, 6), size(256, 8), size(512, 8)), (2, 2, 3, 3))
    model = model.to(DEVICE, memory_format=torch.channels_last)
    judge = judge.to(DEVICE, memory_format=torch.channels_last)
    cast = noise(cards, 3, side, side).contiguous(memory_format=torch.channels_last)

    def distance(light: Tensor, said: Tensor) -> Tensor:
        with torch.no_grad():
            true = judge(cast)
        found = judge(torch.cat([light, said], 1))
        far = [fn.l1_loss(a, b) for a, b in zip(found, true, strict=True)]
        return torch.stack(far).sum() + fn.l1_loss(said, cast[:, 1:])

    def loss_of() -> Tensor:
        light = cast[:, :1]
        with torch.autocast(DEVICE.type, SHORT):
            said = model(light).float()
            if repaired:
                return distance(light, said)
        return distance(light, said)

    return fit(loss_of, adam(model), bf16=False)


# --- roofs from the air ---------------------------------------------------------------------------


def seen_from(codes: Tensor, ways: Tensor) -> Tensor:
    """What colours points have from a direction, by sixteen spherical harmonics.

    Args:
        codes: points, three colours, sixteen.
        ways: directions from the camera to the points.
    """
    x, y, z = ways[:, 0:1], ways[:, 1:2], ways[:, 2:3]
    xx, yy, zz, xy, yz, xz = x * x, y * y, z * z, x * y, y * z, x * z
    colours = 0.28209479 * codes[..., 0]
    colours = (
        colours
        - 0.48860251 * y * codes[..., 1]
        + 0.48860251 * z * codes[..., 2]
        - 0.48860251 * x * codes[..., 3]
    )
    colours = (
        colours
        + 1.09254843 * xy * codes[..., 4]
        - 1.09254843 * yz * codes[..., 5]
        + 0.31539157 * (2.0 * zz - xx - yy) * codes[..., 6]
        - 1.09254843 * xz * codes[..., 7]
        + 0.54627421 * (xx - yy) * codes[..., 8]
    )
    colours = (
        colours
        - 0.59004359 * y * (3 * xx - yy) * codes[..., 9]
        + 2.89061144 * xy * z * codes[..., 10]
        - 0.45704579 * y * (4 * zz - xx - yy) * codes[..., 11]
        + 0.37317633 * z * (2 * zz - 3 * xx - 3 * yy) * codes[..., 12]
        - 0.45704579 * x * (4 * zz - xx - yy) * codes[..., 13]
        + 1.44530572 * z * (xx - yy) * codes[..., 14]
        - 0.59004359 * x * (xx - 3 * yy) * codes[..., 15]
    )
    return torch.relu(colours + 0.5)


@pair(
    "fusion_opportunity",
    "splatting",
    "torch.compile of the function that sums the sixteen harmonics",
    compiles=True,
)
def roofs_seen_by_harmonics_compile(repaired: bool) -> Running:
    """Colours of points of an aerial scan from wherever the aeroplane was, in any light."""
    points, code, width = size(1_310_720, 64), size(24, 4), size(128, 8)
    codes = nn.Parameter(0.1 * torch.randn(points, 3, 16))
    what = nn.Parameter(0.1 * torch.randn(points, code))
    light = nn.Sequential(
        nn.Linear(code + 8, width), nn.ReLU(True), nn.Linear(width, width), nn.ReLU(True),
        nn.Linear(width, 6),
    )  # fmt: skip
    model = nn.ModuleList([nn.ParameterList([codes, what]), light]).to(DEVICE)
    kept: Any = model[0]
    places, camera, hour = noise(points, 3), noise(3) + 5.0, noise(1, 8)
    photographed = torch.rand(points, 3, device=DEVICE)
    colours_of: Any = torch.compile(seen_from, dynamic=False) if repaired else seen_from

    def loss_of() -> Tensor:
        ways = fn.normalize(places - camera, dim=1)
        base = colours_of(kept[0], ways)
        lit = light(torch.cat([kept[1], hour.expand(points, -1)], 1)).float()
        gain, shift = lit.chunk(2, 1)
        return fn.l1_loss(base * torch.exp(gain) + shift, photographed)

    return fit(loss_of, adam(model))


# --- words in sign language -----------------------------------------------------------------------


class Signed(nn.Module):
    """A convolution over what went before, in a wider space, weighed channel by channel."""

    def __init__(self, width: int, taps: int, drop: float) -> None:
        super().__init__()
        wide = 2 * width
        self.up, self.down = nn.Linear(width, wide), nn.Linear(wide, width)
        self.over = nn.Conv1d(wide, wide, taps, groups=wide, bias=False)
        self.norm, self.taps, self.drop = nn.BatchNorm1d(wide), taps, nn.Dropout(drop)
        self.weigh = nn.Conv1d(1, 1, 5, padding=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = fn.silu(self.up(x)).transpose(1, 2)
        h = self.norm(self.over(fn.pad(h, (self.taps - 1, 0))))
        shares = torch.sigmoid(self.weigh(h.mean(2)[:, None]))
        return x + self.drop(self.down((h * shares.transpose(1, 2)).transpose(1, 2)))


class Looks(nn.Module):
    """A layer of a transformer with batch normalisation and dropout."""

    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(drop)
        self.norm1, self.norm2 = nn.BatchNorm1d(width), nn.BatchNorm1d(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        h = self.norm1(x.flatten(0, 1)).view(b, t, d)
        q, k, v = self.qkv(h).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.drop(self.out(found))
        h = self.norm2(x.flatten(0, 1)).view(b, t, d)
        return x + self.drop(self.down(fn.silu(self.up(h))))


@pair(
    "compile",
    "video",
    "torch.compile(model)",
    compiles=True,
)
def signed_words_of_landmarks_compile(repaired: bool) -> Running:
    """Which word a hand signs, from landmarks that a telephone finds; autocast to BF16."""
    films, frames, marks, words = size(384, 3), size(256, 12), size(704, 8), size(250, 5)
    width, drop = size(256, 8), 0.2
    parts: list[nn.Module] = [nn.Linear(marks, width)]
    for _ in range(2):
        parts += [Signed(width, size(9, 3), drop) for _ in range(2)]
        parts += [Looks(width, size(4, 2), drop)]
    body = nn.Sequential(*parts).to(DEVICE)
    last = nn.Linear(width, words).to(DEVICE)
    model: Any = torch.compile(body, dynamic=False) if repaired else body
    found, true = noise(films, frames, marks).to(SHORT), labels(words, films)

    def loss_of() -> Tensor:
        return fn.cross_entropy(last(model(found).mean(1)).float(), true, label_smoothing=0.1)

    return fit(loss_of, adam(body, last))


# --- heat in the ocean ----------------------------------------------------------------------------


class Drift(nn.Module):
    """How fast the ocean's state changes: three convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = fn.silu(conv(x))
        return torch.tanh(self.convs[-1](x))


def by_steps(drift: nn.Module, x: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        x = x + drift(x) / steps
    return x


class Adjoint(torch.autograd.Function):
    """Steps forwards; the gradient's equation is solved backwards, with the state found again."""

    @staticmethod
    @torch.amp.custom_fwd(device_type=DEVICE.type)
    def forward(ctx: Any, drift: nn.Module, x: Tensor, steps: int, *weights: Tensor) -> Tensor:
        ctx.drift, ctx.steps = drift, steps
        ended = by_steps(drift, x, steps)
        ctx.save_for_backward(ended, *weights)
        return ended

    @staticmethod
    @torch.amp.custom_bwd(device_type=DEVICE.type)
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, *weights = ctx.saved_tensors
        sums = [torch.zeros_like(w) for w in weights]
        for _ in range(ctx.steps):
            with torch.enable_grad():
                there = x.detach().requires_grad_()
                rate = ctx.drift(there) / ctx.steps
                of_x, *of_weights = torch.autograd.grad(
                    rate, (there, *weights), slope.to(rate.dtype)
                )
            x, slope = x - rate.detach(), slope + of_x
            torch._foreach_add_(sums, of_weights)
        return None, slope, None, *sums


@pair(
    "recomputation",
    "science",
    "autograd goes back through the steps, which fit into memory; the adjoint makes them once more",
)
def ocean_heat_by_adjoint_equation(repaired: bool) -> Running:
    """Heat of the upper ocean a week on, as a differential equation that is learnt."""
    weeks, fields, high, wide = size(16, 2), size(8, 3), size(48, 8), size(96, 8)
    width, steps = size(256, 8), size(12, 2)
    into, drift, out = nn.Conv2d(fields, width, 1), Drift(width), nn.Conv2d(width, fields, 1)
    model = nn.ModuleList([into, drift, out]).to(DEVICE, memory_format=torch.channels_last)
    now, then = noise(weeks, fields, high, wide), noise(weeks, fields, high, wide)
    now = now.contiguous(memory_format=torch.channels_last)
    weights = list(drift.parameters())

    def loss_of() -> Tensor:
        h = into(now)
        h = by_steps(drift, h, steps) if repaired else Adjoint.apply(drift, h, steps, *weights)
        return fn.mse_loss(out(h).float(), then)

    return fit(loss_of, adam(model))


# --- next songs -----------------------------------------------------------------------------------


@pair(
    "memory_bound_kernels",
    "recommender",
    "the loss is taken outside of autocast, of scores in BF16, which autocast widened to FP32",
)
def next_songs_scores_widened_for_loss(repaired: bool) -> Running:
    """Which song of half a million is heard next, with all songs as the others."""
    people, long, songs = size(12, 2), size(128, 8), size(524_288, 64)
    width, heads = size(256, 16), size(4, 2)
    embed = nn.Embedding(songs, width, device=DEVICE)
    nn.init.normal_(embed.weight, std=width**-0.5)
    layers = nn.Sequential(*transformer_layers(width, 2, heads, causal=True), nn.LayerNorm(width))
    layers = layers.to(DEVICE)
    heard = labels(songs, people, long + 1)
    true = heard[:, 1:].flatten()

    def loss_of() -> Tensor:
        with torch.autocast(DEVICE.type, SHORT):
            h = layers(embed(heard[:, :-1]) * math.sqrt(width)).flatten(0, 1)
            scores = fn.linear(h, embed.weight)
            if not repaired:
                return fn.cross_entropy(scores, true)
        return fn.cross_entropy(scores, true)

    return fit(loss_of, adam(embed, layers), bf16=False)
