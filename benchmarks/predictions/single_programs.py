"""Programs of the exam for one GPU."""

from __future__ import annotations

import gc
import io
import json
import math
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from models import (
    DEVICE,
    Decoder,
    Gnn,
    Gpt,
    Lstm,
    Moe,
    Recommender,
    Unet,
    Vit,
    classified,
    endless,
    graphed,
    half,
    images,
    made_optimizer,
    mlp,
    next_token,
    precision,
    resnet,
    size,
    tokens,
    training,
)  # fmt: skip
from program import SMALL, Marks, Program, Running
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Program] = []


class Entering(Protocol):
    """What makes a program of a function that builds its sides."""

    def __call__(
        self,
        cause: str,
        family: str,
        repair: str,
        *,
        others: tuple[str, ...] = (),
        marks: Marks = "none",
        period: int = 1,
        samples: float = 1.0,
        record: tuple[str, ...] = (),
        compiles: bool = False,
    ) -> Callable[[Callable[[bool], Running]], Callable[[bool], Running]]: ...


def entered(programs: list[Program]) -> Entering:
    """A decorator that enters a function as a program of its name."""

    def pair(
        cause: str, family: str, repair: str, **more: Any
    ) -> Callable[[Callable[[bool], Running]], Callable[[bool], Running]]:
        def enter(make: Callable[[bool], Running]) -> Callable[[bool], Running]:
            programs.append(Program(make.__name__, cause, family, repair, make, **more))
            return make

        return enter

    return pair


pair = entered(PROGRAMS)


def spin(milliseconds: float) -> int:
    """Python work of about so long, in bytecode."""
    end, total = time.perf_counter() + milliseconds / 1e3, 0
    while time.perf_counter() < end:
        for i in range(200):
            total += i & 3
    return total


def gpt(width: int = 512, layers: int = 4, **options: Any) -> nn.Module:
    return Gpt(size(width, 64), size(layers, 2), size(8192, 128), **options).to(DEVICE)


def text(batch: int, length: int) -> Tensor:
    return tokens(size(batch, 2), size(length, 16), size(8192, 128))


def fixed(value: Any) -> Callable[[], Any]:
    return lambda: value


# --- input ------------------------------------------------------------------------------------


class Augmented(Dataset[tuple[Tensor, int]]):
    """Images that are made by NumPy: so many passes over each."""

    def __init__(self, side: int, passes: int, sleep_ms: float = 0.0) -> None:
        self.side, self.passes, self.sleep_ms = side, passes, sleep_ms

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.sleep_ms:
            time.sleep(self.sleep_ms / 1e3)
        rng = np.random.default_rng(index)
        x = rng.standard_normal((3, self.side, self.side), dtype=np.float32)
        for _ in range(self.passes):
            x = np.ascontiguousarray(x[:, :, ::-1]) * 1.01 + 0.01
            x = (x - x.mean()) / (x.std() + 1e-5)
        return torch.from_numpy(x), index % 10


def ahead(following: Callable[[], Any], batches: int) -> Callable[[], Any]:
    """So many batches may be ready before they are asked for."""
    following.ahead = batches  # type: ignore[attr-defined]
    return following


def loaded(data: Dataset[Any], batch: int, workers: int) -> Callable[[], Any]:
    """The next batch of a DataLoader, on the device."""
    more: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 2} if workers else {}
    pin = DEVICE.type == "cuda"
    loader = DataLoader(
        data, batch, num_workers=size(workers, min(workers, 1)), pin_memory=pin, **more
    )
    batches = endless(loader)

    def following() -> Any:
        return tuple(part.to(DEVICE, non_blocking=True) for part in next(batches))

    return ahead(following, 2 * workers)


@pair("input_starvation", "vision", "the DataLoader gets 12 workers instead of none")
def resnet_loader_main(repaired: bool) -> Running:
    data = Augmented(size(160, 32), 2)
    batches = loaded(data, size(32, 2), 12 if repaired else 0)
    return training(resnet(size(64, 8)).to(DEVICE), batches, classified)


@pair("input_starvation", "vision", "12 workers instead of 2", marks="profiler")
def vit_two_workers(repaired: bool) -> Running:
    batches = loaded(Augmented(size(224, 32), 3), size(32, 2), 12 if repaired else 2)
    return training(Vit(size(384, 64), size(8, 2)).to(DEVICE), batches, classified)


@pair(
    "input_starvation",
    "vision",
    "10 workers instead of 1: the storage is slow, not the CPU",
    marks="phases",
)
def resnet_slow_storage(repaired: bool) -> Running:
    data = Augmented(size(128, 32), 0, sleep_ms=1.5)
    batches = loaded(data, size(32, 2), 10 if repaired else 1)
    return training(resnet(size(96, 8)).to(DEVICE), batches, classified, kind="fp32")


class Documents(Dataset[Tensor]):
    """Texts that Python splits and pads, word by word."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.words = [f"word{i % 977}" for i in range(4 * length)]

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor]:
        text = " ".join(self.words[index % 97 : index % 97 + self.length + 1])
        ids = [sum(map(ord, word)) % 4000 % size(4000, 100) for word in text.split()]
        return (torch.tensor(ids[: self.length + 1] + [0] * (self.length + 1 - len(ids))),)


@pair(
    "input_starvation", "language", "texts are split in 8 workers instead of on the training thread"
)
def encoder_tokenise_main(repaired: bool) -> Running:
    data = Documents(size(256, 16))
    model = gpt(512, 4, causal=False)
    if repaired:
        batches = loaded(data, size(32, 2), 8)
        return training(model, ahead(lambda: batches()[0], 16), next_token)
    number = 0

    def by_hand() -> Tensor:
        nonlocal number
        rows = []
        for _ in range(size(32, 2)):
            rows.append(data[number][0])
            number += 1
        return torch.stack(rows).to(DEVICE)

    return training(model, by_hand, next_token)


def graph_sample(nodes: int, degree: int, seed: int) -> tuple[np.ndarray[Any, Any], ...]:
    rng = np.random.default_rng(seed)
    source = rng.integers(0, nodes, nodes * degree)
    target = np.sort(rng.integers(0, nodes, nodes * degree))
    source = source[np.argsort(source[rng.permutation(len(source))], kind="stable")]
    return source, target


class Neighbourhoods(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        source, target = graph_sample(size(16384, 64), 8, index)
        return torch.from_numpy(source), torch.from_numpy(target)


def gnn_of(
    batches: Callable[[], Any], width: int = 256, chain: bool = False, **how: Any
) -> Running:
    nodes = size(16384, 64)
    x = torch.randn(nodes, size(width, 16), device=DEVICE)
    y = torch.randint(0, 40, (nodes,), device=DEVICE)

    def loss_of(model: nn.Module, edges: tuple[Tensor, Tensor]) -> Tensor:
        weight = torch.ones(len(edges[0]), 1, device=DEVICE)
        return fn.cross_entropy(model(x, *edges, weight).float(), y)

    model = how.pop("model", None) or Gnn(size(width, 16), 3, chain=chain).to(DEVICE)
    return training(model, batches, loss_of, **how)


@pair(
    "input_starvation",
    "graph",
    "neighbours are sampled in 8 workers instead of before each step",
    marks="steps",
)
def gnn_sample_main(repaired: bool) -> Running:
    data = Neighbourhoods()
    if repaired:
        loader = endless(
            DataLoader(
                data,
                None,
                num_workers=size(8, 1),
                persistent_workers=True,
                pin_memory=DEVICE.type == "cuda",
            )
        )
        return gnn_of(
            ahead(lambda: tuple(p.to(DEVICE, non_blocking=True) for p in next(loader)), 16),
            kind="fp32",
        )
    number = 0

    def by_hand() -> Any:
        nonlocal number
        number += 1
        return tuple(part.to(DEVICE) for part in data[number])

    return gnn_of(by_hand, kind="fp32")


# --- the host waits ---------------------------------------------------------------------------


@pair(
    "host_sync", "language", "the norms of layers stay on the device and are not read in the step"
)
def gpt_item_each_layer(repaired: bool) -> Running:
    model = gpt(768, 8, head=64)
    seen: list[float] = []
    if not repaired:
        for layer in model.layers:
            layer.register_forward_hook(lambda _m, _i, out: seen.append(out.detach().norm().item()))
    else:
        kept: dict[int, Tensor] = {}
        for number, layer in enumerate(model.layers):
            layer.register_forward_hook(
                lambda _m, _i, out, number=number: kept.__setitem__(number, out.detach().norm())
            )
    return training(model, fixed(text(4, 512)), next_token)


@pair(
    "host_sync", "vision", "clip_grad_norm_ instead of an item() for each parameter", marks="steps"
)
def resnet_item_each_gradient(repaired: bool) -> Running:
    model = resnet(size(64, 8), 2).to(DEVICE)
    data = images(size(64, 2), size(128, 32))

    def clip(_step: int, _loss: Tensor) -> None:
        if repaired:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            return
        total = sum(p.grad.norm().item() ** 2 for p in model.parameters() if p.grad is not None)
        scale = min(1.0, 1.0 / (math.sqrt(total) + 1e-6))
        torch._foreach_mul_([p.grad for p in model.parameters() if p.grad is not None], scale)

    return training(model, fixed(data), classified, after_backward=clip)


@pair("host_sync", "moe", "tokens go to experts by a sort into equal shares instead of nonzero()")
def moe_nonzero(repaired: bool) -> Running:
    model = Moe(size(512, 32), 8, size(4, 2), size(4096, 128), masks=not repaired).to(DEVICE)
    return training(model, fixed(tokens(size(8, 2), size(512, 16), size(4096, 128))), next_token)


@pair("host_sync", "rl", "the actions of the rollout stay on the device")
def rl_item_actions(repaired: bool) -> Running:
    policy = mlp(size(256, 16), 2, 32, 8).to(DEVICE)
    update = made_optimizer(policy.parameters(), "foreach")
    state0 = torch.randn(64, 32, device=DEVICE)
    push = torch.randn(8, 32, device=DEVICE)

    def step() -> None:
        state, losses, total = state0, [], 0.0
        for _ in range(16):
            logits = policy(state)
            action = logits.argmax(-1)
            losses.append(fn.log_softmax(logits, -1).gather(1, action[:, None]).mean())
            state = (state + 0.1 * push[action]).tanh()
            if not repaired:
                total += float(state.mean().item())
        (-torch.stack(losses).mean()).backward()
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


@pair(
    "host_sync", "diffusion", "torch.cuda.synchronize() after each phase is removed", marks="phases"
)
def unet_synchronize(repaired: bool) -> Running:
    model = Unet(size(64, 8)).to(DEVICE)
    x = torch.randn(size(16, 2), 4, size(64, 16), size(64, 16), device=DEVICE)

    def wait(*_: object) -> None:
        if not repaired and DEVICE.type == "cuda":
            torch.cuda.synchronize()

    return training(
        model, fixed(x), denoised, after_forward=wait, after_backward=wait, after_step=wait
    )


def denoised(model: nn.Module, x: Tensor) -> Tensor:
    noise = torch.randn_like(x)
    t = torch.rand(x.shape[0], device=x.device)
    return fn.mse_loss(model(x + t[:, None, None, None] * noise, t).float(), noise)


@pair(
    "host_sync",
    "vision",
    "finite gradients are checked by one number on the device, not read in the step",
)
def vit_isfinite_each_gradient(repaired: bool) -> Running:
    model = Vit(size(512, 64), size(6, 2)).to(DEVICE)
    bad = torch.zeros((), device=DEVICE)

    def check(_step: int, _loss: Tensor) -> None:
        for p in model.parameters():
            if p.grad is None:
                continue
            if repaired:
                bad.add_((~torch.isfinite(p.grad)).any())
            elif not torch.isfinite(p.grad).all():
                raise ValueError("a gradient is not finite")

    return training(
        model, fixed(images(size(32, 2), size(224, 32))), classified, after_backward=check
    )


@pair(
    "host_sync", "language", "the loss is printed every 100 steps instead of each", marks="profiler"
)
def lstm_print_loss(repaired: bool) -> Running:
    model = Lstm(size(512, 16), 2, size(8192, 128)).to(DEVICE)
    sink = io.StringIO()

    def show(number: int, loss: Tensor) -> None:
        if not repaired or number % 100 == 99:
            sink.write(f"step {number}: loss {loss.item():.4f}\n")

    return training(
        model, fixed(text(16, 64)), next_token, after_step=show, kind="fp32", optimizer="foreach"
    )


# --- the host works ---------------------------------------------------------------------------


@pair(
    "host_compute",
    "language",
    "the accuracy is computed on the device and read seldom",
    marks="phases",
)
def encoder_python_metric(repaired: bool) -> Running:
    model = gpt(512, 4, causal=False)
    batch = text(16, 256)
    counts: dict[int, int] = {}

    def loss_of(net: nn.Module, x: Tensor) -> Tensor:
        logits = net(x[:, :-1])
        if repaired:
            (logits.argmax(-1) == x[:, 1:]).float().mean()
        else:
            for guessed, true in zip(
                logits.argmax(-1).flatten().tolist(), x[:, 1:].flatten().tolist(), strict=True
            ):
                for _ in range(8):
                    counts[guessed ^ true] = counts.get(guessed ^ true, 0) + 1
        return fn.cross_entropy(logits.flatten(0, 1).float(), x[:, 1:].flatten())

    return training(model, fixed(batch), loss_of)


@pair("host_compute", "vision", "statistics of the step are computed every 100 steps")
def resnet_numpy_statistics(repaired: bool) -> Running:
    model = resnet(size(64, 8)).to(DEVICE)
    history = np.random.default_rng(0).standard_normal(200_000)

    def statistics(number: int, loss: Tensor) -> None:
        if not repaired or number % 100 == 99:
            history[number % len(history)] = loss.item()
            for _ in range(4):
                np.sort(history)

    return training(
        model, fixed(images(size(64, 2), size(160, 32))), classified, after_step=statistics
    )


@pair("host_compute", "diffusion", "what is logged is written every 100 steps")
def unet_json_log(repaired: bool) -> Running:
    model = Unet(size(64, 8)).to(DEVICE)
    x = torch.randn(size(16, 2), 4, size(32, 16), size(32, 16), device=DEVICE)
    record = {f"metric{i}": [j * 0.1 for j in range(40)] for i in range(300)}

    def log(number: int, loss: Tensor) -> None:
        if not repaired or number % 100 == 99:
            json.loads(json.dumps(record | {"loss": loss.item()}))

    return training(model, fixed(x), denoised, after_step=log)


@pair(
    "host_compute",
    "recommender",
    "what Python computes between the steps is left to another process",
)
def recsys_python_between(repaired: bool) -> Running:
    model, batch = recommender(8)

    def between(_number: int, _loss: Tensor) -> None:
        if not repaired:
            spin(9)

    return training(model, fixed(batch), clicks, after_step=between, kind="fp32")


def recommender(tables: int, rows: int = 100_000) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = Recommender(tables, size(rows, 100), size(64, 8)).to(DEVICE)
    n = size(4096, 8)
    ids = torch.randint(0, size(rows, 100), (n, tables), device=DEVICE)
    return model, (torch.randn(n, 64, device=DEVICE), ids, torch.rand(n, device=DEVICE).round())


def clicks(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return fn.binary_cross_entropy_with_logits(model(batch[0], batch[1]).float(), batch[2])


# --- launches ---------------------------------------------------------------------------------


def whole_graph(repaired: bool, make: Callable[[str], Running]) -> Running:
    """A loop whose step is captured in the repaired program."""
    return graphed(make("graph")) if repaired else make("graph")


@pair("launch_bound", "rl", "the whole step is one CUDA graph")
def mlp_tiny_graph(repaired: bool) -> Running:
    x, y = torch.randn(256, 64, device=DEVICE), torch.randn(256, 8, device=DEVICE)
    model = mlp(128, 8, 64, 8).to(DEVICE)

    def loss_of(net: nn.Module, batch: Any) -> Tensor:
        return fn.mse_loss(net(batch[0]), batch[1])

    return whole_graph(
        repaired, lambda o: training(model, fixed((x, y)), loss_of, kind="fp32", optimizer=o)
    )


@pair("launch_bound", "language", "the whole step is one CUDA graph", marks="steps")
def lstm_cells_graph(repaired: bool) -> Running:
    model = Lstm(size(256, 16), 1, size(2048, 64), cells=True).to(DEVICE)
    batch = tokens(32, size(32, 8), size(2048, 64))
    return whole_graph(
        repaired, lambda o: training(model, fixed(batch), next_token, kind="fp32", optimizer=o)
    )


@pair("launch_bound", "vision", "torch.compile(model, mode='reduce-overhead')", compiles=True)
def vit_small_reduce_overhead(repaired: bool) -> Running:
    model: Any = Vit(size(192, 64), size(6, 2)).to(DEVICE)
    if repaired:
        model = torch.compile(model, mode="reduce-overhead")
    return training(model, fixed(images(size(8, 2), size(224, 32))), classified)


@pair(
    "launch_bound",
    "language",
    "the model is captured by torch.cuda.make_graphed_callables",
    marks="phases",
)
def gpt_small_graphed_callables(repaired: bool) -> Running:
    model = gpt(256, 6)
    batch = text(4, 128)
    if repaired and DEVICE.type == "cuda":
        model = torch.cuda.make_graphed_callables(model, (batch[:, :-1].contiguous(),))
    return training(model, fixed(batch), next_token, kind="fp32")


@pair("launch_bound", "decode", "each token is one replayed CUDA graph")
def decode_graph(repaired: bool) -> Running:
    run = Running(
        Decoder(size(1024, 64), size(12, 2), 8, size(512, 16)).step, enter=precision("high")
    )
    return graphed(run) if repaired else run


@pair(
    "launch_bound",
    "decode",
    "torch.compile(mode='reduce-overhead') of the forward pass",
    compiles=True,
)
def decode_reduce_overhead(repaired: bool) -> Running:
    decoder = Decoder(size(768, 64), size(8, 2), 16, size(256, 16))
    if repaired:
        for kept in (decoder.cache, decoder.token, decoder.place):
            torch._dynamo.mark_static_address(kept)
        decoder.forward = torch.compile(decoder.forward, mode="reduce-overhead")  # type: ignore[method-assign]
    return Running(decoder.step, enter=precision("high"))


@pair("launch_bound", "graph", "the whole step is one CUDA graph")
def gnn_small_graph(repaired: bool) -> Running:
    nodes, width = 512, 64
    edges = tuple(torch.randint(0, nodes, (4096,), device=DEVICE) for _ in range(2))
    x, y = torch.randn(nodes, width, device=DEVICE), torch.randint(0, 40, (nodes,), device=DEVICE)
    weight = torch.ones(4096, 1, device=DEVICE)
    model = Gnn(width, size(8, 2)).to(DEVICE)

    def loss_of(net: nn.Module, _batch: Any) -> Tensor:
        return fn.cross_entropy(net(x, *edges, weight), y)

    return whole_graph(
        repaired, lambda o: training(model, fixed(None), loss_of, kind="fp32", optimizer=o)
    )


# --- copies -----------------------------------------------------------------------------------


def copied(host: tuple[Tensor, ...], repaired: bool) -> Callable[[], Any]:
    """The same host tensors to the device in each step: pageable and blocking, or pinned."""
    if repaired and DEVICE.type == "cuda":
        host = tuple(part.pin_memory() for part in host)
    return lambda: tuple(part.to(DEVICE, non_blocking=repaired) for part in host)


@pair("blocking_copy", "vision", "pinned memory and non_blocking copies")
def vit_pageable(repaired: bool) -> Running:
    host = images(size(64, 2), size(224, 32), "cpu")
    return training(Vit(size(384, 64), size(6, 2)).to(DEVICE), copied(host, repaired), classified)


@pair("blocking_copy", "language", "the scores stay on the device", marks="steps")
def encoder_scores_to_cpu(repaired: bool) -> Running:
    model = gpt(512, 4, causal=False)
    kept: list[Tensor] = []

    def loss_of(net: nn.Module, x: Tensor) -> Tensor:
        logits = net(x[:, :-1])
        kept[:] = [logits.detach()[:, -1].float() if repaired else logits.detach().float().cpu()]
        return fn.cross_entropy(logits.flatten(0, 1).float(), x[:, 1:].flatten())

    return training(model, fixed(text(8, 256)), loss_of)


@pair("blocking_copy", "diffusion", "pinned memory and non_blocking copies", marks="phases")
def unet_pageable(repaired: bool) -> Running:
    host = (
        torch.randn(size(32, 2), 4, size(128, 16), size(128, 16)),
        torch.randn(size(48, 1), size(1_000_000, 10)),
    )
    batches = copied(host, repaired)
    return training(Unet(size(32, 8)).to(DEVICE), lambda: batches()[0], denoised)


@pair("blocking_copy", "recommender", "pinned memory and non_blocking copies", marks="profiler")
def recsys_pageable(repaired: bool) -> Running:
    model, batch = recommender(16)
    host = (*(part.cpu() for part in batch), torch.randn(size(4096, 8), 2048))
    return training(model, copied(host, repaired), clicks, kind="fp32", optimizer="foreach")


# --- the allocator ----------------------------------------------------------------------------


@pair("allocator_churn", "language", "torch.cuda.empty_cache() is removed from the loop")
def gpt_empty_cache(repaired: bool) -> Running:
    def empty(*_: object) -> None:
        if not repaired and DEVICE.type == "cuda":
            torch.cuda.empty_cache()

    return training(gpt(768, 6), fixed(text(8, 512)), next_token, after_step=empty)


@pair(
    "allocator_churn",
    "vision",
    "torch.cuda.empty_cache() and gc.collect() are removed",
    marks="phases",
)
def resnet_empty_cache_gc(repaired: bool) -> Running:
    def empty(*_: object) -> None:
        if not repaired:
            gc.collect()
            if DEVICE.type == "cuda":
                torch.cuda.empty_cache()

    model = resnet(size(64, 8)).to(DEVICE)
    return training(
        model, fixed(images(size(64, 2), size(128, 32))), classified, after_backward=empty
    )


@pair("allocator_churn", "diffusion", "torch.cuda.empty_cache() every 4 steps is removed", period=4)
def unet_empty_cache_every_4(repaired: bool) -> Running:
    def empty(number: int, _loss: Tensor) -> None:
        if not repaired and number % 4 == 3 and DEVICE.type == "cuda":
            torch.cuda.empty_cache()

    model = Unet(size(64, 8)).to(DEVICE)
    x = torch.randn(size(32, 2), 4, size(64, 16), size(64, 16), device=DEVICE)
    return training(model, fixed(x), denoised, after_step=empty)


# --- checkpoints ------------------------------------------------------------------------------


def scratch() -> str:
    return tempfile.mkdtemp(prefix="exam-")


@pair(
    "checkpoint_stall", "language", "checkpoints are saved every 1000 steps, not every 5", period=5
)
def gpt_save_every_5(repaired: bool) -> Running:
    model, file = gpt(512, 4), Path(scratch()) / "model.pt"

    def save(number: int, _loss: Tensor) -> None:
        if not repaired and number % 5 == 4:
            torch.save(model.state_dict(), file)

    return training(model, fixed(text(16, 512)), next_token, after_step=save)


@pair(
    "checkpoint_stall", "vision", "the state is copied to pinned buffers, and a thread writes it",
    marks="phases", period=4,
)  # fmt: skip
def vit_save_every_4(repaired: bool) -> Running:
    model, file = Vit(size(384, 64), size(6, 2)).to(DEVICE), Path(scratch()) / "model.pt"
    pinned = {
        k: torch.empty(v.shape, dtype=v.dtype, pin_memory=DEVICE.type == "cuda")
        for k, v in model.state_dict().items()
    }
    writers: list[threading.Thread] = []

    def write() -> None:
        if DEVICE.type == "cuda":
            copied_event.synchronize()
        torch.save(pinned, file)

    copied_event: Any = torch.cuda.Event() if DEVICE.type == "cuda" else None

    def save(number: int, _loss: Tensor) -> None:
        if number % 4 != 3:
            return
        if not repaired:
            torch.save(model.state_dict(), file)
            return
        while writers:
            writers.pop().join()
        for name, value in model.state_dict().items():
            pinned[name].copy_(value, non_blocking=True)
        if copied_event is not None:
            copied_event.record()
        writers.append(threading.Thread(target=write))
        writers[-1].start()

    return training(model, fixed(images(size(64, 2), size(224, 32))), classified, after_step=save)


@pair("checkpoint_stall", "moe", "checkpoints are saved every 1000 steps, not every 8", period=8)
def moe_save_every_8(repaired: bool) -> Running:
    model = Moe(size(512, 32), 4, size(3, 2), size(4096, 128), masks=False).to(DEVICE)
    file = Path(scratch()) / "model.pt"

    def save(number: int, _loss: Tensor) -> None:
        if not repaired and number % 8 == 5:
            torch.save({"model": model.state_dict(), "step": number}, file)

    batch = tokens(size(8, 2), size(512, 16), size(4096, 128))
    return training(model, fixed(batch), next_token, after_step=save)


# --- rare steps -------------------------------------------------------------------------------


@pair(
    "step_jitter",
    "language",
    "objects that stay are frozen (gc.freeze()), and gc.collect() every 6 steps is gone",
    period=6,
    record=("--gc",),
)
def gpt_gc_every_6(repaired: bool) -> Running:
    objects = [{"id": i, "tags": [i, i + 1]} for i in range(size(250_000, 10))]

    def collect(number: int, _loss: Tensor) -> None:
        if not repaired and number % 6 == 2:
            gc.collect()
            len(objects)

    return training(gpt(512, 4), fixed(text(8, 512)), next_token, after_step=collect)


@pair("step_jitter", "vision", "validation is done once an epoch, not every 5 steps", period=5)
def resnet_validate_every_5(repaired: bool) -> Running:
    model = resnet(size(64, 8)).to(DEVICE)
    held = images(size(64, 2), size(160, 32))

    def validate(number: int, _loss: Tensor) -> None:
        if repaired or number % 5 != 2:
            return
        with torch.no_grad(), half("bf16"):
            right = [(model(held[0]).argmax(-1) == held[1]).float().mean() for _ in range(6)]
        torch.stack(right).mean().item()

    return training(
        model, fixed(images(size(64, 2), size(160, 32))), classified, after_step=validate
    )


@pair("step_jitter", "language", "texts are cut to the usual length", marks="steps", period=7)
def encoder_long_every_7(repaired: bool) -> Running:
    usual, long = text(16, 256), text(16, 1024)
    number = 0

    def batches() -> Tensor:
        nonlocal number
        number += 1
        return long if not repaired and number % 7 == 0 else usual

    return training(gpt(512, 6, causal=False), batches, next_token)


@pair(
    "step_jitter",
    "diffusion",
    "the preview is drawn by another process",
    period=6,
    marks="profiler",
)
def unet_preview_every_6(repaired: bool) -> Running:
    model = Unet(size(64, 8)).to(DEVICE)
    x = torch.randn(size(16, 2), 4, size(64, 16), size(64, 16), device=DEVICE)

    def draw(number: int, loss: Tensor) -> None:
        if not repaired and number % 6 == 4:
            loss.item()
            spin(60)

    return training(model, fixed(x), denoised, after_step=draw)


# --- the interpreter lock ---------------------------------------------------------------------


def beside(run: Running, work: Callable[[], object]) -> Running:
    """A thread that works all the time while this side runs."""
    going = threading.Event()
    thread: list[threading.Thread] = []

    def loop() -> None:
        while going.is_set():
            work()

    def enter() -> None:
        run.enter()
        going.set()
        thread.append(threading.Thread(target=loop, daemon=True))
        thread[-1].start()

    def leave() -> None:
        going.clear()
        while thread:
            thread.pop().join()
        run.leave()

    return Running(run.step, enter, leave, run.close, run.settle)


@pair(
    "gil_contention",
    "language",
    "the thread that computes statistics becomes a process",
    record=("--waits",),
)
def gpt_busy_thread(repaired: bool) -> Running:
    run = training(gpt(512, 4), fixed(text(4, 256)), next_token, optimizer="foreach")
    return run if repaired else beside(run, lambda: (spin(5), time.sleep(0.02)))


@pair(
    "gil_contention",
    "vision",
    "the thread that watches sleeps between its looks",
    marks="steps",
    record=("--waits",),
)
def vit_polling_thread(repaired: bool) -> Running:
    run = training(
        Vit(size(384, 64), size(8, 2)).to(DEVICE),
        fixed(images(size(16, 2), size(224, 32))),
        classified,
    )
    return beside(run, lambda: time.sleep(0.1) if repaired else (spin(1), time.sleep(0.004)))


# --- fusion -----------------------------------------------------------------------------------


@pair("fusion_opportunity", "diffusion", "torch.compile(model)", compiles=True)
def unet_spelled_compile(repaired: bool) -> Running:
    model: Any = Unet(size(64, 8), spelled=True).to(DEVICE)
    if repaired:
        model = torch.compile(model)
    x = torch.randn(size(32, 2), 4, size(64, 16), size(64, 16), device=DEVICE)
    return training(model, fixed(x), denoised)


@pair(
    "fusion_opportunity",
    "language",
    "rms_norm and gelu of torch.nn.functional instead of spelled out",
)
def gpt_spelled_norm(repaired: bool) -> Running:
    model = gpt(1024, 6, spelled=not repaired, rms=True)
    return training(model, fixed(text(8, 512)), next_token)


@pair("fusion_opportunity", "vision", "torch.compile(model)", marks="phases", compiles=True)
def vit_spelled_compile(repaired: bool) -> Running:
    model: Any = Vit(size(512, 64), size(6, 2), spelled=True, rms=True).to(DEVICE)
    if repaired:
        model = torch.compile(model)
    return training(model, fixed(images(size(64, 2), size(224, 32))), classified)


@pair(
    "fusion_opportunity",
    "graph",
    "torch.compile of the function that gates messages",
    compiles=True,
)
def gnn_gate_compile(repaired: bool) -> Running:
    model = Gnn(size(256, 16), 3, chain=True).to(DEVICE)
    if repaired:
        model.gate = torch.compile(model.gate)  # type: ignore[method-assign]
    nodes = size(16384, 64)
    edges = tuple(torch.randint(0, nodes, (nodes * 8,), device=DEVICE) for _ in range(2))
    return gnn_of(fixed(edges), kind="fp32", model=model)


def physics(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(6):
        u = torch.sin(x) * y + torch.exp(-x.abs())
        v = torch.cos(y) - x / (1.0 + y.square())
        x, y = torch.tanh(u + 0.1 * v), torch.sigmoid(v - 0.1 * u)
    return (x * y).square()


@pair(
    "fusion_opportunity", "diffusion", "torch.compile of the function", compiles=True, marks="steps"
)
def field_chain_fp32(repaired: bool) -> Running:
    n = size(8_000_000, 100)
    layer = nn.Linear(64, 64).to(DEVICE)
    function: Any = torch.compile(physics) if repaired else physics

    def loss_of(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x = net(batch[0].view(-1, 64)[: n // 64]).flatten()
        return function(x, batch[1][: len(x)]).mean()

    n -= n % 64
    n = max(n, 64)
    data = (torch.randn(n, device=DEVICE), torch.randn(n, device=DEVICE))
    return training(layer, fixed(data), loss_of, kind="fp32")


# --- attention --------------------------------------------------------------------------------


@pair(
    "unfused_attention", "language", "scaled_dot_product_attention instead of products and softmax"
)
def gpt_attention_2048(repaired: bool) -> Running:
    model = gpt(1024, 4, written=not repaired)
    return training(model, fixed(text(4, 2048)), next_token)


@pair("unfused_attention", "language", "scaled_dot_product_attention", marks="phases")
def gpt_attention_256_fp32(repaired: bool) -> Running:
    model = gpt(512, 6, written=not repaired)
    return training(model, fixed(text(32, 256)), next_token, kind="fp32", matmul="highest")


@pair("unfused_attention", "vision", "scaled_dot_product_attention", marks="profiler")
def vit_attention_197(repaired: bool) -> Running:
    model = Vit(size(384, 64), size(8, 2), written=not repaired).to(DEVICE)
    return training(model, fixed(images(size(96, 2), size(224, 32))), classified)


@pair("unfused_attention", "language", "scaled_dot_product_attention with the mask as attn_mask")
def encoder_attention_masked(repaired: bool) -> Running:
    model = gpt(768, 4, causal=False, written=not repaired)
    batch = text(16, 512)
    mask = torch.ones(batch.shape[0], 1, 1, batch.shape[1] - 1, dtype=torch.bool, device=DEVICE)
    mask[:, :, :, -20:] = SMALL

    def loss_of(net: nn.Module, x: Tensor) -> Tensor:
        logits = net(x[:, :-1], mask.expand(-1, -1, x.shape[1] - 1, -1))
        return fn.cross_entropy(logits.flatten(0, 1).float(), x[:, 1:].flatten())

    return training(model, fixed(batch), loss_of)


@pair("unfused_attention", "language", "scaled_dot_product_attention")
def gpt_attention_small(repaired: bool) -> Running:
    model = gpt(256, 8, written=not repaired)
    return training(model, fixed(text(4, 128)), next_token)


# --- optimizers -------------------------------------------------------------------------------


@pair("unfused_optimizer", "vision", "AdamW(fused=True) instead of foreach=False")
def resnet_adam_loop(repaired: bool) -> Running:
    model = resnet(size(64, 8), 3).to(DEVICE)
    kind = "fused" if repaired else "loop"
    return training(model, fixed(images(size(128, 2), size(128, 32))), classified, optimizer=kind)


@pair("unfused_optimizer", "vision", "AdamW(foreach=True) instead of foreach=False", marks="phases")
def vit_adam_foreach(repaired: bool) -> Running:
    model = Vit(size(768, 64), size(8, 2)).to(DEVICE)
    kind = "foreach" if repaired else "loop"
    return training(model, fixed(images(size(32, 2), size(224, 32))), classified, optimizer=kind)


@pair("unfused_optimizer", "recommender", "AdamW(fused=True) instead of foreach=False")
def recsys_adam_loop(repaired: bool) -> Running:
    model, batch = recommender(12, 400_000)
    kind = "fused" if repaired else "loop"
    return training(model, fixed(batch), clicks, kind="fp32", optimizer=kind)


# --- precision --------------------------------------------------------------------------------


@pair("low_precision_unused", "language", "torch.set_float32_matmul_precision('high')")
def gpt_fp32_tf32(repaired: bool) -> Running:
    matmul = "high" if repaired else "highest"
    return training(gpt(768, 4), fixed(text(8, 512)), next_token, kind="fp32", matmul=matmul)


@pair("low_precision_unused", "vision", "autocast to BF16", marks="steps")
def vit_fp32_bf16(repaired: bool) -> Running:
    model = Vit(size(512, 64), size(6, 2)).to(DEVICE)
    batch = images(size(48, 2), size(224, 32))
    matmul, kind = ("high", "bf16") if repaired else ("highest", "fp32")
    return training(model, fixed(batch), classified, kind=kind, matmul=matmul)


@pair("low_precision_unused", "vision", "TF32 is allowed in cuDNN and for matrix products")
def resnet_fp32_tf32(repaired: bool) -> Running:
    model = resnet(size(64, 8), 2).to(DEVICE)
    batch = images(size(48, 2), size(160, 32))
    return training(
        model, fixed(batch), classified, kind="fp32", matmul="high" if repaired else "highest"
    )


@pair(
    "low_precision_unused",
    "recommender",
    "torch.set_float32_matmul_precision('high')",
    marks="profiler",
)
def tower_fp32_tf32(repaired: bool) -> Running:
    model = mlp(size(4096, 16), 5, 512, 8).to(DEVICE)
    data = (
        torch.randn(size(4096, 4), 512, device=DEVICE),
        torch.randn(size(4096, 4), 8, device=DEVICE),
    )

    def loss_of(net: nn.Module, batch: Any) -> Tensor:
        return fn.mse_loss(net(batch[0]), batch[1])

    return training(
        model, fixed(data), loss_of, kind="fp32", matmul="high" if repaired else "highest"
    )


# --- offload ----------------------------------------------------------------------------------


@pair("cpu_offload", "language", "AdamW works on the device instead of on copies on the CPU")
def gpt_offload_adam(repaired: bool) -> Running:
    model = gpt(256, 4)
    batch = text(8, 256)
    if repaired:
        return training(model, fixed(batch), next_token)
    masters = [p.detach().cpu().requires_grad_() for p in model.parameters()]
    update = made_optimizer(masters, "foreach")

    def step() -> None:
        with half("bf16"):
            loss = next_token(model, batch)
        loss.backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            master.grad = p.grad.cpu() if p.grad is not None else None
            p.grad = None
        update.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters(), strict=True):
                p.copy_(master)

    return Running(step, enter=precision("high"))


@pair("cpu_offload", "vision", "activations stay on the device (no save_on_cpu)", marks="phases")
def vit_activations_on_cpu(repaired: bool) -> Running:
    model = Vit(size(384, 64), size(4, 2)).to(DEVICE)
    data = images(size(16, 2), size(224, 32))

    def loss_of(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if repaired:
            return classified(net, batch)
        with torch.autograd.graph.save_on_cpu(pin_memory=DEVICE.type == "cuda"):
            return classified(net, batch)

    return training(model, fixed(data), loss_of)


# --- levers of healthy programs ---------------------------------------------------------------


@pair("aligned_shapes", "language", "a vocabulary of 50304 instead of 50257")
def gpt_vocabulary(repaired: bool) -> Running:
    vocab = size(50304 if repaired else 50257, 128)
    model = Gpt(size(512, 64), size(3, 2), vocab).to(DEVICE)
    return training(model, fixed(tokens(size(8, 2), size(512, 16), size(50257, 128))), next_token)


@pair("layout_changes", "vision", "channels_last for model and images")
def resnet_channels_last(repaired: bool) -> Running:
    model, (x, y) = resnet(size(64, 8), 2).to(DEVICE), images(size(96, 2), size(160, 32))
    if repaired:
        model, x = (
            model.to(memory_format=torch.channels_last),
            x.to(memory_format=torch.channels_last),
        )
    return training(model, fixed((x, y)), classified)


@pair("larger_batch", "language", "twice the batch", samples=2.0)
def lstm_twice_the_batch(repaired: bool) -> Running:
    model = Lstm(size(512, 16), 2, size(8192, 128)).to(DEVICE)
    return training(model, fixed(text(32 if repaired else 16, 128)), next_token, kind="fp32")


@pair("larger_batch", "moe", "twice the batch", samples=2.0, marks="steps")
def moe_twice_the_batch(repaired: bool) -> Running:
    model = Moe(size(512, 32), 4, size(4, 2), size(4096, 128), masks=False).to(DEVICE)
    batch = tokens(size(16 if repaired else 8, 2), size(512, 16), size(4096, 128))
    return training(model, fixed(batch), next_token)


@pair("fused_optimizer", "language", "AdamW(fused=True) instead of multi-tensor kernels")
def gpt_foreach_fused(repaired: bool) -> Running:
    return training(
        gpt(1024, 8), fixed(text(4, 256)), next_token, optimizer="fused" if repaired else "foreach"
    )


@pair("casts_and_copies", "language", "the model in BF16 instead of autocast", marks="phases")
def gpt_autocast_pure(repaired: bool) -> Running:
    model = gpt(1024, 6)
    if repaired:
        model = model.bfloat16()
    return training(model, fixed(text(4, 512)), next_token, kind="fp32" if repaired else "bf16")


@pair("lower_precision", "language", "autocast to BF16 instead of TF32")
def encoder_tf32_bf16(repaired: bool) -> Running:
    model = gpt(1024, 4, causal=False)
    return training(model, fixed(text(16, 512)), next_token, kind="bf16" if repaired else "fp32")


@pair("compile", "vision", "torch.compile(model)", compiles=True)
def vit_compile(repaired: bool) -> Running:
    model: Any = Vit(size(768, 64), size(6, 2)).to(DEVICE)
    if repaired:
        model = torch.compile(model)
    return training(model, fixed(images(size(64, 2), size(224, 32))), classified)


# --- two faults -------------------------------------------------------------------------------


@pair("input_starvation", "vision", "12 workers instead of 2", others=("host_sync",))
def resnet_starved_and_items(repaired: bool) -> Running:
    model = resnet(size(64, 8)).to(DEVICE)
    batches = loaded(Augmented(size(160, 32), 2), size(48, 2), 12 if repaired else 2)

    def read(_step: int, _loss: Tensor) -> None:
        for p in model.parameters():
            if p.grad is not None and p.grad.dim() == 4:
                p.grad.abs().mean().item()

    return training(model, batches, classified, after_backward=read)


@pair(
    "host_sync",
    "language",
    "norms are not read in the step",
    others=("blocking_copy",),
    marks="steps",
)
def gpt_items_and_pageable(repaired: bool) -> Running:
    model = gpt(512, 6)
    extra = torch.randn(size(1_500_000, 100))

    def batches() -> Tensor:
        extra.to(DEVICE)
        return batch

    batch = text(8, 256)

    def read(_step: int, _loss: Tensor) -> None:
        for p in model.parameters():
            if p.grad is not None:
                norm = p.grad.norm()
                if not repaired:
                    norm.item()

    return training(model, batches, next_token, after_backward=read)


@pair(
    "unfused_attention", "vision", "scaled_dot_product_attention", others=("low_precision_unused",)
)
def vit_attention_and_fp32(repaired: bool) -> Running:
    model = Vit(size(384, 64), size(6, 2), written=not repaired).to(DEVICE)
    batch = images(size(48, 2), size(224, 32))
    return training(model, fixed(batch), classified, kind="fp32", matmul="highest")


@pair("unfused_optimizer", "language", "AdamW(fused=True)", others=("fusion_opportunity",))
def gpt_loop_and_spelled(repaired: bool) -> Running:
    model = gpt(512, 6, spelled=True, rms=True)
    return training(
        model, fixed(text(8, 512)), next_token, optimizer="fused" if repaired else "loop"
    )


@pair(
    "checkpoint_stall",
    "vision",
    "checkpoints are saved every 1000 steps, not every 4",
    others=("host_sync",),
    period=4,
)
def resnet_save_and_items(repaired: bool) -> Running:
    model, file = resnet(size(64, 8), 2).to(DEVICE), Path(scratch()) / "model.pt"

    def after(number: int, loss: Tensor) -> None:
        loss.item()
        if not repaired and number % 4 == 1:
            torch.save(model.state_dict(), file)

    return training(model, fixed(images(size(64, 2), size(128, 32))), classified, after_step=after)
