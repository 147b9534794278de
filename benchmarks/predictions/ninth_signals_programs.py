"""A ninth set of programs for one GPU: pictures, fields and flows, bound by the GPU.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Attends, Feeds, done, precision, size
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 155 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


def waves_of(t: Tensor, width: int) -> Tensor:
    """Sines and cosines of times."""
    rates = torch.exp(torch.arange(width // 2, device=t.device) * (-9.2 / (width // 2)))
    angles = t.float()[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


# --- two views, and a teacher that is an average ------------------------------------------------


def luma(x: Tensor) -> Tensor:
    r, g, b = x.unbind(1)
    return (0.299 * r + 0.587 * g + 0.114 * b)[:, None]


def coloured(x: Tensor, drawn: Tensor) -> Tensor:
    """Brightness, contrast, saturation, hue, gamma, grey and solarised, each picture its own."""
    bright, contrast, saturation, hue, gamma, grey, turned = drawn.unbind(0)
    x = (x * (0.6 + 0.8 * bright)).clamp(0, 1)
    share = 0.6 + 0.8 * contrast
    x = (share * x + (1 - share) * luma(x).mean((1, 2, 3), keepdim=True)).clamp(0, 1)
    share = 0.8 + 0.4 * saturation
    x = (share * x + (1 - share) * luma(x)).clamp(0, 1)
    r, g, b = x.unbind(1)
    high, low = x.amax(1), x.amin(1)
    span = high - low
    flat = span == 0
    rest = torch.where(flat, 1.0, span)
    strong = span / high.clamp_min(1e-6)
    tone = torch.where(high == g, 2 + (b - r) / rest, 4 + (r - g) / rest)
    tone = torch.where(high == r, (g - b) / rest, tone)
    tone = torch.where(flat, 0.0, tone) + 1.2 * hue[:, 0] - 0.6
    parts = []
    for place in (5.0, 3.0, 1.0):
        k = (place + tone) % 6.0
        parts.append(high - high * strong * torch.minimum(k, 4.0 - k).clamp(0, 1))
    x = torch.stack(parts, 1).clamp(1e-4, 1).pow(0.8 + 0.4 * gamma)
    x = torch.where(grey < 0.2, luma(x), x)
    x = torch.where((turned < 0.2) & (x >= 0.5), 1 - x, x)
    return (x - 0.45) / 0.25


class Narrow(nn.Module):
    """Narrow inside, wide outside."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        inner = after // 4
        self.layers = nn.Sequential(
            nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        same = before == after and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(self.layers(x) + self.short(x))


def projector(before: int, inner: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(before, inner), nn.BatchNorm1d(inner), nn.ReLU(), nn.Linear(inner, after)
    )


@pair("fusion_opportunity", "vision", "torch.compile of the function of colours", compiles=True)
def two_views_coloured_compile(repaired: bool) -> Running:
    batch, side, width = size(96, 4), size(224, 32), size(256, 16)
    parts: list[nn.Module] = [
        nn.Conv2d(3, width // 4, 4, 4, bias=False), nn.BatchNorm2d(width // 4), nn.ReLU()
    ]  # fmt: skip
    before = width // 4
    for level, blocks in enumerate((1, 2, 2)):
        for number in range(blocks):
            after = width * 2**level
            parts.append(Narrow(before, after, 2 if level and not number else 1))
            before = after
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), projector(before, 2 * before, width)]
    student = nn.Sequential(*parts).to(DEVICE, memory_format=torch.channels_last)
    teacher = copy.deepcopy(student).requires_grad_(False)
    guess = projector(width, 4 * width, width).to(DEVICE)
    weights = list(student.parameters())
    update = torch.optim.SGD([*weights, *guess.parameters()], lr=0.05, momentum=0.9, fused=True)
    kept, now = list(teacher.parameters()), [w.detach() for w in weights]
    x = torch.rand(batch, 3, side, side, device=DEVICE)
    colour: Any = torch.compile(coloured) if repaired else coloured

    def step() -> None:
        with torch.no_grad():
            drawn = [torch.rand(7, batch, 1, 1, 1, device=DEVICE) for _ in range(2)]
            views = torch.cat([colour(x, some) for some in drawn])
            views = views.contiguous(memory_format=torch.channels_last)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            mine = fn.normalize(guess(student(views)).float(), dim=-1)
            with torch.no_grad():
                goal = fn.normalize(teacher(views).float(), dim=-1).roll(batch, 0)
            loss = 2 - 2 * (mine * goal).sum(-1).mean()
        loss.backward()
        done(update)
        torch._foreach_lerp_(kept, now, 0.004)

    return Running(step, enter=precision("high"))


# --- a painter and a judge --------------------------------------------------------------------


def conv(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, (kernel - 1) // 2, bias=False),
        nn.BatchNorm2d(after),
        nn.LeakyReLU(0.2),
    )


class Repaints(nn.Module):
    """A picture from a picture; as the generator of pix2pixHD."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        wide = 4 * width
        self.into = nn.Sequential(
            conv(3, width, 7), conv(width, 2 * width, 3, 2), conv(2 * width, wide, 3, 2)
        )
        self.blocks = nn.ModuleList(
            nn.Sequential(conv(wide, wide), nn.Conv2d(wide, wide, 3, 1, 1)) for _ in range(blocks)
        )
        self.up1, self.up2 = conv(wide, 2 * width), conv(2 * width, width)
        self.out = nn.Conv2d(width, 3, 7, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for block in self.blocks:
            x = x + block(x)
        x = self.up1(fn.interpolate(x, scale_factor=2.0))
        return self.out(self.up2(fn.interpolate(x, scale_factor=2.0))).tanh()


@pair(
    "layout_changes",
    "gan",
    "channels_last for both networks and their pictures",
    marks="phases",
)
def repainted_pictures_channels_last(repaired: bool) -> Running:
    batch, side, width = size(12, 2), size(256, 16), size(64, 8)
    painter = Repaints(width, size(4, 1)).to(DEVICE)
    judge = nn.Sequential(
        nn.Conv2d(6, width, 4, 2, 1), nn.LeakyReLU(0.2), conv(width, 2 * width, 4, 2),
        conv(2 * width, 4 * width, 4, 2), conv(4 * width, 8 * width, 3),
        nn.Conv2d(8 * width, 1, 3, 1, 1),
    ).to(DEVICE)  # fmt: skip
    x, y = noise(batch, 3, side, side).tanh(), noise(batch, 3, side, side).tanh()
    if repaired:
        painter = painter.to(memory_format=torch.channels_last)
        judge = judge.to(memory_format=torch.channels_last)
        x, y = (part.contiguous(memory_format=torch.channels_last) for part in (x, y))
    paints = torch.optim.Adam(painter.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    judges = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0, enabled=CUDA)
    kind = torch.float16 if CUDA else torch.bfloat16

    def step() -> None:
        with phase("judge"):
            with torch.autocast(DEVICE.type, kind):
                made = painter(x)
                true = judge(torch.cat([x, y], 1)).float()
                false = judge(torch.cat([x, made.detach().to(x.dtype)], 1)).float()
                loss = fn.relu(1 - true).mean() + fn.relu(1 + false).mean()
            scaler.scale(loss).backward()
            scaler.step(judges)
            judges.zero_grad(set_to_none=True)
        with phase("painter"):
            judge.requires_grad_(False)
            with torch.autocast(DEVICE.type, kind):
                seen = judge(torch.cat([x, made.to(x.dtype)], 1)).float()
                loss = 10 * fn.l1_loss(made.float(), y) - seen.mean()
            scaler.scale(loss).backward()
            scaler.step(paints)
            paints.zero_grad(set_to_none=True)
            judge.requires_grad_(True)
        scaler.update()

    return Running(step, enter=precision("high"))


# --- physics ----------------------------------------------------------------------------------


@pair("low_precision_unused", "physics", "torch.set_float32_matmul_precision('high')")
def membrane_residuals_tf32(repaired: bool) -> Running:
    """A network obeys the wave equation at points: derivatives of derivatives, then the loss's."""
    many, width = size(12_288, 64), size(512, 16)
    rates = noise(3, width // 2)
    parts: list[nn.Module] = []
    for _ in range(size(6, 2)):
        parts += [nn.Linear(width, width), nn.Tanh()]
    net = nn.Sequential(*parts, nn.Linear(width, 1)).to(DEVICE)
    points = torch.rand(many, 3, device=DEVICE)
    start = points[: many // 8] * torch.tensor([1.0, 1.0, 0.0], device=DEVICE)
    shape = (math.pi * start[:, 0]).sin() * (math.pi * start[:, 1]).sin()

    def height(p: Tensor) -> Tensor:
        angles = p @ rates
        return net(torch.cat([angles.sin(), angles.cos()], -1))[:, 0]

    def loss_of() -> Tensor:
        p = points.detach().requires_grad_()
        first = torch.autograd.grad(height(p).sum(), p, create_graph=True)[0]
        xx, yy, tt = (
            torch.autograd.grad(first[:, i].sum(), p, create_graph=True)[0][:, i] for i in range(3)
        )
        residual = tt - 0.25 * (xx + yy)
        return residual.square().mean() + 100 * fn.mse_loss(height(start), shape)

    update = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    return fit(loss_of, update, bf16=False, matmul="high" if repaired else "highest")


class Boxed(nn.Module):
    """Places in a box of levels, latitudes and longitudes look at each other; as in Pangu."""

    def __init__(self, width: int, heads: int, box: tuple[int, int, int], *, moved: bool) -> None:
        super().__init__()
        self.box, self.moved = box, [n // 2 for n in box] if moved else None
        self.looks, self.feeds = Attends(width, heads), Feeds(width)

    def forward(self, x: Tensor) -> Tensor:
        b, up, h, w, c = x.shape
        i, j, k = self.box
        if self.moved:
            x = x.roll([-n for n in self.moved], (1, 2, 3))
        x = x.view(b, up // i, i, h // j, j, w // k, k, c).permute(0, 1, 3, 5, 2, 4, 6, 7)
        shape = x.shape
        x = self.looks(x.reshape(-1, i * j * k, c)).view(shape)
        x = x.permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(b, up, h, w, c)
        if self.moved:
            x = x.roll(self.moved, (1, 2, 3))
        return self.feeds(x)


@pair("lower_precision", "physics", "autocast to BF16 instead of TF32", marks="steps")
def weather_boxes_bf16(repaired: bool) -> Running:
    width, inside, batch = size(256, 16), size(160, 8), size(2, 1)
    box = (2, 6, 12) if size(1, 0) else (1, 2, 2)
    shape = (size(8, 2), size(48, 4), size(96, 4))
    layers = [Boxed(width, size(8, 2), box, moved=n % 2 == 1) for n in range(size(4, 2))]
    model = nn.Sequential(
        nn.Linear(inside, width), *layers, nn.LayerNorm(width), nn.Linear(width, inside)
    ).to(DEVICE)
    now, later = noise(batch, *shape, inside), noise(batch, *shape, inside)
    south_north = torch.linspace(-1.5, 1.5, shape[1], device=DEVICE).cos()[:, None, None]

    def loss_of() -> Tensor:
        return ((now + model(now).float() - later).abs() * south_north).mean()

    return fit(loss_of, adam(model, weight_decay=3e-6), bf16=repaired, decay=True)


class Pairs(nn.Module):
    """Weights of low waves as pairs of reals, which any optimizer takes; as in FNO."""

    def __init__(self, width: int, rows: int, columns: int) -> None:
        super().__init__()
        self.rows, self.columns = rows, columns
        shape = (2, width, width, rows, columns, 2)
        self.weight = nn.Parameter(torch.rand(shape) / width**2)
        self.beside = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        waves = torch.fft.rfft2(x)
        low, high = torch.view_as_complex(self.weight)
        kept = torch.zeros(b, c, h, w // 2 + 1, dtype=waves.dtype, device=x.device)
        n, m = self.rows, self.columns
        kept[:, :, :n, :m] = torch.einsum("bixy,ioxy->boxy", waves[:, :, :n, :m], low)
        kept[:, :, -n:, :m] = torch.einsum("bixy,ioxy->boxy", waves[:, :, -n:, :m], high)
        return fn.gelu(torch.fft.irfft2(kept, s=(h, w)) + self.beside(x))


class CopiedAdam(torch.optim.Optimizer):
    """Adam as it came with the model's code, from when PyTorch's took no complex weights."""

    def __init__(self, params: Any, lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                grad = p.grad.add(p, alpha=group["weight_decay"])
                state["mean"].mul_(0.9).add_(grad, alpha=0.1)
                state["square"].mul_(0.999).addcmul_(grad, grad.conj(), value=0.001)
                scale = math.sqrt(1 - 0.999 ** state["step"])
                below = (state["square"].sqrt() / scale).add_(1e-8)
                rate = group["lr"] / (1 - 0.9 ** state["step"])
                p.addcdiv_(state["mean"], below, value=-rate)


@pair("unfused_optimizer", "physics", "torch.optim.Adam(fused=True) instead of the copied Adam")
def low_waves_copied_adam(repaired: bool) -> Running:
    width, batch, h, w = size(64, 8), size(4, 2), size(128, 16), size(256, 16)
    layers = [Pairs(width, size(40, 3), size(48, 3)) for _ in range(size(4, 2))]
    model = nn.Sequential(
        nn.Conv2d(20, width, 1), *layers, nn.Conv2d(width, 2 * width, 1), nn.GELU(),
        nn.Conv2d(2 * width, 20, 1),
    ).to(DEVICE)  # fmt: skip
    now, later = noise(batch, 20, h, w), noise(batch, 20, h, w)
    size_of = later.flatten(1).norm(dim=1)

    def loss_of() -> Tensor:
        return ((model(now) - later).flatten(1).norm(dim=1) / size_of).mean()

    how = {"lr": 1e-3, "weight_decay": 1e-4}
    weights = model.parameters()
    update = (
        torch.optim.Adam(weights, fused=True, **how) if repaired else CopiedAdam(weights, **how)
    )
    return fit(loss_of, update, bf16=False, decay=True)


# --- diffusion and flows ----------------------------------------------------------------------


class Scaled(nn.Module):
    """Two convolutions; the second one's norm is scaled and shifted by time and class."""

    def __init__(self, before: int, after: int, told: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, before), nn.GroupNorm(8, after)
        self.conv1 = nn.Conv2d(before, after, 3, 1, 1)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1)
        self.say = nn.Linear(told, 2 * after)
        self.short = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        scale, shift = self.say(told)[:, :, None, None].chunk(2, 1)
        h = self.conv1(fn.silu(self.norm1(x)))
        h = self.conv2(fn.silu(self.norm2(h) * (1 + scale) + shift))
        return h + self.short(x)


class Denoises(nn.Module):
    """A U of such blocks, for latents."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        told = 2 * width
        self.time, self.kind = nn.Linear(width, told), nn.Embedding(classes + 1, told)
        self.first, self.last = nn.Conv2d(4, width, 3, 1, 1), nn.Conv2d(width, 4, 3, 1, 1)
        ways = [(width, width), (width, 2 * width), (2 * width, 2 * width)]
        self.downs = nn.ModuleList(Scaled(a, b, told) for a, b in ways)
        self.middle = Scaled(2 * width, 2 * width, told)
        self.ups = nn.ModuleList(Scaled(2 * b, a, told) for a, b in reversed(ways))
        self.width = width

    def forward(self, x: Tensor, t: Tensor, kind: Tensor) -> Tensor:
        told = self.time(waves_of(t, self.width).to(x.dtype)) + self.kind(kind)
        told, x, kept = fn.silu(told), self.first(x), []
        for number, down in enumerate(self.downs):
            x = down(fn.avg_pool2d(x, 2) if number else x, told)
            kept.append(x)
        x = self.middle(x, told)
        for number, up in enumerate(self.ups):
            x = up(torch.cat([x, kept.pop()], 1), told)
            if number < len(self.ups) - 1:
                x = fn.interpolate(x, scale_factor=2.0)
        return self.last(x)


@pair(
    "casts_and_copies",
    "diffusion",
    "the frozen teacher is kept and called in BF16, not under autocast",
)
def consistent_student_of_autocast_teacher(repaired: bool) -> Running:
    batch, side, width, classes = size(16, 2), size(64, 8), size(192, 16), size(1000, 5)
    student = Denoises(width, classes).to(DEVICE)
    teacher = copy.deepcopy(student).requires_grad_(False).eval()
    if repaired:
        teacher = teacher.bfloat16()
    x, kinds = noise(batch, 4, side, side), labels(classes, batch)
    both = torch.cat([kinds, torch.full_like(kinds, classes)])

    def slope(noisy: Tensor, t: Tensor) -> Tensor:
        """What the teacher says, with and without the class."""
        noisy, t = torch.cat([noisy, noisy]), torch.cat([t, t])
        if repaired:
            with torch.autocast(DEVICE.type, enabled=False):
                said = teacher(noisy.bfloat16(), t, both)
        else:
            said = teacher(noisy, t, both)
        told, free = said.float().chunk(2)
        return free + 3.0 * (told - free)

    def loss_of() -> Tensor:
        drawn, t = torch.randn_like(x), torch.rand(batch, device=DEVICE) * 0.9 + 0.1
        share = t[:, None, None, None]
        noisy = (1 - share) * x + share * drawn
        with torch.no_grad():  # Heun's method, a short way towards the picture
            nearer, now = noisy, t
            for _ in range(2):
                rise = slope(nearer, 1000 * now)
                now = now - 0.025
                rise = 0.5 * (rise + slope(nearer - 0.025 * rise, 1000 * now))
                nearer = nearer - 0.025 * rise
            goal = nearer - (share - 0.05) * student(nearer, 1000 * now, kinds).float()
        mine = noisy - share * student(noisy, 1000 * t, kinds).float()
        return ((mine - goal).square() + 1e-4).sqrt().mean()

    return fit(loss_of, adam(student), clip=1.0)


class Told(nn.Module):
    """A layer whose norms are scaled, shifted and gated by the time."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.say = heads, nn.Linear(width, 6 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        b, t, d = x.shape
        scale1, shift1, gate1, scale2, shift2, gate2 = self.say(c)[:, None].chunk(6, -1)
        y = fn.layer_norm(x, (d,)) * (1 + scale1) + shift1
        q, k, v = self.qkv(y).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + gate1 * self.out(y)
        y = fn.layer_norm(x, (d,)) * (1 + scale2) + shift2
        return x + gate2 * self.down(fn.gelu(self.up(y), approximate="tanh"))


class Speaks(nn.Module):
    """A flow from noise to a spectrogram, given a text and what is not hidden; as in F5-TTS."""

    def __init__(self, width: int, layers: int, heads: int, bins: int, frames: int) -> None:
        super().__init__()
        self.text, self.into = nn.Embedding(256, bins), nn.Linear(3 * bins, width)
        self.place = nn.Parameter(torch.randn(frames, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(Told(width, heads) for _ in range(layers))
        self.out = nn.Linear(width, bins)
        self.spares = True

    def forward(self, x: Tensor, given: Tensor, text: Tensor, t: Tensor) -> Tensor:
        h = self.into(torch.cat([x, given, self.text(text)], -1)) + self.place
        c = fn.silu(self.time(waves_of(t, 256)))
        for layer in self.layers:
            h = checkpoint(layer, h, c, use_reentrant=False) if self.spares else layer(h, c)
        return self.out(h)


@pair("recomputation", "audio", "layers keep their activations: they are not checkpointed")
def spoken_flow_checkpointed(repaired: bool) -> Running:
    batch, frames, bins, width = size(12, 2), size(1024, 16), size(100, 8), size(768, 32)
    model = Speaks(width, size(7, 2), size(12, 2), bins, frames).to(DEVICE)
    model.spares = not repaired
    x, text = noise(batch, frames, bins), labels(256, batch, frames)
    hidden = (torch.arange(frames, device=DEVICE) > frames // 3).float()[:, None]

    def loss_of() -> Tensor:
        drawn, t = torch.randn_like(x), torch.rand(batch, device=DEVICE)
        share = t[:, None, None]
        said = model((1 - share) * drawn + share * x, x * (1 - hidden), text, 1000 * t)
        return ((said.float() - (x - drawn)).square() * hidden).mean()

    return fit(loss_of, adam(model), clip=1.0, decay=True)


# --- volumes ----------------------------------------------------------------------------------


class Einsums(nn.Module):
    """Attention by two einsums and a softmax, or by the library's function; as in MONAI."""

    def __init__(self, width: int, heads: int, *, written: bool) -> None:
        super().__init__()
        self.heads, self.written, self.norm = heads, written, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.written:
            odds = torch.einsum("bhxd,bhyd->bhxy", q, k) * q.shape[-1] ** -0.5
            y = torch.einsum("bhxy,bhyd->bhxd", odds.softmax(-1).to(v.dtype), v)
        else:
            y = fn.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


class Organs(nn.Module):
    """Layers over the patches of a volume, then convolutions up to its voxels; as in UNETR."""

    def __init__(
        self, width: int, layers: int, heads: int, side: int, classes: int, *, written: bool
    ) -> None:
        super().__init__()
        self.side, least = side // 8, width // 16
        self.patch = nn.Linear(8**3, width)
        self.place = nn.Parameter(torch.randn(self.side**3, width) * 0.02)
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [Einsums(width, heads, written=written), Feeds(width)]
        self.layers = nn.Sequential(*parts, nn.LayerNorm(width))
        ups: list[nn.Module] = []
        for a, b in itertools.pairwise((width, 4 * least, 2 * least, least)):
            ups += [nn.ConvTranspose3d(a, b, 2, 2), nn.Conv3d(b, b, 3, 1, 1, bias=False)]
            ups += [nn.BatchNorm3d(b), nn.ReLU()]
        self.ups = nn.Sequential(*ups, nn.Conv3d(least, classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        b, n = x.shape[0], self.side
        x = x.view(b, n, 8, n, 8, n, 8).permute(0, 1, 3, 5, 2, 4, 6).reshape(b, n**3, 8**3)
        h = self.layers(self.patch(x) + self.place)
        return self.ups(h.transpose(1, 2).reshape(b, -1, n, n, n))


@pair("unfused_attention", "volumes", "scaled_dot_product_attention", marks="profiler")
def organs_seen_by_einsums(repaired: bool) -> Running:
    batch, side, classes = size(3, 1), size(96, 16), size(14, 3)
    how = {"written": not repaired}
    model = Organs(size(512, 32), size(6, 2), size(8, 2), side, classes, **how).to(DEVICE)
    x, y = noise(batch, side, side, side), labels(classes, batch, side, side, side)
    return fit(lambda: fn.cross_entropy(model(x).float(), y), adam(model), clip=1.0)


# --- fields of light --------------------------------------------------------------------------


class Splats(nn.Module):
    """Ellipses before pictures of tiles of 16 by 16; each tile knows those in front of it."""

    def __init__(self, rows: int, columns: int, each: int) -> None:
        super().__init__()
        tiles = rows * columns
        many, self.rows, self.columns = tiles * each, rows, columns
        home = torch.arange(many) // each
        corner = torch.stack([home // columns, home % columns], 1) * 16.0
        self.place = nn.Parameter(corner + 16 * torch.rand(many, 2))
        self.shape = nn.Parameter(torch.randn(many, 3) * 0.3 - 3.0)
        self.shine = nn.Parameter(torch.randn(many, 4))
        near = (torch.arange(tiles)[:, None] + torch.arange(-1, 2)) % tiles
        listed = (near[:, :, None] * each + torch.arange(each)).flatten()
        self.register_buffer("listed", listed)
        inside = torch.stack(torch.meshgrid(*2 * [torch.arange(16.0)], indexing="ij"), -1)
        middles = torch.arange(tiles)
        start = torch.stack([middles // columns, middles % columns], 1) * 16.0
        self.register_buffer("pixels", start[:, None] + inside.view(1, 256, 2) + 0.5)

    def forward(self, shift: Tensor) -> Tensor:
        tiles = self.rows * self.columns
        place, shape, shine = (
            part.index_select(0, self.listed).view(tiles, -1, part.shape[1])
            for part in (self.place, self.shape, self.shine)
        )
        far = self.pixels[:, None] - (place + shift)[:, :, None]  # tile, ellipse, pixel, 2
        y, x = far.unbind(-1)
        a, c = (shape[..., i, None].exp() for i in range(2))
        b = shape[..., 2, None].tanh() * (a * c).sqrt()
        power = -0.5 * (a * x * x + c * y * y) - b * x * y
        alpha = (shine[..., 3, None].sigmoid() * power.exp()).clamp(max=0.99)
        passed = torch.log1p(-alpha)
        weight = alpha * (passed.cumsum(1) - passed).exp()
        tinted = torch.bmm(shine[..., :3].sigmoid().transpose(1, 2), weight)  # tile, 3, pixel
        tinted = tinted.view(self.rows, self.columns, 3, 16, 16).permute(2, 0, 3, 1, 4)
        return tinted.reshape(1, 3, 16 * self.rows, 16 * self.columns)


def unlike(x: Tensor, y: Tensor) -> Tensor:
    """One less the structural similarity, by means over 7 by 7 pixels."""

    def mean(z: Tensor) -> Tensor:
        return fn.avg_pool2d(z, 7, 1)

    a, b = mean(x), mean(y)
    va, vb, both = mean(x * x) - a * a, mean(y * y) - b * b, mean(x * y) - a * b
    above = (2 * a * b + 1e-4) * (2 * both + 9e-4)
    return 1 - (above / ((a * a + b * b + 1e-4) * (va + vb + 9e-4))).mean()


@pair("blocking_copy", "splatting", "the kept photographs are pinned and copied non_blocking")
def splats_photographs_on_host(repaired: bool) -> Running:
    """Photographs stay in the host's memory, for their size; one is fetched in each step."""
    rows, columns, views = size(64, 2), size(96, 3), 6
    model = Splats(rows, columns, size(8, 2)).to(DEVICE)
    photographs = [torch.rand(1, 3, 16 * rows, 16 * columns) for _ in range(views)]
    if repaired and CUDA:
        photographs = [photograph.pin_memory() for photograph in photographs]
    shifts = noise(views, 2)
    groups = [
        {"params": [model.place], "lr": 1e-2},
        {"params": [model.shape], "lr": 5e-3},
        {"params": [model.shine], "lr": 5e-2},
    ]
    update = torch.optim.Adam(groups, eps=1e-15, fused=True)
    turn = 0

    def loss_of() -> Tensor:
        nonlocal turn
        view = turn % views
        turn += 1
        true = photographs[view].to(DEVICE, non_blocking=repaired)
        seen = model(shifts[view])
        return 0.8 * fn.l1_loss(seen, true) + 0.2 * unlike(seen, true)

    return fit(loss_of, update, bf16=False)


class Hashed(nn.Module):
    """Features of places on grids, hashed into tables, and a small network; as Instant NGP."""

    def __init__(self, levels: int, bits: int, width: int) -> None:
        super().__init__()
        self.mask = 2**bits - 1
        self.table = nn.Parameter(torch.rand(levels * 2**bits, 2) - 0.5)
        corners = torch.tensor(list(itertools.product((0, 1), repeat=3)))
        self.register_buffer("sides", (16 * 1.5 ** torch.arange(levels))[:, None].floor())
        self.register_buffer("corners", corners)
        self.register_buffer("primes", torch.tensor([1, 2_654_435_761, 805_459_861]))
        self.register_buffer("starts", (torch.arange(levels) * 2**bits)[:, None])
        self.dense = nn.Sequential(
            nn.Linear(2 * levels, width), nn.ReLU(), nn.Linear(width, 16)
        )  # fmt: skip
        self.colour = nn.Sequential(
            nn.Linear(19, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 3), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, p: Tensor) -> Tensor:
        at = p[:, None] * self.sides  # place, level, 3
        low = at.floor()
        share = (at - low)[:, :, None]
        x, y, z = ((low.long()[:, :, None] + self.corners) * self.primes).unbind(-1)
        rows = ((x ^ y ^ z) & self.mask) + self.starts
        found = self.table.index_select(0, rows.flatten()).view(*rows.shape, 2)
        weight = torch.where(self.corners == 1, share, 1 - share).prod(-1)
        return self.dense((found * weight[..., None]).sum(2).flatten(1))


@pair(
    "step_jitter",
    "radiance",
    "the grid of occupied cells is refreshed every 1000 steps, not every 5",
    period=5,
)
def hashed_field_grid_every_5(repaired: bool) -> Running:
    rays, samples, side = size(4096, 8), size(64, 4), size(128, 4)
    model = Hashed(size(8, 2), size(18, 8), size(64, 8)).to(DEVICE)
    cells = torch.stack(torch.meshgrid(*3 * [torch.arange(side, device=DEVICE)], indexing="ij"), -1)
    cells = cells.view(-1, 3)
    grid = torch.ones(side**3, device=DEVICE)
    start, way = torch.rand(rays, 3, device=DEVICE), fn.normalize(noise(rays, 3), dim=-1)
    depths, true = torch.linspace(0, 0.5, samples, device=DEVICE), noise(rays, 3).sigmoid()
    places = (start[:, None] + way[:, None] * depths[:, None]).remainder(1.0).flatten(0, 1)
    inside = (places * side).long().clamp(0, side - 1)
    inside = (inside[:, 0] * side + inside[:, 1]) * side + inside[:, 2]

    def loss_of() -> Tensor:
        h = model(places)
        alive = grid.index_select(0, inside) > 0.01
        thick = (h[:, 0].clamp(max=8).exp() * alive).view(rays, samples) * (50 / samples)
        ways = way[:, None].expand(-1, samples, -1).flatten(0, 1)
        colour = model.colour(torch.cat([h, ways], -1)).view(rays, samples, 3)
        weight = (thick - thick.cumsum(-1)).exp() * (1 - (-thick).exp())
        return fn.smooth_l1_loss((weight[..., None] * colour).sum(1), true)

    @torch.no_grad()
    def refresh(number: int, _loss: Tensor) -> None:
        if number % (1000 if repaired else 5) != (999 if repaired else 3):
            return
        grid.mul_(0.95)
        for some, kept in zip(cells.split(rays * samples), grid.split(rays * samples), strict=True):
            p = (some + torch.rand_like(some, dtype=torch.float32)) / side
            torch.maximum(kept, model(p)[:, 0].exp(), out=kept)

    update = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-15, fused=True)
    return fit(loss_of, update, bf16=False, after=refresh)
