"""Programs of the tenth set: science, tables, graphs, points, volumes; few and wide kernels a step.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, Attends, Feeds, precision, size
from program import Program, Running, phase
from single_programs import entered
from tenth_pictures_programs import scaled
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 179 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- molecules as dense graphs ----------------------------------------------------------------


class Bonded(nn.Module):
    """Each atom looks at all others, less at those that are many bonds away; as in Graphormer."""

    def __init__(self, width: int, heads: int, *, shows: bool) -> None:
        super().__init__()
        self.heads, self.shows, self.norm = heads, shows, nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out, self.feeds = nn.Linear(width, width, bias=False), Feeds(width)

    def forward(self, x: Tensor, far: Tensor) -> tuple[Tensor, Tensor | None]:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        looks = None
        if self.shows:
            scores = q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5 + far
            looks = scores.softmax(-1)
            y = looks @ v
        else:
            y = fn.scaled_dot_product_attention(q, k, v, attn_mask=far)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return self.feeds(x), looks


@pair(
    "unfused_attention",
    "graph",
    "scaled_dot_product_attention with the distances as its mask; weights are not returned",
)
def molecules_weights_for_a_figure(repaired: bool) -> Running:
    """Layers return what was looked at, for a figure of the paper; the training drops it."""
    batch, atoms, kinds = size(16, 2), size(768, 16), size(100, 5)
    width, heads = size(1280, 16), size(16, 2)
    embed, degree = nn.Embedding(kinds, width), nn.Embedding(16, width)
    layers = nn.ModuleList(Bonded(width, heads, shows=not repaired) for _ in range(size(3, 1)))
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 8))
    model = nn.ModuleList([embed, degree, layers, last]).to(DEVICE)
    kind, bonds, y = labels(kinds, batch, atoms), labels(16, batch, atoms), noise(batch, 8)
    hops = torch.randint(0, 12, (batch, 1, atoms, atoms), device=DEVICE, dtype=torch.uint8)
    slopes = torch.linspace(0.02, 1.0, heads, device=DEVICE)[:, None, None].to(torch.bfloat16)

    def loss_of() -> Tensor:
        far = hops.to(torch.bfloat16) * -slopes
        h = embed(kind) + degree(bonds)
        for layer in layers:
            h, _ = layer(h, far)
        return fn.l1_loss(last(h).float().mean(1), y)

    return fit(loss_of, adam(model), clip=5.0)


# --- an operator between functions ------------------------------------------------------------


class Operator(nn.Module):
    """What a field gives at any point: a network of the field times one of the point (DeepONet)."""

    def __init__(self, channels: int, width: int, terms: int, waves: int) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(1, channels, 3, 2, 1)]
        before = channels
        for after in (channels, channels, 2 * channels, 2 * channels):
            parts += [
                nn.Conv2d(before, after, 3, 2 if after > before else 1, 1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(True),
            ]
            before = after
        parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, terms)]
        self.branch = nn.Sequential(*parts).to(memory_format=torch.channels_last)
        self.register_buffer("waves", torch.randn(2, waves) * 3)
        rows: list[nn.Module] = [nn.Linear(2 * waves, width), nn.GELU()]
        for _ in range(3):
            rows += [nn.Linear(width, width), nn.GELU()]
        self.trunk = nn.Sequential(*rows, nn.Linear(width, terms))

    def forward(self, field: Tensor, points: Tensor) -> Tensor:
        weights = self.branch(field)
        # places are not rounded to 16 bits: neighbours would become the same
        with torch.autocast(DEVICE.type, enabled=False):
            angles = points @ self.waves
            basis = self.trunk(torch.cat([angles.sin(), angles.cos()], -1))
            return (basis @ weights.float()[:, :, None])[..., 0]


@pair("low_precision_unused", "science", "torch.set_float32_matmul_precision('high')")
def field_operator_trunk_by_default(repaired: bool) -> Running:
    """Pressure in rock of given permeability, at points that differ from rock to rock."""
    batch, side, many = size(64, 2), size(128, 16), size(2048, 16)
    model = Operator(size(128, 8), size(512, 16), size(256, 8), size(64, 4)).to(DEVICE)
    fields = noise(batch, 1, side, side).to(memory_format=torch.channels_last)
    points, y = torch.rand(batch, many, 2, device=DEVICE), noise(batch, many)

    def loss_of() -> Tensor:
        off = (model(fields, points) - y).square().sum(1)
        return (off / y.square().sum(1)).sqrt().mean()

    return fit(loss_of, adam(model), decay=True, matmul="high" if repaired else "highest")


# --- weather ----------------------------------------------------------------------------------


class Corrected(nn.Module):
    """What a forecast is wrong by, patch by patch, all of which look at each other."""

    def __init__(
        self, fields: int, patch: int, width: int, layers: int, heads: int, places: int
    ) -> None:
        super().__init__()
        self.into = nn.Conv2d(fields, width, patch, patch)
        self.place = nn.Parameter(torch.randn(places, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.Sequential(Attends(width, heads), Feeds(width)) for _ in range(layers)
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, fields * patch**2)
        self.patch = patch

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        high, wide = h.shape[-2:]
        h = h.flatten(2).transpose(1, 2) + self.place
        for layer in self.layers:
            h = layer(h)
        h = self.out(self.norm(h)).transpose(1, 2).unflatten(2, (high, wide))
        return x + fn.pixel_shuffle(h, self.patch)


@pair(
    "blocking_copy",
    "science",
    "both archives are pinned when they are opened, and copied with non_blocking=True",
    marks="phases",
)
def forecasts_corrected_from_archive(repaired: bool) -> Running:
    """Forecasts and what came, hour by hour, lie in the host's memory."""
    batch, fields, high, wide = size(8, 2), size(40, 3), size(128, 8), size(256, 16)
    hours, patch = 4 * batch, 4
    rng = np.random.default_rng(1)
    forecast, came = (
        torch.from_numpy(rng.standard_normal((hours, fields, high, wide), dtype=np.float32))
        for _ in range(2)
    )
    if repaired and CUDA:
        forecast, came = forecast.pin_memory(), came.pin_memory()
    places = high // patch * (wide // patch)
    model = Corrected(
        fields, patch, size(1280, 16), size(4, 1), size(16, 2), places
    ).to(DEVICE)  # fmt: skip
    area = torch.linspace(-1.5, 1.5, high, device=DEVICE).cos()[:, None]
    update = adam(model, weight_decay=0.05)
    made = 0

    def step() -> None:
        nonlocal made
        with phase("get_batch"):
            at = made % (hours // batch) * batch
            x = forecast[at : at + batch].to(DEVICE, non_blocking=repaired)
            y = came[at : at + batch].to(DEVICE, non_blocking=repaired)
        with phase("forward"), torch.autocast(DEVICE.type, torch.bfloat16):
            loss = ((model(x).float() - y).square() * area).mean()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            update.step()
            update.zero_grad(set_to_none=True)
        made += 1

    return Running(step, enter=precision("high"))


# --- proteins ---------------------------------------------------------------------------------


class Edges(nn.Module):
    """Each pair of residues hears of the two other edges of all its triangles."""

    def __init__(self, width: int, *, leaving: bool) -> None:
        super().__init__()
        self.form = "bikc,bjkc->bijc" if leaving else "bkic,bkjc->bijc"
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.into, self.out = nn.Linear(width, 5 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        a, b, gate_a, gate_b, gate = self.into(self.norms[0](x)).chunk(5, -1)
        h = torch.einsum(self.form, a * gate_a.sigmoid(), b * gate_b.sigmoid())
        return x + gate.sigmoid() * self.out(self.norms[1](h))


BOUNDS = (0.5, 1.0, 2.0, 4.0)


def agreement(found: np.ndarray, true: np.ndarray) -> float:
    """Share of the distances below 15 that are right within 0.5, 1, 2 and 4 (lDDT)."""
    far = np.linalg.norm(true[:, :, None] - true[:, None], axis=-1)
    off = np.abs(far - np.linalg.norm(found[:, :, None] - found[:, None], axis=-1))
    near = (far < 15) & (far > 0)
    right = np.mean([off < bound for bound in BOUNDS], axis=0)
    return float((right * near).sum() / near.sum())


def agreement_there(found: Tensor, true: Tensor) -> Tensor:
    """The same, where the tensors are."""
    far = (true[:, :, None] - true[:, None]).norm(dim=-1)
    off = (far - (found[:, :, None] - found[:, None]).norm(dim=-1)).abs()
    near = (far < 15) & (far > 0)
    right = sum((off < bound).float() for bound in BOUNDS) / len(BOUNDS)
    return (right * near).sum() / near.sum()


@pair(
    "host_compute",
    "science",
    "lDDT is computed on the device and read every 100 steps, not by NumPy in each",
)
def residues_lddt_for_the_log(repaired: bool) -> Running:
    """Distances and places of residues from pairs; the first protein of a batch is watched."""
    batch, many, width, bins = size(3, 1), size(352, 12), size(128, 8), size(64, 4)
    pairs = nn.Sequential(
        nn.Linear(64, width), Edges(width, leaving=True), Edges(width, leaving=False),
        Feeds(width, 2),
    )  # fmt: skip
    spread = nn.Linear(width, bins)
    places = nn.Sequential(nn.Linear(width, size(384, 8)), Feeds(size(384, 8)))
    places.append(nn.Linear(size(384, 8), 3))
    model = nn.ModuleList([pairs, spread, places]).to(DEVICE)
    known, true = noise(batch, many, many, 64), noise(batch, many, 3) * 8
    kept = true[:1].cpu().numpy()
    far = (true[:, :, None] - true[:, None]).norm(dim=-1)
    which = (far * (bins / 40)).long().clamp_max(bins - 1)
    update, log = adam(model), {"lddt": 0.0}
    total, made = torch.zeros((), device=DEVICE), 0

    def step() -> None:
        nonlocal made
        with torch.autocast(DEVICE.type, torch.bfloat16):
            h = pairs(known)
            scores = spread(h + h.transpose(1, 2)).float()
            found = places(h.mean(2)).float()
        loss = fn.cross_entropy(scores.flatten(0, 2), which.flatten())
        loss = loss + 0.01 * fn.smooth_l1_loss(found, true)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        update.step()
        update.zero_grad(set_to_none=True)
        if repaired:
            total.add_(agreement_there(found.detach()[:1], true[:1]))
            if made % 100 == 99:
                log["lddt"] = total.item() / 100
                total.zero_()
        else:
            log["lddt"] = agreement(found.detach()[:1].cpu().numpy(), kept)
        made += 1

    return Running(step, enter=precision("high"))


# --- a mixture of experts ---------------------------------------------------------------------


class Shares(nn.Module):
    """Tokens in the order of their favourite experts, each of which gets as many of them."""

    def __init__(self, width: int, experts: int, wide: int) -> None:
        super().__init__()
        self.experts, self.norm = experts, nn.LayerNorm(width)
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, wide) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, wide, width) * wide**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x).flatten(0, 1)
        weight, chosen = self.router(h).float().softmax(-1).max(-1)
        order = chosen.argsort()
        rows = h.index_select(0, order).view(self.experts, -1, h.shape[1])
        rows = torch.bmm(fn.gelu(torch.bmm(rows, self.up)), self.down).flatten(0, 1)
        y = rows.index_select(0, order.argsort()) * weight[:, None]
        return x + y.view(x.shape)


@pair(
    "lower_precision",
    "moe",
    "autocast to BF16 is on; it was bound to the scaler's flag, which BF16 does not need",
)
def shared_out_tokens_scaler_flag(repaired: bool) -> Running:
    """The script trained in FP16 once; for BF16 the scaler was turned off."""
    batch, length, vocab = size(48, 2), size(512, 8), size(4096, 32)
    width, experts = size(1024, 16), size(6, 2)
    embed, last = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
    layers: list[nn.Module] = []
    for _ in range(size(2, 1)):
        layers.append(Attends(width, size(16, 2), causal=True))
        layers.append(Shares(width, experts, size(3072, 32)))
    model = nn.ModuleList([embed, nn.Sequential(*layers, nn.LayerNorm(width)), last]).to(DEVICE)
    ids, update = labels(vocab, batch, length + 1), adam(model, weight_decay=0.1)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=False)
    mixed = True if repaired else scaler.is_enabled()

    def step() -> None:
        update.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=mixed):
            scores = last(model[1](embed(ids[:, :-1])))
            loss = fn.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(update)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(update)
        scaler.update()

    return Running(step, enter=precision("high"))


# --- towers over large tables -----------------------------------------------------------------


def tower(before: int, width: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(before, width, bias=False), nn.ReLU(True),
        nn.Linear(width, width, bias=False), nn.ReLU(True),
        nn.Linear(width, after, bias=False),
    )  # fmt: skip


@pair("unfused_optimizer", "recommender", "AdamW(fused=True) for both groups", marks="steps")
def listeners_tables_adam_of_config(repaired: bool) -> Running:
    """Listeners and songs; the settings of the optimizer come from an old configuration."""
    users, songs, wide, batch = size(600_000, 50), size(800_000, 60), size(128, 8), size(8192, 8)
    heard = size(30, 3)
    who, what = (nn.Embedding(rows, wide, device=DEVICE) for rows in (users, songs))
    for table in (who, what):
        nn.init.normal_(table.weight, std=0.02)
    left = tower(2 * wide, size(4096, 16), size(256, 8))
    right = tower(wide, size(4096, 16), size(256, 8))
    nn.ModuleList([who, what, left, right]).to(DEVICE)
    user, song = labels(users, batch), labels(songs, batch)
    before, right_one = labels(songs, batch, heard), torch.arange(batch, device=DEVICE)
    common = torch.rand(batch, device=DEVICE).log()
    config = {"lr": 1e-4, "betas": (0.9, 0.98), "foreach": False}
    if repaired:
        config = {"lr": 1e-4, "betas": (0.9, 0.98), "fused": True}
    update = torch.optim.AdamW(
        [
            {"params": [who.weight, what.weight], "weight_decay": 0.0},
            {"params": [*left.parameters(), *right.parameters()], "weight_decay": 0.01},
        ],
        **config,
    )  # type: ignore[arg-type]

    def loss_of() -> Tensor:
        seen = fn.embedding_bag(before, what.weight, mode="mean")
        a = fn.normalize(left(torch.cat([who(user), seen], 1)).float(), dim=1)
        b = fn.normalize(right(what(song)).float(), dim=1)
        scores = (a @ b.t()).float() * 20 - common  # songs that are heard often are drawn often
        return fn.cross_entropy(scores, right_one)

    return fit(loss_of, update, decay=True)


# --- clouds of points -------------------------------------------------------------------------


class Placed(nn.Module):
    """A layer that is told again where each point lies."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(before, after, bias=False), nn.BatchNorm1d(after)

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        return fn.relu(self.norm(self.layer(torch.cat([x, place], 1))))


@pair(
    "aligned_shapes",
    "points",
    "the three coordinates are filled up with zeros to eight columns",
)
def scanned_rooms_three_more_columns(repaired: bool) -> Running:
    """A class for each point of a scanned room."""
    batch, many, classes = size(32, 2), size(4096, 16), size(16, 4)
    width, columns = size(1024, 16), 8 if repaired else 3
    first = nn.Linear(columns, width)
    layers = nn.ModuleList(Placed(width + columns, width) for _ in range(size(4, 2)))
    whole, last = nn.Linear(width, width), nn.Linear(width, classes)
    model = nn.ModuleList([first, layers, whole, last]).to(DEVICE)
    place, y = noise(batch * many, 3), labels(classes, batch * many)

    def loss_of() -> Tensor:
        where = place.to(torch.bfloat16)
        if repaired:
            where = fn.pad(where, (0, 5))
        h = fn.relu(first(where))
        for layer in layers:
            h = layer(h, where)
        room = whole(h.view(batch, many, -1).amax(1))
        h = fn.relu(h.view(batch, many, -1) + room[:, None]).flatten(0, 1)
        return fn.cross_entropy(last(h).float(), y, label_smoothing=0.2)

    return fit(loss_of, sgd(model), decay=True)


# --- volumes ----------------------------------------------------------------------------------


class Voxels(nn.Module):
    """Two convolutions beside what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv3d(width, width, 3, 1, 1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm3d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = fn.leaky_relu(self.norms[0](self.convs[0](x)), 0.1)
        return fn.leaky_relu(x + self.norms[1](self.convs[1](h)), 0.1)


class Vessels(nn.Module):
    """Vessels in a volume; what the deepest level keeps may wait in the host's memory."""

    def __init__(self, width: int, deep: int, *, parks: bool) -> None:
        super().__init__()
        self.parks, self.first = parks, nn.Conv3d(1, width, 3, 1, 1)
        self.downs = nn.ModuleList(Voxels(width * n) for n in (1, 2))
        self.smaller = nn.ModuleList(nn.Conv3d(width * n, 2 * width * n, 2, 2) for n in (1, 2))
        self.deep = nn.Sequential(*(Voxels(4 * width) for _ in range(deep)))
        self.larger = nn.ModuleList(
            nn.ConvTranspose3d(2 * width * n, width * n, 2, 2) for n in (2, 1)
        )
        self.ups = nn.ModuleList(Voxels(width * n) for n in (2, 1))
        self.last = nn.Conv3d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept, h = [], self.first(x)
        for down, smaller in zip(self.downs, self.smaller, strict=True):
            h = down(h)
            kept.append(h)
            h = smaller(h)
        waits: Any = nullcontext()
        if self.parks:
            waits = torch.autograd.graph.save_on_cpu(pin_memory=CUDA)
        with waits:
            h = self.deep(h)
        for larger, up in zip(self.larger, self.ups, strict=True):
            h = up(larger(h) + kept.pop())
        return self.last(h)


@pair(
    "cpu_offload",
    "volumes",
    "the deepest level keeps its activations on the GPU, where they fit: no save_on_cpu",
)
def vessels_deepest_level_parked(repaired: bool) -> Running:
    """Written for a smaller card; FP16 with a scaler, cross entropy and overlap."""
    batch, side = size(2, 1), size(96, 8)
    model = Vessels(size(32, 4), size(4, 1), parks=not repaired).to(DEVICE)
    x, y = noise(batch, 1, side, side, side), labels(2, batch, side, side, side)

    def loss_of() -> Tensor:
        scores = model(x).float()
        share, true = scores.softmax(1)[:, 1], (y == 1).float()
        both = 2 * (share * true).sum() / (share.sum() + true.sum() + 1.0)
        return fn.cross_entropy(scores, y) + 1 - both

    return scaled(loss_of, sgd(model), clip=10.0)


# --- pictures and codes -----------------------------------------------------------------------


class Grouped(nn.Module):
    """A norm over groups of channels for any number of dimensions, then a swish; or fn's."""

    def __init__(self, width: int, groups: int, *, spelled: bool) -> None:
        super().__init__()
        self.groups, self.spelled = groups, spelled
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        if not self.spelled:
            return fn.silu(fn.group_norm(x, self.groups, self.weight, self.bias, 1e-6))
        h = x.float().reshape(len(x), self.groups, -1)
        h = h - h.mean(-1, keepdim=True)
        h = h / torch.sqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        every = (1, -1) + (1,) * (x.dim() - 2)
        h = h.view(x.shape) * self.weight.view(every) + self.bias.view(every)
        return h * torch.sigmoid(h)


class Coded(nn.Module):
    """Two normed convolutions beside what came in."""

    def __init__(self, width: int, *, spelled: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            Grouped(width, width // 4, spelled=spelled),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            Grouped(width, width // 4, spelled=spelled),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


@pair(
    "fusion_opportunity",
    "vision",
    "the library's group_norm and silu instead of those written out",
)
def face_codes_norm_for_any_rank(repaired: bool) -> Running:
    """Faces of 256 pixels become a distribution of codes, and faces again."""
    batch, side, width = size(12, 2), size(256, 16), size(64, 8)
    how, codes = {"spelled": not repaired}, size(8, 2)
    coder = nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1), Coded(width, **how), nn.Conv2d(width, 2 * width, 3, 2, 1),
        Coded(2 * width, **how), nn.Conv2d(2 * width, 4 * width, 3, 2, 1), nn.SiLU(),
        nn.Conv2d(4 * width, 2 * codes, 3, 1, 1),
    )  # fmt: skip
    painter = nn.Sequential(
        nn.Conv2d(codes, 4 * width, 3, 1, 1), nn.SiLU(), nn.Upsample(scale_factor=2),
        nn.Conv2d(4 * width, 2 * width, 3, 1, 1), Coded(2 * width, **how),
        nn.Upsample(scale_factor=2), nn.Conv2d(2 * width, width, 3, 1, 1), Coded(width, **how),
        nn.Conv2d(width, 3, 3, 1, 1),
    )  # fmt: skip
    model = nn.ModuleList([coder, painter]).to(DEVICE)
    x = noise(batch, 3, side, side)

    def loss_of() -> Tensor:
        middle, log = coder(x).float().chunk(2, 1)
        log = log.clamp(-30, 20)
        found = painter(middle + torch.randn_like(middle) * (0.5 * log).exp())
        apart = (middle.square() + log.exp() - 1 - log).mean()
        return fn.l1_loss(found.float(), x) + 1e-6 * apart

    return fit(loss_of, adam(model, betas=(0.5, 0.9)))


# --- pictures and texts -----------------------------------------------------------------------


class Looked(nn.Module):
    """A transformer, the layers of which may be computed twice; a vector for each of its rows."""

    def __init__(
        self, into: nn.Module, places: int, width: int, layers: int, after: int, *, spares: bool
    ) -> None:
        super().__init__()
        self.into, self.spares = into, spares
        self.place = nn.Parameter(torch.randn(places, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.Sequential(Attends(width, max(width // 64, 1)), Feeds(width)) for _ in range(layers)
        )
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, after, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x) + self.place
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=False) if self.spares else layer(h)
        return self.out(h.mean(1))


@pair(
    "recomputation",
    "contrastive",
    "layers of both towers keep their activations: no checkpoint",
    marks="profiler",
)
def dishes_and_recipes_checkpointed(repaired: bool) -> Running:
    """Pictures of dishes find their recipes; all others of the batch are wrong ones."""
    batch, places, inside = size(352, 4), size(64, 4), size(1536, 12)
    words, vocab, width, after = size(64, 6), size(8192, 32), size(1024, 16), size(512, 8)
    more = {"spares": not repaired}
    sees = Looked(nn.Linear(inside, width), places, width, size(3, 1), after, **more).to(DEVICE)
    reads = Looked(nn.Embedding(vocab, width), words, width, size(2, 1), after, **more).to(DEVICE)
    scale = nn.Parameter(torch.full((), 2.6, device=DEVICE))
    patches, ids = noise(batch, places, inside), labels(vocab, batch, words)
    right = torch.arange(batch, device=DEVICE)
    weights = [*sees.parameters(), *reads.parameters(), scale]
    update = torch.optim.AdamW(weights, lr=1e-4, betas=(0.9, 0.98), weight_decay=0.2, fused=True)

    def loss_of() -> Tensor:
        a = fn.normalize(sees(patches).float(), dim=1)
        b = fn.normalize(reads(ids).float(), dim=1)
        scores = (a @ b.t()).float() * scale.exp()
        return 0.5 * (fn.cross_entropy(scores, right) + fn.cross_entropy(scores.t(), right))

    return scaled(loss_of, update)
