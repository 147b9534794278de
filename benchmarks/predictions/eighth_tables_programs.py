"""Programs of the eighth set for one GPU: the host's faults in tables, sound and retrieval."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from eighth_programs import Attends, Made, encoder
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, endless, precision, size
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import DataLoader, Dataset, RandomSampler

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 159 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- tables -----------------------------------------------------------------------------------


class Rows(Dataset[Any]):
    """A table in memory: numbers, categories, and what is to be told from them."""

    def __init__(self, rows: int, numbers: int, kinds: int, values: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self.numbers = torch.randn(rows, numbers, generator=draw)
        self.kinds = torch.randint(0, values, (rows, kinds), generator=draw)
        self.true = torch.randn(rows, generator=draw)

    def __len__(self) -> int:
        return len(self.true)

    def __getitem__(self, at: Any) -> tuple[Tensor, Tensor, Tensor]:
        return self.numbers[at], self.kinds[at], self.true[at]


class WholeRows(Rows):
    """DataLoader asks for all rows of a batch at once where a dataset can give them."""

    def __getitems__(self, places: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        return self[torch.tensor(places)]


class Features(nn.Module):
    """A token for each column; as in FT-Transformer."""

    def __init__(self, width: int, layers: int, numbers: int, kinds: int, values: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(numbers, width) * 0.1)
        self.shift = nn.Parameter(torch.randn(numbers + 1, width) * 0.1)
        self.embed = nn.Embedding(kinds * values, width)
        self.register_buffer("starts", torch.arange(kinds) * values)
        self.body, self.head = encoder(width, layers, 8), nn.Linear(width, 1)

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        tokens = fn.pad(x[..., None] * self.scale, (0, 0, 1, 0)) + self.shift
        tokens = torch.cat([tokens, self.embed(kinds + self.starts)], 1)
        return self.head(self.body(tokens)[:, 0])[:, 0]


def as_it_is(batch: Any) -> Any:
    return batch


@pair(
    "input_starvation",
    "tabular",
    "the dataset gives all rows of a batch at once (__getitems__), not one by one to be collated",
    marks="phases",
)
def table_rows_one_by_one(repaired: bool) -> Running:
    numbers, kinds, values = size(40, 5), size(12, 2), size(100, 5)
    data = (WholeRows if repaired else Rows)(size(200_000, 64), numbers, kinds, values)
    order = RandomSampler(data, replacement=True, num_samples=100_000_000)
    more: dict[str, Any] = {"collate_fn": as_it_is} if repaired else {}
    batches = endless(DataLoader(data, size(2048, 4), sampler=order, pin_memory=CUDA, **more))
    model = Features(size(192, 16), size(3, 1), numbers, kinds, values).to(DEVICE)

    def loss_of() -> Tensor:
        with phase("get_batch"):
            x, which, y = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        return fn.mse_loss(model(x, which).float(), y)

    return fit(loss_of, adam(model, weight_decay=1e-5))


# --- sound ------------------------------------------------------------------------------------


class Cleaner(nn.Module):
    """One voice out of what several microphones heard: a mask for the first one's spectrum."""

    def __init__(self, heard: int, width: int, hidden: int, bins: int) -> None:
        super().__init__()
        sizes = (2 * heard, width, width, 2 * width)
        self.convs = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, (5, 3), (2, 1), (2, 1)), nn.GroupNorm(1, b), nn.PReLU(b))
            for a, b in itertools.pairwise(sizes)
        )
        left = bins
        for _ in self.convs:
            left = (left - 1) // 2 + 1
        self.over = nn.GRU(2 * width * left, hidden, 2, batch_first=True)
        self.mask = nn.Linear(hidden, 2 * bins)
        self.register_buffer("window", torch.hann_window(2 * (bins - 1)))

    def spectrum(self, x: Tensor) -> Tensor:
        n = len(self.window)
        return torch.stft(x, n, n // 2, window=self.window, return_complex=True)

    def forward(self, x: Tensor) -> Tensor:
        b, heard, samples = x.shape
        waves = self.spectrum(x.reshape(b * heard, samples))
        waves = waves.view(b, heard, *waves.shape[1:])
        h = torch.cat([waves.real, waves.imag], 1)
        for conv in self.convs:
            h = conv(h)
        h, _ = self.over(h.flatten(1, 2).transpose(1, 2))
        real, imag = self.mask(h).tanh().transpose(1, 2).chunk(2, 1)
        first = waves[:, 0]
        return torch.stack([
            real * first.real - imag * first.imag, real * first.imag + imag * first.real
        ])  # fmt: skip


class Staged:
    """Pinned buffers, filled in turn; none before its last copy has been made."""

    def __init__(self, shape: tuple[int, ...], buffers: int = 3) -> None:
        self.buffers = [torch.empty(shape, pin_memory=CUDA) for _ in range(buffers)]
        self.copied = [torch.cuda.Event() if CUDA else None for _ in range(buffers)]
        self.turn = 0

    def moved(self, part: Tensor) -> Tensor:
        buffer, copied = self.buffers[self.turn], self.copied[self.turn]
        self.turn = (self.turn + 1) % len(self.buffers)
        if copied is not None:
            copied.synchronize()
        buffer.copy_(part)
        found = buffer.to(DEVICE, non_blocking=True)
        if copied is not None:
            copied.record()
        return found


@pair(
    "blocking_copy",
    "audio",
    "the cut goes through a pinned buffer; contiguous() made a pageable copy of pinned memory",
)
def microphones_cut_when_pinned(repaired: bool) -> Running:
    batch, heard, samples, cut = size(16, 2), size(8, 2), size(80_000, 900), size(56_000, 512)
    model = Cleaner(heard, size(48, 4), size(512, 16), size(257, 33)).to(DEVICE)
    draw = torch.Generator().manual_seed(0)
    recordings = [torch.randn(batch, heard, samples, generator=draw) for _ in range(2)]
    if CUDA:
        recordings = [part.pin_memory() for part in recordings]
    clean = noise(batch, cut)
    stage = Staged((batch, heard, cut)) if repaired else None
    starts = random.Random(0)
    made = 0

    def loss_of() -> Tensor:
        nonlocal made
        start = starts.randrange(samples - cut)
        part = recordings[made % 2][..., start : start + cut]
        made += 1
        # contiguous() gives another tensor, which is not pinned
        x = stage.moved(part) if stage else part.contiguous().to(DEVICE, non_blocking=True)
        with torch.no_grad():
            true = model.spectrum(clean)
        found = model(x)
        size_of = found.square().sum(0).add(1e-8).sqrt()
        off = fn.l1_loss(size_of.pow(0.3), true.abs().add(1e-4).pow(0.3))
        return off + fn.l1_loss(found, torch.stack([true.real, true.imag]))

    return fit(loss_of, adam(model), bf16=False, clip=5.0)


class Apart(nn.Module):
    """Convolutions of each channel by itself, then of all; as in MatchboxNet."""

    def __init__(self, before: int, after: int, kernel: int, times: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for number in range(times):
            inside = after if number else before
            parts += [nn.Conv1d(inside, inside, kernel, padding=kernel // 2, groups=inside)]
            parts += [nn.Conv1d(inside, after, 1, bias=False), nn.BatchNorm1d(after), nn.ReLU()]
        self.body = nn.Sequential(*parts[:-1])
        self.short = nn.Sequential(nn.Conv1d(before, after, 1, bias=False), nn.BatchNorm1d(after))

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(self.body(x) + self.short(x))


@pair("launch_bound", "audio", "torch.cuda.make_graphed_callables of the model")
def keyword_spotter_graphed(repaired: bool) -> Running:
    batch, bins, frames, words = size(128, 4), size(64, 8), size(128, 16), 35
    width = size(128, 8)
    parts: list[nn.Module] = [Apart(bins, width, 11, 1)]
    parts += [Apart(width, width, 13 + 2 * i, 3) for i in range(size(8, 2))]
    top = [Apart(width, width, 29, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten()]
    model: Any = nn.Sequential(*parts, *top, nn.Linear(width, words)).to(DEVICE)
    weights = list(model.parameters())
    update = torch.optim.NAdam(weights, lr=1e-3)
    x, y = noise(batch, bins, frames), labels(words, batch)
    if repaired and CUDA:
        torch.set_float32_matmul_precision("high")
        model = torch.cuda.make_graphed_callables(model, (x,))
    at, where = torch.arange(frames, device=DEVICE), torch.arange(bins, device=DEVICE)

    def loss_of() -> Tensor:
        # stretches of time and bands of pitch are left out, others for each sample
        late, high = torch.rand(2, batch, 1, device=DEVICE)
        seen = ((at - late * frames).abs() > 8) & ((at - high * frames).abs() > 5)
        heard = (where - high * bins).abs() > 4
        cut = x * seen[:, None] * heard[..., None]
        return fn.cross_entropy(model(cut), y, label_smoothing=0.1)

    return fit(loss_of, update, bf16=False)


class Marked(nn.Parameter):
    """A weight that knows whether it decays."""

    decays: bool


class Scales(nn.Module):
    """Channels in groups, each of which sees the one before it; as in ECAPA-TDNN."""

    def __init__(self, width: int, groups: int, apart: int) -> None:
        super().__init__()
        each = width // groups
        self.into, self.out = self.unit(width, width, 1), self.unit(width, width, 1)
        self.middle = nn.ModuleList(self.unit(each, each, 3, apart) for _ in range(groups - 1))
        self.weigh = nn.Sequential(
            nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, width), nn.Sigmoid()
        )

    @staticmethod
    def unit(before: int, after: int, kernel: int, apart: int = 1) -> nn.Module:
        pad = apart * (kernel // 2)
        conv = nn.Conv1d(before, after, kernel, padding=pad, dilation=apart)
        return nn.Sequential(conv, nn.ReLU(), nn.BatchNorm1d(after))

    def forward(self, x: Tensor) -> Tensor:
        first, *others = self.into(x).chunk(len(self.middle) + 1, 1)
        found = [first]
        for unit, part in zip(self.middle, others, strict=True):
            found.append(unit(part + found[-1] if len(found) > 1 else part))
        h = self.out(torch.cat(found, 1))
        return x + h * self.weigh(h.mean(2))[..., None]


class Speakers(nn.Module):
    """Who speaks: such layers, and what their frames look like on average."""

    def __init__(self, bins: int, width: int, layers: int, groups: int, many: int) -> None:
        super().__init__()
        self.first = Scales.unit(bins, width, 5)
        self.layers = nn.ModuleList(Scales(width, groups, 2 + i) for i in range(layers))
        self.join = nn.Conv1d(layers * width, 1536 if width > 64 else 2 * width, 1)
        wide = self.join.out_channels
        self.look = nn.Sequential(nn.Conv1d(wide, 128, 1), nn.Tanh(), nn.Conv1d(128, wide, 1))
        self.norm, self.name = nn.BatchNorm1d(2 * wide), nn.Linear(2 * wide, 192)
        self.known = nn.Parameter(torch.randn(many, 192) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        x, found = self.first(x), []
        for layer in self.layers:
            x = layer(x)
            found.append(x)
        h = fn.relu(self.join(torch.cat(found, 1)))
        share = self.look(h).softmax(2)
        mean = (h * share).sum(2)
        wide = (h.square() * share).sum(2) - mean.square()
        name = self.name(self.norm(torch.cat([mean, wide.clamp(min=1e-5).sqrt()], 1)))
        return fn.linear(fn.normalize(name), fn.normalize(self.known))


@pair(
    "unfused_optimizer",
    "audio",
    "AdamW(fused=True): for a subclass of Parameter PyTorch chooses the loop by itself",
)
def speakers_marked_parameters(repaired: bool) -> Running:
    batch, bins, frames, many = size(80, 2), size(80, 8), size(300, 24), size(4000, 10)
    model = Speakers(bins, size(768, 16), size(5, 1), size(8, 4), many).to(DEVICE)
    for part in model.modules():
        for name, weight in list(part.named_parameters(recurse=False)):
            marked = Marked(weight.detach())
            marked.decays = weight.ndim > 1
            setattr(part, name, marked)
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.decays], "weight_decay": 2e-5},  # type: ignore[attr-defined]
        {"params": [w for w in weights if not w.decays], "weight_decay": 0.0},  # type: ignore[attr-defined]
    ]
    update = torch.optim.AdamW(groups, lr=1e-4, **({"fused": True} if repaired else {}))
    x, y = noise(batch, bins, frames), labels(many, batch)

    def loss_of() -> Tensor:
        near = model(x).float()
        turned = near - 0.2 * fn.one_hot(y, many)  # an angle between a voice and all others
        return fn.cross_entropy(30 * turned, y)

    return fit(loss_of, update, decay=True)


# --- retrieval --------------------------------------------------------------------------------


class Passage(nn.Module):
    """A vector of a text."""

    def __init__(self, vocab: int, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.body = encoder(width, layers, heads)

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(self.embed(ids) + self.place.weight).mean(1)


@pair(
    "allocator_churn",
    "retrieval",
    "what empties the cache above half a GB, written for another card, is removed",
    marks="steps",
)
def cached_contrast_memory_guard(repaired: bool) -> Running:
    """Many negatives in parts: vectors without gradients first, then each part again with them."""
    parts, batch, length, vocab = size(3, 2), size(96, 2), size(160, 8), size(30_000, 64)
    model = Passage(vocab, size(512, 16), size(4, 1), size(8, 2), length).to(DEVICE)
    update = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    asked, told = labels(vocab, parts, batch, length), labels(vocab, parts, batch, length)
    texts = [*asked, *told]
    limit = 2**29

    def embedded(ids: Tensor) -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            return fn.normalize(model(ids).float(), dim=-1)

    def guard() -> None:
        if not repaired and CUDA and torch.cuda.memory_reserved() > limit:
            torch.cuda.empty_cache()

    def step() -> None:
        with torch.no_grad():
            vectors = torch.stack([embedded(ids) for ids in texts])
        vectors.requires_grad_()
        questions, passages = vectors.flatten(0, 1).chunk(2)
        scores = questions @ passages.t() / 0.05
        true = torch.arange(len(scores), device=DEVICE)
        loss = fn.cross_entropy(scores, true) + fn.cross_entropy(scores.t(), true)
        (given,) = torch.autograd.grad(loss, vectors)
        for ids, gradient in zip(texts, given, strict=True):
            embedded(ids).backward(gradient)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update.step()
        update.zero_grad(set_to_none=True)
        guard()

    return Running(step, enter=precision("high"))


def read(texts: int, length: int, words: int) -> Callable[[int], Any]:
    """Texts cut into the longest pieces that are known, by Python."""
    plan = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er")]
    pieces = {piece: n + 2 for n, piece in enumerate([*"abdefgiklmnoprstuvz", *syllables])}
    for _ in range(words):
        pieces.setdefault("".join(plan.choices(syllables, k=2)), len(pieces) + 2)
    written = ["".join(plan.choices(syllables, k=plan.randint(1, 6))) for _ in range(4 * words)]

    def make(seed: int) -> Any:
        draw = random.Random(seed)
        found = []
        for _ in range(texts):
            ids: list[int] = []
            while len(ids) < length:
                word = written[int(draw.random() * len(written))]
                at = 0
                while at < len(word):
                    end = min(len(word), at + 6)
                    while (number := pieces.get(word[at:end])) is None:
                        end -= 1
                    ids.append(number)
                    at = end
            found.append(ids[:length])
        return np.array(found, dtype=np.int32)

    return make


@pair(
    "gil_contention",
    "retrieval",
    "the texts of the next step are cut into pieces by a process, not by a thread",
    record=("--waits",),
    marks="phases",
)
def reranker_reads_in_thread(repaired: bool) -> Running:
    lists, each, length, words = size(8, 2), 8, size(128, 8), size(4000, 20)
    model = Passage(size(5000, 200), size(384, 16), size(12, 1), size(6, 2), length).to(DEVICE)
    head = nn.Linear(size(384, 16), 1).to(DEVICE)
    made = Made(read(lists * each, length, words), 0, process=repaired)
    first = torch.zeros(lists, dtype=torch.long, device=DEVICE)

    def loss_of() -> Tensor:
        with phase("get_batch"):
            ids = torch.from_numpy(made.ready.get())
            ids = (ids.pin_memory() if CUDA else ids).to(DEVICE, non_blocking=True)
        return fn.cross_entropy(head(model(ids)).float().view(lists, each), first)

    run = fit(loss_of, adam(model, head), clip=1.0, decay=True, settle=5)
    run.close = made.close
    return run


# --- an optimizer of one's own ----------------------------------------------------------------


class Lion(torch.optim.Optimizer):
    """Signs of averages, weight by weight or in kernels for many weights."""

    def __init__(self, weights: Any, lr: float, *, many: bool) -> None:
        super().__init__(weights, {"lr": lr, "decay": 0.1})
        self.many = many

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            lr, kept = group["lr"], 1 - group["lr"] * group["decay"]
            weights = [p for p in group["params"] if p.grad is not None]
            for p in weights:
                if not self.state[p]:
                    self.state[p]["average"] = torch.zeros_like(p)
            averages = [self.state[p]["average"] for p in weights]
            gradients = [p.grad for p in weights]
            if self.many:
                ways = torch._foreach_lerp(averages, gradients, 0.1)
                torch._foreach_sign_(ways)
                torch._foreach_mul_(weights, kept)
                torch._foreach_add_(weights, ways, alpha=-lr)
                torch._foreach_lerp_(averages, gradients, 0.01)
                continue
            for p, average, gradient in zip(weights, averages, gradients, strict=True):
                way = average.lerp(gradient, 0.1).sign_()
                p.mul_(kept).add_(way, alpha=-lr)
                average.lerp_(gradient, 0.01)


class Returns(nn.Module):
    """What to do next, from what is still to be gained; as in Decision Transformer."""

    def __init__(self, sees: int, does: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.state, self.move = nn.Linear(sees, width), nn.Linear(does, width)
        self.gain, self.time = nn.Linear(1, width), nn.Embedding(length, width)
        self.body, self.head = encoder(width, layers, 8), nn.Linear(width, does)

    def forward(self, states: Tensor, moves: Tensor, gains: Tensor, seen: Tensor) -> Tensor:
        parts = (self.gain(gains), self.state(states), self.move(moves))
        h = torch.stack([part + self.time.weight for part in parts], 2).flatten(1, 2)
        for layer in self.body:
            h = layer(h, seen) if isinstance(layer, Attends) else layer(h)
        return self.head(h[:, 1::3]).tanh()


@pair(
    "unfused_optimizer",
    "rl",
    "the team's Lion works by torch._foreach, not weight by weight; the model is compiled in both",
    marks="profiler",
    compiles=True,
)
def offline_returns_lion_loop(repaired: bool) -> Running:
    batch, length, sees, does = size(48, 2), size(32, 4), size(64, 6), size(16, 2)
    model: Any = Returns(sees, does, size(512, 16), size(8, 1), length).to(DEVICE)
    update = Lion(model.parameters(), 1e-5, many=repaired)
    model = torch.compile(model)
    states, moves = noise(batch, length, sees), noise(batch, length, does).tanh()
    gains = noise(batch, length, 1)
    seen = torch.ones(3 * length, 3 * length, dtype=torch.bool, device=DEVICE).tril()
    return fit(
        lambda: fn.mse_loss(model(states, moves, gains, seen).float(), moves), update, clip=0.25
    )
