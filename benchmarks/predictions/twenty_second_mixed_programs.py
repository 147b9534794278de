"""A twenty-second set for one GPU: twelve fields, and what their engineers find on the GPU's side.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

from typing import Any

import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Attends, Feeds, done, precision, size, transformer_layers
from program import Program, Running
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 339 pairs, opened"
pair = entered(PROGRAMS)
SHORT = torch.bfloat16


# --- plasmas --------------------------------------------------------------------------------------


def looked_key_by_key(q: Tensor, k: Tensor, v: Tensor, piece: int) -> Tensor:
    """Attention that reads some keys at a time, with the largest score and the sum so far."""
    q = q * q.shape[-1] ** -0.5
    most = torch.full_like(q[..., :1], float("-inf"), dtype=torch.float32)
    total = torch.zeros_like(most)
    found = torch.zeros_like(q, dtype=torch.float32)
    for some_k, some_v in zip(k.split(piece, 2), v.split(piece, 2), strict=True):
        scores = q @ some_k.transpose(-1, -2)
        more = torch.maximum(most, scores.detach().amax(-1, keepdim=True).float())
        shares, fade = (scores - more).exp(), (most - more).exp()
        total = total * fade + shares.sum(-1, keepdim=True)
        found = found * fade + shares.to(v.dtype) @ some_v
        most = more
    return (found / total).to(v.dtype)


class Confines(nn.Module):
    """A layer that looks at all moments of a shot, at once or some keys after the other."""

    def __init__(self, width: int, heads: int, piece: int) -> None:
        super().__init__()
        self.heads, self.piece, self.norm = heads, piece, nn.LayerNorm(width)
        self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feeds = Feeds(width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.piece:
            found = looked_key_by_key(q, k, v, self.piece)
        else:
            found = fn.scaled_dot_product_attention(q, k, v)
        return self.feeds(x + self.join(found.transpose(1, 2).flatten(2)))


@pair(
    "unfused_attention",
    "fusion",
    "scaled_dot_product_attention, where PyTorch read 192 keys at a time and kept sums and maxima",
)
def plasmas_end_keys_in_pieces(repaired: bool) -> Running:
    """Whether a plasma will break off, from all coils and cameras of a shot; autocast to BF16."""
    shots, moments, coils = size(20, 2), size(576, 12), size(160, 5)
    width, heads, piece = size(768, 16), size(12, 2), 0 if repaired else size(192, 4)
    into, place, out = nn.Linear(coils, width), nn.Embedding(moments, width), nn.Linear(width, 2)
    parts = [Confines(width, heads, piece) for _ in range(size(10, 2))]
    model = nn.ModuleList([into, nn.Sequential(*parts), nn.LayerNorm(width), out, place])
    model = model.to(DEVICE)
    signals, ends = noise(shots, moments, coils), labels(2, shots, moments)

    def loss_of() -> Tensor:
        h = model[2](model[1](into(signals) + place.weight))
        return fn.cross_entropy(out(h).float().flatten(0, 1), ends.flatten())

    return fit(loss_of, adam(model), clip=1.0)


# --- tales of many tongues ------------------------------------------------------------------------


class Speaks(nn.Module):
    """A causal layer with a gated second half."""

    def __init__(self, width: int, wide: int, heads: int) -> None:
        super().__init__()
        self.looks, self.norm = Attends(width, heads, causal=True), nn.RMSNorm(width)
        self.both = nn.Linear(width, 2 * wide, bias=False)
        self.down = nn.Linear(wide, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.looks(x)
        gate, up = self.both(self.norm(x)).chunk(2, -1)
        return x + self.down(fn.silu(gate) * up)


def loss_and_size(scores: Tensor, words: Tensor) -> Tensor:
    """Cross-entropy, and a little of what the logarithm of all sums is away from zero."""
    scores = scores.float()
    away = torch.logsumexp(scores, -1).square().mean()
    return fn.cross_entropy(scores, words) + 1e-4 * away


@pair(
    "fusion_opportunity",
    "pretraining",
    "torch.compile of the function that is the loss, with its term for the sum of exponentials",
    compiles=True,
)
def tongues_of_continent_sum_of_exponentials_compile(repaired: bool) -> Running:
    """The next words in forty languages; the loss keeps the scores' sum near one; BF16."""
    texts, long, vocab = size(2, 2), size(2048, 8), size(50_304, 48)
    width, heads = size(1024, 16), size(16, 2)
    embed = nn.Embedding(vocab, width, device=DEVICE)
    last = nn.Linear(width, vocab, bias=False, device=DEVICE)
    nn.init.normal_(embed.weight, std=0.02)
    layers = nn.Sequential(*(Speaks(width, size(2816, 24), heads) for _ in range(size(8, 2))))
    model = nn.ModuleList([embed, layers, nn.RMSNorm(width), last]).to(DEVICE)
    words = labels(vocab, texts, long + 1)
    lost: Any = torch.compile(loss_and_size, dynamic=False) if repaired else loss_and_size

    def loss_of() -> Tensor:
        scores = last(model[2](layers(embed(words[:, :-1]))))
        return lost(scores.flatten(0, 1), words[:, 1:].flatten())

    return fit(loss_of, adam(model), clip=1.0)


# --- a clerk's letters ----------------------------------------------------------------------------

LEVELS = (
    *(-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0),
    *(0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0),
)


def widened(codes: Tensor, most: Tensor, levels: Tensor, shape: tuple[int, int]) -> Tensor:
    """Weights of four bits each, in the type of the levels; 64 share their largest one."""
    places = torch.stack((codes >> 4, codes & 15), -1).flatten().int()
    return (levels[places].view(-1, 64) * most.to(levels.dtype)).view(shape)


class Product(torch.autograd.Function):
    """A product with weights of four bits, which are widened in both passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weight: Any) -> Tensor:
        ctx.weight = weight
        matrix = widened(*weight)
        return (x.to(matrix.dtype) @ matrix.T).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        matrix = widened(*ctx.weight)
        return (grad.to(matrix.dtype) @ matrix).to(grad.dtype), None, None, None, None


class Adapted(nn.Module):
    """A frozen linear layer of four bits, and an adapter of low rank."""

    codes: Tensor
    most: Tensor
    levels: Tensor

    def __init__(self, before: int, after: int, rank: int, computes: torch.dtype) -> None:
        super().__init__()
        self.shape = (after, before)
        many = before * after
        self.register_buffer("codes", torch.randint(0, 256, (many // 2,), dtype=torch.uint8))
        self.register_buffer("most", torch.full((many // 64, 1), 1.7 * before**-0.5))
        self.register_buffer("levels", torch.tensor(LEVELS, dtype=computes))
        self.down = nn.Linear(before, rank, bias=False, dtype=SHORT)
        self.up = nn.Linear(rank, after, bias=False, dtype=SHORT)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        found: Any = Product.apply(x, self.codes, self.most, self.levels, self.shape)
        return found + self.up(self.down(x))


class Clerk(nn.Module):
    """A layer whose queries share keys and values in groups; all its weights are adapted."""

    def __init__(self, width: int, wide: int, heads: int, few: int, kind: dict[str, Any]) -> None:
        super().__init__()
        self.side, part = width // heads, width // heads * few
        self.q, self.k, self.v = (Adapted(width, n, **kind) for n in (width, part, part))
        self.join = Adapted(width, width, **kind)
        self.gate, self.up = (Adapted(width, wide, **kind) for _ in range(2))
        self.down = Adapted(wide, width, **kind)
        self.norm1, self.norm2 = (nn.RMSNorm(width, dtype=SHORT) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (
            part(h).unflatten(-1, (-1, self.side)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        found = fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.join(found.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(fn.silu(self.gate(h)) * self.up(h))


@pair(
    "lower_precision",
    "finetuning",
    "weights of four bits are widened to BF16 for their products, not to FP32, the type by default",
)
def letters_of_insurer_four_bits_computed_wide(repaired: bool) -> Running:
    """How an insurer answers letters: adapters of a frozen model of four bits; TF32 is allowed."""
    letters, long, vocab = size(3, 2), size(2048, 8), size(32_000, 40)
    width, wide, heads, few = size(2048, 64), size(8192, 128), size(32, 4), size(8, 2)
    kind = {"rank": size(16, 8), "computes": SHORT if repaired else torch.float32}
    embed = nn.Embedding(vocab, width, device=DEVICE, dtype=SHORT)
    last = nn.Linear(width, vocab, bias=False, device=DEVICE, dtype=SHORT)
    for frozen in (embed, last):
        nn.init.normal_(frozen.weight, std=0.02)
        frozen.requires_grad_(False)
    layers = nn.ModuleList(Clerk(width, wide, heads, few, kind) for _ in range(size(5, 2)))
    model = nn.ModuleList([embed, layers, nn.RMSNorm(width, dtype=SHORT), last]).to(DEVICE)
    learnt = [p for p in model.parameters() if p.requires_grad]
    words = labels(vocab, letters, long + 1)

    def loss_of() -> Tensor:
        h = embed(words[:, :-1])
        for layer in layers:
            h = layer(h)
        scores = last(model[2](h)).flatten(0, 1)
        return fn.cross_entropy(scores.float(), words[:, 1:].flatten())

    return fit(loss_of, torch.optim.AdamW(learnt, lr=1e-4, fused=True), bf16=False, clip=1.0)


# --- eyes -----------------------------------------------------------------------------------------


def twice(before: int, after: int) -> nn.Module:
    """Two convolutions, each with a norm."""
    parts: list[nn.Module] = []
    for inside in (before, after):
        parts += [nn.Conv2d(inside, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)]
        parts += [nn.ReLU(inplace=True)]
    return nn.Sequential(*parts)


class Operates(nn.Module):
    """Down to small maps and up again, beside what was seen on the way."""

    def __init__(self, width: int, levels: int, classes: int, *, stays: bool) -> None:
        super().__init__()
        self.stays, sides = stays, [width * 2**n for n in range(levels)]
        self.downs = nn.ModuleList(
            twice(a, b) for a, b in zip([3, *sides[:-1]], sides, strict=True)
        )
        self.ups = nn.ModuleList(twice(3 * n, n) for n in reversed(sides[:-1]))
        self.out = nn.Conv2d(width, classes, 1)

    def larger(self, h: Tensor) -> Tensor:
        if not self.stays:
            return fn.interpolate(h, scale_factor=2.0)
        with torch.autocast(DEVICE.type, enabled=False):
            return fn.interpolate(h, scale_factor=2.0)

    def forward(self, x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        for number, down in enumerate(self.downs):
            x = down(fn.max_pool2d(x, 2) if number else x)
            seen.append(x)
        seen.pop()
        for up in self.ups:
            x = up(torch.cat([seen.pop(), self.larger(x)], 1))
        return self.out(x)


@pair(
    "casts_and_copies",
    "surgery",
    "maps are made larger outside of autocast, in the BF16 that they have: it widens them to FP32",
)
def eyes_operated_larger_maps_in_float(repaired: bool) -> Running:
    """Instruments and tissues in films of cataract operations; channels last, autocast to BF16."""
    pictures, side, classes = size(8, 2), size(512, 16), size(25, 3)
    model = Operates(size(32, 4), size(5, 3), classes, stays=repaired)
    model = model.to(DEVICE, memory_format=torch.channels_last)
    films = noise(pictures, 3, side, side).contiguous(memory_format=torch.channels_last)
    tissues = labels(classes, pictures, side, side)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(films).float(), tissues)

    return fit(loss_of, adam(model))


# --- hearing aids ---------------------------------------------------------------------------------


class Hears(nn.Module):
    """A convolution along time, far or near, one of single moments, and a short cut."""

    def __init__(self, width: int, far: int, *, flat: bool) -> None:
        super().__init__()
        self.far: nn.Module
        self.mix: nn.Module
        if flat:
            self.far = nn.Conv2d(width, width, (1, 3), padding=(0, far), dilation=(1, far))
            self.mix = nn.Conv2d(width, width, 1)
        else:
            self.far = nn.Conv1d(width, width, 3, padding=far, dilation=far)
            self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(fn.leaky_relu(self.far(fn.leaky_relu(x, 0.2)), 0.2))


@pair(
    "layout_changes",
    "hearing",
    "sound is a picture of height one, for Conv2d with channels last: Conv1d has no such layout",
)
def hearing_aids_convolved_along_one_dimension(repaired: bool) -> Running:
    """Speech without the noise of restaurants, for hearing aids; autocast to BF16."""
    voices, moments, bands = size(16, 2), size(8192, 24), size(64, 4)
    width, rounds = size(384, 8), size(3, 1)
    fars = [far for _ in range(rounds) for far in (1, 2, 4, 8)[: size(4, 2)]]
    layers = nn.Sequential(*(Hears(width, far, flat=repaired) for far in fars))
    noisy, clear = noise(voices, bands, moments), noise(voices, bands, moments)
    if repaired:
        kind: type[nn.Module] = nn.Conv2d
        noisy, clear = (x[:, :, None].to(memory_format=torch.channels_last) for x in (noisy, clear))
    else:
        kind = nn.Conv1d
    model = nn.Sequential(kind(bands, width, 1), layers, kind(width, bands, 1)).to(DEVICE)
    if repaired:
        model = model.to(memory_format=torch.channels_last)

    def loss_of() -> Tensor:
        return fn.l1_loss(noisy * model(noisy).sigmoid(), clear)

    return fit(loss_of, adam(model), clip=1.0)


# --- craters --------------------------------------------------------------------------------------


def places_of(tiles: int, side: int, zeros: int) -> Tensor:
    """How far right and down each pixel is, and so many maps of zeros."""
    line = torch.linspace(-1, 1, side)
    down, right = torch.meshgrid(line, line, indexing="ij")
    maps = torch.cat([torch.stack([right, down]), torch.zeros(zeros, side, side)])
    maps = maps.to(DEVICE, SHORT).repeat(tiles, 1, 1, 1)
    return maps.contiguous(memory_format=torch.channels_last)


class Places(nn.Module):
    """A convolution that is told where pixels are, one that is not, and a short cut."""

    def __init__(self, width: int, maps: int) -> None:
        super().__init__()
        self.told = nn.Conv2d(width + maps, width, 3, 1, 1)
        self.plain = nn.Conv2d(width, width, 3, 1, 1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        h = torch.cat([x, places], 1)
        return x + self.plain(fn.relu(self.norm(self.told(h)), inplace=True))


@pair(
    "aligned_shapes",
    "planets",
    "six maps of zeros beside the two of places, so that convolutions take 264 channels, not 258",
)
def craters_of_moon_two_more_channels(repaired: bool) -> Running:
    """Craters of the Moon in heights from orbit, cell by cell; channels last, autocast to BF16."""
    tiles, side, width, zeros = size(16, 2), size(128, 8), size(256, 8), 6 if repaired else 0
    into, out = nn.Conv2d(size(16, 2), width, 3, 1, 1), nn.Conv2d(width, 8, 1)
    layers = nn.ModuleList(Places(width, 2 + zeros) for _ in range(size(6, 2)))
    model = nn.ModuleList([into, layers, out]).to(DEVICE, memory_format=torch.channels_last)
    places = places_of(tiles, side, zeros)
    heights = noise(tiles, size(16, 2), side, side).contiguous(memory_format=torch.channels_last)
    craters, edges = labels(2, tiles, side, side).float(), noise(tiles, 7, side, side)

    def loss_of() -> Tensor:
        h = into(heights)
        for layer in layers:
            h = layer(h, places)
        said = out(h).float()
        there = fn.binary_cross_entropy_with_logits(said[:, 0], craters)
        return there + fn.smooth_l1_loss(said[:, 1:], edges)

    return fit(loss_of, adam(model))


# --- cows -----------------------------------------------------------------------------------------


def cosines(z: Tensor, *, product: bool) -> Tensor:
    if product:
        z = fn.normalize(z, dim=1)
        return z @ z.T
    return fn.cosine_similarity(z[:, None], z[None], dim=-1)


@pair(
    "memory_bound_kernels",
    "contrastive",
    "rows are normalised and multiplied; cosine_similarity multiplied all pairs, number by number",
)
def cows_moves_all_pairs_by_cosine_similarity(repaired: bool) -> Running:
    """What cows do, from their collars: two views of a minute find each other; BF16."""
    minutes, moments, sensors = size(1024, 4), size(32, 4), size(96, 6)
    width, heads, facts = size(384, 16), size(6, 2), size(128, 8)
    into, layers = nn.Linear(sensors, width), transformer_layers(width, size(4, 1), heads)
    tail = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, facts))
    model = nn.ModuleList([into, nn.Sequential(*layers), nn.LayerNorm(width), tail]).to(DEVICE)
    views = noise(2 * minutes, moments, sensors)
    itself = torch.eye(2 * minutes, dtype=torch.bool, device=DEVICE)
    other = torch.arange(2 * minutes, device=DEVICE).roll(minutes)

    def loss_of() -> Tensor:
        z = tail(model[2](model[1](into(views))).mean(1)).float()
        with torch.autocast(DEVICE.type, enabled=False):
            near = cosines(z, product=repaired).masked_fill(itself, -9.0)
            return fn.cross_entropy(near / 0.1, other)

    return fit(loss_of, adam(model))


# --- holidays -------------------------------------------------------------------------------------


class Crosses(nn.Module):
    """Rows of all tables are crossed with themselves some times, and judged."""

    def __init__(self, tables: int, rows: int, width: int, times: int, *, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.Embedding.from_pretrained(
                torch.randn(rows, width, device=DEVICE) * 0.1, freeze=False, sparse=sparse
            )
            for _ in range(tables)
        )
        wide = tables * width
        self.crosses = nn.ModuleList(nn.Linear(wide, wide) for _ in range(times))
        self.judge = nn.Sequential(
            *(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, width), nn.ReLU()),
            nn.Linear(width, 1),
        )

    def forward(self, ids: Tensor) -> Tensor:
        first = torch.cat([table(ids[:, n]) for n, table in enumerate(self.tables)], 1)
        h = first
        for cross in self.crosses:
            h = h + first * cross(h)
        return self.judge(h)[:, 0]


@pair(
    "memory_bound_kernels",
    "recommender",
    "tables have sparse=True: gradients hold the rows of the batch, not all rows, as updates do",
)
def holidays_booked_gradients_of_all_rows(repaired: bool) -> Running:
    """Which holidays are booked, from twenty large tables and their crossings; autocast to BF16."""
    offers, tables, rows, width = size(16_384, 8), size(20, 3), size(300_000, 30), size(128, 4)
    model = Crosses(tables, rows, width, size(3, 2), sparse=repaired).to(DEVICE)
    update = torch.optim.SGD(model.parameters(), lr=0.01)
    ids, booked = labels(rows, offers, tables), labels(2, offers).float()

    def loss_of() -> Tensor:
        return fn.binary_cross_entropy_with_logits(model(ids).float(), booked)

    return fit(loss_of, update)


# --- sums -----------------------------------------------------------------------------------------


def chances(h: Tensor, last: nn.Linear, words: Tensor, warm: float, *, narrow: bool) -> Tensor:
    """The logarithm of the chance of each word, at the temperature at which it was drawn."""
    if narrow:
        spread = torch.log_softmax(last(h / warm), -1, dtype=torch.float32)
    else:
        spread = torch.log_softmax(last(h).float() / warm, -1)
    return spread.gather(-1, words[..., None])[..., 0]


@pair(
    "casts_and_copies",
    "reinforcement",
    "states are divided by the temperature and log_softmax widens, so that no scores are copied",
)
def sums_explained_scores_warmed_in_float(repaired: bool) -> Running:
    """Answers to sums are rewarded in groups: an update of a policy in BF16, of many words.

    Chances of the words under the policy that drew them, and under the first one, are known.
    """
    groups, each, long = size(2, 1), size(4, 2), size(320, 6)
    vocab, width, warm = size(151_936, 48), size(1024, 16), 0.9
    embed = nn.Embedding(vocab, width, device=DEVICE)
    last = nn.Linear(width, vocab, bias=False, device=DEVICE)
    nn.init.normal_(embed.weight, std=0.02)
    layers = transformer_layers(width, size(8, 2), size(16, 2), causal=True)
    model = nn.ModuleList([embed, nn.Sequential(*layers), nn.LayerNorm(width), last])
    model = model.to(DEVICE, SHORT)
    words = labels(vocab, groups * each, long + 1)
    rewards = labels(2, groups, each).float()
    better = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    better = better.flatten()[:, None]
    drawn = chances(
        noise(groups * each, long, width).to(SHORT), last, words[:, 1:], warm, narrow=True
    )
    drawn = drawn.detach()
    first = drawn + 0.01 * torch.randn_like(drawn)

    def loss_of() -> Tensor:
        h = model[2](model[1](embed(words[:, :-1])))
        now = chances(h, last, words[:, 1:], warm, narrow=repaired)
        ratio = (now - drawn).clamp(-5, 5).exp()
        gain = torch.minimum(ratio * better, ratio.clamp(0.8, 1.2) * better)
        away = (first - now).clamp(-5, 5)
        return (0.04 * (away.exp() - away - 1) - gain).mean()

    return fit(loss_of, adam(model), bf16=False, clip=1.0)


# --- wiring of brains -----------------------------------------------------------------------------


class Compares(nn.Module):
    """Nodes look at those of their own graph, then at those of the other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.own, self.feeds1, self.feeds2 = Attends(width, heads), Feeds(width), Feeds(width)
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of nodes of (both graphs, width), where the first half of rows are the first graphs."""
        x = self.feeds1(self.own(x))
        qkv = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        k, v = (part.roll(len(x) // 2, 0) for part in (k, v))
        found = fn.scaled_dot_product_attention(q, k, v)
        return self.feeds2(x + self.join(found.transpose(1, 2).flatten(2)))


def balanced(
    scores: Tensor, rows: Tensor, columns: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows, then columns, are made to sum to their shares."""
    rows = shares - torch.logsumexp(scores + columns[:, None], 2)
    columns = shares - torch.logsumexp(scores + rows[:, :, None], 1)
    return rows, columns


@pair(
    "fusion_opportunity",
    "graph",
    "torch.compile of the function that balances rows and columns once",
    compiles=True,
)
def wiring_of_brains_matched_by_balancing_compile(repaired: bool) -> Running:
    """Which neuron of one brain is which of another's; some have none; autocast to BF16."""
    pairs, nodes, facts = size(16, 2), size(1024, 6), size(48, 4)
    width, heads, times = size(256, 16), size(4, 2), size(20, 3)
    into = nn.Linear(facts, width)
    layers = nn.Sequential(*(Compares(width, heads) for _ in range(size(6, 1))))
    last, alone = nn.Linear(width, width), nn.Parameter(torch.ones((), device=DEVICE))
    model = nn.ModuleList([into, layers, last]).to(DEVICE)
    neurons = noise(2 * pairs, nodes, facts)
    same = torch.rand(pairs, nodes, device=DEVICE).argsort(1)[..., None]
    shares = torch.zeros(pairs, nodes + 1, device=DEVICE)
    shares[:, -1] = torch.tensor(float(nodes)).log()
    balance: Any = torch.compile(balanced, dynamic=False) if repaired else balanced
    update = torch.optim.AdamW([*model.parameters(), alone], lr=1e-4, fused=True)

    def loss_of() -> Tensor:
        one, two = last(layers(into(neurons))).chunk(2)
        scores = (one @ two.transpose(1, 2)).float() * width**-0.5
        beside = alone.expand(pairs, nodes, 1)
        scores = torch.cat([scores, beside], 2)
        scores = torch.cat([scores, alone.expand(pairs, 1, nodes + 1)], 1)
        rows = columns = torch.zeros_like(shares)
        for _ in range(times):
            rows, columns = balance(scores, rows, columns, shares)
        likely = scores + rows[:, :, None] + columns[:, None]
        return -likely[:, :-1, :-1].gather(2, same).mean()

    return fit(loss_of, update)


# --- hearts ---------------------------------------------------------------------------------------


def pictured(waves: Tensor, coils: Tensor) -> Tensor:
    """One picture of what all coils have measured."""
    return (torch.fft.ifft2(waves, norm="ortho") * coils.conj()).sum(1)


class Cleans(nn.Module):
    """Down once and up again: a picture without the folds of what was left out."""

    def __init__(self, width: int) -> None:
        super().__init__()

        def two(before: int, after: int) -> nn.Module:
            return nn.Sequential(
                *(nn.Conv2d(before, after, 3, 1, 1), nn.GroupNorm(8, after), nn.SiLU()),
                *(nn.Conv2d(after, after, 3, 1, 1), nn.GroupNorm(8, after), nn.SiLU()),
            )

        self.down, self.deep = two(2, width), two(width, 2 * width)
        self.up, self.out = two(3 * width, width), nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.down(x)
        h = fn.interpolate(self.deep(fn.avg_pool2d(seen, 2)), scale_factor=2.0)
        return self.out(self.up(torch.cat([seen, h], 1)))


class Unfolds(nn.Module):
    """A step towards what was measured, and one towards what hearts look like."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cleans, self.pull = Cleans(width), nn.Parameter(torch.ones(()))

    def forward(self, waves: Tensor, known: Tensor, mask: Tensor, coils: Tensor) -> Tensor:
        picture = torch.view_as_real(pictured(waves, coils)).permute(0, 3, 1, 2)
        change = self.cleans(picture).float().permute(0, 2, 3, 1).contiguous()
        spread = torch.view_as_complex(change)[:, None] * coils
        return waves - self.pull * mask * (waves - known) - torch.fft.fft2(spread, norm="ortho")


@pair(
    "recomputation",
    "imaging",
    "the unrolled steps are called as they are, not by checkpoint: what lies in all three has room",
)
def hearts_unfolded_steps_checkpointed(repaired: bool) -> Running:
    """Pictures of beating hearts from a quarter of a scan's lines; three unrolled steps; BF16."""
    slices, coils, side = size(4, 2), size(10, 2), size(320, 16)
    steps = nn.ModuleList(Unfolds(size(64, 8)) for _ in range(size(3, 2)))
    steps = steps.to(DEVICE, memory_format=torch.channels_last)
    feel = torch.complex(noise(slices, coils, side, side), noise(slices, coils, side, side))
    feel = feel / feel.abs().square().sum(1, keepdim=True).sqrt()
    true = torch.complex(noise(slices, side, side), noise(slices, side, side))
    mask = (torch.rand(side, device=DEVICE) < 0.25).float()
    known = torch.fft.fft2(true[:, None] * feel, norm="ortho") * mask

    def loss_of() -> Tensor:
        waves = known
        for one in steps:
            if repaired:
                waves = one(waves, known, mask, feel)
            else:
                waves = checkpoint(one, waves, known, mask, feel, use_reentrant=False)
        return torch.view_as_real(pictured(waves, feel) - true).abs().mean()

    return fit(loss_of, adam(steps))


# --- kitchens of robots ---------------------------------------------------------------------------


@pair(
    "unfused_optimizer",
    "multitask",
    "the losses' weights lie on the GPU: with one weight on the CPU AdamW updates all in a loop",
)
def rooms_of_robots_weights_of_losses_on_cpu(repaired: bool) -> Running:
    """Depth, slope and kind of each patch of a room; how sure each is, is learnt; BF16."""
    rooms, patches, pixels, kinds = size(48, 2), size(400, 6), size(768, 12), size(40, 4)
    width, heads = size(384, 16), size(6, 2)
    into, place = nn.Linear(pixels, width), nn.Embedding(patches, width)
    layers = nn.Sequential(*transformer_layers(width, size(24, 2), heads))
    heads_of = nn.ModuleList(nn.Linear(width, n) for n in (1, 3, kinds))
    model = nn.ModuleList([into, layers, nn.LayerNorm(width), heads_of, place]).to(DEVICE)
    unsure = nn.ParameterList(torch.zeros(()) for _ in range(3))
    if repaired:
        unsure = unsure.to(DEVICE)
    update = torch.optim.AdamW([*model.parameters(), *unsure.parameters()], lr=1e-4)
    seen, depth = noise(rooms, patches, pixels), noise(rooms, patches, 1)
    slope, kind = noise(rooms, patches, 3), labels(kinds, rooms, patches)

    def step() -> None:
        with torch.autocast(DEVICE.type, SHORT):
            h = model[2](layers(into(seen) + place.weight))
            far, tilt, what = (head(h).float() for head in heads_of)
        lost = (
            fn.l1_loss(far, depth),
            1 - fn.cosine_similarity(tilt, slope, dim=-1).mean(),
            fn.cross_entropy(what.flatten(0, 1), kind.flatten()),
        )
        whole = [(-s).exp() * one + s for s, one in zip(unsure, lost, strict=True)]
        (whole[0] + whole[1] + whole[2]).backward()
        done(update)

    return Running(step, enter=precision("high"))
