"""Training jobs of the twentieth set, on two GPUs and on four: steps of few and large kernels."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from eleventh_job_models import SHORT, heads_of, layers_of
from job_programs import DEVICE, LAST, RANK, WORLD, Exchange, ddp, half
from models import Attends, Feeds, done, size
from nineteenth_job_programs import Dealt, attended
from program import Program, Running
from single_programs import entered
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
)
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 400 pairs, opened"
four = partial(entered(PROGRAMS), marks="steps", ranks=4)  # type: ignore[call-arg]
two = partial(entered(PROGRAMS), marks="steps", ranks=2)  # type: ignore[call-arg]


def next_word(said: Tensor, text: Tensor) -> Tensor:
    """How unlikely what comes next is said to be."""
    return fn.cross_entropy(said.flatten(0, 1).float(), text[:, 1:].flatten())


# --- two ranks: weights of eight bits ---------------------------------------------------------


class Eighths(nn.Module):
    """A product whose weights have eight bits and stay; two thin ones beside it learn (QLoRA)."""

    whole: Tensor
    scale: Tensor

    def __init__(self, inside: int, outside: int, rank: int) -> None:
        super().__init__()
        weight = torch.randint(-127, 128, (outside, inside), dtype=torch.int8)
        self.register_buffer("whole", weight)
        self.register_buffer("scale", torch.full((outside, 1), 0.01 * inside**-0.5))
        self.first = nn.Linear(inside, rank, bias=False)
        self.second = nn.Linear(rank, outside, bias=False)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.whole.to(x.dtype) * self.scale
        return fn.linear(x, weight) + self.second(self.first(x))


class EighthsLayer(nn.Module):
    """Attention and a gated product, both of eight bits."""

    def __init__(self, width: int, wide: int, rank: int) -> None:
        super().__init__()
        self.heads = max(width // 128, 1)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = Eighths(width, 3 * width, rank), Eighths(width, width, rank)
        self.both, self.down = Eighths(width, 2 * wide, rank), Eighths(wide, width, rank)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(attended(q, k, v, self.heads, causal=True))
        gate, up = self.both(self.norm2(x)).chunk(2, -1)
        return x + self.down(fn.silu(gate) * up)


class Queries(nn.Module):
    """Questions about a database, and how they are asked in SQL."""

    def __init__(self, vocab: int, width: int, wide: int, layers: int, rank: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width).requires_grad_(False)
        self.layers = nn.Sequential(*(EighthsLayer(width, wide, rank) for _ in range(layers)))
        self.norm = nn.RMSNorm(width)
        self.out = nn.Linear(width, vocab, bias=False).requires_grad_(False)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.norm(self.layers(self.embed(text))))


@two(
    "exposed_communication",
    "language",
    "broadcast_buffers=False: the weights of eight bits, which are buffers, never change",
)
def job_eight_bit_weights_sent_each_step(repaired: bool) -> Running:
    """Integers cannot be parameters that learn, so the layer keeps its weights as buffers."""
    vocab, width, wide, layers = size(16_384, 40), size(5120, 32), size(13_824, 48), size(4, 2)
    rows, length = size(2, 2), size(1024, 8)
    with DEVICE:
        model = Queries(vocab, width, wide, layers, size(16, 4)).to(SHORT)
    net = ddp(model, broadcast_buffers=not repaired)
    learns = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learns, lr=1e-4, fused=True)
    text = torch.randint(0, vocab, (rows, length + 1), device=DEVICE)

    def step() -> None:
        next_word(net(text[:, :-1]), text).backward()
        done(optimizer)

    return Running(step)


# --- two ranks: a function that was there before ----------------------------------------------


class Assays(nn.Module):
    """What a molecule does in each of many assays, from which groups of atoms it has."""

    def __init__(self, bits: int, width: int, layers: int, assays: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(bits, width), nn.Linear(width, assays)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))
            for _ in range(layers)
        )

    def forward(self, groups: Tensor) -> Tensor:
        h = self.into(groups)
        for layer in self.layers:
            h = h + layer(h)
        return self.out(h)


@two(
    "exposed_communication",
    "chemistry",
    "gradients are not averaged once more: DistributedDataParallel did that while it computed",
)
def job_gradients_averaged_once_more(repaired: bool) -> Running:
    """Horovod was replaced; the function that averaged gradients before the update stayed."""
    bits, width, assays, rows = size(4096, 24), size(8192, 32), size(1024, 12), size(4096, 8)
    with DEVICE:
        model = Assays(bits, width, size(3, 2), assays)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    groups = (torch.rand(rows, bits, device=DEVICE) < 0.05).float()
    does = (torch.rand(rows, assays, device=DEVICE) < 0.1).float()
    known = (torch.rand(rows, assays, device=DEVICE) < 0.3).float()

    def averaged() -> None:
        for p in net.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= WORLD

    def step() -> None:
        with half():
            said = net(groups)
        fn.binary_cross_entropy_with_logits(said.float(), does, weight=known).backward()
        if not repaired:
            averaged()
        done(optimizer)

    return Running(step)


# --- two ranks: packs of as many tokens -------------------------------------------------------


Pack = list[tuple[int, int]]
"""How many documents there are of each length, one after the other without padding."""


class Packed(nn.Module):
    """A layer in which each document looks at itself alone."""

    def __init__(self, width: int, each: int) -> None:
        super().__init__()
        self.heads, self.norm, self.feed = width // each, nn.LayerNorm(width), Feeds(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, pack: Pack) -> Tensor:
        parts = self.qkv(self.norm(x)).split([many * length for many, length in pack])
        said = []
        for part, (many, length) in zip(parts, pack, strict=True):
            q, k, v = part.view(many, length, -1).chunk(3, -1)
            said.append(attended(q, k, v, self.heads, causal=True).flatten(0, 1))
        return self.feed(x + self.out(torch.cat(said) if len(said) > 1 else said[0]))


class Library(nn.Module):
    """What comes next in a book or an article, letter by letter."""

    def __init__(self, letters: int, width: int, each: int, layers: int) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(letters, width), nn.LayerNorm(width)
        self.layers = nn.ModuleList(Packed(width, each) for _ in range(layers))
        self.out = nn.Linear(width, letters)

    def forward(self, text: Tensor, pack: Pack) -> Tensor:
        h = self.embed(text)
        for layer in self.layers:
            h = layer(h, pack)
        return self.out(self.norm(h))


@two(
    "load_imbalance",
    "language",
    "each rank's pack holds a book and articles: as many tokens, and as many pairs of them",
)
def job_books_in_one_pack(repaired: bool) -> Running:
    """Documents are packed by their tokens, the longest first; attention grows by the square."""
    letters, width, each, layers = size(4096, 20), size(1024, 16), size(128, 8), size(3, 1)
    long, short = size(16_384, 32), size(1024, 8)
    times = long // short
    packs: list[Pack] = [[(2, long)], [(2 * times, short)]]
    pack = [(1, long), (times, short)] if repaired else packs[RANK]
    with DEVICE:
        model = Library(letters, width, each, layers).to(SHORT)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    text = torch.randint(0, letters, (2 * long + 1,), device=DEVICE)

    def step() -> None:
        fn.cross_entropy(net(text[:-1], pack).float(), text[1:]).backward()
        done(optimizer)

    return Running(step)


# --- two ranks: computed again ----------------------------------------------------------------


class BothWays(nn.Module):
    """A feeder's hours look at each other, then all feeders of an hour do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hours, self.feeders = (Attends(width, heads_of(width)) for _ in range(2))
        self.feed = Feeds(width)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        x = self.hours(x.flatten(0, 1)).unflatten(0, (rows, -1)).transpose(1, 2)
        x = self.feeders(x.flatten(0, 1)).unflatten(0, (rows, -1)).transpose(1, 2)
        return self.feed(x)


class Grid(nn.Module):
    """How much power is drawn next at each feeder of a city; as in Crossformer."""

    def __init__(self, inside: int, feeders: int, pieces: int, width: int, layers: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(inside, width), nn.Linear(width, inside)
        self.feeder = nn.Parameter(0.02 * torch.randn(feeders, 1, width))
        self.time = nn.Parameter(0.02 * torch.randn(pieces, width))
        self.layers = nn.Sequential(*(BothWays(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, drawn: Tensor) -> Tensor:
        return self.out(self.norm(self.layers(self.into(drawn) + self.feeder + self.time)))


@two(
    "recomputation",
    "series",
    "apply_activation_checkpointing is not called: what the layers keep fits on each GPU",
)
def job_power_layers_computed_again(repaired: bool) -> Running:
    """The script was taken from a job that shards a model of ten times the size."""
    inside, feeders, pieces, width = size(24, 6), size(64, 4), size(64, 5), size(1536, 32)
    rows = size(3, 2)
    with DEVICE:
        model = Grid(inside, feeders, pieces, width, size(3, 2))
    if not repaired:
        apply_activation_checkpointing(model, check_fn=lambda part: isinstance(part, BothWays))
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-4, weight_decay=0.01, fused=True)
    drawn = torch.randn(rows, feeders, pieces, inside, device=DEVICE)
    later = torch.randn(rows, feeders, pieces, inside, device=DEVICE)

    def step() -> None:
        with half():
            said = net(drawn)
        fn.huber_loss(said.float(), later).backward()
        done(optimizer)

    return Running(step)


# --- two ranks: attention step by step --------------------------------------------------------


class Grouped(nn.Module):
    """A layer whose heads share keys and values in groups.

    Args:
        eager: attention is written out, as in transformers with attn_implementation="eager".
    """

    hidden: Tensor

    def __init__(self, width: int, wide: int, length: int, shared: int, *, eager: bool) -> None:
        super().__init__()
        self.heads, self.shared, self.eager = max(width // 128, 2), shared, eager
        self.each = width // self.heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * shared * self.each, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.both = nn.Linear(width, 2 * wide, bias=False)
        self.down = nn.Linear(wide, width, bias=False)
        hidden = torch.full((length, length), -1e9).triu(1)
        self.register_buffer("hidden", hidden.to(SHORT), persistent=False)

    def looked(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, self.shared, -1)).permute(2, 0, 3, 1, 4)
        times = self.heads // self.shared
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        if not self.eager:
            return fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = q @ k.transpose(2, 3) * self.each**-0.5
        weights = (scores + self.hidden).softmax(-1, dtype=torch.float32).to(q.dtype)
        return weights @ v

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self.looked(self.norm1(x)).transpose(1, 2).flatten(2))
        gate, up = self.both(self.norm2(x)).chunk(2, -1)
        return x + self.down(fn.silu(gate) * up)


class Reward(nn.Module):
    """How good an answer is."""

    def __init__(self, vocab: int, width: int, layers: list[Grouped]) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(vocab, width), nn.Sequential(*layers)
        self.norm, self.good = nn.RMSNorm(width), nn.Linear(width, 1, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        return self.good(self.norm(self.layers(self.embed(text))[:, -1]))[:, 0]


@two(
    "unfused_attention",
    "rl",
    "attn_implementation is 'sdpa', not 'eager': no reward asks for the attention's weights",
)
def job_answers_compared_eagerly(repaired: bool) -> Running:
    """A reward learns which of two answers people liked better."""
    vocab, width, wide, layers = size(16_384, 40), size(2048, 32), size(5632, 48), size(4, 2)
    pairs, length, shared = 2, size(1536, 8), size(4, 1)
    with DEVICE:
        parts = [Grouped(width, wide, length, shared, eager=not repaired) for _ in range(layers)]
        model = Reward(vocab, width, parts)
    net = ddp(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    answers = torch.randint(0, vocab, (2 * pairs, length), device=DEVICE)

    def step() -> None:
        with half():
            better, worse = net(answers).float().chunk(2)
        (-fn.logsigmoid(better - worse).mean()).backward()
        done(optimizer)

    return Running(step)


# --- two ranks: the update --------------------------------------------------------------------


class Player(nn.Module):
    """What a good player does, from what is to be gained, seen and was done before."""

    def __init__(self, seen: int, actions: int, turns: int, width: int, layers: int) -> None:
        super().__init__()
        self.gain, self.seen = nn.Linear(1, width), nn.Linear(seen, width)
        self.did, self.turn = nn.Embedding(actions, width), nn.Embedding(turns, width)
        heads = heads_of(width)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(Attends(width, heads, causal=True), Feeds(width))
                for _ in range(layers)
            )
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, actions)

    def forward(self, gain: Tensor, seen: Tensor, did: Tensor) -> Tensor:
        parts = torch.stack([self.gain(gain), self.seen(seen), self.did(did)], 2)
        h = self.layers((parts + self.turn.weight[:, None]).flatten(1, 2))
        return self.out(self.norm(h[:, 1::3]))


@two("fused_optimizer", "rl", "AdamW(fused=True) on both ranks instead of AdamW as it comes")
def job_players_updated_as_it_comes(repaired: bool) -> Running:
    """Games are learned offline, as rows of gains, states and actions; as Decision Transformers."""
    seen, actions, turns, width = size(512, 8), size(256, 6), size(256, 5), size(2304, 32)
    rows, layers = size(5, 2), size(4, 2)
    with DEVICE:
        model = Player(seen, actions, turns, width, layers)
    net = ddp(model, gradient_as_bucket_view=True)
    fused = True if repaired else None
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=1e-4, fused=fused)
    gain, what = (torch.randn(rows, turns, n, device=DEVICE) for n in (1, seen))
    did = torch.randint(0, actions, (rows, turns), device=DEVICE)

    def step() -> None:
        with half():
            said = net(gain, what, did)
        fn.cross_entropy(said.flatten(0, 1).float(), did.flatten()).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: what no group was made for ---------------------------------------------------


class Entries(nn.Module):
    """Which entry of an encyclopedia is meant by a name in a text."""

    def __init__(self, vocab: int, length: int, width: int, layers: int, entries: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(length, width)
        heads = heads_of(width)
        self.layers = nn.ModuleList(
            nn.Sequential(Attends(width, heads), Feeds(width)) for _ in range(layers)
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, entries, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        h = self.embed(text) + self.place.weight
        for layer in self.layers:
            h = layer(h)
        return self.out(self.norm(h[:, 0]))


@four(
    "exposed_communication",
    "language",
    "fully_shard(model.out, reshard_after_forward=False): not gathered before the first layer",
)
def job_entries_gathered_first(repaired: bool) -> Running:
    """Layers are sharded one by one; all else is of the model's own group, the entries, too."""
    vocab, length, width, layers = size(16_384, 40), size(16, 5), size(2048, 32), size(3, 2)
    entries, rows = size(300_000, 64), size(512, 4)
    with DEVICE:
        model = Entries(vocab, length, width, layers, entries).to(SHORT)
    for layer in model.layers:
        fully_shard(layer)
    if repaired:
        fully_shard(model.out, reshard_after_forward=False)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    text = torch.randint(0, vocab, (rows, length), device=DEVICE)
    meant = torch.randint(0, entries, (rows,), device=DEVICE)

    def step() -> None:
        fn.cross_entropy(model(text).float(), meant).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: many narrow experts ----------------------------------------------------------


EACH = 4
"""How many experts a token asks on each of the two ranks that it goes to."""


class Routes:
    """Where the tokens of all ranks go: each to two ranks, and to some experts there.

    All experts get as many tokens of each rank.

    Args:
        tokens: of a rank.
        own: experts of a rank.
        once: a token is sent to a rank once, not for each of its experts there.
    """

    def __init__(self, tokens: int, own: int, *, once: bool) -> None:
        ranks, experts = self.chosen(tokens, own, RANK)
        asked = (ranks[:, :, None] * own + experts[:, None]).flatten(1)
        goes = ranks if once else asked
        if once:
            every = (self.chosen(tokens, own, rank) for rank in range(WORLD))
            came = torch.cat([experts[(ranks == RANK).any(1)] for ranks, experts in every])
        else:
            came = torch.arange(own).repeat_interleave(asked.numel() // (WORLD * own))
            came = came.repeat(WORLD)
        self.asked, self.copies, self.own = asked.to(DEVICE), goes.shape[1], own
        self.out, self.home = order_of(goes)
        self.inside, self.outside = order_of(came)
        self.equal = [goes.numel() // WORLD] * WORLD

    @staticmethod
    def chosen(tokens: int, own: int, rank: int) -> tuple[Tensor, Tensor]:
        """For each token of a rank two ranks, and the experts that it asks on both."""
        draw = torch.Generator().manual_seed(7 + rank)
        number = torch.randperm(tokens, generator=draw)
        first = number % WORLD
        second = (first + 1 + number // WORLD % (WORLD - 1)) % WORLD
        one = number // (WORLD * (WORLD - 1)) % own
        return torch.stack([first, second], 1), (one[:, None] + torch.arange(EACH)) % own


def order_of(goes: Tensor) -> tuple[Tensor, Tensor]:
    """The order by where each goes, and the one that undoes it."""
    order = goes.flatten().argsort(stable=True)
    return order.to(DEVICE), order.argsort().to(DEVICE)


class Narrow(nn.Module):
    """Attention, and narrow experts of which each token asks several on two ranks.

    Args:
        own: both products of this rank's experts; not among the model's parameters, so that
            DistributedDataParallel leaves them alone.
    """

    def __init__(self, width: int, own: tuple[Tensor, Tensor], routes: Routes) -> None:
        super().__init__()
        self.look, self.norm = Attends(width, heads_of(width), causal=True), nn.LayerNorm(width)
        self.router = nn.Linear(width, WORLD * routes.own, bias=False)
        self.own, self.routes = own, routes

    def experts(self, came: Tensor, shares: Tensor) -> Tensor:
        """What the experts say of what came, as it came; rows of a token are added up."""
        (up, down), routes, each = self.own, self.routes, shares.shape[1]
        rows = came[:, None].expand(-1, each, -1).flatten(0, 1)
        rows = Dealt.apply(rows, routes.inside, routes.outside).unflatten(0, (routes.own, -1))
        said = torch.bmm(fn.silu(torch.bmm(rows, up)), down).flatten(0, 1)
        said = said * Dealt.apply(shares.flatten()[:, None], routes.inside, routes.outside)
        said = Dealt.apply(said, routes.outside, routes.inside)
        return said if each == 1 else said.unflatten(0, (-1, each)).sum(1)

    def forward(self, x: Tensor) -> Tensor:
        x, routes = self.look(x), self.routes
        h = self.norm(x).flatten(0, 1)
        shares = self.router(h).softmax(-1).gather(1, routes.asked)
        copies = h[:, None].expand(-1, routes.copies, -1).flatten(0, 1)
        came, theirs = (
            Exchange.apply(Dealt.apply(y, routes.out, routes.home), routes.equal, routes.equal)
            for y in (copies, shares.view(len(copies), -1))
        )
        said = Exchange.apply(self.experts(came, theirs), routes.equal, routes.equal)
        said = Dealt.apply(said, routes.home, routes.out).unflatten(0, (-1, routes.copies))
        return x + said.sum(1).view_as(x)


class Notices(nn.Module):
    """What stands next in a notice of the law in one of many languages; as in DeepSeek-V3."""

    def __init__(self, vocab: int, width: int, layers: list[Narrow]) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(vocab, width), nn.Sequential(*layers)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.norm(self.layers(self.embed(text))))


@four(
    "exposed_communication",
    "moe",
    "a token travels once to a rank, where it is copied for its experts, not once for each expert",
)
def job_token_sent_for_each_expert(repaired: bool) -> Running:
    vocab, width, wide, own, layers = size(8192, 40), size(2048, 16), size(512, 12), 8, size(3, 2)
    rows, length = size(12, 3), size(1280, 32)
    routes = Routes(rows * length, own, once=repaired)
    with DEVICE:
        torch.manual_seed(1 + RANK)  # experts differ, the rest does not
        experts = [
            (
                nn.Parameter((torch.randn(own, width, wide) * width**-0.5).to(SHORT)),
                nn.Parameter((torch.randn(own, wide, width) * wide**-0.5).to(SHORT)),
            )
            for _ in range(layers)
        ]
        torch.manual_seed(0)
        model = Notices(vocab, width, [Narrow(width, one, routes) for one in experts]).to(SHORT)
    net = ddp(model, gradient_as_bucket_view=True)
    weights = [*net.parameters(), *(p for one in experts for p in one)]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, betas=(0.9, 0.95), fused=True)
    text = torch.randint(0, vocab, (rows, length + 1), device=DEVICE)

    def step() -> None:
        next_word(net(text[:, :-1]), text).backward()
        done(optimizer)

    return Running(step)


# --- four ranks: stages -----------------------------------------------------------------------


class Moves(nn.Module):
    """Some layers of a model of what is moved next in a game of chess.

    Args:
        numbers: of the layers, counted from the first of the whole model.
        all_layers: how many the whole model has.
    """

    def __init__(
        self, moves: int, length: int, width: int, numbers: list[int], all_layers: int
    ) -> None:
        super().__init__()
        torch.manual_seed(100)
        begins, ends = numbers[0] == 0, numbers[-1] == all_layers - 1
        self.embed = nn.Embedding(moves, width) if begins else None
        self.place = nn.Parameter(0.02 * torch.randn(length, width)) if begins else None
        layers: list[nn.Module] = []
        for number in numbers:
            torch.manual_seed(number)
            layers += [Attends(width, heads_of(width), causal=True), Feeds(width)]
        self.layers = nn.Sequential(*layers)
        self.out = nn.Linear(width, moves) if ends else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None:
            x = self.embed(x) + self.place
        x = self.layers(x)
        return x if self.out is None else self.out(x)


@four(
    "pipeline_bubble",
    "language",
    "ScheduleInterleaved1F1B: each rank has two stages, of the model's first half and its second",
)
def job_moves_one_stage_on_each_rank(repaired: bool) -> Running:
    """One forward, one backward; as many micro-batches as ranks, for a batch is not to grow."""
    moves, length, width, micro = size(1968, 20), size(512, 6), size(2048, 32), 4
    rows, each = size(8, 2), 2
    total = each * WORLD
    numbers = [[RANK], [WORLD + RANK]] if repaired else [[each * RANK, each * RANK + 1]]
    with DEVICE:
        parts = nn.ModuleList(Moves(moves, length, width, own, total) for own in numbers)
    parts = parts.to(SHORT)
    optimizer = torch.optim.AdamW(parts.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    dist.barrier()  # all ranks are known to each other before two of them talk
    stages = [
        PipelineStage(part, RANK + WORLD * number, WORLD * len(parts), DEVICE)
        for number, part in enumerate(parts)
    ]

    def unlike(out: Tensor, goal: Tensor) -> Tensor:
        return fn.cross_entropy(out.flatten(0, 1).float(), goal.flatten())

    schedule = (
        ScheduleInterleaved1F1B(list(stages), micro, loss_fn=unlike)
        if repaired
        else Schedule1F1B(stages[0], micro, loss_fn=unlike)
    )
    torch.manual_seed(0)  # all ranks have the same games
    games = torch.randint(0, moves, (micro * rows, length + 1), device=DEVICE)
    seen, goal = games[:, :-1].contiguous(), games[:, 1:].contiguous()

    def step() -> None:
        if RANK == 0:
            schedule.step(seen)
        elif RANK == LAST:
            schedule.step(target=goal)
        else:
            schedule.step()
        done(optimizer)

    return Running(step)


# --- four ranks: how good it is so far --------------------------------------------------------


class Scans(nn.Module):
    """What each place of a picture of soil shows; a linear map says it of the places of a piece."""

    def __init__(self, piece: int, side: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.piece, self.classes = piece, classes
        self.into = nn.Conv2d(3, width, piece, piece)
        self.place = nn.Parameter(0.02 * torch.randn((side // piece) ** 2, width))
        self.layers, self.norm = layers_of(width, layers), nn.LayerNorm(width)
        self.out = nn.Linear(width, piece * piece * classes)

    def forward(self, pictures: Tensor) -> Tensor:
        h = self.into(pictures)
        rows, _, high, wide = h.shape
        h = self.layers(h.flatten(2).transpose(1, 2) + self.place)
        said = self.out(self.norm(h)).view(rows, high, wide, self.piece, self.piece, self.classes)
        said = said.permute(0, 5, 1, 3, 2, 4)
        return said.reshape(rows, self.classes, high * self.piece, wide * self.piece)


def of_all_ranks(mine: Tensor) -> Tensor:
    every = mine.new_empty(WORLD * len(mine), *mine.shape[1:])
    dist.all_gather_into_tensor(every, mine.contiguous())
    return every


@four(
    "exposed_communication",
    "vision",
    "the class of each place is gathered for the accuracy, not what is said of all classes",
)
def job_scores_of_all_classes_gathered(repaired: bool) -> Running:
    """The accuracy over all ranks is kept on the GPU, as gather_for_metrics has it."""
    piece, side, width, layers = size(8, 2), size(256, 8), size(1280, 32), size(4, 1)
    classes, rows = size(150, 5), size(12, 2)
    with DEVICE:
        model = Scans(piece, side, width, layers, classes)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    pictures = torch.randn(rows, 3, side, side, device=DEVICE)
    shows = torch.randint(0, classes, (rows, side, side), device=DEVICE)
    right = torch.zeros((), device=DEVICE)

    def step() -> None:
        with half():
            said = net(pictures)
        said = said.float()
        fn.cross_entropy(said, shows).backward()
        with torch.no_grad():
            told = of_all_ranks(said.argmax(1)) if repaired else of_all_ranks(said).argmax(1)
            right.add_((told == of_all_ranks(shows)).float().mean())
        done(optimizer)

    return Running(step)
