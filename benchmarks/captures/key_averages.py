"""Profile some unlike small models with torch.profiler; keep each trace with torch's own table.

    python key_averages.py OUTPUT_FOLDER [--device cpu|cuda] [--model NAME...]

Writes NAME.json.gz (the trace) and NAME.table.json: what ``key_averages()`` says, by name and by
input shape, as numbers in microseconds and bytes. ``tests/operators`` compares both.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function, schedule

FIELDS = (
    *("count", "cpu_time_total", "self_cpu_time_total", "device_time_total"),
    *("self_device_time_total", "cpu_memory_usage", "self_cpu_memory_usage"),
    *("device_memory_usage", "self_device_memory_usage", "flops"),
)
STEPS = 3

Step = Callable[[], None]


class Attention(nn.Module):
    """A block of a transformer, with PyTorch's fused attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, t, w))


def attention(device: str) -> Step:
    """Embedding, two blocks, cross entropy, AdamW; parts marked by annotations."""
    width = 64 if device == "cpu" else 512
    embed = nn.Embedding(100, width)
    model = nn.Sequential(Attention(width, 4), Attention(width, 4), nn.Linear(width, 100))
    embed, model = embed.to(device), model.to(device)
    optimizer = torch.optim.AdamW([*embed.parameters(), *model.parameters()], lr=1e-3)
    x = torch.randint(0, 100, (4, 32 if device == "cpu" else 256), device=device)

    def step() -> None:
        with record_function("forward"), torch.autocast(device, torch.bfloat16):
            loss = functional.cross_entropy(model(embed(x)).flatten(0, 1), x.flatten())
        with record_function("backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def convolutions(device: str) -> Step:
    """Convolutions with batch normalisation, pooling, SGD; the loss is read in every step."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    size = 32 if device == "cpu" else 128
    x, y = torch.randn(8, 3, size, size), torch.randint(0, 10, (8,))

    def step() -> None:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def recurrent(device: str) -> Step:
    """A recurrent network, inference, concatenations and indexing, without autograd."""
    model = nn.LSTM(32, 48, num_layers=2, batch_first=True).to(device).eval()
    x = torch.randn(4, 12, 32, device=device)

    @torch.no_grad()
    def step() -> None:
        with record_function("rnn"):
            y, (h, c) = model(x)
        with record_function("gather"):
            z = torch.cat([y, y.flip(1)], dim=-1)
            z[:, torch.arange(0, 12, 2, device=device)].softmax(-1).sum()
            torch.stack([h, c]).mean()

    return step


MODELS: dict[str, tuple[Callable[[str], Step], dict[str, bool]]] = {
    "attention": (attention, {"record_shapes": True, "profile_memory": True}),
    "convolutions": (convolutions, {"record_shapes": True, "with_stack": True}),
    "recurrent": (recurrent, {"profile_memory": True, "record_shapes": False}),
}
"""Name -> (makes one step, what the profiler records)."""


def table(averages: Any) -> list[dict[str, Any]]:
    """Rows of ``key_averages()`` as plain values."""
    return [
        {
            "key": row.key,
            "device_type": row.device_type.name,
            "annotation": bool(row.is_user_annotation),
            "shapes": row.input_shapes or None,
            **{name: getattr(row, name) for name in FIELDS},
        }
        for row in averages
    ]


def record(name: str, device: str, folder: Path) -> None:
    """Profile one model and write its trace and table."""
    torch.manual_seed(0)
    make, options = MODELS[name]
    step = make(device)
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    for _ in range(3):
        step()
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1),
        with_flops=options.get("record_shapes", False),
        **options,
    ) as profiled:
        for _ in range(STEPS + 1):
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            profiled.step()
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "trace.json"
        profiled.export_chrome_trace(str(plain))
        with (
            plain.open("rb") as read,
            gzip.GzipFile(folder / f"{name}.{device}.json.gz", "wb", mtime=0) as packed,
        ):
            shutil.copyfileobj(read, packed)
    found = {
        "torch": torch.__version__,
        "by_name": table(profiled.key_averages()),
        "by_shape": table(profiled.key_averages(group_by_input_shape=True)),
        "text": profiled.key_averages().table(row_limit=12),
    }
    place = folder / f"{name}.{device}.table.json"
    place.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")


def main() -> None:
    """Record what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", nargs="*", choices=sorted(MODELS), default=sorted(MODELS))
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    for name in given.model:
        record(name, given.device, given.output)


if __name__ == "__main__":
    main()
