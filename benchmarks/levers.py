"""Measures what levers gain: unlike small models, each with one lever off and on, untraced.

usage: python3 benchmarks/levers.py OUTPUT_FOLDER [PAIR...]

Needs PyTorch and a GPU. Of each pair it prints one JSON line with the median step of both sides (of
``batch``: for the same number of samples), and writes a trace of the side without the lever, with
shapes, to OUTPUT_FOLDER/PAIR.json.gz, and of the side with it to OUTPUT_FOLDER/PAIR.on.json.gz.
``stepscope diagnose`` on the first must predict the step of the second.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as fn
from torch.profiler import ProfilerActivity, profile, schedule

Step = Callable[[], None]
WARMUP, MEASURED, TRACED = 12, 40, 6


class Block(nn.Module):
    """A transformer layer; attention and normalisation may be spelled out."""

    def __init__(self, width: int, heads: int, *, written: bool, spelled: bool) -> None:
        super().__init__()
        self.heads, self.written, self.spelled = heads, written, spelled
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def norm(self, layer: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
        if not self.spelled:
            return layer(x)
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6) * layer.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        qkv = self.qkv(self.norm(self.norm1, x)).view(b, t, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.written:
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        else:
            y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        h = self.up(self.norm(self.norm2, x))
        h = h * torch.sigmoid(1.702 * h) if self.spelled else fn.gelu(h)
        return x + self.down(h)


class Gpt(nn.Module):
    """A decoder-only language model."""

    def __init__(
        self,
        width: int = 1024,
        layers: int = 8,
        vocab: int = 16384,
        *,
        written: bool = False,
        spelled: bool = False,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        heads = width // 64
        self.layers = nn.Sequential(
            *(Block(width, heads, written=written, spelled=spelled) for _ in range(layers))
        )
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(x)))


class Gated(nn.Module):
    """A layer with a gated MLP, dropout, and norms of two kinds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, d // 64, 64).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + fn.dropout(self.out(y.transpose(1, 2).reshape(b, t, d)), 0.1)
        h = self.norm2(x)
        return x + fn.dropout(self.down(fn.silu(self.gate(h)) * self.up(h)), 0.1)


def language(
    model: nn.Module,
    *,
    batch: int = 16,
    length: int = 512,
    vocab: int = 16384,
    fused: bool = True,
    autocast: bool = True,
) -> Step:
    """Steps of a language model."""
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused, foreach=not fused)
    tokens = torch.randint(0, min(vocab, 16384), (batch, length + 1), device="cuda")

    def half() -> AbstractContextManager[object]:
        return torch.autocast("cuda", dtype=torch.bfloat16) if autocast else nullcontext()

    def step() -> None:
        with half():
            logits = model(tokens[:, :-1])
            loss = fn.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def images(*, channels_last: bool, batch: int = 128) -> Step:
    """Steps of a plain convolutional classifier in half precision."""
    parts: list[nn.Module] = []
    channels = 64
    for width, stride in ((128, 1), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        conv = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        parts += [conv, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        channels = width
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    model = model.cuda()
    x = torch.randn(batch, 64, 56, 56, device="cuda")
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = fn.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def precision(setting: str) -> None:
    """``highest``: single precision; ``high``: TF32."""
    torch.set_float32_matmul_precision(setting)
    torch.backends.cudnn.allow_tf32 = setting != "highest"


def _compiled(on: bool) -> Step:
    model = Gpt(layers=6, spelled=True)
    return language(torch.compile(model) if on else model)


def _gated(on: bool) -> Step:
    parts = [nn.Embedding(16000, 1024), *(Gated(1024) for _ in range(6))]
    model = nn.Sequential(*parts, nn.Linear(1024, 16000, bias=False))
    return language(torch.compile(model) if on else model, vocab=8192)


def _tf32(on: bool) -> Step:
    precision("high" if on else "highest")
    return language(Gpt(layers=6), autocast=False)


def _vocabulary(on: bool) -> Step:
    size = 50304 if on else 50257
    return language(Gpt(width=768, layers=4, vocab=size), vocab=size)


def _casts(on: bool) -> Step:
    model = Gpt(width=2048, layers=4)
    return language(model.bfloat16() if on else model, batch=4, autocast=not on)


SIDES: dict[str, Callable[[bool], Step]] = {
    "optimizer": lambda on: language(Gpt(), fused=on),
    "compile": _compiled,
    "gated": _gated,
    "tf32": _tf32,
    "bf16": lambda on: language(Gpt(layers=6), autocast=on),
    "vocab": _vocabulary,
    "attention": lambda on: language(Gpt(width=2048, layers=4, written=not on), batch=8),
    "channels_last": lambda on: images(channels_last=on),
    "casts": _casts,
    "batch": lambda on: language(Gpt(width=512, layers=6), batch=4 if on else 2, length=256),
}


def pair(name: str, *, on: bool) -> Step:
    """The steps of one side of a pair."""
    precision("high")
    return SIDES[name](on)


PAIRS = (
    *("optimizer", "compile", "gated", "tf32", "bf16"),
    *("vocab", "attention", "channels_last", "casts"),
)


def timed(step: Step) -> float:
    """Median of single steps, ms; the queue is drained only at the end."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(MEASURED + 1)]
    for _ in range(WARMUP):
        step()
    torch.cuda.synchronize()
    for mark in marks:
        mark.record()
        step()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks))


def traced(step: Step, file: Path) -> None:
    """A trace of some steps with shapes."""
    plan = schedule(wait=1, warmup=2, active=TRACED, repeat=1)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True, schedule=plan) as profiler:
        for _ in range(TRACED + 3):
            step()
            profiler.step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(file))


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or PAIRS:
        torch.manual_seed(0)
        torch._dynamo.reset()
        found: dict[str, object] = {"pair": name, "device": torch.cuda.get_device_name()}
        try:
            off = pair(name, on=False)
            found["off_ms"] = round(timed(off), 3)
            traced(off, folder / f"{name}.json.gz")
            del off
            torch.cuda.empty_cache()
            on = pair(name, on=True)
            took = timed(on)
            found["on_ms"] = round(took / 2 if name == "batch" else took, 3)
            traced(on, folder / f"{name}.on.json.gz")
            del on
        except Exception as error:  # the other pairs are measured all the same
            found["error"] = f"{type(error).__name__}: {error}"[:300]
        torch.cuda.empty_cache()
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
