"""Programs of the seventeenth set whose fault lies in the GPU's kernels, which are few and large.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, Feeds, size, transformer_layers
from program import Program, Running
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 327 pairs"
pair = entered(PROGRAMS)
SHORT = torch.bfloat16


# --- contracts ------------------------------------------------------------------------------------


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Turns the halves of each head's numbers against each other, by where a word stands."""
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class FromFew(nn.Module):
    """Keys and values of all heads are made of few numbers; as in DeepSeek-V2.

    What suits is the sum of two products: of contents, and of places, whose key all heads share.
    """

    def __init__(self, width: int, heads: int, few: int, each: int, *, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.each, self.by_hand = heads, each, by_hand
        self.norm, self.few_norm = nn.LayerNorm(width), nn.LayerNorm(few)
        self.q = nn.Linear(width, 2 * heads * each, bias=False)
        self.down = nn.Linear(width, few + each, bias=False)
        self.up = nn.Linear(few, 3 * heads * each, bias=False)
        self.out = nn.Linear(2 * heads * each, width, bias=False)
        rates = 10_000.0 ** -torch.linspace(0, 1, each // 2)
        self.register_buffer("rates", rates)

    def forward(self, x: Tensor, later: Tensor) -> Tensor:
        b, t, _ = x.shape
        angles = torch.arange(t, device=x.device)[:, None] * self.rates
        y = self.norm(x)
        what, where = self.q(y).view(b, t, self.heads, -1).transpose(1, 2).chunk(2, -1)
        few, place = self.down(y).split([self.down.out_features - self.each, self.each], -1)
        where, place = turned(where, angles), turned(place, angles)
        both = self.up(self.few_norm(few)).view(b, t, self.heads, -1).transpose(1, 2)
        keys, values = both.split([self.each, 2 * self.each], -1)
        if self.by_hand:
            scores = torch.einsum("bhsd,bhtd->bhst", what, keys)
            scores = scores + torch.einsum("bhsd,btd->bhst", where, place)
            scores = (scores * (2 * self.each) ** -0.5).masked_fill(later, float("-inf"))
            found = torch.einsum("bhst,bhtd->bhsd", scores.softmax(-1), values)
        else:
            places = place[:, None].expand(-1, self.heads, -1, -1)
            q, k = torch.cat([what, where], -1), torch.cat([keys, places], -1)
            found = fn.scaled_dot_product_attention(q, k, values, is_causal=True)
        return x + self.out(found.transpose(1, 2).flatten(2))


@pair(
    "unfused_attention",
    "language",
    "scaled_dot_product_attention of joined parts, not two products of scores that are added",
)
def contracts_scores_from_two_products(repaired: bool) -> Running:
    """A decoder with few numbers in its cache, trained on contracts; autocast."""
    batch, long, words = size(4, 2), size(2048, 8), size(16_384, 32)
    width, heads, few, each = size(2048, 16), size(16, 2), size(512, 8), size(64, 4)
    embed, last = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
    looks, feeds = nn.ModuleList(), nn.ModuleList()
    for _ in range(size(3, 1)):
        looks.append(FromFew(width, heads, few, each, by_hand=not repaired))
        feeds.append(Feeds(width))
    norm = nn.LayerNorm(width)
    model = nn.ModuleList([embed, looks, feeds, norm, last]).to(DEVICE)
    text = labels(words, batch, long + 1)
    later = torch.ones(long, long, dtype=torch.bool, device=DEVICE).triu(1)

    def loss_of() -> Tensor:
        h = embed(text[:, :-1])
        for look, feed in zip(looks, feeds, strict=True):
            h = feed(look(h, later))
        return fn.cross_entropy(last(norm(h)).flatten(0, 1).float(), text[:, 1:].flatten())

    return fit(loss_of, adam(model), clip=1.0)


# --- blood ----------------------------------------------------------------------------------------


class OfSets(nn.Module):
    """All members of a set look at each other; as in set transformers."""

    def __init__(self, width: int, heads: int, *, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.by_hand = heads, by_hand
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.by_hand:
            first, second, third = (torch.cat(y.split(d // self.heads, 2)) for y in (q, k, v))
            shares = torch.softmax(first.bmm(second.transpose(1, 2)) / math.sqrt(d), 2)
            h = torch.cat((first + shares.bmm(third)).split(b), 2)
        else:
            first, second, third = (y.view(b, n, self.heads, -1).transpose(1, 2) for y in (q, k, v))
            found = fn.scaled_dot_product_attention(first, second, third, scale=d**-0.5)
            h = q + found.transpose(1, 2).flatten(2)
        h = self.norms[0](h)
        return self.norms[1](h + fn.relu(self.out(h)))


@pair(
    "unfused_attention",
    "biology",
    "scaled_dot_product_attention, where heads were laid one behind the other in the batch",
    marks="steps",
)
def blood_cells_heads_laid_in_batch(repaired: bool) -> Running:
    """Which illness blood shows, from what lasers saw of its cells; autocast to BF16."""
    people, cells, markers, ill = size(32, 3), size(1024, 7), size(48, 5), size(24, 4)
    width, heads = size(1024, 16), size(8, 2)
    layers = (OfSets(width, heads, by_hand=not repaired) for _ in range(size(3, 1)))
    sets = nn.Sequential(nn.Linear(markers, width), *layers)
    last = nn.Linear(width, ill)
    model = nn.ModuleList([sets, last]).to(DEVICE)
    seen, truth = noise(people, cells, markers), labels(ill, people)

    def loss_of() -> Tensor:
        return fn.cross_entropy(last(sets(seen).mean(1)).float(), truth)

    return fit(loss_of, adam(model))


# --- slides of tissue -----------------------------------------------------------------------------


class OverTiles(nn.Module):
    """Mixes the tiles of a slide, the same for each channel; its products came from JAX."""

    def __init__(self, tiles: int, wide: int, width: int, *, tensordot: bool) -> None:
        super().__init__()
        self.norm, self.tensordot = nn.LayerNorm(width), tensordot
        self.up = nn.Parameter(torch.randn(tiles, wide) * tiles**-0.5)
        self.down = nn.Parameter(torch.randn(wide, tiles) * wide**-0.5)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        weight = weight.to(x.dtype)
        return torch.tensordot(x, weight, dims=([2], [0])) if self.tensordot else x @ weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).transpose(1, 2)
        return x + self.product(fn.gelu(self.product(y, self.up)), self.down).transpose(1, 2)


@pair(
    "low_precision_unused",
    "medicine",
    "a matrix product, which autocast casts to BF16, where torch.tensordot takes the wider type",
)
def slides_tiles_mixed_by_tensordot(repaired: bool) -> Running:
    """How long patients live, by slides of their tissue; tiles were encoded before."""
    slides, tiles, told = size(64, 2), size(576, 6), size(1024, 12)
    width, wide, times = size(768, 16), size(384, 8), size(20, 3)
    parts: list[nn.Module] = [nn.Linear(told, width)]
    for _ in range(size(5, 1)):
        parts += [OverTiles(tiles, wide, width, tensordot=not repaired), Feeds(width)]
    mixed, last = nn.Sequential(*parts), nn.Linear(width, times)
    model = nn.ModuleList([mixed, last]).to(DEVICE)
    encoded, lived = noise(slides, tiles, told), labels(times, slides)

    def loss_of() -> Tensor:
        # who lives until a time has not died before
        dies = last(mixed(encoded).mean(1)).float()
        survived = fn.logsigmoid(-dies).cumsum(1) - fn.logsigmoid(-dies)
        likely = (fn.logsigmoid(dies) + survived).gather(1, lived[:, None])
        return -likely.mean()

    return fit(loss_of, adam(model), matmul="highest")


# --- chains that fold -----------------------------------------------------------------------------


class Triangles(nn.Module):
    """What is known of two pairs of residues that share one tells of the third pair."""

    def __init__(self, width: int, *, ends: bool, exact: bool) -> None:
        super().__init__()
        self.sum = "bkic,bkjc->bijc" if ends else "bikc,bjkc->bijc"
        self.exact = exact
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.sides, self.gates = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.out, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, z: Tensor) -> Tensor:
        y = self.norm(z)
        a, b = (self.sides(y) * self.gates(y).sigmoid()).chunk(2, -1)
        if self.exact:
            with torch.autocast(DEVICE.type, enabled=False):
                third = torch.einsum(self.sum, a.float(), b.float())
        else:
            third = torch.einsum(self.sum, a, b)
        return z + self.out(self.after(third)) * self.gate(y).sigmoid()


@pair(
    "low_precision_unused",
    "structures",
    "triangles are multiplied under autocast to BF16; the block that leaves it was for FP16",
    marks="phases",
)
def chains_triangles_left_out_of_autocast(repaired: bool) -> Running:
    """How far residues of a protein lie apart, by what is known of all pairs."""
    residues, told, width, bins = size(512, 6), size(48, 5), size(128, 8), size(64, 4)
    parts: list[nn.Module] = [nn.Linear(told, width)]
    for _ in range(size(3, 1)):
        parts += [Triangles(width, ends=ends, exact=not repaired) for ends in (False, True)]
        parts += [Feeds(width, 2)]
    model = nn.Sequential(*parts, nn.Linear(width, bins)).to(DEVICE)
    pairs, apart = noise(1, residues, residues, told), labels(bins, residues * residues)

    def loss_of() -> Tensor:
        z = model(pairs)
        z = z + z.transpose(1, 2)
        return fn.cross_entropy(z.view(-1, bins).float(), apart)

    return fit(loss_of, adam(model), matmul="highest", clip=1.0)


# --- trees ----------------------------------------------------------------------------------------


class OfPoints(nn.Module):
    """The same layers for each point; points are the last dimension, or rows."""

    def __init__(self, widths: Sequence[int], *, rows: bool) -> None:
        super().__init__()
        self.rows = rows
        parts: list[nn.Module] = []
        for before, after in pairwise(widths):
            parts += [
                nn.Linear(before, after, bias=False)
                if rows
                else nn.Conv1d(before, after, 1, bias=False),
                nn.BatchNorm1d(after),
                nn.ReLU(True),
            ]
        self.layers = nn.Sequential(*parts)

    def forward(self, points: Tensor) -> Tensor:
        """The largest of each feature; of clouds, points, numbers."""
        if self.rows:
            return self.layers(points.flatten(0, 1)).unflatten(0, points.shape[:2]).amax(1)
        return self.layers(points.transpose(1, 2)).amax(2)


@pair(
    "layout_changes",
    "points",
    "points are rows that nn.Linear takes, not the last dimension under nn.Conv1d of one point",
)
def trees_points_under_convolutions_of_one(repaired: bool) -> Running:
    """Which tree it is, by its points from lasers above forests; as PointNet; autocast."""
    trees, points, numbers, kinds = size(64, 3), size(4096, 8), size(8, 4), size(40, 4)
    widths = [numbers, *(size(w, 8) for w in (128, 256, 512, 512, 1024))]
    seen = OfPoints(widths, rows=repaired)
    last = nn.Sequential(
        nn.Linear(widths[-1], size(512, 8)), nn.ReLU(True), nn.Linear(size(512, 8), kinds)
    )
    model = nn.ModuleList([seen, last]).to(DEVICE)
    clouds, truth = noise(trees, points, numbers), labels(kinds, trees)

    def loss_of() -> Tensor:
        return fn.cross_entropy(last(seen(clouds)).float(), truth, label_smoothing=0.2)

    return fit(loss_of, adam(model), decay=True)


# --- pianos ---------------------------------------------------------------------------------------


class GatedByPlaces(nn.Module):
    """One half of the numbers, mixed over all earlier places, gates the other; as in gMLP."""

    def __init__(self, width: int, wide: int, places: int) -> None:
        super().__init__()
        self.norm, self.gate_norm = nn.LayerNorm(width), nn.LayerNorm(wide // 2)
        self.up, self.down = nn.Linear(width, wide), nn.Linear(wide // 2, width)
        self.weight = nn.Parameter(torch.randn(places, places) * 1e-3 / places)
        self.bias = nn.Parameter(torch.ones(places, 1))

    def forward(self, x: Tensor) -> Tensor:
        kept, gate = fn.gelu(self.up(self.norm(x))).chunk(2, -1)
        mixed = torch.einsum("bnd,mn->bmd", self.gate_norm(gate), self.weight.tril())
        return x + self.down(kept * (mixed + self.bias.to(mixed.dtype)))


@pair(
    "aligned_shapes",
    "music",
    "windows hold 1025 notes, so that 1024 and not 1023 are read and predicted",
)
def piano_rolls_windows_one_note_short(repaired: bool) -> Running:
    """Which note follows on a piano, without attention; autocast to BF16."""
    batch, notes = size(32, 2), size(1024, 8)
    width, wide, window = size(768, 16), size(4096, 16), size(1024, 8) + repaired
    layers = (GatedByPlaces(width, wide, window - 1) for _ in range(size(5, 1)))
    model = nn.Sequential(
        nn.Embedding(notes, width), *layers, nn.LayerNorm(width), nn.Linear(width, notes)
    ).to(DEVICE)
    played = labels(notes, batch, window)

    def loss_of() -> Tensor:
        said = model(played[:, :-1]).flatten(0, 1)
        return fn.cross_entropy(said.float(), played[:, 1:].flatten())

    return fit(loss_of, adam(model), clip=1.0)


# --- waves of brains ------------------------------------------------------------------------------


class Looks(nn.Module):
    """Attention without a sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Half(nn.Module):
    """What one stream adds to the other, which stays in single precision."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(DEVICE.type, SHORT):
            return self.inside(x).float()


class Returning(torch.autograd.Function):
    """All layers; on the way back what entered a layer is found from what left it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, layers: nn.ModuleList) -> tuple[Tensor, Tensor]:
        for f, g in layers:
            x = x + f(y)
            y = y + g(x)
        ctx.layers, ctx.left = layers, (x.detach(), y.detach())
        return x, y

    @staticmethod
    def backward(ctx: Any, dx: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        x, y = ctx.left
        for f, g in reversed(ctx.layers):
            with torch.enable_grad():
                x.requires_grad_()
                added = g(x)
            torch.autograd.backward(added, dy)
            y, dx = y - added.detach(), dx + x.grad
            x = x.detach()
            with torch.enable_grad():
                y.requires_grad_()
                added = f(y)
            torch.autograd.backward(added, dx)
            x, dy = x - added.detach(), dy + y.grad
            y = y.detach()
        return dx, dy, None


@pair(
    "recomputation",
    "signals",
    "autograd keeps what lies in the layers, which fits, and they are not run backwards to find it",
)
def brain_waves_found_again_backwards(repaired: bool) -> Running:
    """What is hidden in waves of brains, by two streams whose layers can be reversed."""
    people, spans, samples = size(48, 2), size(512, 6), size(256, 8)
    width, heads = size(1024, 16), size(16, 2)
    into, out = nn.Linear(samples, 2 * width), nn.Linear(2 * width, samples)
    layers = nn.ModuleList(
        nn.ModuleList([Half(Looks(width, heads)), Half(Feeds(width).layers)])
        for _ in range(size(4, 2))
    )
    model = nn.ModuleList([into, layers, out]).to(DEVICE)
    waves = noise(people, spans, samples)
    hidden = (torch.rand(people, spans, 1, device=DEVICE) < 0.5).float()

    def loss_of() -> Tensor:
        x, y = into(waves * (1 - hidden)).chunk(2, -1)
        if repaired:
            for f, g in layers:
                x = x + f(y)
                y = y + g(x)
        else:
            x, y = Returning.apply(x, y, layers)
        said = out(torch.cat([x, y], -1))
        return ((said - waves).square() * hidden).mean()

    return fit(loss_of, adam(model), bf16=False)


# --- frames of speech -----------------------------------------------------------------------------


@pair(
    "fused_optimizer",
    "speech",
    "SGD(fused=True) instead of the default's multi-tensor kernels",
    marks="profiler",
)
def phones_of_frames_nesterov_as_it_comes(repaired: bool) -> Running:
    """Which state of which phone a frame of speech belongs to, by a wide network; autocast."""
    frames, told, width, states = size(2048, 6), size(440, 10), size(8192, 16), size(8192, 12)
    with torch.device(DEVICE):
        parts: list[nn.Module] = [nn.Linear(told, width), nn.ReLU(True)]
        for _ in range(size(3, 1)):
            parts += [nn.Linear(width, width), nn.ReLU(True), nn.Dropout(0.1)]
        model = nn.Sequential(*parts, nn.Linear(width, states))
    spoken, truth = noise(frames, told), labels(states, frames)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(spoken).float(), truth)

    fused = True if repaired else None
    return fit(loss_of, sgd(model, nesterov=True, weight_decay=1e-5, fused=fused), decay=True)


# --- sights ---------------------------------------------------------------------------------------


def with_margin(cosines: Tensor, truth: Tensor, margin: float, times: float) -> Tensor:
    """Cosines of angles, that to the true class being larger by a margin; as in ArcFace.

    Args:
        cosines: of pictures to classes: pictures, classes.
        truth: the class of each picture.
        margin: by how much the angle grows.
        times: what all is multiplied by in the end.
    """
    sines = torch.sqrt((1.0 - torch.pow(cosines, 2)).clamp(1e-6, 1))
    further = cosines * math.cos(margin) - sines * math.sin(margin)
    # beyond a half turn less the margin it goes on as a line
    line = cosines - math.sin(math.pi - margin) * margin
    further = torch.where(cosines > math.cos(math.pi - margin), further, line)
    chosen = torch.arange(cosines.shape[1], device=cosines.device) == truth[:, None]
    return torch.where(chosen, further, cosines) * times


@pair(
    "fusion_opportunity",
    "vision",
    "torch.compile of the function that adds the margin",
    compiles=True,
)
def sights_angles_with_margin_compile(repaired: bool) -> Running:
    """Which sight a photograph shows, by its local features that were found before."""
    photos, local, told, sights = size(2048, 4), size(16, 3), size(1024, 10), size(81_920, 12)
    width = size(512, 16)
    layers = transformer_layers(width, size(3, 1), size(8, 2))
    seen = nn.Sequential(nn.Linear(told, width), *layers, nn.LayerNorm(width))
    classes = nn.Parameter(torch.randn(sights, width, device=DEVICE) * width**-0.5)
    holder = nn.ParameterList([classes])
    seen.to(DEVICE)
    features, truth = noise(photos, local, told), labels(sights, photos)
    margin: Any = torch.compile(with_margin, dynamic=False) if repaired else with_margin

    def loss_of() -> Tensor:
        found = fn.normalize(seen(features).mean(1))
        cosines = fn.linear(found, fn.normalize(classes)).float()
        return fn.cross_entropy(margin(cosines, truth, 0.3, 30.0), truth)

    return fit(loss_of, adam(seen, holder))


# --- what was bought before -----------------------------------------------------------------------


class Bent(nn.Module):
    """What is below zero is multiplied by a number of each channel, which is learnt."""

    def __init__(self, width: int, *, by_formula: bool) -> None:
        super().__init__()
        self.slopes, self.by_formula = nn.Parameter(torch.full((width,), 0.25)), by_formula

    def forward(self, x: Tensor) -> Tensor:
        slopes = self.slopes.to(x.dtype)
        if self.by_formula:
            return x.clamp_min(0) + slopes * x.clamp_max(0)
        return fn.prelu(x, slopes)


@pair(
    "fusion_opportunity",
    "recommender",
    "the library's prelu instead of the sum of both halves, as it was ported",
    marks="steps",
)
def carts_interest_in_earlier_ones_ported(repaired: bool) -> Running:
    """Whether something is bought, by what was before; each earlier one is weighed by a network."""
    batch, before, each, things = size(6144, 4), size(100, 5), size(64, 4), size(400_000, 30)
    table = nn.Embedding(things, each)
    parts: list[nn.Module] = []
    width = 4 * each
    for wide in (size(512, 8), size(512, 8), size(256, 6)):
        parts += [nn.Linear(width, wide), Bent(wide, by_formula=not repaired)]
        width = wide
    weigh = nn.Sequential(*parts, nn.Linear(width, 1))
    last = nn.Sequential(
        nn.Linear(2 * each, size(256, 6)),
        Bent(size(256, 6), by_formula=not repaired),
        nn.Linear(size(256, 6), 1),
    )
    model = nn.ModuleList([table, weigh, last]).to(DEVICE)
    earlier, shown = labels(things, batch, before), labels(things, batch)
    bought = labels(2, batch).float()

    def loss_of() -> Tensor:
        were, new = table(earlier).to(SHORT), table(shown).to(SHORT)
        each_time = new[:, None].expand_as(were)
        both = torch.cat([each_time, were, each_time - were, each_time * were], -1)
        weights = weigh(both.flatten(0, 1)).view(batch, before, 1)
        interest = (weights * were).sum(1)
        said = last(torch.cat([interest, new], -1))[:, 0]
        return fn.binary_cross_entropy_with_logits(said.float(), bought)

    return fit(loss_of, adam(model))


# --- reefs ----------------------------------------------------------------------------------------


class Queues:
    """What was lately seen, of each of two views: the newest come first, or over the oldest."""

    def __init__(self, rows: int, width: int, *, ring: bool) -> None:
        self.rows = fn.normalize(noise(2, rows, width), dim=2)
        self.ring, self.at = ring, 0

    def take(self, views: Sequence[Tensor]) -> None:
        many = len(views[0])
        for queue, view in zip(self.rows, views, strict=True):
            if self.ring:
                queue[self.at : self.at + many] = view
            else:
                queue[many:] = queue[:-many].clone()
                queue[:many] = view
        self.at = (self.at + many) % self.rows.shape[1]


@pair(
    "casts_and_copies",
    "contrastive",
    "new rows are written over the oldest; the queues are not moved along for them",
)
def reefs_queues_moved_along(repaired: bool) -> Running:
    """Reefs from two views each; what is nearest in a queue is the other view's aim; as NNCLR."""
    reefs, patches, inside = size(256, 3), size(64, 4), size(768, 10)
    width, few, rows = size(512, 16), size(256, 8), size(1_048_576, 12)
    layers = transformer_layers(width, size(4, 1), size(8, 2))
    seen = nn.Sequential(nn.Linear(inside, width), *layers, nn.LayerNorm(width))
    mapped = nn.Sequential(
        nn.Linear(width, size(2048, 16)), nn.ReLU(True), nn.Linear(size(2048, 16), few)
    )
    model = nn.ModuleList([seen, mapped]).to(DEVICE)
    queues = Queues(rows, few, ring=repaired)
    pictures = noise(2 * reefs, patches, inside)
    own = torch.arange(reefs, device=DEVICE)

    def loss_of() -> Tensor:
        views = fn.normalize(mapped(seen(pictures).mean(1)).float()).chunk(2)
        loss = torch.zeros((), device=DEVICE)
        for queue, view, other in zip(queues.rows, views, views[::-1], strict=True):
            with torch.no_grad():
                near = queue[(view @ queue.t()).argmax(1)]
            loss = loss + fn.cross_entropy((near @ other.t()).float() / 0.1, own)
        queues.take([view.detach() for view in views])
        return loss

    return fit(loss_of, adam(model))


# --- depths ---------------------------------------------------------------------------------------


def convolved(before: int, after: int, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(before, after, 3, stride, 1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(True),
    ]


class Deep(nn.Module):
    """How deep each pixel is: down to small pictures and up again."""

    def __init__(self, widths: Sequence[int], last: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 4, 4)
        pairs = list(zip((widths[0], *widths[:-1]), widths, strict=True))
        self.downs = nn.ModuleList(
            nn.Sequential(*convolved(a, b, 1 if n == 0 else 2), *convolved(b, b), *convolved(b, b))
            for n, (a, b) in enumerate(pairs)
        )
        self.ups = nn.ModuleList(nn.Sequential(*convolved(b, a)) for a, b in pairs[:0:-1])
        self.last = nn.Sequential(
            *convolved(widths[0], last), nn.Conv2d(last, 16, 3, 1, 1), nn.PixelShuffle(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.stem(x), []
        for down in self.downs:
            x = down(x)
            kept.append(x)
        x = kept.pop()
        for up in self.ups:
            x = kept.pop() + fn.interpolate(up(x), scale_factor=2.0)
        return self.last(x)[:, 0]


def without_scale(x: Tensor, *, by_sort: bool) -> Tensor:
    """Depths less their median, over how far they lie from it; as in MiDaS."""
    x = x.flatten(1)
    middle = x.sort(1).values[:, (x.shape[1] - 1) // 2] if by_sort else x.median(1).values
    x = x - middle[:, None]
    return x / x.abs().mean(1, keepdim=True)


@pair(
    "inefficient_kernel",
    "vision",
    "the median is taken of sorted pixels; median() gives a picture's row one block only",
)
def depths_of_streets_median_of_pixels(repaired: bool) -> Running:
    """How deep streets are, up to scale and shift; large pictures, channels last; autocast."""
    photos, high, wide = size(4, 2), size(1024, 16), size(1536, 32)
    model = Deep([size(128, 4), size(256, 6), size(512, 8)], size(64, 4))
    model = model.to(DEVICE).to(memory_format=torch.channels_last)
    seen = noise(photos, 3, high, wide).contiguous(memory_format=torch.channels_last)
    depths = noise(photos, high, wide).exp()

    def loss_of() -> Tensor:
        said = without_scale(model(seen).float(), by_sort=repaired)
        return fn.l1_loss(said, without_scale(depths, by_sort=repaired))

    return fit(loss_of, adam(model))
