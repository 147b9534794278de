"""A tenth set of programs for one GPU: what ordinary teams train every day, each in its own loop.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import itertools
import math
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from fourth_programs import labels
from models import DEVICE, done, endless, graphed, half, next_token, precision, size
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 179 pairs, opened"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- a transformer's layers -------------------------------------------------------------------


class Attention(nn.Module):
    """Looks at itself, or at a memory."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self, x: Tensor, memory: Tensor, *, causal: bool = False, mask: Tensor | None = None
    ) -> Tensor:
        b, t, d = x.shape
        q = self.q(x).view(b, t, self.heads, -1).transpose(1, 2)
        kv = self.kv(memory).view(b, memory.shape[1], 2, self.heads, -1)
        k, v = kv.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = fn.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal
        )
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    """Norms come first, as in GPT-2 and in ViT."""

    def __init__(
        self, width: int, heads: int, *, causal: bool = False, crosses: bool = False,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.causal = causal
        self.norm1, self.looks = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width) if crosses else None
        self.crosses = Attention(width, heads, dropout) if crosses else None
        self.feeds = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
            nn.Linear(4 * width, width), nn.Dropout(dropout),
        )  # fmt: skip

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        y = self.norm1(x)
        x = x + self.looks(y, y, causal=self.causal, mask=mask)
        if self.crosses is not None and self.norm2 is not None:
            x = x + self.crosses(self.norm2(x), memory)
        return x + self.feeds(x)


class Words(nn.Module):
    """Words and their places go through such layers."""

    def __init__(
        self, width: int, layers: int, heads: int, vocab: int, length: int, **how: Any
    ) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads, **how) for _ in range(layers))
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(how.get("dropout", 0.0))
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(
        self, ids: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        x = self.dropout(self.embed(ids) + self.place.weight[: ids.shape[1]])
        for layer in self.layers:
            x = layer(x, memory, mask)
        return self.norm(x)


# --- a classifier of small pictures -----------------------------------------------------------


class WideBlock(nn.Module):
    """Norm and activation come before each convolution; as in wide residual networks."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        same = before == after and stride == 1
        self.short = None if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = fn.relu(self.norm1(x))
        short = x if self.short is None else self.short(h)
        return short + self.conv2(fn.relu(self.norm2(self.conv1(h))))


def wide_residual(width: int, blocks: int, classes: int) -> nn.Module:
    parts: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
    before = 16
    for level in range(3):
        after = width * 2**level
        for number in range(blocks):
            parts.append(WideBlock(before, after, 2 if number == 0 and level else 1))
            before = after
    parts += [nn.BatchNorm2d(before), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*parts, nn.Linear(before, classes))


@pair(
    "host_sync", "vision", "hits of the classes are counted on the device and read every 500 steps"
)
def small_pictures_hits_of_classes(repaired: bool) -> Running:
    """All pictures are on the device, FP16 with a scaler; accuracy of each class is logged."""
    classes, batch, stored = 10, size(192, 4), size(50_000, 16)
    model = wide_residual(size(32, 8), size(4, 1), classes).to(DEVICE)
    pictures = torch.randint(0, 256, (stored, 3, 32, 32), dtype=torch.uint8, device=DEVICE)
    true = labels(classes, stored)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=CUDA)
    kind = torch.float16 if CUDA else torch.bfloat16
    # what is logged: on the host with the fault, on the device without
    hits, seen, total = [0] * classes, [0] * classes, 0.0
    counted = torch.zeros(3, classes, device=DEVICE)
    made = 0

    def step() -> Tensor:
        nonlocal made, total
        chosen = labels(stored, batch)
        x, y = pictures[chosen].float() / 127.5 - 1, true[chosen]
        flips = torch.rand(batch, 1, 1, 1, device=DEVICE) < 0.5
        x = torch.where(flips, x.flip(3), x)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, kind):
            scores = model(x)
            loss = fn.cross_entropy(scores, y, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        guess = scores.argmax(1)
        if repaired:
            counted[0].index_add_(0, y, (guess == y).float())
            counted[1].index_add_(0, y, torch.ones_like(y, dtype=torch.float))
            counted[2, 0] += loss.detach()
            if made % 500 == 499:
                hits[:], seen[:] = counted[:2].tolist()
        else:
            total += loss.item()
            for c in range(classes):
                mine = y == c
                hits[c] += (guess[mine] == c).sum().item()
                seen[c] += mine.sum().item()
        made += 1
        return loss.detach()

    return Running(step, enter=precision("high"))


# --- masked words -----------------------------------------------------------------------------

PAD, BEGIN, END, MASK = range(4)
FIRST = 5
"""Pieces of words have numbers from here on."""
IGNORED = -100
PIECES = [a + b + c for a in "bcdfghjklmnprstvwxyz" for b in "aeiou" for c in "bdfgklmnprst"]
PIECE_IDS = {piece: i for i, piece in enumerate([*PIECES, *("##" + p for p in PIECES)], FIRST)}


class Sentences(Dataset[list[int]]):
    """Texts, cut into pieces of words when they are asked for; as BERT's own tokenizer does."""

    def __init__(self, texts: int, length: int) -> None:
        rng = random.Random(0)
        self.length = length
        self.texts = [
            " ".join(
                "".join(rng.choices(PIECES, k=rng.randint(1, 4)))
                for _ in range(rng.randint(length // 3, length // 2))
            )
            for _ in range(texts)
        ]

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> list[int]:
        ids = [BEGIN]
        for word in self.texts[index % len(self.texts)].lower().split():
            start = 0
            while start < len(word):
                end = len(word)
                while end > start:
                    piece = word[start:end] if start == 0 else "##" + word[start:end]
                    if piece in PIECE_IDS:
                        ids.append(PIECE_IDS[piece])
                        break
                    end -= 1
                start = end
        return [*ids[: self.length - 1], END]


class Masks:
    """Makes a batch of sentences, some words of which are hidden."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        rng = random.Random(sum(rows[0]))
        inside, outside = [], []
        for row in rows:
            ids, goal = list(row), [IGNORED] * len(row)
            for i, token in enumerate(row):
                if token < FIRST or (odds := rng.random()) > 0.15:
                    continue
                goal[i] = token
                if odds < 0.12:
                    ids[i] = MASK
                elif odds < 0.135:
                    ids[i] = rng.randrange(FIRST, FIRST + len(PIECE_IDS))
            lacks = self.length - len(row)
            inside.append(ids + [PAD] * lacks)
            outside.append(goal + [IGNORED] * lacks)
        return torch.tensor(inside), torch.tensor(outside)


class Masked(Words):
    """An encoder that guesses hidden words, by the weights that they are embedded by."""

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        mask = (ids != PAD)[:, None, None]
        return fn.linear(super().forward(ids, mask=mask), self.embed.weight)


@pair("input_starvation", "language", "the DataLoader gets 8 workers instead of 2", marks="steps")
def masked_words_two_workers(repaired: bool) -> Running:
    """Texts are tokenised and masked by pure Python in the workers."""
    batch, length = size(64, 2), size(256, 16)
    vocab = -(-(FIRST + len(PIECE_IDS)) // 128) * 128
    workers = 8 if repaired else 2
    loader = DataLoader(
        Sentences(size(2000, 8), length), batch, num_workers=size(workers, 1),
        collate_fn=Masks(length), pin_memory=CUDA, persistent_workers=True,
    )  # fmt: skip
    batches = endless(loader)  # its end, and so that of the workers, is `close`
    model = Masked(size(512, 16), size(6, 1), size(8, 2), vocab, length, dropout=0.1).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 1000))

    def step() -> Tensor:
        ids, goal = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        with half("bf16"):
            scores = model(ids).flatten(0, 1).float()
            loss = fn.cross_entropy(scores, goal.flatten(), ignore_index=IGNORED)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return Running(step, enter=precision("high"), close=batches.close, settle=2 + 2 * workers)


# --- captions of pictures ---------------------------------------------------------------------


class Captions(nn.Module):
    """Words that look at the features of a picture's patches."""

    def __init__(self, words: Words, width: int, seen: int, vocab: int) -> None:
        super().__init__()
        self.seen = nn.Sequential(nn.Linear(seen, width), nn.LayerNorm(width))
        self.words, self.head = words, nn.Linear(width, vocab, bias=False)

    def forward(self, features: Tensor, ids: Tensor) -> Tensor:
        return self.head(self.words(ids, self.seen(features)))


@pair(
    "blocking_copy",
    "vision",
    "features are pinned when loaded, copied non_blocking",
    marks="phases",
)
def captions_features_in_memory(repaired: bool) -> Running:
    """Features of the pictures were computed before and are kept in the host's memory."""
    batch, places, seen = size(48, 2), size(196, 4), size(768, 8)
    width, length, vocab = size(768, 16), size(64, 8), size(8192, 64)
    layers = Words(width, size(7, 1), size(12, 2), vocab, length, causal=True, crosses=True)
    model = Captions(layers, width, seen, vocab).to(DEVICE)
    features = torch.randn(8 * batch, places, seen)
    words = torch.randint(0, vocab, (8 * batch, length + 1))
    if repaired and CUDA:
        features, words = features.pin_memory(), words.pin_memory()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    made = 0

    def step() -> Tensor:
        nonlocal made
        with phase("get_batch"):
            at = made % 8 * batch
            x = features[at : at + batch].to(DEVICE, non_blocking=repaired)
            y = words[at : at + batch].to(DEVICE, non_blocking=repaired)
        with phase("forward"), half("bf16"):
            scores = model(x, y[:, :-1]).flatten(0, 1).float()
            loss = fn.cross_entropy(scores, y[:, 1:].flatten(), label_smoothing=0.1)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        made += 1
        return loss.detach()

    return Running(step, enter=precision("high"))


# --- language models as in a course -----------------------------------------------------------


class Projection(nn.Module):
    """A frozen matrix and, beside it, a product of two thin ones that learn (LoRA)."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen, self.scale = frozen, 2.0
        self.dropout = nn.Dropout(0.05)
        self.a = nn.Parameter(torch.randn(rank, frozen.in_features) * 0.01)
        self.b = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        thin = fn.linear(fn.linear(self.dropout(x), self.a), self.b)
        return self.frozen(x) + self.scale * thin


class Gated(nn.Module):
    """Rotary places, a gated linear unit, norms by mean squares, no biases."""

    def __init__(self, width: int, heads: int, wide: int, length: int) -> None:
        super().__init__()
        self.heads, each = heads, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q: nn.Module = nn.Linear(width, width, bias=False)
        self.k: nn.Module = nn.Linear(width, width, bias=False)
        self.v: nn.Module = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, wide, bias=False)
        self.up, self.down = nn.Linear(width, wide, bias=False), nn.Linear(wide, width, bias=False)
        angles = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(0, each, 2) / each)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def turned(self, x: Tensor) -> Tensor:
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        y = self.norm1(x)
        q, k, v = (
            part(y).view(b, t, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        y = fn.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        y = self.norm2(x)
        return x + self.down(fn.silu(self.gate(y)) * self.up(y))


class Language(nn.Module):
    """A language model of such layers, which may be checkpointed."""

    def __init__(
        self, width: int, layers: int, heads: int, wide: int, vocab: int, length: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Gated(width, heads, wide, length) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, vocab, bias=False)
        self.checkpointed = False

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return self.head(self.norm(x))


class OwnAdamW(torch.optim.Optimizer):
    """The update as it stands in the paper, written as an exercise."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                t = state.get("t", 1)
                m = state.get("m", torch.zeros_like(p) if t == 1 else None)
                v = state.get("v", torch.zeros_like(p) if t == 1 else None)
                m = 0.9 * m + 0.1 * p.grad
                v = 0.95 * v + 0.05 * p.grad**2
                rate = group["lr"] * math.sqrt(1 - 0.95**t) / (1 - 0.9**t)
                p.data -= rate * m / (torch.sqrt(v) + 1e-8)
                p.data -= group["lr"] * group["weight_decay"] * p.data
                state["m"], state["v"], state["t"] = m, v, t + 1


@pair("unfused_optimizer", "language", "AdamW(fused=True) instead of one's own loop")
def course_language_own_adamw(repaired: bool) -> Running:
    """A language model, its schedule and its optimizer written by hand."""
    width, length, vocab, batch = size(768, 32), size(512, 16), size(8192, 64), size(12, 2)
    model = Language(width, size(10, 2), size(12, 2), size(2048, 64), vocab, length).to(DEVICE)
    text = labels(vocab, size(1_000_000, 400))
    places = torch.arange(length + 1, device=DEVICE)
    optimizer: torch.optim.Optimizer
    if repaired:
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
    else:
        optimizer = OwnAdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    made = 0

    def step() -> Tensor:
        nonlocal made
        share = min(made / 100, 0.5 + 0.5 * math.cos(math.pi * min(made / 10_000, 1.0)))
        for group in optimizer.param_groups:
            group["lr"] = 3e-4 * share
        starts = labels(len(text) - length - 1, batch)
        ids = text[starts[:, None] + places]
        optimizer.zero_grad(set_to_none=True)
        with half("bf16"):
            loss = next_token(model, ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        made += 1
        return loss.detach()

    return Running(step, enter=precision("high"))


@pair("recomputation", "language", "layers are not checkpointed: their activations fit")
def adapters_layers_checkpointed(repaired: bool) -> Running:
    """Queries and values of a frozen BF16 model are adapted; a script for larger ones is reused."""
    width, length, vocab, batch = size(2048, 32), size(1024, 16), size(16_384, 64), size(4, 2)
    with DEVICE:
        model = Language(width, size(8, 2), size(16, 2), size(5632, 64), vocab, length)
    model.requires_grad_(False)
    for layer in model.layers:
        assert isinstance(layer.q, nn.Linear)
        assert isinstance(layer.v, nn.Linear)
        layer.q, layer.v = Projection(layer.q, size(16, 4)), Projection(layer.v, size(16, 4))
    model.to(DEVICE, torch.bfloat16)
    model.checkpointed = not repaired
    learnt = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=2e-4, fused=True)
    asked = length // 4
    turns = itertools.cycle(labels(vocab, 4, batch, length))

    def step() -> Tensor:
        ids = next(turns)
        scores = model(ids)[:, asked - 1 : -1]  # the instruction itself is not learnt
        loss = fn.cross_entropy(scores.flatten(0, 1).float(), ids[:, asked:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(learnt, 1.0)
        done(optimizer)
        return loss.detach()

    return Running(step, enter=precision("high"))


# --- from sequence to sequence ----------------------------------------------------------------


class Translator(nn.Module):
    """PyTorch's own transformer between embeddings and a head; as in the tutorial."""

    def __init__(self, width: int, layers: int, heads: int, wide: int, vocab: int) -> None:
        super().__init__()
        self.width = width
        self.source, self.target = nn.Embedding(vocab, width), nn.Embedding(vocab, width)
        self.places = nn.Embedding(512, width)
        self.body = nn.Transformer(width, heads, layers, layers, wide, 0.1, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, given: Tensor, wanted: Tensor) -> Tensor:
        places = self.places.weight
        x = self.source(given) * math.sqrt(self.width) + places[: given.shape[1]]
        y = self.target(wanted) * math.sqrt(self.width) + places[: wanted.shape[1]]
        t = wanted.shape[1]
        later = torch.ones(t, t, dtype=torch.bool, device=given.device).triu(1)
        empty = given == PAD
        return self.head(
            self.body(
                x, y, tgt_mask=later, tgt_is_causal=True,
                src_key_padding_mask=empty, memory_key_padding_mask=empty,
            )
        )  # fmt: skip


@pair("low_precision_unused", "language", "set_float32_matmul_precision('high')")
def translator_default_precision(repaired: bool) -> Running:
    """Padded pairs of sentences, Noam's schedule; nothing was said of precision."""
    vocab, batch, length = size(16_384, 64), size(48, 2), size(80, 8)
    model = Translator(size(512, 16), size(6, 1), size(8, 2), size(2048, 32), vocab).to(DEVICE)
    given, wanted = labels(vocab - 1, 8, batch, length), labels(vocab - 1, 8, batch, length + 1)
    lengths = torch.randint(length // 2, length + 1, (8, batch, 1), device=DEVICE)
    given = (given + 1).masked_fill(torch.arange(length, device=DEVICE) >= lengths, PAD)
    wanted = (wanted + 1).masked_fill(torch.arange(length + 1, device=DEVICE) > lengths, PAD)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min((n + 1) ** -0.5, (n + 1) * 4000**-1.5)
    )
    turns = itertools.cycle(zip(given, wanted, strict=True))

    def step() -> Tensor:
        x, y = next(turns)
        optimizer.zero_grad(set_to_none=True)
        scores = model(x, y[:, :-1])
        loss = fn.cross_entropy(
            scores.flatten(0, 1), y[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1
        )
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach()

    return Running(step, enter=precision("high" if repaired else "highest"))


class SpelledNorm(nn.Module):
    """By mean and deviation, as explained step by step in tutorials, or the library's."""

    def __init__(self, width: int, *, spelled: bool) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.spelled = spelled

    def forward(self, x: Tensor) -> Tensor:
        if not self.spelled:
            return fn.layer_norm(x, self.scale.shape, self.scale, self.shift, 1e-6)
        mean = x.mean(-1, keepdim=True)
        deviation = x.std(-1, keepdim=True)
        return self.scale * (x - mean) / (deviation + 1e-6) + self.shift


class Explained(nn.Module):
    """A layer of an encoder or of a decoder, each part with a norm before and dropout behind."""

    def __init__(self, width: int, heads: int, *, decodes: bool, spelled: bool) -> None:
        super().__init__()
        self.decodes = decodes
        self.looks = nn.ModuleList(Attention(width, heads, 0.0) for _ in range(1 + decodes))
        self.feeds = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList(SpelledNorm(width, spelled=spelled) for _ in range(2 + decodes))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        y = self.norms[0](x)
        x = x + self.dropout(self.looks[0](y, y, causal=self.decodes))
        if self.decodes:
            x = x + self.dropout(self.looks[1](self.norms[1](x), memory))
        return x + self.dropout(self.feeds(self.norms[-1](x)))


class Summaries(nn.Module):
    """An encoder and a decoder of such layers."""

    def __init__(self, width: int, layers: int, heads: int, vocab: int, *, spelled: bool) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(512, width)
        self.coder, self.decoder = (
            nn.ModuleList(
                Explained(width, heads, decodes=decodes, spelled=spelled) for _ in range(layers)
            )
            for decodes in (False, True)
        )
        self.norms = nn.ModuleList(SpelledNorm(width, spelled=spelled) for _ in range(2))
        self.head = nn.Linear(width, vocab)

    def placed(self, ids: Tensor) -> Tensor:
        return self.embed(ids) + self.place.weight[: ids.shape[1]]

    def forward(self, given: Tensor, wanted: Tensor) -> Tensor:
        memory, y = self.placed(given), self.placed(wanted)
        for layer in self.coder:
            memory = layer(memory)
        memory = self.norms[0](memory)
        for layer in self.decoder:
            y = layer(y, memory)
        return self.head(self.norms[1](y))


def smoothed(scores: Tensor, true: Tensor) -> Tensor:
    """Divergence from labels that leave a tenth to the other words."""
    vocab = scores.shape[-1]
    wanted = torch.full_like(scores, 0.1 / (vocab - 1))
    wanted.scatter_(1, true[:, None], 0.9)
    return fn.kl_div(scores.log_softmax(-1), wanted, reduction="batchmean")


@pair("fusion_opportunity", "language", "the library's layer_norm and smoothed cross_entropy")
def summaries_norms_step_by_step(repaired: bool) -> Running:
    """A transformer from a well-known explanation, in TF32."""
    width, vocab, batch, length = size(768, 16), size(8192, 64), size(48, 2), size(160, 8)
    model = Summaries(width, size(3, 1), size(12, 2), vocab, spelled=not repaired).to(DEVICE)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1) if repaired else smoothed
    given, wanted = labels(vocab, 4, batch, length), labels(vocab, 4, batch, length + 1)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    turns = itertools.cycle(zip(given, wanted, strict=True))

    def step() -> Tensor:
        x, y = next(turns)
        scores = model(x, y[:, :-1]).flatten(0, 1)
        loss = criterion(scores, y[:, 1:].flatten())
        loss.backward()
        done(optimizer)
        return loss.detach()

    return Running(step, enter=precision("high"))


# --- a student of a teacher -------------------------------------------------------------------


class Reader(nn.Module):
    """Classes of sentences, from their first word; as in BERT."""

    def __init__(self, words: Words, width: int, classes: int) -> None:
        super().__init__()
        self.words = words
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(ids)
        return x, self.head(torch.tanh(self.pool(x[:, 0])))


@pair(
    "checkpoint_stall", "language", "the student is saved every 1000 steps, not every 8", period=8
)
def student_of_reader_saves(repaired: bool) -> Running:
    """Half of the teacher's layers learn what all of them know."""
    width, heads, vocab, classes = size(512, 16), size(8, 2), size(8192, 64), 3
    batch, length, layers = size(64, 2), size(192, 8), size(6, 1)
    old, new = (Words(width, n, heads, vocab, length, dropout=0.1) for n in (2 * layers, layers))
    new.embed.load_state_dict(old.embed.state_dict())
    for number, layer in enumerate(new.layers):
        layer.load_state_dict(old.layers[2 * number].state_dict())
    teacher, student = (Reader(words, width, classes).to(DEVICE) for words in (old, new))
    teacher.requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(student.parameters(), lr=5e-5, fused=True)
    ids, true = labels(vocab, 4, batch, length), labels(classes, 4, batch)
    memory = Path("/dev/shm")  # a disk's time differs from file to file
    fast = memory.is_dir() and shutil.disk_usage(memory).free > 4 * 2**30
    folder = Path(tempfile.mkdtemp(prefix="exam-", dir=memory if fast else None))
    made = 0

    def step() -> Tensor:
        nonlocal made
        x, y = ids[made % 4], true[made % 4]
        with half("bf16"):
            with torch.no_grad():
                knows, says = teacher(x)
            learns, tells = student(x)
            odds = (says.float() / 2).softmax(-1)
            told = fn.kl_div((tells.float() / 2).log_softmax(-1), odds, reduction="batchmean")
            near = 1 - fn.cosine_similarity(learns.float(), knows.float(), dim=-1).mean()
            loss = 4 * told + near + 0.5 * fn.cross_entropy(tells.float(), y)
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        done(optimizer)
        if made % (1000 if repaired else 8) == (999 if repaired else 5):
            torch.save({"step": made, "model": student.state_dict()}, folder / "last.pt")
        made += 1
        return loss.detach()

    return Running(
        step, enter=precision("high"), close=lambda: shutil.rmtree(folder, ignore_errors=True)
    )


# --- patches of pictures ----------------------------------------------------------------------


class Patches(nn.Module):
    """A vision transformer with a class token."""

    def __init__(
        self, width: int, layers: int, heads: int, side: int, patch: int, classes: int
    ) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, 1 + (side // patch) ** 2, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1).to(x.dtype), x], 1) + self.place
        return self.head(self.norm(self.layers(x))[:, 0])


@pair(
    "step_jitter",
    "vision",
    "the model is evaluated every 1000 steps, not every 8",
    period=8,
    marks="profiler",
)
def patches_evaluated_in_between(repaired: bool) -> Running:
    """Validation loss and accuracy for the curve of the training."""
    side, batch, classes = size(224, 32), size(96, 2), size(100, 5)
    model = Patches(size(384, 16), size(8, 1), size(6, 2), side, 16, classes).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    x, y = torch.randn(2, batch, 3, side, side, device=DEVICE), labels(classes, 2, batch)
    held = [
        (torch.randn(batch, 3, side, side, device=DEVICE), labels(classes, batch))
        for _ in range(size(9, 2))
    ]
    curve: list[tuple[float, float]] = []
    made = 0

    @torch.no_grad()
    def evaluate() -> None:
        model.eval()
        lost, right, seen = 0.0, 0, 0
        for pictures, true in held:
            with half("bf16"):
                scores = model(pictures).float()
            lost += fn.cross_entropy(scores, true, reduction="sum").item()
            right += int((scores.argmax(1) == true).sum().item())
            seen += len(true)
        curve.append((lost / seen, right / seen))
        model.train()

    def step() -> Tensor:
        nonlocal made
        with half("bf16"):
            scores = model(x[made % 2])
            loss = fn.cross_entropy(scores.float(), y[made % 2], label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        done(optimizer)
        schedule.step()
        if made % (1000 if repaired else 8) == (999 if repaired else 4):
            evaluate()
        made += 1
        return loss.detach()

    return Running(step, enter=precision("high"))


# --- characters -------------------------------------------------------------------------------


class Characters(Words):
    """A small GPT whose head is its embedding."""

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        return fn.linear(super().forward(ids), self.embed.weight)


@pair("launch_bound", "language", "the whole step, its batch and its update, is one CUDA graph")
def characters_by_graph(repaired: bool) -> Running:
    """Plays by characters; the text is on the device."""
    vocab, length, batch = size(128, 32), size(256, 16), size(20, 2)
    width, layers, heads = size(384, 16), size(6, 1), size(6, 2)
    model = Characters(width, layers, heads, vocab, length, causal=True, dropout=0.2).to(DEVICE)
    text = labels(vocab, size(1_000_000, 200))
    places = torch.arange(length + 1, device=DEVICE)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True, capturable=CUDA)

    def step() -> Tensor:
        starts = labels(text.shape[0] - length - 1, batch)
        ids = text[starts[:, None] + places]
        optimizer.zero_grad(set_to_none=True)
        with half("bf16"):
            loss = next_token(model, ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run
