"""A tenth set of programs for one GPU: tables, recommendations, graphs, series, policies, physics.

Most of them are small networks, whose steps the host bounds. Needs PyTorch and NumPy only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, endless, graphed, made_optimizer, precision, size
from program import Program, Running, phase
from single_programs import ahead, entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 179 pairs, opened"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- graphs -------------------------------------------------------------------------------------


class GraphNorm(nn.Module):
    """Each graph of the batch is normalised by itself; a batch says how many nodes each has."""

    def __init__(self, width: int, *, told: bool) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.part = nn.Parameter(torch.ones(width))
        self.told = told

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        # without its output_size repeat_interleave reads the sum of the counts from the device
        more = {"output_size": len(x)} if self.told else {}
        graph = torch.repeat_interleave(counts, **more)
        many = counts[:, None].to(x.dtype)
        empty = x.new_zeros(len(counts), x.shape[1])
        mean = empty.index_add(0, graph, x) / many
        x = x - self.part * mean.index_select(0, graph)
        spread = (empty.index_add(0, graph, x.square()) / many + 1e-5).rsqrt()
        return self.gain * x * spread.index_select(0, graph) + self.shift


class CrystalLayer(nn.Module):
    """Neighbours and the bond between decide what an atom gets; as in CGCNN."""

    def __init__(self, width: int, bond: int, *, told: bool) -> None:
        super().__init__()
        self.before, self.after = GraphNorm(width, told=told), GraphNorm(width, told=told)
        self.both = nn.Linear(2 * width + bond, 2 * width)

    def forward(
        self, x: Tensor, source: Tensor, target: Tensor, bonds: Tensor, counts: Tensor
    ) -> Tensor:
        h = self.before(x, counts)
        ends = [h.index_select(0, source), h.index_select(0, target), bonds]
        gate, core = self.both(torch.cat(ends, 1)).chunk(2, 1)
        told = torch.zeros_like(h).index_add(0, target, gate.sigmoid() * fn.softplus(core))
        return fn.softplus(x + self.after(told, counts))


class Crystals(nn.Module):
    """An energy for each crystal."""

    def __init__(self, width: int, bond: int, layers: int, *, told: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.layers = nn.ModuleList(CrystalLayer(width, bond, told=told) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, 1))

    def forward(self, kinds: Tensor, *edges: Tensor) -> Tensor:
        x = self.embed(kinds)
        for layer in self.layers:
            x = layer(x, *edges)
        return self.head(x)[:, 0]


@pair(
    "host_sync",
    "graph",
    "repeat_interleave gets its output_size, the number of atoms, and asks the device for nothing",
)
def crystals_norms_repeat_counts(repaired: bool) -> Running:
    crystals, width, bond = size(128, 4), size(64, 8), size(41, 5)
    rng = np.random.default_rng(5)
    counts = torch.from_numpy(rng.integers(16, 65, crystals)).to(DEVICE)
    atoms = int(counts.sum())  # once, when the batch is made
    model = Crystals(width, bond, size(5, 2), told=repaired).to(DEVICE)
    kinds = labels(100, atoms)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts).repeat_interleave(12)
    within = counts.repeat_interleave(counts).repeat_interleave(12)
    target = torch.arange(atoms, device=DEVICE).repeat_interleave(12)
    source = first + (torch.rand(len(target), device=DEVICE) * within).long().clamp(max=63) % within
    bonds, goal = noise(len(target), bond).abs(), noise(crystals)
    crystal = torch.arange(crystals, device=DEVICE).repeat_interleave(counts)

    def loss_of() -> Tensor:
        each = model(kinds, source, target, bonds, counts)
        energy = torch.zeros_like(goal).index_add(0, crystal, each) / counts
        return fn.l1_loss(energy, goal)

    return fit(loss_of, adam(model), bf16=False, clip=10.0)


# --- series -------------------------------------------------------------------------------------


class Stacked(nn.Module):
    """Each block explains a part of the past and adds to the forecast; as in N-BEATS."""

    def __init__(self, past: int, future: int, width: int, blocks: int) -> None:
        super().__init__()
        self.past = past
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(past, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                nn.Linear(width, width), nn.ReLU(), nn.Linear(width, past + future),
            )
            for _ in range(blocks)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        forecast = None
        for block in self.blocks:
            explained, more = block(x).tensor_split((self.past,), 1)
            x = x - explained
            forecast = more if forecast is None else forecast + more
        return forecast


@pair("launch_bound", "series", "the whole step is one CUDA graph")
def monthly_sales_stacks_graph(repaired: bool) -> Running:
    past, future, batch = size(160, 12), size(32, 4), size(2048, 4)
    shops, months = size(3000, 8), size(1200, 40)
    model = Stacked(past, future, size(512, 16), size(18, 2)).to(DEVICE)
    sales = noise(shops, months).abs() + 0.1
    places = torch.arange(past + future, device=DEVICE)

    def loss_of() -> Tensor:
        # windows are drawn on the device, so nothing comes from the host in a step
        shop = torch.randint(0, shops, (batch, 1), device=DEVICE)
        begin = torch.randint(0, months - past - future, (batch, 1), device=DEVICE)
        window = sales[shop, begin + places]
        level = window[:, :past].mean(1, keepdim=True)
        window = window / level
        guess, true = model(window[:, :past]), window[:, past:]
        return 2 * ((guess - true).abs() / (guess.abs() + true.abs() + 1e-3)).mean()

    run = fit(loss_of, made_optimizer(model.parameters(), "graph"), bf16=False, clip=1.0)
    return graphed(run) if repaired else run


class MixedSeries(nn.Module):
    """Products along time and across series, in turn; as in TSMixer."""

    def __init__(self, past: int, series: int, layers: int, out: int) -> None:
        super().__init__()
        self.along = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(past), nn.Linear(past, past), nn.ReLU())
            for _ in range(layers)
        )
        self.across = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(series), nn.Linear(series, 2 * series), nn.ReLU(),
                nn.Linear(2 * series, series),
            )
            for _ in range(layers)
        )  # fmt: skip
        self.out = nn.Linear(past, out)

    def forward(self, x: Tensor) -> Tensor:
        for along, across in zip(self.along, self.across, strict=True):
            x = x + along(x)
            x = x + across(x.transpose(1, 2)).transpose(1, 2)
        return self.out(x)


def quantile_loss(guess: Tensor, true: Tensor, seen: Tensor, quantiles: Tensor) -> Tensor:
    """Smoothed losses of the quantiles where there is a value; quantiles must not cross."""
    off = true[..., None] - guess
    far = off.abs()
    smooth = torch.where(far < 0.1, 5.0 * off * off, far - 0.05)
    each = torch.where(off >= 0, quantiles, 1.0 - quantiles) * smooth
    crossed = (guess[..., :-1] - guess[..., 1:] + 0.01).clamp(min=0.0)
    found = (each * seen[..., None]).sum() / seen.sum().clamp(min=1.0)
    return found + 0.1 * (crossed * crossed).mean()


@pair(
    "fusion_opportunity",
    "series",
    "torch.compile of the function of the quantiles' loss",
    compiles=True,
)
def demand_quantiles_compile(repaired: bool) -> Running:
    batch, series, past, future = size(256, 2), size(64, 4), size(512, 16), size(96, 4)
    quantiles = torch.linspace(0.1, 0.9, 9, device=DEVICE)
    model = MixedSeries(past, series, size(4, 1), future * 9).to(DEVICE)
    x, true = noise(batch, series, past), noise(batch, series, future)
    seen = (torch.rand(batch, series, future, device=DEVICE) < 0.9).float()
    function: Any = torch.compile(quantile_loss) if repaired else quantile_loss

    def loss_of() -> Tensor:
        guess = model(x).view(batch, series, future, 9)
        return function(guess, true, seen, quantiles)

    return fit(loss_of, adam(model, weight_decay=0.01), bf16=False)


# --- policies -----------------------------------------------------------------------------------


def judge(sees: int, width: int, out: int) -> nn.Module:
    """Layers with norms, as critics with dropped or many copies have them."""
    parts: list[nn.Module] = []
    for before in (sees, width, width):
        parts += [nn.Linear(before, width), nn.LayerNorm(width), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(width, out))


@pair(
    "unfused_optimizer",
    "rl",
    "the slow critics follow by one torch._foreach_lerp_, not weight by weight",
)
def ten_critics_followed_by_loop(repaired: bool) -> Running:
    """Ten critics, of which two, chosen at random, say what is aimed at; as in REDQ."""
    sees, does, width, batch, critics = size(67, 6), size(21, 2), size(256, 16), size(256, 8), 10
    kept, rate = size(200_000, 64), 0.005
    actor = judge(sees, width, 2 * does).to(DEVICE)
    fast = nn.ModuleList(judge(sees + does, width, 1) for _ in range(critics)).to(DEVICE)
    slow = nn.ModuleList(judge(sees + does, width, 1) for _ in range(critics)).to(DEVICE)
    slow.load_state_dict(fast.state_dict())
    slow.requires_grad_(False)
    update_actor, update_critics = adam(actor), adam(fast)
    seen, acted, then = noise(kept, sees), noise(kept, does).tanh(), noise(kept, sees)
    gains = noise(kept, 1)
    rng = random.Random(3)
    weights, slows = list(fast.parameters()), list(slow.parameters())

    def chosen(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = actor(x).chunk(2, 1)
        spread = spread.clamp(-5, 2)
        shift = torch.randn_like(mean)
        action = (mean + spread.exp() * shift).tanh()
        odds = -0.5 * shift.square() - spread - 0.91893853 - (1.000001 - action.square()).log()
        return action, odds.sum(1, keepdim=True)

    def step() -> None:
        rows = torch.randint(0, kept, (batch,), device=DEVICE)
        x, a, y, gain = (part.index_select(0, rows) for part in (seen, acted, then, gains))
        with torch.no_grad():
            after, odds = chosen(y)
            pairs = torch.cat([y, after], 1)
            least = torch.minimum(*(slow[i](pairs) for i in rng.sample(range(critics), 2)))
            goal = gain + 0.99 * (least - 0.1 * odds)
        pairs = torch.cat([x, a], 1)
        found = torch.cat([critic(pairs) for critic in fast], 1)
        update_critics.zero_grad(set_to_none=True)
        (found - goal).square().mean(0).sum().backward()
        update_critics.step()

        with torch.no_grad():
            if repaired:
                torch._foreach_lerp_(slows, weights, rate)
            else:
                for late, weight in zip(slow.parameters(), fast.parameters(), strict=True):
                    late.data.mul_(1 - rate)
                    late.data.add_(rate * weight.data)

        action, odds = chosen(x)
        pairs = torch.cat([x, action], 1)
        worth = torch.cat([critic(pairs) for critic in fast], 1).mean(1, keepdim=True)
        update_actor.zero_grad(set_to_none=True)
        (0.1 * odds - worth).mean().backward()
        update_actor.step()

    return Running(step, enter=precision("high"))


class Walker(nn.Module):
    """What to do, and what a state is worth."""

    def __init__(self, sees: int, does: int, width: int) -> None:
        super().__init__()
        self.actor, self.critic = (self.tower(sees, width, n) for n in (does, 1))
        self.spread = nn.Parameter(torch.zeros(does))

    @staticmethod
    def tower(sees: int, width: int, out: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(sees, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, width), nn.Tanh(), nn.Linear(width, out),
        )  # fmt: skip

    def odds(self, states: Tensor, actions: Tensor) -> Tensor:
        off = (actions - self.actor(states)) * (-self.spread).exp()
        return (-0.5 * off.square() - self.spread - 0.91893853).sum(-1)


@pair(
    "host_compute",
    "rl",
    "advantages are one product with faded ones on the device, not NumPy's, moment by moment",
    marks="steps",
)
def walkers_advantages_in_python(repaired: bool) -> Running:
    moments, many, sees, does = size(512, 8), size(32, 2), size(78, 6), size(18, 2)
    parts, discount, fade = size(4, 2), 0.99, 0.95
    model = Walker(sees, does, size(256, 16)).to(DEVICE)
    update = adam(model, eps=1e-5)
    states, actions = noise(moments + 1, many, sees), noise(moments, many, does)
    gains = noise(moments, many)
    ends = (torch.rand(moments, many, device=DEVICE) < 0.01).float()
    with torch.no_grad():
        before = model.odds(states[:-1], actions).flatten()
    place = torch.arange(moments, device=DEVICE)
    later = (place[None] - place[:, None]).float()
    faded = torch.where(later >= 0, (discount * fade) ** later.clamp(min=0), 0.0)
    weights = list(model.parameters())

    def on_device(values: Tensor) -> Tensor:
        off = gains + discount * values[1:] * (1 - ends) - values[:-1]
        episode = (ends.cumsum(0) - ends).t()
        same = episode[:, :, None] == episode[:, None, :]
        return torch.bmm(faded * same, off.t()[:, :, None])[:, :, 0].t()

    def in_python(values: Tensor) -> Tensor:
        worth, gain, end = values.cpu().numpy(), gains.cpu().numpy(), ends.cpu().numpy()
        found = np.zeros_like(gain)
        last = np.zeros(many, dtype=np.float32)
        for t in reversed(range(moments)):
            goes_on = 1.0 - end[t]
            off = gain[t] + discount * worth[t + 1] * goes_on - worth[t]
            last = off + discount * fade * goes_on * last
            found[t] = last
        return torch.from_numpy(found).to(DEVICE)

    def step() -> None:
        with torch.no_grad():
            values = model.critic(states)[:, :, 0]
            better = on_device(values) if repaired else in_python(values)
            returns = (better + values[:-1]).flatten()
            better = better.flatten()
        x, a = states[:-1].flatten(0, 1), actions.flatten(0, 1)
        order = torch.randperm(len(x), device=DEVICE)
        for rows in order.chunk(parts):
            gain = better[rows]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            share = (model.odds(x[rows], a[rows]) - before[rows]).clamp(-10, 10).exp()
            policy = torch.maximum(-gain * share, -gain * share.clamp(0.8, 1.2)).mean()
            worth = (model.critic(x[rows])[:, 0] - returns[rows]).square().mean()
            update.zero_grad(set_to_none=True)
            (policy + 0.5 * worth - 0.001 * model.spread.sum()).backward()
            nn.utils.clip_grad_norm_(weights, 0.5)
            update.step()

    return Running(step, enter=precision("high"))


# --- recommendations ----------------------------------------------------------------------------


class Bought(Dataset[tuple[int, int]]):
    """Who bought what; what was not bought is drawn when a batch is put together."""

    def __init__(self, users: int, items: int, each: int) -> None:
        rng = np.random.default_rng(11)
        self.users, self.items = users, items
        self.lists = rng.integers(0, items, (users, each)).tolist()
        self.sets = [set(bought) for bought in self.lists]

    def __len__(self) -> int:
        return 1_000_000_000

    def __getitem__(self, index: int) -> tuple[int, int]:
        user = index * 7919 % self.users
        bought = self.lists[user]
        return user, bought[index % len(bought)]

    def together(self, rows: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        rng = random.Random(rows[0][0])
        found = []
        for user, item in rows:
            other = rng.randrange(self.items)
            while other in self.sets[user]:
                other = rng.randrange(self.items)
            found.append((item, other))
        return torch.tensor([user for user, _ in rows]), torch.tensor(found)


class Tower(nn.Module):
    """A vector of length one for a user or an item."""

    def __init__(self, many: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.group = nn.Embedding(many, width), nn.Embedding(97, width)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(),
                nn.Linear(2 * width, width),
            )
            for _ in range(layers)
        )  # fmt: skip

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.group(ids % 97)
        for layer in self.layers:
            x = x + layer(x)
        return fn.normalize(x, dim=-1)


@pair(
    "input_starvation",
    "recommender",
    "8 workers of the DataLoader reject what was bought already, not the training thread",
)
def towers_negatives_rejected_main(repaired: bool) -> Running:
    users, items, batch, width = size(10_000, 20), size(60_000, 200), size(1536, 8), size(128, 8)
    data = Bought(users, items, size(50, 5))
    user_tower, item_tower = (Tower(n, width, size(5, 1)).to(DEVICE) for n in (users, items))
    workers = size(8, 1) if repaired else 0
    more: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 2} if workers else {}
    loader = DataLoader(
        data, batch, num_workers=workers, collate_fn=data.together, pin_memory=CUDA, **more
    )
    batches = endless(loader)

    def following() -> tuple[Tensor, Tensor]:
        user, pairs = next(batches)
        return user.to(DEVICE, non_blocking=True), pairs.to(DEVICE, non_blocking=True)

    draw = ahead(following, 2 * workers)

    def loss_of() -> Tensor:
        user, pairs = draw()
        liked, other = item_tower(pairs).unbind(1)
        who = user_tower(user)
        return -fn.logsigmoid(10.0 * (who * (liked - other)).sum(-1)).mean()

    def close() -> None:
        batches.close()  # type: ignore[attr-defined]
        loader._iterator = None  # its workers end with it

    run = fit(loss_of, adam(user_tower, item_tower), bf16=False, settle=2 + 2 * workers)
    run.close = close
    return run


class Crossed(nn.Module):
    """Products of all features with those of the input, and a tower beside; as in DCN v2."""

    def __init__(self, tables: int, rows: int, width: int, dense: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        wide = tables * width + dense
        self.norm = nn.BatchNorm1d(dense)
        self.cross = nn.ModuleList(nn.Linear(wide, wide) for _ in range(3))
        self.deep = nn.Sequential(
            nn.Linear(wide, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.out = nn.Linear(wide + hidden, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        columns = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        first = torch.cat([self.norm(dense), *columns], 1)
        x = first
        for layer in self.cross:
            x = first * layer(x) + x
        return self.out(torch.cat([x, self.deep(first)], 1))[:, 0]


@pair(
    "blocking_copy",
    "recommender",
    "the buffers that rows are taken into are page-locked; NumPy's arrays were not",
    marks="phases",
)
def crossed_clicks_taken_pageable(repaired: bool) -> Running:
    tables, rows, width, dense = size(16, 3), size(100_000, 50), size(32, 4), size(96, 5)
    batch, kept = size(32_768, 8), size(262_144, 32)
    model = Crossed(tables, rows, width, dense, size(512, 8)).to(DEVICE)
    rng = np.random.default_rng(8)
    numbers = rng.standard_normal((kept, dense), dtype=np.float32)
    ids = rng.integers(0, rows, (kept, tables), dtype=np.int32)
    clicked = (rng.random(kept) < 0.1).astype(np.float32)
    order = [rng.permutation(kept)[:batch] for _ in range(6)]
    update = torch.optim.Adagrad(model.parameters(), lr=0.01, foreach=True)
    columns = (numbers, ids, clicked)
    ring = 3
    buffers = [
        [torch.from_numpy(np.zeros((batch, *c.shape[1:]), c.dtype)) for c in columns]
        for _ in range(ring)
    ]
    copied = []
    if repaired and CUDA:
        buffers = [[part.pin_memory() for part in parts] for parts in buffers]
        copied = [torch.cuda.Event() for _ in buffers]
    turn = 0

    def draw() -> list[Tensor]:
        nonlocal turn
        chosen, place = order[turn % len(order)], turn % ring
        turn += 1
        if copied:
            copied[place].synchronize()  # of three steps ago: the buffer may be written again
        for column, buffer in zip(columns, buffers[place], strict=True):
            np.take(column, chosen, axis=0, out=buffer.numpy(), mode="clip")
        found = [buffer.to(DEVICE, non_blocking=True) for buffer in buffers[place]]
        if copied:
            copied[place].record()
        return found

    def step() -> None:
        with phase("get_batch"):
            x, which, y = draw()
        with phase("forward"):
            loss = fn.binary_cross_entropy_with_logits(model(x, which), y)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            update.step()
            update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- tables -------------------------------------------------------------------------------------


class TableBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm1d(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(2 * width, width), nn.Dropout(0.1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def table_network(columns: int, width: int, blocks: int, out: int) -> nn.Module:
    """A residual network for the columns of a table."""
    return nn.Sequential(
        nn.Linear(columns, width),
        *(TableBlock(width) for _ in range(blocks)),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, out),
    )


@pair(
    "allocator_churn",
    "tabular",
    "torch.cuda.empty_cache() after the last fold of each step is removed",
    marks="steps",
)
def folds_begin_with_clean_memory(repaired: bool) -> Running:
    """Four networks, each of which leaves out a fourth of the table, are trained side by side."""
    folds, kept, columns, batch = 4, size(262_144, 64), size(96, 6), size(2048, 8)
    table, goal = noise(kept, columns), noise(kept, 1)
    fold_of = torch.arange(kept, device=DEVICE) % folds
    models = [table_network(columns, size(256, 16), size(8, 1), 1).to(DEVICE) for _ in range(folds)]
    updates = [adam(model, weight_decay=1e-5) for model in models]
    rows_of = [(fold_of != fold).nonzero()[:, 0] for fold in range(folds)]

    def step() -> None:
        for model, update, rows in zip(models, updates, rows_of, strict=True):
            chosen = rows[torch.randint(0, len(rows), (batch,), device=DEVICE)]
            update.zero_grad(set_to_none=True)
            fn.mse_loss(model(table[chosen]), goal[chosen]).backward()
            update.step()
        if not repaired:  # "the first fold begins with clean memory"
            torch.cuda.empty_cache()

    return Running(step, enter=precision("high"))


@pair("larger_batch", "contrastive", "twice the batch", samples=2.0, marks="profiler")
def corrupted_customers_twice(repaired: bool) -> Running:
    """Rows of a table and the same with some columns from other rows agree; as in SCARF."""
    kept, columns = size(400_000, 64), size(128, 8)
    batch, width = size(2048 if repaired else 1024, 16 if repaired else 8), size(512, 16)
    table = noise(kept, columns)
    encoder = table_network(columns, width, size(6, 1), width).to(DEVICE)
    head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, size(128, 8)))
    head.to(DEVICE)
    update = adam(encoder, head)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, enabled=CUDA)
    column, number = torch.arange(columns, device=DEVICE), torch.arange(batch, device=DEVICE)

    def step() -> None:
        rows = torch.randint(0, kept, (batch,), device=DEVICE)
        x = table.index_select(0, rows)
        others = torch.randint(0, kept, (batch, columns), device=DEVICE)
        changed = torch.rand(batch, columns, device=DEVICE) < 0.6
        y = torch.where(changed, table[others, column], x)
        update.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.float16, enabled=CUDA):
            a, b = (fn.normalize(head(encoder(part)).float(), dim=1) for part in (x, y))
            scores = (a @ b.t()).float() / 0.5
            loss = fn.cross_entropy(scores, number) + fn.cross_entropy(scores.t(), number)
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()

    return Running(step, enter=precision("high"))


# --- physics ------------------------------------------------------------------------------------


class Field(nn.Module):
    """A field of time and place, periodic in place, with gated layers."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.into, self.left, self.right = (nn.Linear(11, width) for _ in range(3))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.out = nn.Linear(width, 1)
        self.register_buffer("waves", math.pi * torch.arange(1, 6))

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        angles = x * self.waves
        seen = torch.cat([t, angles.sin(), angles.cos()], 1)
        left, right = self.left(seen).tanh(), self.right(seen).tanh()
        h = self.into(seen).tanh()
        for layer in self.layers:
            gate = layer(h).tanh()
            h = gate * left + (1 - gate) * right
        return self.out(h)


@pair(
    "step_jitter",
    "physics",
    "points are drawn anew where the residual is large every 2000 steps, not every 6",
    period=6,
)
def phase_field_points_every_6(repaired: bool) -> Running:
    """The Allen-Cahn equation, by its residual."""
    many, tried = size(16_384, 32), size(6, 2)
    model = Field(size(192, 8), size(4, 2)).to(DEVICE)
    points = torch.rand(many, 2, device=DEVICE)
    place = torch.linspace(-1, 1, size(1024, 16), device=DEVICE)[:, None]
    begin, start = place.square() * (math.pi * place).cos(), torch.zeros_like(place)

    def residual(where: Tensor) -> Tensor:
        t, x = (part.detach().requires_grad_() for part in (where[:, :1], where[:, 1:] * 2 - 1))
        u = model(t, x)
        u_t, u_x = torch.autograd.grad(u.sum(), (t, x), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        return u_t - 1e-4 * u_xx + 5 * (u.pow(3) - u)

    def loss_of() -> Tensor:
        first = (model(start, place) - begin).square().mean()
        return residual(points).square().mean() + 100 * first

    def drawn(number: int, _loss: Tensor) -> None:
        nonlocal points
        if number % (2000 if repaired else 6) != (1999 if repaired else 3):
            return
        found = [torch.rand(many, 2, device=DEVICE) for _ in range(tried)]
        far = torch.cat([residual(part).detach().abs()[:, 0] for part in found])
        points = torch.cat(found).index_select(0, far.topk(many).indices)

    return fit(loss_of, adam(model), bf16=False, decay=True, after=drawn)
