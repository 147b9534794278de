"""Programs of the sixteenth set whose fault lies in the GPU's kernels, which are few and large.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

from typing import Any

import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Feeds, size
from program import Program, Running
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 303 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
SHORT = torch.bfloat16


# --- weights of three values ----------------------------------------------------------------------


def ternary(cast: torch.dtype | None) -> Any:
    """A product with weights that are -1, 0 or 1 times a scale; gradients pass straight through.

    Args:
        cast: what autocast's tensors become at its door; without it the product is autocast's.
    """

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=DEVICE.type, cast_inputs=cast)
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            scale = weight.abs().mean().clamp_min(1e-5)
            three = (weight / scale).round().clamp(-1, 1) * scale
            ctx.save_for_backward(x, three)
            return x @ three.t()

        @staticmethod
        @torch.amp.custom_bwd(device_type=DEVICE.type)
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, three = ctx.saved_tensors
            return g @ three, g.flatten(0, -2).t() @ x.flatten(0, -2)

    return Product.apply


class MixesInThrees(nn.Module):
    """A layer of a decoder; what attention found is mixed by weights of three values."""

    def __init__(self, width: int, heads: int, product: Any) -> None:
        super().__init__()
        self.heads, self.product = heads, product
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.mix = nn.Parameter(torch.randn(width, width) * width**-0.5)
        self.feed = Feeds(width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        qkv = self.qkv(self.norm(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.feed(x + self.product(y.transpose(1, 2).reshape(b, t, d), self.mix))


@pair(
    "low_precision_unused",
    "language",
    "custom_fwd casts nothing to float32, so that autocast holds within the function, too",
)
def next_words_ternary_function_casts(repaired: bool) -> Running:
    """A decoder for phones; one of its products is a function with a gradient of its own."""
    batch, long, words = size(16, 2), size(1024, 8), size(8192, 32)
    width, heads = size(1536, 16), size(12, 2)
    product = ternary(None if repaired else torch.float32)
    layers = (MixesInThrees(width, heads, product) for _ in range(size(3, 1)))
    model = nn.Sequential(
        nn.Embedding(words, width), *layers, nn.LayerNorm(width), nn.Linear(width, words)
    ).to(DEVICE)
    text = labels(words, batch, long + 1)

    def loss_of() -> Tensor:
        said = model(text[:, :-1]).flatten(0, 1)
        return fn.cross_entropy(said.float(), text[:, 1:].flatten())

    return fit(loss_of, adam(model), matmul="highest", clip=1.0)


# --- who clicks what ------------------------------------------------------------------------------

TRIED = ((8, 0), (8, 6))
"""GPUs on which BF16 was tried when the switch was written."""


def short_allowed(*, listed: bool) -> bool:
    """Whether to train in BF16 on this GPU; as a list says, or on all since Ampere."""
    kind = torch.cuda.get_device_capability() if CUDA else (9, 0)
    return kind in TRIED if listed else kind >= (8, 0)


class Crosses(nn.Module):
    """Products of features with each other: one more factor a layer; as in DCN-V2."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        first = x
        for layer in self.layers:
            x = first * layer(x) + x
        return x


@pair(
    "lower_precision",
    "recommender",
    "BF16 on every GPU since Ampere, not on the two kinds that a list knows",
    marks="steps",
)
def clicks_crossed_bf16_on_listed_gpus(repaired: bool) -> Running:
    """Which advertisement is clicked, by crosses of full rank beside a deep network."""
    batch, fields, each = size(16_384, 6), size(32, 3), size(64, 4)
    rows, wide = size(200_000, 50), size(4096, 16)
    width = fields * each
    table = nn.Embedding(rows, each)
    crosses = Crosses(width, size(4, 2))
    deep = nn.Sequential(
        nn.Linear(width, wide), nn.ReLU(),
        nn.Linear(wide, wide), nn.ReLU(),
        nn.Linear(wide, wide), nn.ReLU(),
    )  # fmt: skip
    last = nn.Linear(width + wide, 1)
    model = nn.ModuleList([table, crosses, deep, last]).to(DEVICE)
    shown, clicked = labels(rows, batch, fields), labels(2, batch).float()
    short = short_allowed(listed=not repaired)

    def loss_of() -> Tensor:
        with torch.autocast(DEVICE.type, SHORT, enabled=short):
            x = table(shown).flatten(1)
            said = last(torch.cat([crosses(x), deep(x)], 1))[:, 0]
        return fn.binary_cross_entropy_with_logits(said.float(), clicked)

    return fit(loss_of, adam(model), bf16=False)


# --- a voice and its lips -------------------------------------------------------------------------


class BothWays(nn.Module):
    """Two streams look at each other; who suits whom is the same for both."""

    def __init__(self, width: int, heads: int, *, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.by_hand = heads, by_hand
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.into = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.feeds = nn.ModuleList(Feeds(width) for _ in range(2))

    def sides(self, number: int, x: Tensor) -> Tensor:
        """What suits, and what is handed over: 2, batch, heads, time, width of a head."""
        b, t, _ = x.shape
        both = self.into[number](self.norms[number](x)).view(b, t, 2, self.heads, -1)
        return both.permute(2, 0, 3, 1, 4)

    def forward(self, voice: Tensor, lips: Tensor) -> tuple[Tensor, Tensor]:
        (q, v), (k, w) = self.sides(0, voice), self.sides(1, lips)
        if self.by_hand:
            suits = (q @ k.mT) * q.shape[-1] ** -0.5
            heard = suits.softmax(-1) @ w
            seen = suits.softmax(-2).mT @ v
        else:
            heard = fn.scaled_dot_product_attention(q, k, w)
            seen = fn.scaled_dot_product_attention(k, q, v)
        voice = voice + self.out[0](heard.transpose(1, 2).flatten(2))
        lips = lips + self.out[1](seen.transpose(1, 2).flatten(2))
        return self.feeds[0](voice), self.feeds[1](lips)


@pair(
    "unfused_attention",
    "speech",
    "scaled_dot_product_attention for each direction, not two softmaxes of one product",
)
def voices_and_lips_share_their_scores(repaired: bool) -> Running:
    """What is said, from a voice in noise and from lips; weights in BF16."""
    batch, sounds, frames, inside = size(16, 2), size(1280, 8), size(640, 4), size(256, 6)
    width, heads, letters = size(1024, 16), size(16, 2), size(64, 5)
    with torch.device(DEVICE):
        into = nn.ModuleList(nn.Linear(inside, width) for _ in range(2))
        layers = nn.ModuleList(
            BothWays(width, heads, by_hand=not repaired) for _ in range(size(3, 1))
        )
        last = nn.ModuleList(nn.Linear(width, letters) for _ in range(2))
    model = nn.ModuleList([into, layers, last]).to(SHORT)
    voices, lips = noise(batch, sounds, inside).to(SHORT), noise(batch, frames, inside).to(SHORT)
    said = labels(letters, batch, frames)

    def loss_of() -> Tensor:
        heard, seen = into[0](voices), into[1](lips)
        for layer in layers:
            heard, seen = layer(heard, seen)
        # two sounds go with a frame
        by_ear = last[0](heard.unflatten(1, (frames, 2)).mean(2)) + last[1](seen)
        return fn.cross_entropy(by_ear.flatten(0, 1).float(), said.flatten())

    return fit(loss_of, adam(model), bf16=False)
