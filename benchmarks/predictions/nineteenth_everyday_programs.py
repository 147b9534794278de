"""A nineteenth set for one GPU: faults that most users have, four of them of the host.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, done, graphed, made_optimizer, precision, size, transformer_layers
from program import Program, Running, phase
from single_programs import entered, loaded
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 375 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
SHORT = torch.bfloat16


# --- chunks of actions ----------------------------------------------------------------------------


class Looks(nn.Module):
    """Attention to what is given, normed afterwards."""

    def __init__(self, width: int, heads: int, *, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.by_hand = heads, by_hand
        self.query, self.both = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.both(given).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.by_hand:
            scores = torch.matmul(q, k.transpose(-2, -1)) / q.shape[-1] ** 0.5
            seen = torch.matmul(torch.softmax(scores, dim=-1), v)
        else:
            seen = fn.scaled_dot_product_attention(q, k, v)
        return self.norm(x + self.out(seen.transpose(1, 2).flatten(2)))


class Thinks(nn.Module):
    """Two layers for each token, normed afterwards."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, wide), nn.Linear(wide, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(fn.relu(self.up(x))))


class Chunks(nn.Module):
    """The next hundred actions of an arm, and the manner that they were shown in; as in ACT."""

    def __init__(
        self, joints: int, seen: int, chunk: int, width: int, layers: int, *, by_hand: bool
    ) -> None:
        super().__init__()
        heads, wide = size(8, 2), 4 * width

        def look() -> Looks:
            return Looks(width, heads, by_hand=by_hand)

        self.action, self.joint = nn.Linear(joints, width), nn.Linear(joints, width)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(seen, width) * 0.02)
        self.asks = nn.Parameter(torch.randn(1, chunk, width) * 0.02)
        self.shown = nn.ModuleList(nn.ModuleList([look(), Thinks(width, wide)]) for _ in range(2))
        self.manner, self.told = nn.Linear(width, 64), nn.Linear(32, width)
        self.reads = nn.ModuleList(
            nn.ModuleList([look(), Thinks(width, wide)]) for _ in range(layers)
        )
        self.plans = nn.ModuleList(
            nn.ModuleList([look(), look(), Thinks(width, wide)]) for _ in range(layers)
        )
        self.out = nn.Linear(width, joints)

    def forward(self, views: Tensor, now: Tensor, acts: Tensor) -> tuple[Tensor, Tensor]:
        """Planned actions, and how far manners are from a normal distribution."""
        h = torch.cat([self.first.expand(len(acts), -1, -1), self.action(acts)], 1)
        for look, think in self.shown:
            h = think(look(h, h))
        mean, spread = self.manner(h[:, 0]).float().chunk(2, -1)
        manner = mean + torch.exp(0.5 * spread) * torch.randn_like(mean)
        far = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(-1).mean()
        h = views + self.places + (self.told(manner) + self.joint(now))[:, None]
        for look, think in self.reads:
            h = think(look(h, h))
        plan = self.asks.expand(len(acts), -1, -1)
        for own, look, think in self.plans:
            plan = think(look(own(plan, plan), h))
        return self.out(plan), far


@pair(
    "unfused_attention",
    "robotics",
    "scaled_dot_product_attention instead of two products, a division and a softmax",
    marks="steps",
)
def shown_chunks_of_actions_softmax_by_hand(repaired: bool) -> Running:
    """An arm with two hands learns from what was shown to four cameras; autocast to BF16."""
    batch, seen, joints, chunk = size(24, 2), size(1200, 6), size(14, 3), size(100, 4)
    width = size(512, 8)
    model = Chunks(joints, seen, chunk, width, size(4, 1), by_hand=not repaired).to(DEVICE)
    views, now, acts = noise(batch, seen, width), noise(batch, joints), noise(batch, chunk, joints)

    def loss_of() -> Tensor:
        planned, far = model(views, now, acts)
        return fn.l1_loss(planned.float(), acts) + 10 * far

    return fit(loss_of, adam(model))


# --- grains of sand -------------------------------------------------------------------------------


def three_layers(before: int, width: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(before, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, after),
    )  # fmt: skip


class Grains(nn.Module):
    """Grains tell their neighbours, several times; as in networks that learn to simulate."""

    def __init__(self, told: int, between: int, width: int, rounds: int) -> None:
        super().__init__()

        def normed(before: int) -> nn.Module:
            return nn.Sequential(three_layers(before, width, width), nn.LayerNorm(width))

        self.grain, self.touch = normed(told), normed(between)
        self.grains = nn.ModuleList(normed(2 * width) for _ in range(rounds))
        self.touches = nn.ModuleList(normed(3 * width) for _ in range(rounds))
        self.out = three_layers(width, width, 3)

    def forward(self, grains: Tensor, touches: Tensor, of: Tensor, to: Tensor) -> Tensor:
        x, e = self.grain(grains), self.touch(touches)
        for grain, touch in zip(self.grains, self.touches, strict=True):
            e = e + touch(torch.cat([x.index_select(0, of), x.index_select(0, to), e], 1))
            told = torch.zeros_like(x).index_add(0, to, e)
            x = x + grain(torch.cat([x, told], 1))
        return self.out(x)


@pair(
    "low_precision_unused",
    "graph",
    "torch.set_float32_matmul_precision('high'), which nobody had known of",
)
def grains_of_sand_learnt_without_tf32(repaired: bool) -> Running:
    """How sand will be accelerated, by where its grains were and whom they touch."""
    grains, touches = size(12_000, 12), size(120_000, 40)
    model = Grains(size(32, 4), 4, size(256, 8), size(6, 1)).to(DEVICE)
    were, between = noise(grains, size(32, 4)), noise(touches, 4)
    of, to = labels(grains, touches), labels(grains, touches)
    faster = noise(grains, 3)

    def loss_of() -> Tensor:
        return fn.mse_loss(model(were, between, of, to), faster)

    precise = "high" if repaired else "highest"
    return fit(loss_of, adam(model), bf16=False, matmul=precise, decay=True)


# --- words of passages ----------------------------------------------------------------------------


class Words(nn.Module):
    """How much each word of the vocabulary says about a text, most nothing; as in SPLADE."""

    def __init__(self, vocab: int, long: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(vocab, width), nn.Embedding(long, width)
        self.layers = nn.Sequential(*transformer_layers(width, layers, heads))
        self.guess = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)
        )
        self.bias = nn.Parameter(torch.zeros(vocab))
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        h = self.layers(self.embed(text) + self.places.weight[: text.shape[1]])
        scores = fn.linear(self.guess(h), self.embed.weight, self.bias)
        return torch.log1p(fn.relu(scores)).amax(1)


class OldAdamW(torch.optim.Optimizer):
    """The AdamW that a library of transformers brought along before it took PyTorch's."""

    def __init__(self, weights: Iterable[Tensor], lr: float, decay: float) -> None:
        super().__init__(weights, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                mean, square = state["mean"], state["square"]
                mean.mul_(0.9).add_(p.grad, alpha=0.1)
                square.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                root = square.sqrt().add_(1e-8)
                first, second = 1 - 0.9 ** state["step"], 1 - 0.999 ** state["step"]
                p.addcdiv_(mean, root, value=-group["lr"] * second**0.5 / first)
                p.add_(p, alpha=-group["lr"] * group["decay"])


@pair(
    "unfused_optimizer",
    "retrieval",
    "torch.optim.AdamW(fused=True) instead of the one that an old library brought along",
    marks="phases",
)
def sparse_words_of_passages_adamw_of_old_library(repaired: bool) -> Running:
    """Questions find their passages by few words, also such that are not in them; BF16."""
    batch, short, long, vocab = size(16, 3), size(32, 4), size(128, 8), size(30_528, 48)
    with torch.device(DEVICE):
        model = Words(vocab, long, size(1536, 16), size(6, 1), size(12, 2))
    update: torch.optim.Optimizer
    if repaired:
        update = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=True)
    else:
        update = OldAdamW(model.parameters(), 2e-5, 0.01)
    asked, passages = labels(vocab, batch, short), labels(vocab, batch, long)
    right = torch.arange(batch, device=DEVICE)

    def loss_of() -> Tensor:
        ask, say = model(asked).float(), model(passages).float()
        wordy = ask.mean(0).square().sum() + say.mean(0).square().sum()
        return fn.cross_entropy(ask @ say.t() / 100, right) + 1e-4 * wordy

    return fit(loss_of, update, decay=True)


# --- reviews --------------------------------------------------------------------------------------


class Dropping(torch.autograd.Function):
    """Dropout of one's own, as it was once written for a model that had to be exported."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        mask = (1 - torch.empty_like(x).bernoulli_(1 - share)).to(torch.bool)
        ctx.save_for_backward(mask)
        ctx.scale = 1.0 / (1 - share)
        return x.masked_fill(mask, 0) * ctx.scale

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return grads[0].masked_fill(mask, 0) * ctx.scale, None


class OwnDropout(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return Dropping.apply(x, self.share) if self.training else x


class Narrows(nn.Module):
    """A layer that keeps the length, or has each two tokens become one."""

    def __init__(self, width: int, heads: int, drop: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.both = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out, self.drop1 = nn.Linear(width, width), drop()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feeds = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), drop(), nn.Linear(4 * width, width), drop()
        )

    def forward(self, x: Tensor, *, halves: bool) -> Tensor:
        short = x.unflatten(1, (-1, 2)).mean(2) if halves else x
        q = self.query(short).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.both(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        h = self.norm1(short + self.drop1(self.out(seen)))
        return self.norm2(h + self.feeds(h))


class Reviews(nn.Module):
    """Ever fewer tokens from block to block; as in the Funnel-Transformer."""

    def __init__(
        self, vocab: int, long: int, width: int, blocks: int, layers: int, kinds: int, *, own: bool
    ) -> None:
        super().__init__()

        def drop() -> nn.Module:
            return OwnDropout(0.1) if own else nn.Dropout(0.1)

        self.embed, self.places = nn.Embedding(vocab, width), nn.Embedding(long, width)
        self.norm, self.drop = nn.LayerNorm(width), drop()
        self.blocks = nn.ModuleList(
            nn.ModuleList(Narrows(width, size(8, 2), drop) for _ in range(layers))
            for _ in range(blocks)
        )
        self.last = nn.Linear(width, kinds)

    def forward(self, text: Tensor) -> Tensor:
        h = self.drop(self.norm(self.embed(text) + self.places.weight))
        for block, layers in enumerate(self.blocks):
            for number, layer in enumerate(layers):
                h = layer(h, halves=block > 0 and number == 0)
        return self.last(h.mean(1))


@pair(
    "fusion_opportunity",
    "language",
    "nn.Dropout instead of a function of one's own that draws, casts, fills and scales",
    marks="profiler",
)
def funnelled_reviews_dropout_of_their_own(repaired: bool) -> Running:
    """How many stars a review gives, of ever fewer tokens; autocast to BF16."""
    batch, long, vocab = size(112, 3), size(512, 8), size(30_528, 40)
    model = Reviews(vocab, long, size(512, 16), 3, size(3, 1), size(8, 3), own=not repaired)
    model = model.to(DEVICE)
    text, stars = labels(vocab, batch, long), labels(size(8, 3), batch)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(text).float(), stars)

    return fit(loss_of, adam(model))


# --- shop signs -----------------------------------------------------------------------------------


def normed(before: int, after: int, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(True),
    ]


class Plain(nn.Module):
    """Two convolutions beside a short cut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *normed(before, after, 3, stride),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.short: nn.Module = nn.Identity()
        if stride > 1:
            self.short = nn.Sequential(*normed(before, after, 1, stride)[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(self.layers(x) + self.short(x))


class Signs(nn.Module):
    """Whether a pixel is in a text, how far its four borders are, and its angle; as in EAST."""

    def __init__(self, widths: Sequence[int], blocks: Sequence[int], merged: Sequence[int]) -> None:
        super().__init__()
        self.stem = nn.Sequential(*normed(3, widths[0], 7, 2), nn.MaxPool2d(3, 2, 1))
        levels: list[nn.Module] = []
        before = widths[0]
        for number, (width, times) in enumerate(zip(widths, blocks, strict=True)):
            parts = [Plain(before, width, 2 if number else 1)]
            levels.append(nn.Sequential(*parts, *(Plain(width, width, 1) for _ in range(times))))
            before = width
        self.levels = nn.ModuleList(levels)
        self.merges = nn.ModuleList()
        for width, after in zip(widths[-2::-1], merged, strict=True):
            both = normed(before + width, after, 1) + normed(after, after)
            self.merges.append(nn.Sequential(*both))
            before = after
        self.last = nn.Sequential(*normed(before, before))
        self.is_text, self.borders = nn.Conv2d(before, 1, 1), nn.Conv2d(before, 4, 1)
        self.angle = nn.Conv2d(before, 1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, kept = self.stem(x), []
        for level in self.levels:
            h = level(h)
            kept.append(h)
        kept.pop()
        for merge in self.merges:
            h = fn.interpolate(h, scale_factor=2.0, mode="bilinear", align_corners=True)
            h = merge(torch.cat([h, kept.pop()], 1))
        h = self.last(h)
        return (
            torch.sigmoid(self.is_text(h).float()),
            512 * torch.sigmoid(self.borders(h).float()),
            (torch.sigmoid(self.angle(h).float()) - 0.5) * torch.pi,
        )


@pair(
    "layout_changes",
    "vision",
    "channels_last for the network and its photographs",
)
def shop_signs_read_channels_first(repaired: bool) -> Running:
    """Where there is text in a photograph of a street; autocast to BF16, channels as they come."""
    batch, side = size(32, 2), size(512, 64)
    widths, merged = [size(w, 4) for w in (64, 128, 256, 512)], [size(w, 4) for w in (128, 64, 32)]
    model = Signs(widths, [size(n, 1) for n in (2, 3, 5, 2)], merged).to(DEVICE)
    photos = noise(batch, 3, side, side)
    if repaired:
        model = model.to(memory_format=torch.channels_last)
        photos = photos.contiguous(memory_format=torch.channels_last)
    text = (torch.rand(batch, 1, side // 4, side // 4, device=DEVICE) < 0.1).float()
    far = 1 + 100 * torch.rand(batch, 4, side // 4, side // 4, device=DEVICE)
    turned = 0.1 * noise(batch, 1, side // 4, side // 4)

    def loss_of() -> Tensor:
        found, borders, angle = model(photos)
        dice = 1 - 2 * (found * text).sum() / (found.sum() + text.sum() + 1e-5)
        least = torch.minimum(borders, far)
        both = (least[:, 0::2].sum(1) * least[:, 1::2].sum(1))[:, None]
        own = (borders[:, 0::2].sum(1) * borders[:, 1::2].sum(1))[:, None]
        true = (far[:, 0::2].sum(1) * far[:, 1::2].sum(1))[:, None]
        apart = -torch.log((both + 1) / (own + true - both + 1))
        each = (apart + 10 * (1 - torch.cos(angle - turned))) * text
        return dice + each.sum() / text.sum()

    return fit(loss_of, adam(model))


# --- thermal cameras ------------------------------------------------------------------------------


class Windows(nn.Module):
    """Pixels of a window look at each other; in every second layer windows are shifted."""

    def __init__(self, width: int, heads: int, side: int, shift: int) -> None:
        super().__init__()
        self.heads, self.side, self.shift = heads, side, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feeds = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.bias = nn.Parameter(torch.randn((2 * side - 1) ** 2, heads) * 0.02)
        at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"))
        apart = at.flatten(1)[:, :, None] - at.flatten(1)[:, None] + side - 1
        self.register_buffer("apart", apart[0] * (2 * side - 1) + apart[1])

    def looks(self, x: Tensor) -> Tensor:
        """Of shape (batch, height, width, features)."""
        b, high, wide, d = x.shape
        s = self.side
        x = x.view(b, high // s, s, wide // s, s, d).transpose(2, 3).reshape(-1, s * s, d)
        q, k, v = self.qkv(x).view(len(x), s * s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        near = self.bias[self.apart.flatten()].view(s * s, s * s, -1).permute(2, 0, 1)
        near = near.to(q.dtype).contiguous().expand(len(x), -1, -1, -1)
        h = fn.scaled_dot_product_attention(q, k, v, attn_mask=near)
        h = self.out(h.transpose(1, 2).flatten(2))
        return h.view(b, high // s, wide // s, s, s, d).transpose(2, 3).reshape(b, high, wide, d)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        if self.shift:
            h = torch.roll(h, (-self.shift, -self.shift), (1, 2))
        h = self.looks(h)
        if self.shift:
            h = torch.roll(h, (self.shift, self.shift), (1, 2))
        x = x + h
        return x + self.feeds(self.norm2(x))


class Sharpens(nn.Module):
    """Groups of windows with a convolution at their end, and four pixels of each; as in SwinIR."""

    def __init__(
        self, width: int, heads: int, side: int, groups: int, layers: int, *, saves: bool
    ) -> None:
        super().__init__()
        self.saves = saves
        self.first = nn.Conv2d(1, width, 3, 1, 1)
        self.groups = nn.ModuleList(
            nn.ModuleList(
                Windows(width, heads, side, side // 2 if n % 2 else 0) for n in range(layers)
            )
            for _ in range(groups)
        )
        self.ends = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(groups))
        self.last = nn.Sequential(nn.Conv2d(width, 4, 3, 1, 1), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        first = h = self.first(x)
        for layers, end in zip(self.groups, self.ends, strict=True):
            seen = h.permute(0, 2, 3, 1).contiguous()
            for layer in layers:
                seen = checkpoint(layer, seen, use_reentrant=False) if self.saves else layer(seen)
            h = h + end(seen.permute(0, 3, 1, 2))
        return self.last(first + h)


@pair(
    "recomputation",
    "vision",
    "use_checkpoint=False: the configuration was copied from a machine with a small GPU",
    marks="steps",
)
def thermal_cameras_sharper_by_copied_configuration(repaired: bool) -> Running:
    """Twice the pixels of a thermal camera, by windows; autocast to BF16."""
    batch, side, wide = size(16, 2), size(64, 8), size(192, 8)
    how = (wide, size(6, 2), size(8, 4), size(4, 1), size(4, 2))
    model = Sharpens(*how, saves=not repaired).to(DEVICE)
    seen, sharp = noise(batch, 1, side, side), noise(batch, 1, 2 * side, 2 * side)

    def loss_of() -> Tensor:
        return fn.l1_loss(model(seen).float(), sharp)

    return fit(loss_of, adam(model))


# --- films in order -------------------------------------------------------------------------------


class Films(nn.Module):
    """Which films were left out of what somebody has seen; as in BERT4Rec."""

    def __init__(self, films: int, long: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(films, width), nn.Embedding(long, width)
        self.layers = nn.Sequential(*transformer_layers(width, layers, heads))
        self.guess = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)
        )
        self.bias = nn.Parameter(torch.zeros(films))
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, seen: Tensor, hidden: Tensor) -> Tensor:
        h = self.layers(self.embed(seen) + self.places.weight).flatten(0, 1)
        return fn.linear(self.guess(h.index_select(0, hidden)), self.embed.weight, self.bias)


@pair(
    "aligned_shapes",
    "recommender",
    "26,745 films (one stands for those left out) are filled up to 26,752, a multiple of 64",
    marks="phases",
)
def films_left_out_of_26745(repaired: bool) -> Running:
    """Films in the order in which they were seen; the table is also the head; BF16."""
    people, long, each = size(256, 3), size(200, 8), size(40, 2)
    films = size(26_745, 45)
    rows = -(-films // 64) * 64 if repaired else films
    model = Films(rows, long, size(512, 16), size(3, 1), size(8, 2)).to(DEVICE)
    seen = labels(films - 1, people, long)
    some = torch.rand(people, long).argsort(1)[:, :each] + long * torch.arange(people)[:, None]
    hidden = some.flatten().to(DEVICE)
    true = seen.flatten()[hidden].clone()
    seen.view(-1)[hidden] = films - 1

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(seen, hidden).float(), true)

    return fit(loss_of, adam(model), decay=True)


# --- solids ---------------------------------------------------------------------------------------


class Solids(nn.Module):
    """How far a point is from the surface of a solid, which has a code; as in DeepSDF."""

    def __init__(self, solids: int, code: int, width: int, layers: int) -> None:
        super().__init__()
        self.codes = nn.Embedding(solids, code)
        nn.init.normal_(self.codes.weight, std=code**-0.5)
        inside, self.again = code + 3, layers // 2
        self.layers = nn.ModuleList()
        before = inside
        for number in range(layers):
            after = width - inside if number + 1 == self.again else width
            self.layers.append(weight_norm(nn.Linear(before, after)))
            before = width
        self.last = nn.Linear(width, 1)

    def forward(self, solids: Tensor, points: Tensor) -> Tensor:
        codes = self.codes(solids)[:, None].expand(-1, points.shape[1], -1)
        x = torch.cat([codes, points], 2).flatten(0, 1)
        h = x
        for number, layer in enumerate(self.layers):
            h = torch.cat([h, x.to(h.dtype)], 1) if number == self.again else h
            h = fn.dropout(fn.relu(layer(h)), 0.2)
        return torch.tanh(self.last(h))


@pair(
    "lower_precision",
    "geometry",
    "autocast to BF16 around model and loss, which were in TF32",
    marks="profiler",
)
def solids_of_a_catalogue_in_tf32(repaired: bool) -> Running:
    """Distances from the surfaces of a catalogue's parts, whose codes are learnt as well."""
    solids, points, code = size(16, 2), size(16_384, 16), size(125, 5)
    model = Solids(size(4096, 6), code, size(512, 24), size(8, 4)).to(DEVICE)
    which = torch.arange(solids, device=DEVICE)
    at, far = noise(solids, points, 3), 0.1 * noise(solids * points, 1)
    true = far.clamp(-0.1, 0.1)

    def loss_of() -> Tensor:
        off = (model(which, at).float().clamp(-0.1, 0.1) - true).abs().mean()
        return off + 1e-4 * model.codes(which).square().sum(1).mean()

    return fit(loss_of, adam(model), bf16=repaired)


# --- fields from above ----------------------------------------------------------------------------


class Seasons(Dataset[tuple[Tensor, Tensor]]):
    """Pictures of a year, stored as deflated differences of neighbours, as GeoTIFFs are."""

    def __init__(self, fields: int, days: int, bands: int, side: int, crops: int) -> None:
        rng = np.random.default_rng(0)
        self.shape = (days, bands, side, side)
        self.stored = [self.deflated(rng) for _ in range(fields)]
        self.crops = rng.integers(0, crops, (fields, side, side))
        self.mean = rng.uniform(1000, 3000, (1, bands, 1, 1)).astype(np.float32)
        self.spread = rng.uniform(200, 900, (1, bands, 1, 1)).astype(np.float32)

    def deflated(self, rng: np.random.Generator) -> list[bytes]:
        rough = rng.normal(0, 40, self.shape).astype(np.int16)
        return [zlib.compress(day.tobytes(), 6) for day in rough]

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        number = index % len(self.stored)
        raw = b"".join(zlib.decompress(day) for day in self.stored[number])
        rough = np.frombuffer(raw, dtype=np.int16).reshape(self.shape)
        smooth = np.cumsum(rough, axis=3, dtype=np.int16).astype(np.float32)
        year = (smooth - self.mean) / self.spread
        return torch.from_numpy(year), torch.from_numpy(self.crops[number])


def grouped(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Module:
    pad = (kernel - stride + 1) // 2
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, pad), nn.GroupNorm(4, after), nn.ReLU(True)
    )


class Grows(nn.Module):
    """Days are seen each by itself, and what counts of them is found at the coarsest level."""

    def __init__(
        self, bands: int, days: int, widths: Sequence[int], heads: int, crops: int
    ) -> None:
        super().__init__()
        self.heads = heads
        first, middle, last = widths
        self.first = nn.Sequential(grouped(bands, first), grouped(first, first))
        self.down1 = nn.Sequential(grouped(first, middle, 4, 2), grouped(middle, middle))
        self.down2 = nn.Sequential(grouped(middle, last, 4, 2), grouped(last, last))
        self.days = nn.Parameter(torch.randn(days, last) * 0.02)
        self.key, self.ask = nn.Linear(last, heads * 8), nn.Parameter(torch.randn(heads, 8))
        self.up1 = nn.ConvTranspose2d(last, middle, 2, 2)
        self.join1 = nn.Sequential(grouped(2 * middle, middle), grouped(middle, middle))
        self.up2 = nn.ConvTranspose2d(middle, first, 2, 2)
        self.join2 = nn.Sequential(grouped(2 * first, first), grouped(first, first))
        self.out = nn.Conv2d(first, crops, 1)

    def summed(self, x: Tensor, shares: Tensor, days: int) -> Tensor:
        """Over the days, with the shares of each part of the features, at their own scale."""
        times = x.shape[-1] // shares.shape[-1]
        shares = fn.interpolate(shares, scale_factor=float(times)) if times > 1 else shares
        parts = x.view(-1, days, self.heads, x.shape[1] // self.heads, *x.shape[2:])
        return (parts * shares.unflatten(0, (-1, days))[:, :, :, None]).sum(1).flatten(1, 2)

    def forward(self, years: Tensor) -> Tensor:
        days = years.shape[1]
        near = self.first(years.flatten(0, 1))
        far = self.down1(near)
        h = self.down2(far)
        side = h.shape[-1]
        tokens = h.flatten(2).transpose(1, 2).unflatten(0, (-1, days)) + self.days[:, None]
        keys = self.key(tokens).unflatten(-1, (self.heads, 8))
        shares = ((keys * self.ask).sum(-1) / 8**0.5).float().softmax(1)
        shares = shares.transpose(2, 3).flatten(0, 1).unflatten(-1, (side, side)).to(h.dtype)
        x = self.up1(self.summed(h, shares, days))
        x = self.join1(torch.cat([x, self.summed(far, shares, days)], 1))
        x = self.join2(torch.cat([self.up2(x), self.summed(near, shares, days)], 1))
        return self.out(x)


@pair(
    "input_starvation",
    "earth",
    "the DataLoader gets 8 workers: num_workers had never been set",
    marks="phases",
)
def fields_of_crops_inflated_by_main_thread(repaired: bool) -> Running:
    """What grows on a field, of pictures from a satellite, as in U-TAE; autocast to BF16."""
    batch, days, bands, side, crops = size(12, 2), size(24, 3), size(6, 2), size(32, 8), 20
    batches = loaded(Seasons(size(48, 3), days, bands, side, crops), batch, 8 if repaired else 0)
    widths = [size(w, 8) for w in (256, 512, 512)]
    model = Grows(bands, days, widths, size(16, 4), crops).to(DEVICE)
    update = adam(model)

    def step() -> None:
        with phase("get_batch"):
            years, grows = batches()
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            loss = fn.cross_entropy(model(years).float(), grows)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            done(update)

    return Running(step, enter=precision("high"), settle=2 + getattr(batches, "ahead", 0))


# --- weather of the globe -------------------------------------------------------------------------


class Waves(nn.Module):
    """Fourier waves of the globe, each by small layers of complex numbers; as in FourCastNet."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        each = width // blocks
        self.blocks = blocks
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.first = nn.Parameter(torch.randn(2, blocks, each, each) * 0.02)
        self.second = nn.Parameter(torch.randn(2, blocks, each, each) * 0.02)
        self.feeds = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    @staticmethod
    def times(x: Tensor, y: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
        """A complex product, of waves (blocks, waves, features)."""
        real = torch.bmm(x, of[0]) - torch.bmm(y, of[1])
        return real, torch.bmm(x, of[1]) + torch.bmm(y, of[0])

    def mixed(self, x: Tensor) -> Tensor:
        waves = torch.fft.rfft2(x.float(), dim=(1, 2), norm="ortho")
        shape = waves.shape
        parts = waves.reshape(-1, self.blocks, shape[-1] // self.blocks).transpose(0, 1)
        real, other = self.times(parts.real, parts.imag, self.first)
        real, other = self.times(fn.relu(real), fn.relu(other), self.second)
        found = fn.softshrink(torch.stack([real, other], -1).float(), 0.01)
        waves = torch.view_as_complex(found).transpose(0, 1).reshape(shape)
        return torch.fft.irfft2(waves, s=x.shape[1:3], dim=(1, 2), norm="ortho")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixed(self.norm1(x))
        return x + self.feeds(self.norm2(x))


class Globe(nn.Module):
    """Squares of the globe's weather, and what they will be six hours later."""

    def __init__(
        self, fields: int, high: int, wide: int, width: int, layers: int, blocks: int, side: int
    ) -> None:
        super().__init__()
        self.side = side
        self.into = nn.Linear(fields * side**2, width)
        self.places = nn.Parameter(torch.randn(high // side, wide // side, width) * 0.02)
        self.layers = nn.Sequential(*(Waves(width, blocks) for _ in range(layers)))
        self.out = nn.Linear(width, fields * side**2)

    def squares(self, x: Tensor) -> Tensor:
        b, fields, high, wide = x.shape
        x = x.view(b, fields, high // self.side, self.side, wide // self.side, self.side)
        return x.permute(0, 2, 4, 1, 3, 5).flatten(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(self.into(self.squares(x)) + self.places))


@pair(
    "blocking_copy",
    "weather",
    "the hours are page-locked when they are read, and copied with non_blocking=True",
    marks="steps",
)
def weather_of_globe_hours_in_plain_memory(repaired: bool) -> Running:
    """Weather in six hours, half a degree apart; some days are kept in memory; BF16."""
    batch, fields, high, wide = size(2, 1), size(40, 3), size(360, 12), size(720, 16)
    model = Globe(fields, high, wide, size(768, 16), size(4, 1), size(8, 2), 4).to(DEVICE)
    hours = [torch.rand(batch, fields, high, wide) for _ in range(3)]
    if repaired and CUDA:
        hours = [x.pin_memory() for x in hours]
    update, made = adam(model), 0

    def step() -> None:
        nonlocal made
        now = hours[made % 3].to(DEVICE, non_blocking=repaired)
        later = hours[(made + 1) % 3].to(DEVICE, non_blocking=repaired)
        made += 1
        with torch.autocast(DEVICE.type, SHORT):
            loss = fn.mse_loss(model(now).float(), model.squares(later))
        loss.backward()
        done(update)

    return Running(step, enter=precision("high"))


# --- facts of documents ---------------------------------------------------------------------------


class Facts(nn.Module):
    """What relates two entities of a document, by a product of parts of both; as in ATLOP."""

    def __init__(
        self, vocab: int, long: int, width: int, layers: int, part: int, kinds: int
    ) -> None:
        super().__init__()
        self.part = part
        self.embed, self.places = nn.Embedding(vocab, width), nn.Embedding(long, width)
        parts = transformer_layers(width, layers, size(16, 2))
        self.layers = nn.Sequential(*parts, nn.LayerNorm(width))
        self.one, self.other = nn.Linear(width, width), nn.Linear(width, width)
        self.last = nn.Linear(width * part, kinds)

    def forward(self, text: Tensor, spans: Callable[[int, int], tuple[int, int]], n: int) -> Tensor:
        """Scores of all pairs of a document's n entities, which are the means of their words."""
        h = self.layers(self.embed(text) + self.places.weight)
        entities = []
        for number, words in enumerate(h.unbind(0)):
            for entity in range(n):
                begin, end = spans(number, entity)
                entities.append(words[begin:end].mean(0))
        found = torch.stack(entities).view(len(text), n, -1)
        of = torch.tanh(self.one(found)).unflatten(-1, (-1, self.part))[:, :, None, :, :, None]
        to = torch.tanh(self.other(found)).unflatten(-1, (-1, self.part))[:, None, :, :, None]
        return self.last((of * to).flatten(3))


@pair(
    "host_sync",
    "language",
    "where entities are is left on the host, as lists, when the batch goes to the device",
)
def facts_of_documents_places_on_device(repaired: bool) -> Running:
    """Relations of all entities of a document; all of a batch goes to the device; BF16."""
    batch, long, vocab, width = size(24, 2), size(512, 12), size(28_992, 40), size(1024, 16)
    entities, kinds = size(9, 2), size(96, 3)
    with torch.device(DEVICE):
        model = Facts(vocab, long, width, size(8, 1), size(32, 4), kinds)
    text = labels(vocab, batch, long)
    begins = [[(37 * d + 53 * e) % (long - 6) for e in range(entities)] for d in range(batch)]
    on_host = [[(begin, begin + 2 + begin % 4) for begin in row] for row in begins]
    places = torch.tensor(on_host, device=DEVICE)
    related = (torch.rand(batch, entities, entities, kinds, device=DEVICE) < 0.02).float()

    def read(document: int, entity: int) -> tuple[int, int]:
        return int(places[document, entity, 0]), int(places[document, entity, 1])

    def known(document: int, entity: int) -> tuple[int, int]:
        return on_host[document][entity]

    spans = known if repaired else read

    def loss_of() -> Tensor:
        said = model(text, spans, entities).float()
        return fn.binary_cross_entropy_with_logits(said, related)

    return fit(loss_of, adam(model), decay=True)


# --- a tape of memory -----------------------------------------------------------------------------


class Head(nn.Module):
    """Where to read or write: what is alike, or what lies beside what was looked at before."""

    def __init__(self, width: int, each: int) -> None:
        super().__init__()
        self.wants = nn.Linear(width, each + 6)

    def forward(self, h: Tensor, memory: Tensor, before: Tensor) -> Tensor:
        parts = (memory.shape[2], 1, 1, 3, 1)
        key, strong, gate, moves, sharp = self.wants(h).split(parts, 1)
        alike = fn.cosine_similarity(memory, torch.tanh(key)[:, None], dim=2)
        shares = torch.softmax(fn.softplus(strong) * alike, 1)
        gate = torch.sigmoid(gate)
        shares = gate * shares + (1 - gate) * before
        moves = torch.softmax(moves, 1)
        shares = (
            moves[:, 0:1] * torch.roll(shares, 1, 1)
            + moves[:, 1:2] * shares
            + moves[:, 2:3] * torch.roll(shares, -1, 1)
        )
        shares = (shares + 1e-6) ** (1 + fn.softplus(sharp))
        return shares / shares.sum(1, keepdim=True)


class Tape(nn.Module):
    """A cell with a memory that it reads and writes; as in neural Turing machines."""

    def __init__(self, bits: int, width: int, places: int, each: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(bits + each, width)
        self.reads, self.writes = Head(width, each), Head(width, each)
        self.change = nn.Linear(width, 2 * each)
        self.out = nn.Linear(width + each, bits)
        self.first = nn.Parameter(torch.randn(places, each) * 0.1)

    def forward(self, given: Tensor) -> Tensor:
        b, width = given.shape[1], self.cell.hidden_size
        memory = self.first.expand(b, -1, -1)
        h = c = given.new_zeros(b, width)
        seen = given.new_zeros(b, memory.shape[2])
        read = write = given.new_full(memory.shape[:2], 1 / memory.shape[1])
        told = []
        for now in given:
            h, c = self.cell(torch.cat([now, seen], 1), (h, c))
            write = self.writes(h, memory, write)
            erase, new = self.change(h).chunk(2, 1)
            memory = memory * (1 - write[..., None] * torch.sigmoid(erase)[:, None])
            memory = memory + write[..., None] * torch.tanh(new)[:, None]
            read = self.reads(h, memory, read)
            seen = (read[:, None] @ memory)[:, 0]
            told.append(self.out(torch.cat([h, seen], 1)))
        return torch.stack(told)


@pair("launch_bound", "memory", "the whole step is one CUDA graph", marks="steps")
def tapes_copied_moment_by_moment_graph(repaired: bool) -> Running:
    """Rows of bits are read, and have to be repeated in the end; single precision, TF32."""
    batch, long, bits = size(512, 3), size(10, 3), size(8, 3)
    model = Tape(bits + 1, size(128, 8), size(128, 6), size(32, 4)).to(DEVICE)
    update = made_optimizer(model.parameters(), "graph")
    rows = (torch.rand(long, batch, bits, device=DEVICE) < 0.5).float()
    given = torch.zeros(2 * long, batch, bits + 1, device=DEVICE)
    given[:long, :, :bits] = rows
    given[long - 1, :, bits] = 1.0

    def step() -> None:
        said = model(given)[long:, :, :bits]
        fn.binary_cross_entropy_with_logits(said, rows).backward()
        done(update)

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run
