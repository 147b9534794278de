"""A small GPT whose batches are made by the main thread, with NumPy, while the GPU waits."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

STEPS, WIDTH, LENGTH, WORDS = int(os.environ.get("WALK_STEPS", "60")), 512, 256, 8192


class Texts(Dataset):
    def __len__(self) -> int:
        return STEPS * 8

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = np.random.default_rng(index)
        words = noise.integers(0, WORDS, LENGTH + 1)
        np.sort(noise.random(60_000))  # "augmentation": some milliseconds on one core
        return torch.from_numpy(words % WORDS)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], 8, WIDTH // 8)
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))


def main() -> None:
    torch.manual_seed(0)
    embed = nn.Embedding(WORDS, WIDTH)
    model = nn.Sequential(embed, *[Block() for _ in range(6)], nn.Linear(WIDTH, WORDS)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    begins, losses = [], []
    for batch in DataLoader(Texts(), batch_size=8, num_workers=0, pin_memory=True):
        words = batch.cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(words[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        begins.append(time.monotonic_ns())
    assert losses[-1] == losses[-1]
    if "WALK_TIMES" in os.environ:
        with open(os.environ["WALK_TIMES"], "w") as file:
            file.write("\n".join(map(str, begins)))


main()
