"""A fifteenth set for one GPU: nine programs after well-known code bases, each with small flaws.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Attends, Feeds, precision, size, transformer_layers
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, Sampler

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 276 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
SHORT = torch.bfloat16


# --- a small language model, in record time ---------------------------------------------------


def orthogonal(gradient: Tensor) -> Tensor:
    """The nearest matrix with orthogonal rows, by five steps of Newton and Schulz."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = gradient.shape[0] > gradient.shape[1]
    x = gradient.T if tall else gradient
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        mixed = torch.addmm(square, square, square, beta=b, alpha=c)
        x = torch.addmm(x, mixed, x, beta=a)
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal; for matrices only."""

    def __init__(
        self, weights: Iterable[Tensor], lr: float = 0.002, momentum: float = 0.95
    ) -> None:
        super().__init__(weights, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["mean"] = torch.zeros_like(weight)
                state["mean"].lerp_(weight.grad, 1 - group["momentum"])
                ahead = weight.grad.lerp(state["mean"], group["momentum"])
                rate = group["lr"] * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
                weight.add_(orthogonal(ahead), alpha=-rate)


class Turned(nn.Module):
    """A layer of a language model: places turn queries and keys, the activation is squared."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.qkv, self.out = (
            nn.Linear(width, n * width, bias=False) for n in (3, 1)
        )  # fmt: skip
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, d = x.shape
        qkv = self.qkv(fn.rms_norm(x, (d,))).view(b, t, 3, self.heads, -1).transpose(1, 3)
        both, v = qkv[:, :, :2], qkv[:, :, 2]
        first, second = both.chunk(2, -1)
        both = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
        q, k = both.unbind(2)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(fn.relu(self.up(fn.rms_norm(x, (d,)))).square())


class Speedy(nn.Module):
    """Next tokens."""

    def __init__(self, vocab: int, width: int, heads: int, layers: int, long: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Turned(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocab, bias=False)
        half = width // heads // 2
        angles = torch.arange(long)[:, None] * 10_000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos().to(SHORT), persistent=False)
        self.register_buffer("sin", angles.sin().to(SHORT), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = fn.rms_norm(self.embed(tokens).to(SHORT), (self.embed.embedding_dim,))
        for layer in self.layers:
            h = layer(h, self.cos, self.sin)
        return self.head(h)


@pair(
    "low_precision_unused",
    "language",
    "the optimizer's matrices, which autocast does not reach, are multiplied in TF32",
    others=("fused_optimizer",),
    marks="steps",
)
def record_runs_orthogonal_updates(repaired: bool) -> Running:
    """The forward pass is under autocast; who thinks of products in an optimizer?"""
    batch, long, vocab = size(16, 2), size(1024, 12), size(8192, 40)
    model = Speedy(vocab, size(1792, 32), size(14, 2), size(2, 1), long).to(DEVICE)
    matrices = Muon(model.layers.parameters())
    rest = torch.optim.AdamW([model.embed.weight, model.head.weight], lr=1e-3)
    text = labels(vocab, batch, long + 1)

    def step() -> None:
        with torch.autocast(DEVICE.type, SHORT):
            logits = model(text[:, :-1])
            loss = fn.cross_entropy(logits.float().flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        for update in (matrices, rest):
            update.step()
            update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high" if repaired else "highest"))


# --- pictures out of noise, all of one magnitude ----------------------------------------------


def joined(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A sum that keeps its magnitude, each pixel then of length 1; and it, activated."""
    h = (0.7 * x.float() + 0.3 * y.float()) / math.sqrt(0.7**2 + 0.3**2)
    h = h / (h.square().mean(1, keepdim=True).sqrt() + 1e-4)
    active = fn.silu(h) / 0.596
    return h.to(x.dtype), active.to(x.dtype)


def modulated(y: Tensor, gain: Tensor) -> Tensor:
    return fn.silu(y * gain) / 0.596


class Magnitudes(nn.Module):
    """Two convolutions, between which the level of noise says what matters."""

    def __init__(self, width: int, known: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.gain = nn.Linear(known, width)


class Preserving(nn.Module):
    """A network of two resolutions; as in EDM2, without its attention."""

    def __init__(self, width: int, known: int, blocks: int, *, merged: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, width, 3, 1, 1)
        self.level = nn.Linear(1, known)
        self.fine = nn.ModuleList(Magnitudes(width, known) for _ in range(blocks))
        self.coarser = nn.Conv2d(width, 2 * width, 2, 2, bias=False)
        self.coarse = nn.ModuleList(Magnitudes(2 * width, known) for _ in range(blocks))
        self.finer = nn.ConvTranspose2d(2 * width, width, 2, 2, bias=False)
        self.last = nn.Conv2d(width, 4, 3, 1, 1)
        self.joined: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = joined
        self.modulated: Callable[[Tensor, Tensor], Tensor] = modulated
        if merged:
            self.joined = torch.compile(joined, dynamic=False)
            self.modulated = torch.compile(modulated, dynamic=False)

    def walked(self, blocks: nn.ModuleList, x: Tensor, known: Tensor) -> Tensor:
        active = fn.silu(x)
        for block in blocks:
            assert isinstance(block, Magnitudes)
            gain = block.gain(known)[:, :, None, None]
            y = block.conv2(self.modulated(block.conv1(active), gain))
            x, active = self.joined(x, y)
        return active

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        known = fn.silu(self.level(sigma.log().to(x.dtype)[:, None] / 4))
        fine = self.walked(self.fine, self.first(x), known)
        coarse = self.walked(self.coarse, self.coarser(fine), known)
        return self.last(fine + self.finer(coarse))


@pair(
    "fusion_opportunity",
    "diffusion",
    "torch.compile of the two functions that keep magnitudes",
    compiles=True,
)
def magnitudes_kept_in_float_compile(repaired: bool) -> Running:
    batch, side = size(48, 2), size(64, 8)
    model = Preserving(size(256, 8), size(512, 8), size(2, 1), merged=repaired)
    model = model.to(DEVICE, SHORT, memory_format=torch.channels_last)
    weights = list(model.parameters())
    average = [weight.detach().clone() for weight in weights]
    clean = noise(batch, 4, side, side)

    def loss_of() -> Tensor:
        sigma = torch.exp(torch.randn(batch, device=DEVICE) - 0.4)
        level = sigma[:, None, None, None]
        noisy = (clean + level * torch.randn_like(clean)) / (1 + level.square()).sqrt()
        found = model(noisy.to(SHORT, memory_format=torch.channels_last), sigma)
        return (found.float() - clean).square().mean()

    def averaged(_made: int, _loss: Tensor) -> None:
        torch._foreach_lerp_(average, [weight.detach() for weight in weights], 1e-2)

    return fit(loss_of, adam(model), bf16=False, after=averaged)


# --- what was said, by hearing half a minute --------------------------------------------------


class Listens(nn.Module):
    """Attention of one sequence to another, or to itself."""

    def __init__(self, width: int, heads: int, *, written: bool) -> None:
        super().__init__()
        self.heads, self.written, self.norm = heads, written, nn.LayerNorm(width)
        self.query, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor, other: Tensor | None = None, *, causal: bool = False) -> Tensor:
        b, t, d = x.shape
        h = self.norm(x)
        other = h if other is None else other
        q, k, v = (
            part.view(b, -1, self.heads, d // self.heads).transpose(1, 2)
            for part in (self.query(h), self.key(other), self.value(other))
        )
        if self.written:
            # both are scaled, so that products stay in the range of FP16
            scale = (d // self.heads) ** -0.25
            scores = (q * scale) @ (k * scale).transpose(-1, -2)
            if causal:
                scores = scores + torch.full((t, t), -math.inf, device=x.device).triu_(1)
            y = scores.float().softmax(-1).to(v.dtype) @ v
        else:
            y = fn.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


class Thinks(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(fn.gelu(self.up(self.norm(x))))


class Transcriber(nn.Module):
    """An encoder of spectrograms and a decoder of words; as Whisper is."""

    def __init__(
        self, bands: int, width: int, heads: int, vocab: int, words: int, *, written: bool
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(bands, width, 3, 1, 1)
        self.conv2 = nn.Conv1d(width, width, 3, 2, 1)
        self.hears = nn.ModuleList(Listens(width, heads, written=written) for _ in range(2))
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(words, width)
        self.reads = nn.ModuleList(Listens(width, heads, written=written) for _ in range(2))
        self.asks = nn.ModuleList(Listens(width, heads, written=written) for _ in range(2))
        self.thinks = nn.ModuleList(Thinks(width) for _ in range(4))
        self.heard, self.said = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, sound: Tensor, text: Tensor) -> Tensor:
        h = fn.gelu(self.conv2(fn.gelu(self.conv1(sound)))).transpose(1, 2)
        for hears, thinks in zip(self.hears, self.thinks[:2], strict=True):
            h = thinks(hears(h))
        h = self.heard(h)
        x = self.embed(text) + self.place.weight[: text.shape[1]]
        for reads, asks, thinks in zip(self.reads, self.asks, self.thinks[2:], strict=True):
            x = thinks(asks(reads(x, causal=True), h))
        return self.said(x) @ self.embed.weight.T


@pair(
    "unfused_attention",
    "audio",
    "scaled_dot_product_attention, where scores were made for the times of words nobody asks for",
    others=("aligned_shapes",),
)
def transcripts_scores_for_times_of_words(repaired: bool) -> Running:
    """Trained further in BF16. The vocabulary has 51865 words, which is odd."""
    batch, frames, words = size(6, 2), size(3000, 24), size(448, 8)
    bands, vocab = size(80, 8), size(51_865, 65)
    model = Transcriber(bands, size(2048, 16), size(16, 2), vocab, words, written=not repaired).to(
        DEVICE, SHORT
    )
    nn.init.normal_(model.embed.weight, std=0.02)
    sound, text = noise(batch, bands, frames).to(SHORT), labels(vocab, batch, words + 1)

    def loss_of() -> Tensor:
        logits = model(sound, text[:, :-1])
        return fn.cross_entropy(logits.float().flatten(0, 1), text[:, 1:].flatten())

    return fit(loss_of, adam(model), bf16=False, clip=1.0, decay=True)


# --- a picture model is trained further, at a rate that nobody chose --------------------------


class Prodigal(torch.optim.Optimizer):
    """Adam, at a rate that it estimates: how far the weights went, and how far they could have.

    ``asks`` has the two sums as numbers, as the paper's code has; else they stay on the device.
    """

    def __init__(self, weights: Iterable[Tensor], *, asks: bool, d0: float = 1e-4) -> None:
        super().__init__(weights, {"lr": 1.0})
        self.asks = asks
        self.d: Any = d0 if asks else torch.full((), d0, device=DEVICE)
        self.far: Any = 0.0 if asks else torch.zeros((), device=DEVICE)

    def number(self, value: Tensor) -> Any:
        return value.item() if self.asks else value

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        first, second = 0.9, 0.99
        (group,) = self.param_groups
        d, possible = self.d, 0.0
        self.far = self.far * second**0.5
        for weight in group["params"]:
            state = self.state[weight]
            if not state:
                state["start"] = weight.clone()
                for name in ("mean", "square", "sum"):
                    state[name] = torch.zeros_like(weight)
            gradient = weight.grad
            went = torch.dot(gradient.flatten(), (state["start"] - weight).flatten())
            self.far = self.far + d * self.number(went)
            scaled = gradient * d
            state["mean"].mul_(first).add_(scaled, alpha=1 - first)
            state["square"].mul_(second).addcmul_(scaled, scaled, value=1 - second)
            state["sum"].mul_(second**0.5).add_(scaled, alpha=group["lr"])
            possible = possible + self.number(state["sum"].abs().sum())
        found = self.far / (possible + 1e-30)
        self.d = max(d, found) if self.asks else torch.maximum(d, found)
        rate = self.d * group["lr"]
        for weight in group["params"]:
            state = self.state[weight]
            spread = state["square"].sqrt().add_(1e-8)
            weight.sub_((state["mean"] / spread).mul_(rate))


class Streams(nn.Module):
    """A layer of a diffusion transformer; its norms are moved by the time."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        b, t, d = x.shape
        h = fn.layer_norm(x, (d,)) + shift
        q, k, v = (
            part(h).view(b, t, self.heads, -1).transpose(1, 2)
            for part in (self.to_q, self.to_k, self.to_v)
        )
        y = fn.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(fn.gelu(self.up(fn.layer_norm(x, (d,)) + shift)))


@pair(
    "host_sync",
    "diffusion",
    "the optimizer's two sums stay on the device, and the rate with them",
    others=("unfused_optimizer",),
)
def pictures_at_rate_that_optimizer_finds(repaired: bool) -> Running:
    """What leads into the layers and out of them stays as it was."""
    batch, places, width, inside = size(14, 2), size(1024, 8), size(2048, 16), size(64, 8)
    into, out, late = nn.Linear(inside, width), nn.Linear(width, inside), nn.Linear(1, width)
    nn.ModuleList([into, out, late]).to(DEVICE).requires_grad_(False)
    layers = nn.ModuleList(Streams(width, size(16, 2)) for _ in range(2)).to(DEVICE)
    clean = noise(batch, places, inside)

    def loss_of() -> Tensor:
        time = torch.rand(batch, 1, 1, device=DEVICE)
        other = torch.randn_like(clean)
        h, shift = into(clean.lerp(other, time)), late(time)
        for layer in layers:
            h = layer(h, shift)
        return (out(h).float() - (other - clean)).square().mean()

    return fit(loss_of, Prodigal(layers.parameters(), asks=not repaired))


# --- related proteins, one below the other ----------------------------------------------------


class Axial(nn.Module):
    """Each sequence looks along itself, then each column at all sequences."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.along, self.across = Attends(width, heads), Attends(width, heads)
        self.feeds = Feeds(width)

    def forward(self, x: Tensor) -> Tensor:
        b, rows, columns, d = x.shape
        x = self.along(x.flatten(0, 1)).view(b, rows, columns, d)
        turned = self.across(x.transpose(1, 2).reshape(b * columns, rows, d))
        return self.feeds(turned.view(b, columns, rows, d).transpose(1, 2).contiguous())


@pair(
    "blocking_copy",
    "science",
    "the alignments are loaded and page-locked once, not mapped; nobody waits for a copy",
    marks="phases",
)
def alignments_mapped_from_their_file(repaired: bool) -> Running:
    """What a language model said of each residue was stored, a tensor for a few alignments."""
    batch, rows, columns, inside = size(2, 1), size(96, 4), size(512, 8), size(160, 8)
    chunks, kinds = 3, 21
    some = torch.randn(batch, rows, columns, inside)
    # its name can go: what is mapped stays until nobody maps it
    with tempfile.TemporaryDirectory(prefix="alignments") as folder:
        path = Path(folder) / "features.pt"
        torch.save({"features": torch.stack([some.roll(n, 1) for n in range(chunks)])}, path)
        features = torch.load(path, mmap=not repaired)["features"]
    if repaired and CUDA:
        features = features.pin_memory()
    width = size(384, 16)
    into, out = nn.Linear(inside, width), nn.Linear(width, kinds)
    layers = nn.Sequential(*(Axial(width, size(6, 2)) for _ in range(2)))
    model = nn.ModuleList([into, layers, out]).to(DEVICE, SHORT)
    update = adam(model)
    true = labels(kinds, batch, rows, columns)
    made = 0

    def step() -> None:
        nonlocal made
        with phase("get_batch"):
            seen = features[made % chunks].to(DEVICE, non_blocking=repaired)
        with phase("forward"):
            hidden = torch.rand(batch, rows, columns, 1, device=DEVICE) < 0.15
            said = out(layers(into(seen.masked_fill(hidden, 0.0).to(SHORT)))).float()
            each = fn.cross_entropy(said.flatten(0, 2), true.flatten(), reduction="none")
            there = hidden.flatten()
            loss = (each * there).sum() / there.sum()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            update.step()
            update.zero_grad(set_to_none=True)
        made += 1

    return Running(step, enter=precision("high"))


# --- species, of which most are rare ----------------------------------------------------------


class Seen(Dataset[tuple[np.ndarray[Any, Any], int]]):
    """Pictures that were decoded before; some are turned round."""

    def __init__(self, side: int, kinds: int) -> None:
        rng = np.random.default_rng(2)
        self.pictures = rng.integers(0, 256, (size(512, 8), 3, side, side), dtype=np.uint8)
        self.kinds = kinds

    def __len__(self) -> int:
        return size(2_500_000, 500)

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        picture = self.pictures[index % len(self.pictures)]
        if index % 2:
            picture = np.ascontiguousarray(picture[:, :, ::-1])
        return picture, index % self.kinds


class Drawn(Sampler[list[int]]):
    """Batches in which rare kinds are as likely as others."""

    def __init__(self, kinds: np.ndarray[Any, Any], batch: int, *, summed: bool) -> None:
        self.rng, self.batch = np.random.default_rng(7), batch
        self.weights = 1.0 / np.bincount(kinds)[kinds]
        self.sums = np.cumsum(self.weights / self.weights.sum()) if summed else None

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            if self.sums is None:
                shares = self.weights / self.weights.sum()
                yield self.rng.choice(len(shares), self.batch, p=shares).tolist()
            else:
                drawn = self.rng.random(self.batch) * self.sums[-1]
                yield np.searchsorted(self.sums, drawn, side="right").tolist()


@pair(
    "input_starvation",
    "vision",
    "the sampler, which is no worker's, has the sums of all weights made once, not for each batch",
    marks="profiler",
)
def species_drawn_by_their_rarity(repaired: bool) -> Running:
    """Four workers have little to do; who tells them what to load has more."""
    batch, side, kinds, workers = size(128, 2), size(112, 16), size(4096, 5), size(4, 1)
    data = Seen(side, kinds)
    rng = np.random.default_rng(3)
    rarity = np.minimum(rng.zipf(1.3, len(data)) - 1, kinds - 1)
    loader = DataLoader(
        data,
        batch_sampler=Drawn(rarity, batch, summed=repaired),
        num_workers=workers,
        pin_memory=CUDA,
        persistent_workers=True,
        prefetch_factor=2,
    )
    batches = [iter(loader)]
    width = size(1024, 16)
    patches = nn.Conv2d(3, width, 8, 8)
    layers = nn.Sequential(*transformer_layers(width, size(3, 1), size(16, 2)))
    norm, out = nn.LayerNorm(width), nn.Linear(width, kinds)
    model = nn.ModuleList([patches, layers, norm, out]).to(DEVICE, SHORT)
    place = nn.Parameter(0.02 * noise(1, (side // 8) ** 2, width).to(SHORT))
    update = torch.optim.AdamW([*model.parameters(), place], lr=1e-4, fused=True)

    def step() -> None:
        pictures, names = (part.to(DEVICE, non_blocking=True) for part in next(batches[0]))
        x = (pictures.float() - 127.5) / 58.0
        h = patches(x.to(SHORT)).flatten(2).transpose(1, 2) + place
        said = out(norm(layers(h)).mean(1))
        loss = fn.cross_entropy(said.float(), names, label_smoothing=0.1)
        loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)

    def close() -> None:
        batches.clear()
        loader._iterator = None  # the workers end with it

    return Running(step, enter=precision("high"), close=close, settle=2 + 2 * workers)


# --- books, letter by letter ------------------------------------------------------------------


class Remembers(nn.Module):
    """A layer that looks at its segment, at the one before, and at a summary of older ones."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.both = nn.Linear(width, 2 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, older: Tensor, seen: Tensor) -> Tensor:
        b, t, d = x.shape
        own = self.norm1(x)
        every = torch.cat([self.norm1(older), own], 1)
        q = self.query(own).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = self.both(every).view(b, -1, 2, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


@pair(
    "cpu_offload",
    "language",
    "what each layer remembers of the last segments stays on the device",
)
def books_memories_kept_for_next_segment(repaired: bool) -> Running:
    """A memory for each layer, and a compressed one: for a smaller device both went to the host."""
    batch, long, kept, letters = size(12, 2), size(512, 16), size(256, 8), 256
    width, small = size(2048, 16), kept // 4
    embed, head = nn.Embedding(letters, width), nn.Linear(width, letters)
    place, norm = nn.Embedding(long, width), nn.LayerNorm(width)
    layers = nn.ModuleList(Remembers(width, size(16, 2)) for _ in range(size(3, 2)))
    model = nn.ModuleList([embed, place, layers, norm, head]).to(DEVICE, SHORT)
    update = adam(model)
    seen = torch.ones(long, small + kept + long, dtype=torch.bool, device=DEVICE)
    seen = seen.tril_(small + kept)
    home = DEVICE if repaired else torch.device("cpu")
    memories = [torch.zeros(batch, kept, width, dtype=SHORT, device=home) for _ in layers]
    summaries = [torch.zeros(batch, small, width, dtype=SHORT, device=home) for _ in layers]
    book = labels(letters, batch, 4 * long + 1)
    made = 0

    def step() -> None:
        nonlocal made
        first = made % 4 * long
        text = book[:, first : first + long + 1]
        h = embed(text[:, :-1]) + place.weight
        for number, layer in enumerate(layers):
            memory, summary = (part[number].to(DEVICE) for part in (memories, summaries))
            # four places of the memory become one of the summary
            shorter = memory.unflatten(1, (small, 4)).mean(2)
            memories[number] = h[:, -kept:].detach().contiguous().to(home)
            summaries[number] = (0.5 * summary + 0.5 * shorter).to(home)
            h = layer(h, torch.cat([summary, memory], 1), seen)
        loss = fn.cross_entropy(head(norm(h)).float().flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        update.step()
        update.zero_grad(set_to_none=True)
        made += 1

    return Running(step, enter=precision("high"))


# --- forces on atoms, wherever they are turned ------------------------------------------------


class Equivariant(nn.Module):
    """Messages know both atoms and how far they are apart; places move along their edges."""

    def __init__(self, width: int, filled: int) -> None:
        super().__init__()
        self.filled = filled
        self.edge1, self.edge2 = nn.Linear(2 * width + 1 + filled, width), nn.Linear(width, width)
        self.node1, self.node2 = nn.Linear(2 * width, width), nn.Linear(width, width)
        self.moves = nn.Linear(width, 1)

    def forward(
        self, h: Tensor, places: Tensor, source: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        between = places.index_select(0, target) - places.index_select(0, source)
        far = between.square().sum(1, keepdim=True)
        known = [h.index_select(0, target), h.index_select(0, source), far.to(h.dtype)]
        if self.filled:
            known.append(h.new_zeros(len(far), self.filled))
        message = fn.silu(self.edge2(fn.silu(self.edge1(torch.cat(known, 1)))))
        step = between / ((far + 1e-6).sqrt() + 1) * self.moves(message).float()
        places = places.index_add(0, target, step, alpha=0.05)
        heard = torch.zeros_like(h).index_add(0, target, message)
        return h + self.node2(fn.silu(self.node1(torch.cat([h, heard], 1)))), places


@pair(
    "aligned_shapes",
    "science",
    "seven zeros follow the distance: what goes into the edges' network is a multiple of 8",
)
def atoms_distance_beside_both_features(repaired: bool) -> Running:
    """Two atoms' features and one distance are 1025 numbers for each edge."""
    molecules, atoms, near, width = size(48, 3), size(256, 6), size(16, 2), size(512, 8)
    nodes, kinds = molecules * atoms, size(16, 4)
    embed = nn.Embedding(kinds, width).to(DEVICE, SHORT)
    layers = nn.ModuleList(Equivariant(width, 7 if repaired else 0) for _ in range(size(3, 2)))
    layers = layers.to(DEVICE, SHORT)
    what, start, forces = labels(kinds, nodes), noise(nodes, 3), noise(nodes, 3)
    target = torch.arange(nodes, device=DEVICE).repeat_interleave(near)
    # neighbours are of the same molecule
    source = target // atoms * atoms + labels(atoms, nodes * near)

    def loss_of() -> Tensor:
        h, places = embed(what), start + 0.01 * torch.randn_like(start)
        for layer in layers:
            h, places = layer(h, places, source, target)
        return fn.l1_loss(places - start, forces)

    return fit(loss_of, adam(embed, layers), bf16=False, clip=1.0)


# --- a scene without bounds -------------------------------------------------------------------


def waves(places: Tensor, levels: int) -> Tensor:
    """Sines of places at some scales, those of directions as well."""
    scales = 2.0 ** torch.arange(levels, device=places.device)
    angles = (places[..., None] * scales).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], -1)


class Field(nn.Module):
    """How dense it is at a place, and which colour it has from a direction."""

    def __init__(self, width: int, layers: int, *, again: bool) -> None:
        super().__init__()
        self.again = again
        self.body = nn.Sequential(nn.Linear(3 * 2 * 12, width), nn.ReLU())
        for _ in range(layers):
            self.body.extend([nn.Linear(width, width), nn.ReLU()])
        self.dense, self.seen = nn.Linear(width, 8), nn.Linear(width, width // 4)
        self.colour = nn.Linear(width // 4 + 3 * 2 * 4, 8)

    def forward(self, places: Tensor, ways: Tensor) -> tuple[Tensor, Tensor]:
        known = waves(places, 12)
        h = checkpoint(self.body, known, use_reentrant=False) if self.again else self.body(known)
        assert isinstance(h, Tensor)
        ways = waves(ways, 4)[:, None].expand(-1, places.shape[1], -1)
        colour = self.colour(torch.cat([self.seen(h), ways.to(h.dtype)], -1))
        return self.dense(h)[..., 0].float(), colour[..., :3].float().sigmoid()


def rendered(dense: Tensor, colour: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
    """The colour of each ray, and how much of it each sample gave."""
    steps = torch.diff(depth, dim=1, append=depth[:, -1:] + 0.1)
    through = fn.softplus(dense - 1) * steps
    passed = torch.exp(-torch.cumsum(through, 1) + through)
    share = (1 - torch.exp(-through)) * passed
    return (share[..., None] * colour).sum(1), share


@pair(
    "recomputation",
    "vision",
    "the fine network is called as it is, without a checkpoint: its activations have room",
)
def unbounded_scene_fine_network_checkpointed(repaired: bool) -> Running:
    """A coarse network finds where a fine one must look; FP16 with a scaler."""
    rays, coarse_of, fine_of = size(6144, 6), size(48, 6), size(32, 5)
    coarse = Field(size(256, 16), 3, again=False).to(DEVICE)
    fine = Field(size(1024, 16), size(7, 2), again=not repaired).to(DEVICE)
    update = adam(coarse, fine)
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0)
    short = torch.float16 if CUDA else SHORT
    begins, ways = 0.1 * noise(rays, 3), fn.normalize(noise(rays, 3), dim=1)
    true = torch.rand(rays, 3, device=DEVICE)
    even = torch.linspace(0.2, 6.0, coarse_of, device=DEVICE).expand(rays, -1)

    def along(depth: Tensor) -> Tensor:
        places = begins[:, None] + depth[..., None] * ways[:, None]
        # what is far away is drawn nearer, so that all lies in a ball of radius 2
        length = places.norm(dim=-1, keepdim=True).clamp(min=1.0)
        return (2 - 1 / length) * places / length

    def found(share: Tensor, depth: Tensor) -> Tensor:
        """Depths where the coarse network saw something."""
        sums = torch.cumsum(share.detach() + 1e-3, 1)
        drawn = torch.rand(rays, fine_of, device=DEVICE).sort(1)[0] * sums[:, -1:]
        at = torch.searchsorted(sums, drawn).clamp(max=coarse_of - 1)
        return (depth.gather(1, at) + 0.1 * torch.rand_like(drawn)).sort(1)[0]

    def step() -> None:
        depth = even + 0.1 * torch.rand(rays, coarse_of, device=DEVICE)
        with torch.autocast(DEVICE.type, short):
            seen, share = rendered(*coarse(along(depth), ways), depth)
            closer = found(share, depth)
            sharp, _ = rendered(*fine(along(closer), ways), closer)
            loss = fn.mse_loss(sharp, true) + 0.1 * fn.mse_loss(seen, true)
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))
