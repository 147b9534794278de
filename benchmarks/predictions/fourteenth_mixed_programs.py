"""A fourteenth set for one GPU: nine programs of large kernels, none of which is tidy otherwise.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, precision, size
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 242 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
SHORT = torch.bfloat16


# --- roads seen from above --------------------------------------------------------------------


class Frozen(nn.Module):
    """A residual layer of an encoder that was trained elsewhere."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, 1, 1)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(x + 0.2 * self.conv2(fn.relu(self.conv1(x))))


class Atrous(nn.Module):
    """A head that looks near and far at once, by holes in its filters; as in DeepLab."""

    def __init__(self, width: int, narrow: int, classes: int) -> None:
        super().__init__()
        self.looks = nn.ModuleList(
            nn.Conv2d(width, narrow, 3, 1, holes, holes, bias=False) for holes in (2, 4, 6)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(narrow) for _ in range(3))
        self.mix = nn.Conv2d(3 * narrow, narrow, 3, 1, 1, bias=False)
        self.norm, self.out = nn.BatchNorm2d(narrow), nn.Conv2d(narrow, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = [fn.relu(n(look(x))) for n, look in zip(self.norms, self.looks, strict=True)]
        return self.out(fn.relu(self.norm(self.mix(torch.cat(seen, 1)))))


def reproducible(seed: int, *, exact: bool) -> Callable[[], None]:
    """Seeds; ``exact`` once had the results of a paper agree with those of older GPUs."""
    torch.manual_seed(seed)
    return precision("highest" if exact else "high")


@pair(
    "low_precision_unused",
    "vision",
    "the seeding function no longer turns TF32 off: the head's convolutions use tensor cores",
)
def roads_seeded_for_older_gpus(repaired: bool) -> Running:
    """An encoder that stays as it is, in BF16; only its head is trained, in single precision."""
    enter = reproducible(3, exact=not repaired)
    enter()
    batch, side, width, classes = size(12, 2), size(512, 32), size(512, 8), size(12, 3)
    encoder = nn.Sequential(
        nn.Conv2d(3, width, 8, 8), *(Frozen(width) for _ in range(size(5, 1)))
    ).to(DEVICE, SHORT, memory_format=torch.channels_last)
    encoder.requires_grad_(False).eval()
    head = Atrous(width, size(256, 8), classes).to(DEVICE)
    update = sgd(head)
    pictures = noise(batch, 3, side, side)
    roads = labels(classes, batch, side, side)

    def step() -> None:
        with torch.no_grad():
            seen = encoder(pictures.to(SHORT, memory_format=torch.channels_last))
        said = head(seen.float().contiguous())
        said = fn.interpolate(said, scale_factor=8.0, mode="bilinear", align_corners=False)
        loss = fn.cross_entropy(said, roads)
        loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=enter)


# --- boxes in crowded pictures ----------------------------------------------------------------


def focal(said: Tensor, there: Tensor) -> Tensor:
    """Easy places count less; a line of the paper is a line here."""
    x, t = said.float(), there.float()
    likely = torch.sigmoid(x)
    plain = fn.binary_cross_entropy_with_logits(x, t, reduction="none")
    right = likely * t + (1 - likely) * (1 - t)
    weight = 0.25 * t + 0.75 * (1 - t)
    return (weight * (1 - right) ** 2 * plain).sum() / t.sum().clamp(min=1.0)


class Dense(nn.Module):
    """A detector of one stage, without a pyramid: classes and boxes at each place."""

    def __init__(self, width: int, classes: int, anchors: int) -> None:
        super().__init__()
        self.classes = classes
        self.stem = nn.Sequential(
            nn.Conv2d(3, width // 4, 4, 4), nn.ReLU(), nn.Conv2d(width // 4, width, 3, 2, 1),
            nn.ReLU(),
        )  # fmt: skip
        self.kinds, self.boxes = self.tower(width, 3), self.tower(width, 2)
        self.kind, self.box = (nn.Conv2d(width, anchors * each, 3, 1, 1) for each in (classes, 4))
        nn.init.constant_(self.kind.bias, -math.log(99.0))  # type: ignore[arg-type]

    @staticmethod
    def tower(width: int, layers: int) -> nn.Sequential:
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.Conv2d(width, width, 3, 1, 1), nn.ReLU()]
        return nn.Sequential(*parts)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.stem(x)
        kinds, boxes = self.kind(self.kinds(h)), self.box(self.boxes(h))
        return (
            kinds.permute(0, 2, 3, 1).reshape(len(x), -1, self.classes),
            boxes.permute(0, 2, 3, 1).reshape(len(x), -1, 4),
        )


@pair(
    "fusion_opportunity",
    "vision",
    "torch.compile of the function that is the focal loss",
    compiles=True,
    marks="steps",
)
def crowded_boxes_focal_compile(repaired: bool) -> Running:
    """Four anchors at each place and 80 classes for each of them."""
    batch, side, classes, anchors = size(16, 2), size(800, 32), size(80, 3), size(4, 2)
    model = Dense(size(256, 8), classes, anchors)
    model = model.to(DEVICE, SHORT, memory_format=torch.channels_last)
    pictures = noise(batch, 3, side, side).to(SHORT, memory_format=torch.channels_last)
    places = (side // 8) ** 2 * anchors
    there = (torch.rand(batch, places, classes, device=DEVICE) < 1e-4).to(torch.uint8)
    found = there.any(-1, keepdim=True)
    true = noise(batch, places, 4)
    loss_of_kinds: Any = torch.compile(focal, dynamic=False) if repaired else focal

    def loss_of() -> Tensor:
        kinds, boxes = model(pictures)
        far = fn.smooth_l1_loss(boxes.float(), true, reduction="none")
        near = (far * found).sum() / found.sum().clamp(min=1)
        return loss_of_kinds(kinds, there) + near

    return fit(loss_of, sgd(model), bf16=False, clip=10.0)


# --- what is said, in 40 seconds --------------------------------------------------------------


class Hears(nn.Module):
    """A layer of an encoder of speech, around PyTorch's attention module."""

    def __init__(self, width: int, heads: int, *, weights: bool) -> None:
        super().__init__()
        self.weights = {} if weights else {"need_weights": False}
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        y, _ = self.attention(h, h, h, **self.weights)
        x = x + y
        return x + self.down(fn.silu(self.up(self.norm2(x))))


class Recogniser(nn.Module):
    """Characters of each 40 ms, from a spectrogram in steps of 10 ms."""

    def __init__(
        self, bands: int, width: int, heads: int, layers: int, signs: int, *, weights: bool
    ) -> None:
        super().__init__()
        self.into = nn.Conv1d(bands, width, 4, 4)
        self.layers = nn.Sequential(*(Hears(width, heads, weights=weights) for _ in range(layers)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, signs)

    def forward(self, heard: Tensor) -> Tensor:
        return self.out(self.norm(self.layers(self.into(heard).transpose(1, 2))))


@pair(
    "unfused_attention",
    "audio",
    "nn.MultiheadAttention is told that nobody needs its weights, so that it uses fused attention",
)
def speech_weights_that_nobody_reads(repaired: bool) -> Running:
    """FP16 with a scaler; each frame has its sign, as an older recogniser aligned them."""
    batch, frames, bands, signs = size(10, 2), size(4096, 32), size(80, 8), size(61, 5)
    model = Recogniser(
        bands, size(2048, 16), size(16, 2), size(2, 1), signs, weights=not repaired
    ).to(DEVICE)
    heard, said = noise(batch, bands, frames), labels(signs, batch, frames // 4)
    update = adam(model)
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0)
    short = torch.float16 if CUDA else SHORT

    def step() -> None:
        with torch.autocast(DEVICE.type, short):
            logits = model(heard)
            loss = fn.cross_entropy(logits.float().flatten(0, 1), said.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(update)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(update)
        scaler.update()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- a robot's next movements, out of noise ---------------------------------------------------


class Denoiser(nn.Module):
    """What a plan of movements was before noise, for what the robot sees."""

    def __init__(self, plan: int, seen: int, width: int, layers: int) -> None:
        super().__init__()
        self.into, self.level = nn.Linear(plan + seen, width), nn.Linear(1, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.out = nn.Linear(width, plan)

    def forward(self, x: Tensor, sigma: Tensor, seen: Tensor) -> Tensor:
        scaled = (x / (1 + sigma**2).sqrt()).to(seen.dtype)
        level = self.level((sigma.log() / 4).view(-1, 1).to(seen.dtype))
        h = self.into(torch.cat([scaled, seen], 1)) + level
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            h = h + down(fn.silu(up(norm(h))))
        return self.out(h).float()


def levels_of_noise(steps: int) -> Tensor:
    """From much to none, as Karras has them; the last one is 0."""
    ramp = torch.linspace(0, 1, steps, device=DEVICE)
    sigmas = (20.0 ** (1 / 7) + ramp * (0.02 ** (1 / 7) - 20.0 ** (1 / 7))) ** 7
    return torch.cat([sigmas, sigmas.new_zeros(1)])


@pair(
    "host_sync",
    "rl",
    "the sampler's conditions ask a list of the levels, not the tensor on the device",
)
def plans_sampler_compares_levels(repaired: bool) -> Running:
    """Plans are sampled, judged, and the better ones learnt: the sampler was taken from a library.

    ``if low <= sigma <= high`` and ``if later == 0`` are conditions on tensors: the host waits.
    """
    rows, plan, seen_of, steps = size(14_336, 6), size(224, 6), size(160, 4), size(8, 3)
    model = Denoiser(plan, seen_of, size(2048, 16), size(3, 2)).to(DEVICE, SHORT)
    judge = nn.Sequential(nn.Linear(plan, size(1024, 8)), nn.Tanh(), nn.Linear(size(1024, 8), 1))
    judge = judge.to(DEVICE, SHORT).requires_grad_(False)
    update = adam(model)
    seen = noise(rows, seen_of).to(SHORT)
    sigmas = levels_of_noise(steps)
    low, high, churn = 0.05, 15.0, 0.1
    known: Any = sigmas.tolist() if repaired else sigmas

    @torch.no_grad()
    def sampled() -> Tensor:
        x = torch.randn(rows, plan, device=DEVICE) * sigmas[0]
        for i in range(steps):
            sigma = sigmas[i]
            if low <= known[i] <= high:
                sigma = sigma * (1 + churn)
                x = x + torch.randn_like(x) * (sigma**2 - sigmas[i] ** 2).sqrt()
            clean = model(x, sigma, seen)
            if known[i + 1] == 0:
                return clean
            x = x + (x - clean) / sigma * (sigmas[i + 1] - sigma)
        return x

    def step() -> None:
        plans = sampled().clamp(-1, 1)
        with torch.no_grad():
            worth = judge(plans.to(SHORT)).float()[:, 0]
            weight = torch.softmax(worth, 0) * rows
        sigma = torch.exp(1.2 * torch.randn(rows, 1, device=DEVICE) - 1.2)
        said = model(plans + sigma * torch.randn_like(plans), sigma, seen)
        loss = ((said - plans).square().mean(1) * weight).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- who works on what ------------------------------------------------------------------------


class Cites(nn.Module):
    """A layer over a graph; the message of each edge is a row of its own."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(before, after), nn.Linear(before, after, bias=False)
        self.norm = nn.LayerNorm(after)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, share: Tensor) -> Tensor:
        told = self.others(x)
        message = told.index_select(0, source) * share
        heard = torch.zeros_like(told).index_add(0, target, message.to(told.dtype))
        return fn.relu(self.norm(self.own(x) + heard))


@pair(
    "blocking_copy",
    "graph",
    "the features, read from raw bytes, are page-locked once, and nobody waits for their copy",
    marks="phases",
)
def citations_features_of_raw_bytes(repaired: bool) -> Running:
    """Clusters of a graph that is too large for the device; in order, so that slices are enough."""
    nodes, inside, width, clusters = size(24_576, 12), size(512, 8), size(1024, 8), 3
    edges, kinds = size(131_072, 40), size(172, 4)
    raw = bytearray(torch.randn(clusters * nodes, inside).numpy().tobytes())
    features = torch.frombuffer(raw, dtype=torch.float32).view(clusters, nodes, inside)
    if repaired and CUDA:
        features = features.pin_memory()
    layers = nn.ModuleList(
        [Cites(inside, width), *(Cites(width, width) for _ in range(size(3, 1)))]
    ).to(DEVICE, SHORT)
    last = nn.Linear(width, kinds).to(DEVICE, SHORT)
    update = adam(layers, last)
    source, target = labels(nodes, clusters, edges), labels(nodes, clusters, edges)
    share = torch.rand(clusters, edges, 1, device=DEVICE).to(SHORT)
    fields = labels(kinds, clusters, nodes)
    made = 0

    def step() -> None:
        nonlocal made
        at = made % clusters
        with phase("get_batch"):
            x = features[at].to(DEVICE, non_blocking=repaired)
        with phase("forward"):
            h = x.to(SHORT)
            for layer in layers:
                h = layer(h, source[at], target[at], share[at])
            loss = fn.cross_entropy(last(h).float(), fields[at])
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            update.step()
            update.zero_grad(set_to_none=True)
        made += 1

    return Running(step, enter=precision("high"))


# --- lines of print that never were printed ---------------------------------------------------


class Lines(Dataset[tuple[Tensor, Tensor]]):
    """Lines of text as a bad scanner would see them, drawn as they are asked for."""

    def __init__(self, high: int, signs: int, each: int, long: int) -> None:
        rng = np.random.default_rng(5)
        self.signs, self.each, self.long = signs, each, long
        shape = (signs, high, each)
        self.glyphs = (rng.random(shape, dtype=np.float32) < 0.4).astype(np.float32)
        self.paper = 0.1 * rng.standard_normal((high, 2 * each * long), dtype=np.float32)

    def __len__(self) -> int:
        return 4_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng(index)
        text = rng.integers(0, self.signs, self.long)
        line = np.concatenate([self.glyphs[sign] for sign in text], 1)
        ink = line + 0.5 * np.roll(line, 1, 1) + 0.25 * np.roll(line, 1, 0)  # it runs
        begin = int(rng.integers(0, line.shape[1]))
        ink += self.paper[:, begin : begin + line.shape[1]]
        ink = (ink - ink.mean()) / (ink.std() + 1e-5)
        return torch.from_numpy(ink[None]), torch.from_numpy(text)


class Reader(nn.Module):
    """Convolutions, then layers over columns; each column of a sign says which one it is."""

    def __init__(self, high: int, each: int, width: int, wide: int, signs: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(1, width, 4, 4)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(size(3, 1)))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in self.convs)
        self.columns = nn.Linear(width * (high // 4) * (each // 4), wide)
        self.up, self.down = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)
        self.out, self.each = nn.Linear(wide, signs), each // 4

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = h + fn.relu(norm(conv(h)))
        b, c, high, across = h.shape
        h = h.view(b, c, high, across // self.each, self.each)
        h = self.columns(h.permute(0, 3, 1, 2, 4).reshape(b, across // self.each, -1))
        return self.out(h + self.down(fn.gelu(self.up(h))))


@pair(
    "input_starvation",
    "vision",
    "lines are drawn by 8 workers, not by the training thread: 0 was left from looking for a bug",
    others=("host_sync",),
)
def printed_lines_drawn_while_debugging(repaired: bool) -> Running:
    """The bar shows the loss of each step, with fault and without."""
    batch, high, signs, each = size(32, 2), size(64, 8), size(96, 5), 16
    long, workers = size(64, 3), size(8, 1) if repaired else 0
    more: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 2} if workers else {}
    loader = DataLoader(
        Lines(high, signs, each, long), batch, num_workers=workers, pin_memory=CUDA, **more
    )
    lines = [iter(loader)]
    model = Reader(high, each, size(512, 8), size(2048, 16), signs).to(DEVICE)
    model = model.to(memory_format=torch.channels_last)
    update = adam(model)
    shown = [0.0]

    def step() -> None:
        ink, text = (part.to(DEVICE, non_blocking=True) for part in next(lines[0]))
        with torch.autocast(DEVICE.type, SHORT):
            said = model(ink)
            loss = fn.cross_entropy(said.float().flatten(0, 1), text.flatten())
        loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)
        shown[0] = 0.9 * shown[0] + 0.1 * loss.item()

    def close() -> None:
        lines.clear()
        loader._iterator = None  # the workers end with it

    return Running(step, enter=precision("high"), close=close, settle=2 + 2 * workers)


# --- mushrooms, on a telephone later ----------------------------------------------------------


class Inverted(nn.Module):
    """Wide inside, narrow outside: the layer that EfficientNetV2 begins with."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        wide = 4 * before
        self.same = before == after and stride == 1
        self.expand = nn.Conv2d(before, wide, 3, stride, 1, bias=False)
        self.project = nn.Conv2d(wide, after, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(wide), nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm2(self.project(fn.silu(self.norm1(self.expand(x)))))
        return x + h if self.same else h


@pair(
    "layout_changes",
    "vision",
    "model and pictures have channels last",
)
def mushrooms_inverted_channels_last(repaired: bool) -> Running:
    """The weights that are kept are an average, which is updated in each step."""
    batch, side, kinds = size(128, 2), size(224, 32), size(1604, 5)
    narrow, middle = size(64, 8), size(128, 8)
    stages = [Inverted(narrow, narrow, 1) for _ in range(size(4, 1))]
    stages += [Inverted(narrow, middle, 2), *(Inverted(middle, middle, 1) for _ in range(2))]
    model = nn.Sequential(
        nn.Conv2d(3, narrow, 4, 4, bias=False), nn.BatchNorm2d(narrow), nn.SiLU(), *stages,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(middle, kinds),
    ).to(DEVICE)  # fmt: skip
    pictures = noise(batch, 3, side, side)
    if repaired:
        model = model.to(memory_format=torch.channels_last)
        pictures = pictures.to(memory_format=torch.channels_last)
    weights = list(model.parameters())
    kept = [weight.detach().clone() for weight in weights]
    names = labels(kinds, batch)

    def averaged(made: int, loss: Tensor) -> None:
        with torch.no_grad():
            torch._foreach_lerp_(kept, weights, 0.001)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(pictures).float(), names, label_smoothing=0.1)

    return fit(loss_of, sgd(model), decay=True, after=averaged)


# --- how a protein is folded ------------------------------------------------------------------


class Triangles(nn.Module):
    """Pairs of residues learn of the third corners: a layer of an Evoformer's pair stack."""

    def __init__(self, width: int, narrow: int, *, outgoing: bool) -> None:
        super().__init__()
        self.sides = "ikc,jkc->ijc" if outgoing else "kic,kjc->ijc"
        self.norm, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(narrow)
        self.edges, self.open = nn.Linear(width, 2 * narrow), nn.Linear(width, 2 * narrow)
        self.out, self.gate = nn.Linear(narrow, width), nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, pairs: Tensor) -> Tensor:
        h = self.norm(pairs)
        left, right = (self.edges(h) * torch.sigmoid(self.open(h))).chunk(2, -1)
        corners = torch.einsum(self.sides, left, right) * len(pairs) ** -0.5
        told = self.out(self.norm_out(corners)) * torch.sigmoid(self.gate(h))
        pairs = pairs + told
        return pairs + self.down(fn.relu(self.up(self.norm2(pairs))))


@pair(
    "recomputation",
    "science",
    "blocks of the pair stack are called, not checkpointed: a crop fits into memory",
)
def folds_blocks_per_checkpoint_one(repaired: bool) -> Running:
    """The setting of the configuration was made for whole proteins; this trains on crops."""
    residues, inside, width, bins = size(448, 10), size(128, 6), size(256, 8), size(64, 5)
    blocks = nn.ModuleList(
        Triangles(width, width // 2, outgoing=i % 2 == 0) for i in range(size(3, 2))
    )
    into, last = nn.Linear(inside, width), nn.Linear(width, bins)
    model = nn.ModuleList([into, blocks, last]).to(DEVICE, SHORT)
    known = noise(residues, residues, inside).to(SHORT)
    far = labels(bins, residues, residues)

    def loss_of() -> Tensor:
        pairs = into(known)
        for block in blocks:
            pairs = block(pairs) if repaired else checkpoint(block, pairs, use_reentrant=False)
        said = last(pairs + pairs.transpose(0, 1))
        return fn.cross_entropy(said.float().flatten(0, 1), far.flatten())

    return fit(loss_of, adam(model), bf16=False, clip=0.1)


# --- what is listened to next -----------------------------------------------------------------


class Follows(nn.Module):
    """A causal layer over a session."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


@pair(
    "fused_optimizer",
    "recommender",
    "Adam(fused=True) instead of the default",
    marks="steps",
)
def listened_sessions_adam_as_it_comes(repaired: bool) -> Running:
    """The gradient of the table of songs is dense, as songs are drawn as negatives, too."""
    sessions, long, songs = size(192, 2), size(256, 12), size(200_000, 50)
    width, negatives = size(512, 16), size(2048, 8)
    table, place = nn.Embedding(songs, width), nn.Embedding(long, width)
    nn.init.normal_(table.weight, std=width**-0.5)
    layers = nn.Sequential(
        *(Follows(width, size(8, 2)) for _ in range(size(2, 1))), nn.LayerNorm(width)
    )
    model = nn.ModuleList([table, place, layers]).to(DEVICE)
    more: dict[str, Any] = {"fused": True} if repaired else {}
    update = torch.optim.Adam(model.parameters(), lr=1e-4, **more)
    heard = labels(songs, sessions, long + 1)
    first = torch.zeros(sessions * long, dtype=torch.long, device=DEVICE)

    def loss_of() -> Tensor:
        rows = table(heard)
        h = layers(rows[:, :-1] + place.weight).flatten(0, 1).to(SHORT)
        others = table(torch.randint(0, songs, (negatives,), device=DEVICE))
        true = (h * rows[:, 1:].flatten(0, 1).to(SHORT)).sum(-1, keepdim=True)
        logits = torch.cat([true, h @ others.t()], 1)
        return fn.cross_entropy(logits.float() / 0.1, first)

    return fit(loss_of, update)
