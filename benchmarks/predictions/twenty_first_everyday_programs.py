"""A twenty-first set for one GPU: faults of tutorials, configurations and copied code.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, Attends, Feeds, done, precision, size, transformer_layers
from program import Program, Running, phase
from single_programs import entered, loaded
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 430 pairs"
pair = entered(PROGRAMS)
SHORT = torch.bfloat16


# --- folk tunes -----------------------------------------------------------------------------------


class Head(nn.Module):
    """One head of attention, as a lecture about a small GPT writes it."""

    tril: Tensor

    def __init__(self, width: int, inside: int, long: int, drop: float, *, fused: bool) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(width, inside, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.ones(long, long).tril())
        self.dropout, self.fused = nn.Dropout(drop), fused

    def forward(self, x: Tensor) -> Tensor:
        long = x.shape[1]
        k, q, v = self.key(x), self.query(x), self.value(x)
        if self.fused:
            parts = (part[:, None] for part in (q, k, v))
            return fn.scaled_dot_product_attention(
                *parts, dropout_p=self.dropout.p, is_causal=True
            )[:, 0]
        shares = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        shares = shares.masked_fill(self.tril[:long, :long] == 0, float("-inf"))
        return self.dropout(fn.softmax(shares, dim=-1)) @ v


class Lecture(nn.Module):
    """A layer of such heads, side by side."""

    def __init__(self, width: int, heads: int, long: int, drop: float, *, fused: bool) -> None:
        super().__init__()
        inside = width // heads
        self.norm, self.feeds = nn.LayerNorm(width), Feeds(width)
        self.heads = nn.ModuleList(
            Head(width, inside, long, drop, fused=fused) for _ in range(heads)
        )
        self.out, self.dropout = nn.Linear(width, width), nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        seen = torch.cat([head(normed) for head in self.heads], -1)
        return self.feeds(x + self.dropout(self.out(seen)))


@pair(
    "unfused_attention",
    "music",
    "scaled_dot_product_attention in each head, where the lecture's has a mask and a softmax",
)
def folk_tunes_by_letters_heads_of_a_lecture(repaired: bool) -> Running:
    """Tunes in ABC notation, letter by letter; a head is a module; autocast to BF16."""
    batch, long, letters = size(32, 2), size(1024, 12), size(96, 20)
    width, heads, layers = size(512, 16), size(8, 2), size(3, 2)
    embed, place = nn.Embedding(letters, width), nn.Embedding(long, width)
    body = nn.Sequential(*(Lecture(width, heads, long, 0.2, fused=repaired) for _ in range(layers)))
    norm, last = nn.LayerNorm(width), nn.Linear(width, letters)
    model = nn.ModuleList([embed, place, body, norm, last]).to(DEVICE)
    text, places = labels(letters, batch, long + 1), torch.arange(long, device=DEVICE)

    def loss_of() -> Tensor:
        h = body(embed(text[:, :-1]) + place(places))
        return fn.cross_entropy(last(norm(h)).float().flatten(0, 1), text[:, 1:].flatten())

    return fit(loss_of, adam(model))


# --- beetles --------------------------------------------------------------------------------------


def near(x: Tensor, proxies: Tensor, *, by_product: bool) -> Tensor:
    """Squared distances of all rows to all proxies, negated."""
    if by_product:
        return 2 * (x @ proxies.T) - x.pow(2).sum(-1, keepdim=True) - proxies.pow(2).sum(-1)
    return -torch.cdist(x, proxies).pow(2)


@pair(
    "low_precision_unused",
    "metric",
    "distances by a product, which autocast takes in BF16; torch.cdist it takes in FP32",
    marks="steps",
)
def beetles_near_their_species_by_cdist(repaired: bool) -> Running:
    """A drawer's beetles come near the proxies of their species; autocast to BF16."""
    batch, species, inside = size(6144, 8), size(12_288, 12), size(768, 8)
    width, layers, sharp = size(1024, 16), size(6, 2), 8.0
    model = nn.Sequential(
        nn.Linear(inside, width), *(Feeds(width) for _ in range(layers)), nn.LayerNorm(width)
    ).to(DEVICE)
    proxies = nn.Parameter(noise(species, width))
    seen, true = noise(batch, inside), labels(species, batch)
    update = torch.optim.AdamW([*model.parameters(), proxies], lr=1e-4, fused=True)

    def loss_of() -> Tensor:
        x = fn.normalize(model(seen).float(), dim=-1)
        far = near(x, fn.normalize(proxies, dim=-1), by_product=repaired)
        return fn.cross_entropy(sharp * far.float(), true)

    return fit(loss_of, update, matmul="highest")


# --- hands that turn cubes ------------------------------------------------------------------------


class Critics(nn.Module):
    """Several networks side by side, each product a batched one."""

    def __init__(self, many: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.many = many
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(many, a, b) * a**-0.5) for a, b in pairwise(sizes)
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(many, 1, b)) for b in sizes[1:])

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        h = torch.cat([state, action], -1).expand(self.many, -1, -1)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, fn.relu(h) if number else h, weight)
        return h.transpose(0, 1)


def quantile_huber(now: Tensor, goal: Tensor, *, library: bool) -> Tensor:
    """All quantiles (batch, critics, quantiles) against all goals (batch, goals)."""
    many = now.shape[-1]
    middles = (torch.arange(many, device=now.device) + 0.5) / many
    delta = goal[:, None, None, :] - now[..., None]
    if library:
        huber = fn.huber_loss(delta, delta.new_zeros(()).expand_as(delta), reduction="none")
    else:
        far = delta.abs()
        huber = torch.where(far > 1, far - 0.5, delta**2 * 0.5)
    return ((middles[:, None] - (delta.detach() < 0).float()).abs() * huber).mean()


@pair(
    "fusion_opportunity",
    "rl",
    "the library's huber_loss instead of abs, a square, a difference, products and where",
    marks="phases",
)
def hands_turn_cubes_huber_by_where(repaired: bool) -> Running:
    """Truncated quantile critics learn from what simulated hands did; all of it is on the GPU."""
    batch, kept, felt, joints = size(8192, 6), size(200_000, 40), size(136, 6), size(24, 3)
    critics, quantiles, dropped = size(5, 2), size(25, 4), size(10, 2)
    width = size(1024, 8)
    actor = nn.Sequential(
        nn.Linear(felt, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, joints),
    ).to(DEVICE)  # fmt: skip
    sizes = (felt + joints, width, width, width, quantiles)
    judges, slow = (Critics(critics, sizes).to(DEVICE) for _ in range(2))
    slow.load_state_dict(judges.state_dict())
    slow.requires_grad_(False)
    own, others = list(slow.parameters()), list(judges.parameters())
    of_actor, of_judges = adam(actor), adam(judges)
    table = [noise(kept, felt), noise(kept, joints), noise(kept, felt), noise(kept, 1)]

    def step() -> None:
        with phase("get_batch"):
            rows = torch.randint(0, kept, (batch,), device=DEVICE)
            state, action, then, reward = (part.index_select(0, rows) for part in table)
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            with torch.no_grad():
                does = torch.tanh(actor(then)) + 0.1 * torch.randn_like(action)
                worth = slow(then, does.float()).float().flatten(1)
                goal = reward + 0.99 * worth.sort(-1).values[:, :-dropped]
            loss = quantile_huber(judges(state, action).float(), goal, library=repaired)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            done(of_judges)
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            loss = -judges(state, torch.tanh(actor(state)).float()).float().mean()
        with phase("backward"):
            loss.backward(inputs=list(actor.parameters()))
        with phase("optimizer"):
            done(of_actor)
            torch._foreach_lerp_(own, others, 0.005)

    return Running(step, enter=precision("high"))


# --- cracks in concrete ---------------------------------------------------------------------------


@pair(
    "unfused_optimizer",
    "vision",
    "two groups of parameters, with decay and without, not a group for each parameter",
)
def cracks_in_concrete_group_of_each_weight(repaired: bool) -> Running:
    """Which parts of a wall's picture are cracked; parts are tokens; autocast to BF16."""
    batch, parts, inside = size(22, 2), size(1024, 9), size(3 * 16 * 16, 12)
    width, heads, layers = size(512, 16), size(8, 2), size(10, 2)
    model = nn.Sequential(
        nn.Linear(inside, width), *transformer_layers(width, layers, heads),
        nn.LayerNorm(width), nn.Linear(width, 1),
    ).to(DEVICE)  # fmt: skip
    weights = list(model.parameters())
    groups: list[dict[str, Any]]
    if repaired:
        groups = [
            {"params": [p for p in weights if p.ndim > 1], "weight_decay": 0.05},
            {"params": [p for p in weights if p.ndim < 2], "weight_decay": 0.0},
        ]
    else:
        groups = [{"params": [p], "weight_decay": 0.05 if p.ndim > 1 else 0.0} for p in weights]
    seen = noise(batch, parts, inside).to(SHORT)
    cracked = (torch.rand(batch, parts, 1, device=DEVICE) < 0.05).float()

    def loss_of() -> Tensor:
        return fn.binary_cross_entropy_with_logits(model(seen).float(), cracked)

    return fit(loss_of, torch.optim.AdamW(groups, lr=1e-4))


# --- letters to a town hall -----------------------------------------------------------------------


def turned(x: Tensor) -> Tensor:
    """The second half of the features, negated, before the first."""
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


class Adapted(nn.Module):
    """A frozen linear layer beside a narrow one that learns."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * self.up(self.down(x))


class FrozenLayer(nn.Module):
    """A layer as in Llama, frozen but for what is beside queries and values."""

    def __init__(self, width: int, wide: int, heads: int, rank: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.k, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, wide, bias=False) for _ in range(2))
        self.down = nn.Linear(wide, width, bias=False)
        self.requires_grad_(False)
        self.q, self.v = Adapted(width, rank), Adapted(width, rank)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.norm1(x)
        parts = (part(h) for part in (self.q, self.k, self.v))
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        q, k = (p * cos + turned(p) * sin for p in (q, k))
        seen = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(fn.silu(self.gate(h)) * self.up(h))


@pair(
    "recomputation",
    "language",
    "use_gradient_checkpointing=False: what prepares a quantised model turns it on by default",
    marks="profiler",
)
def letters_to_town_hall_prepared_for_few_bits(repaired: bool) -> Running:
    """Adapters learn how a town answers letters; the model is in BF16 and frozen."""
    batch, long, words = size(3, 2), size(2048, 12), size(32_000, 40)
    width, wide, heads, layers = size(2048, 16), size(5632, 24), size(16, 2), size(8, 2)
    with torch.device(DEVICE):
        embed = nn.Embedding(words, width).requires_grad_(False)
        body = nn.ModuleList(FrozenLayer(width, wide, heads, size(16, 4)) for _ in range(layers))
        norm, last = nn.RMSNorm(width, eps=1e-6), nn.Linear(width, words, bias=False)
    norm.requires_grad_(False)
    last.requires_grad_(False)
    model = nn.ModuleList([embed, body, norm, last]).to(SHORT)
    half = width // heads // 2
    turns = torch.arange(half, device=DEVICE) * (-9.2 / half)
    angles = torch.arange(long, device=DEVICE)[:, None] * turns.exp().repeat(2)
    cos, sin = angles.cos().to(SHORT), angles.sin().to(SHORT)
    text = labels(words, batch, long + 1)
    update = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def loss_of() -> Tensor:
        h = embed(text[:, :-1]).requires_grad_()
        for layer in body:
            if repaired:
                h = layer(h, cos, sin)
            else:
                h = checkpoint(layer, h, cos, sin, use_reentrant=True)
        return fn.cross_entropy(last(norm(h)).float().flatten(0, 1), text[:, 1:].flatten())

    return fit(loss_of, update, bf16=False, clip=1.0)


# --- dances of bees -------------------------------------------------------------------------------


class Moves(nn.Module):
    """Two convolutions over time and space beside a short cut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm3d(after),
            nn.ReLU(True),
            nn.Conv3d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm3d(after),
        )
        self.short = (
            nn.Sequential(nn.Conv3d(before, after, 1, stride, bias=False), nn.BatchNorm3d(after))
            if stride > 1
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(self.layers(x) + self.short(x), True)


@pair(
    "layout_changes",
    "video",
    "channels_last_3d for the network and its clips: channels_last is for pictures only",
)
def dances_of_bees_clips_channels_first(repaired: bool) -> Running:
    """Where a bee's dance points to, in a clip of a hive; as R3D-18; autocast to BF16."""
    batch, frames, side, angles = size(16, 2), size(16, 4), size(112, 16), size(36, 4)
    width = size(64, 4)
    widths = [width * 2**n for n in range(4)]
    blocks: list[nn.Module] = [Moves(width, width, 1), Moves(width, width, 1)]
    for a, b in pairwise(widths):
        blocks += [Moves(a, b, 2), Moves(b, b, 1)]
    model = nn.Sequential(
        nn.Conv3d(3, width, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False),
        nn.BatchNorm3d(width), nn.ReLU(True), *blocks,
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(widths[-1], angles),
    ).to(DEVICE)  # fmt: skip
    clips, points = noise(batch, 3, frames, side, side), labels(angles, batch)
    if repaired:
        model = model.to(memory_format=torch.channels_last_3d)
        clips = clips.contiguous(memory_format=torch.channels_last_3d)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(clips).float(), points)

    return fit(loss_of, sgd(model), decay=True)


# --- answers of a help desk -----------------------------------------------------------------------


class Answers:
    """Some tokens after a prompt whose keys and values are known.

    Args:
        batch: answers at a time.
        long: tokens of the prompt.
        more: tokens that follow.
        joined: whether the cache is joined anew with each token, or was made long enough.
    """

    def __init__(self, batch: int, long: int, more: int, *, joined: bool) -> None:
        width, heads, layers, words = size(1024, 16), size(16, 2), size(4, 2), size(16_384, 40)
        self.long, self.more, self.joined = long, more, joined
        self.embed = nn.Embedding(words, width)
        self.looks = nn.ModuleList(Attends(width, heads) for _ in range(layers))
        self.feeds = nn.ModuleList(Feeds(width) for _ in range(layers))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        parts = [self.embed, self.looks, self.feeds, self.norm, self.last]
        nn.ModuleList(parts).to(DEVICE, SHORT).eval()
        room = long + (0 if joined else more)
        shape = (batch, heads, room, width // heads)
        self.known = [
            tuple(torch.randn(shape, device=DEVICE, dtype=SHORT) for _ in range(2))
            for _ in range(layers)
        ]
        self.first = labels(words, batch, 1)

    def token(self, token: Tensor, cache: list[tuple[Tensor, ...]], place: int) -> Tensor:
        h = self.embed(token)
        for number, (look, feed) in enumerate(zip(self.looks, self.feeds, strict=True)):
            qkv = look.qkv(look.norm(h)).unflatten(-1, (3, look.heads, -1))
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            keys, values = cache[number]
            if self.joined:
                keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
                cache[number] = keys, values
            else:
                keys[:, :, place : place + 1], values[:, :, place : place + 1] = k, v
                keys, values = keys[:, :, : place + 1], values[:, :, : place + 1]
            seen = fn.scaled_dot_product_attention(q, keys, values)
            h = feed(h + look.out(seen.transpose(1, 2).flatten(2)))
        return self.last(self.norm(h)).argmax(-1)

    @torch.no_grad()
    def step(self) -> Tensor:
        token, cache = self.first, list(self.known)
        for place in range(self.long, self.long + self.more):
            token = self.token(token, cache, place)
        return token


@pair(
    "casts_and_copies",
    "decode",
    "keys and values are written into a cache with room for all tokens, not joined by torch.cat",
)
def answers_of_help_desk_cache_joined_by_cat(repaired: bool) -> Running:
    """The next six tokens of many answers at once; the model is in BF16."""
    answers = Answers(size(160, 2), size(1024, 8), size(6, 3), joined=not repaired)
    return Running(answers.step)


# --- tiles of a bathroom --------------------------------------------------------------------------


class Residual(nn.Module):
    """Two convolutions, normed in groups before, beside a short cut."""

    def __init__(self, before: int, after: int, groups: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.GroupNorm(groups, before), nn.SiLU(True), nn.Conv2d(before, after, 3, 1, 1),
            nn.GroupNorm(groups, after), nn.SiLU(True), nn.Conv2d(after, after, 3, 1, 1),
        )  # fmt: skip
        self.short = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.short(x) + self.layers(x)


def compresses(widths: Sequence[int], latent: int, groups: int) -> nn.Sequential:
    """Pictures to means and spreads of latents; as the encoder of a latent diffusion model."""
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, 1, 1)]
    before = widths[0]
    for number, width in enumerate(widths):
        layers += [Residual(before, width, groups), Residual(width, width, groups)]
        if number + 1 < len(widths):
            layers.append(nn.Conv2d(width, width, 3, 2, 1))
        before = width
    return nn.Sequential(
        *layers, nn.GroupNorm(groups, before), nn.SiLU(), nn.Conv2d(before, 2 * latent, 3, 1, 1)
    )


@pair(
    "lower_precision",
    "diffusion",
    "the frozen encoder of pictures is in BF16: that it is upcast to FP32 was for FP16's range",
    marks="steps",
)
def tiles_of_bathrooms_encoder_force_upcast(repaired: bool) -> Running:
    """Patterns of tiles out of noise, in latents that a frozen network makes of pictures."""
    batch, side, latent = size(12, 2), size(256, 16), 4
    width, heads = size(1024, 16), size(16, 2)
    widths = [size(n, 8) for n in (128, 256, 512, 512)]
    kind = SHORT if repaired else torch.float32
    encoder = compresses(widths, latent, size(32, 4)).to(DEVICE, kind).requires_grad_(False)
    tokens = (side // 8) ** 2
    into, level = nn.Linear(latent, width), nn.Linear(1, width)
    body = nn.Sequential(*transformer_layers(width, size(6, 1), heads))
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, latent))
    places = nn.ParameterList([nn.Parameter(0.02 * torch.randn(tokens, width))])
    model = nn.ModuleList([into, level, body, last, places]).to(DEVICE)
    pictures = noise(batch, 3, side, side)

    def encoded() -> Tensor:
        with torch.no_grad(), torch.autocast(DEVICE.type, enabled=False):
            mean, spread = encoder(pictures.to(kind)).float().flatten(2).mT.chunk(2, -1)
            return 0.18 * (mean + torch.randn_like(mean) * (spread / 2).clamp(-15, 10).exp())

    def loss_of() -> Tensor:
        clean = encoded()
        much, drawn = torch.rand(batch, 1, 1, device=DEVICE), torch.randn_like(clean)
        noisy = (1 - much) * clean + much * drawn
        said = last(body(into(noisy) + level(much) + places[0]))
        return fn.mse_loss(said.float(), drawn - clean)

    return fit(loss_of, adam(model))


# --- replies that a person prefers ----------------------------------------------------------------


@pair(
    "larger_batch",
    "language",
    "two pairs of replies at a time (per_device_train_batch_size), not the example's one",
    samples=2.0,
)
def preferred_replies_batch_of_the_example(repaired: bool) -> Running:
    """A model of rewards learns which of two replies is better; autocast to BF16."""
    pairs, long, words = 2 if repaired else 1, size(512, 8), size(12_288, 40)
    width, heads = size(3072, 16), size(24, 2)
    with torch.device(DEVICE):
        embed = nn.Embedding(words, width)
        body = nn.Sequential(*transformer_layers(width, size(3, 1), heads, causal=True))
        last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))
    model = nn.ModuleList([embed, body, last])
    better, worse = labels(words, pairs, long), labels(words, pairs, long)

    def loss_of() -> Tensor:
        h = body(embed(torch.cat([better, worse])))
        liked, other = last(h[:, -1]).float().chunk(2)
        return -fn.logsigmoid(liked - other).mean()

    return fit(loss_of, adam(model), clip=1.0)


# --- barks of trees -------------------------------------------------------------------------------


class Barks(Dataset[tuple[Tensor, int]]):
    """Photographs in memory, of which each item is a changed part.

    Args:
        kept: photographs.
        side: of a photograph.
        part: side of what is cut out.
        first: whether it is cut out first, or at last.
    """

    def __init__(self, kept: int, side: int, part: int, *, first: bool) -> None:
        made = np.random.default_rng(7)
        self.photos = made.integers(0, 256, (kept, side, side, 3), np.uint8)
        self.part, self.first = part, first

    def __len__(self) -> int:
        return 400_000

    def cut(self, photo: np.ndarray[Any, Any], top: int, left: int) -> np.ndarray[Any, Any]:
        return photo[top : top + self.part, left : left + self.part]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        chance = np.random.default_rng(index)
        photo = self.photos[index % len(self.photos)]
        top, left = chance.integers(0, photo.shape[0] - self.part, 2)
        if self.first:
            photo = self.cut(photo, top, left)
        x = photo.astype(np.float32) / 255
        if chance.random() < 0.5:
            x = x[:, ::-1]
        x = (x - 0.5) * chance.uniform(0.7, 1.3) + 0.5 + chance.uniform(-0.2, 0.2)
        x = x + 0.03 * chance.standard_normal(x.shape, np.float32)
        x = (np.clip(x, 0, 1) - np.float32(0.45)) / np.float32(0.25)
        if not self.first:
            x = self.cut(x, top, left)
        return torch.from_numpy(np.ascontiguousarray(x.transpose(2, 0, 1))), index % 8


@pair(
    "input_starvation",
    "vision",
    "parts are cut out of photographs before these are changed: no worker changes the rest",
    marks="phases",
)
def barks_of_trees_cut_out_at_last(repaired: bool) -> Running:
    """A tree's kind by a part of its bark; eight workers on both sides; autocast to BF16."""
    batch, side, part, square = size(48, 2), size(384, 32), size(128, 16), size(8, 4)
    width, heads, kinds = size(768, 16), size(12, 2), 8
    data = Barks(size(24, 3), side, part, first=repaired)
    batches = loaded(data, batch, 8)
    squares = nn.Conv2d(3, width, square, square)
    body = nn.Sequential(*transformer_layers(width, size(12, 1), heads))
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, kinds))
    model = nn.ModuleList([squares, body, last]).to(DEVICE)
    update = adam(model)

    def step() -> None:
        with phase("get_batch"):
            seen, true = batches()
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            h = body(squares(seen).flatten(2).mT)
            loss = fn.cross_entropy(last(h.mean(1)).float(), true)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            done(update)

    return Running(step, enter=precision("high"), settle=2 + getattr(batches, "ahead", 0))


# --- minutes of councils --------------------------------------------------------------------------


class Masked(nn.Module):
    """Causal attention by a mask that each layer has of its own."""

    mask: Tensor

    def __init__(self, width: int, heads: int, long: int, *, buffer: bool) -> None:
        super().__init__()
        mask = torch.ones(long, long, dtype=torch.bool).tril()
        if buffer:
            self.register_buffer("mask", mask)
        else:
            self.mask = mask
        self.look, self.feed = Attends(width, heads), Feeds(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.feed(self.look(x, self.mask.to(x.device)))


@pair(
    "blocking_copy",
    "language",
    "each layer's mask is a buffer and lies on the GPU, not an attribute that .to() moves",
    others=("fused_attention",),
)
def minutes_of_councils_masks_moved_by_layers(repaired: bool) -> Running:
    """The next words of long minutes; each layer has its triangle; autocast to BF16."""
    batch, long, words = size(2, 2), size(4096, 12), size(8192, 40)
    width, heads, layers = size(768, 16), size(12, 2), size(6, 2)
    embed, place = nn.Embedding(words, width), nn.Embedding(long, width)
    body = nn.Sequential(*(Masked(width, heads, long, buffer=repaired) for _ in range(layers)))
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words, bias=False))
    model = nn.ModuleList([embed, place, body, last]).to(DEVICE)
    text, places = labels(words, batch, long + 1), torch.arange(long, device=DEVICE)

    def loss_of() -> Tensor:
        h = body(embed(text[:, :-1]) + place(places))
        return fn.cross_entropy(last(h).float().flatten(0, 1), text[:, 1:].flatten())

    return fit(loss_of, adam(model), clip=1.0)


# --- tickets of passengers ------------------------------------------------------------------------


class NormedAfter(nn.Module):
    """A layer whose sums are normed, with dropout in four places; as in BERT."""

    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.dropout(self.out(seen)))
        fed = self.down(self.dropout(fn.gelu(self.up(x))))
        return self.norm2(x + self.dropout(fed))


class Complaints(nn.Module):
    """Words of a complaint, and which office it is for."""

    def __init__(
        self, words: int, long: int, width: int, heads: int, layers: int, offices: int
    ) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(words, width), nn.LayerNorm(width)
        self.places = nn.Parameter(0.02 * torch.randn(long, width))
        self.dropout = nn.Dropout(0.1)
        self.body = nn.Sequential(*(NormedAfter(width, heads, 0.1) for _ in range(layers)))
        self.last = nn.Linear(width, offices)

    def forward(self, text: Tensor) -> Tensor:
        h = self.body(self.dropout(self.norm(self.embed(text) + self.places)))
        return self.last(h[:, 0])


@pair("compile", "language", "torch.compile(model)", compiles=True)
def complaints_of_passengers_normed_after_compile(repaired: bool) -> Running:
    """Which office answers a passenger's complaint; fine-tuned with dropout; autocast to BF16."""
    batch, long, words, offices = size(96, 2), size(256, 8), size(16_384, 40), 24
    width, heads, layers = size(768, 16), size(12, 2), size(6, 2)
    model: Any = Complaints(words, long, width, heads, layers, offices).to(DEVICE)
    update = adam(model)
    if repaired:
        model = torch.compile(model, dynamic=False)
    text, true = labels(words, batch, long), labels(offices, batch)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(text).float(), true)

    return fit(loss_of, update, decay=True)
