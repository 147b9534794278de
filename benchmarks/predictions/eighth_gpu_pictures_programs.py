"""Programs of the eighth set that the GPU bounds: models of pictures and volumes.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, endless, precision, size
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 159 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


def sines(t: Tensor) -> Tensor:
    """64 numbers that say how late it is."""
    angles = t[:, None] * torch.exp(torch.arange(32, device=t.device) * -0.28)
    return torch.cat([angles.sin(), angles.cos()], 1)


# --- a detector by queries ----------------------------------------------------------------------


class Noticed(nn.Module):
    """nn.MultiheadAttention and a feed-forward layer; what is looked at may be another input."""

    def __init__(self, width: int, heads: int, *, weights: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.look = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.feed = nn.Sequential(
            nn.Linear(width, 8 * width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8 * width, width)
        )
        self.weights = weights

    def forward(self, x: Tensor, place: Tensor, other: Tensor | None = None) -> Tensor:
        y = self.norm1(x)
        if other is None:
            both = y + place
            x = x + self.look(both, both, y, need_weights=self.weights)[0]
        else:
            x = x + self.look(y, other + place, other, need_weights=self.weights)[0]
        return x + self.feed(self.norm2(x))


class Queries(nn.Module):
    """Convolutions, layers that look all over the picture, and queries; as in DETR."""

    def __init__(self, width: int, heads: int, places: int, kinds: int, *, weights: bool) -> None:
        super().__init__()
        sizes = [3, width // 4, width // 2, width // 2, width]
        parts: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            parts += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after)]
            parts += [nn.ReLU(), nn.Conv2d(after, after, 3, 1, 1, bias=False)]
            parts += [nn.BatchNorm2d(after), nn.ReLU()]
        self.convs = nn.Sequential(*parts)
        self.place = nn.Parameter(torch.randn(places, width) * 0.02)
        self.coder = nn.ModuleList(Noticed(width, heads, weights=weights) for _ in range(4))
        self.decoder = nn.ModuleList(Noticed(width, heads, weights=weights) for _ in range(6))
        self.asks = nn.Linear(4, width)
        self.kinds, self.boxes = nn.Linear(width, kinds), nn.Linear(width, 4)

    def forward(self, x: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        h = self.convs(x).flatten(2).transpose(1, 2)
        for layer in self.coder:
            h = layer(h, self.place)
        q = self.asks(asked)
        given = q
        for own, cross in zip(self.decoder[::2], self.decoder[1::2], strict=True):
            q = cross(own(q, given), self.place, h)
        return self.kinds(q), self.boxes(q).sigmoid()


class Scenes(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Pictures of 8 bit in memory, with boxes and what is in them."""

    def __init__(self, side: int, boxes: int, kinds: int) -> None:
        rng = np.random.default_rng(0)
        self.pictures = rng.integers(0, 256, (32, 3, side, side), dtype=np.uint8)
        self.boxes = rng.random((32, boxes, 4), dtype=np.float32)
        self.kinds = rng.integers(0, kinds, (32, boxes))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        found = (part[index % 32] for part in (self.pictures, self.boxes, self.kinds))
        picture, boxes, kinds = (torch.from_numpy(part) for part in found)
        return picture, boxes, kinds


@pair(
    "unfused_attention",
    "vision",
    "need_weights=False: nobody reads the weights that nn.MultiheadAttention returns by default",
)
def queries_unread_weights(repaired: bool) -> Running:
    """Noisy boxes are the queries, and each is to find its own; as in DN-DETR."""
    batch, side, boxes, kinds = size(12, 2), size(512, 32), size(100, 4), size(80, 5)
    model = Queries(size(256, 16), size(8, 2), (side // 16) ** 2, kinds, weights=not repaired)
    model.to(DEVICE)
    workers = size(4, 1)
    loader = DataLoader(
        Scenes(side, boxes, kinds), batch, num_workers=workers, pin_memory=CUDA,
        persistent_workers=True,
    )  # fmt: skip
    kept = [endless(loader)]
    del loader  # the list has the only one, so that its workers end with it

    def loss_of() -> Tensor:
        with phase("get_batch"):
            given = (part.to(DEVICE, non_blocking=True) for part in next(kept[0]))
        x, true, kind = given
        scores, found = model(x.float() / 127.5 - 1, true + 0.05 * torch.randn_like(true))
        told = fn.cross_entropy(scores.flatten(0, 1).float(), kind.flatten())
        return told + 5 * fn.l1_loss(found.float(), true)

    run = fit(loss_of, adam(model, weight_decay=1e-4), clip=0.1, settle=2 + 2 * workers)
    run.close = kept.clear
    return run


# --- codes of pictures --------------------------------------------------------------------------


class Swished(nn.Module):
    """Two convolutions behind norms; as in the first stage of latent diffusion."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, before), nn.GroupNorm(8, after)
        self.conv1 = nn.Conv2d(before, after, 3, 1, 1)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1)
        self.short = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(fn.silu(self.norm1(x)))
        return self.short(x) + self.conv2(fn.silu(self.norm2(h)))


class LooksAround(nn.Module):
    """One head over all places of a picture."""

    def __init__(self, width: int, *, written: bool) -> None:
        super().__init__()
        self.norm, self.written = nn.GroupNorm(8, width), written
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).flatten(2).chunk(3, 1)
        if self.written:
            scores = torch.bmm(q.transpose(1, 2), k) * c**-0.5
            y = torch.bmm(v, scores.softmax(2).transpose(1, 2))
        else:
            # fused kernels want the channels of a place side by side
            q, k, v = (part.transpose(1, 2)[:, None].contiguous() for part in (q, k, v))
            y = fn.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2)
        return x + self.out(y.reshape(b, c, h, w))


def coder(width: int, *, written: bool) -> nn.Module:
    """To a sixteenth of the places and back."""
    wide = 2 * width
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1), Swished(width, width), nn.Conv2d(width, width, 3, 2, 1),
        Swished(width, wide), nn.Conv2d(wide, wide, 3, 2, 1),
        Swished(wide, wide), LooksAround(wide, written=written),
        nn.Conv2d(wide, 8, 1), nn.Conv2d(8, wide, 3, 1, 1),
        Swished(wide, wide), LooksAround(wide, written=written),
        Swished(wide, wide), LooksAround(wide, written=written),
        nn.Upsample(scale_factor=2.0), nn.Conv2d(wide, wide, 3, 1, 1), Swished(wide, width),
        nn.Upsample(scale_factor=2.0), nn.Conv2d(width, width, 3, 1, 1), Swished(width, width),
        nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 3, 3, 1, 1),
    )  # fmt: skip


@pair(
    "unfused_attention",
    "diffusion",
    "scaled_dot_product_attention of one head instead of bmm, softmax and bmm",
    marks="profiler",
)
def picture_codes_one_head(repaired: bool) -> Running:
    batch, side = size(16, 2), size(192, 16)
    model = coder(size(64, 8), written=not repaired).to(DEVICE)
    x = noise(batch, 3, side, side).tanh()
    update = adam(model, betas=(0.5, 0.9))
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0**12, enabled=CUDA)
    half = torch.float16 if CUDA else torch.bfloat16

    def step() -> None:
        update.zero_grad(set_to_none=True)
        with phase("forward"), torch.autocast(DEVICE.type, half):
            y = model(x).float()
            loss = (y - x).abs().mean() + 0.1 * (y - x).square().mean()
        with phase("backward"):
            scaler.scale(loss).backward()
        with phase("optimizer"):
            scaler.step(update)
            scaler.update()

    return Running(step, enter=precision("high"))


# --- a vision transformer -----------------------------------------------------------------------


class Centred(nn.Module):
    """A norm of the last dimension, spelled out as in the first BERT, or the library's."""

    def __init__(self, width: int, *, spelled: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.spelled = spelled

    def forward(self, x: Tensor) -> Tensor:
        if not self.spelled:
            return fn.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-12)
        mean = x.mean(-1, keepdim=True)
        var = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.weight * ((x - mean) / torch.sqrt(var + 1e-12)) + self.bias


class Views(nn.Module):
    """A layer of a vision transformer whose branches are scaled."""

    def __init__(self, width: int, heads: int, *, spelled: bool) -> None:
        super().__init__()
        self.heads, self.spelled = heads, spelled
        self.norm1, self.norm2 = (Centred(width, spelled=spelled) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale1, self.scale2 = (nn.Parameter(torch.full((width,), 0.1)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.scale1 * self.out(y)
        h = self.up(self.norm2(x))
        h = h * 0.5 * (1.0 + torch.erf(h / math.sqrt(2.0))) if self.spelled else fn.gelu(h)
        return x + self.scale2 * self.down(h)


class Seen(nn.Module):
    """Patches, tokens that hold what is common, layers, a class."""

    def __init__(
        self, width: int, layers: int, heads: int, side: int, kinds: int, *, spelled: bool
    ) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.common = nn.Parameter(torch.randn(4, width) * 0.02)
        self.place = nn.Parameter(torch.randn((side // 16) ** 2, width) * 0.02)
        self.layers = nn.Sequential(
            *(Views(width, heads, spelled=spelled) for _ in range(layers)),
            Centred(width, spelled=spelled),
        )
        self.head = nn.Linear(width, kinds)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2) + self.place
        h = torch.cat([self.common.expand(h.shape[0], -1, -1), h], 1)
        return self.head(self.layers(h)[:, :4].mean(1))


@pair(
    "fusion_opportunity",
    "vision",
    "layer_norm and gelu of torch.nn.functional instead of spelled out",
    marks="steps",
)
def spelled_norm_erf_accumulated(repaired: bool) -> Running:
    batch, side, kinds = size(48, 2), size(224, 32), size(1000, 5)
    model = Seen(size(512, 32), size(6, 2), size(8, 2), side, kinds, spelled=not repaired)
    model.to(DEVICE)
    parts = [(noise(batch, 3, side, side), labels(kinds, batch)) for _ in range(2)]
    turn = itertools.cycle(parts)
    weights = [p.detach() for p in model.parameters()]
    averages = [w.clone() for w in weights]

    def loss_of() -> Tensor:
        x, y = next(turn)
        return fn.cross_entropy(model(x).float(), y, label_smoothing=0.1)

    def average(_number: int, _loss: Tensor) -> None:
        torch._foreach_lerp_(averages, weights, 1e-4)

    return fit(loss_of, adam(model, weight_decay=0.3), micro=2, clip=1.0, after=average)


def captured(loss_of: Callable[[], Tensor], model: nn.Module, *, bf16: bool) -> Running:
    """Both passes are one CUDA graph; gradients are clipped and weights updated after it."""
    weights, update = list(model.parameters()), adam(model)
    enter = precision("high")
    enter()

    def passes() -> None:
        update.zero_grad(set_to_none=True)  # gradients lie where the graph puts them
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=bf16, cache_enabled=False):
            loss = loss_of()
        loss.backward()

    run: Callable[[], object] = passes
    if CUDA:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                passes()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            passes()
        run = graph.replay

    def step(_kept: Callable[[], None] = passes) -> None:  # the graph reads what this side holds
        run()
        nn.utils.clip_grad_norm_(weights, 1.0)
        update.step()

    return Running(step, enter=enter)


@pair(
    "larger_batch",
    "vision",
    "twice the batch (forward and backward pass are one CUDA graph on both sides)",
    samples=2.0,
    marks="steps",
)
def graphed_views_twice(repaired: bool) -> Running:
    batch, side, kinds = size(8, 2) * (2 if repaired else 1), size(256, 32), size(200, 5)
    model = Seen(size(384, 32), size(12, 2), size(6, 2), side, kinds, spelled=False).to(DEVICE)
    x, y = noise(batch, 3, side, side), labels(kinds, batch)
    return captured(lambda: fn.cross_entropy(model(x).float(), y), model, bf16=True)


# --- clips --------------------------------------------------------------------------------------


class Moves(nn.Module):
    """Patches look at those of their frame, then at themselves in all frames; as TimeSformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkvs = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def looked(self, number: int, x: Tensor) -> Tensor:
        """Along the last dimension but one."""
        qkv = self.qkvs[number](self.norms[number](x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.flatten(0, 1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return self.outs[number](y)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.looked(0, x)
        x = x + self.looked(1, x.transpose(1, 2)).transpose(1, 2)
        return x + self.down(fn.gelu(self.up(self.norms[2](x))))


@pair(
    "recomputation",
    "vision",
    "layers are not checkpointed: what they keep fits the device's memory many times",
)
def clips_checkpointed_by_habit(repaired: bool) -> Running:
    batch, frames, side, width = size(4, 2), size(8, 3), size(224, 32), size(768, 32)
    first = nn.Conv2d(3, width, 16, 16)
    layers = nn.ModuleList(Moves(width, size(12, 2)) for _ in range(size(8, 2)))
    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, size(400, 5)))
    model = nn.ModuleList([first, layers, head]).to(DEVICE)
    x, y = noise(batch * frames, 3, side, side), labels(size(400, 5), batch)

    def loss_of() -> Tensor:
        h = first(x).flatten(2).transpose(1, 2).unflatten(0, (batch, frames))
        for layer in layers:
            h = layer(h) if repaired else checkpoint(layer, h, use_reentrant=False)
        return fn.cross_entropy(head(h.mean((1, 2))).float(), y, label_smoothing=0.1)

    return fit(loss_of, adam(model, weight_decay=0.05), clip=1.0, decay=True)


# --- volumes and nested convolutions ------------------------------------------------------------


class Calm(nn.Module):
    """A norm of groups of channels and an activation, spelled out or the library's."""

    def __init__(self, width: int, *, spelled: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.spelled = spelled

    def forward(self, x: Tensor) -> Tensor:
        if not self.spelled:
            return fn.silu(fn.group_norm(x, 8, self.weight, self.bias, 1e-5))
        y = x.reshape(x.shape[0], 8, -1)
        mean = y.mean(-1, keepdim=True)
        var = ((y - mean) ** 2).mean(-1, keepdim=True)
        y = ((y - mean) / torch.sqrt(var + 1e-5)).view_as(x)
        y = y * self.weight.view(1, -1, 1, 1, 1) + self.bias.view(1, -1, 1, 1, 1)
        return y * torch.sigmoid(y)


class Solid(nn.Module):
    """Two convolutions of a volume; the time is added between them."""

    def __init__(self, before: int, after: int, *, spelled: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(before, after, 3, 1, 1)
        self.conv2 = nn.Conv3d(after, after, 3, 1, 1)
        self.calm1, self.calm2 = (Calm(after, spelled=spelled) for _ in range(2))
        self.time = nn.Linear(64, after)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.calm1(self.conv1(x)) + self.time(time)[:, :, None, None, None]
        return self.calm2(self.conv2(h))


class Denoised(nn.Module):
    """A U-Net of volumes."""

    def __init__(self, width: int, *, spelled: bool) -> None:
        super().__init__()
        a, b, c = width, 2 * width, 4 * width
        self.downs = nn.ModuleList(
            Solid(i, o, spelled=spelled) for i, o in ((1, a), (a, b), (b, c))
        )
        self.ups = nn.ModuleList(Solid(i, o, spelled=spelled) for i, o in ((c + b, b), (b + a, a)))
        self.out = nn.Conv3d(a, 1, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        time, kept = sines(t), []
        for number, down in enumerate(self.downs):
            x = down(fn.avg_pool3d(x, 2) if number else x, time)
            kept.append(x)
        kept.pop()
        for up in self.ups:
            x = up(torch.cat([fn.interpolate(x, scale_factor=2.0), kept.pop()], 1), time)
        return self.out(x)


@pair(
    "fusion_opportunity",
    "diffusion",
    "group_norm and silu of torch.nn.functional instead of spelled out",
)
def denoised_volumes_spelled(repaired: bool) -> Running:
    batch, side = size(4, 1), size(64, 8)
    model = Denoised(size(32, 8), spelled=not repaired).to(DEVICE)
    x = noise(batch, 1, side, side, side)

    def loss_of() -> Tensor:
        drawn, t = torch.randn_like(x), torch.rand(batch, device=DEVICE)
        share = t[:, None, None, None, None]
        noisy = (0.5 * math.pi * share).cos() * x + (0.5 * math.pi * share).sin() * drawn
        return fn.mse_loss(model(noisy, 1000 * t), drawn)

    return fit(loss_of, adam(model), bf16=False, decay=True)


class Nested(nn.Module):
    """Each size of a U-Net has ways across to all later nodes of it; as in UNet++."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        sizes, self.levels = [width * 2**i for i in range(levels)], levels
        self.nodes = nn.ModuleDict()
        for i, after in enumerate(sizes):
            self.nodes[f"{i}_0"] = self.twice(sizes[i - 1] if i else 3, after)
            for j in range(1, levels - i):
                self.nodes[f"{i}_{j}"] = self.twice(j * after + sizes[i + 1], after)
        self.heads = nn.ModuleList(nn.Conv2d(width, 1, 1) for _ in range(levels - 1))

    @staticmethod
    def twice(before: int, after: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x: Tensor) -> list[Tensor]:
        grid: list[list[Tensor]] = []
        for i in range(self.levels):
            x = self.nodes[f"{i}_0"](fn.max_pool2d(x, 2) if i else x)
            grid.append([x])
        for j in range(1, self.levels):
            for i in range(self.levels - j):
                up = fn.interpolate(grid[i + 1][j - 1], scale_factor=2.0)
                grid[i].append(self.nodes[f"{i}_{j}"](torch.cat([*grid[i], up], 1)))
        return [head(h) for head, h in zip(self.heads, grid[0][1:], strict=True)]


@pair("layout_changes", "vision", "channels_last for the model and its pictures")
def nested_unet_channels_last(repaired: bool) -> Running:
    batch, side = size(12, 2), size(256, 16)
    model = Nested(size(32, 4), size(4, 2)).to(DEVICE)
    x = noise(batch, 3, side, side)
    y = (noise(batch, 1, side, side) > 0.5).float()
    if repaired:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    update = torch.optim.RMSprop(model.parameters(), lr=1e-5, momentum=0.9, foreach=True)

    def loss_of() -> Tensor:
        losses = [fn.binary_cross_entropy_with_logits(h.float(), y) for h in model(x)]
        return torch.stack(losses).mean()

    return fit(loss_of, update, clip=1.0)


# --- pictures from text -------------------------------------------------------------------------


class Stream(nn.Module):
    """What one kind of token has for itself: norms set by the time, products, feed-forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.say = nn.Linear(width, 6 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    @staticmethod
    def normed(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return fn.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift

    def after(self, x: Tensor, y: Tensor, said: tuple[Tensor, ...]) -> Tensor:
        x = x + said[2] * self.out(y)
        h = self.up(self.normed(x, said[3], said[4]))
        return x + said[5] * self.down(fn.gelu(h, approximate="tanh"))


class Joined(nn.Module):
    """Tokens of a picture and of its text look at all of both; as in MMDiT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.streams = heads, nn.ModuleList(Stream(width) for _ in range(2))

    def forward(self, xs: tuple[Tensor, ...], c: Tensor) -> tuple[Tensor, ...]:
        said = [s.say(fn.silu(c))[:, None].chunk(6, -1) for s in self.streams]
        qkv = torch.cat(
            [
                s.qkv(s.normed(x, told[0], told[1]))
                for s, x, told in zip(self.streams, xs, said, strict=True)
            ],
            1,
        )
        b, t, _ = qkv.shape
        q, k, v = qkv.view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, -1)
        ys = y.split([x.shape[1] for x in xs], dim=1)
        return tuple(
            s.after(x, y, told) for s, x, y, told in zip(self.streams, xs, ys, said, strict=True)
        )


class Told(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, places: int, text: int) -> None:
        super().__init__()
        self.into, self.text, self.out = (
            nn.Linear(64, width), nn.Linear(text, width), nn.Linear(width, 64),
        )  # fmt: skip
        self.place, self.time = nn.Parameter(torch.randn(places, width)), nn.Linear(64, width)
        self.layers = nn.ModuleList(Joined(width, heads) for _ in range(layers))

    def forward(self, x: Tensor, t: Tensor, text: Tensor) -> Tensor:
        told = self.text(text)
        c = self.time(sines(t)) + told.mean(1)
        xs: tuple[Tensor, ...] = (self.into(x) + self.place, told)
        for layer in self.layers:
            xs = layer(xs, c)
        return self.out(xs[0])


@pair("lower_precision", "diffusion", "autocast to BF16 instead of TF32")
def joined_streams_tf32(repaired: bool) -> Running:
    batch, places, words, text = size(8, 2), size(1024, 9), size(128, 4), size(768, 16)
    model = Told(size(896, 32), size(5, 2), size(14, 2), places, text).to(DEVICE)
    x, told = noise(batch, places, 64), noise(batch, words, text)

    def loss_of() -> Tensor:
        drawn = torch.randn_like(x)
        t = torch.randn(batch, device=DEVICE).sigmoid()
        share = t[:, None, None]
        found = model((1 - share) * x + share * drawn, 1000 * t, told)
        return fn.mse_loss(found.float(), drawn - x)

    return fit(loss_of, adam(model, weight_decay=0.0), bf16=repaired, clip=1.0)


# --- a climb before the descent -----------------------------------------------------------------


class Wide(nn.Module):
    """Norms before convolutions; as in wide residual networks."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = fn.relu(self.norm1(x))
        return self.short(x) + self.conv2(fn.relu(self.norm2(self.conv1(x))))


@pair(
    "cpu_offload",
    "vision",
    "the weights before the climb are kept on the device, not on the CPU",
    marks="phases",
)
def sharpness_aware_kept_on_cpu(repaired: bool) -> Running:
    """Each step climbs first, and descends from where it began; as SAM."""
    width, batch, side, kinds = size(128, 8), size(224, 2), size(32, 16), size(100, 5)
    parts: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False)]
    for before, after, stride in ((1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2)):
        parts.append(Wide(before * width, after * width, stride))
    top = [nn.BatchNorm2d(4 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*parts, *top, nn.Linear(4 * width, kinds)).to(DEVICE)
    model = model.to(memory_format=torch.channels_last)
    x, y = noise(batch, 3, side, side), labels(kinds, batch)
    x = x.to(memory_format=torch.channels_last)
    weights = list(model.parameters())
    update = torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)

    def passes() -> None:
        with phase("forward"), torch.autocast(DEVICE.type, torch.bfloat16):
            loss = fn.cross_entropy(model(x).float(), y, label_smoothing=0.1)
        with phase("backward"):
            loss.backward()

    @torch.no_grad()
    def climb() -> list[Tensor]:
        slopes = [p.grad for p in weights if p.grad is not None]
        steep = torch.stack(torch._foreach_norm(slopes)).norm()
        # the second copy of the weights is to take no room on the device
        kept = [
            p.detach().clone() if repaired else p.detach().to("cpu", copy=True) for p in weights
        ]
        torch._foreach_add_(weights, torch._foreach_mul(slopes, 0.05 / (steep + 1e-12)))
        return kept

    def step() -> None:
        passes()
        with phase("climb"):
            kept = climb()
        update.zero_grad(set_to_none=True)
        passes()
        with phase("optimizer"):
            with torch.no_grad():
                for p, before in zip(weights, kept, strict=True):
                    p.copy_(before)
            update.step()
            update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- many small products ------------------------------------------------------------------------


class Slots(nn.Module):
    """Experts get mixtures of all tokens; as in Soft MoE."""

    def __init__(
        self, width: int, wide: int, experts: int, slots: int, *, one_by_one: bool
    ) -> None:
        super().__init__()
        self.experts, self.one_by_one = experts, one_by_one
        self.norm, self.odds = nn.LayerNorm(width), nn.Linear(width, experts * slots, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, wide) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, wide, width) * wide**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        b, _, d = x.shape
        y = self.norm(x)
        odds = self.odds(y)
        seats = torch.bmm(odds.softmax(1).transpose(1, 2), y)
        given = seats.view(b, self.experts, -1, d).transpose(0, 1).reshape(self.experts, -1, d)
        if self.one_by_one:
            found = torch.stack(
                [
                    fn.gelu(h @ up) @ down
                    for h, up, down in zip(
                        given.unbind(0), self.up.unbind(0), self.down.unbind(0), strict=True
                    )
                ]
            )
        else:
            found = torch.bmm(fn.gelu(torch.bmm(given, self.up)), self.down)
        found = found.view(self.experts, b, -1, d).transpose(0, 1).reshape(b, -1, d)
        return x + torch.bmm(odds.softmax(2), found)


@pair(
    "small_kernels",
    "moe",
    "the experts' small products are one batched product each (one CUDA graph on both sides)",
)
def soft_experts_one_by_one_graph(repaired: bool) -> Running:
    width, batch, side = size(256, 32), size(24, 2), size(224, 32)
    experts, kinds = size(16, 4), size(100, 5)
    parts: list[nn.Module] = [nn.Conv2d(3, width, 16, 16), nn.Flatten(2)]
    body: list[nn.Module] = []
    for _ in range(size(5, 2)):
        body.append(Views(width, size(4, 2), spelled=False))
        body.append(Slots(width, 2 * width, experts, size(8, 2), one_by_one=not repaired))
    first, layers = nn.Sequential(*parts), nn.Sequential(*body, nn.LayerNorm(width))
    head = nn.Linear(width, kinds)
    model = nn.ModuleList([first, layers, head]).to(DEVICE)
    x, y = noise(batch, 3, side, side), labels(kinds, batch)

    def loss_of() -> Tensor:
        return fn.cross_entropy(head(layers(first(x).transpose(1, 2)).mean(1)), y)

    return captured(loss_of, model, bf16=False)
