"""A twenty-third set for one GPU: faults as guides to performance show them, in textbook programs.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fourth_programs import CUDA, adam, fit, labels, noise, sgd
from models import DEVICE, Attends, Feeds, precision, size, training, transformer_layers
from program import Program, Running
from single_programs import beside, entered, fixed, scratch, whole_graph
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 369 pairs, opened"
pair = entered(PROGRAMS)
SHORT = torch.bfloat16
LAST: Any = torch.channels_last


# --- the allocator --------------------------------------------------------------------------------


class Denoises(nn.Module):
    """Convolutions one after the other that tell the noise of a picture; as DnCNN."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1), nn.ReLU(inplace=True)]
        for _ in range(layers):
            parts += [nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)]
            parts += [nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*parts, nn.Conv2d(width, 3, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.layers(x)


@pair(
    "allocator_churn",
    "imaging",
    "torch.cuda.empty_cache() at the end of each step is removed",
    marks="steps",
)
def grain_of_films_cache_emptied_each_step(repaired: bool) -> Running:
    """Old films without their grain; autocast to BF16, channels last."""
    model = Denoises(size(64, 8), size(15, 2)).to(DEVICE, memory_format=LAST)
    side, batch = size(184, 16), size(32, 2)
    clean = noise(batch, 3, side, side).contiguous(memory_format=LAST)
    grainy = clean + 0.1 * noise(batch, 3, side, side)

    def empties(_number: int, _loss: Tensor) -> None:
        if not repaired and CUDA:
            torch.cuda.empty_cache()

    return fit(lambda: fn.mse_loss(model(grainy).float(), clean), adam(model), after=empties)


# --- copies ---------------------------------------------------------------------------------------


class Fire(nn.Module):
    """Few channels, then many by two sizes of kernels."""

    def __init__(self, before: int, few: int, many: int) -> None:
        super().__init__()
        self.few = nn.Conv2d(before, few, 1)
        self.one, self.three = nn.Conv2d(few, many, 1), nn.Conv2d(few, many, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = fn.relu(self.few(x))
        return torch.cat([fn.relu(self.one(x)), fn.relu(self.three(x))], 1)


def squeezed(width: int, classes: int) -> nn.Module:
    """SqueezeNet 1.1, which is 16 wide."""
    one, two, three, four = (n * width // 16 for n in (16, 32, 48, 64))
    return nn.Sequential(
        *(nn.Conv2d(3, 4 * one, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(Fire(4 * one, one, 4 * one), Fire(8 * one, one, 4 * one), nn.MaxPool2d(3, 2)),
        *(Fire(8 * one, two, 4 * two), Fire(8 * two, two, 4 * two), nn.MaxPool2d(3, 2)),
        *(Fire(8 * two, three, 4 * three), Fire(8 * three, three, 4 * three)),
        *(Fire(8 * three, four, 4 * four), Fire(8 * four, four, 4 * four)),
        *(nn.Conv2d(8 * four, classes, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


@pair(
    "blocking_copy",
    "vision",
    "batches lie in page-locked memory and are copied with non_blocking=True",
    marks="phases",
)
def mushrooms_told_pageable_batches(repaired: bool) -> Running:
    """Which of 1400 mushrooms is in a photograph; autocast to BF16."""
    side, many, kinds = size(224, 48), size(320, 2), size(1400, 5)
    model = squeezed(size(32, 16), kinds).to(DEVICE)
    batches = [(torch.randn(many, 3, side, side), torch.randint(kinds, (many,))) for _ in range(2)]
    if repaired and CUDA:
        batches = [(x.pin_memory(), y.pin_memory()) for x, y in batches]
    taken = 0

    def following() -> tuple[Tensor, Tensor]:
        nonlocal taken
        x, y = batches[taken % len(batches)]
        taken += 1
        return x.to(DEVICE, non_blocking=repaired), y.to(DEVICE, non_blocking=repaired)

    def loss_of(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return fn.cross_entropy(net(batch[0]).float(), batch[1])

    return training(model, following, loss_of)


# --- checkpoints ----------------------------------------------------------------------------------


class Voices(nn.Module):
    """Attention, and a wide convolution over time in place of the two linear layers."""

    def __init__(self, width: int, wide: int, heads: int, kernel: int) -> None:
        super().__init__()
        self.looks, self.norm = Attends(width, heads), nn.LayerNorm(width)
        self.up = nn.Conv1d(width, wide, kernel, padding=kernel // 2)
        self.down = nn.Conv1d(wide, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.looks(x)
        return x + self.down(fn.relu(self.up(self.norm(x).transpose(1, 2)))).transpose(1, 2)


@pair(
    "checkpoint_stall",
    "audio",
    "torch.save() of the model every 1000 steps, not every 12",
    period=12,
)
def storyteller_voice_saved_every_12(repaired: bool) -> Running:
    """Spectra of a read story from its phonemes, as long as they are said; autocast to BF16."""
    sentences, frames, phonemes, bands = size(28, 2), size(512, 8), size(90, 9), size(80, 4)
    width, heads, every = size(384, 16), size(4, 2), 1000 if repaired else 12
    parts = [Voices(width, size(1536, 32), heads, size(9, 3)) for _ in range(size(8, 2))]
    said, out = nn.Embedding(phonemes, width), nn.Linear(width, bands)
    model = nn.Sequential(said, *parts, nn.LayerNorm(width), out).to(DEVICE)
    spoken, heard = labels(phonemes, sentences, frames), noise(sentences, frames, bands)
    file = Path(scratch()) / "voice.pt"

    def save(number: int, _loss: Tensor) -> None:
        if number % every == every - 1:
            torch.save({"step": number, "model": model.state_dict()}, file)

    return fit(lambda: fn.l1_loss(model(spoken).float(), heard), adam(model), clip=1.0, after=save)


# --- captures -------------------------------------------------------------------------------------


class Imagines(nn.Module):
    """A variational autoencoder of pictures, by convolutions of stride two."""

    def __init__(self, width: int, side: int, levels: int, inside: int) -> None:
        super().__init__()
        sides = [width * 2**n for n in range(levels)]
        downs: list[nn.Module] = []
        ups: list[nn.Module] = []
        for before, after in zip([3, *sides[:-1]], sides, strict=True):
            downs += [nn.Conv2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.LeakyReLU(0.2)]
        for before, after in zip(sides[::-1], sides[-2::-1], strict=False):
            ups += [nn.ConvTranspose2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
        self.shape, flat = (sides[-1], side >> levels), sides[-1] * (side >> levels) ** 2
        self.downs, self.ups = nn.Sequential(*downs), nn.Sequential(*ups)
        self.inside, self.outside = nn.Linear(flat, 2 * inside), nn.Linear(inside, flat)
        self.last = nn.ConvTranspose2d(width, 3, 4, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.inside(self.downs(x).flatten(1)).float().chunk(2, 1)
        h = self.outside(mean + (0.5 * spread).exp() * torch.randn_like(mean))
        channels, side = self.shape
        h = h.unflatten(1, (channels, side, side)).contiguous(memory_format=LAST)
        return self.last(self.ups(h)).float(), mean, spread


@pair(
    "compilation_or_warmup",
    "generation",
    "the divergence's weight is a tensor that is filled; for a number the graph was captured anew",
    period=4,
)
def masks_of_theatre_captured_for_each_weight(repaired: bool) -> Running:
    """Faces as masks of a theatre; the divergence's weight grows every 4 steps; BF16."""
    many, side, levels, every = size(448, 2), size(128, 16), size(4, 2), 4
    model = Imagines(size(64, 4), side, levels, size(256, 4)).to(DEVICE, memory_format=LAST)
    update = adam(model)
    faces = noise(many, 3, side, side).contiguous(memory_format=LAST)
    filled = torch.zeros((), device=DEVICE)
    weight: Tensor | float = filled if repaired else 0.0
    graph: Any = None
    made = 0

    def passes() -> None:
        with torch.autocast(DEVICE.type, SHORT):
            rebuilt, mean, spread = model(faces)
        far = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        (fn.mse_loss(rebuilt, faces) + weight * far).backward()

    def captured() -> Any:
        update.zero_grad(set_to_none=True)
        found = torch.cuda.CUDAGraph()
        with torch.cuda.graph(found):
            passes()
        return found

    if CUDA:
        precision("high")()
        beside_it = torch.cuda.Stream()
        beside_it.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside_it):
            for _ in range(3):
                passes()
        torch.cuda.current_stream().wait_stream(beside_it)

    def step() -> None:
        nonlocal weight, graph, made
        if made % every == 0:
            now = min(1e-6 * made, 0.01)
            if repaired:
                filled.fill_(now)
            else:
                weight, graph = now, None
        if not CUDA:
            update.zero_grad(set_to_none=True)
            passes()
        else:
            graph = graph or captured()
            graph.replay()
        update.step()
        made += 1

    return Running(step, enter=precision("high"))


# --- what lies on the host ------------------------------------------------------------------------


@pair(
    "cpu_offload",
    "language",
    "the first layers keep their activations on the GPU: no save_on_cpu around them",
)
def recipes_first_layers_saved_on_cpu(repaired: bool) -> Running:
    """The next word of recipes; settings are of a smaller GPU; autocast to BF16."""
    texts, long, vocab = size(4, 2), size(1024, 8), size(32_000, 40)
    width, heads = size(1536, 16), size(12, 2)
    first = nn.Sequential(*transformer_layers(width, size(2, 1), heads, causal=True))
    others = nn.Sequential(*transformer_layers(width, size(10, 1), heads, causal=True))
    word, place = nn.Embedding(vocab, width), nn.Embedding(long, width)
    last = nn.Linear(width, vocab, bias=False)
    for table in (word, place):
        nn.init.normal_(table.weight, std=0.02)
    model = nn.ModuleList([word, place, first, others, nn.LayerNorm(width), last]).to(DEVICE)
    words = labels(vocab, texts, long + 1)

    def loss_of() -> Tensor:
        h = word(words[:, :-1]) + place.weight
        parked = torch.autograd.graph.save_on_cpu(pin_memory=CUDA)
        with nullcontext() if repaired else parked:
            h = first(h)
        scores = last(model[4](others(h))).flatten(0, 1)
        return fn.cross_entropy(scores.float(), words[:, 1:].flatten())

    return fit(loss_of, adam(model), clip=1.0)


# --- chains of operations -------------------------------------------------------------------------


def gelu_by_formula(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / 1.41421))


class Folds(nn.Module):
    """Half of the channels are mixed with those of near places; norm and activation come first."""

    def __init__(self, width: int, kernel: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        few, self.activation = width // 2, activation
        self.norms = nn.ModuleList(nn.LayerNorm(n) for n in (width, few, few))
        self.down, self.up = nn.Linear(width, few), nn.Linear(few, width)
        self.near = nn.Conv1d(few, few, kernel, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(self.activation(self.norms[0](x)))
        h = self.near(self.activation(self.norms[1](h)).transpose(1, 2)).transpose(1, 2)
        return x + self.up(self.activation(self.norms[2](h)))


@pair(
    "fusion_opportunity",
    "biology",
    "torch.compile of the function that is the activation, as the tuning guide has it",
    compiles=True,
)
def venoms_of_snails_gelu_compile(repaired: bool) -> Running:
    """Which amino acids were left out of venoms, by convolutions; autocast to BF16."""
    chains, long, kinds = size(56, 2), size(512, 8), size(26, 5)
    width, layers = size(1024, 16), size(8, 2)
    activation: Any = torch.compile(gelu_by_formula, dynamic=False) if repaired else gelu_by_formula
    parts = [Folds(width, size(5, 3), activation) for _ in range(layers)]
    into, out = nn.Embedding(kinds, width), nn.Linear(width, kinds)
    model = nn.Sequential(into, *parts, nn.LayerNorm(width), out).to(DEVICE)
    given, true = labels(kinds, chains, long), labels(kinds, chains, long)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(given).float().flatten(0, 1), true.flatten())

    return fit(loss_of, adam(model))


# --- threads --------------------------------------------------------------------------------------


class RowBlock(nn.Module):
    """A norm, a wider layer and back, beside what came in."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, wide), nn.Linear(wide, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(fn.relu(self.up(self.norm(x))))


def counted_words(lines: list[str]) -> dict[str, int]:
    """How often each word is there."""
    counts: dict[str, int] = {}
    for line in lines:
        for word in line.lower().split():
            bare = word.strip(".,;:")
            counts[bare] = counts.get(bare, 0) + 1
    return counts


@pair(
    "gil_contention",
    "tabular",
    "complaints are read by another process, not by a thread beside the training",
    others=("launch_bound",),
    record=("--waits",),
)
def rows_of_meters_words_counted_by_thread(repaired: bool) -> Running:
    """Which meters of a city are broken, from rows; complaints are read meanwhile; TF32."""
    rows, columns, width = size(1024, 4), size(96, 5), size(256, 16)
    blocks = [RowBlock(width, 2 * width) for _ in range(size(110, 3))]
    ends = nn.Linear(columns, width), nn.Linear(width, 1)
    model = nn.Sequential(ends[0], *blocks, nn.LayerNorm(width), ends[1]).to(DEVICE)
    known, broken = noise(rows, columns), labels(2, rows, 1).float()
    line = "The meter in the cellar, near the door; it counts when no water flows."
    lines = [f"{line} Number {n} of street {n % 97}." for n in range(size(1200, 5))]

    def loss_of() -> Tensor:
        return fn.binary_cross_entropy_with_logits(model(known), broken)

    run = fit(loss_of, adam(model), bf16=False)
    return run if repaired else beside(run, lambda: (counted_words(lines), time.sleep(0.004)))


# --- metrics --------------------------------------------------------------------------------------


def convolved(before: int, after: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, bias=False),
        *(nn.BatchNorm2d(after), nn.ReLU(inplace=True)),
    )


class Links(nn.Module):
    """What was seen on the way down is added on the way up; as LinkNet."""

    def __init__(self, width: int, levels: int, classes: int) -> None:
        super().__init__()
        sides = [width * 2**n for n in range(levels)]
        self.stem, self.out = convolved(3, width, 2), nn.Conv2d(width, classes, 1)
        self.downs = nn.ModuleList(
            nn.Sequential(convolved(a, b, 2), convolved(b, b), convolved(b, b))
            for a, b in pairwise(sides)
        )
        self.ups = nn.ModuleList(
            nn.Sequential(convolved(b, a), convolved(a, a))
            for a, b in reversed(list(pairwise(sides)))
        )

    def forward(self, x: Tensor) -> Tensor:
        seen = [self.stem(x)]
        for down in self.downs:
            seen.append(down(seen[-1]))
        h = seen.pop()
        for up in self.ups:
            h = fn.interpolate(up(h), scale_factor=2.0) + seen.pop()
        return fn.interpolate(self.out(h), scale_factor=2.0, mode="bilinear")


@pair(
    "host_compute",
    "vision",
    "the table of true and told classes is counted by NumPy every 100 steps, not in each",
    marks="steps",
)
def roofs_of_villages_confusion_by_numpy(repaired: bool) -> Running:
    """Roofs, fields and ways from above; autocast to BF16, channels last."""
    pictures, side, classes = size(12, 2), size(512, 32), size(14, 3)
    model = Links(size(128, 4), size(4, 2), classes).to(DEVICE, memory_format=LAST)
    x = noise(pictures, 3, side, side).contiguous(memory_format=LAST)
    true = labels(classes, pictures, side, side)
    on_host, every = true.cpu().numpy(), 100 if repaired else 1
    table, told = np.zeros((classes, classes), dtype=np.int64), [true]

    def loss_of() -> Tensor:
        scores = model(x).float()
        told[:] = [scores.detach().argmax(1)]
        return fn.cross_entropy(scores, true)

    def counts(number: int, _loss: Tensor) -> None:
        if number % every == every - 1:
            both = classes * on_host.ravel() + told[0].cpu().numpy().ravel()
            table[:] += np.bincount(both, minlength=classes**2).reshape(classes, classes)
            right = np.diag(table) / (table.sum(0) + table.sum(1) - np.diag(table) + 1e-9)
            right.mean()

    return fit(loss_of, sgd(model), after=counts)


# --- shapes ---------------------------------------------------------------------------------------


class Crosses(nn.Module):
    """Looks from the told words at those that were given."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.join = nn.Linear(width, width)

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        q = self.q(self.norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(given).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return x + self.join(fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Translates(nn.Module):
    """Encoder and decoder; words of both languages share a table."""

    def __init__(self, width: int, layers: int, heads: int, words: int, long: int) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(long, width)
        self.out = nn.Linear(width, words, bias=False)
        nn.init.normal_(self.word.weight, std=0.02)
        reads = transformer_layers(width, layers, heads)
        self.reads = nn.Sequential(*reads, nn.LayerNorm(width))
        self.tells, self.norm = nn.ModuleList(), nn.LayerNorm(width)
        for _ in range(layers):
            self.tells += [Attends(width, heads, causal=True), Crosses(width, heads), Feeds(width)]

    def forward(self, given: Tensor, told: Tensor) -> Tensor:
        memory = self.reads(self.word(given) + self.place.weight)
        h = self.word(told) + self.place.weight
        for part in self.tells:
            h = part(h, memory) if isinstance(part, Crosses) else part(h)
        return self.out(self.norm(h))


@pair(
    "inefficient_kernel",
    "language",
    "the vocabulary is filled up from 37,003 words to 37,056, a multiple of 64",
)
def old_norse_translated_odd_vocabulary(repaired: bool) -> Running:
    """Sagas in today's words; autocast to BF16."""
    texts, long, known = size(48, 2), size(256, 8), size(37_003, 37)
    vocab = size(37_056, 64) if repaired else known
    model = Translates(size(1024, 16), size(3, 1), size(16, 2), vocab, long).to(DEVICE)
    given, told = labels(known, texts, long), labels(known, texts, long + 1)

    def loss_of() -> Tensor:
        scores = model(given, told[:, :-1]).flatten(0, 1)
        return fn.cross_entropy(scores.float(), told[:, 1:].flatten())

    return fit(loss_of, adam(model), clip=1.0)


# --- launches -------------------------------------------------------------------------------------


class Whispers(nn.Module):
    """Cells read a sentence and tell it; each told word looks back at all that were read."""

    def __init__(self, before: int, width: int, words: int) -> None:
        super().__init__()
        self.width, self.reads = width, nn.GRUCell(before, width)
        self.tells, self.out = nn.GRUCell(before + width, width), nn.Linear(width, words)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, given: Tensor, told: Tensor) -> Tensor:
        h = given.new_zeros(len(given), self.width)
        read: list[Tensor] = []
        for vector in given.unbind(1):
            h = self.reads(vector, h)
            read.append(h)
        memory = torch.stack(read, 1)
        keys, outs = self.key(memory), []
        for vector in told.unbind(1):
            shares = self.score(torch.tanh(keys + self.query(h)[:, None])).softmax(1)
            seen = (shares * memory).sum(1)
            h = self.tells(torch.cat([vector, seen], 1), h)
            outs.append(h)
        return self.out(torch.stack(outs, 1))


@pair("launch_bound", "language", "the whole step, update included, is one CUDA graph")
def signs_of_hands_cells_word_by_word_graph(repaired: bool) -> Running:
    """Sentences of a sign language in words; vectors of both are fixed; products in TF32."""
    many, long, before = size(192, 2), size(28, 3), size(300, 6)
    words, width = size(4000, 11), size(768, 8)
    model = Whispers(before, width, words).to(DEVICE)
    given, told = noise(many, long, before), noise(many, long, before)
    true = labels(words, many, long)

    def loss_of(net: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return fn.cross_entropy(net(batch[0], batch[1]).flatten(0, 1), batch[2].flatten())

    batch = given, told, true
    return whole_graph(
        repaired, lambda o: training(model, fixed(batch), loss_of, kind="fp32", optimizer=o)
    )


# --- long steps -----------------------------------------------------------------------------------


def embeds(width: int, levels: int, inside: int) -> nn.Module:
    """A picture as a short vector."""
    parts: list[nn.Module] = [convolved(3, width, 2), convolved(width, width)]
    for level in range(levels):
        before = width * 2**level
        parts += [convolved(before, 2 * before, 2), convolved(2 * before, 2 * before)]
    last = nn.Linear(width * 2**levels, inside)
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)


@pair(
    "step_jitter",
    "metric learning",
    "the gallery is embedded for the validation every 1000 steps, not every 6",
    marks="profiler",
    period=6,
)
def tails_of_whales_validated_every_6(repaired: bool) -> Running:
    """Which whale has been seen, by triplets of its tail's pictures; BF16, channels last."""
    triplets, side, inside, every = (
        size(320, 2),
        size(112, 32),
        size(256, 4),
        1000 if repaired else 6,
    )
    model = embeds(size(64, 4), size(3, 1), inside).to(DEVICE, memory_format=LAST)

    def pictures(many: int) -> Tensor:
        return noise(many, 3, side, side).contiguous(memory_format=LAST)

    seen, gallery = pictures(3 * triplets), [pictures(3 * triplets) for _ in range(size(8, 2))]

    def loss_of() -> Tensor:
        same, also, other = fn.normalize(model(seen).float(), dim=1).chunk(3)
        return fn.triplet_margin_loss(same, also, other, margin=0.2)

    def validate(number: int, _loss: Tensor) -> None:
        if number % every != every - 1:
            return
        model.eval()
        with torch.no_grad(), torch.autocast(DEVICE.type, SHORT):
            found = fn.normalize(torch.cat([model(part) for part in gallery]).float(), dim=1)
            near = (found @ found.T).topk(2, 1).indices[:, 1]
        model.train()
        (near // 3 == torch.arange(len(near), device=DEVICE) // 3).float().mean().item()

    return fit(loss_of, sgd(model), after=validate)


# --- updates --------------------------------------------------------------------------------------


@pair(
    "unfused_optimizer",
    "biology",
    "torch.optim.AdamW(fused=True) instead of foreach=False",
    marks="phases",
)
def cells_of_corals_autoencoder_adamw_loop(repaired: bool) -> Running:
    """What a coral's cells express, through a narrow layer and back; autocast to BF16."""
    cells, genes = size(2048, 4), size(20_480, 24)
    wide, width, narrow = size(8192, 16), size(2048, 8), size(64, 3)
    sides = [genes, wide, width, narrow]
    parts: list[nn.Module] = []
    for before, after in zip([*sides, *sides[-2:0:-1]], [*sides[1:], *sides[-2::-1]], strict=True):
        parts += [nn.Linear(before, after), nn.GELU()]
    model = nn.Sequential(*parts[:-1]).to(DEVICE)
    expressed = noise(cells, genes)
    more: dict[str, Any] = {"fused": True} if repaired else {"fused": False, "foreach": False}
    return fit(lambda: fn.mse_loss(model(expressed).float(), expressed), adam(model, **more))
