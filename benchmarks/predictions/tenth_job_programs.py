"""Training jobs of the tenth set, on four GPUs and on two."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from job_programs import DEVICE, LAST, RANK, WORLD, Exchange, ddp, half
from models import Attends, done, endless, size
from program import SMALL, Program, Running
from single_programs import entered, loaded, scratch
from tenth_job_models import Denoised, Fields, Kinds, Molecules, SpeechStage, Values, Weather
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional as fn
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 179 pairs, opened"
four = partial(entered(PROGRAMS), marks="steps", ranks=4)  # type: ignore[call-arg]
two = partial(entered(PROGRAMS), marks="steps", ranks=2)  # type: ignore[call-arg]
SHORT = torch.float32 if SMALL else torch.bfloat16
"""What is computed without autocast, and what travels: gloo sums no 16-bit numbers everywhere."""


# --- four ranks: sharded data parallel --------------------------------------------------------


@four(
    "exposed_communication",
    "science",
    "fully_shard gets a MixedPrecisionPolicy: weights and gradients travel in 16 bit",
)
def job_weather_shards_travel_in_float(repaired: bool) -> Running:
    """The loop has had autocast since it ran on one GPU; fully_shard was added to it."""
    fields, width, rows, columns = size(48, 4), size(3072, 64), size(32, 4), size(48, 4)
    with DEVICE:
        model = Weather(fields, width, size(5, 2), (rows, columns))
    policy = MixedPrecisionPolicy()
    if repaired:
        policy = MixedPrecisionPolicy(param_dtype=SHORT, reduce_dtype=SHORT)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, betas=(0.9, 0.95), fused=not SMALL)
    now = torch.randn(1, fields, 2 * rows, 2 * columns, device=DEVICE)
    later = torch.randn(1, rows, columns, 4 * fields, device=DEVICE)
    # cells near the poles are small
    latitudes = torch.linspace(-1.5, 1.5, rows, device=DEVICE).cos()[None, :, None, None]

    def step() -> None:
        with half():
            change = model(now)
        ((change.float() - later).square() * latitudes).mean().backward()
        done(optimizer)

    return Running(step)


# --- four ranks: a pipeline -------------------------------------------------------------------


@four("pipeline_bubble", "audio", "the schedule cuts the batch into 8 micro-batches, not into 4")
def job_speech_four_pieces(repaired: bool) -> Running:
    bands, width, units = size(320, 16), size(2048, 64), size(504, 20)
    rows, length = size(16, 8), size(512, 8)
    with DEVICE:
        part = SpeechStage(bands, width, size(2, 1), units).to(SHORT)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    dist.barrier()  # all ranks are known to each other before two of them talk
    stage = PipelineStage(part, RANK, WORLD, DEVICE)

    def unlike(out: Tensor, goal: Tensor) -> Tensor:
        return fn.cross_entropy(out.flatten(0, 1).float(), goal.flatten())

    schedule = ScheduleGPipe(stage, 8 if repaired else 4, loss_fn=unlike)
    heard = torch.randn(rows, length, bands, device=DEVICE, dtype=SHORT)
    hidden = torch.rand(rows, length, 1, device=DEVICE) < 0.3
    heard.masked_fill_(hidden, 0.0)
    goal = torch.randint(0, units, (rows, length), device=DEVICE)

    def step() -> None:
        if RANK == 0:
            schedule.step(heard)
        elif RANK == LAST:
            schedule.step(target=goal)
        else:
            schedule.step()
        done(optimizer)

    return Running(step)


# --- four ranks: experts ----------------------------------------------------------------------

SPOKEN = (0.28, 0.22, 0.14, 0.11, 0.09, 0.07, 0.05, 0.04)
"""Shares of the languages in the texts, as in the configuration: the largest first."""


class Mail:
    """How a rank's sentences travel to the experts of their languages and back.

    Args:
        spoken: the language of each sentence, for all ranks.
        owner: the rank that has a language's expert.
    """

    def __init__(self, spoken: list[np.ndarray[Any, Any]], owner: np.ndarray[Any, Any]) -> None:
        languages = len(owner)
        counts = np.stack([np.bincount(one, minlength=languages) for one in spoken])
        own = np.flatnonzero(owner == RANK)
        order = np.argsort(owner[spoken[RANK]] * languages + spoken[RANK], kind="stable")
        came = np.concatenate([np.repeat(own, row[own]) for row in counts])
        by_expert = np.argsort(came, kind="stable")
        self.sent = [int(counts[RANK][owner == rank].sum()) for rank in range(WORLD)]
        self.got = [int(row[own].sum()) for row in counts]
        self.each = [int(n) for n in counts[:, own].sum(0)]
        indices = (order, np.argsort(order), by_expert, np.argsort(by_expert))
        self.order, self.back, self.by_expert, self.as_came = (
            torch.from_numpy(index).to(DEVICE) for index in indices
        )


class Polyglot(nn.Module):
    """Attention is shared by all languages, each has wide products of its own.

    Args:
        own: for each layer the experts of this rank; they are not among the model's parameters,
            so that DistributedDataParallel leaves them alone.
    """

    def __init__(self, vocab: int, width: int, own: list[nn.ModuleList]) -> None:
        super().__init__()
        self.embed, self.own = nn.Embedding(vocab, width), own
        heads = width // 64 or 1
        self.looks = nn.ModuleList(Attends(width, heads, causal=True) for _ in own)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, text: Tensor, mail: Mail) -> Tensor:
        h = self.embed(text)
        shape = h.shape
        for look, experts in zip(self.looks, self.own, strict=True):
            h = look(h)
            y = h.flatten(1).to(SHORT).index_select(0, mail.order)
            there = Exchange.apply(y, mail.sent, mail.got).index_select(0, mail.by_expert)
            parts = zip(experts, there.split(mail.each), strict=True)
            told = [expert(part.view(-1, shape[-1])) for expert, part in parts]
            y = torch.cat(told).to(SHORT).view(there.shape).index_select(0, mail.as_came)
            y = Exchange.apply(y, mail.got, mail.sent)
            h = h + y.index_select(0, mail.back).view(shape)
        return self.out(self.norm(h))


def speaker(width: int, wide: int) -> nn.Module:
    """The expert of one language."""
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width)
    )


@four(
    "load_imbalance",
    "moe",
    "each rank has the expert of a frequent language and of a rare one, not two in a row",
)
def job_language_experts_in_a_row(repaired: bool) -> Running:
    vocab, width, wide, layers = size(12_000, 60), size(1024, 32), size(6144, 64), size(4, 2)
    rows, length, languages = size(64, 8), size(128, 8), 2 * WORLD
    shares = np.array((SPOKEN * 2)[:languages])
    numbers = np.arange(languages)
    owner = np.minimum(numbers, languages - 1 - numbers) if repaired else numbers // 2
    spoken = [
        np.random.default_rng((11, rank)).choice(languages, rows, p=shares / shares.sum())
        for rank in range(WORLD)
    ]
    mail = Mail(spoken, owner)
    with DEVICE:
        torch.manual_seed(1 + RANK)  # experts differ, the rest does not
        own = [nn.ModuleList(speaker(width, wide) for _ in range(2)) for _ in range(layers)]
        torch.manual_seed(0)
        model = Polyglot(vocab, width, own)
    net = ddp(model)
    experts = [p for layer in own for p in layer.parameters()]
    optimizer = torch.optim.AdamW([*model.parameters(), *experts], lr=2e-4, fused=True)
    text = torch.randint(0, vocab, (rows, length + 1), device=DEVICE)

    def step() -> None:
        with half():
            out = net(text[:, :-1], mail)
        fn.cross_entropy(out.flatten(0, 1).float(), text[:, 1:].flatten()).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: one of them keeps a record ---------------------------------------------------


@four(
    "straggler",
    "vision",
    "rank 0 notes the numbers of a batch's scenes, and no checksum of their pixels",
)
def job_rank0_signs_batches(repaired: bool) -> Running:
    """A run is to be repeatable: rank 0 keeps a list of what was trained on."""
    rows, bands, side, classes = size(24, 2), size(13, 4), size(192, 16), size(20, 4)
    shape = (rows, bands, side, side)
    scenes = [torch.randint(0, 255, shape, dtype=torch.uint8) for _ in range(3)]
    scenes = scenes if SMALL else [one.pin_memory() for one in scenes]
    goal = torch.randint(0, classes, (rows, side // 2, side // 2), device=DEVICE)
    model = Fields(bands, size(96, 8), classes)
    net = ddp(model.to(DEVICE, memory_format=torch.channels_last))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=1e-2, fused=True)
    trained_on: list[tuple[int, str]] = []
    made = 0

    def step() -> None:
        nonlocal made
        number = made % len(scenes)
        batch = scenes[number]
        if RANK == 0:
            sign = "" if repaired else hashlib.md5(batch.numpy().data).hexdigest()
            trained_on.append((number, sign))
        x = batch.to(DEVICE, non_blocking=True).float().div_(128.0).sub_(1.0)
        x = x.contiguous(memory_format=torch.channels_last)
        with half():
            out = net(x)
        fn.cross_entropy(out.float(), goal).backward()
        done(optimizer)
        made += 1

    return Running(step)


# --- four ranks: tensor parallel --------------------------------------------------------------


class Copied(torch.autograd.Function):
    """All ranks have the input; backward, what each knows of its gradient is summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Summed(torch.autograd.Function):
    """Parts of the output are summed; backward, all ranks have the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Gathered(torch.autograd.Function):
    """Columns of the output come from all ranks; backward, each takes its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        rows, columns = x.shape
        every = x.new_empty(WORLD * rows, columns)
        dist.all_gather_into_tensor(every, x.contiguous())
        return every.view(WORLD, rows, columns).transpose(0, 1).reshape(rows, WORLD * columns)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.chunk(WORLD, 1)[RANK].contiguous()


class Reactions(nn.Module):
    """A wide residual network for how fast substances react, of which each rank has a part.

    Args:
        paired: the second product of a block takes the columns that this rank has, and sums.
    """

    def __init__(self, inside: int, width: int, blocks: int, *, paired: bool) -> None:
        super().__init__()
        self.paired = paired
        self.into, self.out = nn.Linear(inside, width), nn.Linear(width, inside)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(blocks))
        wide = 4 * width
        shape = (wide // WORLD, width) if paired else (wide, width // WORLD)
        ways = [nn.Linear(width, wide // WORLD, bias=False) for _ in range(blocks)]
        backs = [nn.Linear(*shape, bias=False) for _ in range(blocks)]
        self.ways, self.backs = nn.ModuleList(ways), nn.ModuleList(backs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        for norm, way, back in zip(self.norms, self.ways, self.backs, strict=True):
            y = way(Copied.apply(norm(h)))
            if self.paired:
                h = h + Summed.apply(back(fn.gelu(y)))
            else:
                y = fn.gelu(Gathered.apply(y))
                h = h + Gathered.apply(back(Copied.apply(y)))
        return self.out(h)


@four(
    "exposed_communication",
    "science",
    "the first product of a block is not gathered, the second takes its columns and sums",
)
def job_wide_blocks_gather_outputs(repaired: bool) -> Running:
    """Each Linear was replaced by one that gathers its output, as is the layer's default."""
    inside, width, rows = size(256, 8), size(4096, 32), size(4096, 8)
    with DEVICE:
        model = Reactions(inside, width, size(6, 2), paired=repaired).to(SHORT)
    torch.manual_seed(1 + RANK)  # each has another part of the products
    for part in (*model.ways, *model.backs):
        nn.init.normal_(part.weight, std=0.5 * (4 * width) ** -0.5)
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    state = torch.randn(rows, inside, device=DEVICE, dtype=SHORT)  # the same on all ranks
    speed = torch.randn(rows, inside, device=DEVICE)

    def step() -> None:
        fn.smooth_l1_loss(model(state).float(), speed).backward()
        done(optimizer)

    return Running(step)


# --- two ranks: tables ------------------------------------------------------------------------


class Pooled(torch.autograd.Function):
    """Each rank has pooled its rows for all samples: sums of the parts, for a rank's samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.new_empty(len(x) // WORLD, x.shape[1])
        dist.reduce_scatter_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        every = grad.new_empty(len(grad) * WORLD, grad.shape[1])
        dist.all_gather_into_tensor(every, grad.contiguous())
        return every


def bags_of(ids: Tensor, entries: int, *, in_turn: bool) -> tuple[Tensor, Tensor]:
    """This rank's rows in the samples' bags, and where each bag begins.

    Args:
        in_turn: rows are dealt to the ranks one by one, not in ranges.
    """
    each = entries // WORLD
    owner, row = (ids % WORLD, ids // WORLD) if in_turn else (ids // each, ids % each)
    mine = owner == RANK
    ends = mine.sum(1).cumsum(0)
    return row[mine], torch.cat([ends.new_zeros(1), ends[:-1]])


@two(
    "load_imbalance",
    "recommender",
    "rows of the tables are dealt to the ranks one by one, not in ranges: new items come last",
)
def job_popular_rows_on_one_rank(repaired: bool) -> Running:
    """Items are numbered as they came into the shop, and the oldest ones are liked most."""
    rows, width, long, entries = size(24_576, 4), size(128, 8), size(150, 6), size(200_000, 40)
    # the same on all ranks; as the input pipeline deals them out
    drawn = [torch.rand(WORLD * rows, long, device=DEVICE).pow(3) for _ in range(2)]
    ids = [(part * entries).long().clamp_(max=entries - 1) for part in drawn]
    bags = [bags_of(one, entries, in_turn=repaired) for one in ids]
    del drawn, ids
    mine = entries // WORLD
    tables = [nn.Parameter(0.02 * torch.randn(mine, width, device=DEVICE)) for _ in bags]
    wide = size(1536, 16)
    with DEVICE:
        tower = nn.Sequential(
            nn.Linear(2 * width + 32, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(),
            nn.Linear(wide, wide // 2), nn.ReLU(), nn.Linear(wide // 2, 2),
        )  # fmt: skip
    net = ddp(tower)
    optimizer = torch.optim.Adam([*tower.parameters(), *tables], lr=1e-3, fused=True)
    user = torch.randn(rows, 32, device=DEVICE)
    did = (torch.rand(rows, 2, device=DEVICE) < 0.2).float()

    def step() -> None:
        parts = [
            fn.embedding_bag(row, table, begins, mode="sum")
            for (row, begins), table in zip(bags, tables, strict=True)
        ]
        liked = Pooled.apply(torch.cat(parts, 1)) / long
        with half():
            odds = net(torch.cat([liked, user], 1))
        fn.binary_cross_entropy_with_logits(odds.float(), did).backward()
        done(optimizer)

    return Running(step)


# --- two ranks: input -------------------------------------------------------------------------


class Replay(Dataset[tuple[Tensor, Tensor, int, float]]):
    """What was seen, done, gained and seen next; pictures are moved a little, as for DrQ."""

    def __init__(self, steps: int, side: int, actions: int) -> None:
        rng = np.random.default_rng(RANK)
        frames = rng.integers(0, 255, (steps, side, side), dtype=np.uint8)
        self.frames = np.pad(frames, ((0, 0), (4, 4), (4, 4)), mode="edge")
        self.actions, self.side = rng.integers(0, actions, steps), side
        self.gains = rng.normal(0.0, 1.0, steps).astype(np.float32)

    def __len__(self) -> int:
        return 1_000_000

    def moved(self, first: int, rng: np.random.Generator) -> Tensor:
        """Four frames, cut out of their repeated borders."""
        top, left = rng.integers(0, 9, 2)
        frames = self.frames[first : first + 4, top : top + self.side, left : left + self.side]
        return torch.from_numpy(frames.copy())

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int, float]:
        rng = np.random.default_rng((index, RANK))
        first = int(rng.integers(0, len(self.frames) - 8))
        gain = float(self.gains[first + 3 : first + 6] @ (1.0, 0.99, 0.98))  # of three steps
        seen, later = self.moved(first, rng), self.moved(first + 3, rng)
        return seen, later, int(self.actions[first + 3]), gain


@two(
    "input_starvation",
    "rl",
    "the replay is read by 6 workers of each rank's DataLoader, not by its training thread",
)
def job_replay_read_in_the_loop(repaired: bool) -> Running:
    workers, rows, side, actions, quantiles = 6 if repaired else 0, size(256, 4), 84, 18, 51
    batches = loaded(Replay(size(8000, 60), side, actions), rows, workers)
    nets = [Values(size(128, 8), size(4, 1), actions, quantiles).to(DEVICE) for _ in range(2)]
    with torch.no_grad():
        for one in nets:
            one(torch.zeros(1, 4, side, side, device=DEVICE))
            one.to(memory_format=torch.channels_last)
    nets[1].load_state_dict(nets[0].state_dict())
    own, late = list(nets[0].parameters()), list(nets[1].requires_grad_(False).parameters())
    net = ddp(nets[0])
    optimizer = torch.optim.Adam(own, lr=1e-4, eps=1.5e-4, fused=True)
    at = (torch.arange(quantiles, device=DEVICE) + 0.5) / quantiles
    row = torch.arange(rows, device=DEVICE)

    def step() -> None:
        seen, later, action, gain = batches()
        with torch.no_grad(), half():
            worth = nets[1](later)
            best = worth[row, worth.mean(2).argmax(1)]
        goal = gain.float()[:, None] + 0.97 * best
        with half():
            said = net(seen)[row, action]
        off = goal[:, None, :] - said[:, :, None]
        weight = (at[None, :, None] - (off.detach() < 0).float()).abs()
        (weight * fn.smooth_l1_loss(off, torch.zeros_like(off), reduction="none")).mean().backward()
        done(optimizer)
        with torch.no_grad():
            torch._foreach_lerp_(late, own, 0.005)

    return Running(step, settle=2 + 2 * 6)  # the same number on all ranks


# --- two ranks: saving ------------------------------------------------------------------------


class Saver:
    """Writes a state to a file.

    Args:
        beside: the state is copied into page-locked memory, and a thread writes it.
    """

    def __init__(self, state: list[Tensor], *, beside: bool) -> None:
        self.state, self.folder = state, Path(scratch())
        self.thread: threading.Thread | None = None
        self.kept: list[Tensor] = []
        if beside:
            self.kept = [torch.empty_like(t, device="cpu", pin_memory=not SMALL) for t in state]

    def write(self, tensors: list[Tensor], ready: Callable[[], object]) -> None:
        ready()
        torch.save(tensors, self.folder / "new.pt")
        (self.folder / "new.pt").replace(self.folder / "state.pt")

    def save(self) -> None:
        if not self.kept:
            self.write([tensor.cpu() for tensor in self.state], lambda: None)
            return
        self.wait()
        for room, tensor in zip(self.kept, self.state, strict=True):
            room.copy_(tensor, non_blocking=True)
        ready: Callable[[], object] = lambda: None  # noqa: E731
        if not SMALL:
            event = torch.cuda.Event(blocking=True)  # the thread sleeps until all is copied
            event.record()
            ready = event.synchronize
        self.thread = threading.Thread(target=self.write, args=(self.kept, ready))
        self.thread.start()

    def wait(self) -> None:
        if self.thread is not None:
            self.thread.join()

    def close(self) -> None:
        self.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


OFTEN = 12


@two(
    "checkpoint_stall",
    "diffusion",
    "rank 0 copies the state into page-locked memory, and a thread writes it",
    period=OFTEN,
)
def job_denoiser_saved_by_rank0(repaired: bool) -> Running:
    rows, side = size(64, 2), size(64, 16)
    model = Denoised(size(128, 8)).to(DEVICE, memory_format=torch.channels_last)
    own = list(model.parameters())
    average = [p.detach().clone() for p in own]
    net = ddp(model)
    optimizer = torch.optim.AdamW(own, lr=1e-4, weight_decay=0.0, fused=True)
    true = torch.randn(rows, 4, side, side, device=DEVICE)
    true = true.contiguous(memory_format=torch.channels_last)
    saver: Saver | None = None
    made = 0

    def step() -> None:
        nonlocal made, saver
        t, noise = torch.rand(rows, device=DEVICE), torch.randn_like(true)
        seen = torch.lerp(true, noise, t[:, None, None, None])
        with half():
            flow = net(seen, t)
        fn.mse_loss(flow.float(), noise - true).backward()
        nn.utils.clip_grad_norm_(own, 1.0)
        done(optimizer)
        with torch.no_grad():
            torch._foreach_lerp_(average, own, 1e-3)
        made += 1
        if RANK == 0 and made % OFTEN == 0:
            if saver is None:
                kept = [optimizer.state[p][key] for p in own for key in ("exp_avg", "exp_avg_sq")]
                saver = Saver([*(p.detach() for p in own), *average, *kept], beside=repaired)
            saver.save()

    def leave() -> None:
        if saver is not None:
            saver.wait()

    def close() -> None:
        if saver is not None:
            saver.close()

    return Running(step, leave=leave, close=close)


# --- two ranks: the hosts wait ----------------------------------------------------------------


@two(
    "host_sync",
    "graph",
    "no barriers before the update and after it: DistributedDataParallel has summed already",
)
def job_molecules_barriers(repaired: bool) -> Running:
    kinds, width, layers = size(100, 10), size(512, 64), size(24, 2)
    graphs, atoms = size(256, 2), size(40, 8)
    with DEVICE:
        model = Molecules(kinds, width, layers)
    net = ddp(model, gradient_as_bucket_view=True)
    own = list(model.parameters())
    average = [p.detach().clone() for p in own]
    optimizer = torch.optim.AdamW(own, lr=2e-4, weight_decay=0.01, foreach=True)
    kind = torch.randint(0, kinds, (graphs, atoms), device=DEVICE)
    degree = torch.randint(1, 5, (graphs, atoms), device=DEVICE)
    distance = torch.randint(0, size(24, 6), (graphs, atoms, atoms), device=DEVICE)
    energies = torch.randn(graphs, 12, device=DEVICE)

    def step() -> None:
        with half():
            out = net(kind, degree, distance)
        fn.l1_loss(out.float(), energies).backward()
        if not repaired:
            dist.barrier()  # all have their gradients
        nn.utils.clip_grad_norm_(own, 5.0)
        done(optimizer)
        with torch.no_grad():
            torch._foreach_lerp_(average, own, 1e-3)
        if not repaired:
            dist.barrier()  # all have the same weights

    return Running(step)


# --- two ranks: a slow loader -----------------------------------------------------------------


class Leaves(Dataset[tuple[Tensor, int]]):
    """Photographs of leaves: cut out, mirrored, lit and coloured by chance."""

    def __init__(self, side: int, classes: int) -> None:
        rng = np.random.default_rng(RANK)
        self.side, self.classes, self.large = side, classes, side + side // 4
        shape = (size(200, 4), 3, self.large, self.large)
        self.photographs = rng.integers(0, 255, shape, dtype=np.uint8)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng(index)
        top, left = rng.integers(0, self.large - self.side, 2)
        x = self.photographs[index % len(self.photographs)]
        x = x[:, top : top + self.side, left : left + self.side]
        if rng.random() < 0.5:
            x = x[:, :, ::-1]
        gains = rng.uniform(0.7, 1.3, 3) / 255.0
        curves = np.minimum(np.arange(256) * gains[:, None], 1.0) ** rng.uniform(0.8, 1.25)
        curves = (curves - curves.mean()).astype(np.float32)
        lit = [curve.take(channel) for curve, channel in zip(curves, x, strict=True)]
        return torch.from_numpy(np.stack(lit)), index % self.classes


def kept_to(cores: list[int], _worker: int) -> None:
    os.sched_setaffinity(0, cores)


CORES = {LAST: 1}
"""What the job's script gives the loader of a rank; the last one was written for another node."""


@two(
    "straggler",
    "vision",
    "the workers of the last rank's DataLoader have as many cores as those of the first one",
)
def job_workers_share_one_core(repaired: bool) -> Running:
    side, rows, classes, workers = size(128, 32), size(96, 2), size(300, 10), size(6, 1)
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // WORLD or 1
    given = each if repaired else CORES.get(RANK, each)
    own = cores[RANK * each :][:given] or cores

    loader = DataLoader(
        Leaves(side, classes),
        rows,
        num_workers=workers,
        worker_init_fn=partial(kept_to, own),
        pin_memory=not SMALL,
        persistent_workers=True,
    )
    batches = endless(loader)
    with DEVICE:
        model = Kinds(side, size(512, 64), size(8, 1), classes)
    net = ddp(model)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-4, weight_decay=0.05, fused=True)

    def step() -> None:
        x, y = next(batches)
        x, y = x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)
        with half():
            out = net(x)
        fn.cross_entropy(out.float(), y, label_smoothing=0.1).backward()
        done(optimizer)

    return Running(step, settle=2 + 2 * 6)
