"""Training jobs of the fourteenth set, on four GPUs: steps of few and large kernels."""

from __future__ import annotations

import copy
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from eleventh_job_models import SHORT, heads_of, layers_of
from job_programs import DEVICE, LAST, RANK, WORLD, Exchange, ddp, half
from models import Attends, done, size
from program import SMALL, Program, Running
from single_programs import entered, scratch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 242 pairs"
four = partial(entered(PROGRAMS), marks="steps", ranks=4)  # type: ignore[call-arg]


# --- a part of the model for each rank --------------------------------------------------------


class Everyones(torch.autograd.Function):
    """Rows of all ranks; backward, the sum of what they say of one's own rows."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor) -> Tensor:
        every = mine.new_empty(WORLD * mine.shape[0], mine.shape[1])
        dist.all_gather_into_tensor(every, mine.contiguous())
        return every

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        mine = grads[0].new_empty(grads[0].shape[0] // WORLD, grads[0].shape[1])
        dist.reduce_scatter_tensor(mine, grads[0].contiguous())
        return mine


class SlicedLoss(torch.autograd.Function):
    """Cross entropy of scores of which each rank has some columns, for the rows of all ranks.

    Two numbers a row travel, never the scores; as in Megatron-LM.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, asked: Tensor, first: int) -> Tensor:
        x = scores.to(torch.float32, copy=True)
        top = x.amax(1)
        dist.all_reduce(top, dist.ReduceOp.MAX)
        x.sub_(top[:, None])
        column = asked - first
        inside = (column >= 0) & (column < x.shape[1])
        column = column.where(inside, 0)[:, None]
        hit = x.gather(1, column)[:, 0] * inside
        both = torch.stack([hit, x.exp_().sum(1)])
        dist.all_reduce(both)
        hit, total = both
        ctx.save_for_backward(x.div_(total[:, None]).to(scores.dtype), column, inside)
        return (total.log() - hit).mean()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        share, column, inside = ctx.saved_tensors
        scale = (grads[0] / len(inside)).to(share.dtype)
        grad = share * scale
        grad.scatter_add_(1, column, -(inside.to(share.dtype) * scale)[:, None])
        return grad, None, None


# --- ranks are given unequal work -------------------------------------------------------------


class Reads(nn.Module):
    """Texts, up to what the next word is told from; what words mean was learned before."""

    def __init__(self, vocab: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(vocab, width), layers_of(width, layers)
        self.embed.requires_grad_(False)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, text: Tensor) -> Tensor:
        return self.norm(self.layers(self.embed(text) + self.place))


@four(
    "load_imbalance",
    "language",
    "the words that were added are dealt to the ranks evenly, not appended to the last one's",
)
def job_added_words_on_last_rank(repaired: bool) -> Running:
    """The output has its columns on four ranks; words of three languages were added later."""
    old, added, width = size(65_536, 48), size(24_576, 24), size(2048, 32)
    rows, length = size(6, 2), size(512, 6)
    columns = [old // WORLD + (0 if rank < LAST else added) for rank in range(WORLD)]
    if repaired:
        columns = [(old + added) // WORLD] * WORLD
    first = sum(columns[:RANK])
    with DEVICE:
        model = Reads(old + added, length, width, size(3, 1)).to(SHORT)
    net = ddp(model, gradient_as_bucket_view=True)
    mine = nn.Parameter(torch.randn(columns[RANK], width, device=DEVICE).mul(0.02).to(SHORT))
    weights = [*net.parameters(), mine]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, betas=(0.9, 0.95), fused=True)
    torch.manual_seed(3)  # the same on all ranks, which have drawn unequal numbers of weights
    text = torch.randint(0, old + added, (rows, length), device=DEVICE)
    after = torch.randint(0, old + added, (WORLD * rows * length,), device=DEVICE)  # all ranks'

    def step() -> None:
        h = Everyones.apply(net(text).flatten(0, 1))
        # the loss is the mean of all ranks' rows, and DistributedDataParallel divides once more
        h.register_hook(lambda grad: grad * WORLD)
        SlicedLoss.apply(h @ mine.t(), after, first).backward()
        done(optimizer)

    return Running(step)


# --- the host waits ---------------------------------------------------------------------------


class Settles(nn.Module):
    """A layer whose output is its input, too: it is repeated until it changes nothing any more.

    Args:
        reads: whether it is asked after each round if it was the last one.
    """

    def __init__(self, inside: int, width: int, rounds: int, *, reads: bool) -> None:
        super().__init__()
        self.into = nn.Linear(inside, 2 * width)
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, inside)
        self.rounds, self.reads = rounds, reads
        self.changes: list[Tensor | float] = []

    def again(self, z: Tensor, given: Tensor) -> Tensor:
        return self.norm(z + self.down(fn.silu(self.up(z) + given)))

    def norm_of(self, x: Tensor) -> Tensor | float:
        found = torch.linalg.vector_norm(x)
        return found.item() if self.reads else found

    def forward(self, x: Tensor) -> Tensor:
        given = self.into(x)
        with torch.no_grad():
            z = self.norm(given.new_zeros(x.shape[0], self.norm.weight.shape[0]))
            changes = []
            for _ in range(self.rounds):
                new = self.again(z, given)
                by, of = self.norm_of(new - z), self.norm_of(new)
                z = new
                if self.reads and by / of < 1e-6:
                    break
                changes.append(by / of)
            self.changes = changes
        return self.out(self.again(z, given))  # the gradient of the last round


@four(
    "host_sync",
    "science",
    "how much a round has changed stays on the device: the rounds are always as many as allowed",
)
def job_equilibrium_reads_changes(repaired: bool) -> Running:
    """Stresses in pieces of steel, as the fixed point of a layer; it never meets its tolerance."""
    inside, width, rows, rounds = size(256, 6), size(2048, 16), size(6144, 8), size(20, 4)
    model = Settles(inside, width, rounds, reads=not repaired).to(DEVICE)
    net = ddp(model)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    loads = torch.randn(rows, inside, device=DEVICE)
    stress = torch.randn(rows, inside, device=DEVICE)

    def step() -> None:
        fn.smooth_l1_loss(net(loads), stress).backward()
        done(optimizer)

    return Running(step)


# --- communication ----------------------------------------------------------------------------


class OwnSums(torch.autograd.Function):
    """Of rows for all ranks, the sum of what each rank has for one's own; backward, all rows."""

    @staticmethod
    def forward(ctx: Any, every: Tensor) -> Tensor:
        mine = every.new_empty(every.shape[0] // WORLD, every.shape[1])
        dist.reduce_scatter_tensor(mine, every.contiguous())
        return mine

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        every = grads[0].new_empty(WORLD * grads[0].shape[0], grads[0].shape[1])
        dist.all_gather_into_tensor(every, grads[0].contiguous())
        return every


class Music(nn.Module):
    """What sounds next; the expert of a note is told by a hash, and each rank has one a layer.

    Args:
        chosen: for each rank, the expert of each of its notes; all experts get as many.
        own: for each layer this rank's expert; not among the model's parameters, so that
            DistributedDataParallel leaves it alone.
        gathers: every rank gets the notes of all ranks, and picks those of its expert.
    """

    def __init__(
        self, codes: int, chosen: Tensor, width: int, own: list[nn.Module], *, gathers: bool
    ) -> None:
        super().__init__()
        self.embed, self.own, self.gathers = nn.Embedding(codes, width), own, gathers
        self.looks = nn.ModuleList(Attends(width, heads_of(width), causal=True) for _ in own)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, codes)
        order = chosen[RANK].argsort(stable=True)
        self.order, self.back = order.to(DEVICE), order.argsort().to(DEVICE)
        self.mine = (chosen.flatten() == RANK).nonzero()[:, 0].to(DEVICE)
        self.equal = [chosen.shape[1] // WORLD] * WORLD

    def told(self, y: Tensor, expert: nn.Module) -> Tensor:
        """What the experts of all ranks say of this rank's notes."""
        if self.gathers:
            every = Everyones.apply(y)
            said = expert(every.index_select(0, self.mine))
            return OwnSums.apply(torch.zeros_like(every).index_copy(0, self.mine, said))
        there = Exchange.apply(y.index_select(0, self.order), self.equal, self.equal)
        return Exchange.apply(expert(there), self.equal, self.equal).index_select(0, self.back)

    def forward(self, notes: Tensor) -> Tensor:
        h = self.embed(notes)
        for look, expert in zip(self.looks, self.own, strict=True):
            h = look(h)
            h = h + self.told(h.flatten(0, 1), expert).view(h.shape)
        return self.out(self.norm(h))


@four(
    "exposed_communication",
    "moe",
    "a note is sent to the rank of its expert alone (all_to_all_single), not to all ranks",
)
def job_notes_sent_to_all_experts(repaired: bool) -> Running:
    codes, width, wide = size(2048, 30), size(2048, 32), size(8192, 48)
    rows, length, layers = size(16, 2), size(512, 8), size(4, 2)
    draw = torch.Generator().manual_seed(11)
    notes_of = rows * length
    chosen = torch.stack([torch.randperm(notes_of, generator=draw) % WORLD for _ in range(WORLD)])
    with DEVICE:
        torch.manual_seed(1 + RANK)  # experts differ, the rest does not
        own: list[nn.Module] = [
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width)
            ).to(SHORT)
            for _ in range(layers)
        ]
        torch.manual_seed(0)
    model = Music(codes, chosen, width, own, gathers=not repaired).to(DEVICE, SHORT)
    net = ddp(model, gradient_as_bucket_view=True)
    experts = [p for expert in own for p in expert.parameters()]
    optimizer = torch.optim.AdamW([*net.parameters(), *experts], lr=1e-4, fused=True)
    notes = torch.randint(0, codes, (rows, length + 1), device=DEVICE)

    def step() -> None:
        out = net(notes[:, :-1])
        fn.cross_entropy(out.flatten(0, 1).float(), notes[:, 1:].flatten()).backward()
        done(optimizer)

    return Running(step)


class Breath(nn.Module):
    """What is missing of the sound of lungs, from what is around it."""

    def __init__(self, samples: int, places: int, width: int, layers: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(samples, width), nn.Linear(width, samples)
        self.place = nn.Parameter(0.02 * torch.randn(places, width))
        self.layers, self.norm = layers_of(width, layers), nn.LayerNorm(width)

    def forward(self, sound: Tensor) -> Tensor:
        return self.out(self.norm(self.layers(self.into(sound) + self.place)))


@four(
    "exposed_communication",
    "audio",
    "the weights' mean over time is not summed over ranks: it is made of weights that are equal",
)
def job_mean_weights_kept_equal(repaired: bool) -> Running:
    """A mean of the weights over time is what is used later; all ranks shall have the same one."""
    samples, places, width, rows = size(320, 10), size(512, 8), size(2560, 32), size(12, 2)
    with DEVICE:
        model = Breath(samples, places, width, size(3, 1))
    mean = copy.deepcopy(model).requires_grad_(False)
    now, means = list(model.parameters()), list(mean.parameters())
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-4, weight_decay=0.02, fused=True)
    true = torch.randn(rows, places, samples, device=DEVICE)
    hidden = (torch.rand(rows, places, 1, device=DEVICE) < 0.3).float()
    given = true * (1.0 - hidden)

    @torch.no_grad()
    def averaged() -> None:
        torch._foreach_lerp_(means, now, 0.002)
        if not repaired:
            for one in means:
                dist.all_reduce(one)
            torch._foreach_div_(means, WORLD)

    def step() -> None:
        with half():
            out = net(given)
        ((out.float() - true).square() * hidden).mean().backward()
        done(optimizer)
        averaged()

    return Running(step)


# --- a pipeline of the ranks ------------------------------------------------------------------


class Part(nn.Module):
    """A quarter of a model of video: the first takes pieces of pictures, the last returns them."""

    def __init__(self, inside: int, places: int, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(inside, width) if RANK == 0 else None
        self.out = nn.Linear(width, inside) if RANK == LAST else None
        self.place = nn.Parameter(0.02 * torch.randn(places, width)) if RANK == 0 else None
        self.layers = layers_of(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.into is not None:
            x = self.into(x) + self.place
        x = self.layers(x)
        return x if self.out is None else self.out(x)


@four("pipeline_bubble", "vision", "the batch is cut into 8 micro-batches instead of 3")
def job_clips_in_three_pieces(repaired: bool) -> Running:
    """All micro-batches go forward, then all of them backward; as in GPipe."""
    inside, places, width, rows = size(1536, 12), size(512, 6), size(4096, 32), size(24, 24)
    micro = 8 if repaired else 3
    with DEVICE:
        part = Part(inside, places, width).to(SHORT)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    torch.manual_seed(3)  # the last rank knows what the first one has hidden
    true = torch.randn(rows, places, inside, device=DEVICE).to(SHORT)
    hidden = (torch.rand(rows, places, 1, device=DEVICE) < 0.75).to(SHORT)
    clips, masks = true.chunk(micro), hidden.chunk(micro)
    between = (rows // micro, places, width)
    dist.barrier()

    def room() -> Tensor:
        return torch.empty(between, device=DEVICE, dtype=SHORT)

    def forth(number: int) -> tuple[Tensor, Tensor]:
        """What came in, and what goes on: of the last part the loss."""
        if RANK == 0:
            x = clips[number] * (1 - masks[number])
        else:
            x = room()
            dist.recv(x, RANK - 1)
            x.requires_grad_()
        out = part(x)
        if RANK < LAST:
            dist.send(out.detach(), RANK + 1)
            return x, out
        missed = (out - clips[number]).float().square() * masks[number]
        return x, missed.mean() / micro

    def back(x: Tensor, out: Tensor) -> None:
        if RANK == LAST:
            out.backward()
        else:
            grad = room()
            dist.recv(grad, RANK + 1)
            out.backward(grad)
        if RANK > 0:
            assert x.grad is not None
            dist.send(x.grad, RANK - 1)

    def step() -> None:
        kept = [forth(number) for number in range(micro)]
        for x, out in kept:
            back(x, out)
        done(optimizer)

    return Running(step)


# --- one rank has more to do on its host ------------------------------------------------------


class Wishes(nn.Module):
    """Which of the articles shown somebody opens, from those that were read before."""

    def __init__(self, known: int, places: int, width: int, layers: int) -> None:
        super().__init__()
        self.read, self.shown = nn.Linear(known, width), nn.Linear(known, width)
        self.place = nn.Parameter(0.02 * torch.randn(places, width))
        self.layers = nn.ModuleList(layers_of(width, 1) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, read: Tensor, shown: Tensor) -> Tensor:
        h = self.read(read) + self.place
        for layer in self.layers:
            h = layer(h)
        wish = self.norm(h.mean(1))
        return (self.shown(shown) @ wish[..., None])[..., 0] * wish.shape[-1] ** -0.5


def grouped_auc(
    people: np.ndarray[Any, Any], odds: np.ndarray[Any, Any], opened: np.ndarray[Any, Any]
) -> float:
    """The area under the curve of each one's own articles, weighted by their number."""
    order = np.lexsort((odds, people))
    people, opened = people[order], opened[order]
    first = np.flatnonzero(np.concatenate([[True], people[1:] != people[:-1]]))
    shown = np.diff(np.append(first, len(people)))
    place = np.arange(len(people)) - np.repeat(first, shown) + 1
    yes = np.add.reduceat(opened, first)
    above = np.add.reduceat(place * opened, first) - yes * (yes + 1) / 2
    both = (yes > 0) & (yes < shown)
    area = above[both] / (yes * (shown - yes))[both]
    return float(np.average(area, weights=shown[both])) if both.any() else 0.5


@four(
    "straggler",
    "recommender",
    "rank 0 computes the grouped AUC of the last batches every 500 steps, not in each",
)
def job_rank0_ranks_articles(repaired: bool) -> Running:
    known, width, places = size(256, 6), size(2560, 32), size(128, 5)
    rows, articles, last = size(96, 3), size(32, 4), size(32, 2)
    with DEVICE:
        model = Wishes(known, places, width, size(3, 1))
    policy = MixedPrecisionPolicy(param_dtype=SHORT)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not SMALL)
    read = torch.randn(rows, places, known, device=DEVICE)
    shown = torch.randn(rows, articles, known, device=DEVICE)
    opened = (torch.rand(rows, articles, device=DEVICE) < 0.1).float()
    rng = np.random.default_rng(2)
    people = rng.integers(0, 400, (last, rows)).repeat(articles)
    answers = np.tile(opened.long().cpu().numpy().ravel(), last)
    window = torch.randn(last, rows, articles, device=DEVICE)  # as if it had run for a while
    every, made = 500 if repaired else 1, 0
    log: list[float] = []

    def step() -> None:
        nonlocal made
        odds = model(read, shown).float()
        fn.binary_cross_entropy_with_logits(odds, opened).backward()
        done(optimizer)
        window[made % last] = odds.detach()
        made += 1
        if RANK == 0 and made % every == 0:
            log.append(grouped_auc(people, window.cpu().numpy().ravel(), answers))

    return Running(step)


# --- now and then -----------------------------------------------------------------------------


class ToAll(torch.autograd.Function):
    """What all ranks have goes into their slices; backward, the sum of what these say of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grad = grads[0].contiguous()
        dist.all_reduce(grad)
        return grad


class OfAll(torch.autograd.Function):
    """The sum of what the slices give."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        every = part.clone()
        dist.all_reduce(every)
        return every

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class Sliced(nn.Module):
    """Two products of which each rank has a slice: of the columns first, then of the rows."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner // WORLD, bias=False)
        self.down = nn.Linear(inner // WORLD, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = fn.gelu(self.up(ToAll.apply(self.norm(x))))
        return x + OfAll.apply(self.down(h))


EVERY = 25


@four(
    "checkpoint_stall",
    "science",
    f"slices are collected and saved every {100 * EVERY} steps instead of every {EVERY}",
    others=("exposed_communication",),
    period=EVERY,
)
def job_slices_collected_by_rank0(repaired: bool) -> Running:
    """What genes a cell expresses after a drug; rank 0 saves the model as if it were on one GPU."""
    genes, width, inner, cells = size(1024, 16), size(2048, 16), size(16_384, 32), size(32_768, 8)
    blocks = size(3, 2)
    with DEVICE:
        model = nn.Sequential(
            nn.Linear(genes, width),
            *(Sliced(width, inner) for _ in range(blocks)),
            nn.LayerNorm(width),
            nn.Linear(width, genes),
        ).to(SHORT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    before = torch.randn(cells, genes, device=DEVICE).to(SHORT)
    after = torch.randn(cells, genes, device=DEVICE).to(SHORT)
    folder, every, made = Path(scratch()), 100 * EVERY if repaired else EVERY, 0

    @torch.no_grad()
    def save() -> None:
        whole: dict[str, Tensor] = {}
        for name, weight in model.state_dict().items():
            sliced = name.endswith(("up.weight", "down.weight"))
            if sliced:
                parts = [torch.empty_like(weight) for _ in range(WORLD)] if RANK == 0 else None
                dist.gather(weight, parts)
            if RANK == 0:
                columns = 0 if name.endswith("up.weight") else 1
                whole[name] = torch.cat(parts, columns) if sliced and parts else weight
        if RANK == 0:
            torch.save({name: weight.cpu() for name, weight in whole.items()}, folder / "new.pt")
            (folder / "new.pt").replace(folder / "last.pt")

    def step() -> None:
        nonlocal made
        fn.mse_loss(model(before).float(), after.float()).backward()
        done(optimizer)
        made += 1
        if made % every == 0:
            save()

    return Running(step, close=lambda: shutil.rmtree(folder, ignore_errors=True))
