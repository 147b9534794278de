"""The models of the jobs of the tenth set."""

from __future__ import annotations

import torch
from job_programs import LAST, RANK
from models import Attends, Feeds, transformer_layers
from torch import Tensor, nn
from torch.nn import functional as fn


class Along(nn.Module):
    """A layer over the places of a globe: each looks along its meridian or its parallel."""

    def __init__(self, width: int, *, meridian: bool) -> None:
        super().__init__()
        self.meridian = meridian
        self.looks, self.feeds = Attends(width, width // 64 or 1), Feeds(width)

    def forward(self, x: Tensor) -> Tensor:
        b, rows, columns, w = x.shape
        lines = x.transpose(1, 2) if self.meridian else x
        y = self.looks(lines.reshape(-1, lines.shape[2], w))
        if self.meridian:
            y = y.view(b, columns, rows, w).transpose(1, 2)
        return self.feeds(y.reshape(b, rows, columns, w))


class Weather(nn.Module):
    """Fields over the globe six hours later; as Pangu-Weather and its like."""

    def __init__(self, fields: int, width: int, layers: int, shape: tuple[int, int]) -> None:
        super().__init__()
        self.patch = nn.Conv2d(fields, width, 2, 2)
        self.place = nn.Parameter(0.02 * torch.randn(*shape, width))
        self.layers = nn.ModuleList(Along(width, meridian=n % 2 == 1) for n in range(layers))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 4 * fields)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).permute(0, 2, 3, 1)
        h = h + self.place.to(h.dtype)
        for layer in self.layers:
            h = layer(h)
        return self.out(self.norm(h))


class Macaron(nn.Module):
    """Attention between two wide products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = Feeds(width), Feeds(width)
        self.looks, self.norm = Attends(width, width // 64 or 1), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.after(self.looks(self.before(x))))


class SpeechStage(nn.Module):
    """A part of an encoder of speech: the first one hears, the last one names units of sound."""

    def __init__(self, bands: int, width: int, layers: int, units: int) -> None:
        super().__init__()
        parts: list[nn.Module] = [Macaron(width) for _ in range(layers)]
        if RANK == 0:
            parts.insert(0, nn.Linear(bands, width))
        if RANK == LAST:
            parts.append(nn.Linear(width, units))
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


class Fields(nn.Module):
    """A U-Net of three levels that names what grows where in pictures of many bands."""

    def __init__(self, bands: int, width: int, classes: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.stem = nn.Conv2d(bands, width, 3, 2, 1, bias=False)
        self.downs = nn.ModuleList(self.twice(w, w) for w in widths)
        self.steps = nn.ModuleList(nn.Conv2d(w, 2 * w, 2, 2, bias=False) for w in widths[:-1])
        self.rises = nn.ModuleList(
            nn.ConvTranspose2d(2 * w, w, 2, 2, bias=False) for w in widths[:-1]
        )
        self.ups = nn.ModuleList(self.twice(2 * w, w) for w in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def twice(self, before: int, after: int) -> nn.Module:
        parts: list[nn.Module] = []
        for channels in (before, after, after):
            parts += [
                nn.Conv2d(channels, after, 3, 1, 1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(inplace=True),
            ]
        return nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        h, kept = self.stem(x), []
        for number, down in enumerate(self.downs):
            h = down(h)
            if number < len(self.steps):
                kept.append(h)
                h = self.steps[number](h)
        for number in reversed(range(len(self.ups))):
            h = self.ups[number](torch.cat([self.rises[number](h), kept[number]], 1))
        return self.head(h)


class Values(nn.Module):
    """What each action is worth, in quantiles, from pictures."""

    def __init__(self, width: int, blocks: int, actions: int, quantiles: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, width, 3, 2, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1),
                nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1),
            )
            for _ in range(blocks)
        )  # fmt: skip
        self.wide, self.worth = nn.LazyLinear(512), nn.Linear(512, actions * quantiles)
        self.shape = (actions, quantiles)

    def forward(self, seen: Tensor) -> Tensor:
        h = self.stem(seen.to(memory_format=torch.channels_last).float() / 255.0)
        for block in self.blocks:
            h = h + block(h)
        h = fn.relu(self.wide(fn.max_pool2d(h, 3).flatten(1)))
        return self.worth(h).unflatten(1, self.shape).float()


class Timed(nn.Module):
    """Two convolutions; the time shifts and scales what is between them."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, before), nn.GroupNorm(8, after)
        self.conv1 = nn.Conv2d(before, after, 3, 1, 1)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1)
        self.short = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        self.when = nn.Linear(64, 2 * after)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(fn.silu(self.norm1(x)))
        scale, shift = self.when(t)[:, :, None, None].chunk(2, 1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.short(x) + self.conv2(fn.silu(h))


class Denoised(nn.Module):
    """A U-Net of three levels over pictures in a latent space."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 2 * width]
        self.first, self.last = nn.Conv2d(4, width, 3, 1, 1), nn.Conv2d(width, 4, 3, 1, 1)
        before = [width, *widths[:-1]]
        pairs = list(zip(before, widths, strict=True))
        self.downs = nn.ModuleList(Timed(b, w) for b, w in pairs)
        self.more = nn.ModuleList(Timed(w, w) for w in widths)
        self.ups = nn.ModuleList(Timed(2 * w, b) for b, w in reversed(pairs))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(torch.arange(32, device=x.device) * -0.28)
        when = torch.cat([angles.sin(), angles.cos()], 1)
        h, kept = self.first(x), []
        for down, more in zip(self.downs, self.more, strict=True):
            h = more(down(h, when), when)
            kept.append(h)
            h = fn.avg_pool2d(h, 2)
        for up in self.ups:
            h = fn.interpolate(h, scale_factor=2.0)
            h = up(torch.cat([h, kept.pop()], 1), when)
        return self.last(h)


class Molecules(nn.Module):
    """Atoms look at each other, the less the more bonds are between them."""

    def __init__(self, kinds: int, width: int, layers: int) -> None:
        super().__init__()
        self.heads = width // 64 or 1
        self.atom, self.degree = nn.Embedding(kinds, width), nn.Embedding(16, width)
        slopes = 2.0 ** -torch.arange(1, self.heads + 1)
        self.register_buffer("slopes", slopes[:, None, None])
        parts = transformer_layers(width, layers, self.heads)
        self.looks, self.feeds = nn.ModuleList(parts[::2]), nn.ModuleList(parts[1::2])
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 12)

    def forward(self, atoms: Tensor, degrees: Tensor, distances: Tensor) -> Tensor:
        x = self.atom(atoms) + self.degree(degrees)
        bias = (-self.slopes * distances[:, None]).to(torch.bfloat16)
        for look, feed in zip(self.looks, self.feeds, strict=True):
            x = feed(look(x, bias))
        return self.out(self.norm(x).mean(1))


class Kinds(nn.Module):
    """A convolution cuts patches, and attention looks at them."""

    def __init__(self, side: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.place = nn.Parameter(0.02 * torch.randn(1, (side // 8) ** 2, width))
        self.layers = nn.Sequential(*transformer_layers(width, layers, width // 64 or 1))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.layers(h + self.place).mean(1))
