"""A ninth set of programs for one GPU: texts and sequences, as teams train on them.

Preferences, rewards, answers in groups, adapters to pictures, teachers and students, experts, state
spaces; loops like those of trainers, and loops by hand. Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import math
import random
import re
import unicodedata
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from fourth_programs import labels
from models import (
    DEVICE,
    Attends,
    Experts,
    Feeds,
    done,
    graphed,
    half,
    made_optimizer,
    precision,
    size,
    transformer_layers,
)
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 155 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- what several have ------------------------------------------------------------------------


def layers_of(width: int, layers: int, *, causal: bool) -> list[nn.Module]:
    return transformer_layers(width, layers, max(width // 64, 2), causal=causal)


def stack(width: int, layers: int, vocab: int, out: int, *, causal: bool) -> nn.Module:
    """From tokens to as many scores a token."""
    middle = layers_of(width, layers, causal=causal)
    return nn.Sequential(
        nn.Embedding(vocab, width), *middle, nn.LayerNorm(width), nn.Linear(width, out)
    )


def adamw(parameters: Any, lr: float = 1e-4, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, fused=True, **more)


class Trainer:
    """A loop as a library has it: parts of a batch, gradients cut, a schedule, a running loss."""

    def __init__(
        self,
        loss_of: Callable[[int], Tensor],
        weights: Sequence[nn.Parameter],
        *,
        parts: int = 1,
        kind: str = "bf16",
        matmul: str = "high",
    ) -> None:
        self.loss_of, self.weights, self.parts, self.kind = loss_of, weights, parts, kind
        self.update = adamw(weights, weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.update, lambda n: min(1.0, n / 100))
        self.total = torch.zeros((), device=DEVICE)
        self.matmul = matmul

    def step(self) -> Tensor:
        for part in range(self.parts):
            with phase("forward"), half(self.kind):
                loss = self.loss_of(part) / self.parts
            with phase("backward"):
                loss.backward()
            self.total += loss.detach()
        with phase("optimizer"):
            nn.utils.clip_grad_norm_(self.weights, 1.0)
            done(self.update)
            self.schedule.step()
        return self.total

    def running(self, **more: Any) -> Running:
        return Running(self.step, enter=precision(self.matmul), **more)


# --- preferences ------------------------------------------------------------------------------


class Turned(nn.Module):
    """Causal attention; places turn pairs of channels, as complex numbers."""

    def __init__(self, width: int, heads: int, length: int, *, written: bool) -> None:
        super().__init__()
        self.heads, self.written, each = heads, written, width // heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        rates = 10_000.0 ** (-torch.arange(0, each, 2) / each)
        angles = torch.arange(length)[:, None] * rates
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))
        future = torch.full((length, length), float("-inf")).triu(1)
        self.register_buffer("future", future)

    def turned(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.turns).flatten(-2).type_as(x)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.turned(q), self.turned(k)
        if self.written:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            scores = scores + self.future.to(scores.dtype)
            y = scores.float().softmax(-1).type_as(q) @ v
        else:
            y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


@pair(
    "unfused_attention",
    "language",
    "scaled_dot_product_attention(is_causal=True) in policy and reference, not scores by hand",
)
def preferences_scores_by_hand(repaired: bool) -> Running:
    """Direct preference optimisation: a policy, and a frozen copy of it beside."""
    width, vocab, length, pairs = size(768, 32), size(8192, 64), size(512, 16), size(8, 2)

    def made() -> nn.Module:
        parts: list[nn.Module] = [nn.Embedding(vocab, width)]
        for _ in range(size(6, 1)):
            parts += [Turned(width, size(12, 2), length, written=not repaired), Feeds(width)]
        return nn.Sequential(*parts, nn.LayerNorm(width), nn.Linear(width, vocab)).to(DEVICE)

    policy, reference = made(), made()
    reference.load_state_dict(policy.state_dict())
    reference.requires_grad_(False).eval()
    ids = labels(vocab, 2 * pairs, length)  # those preferred, then those that are not
    ids[pairs:, : length // 4] = ids[:pairs, : length // 4]
    answer = (torch.arange(1, length, device=DEVICE) >= length // 4).float()

    def odds(model: nn.Module) -> Tensor:
        each = model(ids)[:, :-1].float().log_softmax(-1)
        return (each.gather(-1, ids[:, 1:, None])[..., 0] * answer).sum(-1)

    def loss_of(_part: int) -> Tensor:
        with torch.no_grad():
            before = odds(reference)
        better, worse = (odds(policy) - before).chunk(2)
        return -fn.logsigmoid(0.1 * (better - worse)).mean()

    return Trainer(loss_of, list(policy.parameters())).running()


# --- rewards ----------------------------------------------------------------------------------


@pair(
    "host_sync",
    "language",
    "where answers differ and end is found for all pairs at once, on the device",
    marks="steps",
)
def rewards_pair_by_pair(repaired: bool) -> Running:
    """Two answers are compared from where they first differ up to where the longer one ends."""
    width, vocab, length, pairs = size(768, 32), size(8192, 64), size(640, 32), size(12, 2)
    model = stack(width, size(5, 1), vocab, 1, causal=True).to(DEVICE)
    draw = random.Random(0)
    ids, empty = labels(vocab - 1, 2 * pairs, length) + 1, 0
    for i in range(pairs):
        same = draw.randrange(length // 8, length // 3)
        ids[pairs + i, :same] = ids[i, :same]
        for row in (ids[i], ids[pairs + i]):
            row[draw.randrange(length // 2, length) :] = empty

    def loss_of(_part: int) -> Tensor:
        rewards = model(ids)[..., 0].float()
        better, worse = rewards.chunk(2)
        if repaired:
            places = torch.arange(length, device=DEVICE)
            over = ids == empty
            ends = torch.where(over.any(1), over.int().argmax(1), length)
            end = torch.maximum(ends[:pairs], ends[pairs:])
            start = (ids[:pairs] != ids[pairs:]).int().argmax(1)
            inside = (places >= start[:, None]) & (places < end[:, None])
            each = -fn.logsigmoid(better - worse) * inside
            return (each.sum(1) / inside.sum(1)).mean()
        total = rewards.new_zeros(())
        for i in range(pairs):
            mine, other = ids[i], ids[pairs + i]
            ends = []
            for row in (mine, other):
                over = (row == empty).nonzero()
                ends.append(over[0].item() if len(over) else length)
            start = (mine != other).nonzero()[0].item()
            apart = better[i, start : max(ends)] - worse[i, start : max(ends)]
            total = total - fn.logsigmoid(apart).mean()
        return total / pairs

    return Trainer(loss_of, list(model.parameters())).running()


def token_losses(
    scores: Tensor, chosen: Tensor, before: Tensor, reference: Tensor, gains: Tensor
) -> Tensor:
    """Clipped gains of answers in groups, how far they moved, and some chaos."""
    each = (scores.float() / 0.9).log_softmax(-1)
    now = each.gather(-1, chosen[..., None])[..., 0]
    chaos = -(each.exp() * each).sum(-1)
    share = (now - before).clamp(-5, 5).exp()
    gain = torch.minimum(share * gains, share.clamp(0.8, 1.2) * gains)
    off = (reference - now).clamp(-5, 5)
    moved = off.exp() - off - 1
    return (0.04 * moved - gain - 0.001 * chaos).mean()


@pair("fusion_opportunity", "language", "the loss of a token is compiled", compiles=True)
def answers_in_groups_compile(repaired: bool) -> Running:
    width, vocab, length = size(768, 32), size(16_384, 64), size(384, 16)
    groups, each = size(4, 2), size(4, 2)
    model = stack(width, size(8, 1), vocab, vocab, causal=True).to(DEVICE)
    ids = labels(vocab, groups * each, length + 1)
    rewards = torch.rand(groups, each, device=DEVICE)
    gains = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    gains = gains.flatten()[:, None]
    with torch.no_grad(), half("bf16"):
        first = model(ids[:, :-1]).float().log_softmax(-1)
        before = first.gather(-1, ids[:, 1:, None])[..., 0].clone()
        del first
    reference = before + 0.05 * torch.randn_like(before)
    losses: Any = torch.compile(token_losses, dynamic=False) if repaired else token_losses
    weights = list(model.parameters())
    update = adamw(weights, 1e-6)

    def step() -> None:
        with half("bf16"):
            scores = model(ids[:, :-1])
        loss = losses(scores, ids[:, 1:], before, reference, gains)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 0.2)
        done(update)

    return Running(step, enter=precision("high"))


# --- pictures that were looked at before ----------------------------------------------------------


class Captioner(nn.Module):
    """Stored features of a picture's patches stand before its text; steps as Lightning has them."""

    def __init__(self, seen: int, width: int, layers: int, vocab: int) -> None:
        super().__init__()
        self.into = nn.Sequential(nn.Linear(seen, width), nn.GELU(), nn.Linear(width, width))
        self.embed = nn.Embedding(vocab, width)
        self.body = nn.Sequential(*layers_of(width, layers, causal=True), nn.LayerNorm(width))
        self.head = nn.Linear(width, vocab, bias=False)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen, ids = batch
        x = torch.cat([self.into(seen), self.embed(ids[:, :-1]).to(seen.dtype)], 1)
        h = self.body(x)[:, seen.shape[1] :]
        return fn.cross_entropy(self.head(h).flatten(0, 1).float(), ids[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return adamw(self.parameters(), betas=(0.9, 0.95))


@pair("blocking_copy", "language", "stored features are pinned and copied non_blocking")
def picture_features_unpinned(repaired: bool) -> Running:
    batch, patches, seen, words = size(24, 2), size(576, 8), size(1024, 16), size(64, 6)
    vocab = size(8192, 64)
    module = Captioner(seen, size(1024, 32), size(4, 1), vocab).to(DEVICE)
    update = module.configure_optimizers()
    stored = [
        (torch.randn(batch, patches, seen), torch.randint(0, vocab, (batch, words + 1)))
        for _ in range(2)
    ]
    if repaired and CUDA:
        stored = [(x.pin_memory(), y.pin_memory()) for x, y in stored]
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0)
    number = 0

    def step() -> None:
        nonlocal number
        parts = stored[number % len(stored)]
        number += 1
        x, y = (part.to(DEVICE, non_blocking=repaired) for part in parts)
        with torch.autocast(DEVICE.type, dtype=torch.float16):
            loss = module.training_step((x, y))
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- an update without a fused form ---------------------------------------------------------------


@pair("unfused_optimizer", "language", "NAdam(foreach=True) instead of foreach=False")
def ahead_of_moments_loop(repaired: bool) -> Running:
    """An update for each parameter, as chosen once to save room; nobody has fused this one."""
    width, vocab, batch, length = size(512, 32), size(4096, 64), size(28, 2), size(512, 16)
    model = stack(width, size(10, 2), vocab, vocab, causal=True).to(DEVICE)
    ids, weights = labels(vocab, batch, length + 1), list(model.parameters())
    update = torch.optim.NAdam(
        weights, lr=1e-4, weight_decay=0.01, decoupled_weight_decay=True, foreach=repaired
    )

    def step() -> None:
        with half("bf16"):
            scores = model(ids[:, :-1])
        fn.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        done(update)

    return Running(step, enter=precision("high"))


# --- twins ------------------------------------------------------------------------------------


class Standard(nn.Module):
    """Mean and variance of each row, spelled out or the library's."""

    def __init__(self, width: int, *, spelled: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.spelled = spelled

    def forward(self, x: Tensor) -> Tensor:
        if not self.spelled:
            return fn.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-6)
        off = x - x.mean(-1, keepdim=True)
        spread = off.pow(2).mean(-1, keepdim=True)
        return self.weight * (off / torch.sqrt(spread + 1e-6)) + self.bias


def smooth(x: Tensor, *, spelled: bool) -> Tensor:
    """The activation of the first GPTs."""
    if not spelled:
        return fn.gelu(x, approximate="tanh")
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


class After(nn.Module):
    """A layer that is normalised after its sums; as BERT's."""

    def __init__(self, width: int, heads: int, *, spelled: bool) -> None:
        super().__init__()
        self.heads, self.spelled = heads, spelled
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(Standard(width, spelled=spelled) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v)
        x = self.norms[0](x + self.out(y.transpose(1, 2).reshape(b, t, d)))
        return self.norms[1](x + self.down(smooth(self.up(x), spelled=self.spelled)))


@pair(
    "fusion_opportunity",
    "retrieval",
    "layer_norm and gelu(approximate='tanh') of the library, not spelled out",
)
def question_twins_spelled(repaired: bool) -> Running:
    """Questions and passages are brought together, in single precision."""
    width, vocab, pairs, length = size(768, 32), size(8192, 64), size(32, 2), size(128, 8)
    layers = [After(width, size(12, 2), spelled=not repaired) for _ in range(size(5, 1))]
    first = nn.Sequential(nn.Embedding(vocab, width), Standard(width, spelled=not repaired))
    model = nn.Sequential(first, *layers).to(DEVICE)
    warmth = nn.Parameter(torch.tensor(3.0, device=DEVICE))
    update = torch.optim.Adam([*model.parameters(), warmth], lr=2e-5, fused=True)
    ids, same = labels(vocab, 2 * pairs, length), torch.arange(pairs, device=DEVICE)

    def step() -> None:
        asked, told = fn.normalize(model(ids).mean(1), dim=-1).chunk(2)
        near = asked @ told.t() * warmth.exp()
        loss = (fn.cross_entropy(near, same) + fn.cross_entropy(near.t(), same)) / 2
        loss.backward()
        done(update)

    return Running(step, enter=precision("high"))


# --- precision --------------------------------------------------------------------------------


@pair(
    "low_precision_unused",
    "language",
    "torch.set_float32_matmul_precision('high') for the head, which stays in FP32",
    marks="profiler",
)
def head_kept_in_float(repaired: bool) -> Running:
    """The layers work under autocast; the last scores in single precision, for small odds."""
    width, vocab, batch, length = size(1024, 32), size(16_384, 64), size(8, 2), size(640, 16)
    embed = nn.Embedding(vocab, width)
    body = nn.Sequential(*layers_of(width, size(6, 1), causal=True), nn.LayerNorm(width))
    model = nn.ModuleList([embed, body, nn.Linear(width, vocab, bias=False)]).to(DEVICE)
    ids = labels(vocab, batch, length + 1)

    def loss_of(_part: int) -> Tensor:
        h = model[1](model[0](ids[:, :-1]))
        with torch.autocast(DEVICE.type, enabled=False):
            scores = model[2](h.float())
        return fn.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1)

    matmul = "high" if repaired else "highest"
    return Trainer(loss_of, list(model.parameters()), matmul=matmul).running()


class Reads(nn.Module):
    """A text being written looks at the one that was read."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, read: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q(self.norm(x)), *self.kv(read).chunk(2, -1))
        )
        y = fn.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Restorer(nn.Module):
    """Gaps of a text are written by a second stack."""

    def __init__(self, width: int, layers: int, vocab: int) -> None:
        super().__init__()
        heads = max(width // 64, 2)
        self.embed = nn.Embedding(vocab, width)
        self.reader = nn.Sequential(*layers_of(width, layers, causal=False), nn.LayerNorm(width))
        self.looks = nn.ModuleList(Attends(width, heads, causal=True) for _ in range(layers))
        self.reads = nn.ModuleList(Reads(width, heads) for _ in range(layers))
        self.feeds = nn.ModuleList(Feeds(width) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocab))

    def forward(self, text: Tensor, gaps: Tensor) -> Tensor:
        read, x = self.reader(self.embed(text)), self.embed(gaps)
        for look, reads, feed in zip(self.looks, self.reads, self.feeds, strict=True):
            x = feed(reads(look(x), read))
        return self.head(x)


@pair("lower_precision", "language", "autocast to BF16 instead of TF32", marks="phases")
def gaps_restored_bf16(repaired: bool) -> Running:
    vocab, batch = size(8192, 64), size(24, 2)
    model = Restorer(size(768, 32), size(4, 1), vocab).to(DEVICE)
    text, gaps = labels(vocab, batch, size(512, 16)), labels(vocab, batch, size(128, 8) + 1)

    def loss_of(_part: int) -> Tensor:
        scores = model(text, gaps[:, :-1]).flatten(0, 1).float()
        return fn.cross_entropy(scores, gaps[:, 1:].flatten())

    kind = "bf16" if repaired else "fp32"
    return Trainer(loss_of, list(model.parameters()), kind=kind).running()


# --- state spaces -----------------------------------------------------------------------------


class StateSpace(nn.Module):
    """Decaying states, in chunks of matrix products; as Mamba-2.

    One projection makes the gate, what is mixed, and a step for each head: of 35 heads their sum is
    odd. ``padded`` adds rows that nobody reads.
    """

    def __init__(self, width: int, head: int, state: int, chunk: int, *, padded: bool) -> None:
        super().__init__()
        inner = 2 * width
        self.head, self.state, self.chunk, heads = head, state, chunk, inner // head
        self.sizes = [inner, inner, state, state, heads]
        rows = sum(self.sizes)
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(inner)
        self.into = nn.Linear(width, (rows + 63) // 64 * 64 if padded else rows, bias=False)
        self.out = nn.Linear(inner, width, bias=False)
        self.taps = nn.Parameter(torch.randn(4, inner) * 0.5)
        self.rate = nn.Parameter(torch.rand(heads))
        self.shift = nn.Parameter(torch.full((heads,), -3.0))
        self.skip = nn.Parameter(torch.ones(heads, 1, 1))
        self.register_buffer("past", torch.ones(chunk, chunk, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        made = self.into(self.norm(x))[..., : sum(self.sizes)]
        gate, mixed, key, query, step = made.split(self.sizes, -1)
        late = fn.pad(mixed, (0, 0, 3, 0))
        taps = self.taps.to(mixed.dtype)
        mixed = fn.silu(sum(late[:, i : i + t] * taps[i] for i in range(4)))

        step = fn.softplus(step.float() + self.shift)
        fall = (-self.rate.exp() * step).unflatten(1, (-1, self.chunk)).transpose(2, 3).cumsum(-1)
        key, query = (part.unflatten(1, (-1, self.chunk)) for part in (key, query))
        # batch, chunks, heads, places, channels
        given = mixed.unflatten(-1, (-1, self.head)) * step[..., None].to(mixed.dtype)
        given = given.unflatten(1, (-1, self.chunk)).transpose(2, 3)
        apart = (fall[..., :, None] - fall[..., None, :]).masked_fill(~self.past, float("-inf"))
        near = (query @ key.transpose(2, 3))[:, :, None]
        y = (apart.exp() * near) @ given

        whole = fall[..., -1:]
        kept = key.transpose(2, 3)[:, :, None] @ (given * (whole - fall).exp()[..., None])
        whole = whole[..., 0]
        until = whole.cumsum(1)
        n = until.shape[1]
        earlier = self.past.new_ones(n, n).tril(-1)[:, :, None]
        carry = (until - whole)[:, :, None] - until[:, None]
        carry = carry.masked_fill(~earlier, float("-inf")).exp()
        kept = torch.einsum("bzch,bchnp->bzhnp", carry, kept)
        y = y + (query[:, :, None] @ kept) * fall.exp()[..., None].to(y.dtype)
        y = (y + self.skip.to(y.dtype) * given).transpose(2, 3).reshape(b, t, -1)
        return x + self.out(self.after(y * fn.silu(gate)))


@pair(
    "aligned_shapes",
    "language",
    "the projection's 4643 rows are padded to 4672, a multiple of 64",
)
def state_space_odd_projection(repaired: bool) -> Running:
    width, vocab, batch, length = size(1120, 24), size(8192, 64), size(8, 2), size(1024, 32)
    layers = [
        StateSpace(width, size(64, 16), size(64, 8), size(64, 8), padded=repaired)
        for _ in range(size(4, 1))
    ]
    head = nn.Linear(width, vocab, bias=False)
    model = nn.Sequential(nn.Embedding(vocab, width), *layers, nn.LayerNorm(width), head)
    model = model.to(DEVICE)
    ids = labels(vocab, batch, length + 1)

    def loss_of(_part: int) -> Tensor:
        scores = model(ids[:, :-1])
        return fn.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten())

    return Trainer(loss_of, list(model.parameters())).running()


# --- gates --------------------------------------------------------------------------------------


class Gates(nn.Module):
    """States that a gate mixes with what is new, for all places by doubling; as minGRU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.both = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, new = self.both(self.norm(x)).chunk(2, -1)
        gate = gate.sigmoid()
        keep, state = 1 - gate, gate * new.tanh()
        far = 1
        while far < x.shape[1]:
            state = state + keep * fn.pad(state[:, :-far], (0, 0, far, 0))
            keep = keep * fn.pad(keep[:, :-far], (0, 0, far, 0), value=1.0)
            far *= 2
        return x + self.out(fn.silu(state))


@pair("launch_bound", "language", "the whole step is one CUDA graph")
def gates_by_doubling_graph(repaired: bool) -> Running:
    width, vocab, batch, length = size(256, 16), size(2048, 32), size(10, 2), size(256, 8)
    parts: list[nn.Module] = [nn.Embedding(vocab, width)]
    for _ in range(size(5, 2)):
        parts += [Gates(width), Feeds(width, 2)]
    parts += [nn.LayerNorm(width), nn.Linear(width, vocab)]
    model = nn.Sequential(*parts).to(DEVICE)
    update, weights = made_optimizer(model.parameters(), "graph"), list(model.parameters())
    ids = labels(vocab, batch, length + 1)

    def step() -> None:
        update.zero_grad(set_to_none=True)
        scores = model(ids[:, :-1])
        fn.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        update.step()

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run


# --- input ------------------------------------------------------------------------------------


class Comments(Dataset[tuple[Tensor, Tensor]]):
    """Comments are cleaned, cut into pieces of words and masked when they are asked for."""

    def __init__(self, vocab: int, length: int) -> None:
        draw = random.Random(1)
        self.vocab, self.length = vocab, length
        signs = "abcdefghijklmnoprstuvwz"
        pieces = sorted({"".join(draw.choices(signs, k=draw.randint(2, 5))) for _ in range(vocab)})
        self.pieces = {piece: 2 + i % (vocab - 2) for i, piece in enumerate([*signs, *pieces])}
        self.words = [
            "".join(draw.choices(pieces, k=draw.randint(1, 2))).capitalize() for _ in range(5000)
        ]
        self.cut = re.compile(r"\w+|[^\w\s]")

    def __len__(self) -> int:
        return 1_000_000

    def taken(self, word: str) -> list[int]:
        """The longest pieces of a word, from its begin on."""
        found, start = [], 0
        while start < len(word):
            end = min(len(word), start + 6)
            while end > start + 1 and word[start:end] not in self.pieces:
                end -= 1
            found.append(self.pieces.get(word[start:end], 1))
            start = end
        return found

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        draw = random.Random(index)
        text = ", ".join(draw.choices(self.words, k=self.length // 3))
        text = "".join(" " if c.isspace() else c for c in text if c.isprintable() or c.isspace())
        text = unicodedata.normalize("NFD", text.lower())
        text = "".join(c for c in text if unicodedata.category(c) != "Mn")
        ids: list[int] = []
        for word in self.cut.findall(text):
            ids += self.taken(word)
        ids = (ids + [0] * self.length)[: self.length]
        goal = [-100] * self.length
        for place in draw.sample(range(self.length), self.length * 3 // 20):
            goal[place], ids[place] = ids[place], 1
        return torch.tensor(ids), torch.tensor(goal)


@pair("input_starvation", "language", "8 workers instead of none, the loader's default")
def comments_cut_on_the_way(repaired: bool) -> Running:
    vocab, batch, length = size(8192, 64), size(32, 2), size(256, 16)
    workers = size(8, 1) if repaired else 0
    more: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
    data = Comments(vocab, length)
    loader = DataLoader(data, batch, num_workers=workers, pin_memory=CUDA, **more)

    def endlessly() -> Generator[Any, None, None]:  # closed, it forgets the workers, which then end
        while True:
            yield from loader

    batches = endlessly()
    model = stack(size(768, 32), size(5, 1), vocab, vocab, causal=False).to(DEVICE)

    def loss_of(_part: int) -> Tensor:
        ids, goal = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        return fn.cross_entropy(model(ids).flatten(0, 1).float(), goal.flatten())

    trainer = Trainer(loss_of, list(model.parameters()))
    return trainer.running(settle=2 + 4 * workers, close=batches.close)


# --- experts ----------------------------------------------------------------------------------


class Choosing(Experts):
    """Experts choose their tokens, as many each."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).flatten(0, 1)
        odds = self.router(y).float().softmax(-1)
        weight, chosen = odds.t().topk(y.shape[0] // odds.shape[1], -1)
        given = y.index_select(0, chosen.flatten()).view(*chosen.shape, -1)
        found = torch.bmm(fn.gelu(torch.bmm(given, self.up)), self.down)
        found = (found.float() * weight[..., None]).flatten(0, 1)
        back = torch.zeros_like(y, dtype=torch.float32).index_add(0, chosen.flatten(), found)
        return x + back.view_as(x)


@pair("recomputation", "moe", "layers are not checkpointed: their activations fit")
def choosing_experts_checkpointed(repaired: bool) -> Running:
    width, vocab, batch, length = size(768, 32), size(8192, 64), size(8, 2), size(1024, 16)
    embed, head = nn.Embedding(vocab, width), nn.Linear(width, vocab)
    layers = nn.ModuleList(
        nn.Sequential(
            Attends(width, size(12, 2), causal=True), Choosing(width, 4 * width, size(8, 2))
        )
        for _ in range(size(3, 2))
    )
    model = nn.ModuleList([embed, layers, nn.LayerNorm(width), head]).to(DEVICE)
    ids = labels(vocab, batch, length + 1)

    def loss_of(_part: int) -> Tensor:
        x = embed(ids[:, :-1])
        for layer in layers:
            x = layer(x) if repaired else checkpoint(layer, x, use_reentrant=False)
        scores = head(model[2](x))
        return fn.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten())

    return Trainer(loss_of, list(model.parameters())).running()


# --- teachers ---------------------------------------------------------------------------------


@pair(
    "casts_and_copies",
    "language",
    "the teacher's matrices are kept in BF16, not cast from FP32 for each part of the batch",
)
def teacher_cast_for_each_part(repaired: bool) -> Running:
    """Autocast keeps casts of what is learnt only; a frozen teacher's are made again and again."""
    vocab, batch, length, parts = size(8192, 64), size(5, 2), size(256, 16), 4
    with DEVICE:
        teacher = stack(size(2560, 48), size(4, 1), vocab, vocab, causal=True)
        student = stack(size(1024, 32), size(3, 1), vocab, vocab, causal=True)
    teacher.requires_grad_(False).eval()
    if repaired:
        for part in teacher.modules():
            if isinstance(part, nn.Linear):
                part.bfloat16()
    ids = labels(vocab, parts, batch, length + 1)

    def loss_of(part: int) -> Tensor:
        given, goal = ids[part, :, :-1], ids[part, :, 1:]
        with torch.no_grad():
            told = (teacher(given).float() / 2).log_softmax(-1).flatten(0, 1)
        mine = student(given).float().flatten(0, 1)
        near = fn.kl_div((mine / 2).log_softmax(-1), told, reduction="batchmean", log_target=True)
        return 0.5 * fn.cross_entropy(mine, goal.flatten()) + 2 * near

    return Trainer(loss_of, list(student.parameters()), parts=parts).running()


# --- places -----------------------------------------------------------------------------------


def buckets(apart: Tensor, many: int) -> Tensor:
    """Near distances by themselves, far ones together, to both sides; as T5."""
    half_of, exact = many // 2, many // 4
    far = apart.abs().clamp(min=1).float()
    steps = (far / exact).log() / math.log(128 / exact) * (half_of - exact)
    late = (exact + steps.long()).clamp(max=half_of - 1)
    return (apart > 0) * half_of + torch.where(apart.abs() < exact, apart.abs(), late)


class Near(nn.Module):
    """Attention with a bias for the distance of places."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


class Distances(nn.Module):
    """Tags tokens; all layers share one table of distances."""

    def __init__(
        self, width: int, heads: int, layers: int, vocab: int, length: int, *, one_row: bool
    ) -> None:
        super().__init__()
        self.length, self.one_row, many = length, one_row, 32
        self.embed, self.table = nn.Embedding(vocab, width), nn.Embedding(many, heads)
        self.looks = nn.ModuleList(Near(width, heads) for _ in range(layers))
        self.feeds = nn.ModuleList(Feeds(width) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 32))
        places = torch.arange(length)
        every = torch.arange(1 - length, length) if one_row else places - places[:, None]
        self.register_buffer("buckets", buckets(every, many))

    def bias(self) -> Tensor:
        found = self.table(self.buckets)
        if not self.one_row:
            return found.permute(2, 0, 1)[None]
        # each row is the one before, moved by a place: rows that are one longer are cut shorter
        n, heads = self.length, found.shape[1]
        rows = fn.pad(found.t(), (0, 1))[:, None].expand(-1, n, -1).reshape(heads, -1)
        rows = rows[:, : n * (2 * n - 1)].view(heads, n, 2 * n - 1)
        return rows[:, :, n - 1 :][None]

    def forward(self, ids: Tensor) -> Tensor:
        x, bias = self.embed(ids), self.bias().to(torch.bfloat16).contiguous()
        for look, feed in zip(self.looks, self.feeds, strict=True):
            x = feed(look(x, bias))
        return self.head(x)


@pair(
    "inefficient_kernel",
    "language",
    "biases are looked up for 2047 distances, not for all pairs of places: a sum over few rows",
)
def distances_looked_up_for_pairs(repaired: bool) -> Running:
    """The gradient of a million look-ups in a table of 32 rows is summed by a few blocks."""
    vocab, batch, length = size(8192, 64), size(8, 2), size(1024, 16)
    width, heads, layers = size(768, 32), size(12, 2), size(6, 1)
    model = Distances(width, heads, layers, vocab, length, one_row=repaired).to(DEVICE)
    ids, tags = labels(vocab, batch, length), labels(32, batch, length)

    def loss_of(_part: int) -> Tensor:
        # others do not give the bias a gradient
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            scores = model(ids)
        return fn.cross_entropy(scores.flatten(0, 1).float(), tags.flatten())

    return Trainer(loss_of, list(model.parameters())).running()
