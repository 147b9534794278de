"""Small training runs, each with one planted bottleneck, to make labelled captures on a GPU.

usage: workloads.py SCENARIO [--capture none|nsys|torch] [--steps N] [--out PATH] [--annotate 0|1]

The name of a scenario says the model and the plant; ``TRUTH`` says which cause must come first.
Prints one JSON line with the measured time a step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as fn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "cnn_small": "launch_bound",
    "cnn_workers": "input_starvation",
    "cnn_disk": "input_starvation",
    "cnn_cpu_out": "blocking_copy",
    "gpt_healthy": "gpu_bound_healthy",
    "gpt_accumulate": "gpu_bound_healthy",
    "gpt_graph": "gpu_bound_healthy",
    "gpt_sync_layers": "host_sync",
    "gpt_mask_select": "host_sync",
    "gpt_metrics": "host_compute",
    "gpt_tokenize": "input_starvation",
    "gpt_pageable": "blocking_copy",
    "lstm_tiny": "launch_bound",
    "mlp_tiny": "launch_bound",
}
"""Scenario -> the cause that a diagnosis must name first."""


class Attention(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, width: int, heads: int, sync: bool, select: bool) -> None:
        super().__init__()
        self.heads, self.sync, self.select = heads, sync, select
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        if self.select:  # a data-dependent shape makes the host wait for the GPU
            keep = x.abs().amax(-1) > 1e-3
            x = x + 0 * x[keep].mean()
        if self.sync:
            torch.cuda.synchronize()
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A decoder-only language model."""

    def __init__(self, scenario: str, width: int = 1536, layers: int = 10, vocab: int = 16384):
        super().__init__()
        sync, select = scenario == "gpt_sync_layers", scenario == "gpt_mask_select"
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Attention(width, 12, sync, select) for _ in range(layers))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


def cnn() -> nn.Module:
    """A plain convolutional classifier."""
    parts: list[nn.Module] = []
    channels = 3
    for width, stride in [(64, 1), (128, 2), (256, 2), (256, 1), (512, 2), (512, 1)]:
        parts += [
            nn.Conv2d(channels, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
        channels = width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Lstm(nn.Module):
    """A hand-written recurrent cell: thousands of tiny kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(64, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.shape[0], 64, device=x.device)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return self.head(h)


class Samples(Dataset):
    """Random samples whose cost is the plant."""

    def __init__(self, scenario: str) -> None:
        self.scenario = scenario

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, i: int):
        s = self.scenario
        if s.startswith("gpt"):
            return torch.randint(0, 16384, (513,)), 0
        if s.startswith(("lstm", "mlp")):
            return torch.randn(24, 64), i % 10
        if s == "cnn_workers":
            a = np.random.rand(40_000)
            a.sort()
        if s == "cnn_disk":
            time.sleep(0.0004)  # a slow disk
        return torch.randn(3, 64, 64), i % 1000


WORDS = {f"w{i}": i % 16384 for i in range(50_000)}


def tokenize(batch: int) -> torch.Tensor:
    """Python tokenisation of a batch, on the training thread."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(batch):
        text = " ".join(f"w{i}" for i in rng.integers(0, 50_000, 4000))
        rows.append([WORDS[w] for w in text.split()][:513])
    return torch.tensor(rows).pin_memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=sorted(TRUTH))
    parser.add_argument("--capture", default="none", choices=["none", "nsys", "torch"])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=8)
    parser.add_argument("--annotate", type=int, default=0)
    parser.add_argument("--out", default="trace.json.gz")
    args = parser.parse_args()
    s = args.scenario
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

    kind = s.split("_")[0]
    batch = {"cnn": 256, "gpt": 12, "lstm": 16, "mlp": 32}[kind]
    if kind == "gpt":
        model: nn.Module = Gpt(s)
    elif kind == "cnn":
        model = cnn().to(memory_format=torch.channels_last)
    elif kind == "lstm":
        model = Lstm()
    else:
        layers = [m for _ in range(40) for m in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
        model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(24 * 64, 10))
    model = model.cuda()
    optimizer = (
        torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        if kind == "cnn"
        else (
            torch.optim.AdamW(
                model.parameters(), lr=1e-4, fused=kind == "gpt", capturable=s == "gpt_graph"
            )
        )
    )
    workers = {"cnn_workers": 2, "cnn_disk": 0}.get(s, 6)
    loader = DataLoader(
        Samples(s),
        batch_size=batch,
        num_workers=workers,
        pin_memory=s != "gpt_pageable",
        persistent_workers=workers > 0,
    )
    iterator = iter(loader)
    pageable = [torch.randn(8 * 1024 * 1024) for _ in range(6)] if s == "gpt_pageable" else []

    def annotated(name: str):
        if not args.annotate:
            return contextlib.nullcontext()
        stack = contextlib.ExitStack()
        stack.enter_context(torch.cuda.nvtx.range(name))
        if args.capture == "torch":
            stack.enter_context(torch.profiler.record_function(name))
        return stack

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(x)
        target = (x[:, 1:].reshape(-1)) if kind == "gpt" else y
        logits = out[:, :-1].reshape(-1, out.shape[-1]) if kind == "gpt" else out
        return fn.cross_entropy(logits.float(), target), out

    graph = static = None

    def train(i: int) -> None:
        nonlocal graph, static
        with annotated("get_batch"):
            if s == "gpt_tokenize":
                x, y = tokenize(batch), None
            else:
                x, y = next(iterator)
        with annotated("to_device"):
            x = x.cuda(non_blocking=True)
            y = y.cuda(non_blocking=True) if y is not None else None
            if kind == "cnn":
                x = x.to(memory_format=torch.channels_last)
            for extra in pageable:
                extra.cuda()
        if s == "gpt_graph":
            if static is None:
                static = x.clone()
                side = torch.cuda.Stream()
                with torch.cuda.stream(side):
                    for _ in range(3):
                        optimizer.zero_grad(set_to_none=True)
                        loss_of(static, y)[0].backward()
                        optimizer.step()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                optimizer.zero_grad(set_to_none=True)
                with torch.cuda.graph(graph):
                    loss_of(static, y)[0].backward()
                    optimizer.step()
            static.copy_(x)
            graph.replay()
            return
        micro = 4 if s == "gpt_accumulate" else 1
        for _ in range(micro):
            with annotated("forward"):
                loss, out = loss_of(x, y)
            with annotated("backward"):
                (loss / micro).backward()
        with annotated("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if s == "cnn_cpu_out":
            keep = [p.detach().float().cpu() for p in (x, x * 2, x * 3, out)]
            assert len(keep) == 4
        if s == "gpt_metrics":
            with annotated("metrics"):
                table: dict[int, int] = {}
                for j in range(400_000):
                    table[j % 977] = table.get(j % 977, 0) + j

    for i in range(args.warmup):
        train(i)
    torch.cuda.synchronize()
    profiler = None
    if args.capture == "torch":
        profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        )
        profiler.__enter__()
    if args.capture == "nsys":
        torch.cuda.cudart().cudaProfilerStart()
    begin = time.perf_counter()
    for i in range(args.steps):
        with annotated(f"iteration {i}"):
            train(i)
        if profiler:
            profiler.step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    if args.capture == "nsys":
        torch.cuda.cudart().cudaProfilerStop()
    if profiler:
        profiler.__exit__(None, None, None)
        profiler.export_chrome_trace(args.out)
    result = {
        "scenario": s,
        "truth": TRUTH[s],
        "capture": args.capture,
        "annotate": args.annotate,
        "ms_per_step": round(seconds / args.steps * 1e3, 3),
    }
    print(json.dumps(result), flush=True)
    if workers:
        iterator._shutdown_workers()


if __name__ == "__main__":
    main()
