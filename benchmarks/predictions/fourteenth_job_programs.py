"""Training jobs of the fourteenth set, on four GPUs: steps of few and large kernels."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from eleventh_job_models import SHORT, layers_of
from job_programs import DEVICE, LAST, RANK, WORLD, ddp
from models import done, size
from program import Program, Running
from single_programs import entered
from torch import Tensor, nn
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
    model = Reads(old + added, length, width, size(3, 1)).to(DEVICE, SHORT)
    net = ddp(model, gradient_as_bucket_view=True)
    mine = nn.Parameter(torch.randn(columns[RANK], width, device=DEVICE).mul(0.02).to(SHORT))
    weights = [*net.parameters(), mine]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, betas=(0.9, 0.95), fused=True)
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
