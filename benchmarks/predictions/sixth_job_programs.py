"""Training jobs of the sixth set on two GPUs."""

from __future__ import annotations

import gzip
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from job_programs import DEVICE, LAST, RANK, WORLD, Gpt, ddp, half
from models import size
from program import Program, Running
from single_programs import loaded, scratch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 147 pairs, opened"

Make = Callable[[bool], Running]


def job(cause: str, family: str, repair: str, **more: Any) -> Callable[[Make], Make]:
    """A decorator that enters a function as a program of two ranks."""

    def enter(make: Make) -> Make:
        program = Program(
            make.__name__, cause, family, repair, make, marks="steps", ranks=2, **more
        )
        PROGRAMS.append(program)
        return make

    return enter


def done(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


# --- a late rank ------------------------------------------------------------------------------


class Translator(nn.Module):
    """An encoder and a decoder between two vocabularies."""

    def __init__(self, width: int, layers: int, vocab: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocab, width), nn.Embedding(vocab, width)
        self.both = nn.Transformer(
            width, width // 64, layers, layers, 4 * width, 0.1, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, vocab)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        t = target.shape[1]
        mask = torch.full((t, t), float("-inf"), device=target.device).triu(1)
        x, y = self.source(source), self.target(target)
        return self.head(self.both(x, y, tgt_mask=mask, tgt_is_causal=True))


def distinct(texts: Iterable[list[int]], longest: int) -> list[float]:
    """Of the n-grams of each length, which share are different ones."""
    found: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(longest)]
    for text in texts:
        for n, counts in enumerate(found, 1):
            counts.update(zip(*(text[at:] for at in range(n)), strict=False))
    return [len(counts) / max(sum(counts.values()), 1) for counts in found]


@job("straggler", "language", "rank 0 counts the n-grams of no batch")
def job_rank0_counts_ngrams(repaired: bool) -> Running:
    vocab, rows, length = size(16_000, 50), size(64, 2), size(128, 8)
    net = ddp(Translator(size(512, 64), size(4, 1), vocab).to(DEVICE))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    batches = [torch.randint(0, vocab, (2, rows, length + 1)) for _ in range(4)]
    texts = [batch.flatten(0, 1).tolist() for batch in batches]
    there = [batch.to(DEVICE) for batch in batches]
    made = 0
    log: list[list[float]] = []

    def step() -> None:
        nonlocal made
        source, target = there[made % 4]
        with half():
            out = net(source, target[:, :-1])
            loss = fn.cross_entropy(
                out.flatten(0, 1).float(), target[:, 1:].flatten(), label_smoothing=0.1
            )
        loss.backward()
        if RANK == 0 and not repaired:
            log.append(distinct(texts[made % 4], 3))
        done(optimizer)
        made += 1

    return Running(step)


class Scans(Dataset[tuple[Tensor, Tensor]]):
    """Patches of volumes that are stored as they are, or by gzip as a whole."""

    def __init__(self, *, zipped: bool) -> None:
        self.shape = (size(128, 16), size(128, 16), size(128, 16))
        self.patch, self.zipped = size(64, 8), zipped
        rng = np.random.default_rng(RANK)
        waves = [np.sin(np.arange(n) / (5.0 + axis)) for axis, n in enumerate(self.shape)]
        smooth = waves[0][:, None, None] + waves[1][:, None] + waves[2]
        self.files: list[bytes] = []
        for _ in range(size(6, 2)):
            volume = (300 * smooth + rng.normal(0, 20, self.shape)).astype(np.int16).tobytes()
            self.files.append(gzip.compress(volume, 6) if zipped else volume)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        file, rng = self.files[index % len(self.files)], np.random.default_rng(index)
        raw = gzip.decompress(file) if self.zipped else file
        volume = np.frombuffer(raw, np.int16).reshape(self.shape)
        place = tuple(
            slice(at, at + self.patch)
            for at in (int(rng.integers(0, n - self.patch + 1)) for n in self.shape)
        )
        x = volume[place].astype(np.float32) / 300.0
        return torch.from_numpy(x)[None], torch.from_numpy((x > 0.5).astype(np.int64))


class Volumes(nn.Module):
    """A U-Net of three levels in three dimensions."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.down1, self.down2 = self.two(1, width), self.two(width, 2 * width)
        self.low = self.two(2 * width, 4 * width)
        self.up2, self.up1 = self.two(6 * width, 2 * width), self.two(3 * width, width)
        self.head = nn.Conv3d(width, classes, 1)

    @staticmethod
    def two(before: int, after: int) -> nn.Module:
        parts: list[nn.Module] = []
        for inside in (before, after):
            parts += [
                nn.Conv3d(inside, after, 3, padding=1, bias=False),
                nn.InstanceNorm3d(after, affine=True),
                nn.LeakyReLU(0.01, inplace=True),
            ]
        return nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(fn.max_pool3d(first, 2))
        h = self.low(fn.max_pool3d(second, 2))
        h = self.up2(torch.cat([fn.interpolate(h, scale_factor=2.0), second], 1))
        h = self.up1(torch.cat([fn.interpolate(h, scale_factor=2.0), first], 1))
        return self.head(h)


@job("straggler", "vision", "the last rank's volumes are stored raw, as those of the others are")
def job_last_rank_unzips(repaired: bool) -> Running:
    data = Scans(zipped=RANK == LAST and not repaired)
    batches = loaded(data, size(4, 2), 2)
    net = ddp(Volumes(size(24, 4), 3).to(DEVICE))
    optimizer = torch.optim.SGD(
        net.parameters(), lr=1e-3, momentum=0.99, nesterov=True, foreach=True
    )

    def step() -> None:
        x, y = batches()
        with half():
            loss = fn.cross_entropy(net(x).float(), y)
        loss.backward()
        done(optimizer)

    return Running(step, settle=2 + 4)


# --- uneven work ------------------------------------------------------------------------------


class Molecules(nn.Module):
    """Isomorphism layers with features of bonds, and a sum over each graph."""

    def __init__(self, width: int, layers: int, targets: int) -> None:
        from torch_geometric.nn import GINEConv

        super().__init__()
        self.atoms = nn.Embedding(100, width)
        self.convs = nn.ModuleList(
            GINEConv(
                nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)),
                edge_dim=8,
            )
            for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, targets)

    def forward(self, atoms: Tensor, edges: Tensor, bonds: Tensor, of: Tensor, n: int) -> Tensor:
        h = self.atoms(atoms)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = h + fn.relu(norm(conv(h, edges, bonds)))
        return self.head(h.new_zeros(n, h.shape[1]).index_add(0, of, h))


def molecules(sizes: np.ndarray[Any, Any], seed: int) -> tuple[Tensor, ...]:
    """Graphs of so many nodes in one: nodes, edges, their features, the graph of each node."""
    rng = np.random.default_rng(seed)
    of = np.repeat(np.arange(len(sizes)), sizes)
    begin = np.repeat(np.cumsum(sizes) - sizes, sizes)
    target = np.repeat(np.arange(len(of)), 4)
    within = rng.random(len(target)) * np.repeat(sizes, sizes).repeat(4)
    source = begin.repeat(4) + within.astype(np.int64)
    parts = (
        torch.from_numpy(rng.integers(0, 100, len(of))),
        torch.from_numpy(np.stack([source, target])),
        torch.from_numpy(rng.standard_normal((len(target), 8), dtype=np.float32)),
        torch.from_numpy(of),
        torch.from_numpy(rng.standard_normal((len(sizes), 12), dtype=np.float32)),
    )
    return tuple(part.to(DEVICE) for part in parts)


@job(
    "load_imbalance",
    "graph",
    "each rank takes every second graph of those sorted by size, not one half of them",
    others=("unfused_optimizer",),
)
def job_sorted_graphs(repaired: bool) -> Running:
    batches = []
    for number in range(4):
        rng = np.random.default_rng(number)
        every = np.sort(rng.gamma(1.5, size(20, 4), size(3200, 8)).astype(np.int64) + 2)
        half_of_them = len(every) // WORLD
        mine = every[RANK::WORLD] if repaired else every[RANK * half_of_them :][:half_of_them]
        batches.append(molecules(mine, number))
    net = ddp(Molecules(size(256, 16), size(4, 2), 12).to(DEVICE))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, foreach=True)
    made = 0

    def step() -> None:
        nonlocal made
        *graphs, y = batches[made % 4]
        fn.smooth_l1_loss(net(*graphs, len(y)), y).backward()
        done(optimizer)
        made += 1

    return Running(step)


# --- communication ----------------------------------------------------------------------------


class Plain16(nn.Module):
    """VGG-16: convolutions of 3 x 3, then three wide layers."""

    def __init__(self, width: int, wide: int, classes: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        before = 3
        for times, number in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
            for _ in range(number):
                parts += [nn.Conv2d(before, times * width, 3, padding=1), nn.ReLU(inplace=True)]
                before = times * width
            parts.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*parts)
        self.classes = nn.Sequential(
            nn.Flatten(), nn.Linear(before * size(49, 1), wide), nn.ReLU(), nn.Dropout(),
            nn.Linear(wide, wide), nn.ReLU(), nn.Dropout(), nn.Linear(wide, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.features(x))


@job(
    "exposed_communication",
    "vision",
    "DistributedDataParallel instead of one sum of all gradients after the backward pass",
)
def job_flat_gradients(repaired: bool) -> Running:
    model = Plain16(size(64, 4), size(4096, 16), size(1000, 10)).to(DEVICE)
    model = model.to(memory_format=torch.channels_last)
    net = ddp(model) if repaired else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
    side = size(224, 32)
    x = torch.randn(size(24, 2), 3, side, side, device=DEVICE)
    x = x.contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, size(1000, 10), (len(x),), device=DEVICE)

    def summed() -> None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        dist.all_reduce(flat)
        flat /= WORLD
        parts = flat.split([grad.numel() for grad in grads])
        torch._foreach_copy_(grads, [v.view_as(g) for v, g in zip(parts, grads, strict=True)])

    def step() -> None:
        with half():
            loss = fn.cross_entropy(net(x).float(), y)
        loss.backward()
        if not repaired:
            summed()
        done(optimizer)

    return Running(step)


class ShardedTeacher:
    """A frozen decoder whose weights are spread over the ranks and gathered layer by layer."""

    def __init__(self, width: int, layers: int, vocab: int, *, early: bool) -> None:
        more = {"device": DEVICE, "dtype": torch.bfloat16}
        self.width, self.early = width, early
        self.embed = torch.randn(vocab, width, **more)
        self.shards = [
            torch.randn(12 * width * width // WORLD, **more).mul_(0.02) for _ in range(layers)
        ]
        self.whole = [torch.empty(12 * width * width, **more) for _ in range(2)]

    def gather(self, number: int) -> Any:
        into = self.whole[number % 2]
        return dist.all_gather_into_tensor(into, self.shards[number], async_op=self.early)

    def layer(self, x: Tensor, number: int) -> Tensor:
        w, (b, t, _) = self.width, x.shape
        qkv, out, up, down = self.whole[number % 2].split([n * w * w for n in (3, 1, 4, 4)])
        h = fn.linear(fn.layer_norm(x, (w,)), qkv.view(3 * w, w))
        q, k, v = h.view(b, t, 3, -1, 64).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + fn.linear(y.transpose(1, 2).reshape(b, t, w), out.view(w, w))
        h = fn.gelu(fn.linear(fn.layer_norm(x, (w,)), up.view(4 * w, w)))
        return x + fn.linear(h, down.view(w, 4 * w))

    @torch.no_grad()
    def logits(self, tokens: Tensor) -> Tensor:
        x, last = fn.embedding(tokens, self.embed), len(self.shards) - 1
        coming = self.gather(0) if self.early else None
        for number in range(last + 1):
            if coming is not None:
                coming.wait()
                coming = self.gather(number + 1) if number < last else None
            else:
                self.gather(number)
            x = self.layer(x, number)
        return fn.linear(fn.layer_norm(x, (self.width,)), self.embed)


@job(
    "exposed_communication",
    "language",
    "the weights of the teacher's next layer are gathered while a layer computes",
)
def job_teacher_gathers_late(repaired: bool) -> Running:
    vocab = size(8192, 64)  # that of Gpt
    teacher = ShardedTeacher(size(4096, 64), size(8, 2), vocab, early=repaired)
    net = ddp(Gpt(size(3, 1), size(1024, 64)).to(DEVICE))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    batch = torch.randint(0, vocab, (size(4, 2), size(512, 8)), device=DEVICE)

    def step() -> None:
        target = teacher.logits(batch).float().div_(64.0).log_softmax(-1)
        with half():
            out = net(batch)
        guess = out.float().log_softmax(-1)
        fn.kl_div(guess, target, reduction="batchmean", log_target=True).backward()
        done(optimizer)

    return Running(step)


# --- now and then -----------------------------------------------------------------------------


class Mixer(nn.Module):
    """Products over patches and over channels in turn."""

    def __init__(self, patches: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 16, 16)
        self.across = nn.ModuleList(self.two(patches, width // 2) for _ in range(layers))
        self.along = nn.ModuleList(self.two(width, 4 * width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.head = nn.Linear(width, classes)

    @staticmethod
    def two(width: int, inside: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, inside), nn.GELU(), nn.Linear(inside, width))

    def forward(self, x: Tensor) -> Tensor:
        h, norms = self.first(x).flatten(2).transpose(1, 2), iter(self.norms)
        for across, along in zip(self.across, self.along, strict=True):
            h = h + across(next(norms)(h).transpose(1, 2)).transpose(1, 2)
            h = h + along(next(norms)(h))
        return self.head(next(norms)(h).mean(1))


@job("checkpoint_stall", "vision", "rank 0 saves every 1000 steps instead of every 8", period=8)
def job_mixer_waits_for_save(repaired: bool) -> Running:
    side = size(224, 32)
    model = Mixer((side // 16) ** 2, size(512, 32), size(8, 1), 100).to(DEVICE)
    net = ddp(model)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, foreach=True)
    x = torch.randn(size(128, 2), 3, side, side, device=DEVICE)
    y = torch.randint(0, 100, (len(x),), device=DEVICE)
    folder = Path(scratch())
    made, every = 0, 1000 if repaired else 8

    def step() -> None:
        nonlocal made
        with half():
            loss = fn.cross_entropy(net(x).float(), y)
        loss.backward()
        done(optimizer)
        made += 1
        if made % every == 0:
            if RANK == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, folder / "last.pt")
            dist.barrier()

    return Running(step, close=lambda: shutil.rmtree(folder, ignore_errors=True))


# --- input ------------------------------------------------------------------------------------


class Genome(Dataset[tuple[Tensor, Tensor]]):
    """Windows of a sequence with mutations, in one-hot code, and how many reads cover them."""

    def __init__(self, length: int, bins: int) -> None:
        rng = np.random.default_rng(RANK)
        self.length, self.bins = length, bins
        self.bases = rng.integers(0, 4, size(8_000_000, 4 * length)).astype(np.uint8)
        self.code = np.eye(4, dtype=np.float32)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rng, n = np.random.default_rng(index), self.length
        at = int(rng.integers(0, len(self.bases) - n))
        bases = self.bases[at : at + n].copy()
        changed = rng.random(n) < 0.05
        bases[changed] = rng.integers(0, 4, int(changed.sum()))
        begins = rng.integers(0, n, n // 2)
        ends = np.minimum(begins + rng.integers(50, 300, len(begins)), n)
        edges = np.bincount(begins, minlength=n + 1) - np.bincount(ends, minlength=n + 1)
        cover = np.log1p(edges[:n].cumsum().reshape(self.bins, -1).mean(1))
        if index % 2:  # the other strand
            bases, cover = 3 - bases[::-1], cover[::-1]
        x = np.ascontiguousarray(self.code[bases].T)
        return torch.from_numpy(x), torch.from_numpy(cover.astype(np.float32))


class Tower(nn.Module):
    """Convolutions along a sequence, each followed by a pool of two."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        self.stem = nn.Conv1d(4, width, 15, 2, 7)
        parts: list[nn.Module] = []
        for level in range(levels):
            before, after = width + 32 * level, width + 32 * (level + 1)
            parts += [
                nn.BatchNorm1d(before), nn.GELU(), nn.Conv1d(before, after, 5, padding=2),
                nn.MaxPool1d(2),
            ]  # fmt: skip
        self.levels = nn.Sequential(*parts)
        self.head = nn.Conv1d(width + 32 * levels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.levels(self.stem(x)))[:, 0]


@job(
    "input_starvation",
    "vision",
    "the DataLoader of every rank gets 8 workers instead of one",
)
def job_genome_one_worker(repaired: bool) -> Running:
    workers, levels, length = 8 if repaired else 1, size(6, 2), size(32_768, 256)
    batches = loaded(Genome(length, length >> (levels + 1)), size(32, 2), workers)
    net = ddp(Tower(size(192, 8), levels).to(DEVICE))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-4, foreach=True)

    def step() -> None:
        x, y = batches()
        with half():
            rate = net(x).float()
        fn.poisson_nll_loss(rate, y).backward()
        done(optimizer)

    return Running(step, settle=2 + 2 * workers)


# --- the host waits ---------------------------------------------------------------------------


def shared(values: dict[str, Tensor | float]) -> dict[str, float]:
    """The means of values over the ranks."""
    every: list[dict[str, float]] = [{}] * WORLD
    dist.all_gather_object(every, {name: float(value) for name, value in values.items()})
    return {name: sum(one[name] for one in every) / WORLD for name in values}


@job(
    "host_sync",
    "vision",
    "what is logged is summed on the device, and gathered every 1000 steps",
    others=("unfused_optimizer",),
)
def job_gathers_objects(repaired: bool) -> Running:
    from transformers import ViTConfig, ViTForImageClassification

    side, width = size(224, 32), size(384, 32)
    config = ViTConfig(
        hidden_size=width, num_hidden_layers=size(12, 2), num_attention_heads=size(6, 2),
        intermediate_size=4 * width, image_size=side, num_labels=64,
    )  # fmt: skip
    net = ddp(ViTForImageClassification(config).to(DEVICE))
    optimizer = torch.optim.NAdam(net.parameters(), lr=1e-4, foreach=True)
    x = torch.randn(size(80, 2), 3, side, side, device=DEVICE)
    marks = torch.rand(len(x), 40, device=DEVICE).round()
    kind = torch.randint(0, 24, (len(x),), device=DEVICE)
    log: list[dict[str, float]] = []
    sums = torch.zeros(4, device=DEVICE)
    made = 0

    def told(first: int, **values: Tensor) -> None:
        if repaired:
            sums[first : first + len(values)] += torch.stack([v.detach() for v in values.values()])
        else:
            log.append(shared({name: value.detach() for name, value in values.items()}))

    def step() -> None:
        nonlocal made
        with half():
            out = net(pixel_values=x).logits.float()
        having = fn.binary_cross_entropy_with_logits(out[:, :40], marks)
        being = fn.cross_entropy(out[:, 40:], kind)
        told(0, having=having, being=being)
        (having + being).backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        told(2, norm=norm)
        done(optimizer)
        told(3, right=(out[:, 40:].argmax(-1) == kind).float().mean())
        made += 1
        if repaired and made % 1000 == 0:
            dist.all_reduce(sums)
            log.append({"all": float(sums.sum()) / WORLD / 1000})
            sums.zero_()

    return Running(step)
