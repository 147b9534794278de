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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FAULTS = {
    "loader_in_main": "workers=4",
    "pageable_batches": "pin-memory,non-blocking",
    "blocking_copies": "non-blocking",
    "new_workers_each_epoch": "persistent-workers",
    "fp32_gemms": "tf32",
    "fp32_mlp": "bf16-autocast",
    "adamw_one_by_one": "fused-optimizer",
    "sgd_one_by_one": "foreach-optimizer",
    "pointwise_chain": "compile",
    "channels_first": "channels-last",
    "collector_in_steps": "no-gc-in-steps",
}
"""Fault -> what to try."""
IDLE = {
    "fp32_gemms": "foreach-optimizer",
    "pointwise_chain": "fused-optimizer",
    "loader_in_main": "no-sync-debug",
    "channels_first": "cudnn-benchmark",
    "fp32_mlp": "allocator=expandable",
}
"""Fault -> what changes nothing there, is refused, only looks, or is of no use."""
WARMUP, TIMED = 10, 40


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
    import torch

    with Path(os.environ.get("TRIES_LOCK", os.devnull)).open("w") as lock:
        if "TRIES_LOCK" in os.environ:  # what takes long and is the same for all is done before
            import torch._dynamo  # as the first optimizer would

            x = torch.randn(64, 64, device=device(torch), requires_grad=True)
            torch.autograd.grad(torch.nn.functional.gelu(x @ x).square().mean(), x)
        if "TRIES_LOCK" in os.environ:
            fcntl.flock(lock, fcntl.LOCK_EX)
        torch.manual_seed(0)
        torch.backends.cudnn.deterministic = fault != "channels_first"
        globals()[fault](torch, fixed)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if "TRIES_LOCK" in os.environ:
            fcntl.flock(lock, fcntl.LOCK_UN)  # workers that still end have it open, too


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
        for name in names:
            jobs.append(pool.submit(tried, folder, name, FAULTS[name], end))
            for kind, words in (("hand", [name, "--fixed"]), ("alone", [name]),
                                ("hand-again", [name, "--fixed"])):  # fmt: skip
                jobs.append(pool.submit(run, folder, f"{name}-{kind}", words, end))
        idle = [
            pool.submit(tried, folder, name, fix, end, rounds=1)
            for name, fix in IDLE.items()
            if name in names
        ]
        failing = pool.submit(
            tried, folder, names[0], FAULTS[names[0]], end, ["--exit", "3"], rounds=1
        )
        predicted = pool.submit(
            tried, folder, names[0], FAULTS[names[0]], end, rounds=1, diagnosed=True
        )
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
    rounds: int = 2,
    diagnosed: bool = False,
) -> tuple[dict[str, Any], int]:
    """Try a fix on a fault; the session's result and the exit code."""
    label = f"{name}-{fix.replace('=', '').replace(',', '+')}"
    label += ("-exit" if more else "") + ("-predicted" if diagnosed else "")
    words = ["-m", "stepscope", "run", *([] if diagnosed else ["--no-diagnose"]), "--rounds",
             str(rounds), "--warmup", str(WARMUP), "--try", fix, "-o", str(folder / label),
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
    within = 0
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
        files = [folder / f"{part}.out" for part in (label, f"{name}-alone")]
        outputs = [path.read_bytes() if path.exists() else b"" for path in files]
        same = outputs[0].startswith(outputs[1]) and bool(outputs[1])
        verdict, losses = ("none", "") if not one else (
            one[0]["verdict"], f"{one[0]['losses']['alike']} {one[0]['losses']['distance']}"
        )  # fmt: skip
        print(f"{name} | {fix} | {before:.2f} | {after:.2f} | {hand:.2f} | {after / hand:.3f} | "
              f"{verdict} | {losses} | {'unchanged' if same else outputs}")  # fmt: skip
    print(f"within 10 % of the repair by hand: {within} of {len(names)}")


if __name__ == "__main__":
    sys.exit(main())
