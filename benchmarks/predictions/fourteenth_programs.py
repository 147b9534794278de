"""Programs of the fourteenth set: what the host asks, computes, loads, copies and launches.

Two of them launch many small kernels; most of the others a few hundred large ones. Needs PyTorch
and NumPy only; no weights are loaded.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, half, precision, size, transformer_layers
from program import Program, Running
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 242 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- claims of patents ------------------------------------------------------------------------


@pair(
    "unfused_optimizer",
    "language",
    "one AdamW(fused=True) after the backward pass, not one of each weight in its hook",
    marks="steps",
)
def claims_adam_in_hooks_of_weights(repaired: bool) -> Running:
    """Classes of claims; each weight is updated as soon as its gradient is there, which was to
    save the memory of the gradients."""
    batch, length, width, kinds = size(32, 2), size(512, 12), size(640, 16), size(640, 7)
    embed = nn.Embedding(size(16_384, 50), width)
    layers = nn.Sequential(*transformer_layers(width, size(8, 2), size(10, 2)))
    model = nn.ModuleList([embed, layers, nn.LayerNorm(width), nn.Linear(width, kinds)]).to(DEVICE)
    words, kind = labels(size(16_384, 50), batch, length), labels(kinds, batch)
    weights = list(model.parameters())
    how = {"lr": 1e-4, "weight_decay": 0.05}
    if repaired:
        whole = torch.optim.AdamW(weights, fused=True, **how)
    else:
        own = {p: torch.optim.AdamW([p], foreach=False, **how) for p in weights}

        def update(p: Tensor) -> None:
            own[p].step()
            own[p].zero_grad()

        for p in weights:
            p.register_post_accumulate_grad_hook(update)

    def step() -> None:
        h = embed(words)
        h = model[2](layers(h).mean(1))
        fn.cross_entropy(model[3](h), kind, label_smoothing=0.1).backward()
        if repaired:
            whole.step()
            whole.zero_grad()

    return Running(step, enter=precision("high"))


# --- answers that are rewarded by rules -------------------------------------------------------


class Answers(nn.Module):
    """A language model that tells how likely each token of what it is given was."""

    def __init__(self, vocab: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*transformer_layers(width, layers, heads, causal=True))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        given, asked = ids[:, :-1], ids[:, 1:]
        h = self.embed(given) + self.place.weight[: given.shape[1]]
        scores = self.head(self.norm(self.layers(h))).float()
        return -fn.cross_entropy(scores.flatten(0, 1), asked.flatten(), reduction="none").view(
            asked.shape
        )


@pair(
    "host_compute",
    "rl",
    "different triples of tokens are counted on the device by a sort, not by sets of tuples",
)
def answers_repetitions_in_python_sets(repaired: bool) -> Running:
    """Groups of answers to one question; those that repeat themselves get less than the others."""
    groups, each, length, vocab = size(6, 2), size(8, 3), size(512, 14), size(8192, 9)
    model = Answers(vocab, length, size(768, 16), size(3, 1), size(12, 2)).to(DEVICE)
    bank = labels(vocab, 4, groups * each, length)  # what another engine answered
    with torch.no_grad(), half("bf16"):
        before = torch.stack([model(ids) for ids in bank])
    update, made, long = adam(model), 0, 3

    def shares_by_sets(ids: Tensor) -> Tensor:
        """The share of triples that are not repetitions."""
        shares = []
        for row in ids.tolist():
            seen, total = set(), 0
            for triple in zip(*(row[i:] for i in range(long)), strict=False):
                seen.add(triple)
                total += 1
            shares.append(len(seen) / total)
        return torch.tensor(shares, device=DEVICE)

    def shares_by_sort(ids: Tensor) -> Tensor:
        triples = (ids[:, :-2] * vocab + ids[:, 1:-1]) * vocab + ids[:, 2:]
        ordered = triples.sort(1).values
        different = (ordered[:, 1:] != ordered[:, :-1]).sum(1) + 1
        return different.float() / triples.shape[1]

    rewarded = shares_by_sort if repaired else shares_by_sets

    def step() -> None:
        nonlocal made
        ids, then = bank[made % 4], before[made % 4]
        shares = rewarded(ids).view(groups, each)
        worth = (shares - shares.mean(1, keepdim=True)) / (shares.std(1, keepdim=True) + 1e-4)
        with half("bf16"):
            now = model(ids)
        ratio = torch.exp(now - then)
        worth = worth.view(-1, 1)
        gain = torch.minimum(ratio * worth, ratio.clamp(0.8, 1.2) * worth)
        far = torch.exp(then - now) - (then - now) - 1
        loss = (0.04 * far - gain).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        update.step()
        update.zero_grad(set_to_none=True)
        made += 1

    return Running(step, enter=precision("high"))


# --- speech out of noise ----------------------------------------------------------------------


class Denoises(nn.Module):
    """What was added to a spectrogram, told how much noise there is."""

    def __init__(self, bands: int, frames: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.into, self.place = nn.Linear(bands, width), nn.Parameter(torch.zeros(frames, width))
        self.level = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.Sequential(*transformer_layers(width, layers, heads))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, bands)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        h = self.into(x) + self.place + self.level(level[:, None])[:, None]
        return self.out(self.norm(self.layers(h)))


class LevelsOnHost:
    """Levels are drawn as often as their last losses say; the losses are kept by NumPy."""

    def __init__(self, levels: int, kept: int) -> None:
        self.losses, self.rng = np.ones((levels, kept)), np.random.default_rng(3)

    def shares(self) -> np.ndarray:
        weights = np.sqrt((self.losses**2).mean(1))
        return 0.999 * weights / weights.sum() + 0.001 / len(weights)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        shares = self.shares()
        drawn = self.rng.choice(len(shares), count, p=shares)
        weight = 1 / (len(shares) * shares[drawn])
        return torch.from_numpy(drawn).to(DEVICE), torch.from_numpy(weight).float().to(DEVICE)

    def update(self, levels: Tensor, losses: Tensor) -> None:
        numbers = [level.item() for level in levels]
        values = [loss.item() for loss in losses]
        for number, value in zip(numbers, values, strict=True):
            self.losses[number, :-1] = self.losses[number, 1:]
            self.losses[number, -1] = value


class LevelsOnDevice:
    """The same, in tensors."""

    def __init__(self, levels: int, kept: int) -> None:
        self.losses = torch.ones(levels, kept, device=DEVICE)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        weights = self.losses.square().mean(1).sqrt()
        shares = 0.999 * weights / weights.sum() + 0.001 / len(weights)
        drawn = torch.searchsorted(shares.cumsum(0), torch.rand(count, device=DEVICE))
        drawn = drawn.clamp_(max=len(shares) - 1)
        return drawn, 1 / (len(shares) * shares[drawn])

    def update(self, levels: Tensor, losses: Tensor) -> None:
        self.losses[levels] = torch.cat([self.losses[levels, 1:], losses[:, None]], 1)


@pair(
    "host_sync",
    "diffusion",
    "losses of the levels of noise are kept on the device, and levels are drawn there",
)
def spoken_noise_levels_drawn_by_losses(repaired: bool) -> Running:
    batch, frames, bands, levels = size(96, 3), size(256, 8), size(80, 6), size(1000, 20)
    model = Denoises(bands, frames, size(1024, 16), size(3, 1), size(16, 2)).to(DEVICE)
    sampler = LevelsOnDevice(levels, 10) if repaired else LevelsOnHost(levels, 10)
    spoken, update = noise(batch, frames, bands), adam(model, weight_decay=0.0)
    kept = torch.cos(torch.linspace(0, 1.55, levels, device=DEVICE))

    def step() -> None:
        drawn, weight = sampler.draw(batch)
        added = torch.randn_like(spoken)
        part = kept[drawn][:, None, None]
        with half("bf16"):
            found = model(part * spoken + (1 - part.square()).sqrt() * added, drawn / levels)
        losses = (found.float() - added).square().mean((1, 2))
        sampler.update(drawn, losses.detach())
        (losses * weight).mean().backward()
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))
