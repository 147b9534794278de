"""Does ``stepscope run --try`` repair what a person would? Planted faults on one GPU.

``python benchmarks/tries.py all FOLDER`` runs every fault as it is and with the fix tried (by
``stepscope run --try``, in turns), repaired by hand (a flag of the same script), and as it is
without Stepscope. It prints a table: untraced milliseconds a step, the verdict, whether the losses
are what they were, and whether the program's output and exit code are.

Programs start side by side, since starting takes much longer than 40 steps; all work on the GPU and
all timed steps are done by one program at a time, which holds a lock meanwhile.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import json
import os
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FAULTS = {
    "many_small_launches": "one-core",
    "lightning_fp32": "bf16-autocast",
    "trainer_with_batches": "pin-memory,non-blocking",
    "gan_one_by_one": "fused-optimizer",
    "stream_in_main": "workers=4",
    "segmentation_amp": "channels-last",
    "replay_buffer": "no-gc-in-steps",
    "new_workers_each_epoch": "persistent-workers",
    "sgd_one_by_one": "foreach-optimizer",
    "collector_in_steps": "no-gc-in-steps",
    "loader_in_main": "workers=4",
    "pageable_batches": "pin-memory,non-blocking",
    "blocking_copies": "non-blocking",
    "fp32_gemms": "tf32",
    "fp32_mlp": "bf16-autocast",
    "adamw_one_by_one": "fused-optimizer",
    "pointwise_chain": "compile",
    "channels_first": "channels-last",
}
"""Fault -> what to try; those whose answer is least known come first."""
IDLE = {
    "fp32_gemms": "foreach-optimizer",
    "pointwise_chain": "fused-optimizer",
    "loader_in_main": "no-sync-debug",
    "channels_first": "cudnn-benchmark",
    "fp32_mlp": "allocator=expandable",
}
"""Fault -> what changes nothing there, is refused, only looks, or is of no use."""
WARMUP, TIMED = 10, 40
_STARTING = 0.6
"""Share of the processors for programs that start: what is timed has the others to itself."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fault", help="a fault, or all")
    parser.add_argument("folder", type=Path, nargs="?", help="where results go, for all")
    parser.add_argument("--fixed", action="store_true", help="repaired by hand")
    parser.add_argument("--exit", type=int, default=0, help="exit code of the program")
    parser.add_argument("--seconds", type=float, default=240, help="when to stop, for all")
    parser.add_argument("--only", default="", help="faults for all, separated by commas")
    options = parser.parse_args()
    if options.fault == "all":
        return measure(options.folder, options.seconds, options.only)
    program(options.fault, options.fixed)
    return options.exit


# --- the programs --------------------------------------------------------------------------------


def program(fault: str, fixed: bool) -> None:
    if "TRIES_LOCK" in os.environ:
        on_processors(starting=True)
    import torch

    with Path(os.environ.get("TRIES_LOCK", os.devnull)).open("w") as lock:
        if "TRIES_LOCK" in os.environ:  # what takes long and is the same for all is done before
            import torch._dynamo  # as the first optimizer would

            x = torch.randn(64, 64, device=device(torch), requires_grad=True)
            torch.autograd.grad(torch.nn.functional.gelu(x @ x).square().mean(), x)
        if "TRIES_LOCK" in os.environ:
            fcntl.flock(lock, fcntl.LOCK_EX)
            on_processors(starting=False)
        torch.manual_seed(0)
        torch.backends.cudnn.deterministic = fault not in ("channels_first", "segmentation_amp")
        globals()[fault](torch, fixed)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if "TRIES_LOCK" in os.environ:
            fcntl.flock(lock, fcntl.LOCK_UN)  # workers that still end have it open, too


ALL = sorted(os.sched_getaffinity(0))


def on_processors(*, starting: bool) -> None:
    """Keep programs that start off the processors of the one that is timed."""
    first = int(len(ALL) * _STARTING)
    chosen = ALL[:first] if starting else ALL[first:]
    if len(chosen) < 4:
        return
    for thread in Path("/proc/self/task").iterdir():  # that of backward passes is there already
        os.sched_setaffinity(int(thread.name), chosen)


class Loop:
    """Counts and times steps; the program's own clock."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.marks: list[Any] = []
        self.loss: Any = None

    def step(self, optimizer: Any, loss: Any) -> bool:
        """One backward pass and step; whether it was the last one."""
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return self.mark(loss)

    def mark(self, loss: Any) -> bool:
        """A step was made; whether it was the last one."""
        if self.torch.cuda.is_available():
            event = self.torch.cuda.Event(enable_timing=True)
            event.record()
        else:
            event = time.perf_counter()
        self.marks.append(event)
        self.loss = loss
        if len(self.marks) < WARMUP + TIMED:
            return False
        self.end()
        return True

    def end(self) -> None:
        first, last = self.marks[WARMUP - 1], self.marks[-1]
        if self.torch.cuda.is_available():
            last.synchronize()
            ms = first.elapsed_time(last) / TIMED
        else:
            ms = (last - first) * 1e3 / TIMED
        print(f"{len(self.marks)} steps, loss {self.loss.item():.1e}", flush=True)
        if "TRIES_TIMES" in os.environ:
            with Path(os.environ["TRIES_TIMES"]).open("a") as file:
                told = os.environ.get("STEPSCOPE_TRY", "alone")
                file.write(json.dumps([" ".join(sys.argv[1:]), told, ms]) + "\n")


def device(torch: Any) -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def size(torch: Any, large: int) -> int:
    return large if torch.cuda.is_available() else max(8, large // 64)


def mlp(torch: Any, width: int, layers: int) -> Any:
    parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width),
                                                      torch.nn.GELU())]  # fmt: skip
    return torch.nn.Sequential(*parts).to(device(torch))


def on_one_batch(torch: Any, model: Any, optimizer: Any, batch: Any) -> None:
    loop = Loop(torch)
    while True:
        if loop.step(optimizer, model(batch).float().square().mean()):
            return


class Slow:
    """Samples that take Python some time each."""

    def __init__(self, torch: Any, samples: int, width: int, work: int) -> None:
        self.torch, self.samples, self.width, self.work = torch, samples, width, work

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        total = 0
        for i in range(self.work):
            total += i ^ index
        return self.torch.full((self.width,), float(total % 7))


class Batches:
    """Whole batches that lie in memory: a loader has nothing to do but to hand them over."""

    def __init__(self, torch: Any, batches: int, shape: tuple[int, ...]) -> None:
        self.batches = batches
        self.data = torch.randn(4, *shape)

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> Any:
        return self.data[index % 4].clone()


def host_work(ms: float) -> None:
    """What a script does beside the GPU, such as metrics."""
    end = time.perf_counter() + ms / 1e3
    while time.perf_counter() < end:
        pass


def from_loader(
    torch: Any, loader: Any, model: Any, *, epochs: int = 1, host_ms: float = 0, **copy: bool
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loop = Loop(torch)
    for _ in range(epochs):
        for batch in loader:
            x = batch.to(device(torch), **copy)
            host_work(host_ms)
            if loop.step(optimizer, model(x).float().square().mean()):
                return


def loader_in_main(torch: Any, fixed: bool) -> None:
    loader = torch.utils.data.DataLoader(
        Slow(torch, 3000, 1024, 8000), batch_size=48, num_workers=4 if fixed else 0
    )
    from_loader(torch, loader, mlp(torch, 1024, 4))


def pageable_batches(torch: Any, fixed: bool) -> None:
    shape = (size(torch, 1024), size(torch, 4096))
    loader = torch.utils.data.DataLoader(
        Batches(torch, 60, shape), batch_size=None, num_workers=4, pin_memory=fixed
    )
    model = mlp(torch, shape[1], 5)
    from_loader(torch, loader, model, host_ms=5, **({"non_blocking": True} if fixed else {}))


def blocking_copies(torch: Any, fixed: bool) -> None:
    loader = torch.utils.data.DataLoader(
        Batches(torch, 60, (size(torch, 1024), size(torch, 4096))),
        batch_size=None,
        num_workers=4,
        pin_memory=torch.cuda.is_available(),
    )
    model = mlp(torch, size(torch, 4096), 5)
    from_loader(torch, loader, model, host_ms=8, **({"non_blocking": True} if fixed else {}))


def new_workers_each_epoch(torch: Any, fixed: bool) -> None:
    loader = torch.utils.data.DataLoader(
        Batches(torch, 8, (256, size(torch, 4096))),
        batch_size=None,
        num_workers=4,
        persistent_workers=fixed,
    )
    from_loader(torch, loader, mlp(torch, size(torch, 4096), 6), epochs=9)


def many_small_launches(torch: Any, fixed: bool) -> None:
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU())
              for _ in range(size(torch, 48))]  # fmt: skip
    model = torch.nn.Sequential(*layers).to(device(torch))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    batch = torch.randn(32, 64, device=device(torch))
    if fixed:
        torch.autograd.grad(model(batch).sum(), tuple(model.parameters()))  # its thread is there
        core = {max(os.sched_getaffinity(0))}
        for task in Path("/proc/self/task").iterdir():
            if (task / "comm").read_text().startswith("pt_autograd"):
                os.sched_setaffinity(int(task.name), core)
        os.sched_setaffinity(0, core)
    on_one_batch(torch, model, optimizer, batch)


def fp32_gemms(torch: Any, fixed: bool) -> None:
    if fixed:
        torch.set_float32_matmul_precision("high")
    width = size(torch, 4096)
    model = mlp(torch, width, 4)
    batch = torch.randn(width, width, device=device(torch))
    on_one_batch(torch, model, torch.optim.SGD(model.parameters(), lr=1e-4), batch)


def fp32_mlp(torch: Any, fixed: bool) -> None:
    width = size(torch, 4096)
    model = mlp(torch, width, 4)
    batch = torch.randn(width, width, device=device(torch))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loop = Loop(torch)
    while True:
        with torch.autocast(device(torch), dtype=torch.bfloat16, enabled=fixed):
            loss = model(batch).float().square().mean()
        if loop.step(optimizer, loss):
            return


def adamw_one_by_one(torch: Any, fixed: bool) -> None:
    model = mlp(torch, size(torch, 512), 150)
    how = {"fused": True} if fixed else {"foreach": False}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **how)
    batch = torch.randn(64, size(torch, 512), device=device(torch))
    on_one_batch(torch, model, optimizer, batch)


def sgd_one_by_one(torch: Any, fixed: bool) -> None:
    model = mlp(torch, size(torch, 512), 150)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-2, foreach=fixed
    )
    batch = torch.randn(64, size(torch, 512), device=device(torch))
    on_one_batch(torch, model, optimizer, batch)


def chain(torch: Any, width: int) -> Any:
    class Chain(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(width, width)
            self.second = torch.nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            for _ in range(6):
                x = x * torch.sigmoid(1.702 * x) + 0.1 * torch.tanh(x) - 0.01 * x * x
            return self.second(x)

    return Chain().to(device(torch))


def pointwise_chain(torch: Any, fixed: bool) -> None:
    width = size(torch, 1024)
    model = chain(torch, width)
    if fixed:
        model.compile()
    batch = torch.randn(32 * width, width, device=device(torch))
    on_one_batch(torch, model, torch.optim.SGD(model.parameters(), lr=1e-4, foreach=False), batch)


def channels_first(torch: Any, fixed: bool) -> None:
    nn, width = torch.nn, size(torch, 256)
    layers: list[Any] = [nn.Conv2d(64, width, 3, padding=1), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    model = nn.Sequential(*layers).to(device(torch), torch.bfloat16)
    batch = torch.randn(size(torch, 64), 64, 56, 56).to(device(torch), torch.bfloat16)
    if fixed:
        model = model.to(memory_format=torch.channels_last)
        batch = batch.contiguous(memory_format=torch.channels_last)
    on_one_batch(torch, model, torch.optim.SGD(model.parameters(), lr=1e-4), batch)


def collector_in_steps(torch: Any, fixed: bool) -> None:
    width = size(torch, 1024)
    model = mlp(torch, width, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(256, width, device=device(torch))
    history = [[i, str(i)] for i in range(300_000)]
    loop = Loop(torch)
    while True:
        history += [[i, [i]] for i in range(60_000)]
        if loop.step(optimizer, model(batch).square().mean()):
            return
        if fixed and len(loop.marks) == 1:
            gc.collect()
            gc.freeze()
            gc.disable()


# --- programs of other kinds ---------------------------------------------------------------------


def lightning_fp32(torch: Any, fixed: bool) -> None:
    """A framework's loop: it calls a method of the module, in a closure of the optimizer."""
    width = size(torch, 2048)

    class Classifier(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            layer = torch.nn.TransformerEncoderLayer(
                width, 16 if width >= 64 else 2, 4 * width, dropout=0, batch_first=True
            )
            self.encoder = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.head = torch.nn.Linear(width, 1000)

        def training_step(self, batch: Any) -> Any:
            tokens, labels = batch
            return torch.nn.functional.cross_entropy(
                self.head(self.encoder(tokens).mean(dim=1)), labels
            )

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    module = Classifier().to(device(torch))
    optimizer = module.configure_optimizers()
    tokens = torch.randn(8, size(torch, 256), width, device=device(torch))
    batch = tokens, torch.arange(8, device=device(torch))
    loop = Loop(torch)
    last = None

    def closure() -> Any:
        nonlocal last
        optimizer.zero_grad()
        with torch.autocast(device(torch), dtype=torch.bfloat16, enabled=fixed):
            last = module.training_step(batch)
        last.backward()
        return last

    while True:
        optimizer.step(closure)
        if loop.mark(last):
            return


class Batch:
    """A batch that is no container of tensors: the program's own class."""

    def __init__(self, inputs: Any, weights: Any) -> None:
        self.inputs, self.weights = inputs, weights

    def pin_memory(self) -> Batch:
        self.inputs, self.weights = self.inputs.pin_memory(), self.weights.pin_memory()
        return self

    def to(self, where: str, **copy: bool) -> Batch:
        return Batch(self.inputs.to(where, **copy), self.weights.to(where, **copy))


def trainer_with_batches(torch: Any, fixed: bool) -> None:
    """A Trainer class whose epoch makes its own loader, of batches of a class of its own."""
    shape = (size(torch, 2048), size(torch, 4096))

    class Trainer:
        def __init__(self) -> None:
            self.model = mlp(torch, shape[1], 5)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
            self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)
            self.loop = Loop(torch)
            self.data = Batches(torch, 60, shape)

        def epoch(self) -> None:
            loader = torch.utils.data.DataLoader(
                self.data,
                batch_size=None,
                num_workers=4,
                collate_fn=lambda inputs: Batch(inputs, inputs[:, :1].abs()),
                pin_memory=fixed and torch.cuda.is_available(),
            )
            for batch in loader:
                if self.step(batch):
                    return

        def step(self, batch: Batch) -> bool:
            batch = batch.to(device(torch), **({"non_blocking": True} if fixed else {}))
            host_work(8)
            loss = (self.model(batch.inputs).square().mean(dim=1) * batch.weights[:, 0]).mean()
            ended = self.loop.step(self.optimizer, loss)
            self.schedule.step()
            return ended

    Trainer().epoch()


def gan_one_by_one(torch: Any, fixed: bool) -> None:
    """Two models and two optimizers, of groups of parameters, with schedules."""
    width = size(torch, 256)
    models = mlp(torch, width, 40), mlp(torch, width, 40)
    how = {"fused": fixed} if fixed else {"foreach": False}
    optimizers = []
    for model in models:
        named = list(model.named_parameters())
        groups = [
            {"params": [one for name, one in named if "weight" in name], "weight_decay": 1e-2},
            {"params": [one for name, one in named if "bias" in name], "lr": 1e-6},
        ]
        optimizers.append(torch.optim.AdamW(groups, lr=1e-5, betas=(0.5, 0.999), **how))
    schedules = [torch.optim.lr_scheduler.LambdaLR(one, lambda _: 1.0) for one in optimizers]
    noise, real = torch.randn(2, 64, width, device=device(torch))
    generator, critic = models
    loop = Loop(torch)
    while True:
        optimizers[1].zero_grad()
        (critic(generator(noise).detach()).mean() - critic(real).mean()).backward()
        optimizers[1].step()
        ended = loop.step(optimizers[0], -critic(generator(noise)).mean())
        for schedule in schedules:
            schedule.step()
        if ended:
            return


def stream_in_main(torch: Any, fixed: bool) -> None:
    """An iterable dataset that shares itself out, put together by a lambda."""
    samples = Slow(torch, 10_000, 1024, 8000)

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Any:
            worker = torch.utils.data.get_worker_info()
            first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
            return (samples[index] for index in range(first, len(samples), stride))

    loader = torch.utils.data.DataLoader(
        Stream(),
        batch_size=48,
        num_workers=4 if fixed else 0,
        collate_fn=lambda rows: torch.stack(rows).sqrt(),
    )
    from_loader(torch, loader, mlp(torch, 1024, 4))


def segmentation_amp(torch: Any, fixed: bool) -> None:
    """Two modules that a loop calls one after the other, under the program's own autocast."""
    nn, width = torch.nn, size(torch, 256)

    def block(inputs: int, outputs: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()
        )

    encoder = nn.Sequential(block(64, width), *(block(width, width) for _ in range(3)))
    decoder = nn.Sequential(*(block(width, width) for _ in range(3)), nn.Conv2d(width, 64, 1))
    images = torch.randn(size(torch, 64), 64, 56, 56, device=device(torch))
    masks = images.argmax(dim=1)
    encoder, decoder = encoder.to(device(torch)), decoder.to(device(torch))
    if fixed:
        last = torch.channels_last
        encoder, decoder = encoder.to(memory_format=last), decoder.to(memory_format=last)
        images = images.contiguous(memory_format=last)
    groups = [{"params": encoder.parameters(), "lr": 1e-4}, {"params": decoder.parameters()}]
    optimizer = torch.optim.SGD(groups, lr=1e-3, momentum=0.9)
    cuda = torch.cuda.is_available()
    scaler = torch.amp.GradScaler(device(torch), init_scale=256.0, enabled=cuda)
    loop = Loop(torch)
    while True:
        optimizer.zero_grad()
        with torch.autocast(device(torch), dtype=torch.float16 if cuda else torch.bfloat16):
            loss = nn.functional.cross_entropy(decoder(encoder(images)), masks)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if loop.mark(loss):
            return


def replay_buffer(torch: Any, fixed: bool) -> None:
    """Objects that live for some steps, beside many that live for ever; few are garbage."""
    width = size(torch, 1024)
    model = mlp(torch, width, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    batch = torch.randn(256, width, device=device(torch))
    index = [{"file": str(i), "box": [i, i]} for i in range(500_000)]
    buffer: deque[Any] = deque(maxlen=10 * 30_000)
    loop = Loop(torch)
    while True:
        buffer.extend([[len(index), [i]] for i in range(30_000)])
        if loop.step(optimizer, model(batch).square().mean()):
            return
        if fixed and len(loop.marks) == 1:
            gc.collect()
            gc.freeze()
            gc.disable()


# --- the measurement -----------------------------------------------------------------------------


def measure(folder: Path, seconds: float, only: str) -> int:
    """Run all of it, some side by side, and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    os.environ["TRIES_LOCK"] = str(folder.resolve() / "lock")
    os.environ["TRIES_TIMES"] = str(folder.resolve() / "times.jsonl")
    names = only.split(",") if only else list(FAULTS)
    # compiled code is kept: what takes long is done once, while nothing else is timed
    if "pointwise_chain" in names:
        run(folder, "compiled-first", ["pointwise_chain", "--fixed"], end)
    jobs: list[Any] = []
    with ThreadPoolExecutor(9) as pool:
        for name in names:  # first what is compared, then what tells how far runs lie apart
            jobs.append(pool.submit(tried, folder, name, FAULTS[name], end))
            jobs.append(pool.submit(run, folder, f"{name}-hand", [name, "--fixed"], end))
        for name in names:
            jobs.append(pool.submit(run, folder, f"{name}-alone", [name], end))
            jobs.append(pool.submit(run, folder, f"{name}-hand-again", [name, "--fixed"], end))
        idle = [
            pool.submit(tried, folder, name, fix, end)
            for name, fix in IDLE.items()
            if name in names
        ]
        failing = pool.submit(tried, folder, names[0], FAULTS[names[0]], end, ["--exit", "3"])
        predicted = pool.submit(tried, folder, names[0], FAULTS[names[0]], end, diagnosed=True)
        for job in jobs:
            job.result()
    report(folder, names)
    for job in idle:
        found, code = job.result()
        if not found:
            print("not run to its end, for want of time")
        for one in found.get("tried", []):
            print(f"{one['names']}: {one['verdict']}: {one['message']} (exit code {code})")
            for wait in one["waits"]:
                print(f"  {wait['place']}: {wait['count']}")
    for one in predicted.result()[0].get("tried", []):
        print(f"{one['names']}, recorded first: {one['message']}; {one['prediction']}")
    print(f"a program that ends with 3: exit code {failing.result()[1]}")
    return 0


def run(folder: Path, label: str, words: list[str], end: float, *before: str) -> int:
    """Run this script, or a command in front of it, with its output in a file; its exit code."""
    left = end - time.monotonic()
    if left <= 0:
        return -1
    command = [*before, sys.executable, str(Path(__file__).resolve()), *words]
    with (folder / f"{label}.out").open("wb") as out, (folder / f"{label}.err").open("wb") as err:
        try:
            return subprocess.run(
                command, stdout=out, stderr=err, check=False, timeout=left
            ).returncode
        except subprocess.TimeoutExpired:
            return -1


def tried(
    folder: Path,
    name: str,
    fix: str,
    end: float,
    more: list[str] | None = None,
    *,
    diagnosed: bool = False,
) -> tuple[dict[str, Any], int]:
    """Try a fix on a fault; the session's result and the exit code."""
    label = f"{name}-{fix.replace('=', '').replace(',', '+')}"
    label += ("-exit" if more else "") + ("-predicted" if diagnosed else "")
    words = ["-m", "stepscope", "run", *([] if diagnosed else ["--no-diagnose"]), "--rounds",
             "1", "--warmup", str(WARMUP), "--try", fix, "-o", str(folder / label),
             "--"]  # fmt: skip
    code = run(folder, label, [name, *(more or [])], end, sys.executable, *words)
    result = folder / label / "try.json"
    return (json.loads(result.read_text()) if result.exists() else {}), code


def report(folder: Path, names: list[str]) -> None:
    """Print the table."""
    times: dict[tuple[str, str], list[float]] = {}
    for line in (folder / "times.jsonl").read_text().splitlines():
        words, told, ms = json.loads(line)
        times.setdefault((words, told), []).append(ms)

    def mean(words: str, told: str) -> float:
        found = times.get((words, told), [])
        return sum(found) / len(found) if found else float("nan")

    print("fault | tried | before ms | with the fix ms | by hand ms | tried / by hand | verdict | "
          "losses | output")  # fmt: skip
    within, slower = 0, 0
    for name in names:
        fix = FAULTS[name]
        label = f"{name}-{fix.replace('=', '').replace(',', '+')}"
        path = folder / label / "try.json"
        one = json.loads(path.read_text())["tried"] if path.exists() else []
        before, hand = mean(name, "before"), mean(f"{name} --fixed", "alone")
        order = [told for words, told in times if words == name]
        after = mean(name, next((t for t in order if set(t.split(",")) == set(fix.split(","))), ""))
        kept = bool(one) and one[0]["verdict"] in ("keep", "changed_training")
        within += kept and abs(after / hand - 1) <= 0.1
        slower += not (kept and after / hand <= 1.1)
        files = [folder / f"{part}.out" for part in (label, f"{name}-alone")]
        outputs = [path.read_bytes() if path.exists() else b"" for path in files]
        same = outputs[0].startswith(outputs[1]) and bool(outputs[1])
        verdict, losses = ("none", "") if not one else (
            one[0]["verdict"], f"{one[0]['losses']['alike']} {one[0]['losses']['distance']}"
        )  # fmt: skip
        print(f"{name} | {fix} | {before:.2f} | {after:.2f} | {hand:.2f} | {after / hand:.3f} | "
              f"{verdict} | {losses} | {'unchanged' if same else outputs}")  # fmt: skip
    print(f"within 10 % of the repair by hand: {within} of {len(names)}")
    print(f"more than 10 % slower than that, not kept, or not measured: {slower}")


if __name__ == "__main__":
    sys.exit(main())
