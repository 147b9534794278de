"""Training jobs of the twenty-first set, on two GPUs and on four: few and large kernels."""

from __future__ import annotations

import zlib
from collections import deque
from functools import partial

import torch
import torch.distributed as dist
from eleventh_job_models import SHORT, heads_of, layers_of
from fourteenth_job_programs import OfAll, SlicedLoss, ToAll
from job_programs import DEVICE, LAST, RANK, WORLD, Exchange, ddp, half
from models import Attends, Feeds, done, size
from nineteenth_job_programs import GatedLayer, Proofs, SlicedLayer, attended
from program import SMALL, Program, Running
from single_programs import entered
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    offload_wrapper,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as fn
from twentieth_job_programs import next_word

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 430 pairs, opened"
four = partial(entered(PROGRAMS), marks="steps", ranks=4)  # type: ignore[call-arg]
two = partial(entered(PROGRAMS), marks="steps", ranks=2)  # type: ignore[call-arg]


# --- two ranks: activations that are parked ---------------------------------------------------


class Stem(nn.Module):
    """From pixels to pieces, by convolutions that halve the picture."""

    def __init__(self, first: int, second: int, width: int) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            nn.Conv2d(3, first, 3, 2, 1),
            nn.GroupNorm(8, first),
            nn.GELU(),
            nn.Conv2d(first, second, 3, 2, 1),
            nn.GroupNorm(8, second),
            nn.GELU(),
            nn.Conv2d(second, width, 4, 4),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        return self.parts(pictures).flatten(2).transpose(1, 2)


class Tissue(nn.Module):
    """How far a tumour has gone, by a picture of tissue under the microscope."""

    def __init__(self, side: int, width: int, layers: int, grades: int) -> None:
        super().__init__()
        self.stem = Stem(size(64, 8), size(128, 8), width)
        self.place = nn.Parameter(0.02 * torch.randn((side // 16) ** 2, width))
        self.layers, self.norm = layers_of(width, layers), nn.LayerNorm(width)
        self.out = nn.Linear(width, grades)

    def forward(self, pictures: Tensor) -> Tensor:
        h = self.layers(self.stem(pictures) + self.place)
        return self.out(self.norm(h).mean(1))


@two(
    "cpu_offload",
    "medicine",
    "the stem is not wrapped by offload_wrapper: its activations fit on the GPU",
)
def job_tissue_stem_activations_parked(repaired: bool) -> Running:
    """Pictures were once of four times the pixels, and the stem's activations did not fit."""
    side, width, grades, rows = size(512, 32), size(1280, 32), size(6, 3), size(8, 2)
    with DEVICE:
        model = Tissue(side, width, size(8, 1), grades)
    if not repaired:
        apply_activation_checkpointing(
            model,
            checkpoint_wrapper_fn=offload_wrapper,
            check_fn=lambda part: isinstance(part, Stem),
        )
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    pictures = torch.randn(rows, 3, side, side, device=DEVICE)
    grade = torch.randint(0, grades, (rows,), device=DEVICE)

    def step() -> None:
        with half():
            said = net(pictures)
        fn.cross_entropy(said.float(), grade).backward()
        done(optimizer)

    return Running(step)


# --- two ranks: few texts ---------------------------------------------------------------------


@two(
    "larger_batch",
    "language",
    "two texts on each rank instead of one, which was all that smaller GPUs had room for",
    samples=2.0,
)
def job_manuals_one_text_on_each_rank(repaired: bool) -> Running:
    """A language model goes on learning from manuals; its layers are sharded one by one."""
    vocab, width, wide, layers = size(8192, 40), size(4096, 32), size(11_008, 48), size(3, 2)
    rows, length = 2 if repaired else 1, size(1024, 8)
    with DEVICE:
        model = Proofs(vocab, width, wide, layers)
    policy = MixedPrecisionPolicy() if SMALL else MixedPrecisionPolicy(param_dtype=SHORT)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, fused=not SMALL
    )
    text = torch.randint(0, vocab, (rows, length + 1), device=DEVICE)

    def step() -> None:
        next_word(model(text[:, :-1]), text).backward()
        done(optimizer)

    return Running(step)


# --- two ranks: a mesh in two parts -----------------------------------------------------------


class Part:
    """A rank's part of a mesh: its cells, one row behind the other, and which are side by side.

    Args:
        cells: of this rank.
        border: how many cells at the border the other rank has to know, and how many of its.
    """

    def __init__(self, cells: int, border: int) -> None:
        row, plane = size(32, 2), size(1024, 4)
        own = torch.arange(border, border + cells)
        steps = torch.tensor([1, -1, row, -row, plane, -plane])
        ends = (own[:, None] + steps) % (border + cells)  # the other rank's come first
        self.cells, self.border = cells, border
        self.begin = ends.flatten().to(DEVICE)
        self.end = torch.arange(cells).repeat_interleave(len(steps)).to(DEVICE)
        self.sizes = [border if rank != RANK else 0 for rank in range(WORLD)]

    def known(self, h: Tensor) -> Tensor:
        """What is known of all cells that edges begin at."""
        return torch.cat([Exchange.apply(h[: self.border], self.sizes, self.sizes), h])


def two_products(inside: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inside, width), nn.SiLU(), nn.Linear(width, width), nn.LayerNorm(width)
    )


class Flows(nn.Module):
    """A round of messages along edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.along, self.into = two_products(3 * width, width), two_products(2 * width, width)

    def forward(self, h: Tensor, edges: Tensor, part: Part) -> tuple[Tensor, Tensor]:
        begins = part.known(h).index_select(0, part.begin)
        ends = h.index_select(0, part.end)
        edges = edges + self.along(torch.cat([edges, begins, ends], 1)).to(edges.dtype)
        came = torch.zeros_like(h).index_add_(0, part.end, edges)
        return h + self.into(torch.cat([h, came], 1)).to(h.dtype), edges


class Wind(nn.Module):
    """Pressure and velocity around a lorry, cell by cell; as in MeshGraphNets."""

    def __init__(self, inside: int, width: int, rounds: int, says: int) -> None:
        super().__init__()
        self.cell, self.edge = nn.Linear(inside, width), nn.Linear(4, width)
        self.rounds = nn.ModuleList(Flows(width) for _ in range(rounds))
        self.out = nn.Linear(width, says)

    def forward(self, cells: Tensor, edges: Tensor, part: Part) -> Tensor:
        h, edges = self.cell(cells), self.edge(edges)
        for each in self.rounds:
            h, edges = each(h, edges, part)
        return self.out(h)


@two(
    "load_imbalance",
    "science",
    "the mesh is cut where each part has as many cells, not in the middle of the tunnel",
)
def job_lorry_mesh_cut_in_the_middle(repaired: bool) -> Running:
    """Most cells are small ones, around the lorry, and that is in the front half."""
    inside, width, says, border = size(12, 3), size(384, 16), 4, size(1024, 4)
    cells = [size(28_672, 16)] * 2 if repaired else [size(44_032, 24), size(13_312, 8)]
    total = sum(cells)
    part = Part(cells[RANK], border)
    with DEVICE:
        model = Wind(inside, width, size(4, 2), says)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    given = torch.randn(part.cells, inside, device=DEVICE)
    between = torch.randn(len(part.end), 4, device=DEVICE)
    true = torch.randn(part.cells, says, device=DEVICE)

    def step() -> None:
        with half():
            said = net(given, between, part)
        loss = (said.float() - true).square().sum() / (total * says)
        (loss * WORLD).backward()  # a mean of all cells, which DistributedDataParallel halves
        done(optimizer)

    return Running(step)


# --- two ranks: one sends the policy ----------------------------------------------------------


class Gait(nn.Module):
    """Which torques a humanoid applies, and how well it will go on, from its last moments."""

    def __init__(self, feels: int, moments: int, width: int, layers: int, joints: int) -> None:
        super().__init__()
        self.into = nn.Linear(feels, width)
        self.place = nn.Parameter(0.02 * torch.randn(moments, width))
        heads = heads_of(width)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(Attends(width, heads, causal=True), Feeds(width))
                for _ in range(layers)
            )
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, joints + 1)

    def forward(self, felt: Tensor) -> Tensor:
        return self.out(self.norm(self.layers(self.into(felt) + self.place)))


@two(
    "straggler",
    "rl",
    "rank 0 publishes the policy every 1000 steps: actors go on with one for minutes anyway",
)
def job_rank0_publishes_policy(repaired: bool) -> Running:
    """Rank 0 packs the weights for the actors, with a checksum, after each update (PPO)."""
    feels, moments, width, joints = size(96, 6), size(64, 4), size(768, 16), size(28, 3)
    rows = size(1280, 2)
    with DEVICE:
        model = Gait(feels, moments, width, size(2, 1), joints)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    felt = torch.randn(rows, moments, feels, device=DEVICE)
    did = torch.randn(rows, moments, joints, device=DEVICE)
    before, gained, returned = (torch.randn(rows, moments, device=DEVICE) for _ in range(3))
    every, made = 1000 if repaired else 1, 0
    published: deque[tuple[int, bytes]] = deque(maxlen=2)

    @torch.no_grad()
    def publish() -> None:
        weights = torch.cat([p.flatten() for p in model.parameters()]).half().cpu()
        packed = weights.numpy().tobytes()
        published.append((zlib.crc32(packed), packed))

    def step() -> None:
        nonlocal made
        with half():
            said = net(felt).float()
        mean, worth = said[..., :joints], said[..., joints]
        likely = -0.5 * (did - mean).square().mean(-1)
        ratio = (likely - 0.1 * before).exp()
        acted = torch.minimum(ratio * gained, ratio.clamp(0.8, 1.2) * gained).mean()
        (fn.mse_loss(worth, returned) - acted).backward()
        done(optimizer)
        made += 1
        if RANK == 0 and made % every == 0:
            publish()

    return Running(step)


# --- two ranks: autocast for another device ---------------------------------------------------


class Mends(nn.Module):
    """Noisy spectra become clear ones; deep layers see what shallow ones said, as in U-ViT."""

    def __init__(self, bands: int, frames: int, width: int, deep: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(bands, width), nn.Linear(width, bands)
        self.place = nn.Parameter(0.02 * torch.randn(frames, width))
        self.level = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.down = nn.ModuleList(layers_of(width, 1) for _ in range(deep))
        self.middle = layers_of(width, 1)
        self.joins = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(deep))
        self.up = nn.ModuleList(layers_of(width, 1) for _ in range(deep))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        h = self.into(x) + self.place + self.level(level)[:, None]
        said = []
        for layer in self.down:
            h = layer(h)
            said.append(h)
        h = self.middle(h)
        for join, layer in zip(self.joins, self.up, strict=True):
            h = layer(join(torch.cat([h, said.pop()], -1)))
        return self.out(self.norm(h))


@two(
    "lower_precision",
    "audio",
    "autocast is for the GPU: it was for the CPU, on which the script had been tried",
)
def job_speech_mended_with_cpu_autocast(repaired: bool) -> Running:
    bands, frames, width, rows = size(128, 8), size(512, 6), size(1280, 32), size(16, 2)
    with DEVICE:
        model = Mends(bands, frames, width, size(3, 1))
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    clear = torch.randn(rows, frames, bands, device=DEVICE)
    kind = DEVICE.type if repaired else "cpu"

    def step() -> None:
        level = torch.rand(rows, 1, device=DEVICE)
        wild = torch.randn_like(clear)
        with torch.autocast(kind, dtype=torch.bfloat16):
            way = net(wild.lerp(clear, level[:, None]), level)
        fn.mse_loss(way.float(), clear - wild).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: a pipeline that is emptied ---------------------------------------------------


class Tunes(nn.Module):
    """A stage of a model of which code of music comes next."""

    def __init__(self, codes: int, places: int, width: int, wide: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(codes, width) if RANK == 0 else None
        self.layer = GatedLayer(width, wide)
        self.place = nn.Parameter(0.02 * torch.randn(places, width)) if RANK == 0 else None
        self.out = nn.Linear(width, codes, bias=False) if RANK == LAST else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None:
            x = self.embed(x) + self.place
        x = self.layer(x)
        return x if self.out is None else self.out(x)


@four(
    "pipeline_bubble",
    "music",
    "the schedule gets all 12 micro-batches at once, not three times 4 by a loop around it",
)
def job_tunes_accumulated_around_schedule(repaired: bool) -> Running:
    """The loop accumulates gradients as it did before the model was cut into stages."""
    codes, places, width, wide = size(2048, 20), size(1024, 6), size(4096, 32), size(11_008, 48)
    micro, times, rows = 4, 3, size(1, 2)
    with DEVICE:
        part = Tunes(codes, places, width, wide).to(SHORT)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    dist.barrier()  # all ranks are known to each other before two of them talk
    stage = PipelineStage(part, RANK, WORLD, DEVICE)

    def unlike(out: Tensor, goal: Tensor) -> Tensor:
        unlikely = fn.cross_entropy(out.flatten(0, 1).float(), goal.flatten())
        return unlikely / (micro * times)

    at_once = micro * times if repaired else micro
    schedule = Schedule1F1B(stage, at_once, loss_fn=unlike, scale_grads=False)
    torch.manual_seed(0)  # all ranks have the same music
    music = torch.randint(0, codes, (micro * times * rows, places + 1), device=DEVICE)
    heard, goals = (x.contiguous().split(at_once * rows) for x in (music[:, :-1], music[:, 1:]))

    def step() -> None:
        for seen, goal in zip(heard, goals, strict=True):
            if RANK == 0:
                schedule.step(seen)
            elif RANK == LAST:
                schedule.step(target=goal)
            else:
                schedule.step()
        done(optimizer)

    return Running(step)


# --- four ranks: an optimizer in shards -------------------------------------------------------


class Shards:
    """AdamW of which each rank has a shard, in single precision; as in ZeRO's second stage.

    Args:
        scatters: a rank gets the sum of its own shard's gradients alone.
    """

    def __init__(self, model: nn.Module, lr: float, *, scatters: bool) -> None:
        parameters = list(model.parameters())
        total = sum(p.numel() for p in parameters)
        total += -total % WORLD
        first = parameters[0]
        self.weights, self.grads = (first.new_zeros(total) for _ in range(2))
        at = 0
        for p in parameters:
            end = at + p.numel()
            self.weights[at:end].copy_(p.detach().flatten())
            p.data = self.weights[at:end].view_as(p)
            p.grad = self.grads[at:end].view_as(p)
            at = end
        self.own = self.weights.chunk(WORLD)[RANK]
        self.exact = nn.Parameter(self.own.float())
        self.optimizer = torch.optim.AdamW([self.exact], lr=lr, betas=(0.9, 0.95), fused=True)
        self.scatters = scatters

    def summed(self) -> Tensor:
        """This rank's shard of the gradients, summed over all ranks."""
        if not self.scatters:
            dist.all_reduce(self.grads)
            return self.grads.chunk(WORLD)[RANK]
        mine = torch.empty_like(self.own)
        dist.reduce_scatter_tensor(mine, self.grads)
        return mine

    @torch.no_grad()
    def step(self) -> None:
        self.exact.grad = self.summed().float() / WORLD
        self.optimizer.step()
        self.exact.grad = None
        self.own.copy_(self.exact)
        dist.all_gather_into_tensor(self.weights, self.own.clone())
        self.grads.zero_()


@four(
    "exposed_communication",
    "language",
    "gradients are reduce-scattered: no rank gets the sums of shards that others update",
)
def job_shard_cut_from_all_sums(repaired: bool) -> Running:
    """A model of contracts; moments are in shards, gradients are still summed for everybody."""
    vocab, width, wide, layers = size(8192, 40), size(4096, 32), size(11_008, 48), size(3, 2)
    rows, length = 1, size(768, 8)
    with DEVICE:
        model = Proofs(vocab, width, wide, layers).to(SHORT)
    optimizer = Shards(model, 1e-5, scatters=repaired)
    torch.manual_seed(1 + RANK)
    text = torch.randint(0, vocab, (rows, length + 1), device=DEVICE)

    def step() -> None:
        next_word(model(text[:, :-1]), text).backward()
        optimizer.step()

    return Running(step)


# --- four ranks: two halves of a layer side by side -------------------------------------------


class HeadsOfRank(nn.Module):
    """Attention of the heads that a rank has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        each = width // WORLD
        self.heads = heads_of(each)
        self.qkv = nn.Linear(width, 3 * each, bias=False)
        self.out = nn.Linear(each, width, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.qkv(h).chunk(3, -1)
        return self.out(attended(q, k, v, self.heads, causal=True))


class FeedsOfRank(nn.Module):
    """What of a wide layer a rank has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width // WORLD, bias=False)
        self.down = nn.Linear(4 * width // WORLD, width, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        return self.down(fn.gelu(self.up(h)))


class SideBySide(nn.Module):
    """Attention and a wide layer read the same and are added to it; as in GPT-J.

    Args:
        once: both go into the slices and are summed over the ranks together, not each for itself.
    """

    def __init__(self, width: int, *, once: bool) -> None:
        super().__init__()
        self.norm, self.once = nn.LayerNorm(width), once
        self.look, self.feed = HeadsOfRank(width), FeedsOfRank(width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        if self.once:
            h = ToAll.apply(h)
            return x + OfAll.apply(self.look(h) + self.feed(h))
        return x + OfAll.apply(self.look(ToAll.apply(h))) + OfAll.apply(self.feed(ToAll.apply(h)))


@four(
    "exposed_communication",
    "biology",
    "attention and feed-forward of a layer are added before the ranks sum them, not afterwards",
)
def job_enzymes_halves_summed_apart(repaired: bool) -> Running:
    """Enzymes, one amino acid after the other (ProGen2); both halves are parallel modules."""
    acids, width, layers = size(32, 8), size(1536, 16), size(8, 2)
    rows, length = size(24, 2), size(1024, 6)
    with DEVICE:
        torch.manual_seed(0)  # what all ranks have is equal
        embed, out = nn.Embedding(acids, width), nn.Linear(width, acids)
        torch.manual_seed(1 + RANK)
        parts = [SideBySide(width, once=repaired) for _ in range(layers)]
        torch.manual_seed(0)
    model = nn.Sequential(embed, *parts, nn.LayerNorm(width), out).to(DEVICE, SHORT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    enzymes = torch.randint(0, acids, (rows, length + 1), device=DEVICE)

    def step() -> None:
        next_word(model(enzymes[:, :-1]), enzymes).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: words in four parts ----------------------------------------------------------


class Advice(nn.Module):
    """Texts of public offices, up to what the next word is told from; in slices.

    Args:
        words: whose scores this rank has.
    """

    def __init__(self, vocab: int, words: int, width: int, wide: int, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)  # what all ranks have is equal
        self.embed, self.norm = nn.Embedding(vocab, width), nn.RMSNorm(width)
        torch.manual_seed(1 + RANK)
        self.layers = nn.Sequential(*(SlicedLayer(width, wide, once=True) for _ in range(layers)))
        self.out = nn.Linear(width, words, bias=False)
        torch.manual_seed(0)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(ToAll.apply(self.norm(self.layers(self.embed(text)))))


@four(
    "aligned_shapes",
    "language",
    "50,257 words are filled up to a multiple of 128 for each rank, not to one of the ranks alone",
)
def job_words_filled_up_to_ranks(repaired: bool) -> Running:
    """12,565 words for each rank, or 12,672."""
    known, width, wide, layers = size(50_257, 41), size(2048, 16), size(5632, 24), size(3, 2)
    rows, length = size(12, 2), size(1024, 6)
    grid = WORLD * size(128, 8) if repaired else WORLD
    vocab = known + -known % grid
    words = vocab // WORLD
    with DEVICE:
        model = Advice(vocab, words, width, wide, layers).to(SHORT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    text = torch.randint(0, known, (rows, length + 1), device=DEVICE)

    def step() -> None:
        said = model(text[:, :-1]).flatten(0, 1)
        SlicedLoss.apply(said, text[:, 1:].flatten(), RANK * words).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: an activation by its formula -------------------------------------------------


class Smooth(nn.Module):
    """The activation of YOLOv4, whose authors' framework had none."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tanh(fn.softplus(x))


def convolved(before: int, after: int, side: int, pace: int, *, formula: bool) -> nn.Sequential:
    """A convolution, its norm and its activation."""
    return nn.Sequential(
        nn.Conv2d(before, after, side, pace, side // 2, bias=False),
        nn.BatchNorm2d(after),
        Smooth() if formula else nn.Mish(),
    )


class Stage(nn.Module):
    """Half of the channels go by, the other half through pairs of convolutions; as in CSPNet."""

    def __init__(self, before: int, after: int, pairs: int, *, formula: bool) -> None:
        super().__init__()
        each = after // 2
        made = partial(convolved, formula=formula)
        self.down = made(before, after, 3, 2)
        self.by, self.through = made(after, each, 1, 1), made(after, each, 1, 1)
        self.pairs = nn.ModuleList(
            nn.Sequential(made(each, each, 1, 1), made(each, each, 3, 1)) for _ in range(pairs)
        )
        self.join = made(after, after, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        h = self.through(x)
        for pair in self.pairs:
            h = h + pair(h)
        return self.join(torch.cat([h, self.by(x)], 1))


class Weeds(nn.Module):
    """Where on a field which weed grows: a box and its kind for each place of a coarse grid."""

    def __init__(self, width: int, pairs: list[int], says: int, *, formula: bool) -> None:
        super().__init__()
        parts: list[nn.Module] = [convolved(3, width, 3, 2, formula=formula)]
        for number, many in enumerate(pairs):
            parts.append(Stage(width << number, width << (number + 1), many, formula=formula))
        self.parts = nn.Sequential(*parts, nn.Conv2d(width << len(pairs), says, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        return self.parts(pictures)


@four(
    "fusion_opportunity",
    "vision",
    "torch.nn.Mish instead of x * tanh(softplus(x)), which autocast computes in FP32",
)
def job_weeds_mish_by_formula(repaired: bool) -> Running:
    side, width, kinds, rows = size(320, 32), size(64, 8), size(20, 3), size(56, 2)
    pairs, says = [size(2, 1), size(4, 1), size(2, 1)], 5 + kinds
    with DEVICE:
        model = Weeds(width, pairs, says, formula=not repaired)
    model = model.to(memory_format=torch.channels_last)
    net = ddp(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, fused=True)
    pictures = torch.randn(rows, 3, side, side, device=DEVICE)
    pictures = pictures.contiguous(memory_format=torch.channels_last)
    cells = side // 16
    boxes = torch.rand(rows, 4, cells, cells, device=DEVICE)
    there = (torch.rand(rows, 1, cells, cells, device=DEVICE) < 0.05).float()
    kind = torch.randint(0, kinds, (rows, cells, cells), device=DEVICE)

    def step() -> None:
        with half():
            said = net(pictures)
        box, sure, which = said.float().split([4, 1, kinds], 1)
        unlike = ((box.sigmoid() - boxes).square() * there).mean()
        unsure = fn.binary_cross_entropy_with_logits(sure, there)
        (unlike + unsure + fn.cross_entropy(which, kind)).backward()
        done(optimizer)

    return Running(step)
