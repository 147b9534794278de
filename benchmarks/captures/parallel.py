"""Small training runs on several GPUs (and compiled ones), each with one planted bottleneck.

usage: [torchrun --nproc_per_node=4] parallel.py SCENARIO [--capture none|nsys|torch] [--out PATH]

``TRUTH`` says which cause a diagnosis must name first, and on which rank. Prints one JSON line a
rank with the measured time a step. The last rank is the late one where one is planted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as fn

TRUTH = {
    "fsdp_healthy": "gpu_bound_healthy",
    "fsdp_late_rank": "straggler",
    "fsdp_small": "exposed_communication",
    "tensor_parallel": "exposed_communication",
    "pipeline": "exposed_communication",
    "ddp_lengths": "load_imbalance",
    "ddp_slow_gpu": "straggler",
    "ddp_all_late": "host_compute",
    "compile_healthy": "gpu_bound_healthy",
    "compile_recompiles": "compilation_or_warmup",
    "gil_one_thread": "gil_contention",
}

WIDTH, HEADS, VOCAB = 1024, 16, 8192

rank = int(os.environ.get("RANK", "0"))
world = int(os.environ.get("WORLD_SIZE", "1"))


class SumForward(torch.autograd.Function):
    """All-reduce in the forward pass, identity in the backward pass (row-parallel output)."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class SumBackward(torch.autograd.Function):
    """Identity in the forward pass, all-reduce in the backward pass (column-parallel input)."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Layer(nn.Module):
    """One pre-norm transformer layer; ``shards`` splits heads and hidden units over ranks."""

    def __init__(self, width: int, shards: int = 1) -> None:
        super().__init__()
        self.shards, self.heads, inner = shards, HEADS // shards, width // shards
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * inner), nn.Linear(inner, width, bias=False)
        self.up = nn.Linear(width, 4 * inner)
        self.down = nn.Linear(4 * inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        enter = SumBackward.apply if self.shards > 1 else lambda t: t
        leave = SumForward.apply if self.shards > 1 else lambda t: t
        b, t, _ = x.shape
        parts = self.qkv(enter(self.norm1(x))).view(b, t, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + leave(self.out(y.transpose(1, 2).reshape(b, t, -1)))
        return x + leave(self.down(fn.gelu(self.up(enter(self.norm2(x))))))


class Gpt(nn.Module):
    """A decoder-only language model."""

    def __init__(self, layers: int, width: int = WIDTH, shards: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.layers = nn.ModuleList(Layer(width, shards) for _ in range(layers))
        self.head = nn.Linear(width, VOCAB, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


def python_work(seconds: float) -> None:
    """Keep the interpreter busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(500))


def spin() -> None:
    while True:
        sum(range(200))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=sorted(TRUTH))
    parser.add_argument("--capture", default="none", choices=["none", "nsys", "torch"])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=6)
    parser.add_argument("--out", default="trace")
    args = parser.parse_args()
    s = args.scenario
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    batch, length, layers = (2, 128, 8) if s == "fsdp_small" else (12, 512, 8)
    shards = world if s == "tensor_parallel" else 1
    model: nn.Module = Gpt(2 if s == "pipeline" else layers, shards=shards).cuda()
    net: nn.Module = model
    if s.startswith("fsdp"):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        for layer in model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    elif s.startswith("ddp"):
        net = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
    elif s.startswith("compile"):
        net = torch.compile(model, dynamic=False)
    if s == "gil_one_thread":
        import threading

        threading.Thread(target=spin, daemon=True).start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(rank)

    @contextlib.contextmanager
    def annotated(name: str):
        recorded = contextlib.nullcontext()
        if args.capture == "torch":
            recorded = torch.profiler.record_function(name)
        with torch.cuda.nvtx.range(name), recorded:
            yield

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=not s.startswith("fsdp")):
            out = net(tokens[:, :-1])
        return fn.cross_entropy(out.reshape(-1, VOCAB).float(), tokens[:, 1:].reshape(-1))

    def pipeline_step(tokens: torch.Tensor) -> None:
        """GPipe over the ranks with four micro-batches."""
        micro = 4
        shape = (batch // micro, length, WIDTH)
        sent, received = [], []
        for part in tokens.chunk(micro):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                if rank == 0:
                    h = model.embed(part[:, :-1])
                else:
                    h = torch.empty(shape, device=device, requires_grad=True)
                    dist.recv(h.data, rank - 1)
                source = h
                for layer in model.layers:
                    h = layer(h)
                if rank == world - 1:
                    out = model.head(h)
                    flat = out.reshape(-1, VOCAB).float()
                    h = fn.cross_entropy(flat, part[:, 1:].reshape(-1)) / micro
                else:
                    h = h.float()
                    dist.send(h.detach().contiguous(), rank + 1)
            received.append(source)
            sent.append(h)
        for source, h in zip(received, sent, strict=True):
            if rank == world - 1:
                h.backward()
            else:
                grad = torch.empty(shape, device=device)
                dist.recv(grad, rank + 1)
                h.backward(grad)
            if rank > 0:
                dist.send(source.grad, rank - 1)

    def train(i: int) -> None:
        with annotated("load"):
            size = length
            if s == "ddp_lengths":
                size = int(torch.randint(128, 1025, (1,), generator=generator))
            if s == "compile_recompiles" and i >= args.warmup and (i - args.warmup) % 3 == 2:
                size = length + 32 * (i - args.warmup)
            tokens = torch.randint(0, VOCAB, (batch, size + 1), generator=generator)
            tokens = tokens.pin_memory().cuda(non_blocking=True)
        if s == "ddp_all_late" or (s == "fsdp_late_rank" and rank == world - 1):
            with annotated("bookkeeping"):
                python_work(0.02)
        if s == "pipeline":
            pipeline_step(tokens)
        else:
            with annotated("forward"):
                loss = loss_of(tokens)
            if s == "ddp_slow_gpu" and rank == world - 1:
                # the same kernels again: what a slow clock does to this rank's device
                with torch.no_grad():
                    loss_of(tokens)
            with annotated("backward"):
                loss.backward()
        with annotated("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    for i in range(args.warmup):
        train(i)
    torch.cuda.synchronize()
    profiler = None
    if args.capture == "torch":
        activity = torch.profiler.ProfilerActivity
        profiler = torch.profiler.profile(activities=[activity.CPU, activity.CUDA])
        profiler.__enter__()
    if args.capture == "nsys":
        torch.cuda.cudart().cudaProfilerStart()
    begin = time.perf_counter()
    for i in range(args.warmup, args.warmup + args.steps):
        with annotated(f"step_{i}"):
            train(i)
        if profiler:
            profiler.step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    if args.capture == "nsys":
        torch.cuda.cudart().cudaProfilerStop()
    if profiler:
        profiler.__exit__(None, None, None)
        ending = f".rank{rank}.json.gz" if world > 1 else ".json.gz"
        profiler.export_chrome_trace(args.out + ending)
    result = {
        "scenario": s,
        "truth": TRUTH[s],
        "capture": args.capture,
        "rank": rank,
        "ms_per_step": round(seconds / args.steps * 1e3, 3),
    }
    print(json.dumps(result), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
