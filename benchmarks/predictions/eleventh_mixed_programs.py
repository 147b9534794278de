"""An eleventh set of programs for one GPU: twelve kinds of models, few and large kernels.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, graphed, made_optimizer, precision, size, transformer_layers
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 191 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- graphs: layers until nothing changes ---------------------------------------------------------


class Settling(nn.Module):
    """One layer over a dense graph, applied until the nodes' states stay as they are.

    Only the last application is differentiated, as in networks without a Jacobian.
    """

    def __init__(self, inside: int, width: int, classes: int, *, asks: bool) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(inside, width), nn.Linear(width, classes)
        self.mix = nn.Linear(width, width, bias=False)
        nn.init.orthogonal_(self.mix.weight, 0.9)
        self.most, self.close, self.asks = size(24, 4), 1e-4, asks
        self.moved = torch.zeros(())

    def layer(self, links: Tensor, given: Tensor, states: Tensor) -> Tensor:
        return torch.baddbmm(given, links, self.mix(states)).tanh()

    def forward(self, links: Tensor, nodes: Tensor) -> Tensor:
        given = self.into(nodes)
        with torch.no_grad():
            fixed = given.detach()
            states = torch.zeros_like(fixed)
            for _ in range(self.most):
                after = self.layer(links, fixed, states)
                self.moved = torch.dist(after, states)
                states = after
                if self.asks and self.moved.item() < self.close:
                    break
        return self.head(self.layer(links, given, states).mean(1))


@pair(
    "host_sync",
    "graph",
    "the layer is applied 24 times; how far states moved stays on the device for the log",
)
def states_settle_on_dense_graphs(repaired: bool) -> Running:
    batch, nodes, width, classes = size(10, 2), size(2048, 16), size(512, 8), 20
    model = Settling(size(128, 8), width, classes, asks=not repaired).to(DEVICE)
    links = (torch.rand(batch, nodes, nodes, device=DEVICE) < 16 / nodes).float()
    links = links + torch.eye(nodes, device=DEVICE)
    links = links / links.sum(-1, keepdim=True)
    x, y = noise(batch, nodes, size(128, 8)), labels(classes, batch)
    update = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    return fit(lambda: fn.cross_entropy(model(links, x), y), update, bf16=False)


# --- speech: stretches that are hidden ------------------------------------------------------------


class Hearing(nn.Module):
    """Two strided convolutions over a spectrogram, then a transformer; units for each frame."""

    def __init__(self, bins: int, width: int, layers: int, heads: int, units: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(bins, width, 3, 2, 1)
        self.second = nn.Conv1d(width, width, 3, 2, 1)
        self.layers = nn.Sequential(*transformer_layers(width, layers, heads))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, units))

    def forward(self, x: Tensor) -> Tensor:
        x = fn.gelu(self.second(fn.gelu(self.first(x))))
        return self.head(self.layers(x.transpose(1, 2)))


@pair(
    "host_sync",
    "audio",
    "Python's random says what is hidden, not numbers that are drawn on the GPU and read",
    marks="phases",
)
def hidden_stretches_drawn_on_device(repaired: bool) -> Running:
    batch, bins, frames, units = size(12, 2), size(80, 8), size(4000, 64), size(512, 8)
    model = Hearing(bins, size(1536, 16), size(3, 1), size(12, 2), units).to(DEVICE)
    x, y = noise(batch, bins, frames), labels(units, batch, frames // 4)
    rng = random.Random(0)

    def drawn(most: int) -> int:
        if repaired:
            return rng.randrange(most)
        return int(torch.randint(0, most, (1,), device=DEVICE).item())

    def hidden() -> Tensor:
        """Two stretches of time and a band of frequencies of each recording are zero."""
        seen = x.clone()
        for sound in seen:
            for _ in range(2):
                long = drawn(frames // 16)
                start = drawn(frames - long)
                sound[:, start : start + long].zero_()
            high = drawn(bins // 3)
            start = drawn(bins - high)
            sound[start : start + high].zero_()
        return seen

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(hidden()).flatten(0, 1).float(), y.flatten())

    return fit(loss_of, adam(model), clip=1.0, decay=True)


# --- a neural operator ----------------------------------------------------------------------------


class Waves(nn.Module):
    """Weights for the low frequencies of a field, as in a Fourier neural operator."""

    def __init__(self, width: int, tall: int, wide: int) -> None:
        super().__init__()
        self.tall, self.wide = tall, wide
        shape = (2, width, width, tall, wide, 2)  # the last is real and imaginary part
        self.weight = nn.Parameter(torch.randn(shape) / width)
        self.beside = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        given = torch.fft.rfft2(x, norm="ortho")
        found, (low, high) = torch.zeros_like(given), torch.view_as_complex(self.weight)
        tall, wide = self.tall, self.wide
        found[:, :, :tall, :wide] = torch.einsum("bihw,iohw->bohw", given[:, :, :tall, :wide], low)
        found[:, :, -tall:, :wide] = torch.einsum(
            "bihw,iohw->bohw", given[:, :, -tall:, :wide], high
        )
        back = torch.fft.irfft2(found, s=x.shape[-2:], norm="ortho")
        return fn.gelu(back + self.beside(x))


class Oceans(nn.Module):
    """The next state of the sea, from this one and from what never changes: depths, coasts."""

    def __init__(
        self, fields: int, width: int, layers: int, low: int, always: Tensor, *, moves: bool
    ) -> None:
        super().__init__()
        self.lift = nn.Conv2d(fields + always.shape[0], width, 1)
        self.layers = nn.Sequential(*(Waves(width, low, low) for _ in range(layers)))
        self.out = nn.Conv2d(width, fields, 1)
        if moves:
            self.register_buffer("always", always)
        else:
            self.always = always  # an attribute stays where it is when the model moves

    def forward(self, x: Tensor) -> Tensor:
        always = self.always.to(x.device).expand(x.shape[0], -1, -1, -1)
        return x + self.out(self.layers(self.lift(torch.cat([x, always], 1))))


@pair(
    "blocking_copy",
    "science",
    "the fields that never change are a buffer of the model, on the device from the start",
)
def sea_depths_no_buffer(repaired: bool) -> Running:
    batch, fields, tall, wide = size(2, 1), size(6, 2), size(512, 16), size(1024, 32)
    always = torch.randn(size(16, 3), tall, wide)
    model = Oceans(fields, size(64, 4), size(2, 1), size(32, 3), always, moves=repaired).to(DEVICE)
    now, later = noise(batch, fields, tall, wide), noise(batch, fields, tall, wide)
    heights = torch.linspace(-1.5, 1.5, tall, device=DEVICE).cos()[:, None]

    def loss_of() -> Tensor:
        return ((model(now) - later).square() * heights).mean()

    return fit(loss_of, adam(model), bf16=False)


# --- diffusion ------------------------------------------------------------------------------------


class Cleans(nn.Module):
    """Two convolutions beside a short cut, shifted by the time."""

    def __init__(self, before: int, after: int, times: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, before), nn.GroupNorm(8, after)
        self.conv1 = nn.Conv2d(before, after, 3, 1, 1)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1)
        self.short, self.time = nn.Conv2d(before, after, 1), nn.Linear(times, after)

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        h = self.conv1(fn.silu(self.norm1(x))) + self.time(when)[:, :, None, None]
        return self.short(x) + self.conv2(fn.silu(self.norm2(h)))


class Denoiser(nn.Module):
    """What noise is in a picture."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(levels)]
        befores = [width, *sizes[:-1]]
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.downs = nn.ModuleList(Cleans(a, b, 64) for a, b in zip(befores, sizes, strict=True))
        self.middle = Cleans(sizes[-1], sizes[-1], 64)
        self.ups = nn.ModuleList(
            Cleans(2 * b, a, 64) for a, b in zip(befores[::-1], sizes[::-1], strict=True)
        )
        self.last = nn.Conv2d(width, 3, 3, 1, 1)
        self.register_buffer("rates", torch.exp(-0.28 * torch.arange(32)))

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        angles = when[:, None] * 1000 * self.rates
        when = torch.cat([angles.sin(), angles.cos()], 1)
        h, kept = self.first(x), []
        for down in self.downs:
            h = down(h, when)
            kept.append(h)
            h = fn.avg_pool2d(h, 2)
        h = self.middle(h, when)
        for up in self.ups:
            h = up(torch.cat([fn.interpolate(h, scale_factor=2.0), kept.pop()], 1), when)
        return self.last(h)


@pair(
    "blocking_copy",
    "diffusion",
    "the strip of pictures goes to page-locked buffers that are kept, and nobody waits for it",
    marks="steps",
)
def cleaned_pictures_shown_by_cpu(repaired: bool) -> Running:
    batch, side = size(24, 2), size(128, 16)
    model = Denoiser(size(64, 8), size(3, 2)).to(DEVICE)
    x = noise(batch, 3, side, side)
    update = adam(model)
    strip = (3 * batch, 3, side, side)
    buffers = [torch.empty(strip, pin_memory=CUDA) for _ in range(2 if repaired else 0)]
    shown: deque[Tensor] = deque(maxlen=2)  # what the dashboard takes once a minute
    made = 0

    def step() -> None:
        nonlocal made
        update.zero_grad(set_to_none=True)
        when = torch.rand(batch, device=DEVICE)
        wave, rest = (
            (when * 1.5).cos()[:, None, None, None],
            (when * 1.5).sin()[:, None, None, None],
        )
        wrong = torch.randn_like(x)
        noised = wave * x + rest * wrong
        guess = model(noised, when)
        loss = fn.mse_loss(guess, wrong)
        with torch.no_grad():
            clean = (noised - rest * guess) / wave.clamp(min=0.05)
            row = torch.cat([x, noised, clean.clamp(-1, 1)])
        if repaired:
            buffer = buffers[made % 2]
            buffer.copy_(row, non_blocking=True)  # the dashboard synchronises before it reads
            shown.append(buffer)
        else:
            shown.append(row.cpu())
        loss.backward()
        update.step()
        made += 1

    return Running(step, enter=precision("high"))


# --- pictures -------------------------------------------------------------------------------------


class Sees(nn.Module):
    """A layer of a vision transformer that can say where it looks."""

    def __init__(self, width: int, heads: int, *, says: bool) -> None:
        super().__init__()
        self.heads, self.says = heads, says
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        places = None
        if self.says:
            places = ((q @ k.transpose(-1, -2)) * (d // self.heads) ** -0.5).softmax(-1)
            y = places @ v
        else:
            y = fn.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(fn.gelu(self.up(self.norm2(x)))), places


class Fields(nn.Module):
    """What grows on a field, seen from above."""

    def __init__(
        self, width: int, layers: int, heads: int, side: int, classes: int, *, says: bool
    ) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 14, 14)
        self.place = nn.Parameter(torch.randn(1, (side // 14) ** 2, width) * 0.02)
        self.layers = nn.ModuleList(Sees(width, heads, says=says) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2) + self.place
        for layer in self.layers:
            h, _places = layer(h)
        return self.head(self.norm(h).mean(1))


@pair(
    "unfused_attention",
    "vision",
    "scaled_dot_product_attention; the maps were for a figure that training does not draw",
)
def crops_maps_for_a_figure(repaired: bool) -> Running:
    batch, side, classes = size(12, 2), size(448, 28), size(200, 5)
    model = Fields(size(1536, 16), size(2, 1), size(12, 2), side, classes, says=not repaired).to(
        DEVICE
    )
    x, y = noise(batch, 3, side, side), labels(classes, batch)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(x).float(), y, label_smoothing=0.1)

    return fit(loss_of, adam(model, weight_decay=0.05), decay=True)


# --- a language model -----------------------------------------------------------------------------


def clipped_gate(x: Tensor) -> Tensor:
    """A gated unit whose halves are interleaved and kept within limits, as in gpt-oss."""
    gate, value = x[..., ::2], x[..., 1::2]
    gate, value = gate.clamp(max=7.0), value.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (value + 1)


class Talks(nn.Module):
    def __init__(self, width: int, heads: int, wide: int, gate: Any) -> None:
        super().__init__()
        self.heads, self.gate = heads, gate
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 2 * wide, bias=False)
        self.down = nn.Linear(wide, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(self.gate(self.up(self.norm2(x))))


@pair(
    "fusion_opportunity",
    "language",
    "torch.compile of the function that is the gated unit",
    compiles=True,
)
def tales_clipped_gate_compile(repaired: bool) -> Running:
    width, wide, vocab = size(1536, 16), size(6144, 32), size(4096, 64)
    batch, length = size(10, 2), size(1024, 16)
    gate = torch.compile(clipped_gate) if repaired else clipped_gate
    model = nn.Sequential(
        nn.Embedding(vocab, width),
        *(Talks(width, size(12, 2), wide, gate) for _ in range(size(2, 1))),
        nn.LayerNorm(width),
        nn.Linear(width, vocab, bias=False),
    ).to(DEVICE)
    ids = labels(vocab, batch, length + 1)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())

    return fit(loss_of, adam(model, betas=(0.9, 0.95)))


# --- towers ---------------------------------------------------------------------------------------


class Wider(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(fn.gelu(self.up(self.norm(x))))


def tower(before: int, width: int, after: int, layers: int) -> nn.Module:
    """What turns features that another model made into the common space."""
    return nn.Sequential(
        nn.Linear(before, width), *(Wider(width) for _ in range(layers)), nn.Linear(width, after)
    )


@pair(
    "low_precision_unused",
    "contrastive",
    "torch.set_float32_matmul_precision('high') for the products of all pairs",
)
def molecules_and_spectra_all_pairs(repaired: bool) -> Running:
    batch, width, common = size(8192, 8), size(1536, 16), size(768, 8)
    one = tower(size(1024, 8), width, common, size(2, 1)).to(DEVICE)
    two = tower(size(2048, 8), width, common, size(2, 1)).to(DEVICE)
    sharp = nn.Parameter(torch.tensor(2.6, device=DEVICE))
    x, y = noise(batch, size(1024, 8)), noise(batch, size(2048, 8))
    same = torch.arange(batch, device=DEVICE)
    update = torch.optim.AdamW([*one.parameters(), *two.parameters(), sharp], lr=1e-4, fused=True)

    def loss_of() -> Tensor:
        a, b = one(x), two(y)
        with torch.autocast(DEVICE.type, enabled=False):  # small differences count here
            a, b = fn.normalize(a.float(), dim=1), fn.normalize(b.float(), dim=1)
            scores = sharp.exp() * a @ b.t()
            return (fn.cross_entropy(scores, same) + fn.cross_entropy(scores.t(), same)) / 2

    return fit(loss_of, update, matmul="high" if repaired else "highest")


# --- tables ---------------------------------------------------------------------------------------


class Shop(nn.Module):
    """Tables of several things that were clicked, their products, and a wide tower."""

    def __init__(self, rows: list[int], each: int, dense: int, wide: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, each) for n in rows)
        self.tower = nn.Sequential(
            nn.Linear((len(rows) + 1) ** 2 + (len(rows) + 1) * each, wide), nn.ReLU(),
            nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(),
            nn.Linear(wide, 1),
        )  # fmt: skip
        self.bottom = nn.Linear(dense, each)

    def forward(self, dense: Tensor, ids: list[Tensor]) -> Tensor:
        found = [table(i).mean(1) for table, i in zip(self.tables, ids, strict=True)]
        h = torch.stack([self.bottom(dense).float(), *found], 1)
        products = h @ h.transpose(1, 2)
        return self.tower(torch.cat([products.flatten(1), h.flatten(1)], 1))[:, 0]


@pair(
    "cpu_offload",
    "recommender",
    "the sums of squares of the tables' rows are kept on the device, not on the CPU",
)
def shop_rows_squares_on_cpu(repaired: bool) -> Running:
    rows = [size(n * 100_000, 10 + n) for n in (5, 4, 3, 2, 2, 1, 1)]
    batch, dense = size(32_768, 8), size(32, 4)
    model = Shop(rows, size(64, 4), dense, size(4096, 16)).to(DEVICE)
    # a table's own sums of squares, one a row (row-wise Adagrad)
    home = DEVICE if repaired else torch.device("cpu")
    squares = [torch.zeros(n, device=home) for n in rows]
    tables = [table.weight for table in model.tables]
    update = adam(model.tower, model.bottom)
    x, ids = noise(batch, dense), [labels(n, batch, 4) for n in rows]
    y = torch.rand(batch, device=DEVICE).round()

    def tables_updated() -> None:
        with torch.no_grad():
            for weight, square in zip(tables, squares, strict=True):
                assert weight.grad is not None
                square.add_(weight.grad.square().mean(1).to(home))
                rate = square.sqrt().add_(1e-6).reciprocal_().to(DEVICE)
                weight.addcmul_(weight.grad, rate[:, None], value=-0.01)
                weight.grad = None

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            scores = model(x, ids)
        fn.binary_cross_entropy_with_logits(scores.float(), y).backward()
        tables_updated()
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- linear recurrences ---------------------------------------------------------------------------


class Fades(nn.Module):
    """A linear recurrence with a fixed decay a head: products within chunks, and between them."""

    def __init__(self, width: int, heads: int, chunk: int, chunks: int) -> None:
        super().__init__()
        self.heads, self.chunk, self.chunks = heads, chunk, chunks
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.gate = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)
        kept = -torch.exp2(-4.0 - torch.arange(heads) * 4 / heads)  # logarithms of decays
        place, many = torch.arange(chunk), torch.arange(chunks)
        far, apart = place[:, None] - place, many[:, None] - many - 1
        within = torch.exp(kept[:, None, None] * far.clamp(min=0)) * (far >= 0)
        between = torch.exp(kept[:, None, None] * chunk * apart.clamp(min=0)) * (apart >= 0)
        self.register_buffer("within", within[:, None])
        self.register_buffer("between", between)
        self.register_buffer("since", torch.exp(kept[:, None] * (place + 1))[:, None, :, None])
        self.register_buffer(
            "until", torch.exp(kept[:, None] * (chunk - 1 - place))[:, None, :, None]
        )

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        y = self.norm1(x)
        parts = self.qkv(y).view(b, self.chunks, self.chunk, 3, self.heads, d // self.heads)
        q, k, v = parts.permute(3, 0, 4, 1, 2, 5)
        k = k * (d // self.heads) ** -0.5
        near = (q @ k.transpose(-1, -2) * self.within.to(q.dtype)) @ v
        added = (k * self.until.to(k.dtype)).transpose(-1, -2) @ v
        states = (self.between @ added.flatten(-2)).view_as(added)
        h = near + (q * self.since.to(q.dtype)) @ states
        h = h.permute(0, 2, 3, 1, 4).reshape(b, t, d)
        x = x + self.out(fn.layer_norm(h, (d,)) * fn.silu(self.gate(y)))
        return x + self.down(fn.silu(self.up(self.norm2(x))))


class Whitened:
    """Momentum of gradients that are divided by the root of what inputs have in common.

    A one-sided Shampoo: roots by Newton's iteration, made anew every so many steps.
    """

    def __init__(self, weights: list[Tensor], every: int, rate: float = 1e-3) -> None:
        self.weights, self.every, self.rate, self.made = weights, every, rate, 0
        n = weights[0].shape[1]
        self.same = torch.eye(n, device=DEVICE)
        self.common = torch.zeros(len(weights), n, n, device=DEVICE)
        self.roots = self.same.repeat(len(weights), 1, 1)
        self.moves = [torch.zeros_like(w) for w in weights]

    @torch.no_grad()
    def step(self) -> None:
        given = [w.grad for w in self.weights if w.grad is not None]
        for common, grad in zip(self.common, given, strict=True):
            common.addmm_(grad.t(), grad, beta=0.95, alpha=0.05)
        if self.made % self.every == self.every - 2:
            self.renew()
        self.made += 1
        torch._foreach_mul_(self.moves, 0.9)
        for move, grad, root in zip(self.moves, given, self.roots, strict=True):
            move.addmm_(grad, root)
        torch._foreach_add_(self.weights, self.moves, alpha=-self.rate)
        for weight in self.weights:
            weight.grad = None

    def renew(self) -> None:
        scale = self.common.flatten(1).norm(dim=1)[:, None, None] + 1e-30
        y = self.common / scale + 0.05 * self.same
        y = y / 1.05
        same = self.same.expand_as(y)
        z = same.clone()
        for _ in range(size(24, 4)):
            turn = torch.baddbmm(same, z, y, beta=1.5, alpha=-0.5)
            y, z = torch.bmm(y, turn), torch.bmm(turn, z)
        self.roots = z


@pair(
    "step_jitter",
    "language",
    "the roots of the preconditioner are made every 1000 steps, not every 5",
    period=5,
)
def recurrence_roots_every_5(repaired: bool) -> Running:
    width, heads, vocab = size(2048, 16), size(16, 2), size(4096, 64)
    batch, chunk, chunks = size(5, 2), size(256, 4), size(8, 4)
    layers = [Fades(width, heads, chunk, chunks) for _ in range(size(2, 1))]
    model = nn.Sequential(
        nn.Embedding(vocab, width), *layers, nn.LayerNorm(width, bias=False),
        nn.Linear(width, vocab, bias=False),
    ).to(DEVICE)  # fmt: skip
    wide = [part.weight for one in layers for part in (one.qkv, one.gate, one.out, one.up)]
    whitened = Whitened(wide, 1000 if repaired else 5)
    chosen = {id(w) for w in wide}
    others = [p for p in model.parameters() if id(p) not in chosen]
    update = torch.optim.AdamW(others, lr=1e-4, fused=True)
    ids = labels(vocab, batch, chunk * chunks + 1)

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            scores = model(ids[:, :-1])
        fn.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten()).backward()
        whitened.step()
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- volumes --------------------------------------------------------------------------------------


class Tissue(nn.Module):
    """Two convolutions in space beside a short cut."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(before, after, 3, 1, 1, bias=False)
        self.conv2 = nn.Conv3d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(4, after), nn.GroupNorm(4, after)
        self.short = nn.Conv3d(before, after, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = fn.leaky_relu(self.norm1(self.conv1(x)), 0.01)
        return fn.leaky_relu(self.norm2(self.conv2(h)) + self.short(x), 0.01)


class Bones(nn.Module):
    """Which bone each voxel belongs to."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.one, self.two = Tissue(1, width), Tissue(width, 2 * width)
        self.three = Tissue(2 * width, 4 * width)
        self.four, self.five = Tissue(6 * width, 2 * width), Tissue(3 * width, width)
        self.out = nn.Conv3d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.one(x)
        b = self.two(fn.avg_pool3d(a, 2))
        c = self.three(fn.avg_pool3d(b, 2))
        h = self.four(torch.cat([fn.interpolate(c, scale_factor=2.0), b], 1))
        return self.out(self.five(torch.cat([fn.interpolate(h, scale_factor=2.0), a], 1)))


@pair(
    "allocator_churn",
    "volumes",
    "what encloses each step no longer empties the cache when it is left",
    marks="profiler",
)
def bones_steps_leave_no_memory(repaired: bool) -> Running:
    batch, side, classes = size(2, 1), size(96, 8), size(8, 3)
    model = Bones(size(24, 4), classes).to(DEVICE)
    update = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.99, nesterov=True, fused=True)
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0, enabled=CUDA)
    dtype = torch.float16 if CUDA else torch.bfloat16
    x, y = noise(batch, 1, side, side, side), labels(classes, batch, side, side, side)

    @contextlib.contextmanager
    def tidy() -> Iterator[None]:
        """Whatever happens in a step, it leaves nothing behind."""
        try:
            yield
        finally:
            update.zero_grad(set_to_none=True)
            if not repaired:
                torch.cuda.empty_cache()

    def step() -> None:
        with tidy():
            with torch.autocast(DEVICE.type, dtype):
                scores = model(x)
            scaler.scale(fn.cross_entropy(scores.float(), y)).backward()
            scaler.step(update)
            scaler.update()

    return Running(step, enter=precision("high"), settle=3)


# --- what people prefer ---------------------------------------------------------------------------


class Reads(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(fn.relu(self.up(self.norm2(x))).square())


@pair(
    "unfused_optimizer",
    "language",
    "AdamW(fused=True) for the groups of layers, instead of foreach=False to save memory",
)
def rewards_layer_rates_adam_loop(repaired: bool) -> Running:
    width, vocab, answers = size(2048, 16), size(24_576, 64), 3
    batch, length = size(2, 1) * answers, size(1024, 16)
    embed, norm, head = (
        nn.Embedding(vocab, width),
        nn.LayerNorm(width, bias=False),
        nn.Linear(width, 1),
    )
    layers = [Reads(width, size(16, 2)) for _ in range(size(2, 1))]
    model = nn.Sequential(embed, *layers, norm).to(DEVICE)
    head.to(DEVICE)
    # lower layers learn less
    parts = [[embed], *([layer] for layer in layers), [norm, head]]
    groups = [
        {
            "params": [p for part in some for p in part.parameters()],
            "lr": 1e-5 * 0.8 ** (len(parts) - 1 - number),
        }
        for number, some in enumerate(parts)
    ]
    how: dict[str, Any] = {"fused": True} if repaired else {"fused": False, "foreach": False}
    update = torch.optim.AdamW(groups, weight_decay=0.01, **how)
    ids = labels(vocab, batch, length)
    lines = torch.arange(batch, device=DEVICE)
    ends = labels(length // 2, batch) + length // 2

    def loss_of() -> Tensor:
        worth = head(model(ids)[lines, ends])[:, 0].float().view(-1, answers)
        return -fn.logsigmoid(worth[:, :1] - worth[:, 1:]).mean()

    return fit(loss_of, update)


# --- codes of sounds ------------------------------------------------------------------------------


class Codes(nn.Module):
    """Nearest codes of what is left, book after book; the books follow by running means."""

    def __init__(self, width: int, codes: int, books: int) -> None:
        super().__init__()
        self.register_buffer("books", torch.randn(books, codes, width))
        self.register_buffer("sums", self.books.clone())
        self.register_buffer("counts", torch.ones(books, codes))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left, total = x, torch.zeros_like(x)
        cost = torch.zeros((), device=x.device)
        for book, sums, counts in zip(self.books, self.sums, self.counts, strict=True):
            with torch.no_grad():
                far = book.square().sum(1) - 2 * left @ book.t()
                chosen = far.argmin(1)
                found = book[chosen]  # a copy: the book changes below
                many = torch.zeros_like(counts).index_add_(0, chosen, torch.ones_like(left[:, 0]))
                given = torch.zeros_like(sums).index_add_(0, chosen, left)
                counts.mul_(0.99).add_(many, alpha=0.01)
                sums.mul_(0.99).add_(given, alpha=0.01)
                book.copy_(sums / (counts[:, None] + 1e-5))
            cost = cost + fn.mse_loss(left, found)
            total, left = total + found, left - found
        return x + (total - x).detach(), cost


def squeezes(width: int, levels: int) -> tuple[nn.Module, nn.Module]:
    """Strided convolutions over a wave, and their way back."""
    down: list[nn.Module] = [nn.Conv1d(1, width, 7, 1, 3)]
    up: list[nn.Module] = []
    for level in range(levels):
        a, b = width * 2**level, width * 2 ** (level + 1)
        down += [nn.ELU(), nn.Conv1d(a, b, 8, 4, 2)]
        up = [nn.ELU(), nn.ConvTranspose1d(b, a, 8, 4, 2), *up]
    return nn.Sequential(*down), nn.Sequential(*up, nn.ELU(), nn.Conv1d(width, 1, 7, 1, 3))


@pair("launch_bound", "audio", "the whole step, update included, is one CUDA graph")
def birds_books_of_codes_graph(repaired: bool) -> Running:
    batch, long, width, levels = size(16, 2), size(65_536, 256), size(32, 4), size(4, 2)
    coder, back = squeezes(width, levels)
    quiet = size(128, 8)
    model = nn.ModuleList(
        [
            coder, nn.Linear(width * 2**levels, quiet), Codes(quiet, size(1024, 16), size(20, 2)),
            nn.Linear(quiet, width * 2**levels), back,
        ]
    ).to(DEVICE)  # fmt: skip
    update = made_optimizer(model.parameters(), "graph")
    x = noise(batch, 1, long)

    def step() -> None:
        update.zero_grad(set_to_none=True)
        with phase("forward"):
            h = model[1](model[0](x).transpose(1, 2))
            codes, cost = model[2](h.flatten(0, 1))
            y = model[4](model[3](codes.view_as(h)).transpose(1, 2))
            loss = (y - x).abs().mean() + fn.mse_loss(y, x) + 0.1 * cost
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            update.step()

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run
