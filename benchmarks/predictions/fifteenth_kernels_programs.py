"""Programs of the fifteenth set whose fault lies in the GPU's kernels, which are few and large.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Feeds, size
from program import Program, Running
from single_programs import entered
from tenth_pictures_programs import scaled
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 276 pairs"
pair = entered(PROGRAMS)
SHORT = torch.bfloat16


# --- what a surgeon does --------------------------------------------------------------------------


class WithinFrames(nn.Module):
    """Patches of a frame look at each other; channels then pass from frame to frame."""

    def __init__(self, width: int, heads: int, frames: int, *, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.frames, self.by_hand = heads, frames, by_hand
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = Feeds(width)

    def forward(self, x: Tensor) -> Tensor:
        n, s, d = x.shape
        qkv = self.qkv(self.norm(x)).view(n, s, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.by_hand:
            shares = ((q * (d // self.heads) ** -0.5) @ k.mT).softmax(dim=-1)
            y = shares @ v
        else:
            y = fn.scaled_dot_product_attention(q, k, v)
        y = y.transpose(1, 2).reshape(-1, self.frames, s, d)
        # an eighth of the channels comes from the frame before, as in temporal shifts
        y = torch.cat([y[..., : d // 8].roll(1, 1), y[..., d // 8 :]], -1)
        return self.feed(x + self.out(y.view(n, s, d)))


@pair(
    "unfused_attention",
    "video",
    "scaled_dot_product_attention where queries were scaled, multiplied, and their softmax taken",
)
def surgery_clips_looks_within_frames(repaired: bool) -> Running:
    """What a surgeon is doing in a clip, frame by frame; FP16 with a scaler."""
    clips, frames, patches, inside = size(2, 2), size(8, 2), size(784, 9), size(768, 12)
    width, heads, acts = size(1536, 16), size(12, 2), size(48, 5)
    layers = (WithinFrames(width, heads, frames, by_hand=not repaired) for _ in range(size(3, 1)))
    model = nn.Sequential(nn.Linear(inside, width), *layers).to(DEVICE)
    place = nn.Parameter(0.02 * noise(patches, inside))
    last = nn.Linear(width, acts).to(DEVICE)
    update = torch.optim.AdamW([*model.parameters(), *last.parameters(), place], 1e-4, fused=True)
    seen, done = noise(clips * frames, patches, inside), labels(acts, clips * frames)

    def loss_of() -> Tensor:
        return fn.cross_entropy(last(model(seen + place).mean(1)).float(), done)

    return scaled(loss_of, update)


# --- a flute, as sines ----------------------------------------------------------------------------


def harmonics(shares: Tensor, loud: Tensor, pitch: Tensor, turns: Tensor, count: Tensor) -> Tensor:
    """Sines at the multiples of a pitch; those above half of the sampling rate are left out.

    Args:
        shares: how strong each is, held for a frame: batch, frames, 1, harmonics.
        loud: how loud the sound is: batch, frames, 1.
        pitch: cycles a sample: batch, frames, samples.
        turns: its sum so far, in cycles.
        count: 1, 2, 3 and so on.
    """
    heard = pitch[..., None] * count < 0.5
    strong = torch.where(heard, shares, 0.0)
    strong = strong / (strong.sum(-1, keepdim=True) + 1e-7)
    waves = torch.sin((2 * math.pi) * (turns[..., None] * count))
    return (waves * strong * loud[..., None]).sum(-1)


@pair(
    "fusion_opportunity",
    "audio",
    "torch.compile of the function that adds the harmonics up",
    compiles=True,
)
def flutes_harmonics_compile(repaired: bool) -> Running:
    """A flute's sound from pitch and how it is blown, as in DDSP; the network in BF16."""
    sounds, frames, hop, many = size(40, 2), size(250, 4), size(192, 8), size(64, 5)
    width, blown_by = size(3072, 16), size(128, 6)
    parts: list[nn.Module] = [nn.Linear(blown_by, width), nn.GELU()]
    for _ in range(size(4, 1)):
        parts += [nn.Linear(width, width), nn.GELU()]
    net = nn.Sequential(*parts, nn.Linear(width, many + 1)).to(DEVICE)
    blown = noise(sounds, frames, blown_by)
    pitch = 0.005 + 0.02 * torch.rand(sounds, frames, 1, device=DEVICE).expand(-1, -1, hop)
    turns = pitch.flatten(1).cumsum(1).frac().view(sounds, frames, hop)
    count = torch.arange(1, many + 1, device=DEVICE).float()
    truth = noise(sounds, frames, hop)
    added: Any = torch.compile(harmonics, dynamic=False) if repaired else harmonics

    def loss_of() -> Tensor:
        said = net(blown).float()
        shares, loud = said[..., None, 1:].sigmoid(), said[..., :1].exp()
        return fn.mse_loss(added(shares, loud, pitch, turns, count), truth)

    return fit(loss_of, adam(net))


# --- echoes of rooms ------------------------------------------------------------------------------


def wide(inside: int, width: int, layers: int, outside: int) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Linear(inside, width), nn.SiLU()]
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.SiLU()]
    return nn.Sequential(*parts, nn.Linear(width, outside))


@pair(
    "low_precision_unused",
    "audio",
    "the decoder is called, and its loss taken, inside of the autocast block, as the encoder is",
)
def room_echoes_decoded_below_autocast(repaired: bool) -> Running:
    """Echoes of rooms as few numbers, by a variational autoencoder; the block ends too early."""
    echoes, long, few = size(16_384, 6), size(1024, 12), size(256, 4)
    encoder = wide(long, size(4096, 16), size(3, 1), 2 * few).to(DEVICE)
    decoder = wide(few, size(2048, 16), size(1, 1), long).to(DEVICE)
    heard = noise(echoes, long)

    def decoded(codes: Tensor) -> Tensor:
        return fn.mse_loss(decoder(codes).float(), heard)

    def loss_of() -> Tensor:
        with torch.autocast(DEVICE.type, SHORT):
            mean, log_spread = encoder(heard).float().chunk(2, -1)
            codes = mean + torch.exp(log_spread / 2) * torch.randn_like(mean)
            far = (mean.square() + log_spread.exp() - log_spread - 1).mean()
            if repaired:
                return decoded(codes) + 0.01 * far
        return decoded(codes) + 0.01 * far

    return fit(loss_of, adam(encoder, decoder), bf16=False, matmul="highest", clip=1.0)
