"""Programs of the sixteenth set whose fault lies in the GPU's kernels, which are few and large.

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


# --- what shops will sell -------------------------------------------------------------------------


class Averaged(nn.Module):
    """Heads that share their values, and whose shares are averaged so that they can be read."""

    def __init__(self, width: int, heads: int, *, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.by_hand = heads, by_hand
        self.norm = nn.LayerNorm(width)
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)
        self.v, self.out = nn.Linear(width, width // heads), nn.Linear(width // heads, width)
        self.feed = Feeds(width)

    def forward(self, x: Tensor, later: Tensor) -> Tensor:
        b, t, d = x.shape
        y = self.norm(x)
        q, k = (of(y).view(b, t, self.heads, -1).transpose(1, 2) for of in (self.q, self.k))
        v = self.v(y)
        if self.by_hand:
            scores = q @ k.transpose(2, 3) / math.sqrt(d // self.heads)
            shares = scores.masked_fill(later, float("-inf")).softmax(-1)
            found = shares.mean(1) @ v
        else:
            values = v[:, None].repeat(1, self.heads, 1, 1)
            found = fn.scaled_dot_product_attention(q, k, values, is_causal=True).mean(1)
        return self.feed(x + self.out(found))


@pair(
    "unfused_attention",
    "series",
    "scaled_dot_product_attention for all heads, whose results are averaged, not their shares",
)
def shops_sales_heads_averaged_to_read(repaired: bool) -> Running:
    """What shops sell in a month, as quantiles; as in temporal fusion transformers; autocast."""
    shops, days, known, ahead = size(12, 2), size(1024, 8), size(96, 5), size(28, 3)
    width, heads = size(1024, 16), size(8, 2)
    into, out = nn.Linear(known, width), nn.Linear(width, 3 * ahead)
    layers = nn.ModuleList(Averaged(width, heads, by_hand=not repaired) for _ in range(size(4, 1)))
    model = nn.ModuleList([into, layers, out]).to(DEVICE)
    seen, sold = noise(shops, days, known), noise(shops, days, ahead, 1)
    later = torch.ones(days, days, dtype=torch.bool, device=DEVICE).triu(1)
    quantiles = torch.tensor([0.1, 0.5, 0.9], device=DEVICE)

    def loss_of() -> Tensor:
        h = into(seen)
        for layer in layers:
            h = layer(h, later)
        off = sold - out(h).float().unflatten(-1, (ahead, 3))
        return torch.maximum(quantiles * off, (quantiles - 1) * off).mean()

    return fit(loss_of, adam(model), clip=1.0)


# --- atoms in boxes -------------------------------------------------------------------------------


def pair_energies(far: Tensor, charges: Tensor, radii: Tensor, reach: float) -> Tensor:
    """Energies of boxes of atoms: repulsion, dispersion and charges, each switched off smoothly.

    Args:
        far: distances of all pairs: boxes, atoms, atoms.
        charges: of each atom: boxes, atoms.
        radii: of each atom: boxes, atoms.
        reach: from which distance on atoms do not feel each other.
    """
    part = (far / reach).clamp(max=1.0)
    switch = 1 - 10 * part**3 + 15 * part**4 - 6 * part**5
    sixth = (0.5 * (radii[:, :, None] + radii[:, None, :]) / far) ** 6
    between = 4 * (sixth * sixth - sixth)
    between = between + charges[:, :, None] * charges[:, None, :] * torch.erf(far) / far
    return (between * switch).sum((1, 2)) / 2


@pair(
    "fusion_opportunity",
    "science",
    "torch.compile of the function that adds the energies of pairs up",
    compiles=True,
)
def melts_energies_of_pairs_compile(repaired: bool) -> Running:
    """Charges and radii of a melt's atoms, such that the energy of each box is right."""
    boxes, atoms, told, width = size(20, 2), size(1536, 6), size(256, 8), size(2048, 16)
    parts: list[nn.Module] = [nn.Linear(told, width), nn.SiLU()]
    for _ in range(size(4, 1)):
        parts += [nn.Linear(width, width), nn.SiLU()]
    net = nn.Sequential(*parts, nn.Linear(width, 2)).to(DEVICE)
    around = noise(boxes, atoms, told)
    places = 12 * torch.rand(boxes, atoms, 3, device=DEVICE)
    # an atom is as far from itself as nothing that it feels
    far = torch.cdist(places, places).clamp_min(0.8) + 99 * torch.eye(atoms, device=DEVICE)
    true = noise(boxes)
    energies: Any = torch.compile(pair_energies, dynamic=False) if repaired else pair_energies

    def loss_of() -> Tensor:
        said = net(around).float()
        found = energies(far, said[..., 0].tanh(), 0.7 + 0.2 * said[..., 1].sigmoid(), 6.0)
        return fn.smooth_l1_loss(found / atoms, true)

    return fit(loss_of, adam(net))


# --- cells and the counts of their genes ----------------------------------------------------------


def unlikely(counts: Tensor, said: Tensor, missed: Tensor, spread: Tensor, deep: Tensor) -> Tensor:
    """How unlikely counts are that are often missed: negative binomial, with more zeros.

    What does not depend on the network is left out.

    Args:
        counts: cells, genes.
        said: logarithms of what is expected in a cell of usual depth.
        missed: logits of a gene's being missed.
        spread: how little a gene's counts spread.
        deep: how often a cell was read: cells, 1.
    """
    mean = deep * fn.softplus(said) + 1e-6
    none = spread * (torch.log(spread) - torch.log(spread + mean))
    some = none + counts * (torch.log(mean) - torch.log(spread + mean))
    if_zero = fn.softplus(none - missed) - fn.softplus(-missed)
    if_not = some - missed - fn.softplus(-missed)
    return -torch.where(counts < 0.5, if_zero, if_not).mean()


@pair(
    "fusion_opportunity",
    "biology",
    "torch.compile of the function that is the likelihood",
    compiles=True,
)
def tumours_counts_often_missed_compile(repaired: bool) -> Running:
    """Counts of genes in cells of tumours, through few numbers; the network in BF16."""
    cells, genes, width, few = size(4096, 6), size(6144, 12), size(4096, 16), size(64, 4)
    net = nn.Sequential(
        nn.Linear(genes, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, few), nn.Linear(few, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 2 * genes),
    ).to(DEVICE)  # fmt: skip
    counts = torch.poisson(2 * torch.rand(cells, genes, device=DEVICE))
    depth = 0.5 + torch.rand(cells, 1, device=DEVICE)
    # how counts spread was found before, from their means and variances
    spread = 0.5 + torch.rand(genes, device=DEVICE)
    loss: Any = torch.compile(unlikely, dynamic=False) if repaired else unlikely

    def loss_of() -> Tensor:
        said, missed = net(torch.log1p(counts)).float().chunk(2, 1)
        return loss(counts, said, missed, spread, depth)

    return fit(loss_of, adam(net))


# --- spectra of minerals --------------------------------------------------------------------------


class OfBatch(nn.Module):
    """Normalises over the batch, and only ever by the batch; by the formula, or the library's."""

    def __init__(self, width: int, *, by_formula: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.by_formula = by_formula

    def forward(self, x: Tensor) -> Tensor:
        if not self.by_formula:
            return fn.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=1e-5)
        y = x.float()
        y = y - y.mean(0, keepdim=True)
        y = y / torch.sqrt((y * y).mean(0, keepdim=True) + 1e-5)
        return (y * self.weight + self.bias).to(x.dtype)


@pair(
    "fusion_opportunity",
    "science",
    "torch.nn.functional.batch_norm instead of means, differences and roots",
)
def minerals_normed_over_batch_by_formula(repaired: bool) -> Running:
    """Which minerals a spectrum of a rock shows, learnt from mixtures; autocast to BF16."""
    rocks, lines, width, minerals = size(16_384, 8), size(1024, 12), size(3072, 16), size(96, 5)
    parts: list[nn.Module] = []
    for before in (lines, *[width] * size(3, 1)):
        parts += [nn.Linear(before, width, bias=False), OfBatch(width, by_formula=not repaired)]
        parts += [nn.ReLU()]
    model = nn.Sequential(*parts, nn.Linear(width, minerals)).to(DEVICE)
    pure = torch.rand(minerals, lines, device=DEVICE)
    shares = (3 * noise(rocks, minerals)).softmax(1)
    spectra = shares @ pure

    def loss_of() -> Tensor:
        seen = spectra + 0.01 * torch.randn_like(spectra)
        return fn.kl_div(model(seen).float().log_softmax(1), shares, reduction="batchmean")

    return fit(loss_of, adam(model), decay=True)


# --- forests before and after a fire --------------------------------------------------------------


def halved(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(True),
        nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(True),
    )  # fmt: skip


class Burnt(nn.Module):
    """Two pictures by the same layers; what differs at each scale says what has burnt."""

    def __init__(self, bands: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.downs = nn.ModuleList(
            halved(before, after)
            for before, after in zip((bands, *widths[:-1]), widths, strict=True)
        )
        self.ups = nn.ModuleList(
            nn.Sequential(nn.ConvTranspose2d(deep, wide, 2, 2), nn.BatchNorm2d(wide), nn.ReLU(True))
            for deep, wide in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.last = nn.ConvTranspose2d(widths[0], 1, 2, 2)

    def forward(self, pictures: Tensor) -> Tensor:
        """The first half of the pictures was taken before, the second after."""
        x, differ = pictures, []
        for down in self.downs:
            x = down(x)
            before, after = x.chunk(2)
            differ.append((after - before).abs())
        h = differ.pop()
        for up in self.ups:
            h = up(h) + differ.pop()
        return self.last(h)[:, 0]


@pair("layout_changes", "vision", "channels_last for the network and the pictures of both days")
def forests_before_and_after_fires(repaired: bool) -> Running:
    """Where a forest has burnt, from satellites' pictures of two days; autocast to BF16."""
    places, bands, side = size(16, 2), size(8, 3), size(512, 16)
    widths = (size(96, 4), size(192, 8), size(384, 8))
    model = Burnt(bands, widths).to(DEVICE)
    pictures = noise(2 * places, bands, side, side)
    burnt = labels(2, places, side, side).float()
    if repaired:
        model = model.to(memory_format=torch.channels_last)
        pictures = pictures.contiguous(memory_format=torch.channels_last)

    def loss_of() -> Tensor:
        return fn.binary_cross_entropy_with_logits(model(pictures).float(), burnt)

    return fit(loss_of, adam(model))


# --- engines that speed up ------------------------------------------------------------------------


def summed_in_pieces(x: Tensor, piece: int) -> Tensor:
    """A running sum of long rows: within pieces, which are many, and over what they sum to."""
    within = x.unflatten(-1, (-1, piece)).cumsum(-1)
    sums = within[..., -1]
    return (within + (sums.cumsum(-1) - sums)[..., None]).flatten(-2)


@pair(
    "inefficient_kernel",
    "audio",
    "the running sum is taken in pieces, which fill the GPU, where each row was one block's",
)
def engines_turns_summed_along_minutes(repaired: bool) -> Running:
    """The sound of engines as they speed up, from what sensors tell; the network in BF16.

    How fast an engine turns is summed up along all samples of a recording.
    """
    engines, frames, hop, sensors = size(8, 2), size(8192, 4), size(256, 8), size(64, 5)
    width, orders = size(2048, 16), size(4, 2)
    parts: list[nn.Module] = [nn.Linear(sensors, width), nn.GELU()]
    for _ in range(size(2, 1)):
        parts += [nn.Linear(width, width), nn.GELU()]
    net = nn.Sequential(*parts, nn.Linear(width, 1 + orders)).to(DEVICE)
    told = noise(engines, frames, sensors)
    truth = noise(engines, frames * hop)

    def loss_of() -> Tensor:
        said = net(told).float()
        speed, loud = said[..., 0].sigmoid() * 0.01, said[..., 1:].sigmoid()
        # held for a frame, in turns a sample
        fast = speed[..., None].expand(-1, -1, hop).flatten(1)
        turns = summed_in_pieces(fast, size(1024, 8)) if repaired else fast.cumsum(1)
        turns = turns.unflatten(1, (frames, hop))
        sound = torch.zeros_like(turns)
        for order in range(orders):
            sound = sound + loud[..., order, None] * torch.sin(math.tau * (order + 1) * turns)
        return fn.mse_loss(sound.flatten(1), truth)

    return fit(loss_of, adam(net))
