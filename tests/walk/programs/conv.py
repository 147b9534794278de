"""A residual network, compiled, in half precision with a gradient scaler; data lies on the GPU."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

STEPS = int(os.environ.get("WALK_STEPS", "60"))


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(before, after, 1, stride, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.one(x)))
        return F.relu(self.norms[1](self.two(y)) + self.norms[2](self.short(x)))


def main() -> None:
    torch.manual_seed(0)
    widths = (64, 64, 128, 256)
    layers = [Residual(a, b, 1 + (a != b)) for a, b in zip((3, *widths), widths, strict=False)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))
    model = model.cuda().to(memory_format=torch.channels_last)
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    images = torch.randn(128, 3, 96, 96, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 100, (128,), device="cuda")
    begins = []
    for _ in range(STEPS):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(compiled(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        begins.append(time.monotonic_ns())
    if "WALK_TIMES" in os.environ:
        with open(os.environ["WALK_TIMES"], "w") as file:
            file.write("\n".join(map(str, begins)))


main()
