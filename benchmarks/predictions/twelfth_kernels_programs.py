"""Programs of the twelfth set: what the device bounds on both sides; few and large kernels a step.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

from typing import Any

import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, Feeds, size
from program import Program, Running
from single_programs import entered
from tenth_pictures_programs import scaled
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 222 pairs"
pair = entered(PROGRAMS)
LAST = torch.channels_last


# --- nights of sleep --------------------------------------------------------------------------


class Earlier(nn.Module):
    """Each half minute of a night looks at those before it; scores by hand, or the library's."""

    def __init__(self, width: int, heads: int, *, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.by_hand, self.norm = heads, by_hand, nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, later: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.by_hand:
            # sums of 768 shares are made in single precision, to be safe
            scores = (q @ k.transpose(-1, -2)).float() * (d // self.heads) ** -0.5
            y = (scores + later).softmax(-1).to(v.dtype) @ v
        else:
            y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


@pair(
    "unfused_attention",
    "signals",
    "scaled_dot_product_attention(is_causal=True) instead of scores in single precision",
)
def sleep_stages_scores_in_float(repaired: bool) -> Running:
    """Stages of sleep while the night goes on, from the electrodes' half minutes; BF16."""
    batch, epochs, inside, stages = size(16, 2), size(768, 12), size(1024, 16), 5
    width, heads = size(1536, 16), size(12, 2)
    into, last = nn.Linear(inside, width), nn.Linear(width, stages)
    looks = nn.ModuleList(Earlier(width, heads, by_hand=not repaired) for _ in range(size(3, 1)))
    feeds = nn.ModuleList(Feeds(width) for _ in looks)
    model = nn.ModuleList([into, looks, feeds, last]).to(DEVICE)
    place = nn.Parameter(torch.randn(epochs, width, device=DEVICE) * 0.02)
    later = torch.full((epochs, epochs), float("-inf"), device=DEVICE).triu(1)
    x, y = noise(batch, epochs, inside), labels(stages, batch, epochs)
    update = torch.optim.AdamW([*model.parameters(), place], lr=1e-4, fused=True)

    def loss_of() -> Tensor:
        h = into(x) + place
        for look, feed in zip(looks, feeds, strict=True):
            h = feed(look(h, later))
        return fn.cross_entropy(last(h).float().flatten(0, 1), y.flatten())

    return fit(loss_of, update, clip=1.0)


# --- the bottom of the sea --------------------------------------------------------------------


class Angles(nn.Module):
    """Attention by angles, sharper or not as each head learns; as in the second Swin."""

    def __init__(self, width: int, heads: int, *, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.by_hand, self.norm = heads, by_hand, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.sharp = nn.Parameter(torch.full((heads, 1, 1), 2.3))

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = fn.normalize(q, dim=-1), fn.normalize(k, dim=-1)
        sharp = self.sharp.clamp(max=4.6).exp()
        if self.by_hand:
            y = ((q @ k.transpose(-1, -2)) * sharp).softmax(-1) @ v
        else:
            q, k = (q * sharp).to(v.dtype), k.to(v.dtype)
            y = fn.scaled_dot_product_attention(q, k, v, scale=1.0)
        return x + self.norm(self.out(y.transpose(1, 2).reshape(b, t, d)))


@pair(
    "unfused_attention",
    "vision",
    "queries are sharpened before scaled_dot_product_attention(scale=1), not the scores",
    marks="phases",
)
def sonar_mosaics_cosines_sharpened(repaired: bool) -> Running:
    """What the bottom of the sea is made of, for tiles of sonar mosaics; FP16 with a scaler."""
    batch, tiles, inside, kinds = size(8, 2), size(1024, 16), size(256, 8), size(24, 4)
    width, heads = size(2048, 16), size(16, 2)
    into = nn.Linear(inside, width)
    layers = nn.Sequential()
    for _ in range(size(2, 1)):
        layers.append(Angles(width, heads, by_hand=not repaired))
        layers.append(Feeds(width))
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, kinds))
    model = nn.Sequential(into, layers, last).to(DEVICE)
    x, y = noise(batch, tiles, inside), labels(kinds, batch, tiles)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(x).float().flatten(0, 1), y.flatten(), label_smoothing=0.1)

    return scaled(loss_of, adam(model, weight_decay=0.05))


# --- a network for a small chip ---------------------------------------------------------------


def in_eight_bits(x: Tensor, unit: Tensor) -> Tensor:
    """What a chip of eight bits would hold; gradients pass what is rounded, and reach the unit."""
    scaled_down = (x / unit).clamp(0, 255)
    rounded = scaled_down + (scaled_down.round() - scaled_down).detach()
    return rounded * unit


class Coarse(nn.Module):
    """A convolution, normalised, whose output is as coarse as on the chip."""

    def __init__(self, width: int, quantised: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm, self.quantised = nn.BatchNorm2d(width), quantised
        self.unit = nn.Parameter(torch.full((), 0.02))

    def forward(self, x: Tensor) -> Tensor:
        return self.quantised(fn.relu(self.norm(self.conv(x))), self.unit)


@pair(
    "fusion_opportunity",
    "vision",
    "torch.compile of the function that rounds activations",
    compiles=True,
)
def doorbell_activations_rounded(repaired: bool) -> Running:
    """Who is at the door, for a chip of eight bits: rounding is learnt with (LSQ); TF32."""
    batch, side, width, kinds = size(24, 2), size(256, 16), size(256, 8), size(40, 4)
    # all activations are of one shape
    quantised = torch.compile(in_eight_bits, dynamic=False) if repaired else in_eight_bits
    model = nn.Sequential(
        nn.Conv2d(3, width, 4, 4),
        *(Coarse(width, quantised) for _ in range(size(8, 2))),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, kinds),
    ).to(DEVICE, memory_format=LAST)  # fmt: skip
    x = noise(batch, 3, side, side).to(memory_format=LAST)
    y = labels(kinds, batch)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(x), y)

    units = [p for p in model.parameters() if p.dim() == 0]
    weights = [p for p in model.parameters() if p.dim() > 0]
    # a unit's gradient is a sum over all that it rounds
    groups: list[dict[str, Any]] = [
        {"params": units, "lr": 1e-5}, {"params": weights, "weight_decay": 1e-4},
    ]  # fmt: skip
    update = torch.optim.SGD(groups, lr=1e-3, momentum=0.9, fused=True)
    return fit(loss_of, update, bf16=False)


# --- cameras of events ------------------------------------------------------------------------


class Fires(nn.Module):
    """Neurons that leak, and fire where enough came in; a slope stands for the jump."""

    def __init__(self, before: int, after: int, moments: int) -> None:
        super().__init__()
        self.moments = moments
        self.conv = nn.Conv2d(before, after, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(after)
        self.leak = nn.Parameter(torch.full((after, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        was: tuple[Tensor, Tensor] | None = None
        all_fired = []
        for current in self.norm(self.conv(x)).chunk(self.moments):
            charge = current
            if was is not None:  # who fired begins anew
                charge = was[0] * self.leak * (1 - was[1]) + current
            slope = torch.sigmoid(4 * (charge - 1))
            fired = slope + ((charge >= 1).to(slope.dtype) - slope).detach()
            all_fired.append(fired)
            was = charge, fired
        return torch.cat(all_fired)


@pair(
    "fusion_opportunity",
    "spiking",
    "torch.compile(model)",
    marks="steps",
    compiles=True,
)
def gestures_of_events_fire(repaired: bool) -> Running:
    """Gestures before a camera of events, in four moments, by neurons that fire; TF32."""
    batch, side, moments, width, kinds = size(48, 2), size(64, 8), 4, size(128, 4), size(11, 3)
    net = nn.Sequential(
        nn.Conv2d(2, width, 3, 1, 1), Fires(width, width, moments), Fires(width, width, moments),
        nn.AvgPool2d(8), nn.Flatten(), nn.Linear(width * (side // 8) ** 2, kinds),
    ).to(DEVICE, memory_format=LAST)  # fmt: skip
    update = adam(net)
    model: Any = torch.compile(net, dynamic=False) if repaired else net
    events = noise(moments * batch, 2, side, side).to(memory_format=LAST)
    y = labels(kinds, batch)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(events).view(moments, batch, kinds).mean(0), y)

    return fit(loss_of, update, bf16=False)


# --- labels of parcels ------------------------------------------------------------------------


class HardSwish(nn.Module):
    """As in the paper of the mobile network, or the library's."""

    def __init__(self, *, spelled: bool) -> None:
        super().__init__()
        self.spelled = spelled

    def forward(self, x: Tensor) -> Tensor:
        if self.spelled:
            return x * fn.relu6(x + 3) / 6
        return fn.hardswish(x)


@pair(
    "fusion_opportunity",
    "vision",
    "the library's hardswish instead of x * relu6(x + 3) / 6",
    marks="profiler",
)
def parcels_labels_found_hard_swish(repaired: bool) -> Running:
    """Where on a parcel its label is, and how wide its border: two maps, joined; BF16."""
    batch, side, width = size(20, 2), size(512, 16), size(64, 8)
    parts: list[nn.Module] = []
    before = 3
    for after, stride in ((1, 2), (1, 1), (1, 1), (1, 1), (2, 2), (2, 1), (2, 1)):
        parts += [
            nn.Conv2d(before, after * width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after * width),
            HardSwish(spelled=not repaired),
        ]
        before = after * width
    parts.append(nn.Conv2d(before, 2, 1))
    model = nn.Sequential(*parts).to(DEVICE, memory_format=LAST)
    x = noise(batch, 3, side, side).to(memory_format=LAST)
    y = (noise(batch, side // 4, side // 4) > 1.0).float()

    def loss_of() -> Tensor:
        found, border = model(x).float().unbind(1)
        sure = torch.sigmoid(50 * (torch.sigmoid(found) - torch.sigmoid(border)))
        both = 2 * (sure * y).sum() / (sure.sum() + y.sum() + 1.0)
        return fn.binary_cross_entropy_with_logits(found, y) + 1 - both

    return fit(loss_of, sgd(model), decay=True)


# --- plankton ---------------------------------------------------------------------------------


def less_of_all(width: int, many: int, kept: int) -> nn.Module:
    """Layers of so many, normalised, that end without a norm's weights."""
    parts: list[nn.Module] = [nn.Linear(width, many, bias=False)]
    for _ in range(kept):
        parts += [nn.BatchNorm1d(many), nn.ReLU(True), nn.Linear(many, many, bias=False)]
    return nn.Sequential(*parts, nn.BatchNorm1d(many, affine=False))


@pair(
    "low_precision_unused",
    "contrastive",
    "torch.set_float32_matmul_precision('high'); convolutions are in TF32 by default",
)
def plankton_views_wide_projector(repaired: bool) -> Running:
    """Two views of plankton agree, number by number, and no two numbers do; as Barlow Twins."""
    half, side, w, many = size(256, 3), size(96, 16), size(64, 4), size(6144, 16)
    parts: list[nn.Module] = []
    before = 1
    for after, stride in ((1, 2), (1, 1), (1, 1), (2, 2), (2, 1), (4, 2), (4, 1)):
        parts += [
            nn.Conv2d(before, after * w, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after * w),
            nn.ReLU(True),
        ]
        before = after * w
    trunk = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    trunk = trunk.to(DEVICE, memory_format=LAST)
    wide = less_of_all(before, many, 2).to(DEVICE)
    seen = noise(half, 1, side, side).to(memory_format=LAST)
    alike = torch.eye(many, device=DEVICE)

    def loss_of() -> Tensor:
        light = torch.rand(2 * half, 1, 1, 1, device=DEVICE) + 0.5
        a, b = wide(trunk(torch.cat([seen, seen.flip(3)]) * light)).chunk(2)
        apart = (a.t() @ b / half - alike).square()
        on = apart.diagonal().sum()
        return (on + 5e-3 * (apart.sum() - on)) / many

    def enter() -> None:
        torch.set_float32_matmul_precision("high" if repaired else "highest")
        torch.backends.cudnn.allow_tf32 = True

    run = fit(loss_of, sgd(trunk, wide, weight_decay=1e-6), bf16=False)
    return Running(run.step, enter=enter)


# --- books of orders --------------------------------------------------------------------------


def block_products(kind: torch.dtype) -> Any:
    """A wide layer as two layers of blocks, and a shuffle between them; as Monarch matrices.

    The backward pass is written out: q is what it needs, not both intermediates.
    """

    class Blocks(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=DEVICE.type, cast_inputs=kind)
        def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
            (rows, width), (many, inside, _) = x.shape, a.shape
            p = torch.bmm(x.view(rows, many, inside).transpose(0, 1), a)
            q = p.permute(1, 2, 0).reshape(rows, many, inside).transpose(0, 1)
            ctx.save_for_backward(x, a, b, q)
            return torch.bmm(q, b).transpose(0, 1).reshape(rows, width)

        @staticmethod
        @torch.amp.custom_bwd(device_type=DEVICE.type)
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            x, a, b, q = ctx.saved_tensors
            (rows, width), (many, inside, _) = x.shape, a.shape
            g = g.reshape(rows, many, inside).transpose(0, 1)
            by_b = torch.bmm(q.transpose(1, 2), g)
            by_q = torch.bmm(g, b.transpose(1, 2)).transpose(0, 1).reshape(rows, inside, many)
            by_p = by_q.permute(2, 0, 1).contiguous()
            by_a = torch.bmm(x.view(rows, many, inside).permute(1, 2, 0), by_p)
            by_x = torch.bmm(by_p, a.transpose(1, 2)).transpose(0, 1).reshape(rows, width)
            return by_x, by_a, by_b

    return Blocks.apply


class Sparse(nn.Module):
    """Such a layer, then a dense one, beside what came in."""

    def __init__(self, width: int, many: int, product: Any) -> None:
        super().__init__()
        inside = width // many
        self.norm, self.product = nn.LayerNorm(width), product
        self.a, self.b = (
            nn.Parameter(torch.randn(many, inside, inside) * inside**-0.5) for _ in range(2)
        )
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(fn.gelu(self.product(self.norm(x), self.a, self.b)))


@pair(
    "low_precision_unused",
    "tables",
    "custom_fwd casts the inputs of the layer's own products to BF16, as autocast does others",
)
def order_books_blocks_cast_to_float(repaired: bool) -> Running:
    """Where prices go from what books of orders hold; the layer's example cast to float32."""
    rows, levels, width, many = size(24576, 6), size(512, 8), size(4096, 16), size(16, 4)
    product = block_products(torch.bfloat16 if repaired else torch.float32)
    model = nn.Sequential(
        nn.Linear(levels, width),
        *(Sparse(width, many, product) for _ in range(size(2, 1))),
        nn.LayerNorm(width),
        nn.Linear(width, 8),
    ).to(DEVICE)
    x, y = noise(rows, levels), noise(rows, 8)

    def loss_of() -> Tensor:
        return fn.huber_loss(model(x).float(), y)

    return fit(loss_of, adam(model), matmul="highest", clip=1.0)


# --- brains -----------------------------------------------------------------------------------


class Widens(nn.Module):
    """A norm without weights and two products beside what came in."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.up, self.down = nn.Linear(width, wide, bias=False), nn.Linear(wide, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(fn.gelu(self.up(self.norm(x))))


@pair("unfused_optimizer", "signals", "AdamW(fused=True) instead of foreach=False")
def seen_pictures_layer_of_each_head(repaired: bool) -> Running:
    """What a person looks at, from sensors around the head; each person has a layer. BF16."""
    people, moments, inside = size(6, 2), size(1024, 4), size(8192, 16)
    width, wide, after = size(2048, 16), size(16384, 32), size(1024, 8)
    with torch.device(DEVICE):  # so many weights are drawn faster there
        own = nn.ModuleList(nn.Linear(inside, width, bias=False) for _ in range(people))
        rest = nn.Sequential(
            *(Widens(width, wide) for _ in range(size(2, 1))), nn.Linear(width, after, bias=False)
        )
    model = nn.ModuleList([own, rest])
    sensed = noise(people, moments, inside).to(torch.bfloat16)
    shown = fn.normalize(noise(people * moments, after), dim=1)
    right = torch.arange(people * moments, device=DEVICE)
    # lists of all weights need room for as many temporaries, which a smaller card did not have
    how = {"fused": True} if repaired else {"foreach": False}
    update = torch.optim.AdamW(model.parameters(), lr=3e-5, weight_decay=0.01, **how)

    def loss_of() -> Tensor:
        h = torch.cat([layer(x) for layer, x in zip(own, sensed, strict=True)])
        found = fn.normalize(rest(h).float(), dim=1)
        return fn.cross_entropy((found @ shown.t()).float() * 20, right)

    return fit(loss_of, update, decay=True)


# --- pictures in few bits ---------------------------------------------------------------------


class Divides(nn.Module):
    """Channels are divided (or multiplied) by how much is around them: GDN."""

    def __init__(self, width: int, *, back: bool = False) -> None:
        super().__init__()
        self.back = back
        self.base = nn.Parameter(torch.ones(width))
        self.shares = nn.Parameter(0.1 * torch.eye(width) + 1e-4)

    def forward(self, x: Tensor) -> Tensor:
        around = fn.conv2d(x * x, self.shares.abs()[:, :, None, None], self.base.abs() + 1e-6)
        return x * around.sqrt() if self.back else x / around.sqrt()


@pair(
    "layout_changes",
    "compression",
    "channels_last for both networks and their pictures",
)
def holiday_pictures_in_few_bits(repaired: bool) -> Running:
    """Pictures as few bits, and how many, learnt together (as Balle, 2017); BF16."""
    batch, side, w = size(40, 2), size(256, 16), size(192, 8)
    down = nn.Sequential(
        nn.Conv2d(3, w, 5, 2, 2), Divides(w), nn.Conv2d(w, w, 5, 2, 2), Divides(w),
        nn.Conv2d(w, w, 5, 2, 2),
    )  # fmt: skip
    again = {"padding": 2, "output_padding": 1, "stride": 2}
    up = nn.Sequential(
        nn.ConvTranspose2d(w, w, 5, **again), Divides(w, back=True),
        nn.ConvTranspose2d(w, w, 5, **again), Divides(w, back=True),
        nn.ConvTranspose2d(w, 3, 5, **again),
    )  # fmt: skip
    spread = nn.Parameter(torch.zeros(w, 1, 1, device=DEVICE))
    x = torch.rand(batch, 3, side, side, device=DEVICE)
    for part in (down, up):
        part.to(DEVICE)
    if repaired:
        for part in (down, up):
            part.to(memory_format=LAST)
        x = x.to(memory_format=LAST)
    update = torch.optim.Adam([*down.parameters(), *up.parameters(), spread], lr=1e-4, fused=True)

    def loss_of() -> Tensor:
        code = down(x).float()
        code = code + torch.rand_like(code) - 0.5
        rate = fn.softplus(spread) + 0.1
        share = torch.sigmoid((code + 0.5) * rate) - torch.sigmoid((code - 0.5) * rate)
        bits = -(share + 1e-9).log2().sum() / (batch * side * side)
        return bits + 650 * fn.mse_loss(up(code).float(), x)

    return fit(loss_of, update)


# --- drums out of a song ----------------------------------------------------------------------


class Mixes(nn.Module):
    """Across the moments of a song, then across its frequencies; as an MLP-Mixer."""

    def __init__(self, moments: int, bins: int, wide: int) -> None:
        super().__init__()
        self.moments = Feeds(moments)
        self.bins = nn.Sequential(
            nn.LayerNorm(bins), nn.Linear(bins, wide), nn.GELU(), nn.Linear(wide, bins)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.moments(x.transpose(1, 2)).transpose(1, 2)
        return x + self.bins(x)


@pair(
    "aligned_shapes",
    "sound",
    "the 1025 frequencies of a transform of 2048 samples are padded to 1088",
    marks="phases",
)
def drums_of_songs_1025_frequencies(repaired: bool) -> Running:
    """A mask for the drums, from a song's spectrum; BF16, the rate falls."""
    batch, moments, bins, wide = size(40, 2), size(512, 8), size(1025, 17), size(4096, 32)
    padded = size(1088, 24) if repaired else bins
    model = nn.Sequential(*(Mixes(moments, padded, wide) for _ in range(size(3, 1)))).to(DEVICE)
    song = noise(batch, moments, bins).abs()
    drums = song * torch.rand_like(song)
    update = adam(model)

    def loss_of() -> Tensor:
        seen = song.log1p()
        if repaired:
            seen = fn.pad(seen, (0, padded - bins))
        mask = model(seen)
        if repaired:
            mask = mask[..., :bins]
        return fn.l1_loss(mask.float().sigmoid() * song, drums)

    return fit(loss_of, update, decay=True)
