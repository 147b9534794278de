"""What the jobs of the eleventh set are made of: their models, data, and how work is dealt out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from job_programs import DEVICE, RANK, WORLD, Exchange
from models import Attends, Feeds, transformer_layers
from program import SMALL
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import Dataset

SHORT = torch.float32 if SMALL else torch.bfloat16
"""What is computed without autocast, and what travels: gloo sums no 16-bit numbers everywhere."""


def heads_of(width: int) -> int:
    return width // 64 or 1


def layers_of(width: int, layers: int) -> nn.Sequential:
    """Transformer layers that look in both directions."""
    return nn.Sequential(*transformer_layers(width, layers, heads_of(width)))


# --- a voice, and how far it is from the true one ---------------------------------------------


class Voice(nn.Module):
    """Spectra from phones: each frame says which phone it belongs to."""

    def __init__(self, phones: int, bands: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(phones, width)
        self.near = nn.Conv1d(width, width, 3, 1, 1)
        self.layers = layers_of(width, layers)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, bands)

    def forward(self, phones: Tensor) -> Tensor:
        h = self.embed(phones)
        h = h + self.near(h.transpose(1, 2)).transpose(1, 2)
        return self.out(self.norm(self.layers(h)))


def warped_distance(said: np.ndarray[Any, Any], true: np.ndarray[Any, Any]) -> float:
    """Mean distance of two sequences of spectra along the best way through both."""
    cost = np.sqrt(np.square(said[:, None] - true[None]).sum(-1))
    n, m = cost.shape
    tilted = cost[:, ::-1]
    # cells of an antidiagonal depend on the two before it only; index: row + 1
    last = np.full(n + 1, np.inf)
    before = np.full(n + 1, np.inf)
    before[0] = 0.0
    for line in range(n + m - 1):
        first = max(0, line - m + 1)
        cells = tilted.diagonal(m - 1 - line)
        end = first + len(cells)
        now = np.full(n + 1, np.inf)
        best = np.minimum(last[first:end], last[first + 1 : end + 1])
        now[first + 1 : end + 1] = cells + np.minimum(best, before[first:end])
        before, last = last, now
    return float(last[n]) / (n + m)


# --- a game -----------------------------------------------------------------------------------


class Twice(nn.Module):
    """Two convolutions beside which the input goes by."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, 1, 1)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(fn.relu(self.conv1(fn.relu(x))))


class Values(nn.Module):
    """What each action is worth, from the last pictures of a game."""

    def __init__(self, side: int, width: int, actions: int) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            nn.Conv2d(4, width, 4, 2, 1),
            Twice(width),
            Twice(width),
            nn.Conv2d(width, 2 * width, 3, 2, 1),
            Twice(2 * width),
            Twice(2 * width),
            Twice(2 * width),
            nn.AvgPool2d(4),
            nn.Flatten(),
            nn.ReLU(),
        )
        out = 2 * width * (side // 16) ** 2
        self.worth, self.better = nn.Linear(out, 1), nn.Linear(out, actions)

    def forward(self, pictures: Tensor) -> Tensor:
        h = self.parts(pictures)
        better = self.better(h)
        return self.worth(h) + better - better.mean(1, keepdim=True)


# --- texts of several lengths, without padding ------------------------------------------------


class Groups:
    """Texts, those of a length beside each other.

    Args:
        texts: for each length, how many texts this rank has of it.
    """

    def __init__(self, texts: Sequence[tuple[int, int]]) -> None:
        self.shapes = [(rows, length) for length, rows in texts if rows]
        self.each = [rows * length for rows, length in self.shapes]
        places = [torch.arange(length).repeat(rows) for rows, length in self.shapes]
        self.places = torch.cat(places).to(DEVICE)
        self.tokens = sum(self.each)


class Packed(nn.Module):
    """A language model that has all tokens of a batch in one row, and looks within each text."""

    def __init__(self, vocab: int, width: int, layers: int, longest: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(longest, width)
        self.looks = nn.ModuleList(Attends(width, heads_of(width)) for _ in range(layers))
        self.feeds = nn.ModuleList(Feeds(width) for _ in range(layers))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, text: Tensor, groups: Groups) -> Tensor:
        h = self.embed(text) + self.place(groups.places)
        for look, feed in zip(self.looks, self.feeds, strict=True):
            h = feed(h + look.out(self.seen(look, look.qkv(look.norm(h)), groups)))
        return self.out(self.norm(h))

    @staticmethod
    def seen(look: Any, qkv: Tensor, groups: Groups) -> Tensor:
        found = []
        for part, (rows, length) in zip(qkv.split(groups.each), groups.shapes, strict=True):
            q, k, v = part.view(rows, length, 3, look.heads, -1).permute(2, 0, 3, 1, 4)
            y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
            found.append(y.transpose(1, 2).flatten(2).flatten(0, 1))
        return found[0] if len(found) == 1 else torch.cat(found)


# --- frames of sound and their experts --------------------------------------------------------


class Routes:
    """How a rank's frames travel to the experts, one on each rank, and back.

    Args:
        chosen: the expert of each frame, for all ranks.
    """

    def __init__(self, chosen: Sequence[np.ndarray[Any, Any]]) -> None:
        counts = np.stack([np.bincount(one, minlength=WORLD) for one in chosen])
        order = np.argsort(chosen[RANK], kind="stable")
        self.order = torch.from_numpy(order).to(DEVICE)
        self.back = torch.from_numpy(np.argsort(order)).to(DEVICE)
        self.sent = [int(n) for n in counts[RANK]]
        self.got = [int(n) for n in counts[:, RANK]]


def within_capacity(chosen: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Frames for which an expert has no room go to those that have some."""
    room = len(chosen) // WORLD
    kept = chosen.copy()
    places = [np.flatnonzero(chosen == expert) for expert in range(WORLD)]
    over = np.concatenate([place[room:] for place in places])
    free = np.repeat(np.arange(WORLD), [max(0, room - len(place)) for place in places])
    kept[over[: len(free)]] = free
    return kept


class Heard(nn.Module):
    """Layers of attention that all ranks have, and experts that are dealt out over the ranks.

    Args:
        own: for each layer this rank's expert; not among the model's parameters, so that
            DistributedDataParallel leaves it alone.
    """

    def __init__(self, bands: int, width: int, units: int, own: list[nn.Module]) -> None:
        super().__init__()
        self.into, self.own = nn.Linear(bands, width), own
        self.looks = nn.ModuleList(Attends(width, heads_of(width)) for _ in own)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, units)

    def forward(self, frames: Tensor, routes: Routes) -> Tensor:
        h = self.into(frames)
        for look, expert in zip(self.looks, self.own, strict=True):
            h = look(h)
            y = h.flatten(0, 1).to(SHORT).index_select(0, routes.order)
            there = expert(Exchange.apply(y, routes.sent, routes.got)).to(SHORT)
            y = Exchange.apply(there, routes.got, routes.sent)
            h = h + y.index_select(0, routes.back).view(h.shape)
        return self.out(self.norm(h))


# --- communication ----------------------------------------------------------------------------


class Filled(nn.Module):
    """What seismographs that were silent would have recorded, from their neighbours."""

    def __init__(self, samples: int, places: int, width: int, layers: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(samples, width), nn.Linear(width, samples)
        self.place = nn.Parameter(0.02 * torch.randn(places, width))
        self.layers, self.norm = layers_of(width, layers), nn.LayerNorm(width)

    def forward(self, traces: Tensor) -> Tensor:
        return self.out(self.norm(self.layers(self.into(traces) + self.place)))


class Sentences(nn.Module):
    """One vector for a sentence of any of many languages: most weights are in the vocabulary."""

    def __init__(self, vocab: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(vocab, width), layers_of(width, layers)
        self.norm = nn.LayerNorm(width)

    def forward(self, text: Tensor) -> Tensor:
        return fn.normalize(self.norm(self.layers(self.embed(text))).mean(1).float(), dim=-1)


class Mixing(nn.Module):
    """A layer that mixes places, then channels; as in MLP-Mixer."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.up1, self.down1 = nn.Linear(places, 2 * places), nn.Linear(2 * places, places)
        self.feeds = Feeds(width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x).transpose(1, 2)
        return self.feeds(x + self.down1(fn.gelu(self.up1(h))).transpose(1, 2))


class Mixer(nn.Module):
    """Pictures without attention or convolutions."""

    def __init__(self, places: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.into = nn.Linear(768, width)
        self.layers = nn.Sequential(*(Mixing(places, width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, patches: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.into(patches))).mean(1))


class FlatWeights:
    """All weights in one tensor; each rank updates a part of them in single precision; as in ZeRO.

    Args:
        model: in 16 bit; its parameters become views.
        travels: what gradients and weights are sent as.
    """

    def __init__(self, model: nn.Module, travels: torch.dtype) -> None:
        self.parts, self.travels = list(model.parameters()), travels
        numbers = [p.numel() for p in self.parts]
        whole = -(-sum(numbers) // WORLD) * WORLD  # equal parts
        self.flat = torch.zeros(whole, device=DEVICE, dtype=SHORT)
        self.rest = self.flat.new_zeros(whole - sum(numbers))
        views = self.flat[: sum(numbers)].split(numbers)
        for p, view in zip(self.parts, views, strict=True):
            view.copy_(p.detach().flatten())
            p.data = view.view_as(p)
        self.mine = nn.Parameter(self.flat.chunk(WORLD)[RANK].float())

    def summed(self) -> None:
        """The sum of all ranks' gradients for this rank's part of the weights."""
        grads = [p.grad.flatten() for p in self.parts if p.grad is not None]
        every = torch.cat([*grads, self.rest]).to(self.travels)
        for p in self.parts:
            p.grad = None
        mine = every.new_empty(len(self.mine))
        dist.reduce_scatter_tensor(mine, every)
        self.mine.grad = mine.float()

    @torch.no_grad()
    def gathered(self) -> None:
        """All ranks get all weights, as they are now."""
        mine = self.mine.detach().to(self.travels)
        if self.travels is self.flat.dtype:
            dist.all_gather_into_tensor(self.flat, mine)
            return
        every = mine.new_empty(len(self.flat))
        dist.all_gather_into_tensor(every, mine)
        self.flat.copy_(every)


# --- pictures from noise ----------------------------------------------------------------------


class Cleaned(nn.Module):
    """A convolution after a norm and the noise's level, twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        groups = min(32, width // 2)
        self.norm1, self.norm2 = nn.GroupNorm(groups, width), nn.GroupNorm(groups, width)
        self.conv1 = nn.Conv2d(width, width, 3, 1, 1)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1)
        self.level = nn.Linear(1, width)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        h = self.conv1(fn.silu(self.norm1(x))) + self.level(level)[:, :, None, None]
        return x + self.conv2(fn.silu(self.norm2(h)))


class Clean(nn.Module):
    """Two levels of convolutions: down, and up again."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, 3, 3, 1, 1)
        self.down = nn.Conv2d(width, 2 * width, 2, 2)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.before = nn.ModuleList(Cleaned(width) for _ in range(blocks))
        self.inside = nn.ModuleList(Cleaned(2 * width) for _ in range(2 * blocks))
        self.after = nn.ModuleList(Cleaned(width) for _ in range(blocks))

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        h = self.first(x)
        for layer in self.before:
            h = layer(h, level)
        low = self.down(h)
        for layer in self.inside:
            low = layer(low, level)
        h = h + self.up(low)
        for layer in self.after:
            h = layer(h, level)
        return self.last(h)


# --- who speaks -------------------------------------------------------------------------------


class Rooms(Dataset[tuple[Tensor, int]]):
    """Voices as they sound in other rooms, with noise of another loudness each time.

    Args:
        samples: of a voice; half as many of a room's echo.
    """

    def __init__(self, samples: int, speakers: int) -> None:
        rng = np.random.default_rng(3)
        self.samples, self.speakers = samples, speakers
        self.voices = rng.standard_normal((64, samples)).astype(np.float32)
        fading = np.exp(-np.arange(samples // 2) / (samples / 12))
        self.echoes = (rng.standard_normal((16, samples // 2)) * fading).astype(np.float32)
        self.whole = 1 << (samples + samples // 2 - 1).bit_length()

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng((RANK, number))
        voice = self.voices[rng.integers(len(self.voices))]
        echo = self.echoes[rng.integers(len(self.echoes))]
        both = np.fft.rfft(voice, self.whole) * np.fft.rfft(echo, self.whole)
        heard = np.fft.irfft(both, self.whole)[: self.samples].astype(np.float32)
        noise = rng.standard_normal(self.samples, dtype=np.float32)
        heard += noise * (heard.std() * 10.0 ** -rng.uniform(0.25, 1.0))
        return torch.from_numpy(heard / np.abs(heard).max()), number % self.speakers


class Speakers(nn.Module):
    """Whose voice it is, from pieces of the sound."""

    def __init__(self, piece: int, places: int, width: int, layers: int, speakers: int) -> None:
        super().__init__()
        self.piece, self.into = piece, nn.Linear(piece, width)
        self.place = nn.Parameter(0.02 * torch.randn(places, width))
        self.layers, self.norm = layers_of(width, layers), nn.LayerNorm(width)
        self.head = nn.Linear(width, speakers)

    def forward(self, sound: Tensor) -> Tensor:
        h = self.into(sound.unflatten(1, (-1, self.piece))) + self.place
        return self.head(self.norm(self.layers(h)).mean(1))
