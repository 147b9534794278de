"""A fourth set of programs for one GPU: other models and loops, and faults of other sizes.

Needs torchvision, torch_geometric, scipy and Pillow beside PyTorch; no weights are loaded.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models import DEVICE, graphed, precision, size
from program import Program, Running, phase
from single_programs import beside, entered, loaded, scratch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 106 pairs, the fourth set"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- the loop ---------------------------------------------------------------------------------


def fit(
    loss_of: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    bf16: bool = True,
    cached: bool = True,
    matmul: str = "high",
    micro: int = 1,
    clip: float = 0.0,
    decay: bool = False,
    after: Callable[[int, Tensor], object] | None = None,
    settle: int = 2,
) -> Running:
    """Micro-batches, gradients clipped, a schedule of the rate; most programs use some of it."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    schedule = (
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + 1e-4 * n))
        if decay
        else None
    )
    made = 0

    def step() -> None:
        nonlocal made
        optimizer.zero_grad(set_to_none=True)
        for _ in range(micro):
            with (
                phase("forward"),
                torch.autocast(DEVICE.type, torch.bfloat16, enabled=bf16, cache_enabled=cached),
            ):
                loss = loss_of() / micro
            with phase("backward"):
                loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(weights, clip)
        with phase("optimizer"):
            optimizer.step()
        if schedule:
            schedule.step()
        if after:
            after(made, loss.detach())
        made += 1

    return Running(step, enter=precision(matmul), settle=settle)


def adam(*parts: nn.Module, **more: Any) -> torch.optim.Optimizer:
    weights = [p for part in parts for p in part.parameters()]
    return torch.optim.AdamW(weights, lr=1e-4, **({"fused": True} | more))


def sgd(*parts: nn.Module, **more: Any) -> torch.optim.Optimizer:
    weights = [p for part in parts for p in part.parameters()]
    return torch.optim.SGD(weights, lr=1e-3, momentum=0.9, **({"fused": True} | more))


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def labels(most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape, device=DEVICE)


# --- models -----------------------------------------------------------------------------------


class Radiance(nn.Module):
    """Colour and density of points, from sines of their places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.low = nn.ModuleList(nn.Linear(60 if i == 0 else width, width) for i in range(4))
        self.high = nn.ModuleList(
            nn.Linear(60 + width if i == 0 else width, width) for i in range(4)
        )
        self.out = nn.Linear(width, 4)
        self.register_buffer("rates", 2.0 ** torch.arange(10))

    def forward(self, x: Tensor) -> Tensor:
        angles = (x[..., None] * self.rates).flatten(1)
        seen = torch.cat([angles.sin(), angles.cos()], -1)
        h = seen
        for layer in self.low:
            h = fn.relu(layer(h))
        h = torch.cat([h, seen], -1)
        for layer in self.high:
            h = fn.relu(layer(h))
        return self.out(h)


class ConvMixer(nn.Module):
    def __init__(self, width: int, layers: int, kernel: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 7, 7), nn.GELU(), nn.BatchNorm2d(width))
        self.over = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, kernel, padding="same", groups=width),
                nn.GELU(),
                nn.BatchNorm2d(width),
            )
            for _ in range(layers)
        )
        self.mix = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width))
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for over, mix in zip(self.over, self.mix, strict=True):
            h = mix(h + over(h))
        return self.head(h.mean((2, 3)))


class Segmenter(nn.Module):
    """A class for each pixel: three sizes, down and up."""

    def __init__(self, width: int, classes: int = 21) -> None:
        super().__init__()
        w = width

        def two(before: int, after: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(before, after, 3, 1, 1), nn.GroupNorm(4, after), nn.ReLU(),
                nn.Conv2d(after, after, 3, 1, 1), nn.GroupNorm(4, after), nn.ReLU(),
            )  # fmt: skip

        self.a, self.b, self.c = two(3, w), two(w, 2 * w), two(2 * w, 4 * w)
        self.d, self.e = two(6 * w, 2 * w), two(3 * w, w)
        self.out = nn.Conv2d(w, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(fn.max_pool2d(a, 2))
        c = self.c(fn.max_pool2d(b, 2))
        d = self.d(torch.cat([fn.interpolate(c, scale_factor=2.0), b], 1))
        return self.out(self.e(torch.cat([fn.interpolate(d, scale_factor=2.0), a], 1)))


class Crossing(nn.Module):
    """A few latents look at many inputs, as in a Perceiver."""

    def __init__(self, width: int, heads: int, *, written: bool) -> None:
        super().__init__()
        self.heads, self.written = heads, written
        self.norm = nn.LayerNorm(width)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.after = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, latents: Tensor, x: Tensor) -> Tensor:
        b, n, d = latents.shape
        q = self.q(self.norm(latents)).view(b, n, self.heads, -1).transpose(1, 2)
        k, v = (
            part.view(b, x.shape[1], self.heads, -1).transpose(1, 2)
            for part in self.kv(x).chunk(2, -1)
        )
        if self.written:
            scores = torch.einsum("bhid,bhjd->bhij", q, k) / (d // self.heads) ** 0.5
            y = torch.einsum("bhij,bhjd->bhid", scores.softmax(-1).to(v.dtype), v)
        else:
            y = fn.scaled_dot_product_attention(q, k, v)
        latents = latents + y.transpose(1, 2).reshape(b, n, d)
        return latents + self.after(latents)


class Alibi(nn.Module):
    """A decoder's layer whose scores fall with the distance."""

    def __init__(self, width: int, heads: int, length: int, *, written: bool) -> None:
        super().__init__()
        self.heads, self.written = heads, written
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.norm2 = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        at = torch.arange(length)
        slope = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
        bias = -slope[:, None, None] * (at[:, None] - at).abs()
        bias = bias.masked_fill(at[None, :] > at[:, None], float("-inf"))
        self.register_buffer("bias", bias[None].bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (
            part.view(b, t, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        bias = self.bias.to(q.dtype)
        if self.written:
            scores = q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5 + bias
            y = scores.softmax(-1).to(v.dtype) @ v
        else:
            y = fn.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(b, -1, -1, -1))
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(fn.relu(self.up(self.norm2(x))).square())


class Splines(nn.Module):
    """A layer of a Kolmogorov-Arnold network: B-splines of each input, and a product."""

    def __init__(self, before: int, after: int, places: int = 8, order: int = 3) -> None:
        super().__init__()
        self.order = order
        knots = (torch.arange(places + 2 * order + 1) - order) * (2 / places) - 1
        self.register_buffer("knots", knots.float())
        self.mix = nn.Linear(before * (places + order), after)
        self.base = nn.Linear(before, after)

    def forward(self, x: Tensor) -> Tensor:
        t, y = self.knots, x[..., None]
        parts = ((y >= t[:-1]) & (y < t[1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (y - t[: -k - 1]) / (t[k:-1] - t[: -k - 1]) * parts[..., :-1]
            right = (t[k + 1 :] - y) / (t[k + 1 :] - t[1:-k]) * parts[..., 1:]
            parts = left + right
        return torch.tanh(self.base(fn.silu(x)) + self.mix(parts.flatten(1)))


def plain(width: int, layers: int, before: int, after: int) -> nn.Sequential:
    """Layers with normalisation."""
    parts: list[nn.Module] = [nn.Linear(before, width)]
    for _ in range(layers):
        parts += [nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width)]
    return nn.Sequential(*parts, nn.Linear(width, after))


def encoder(width: int, layers: int, heads: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(DEVICE)


# --- precision --------------------------------------------------------------------------------


@pair("low_precision_unused", "vision", "torch.set_float32_matmul_precision('high')")
def radiance_field_tf32(repaired: bool) -> Running:
    model = Radiance(size(512, 16)).to(DEVICE)
    points, colours = noise(size(98_304, 32), 3), noise(size(98_304, 32), 4)
    matmul = "high" if repaired else "highest"
    return fit(
        lambda: fn.huber_loss(model(points), colours), adam(model), bf16=False, matmul=matmul
    )


@pair("low_precision_unused", "audio", "TF32 is allowed in cuDNN and for products", marks="steps")
def speech_lstm_tf32(repaired: bool) -> Running:
    width, frames, batch = size(1024, 16), size(64, 6), size(128, 2)
    rnn = nn.LSTM(80, width, 2, batch_first=True).to(DEVICE)
    head = nn.Linear(width, 64).to(DEVICE)
    x, y = noise(batch, frames, 80), labels(64, batch * frames)
    return fit(
        lambda: fn.cross_entropy(head(rnn(x)[0]).flatten(0, 1), y),
        adam(rnn, head),
        bf16=False,
        matmul="high" if repaired else "highest",
        clip=1.0,
    )


@pair("low_precision_unused", "vision", "autocast to BF16", marks="profiler")
def convmixer_depthwise_bf16(repaired: bool) -> Running:
    model = ConvMixer(size(512, 16), size(6, 2), 5).to(DEVICE)
    x, y = noise(size(32, 2), 3, size(224, 28), size(224, 28)), labels(100, size(32, 2))
    return fit(
        lambda: fn.cross_entropy(model(x).float(), y, label_smoothing=0.1),
        adam(model),
        bf16=repaired,
        matmul="high" if repaired else "highest",
    )


# --- attention --------------------------------------------------------------------------------


@pair("unfused_attention", "vision", "scaled_dot_product_attention")
def perceiver_cross_written(repaired: bool) -> Running:
    width, batch = size(512, 32), size(8, 2)
    layers = nn.ModuleList(Crossing(width, size(8, 2), written=not repaired) for _ in range(4))
    layers.to(DEVICE)
    start = nn.Parameter(noise(1, size(256, 8), width) * 0.02)
    x, y = noise(batch, size(4096, 32), width), noise(batch, width)
    update = torch.optim.AdamW([start, *layers.parameters()], lr=1e-4, fused=True)

    def loss_of() -> Tensor:
        latents = start.expand(batch, -1, -1)
        for layer in layers:
            latents = layer(latents, x)
        return fn.mse_loss(latents.mean(1).float(), y)

    return fit(loss_of, update)


@pair("unfused_attention", "language", "scaled_dot_product_attention, the bias as attn_mask")
def alibi_decoder_written(repaired: bool) -> Running:
    width, length, batch = size(768, 32), size(1024, 16), size(8, 2)
    layers = [Alibi(width, size(12, 2), length, written=not repaired) for _ in range(size(4, 1))]
    model = nn.Sequential(
        nn.Embedding(size(4096, 64), width), *layers, nn.Linear(width, size(4096, 64))
    ).to(DEVICE)
    x = labels(size(4096, 64), batch, length)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(x)[:, :-1].flatten(0, 1).float(), x[:, 1:].flatten())

    return fit(loss_of, adam(model), clip=1.0, decay=True)


# --- what a compiler fuses --------------------------------------------------------------------


@pair("fusion_opportunity", "science", "torch.compile(model)", compiles=True, marks="steps")
def spline_network_compile(repaired: bool) -> Running:
    model: Any = nn.Sequential(
        Splines(size(64, 4), size(64, 4)),
        Splines(size(64, 4), size(64, 4)),
        Splines(size(64, 4), 8),
    ).to(DEVICE)
    x, y = noise(size(32_768, 16), size(64, 4)).clamp(-1, 1), noise(size(32_768, 16), 8)
    update = adam(model)
    if repaired:
        model = torch.compile(model)
    return fit(lambda: fn.mse_loss(model(x), y), update, bf16=False)


def focal_and_dice(logits: Tensor, true: Tensor) -> Tensor:
    """Two losses of a segmentation, written out."""
    shifted = logits - logits.amax(1, keepdim=True)
    likely = shifted.exp() / shifted.exp().sum(1, keepdim=True)
    hot = (true[:, None] == torch.arange(logits.shape[1], device=true.device)[:, None, None]).to(
        likely.dtype
    )
    focal = -(hot * (1 - likely).pow(2) * (likely + 1e-7).log()).sum(1).mean()
    both = (likely * hot).sum((0, 2, 3))
    dice = 1 - (2 * both + 1) / (likely.sum((0, 2, 3)) + hot.sum((0, 2, 3)) + 1)
    return focal + dice.mean()


@pair("fusion_opportunity", "vision", "torch.compile of the loss", compiles=True)
def segmentation_loss_compile(repaired: bool) -> Running:
    side, batch = size(384, 16), size(8, 2)
    model = Segmenter(size(32, 4)).to(DEVICE)
    x, y = noise(batch, 3, side, side), labels(21, batch, side, side)
    loss: Any = torch.compile(focal_and_dice) if repaired else focal_and_dice
    return fit(lambda: loss(model(x).float(), y), adam(model))


# --- launches ---------------------------------------------------------------------------------


@pair("launch_bound", "vision", "torch.compile(model, mode='reduce-overhead')", compiles=True)
def point_transformer_reduce_overhead(repaired: bool) -> Running:
    width = size(192, 16)
    model: Any = nn.Sequential(
        nn.Linear(6, width), encoder(width, size(5, 1), size(6, 2)), nn.Linear(width, 13)
    ).to(DEVICE)
    x, y = noise(size(8, 2), size(256, 8), 6), labels(13, size(8, 2) * size(256, 8))
    update = adam(model)
    if repaired:
        model = torch.compile(model, mode="reduce-overhead")
    return fit(lambda: fn.cross_entropy(model(x).flatten(0, 1).float(), y), update)


@pair("launch_bound", "science", "the whole step is one CUDA graph")
def runge_kutta_graph(repaired: bool) -> Running:
    width = size(256, 8)
    field = nn.Sequential(
        nn.Linear(16, width), nn.Softplus(), nn.Linear(width, width), nn.Softplus(),
        nn.Linear(width, 16),
    ).to(DEVICE)  # fmt: skip
    start, goal = noise(size(2048, 8), 16), noise(size(2048, 8), 16)
    update = adam(field, capturable=True) if CUDA else adam(field)

    def step() -> None:
        y, h = start, 0.1
        for _ in range(size(8, 2)):
            k1 = field(y)
            k2 = field(y + 0.5 * h * k1)
            k3 = field(y + 0.5 * h * k2)
            k4 = field(y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        update.zero_grad(set_to_none=True)
        fn.mse_loss(y, goal).backward()
        update.step()

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run


@pair("launch_bound", "recommender", "torch.cuda.make_graphed_callables of the model")
def tabular_graphed_callables(repaired: bool) -> Running:
    model: Any = plain(size(384, 16), size(24, 2), 48, 10).to(DEVICE)
    x, y = noise(size(1024, 8), 48), labels(10, size(1024, 8))
    update = adam(model)
    if repaired and CUDA:
        model = torch.cuda.make_graphed_callables(model, (x,))
    return fit(lambda: fn.cross_entropy(model(x), y), update, bf16=False)


# --- the optimizer ----------------------------------------------------------------------------


@pair("unfused_optimizer", "recommender", "SGD(fused=True) instead of foreach=False")
def nesterov_tables_loop(repaired: bool) -> Running:
    rows, width, batch = size(200_000, 40), size(64, 4), size(8192, 8)
    tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(16)).to(DEVICE)
    top = plain(size(512, 8), 2, 16 * width, 1).to(DEVICE)
    ids, y = labels(rows, 16, batch), noise(batch, 1)
    how = {"fused": True} if repaired else {"fused": False, "foreach": False}
    update = sgd(tables, top, nesterov=True, weight_decay=1e-5, **how)

    def loss_of() -> Tensor:
        found = [table(i) for table, i in zip(tables, ids, strict=True)]
        return fn.mse_loss(top(torch.cat(found, -1)).float(), y)

    return fit(loss_of, update)


# --- input ------------------------------------------------------------------------------------


class Sounds(Dataset[tuple[Tensor, int]]):
    """Sounds that are resampled and filtered on the CPU."""

    def __init__(self) -> None:
        from scipy import signal  # once, before workers are forked

        self.filter = signal.butter(4, 0.3)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from scipy import signal

        rng = np.random.default_rng(index)
        raw = rng.standard_normal(size(44_100, 1_764), dtype=np.float32)
        low = signal.resample_poly(raw, 160, 441)
        low = signal.lfilter(*self.filter, low)
        return torch.from_numpy(low.astype(np.float32))[None], index % 35


@pair("input_starvation", "audio", "4 workers instead of none", marks="phases")
def sounds_resampled_main(repaired: bool) -> Running:
    width, workers = size(256, 8), 4 if repaired else 0
    batches = loaded(Sounds(), size(16, 2), workers)
    model = nn.Sequential(
        nn.Conv1d(1, width, 80, 4), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Conv1d(width, width, 9, padding=4), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(4),
        nn.Conv1d(width, 4 * width, 9, padding=4), nn.ReLU(), nn.MaxPool1d(4),
        nn.Conv1d(4 * width, 4 * width, 9, padding=4), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4 * width, 35),
    ).to(DEVICE)  # fmt: skip

    def loss_of() -> Tensor:
        with phase("get_batch"):
            x, y = batches()
        return fn.cross_entropy(model(x).float(), y)

    return fit(loss_of, adam(model), bf16=False, settle=2 + 2 * workers)


class Slides(Dataset[tuple[Tensor, Tensor]]):
    """PNG files that are decoded, turned and blurred."""

    def __init__(self, side: int) -> None:
        from PIL import Image
        from scipy import ndimage

        self.blurred = ndimage.gaussian_filter
        self.side, self.files = side, []
        rng = np.random.default_rng(1)
        for _ in range(8):
            small = rng.integers(0, 255, (24, 24, 3), dtype=np.uint8)
            file = io.BytesIO()
            Image.fromarray(small).resize((side, side)).save(file, "PNG")
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        from PIL import Image

        image = Image.open(io.BytesIO(self.files[index % 8])).convert("RGB")
        array = np.asarray(image.rotate(index * 37 % 360), dtype=np.float32) / 255
        array = self.blurred(array, (1.0 + index % 3 / 4, 1.0, 0.0))
        mask = (array.mean(-1) * 20).astype(np.int64)
        return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1))), torch.from_numpy(
            mask
        )


@pair("input_starvation", "vision", "12 workers instead of 3")
def slides_three_workers(repaired: bool) -> Running:
    workers = 12 if repaired else 3
    batches = loaded(Slides(size(256, 32)), size(16, 2), workers)
    model = Segmenter(size(48, 4)).to(DEVICE)

    def loss_of() -> Tensor:
        x, y = batches()
        return fn.cross_entropy(model(x).float(), y)

    return fit(loss_of, adam(model), settle=2 + 2 * workers)


# --- seldom -----------------------------------------------------------------------------------


@pair("checkpoint_stall", "language", "all is saved every 1000 steps, not every 6", period=6)
def saves_optimizer_every_6(repaired: bool) -> Running:
    width = size(512, 16)
    model = encoder(width, size(4, 1), size(8, 2))
    x = noise(size(64, 2), size(512, 8), width)
    update, file = adam(model), Path(scratch()) / "all.pt"

    def save(number: int, _loss: Tensor) -> None:
        if number % (1000 if repaired else 6) == 5:
            torch.save({"model": model.state_dict(), "update": update.state_dict()}, file)

    return fit(lambda: (model(x).float() - x).square().mean(), update, after=save)


@pair("step_jitter", "graph", "the whole graph is looked at once an epoch, not every 8", period=8)
def sage_evaluates_every_8(repaired: bool) -> Running:
    from torch_geometric.nn import SAGEConv

    width, nodes = size(256, 8), size(50_000, 50)
    first, second = SAGEConv(width, width).to(DEVICE), SAGEConv(width, 47).to(DEVICE)
    x, y = noise(nodes, width), labels(47, nodes)
    edges, every = labels(nodes, 2, nodes * 10), labels(nodes, 2, nodes * 40)

    def out(edge: Tensor) -> Tensor:
        return second(fn.relu(first(x, edge)), edge)

    def evaluate(number: int, _loss: Tensor) -> None:
        if number % (1000 if repaired else 8) == 6:
            with torch.no_grad():
                float((out(every).argmax(-1) == y).float().mean())

    return fit(
        lambda: fn.cross_entropy(out(edges), y), adam(first, second), bf16=False, after=evaluate
    )


# --- memory and copies ------------------------------------------------------------------------


@pair("cpu_offload", "recommender", "the table and its optimizer are on the device")
def table_on_cpu(repaired: bool) -> Running:
    place = DEVICE if repaired else torch.device("cpu")
    rows, batch, width = size(60_000, 50), size(8192, 8), size(64, 8)
    table = nn.EmbeddingBag(rows, width, mode="sum").to(place)
    top = plain(size(2048, 8), 6, width, 1).to(DEVICE)
    ids, y = torch.randint(0, rows, (batch, 12)).to(place), noise(batch, 1)
    update = sgd(table, top, fused=False, foreach=True)

    def loss_of() -> Tensor:
        return fn.mse_loss(top(table(ids).to(DEVICE)).float(), y)

    return fit(loss_of, update, bf16=False)


@pair("allocator_churn", "vision", "torch.cuda.empty_cache() is not called in the step")
def segmenter_empties_twice(repaired: bool) -> Running:
    side, batch = size(256, 16), size(12, 2)
    model = Segmenter(size(32, 4)).to(DEVICE)
    x, y = noise(batch, 3, side, side), labels(21, batch, side, side)

    def empty(*_: object) -> None:
        if CUDA and not repaired:
            torch.cuda.empty_cache()

    def loss_of() -> Tensor:
        loss = fn.cross_entropy(model(x).float(), y)
        empty()
        return loss

    return fit(loss_of, adam(model), after=empty)


@pair("blocking_copy", "vision", "the scores of the pixels stay on the device", marks="steps")
def pixel_scores_to_host(repaired: bool) -> Running:
    side, batch = size(256, 16), size(8, 2)
    model = Segmenter(size(48, 4)).to(DEVICE)
    x, y = noise(batch, 3, side, side), labels(21, batch, side, side)
    kept: list[Tensor] = []

    def loss_of() -> Tensor:
        scores = model(x).float()
        kept[:] = [scores.detach() if repaired else scores.detach().cpu()]
        return fn.cross_entropy(scores, y)

    return fit(loss_of, sgd(model))


@pair("layout_changes", "vision", "channels_last for model and images")
def vgg_channels_last(repaired: bool) -> Running:
    from torchvision.models import vgg13_bn

    model = vgg13_bn(num_classes=100, dropout=0.0).features.to(DEVICE)
    head = nn.Linear(512, 100).to(DEVICE)
    x, y = noise(size(48, 2), 3, size(160, 32), size(160, 32)), labels(100, size(48, 2))
    if repaired:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    return fit(lambda: fn.cross_entropy(head(model(x).mean((2, 3))).float(), y), sgd(model, head))


@pair("casts_and_copies", "language", "autocast keeps the weights that it has cast")
def universal_transformer_recasts(repaired: bool) -> Running:
    width = size(2048, 16)
    layer = encoder(width, 1, size(16, 2))
    x = noise(size(4, 2), size(256, 8), width)

    def loss_of() -> Tensor:
        h = x
        for _ in range(size(8, 2)):
            h = layer(h)
        return h.float().square().mean()

    return fit(loss_of, adam(layer), cached=repaired)


# --- the host ---------------------------------------------------------------------------------


@pair("host_sync", "vision", "histograms of the gradients stay on the device", marks="profiler")
def gradient_histograms_to_host(repaired: bool) -> Running:
    model = ConvMixer(size(384, 16), size(8, 2), 3).to(DEVICE)
    x, y = noise(size(64, 2), 3, size(224, 28), size(224, 28)), labels(100, size(64, 2))
    kept: dict[int, Tensor] = {}

    def look(_number: int, _loss: Tensor) -> None:
        for i, weight in enumerate(model.parameters()):
            if weight.grad is not None and weight.dim() == 4:
                counts = torch.histc(weight.grad, 64, -1.0, 1.0)
                kept[i] = counts if repaired else counts.cpu()

    return fit(lambda: fn.cross_entropy(model(x).float(), y), adam(model), after=look)


@pair("host_sync", "language", "lengths are numbers on the host, not read from the device")
def ragged_pooling_reads_lengths(repaired: bool) -> Running:
    batch, length, width = size(48, 3), size(512, 8), size(768, 16)
    model = encoder(width, size(4, 1), size(12, 2))
    head = nn.Linear(width, 20).to(DEVICE)
    on_host = [length - 3 * i % (length // 2) for i in range(batch)]
    lengths = torch.tensor(on_host, device=DEVICE)
    x, y = noise(batch, length, width), labels(20, batch)

    def loss_of() -> Tensor:
        h = model(x)
        each = on_host if repaired else (int(n) for n in lengths)
        means = [h[i, :n].mean(0) for i, n in enumerate(each)]
        return fn.cross_entropy(head(torch.stack(means)).float(), y)

    return fit(loss_of, adam(model, head), decay=True)


def distance(a: list[int], b: list[int]) -> int:
    """Changes that make one text the other."""
    row = list(range(len(b) + 1))
    for i, one in enumerate(a):
        last, row[0] = row[0], i + 1
        for j, other in enumerate(b):
            last, row[j + 1] = row[j + 1], min(row[j + 1] + 1, row[j] + 1, last + (one != other))
    return row[-1]


@pair("host_compute", "vision", "texts are compared every 100 steps", marks="phases")
def reader_edit_distances(repaired: bool) -> Running:
    width, batch = size(128, 8), size(64, 2)
    eye = nn.Sequential(
        nn.Conv2d(1, width, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, 1, 1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 4 * width, 3, 1, 1), nn.ReLU(), nn.MaxPool2d((8, 4)),
    ).to(DEVICE)  # fmt: skip
    rnn = nn.GRU(4 * width, 2 * width, batch_first=True).to(DEVICE)
    head = nn.Linear(2 * width, 64).to(DEVICE)
    x, y = noise(batch, 1, 32, size(512, 64)), labels(64, batch, size(32, 4))
    true = y.tolist()
    kept: list[Tensor] = []

    def loss_of() -> Tensor:
        scores = head(rnn(eye(x).flatten(2).transpose(1, 2))[0]).float()
        kept[:] = [scores.detach()]
        return fn.cross_entropy(scores.flatten(0, 1), y.flatten())

    def compare(number: int, _loss: Tensor) -> None:
        if not repaired or number % 100 == 99:
            read = kept[0][:32].argmax(-1).tolist()
            sum(distance(a, b) for a, b in zip(read, true[:32], strict=True))

    return fit(loss_of, adam(eye, rnn, head), after=compare)


@pair(
    "gil_contention", "vision", "what is logged is encoded by another process", record=("--waits",)
)
def thread_encodes_json(repaired: bool) -> Running:
    model = ConvMixer(size(256, 16), size(12, 2), 3).to(DEVICE)
    x, y = noise(size(16, 2), 3, size(112, 28), size(112, 28)), labels(100, size(16, 2))
    told = {f"layer{i}": [j / 7 for j in range(60)] for i in range(size(120, 2))}
    run = fit(lambda: fn.cross_entropy(model(x).float(), y), adam(model), clip=1.0)
    return run if repaired else beside(run, lambda: (json.dumps(told), time.sleep(0.004)))


# --- healthy ones -----------------------------------------------------------------------------


@pair("larger_batch", "vision", "twice the batch, where the GPU is busy already", samples=2.0)
def segmenter_busy_double_batch(repaired: bool) -> Running:
    side, batch = size(256, 16), size(32 if repaired else 16, 2)
    model = Segmenter(size(48, 4)).to(DEVICE)
    x, y = noise(batch, 3, side, side), labels(21, batch, side, side)
    return fit(lambda: fn.cross_entropy(model(x).float(), y), sgd(model), clip=5.0)


@pair("fused_optimizer", "language", "AdamW(fused=True) instead of multi-tensor kernels")
def micro_batches_foreach_fused(repaired: bool) -> Running:
    width = size(768, 16)
    model = encoder(width, size(3, 1), size(12, 2))
    x = noise(size(16, 2), size(512, 8), width)
    how = {} if repaired else {"fused": False, "foreach": True}
    return fit(lambda: (model(x).float() - x).square().mean(), adam(model, **how), micro=3)
