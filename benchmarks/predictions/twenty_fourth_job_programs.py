"""Training jobs of the twenty-fourth set, on two GPUs: what teams copy from first tutorials."""

from __future__ import annotations

import random
import zlib
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from job_programs import DEVICE, LAST, RANK, WORLD, ddp, half
from models import done, size
from ninth_job_models import AllRows
from program import SMALL, Program, Running
from single_programs import entered, loaded
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional as fn
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 405 pairs, opened"
pair = entered(PROGRAMS)
two = partial(pair, marks="steps", ranks=2)  # type: ignore[call-arg]
SHORT = torch.float32 if SMALL else torch.bfloat16
WIDE: Any = torch.channels_last


# --- gradients of each part are summed ------------------------------------------------------------


class Looks(nn.Module):
    """Attention to the same text or to another one, before it a norm and around it a sum."""

    def __init__(self, width: int, each: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = width // each, causal
        self.norm = nn.LayerNorm(width)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        h = self.norm(x)
        k, v = self.kv(h if other is None else other).chunk(2, -1)
        y = fn.scaled_dot_product_attention(
            self.split(self.q(h)), self.split(k), self.split(v), is_causal=self.causal
        )
        return x + self.out(y.transpose(1, 2).flatten(2))


def feeding(width: int, times: int = 4) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, times * width),
        nn.ReLU(),
        nn.Linear(times * width, width),
    )


class Translator(nn.Module):
    """An encoder and a decoder with the same words, which are also what is said."""

    def __init__(self, words: int, long: int, width: int, each: int, layers: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(long, width)
        nn.init.normal_(self.embed.weight, std=width**-0.5)
        self.reads = nn.ModuleList(Looks(width, each) for _ in range(layers))
        self.reads_on = nn.ModuleList(feeding(width) for _ in range(layers))
        self.writes = nn.ModuleList(Looks(width, each, causal=True) for _ in range(layers))
        self.asks = nn.ModuleList(Looks(width, each) for _ in range(layers))
        self.writes_on = nn.ModuleList(feeding(width) for _ in range(layers))
        self.read, self.written = nn.LayerNorm(width), nn.LayerNorm(width)

    def placed(self, text: Tensor) -> Tensor:
        return self.embed(text) + self.place.weight[: text.shape[1]]

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        h = self.placed(source)
        for look, feed in zip(self.reads, self.reads_on, strict=True):
            h = look(h)
            h = h + feed(h)
        memory, h = self.read(h), self.placed(target)
        for look, ask, feed in zip(self.writes, self.asks, self.writes_on, strict=True):
            h = ask(look(h), memory)
            h = h + feed(h)
        return fn.linear(self.written(h), self.embed.weight)


@two(
    "exposed_communication",
    "language",
    "no_sync around all parts of a batch but the last one",
)
def job_letters_translated_summed_for_each_part(repaired: bool) -> Running:
    """Letters of an embassy; a batch has four parts, as it was on one smaller GPU; BF16."""
    words, long, parts = size(32_000, 40), size(128, 6), 4
    width, each, layers, rows = size(2048, 16), size(128, 8), size(3, 1), size(8, 2)
    with DEVICE:
        model = Translator(words, long, width, each, layers)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    torch.manual_seed(1 + RANK)
    sources = torch.randint(0, words, (parts, rows, long), device=DEVICE)
    targets = torch.randint(0, words, (parts, rows, long + 1), device=DEVICE)

    def step() -> None:
        for part in range(parts):
            alone = repaired and part < parts - 1
            with net.no_sync() if alone else nullcontext():
                with half():
                    said = net(sources[part], targets[part, :, :-1])
                true = targets[part, :, 1:].flatten()
                loss = fn.cross_entropy(said.float().flatten(0, 1), true, label_smoothing=0.1)
                (loss / parts).backward()
        done(optimizer)

    return Running(step)


# --- gradients are averaged one by one ------------------------------------------------------------


def groups_of(width: int) -> int:
    return 32 if width % 32 == 0 else 4


class Turns(nn.Module):
    """Two convolutions; between them it is told how noisy the picture is."""

    def __init__(self, before: int, after: int, told: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.GroupNorm(groups_of(n), n) for n in (before, after))
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.told = nn.Linear(told, after)
        self.way = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        h = self.conv1(fn.silu(self.norm1(x))) + self.told(level)[:, :, None, None]
        return self.way(x) + self.conv2(fn.silu(self.norm2(h)))


class Denoiser(nn.Module):
    """A U-Net of three sizes, with so many blocks on the way down, and one more on the way up."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        told = 4 * width
        self.waves = width
        self.level = nn.Sequential(nn.Linear(width, told), nn.SiLU(), nn.Linear(told, told))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        widths = [width, 2 * width, 4 * width]
        self.downs, self.shrinks = nn.ModuleList(), nn.ModuleList()
        self.ups, self.grows = nn.ModuleList(), nn.ModuleList()
        kept, before = [width], width
        for place, after in enumerate(widths):
            for _ in range(blocks):
                self.downs.append(Turns(before, after, told))
                before = after
                kept.append(after)
            if place < len(widths) - 1:
                self.shrinks.append(nn.Conv2d(after, after, 3, 2, 1))
                kept.append(after)
        self.middle = nn.ModuleList(Turns(before, before, told) for _ in range(2))
        for place, after in reversed(list(enumerate(widths))):
            for _ in range(blocks + 1):
                self.ups.append(Turns(before + kept.pop(), after, told))
                before = after
            if place:
                self.grows.append(nn.Conv2d(after, after, 3, padding=1))
        self.blocks = blocks
        self.norm = nn.GroupNorm(groups_of(before), before)
        self.last = nn.Conv2d(before, 3, 3, padding=1)

    def forward(self, x: Tensor, noisy: Tensor) -> Tensor:
        rates = torch.logspace(0, 3, self.waves // 2, device=x.device)
        angles = noisy[:, None] * rates
        level = fn.silu(self.level(torch.cat([angles.sin(), angles.cos()], 1)))
        h = self.first(x)
        kept = [h]
        for number, down in enumerate(self.downs, 1):
            h = down(h, level)
            kept.append(h)
            if number % self.blocks == 0 and number < len(self.downs):
                h = self.shrinks[number // self.blocks - 1](h)
                kept.append(h)
        for turn in self.middle:
            h = turn(h, level)
        for number, up in enumerate(self.ups, 1):
            h = up(torch.cat([h, kept.pop()], 1), level)
            if number % (self.blocks + 1) == 0 and number < len(self.ups):
                h = fn.interpolate(h, scale_factor=2.0)
                h = self.grows[number // (self.blocks + 1) - 1](h)
        return self.last(fn.silu(self.norm(h)))


def average_gradients(model: nn.Module) -> None:
    """As in PyTorch's tutorial on distributed applications."""
    for weight in model.parameters():
        if weight.grad is not None:
            dist.all_reduce(weight.grad, op=dist.ReduceOp.SUM)
            weight.grad /= WORLD


@two(
    "exposed_communication",
    "diffusion",
    "DistributedDataParallel sums gradients in buckets during backward, in place of a loop over "
    "all of them after it",
)
def job_mosaics_denoised_averaged_as_in_tutorial(repaired: bool) -> Running:
    """Tesserae of old floors, by noise that is taken away; TF32."""
    width, blocks, rows, side = size(128, 8), size(3, 1), size(12, 2), size(64, 8)
    with DEVICE:
        model = Denoiser(width, blocks).to(memory_format=WIDE)
    net = ddp(model, gradient_as_bucket_view=True) if repaired else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(1 + RANK)
    clear = torch.randn(rows, 3, side, side, device=DEVICE).to(memory_format=WIDE)

    def step() -> None:
        wild = torch.randn_like(clear)
        noisy = torch.rand(rows, device=DEVICE)
        share = noisy[:, None, None, None]
        said = net((1 - share).sqrt() * clear + share.sqrt() * wild, noisy)
        fn.mse_loss(said, wild).backward()
        if not repaired:
            average_gradients(model)
        done(optimizer)

    return Running(step)


# --- norms of all ranks' batches ------------------------------------------------------------------


class MeanOfRanks(torch.autograd.Function):
    """What is the mean over the ranks; so are gradients."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor) -> Tensor:
        mean = mine / WORLD
        dist.all_reduce(mean)
        return mean

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        mean = grads[0] / WORLD
        dist.all_reduce(mean)
        return mean


class Norm(nn.Module):
    """A norm over the batch: of one rank, or of all of them.

    Args:
        shared: means and variances are those of all ranks.
    """

    running: Tensor
    spread: Tensor

    def __init__(self, width: int, *, shared: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        self.shared = shared

    def meant(self, x: Tensor) -> Tensor:
        mean = x.mean((0, 2, 3), dtype=torch.float32)
        return MeanOfRanks.apply(mean) if self.shared else mean

    def forward(self, x: Tensor) -> Tensor:
        mean = self.meant(x)
        centred = x - mean[:, None, None].to(x.dtype)
        variance = self.meant(centred.square())
        with torch.no_grad():
            self.running.lerp_(mean, 0.1)
            self.spread.lerp_(variance, 0.1)
        scale = self.weight * (variance + 1e-5).rsqrt()
        return torch.addcmul(
            self.bias[:, None, None].to(x.dtype), centred, scale[:, None, None].to(x.dtype)
        )


class Basic(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, before: int, after: int, stride: int, *, shared: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm1, self.norm2 = Norm(after, shared=shared), Norm(after, shared=shared)
        self.way: nn.Module = nn.Identity()
        if before != after:
            self.way = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), Norm(after, shared=shared)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = fn.relu(self.norm1(self.conv1(x)))
        return fn.relu(self.norm2(self.conv2(h)) + self.way(x))


class Fields(nn.Module):
    """What grows where: a ResNet, and the way back to a fourth of the picture's size."""

    def __init__(self, width: int, blocks: list[int], crops: int, *, shared: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(4, width, 7, 2, 3, bias=False),
            Norm(width, shared=shared),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = [width * 2**stage for stage in range(len(blocks))]
        self.stages = nn.ModuleList()
        before = width
        for after, count in zip(widths, blocks, strict=True):
            parts = []
            for number in range(count):
                stride = 2 if number == 0 and after != width else 1
                parts.append(Basic(before, after, stride, shared=shared))
                before = after
            self.stages.append(nn.Sequential(*parts))
        self.backs = nn.ModuleList(
            Basic(deep + flat, flat, 1, shared=shared) for flat, deep in pairwise(widths)
        )
        self.last = nn.Conv2d(width, crops, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, kept = self.stem(x), []
        for stage in self.stages:
            h = stage(h)
            kept.append(h)
        kept.pop()
        for back in reversed(self.backs):
            h = fn.interpolate(h, scale_factor=2.0)
            h = back(torch.cat([h, kept.pop()], 1))
        return self.last(h)


@two(
    "exposed_communication",
    "vision",
    "norms are those of the rank's own batch of 32: no means and variances are summed over ranks",
)
def job_crops_from_above_norms_of_both_ranks(repaired: bool) -> Running:
    """Crops on pictures of satellites, with norms of when a GPU had two pictures; BF16."""
    width, blocks, crops = size(64, 4), [3, 4, 6, 3], 20
    rows, side = size(32, 2), size(256, 32)
    with DEVICE:
        model = Fields(width, [1, 1] if SMALL else blocks, crops, shared=not repaired)
    net = ddp(model.to(memory_format=WIDE), gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9, fused=True)
    torch.manual_seed(1 + RANK)
    pictures = torch.randn(rows, 4, side, side, device=DEVICE).to(memory_format=WIDE)
    true = torch.randint(0, crops, (rows, side // 4, side // 4), device=DEVICE)

    def step() -> None:
        with half():
            said = net(pictures)
        fn.cross_entropy(said.float(), true).backward()
        done(optimizer)

    return Running(step)


# --- batches of other lengths at the same time ----------------------------------------------------


class Dictation(nn.Module):
    """Which phone each frame belongs to; four frames of the sound become one."""

    def __init__(self, bands: int, width: int, each: int, layers: int, phones: int) -> None:
        super().__init__()
        self.shrinks = nn.Sequential(
            nn.Conv1d(bands, width, 3, 2, 1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1), nn.GELU()
        )
        self.looks = nn.ModuleList(Looks(width, each) for _ in range(layers))
        self.feeds = nn.ModuleList(feeding(width) for _ in range(layers))
        self.near = nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, phones)

    def forward(self, sound: Tensor) -> Tensor:
        h = self.shrinks(sound)
        h = (h + self.near(h)).transpose(1, 2)
        for look, feed in zip(self.looks, self.feeds, strict=True):
            h = look(h)
            h = h + feed(h)
        return self.out(self.norm(h))


def dealt(lengths: list[int], *, together: bool) -> list[int]:
    """The lengths of this rank's batches in an epoch.

    Args:
        lengths: of all batches, each of which has recordings of about the same length.
        together: batches that are next to each other in length go to the ranks at the same time.
    """
    chance = random.Random(4)
    if together:
        steps = [lengths[place : place + WORLD] for place in range(0, len(lengths), WORLD)]
        chance.shuffle(steps)
        return [step[RANK] for step in steps]
    mixed = list(lengths)
    chance.shuffle(mixed)
    return mixed[RANK::WORLD]


@two(
    "load_imbalance",
    "audio",
    "batches are shuffled by pairs of neighbours in length, one for each rank, not one by one",
    period=4,
)
def job_dictations_batches_shuffled_one_by_one(repaired: bool) -> Running:
    """Letters that doctors have dictated, in batches by their length; BF16."""
    bands, phones, rows = size(80, 4), size(512, 6), size(40, 2)
    width, each, layers = size(768, 16), size(64, 8), size(12, 2)
    lengths = [size(320, 8), size(480, 12), size(640, 16), size(880, 24)]
    lengths += [size(1120, 32), size(1360, 40), size(1680, 48), size(2000, 56)]
    with DEVICE:
        model = Dictation(bands, width, each, layers, phones)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    torch.manual_seed(1 + RANK)
    batches = []
    for length in dealt(lengths, together=repaired):
        sound = torch.randn(rows, bands, length, device=DEVICE)
        batches.append((sound, torch.randint(0, phones, (rows, length // 4), device=DEVICE)))
    made = 0

    def step() -> None:
        nonlocal made
        sound, true = batches[made % len(batches)]
        made += 1
        with half():
            said = net(sound)
        fn.cross_entropy(said.float().flatten(0, 1), true.flatten()).backward()
        done(optimizer)

    return Running(step)


# --- a graph that is cut in the middle ------------------------------------------------------------


class Followers(nn.Module):
    """Layers of GraphSAGE over members of which each rank has half."""

    def __init__(self, inside: int, width: int, layers: int, kinds: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(inside, width), nn.Linear(width, kinds)
        self.owns = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.others = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, x: Tensor, source: Tensor, target: Tensor, share: Tensor) -> Tensor:
        h = fn.relu(self.into(x))
        for own, other, norm in zip(self.owns, self.others, self.norms, strict=True):
            told = AllRows.apply(h).index_select(0, source)
            mean = torch.zeros_like(h).index_add(0, target, told) * share
            h = h + fn.relu(norm(own(h) + other(mean)))
        return self.out(h)


@two(
    "load_imbalance",
    "graph",
    "members are dealt to the ranks in turn: early ones, whom most follow, are not all on rank 0",
)
def job_followers_cut_in_the_middle(repaired: bool) -> Running:
    """Which members of a network are machines; the whole graph in each step; TF32."""
    members, follows, inside, kinds = size(120_000, 40), size(3_000_000, 200), size(128, 6), 4
    width, layers = size(256, 16), size(3, 2)
    with DEVICE:
        model = Followers(inside, width, layers, kinds)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    chance = np.random.default_rng(0)  # all ranks have the same graph
    source = chance.integers(0, members, follows)
    target = (members * chance.random(follows) ** 2.5).astype(np.int64)
    features = chance.standard_normal((members, inside), np.float32)
    kind = chance.integers(0, kinds, members)
    number, each = np.arange(members), members // WORLD
    owner, row = (number % WORLD, number // WORLD) if repaired else (number // each, number % each)
    mine, heard = np.flatnonzero(owner == RANK), owner[target] == RANK
    counts = np.maximum(np.bincount(target, minlength=members), 1)[mine, None]
    x = torch.from_numpy(features[mine]).to(DEVICE)
    true = torch.from_numpy(kind[mine]).to(DEVICE)
    share = torch.from_numpy(1 / counts.astype(np.float32)).to(DEVICE)
    told_by = torch.from_numpy((owner * each + row)[source[heard]]).to(DEVICE)
    told = torch.from_numpy(row[target[heard]]).to(DEVICE)

    def step() -> None:
        fn.cross_entropy(net(x, told_by, told, share), true).backward()
        done(optimizer)

    return Running(step)


# --- one rank keeps an average --------------------------------------------------------------------


class Convolves(nn.Module):
    """Norms, activations and convolutions in turn, and a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        groups = groups_of(width)
        self.layers = nn.Sequential(
            *(nn.GroupNorm(groups, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)),
            *(nn.GroupNorm(groups, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Slices(nn.Module):
    """An autoencoder whose code is drawn, for slices of computed tomography."""

    def __init__(self, width: int, code: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        into: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), Convolves(width)]
        for before, after in pairwise(widths):
            into += [nn.Conv2d(before, after, 4, 2, 1), Convolves(after)]
        back: list[nn.Module] = [nn.Conv2d(code, widths[-1], 3, padding=1), Convolves(widths[-1])]
        for before, after in pairwise(reversed(widths)):
            back += [nn.ConvTranspose2d(before, after, 4, 2, 1), Convolves(after)]
        self.into = nn.Sequential(*into, nn.Conv2d(widths[-1], 2 * code, 1))
        self.back = nn.Sequential(*back, nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.into(x).chunk(2, 1)
        drawn = mean + (0.5 * spread).exp() * torch.randn_like(mean)
        return self.back(drawn), mean.float(), spread.float()


@two(
    "straggler",
    "medicine",
    "the average of rank 0 is on its GPU, and one foreach call updates all of it",
)
def job_rank0_averages_weights_of_slices_on_cpu(repaired: bool) -> Running:
    """Slices of lungs; rank 0 keeps the mean of the weights, as only it will save them; BF16."""
    width, code, rows, side = size(96, 8), size(8, 2), size(12, 2), size(256, 16)
    with DEVICE:
        model = Slices(width, code).to(memory_format=WIDE)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    weights = [weight.detach() for weight in model.parameters()]
    where = DEVICE if repaired else torch.device("cpu")
    averages = [weight.to(where, copy=True) for weight in weights] if RANK == 0 else []
    torch.manual_seed(1 + RANK)
    lungs = torch.randn(rows, 1, side, side, device=DEVICE).to(memory_format=WIDE)

    def average() -> None:
        if repaired:
            torch._foreach_lerp_(averages, weights, 1e-3)
            return
        for old, weight in zip(averages, weights, strict=True):
            old.mul_(0.999).add_(weight.cpu(), alpha=0.001)

    def step() -> None:
        with half():
            said, mean, spread = net(lungs)
        unlike = fn.l1_loss(said.float(), lungs)
        known = (mean.square() + spread.exp() - 1 - spread).mean()
        (unlike + 1e-6 * known).backward()
        done(optimizer)
        if RANK == 0:
            average()

    return Running(step)


# --- one rank looks at its units ------------------------------------------------------------------


class Crosses(nn.Module):
    """All features by all others, once more; as in DCN."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        return first * self.layer(x) + x


class Clicks(nn.Module):
    """Whether an advert is clicked: tables in one, crossed features, and a tower."""

    starts: Tensor

    def __init__(self, columns: int, ids: int, each: int, numbers: int, widths: list[int]) -> None:
        super().__init__()
        self.table = nn.Embedding(columns * ids, each)
        nn.init.normal_(self.table.weight, std=0.05)
        self.register_buffer("starts", ids * torch.arange(columns))
        self.bottom = nn.Sequential(
            nn.Linear(numbers, widths[-1]), nn.ReLU(), nn.Linear(widths[-1], each), nn.ReLU()
        )
        inside = (columns + 1) * each
        self.crosses = nn.ModuleList(Crosses(inside) for _ in range(3))
        parts: list[nn.Module] = []
        for before, after in pairwise([inside, *widths]):
            parts += [nn.Linear(before, after), nn.ReLU()]
        self.tower = nn.Sequential(*parts, nn.Linear(widths[-1], 1))

    def forward(self, which: Tensor, numbers: Tensor) -> Tensor:
        rows = self.table(which + self.starts).flatten(1)
        first = h = torch.cat([rows, self.bottom(numbers)], 1)
        for cross in self.crosses:
            h = cross(first, h)
        return self.tower(h)[:, 0]


@two(
    "straggler",
    "recommender",
    "rank 0 looks at its units every 200 steps, not in each",
)
def job_rank0_watches_units_of_clicks(repaired: bool) -> Running:
    """Which advert is clicked; rank 0 has hooks that say how many units are dead; BF16."""
    columns, ids, each, numbers = size(20, 3), size(20_000, 9), size(64, 4), 13
    widths, rows = [size(2048, 16), size(2048, 16), size(1024, 8), size(512, 8)], size(16_384, 8)
    with DEVICE:
        model = Clicks(columns, ids, each, numbers, widths)
    net = ddp(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    torch.manual_seed(1 + RANK)
    which = torch.randint(0, ids, (rows, columns), device=DEVICE)
    dense = torch.randn(rows, numbers, device=DEVICE)
    clicked = (torch.rand(rows, device=DEVICE) < 0.1).float()
    often, made = 200 if repaired else 1, 0
    seen: dict[str, tuple[float, float, float]] = {}

    def watch(name: str, module: nn.Module) -> None:
        def look(_module: nn.Module, _given: Any, out: Tensor) -> None:
            if made % often == 0:
                units = out.detach().float()
                dead = (units <= 0).float().mean().item()
                seen[name] = units.mean().item(), units.std().item(), dead

        module.register_forward_hook(look)

    if RANK == 0:
        for name, module in model.named_modules():
            if isinstance(module, nn.ReLU | Crosses):
                watch(name, module)

    def step() -> None:
        nonlocal made
        with half():
            said = net(which, dense)
        fn.binary_cross_entropy_with_logits(said.float(), clicked).backward()
        done(optimizer)
        made += 1

    return Running(step)


# --- stages that wait for each other --------------------------------------------------------------


class Residues(nn.Module):
    """A half of the layers of a model that finds hidden residues of proteins."""

    place: Tensor | None

    def __init__(self, kinds: int, long: int, width: int, each: int, layers: int) -> None:
        super().__init__()
        torch.manual_seed(100 + RANK)
        self.embed = nn.Embedding(kinds, width) if RANK == 0 else None
        self.place = nn.Parameter(0.02 * torch.randn(long, width)) if RANK == 0 else None
        self.looks = nn.ModuleList(Looks(width, each) for _ in range(layers))
        self.feeds = nn.ModuleList(feeding(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width) if RANK == LAST else None
        self.out = nn.Linear(width, kinds) if RANK == LAST else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None and self.place is not None:
            x = self.embed(x) + self.place
        for look, feed in zip(self.looks, self.feeds, strict=True):
            x = look(x)
            x = x + feed(x)
        return x if self.out is None or self.norm is None else self.out(self.norm(x))


@two(
    "pipeline_bubble",
    "biology",
    "a batch goes through the two stages in eight parts instead of two",
)
def job_proteins_go_through_in_two_parts(repaired: bool) -> Running:
    """Hidden residues are found; half of the layers on each GPU; weights in BF16."""
    kinds, long, rows, hidden = size(32, 8), size(512, 8), size(32, 8), size(77, 2)
    width, each, layers = size(1280, 16), size(64, 8), size(6, 1)
    micro = size(8, 4) if repaired else 2
    with DEVICE:
        part = Residues(kinds, long, width, each, layers).to(SHORT)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    dist.barrier()  # all ranks are known to each other before two of them talk
    stage = PipelineStage(part, RANK, WORLD, DEVICE)

    def unlike(said: Tensor, true: Tensor) -> Tensor:
        return fn.cross_entropy(said.float().flatten(0, 1), true.flatten(), ignore_index=-1)

    schedule = ScheduleGPipe(stage, micro, loss_fn=unlike)
    torch.manual_seed(0)  # all ranks have the same proteins
    chains = torch.randint(1, kinds, (rows, long), device=DEVICE)
    where = torch.rand(rows, long, device=DEVICE).topk(hidden, 1).indices
    true = torch.full_like(chains, -1).scatter(1, where, chains.gather(1, where))
    shown = chains.scatter(1, where, 0)

    def step() -> None:
        if RANK == 0:
            schedule.step(shown)
        else:
            schedule.step(target=true)
        done(optimizer)

    return Running(step)


# --- each part is looked at -----------------------------------------------------------------------


class Birds(nn.Module):
    """Which birds sing, from pieces of a spectrogram.

    Args:
        checks: what a part says is looked at before the next one has it.
    """

    def __init__(
        self, inside: int, pieces: int, width: int, each: int, layers: int, kinds: int, *,
        checks: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.into, self.out = nn.Linear(inside, width), nn.Linear(width, kinds)
        self.place = nn.Parameter(0.02 * torch.randn(pieces, width))
        self.looks = nn.ModuleList(Looks(width, each) for _ in range(layers))
        self.feeds = nn.ModuleList(feeding(width) for _ in range(layers))
        self.norm, self.checks = nn.LayerNorm(width), checks

    def checked(self, x: Tensor, name: str) -> Tensor:
        if self.checks and not torch.isfinite(x).all():
            message = f"{name} is not finite"
            raise FloatingPointError(message)
        return x

    def forward(self, sounds: Tensor) -> Tensor:
        h = self.checked(self.into(sounds) + self.place, "input")
        for number, (look, feed) in enumerate(zip(self.looks, self.feeds, strict=True)):
            h = self.checked(look(h), f"attention {number}")
            h = self.checked(h + feed(h), f"layer {number}")
        return self.out(self.norm(h).mean(1))


@two(
    "host_sync",
    "audio",
    "no part of the forward is asked whether it is finite",
)
def job_birds_each_part_asked_whether_finite(repaired: bool) -> Running:
    """Birds of a wood in the morning; checks of an evening of search were left in; BF16."""
    inside, pieces, kinds, rows = size(256, 6), size(256, 6), size(400, 6), size(32, 2)
    width, each, layers = size(512, 16), size(64, 8), size(24, 2)
    with DEVICE:
        model = Birds(inside, pieces, width, each, layers, kinds, checks=not repaired)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    torch.manual_seed(1 + RANK)
    sounds = torch.randn(rows, pieces, inside, device=DEVICE)
    sing = (torch.rand(rows, kinds, device=DEVICE) < 0.02).float()

    def step() -> None:
        with half():
            said = net(sounds)
        fn.binary_cross_entropy_with_logits(said.float(), sing).backward()
        done(optimizer)

    return Running(step)


# --- no workers -----------------------------------------------------------------------------------


class Heartbeats(Dataset[tuple[Tensor, int]]):
    """Electrocardiograms, as they are stored: differences of integers, deflated.

    The heart's base line is taken away, and each lead has another strength and noise.
    """

    def __init__(self, stored: int, leads: int, long: int, kinds: int) -> None:
        chance = np.random.default_rng(RANK)
        self.records = []
        for _ in range(stored):
            change = chance.normal(0, 12, (leads, long)).astype(np.int16)
            self.records.append(zlib.compress(change.tobytes(), 6))
        self.leads, self.long, self.kinds = leads, long, kinds

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        chance = np.random.default_rng(index * WORLD + RANK)
        change = np.frombuffer(zlib.decompress(self.records[index % len(self.records)]), np.int16)
        x = change.reshape(self.leads, self.long).astype(np.float32).cumsum(1)
        over = self.long // 10
        padded = np.pad(x, ((0, 0), (over // 2 + 1, over - over // 2 - 1)), mode="edge")
        summed = np.cumsum(padded.astype(np.float64), 1)
        summed = np.concatenate([np.zeros((self.leads, 1)), summed], 1)
        base = (summed[:, over:] - summed[:, :-over])[:, : self.long] / over
        x = x - base.astype(np.float32)
        x = x / (x.std(1, keepdims=True) + 1e-3)
        x = x * chance.uniform(0.8, 1.2, (self.leads, 1)).astype(np.float32)
        x = x + 0.05 * chance.standard_normal(x.shape, np.float32)
        return torch.from_numpy(np.clip(x, -5, 5)), index % self.kinds


class Rhythms(nn.Module):
    """Convolutions along time, an LSTM in both directions, and what is most of it."""

    def __init__(self, leads: int, width: int, wide: int, kinds: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        parts: list[nn.Module] = []
        for before, after in pairwise([leads, *widths]):
            parts += [nn.Conv1d(before, after, 9, 2, 4), nn.BatchNorm1d(after), nn.ReLU()]
            parts += [nn.Conv1d(after, after, 9, 1, 4), nn.BatchNorm1d(after), nn.ReLU()]
        self.convs = nn.Sequential(*parts, nn.MaxPool1d(2))
        self.lstm = nn.LSTM(widths[-1], wide, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * wide, kinds)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.lstm(self.convs(x).transpose(1, 2).contiguous())
        return self.out(h.amax(1))


@two(
    "input_starvation",
    "medicine",
    "2 workers for each rank instead of none",
)
def job_hearts_inflated_by_main_threads(repaired: bool) -> Running:
    """Rhythms of hearts; each rank's training thread reads and prepares its own records; TF32."""
    stored, leads, long, kinds = size(256, 4), size(12, 2), size(2500, 40), 27
    width, wide, rows = size(96, 4), size(384, 8), size(64, 2)
    with DEVICE:
        model = Rhythms(leads, width, wide, kinds)
    net = ddp(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    batches = loaded(Heartbeats(stored, leads, long, kinds), rows, 2 if repaired else 0)

    def step() -> None:
        x, true = batches()
        fn.cross_entropy(net(x), true).backward()
        done(optimizer)

    return Running(step, settle=2 + getattr(batches, "ahead", 0))
