"""A fifteenth set for one GPU: what hosts ask, fetch, keep, count, save and load in nine trainings.

Needs PyTorch and NumPy only; no weights are loaded. The kernels are few and large, so that the
device paces the repaired sides.
"""

from __future__ import annotations

import math
import random
import shutil
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, graphed, made_optimizer, precision, size
from program import Program, Running, phase
from single_programs import entered, scratch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 276 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
SHORT = torch.bfloat16


# --- sound as a few numbers -----------------------------------------------------------------------


class Codes(nn.Module):
    """A table of codes; each moves to the mean of what chose it, forgotten ones start again."""

    def __init__(self, codes: int, width: int, rows: int, *, asks: bool) -> None:
        super().__init__()
        self.asks, self.fair = asks, rows / codes
        self.register_buffer("table", 0.1 * torch.randn(codes, width))
        self.register_buffer("sums", self.table * self.fair)
        self.register_buffer("usage", torch.full((codes,), self.fair))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        table = self.table.to(x.dtype)
        near = torch.addmm(-0.5 * self.table.square().sum(1).to(x.dtype), x, table.t())
        chosen = near.argmax(1, keepdim=True)
        hits = torch.zeros_like(near).scatter_(1, chosen, 1.0)
        self.usage.lerp_(hits.sum(0, dtype=torch.float32), 0.01)
        self.sums.lerp_((hits.t() @ x).float(), 0.01)
        self.table.copy_(self.sums / self.usage[:, None].clamp_min(1e-3))
        expired = self.usage < 1e-3 * self.fair
        if not self.asks or expired.any():
            fresh = x[: len(expired)].float()
            self.table.copy_(torch.where(expired[:, None], fresh, self.table))
            self.usage.masked_fill_(expired, self.fair)
            self.sums.copy_(torch.where(expired[:, None], fresh * self.fair, self.sums))
        return table[chosen[:, 0]]


class Codec(nn.Module):
    """Frames of a spectrum, coded by what is left over from table to table."""

    def __init__(self, inside: int, width: int, code: int, tables: nn.ModuleList) -> None:
        super().__init__()
        self.into = nn.Sequential(
            nn.Linear(inside, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, code),
        )  # fmt: skip
        self.back = nn.Sequential(
            nn.Linear(code, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, inside),
        )  # fmt: skip
        self.to(DEVICE, SHORT)
        self.tables = tables  # their sums stay in single precision

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.into(x)
        left = h.detach()
        for table in self.tables:
            left = left - table(left)
        coded = h.detach() - left
        return self.back(h + (coded - h).detach()), fn.mse_loss(h, coded)


@pair(
    "host_sync",
    "sound",
    "expired codes are replaced by torch.where; no table asks whether there are any",
)
def codec_tables_ask_for_expired_codes(repaired: bool) -> Running:
    frames, inside, code = size(131_072, 64), size(512, 12), size(512, 8)
    tables = nn.ModuleList(
        Codes(size(1024, 8), code, frames, asks=not repaired) for _ in range(size(8, 2))
    ).to(DEVICE)
    model = Codec(inside, size(1536, 16), code, tables)
    spectra = noise(frames, inside).to(SHORT)

    def loss_of() -> Tensor:
        said, committed = model(spectra)
        return fn.l1_loss(said, spectra).float() + 0.25 * committed.float()

    return fit(loss_of, adam(model), bf16=False)


# --- pictures of prompts --------------------------------------------------------------------------


class Attended(nn.Module):
    """Each place looks at all places, or at the words."""

    def __init__(self, width: int, seen: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.asks, self.tells = nn.Linear(width, width), nn.Linear(seen, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, words: Tensor | None = None) -> Tensor:
        y = self.norm(x)
        q = self.asks(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        both = self.tells(y if words is None else words).unflatten(-1, (2, self.heads, -1))
        k, v = both.permute(2, 0, 3, 1, 4)
        seen = fn.scaled_dot_product_attention(q, k, v)
        return x + self.out(seen.transpose(1, 2).flatten(2))


class Fed(nn.Module):
    """A wide layer after a norm, beside what enters."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, wide), nn.Linear(wide, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(fn.gelu(self.up(self.norm(x))))


class Painter(nn.Module):
    """The velocity of noisy latents towards the picture that a prompt asks for."""

    def __init__(self, inside: int, width: int, words: int, heads: int, layers: int) -> None:
        super().__init__()
        self.into, self.moment = nn.Linear(inside, width), nn.Linear(1, width)
        self.own = nn.ModuleList(Attended(width, width, heads) for _ in range(layers))
        self.prompt = nn.ModuleList(Attended(width, words, heads) for _ in range(layers))
        self.feeds = nn.ModuleList(Fed(width, 4 * width) for _ in range(layers))
        self.out = nn.Linear(width, inside)

    def forward(self, x: Tensor, t: Tensor, words: Tensor) -> Tensor:
        h = self.into(x) + self.moment(t)
        for own, prompt, feed in zip(self.own, self.prompt, self.feeds, strict=True):
            h = feed(prompt(own(h), words))
        return self.out(h)


@pair(
    "blocking_copy",
    "diffusion",
    "prompts are stacked into two page-locked buffers in turn; what stack() makes is pageable",
)
def prompts_stacked_from_pinned_cache(repaired: bool) -> Running:
    """The text encoder's outputs were computed once; they are page-locked, one by one."""
    batch, places, inside = size(32, 2), size(512, 8), size(64, 4)
    spoken, words = size(192, 4), size(2048, 16)
    model = Painter(inside, size(1792, 16), words, size(14, 2), size(3, 2)).to(DEVICE, SHORT)
    latents = noise(batch, places, inside).to(SHORT)
    some = torch.randn(spoken, words).to(SHORT)
    cache = [some.roll(i, 0) for i in range(3 * batch)]
    if CUDA:
        cache = [prompt.pin_memory() for prompt in cache]
    kept = [torch.empty(batch, spoken, words, dtype=SHORT, pin_memory=CUDA) for _ in range(2)]
    sent = [torch.cuda.Event() for _ in kept] if CUDA else []
    made = 0

    def prompts() -> Tensor:
        nonlocal made
        first, turn = made % 3 * batch, made % 2
        made += 1
        chosen = cache[first : first + batch]
        if not repaired:
            return torch.stack(chosen).to(DEVICE, non_blocking=True)
        if sent:
            sent[turn].synchronize()  # of the step before the last one
        there = torch.stack(chosen, out=kept[turn]).to(DEVICE, non_blocking=True)
        if sent:
            sent[turn].record()
        return there

    def loss_of() -> Tensor:
        words_of = prompts()
        t = torch.rand(batch, 1, 1, device=DEVICE, dtype=SHORT)
        started = torch.randn_like(latents)
        said = model(torch.lerp(started, latents, t), t, words_of)
        return fn.mse_loss(said, latents - started).float()

    return fit(loss_of, adam(model), bf16=False)


# --- a graph in clusters --------------------------------------------------------------------------


class Spreading(nn.Module):
    """Nodes take the mean over all that they know, then a wide layer."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm, self.own = nn.LayerNorm(before), nn.Linear(before, after)
        self.up, self.down = nn.Linear(before, 4 * after), nn.Linear(4 * after, after)

    def forward(self, near: Tensor, x: Tensor) -> Tensor:
        own = x[: len(near)]
        y = self.norm(torch.addmm(own, near, x))
        return self.own(own) + self.down(fn.gelu(self.up(y)))


@pair(
    "cpu_offload",
    "graph",
    "the histories of the layers lie on the GPU, where they fit, not on the CPU, the default",
)
def clusters_histories_of_layers_on_cpu(repaired: bool) -> Running:
    """Nodes of other clusters are seen as they were when theirs was trained."""
    nodes, border, clusters = size(12_288, 24), size(4096, 8), size(6, 3)
    widths = [size(n, n // 128) for n in (1024, 1024, 1536, 1024, 1536)]
    classes = size(48, 4)
    layers = nn.ModuleList(
        Spreading(before, after)
        for before, after in zip(widths, [*widths[1:], classes], strict=True)
    ).to(DEVICE, SHORT)
    near = torch.rand(nodes, nodes + border, device=DEVICE, dtype=SHORT)
    near = near.div_((nodes + border) / 2)
    features = noise(nodes + border, widths[0]).to(SHORT)
    truth = labels(classes, nodes)
    place = DEVICE if repaired else torch.device("cpu")
    histories = [
        torch.zeros(clusters, border, width, dtype=SHORT, device=place) for width in widths[1:]
    ]
    made = 0

    def loss_of() -> Tensor:
        nonlocal made
        here, beside = made % clusters, (made + 1) % clusters
        made += 1
        x = layers[0](near, features)
        for layer, history in zip(list(layers)[1:], histories, strict=True):
            history[here].copy_(x[:border].detach())  # for those that border on this cluster
            x = layer(near, torch.cat([x, history[beside].to(DEVICE)]))
        return fn.cross_entropy(x.float(), truth)

    return fit(loss_of, adam(layers), bf16=False)


# --- ships from above -----------------------------------------------------------------------------


class Ships(nn.Module):
    """Four corners and a score at each place of a picture."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, 1, 1)
            )
            for _ in range(layers)
        )
        self.out = nn.Conv2d(width, 8, 1)  # three channels are left for what else a ship has

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for layer in self.layers:
            h = h + layer(h)
        return self.out(h).flatten(2).transpose(1, 2)


def suppressed(boxes: np.ndarray, scores: np.ndarray, most: float) -> list[int]:
    """Boxes that no better one overlaps by more."""
    kept, order = [], np.argsort(-scores)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    dropped = np.zeros(len(boxes), dtype=bool)
    for place, best in enumerate(order):
        if not dropped[best]:
            kept.append(int(best))
        rest = order[place + 1 :]
        low = np.maximum(boxes[best, :2], boxes[rest, :2])
        high = np.minimum(boxes[best, 2:], boxes[rest, 2:])
        shared = np.clip(high - low, 0.0, None).prod(1)
        over = shared / (areas[best] + areas[rest] - shared + 1e-6) > most
        if not dropped[best]:
            dropped[rest] |= over
    return kept


@pair(
    "host_compute",
    "vision",
    "boxes are suppressed and counted for the log every 500 steps, not after each",
    marks="steps",
)
def ships_suppressed_for_the_log(repaired: bool) -> Running:
    pictures, side, shown, best = size(24, 2), size(384, 16), size(4, 2), size(64, 4)
    model = Ships(size(256, 8), size(6, 2)).to(DEVICE).to(memory_format=torch.channels_last)
    x = noise(pictures, 3, side, side).to(memory_format=torch.channels_last)
    cells = (side // 4) ** 2
    there = torch.rand(pictures, cells, 4, device=DEVICE)
    ship = (torch.rand(pictures, cells, device=DEVICE) < 0.02).float()
    places_of = torch.arange(cells, device=DEVICE)
    centres = 4.0 * torch.stack([places_of // (side // 4), places_of % (side // 4)], 1)
    found: list[Tensor] = []
    counts: list[int] = []

    def loss_of() -> Tensor:
        said = model(x).float()
        near = (fn.smooth_l1_loss(said[..., :4], there, reduction="none").mean(-1) * ship).mean()
        found[:] = [said.detach()[:shown]]
        return fn.binary_cross_entropy_with_logits(said[..., 4], ship) + 50.0 * near

    def log(number: int, _loss: Tensor) -> None:
        if repaired and number % 500 != 499:
            return
        said = found[0]
        scores, places = said[..., 4].sigmoid().topk(best)
        offset = said[..., :4].gather(1, places[..., None].expand(-1, -1, 4))
        low = centres[places] - 12.0 * (1.0 + offset[..., :2].tanh())
        high = centres[places] + 12.0 * (1.0 + offset[..., 2:].tanh())
        boxes = torch.cat([low, high, scores[..., None]], -1).cpu().numpy()
        counts.append(sum(len(suppressed(b[:, :4], b[:, 4], 0.4)) for b in boxes))

    return fit(loss_of, adam(model), after=log)


# --- speech, heard every few steps ----------------------------------------------------------------


class Glus(nn.Module):
    """Gated frames, then a wide layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.both = nn.LayerNorm(width), nn.Linear(3 * width, 2 * width)
        self.feed = Fed(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        y = fn.pad(self.norm(x), (0, 0, 1, 1))
        three = torch.cat([y[:, :-2], y[:, 1:-1], y[:, 2:]], -1)
        return self.feed(x + fn.glu(self.both(three)))


def edits(said: list[int], true: list[int]) -> int:
    """Insertions, deletions and substitutions."""
    row = list(range(len(true) + 1))
    for i, a in enumerate(said, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(true, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


@pair(
    "step_jitter",
    "speech",
    "error rates of the held-out sentences are computed every 1000 steps, not every 6",
    period=6,
)
def phones_error_rate_every_6(repaired: bool) -> Running:
    """A frame's state in each frame, as hybrid recognisers have it."""
    batch, frames, inside, states = size(48, 2), size(512, 16), size(80, 4), size(3072, 12)
    width, every = size(1024, 16), 1000 if repaired else 6
    model = nn.Sequential(
        nn.Linear(inside, width), *(Glus(width) for _ in range(size(5, 2))), nn.LayerNorm(width),
        nn.Linear(width, states),
    ).to(DEVICE, SHORT)  # fmt: skip
    heard, true = noise(batch, frames, inside).to(SHORT), labels(states, batch, frames)
    held_out = noise(size(16, 2), frames, inside).to(SHORT)
    rng = random.Random(5)
    read = [[rng.randrange(64) for _ in range(size(80, 4))] for _ in range(len(held_out))]
    rates: list[float] = []

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(heard).flatten(0, 1).float(), true.flatten())

    @torch.no_grad()
    def listen(number: int, _loss: Tensor) -> None:
        if number % every != every - 1:
            return
        phones = (model(held_out).argmax(-1) % 64)[:, ::6].tolist()
        wrong = sum(edits(said, true) for said, true in zip(phones, read, strict=True))
        rates.append(wrong / sum(map(len, read)))

    return fit(loss_of, adam(model), bf16=False, clip=1.0, after=listen)


# --- what an arm does next ------------------------------------------------------------------------


class Chunks(nn.Module):
    """The next actions of an arm, all at once, from what its cameras and joints say."""

    def __init__(self, seen: int, width: int, layers: int, actions: int) -> None:
        super().__init__()
        self.into = nn.Linear(seen, width)
        self.layers = nn.ModuleList(Fed(width, width) for _ in range(layers))
        self.out = nn.Linear(width, actions)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        for layer in self.layers:
            h = layer(h)
        return self.out(h)


@pair(
    "checkpoint_stall",
    "robotics",
    "the simulator is given the weights every 1000 steps, not every 12",
    period=12,
)
def arms_weights_for_the_simulator_every_12(repaired: bool) -> Running:
    """Another process tests the arm in simulation, with the newest file that it finds."""
    rows, seen, actions = size(49_152, 8), size(1088, 12), size(16 * 14, 6)
    model = Chunks(seen, size(1792, 16), size(4, 2), actions).to(DEVICE)
    state, done = noise(rows, seen), noise(rows, actions)
    folder, every = Path(scratch()), 1000 if repaired else 12

    def hand_over(number: int, _loss: Tensor) -> None:
        if number % every != every - 1:
            return
        torch.save({"policy": model.state_dict(), "step": number}, folder / "new.pt")
        (folder / "new.pt").replace(folder / "policy.pt")  # the simulator reads no half file

    run = fit(lambda: fn.l1_loss(model(state).float(), done), adam(model), after=hand_over)
    return Running(run.step, run.enter, close=lambda: shutil.rmtree(folder, ignore_errors=True))


# --- sentences with gaps --------------------------------------------------------------------------


class Filler(nn.Module):
    """The words that are missing, from those on both sides."""

    def __init__(self, words: int, width: int, heads: int, layers: int, longest: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.looks = nn.ModuleList(Attended(width, width, heads) for _ in range(layers))
        self.feeds = nn.ModuleList(Fed(width, 4 * width) for _ in range(layers))
        self.out = nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.places.weight[: x.shape[1]]
        for look, feed in zip(self.looks, self.feeds, strict=True):
            h = feed(look(h))
        return self.out(h)


@pair(
    "allocator_churn",
    "language",
    "the cache is not emptied when the bucket changes: blocks of one length fit the other",
    period=3,
)
def gaps_new_bucket_empties_cache(repaired: bool) -> Running:
    """Sentences of a bucket are of one length; a batch has as many words in each bucket."""
    words, width, longest = size(8192, 40), size(1536, 16), size(1024, 16)
    model = Filler(words, width, size(12, 2), size(4, 2), longest).to(DEVICE, SHORT)
    buckets = []
    for rows, length in ((size(32, 4), longest // 2), (size(16, 2), longest)):
        text = labels(words, rows, length)
        gaps = torch.rand(rows, length, device=DEVICE) < 0.15
        buckets.append((text.masked_fill(gaps, 0), text.masked_fill(~gaps, -100)))
    made = 0

    def loss_of() -> Tensor:
        nonlocal made
        if made % 3 == 0 and not repaired and CUDA:  # three batches of a bucket, then the other
            torch.cuda.empty_cache()
        shown, true = buckets[made // 3 % 2]
        made += 1
        return fn.cross_entropy(model(shown).flatten(0, 1).float(), true.flatten())

    return fit(loss_of, adam(model), bf16=False, settle=4)


# --- fossils in rock ------------------------------------------------------------------------------


class Scanned(Dataset[tuple[Tensor, int]]):
    """Volumes of a scanner; a file of compressed chunks, and where each of them begins."""

    def __init__(self, file: Path, shape: tuple[int, int, int], *, each_opens: bool) -> None:
        self.file, self.shape, self.begins = file, shape, [0]
        rng = np.random.default_rng(3)
        with file.open("wb") as out:
            for _ in range(size(48, 4)):
                rock = np.cumsum(rng.integers(-3, 4, shape, dtype=np.int16), 0, dtype=np.int16)
                self.begins.append(self.begins[-1] + out.write(zlib.compress(rock.tobytes(), 1)))
        # a file that is open already cannot be shared by workers: they would move its position
        self.opened: BinaryIO | None = None if each_opens else file.open("rb")

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.opened is None:
            self.opened = self.file.open("rb")
        chunk = index % (len(self.begins) - 1)
        self.opened.seek(self.begins[chunk])
        data = self.opened.read(self.begins[chunk + 1] - self.begins[chunk])
        rock = np.frombuffer(bytearray(zlib.decompress(data)), dtype=np.int16)
        return torch.from_numpy(rock).view(self.shape), chunk % 10


class Mixed(nn.Module):
    """Patches of a volume, mixed with each other, then each in a wide layer."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(patches, patches)
        self.feed = Fed(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        return self.feed(x + self.mix(self.norm(x).transpose(1, 2)).transpose(1, 2))


@pair(
    "input_starvation",
    "volumes",
    "each of 8 workers opens the file itself; one that the dataset had opened allowed for none",
    marks="profiler",
)
def fossils_file_opened_by_dataset(repaired: bool) -> Running:
    """Which fossil is in the rock?"""
    shape, patch, width = (size(48, 8), size(64, 8), size(64, 8)), (4, 8, 8), size(1536, 16)
    patches = math.prod(shape) // math.prod(patch)
    into, head = nn.Linear(math.prod(patch), width), nn.Linear(width, 16)
    layers = nn.Sequential(*(Mixed(patches, width) for _ in range(size(6, 2))))
    model = nn.ModuleList([into, layers, head]).to(DEVICE, SHORT)
    folder, workers = Path(scratch()), 8 if repaired else 0
    data = Scanned(folder / "rock.bin", shape, each_opens=repaired)
    kept = {"persistent_workers": True, "prefetch_factor": 2} if workers else {}
    loader = DataLoader(
        data, size(16, 2), num_workers=size(workers, min(workers, 1)), pin_memory=CUDA, **kept
    )
    batches = iter(loader)

    def loss_of() -> Tensor:
        rock, kinds = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        x = rock.to(SHORT).div_(16.0)
        for axis, long in enumerate(patch):
            x = x.unflatten(1 + 2 * axis, (-1, long))
        x = x.permute(0, 1, 3, 5, 2, 4, 6).flatten(4).flatten(1, 3)
        return fn.cross_entropy(head(layers(into(x)).mean(1)).float(), kinds)

    run = fit(loss_of, adam(model), bf16=False)

    def close() -> None:
        if workers:
            batches._shutdown_workers()
        shutil.rmtree(folder, ignore_errors=True)

    return Running(run.step, run.enter, close=close, settle=2 * workers + 2)


# --- the next hour on the roads -------------------------------------------------------------------


class Roads(nn.Module):
    """A gated cell whose gates see what comes along the roads, and against them."""

    def __init__(self, inside: int, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(3 * (inside + width), 2 * width)
        self.new = nn.Linear(3 * (inside + width), width)

    def forward(self, along: Tensor, x: Tensor, h: Tensor) -> Tensor:
        z = torch.cat([x, h], -1)
        z = torch.cat([z, torch.bmm(along, z), torch.bmm(along.mT, z)], -1)
        keep, reset = torch.sigmoid(self.gates(z)).chunk(2, -1)
        z = torch.cat([x, reset * h], -1)
        z = torch.cat([z, torch.bmm(along, z), torch.bmm(along.mT, z)], -1)
        return torch.lerp(torch.tanh(self.new(z)), h, keep)


class Traffic(nn.Module):
    """Reads some minutes, then tells the next ones, each from the one before."""

    def __init__(self, inside: int, width: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(2, inside), nn.Linear(width, 2)
        self.reads, self.tells = Roads(inside, width), Roads(inside, width)
        self.width = width

    def forward(self, along: Tensor, seen: Tensor, later: int) -> Tensor:
        b, minutes, places, _ = seen.shape
        entered_all = self.into(seen)
        h = seen.new_zeros(b, places, self.width)
        for minute in range(minutes):
            h = self.reads(along, entered_all[:, minute], h)
        told = [seen[:, -1]]
        for _ in range(later):
            h = self.tells(along, self.into(told[-1]), h)
            told.append(told[-1] + self.out(h))
        return torch.stack(told[1:], 1)


@pair("launch_bound", "transport", "the whole step is one CUDA graph", marks="phases")
def roads_minute_by_minute_eager(repaired: bool) -> Running:
    batch, places, minutes = size(88, 2), size(512, 12), size(6, 2)
    model = Traffic(size(32, 4), size(96, 8)).to(DEVICE)
    update = made_optimizer(model.parameters(), "graph")
    along = (noise(places, places) - 1.5).relu()
    along = (along / along.sum(1, keepdim=True).clamp_min(1e-3)).expand(batch, -1, -1)
    flows = noise(batch, 2 * minutes, places, 2)

    def step() -> None:
        with phase("forward"):
            told = model(along, flows[:, :minutes], minutes)
            loss = fn.l1_loss(told, flows[:, minutes:])
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            update.step()
            update.zero_grad(set_to_none=True)

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run
