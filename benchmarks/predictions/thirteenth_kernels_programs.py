"""Programs of the thirteenth set: the device sets the pace on both sides; few and large kernels.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

from typing import Any

import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, Feeds, precision, size
from program import Program, Running
from single_programs import entered
from tenth_pictures_programs import scaled
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 219 pairs"
pair = entered(PROGRAMS)
LAST = torch.channels_last


# --- chorales ---------------------------------------------------------------------------------


class Differs(nn.Module):
    """What one look sees less what another one sees: noise goes (differential attention)."""

    def __init__(self, width: int, heads: int, head: int, *, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.head, self.by_hand = heads, head, by_hand
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 5 * heads * head, bias=False)
        self.out = nn.Linear(heads * head, width, bias=False)
        self.less = nn.Parameter(torch.full((heads, 1, 1), 0.5))

    def forward(self, x: Tensor, later: Tensor) -> Tensor:
        b, t, _ = x.shape
        parts = self.into(self.norm(x)).view(b, t, 5, self.heads, self.head)
        q1, k1, q2, k2, v = parts.permute(2, 0, 3, 1, 4).unbind()
        if self.by_hand:
            one, other = (
                (q @ k.transpose(-1, -2) * self.head**-0.5)
                .masked_fill(later, float("-inf"))
                .softmax(-1)
                for q, k in ((q1, k1), (q2, k2))
            )
            y = (one - self.less * other).to(v.dtype) @ v
        else:
            # sums over the same values: the difference may be taken after them
            one, other = (
                fn.scaled_dot_product_attention(q, k, v, is_causal=True)
                for q, k in ((q1, k1), (q2, k2))
            )
            y = one - self.less * other
        y = fn.layer_norm(y, (self.head,))
        return x + self.out(y.transpose(1, 2).reshape(b, t, self.heads * self.head))


@pair(
    "unfused_attention",
    "music",
    "scaled_dot_product_attention of both looks, whose results are subtracted, not the weights",
)
def chorales_two_looks_subtracted(repaired: bool) -> Running:
    """Four voices of chorales, note after note; BF16."""
    batch, moments, notes = size(12, 2), size(768, 12), size(512, 16)
    width, heads, head = size(2048, 16), size(12, 2), size(128, 8)
    embed, last = nn.Embedding(notes, width), nn.Linear(width, notes)
    place = nn.Parameter(torch.randn(moments, width, device=DEVICE) * 0.02)
    with torch.device(DEVICE):
        looks = nn.ModuleList(
            Differs(width, heads, head, by_hand=not repaired) for _ in range(size(2, 1))
        )
        feeds = nn.ModuleList(Feeds(width) for _ in looks)
    model = nn.ModuleList([embed, looks, feeds, last]).to(DEVICE)
    later = torch.ones(moments, moments, dtype=torch.bool, device=DEVICE).triu(1)
    x, y = labels(notes, batch, moments), labels(notes, batch, moments)
    update = torch.optim.AdamW([*model.parameters(), place], lr=1e-4, fused=True)

    def loss_of() -> Tensor:
        h = embed(x) + place
        for look, feed in zip(looks, feeds, strict=True):
            h = feed(look(h, later))
        return fn.cross_entropy(last(h).float().flatten(0, 1), y.flatten())

    return fit(loss_of, update)


# --- cells of a tissue ------------------------------------------------------------------------


def shares_or_none(scores: Tensor) -> Tensor:
    """Softmax with one more score of zero, which no share is kept of: all may be near nothing."""
    most = scores.detach().amax(-1, keepdim=True).clamp(min=0)
    rises = (scores - most).exp()
    return rises / (rises.sum(-1, keepdim=True) + (-most).exp())


class Neighbours(nn.Module):
    """Cells look at cells, or at nothing."""

    def __init__(self, width: int, heads: int, *, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.by_hand, self.norm = heads, by_hand, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.by_hand:
            shares = shares_or_none(q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5)
            y = shares.to(v.dtype) @ v
        else:
            # a key of zeros has a score of zero, and its value adds nothing
            k, v = fn.pad(k, (0, 0, 0, 1)), fn.pad(v, (0, 0, 0, 1))
            y = fn.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


@pair(
    "unfused_attention",
    "biology",
    "scaled_dot_product_attention with one more key and value of zeros",
    marks="phases",
)
def tissue_cells_look_at_nothing(repaired: bool) -> Running:
    """Which genes a hidden cell reads, from all cells around it on a slice of tissue; BF16."""
    batch, cells, genes = size(14, 2), size(768, 12), size(512, 16)
    width, heads = size(2048, 16), size(16, 2)
    with torch.device(DEVICE):
        into, last = nn.Linear(genes + 8, width), nn.Linear(width, genes)
        layers = nn.Sequential()
        for _ in range(size(2, 1)):
            layers.append(Neighbours(width, heads, by_hand=not repaired))
            layers.append(Feeds(width))
    model = nn.ModuleList([into, layers, last])
    read = torch.poisson(torch.rand(batch, cells, genes, device=DEVICE))
    hidden = (torch.rand(batch, cells, 1, device=DEVICE) < 0.2).float()
    angles = torch.rand(batch, cells, 4, device=DEVICE) * 6.283  # of where the cell lies
    seen = torch.cat([read.log1p() * (1 - hidden), angles.sin(), angles.cos()], 2)

    def loss_of() -> Tensor:
        rate = last(layers(into(seen))).float()
        off = fn.poisson_nll_loss(rate, read, reduction="none").mean(-1, keepdim=True)
        return (off * hidden).sum() / hidden.sum()

    return fit(loss_of, adam(model, weight_decay=0.05))


# --- radar with phases ------------------------------------------------------------------------


def cardioid(x: Tensor) -> Tensor:
    """Numbers that point along the real axis pass, those that point against it do not."""
    re, im = x.chunk(2, 1)
    length = (re * re + im * im + 1e-6).sqrt()
    gain = 0.5 * (1 + re / length)
    return torch.cat([re * gain, im * gain], 1)


class ComplexConv(nn.Module):
    """A convolution of complex numbers: real parts in the first half of the channels."""

    def __init__(self, width: int, act: Any) -> None:
        super().__init__()
        self.re, self.im = (
            nn.Parameter(torch.randn(width, width, 3, 3) * (18 * width) ** -0.5) for _ in range(2)
        )
        self.norm, self.act = nn.BatchNorm2d(2 * width), act

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat(
            [torch.cat([self.re, -self.im], 1), torch.cat([self.im, self.re], 1)]
        ).contiguous(memory_format=LAST)
        return self.act(self.norm(fn.conv2d(x, both, padding=1)))


@pair(
    "fusion_opportunity",
    "complex",
    "torch.compile of the activation of complex numbers",
    compiles=True,
)
def radar_crops_cardioid_compile(repaired: bool) -> Running:
    """What grows on a field, from radar whose phases are kept: all numbers are complex; TF32."""
    batch, side, width, kinds = size(28, 2), size(128, 8), size(64, 4), size(12, 3)
    # all activations are of one shape
    act: Any = torch.compile(cardioid, dynamic=False) if repaired else cardioid
    net = nn.Sequential(
        nn.Conv2d(2, 2 * width, 3, 1, 1),
        *(ComplexConv(width, act) for _ in range(size(5, 2))),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, kinds),
    ).to(DEVICE, memory_format=LAST)  # fmt: skip
    x = noise(batch, 2, side, side).to(memory_format=LAST)
    y = labels(kinds, batch)

    def loss_of() -> Tensor:
        return fn.cross_entropy(net(x), y)

    return fit(loss_of, adam(net), bf16=False)


# --- stars ------------------------------------------------------------------------------------


class ChannelNorm(nn.Module):
    """Channels of a pixel are normalised: as in a paper's code, or by the library."""

    def __init__(self, width: int, *, spelled: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.spelled = spelled

    def forward(self, x: Tensor) -> Tensor:
        if self.spelled:
            u = x.mean(1, keepdim=True)
            s = (x - u).pow(2).mean(1, keepdim=True)
            x = (x - u) / torch.sqrt(s + 1e-6)
            return self.weight[:, None, None] * x + self.bias[:, None, None]
        y = x.permute(0, 2, 3, 1)  # channels are last in memory: nothing moves
        y = fn.layer_norm(y, self.weight.shape, self.weight, self.bias, 1e-6)
        return y.permute(0, 3, 1, 2)


@pair(
    "fusion_opportunity",
    "astronomy",
    "the library's layer_norm over channels instead of mean, power, square root and division",
    marks="profiler",
)
def crowded_stars_channels_normed(repaired: bool) -> Running:
    """How bright each pixel is without the stars before it; BF16, the rate falls."""
    batch, side, width = size(12, 2), size(128, 8), size(256, 8)
    parts: list[nn.Module] = [nn.Conv2d(8, width, 3, 1, 1)]
    for _ in range(size(5, 2)):
        parts += [
            ChannelNorm(width, spelled=not repaired),
            nn.GELU(),
            nn.Conv2d(width, width, 3, 1, 1),
        ]
    model = nn.Sequential(*parts, nn.Conv2d(width, 8, 1)).to(DEVICE, memory_format=LAST)
    x = noise(batch, 8, side, side).to(memory_format=LAST)
    y = (0.5 * x + 0.1 * noise(batch, 8, side, side)).contiguous(memory_format=LAST)

    def loss_of() -> Tensor:
        return fn.l1_loss(model(x).float(), y)

    return fit(loss_of, sgd(model), decay=True)


# --- what substances do -----------------------------------------------------------------------


class Selu(nn.Module):
    """Keeps mean and variance near zero and one; with the paper's numbers, or the library's."""

    def __init__(self, *, spelled: bool) -> None:
        super().__init__()
        self.spelled = spelled

    def forward(self, x: Tensor) -> Tensor:
        if self.spelled:
            below = 1.6732632423543772 * (torch.exp(x.clamp(max=0)) - 1)
            return 1.0507009873554805 * (x.clamp(min=0) + below)
        return fn.selu(x)


@pair(
    "fusion_opportunity",
    "chemistry",
    "the library's selu instead of its two halves by exp and clamp",
)
def assays_self_normalising_layers(repaired: bool) -> Running:
    """What substances do in many assays, few of which were made with each; TF32."""
    rows, bits, width, assays = size(16384, 8), size(2048, 16), size(4096, 16), size(1024, 8)
    parts: list[nn.Module] = []
    with torch.device(DEVICE):
        for before in (bits, *[width] * size(3, 1)):
            layer = nn.Linear(before, width)
            nn.init.normal_(layer.weight, 0.0, before**-0.5)
            parts += [layer, Selu(spelled=not repaired)]
        model = nn.Sequential(*parts, nn.Linear(width, assays))
    x = (torch.rand(rows, bits, device=DEVICE) < 0.05).float()
    y = (torch.rand(rows, assays, device=DEVICE) < 0.1).float()
    made = (torch.rand(rows, assays, device=DEVICE) < 0.2).float()
    many = made.sum()

    def loss_of() -> Tensor:
        off = fn.binary_cross_entropy_with_logits(model(x), y, weight=made, reduction="sum")
        return off / many

    return fit(loss_of, sgd(model), bf16=False)


# --- baskets ----------------------------------------------------------------------------------


@pair(
    "low_precision_unused",
    "energy",
    "torch.set_float32_matmul_precision('high') after the import that asked for exact products",
)
def baskets_contrastive_divergence(repaired: bool) -> Running:
    """What is bought together, by a Boltzmann machine; a package of metrics sets the precision.

    Samples are drawn in 16 bit; the statistics, sums over all baskets, are made in 32 bit.
    """
    rows, goods, units, rounds = size(4096, 8), size(8192, 16), size(8192, 12), 5
    weight = nn.Parameter(torch.randn(goods, units, device=DEVICE) * 0.01)
    by_good = nn.Parameter(torch.zeros(goods, device=DEVICE))
    by_unit = nn.Parameter(torch.zeros(units, device=DEVICE))
    update = torch.optim.SGD(
        [weight, by_good, by_unit], lr=1e-3, momentum=0.9, weight_decay=1e-4, fused=True
    )
    half = torch.bfloat16
    bought = (torch.rand(rows, goods, device=DEVICE) < 0.05).to(half)

    @torch.no_grad()
    def step() -> None:
        w, a, b = weight.to(half), by_good.to(half), by_unit.to(half)
        first = torch.addmm(b, bought, w).sigmoid()
        on = first
        for _ in range(rounds):
            drawn = torch.addmm(a, on.bernoulli(), w.t()).sigmoid().bernoulli()
            on = torch.addmm(b, drawn, w).sigmoid()
        real = bought.float().t() @ first.float()
        made_up = drawn.float().t() @ on.float()
        weight.grad = (made_up - real) / rows
        by_good.grad = (drawn - bought).float().mean(0)
        by_unit.grad = (on - first).float().mean(0)
        update.step()

    return Running(step, enter=precision("high" if repaired else "highest"))


# --- who likes what ---------------------------------------------------------------------------


@pair(
    "unfused_optimizer",
    "recommender",
    "the state that is loaded gets fused=True: load_state_dict brings the old run's flags along",
)
def likes_resumed_with_old_flags(repaired: bool) -> Running:
    """Likes of people as draws from one distribution (Mult-VAE); an old run goes on; BF16."""
    people, things = size(6144, 8), size(16384, 32)
    width, latent = size(4096, 16), size(1024, 4)
    with torch.device(DEVICE):
        read = nn.Linear(things, width)
        mean, spread = nn.Linear(width, latent), nn.Linear(width, latent)
        back, last = nn.Linear(latent, width), nn.Linear(width, things)
    model = nn.ModuleList([read, mean, spread, back, last])
    liked = (torch.rand(people, things, device=DEVICE) < 0.01).to(torch.bfloat16)
    entered_as = fn.normalize(liked, dim=1)
    old = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    old.step()
    old.zero_grad(set_to_none=True)
    kept: dict[str, Any] = old.state_dict()
    if repaired:
        for group in kept["param_groups"]:
            group.update(fused=True, foreach=None)
    update = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    update.load_state_dict(kept)

    def loss_of() -> Tensor:
        h = torch.tanh(read(fn.dropout(entered_as, 0.5)))
        at, wide = mean(h).float(), spread(h).float()
        z = at + torch.randn_like(at) * (0.5 * wide).exp()
        shares = last(torch.tanh(back(z))).log_softmax(-1)
        off = -(shares * liked).sum(-1).mean()
        return off + 0.1 * (wide.exp() + at.square() - 1 - wide).sum(-1).mean()

    return fit(loss_of, update)


# --- crowds -----------------------------------------------------------------------------------


def convs(before: int, after: int, many: int) -> list[nn.Module]:
    """So many convolutions, normalised."""
    parts: list[nn.Module] = []
    for _ in range(many):
        parts += [
            nn.Conv2d(before, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(True),
        ]
        before = after
    return parts


@pair(
    "layout_changes",
    "vision",
    "channels_last for the network and its photographs",
)
def crowds_counted_by_density(repaired: bool) -> Running:
    """How many people stand where, as a map of densities; FP16 with a scaler."""
    batch, side, w = size(32, 2), size(256, 16), size(64, 4)
    model = nn.Sequential(
        *convs(3, w, 2), nn.MaxPool2d(2),
        *convs(w, 2 * w, 2), nn.MaxPool2d(2),
        *convs(2 * w, 4 * w, 3), nn.MaxPool2d(2),
        *convs(4 * w, 8 * w, 4),
        *convs(8 * w, 4 * w, 1),
        nn.Conv2d(4 * w, 1, 1),
    ).to(DEVICE)  # fmt: skip
    x = noise(batch, 3, side, side)
    y = torch.rand(batch, 1, side // 8, side // 8, device=DEVICE)
    if repaired:
        model = model.to(memory_format=LAST)
        x = x.to(memory_format=LAST)

    def loss_of() -> Tensor:
        return fn.mse_loss(model(x).float(), y)

    return scaled(loss_of, sgd(model))


# --- fields on a lattice ----------------------------------------------------------------------


class Couples(nn.Module):
    """Half of the sites are scaled and moved by what a wide network makes of the other half."""

    def __init__(self, sites: int, wide: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(sites // 2, wide), nn.GELU(), nn.Linear(wide, wide), nn.GELU(),
            nn.Linear(wide, sites),
        )  # fmt: skip

    def forward(self, kept: Tensor, changed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale, shift = self.net(kept).chunk(2, 1)
        scale = torch.tanh(scale)
        return changed * scale.exp() + shift, kept, scale.sum(1)


@pair(
    "recomputation",
    "physics",
    "couplings are not checkpointed: what lies in them fits",
)
def lattice_couplings_checkpointed(repaired: bool) -> Running:
    """A flow learns to draw fields on a lattice; the script was made for larger ones; TF32."""
    draws, side, wide = size(12288, 6), size(32, 4), size(4096, 16)
    sites = side**2
    with torch.device(DEVICE):
        couples = nn.ModuleList(Couples(sites, wide) for _ in range(size(4, 2)))

    def action(field: Tensor) -> Tensor:
        square = field.square()
        bends = sum((field - field.roll(1, d)).square() for d in (1, 2))
        return (0.5 * bends - 0.5 * square + 0.25 * square.square()).sum((1, 2))

    def loss_of() -> Tensor:
        z = torch.randn(draws, sites, device=DEVICE)
        a, b = z.chunk(2, 1)
        grown = torch.zeros(draws, device=DEVICE)
        for couple in couples:
            if repaired:
                a, b, more = couple(a, b)
            else:
                a, b, more = checkpoint(couple, a, b, use_reentrant=False, preserve_rng_state=False)
            grown = grown + more
        return (action(torch.cat([a, b], 1).view(draws, side, side)) - grown).mean() / sites

    return fit(loss_of, adam(couples), bf16=False)
