"""Training jobs on two GPUs, each slow for one known reason and once more with that repaired.

``job_measure.py`` times and records them. Each is made in a process of every rank, once
``torch.distributed`` is initialised.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from program import SMALL, Program, Running
from torch import nn
from torch.nn import functional as fn
from torch.nn.parallel import DistributedDataParallel

Step = Callable[[int], None]

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
LAST = WORLD - 1
DEVICE = torch.device("cpu" if SMALL else f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
WIDTH, LAYERS, VOCAB, BATCH, LENGTH = (64, 2, 64, 2, 16) if SMALL else (1024, 6, 8192, 12, 512)
MS = 1e-4 if SMALL else 1e-3


# ---- models


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A decoder-only language model."""

    def __init__(self, layers: int = LAYERS, width: int = WIDTH) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Images(nn.Module):
    """A plain convolutional classifier."""

    def __init__(self, width: int = 16 if SMALL else 128) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        before = 3
        for place in range(6):
            after = width * 2 ** (place // 2)
            parts += [
                nn.Conv2d(before, after, 3, 1 + place % 2, 1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(inplace=True),
            ]
            before = after
        self.features = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classes = nn.Linear(before, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classes(self.features(x))


# ---- what the programs share


def half() -> torch.autocast:
    return torch.autocast(DEVICE.type, dtype=torch.bfloat16)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def tokens(length: int = LENGTH, batch: int = BATCH) -> torch.Tensor:
    return torch.randint(0, VOCAB, (batch, length + 1), device=DEVICE)


def loss_of(net: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    with half():
        out = net(batch[:, :-1])
        return fn.cross_entropy(out.flatten(0, 1).float(), batch[:, 1:].flatten())


def ddp(model: nn.Module, **options: object) -> DistributedDataParallel:
    ids = None if SMALL else [DEVICE.index]
    return DistributedDataParallel(model, device_ids=ids, **options)  # type: ignore[arg-type]


def update(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def python_work(ms: float) -> None:
    """Keep the interpreter busy."""
    end = time.perf_counter() + ms * MS
    while time.perf_counter() < end:
        sum(range(500))


def plain(
    model: nn.Module,
    *,
    before: Callable[[int], None] | None = None,
    after: Callable[[int], None] | None = None,
    rows: int = BATCH,
    **options: object,
) -> Step:
    """Steps of a language model under DDP, with something before and after each."""
    net, optimizer = ddp(model, **options), adamw(model)
    batch = tokens(batch=rows)

    def step(i: int) -> None:
        if before is not None:
            before(i)
        loss_of(net, batch).backward()
        update(optimizer)
        if after is not None:
            after(i)

    return step


# ---- a late rank


def late_input(repaired: bool) -> Step:
    """The last rank's storage is slow."""
    model = Images().to(DEVICE)
    net, optimizer = ddp(model), torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    size = 16 if SMALL else 112
    x = (
        torch.randn(BATCH * 16, 3, size, size).pin_memory()
        if not SMALL
        else torch.randn(4, 3, 16, 16)
    )
    y = torch.randint(0, 100, (len(x),), device=DEVICE)

    def step(i: int) -> None:
        if RANK == LAST and not repaired:
            time.sleep(18 * MS)
        images = x.to(DEVICE, non_blocking=True)
        with half():
            loss = fn.cross_entropy(net(images).float(), y)
        loss.backward()
        update(optimizer)

    return step


def late_host(repaired: bool) -> Step:
    """Rank 0 keeps books in Python in every step."""
    late = RANK == 0 and not repaired
    return plain(Gpt().to(DEVICE), after=lambda i: python_work(25) if late else None)


class Noise:
    """Another process that computes on this rank's GPU."""

    def __init__(self) -> None:
        hidden = ("CUDA_INJECTION", "NVTX_INJECTION", "STEPSCOPE", "LD_PRELOAD", "PYTHONPATH")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        words = [sys.executable, __file__, "noise"]
        self.process = subprocess.Popen(words, env=clean, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()  # it has begun

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def noise() -> None:
    """Matrix products for ever, as the other tenant of a GPU."""
    parent = os.getppid()
    print("begun", flush=True)
    a = torch.randn(WIDTH * 4, WIDTH * 4, device=DEVICE, dtype=torch.bfloat16)
    while os.getppid() == parent:
        for _ in range(20):
            a = (a @ a).clamp_(-1, 1)
        if not SMALL:
            torch.cuda.synchronize()


def shared_gpu(repaired: bool) -> Step:
    """Another process computes on the last rank's GPU."""
    if RANK == LAST and not repaired:
        STARTED.append(Noise())
    return plain(Gpt().to(DEVICE))


STARTED: list[Noise] = []


def extra_work(repaired: bool) -> Step:
    """The last rank evaluates a moving average of the model in every step."""
    model = Gpt().to(DEVICE)
    average = Gpt().to(DEVICE) if RANK == LAST and not repaired else None
    batch = tokens()

    def evaluate(i: int) -> None:
        if average is not None:
            with torch.no_grad():
                loss_of(average, batch)

    return plain(model, after=evaluate)


def rank0_logs(repaired: bool) -> Step:
    """Rank 0 reads the norm of every gradient back."""
    model = Gpt().to(DEVICE)
    net, optimizer = ddp(model), adamw(model)
    batch, logged = tokens(), []

    def step(i: int) -> None:
        loss_of(net, batch).backward()
        if RANK == 0 and not repaired:
            logged[:] = [p.grad.norm().item() for p in model.parameters() if p.grad is not None]
            python_work(6)
        update(optimizer)

    return step


# ---- uneven work


def uneven_lengths(repaired: bool) -> Step:
    """Every rank draws the length of its sequences by itself; repaired: the same mean length."""
    model = Gpt().to(DEVICE)
    net, optimizer = ddp(model), adamw(model)
    choice = torch.Generator().manual_seed(17 + (0 if repaired else RANK))
    sizes = [LENGTH // 4, LENGTH // 2, LENGTH, LENGTH * 3 // 2, LENGTH * 7 // 4]

    def step(i: int) -> None:
        size = sizes[int(torch.randint(len(sizes), (1,), generator=choice))]
        loss_of(net, tokens(size)).backward()
        update(optimizer)

    return step


class Experts(nn.Module):
    """Attention, then one expert a rank behind an all-to-all."""

    def __init__(self, width: int, hot: float) -> None:
        super().__init__()
        self.attend, self.norm = Layer(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.hot = hot

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attend(x)
        flat = self.norm(x).reshape(-1, x.shape[-1])
        first = int(len(flat) * self.hot)
        rest = len(flat) - first
        sent = [first] + [rest // (WORLD - 1)] * (WORLD - 1)
        sent[-1] += len(flat) - sum(sent)
        got = [sent[RANK]] * WORLD
        there = Exchange.apply(flat, sent, got)
        back = Exchange.apply(self.down(fn.gelu(self.up(there))), got, sent)
        return x + back.view_as(x)


class Exchange(torch.autograd.Function):
    """An all-to-all of rows; backward it goes the other way."""

    @staticmethod
    def forward(ctx, x, sent, got):  # type: ignore[no-untyped-def]
        ctx.sizes = sent, got
        out = x.new_empty(sum(got), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), got, sent)
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        sent, got = ctx.sizes
        out = grad.new_empty(sum(sent), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), sent, got)
        return out, None, None


def hot_expert(repaired: bool) -> Step:
    """Four fifths of the tokens go to the expert of rank 0."""
    share = 1 / WORLD if repaired else 0.8
    layers = nn.Sequential(*(Experts(WIDTH, share) for _ in range(4))).to(DEVICE)
    optimizer = adamw(layers)
    x = torch.randn(BATCH, LENGTH, WIDTH, device=DEVICE)

    def step(i: int) -> None:
        with half():
            loss = layers(x).float().pow(2).mean()
        loss.backward()
        for layer in layers:
            for p in layer.attend.parameters():
                dist.all_reduce(p.grad)
        update(optimizer)

    return step


# ---- communication


def small_buckets(repaired: bool) -> Step:
    """Gradients travel in very small pieces."""
    return plain(Gpt().to(DEVICE), bucket_cap_mb=25 if repaired else 0.05)


def one_bucket(repaired: bool) -> Step:
    """All gradients travel in one piece when the backward pass is over."""
    model = Gpt(width=WIDTH * 2).to(DEVICE)
    return plain(model, rows=BATCH // 3 or 1, bucket_cap_mb=25 if repaired else 100_000)


def no_overlap(repaired: bool) -> Step:
    """Gradients are summed one by one after the backward pass."""
    model = Gpt(width=WIDTH * 2).to(DEVICE)
    net, optimizer = ddp(model) if repaired else model, adamw(model)
    batch = tokens(batch=BATCH // 2)

    def step(i: int) -> None:
        loss_of(net, batch).backward()
        if not repaired:
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= WORLD
        update(optimizer)

    return step


def micro_batches(repaired: bool) -> Step:
    """Gradients of every one of four micro-batches are summed; repaired: only of the last."""
    model = Gpt(width=WIDTH * 2).to(DEVICE)
    net, optimizer = ddp(model), adamw(model)
    batch = tokens(batch=2)

    def step(i: int) -> None:
        for part in range(4):
            quiet = net.no_sync() if repaired and part < 3 else contextlib.nullcontext()
            with quiet:
                loss_of(net, batch).backward()
        update(optimizer)

    return step


def metrics(repaired: bool) -> Step:
    """The loss is summed over the ranks and read three times a step."""
    model = Gpt().to(DEVICE)
    net, optimizer = ddp(model), adamw(model)
    batch = tokens()
    seen = torch.zeros((), device=DEVICE)

    def step(i: int) -> None:
        loss = loss_of(net, batch)
        if repaired:
            seen.add_(loss.detach())
        else:
            tell(loss)
        loss.backward()
        if not repaired:
            for p in list(model.parameters())[:24]:
                tell(p.grad.abs().max())
        update(optimizer)

    def tell(value: torch.Tensor) -> float:
        value = value.detach().clone()
        dist.all_reduce(value)
        return float(value.item())

    return step


def fsdp(*, layers: int, each: bool, late_ms: float = 0.0, width: int = WIDTH) -> Step:
    """Sharded data parallel, each layer by itself or the model as a whole."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    model = Gpt(layers, width).to(DEVICE)
    if each:
        for layer in model.layers:
            fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not SMALL)
    batch = tokens()

    def step(i: int) -> None:
        if RANK == LAST and late_ms:
            python_work(late_ms)
        out = model(batch[:, :-1])
        fn.cross_entropy(out.flatten(0, 1).float(), batch[:, 1:].flatten()).backward()
        update(optimizer)

    return step


def fsdp_whole(repaired: bool) -> Step:
    """The whole model is one group, gathered before it computes."""
    return fsdp(layers=LAYERS, each=repaired, width=WIDTH * 2)


def fsdp_late(repaired: bool) -> Step:
    """Sharded, and the last rank is late by its host."""
    return fsdp(layers=LAYERS, each=True, late_ms=0 if repaired else 30)


def zero(repaired: bool) -> Step:
    """Each rank updates a part of the parameters and sends them, one by one or in one piece."""
    model = Gpt(width=WIDTH // 2 if not SMALL else WIDTH).to(DEVICE)
    net = ddp(model)
    parameters = list(model.parameters())
    owner = [place % WORLD for place in range(len(parameters))]
    mine = [p for p, rank in zip(parameters, owner, strict=True) if rank == RANK]
    optimizer = torch.optim.AdamW(mine, lr=1e-4, fused=True)
    batch = tokens()
    groups = [
        [p for p, o in zip(parameters, owner, strict=True) if o == rank] for rank in range(WORLD)
    ]

    def step(i: int) -> None:
        loss_of(net, batch).backward()
        optimizer.step()
        with torch.no_grad():
            if repaired:
                for rank, group in enumerate(groups):
                    flat = torch.cat([p.flatten() for p in group])
                    dist.broadcast(flat, rank)
                    parts = flat.split([p.numel() for p in group])
                    torch._foreach_copy_(
                        group, [v.view_as(p) for v, p in zip(parts, group, strict=True)]
                    )
            else:
                for p, rank in zip(parameters, owner, strict=True):
                    dist.broadcast(p, rank)
                    if p.dim() > 1:  # the program checks what it got
                        p.abs().max().item()
        model.zero_grad(set_to_none=True)

    return step


def tensor_parallel(repaired: bool) -> Step:
    """Row-parallel products are summed before anything else; repaired: beside the other half."""
    inner = 4 * WIDTH // WORLD
    up = [nn.Linear(WIDTH, inner, device=DEVICE, dtype=torch.bfloat16) for _ in range(2 * LAYERS)]
    down = [nn.Linear(inner, WIDTH, bias=False, device=DEVICE, dtype=torch.bfloat16) for _ in up]
    x = torch.randn(BATCH * 4 * LENGTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)

    def step(i: int) -> None:
        with torch.no_grad():
            parts = list(x.chunk(4)) if repaired else [x]
            waits: list[dist.Work | None] = [None] * len(parts)
            outs: list[torch.Tensor] = [torch.empty(0)] * len(parts)
            for first, second in zip(up, down, strict=True):
                for at in range(len(parts)):
                    wait = waits[at]
                    if wait is not None:
                        wait.wait()
                        parts[at] = parts[at] + outs[at]
                    outs[at] = second(fn.gelu(first(parts[at])))
                    waits[at] = dist.all_reduce(outs[at], async_op=True)
            for wait in waits:
                if wait is not None:
                    wait.wait()

    return step


# ---- a pipeline of the ranks


def pipeline(layers: list[int], micro: int) -> Step:
    """GPipe: all micro-batches forward, then all of them backward."""
    stage = nn.ModuleList(Layer(WIDTH) for _ in range(layers[RANK])).to(DEVICE)
    optimizer = adamw(stage)
    shape = (2 * BATCH // micro, LENGTH, WIDTH)
    inputs = torch.randn(shape, device=DEVICE)

    def step(i: int) -> None:
        kept = []
        for _ in range(micro):
            x = inputs.clone()
            if RANK > 0:
                dist.recv(x, RANK - 1)
            x.requires_grad_()
            with half():
                h = x
                for layer in stage:
                    h = layer(h)
            if RANK < LAST:
                dist.send(h.detach().float().contiguous(), RANK + 1)
            kept.append((x, h))
        for x, h in kept:
            if RANK < LAST:
                grad = torch.empty(shape, device=DEVICE)
                dist.recv(grad, RANK + 1)
                h.float().backward(grad)
            else:
                h.float().pow(2).mean().backward()
            if RANK > 0:
                dist.send(x.grad, RANK - 1)
        update(optimizer)

    return step


def uneven_stages(repaired: bool) -> Step:
    """The last stage has three quarters of the layers."""
    half_ = LAYERS if not SMALL else 2
    uneven = [half_ - half_ // 2] * LAST + [half_ + half_ // 2]
    return pipeline([half_] * WORLD if repaired else uneven, micro=8 if not SMALL else 4)


def few_micro_batches(repaired: bool) -> Step:
    """The batch is cut into two; repaired: into eight."""
    micro = (4 if SMALL else 8) if repaired else 2
    return pipeline([LAYERS] * WORLD, micro=micro)


# ---- now and then


def checkpoint(repaired: bool) -> Step:
    """Rank 0 saves the model in every fifth step, the others wait."""
    model = Gpt(width=WIDTH * 2).to(DEVICE)
    path = Path(f"/tmp/job_programs.{os.getpid()}.pt")

    def save(i: int) -> None:
        if RANK == 0 and not repaired and i % 5 == 4:
            torch.save({k: v.cpu() for k, v in model.state_dict().items()}, path)
            path.unlink()

    return plain(model, after=save)


def validation(repaired: bool) -> Step:
    """Rank 0 validates in every fourth step; repaired: every rank does its part of it."""
    model = Gpt().to(DEVICE)
    batch = tokens()

    def validate(i: int) -> None:
        if i % 4 == 3 and (RANK == 0 or repaired):
            with torch.no_grad():
                for _ in range(8 // WORLD if repaired else 8):
                    loss_of(model, batch)

    return plain(model, after=validate)


# ---- the exam


def making(build: Callable[[bool], Step]) -> Callable[[bool], Running]:
    """Number the steps, and end what a program started."""

    def make(repaired: bool) -> Running:
        begun = len(STARTED)
        step, count = build(repaired), iter(range(1 << 40))
        beside = STARTED[begun:]

        def enter() -> None:
            for one in beside:
                one.process.send_signal(signal.SIGCONT)

        def leave() -> None:
            for one in beside:
                one.process.send_signal(signal.SIGSTOP)

        def close() -> None:
            for one in beside:
                one.close()

        return Running(lambda: step(next(count)), enter, leave, close)

    return make


def job(
    build: Callable[[bool], Step],
    cause: str,
    repair: str,
    family: str = "language",
    period: int = 1,
) -> Program:
    """A program of two ranks, named as the function that builds it."""
    return Program(
        name=f"job_{build.__name__}",
        cause=cause,
        family=family,
        repair=repair,
        make=making(build),
        marks="steps",
        period=period,
        ranks=2,
    )


PROGRAMS = [
    job(late_input, "straggler", "the slow rank's input comes in time", "vision"),
    job(late_host, "straggler", "rank 0 keeps no books in the step"),
    job(shared_gpu, "straggler", "the other process is gone from the GPU"),
    job(extra_work, "load_imbalance", "the last rank evaluates nothing in the step"),
    job(rank0_logs, "straggler", "rank 0 does not read the gradients' norms"),
    job(uneven_lengths, "load_imbalance", "all ranks draw the same length"),
    job(hot_expert, "load_imbalance", "every expert gets as many tokens", "moe"),
    job(small_buckets, "exposed_communication", "buckets of 25 MB"),
    job(one_bucket, "exposed_communication", "buckets of 25 MB"),
    job(
        no_overlap, "exposed_communication", "DistributedDataParallel, which sums while it computes"
    ),
    job(micro_batches, "exposed_communication", "no_sync for all micro-batches but the last"),
    job(metrics, "host_sync", "the sum of losses stays on the device"),
    job(fsdp_whole, "exposed_communication", "fully_shard every layer"),
    job(fsdp_late, "straggler", "the last rank's host work is gone"),
    job(zero, "host_sync", "one broadcast a rank, and nothing is read back"),
    job(
        tensor_parallel,
        "exposed_communication",
        "a quarter of the batch is summed while another computes",
    ),
    job(uneven_stages, "load_imbalance", "as many layers on both stages"),
    job(few_micro_batches, "pipeline_bubble", "eight micro-batches instead of two"),
    job(checkpoint, "checkpoint_stall", "no checkpoint is written", period=5),
    job(validation, "step_jitter", "both ranks share the validation", period=4),
]

if __name__ == "__main__" and sys.argv[1:2] == ["noise"]:
    noise()
