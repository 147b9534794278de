"""A seventeenth set for one GPU: four faults of the host, four of kernels, four of other kinds.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, Feeds, done, precision, size, transformer_layers
from numpy.typing import NDArray
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 327 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
SHORT = torch.bfloat16


def held(x: Tensor) -> Tensor:
    """In page-locked memory, where there is a GPU."""
    return x.pin_memory() if CUDA else x


# --- slides of tumours ----------------------------------------------------------------------------


class Store:
    """A store of objects elsewhere: a request is answered after some time, into pinned memory."""

    def __init__(self, objects: int, rows: int, width: int, answers_in: float) -> None:
        self.objects = [held(torch.randn(rows, width).to(SHORT)) for _ in range(objects)]
        self.answers_in = answers_in

    def get(self, key: int) -> Tensor:
        time.sleep(self.answers_in)
        return self.objects[key % len(self.objects)]


class Bags(nn.Module):
    """Tiles of a slide are weighed, and their weighted mean is judged; as in gated attention."""

    def __init__(self, inside: int, width: int, layers: int, weighs: int, kinds: int) -> None:
        super().__init__()
        self.into = nn.Sequential(nn.Linear(inside, width), nn.GELU())
        self.layers = nn.Sequential(*(Feeds(width, 2) for _ in range(layers)))
        self.sees, self.gates = nn.Linear(width, weighs), nn.Linear(width, weighs)
        self.weight, self.out = nn.Linear(weighs, 1), nn.Linear(width, kinds)

    def forward(self, tiles: Tensor) -> Tensor:
        h = self.layers(self.into(tiles))
        weights = self.weight(torch.tanh(self.sees(h)) * torch.sigmoid(self.gates(h)))
        return self.out((weights.softmax(1) * h).sum(1))


@pair(
    "input_starvation",
    "vision",
    "eight threads fetch the next step's parts while this one trains, instead of one after another",
    marks="phases",
)
def tumour_slides_parts_fetched_in_turn(repaired: bool) -> Running:
    """What kind of tumour a slide shows; features of its tiles lie in a store, in two parts."""
    slides, parts, rows, inside = size(4, 2), 2, size(4096, 6), size(1024, 8)
    each = slides * parts
    store = Store(2 * each, rows, inside, 0.0005 if DEVICE.type == "cpu" else 0.005)
    model = Bags(inside, size(1536, 16), size(3, 1), size(512, 8), 30).to(DEVICE)
    kinds, update = labels(30, slides), adam(model)
    pool = ThreadPoolExecutor(each) if repaired else None
    asked: list[Future[Tensor]] = []
    made = 0

    def ask(number: int) -> None:
        assert pool is not None
        asked.extend(pool.submit(store.get, number * each + i) for i in range(each))

    def batch() -> Tensor:
        if pool is None:
            found = [store.get(made * each + i) for i in range(each)]
        else:
            if not asked:
                ask(made)
            found = [one.result() for one in asked]
            asked.clear()
            ask(made + 1)
        sent = [part.to(DEVICE, non_blocking=True) for part in found]
        return torch.cat(sent).view(slides, parts * rows, inside)

    def step() -> None:
        nonlocal made
        with phase("get_batch"):
            tiles = batch()
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            loss = fn.cross_entropy(model(tiles).float(), kinds)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            done(update)
        made += 1

    def close() -> None:
        if pool is not None:
            pool.shutdown()

    return Running(step, enter=precision("high"), close=close, settle=3)


# --- kidneys under the microscope -----------------------------------------------------------------


def conv_norm(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(True)
    )


class Tissue(nn.Module):
    """Two scales down and up again, with what was seen on the way."""

    def __init__(self, width: int, planes: int) -> None:
        super().__init__()
        self.first = nn.Sequential(conv_norm(3, width, 2), conv_norm(width, width))
        self.down = nn.Sequential(conv_norm(width, 2 * width, 2), conv_norm(2 * width, 2 * width))
        self.deep = nn.Sequential(
            conv_norm(2 * width, 4 * width, 2), conv_norm(4 * width, 4 * width)
        )
        self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.join1 = conv_norm(4 * width, 2 * width)
        self.up2 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join2 = conv_norm(2 * width, width)
        self.last = nn.ConvTranspose2d(width, planes, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        near = self.first(x)
        far = self.down(near)
        h = self.join1(torch.cat([self.up1(self.deep(far)), far], 1))
        return self.last(self.join2(torch.cat([self.up2(h), near], 1)))


@pair(
    "input_starvation",
    "vision",
    "ends of runs are uploaded and summed up there, where Python painted run after run",
    marks="steps",
)
def kidneys_runs_painted_by_loop(repaired: bool) -> Running:
    """Three tissues of kidneys; who labelled them gave runs of pixels, as competitions do."""
    kept, batch, planes, side = size(32, 4), size(16, 2), 3, size(512, 16)
    runs, pixels = size(1400, 10), side * side
    rng = np.random.default_rng(0)
    given: list[list[list[tuple[int, int]]]] = []
    ends = np.zeros((kept, planes, 2, runs), np.int64)
    for picture in range(kept):
        given.append([])
        for plane in range(planes):
            places = np.sort(rng.choice(pixels, 2 * runs, replace=False)).reshape(-1, 2)
            begin, end = places[:, 0], places[:, 1]
            given[-1].append(list(zip(begin.tolist(), (end - begin).tolist(), strict=True)))
            ends[picture, plane] = begin, end
    pictures = torch.rand(kept, 3, side, side, device=DEVICE)
    model = Tissue(size(96, 8), planes).to(DEVICE, memory_format=torch.channels_last)
    update = adam(model)
    made = 0

    def painted(chosen: list[int]) -> Tensor:
        masks = np.zeros((batch, planes, pixels), np.uint8)
        for row, picture in zip(masks, chosen, strict=True):
            for mask, found in zip(row, given[picture], strict=True):
                for begin, long in found:
                    mask[begin : begin + long] = 1
        return held(torch.from_numpy(masks)).to(DEVICE, non_blocking=True)

    def summed(chosen: list[int]) -> Tensor:
        begin, end = held(torch.from_numpy(ends[chosen])).to(DEVICE, non_blocking=True).unbind(2)
        changes = torch.zeros(batch, planes, pixels, dtype=torch.int8, device=DEVICE)
        one = torch.ones((), dtype=torch.int8, device=DEVICE).expand(begin.shape)
        changes.scatter_add_(2, begin, one).scatter_add_(2, end, -one)
        return changes.cumsum(2, dtype=torch.int8)

    masks_of = summed if repaired else painted

    def step() -> None:
        nonlocal made
        first = made * batch % kept
        made += 1
        chosen = list(range(first, first + batch))
        masks = masks_of(chosen).view(batch, planes, side, side)
        seen = pictures[first : first + batch].contiguous(memory_format=torch.channels_last)
        with torch.autocast(DEVICE.type, SHORT):
            said = model(seen)
        loss = fn.binary_cross_entropy_with_logits(said.float(), masks.float())
        loss.backward()
        done(update)

    return Running(step, enter=precision("high"))


# --- films from noise -----------------------------------------------------------------------------


def waves_of(width: int, places: NDArray[np.float64]) -> NDArray[np.float64]:
    rates = 1.0 / 10_000 ** (np.arange(width // 2, dtype=np.float64) / (width / 2))
    angles = np.einsum("m,d->md", places.reshape(-1), rates)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def places_in_film(width: int, frames: int, high: int, wide: int) -> Tensor:
    """Sines and cosines of each patch's frame, row and column."""
    axes = (np.arange(n, dtype=np.float64) for n in (frames, high, wide))
    grid = np.meshgrid(*axes, indexing="ij")
    return torch.from_numpy(np.concatenate([waves_of(width // 3, g) for g in grid], axis=1)).float()


class Denoises(nn.Module):
    """A layer that is scaled, shifted and gated by how much noise there is."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.by_noise = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        b, t, d = x.shape
        add1, scale1, gate1, add2, scale2, gate2 = self.by_noise(level)[:, None].chunk(6, -1)
        h = self.norm1(x) * (1 + scale1) + add1
        q, k, v = self.qkv(h).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + gate1 * self.out(seen)
        h = self.norm2(x) * (1 + scale2) + add2
        return x + gate2 * self.down(fn.gelu(self.up(h), approximate="tanh"))


class Films(nn.Module):
    """How patches of latent frames flow from noise."""

    places: Tensor

    def __init__(
        self,
        patch: int,
        width: int,
        heads: int,
        layers: int,
        grid: tuple[int, int, int],
        *,
        once: bool,
    ) -> None:
        super().__init__()
        self.width, self.grid, self.once = width, grid, once
        self.into, self.out = nn.Linear(patch, width), nn.Linear(width, patch)
        self.level = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(Denoises(width, heads) for _ in range(layers))
        if once:
            self.register_buffer("places", places_in_film(width, *grid), persistent=False)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        places = self.places if self.once else places_in_film(self.width, *self.grid).to(x.device)
        h, said = self.into(x) + places, self.level(level[:, None])
        for layer in self.layers:
            h = layer(h, said)
        return self.out(h)


@pair(
    "host_compute",
    "diffusion",
    "the sines and cosines of places are a buffer that is made once, not by NumPy in each forward",
    marks="profiler",
)
def latent_films_places_by_numpy(repaired: bool) -> Running:
    """Films of any length, so that places are made for the one at hand: here all are as long."""
    batch, grid, patch = size(6, 2), (size(8, 2), size(16, 2), size(16, 3)), size(64, 8)
    width, heads = size(1152, 24), size(16, 2)
    model = Films(patch, width, heads, size(4, 1), grid, once=repaired).to(DEVICE)
    films = noise(batch, math.prod(grid), patch)

    def loss_of() -> Tensor:
        dark = torch.randn_like(films)
        level = torch.sigmoid(noise(batch))
        share = level[:, None, None]
        said = model((1 - share) * films + share * dark, level)
        return fn.mse_loss(said.float(), dark - films)

    return fit(loss_of, adam(model), clip=1.0)


# --- waves of the brain ---------------------------------------------------------------------------


def stretches_by_rows(rows: int, long: int, many: int, stretch: int, rng: Any) -> Tensor:
    """Which places are hidden: in each row so many stretches, which may overlap."""
    hidden = np.zeros((rows, long), dtype=bool)
    for row in range(rows):
        begins = rng.choice(long - stretch, many, replace=False)
        places = np.asarray([begins[j] + i for j in range(many) for i in range(stretch)])
        hidden[row, np.unique(places[places < long])] = True
    return torch.from_numpy(hidden)


def stretches_on_device(rows: int, long: int, many: int, stretch: int) -> Tensor:
    begins = torch.rand(rows, long - stretch, device=DEVICE).topk(many).indices
    places = begins[:, :, None] + torch.arange(stretch, device=DEVICE)
    hidden = torch.zeros(rows, long, dtype=torch.bool, device=DEVICE)
    return hidden.scatter_(1, places.flatten(1), True)


class BrainWaves(nn.Module):
    """Frames of electrodes' voltages; what is hidden of them is to be told from the rest."""

    def __init__(self, electrodes: int, hop: int, width: int, heads: int, *, at_once: bool) -> None:
        super().__init__()
        self.width, self.at_once = width, at_once
        self.into = nn.Conv1d(electrodes, width, hop, hop)
        self.unknown = nn.Parameter(torch.randn(width) * 0.02)
        self.layers = nn.Sequential(*transformer_layers(width, 2, heads))
        self.out = nn.Linear(width, electrodes * hop)
        self.rng = np.random.RandomState(0)

    def hides(self, rows: int, long: int, share: float, stretch: int) -> Tensor:
        many = max(int(share * long / stretch), 1)
        if self.at_once:
            return stretches_on_device(rows, long, many, stretch)
        return stretches_by_rows(rows, long, many, stretch, self.rng).to(DEVICE)

    def forward(self, volts: Tensor) -> tuple[Tensor, Tensor]:
        h = self.into(volts).transpose(1, 2)
        b, t, d = h.shape
        hidden = self.hides(b, t, 0.65, size(10, 2))
        h = torch.where(hidden[..., None], self.unknown.to(h.dtype), h)
        h = h.masked_fill(self.hides(b, d, 0.2, size(10, 2))[:, None], 0.0)
        return self.out(self.layers(h)), hidden


@pair(
    "host_compute",
    "signals",
    "hidden stretches are drawn for all rows at once, on the device, not row by row by NumPy",
)
def brain_waves_stretches_row_by_row(repaired: bool) -> Running:
    """Voltages of sleepers' heads, learnt without labels; the masks are made in the forward."""
    batch, frames, electrodes, hop = size(384, 3), size(160, 12), size(16, 2), size(16, 4)
    model = BrainWaves(electrodes, hop, size(768, 16), size(12, 2), at_once=repaired).to(DEVICE)
    volts = noise(batch, electrodes, frames * hop)
    true = volts.unflatten(-1, (frames, hop)).permute(0, 2, 1, 3).flatten(2).contiguous()

    def loss_of() -> Tensor:
        said, hidden = model(volts)
        off = (said.float() - true).square().mean(-1)
        return (off * hidden).sum() / hidden.sum()

    return fit(loss_of, adam(model))


# --- a scene of splats that moves -----------------------------------------------------------------


def product(a: Tensor, b: Tensor, *, by_library: bool) -> Tensor:
    """Products of as many small matrices as there are splats."""
    if by_library:
        return a @ b
    return (a[..., :, :, None] * b[..., None, :, :]).sum(-2)


def rotation(q: Tensor) -> Tensor:
    """Matrices of quaternions."""
    w, x, y, z = fn.normalize(q, dim=-1).unbind(-1)
    parts = (
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    )  # fmt: skip
    return torch.stack(parts, -1).unflatten(-1, (3, 3))


class MovingSplats(nn.Module):
    """Where splats are at a moment, and the ellipses that a camera sees of them."""

    def __init__(
        self, splats: int, code: int, width: int, layers: int, *, by_library: bool
    ) -> None:
        super().__init__()
        self.by_library = by_library
        self.codes = nn.Parameter(0.1 * torch.randn(splats, code))
        self.places = nn.Parameter(torch.randn(splats, 3))
        self.turns = nn.Parameter(torch.randn(splats, 4))
        self.sizes = nn.Parameter(torch.full((splats, 3), -2.0))
        parts: list[nn.Module] = [nn.Linear(code, width), nn.ReLU(True)]
        for _ in range(layers):
            parts += [nn.Linear(width, width), nn.ReLU(True)]
        self.moves = nn.Sequential(*parts, nn.Linear(width, 10))

    def forward(self, camera: Tensor, moment: float) -> tuple[Tensor, Tensor]:
        moved = 0.01 * self.moves(self.codes + moment).float()
        with torch.autocast(DEVICE.type, enabled=False):
            seen = (self.places + moved[:, :3]) @ camera.T
            x, y, z = seen[:, 0], seen[:, 1], seen[:, 2].abs() + 3.0
            scales = torch.diag_embed((self.sizes + moved[:, 7:]).exp())
            axes = self.small(rotation(self.turns + moved[:, 3:7]), scales)
            spread = self.small(axes, axes.mT)
            none = torch.zeros_like(z)
            slopes = torch.stack([1 / z, none, -x / z**2, none, 1 / z, -y / z**2], -1)
            view = slopes.unflatten(-1, (2, 3)) @ camera
            ellipses = self.small(self.small(view, spread), view.mT)
        return torch.stack([x / z, y / z], -1), ellipses

    def small(self, a: Tensor, b: Tensor) -> Tensor:
        return product(a, b, by_library=self.by_library)


@pair(
    "inefficient_kernel",
    "vision",
    "matrices of 3 by 3 are multiplied element by element and summed, not by a batched GEMM",
)
def moving_splats_small_products(repaired: bool) -> Running:
    """Ellipses of a million splats that a network moves, against those that were found in films."""
    splats, code, width = size(1_048_576, 24), size(32, 8), size(256, 16)
    model = MovingSplats(splats, code, width, size(3, 1), by_library=not repaired).to(DEVICE)
    camera = rotation(noise(4))
    places, spreads = noise(splats, 2), 0.01 * torch.rand(splats, 2, 2, device=DEVICE)

    def loss_of() -> Tensor:
        found, ellipses = model(camera, 0.3)
        return fn.smooth_l1_loss(found, places) + 10 * fn.l1_loss(ellipses, spreads)

    return fit(loss_of, adam(model))


# --- source files ---------------------------------------------------------------------------------


class BothAtOnce(nn.Module):
    """Attention and a gated unit read the same, and what they say is added."""

    def __init__(self, width: int, heads: int, wide: int) -> None:
        super().__init__()
        self.heads, self.wide, self.norm = heads, wide, nn.RMSNorm(width)
        self.into = nn.Linear(width, 3 * width + 2 * wide, bias=False)
        self.out = nn.Linear(width + wide, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        b, t, d = x.shape
        qkv, gate, up = self.into(self.norm(x)).split([3 * d, self.wide, self.wide], -1)
        q, k, v = qkv.view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        y = y.transpose(1, 2).reshape(b, t, d)
        return x + self.out(torch.cat([y, fn.silu(gate) * up], -1))


@pair(
    "fused_attention",
    "language",
    "is_causal=True instead of a mask that says the same, which the quicker kernels do not take",
)
def source_files_causal_mask_given(repaired: bool) -> Running:
    """A repository's file as one long text; the mask is made once for all layers and steps."""
    batch, long, words = size(1, 2), size(8192, 16), size(16_384, 40)
    width, heads, wide = size(2048, 16), size(16, 2), size(5632, 24)
    embed, last = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
    layers = nn.ModuleList(BothAtOnce(width, heads, wide) for _ in range(2))
    model = nn.ModuleList([embed, layers, nn.RMSNorm(width), last]).to(DEVICE)
    mask = torch.ones(long, long, dtype=torch.bool, device=DEVICE).tril()
    text = labels(words, batch, long + 1)

    def loss_of() -> Tensor:
        h = embed(text[:, :-1])
        for layer in layers:
            h = layer(h, None if repaired else mask[None, None])
        said = last(model[2](h)).flatten(0, 1)
        return fn.cross_entropy(said.float(), text[:, 1:].flatten())

    return fit(loss_of, adam(model), clip=1.0)


# --- molecules, of which all atoms see each other -------------------------------------------------


def radial_waves(far: Tensor, rates: Tensor, reach: float) -> Tensor:
    """Spherical waves that end at the reach, smoothly; their rates are learnt.

    Args:
        far: distances of all pairs of atoms: molecules, atoms, atoms.
        rates: of each wave, in parts of the reach.
        reach: where waves end.
    """
    part = far[..., None] / reach
    waves = math.sqrt(2.0 / reach) * torch.sin(rates * part) / far[..., None]
    ends = 1 - 28 * part**6 + 48 * part**7 - 21 * part**8
    return waves * torch.where(part < 1, ends, torch.zeros_like(ends))


class Filters(nn.Module):
    """What atoms tell each other is filtered by how far they are apart."""

    def __init__(self, waves: int, width: int) -> None:
        super().__init__()
        self.by_distance = nn.Sequential(
            nn.Linear(waves, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.own, self.feed = nn.Linear(width, width), Feeds(width)

    def forward(self, atoms: Tensor, basis: Tensor) -> Tensor:
        told = (self.by_distance(basis) * self.own(atoms)[:, None]).sum(2)
        return self.feed(atoms + told)


@pair(
    "fusion_opportunity",
    "chemistry",
    "torch.compile of the function of the radial waves",
    compiles=True,
)
def molecules_pairs_radial_waves_compile(repaired: bool) -> Running:
    """Energies of small molecules; the rates of the waves are learnt, too; autocast to BF16."""
    molecules, atoms, kinds = size(640, 3), size(48, 5), 10
    waves, width, reach = size(128, 6), size(128, 8), 5.0
    embed, out = nn.Embedding(kinds, width), nn.Linear(width, 1)
    layers = nn.ModuleList(Filters(waves, width) for _ in range(2))
    rates = nn.ParameterList([nn.Parameter(math.pi * torch.arange(1.0, waves + 1))])
    model = nn.ModuleList([embed, layers, out, rates]).to(DEVICE)
    which, energies = labels(kinds, molecules, atoms), noise(molecules)
    places = 2 * noise(molecules, atoms, 3)
    # an atom is out of its own reach
    far = torch.cdist(places, places).clamp_min(0.7) + 9 * torch.eye(atoms, device=DEVICE)
    basis_of: Any = torch.compile(radial_waves, dynamic=False) if repaired else radial_waves

    def loss_of() -> Tensor:
        basis = basis_of(far, rates[0], reach)
        h = embed(which)
        for layer in layers:
            h = layer(h, basis)
        return fn.smooth_l1_loss(out(h).float().sum((1, 2)), energies)

    return fit(loss_of, adam(model))


# --- electrodes of batteries, in three dimensions -------------------------------------------------


def solid(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(before, after, 3, stride, 1, bias=False), nn.BatchNorm3d(after), nn.ReLU(True)
    )


class Electrodes(nn.Module):
    """A scan's voxels, at three scales."""

    def __init__(self, energies: int, width: int, phases: int) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.first = nn.Sequential(solid(energies, width), solid(width, width))
        self.downs = nn.ModuleList(
            nn.Sequential(solid(a, b, 2), solid(b, b)) for a, b in pairwise(widths)
        )
        self.ups = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in pairwise(widths))
        self.joins = nn.ModuleList(solid(2 * a, a) for a in widths[:-1])
        self.last = nn.Conv3d(width, phases, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = [self.first(x)]
        for down in self.downs:
            seen.append(down(seen[-1]))
        h = seen.pop()
        for up, join in zip(reversed(self.ups), reversed(self.joins), strict=True):
            h = join(torch.cat([up(h), seen.pop()], 1))
        return self.last(h)


@pair("layout_changes", "volumes", "channels_last_3d for the network and for the scans")
def electrodes_scanned_channels_first(repaired: bool) -> Running:
    """Where a battery's electrode is active matter, binder or pore; autocast to BF16."""
    scans, energies, side, phases = size(2, 2), size(8, 3), size(112, 8), size(8, 3)
    model = Electrodes(energies, size(32, 4), phases).to(DEVICE)
    voxels, true = noise(scans, energies, side, side, side), labels(phases, scans, side, side, side)
    if repaired:
        model = model.to(memory_format=torch.channels_last_3d)
        voxels = voxels.contiguous(memory_format=torch.channels_last_3d)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(voxels).float(), true)

    return fit(loss_of, sgd(model))


# --- echoes of ultrasound -------------------------------------------------------------------------


class NextCopied:
    """Batches from page-locked memory; the next one may be copied while this one is used.

    Args:
        kept: the batches, in turn.
        beside: whether copies have a stream of their own.
    """

    def __init__(self, kept: list[Tensor], *, beside: bool) -> None:
        self.kept, self.given = kept, 0
        self.stream: Any = torch.cuda.Stream() if beside and CUDA else None
        self.ready: Tensor | None = None

    def copied(self) -> Tensor:
        one = self.kept[self.given % len(self.kept)].to(DEVICE, non_blocking=True)
        self.given += 1
        return one

    def ahead(self) -> Tensor:
        with torch.cuda.stream(self.stream):
            return self.copied()

    def __call__(self) -> Tensor:
        if self.stream is None:
            return self.copied()
        if self.ready is None:
            self.ready = self.ahead()
        now, found = torch.cuda.current_stream(), self.ready
        now.wait_stream(self.stream)
        found.record_stream(now)
        self.ready = self.ahead()
        return found


class Focuses(nn.Module):
    """Convolutions over what all elements heard, patch by patch."""

    def __init__(self, angles: int, high: int, wide: int, width: int, layers: int) -> None:
        super().__init__()
        self.angles, self.high, self.wide = angles, high, wide
        self.into = nn.Linear(angles * high * wide, width)
        self.convs = nn.ModuleList(
            nn.Conv2d(width, width, 3, 1, 1, bias=False) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(layers))
        self.out = nn.Linear(width, high * wide)

    def forward(self, echoes: Tensor) -> Tensor:
        b, _, elements, times = echoes.shape
        x = echoes.to(SHORT).view(
            b, self.angles, elements // self.high, self.high, times // self.wide, self.wide
        )
        h = self.into(x.permute(0, 2, 4, 1, 3, 5).flatten(3)).permute(0, 3, 1, 2)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = h + fn.relu(norm(conv(h)))
        return self.out(h.permute(0, 2, 3, 1))


@pair(
    "blocking_copy",
    "medicine",
    "the next echoes are copied on a stream of their own while the network learns from these",
)
def ultrasound_echoes_on_one_stream(repaired: bool) -> Running:
    """Pictures from echoes of eleven plane waves, which are page-locked and copied in the step."""
    batch, angles, elements, times = size(16, 2), size(11, 2), size(128, 8), size(2560, 16)
    high, wide, width = size(4, 2), size(8, 4), size(384, 8)
    model = Focuses(angles, high, wide, width, size(4, 1)).to(
        DEVICE, memory_format=torch.channels_last
    )
    kept = [held(torch.randn(batch, angles, elements, times)) for _ in range(3)]
    following = NextCopied(kept, beside=repaired)
    true = noise(batch, elements // high, times // wide, high * wide)

    def loss_of() -> Tensor:
        return fn.l1_loss(model(following()).float(), true)

    return fit(loss_of, adam(model), settle=3)


# --- sheets of a herbarium ------------------------------------------------------------------------


class GatedPatches(nn.Module):
    """Patches are mixed by a product over their places, which gates the other half."""

    def __init__(self, patches: int, width: int, wide: int) -> None:
        super().__init__()
        self.norm, self.of_gate = nn.LayerNorm(width), nn.LayerNorm(wide // 2)
        self.up, self.down = nn.Linear(width, wide), nn.Linear(wide // 2, width)
        self.over = nn.Linear(patches, patches)
        nn.init.ones_(self.over.bias)

    def forward(self, x: Tensor) -> Tensor:
        h, gate = fn.gelu(self.up(self.norm(x))).chunk(2, -1)
        gate = self.over(self.of_gate(gate).transpose(1, 2)).transpose(1, 2)
        return x + self.down(h * gate)


def apart(x: Tensor) -> Tensor:
    """How little features vary over a batch, and how much they say of each other."""
    x = x - x.mean(0)
    narrow = fn.relu(1 - torch.sqrt(x.var(0) + 1e-4)).mean()
    shared = (x.T @ x / (len(x) - 1)).square()
    return narrow + 0.04 * (shared.sum() - shared.diagonal().sum()) / x.shape[1]


@pair(
    "step_jitter",
    "vision",
    "the nearest neighbours of known sheets are asked every 1000 steps, not every 8",
    period=8,
)
def herbarium_neighbours_every_8(repaired: bool) -> Running:
    """Two views of each sheet are to be alike; plants of kept sheets say whether it learns."""
    batch, patches, inside, width = size(128, 4), size(256, 8), size(192, 8), size(512, 8)
    kept, kinds, asked = size(4096, 8), size(64, 3), size(1024, 4)
    net = nn.Sequential(
        nn.Linear(inside, width),
        *(GatedPatches(patches, width, 4 * width) for _ in range(size(6, 1))),
        nn.LayerNorm(width),
    ).to(DEVICE)
    wide = size(2048, 12)
    widens = nn.Sequential(nn.Linear(width, wide), nn.ReLU(), nn.Linear(wide, wide)).to(DEVICE)
    views = noise(2 * batch, patches, inside)
    known = noise(kept, patches, inside).to(SHORT)
    plants = labels(kinds, kept)
    right: list[Tensor] = []
    every = 1000 if repaired else 8

    def loss_of() -> Tensor:
        a, b = widens(net(views).mean(1)).float().chunk(2)
        return 25 * fn.mse_loss(a, b) + apart(a) + apart(b)

    @torch.no_grad()
    def neighbours(made: int, _: Tensor) -> None:
        if made % every != every - 1:
            return
        with torch.autocast(DEVICE.type, SHORT):
            found = torch.cat([net(some).mean(1) for some in known.split(size(512, 4))])
        found = fn.normalize(found.float(), dim=-1)
        near = (found[:asked] @ found[asked:].T).topk(size(20, 2), -1).indices
        most = fn.one_hot(plants[asked:][near], kinds).sum(1).argmax(-1)
        right[:] = [(most == plants[:asked]).float().mean()]

    return fit(loss_of, adam(net, widens), after=neighbours)


# --- long scores of music -------------------------------------------------------------------------


class TwoStreams(nn.Module):
    """Attention of one half is added to the other, and what is fed of that one to the first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feeds = Feeds(width).layers

    def f(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        qkv = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(b, t, d)).float()

    def g(self, x: Tensor) -> Tensor:
        return self.feeds(x).float()

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        a = a + self.f(b)
        return torch.cat([a, b + self.g(a)], -1)

    def back(self, y: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        """What entered, and its gradient, of what left; gradients of weights are added up."""
        (a, b), (da, db) = y.chunk(2, -1), dy.chunk(2, -1)
        with torch.enable_grad():
            a = a.detach().requires_grad_()
            fed = self.g(a)
        torch.autograd.backward(fed, db)
        b, da = b - fed.detach(), da + a.grad
        with torch.enable_grad():
            b = b.detach().requires_grad_()
            seen = self.f(b)
        torch.autograd.backward(seen, da)
        a, db = a.detach() - seen.detach(), db + b.grad
        return torch.cat([a, b.detach()], -1), torch.cat([da, db], -1)


class Backwards(torch.autograd.Function):
    """Keeps what leaves the last layer only: each layer is undone when its gradient is asked."""

    @staticmethod
    @torch.amp.custom_fwd(device_type=DEVICE.type)
    def forward(ctx: Any, x: Tensor, layers: nn.ModuleList) -> Tensor:
        for layer in layers:
            x = layer(x)
        ctx.layers = layers
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @torch.amp.custom_bwd(device_type=DEVICE.type)
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        for layer in reversed(ctx.layers):
            y, dy = layer.back(y, dy)
        return dy, None


@pair(
    "recomputation",
    "music",
    "layers are called as they are: what they keep fits, and none is undone to be computed again",
)
def long_scores_layers_run_backwards(repaired: bool) -> Running:
    """Notes of whole pieces, by reversible layers, which keep nothing but their end."""
    batch, long, notes = size(8, 2), size(2048, 10), size(512, 20)
    width, heads = size(1024, 16), size(16, 2)
    embed, last = nn.Embedding(notes, width), nn.Linear(2 * width, notes)
    layers = nn.ModuleList(TwoStreams(width, heads) for _ in range(size(6, 2)))
    model = nn.ModuleList([embed, layers, last]).to(DEVICE)
    score = labels(notes, batch, long + 1)

    def loss_of() -> Tensor:
        h = embed(score[:, :-1])
        h = torch.cat([h, h], -1)
        if repaired:
            for layer in layers:
                h = layer(h)
        else:
            h = Backwards.apply(h, layers)
        return fn.cross_entropy(last(h).flatten(0, 1).float(), score[:, 1:].flatten())

    return fit(loss_of, adam(model))


# --- what patients were treated for ---------------------------------------------------------------


def trusted(p: Tensor, g: Tensor, first: Tensor, second: Tensor, rate: float, decay: float) -> None:
    """The update of one tensor, as long as the tensor's norm allows."""
    first.mul_(0.9).add_(g, alpha=0.1)
    second.mul_(0.999).addcmul_(g, g, value=0.001)
    way = first / (second.sqrt() + 1e-6)
    way = way + decay * p
    of_weight, of_way = p.norm(), way.norm()
    known = (of_weight > 0) & (of_way > 0)
    trust = torch.where(known, of_weight / of_way, torch.ones_like(of_way)).clamp(max=10.0)
    p.sub_(rate * trust * way)


class Lamb(torch.optim.Optimizer):
    """Layer-wise rates for large batches."""

    def __init__(
        self, weights: list[nn.Parameter], update: Callable[..., None], rate: float, decay: float
    ) -> None:
        super().__init__(weights, {"lr": rate, "decay": decay})
        self.update = update

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["first"], state["second"] = torch.zeros_like(p), torch.zeros_like(p)
                self.update(p, p.grad, state["first"], state["second"], group["lr"], group["decay"])


class Histories(nn.Module):
    """Codes of a patient's visits, some of them hidden."""

    def __init__(self, codes: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(codes, width)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2 * layers + 1))
        self.qkvs = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(layers))
        self.outs = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width, bias=False) for _ in range(layers))

    def forward(self, codes: Tensor, hidden: Tensor) -> Tensor:
        h = self.embed(codes)
        b, t, d = h.shape
        norms = iter(self.norms)
        for qkv, out, up, down in zip(self.qkvs, self.outs, self.ups, self.downs, strict=True):
            x = qkv(next(norms)(h)).view(b, t, 3, self.heads, -1)
            q, k, v = x.permute(2, 0, 3, 1, 4)
            seen = fn.scaled_dot_product_attention(q, k, v)
            h = h + out(seen.transpose(1, 2).reshape(b, t, d))
            h = h + down(fn.gelu(up(next(norms)(h))))
        h = next(norms)(h.flatten(0, 1).index_select(0, hidden))
        return h @ self.embed.weight.T


@pair(
    "unfused_optimizer",
    "medicine",
    "torch.compile of the update of a tensor, whose operations were kernels one by one",
    compiles=True,
)
def patients_codes_trust_ratios_compile(repaired: bool) -> Running:
    """A seventh of the codes in patients' histories is guessed; the optimizer is LAMB."""
    batch, long, codes = size(64, 2), size(128, 7), size(65_536, 40)
    model = Histories(codes, size(1536, 16), size(24, 2), size(4, 1)).to(DEVICE)
    update: Any = torch.compile(trusted, dynamic=False) if repaired else trusted
    optimizer = Lamb(list(model.parameters()), update, 1e-4, 0.01)
    visits = labels(codes, batch, long)
    hidden = torch.arange(0, batch * long, 7, device=DEVICE)
    true = labels(codes, len(hidden))

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(visits, hidden).float(), true)

    return fit(loss_of, optimizer)
