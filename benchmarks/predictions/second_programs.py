"""A second set of programs for one GPU, written after the model was improved on the first."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models import (
    DEVICE,
    Decoder,
    classified,
    graphed,
    images,
    made_optimizer,
    mlp,
    next_token,
    precision,
    size,
    training,
)
from program import Program, Running, phase
from single_programs import entered, fixed, gpt, loaded, scratch, spin, text
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "the compiled replay"
pair = entered(PROGRAMS)


class Mixer(nn.Module):
    """An MLP-Mixer."""

    def __init__(self, width: int, layers: int, places: int = 196) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.over_places = nn.ModuleList(mlp(2 * places, 0, places, places) for _ in range(layers))
        self.over_width = nn.ModuleList(mlp(4 * width, 0, width, width) for _ in range(layers))
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        for i, (a, b) in enumerate(zip(self.over_places, self.over_width, strict=True)):
            h = h + a(self.norms[2 * i](h).transpose(1, 2)).transpose(1, 2)
            h = h + b(self.norms[2 * i + 1](h))
        return self.head(h.mean(1))


class Wave(nn.Module):
    """Gated dilated convolutions over a signal."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.convs = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding=2**i, dilation=2**i) for i in range(layers)
        )
        self.outs = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.last = nn.Conv1d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        skips = torch.zeros_like(h)
        for conv, out in zip(self.convs, self.outs, strict=True):
            a, b = conv(h).chunk(2, 1)
            gated = torch.tanh(a) * torch.sigmoid(b)
            gated = gated * (1 + 0.1 * torch.cos(gated)) - 0.05 * gated.pow(3)
            out_ = out(gated)
            skips = skips + out_
            h = (h + out_) * math.sqrt(0.5)
        return self.last(fn.relu(skips))


class Vae(nn.Module):
    """A convolutional autoencoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        w = width
        self.down = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.1))
                for a, b in ((3, w), (w, 2 * w), (2 * w, 4 * w))
            )
        )
        self.up = nn.Sequential(
            *(
                nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.LeakyReLU(0.1))
                for a, b in ((4 * w, 2 * w), (2 * w, w), (w, 3))
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(x)
        return self.up(h + torch.randn_like(h) * 0.1)


def rebuilt(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return fn.mse_loss(model(batch[0]).float(), batch[0])


class Signals(Dataset[Tensor]):
    """Signals whose spectrum is filtered by NumPy."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor]:
        rng = np.random.default_rng(index)
        x = rng.standard_normal(size(16384, 256))
        for cut in (0.5, 0.25):
            spectrum = np.fft.rfft(x)
            spectrum[int(cut * len(spectrum)) :] *= 0.1
            x = np.fft.irfft(spectrum)
        return (torch.from_numpy(x.astype(np.float32))[None],)


def wave(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    x = batch[0]
    return fn.mse_loss(model(x[..., :-1]).float(), x[..., 1:])


@pair("input_starvation", "audio", "10 workers instead of 1", marks="steps")
def wave_one_worker(repaired: bool) -> Running:
    batches = loaded(Signals(), size(16, 2), 10 if repaired else 1)
    return training(Wave(size(96, 8), 6).to(DEVICE), batches, wave)


@pair("fusion_opportunity", "audio", "torch.compile(model)", compiles=True)
def wave_gates_compile(repaired: bool) -> Running:
    model: Any = Wave(size(128, 8), 8).to(DEVICE)
    if repaired:
        model = torch.compile(model)
    data = (torch.randn(size(8, 2), 1, size(16385, 257), device=DEVICE),)
    return training(model, fixed(data), wave, kind="fp32")


@pair("low_precision_unused", "vision", "torch.set_float32_matmul_precision('high')")
def mixer_fp32_tf32(repaired: bool) -> Running:
    places = size(196, 4)
    model = Mixer(size(512, 32), size(6, 1), places).to(DEVICE)
    data = images(size(64, 2), size(224, 32))
    matmul = "high" if repaired else "highest"
    return training(model, fixed(data), classified, kind="fp32", matmul=matmul)


@pair("unfused_optimizer", "vision", "AdamW(fused=True) instead of foreach=False", marks="profiler")
def mixer_adam_loop(repaired: bool) -> Running:
    model = Mixer(size(384, 32), size(12, 1), size(196, 4)).to(DEVICE)
    kind = "fused" if repaired else "loop"
    return training(model, fixed(images(size(64, 2), size(224, 32))), classified, optimizer=kind)


@pair("blocking_copy", "vision", "pinned memory and non_blocking copies")
def vae_pageable(repaired: bool) -> Running:
    host = torch.randn(size(192, 2), 3, size(128, 16), size(128, 16))
    if repaired and DEVICE.type == "cuda":
        host = host.pin_memory()
    model = Vae(size(48, 8)).to(DEVICE)
    return training(model, lambda: (host.to(DEVICE, non_blocking=repaired),), rebuilt)


@pair("allocator_churn", "vision", "torch.cuda.empty_cache() every 3 steps is removed", period=3)
def vae_empty_cache_every_3(repaired: bool) -> Running:
    def empty(number: int, _loss: Tensor) -> None:
        if not repaired and number % 3 == 1 and DEVICE.type == "cuda":
            torch.cuda.empty_cache()

    data = (torch.randn(size(128, 2), 3, size(128, 16), size(128, 16), device=DEVICE),)
    return training(Vae(size(48, 8)).to(DEVICE), fixed(data), rebuilt, after_step=empty)


@pair("host_sync", "vision", "boxes are scored on the device, not one by one on the host")
def detector_item_each_box(repaired: bool) -> Running:
    model = Mixer(size(384, 32), size(6, 1), size(196, 4)).to(DEVICE)
    best = torch.zeros((), device=DEVICE)

    def loss_of(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out = net(batch[0])
        boxes = out.detach().float()[:24, :64].softmax(-1).amax(-1)
        if repaired:
            best.copy_(torch.where(boxes > 0.02, boxes, torch.zeros_like(boxes)).sum())
        else:
            sum(boxes[i].item() for i in range(len(boxes)) if boxes[i] > 0.02)
        return fn.cross_entropy(out.float(), batch[1])

    return training(model, fixed(images(size(48, 2), size(224, 32))), loss_of)


@pair("launch_bound", "rl", "the whole step is one CUDA graph", marks="phases")
def dqn_graph(repaired: bool) -> Running:
    net, target = mlp(256, 3, 48, 6).to(DEVICE), mlp(256, 3, 48, 6).to(DEVICE)
    update = made_optimizer(net.parameters(), "graph")
    seen, following = (torch.randn(512, 48, device=DEVICE) for _ in range(2))
    action = torch.randint(0, 6, (512, 1), device=DEVICE)
    gain = torch.randn(512, device=DEVICE)

    def step() -> None:
        with torch.no_grad():
            goal = gain + 0.99 * target(following).max(-1).values
        loss = fn.smooth_l1_loss(net(seen).gather(1, action)[:, 0], goal)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            update.step()
            update.zero_grad(set_to_none=True)
        with torch.no_grad():
            for mine, theirs in zip(target.parameters(), net.parameters(), strict=True):
                mine.lerp_(theirs, 0.01)

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run


@pair("unfused_attention", "language", "scaled_dot_product_attention", marks="steps")
def encoder_attention_1024(repaired: bool) -> Running:
    model = gpt(640, 5, causal=False, written=not repaired)
    return training(model, fixed(text(6, 1024)), next_token)


@pair("checkpoint_stall", "language", "checkpoints are saved every 1000 steps, not 6", period=6)
def encoder_save_every_6(repaired: bool) -> Running:
    model, file = gpt(384, 6, causal=False), Path(scratch()) / "model.pt"

    def save(number: int, _loss: Tensor) -> None:
        if not repaired and number % 6 == 3:
            torch.save({"model": model.state_dict(), "made": number}, file)

    return training(model, fixed(text(24, 256)), next_token, after_step=save)


@pair("step_jitter", "vision", "gc.collect() every 9 steps is removed", period=9, record=("--gc",))
def mixer_gc_every_9(repaired: bool) -> Running:
    kept = [{"at": i, "of": (i, [i])} for i in range(size(150_000, 10))]

    def collect(number: int, _loss: Tensor) -> None:
        if not repaired and number % 9 == 4 and kept:
            gc.collect()

    model = Mixer(size(384, 32), size(6, 1), size(196, 4)).to(DEVICE)
    data = images(size(32, 2), size(224, 32))
    return training(model, fixed(data), classified, after_step=collect)


@pair("host_sync", "decode", "whether all texts ended is asked every 64 tokens, not after each")
def decode_ask_each_token(repaired: bool) -> Running:
    decoder = Decoder(size(1024, 64), size(6, 2), 64, size(768, 16))
    made = 0

    def step() -> None:
        nonlocal made
        decoder.step()
        made += 1
        if not repaired or made % 64 == 0:
            bool((decoder.token == 1).all())

    return Running(step, enter=precision("high"))


@pair("host_compute", "language", "words are counted by another process", marks="phases")
def gpt_count_words(repaired: bool) -> Running:
    def count(_number: int, loss: Tensor) -> None:
        if not repaired:
            loss.item()
            spin(14)

    return training(gpt(640, 4), fixed(text(8, 512)), next_token, after_step=count)


@pair("larger_batch", "vision", "twice the batch", samples=2.0)
def mixer_twice_the_batch(repaired: bool) -> Running:
    model = Mixer(size(384, 32), size(8, 1), size(196, 4)).to(DEVICE)
    data = images(size(32 if repaired else 16, 2), size(224, 32))
    return training(model, fixed(data), classified)
