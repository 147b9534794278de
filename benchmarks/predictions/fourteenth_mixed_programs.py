"""A fourteenth set for one GPU: nine programs of large kernels, none of which is tidy otherwise.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, precision, size
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn

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
    batch, side, width, classes = size(8, 2), size(512, 32), size(512, 8), size(12, 3)
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


# --- what is said, in 20 seconds --------------------------------------------------------------


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
