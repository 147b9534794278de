"""Programs of the eighth set that the GPU bounds: models of sequences.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from fourth_programs import adam, fit, labels
from models import DEVICE, Attends, Experts, precision, size
from program import Program, Running
from single_programs import entered
from sixth_programs import Rms
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 159 pairs, opened"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


def following(model: nn.Module, ids: Tensor) -> Tensor:
    return fn.cross_entropy(model(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


# --- attention without a softmax ----------------------------------------------------------------


class Fades(nn.Module):
    """What each head forgets, for chunks of the past; as in RetNet, by products only."""

    def __init__(self, heads: int, length: int, chunk: int) -> None:
        super().__init__()
        self.heads, self.chunk = heads, chunk
        keeps = torch.log(1 - 2.0 ** (-5.0 - torch.arange(heads) * 4 / heads))[:, None]
        at = torch.arange(chunk)
        far = (at[:, None] - at).clamp(min=0)
        chunks = torch.arange(length // chunk)
        ago = (chunks[:, None] - chunks - 1).clamp(min=0)
        self.register_buffer("inside", (keeps[..., None] * far).exp().tril())
        self.register_buffer("onto", (keeps * (chunk - 1 - at)).exp()[:, None, :, None])
        self.register_buffer("since", (keeps * (at + 1)).exp()[:, None, :, None])
        self.register_buffer("between", (keeps[..., None] * ago * chunk).exp().tril(-1))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of shapes (batch, length, width)."""
        b, t, d = q.shape
        q, k, v = (
            part.view(b, t // self.chunk, self.chunk, self.heads, -1).permute(0, 3, 1, 2, 4)
            for part in (q, k, v)
        )
        near = ((q @ k.transpose(-1, -2)) * self.inside[:, None]) @ v
        states = (k * self.onto).transpose(-1, -2) @ v
        before = torch.einsum("hnm,bhmde->bhnde", self.between, states)
        y = near + (q * self.since) @ before.to(q.dtype)
        y = fn.rms_norm(y, y.shape[-1:])
        return y.permute(0, 2, 3, 1, 4).reshape(b, t, d)


class Retains(nn.Module):
    """A layer of such heads, and a gated linear unit."""

    def __init__(self, width: int, heads: int, length: int, chunk: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = Rms(width), Rms(width)
        self.qkvg = nn.Linear(width, 4 * width, bias=False)
        self.fades, self.out = Fades(heads, length, chunk), nn.Linear(width, width, bias=False)
        self.up, self.down = (
            nn.Linear(width, 6 * width, bias=False),
            nn.Linear(3 * width, width, bias=False),
        )
        self.scale = (width // heads) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, g = self.qkvg(self.norm1(x)).chunk(4, -1)
        x = x + self.out(self.fades(q, k * self.scale, v) * fn.silu(g))
        a, b = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(fn.silu(a) * b)


@pair(
    "low_precision_unused", "language", "torch.set_float32_matmul_precision('high')", marks="steps"
)
def retention_decoder_fp32(repaired: bool) -> Running:
    width, length, vocab = size(768, 32), size(1024, 16), size(8192, 64)
    parts: list[nn.Module] = [nn.Embedding(vocab, width)]
    parts += [Retains(width, size(6, 2), length, size(128, 8)) for _ in range(size(6, 2))]
    model = nn.Sequential(*parts, Rms(width), nn.Linear(width, vocab, bias=False)).to(DEVICE)
    ids = labels(vocab, size(8, 2), length)
    return fit(
        lambda: following(model, ids),
        adam(model, betas=(0.9, 0.98), weight_decay=0.05),
        bf16=False,
        matmul="high" if repaired else "highest",
        clip=2.0,
        decay=True,
    )


# What is done between the products of the next model, spelled out as its authors did.


def five_ways(x: Tensor, past: Tensor, mu: Tensor, low: Tensor) -> list[Tensor]:
    """Five mixtures of a token and the one before it, each channel by itself."""
    return [x + past * (mu[i] + low[i]) for i in range(5)]


def kept_keys(k: Tensor, w: Tensor, base: Tensor) -> Tensor:
    """Keys count as much as is forgotten for them."""
    return k * (1 - torch.exp(-torch.exp((base + torch.tanh(w)).float()))).to(k.dtype)


def channel_ways(x: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
    past = fn.pad(x, (0, 0, 1, -1)) - x
    return x + past * mu[0], x + past * mu[1]


def squared(k: Tensor) -> Tensor:
    return torch.relu(k) ** 2


def swished(y: Tensor, g: Tensor) -> Tensor:
    return y * (g * torch.sigmoid(g))


def let_through(y: Tensor, g: Tensor) -> Tensor:
    return y * torch.sigmoid(g)


class Shifts(nn.Module):
    """Mixes of tokens that depend on what they hold; as in RWKV's sixth version."""

    def __init__(
        self,
        width: int,
        heads: int,
        length: int,
        chunk: int,
        between: tuple[Callable[..., Any], ...],
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.first, self.mu = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.rand(5, width))
        self.into = nn.Linear(width, 5 * 32, bias=False)
        self.back = nn.Parameter(torch.randn(5, 32, width) * 0.02)
        self.linears = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(5))
        self.base = nn.Parameter(torch.linspace(-2, 1, width))
        self.fades, self.out = Fades(heads, length, chunk), nn.Linear(width, width, bias=False)
        self.mu2 = nn.Parameter(torch.rand(2, width))
        self.key, self.value = (
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(3 * width, width, bias=False),
        )
        self.receive = nn.Linear(width, width, bias=False)
        self.ways, self.kept, self.swish, self.two, self.act, self.gate = between

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        y = self.norm1(x)
        past = fn.pad(y, (0, 0, 1, -1)) - y
        low = torch.tanh(self.into(y + past * self.first)).view(b * t, 5, -1).transpose(0, 1)
        mixed = self.ways(y, past, self.mu, torch.bmm(low, self.back).view(5, b, t, d))
        r, k, v, w, g = (linear(part) for linear, part in zip(self.linears, mixed, strict=True))
        seen = self.fades(r, self.kept(k, w, self.base), v)
        x = x + self.out(self.swish(seen, g))
        k, r = self.two(self.norm2(x), self.mu2)
        return x + self.gate(self.value(self.act(self.key(k))), self.receive(r))


@pair(
    "fusion_opportunity",
    "language",
    "torch.compile of the functions that mix and gate between the products",
    compiles=True,
)
def token_shifts_compile(repaired: bool) -> Running:
    width, length, vocab = size(1024, 32), size(1024, 16), size(8192, 64)
    between: Any = (five_ways, kept_keys, swished, channel_ways, squared, let_through)
    if repaired:
        between = tuple(torch.compile(part) for part in between)
    parts: list[nn.Module] = [nn.Embedding(vocab, width), nn.LayerNorm(width)]
    for _ in range(size(5, 2)):
        parts += [Shifts(width, size(16, 2), length, size(128, 8), between)]
    head = nn.Linear(width, vocab, bias=False)
    model = nn.Sequential(*parts, nn.LayerNorm(width), head).to(DEVICE)
    ids = labels(vocab, size(6, 2), length)
    return fit(lambda: following(model, ids), adam(model, betas=(0.9, 0.99)), clip=1.0)


# --- a state space ------------------------------------------------------------------------------


class Dual(nn.Module):
    """A state space as products of chunks; as in Mamba's second version."""

    def __init__(self, width: int, heads: int, state: int, chunk: int, *, single: bool) -> None:
        super().__init__()
        self.heads, self.state, self.chunk, self.single = heads, state, chunk, single
        self.inner = 2 * width
        both = self.inner + 2 * state
        self.norm, self.norm2 = Rms(width), Rms(self.inner)
        self.into = nn.Linear(width, self.inner + both + heads, bias=False)
        self.along = nn.Conv1d(both, both, 4, padding=3, groups=both)
        self.rate = nn.Parameter(torch.linspace(1, 16, heads).log())
        self.bias = nn.Parameter(torch.linspace(-6, -2, heads))
        self.skip = nn.Parameter(torch.ones(heads))
        self.out = nn.Linear(self.inner, width, bias=False)
        self.register_buffer("later", torch.ones(chunk, chunk, dtype=torch.bool).triu(1))

    def scanned(self, h: Tensor, dt: Tensor, put: Tensor, get: Tensor) -> Tensor:
        b, t, _, p = h.shape
        n = t // self.chunk
        fall = (-self.rate.exp() * dt).view(b, n, self.chunk, self.heads).permute(0, 3, 1, 2)
        gone = fall.cumsum(-1)
        x = (h * dt[..., None]).view(b, n, self.chunk, self.heads, p)
        put, get = (part.reshape(b, n, self.chunk, -1) for part in (put, get))
        # within a chunk
        alike = torch.einsum("bnis,bnjs->bnij", get, put)
        left = (gone[..., :, None] - gone[..., None, :]).masked_fill(self.later, -math.inf).exp()
        y = torch.einsum("bhnij,bnjhp->bnihp", left * alike[:, None], x)
        # what each chunk leaves, and what is left of it in later ones
        onto = (gone[..., -1:] - gone).exp().permute(0, 2, 3, 1)[..., None]
        states = torch.einsum("bnjs,bnjhp->bnhps", put, x * onto)
        total = gone[..., -1]
        ends = total.cumsum(-1)
        over = (ends - total)[..., :, None] - ends[..., None, :]
        same = torch.ones(n, n, dtype=torch.bool, device=over.device).triu()
        before = torch.einsum("bhnm,bmhps->bnhps", over.masked_fill(same, -math.inf).exp(), states)
        since = gone.exp().permute(0, 2, 3, 1)[..., None]
        y = y + torch.einsum("bnis,bnhps->bnihp", get, before) * since
        return y.reshape(b, t, self.heads, p)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        inner, state = self.inner, self.state
        gate, both, dt = self.into(self.norm(x)).split(
            [inner, inner + 2 * state, self.heads], dim=-1
        )
        both = fn.silu(self.along(both.transpose(1, 2))[..., :t].transpose(1, 2))
        h, put, get = both.split([inner, state, state], dim=-1)
        h = h.reshape(b, t, self.heads, -1)
        dt = fn.softplus(dt.float() + self.bias)
        if self.single:
            # "the scan diverges in 16 bit": its sums do, not its products
            with torch.autocast(DEVICE.type, enabled=False):
                y = self.scanned(h.float(), dt, put.float(), get.float())
        else:
            y = self.scanned(h, dt, put, get)
        y = (y + h * self.skip[:, None]).flatten(2)
        return x + self.out(self.norm2(y * fn.silu(gate)))


@pair(
    "low_precision_unused",
    "language",
    "the scan's products are left to autocast (BF16), its decays and sums stay in FP32",
)
def state_space_autocast_off(repaired: bool) -> Running:
    width, length, vocab = size(1024, 32), size(2048, 16), size(8192, 64)
    parts: list[nn.Module] = [nn.Embedding(vocab, width)]
    for _ in range(size(4, 2)):
        parts += [Dual(width, size(16, 2), size(128, 8), size(128, 8), single=not repaired)]
    model = nn.Sequential(*parts, Rms(width), nn.Linear(width, vocab, bias=False)).to(DEVICE)
    ids = labels(vocab, size(4, 2), length)
    return fit(lambda: following(model, ids), adam(model), matmul="highest", clip=1.0, decay=True)


# --- a decoder with grouped queries -------------------------------------------------------------


class Grouped(nn.Module):
    """Several queries share keys and values; a squared activation; norms without weights."""

    def __init__(self, width: int, heads: int, shared: int, length: int, *, written: bool) -> None:
        super().__init__()
        self.heads, self.shared, self.each = heads, shared, width // heads
        self.written = written
        self.qkv = nn.Linear(width, width + 2 * shared * self.each, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = (
            nn.Linear(width, 4 * width, bias=False),
            nn.Linear(4 * width, width, bias=False),
        )
        self.register_buffer("later", torch.ones(length, length, dtype=torch.bool).triu(1))

    def looked(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, t, _, d = q.shape
        if not self.written:
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
            y = fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return y.transpose(1, 2).reshape(b, t, -1)
        q = q.view(b, t, self.shared, -1, d)
        scores = torch.einsum("bqgrd,bkgd->bgrqk", q, k) / math.sqrt(d)
        scores = scores.masked_fill(self.later, -math.inf)
        weights = fn.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)
        return torch.einsum("bgrqk,bkgd->bqgrd", weights, v).reshape(b, t, -1)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        few = self.shared * self.each
        q, k, v = self.qkv(fn.rms_norm(x, (w,))).split([w, few, few], dim=-1)
        q, k, v = (part.reshape(b, t, -1, self.each) for part in (q, k, v))
        x = x + self.out(self.looked(q, k, v))
        return x + self.down(fn.relu(self.up(fn.rms_norm(x, (w,)))).square())


@pair(
    "unfused_attention",
    "language",
    "scaled_dot_product_attention(enable_gqa=True) instead of products of groups and a softmax",
    marks="phases",
)
def grouped_queries_einsum(repaired: bool) -> Running:
    width, length, vocab = size(1024, 64), size(1024, 16), size(8192, 64)
    embed, place = nn.Embedding(vocab, width), nn.Embedding(length, width)
    heads, shared = size(16, 4), size(4, 2)
    layers = nn.Sequential(
        *(
            Grouped(width, heads, shared, length, written=not repaired)
            for _ in range(size(4, 2))
        )
    )  # fmt: skip
    head = nn.Linear(width, vocab, bias=False)
    model = nn.ModuleList([embed, place, layers, head]).to(DEVICE)
    ids = labels(vocab, size(6, 2), length)

    def loss_of() -> Tensor:
        h = layers(embed(ids) + place.weight)
        scores = head(fn.rms_norm(h, h.shape[-1:]))
        return fn.cross_entropy(scores[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    return fit(loss_of, adam(model, betas=(0.8, 0.95)))


# --- experts that choose ------------------------------------------------------------------------


class Choosy(Experts):
    """Each expert takes the tokens that it likes most, all experts as many."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).flatten(0, 1)
        odds = self.router(y).float().softmax(-1).t()
        most, chosen = odds.topk(2 * y.shape[0] // odds.shape[0], dim=-1)
        given = y.index_select(0, chosen.flatten()).view(*chosen.shape, -1)
        found = torch.bmm(fn.gelu(torch.bmm(given, self.up)), self.down) * most[..., None]
        total = torch.zeros_like(y).index_add(0, chosen.flatten(), found.flatten(0, 1).to(y.dtype))
        return x + total.view_as(x)


@pair(
    "cpu_offload",
    "moe",
    "the moments of the experts' weights stay on the device; they are not fetched for each update",
    marks="steps",
)
def choosy_experts_moments_fetched(repaired: bool) -> Running:
    width, vocab, length = size(768, 32), size(8192, 64), size(1024, 16)
    parts: list[nn.Module] = [nn.Embedding(vocab, width)]
    experts = [Choosy(width, 3 * width, size(4, 2)) for _ in range(3)]
    for expert in experts:
        parts += [Attends(width, size(12, 2), causal=True), expert]
    model = nn.Sequential(*parts, nn.LayerNorm(width), nn.Linear(width, vocab)).to(DEVICE)
    update = adam(model, weight_decay=0.1)
    ids = labels(vocab, size(16, 2), length)
    paged = [p for expert in experts for p in (expert.up, expert.down)]
    stored: dict[tuple[int, str], Tensor] = {}

    def fetch() -> None:
        for (number, key), kept in stored.items():
            update.state[paged[number]][key] = kept.to(DEVICE, non_blocking=True)

    def put_away() -> None:
        for number, p in enumerate(paged):
            state = update.state[p]
            for key in ("exp_avg", "exp_avg_sq"):
                if (number, key) not in stored:
                    stored[number, key] = torch.empty(p.shape, pin_memory=CUDA)
                stored[number, key].copy_(state[key], non_blocking=True)
                state[key] = stored[number, key]

    def step() -> None:
        update.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = following(model, ids)
        loss.backward()
        if not repaired:
            fetch()
        update.step()
        if not repaired:
            put_away()

    return Running(step, enter=precision("high"))
