"""Peaks of GPU memory of three unlike models, and captures from which they should be foreseen.

usage: memory_pairs.py OUTPUT_FOLDER [--device cpu]

Each configuration (model, batch, with or without activation checkpointing, sharding over a
pretended group of ranks) runs in a process of its own. ``peaks.jsonl`` tells what was measured;
beside it lie a trace of torch.profiler and a memory snapshot of each base run, snapshots of a run
out of memory, of a leak, of fragmentation and of expandable segments.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

WARM, MEASURED = 4, 3


class Block(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


class Layered(nn.Module):
    """Layers in a row, each of which may be checkpointed."""

    blocks: nn.ModuleList

    def through(self, x: torch.Tensor, again: bool) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return x


class Gpt(Layered):
    """A decoder-only language model."""

    def __init__(self, vocab: int = 8192, width: int = 512, layers: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, 8, True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, x: torch.Tensor, again: bool) -> torch.Tensor:
        return self.head(self.norm(self.through(self.embed(x), again)))


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        same = inner == outer and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.short(x))


class Resnet(Layered):
    """A small residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1), nn.BatchNorm2d(64), nn.ReLU())
        widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2),
                  (256, 256, 1), (256, 512, 2), (512, 512, 1)]  # fmt: skip
        self.blocks = nn.ModuleList(Residual(*w) for w in widths)
        self.head = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor, again: bool) -> torch.Tensor:
        return self.head(self.through(self.stem(x), again).mean((2, 3)))


class Wide(nn.Module):
    """A gated layer of a multi-layer perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down, self.drop = nn.Linear(2 * width, width), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(fn.silu(self.gate(x)) * self.up(x)))


class Mlp(Layered):
    """Much to learn and little that is kept: its peak is in the optimizer."""

    def __init__(self, width: int = 1536, layers: int = 6) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Wide(width) for _ in range(layers))
        self.head = nn.Linear(width, 100)

    def forward(self, x: torch.Tensor, again: bool) -> torch.Tensor:
        return self.head(self.through(x, again))


class Encoder(Layered):
    """Encoder layers of PyTorch's own, without autocast."""

    def __init__(self, width: int = 384, layers: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(2000, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 6, 4 * width, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, 20)

    def forward(self, x: torch.Tensor, again: bool) -> torch.Tensor:
        return self.head(self.through(self.embed(x), again).mean(1))


class Run:
    """A model, its optimizer and its batches."""

    def __init__(self, name: str, batch: int, again: bool, device: str) -> None:
        torch.manual_seed(0)
        self.name, self.again, self.device = name, again, device
        self.autocast = name == "gpt"
        small = 1 if device == "cuda" else 16
        if name == "gpt":
            model: nn.Module = Gpt()
            shape, high = (8 * batch // small or 1, 256), 8192
            self.batch = lambda: torch.randint(high, shape)
            make = partial(torch.optim.AdamW, lr=1e-4)
        elif name == "resnet":
            model = Resnet()
            self.batch = lambda: torch.randn(max(32 * batch // small, 1), 3, 64, 64)
            make = partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
        elif name == "mlp":
            model = Mlp()
            self.batch = lambda: torch.randn(512 * batch // small, 1536)
            make = partial(torch.optim.Adam, lr=1e-4)
        else:
            model = Encoder()
            self.batch = lambda: torch.randint(2000, (16 * batch // small or 1, 128))
            make = partial(torch.optim.Adam, lr=1e-4, fused=device == "cuda")
        self.model = model.to(device)
        self.make = make
        self.optimizer = make(self.model.parameters())

    def step(self) -> None:
        """One step of training."""
        with torch.profiler.record_function("dataload"):
            x = self.batch().to(self.device, non_blocking=True)
        cast = torch.autocast(self.device, torch.bfloat16, enabled=self.autocast)
        with torch.profiler.record_function("forward"), cast:
            y = self.model(x, self.again)
            if self.name == "gpt":
                loss = fn.cross_entropy(y[:, :-1].reshape(-1, y.shape[-1]), x[:, 1:].reshape(-1))
            else:
                loss = y.float().square().mean()
        with torch.profiler.record_function("backward"):
            loss.backward()
        with torch.profiler.record_function("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


def size_of(tensors: Iterable[object]) -> int:
    """Bytes of the storages of tensors on the GPU."""
    found = {}
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            local = getattr(tensor, "_local_tensor", tensor)
            found[local.data_ptr()] = local.untyped_storage().nbytes()
    return sum(found.values())


class Peaks:
    """What the allocator says; nothing of it without a GPU."""

    def __init__(self, device: str) -> None:
        self.on = device == "cuda"

    def reset(self) -> None:
        if self.on:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()

    def now(self) -> dict[str, int]:
        if not self.on:
            return {}
        torch.cuda.synchronize()
        return {
            "max_allocated": torch.cuda.max_memory_allocated(),
            "max_reserved": torch.cuda.max_memory_reserved(),
            "allocated": torch.cuda.memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
        }


def measure(o: argparse.Namespace) -> dict[str, object]:
    """The peak of some steps after a warm-up."""
    run, peaks = Run(o.model, o.batch, o.again, o.device), Peaks(o.device)
    for _ in range(WARM):
        run.step()
    peaks.reset()
    for _ in range(MEASURED):
        run.step()
    return {
        **peaks.now(),
        "parameter_bytes": size_of(run.model.parameters()),
        "buffer_bytes": size_of(run.model.buffers()),
        "optimizer_bytes": size_of(
            t for state in run.optimizer.state.values() for t in state.values()
            if isinstance(t, torch.Tensor) and t.device.type == o.device
        ),
    }  # fmt: skip


def profiled(o: argparse.Namespace) -> dict[str, object]:
    """Two steps under torch.profiler, and the peak in them."""
    from torch.profiler import ProfilerActivity, profile

    run, peaks = Run(o.model, o.batch, o.again, o.device), Peaks(o.device)
    for _ in range(WARM):
        run.step()
    stacks = o.kind == "stacks"
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if o.device == "cuda" else [])]
    peaks.reset()
    with profile(activities=kinds, profile_memory=True, record_shapes=True, with_stack=stacks) as p:
        for number in range(2):
            with torch.profiler.record_function(f"ProfilerStep#{number}"):
                run.step()
            if number == 0 and stacks:
                break
        found = peaks.now()
    name = f"{o.out}/{o.name}.{o.kind}.json"
    p.export_chrome_trace(name)
    pack(name)
    if stacks:
        with contextlib.suppress(Exception):
            p.export_memory_timeline(f"{o.out}/{o.name}.categories.raw.json.gz", o.device)
    return found


def snapshot(o: argparse.Namespace) -> dict[str, object]:
    """The history of the allocator from the model's making on."""
    peaks = Peaks(o.device)
    torch.cuda.memory._record_memory_history(max_entries=60_000, context="alloc", stacks="python")
    peaks.reset()
    run = Run(o.model, o.batch, o.again, o.device)
    for _ in range(3):
        run.step()
    found = peaks.now()
    dump(f"{o.out}/{o.name}.snapshot.pickle")
    return found


def pack(name: str) -> None:
    """Compress a file."""
    with Path(name).open("rb") as raw, gzip.open(f"{name}.gz", "wb", 9) as packed:
        shutil.copyfileobj(raw, packed)
    Path(name).unlink()


def dump(name: str) -> None:
    """A snapshot, and what the allocator counts at the same moment."""
    torch.cuda.memory._dump_snapshot(name)
    Path(f"{name}.stats.json").write_text(json.dumps(dict(torch.cuda.memory_stats())))
    pack(name)


def oom(o: argparse.Namespace) -> dict[str, object]:
    """A batch that does not fit into the share of the GPU that the process may use."""
    torch.cuda.memory._record_memory_history(max_entries=60_000, context="all", stacks="python")
    run, peaks = Run("gpt", 1, False, o.device), Peaks(o.device)
    run.step()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 600 * 2**20) / total)
    run = Run("gpt", 6, False, o.device)
    message = ""
    try:
        run.step()
    except torch.OutOfMemoryError as error:
        message = str(error)
    dump(f"{o.out}/oom.snapshot.pickle")
    return {**peaks.now(), "message": message}


def leak(o: argparse.Namespace) -> dict[str, object]:
    """Each step keeps an activation of 3 MiB; traced and in a snapshot."""
    from torch.profiler import ProfilerActivity, profile

    run, kept = Run("mlp", 1, False, o.device), []
    torch.cuda.memory._record_memory_history(max_entries=60_000, context="alloc", stacks="python")
    run.model.blocks[2].register_forward_hook(lambda _, __, y: kept.append(y.detach()))
    for _ in range(3):
        run.step()
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=kinds, profile_memory=True) as p:
        for number in range(8):
            with torch.profiler.record_function(f"ProfilerStep#{number}"):
                run.step()
    name = f"{o.out}/leak.plain.json"
    p.export_chrome_trace(name)
    pack(name)
    dump(f"{o.out}/leak.snapshot.pickle")
    return {"bytes_per_step": kept[0].untyped_storage().nbytes()}


def fragments(o: argparse.Namespace) -> dict[str, object]:
    """Batches of many lengths leave free blocks that fit nothing."""
    torch.cuda.memory._record_memory_history(max_entries=60_000, context="alloc", stacks="python")
    kept = []
    for number in range(60):
        held = [torch.empty((3 + number % 7 + i) * 2**20, device="cuda", dtype=torch.uint8)
                for i in range(12)]  # fmt: skip
        if number % 6 == 0:
            kept.append(held[5])
        del held
    dump(f"{o.out}/{o.name}.snapshot.pickle")
    return Peaks(o.device).now()


def sharded(o: argparse.Namespace) -> dict[str, object]:
    """A pretended group of ranks: its collectives move nothing, its memory is real."""
    import torch.distributed as dist

    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=o.ranks)
    run, peaks = Run(o.model, 1, False, o.device), Peaks(o.device)
    plain = run.model
    if o.kind == "zero1":  # a pretended group answers DistributedDataParallel with nothing
        from torch.distributed.optim import ZeroRedundancyOptimizer

        if "WORLD_SIZE" in os.environ:
            run.model = nn.parallel.DistributedDataParallel(plain, gradient_as_bucket_view=True)
        made = run.make
        run.optimizer = ZeroRedundancyOptimizer(
            plain.parameters(), optimizer_class=made.func, **made.keywords
        )
    else:
        from torch.distributed.fsdp import fully_shard

        for block in plain.blocks:
            fully_shard(block, reshard_after_forward=o.kind == "zero3")
        fully_shard(plain, reshard_after_forward=o.kind == "zero3")
        run.optimizer = run.make(plain.parameters())
    for _ in range(WARM):
        run.step()
    peaks.reset()
    for _ in range(MEASURED):
        run.step()
    return peaks.now()


KINDS = {"measure": measure, "plain": profiled, "stacks": profiled, "snapshot": snapshot,
         "oom": oom, "leak": leak, "fragments": fragments, "expandable": fragments,
         "expandable_run": snapshot,
         **{f"zero{i}": sharded for i in (1, 2, 3)}}  # fmt: skip
MODELS = ("gpt", "resnet", "mlp", "encoder")


def everything(device: str) -> list[list[str]]:
    """The arguments of each process."""
    jobs = []
    for model in MODELS:
        for batch in (1, 2):
            for again in (0, 1):
                base = ["--model", model, "--batch", str(batch), "--again", str(again)]
                jobs += [["measure", *base], ["plain", *base]]
                if device == "cuda":
                    jobs.append(["snapshot", *base])
        jobs.append(["measure", "--model", model, "--batch", "4"])
        jobs.append(["stacks", "--model", model])
    if device == "cuda":
        jobs += [[kind] for kind in ("oom", "leak", "fragments", "expandable")]
        jobs.append(["expandable_run", "--model", "mlp"])
        for model in ("gpt", "mlp", "encoder"):
            jobs += [[f"zero{i}", "--model", model, "--ranks", str(n)]
                     for i in (1, 2, 3) for n in (2, 8)]  # fmt: skip
    return jobs


def one(arguments: list[str], out: str, device: str) -> str:
    """Run one configuration; what it measured as a line, or why it did not."""
    environment = dict(os.environ)
    if arguments[0].startswith("expandable"):
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    command = [sys.executable, __file__, out, "--kind", *arguments, "--device", device]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=240, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return json.dumps({"failed": arguments, "why": done.stderr[-600:]})
    return lines[-1]


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--device", default="cuda")
    p.add_argument("--kind", choices=KINDS, default="")
    p.add_argument("--model", default="")
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--again", type=int, default=0)
    p.add_argument("--ranks", type=int, default=1)
    o = p.parse_args()
    if o.kind:
        o.name = f"{o.model or o.kind}.b{o.batch}" + ".again" * o.again
        if o.kind.startswith("expandable"):
            o.name = o.kind
        found = KINDS[o.kind](o)
        facts = {"kind": o.kind, "model": o.model, "batch": o.batch, "again": bool(o.again),
                "ranks": o.ranks, "torch": torch.__version__}  # fmt: skip
        if o.device == "cuda":
            facts["device"] = torch.cuda.get_device_name()
            facts["cudnn"] = torch.backends.cudnn.version()
        if int(os.environ.get("RANK", "0")) == 0:
            print(json.dumps({**facts, **found}), flush=True)
        return
    Path(o.out).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(5 if o.device == "cuda" else 1) as pool:
        run = partial(one, out=o.out, device=o.device)
        with (Path(o.out) / "peaks.jsonl").open("w") as peaks:
            for line in pool.map(run, everything(o.device)):
                peaks.write(line + "\n")
                peaks.flush()
                print(line[:300], flush=True)


if __name__ == "__main__":
    main()
