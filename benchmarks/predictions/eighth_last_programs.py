"""Programs of the eighth set for one GPU: few and large kernels, and long waits of the host.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import queue
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from eighth_gpu_pictures_programs import captured
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Residual, graphed, made_optimizer, precision, size
from program import Program, Running, phase
from single_programs import entered, loaded
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 159 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


class Sees(nn.Module):
    """A layer of a transformer: norms first, attention of all to all or to the past."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


# --- weather ----------------------------------------------------------------------------------


class Round(nn.Module):
    """A convolution on a globe: what leaves in the east comes back in the west."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, padding=(1, 0))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(fn.pad(x, (1, 1, 0, 0), mode="circular"))


class Winds(nn.Module):
    """Two such convolutions beside a short way."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(size(8, 2), width) for _ in range(2))
        self.convs = nn.ModuleList(Round(width, width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            h = conv(fn.silu(norm(h)))
        return x + h


@pair(
    "host_sync",
    "science",
    "the scores of the variables are summed on the device and read every 100 steps",
)
def weather_scores_each_variable(repaired: bool) -> Running:
    """The change of each variable until six hours later, on a grid of the globe."""
    variables, width = size(30, 4), size(160, 8)
    batch, high, wide = size(5, 2), size(128, 8), size(256, 16)
    body = (Winds(width) for _ in range(size(5, 1)))
    model = nn.Sequential(Round(variables, width), *body, Round(width, variables)).to(DEVICE)
    x = noise(batch, variables, high, wide)
    later = x + 0.1 * noise(batch, variables, high, wide)
    latitudes = (torch.arange(high, device=DEVICE) + 0.5) / high * math.pi - math.pi / 2
    area = latitudes.cos() / latitudes.cos().mean()
    area = area[:, None]
    log: dict[str, list[float]] = {f"{what}/{n}": [] for n in range(variables) for what in "rb"}
    sums = torch.zeros(len(log), device=DEVICE)
    made = 0

    def loss_of() -> Tensor:
        nonlocal made
        found = x + model(x).float()
        scores: list[Tensor] = []
        with torch.no_grad():
            for n in range(variables):
                off = found[:, n] - later[:, n]
                root, bias = (off.square() * area).mean().sqrt(), (off * area).mean()
                if repaired:
                    scores += [root, bias]
                else:
                    log[f"r/{n}"].append(root.item())
                    log[f"b/{n}"].append(bias.item())
            if repaired:
                sums.add_(torch.stack(scores))
        made += 1
        if made % 100 == 0:
            if repaired:
                for kept, value in zip(log.values(), (sums / 100).tolist(), strict=True):
                    kept.append(value)
                sums.zero_()
            for kept in log.values():
                kept.clear()  # written elsewhere
        return ((found - later).square() * area).mean()

    return fit(loss_of, adam(model, weight_decay=0.1))


# --- lists that are ranked --------------------------------------------------------------------


class Ranks(nn.Module):
    """Scores of documents that see all others of their list."""

    def __init__(self, features: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.into = nn.Linear(features, width)
        self.layers = nn.ModuleList(Sees(width, heads) for _ in range(layers))
        self.norm, self.score = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        x, seen = self.into(x), valid[:, None, None]
        for layer in self.layers:
            x = layer(x, seen)
        return self.score(self.norm(x))[..., 0].float()


@pair(
    "host_sync",
    "retrieval",
    "padding is masked in the likelihood of all lists, not cut off from each list by its mask",
    marks="steps",
)
def listwise_padding_cut_off(repaired: bool) -> Running:
    """The likelihood of the best order (ListMLE)."""
    lists, most, features = size(8, 3), size(1536, 16), size(136, 8)
    model = Ranks(features, size(1024, 16), size(4, 1), size(16, 2)).to(DEVICE)
    x = noise(lists, most, features)
    grades = torch.randint(0, 5, (lists, most), device=DEVICE).float()
    long = torch.randint(most // 2, most, (lists, 1), device=DEVICE)
    grades = grades.masked_fill(torch.arange(most, device=DEVICE) >= long, -1.0)

    def loss_of() -> Tensor:
        valid = grades >= 0
        scores = model(x, valid)
        if repaired:
            order = grades.argsort(dim=1, descending=True, stable=True)  # padding comes last
            best = scores.gather(1, order)
            kept = valid.gather(1, order)
            best = best.masked_fill(~kept, -1e4)
            left = best.flip(1).logcumsumexp(1).flip(1)
            parts = ((left - best) * kept).sum(1) / kept.sum(1)
            return parts.mean()
        total = torch.zeros((), device=DEVICE)
        for score, grade in zip(scores, grades, strict=True):
            real = grade != -1.0
            order = grade[real].argsort(descending=True, stable=True)
            best = score[real][order]
            left = best.flip(0).logcumsumexp(0).flip(0)
            total = total + (left - best).mean()
        return total / lists

    return fit(loss_of, adam(model), clip=1.0, decay=True)


# --- music ------------------------------------------------------------------------------------


class Pieces(Dataset[tuple[Tensor]]):
    """Pieces of notes, played higher or lower, faster or slower, as events in their order."""

    def __init__(self, notes: int, length: int) -> None:
        draw = random.Random(0)
        self.length = length
        self.pieces: list[list[tuple[float, float, int, int]]] = []
        for _ in range(size(64, 2)):
            at, piece = 0.0, []
            for _ in range(notes):
                at += draw.expovariate(8.0)
                lasts = 0.05 + draw.expovariate(3.0)
                piece.append((at, lasts, draw.randrange(30, 90), draw.randrange(1, 128)))
            self.pieces.append(piece)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor]:
        draw = random.Random(index)
        higher, slower = draw.randrange(-6, 7), draw.uniform(0.9, 1.1)
        moments: list[tuple[float, int, int]] = []
        for at, lasts, pitch, loud in self.pieces[index % len(self.pieces)]:
            moments.append((at * slower, pitch + higher, loud))
            moments.append(((at + lasts) * slower, pitch + higher, 0))
        moments.sort()
        events, now, louder = [1], 0.0, 0
        for at, pitch, loud in moments:
            ticks = round((at - now) * 100)
            now += ticks / 100
            while ticks > 0:
                events.append(300 + min(ticks, 100))
                ticks -= 100
            if loud and loud // 4 != louder:
                louder = loud // 4
                events.append(260 + louder)
            events.append((2 if loud else 130) + pitch)
            if len(events) > 6 * self.length:
                break
        start = draw.randrange(max(1, len(events) - self.length - 1))
        events = events[start : start + self.length + 1]
        return (torch.tensor(events + [0] * (self.length + 1 - len(events))),)


@pair(
    "input_starvation",
    "audio",
    "8 workers of the DataLoader make events of notes, not the training thread",
)
def notes_to_events_main(repaired: bool) -> Running:
    length, width, vocab = size(1024, 16), size(640, 16), 401
    batches = loaded(Pieces(size(2200, 40), length), size(16, 2), 8 if repaired else 0)
    embed, place = nn.Embedding(vocab, width), nn.Embedding(length, width)
    layers = nn.Sequential(
        *(Sees(width, size(10, 2), causal=True) for _ in range(size(6, 1))),
        nn.LayerNorm(width), nn.Linear(width, vocab),
    )  # fmt: skip
    model = nn.ModuleList([embed, place, layers]).to(DEVICE)

    def loss_of() -> Tensor:
        (ids,) = batches()
        scores = layers(embed(ids[:, :-1]) + place.weight)
        return fn.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten())

    settle = 2 + getattr(batches, "ahead", 0)
    return fit(loss_of, adam(model, betas=(0.9, 0.98)), clip=1.0, decay=True, settle=settle)


# --- what moves between two pictures ----------------------------------------------------------


def seen_at(x: Tensor, where: Tensor) -> Tensor:
    """Values of a plane at places in pixels, which may lie between them."""
    high, wide = x.shape[2:]
    along, down = where.unbind(-1)
    scaled = torch.stack([2 * along / (wide - 1) - 1, 2 * down / (high - 1) - 1], -1)
    return fn.grid_sample(x, scaled, align_corners=True)


class Flow(nn.Module):
    """Where each pixel goes: all pairs are compared, then the way is bettered; as in RAFT."""

    def __init__(self, width: int, reach: int, times: int) -> None:
        super().__init__()
        self.width, self.times = width, times
        parts: list[nn.Module] = []
        for before, after in itertools.pairwise((3, width // 2, 3 * width // 4, width)):
            parts += [nn.Conv2d(before, after, 7 if before == 3 else 3, 2, 3 if before == 3 else 1)]
            parts += [nn.InstanceNorm2d(after), nn.ReLU(inplace=True)]
            parts += [nn.Conv2d(after, after, 3, 1, 1), nn.InstanceNorm2d(after), nn.ReLU()]
        self.features = nn.Sequential(*parts, nn.Conv2d(width, width, 1))
        around = torch.arange(-reach, reach + 1).float()
        self.register_buffer("around", torch.cartesian_prod(around, around))
        self.moved = nn.Conv2d(2 * (2 * reach + 1) ** 2 + 2, width, 3, 1, 1)
        self.gates = nn.Conv2d(3 * width, 2 * width, 3, 1, 1)
        self.state = nn.Conv2d(3 * width, width, 3, 1, 1)
        self.way = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, 2, 3, 1, 1)
        )

    def looked(self, planes: list[Tensor], where: Tensor) -> Tensor:
        """What is alike around the places, in two scales."""
        b, high, wide, _ = where.shape
        found = []
        for level, plane in enumerate(planes):
            near = where.reshape(-1, 1, 1, 2) / 2**level + self.around[:, None]
            found.append(seen_at(plane, near).view(b, high, wide, -1))
        return torch.cat(found, -1).permute(0, 3, 1, 2)

    def forward(self, first: Tensor, second: Tensor) -> list[Tensor]:
        a, c = self.features(torch.cat([first, second])).chunk(2)
        b, _, high, wide = a.shape
        alike = a.flatten(2).transpose(1, 2) @ c.flatten(2) / math.sqrt(self.width)
        plane = alike.view(-1, 1, high, wide)
        planes = [plane, fn.avg_pool2d(plane, 2)]
        y, x = torch.meshgrid(
            torch.arange(high, device=a.device), torch.arange(wide, device=a.device), indexing="ij"
        )
        start = torch.stack([x, y], -1).float()
        h, context, flow = a.tanh(), c.relu(), a.new_zeros(b, 2, high, wide)
        found = []
        for _ in range(self.times):
            flow = flow.detach()
            seen = self.looked(planes, start + flow.permute(0, 2, 3, 1))
            motion = fn.relu(self.moved(torch.cat([seen, flow], 1)))
            keep, reset = self.gates(torch.cat([h, context, motion], 1)).sigmoid().chunk(2, 1)
            new = self.state(torch.cat([reset * h, context, motion], 1)).tanh()
            h = h.lerp(new, keep)
            flow = flow + self.way(h)
            found.append(8 * fn.interpolate(flow, scale_factor=8.0, mode="bilinear"))
        return found


@pair(
    "blocking_copy",
    "vision",
    "what is cached in memory is pinned, without which non_blocking=True has no effect",
)
def flow_cache_unpinned(repaired: bool) -> Running:
    batch, high, wide = size(8, 2), size(384, 32), size(512, 48)
    model = Flow(size(128, 8), size(3, 1), size(3, 2)).to(DEVICE)
    draw = torch.Generator().manual_seed(0)
    cache: list[dict[str, Tensor]] = []
    for _ in range(3):
        entry = {
            "first": torch.rand(batch, 3, high, wide, generator=draw),
            "second": torch.rand(batch, 3, high, wide, generator=draw),
            "flow": torch.randn(batch, 2, high, wide, generator=draw),
            "valid": (torch.rand(batch, 1, high, wide, generator=draw) < 0.9).float(),
        }
        if repaired and CUDA:
            entry = {name: part.pin_memory() for name, part in entry.items()}
        cache.append(entry)
    turn = itertools.cycle(cache)

    def loss_of() -> Tensor:
        with phase("get_batch"):
            on = {k: part.to(DEVICE, non_blocking=True) for k, part in next(turn).items()}
        found = model(2 * on["first"] - 1, 2 * on["second"] - 1)
        total = torch.zeros((), device=DEVICE)
        for number, flow in enumerate(found):
            off = ((flow - on["flow"]).abs() * on["valid"]).mean()
            total = total + 0.8 ** (len(found) - 1 - number) * off
        return total

    return fit(loss_of, adam(model, weight_decay=1e-5), bf16=False, clip=1.0, decay=True)


# --- where everyone on a road goes ------------------------------------------------------------


@contextmanager
def traceable() -> Iterator[None]:
    """Attention whose second derivatives exist; they were looked at once."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


@pair(
    "unfused_attention",
    "robotics",
    "sdpa_kernel(MATH), left over from an experiment, is removed",
    marks="steps",
)
def road_users_math_backend(repaired: bool) -> Running:
    """Paths of road users, from what they did and the lanes around, trained in FP16."""
    scenes, users, lanes, width = size(16, 2), size(128, 4), size(640, 8), size(768, 16)
    ways, ahead_by = size(6, 2), size(30, 4)
    user, lane = nn.Linear(11 * 6, width), nn.Linear(20 * 4, width)
    body = nn.Sequential(*(Sees(width, size(12, 2)) for _ in range(size(5, 1))))
    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, ways * (2 * ahead_by + 1)))
    model = nn.ModuleList([user, lane, body, head]).to(DEVICE)
    update = adam(model)
    scaler = torch.amp.GradScaler("cuda", enabled=CUDA, init_scale=1024.0)
    past, map_ = noise(scenes, users, 11 * 6), noise(scenes, lanes, 20 * 4)
    true = noise(scenes, users, 1, ahead_by, 2)
    inside: Callable[[], AbstractContextManager[None]] = nullcontext if repaired else traceable

    def step() -> None:
        update.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.float16, enabled=CUDA), inside():
            h = body(torch.cat([user(past), lane(map_)], 1))
            found = head(h[:, :users]).float()
        paths = found[..., :-ways].view(scenes, users, ways, ahead_by, 2)
        odds = found[..., -ways:].log_softmax(-1)
        off = (paths - true).square().sum((-1, -2))
        near = off.detach().argmin(-1, keepdim=True)
        loss = off.gather(-1, near).mean() / ahead_by - odds.gather(-1, near).mean()
        scaler.scale(loss).backward()
        scaler.step(update)  # a fused update looks for infinities on the device
        scaler.update()

    return Running(step, enter=precision("high"))


# --- likelihoods of pictures ------------------------------------------------------------------


class Coupled(nn.Module):
    """Half of the channels say how the others are scaled and moved; as in Glow."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.shift = nn.Parameter(torch.zeros(1, channels, 1, 1))
        turn = torch.linalg.qr(torch.randn(channels, channels))[0]
        self.register_buffer("turn", turn[:, :, None, None].contiguous())
        self.net = nn.Sequential(
            nn.Conv2d(channels // 2, width, 3, 1, 1), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 1), nn.ReLU(inplace=True),
            nn.Conv2d(width, channels, 3, 1, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pixels = x.shape[2] * x.shape[3]
        x = fn.conv2d((x + self.shift) * self.scale.exp(), self.turn)
        a, b = x.chunk(2, 1)
        grow, move = self.net(a).chunk(2, 1)
        grow = 0.5 * grow.tanh()
        volume = self.scale.sum() * pixels + grow.sum((1, 2, 3))
        return torch.cat([a, b * grow.exp() + move], 1), volume


@pair(
    "low_precision_unused",
    "vision",
    "torch.set_float32_matmul_precision('high') and cudnn.allow_tf32: convolutions in TF32",
)
def coupled_pictures_fp32(repaired: bool) -> Running:
    batch, side, width = size(128, 2), size(64, 8), size(512, 8)
    layers = nn.ModuleList(
        Coupled(12 * 2**level, width) for level in range(2) for _ in range(size(3, 1))
    ).to(DEVICE)
    each = len(layers) // 2
    x = noise(batch, 3, side, side).sigmoid()
    bits = math.log(2) * x[0].numel()

    def loss_of() -> Tensor:
        h = fn.pixel_unshuffle(x + torch.rand_like(x) / 256 - 0.5, 2)
        volume, likely = torch.zeros(batch, device=DEVICE), 0.0
        for number, layer in enumerate(layers):
            if number == each:  # half of the channels are done
                done, h = h.chunk(2, 1)
                likely = -0.5 * (done.square() + math.log(2 * math.pi)).sum((1, 2, 3))
                h = fn.pixel_unshuffle(h, 2)
            h, more = layer(h)
            volume = volume + more
        likely = likely - 0.5 * (h.square() + math.log(2 * math.pi)).sum((1, 2, 3))
        return -(likely + volume).mean() / bits

    return fit(
        loss_of, adam(layers), bf16=False, matmul="high" if repaired else "highest", clip=50.0
    )


# --- networks that make networks --------------------------------------------------------------


@pair("lower_precision", "vision", "autocast to BF16 instead of TF32", marks="phases")
def made_fields_tf32(repaired: bool) -> Running:
    """A network for each picture tells its colours at places; another one makes its weights."""
    batch, side, places = size(96, 2), size(128, 32), size(4096, 16)
    inner, layers = size(256, 8), size(4, 2)
    reads = nn.Sequential(
        nn.Conv2d(3, size(64, 4), 7, 2, 3), nn.ReLU(),
        *(Residual(size(64 * n, 4), size(64 * m, 4), 2) for n, m in ((1, 2), (2, 4), (4, 8))),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    told, rank = size(512, 4), size(32, 2)
    makes = nn.ModuleList(nn.Linear(told, 2 * inner * rank) for _ in range(layers))
    shared = nn.ParameterList(
        nn.Parameter(torch.randn(inner, inner) * (1.5 / math.sqrt(inner))) for _ in range(layers)
    )
    first, last = nn.Linear(2, inner), nn.Linear(inner, 3)
    model = nn.ModuleList([reads, makes, shared, first, last]).to(DEVICE)
    x = noise(batch, 3, side, side).sigmoid()
    where = 2 * torch.rand(batch, places, 2, device=DEVICE) - 1

    def loss_of() -> Tensor:
        code = reads(x)
        true = fn.grid_sample(x, where[:, None], align_corners=False)[:, :, 0].transpose(1, 2)
        h = torch.sin(20 * first(where))
        for make, base in zip(makes, shared, strict=True):
            a, b = make(code).view(batch, 2, inner, rank).unbind(1)
            weight = base * (1 + torch.bmm(a, b.transpose(1, 2)) / rank)
            h = torch.sin(torch.bmm(h, weight.to(h.dtype)))
        return fn.mse_loss(last(h).float(), true)

    return fit(loss_of, adam(model), bf16=repaired, clip=1.0)


# --- sound in codes ---------------------------------------------------------------------------


def snake(x: Tensor, rate: Tensor) -> Tensor:
    return x + (rate + 1e-9).reciprocal() * torch.sin(rate * x).pow(2)


Act = Callable[[Tensor, Tensor], Tensor]


class Snakes(nn.Module):
    """The activation with a rate for each channel."""

    def __init__(self, channels: int, act: Act) -> None:
        super().__init__()
        self.rate, self.act = nn.Parameter(torch.ones(1, channels, 1)), act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x, self.rate)


class Unit(nn.Module):
    """A convolution with holes beside a short way."""

    def __init__(self, width: int, apart: int, act: Act) -> None:
        super().__init__()
        self.body = nn.Sequential(
            Snakes(width, act), nn.Conv1d(width, width, 7, padding=3 * apart, dilation=apart),
            Snakes(width, act), nn.Conv1d(width, width, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Codec(nn.Module):
    """Sound as a few codes, and back."""

    def __init__(self, width: int, codes: int, few: int, act: Act) -> None:
        super().__init__()
        sizes, strides = (width, 2 * width, 4 * width), (4, 8)
        down: list[nn.Module] = [nn.Conv1d(1, width, 7, padding=3)]
        up: list[nn.Module] = []
        for (a, b), stride in zip(itertools.pairwise(sizes), strides, strict=True):
            holes = (1, 3) if a == width else (1,)
            down += [*(Unit(a, n, act) for n in holes), Snakes(a, act)]
            down += [nn.Conv1d(a, b, 2 * stride, stride, stride // 2)]
            back = nn.ConvTranspose1d(b, a, 2 * stride, stride, stride // 2)
            up = [Snakes(b, act), back, *(Unit(a, n, act) for n in holes), *up]
        self.down = nn.Sequential(*down, nn.Conv1d(sizes[-1], few, 3, padding=1))
        self.up = nn.Sequential(
            nn.Conv1d(few, sizes[-1], 7, padding=3), *up,
            Snakes(width, act), nn.Conv1d(width, 1, 7, padding=3), nn.Tanh(),
        )  # fmt: skip
        self.codes = nn.Embedding(codes, few)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.down(x).transpose(1, 2)
        near = fn.normalize(z, dim=-1) @ fn.normalize(self.codes.weight, dim=-1).t()
        q = self.codes(near.argmax(-1))
        off = fn.mse_loss(z, q.detach()) * 0.25 + fn.mse_loss(q, z.detach())
        return self.up((z + (q - z).detach()).transpose(1, 2)), off


@pair(
    "fusion_opportunity",
    "audio",
    "torch.compile of the activation, x + sin^2(ax) / a, which is spelled out",
    compiles=True,
)
def sound_codec_snakes(repaired: bool) -> Running:
    batch, samples = size(10, 2), size(32_768, 128)
    act: Act = torch.compile(snake, dynamic=False) if repaired else snake
    model = Codec(size(64, 4), size(1024, 8), size(64, 4), act).to(DEVICE)
    x = 0.3 * noise(batch, 1, samples)

    def loss_of() -> Tensor:
        found, off = model(x)
        return fn.l1_loss(found, x) + off

    return fit(loss_of, adam(model, betas=(0.8, 0.99)), bf16=False)


# --- energies of pictures ---------------------------------------------------------------------


@pair(
    "larger_batch",
    "vision",
    "twice the batch (all walks and both passes are one CUDA graph on both sides)",
    samples=2.0,
)
def energies_walks_twice(repaired: bool) -> Running:
    """Pictures that are likely have a low energy; others are drawn by walks downhill."""
    batch, width, side = size(16, 2) * (2 if repaired else 1), size(64, 4), size(32, 16)
    parts: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1), nn.SiLU()]
    for n, m in ((1, 2), (2, 4), (4, 4)):
        parts += [nn.Conv2d(n * width, m * width, 4, 2, 1), nn.SiLU()]
        parts += [nn.Conv2d(m * width, m * width, 3, 1, 1), nn.SiLU()]
    last = nn.Linear(4 * width * (side // 8) ** 2, 1)
    model = nn.Sequential(*parts, nn.Flatten(), last).to(DEVICE)
    real, walkers = noise(batch, 3, side, side).tanh(), noise(batch, 3, side, side).tanh()

    def loss_of() -> Tensor:
        x = walkers.clone().requires_grad_()
        for _ in range(size(30, 2)):
            (down,) = torch.autograd.grad(model(x).sum(), x)
            moved = x.detach() - 5.0 * down.clamp(-0.01, 0.01) + 0.005 * torch.randn_like(x)
            x = moved.clamp(-1, 1).requires_grad_()
        walkers.copy_(x.detach())
        low, high = model(torch.cat([real, x.detach()]))[:, 0].chunk(2)
        return (low - high).mean() + 0.1 * (low.square() + high.square()).mean()

    return captured(loss_of, model, bf16=False)


# --- energies of what moves -------------------------------------------------------------------


@pair("launch_bound", "science", "the whole step is one CUDA graph", marks="steps")
def pendulums_leapfrog_graph(repaired: bool) -> Running:
    """A network is the energy of a system, whose derivatives move it; as in Hamiltonian nets."""
    batch, places, width, times = size(3072, 4), size(16, 2), size(512, 8), size(6, 2)
    model = nn.Sequential(
        nn.Linear(2 * places, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
        nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1),
    ).to(DEVICE)  # fmt: skip
    update = made_optimizer(model.parameters(), "graph")
    q0, p0 = noise(batch, places), noise(batch, places)
    true = noise(times, 2, batch, places)
    tick = 0.1

    def slope(q: Tensor, p: Tensor, *, of_places: bool) -> Tensor:
        energy = model(torch.cat([q, p], 1)).sum()
        return torch.autograd.grad(energy, q if of_places else p, create_graph=True)[0]

    def step() -> None:
        update.zero_grad(set_to_none=True)
        q, p = q0.clone().requires_grad_(), p0.clone().requires_grad_()
        loss = torch.zeros((), device=DEVICE)
        p = p - 0.5 * tick * slope(q, p, of_places=True)
        for t in range(times):
            q = q + tick * slope(q, p, of_places=False)
            p = p - tick * slope(q, p, of_places=True)
            loss = loss + fn.mse_loss(q, true[t, 0]) + fn.mse_loss(p, true[t, 1])
        (loss / times).backward()
        update.step()

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run


# --- pictures as codes ------------------------------------------------------------------------


@pair(
    "aligned_shapes",
    "vision",
    "16385 codes (one of them for what is masked) are padded to 16448, a multiple of 64",
    marks="profiler",
)
def masked_codes_one_more(repaired: bool) -> Running:
    """Codes of pictures, of which many are masked, are told by what is left; as in MaskGIT."""
    codes, batch, places, width = size(16_384, 32), size(48, 2), size(256, 16), size(768, 16)
    known = size(16_448, 40) if repaired else codes + 1
    embed, place = nn.Embedding(known, width), nn.Embedding(places, width)
    body = nn.Sequential(*(Sees(width, size(12, 2)) for _ in range(size(5, 1))))
    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, known))
    model = nn.ModuleList([embed, place, body, head]).to(DEVICE)
    true = labels(codes, batch, places)

    def loss_of() -> Tensor:
        share = torch.cos(torch.rand(batch, 1, device=DEVICE) * math.pi / 2)
        masked = torch.rand(batch, places, device=DEVICE) < share
        ids = true.masked_fill(masked, codes)
        scores = head(body(embed(ids) + place.weight)).flatten(0, 1)
        parts = fn.cross_entropy(scores.float(), true.flatten(), reduction="none")
        return (parts * masked.flatten()).sum() / masked.sum().clamp(min=1)

    return fit(loss_of, adam(model, weight_decay=0.045), clip=3.0)


# --- what is followed through a film ----------------------------------------------------------


class Follows(nn.Module):
    """Where what one picture shows is in another: one is a kernel for the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.seen = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            Residual(width, width, 1), Residual(width, width, 1),
            Residual(width, 2 * width, 2), Residual(2 * width, 2 * width, 1),
            Residual(2 * width, 4 * width, 1), Residual(4 * width, 4 * width, 1),
        )  # fmt: skip
        self.kind, self.box = (
            nn.Sequential(
                nn.Conv2d(4 * width, 4 * width, 1), nn.BatchNorm2d(4 * width), nn.ReLU(),
                nn.Conv2d(4 * width, out, 1),
            )
            for out in (1, 4)
        )  # fmt: skip

    def forward(self, what: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        b = len(what)
        kernel = fn.adaptive_avg_pool2d(self.seen(what), 5).flatten(0, 1)[:, None]
        x = self.seen(where)
        h = fn.conv2d(x.flatten(0, 1)[None], kernel, groups=len(kernel))
        h = h.view(b, -1, *h.shape[2:]) / 25
        return self.kind(h)[:, 0], self.box(h)


Boxes = list[tuple[float, float, float, float]]


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    if wide <= 0 or high <= 0:
        return 0.0
    both = wide * high
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return both / (areas - both)


class Hardness:
    """How often what is followed is hidden by others: films are drawn by it, epochs later."""

    def __init__(self, films: list[list[Boxes]], workers: int) -> None:
        """In as many processes, or in one thread (``workers`` is 0)."""
        self.films, self.parent = films, os.getpid()
        if workers:
            context = multiprocessing.get_context("fork")
            self.asked: Any = context.Queue(2 * workers)
            self.stopped: Any = context.Event()
            self.hard: Any = context.Array("d", len(films), lock=False)
            self.workers: list[Any] = [
                context.Process(target=self.work, daemon=True) for _ in range(workers)
            ]
        else:
            self.asked, self.stopped = queue.Queue(2), threading.Event()
            self.hard = [0.0] * len(films)
            self.workers = [threading.Thread(target=self.work, daemon=True)]
        for worker in self.workers:
            worker.start()

    def work(self) -> None:
        while not self.stopped.is_set() and self.parent in (os.getpid(), os.getppid()):
            try:
                number = self.asked.get(timeout=1.0)
            except queue.Empty:
                continue
            if number is None:
                return
            total = 0.0
            for boxes in self.films[number]:
                total += max(overlap(boxes[0], other) for other in boxes[1:])
                total += 0.1 * sum(overlap(a, b) for a, b in itertools.combinations(boxes, 2))
            self.hard[number] = total / len(self.films[number])

    def close(self) -> None:
        self.stopped.set()
        for worker in self.workers:
            if isinstance(worker, threading.Thread):
                worker.join(5.0)
            else:
                worker.terminate()
                worker.join(5.0)


def films_of(films: int, pictures: int, many: int) -> list[list[Boxes]]:
    draw = random.Random(0)
    found = []
    for _ in range(films):
        film = []
        for _ in range(pictures):
            places = [(draw.random(), draw.random()) for _ in range(many)]
            film.append([(x, y, x + 0.2, y + 0.2) for x, y in places])
        found.append(film)
    return found


@pair(
    "gil_contention",
    "vision",
    "the overlaps of a film's boxes are counted by four processes, not by a thread",
    record=("--waits",),
)
def tracker_overlaps_thread(repaired: bool) -> Running:
    batch, small, large = size(48, 2), size(128, 48), size(256, 96)
    model = Follows(size(64, 4)).to(DEVICE)
    hardness = Hardness(films_of(16, size(70, 2), size(40, 4)), 4 if repaired else 0)
    what, where = noise(batch, 3, small, small), noise(batch, 3, large, large)
    with torch.no_grad():
        shape = model(what, where)[0].shape
    heat = (torch.rand(shape, device=DEVICE) < 0.1).float()
    true = torch.rand(batch, 4, *shape[1:], device=DEVICE)
    film = itertools.cycle(range(16))

    def loss_of() -> Tensor:
        hardness.asked.put(next(film))
        kind, box = model(what, where)
        loss = fn.binary_cross_entropy_with_logits(kind.float(), heat)
        off = ((box.float().sigmoid() - true).abs() * heat[:, None]).sum() / heat.sum()
        return loss + 0.2 * off

    update = torch.optim.SGD(
        model.parameters(), lr=5e-3, momentum=0.9, weight_decay=1e-4, fused=True
    )
    run = fit(loss_of, update, bf16=False, clip=10.0, settle=6)
    run.close = hardness.close
    return run
