"""Programs of the sixth set from science, reinforcement learning, graphs and recommenders."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import torch
from models import DEVICE, graphed, made_optimizer, mlp, precision, size, training
from program import Program, Running, phase
from single_programs import entered, fixed, loaded
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 147 pairs, opened"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


# --- fusion -----------------------------------------------------------------------------------


def slope(x: Tensor, dim: int) -> Tensor:
    return (torch.roll(x, -1, dim) - torch.roll(x, 1, dim)) * 0.5


def bent(x: Tensor) -> Tensor:
    rows = torch.roll(x, 1, 1) + torch.roll(x, -1, 1)
    return rows + torch.roll(x, 1, 2) + torch.roll(x, -1, 2) - 4.0 * x


def advanced(h: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The next state of shallow water on a turning plane."""
    dt, turn, gravity, thick = 0.02, 0.1, 1.0, 0.05
    du = turn * v - gravity * slope(h, 2) - u * slope(u, 2) - v * slope(u, 1) + thick * bent(u)
    dv = -turn * u - gravity * slope(h, 1) - u * slope(v, 2) - v * slope(v, 1) + thick * bent(v)
    dh = -slope((1.0 + h) * u, 2) - slope((1.0 + h) * v, 1)
    return h + dt * dh, u + dt * du, v + dt * dv


@pair("fusion_opportunity", "science", "torch.compile of the solver's step", compiles=True)
def shallow_water_compile(repaired: bool) -> Running:
    batch, side, times = size(32, 2), size(384, 16), size(4, 2)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, padding_mode="circular"), nn.GELU(),
        nn.Conv2d(16, 3, 3, 1, 1, padding_mode="circular"),
    ).to(DEVICE)  # fmt: skip
    advance: Any = torch.compile(advanced) if repaired else advanced

    def loss_of(net: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
        guess, seen = given
        h, u, v = ((part * 0.1).contiguous() for part in (guess + net(guess)).unbind(1))
        for _ in range(times):
            h, u, v = advance(h, u, v)
        return fn.mse_loss(torch.stack([h, u, v], 1), seen)

    data = noise(batch, 3, side, side), noise(batch, 3, side, side)
    return training(model, fixed(data), loss_of, kind="fp32")


class Dice(nn.Module):
    """A gate between a value and a share of it, by how usual the value is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, affine=False)
        self.share = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        usual = torch.sigmoid(self.norm(x))
        return usual * x + (1.0 - usual) * self.share * x


class Interest(nn.Module):
    """Clicks of the past, weighed by how near they are to what is offered."""

    def __init__(self, items: int, width: int) -> None:
        super().__init__()
        self.items = nn.Embedding(items, width)
        self.near = nn.Sequential(
            nn.Linear(4 * width, 80), Dice(80), nn.Linear(80, 40), Dice(40), nn.Linear(40, 1)
        )
        self.top = nn.Sequential(
            nn.Linear(3 * width, 200), Dice(200), nn.Linear(200, 80), Dice(80), nn.Linear(80, 1)
        )

    def forward(self, offered: Tensor, past: Tensor, length: Tensor) -> Tensor:
        wanted, seen = self.items(offered), self.items(past)
        b, t, d = seen.shape
        wide = wanted[:, None].expand(-1, t, -1)
        both = torch.cat([wide, seen, wide - seen, wide * seen], -1)
        weight = self.near(both.view(b * t, 4 * d)).view(b, t)
        there = torch.arange(t, device=past.device) < length[:, None]
        weight = torch.where(there, weight * d**-0.5, 0.0)
        liked = (weight[..., None] * seen).sum(1)
        return self.top(torch.cat([wanted, liked, wanted * liked], -1))[:, 0]


@pair(
    "fusion_opportunity",
    "recommender",
    "torch.compile(model)",
    compiles=True,
    marks="phases",
)
def interest_dice_compile(repaired: bool) -> Running:
    rows, past, items = size(3072, 4), size(100, 6), size(100_000, 50)
    model: Any = Interest(items, size(64, 8)).to(DEVICE)
    if repaired:
        model = torch.compile(model)
    data = (
        torch.randint(0, items, (rows,), device=DEVICE),
        torch.randint(0, items, (rows, past), device=DEVICE),
        torch.randint(1, past + 1, (rows,), device=DEVICE),
        torch.rand(rows, device=DEVICE).round(),
    )

    def loss_of(net: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return fn.binary_cross_entropy_with_logits(net(*batch[:3]), batch[3])

    return training(model, fixed(data), loss_of, kind="fp32", optimizer="foreach")


# --- launches ---------------------------------------------------------------------------------


class World(nn.Module):
    """What comes next: a memory and a few dice that are thrown."""

    def __init__(self, width: int, dice: int, faces: int, acts: int) -> None:
        super().__init__()
        self.dice, self.faces = dice, faces
        self.into = nn.Sequential(nn.Linear(dice * faces + acts, width), nn.SiLU())
        self.memory = nn.GRUCell(width, width)
        self.guess = nn.Sequential(
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, dice * faces)
        )
        self.reward = nn.Sequential(nn.Linear(width + dice * faces, width), nn.SiLU())
        self.told = nn.Linear(width, 1)

    def forward(self, h: Tensor, z: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.memory(self.into(torch.cat([z, action], -1)), h)
        chance = self.guess(h).view(len(h), self.dice, self.faces).softmax(-1)
        chance = 0.99 * chance + 0.01 / self.faces
        drawn = (
            chance.log() - torch.log(-torch.log(torch.rand_like(chance) + 1e-9) + 1e-9)
        ).argmax(-1, keepdim=True)
        hard = torch.zeros_like(chance).scatter_(-1, drawn, 1.0)
        z = (hard + chance - chance.detach()).flatten(1)
        return h, z, self.told(self.reward(torch.cat([h, z], -1)))[:, 0]


@pair("launch_bound", "rl", "the whole step is one CUDA graph", marks="steps")
def imagined_actor_critic_graph(repaired: bool) -> Running:
    rows, width, dice, faces, acts, ahead = size(512, 4), size(256, 16), 16, 16, 6, size(15, 3)
    world = World(width, dice, faces, acts).to(DEVICE).requires_grad_(False)
    actor = mlp(width, 2, width + dice * faces, acts).to(DEVICE)
    critic = mlp(width, 2, width + dice * faces, 1).to(DEVICE)
    slow = mlp(width, 2, width + dice * faces, 1).to(DEVICE).requires_grad_(False)
    first = made_optimizer(actor.parameters(), "graph")
    second = made_optimizer(critic.parameters(), "graph")
    h0, z0 = noise(rows, width).tanh(), noise(rows, dice * faces).sigmoid()
    mine, theirs = list(slow.parameters()), [p.detach() for p in critic.parameters()]

    def step() -> None:
        h, z, seen, rewards = h0, z0, [torch.cat([h0, z0], -1)], []
        for _ in range(ahead):
            mean = actor(torch.cat([h, z], -1))
            h, z, reward = world(h, z, torch.tanh(mean + 0.3 * torch.randn_like(mean)))
            seen.append(torch.cat([h, z], -1))
            rewards.append(reward)
        values = [slow(s)[:, 0] for s in seen]
        last, goals = values[-1], []
        for t in reversed(range(ahead)):
            last = rewards[t] + 0.99 * (0.05 * values[t + 1] + 0.95 * last)
            goals.append(last)
        goal = torch.stack(goals[::-1])
        (-goal.mean()).backward()
        guessed = critic(torch.stack(seen[:-1]).detach())[..., 0]
        fn.mse_loss(guessed, goal.detach()).backward()
        for net, update in ((actor, first), (critic, second)):
            nn.utils.clip_grad_norm_(net.parameters(), 100.0)
            update.step()
            update.zero_grad(set_to_none=True)
        torch._foreach_lerp_(mine, theirs, 0.02)

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run


# --- input ------------------------------------------------------------------------------------


class Histories(Dataset[tuple[Tensor, ...]]):
    """What a user took, and for each one something that the user did not take."""

    def __init__(self, items: int, length: int) -> None:
        self.items, self.length = items, length
        rng = np.random.default_rng(0)
        self.taken = rng.integers(1, items, (size(2000, 20), length + 1))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        rng = np.random.default_rng(index)
        taken = self.taken[index % len(self.taken)]
        known = set(taken.tolist())
        others = np.zeros(self.length, dtype=np.int64)
        for place in range(self.length):
            other = int(rng.integers(1, self.items))
            while other in known:
                other = int(rng.integers(1, self.items))
            others[place] = other
        parts = taken[:-1].copy(), taken[1:].copy(), others
        return tuple(torch.from_numpy(part) for part in parts)


class Sequences(nn.Module):
    """A causal transformer over what was taken."""

    def __init__(self, items: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.items, self.place = nn.Embedding(items, width), nn.Embedding(length, width)
        self.heads = max(width // 64, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.qkvs = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        b, t = x.shape
        h = self.items(x) + self.place.weight[:t]
        for i, (qkv, out, inner) in enumerate(zip(self.qkvs, self.outs, self.mlps, strict=True)):
            q, k, v = qkv(self.norms[2 * i](h)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + out(y.transpose(1, 2).reshape(b, t, -1))
            h = h + inner(self.norms[2 * i + 1](h))
        return self.norms[-1](h)


@pair("input_starvation", "recommender", "12 workers instead of 2")
def negatives_drawn_by_two(repaired: bool) -> Running:
    items, length = size(50_000, 200), size(200, 8)
    model = Sequences(items, length, size(384, 16), size(5, 1)).to(DEVICE)

    def loss_of(net: Any, batch: tuple[Tensor, ...]) -> Tensor:
        h = net(batch[0])
        right, wrong = ((h * net.items(ids)).sum(-1) for ids in batch[1:])
        return fn.softplus(-right).mean() + fn.softplus(wrong).mean()

    batches = loaded(Histories(items, length), size(128, 2), 12 if repaired else 2)
    return training(model, batches, loss_of, kind="fp32")


# --- copies and memory ------------------------------------------------------------------------


class Papers(nn.Module):
    """Attention over the edges of a sampled part of a large graph."""

    def __init__(self, inside: int, width: int, classes: int) -> None:
        from torch_geometric.nn import TransformerConv

        super().__init__()
        heads = size(4, 2)
        self.first = TransformerConv(inside, width // heads, heads=heads)
        self.second = TransformerConv(width, width // heads, heads=heads)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, data: Any) -> Tensor:
        h = fn.elu(self.norms[0](self.first(data.x, data.edge_index)))
        h = fn.elu(self.norms[1](self.second(h, data.edge_index))) + h
        return self.head(h)


@pair("blocking_copy", "graph", "sampled graphs are pinned and moved with non_blocking=True")
def sampled_graphs_pageable(repaired: bool) -> Running:
    from torch_geometric.data import Data

    nodes, inside, roots = size(20_000, 40), size(602, 8), size(4096, 8)
    kept = [
        Data(
            x=torch.randn(nodes, inside),
            edge_index=torch.randint(0, nodes, (2, 6 * nodes)),
            y=torch.randint(0, 41, (nodes,)),
        )
        for _ in range(3)
    ]
    if repaired and CUDA:
        kept = [graph.pin_memory() for graph in kept]
    graphs = itertools.cycle(kept)

    def following() -> Any:
        return copy.copy(next(graphs)).to(DEVICE, non_blocking=repaired)

    def loss_of(model: nn.Module, data: Any) -> Tensor:
        return fn.cross_entropy(model(data)[:roots], data.y[:roots])

    model = Papers(inside, size(256, 8), 41).to(DEVICE)
    return training(model, following, loss_of, kind="fp32")


class Filters(nn.Module):
    """Energies of atoms; what goes along an edge is filtered by its length."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.0, 5.0, 50))
        self.kinds = nn.Embedding(100, width)
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(50, width), nn.Softplus(), nn.Linear(width, width))
            for _ in range(layers)
        )
        self.ins = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.outs = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, width))
            for _ in range(layers)
        )
        self.head = nn.Sequential(nn.Linear(width, 64), nn.Softplus(), nn.Linear(64, 1))

    def forward(self, kind: Tensor, at: Tensor, source: Tensor, target: Tensor) -> Tensor:
        far = ((at[source] - at[target]).square().sum(-1) + 1e-6).sqrt()
        smooth = torch.exp(-10.0 * (far[:, None] - self.centres).square())
        cut = 0.5 * (torch.cos(far.clamp(max=5.0) * (torch.pi / 5.0)) + 1.0)
        h = self.kinds(kind)
        for filtered, into, out in zip(self.filters, self.ins, self.outs, strict=True):
            along = into(h)[source] * (filtered(smooth) * cut[:, None])
            h = h + out(torch.zeros_like(h).index_add(0, target, along))
        return self.head(h)[:, 0]


@pair(
    "allocator_churn",
    "science",
    "empty_cache() before the forces and after the step is removed",
    marks="phases",
)
def forces_empty_cache(repaired: bool) -> Running:
    atoms, width = size(5120, 24), size(128, 8)
    source, target = (torch.randint(0, atoms, (20 * atoms,), device=DEVICE) for _ in range(2))
    kind, at = torch.randint(1, 100, (atoms,), device=DEVICE), noise(atoms, 3) * 2.0
    energies, pulls = noise(atoms), noise(atoms, 3)
    model = Filters(width, size(3, 1)).to(DEVICE)
    update = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)

    def empty() -> None:
        if not repaired and CUDA:
            torch.cuda.empty_cache()

    def step() -> None:
        place = at.clone().requires_grad_()
        with phase("forward"):
            energy = model(kind, place, source, target)
            empty()
            (slopes,) = torch.autograd.grad(energy.sum(), place, create_graph=True)
            loss = fn.mse_loss(energy, energies) + 10.0 * fn.l1_loss(-slopes, pulls)
        with phase("backward"):
            loss.backward()
        del energy, slopes, loss
        with phase("optimizer"):
            update.step()
            update.zero_grad(set_to_none=True)
        empty()

    return Running(step, enter=precision("high"))


# --- the host ---------------------------------------------------------------------------------


@pair(
    "host_sync",
    "science",
    "step lengths and residuals of the solver stay on the device",
    marks="profiler",
)
def conjugate_gradients_read(repaired: bool) -> Running:
    batch, side, rounds, wide = size(4, 2), size(640, 16), size(80, 4), size(32, 4)
    model = nn.Sequential(
        nn.Conv2d(1, wide, 5, 2, 2), nn.ReLU(), nn.Conv2d(wide, wide, 3, 1, 1), nn.ReLU(),
        nn.Conv2d(wide, wide, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(wide, 1, 4, 2, 1),
    ).to(DEVICE)  # fmt: skip
    sources = noise(batch, side, side)

    def stiff(x: Tensor) -> Tensor:
        return 0.01 * x - bent(x)

    def read(x: Tensor) -> Any:
        return x if repaired else x.item()

    @torch.no_grad()
    def solved(b: Tensor) -> Tensor:
        x, r = torch.zeros_like(b), b.clone()
        p, left = r, read((r * r).sum())
        for _ in range(rounds):
            turned = stiff(p)
            length = read(left / (p * turned).sum())
            x = x + length * p
            r = r - length * turned
            now = read((r * r).sum())
            if not repaired and now < 1e-12:
                break
            p = r + (now / left) * p
            left = now
        return x

    def loss_of(net: nn.Module, b: Tensor) -> Tensor:
        return fn.mse_loss(net(b[:, None])[:, 0], solved(b))

    return training(model, fixed(sources), loss_of, kind="fp32", optimizer="sgd")


@pair(
    "host_compute",
    "rl",
    "advantages are computed for all environments at once by NumPy",
    others=("blocking_copy",),
)
def advantages_one_by_one(repaired: bool) -> Running:
    times, many, parts = size(128, 8), size(128, 4), size(4, 2)
    body = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 36, size(512, 16)), nn.ReLU(), nn.Linear(size(512, 16), 7),
    ).to(DEVICE)  # fmt: skip
    update = torch.optim.RMSprop(body.parameters(), lr=1e-4, foreach=True)
    rng = np.random.default_rng(0)
    gains = rng.standard_normal((times, many)).astype(np.float32)
    ends = (rng.random((times, many)) < 0.02).astype(np.float32)
    plain_gains, plain_ends = gains.tolist(), ends.tolist()
    frames = torch.randint(0, 255, (times * many, 4, 64, 64), dtype=torch.uint8, device=DEVICE)
    acts = torch.randint(0, 6, (times * many, 1), device=DEVICE)
    chances = torch.full((times * many,), -1.79, device=DEVICE)
    part = times * many // parts

    def advantages(values: Tensor) -> Tensor:
        on_host = values.view(times, many).cpu()
        if repaired:
            v, found = on_host.numpy(), np.zeros((times, many), dtype=np.float32)
            last, after = np.zeros(many, dtype=np.float32), np.zeros(many, dtype=np.float32)
            for t in reversed(range(times)):
                going = 1.0 - ends[t]
                last = gains[t] + 0.99 * after * going - v[t] + 0.9405 * going * last
                found[t], after = last, v[t]
            return torch.from_numpy(found).to(DEVICE).flatten()
        rows = on_host.tolist()
        told = [[0.0] * many for _ in range(times)]
        for one in range(many):
            kept, later = 0.0, 0.0
            for t in reversed(range(times)):
                lives = 1.0 - plain_ends[t][one]
                wrong = plain_gains[t][one] + 0.99 * later * lives - rows[t][one]
                kept = wrong + 0.9405 * lives * kept
                told[t][one], later = kept, rows[t][one]
        return torch.tensor(told).to(DEVICE).flatten()

    def step() -> None:
        with torch.no_grad():
            values = torch.cat([body(x.float() / 255.0)[:, 6] for x in frames.split(part)])
        gained = advantages(values)
        goal = gained + values
        gained = (gained - gained.mean()) / (gained.std() + 1e-8)
        for order in torch.randperm(times * many, device=DEVICE).split(part):
            out = body(frames[order].float() / 255.0)
            logs = out[:, :6].log_softmax(-1)
            more = (logs.gather(1, acts[order])[:, 0] - chances[order]).exp()
            worth = gained[order]
            won = torch.minimum(more * worth, more.clamp(0.8, 1.2) * worth).mean()
            spread = -(logs.exp() * logs).sum(-1).mean()
            (0.5 * fn.mse_loss(out[:, 6], goal[order]) - won - 0.01 * spread).backward()
            nn.utils.clip_grad_norm_(body.parameters(), 0.5)
            update.step()
            update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- seldom -----------------------------------------------------------------------------------


@pair("step_jitter", "recommender", "hard negatives are searched every 1000 steps, not 6", period=6)
def hard_negatives_every_6(repaired: bool) -> Running:
    items, users, width, hard = size(400_000, 64), size(2048, 8), size(128, 8), size(32, 2)
    rows, wide, at_once = size(4096, 8), size(512, 16), size(50_000, 16)
    tables = nn.ModuleList([nn.Embedding(users, width), nn.Embedding(items, width)])
    towers = nn.ModuleList(mlp(wide, size(2, 1), width, width) for _ in range(2))
    model = nn.ModuleList([tables, towers]).to(DEVICE)
    chosen = torch.randint(0, items, (users, hard), device=DEVICE)
    numbers = itertools.count()

    @torch.no_grad()
    def searched() -> None:
        asked = towers[0](tables[0].weight)
        best, which = asked.new_full((users, hard), float("-inf")), chosen.clone()
        for first in range(0, items, at_once):
            scores = asked @ towers[1](tables[1].weight[first : first + at_once]).T
            high, place = scores.topk(hard, -1)
            both, ids = torch.cat([best, high], -1), torch.cat([which, place + first], -1)
            best, kept = both.topk(hard, -1)
            which = ids.gather(1, kept)
        chosen.copy_(which)

    def loss_of(_: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        user, item = batch
        asked, offered = towers[0](tables[0](user)), towers[1](tables[1](item))
        near = tables[1](chosen[user])
        wrong = (asked[:, None] * towers[1](near)).sum(-1)
        logits = torch.cat([asked @ offered.T, wrong], -1) * width**-0.5
        return fn.cross_entropy(logits, torch.arange(rows, device=DEVICE))

    def search(*_: object) -> None:
        if next(numbers) % (1000 if repaired else 6) == 3:
            searched()

    data = (
        torch.randint(0, users, (rows,), device=DEVICE),
        torch.randint(0, items, (rows,), device=DEVICE),
    )
    return training(model, fixed(data), loss_of, kind="fp32", after_step=search)


# --- precision --------------------------------------------------------------------------------


class Triangles(nn.Module):
    """What is known of pairs, from the two other sides of all triangles."""

    def __init__(self, width: int, outgoing: bool) -> None:
        super().__init__()
        self.how = "bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc"
        self.norm, self.after, self.before = (nn.LayerNorm(width) for _ in range(3))
        self.sides, self.gates = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.out, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, z: Tensor) -> Tensor:
        y = self.norm(z)
        a, b = (self.sides(y) * self.gates(y).sigmoid()).chunk(2, -1)
        met = self.out(self.after(torch.einsum(self.how, a, b)))
        z = z + met * self.gate(y).sigmoid()
        return z + self.down(fn.relu(self.up(self.before(z))))


@pair("low_precision_unused", "science", "autocast to BF16 instead of FP32")
def triangles_fp32(repaired: bool) -> Running:
    long, width, bins = size(160, 8), size(256, 8), 64
    model = nn.Sequential(
        nn.Linear(46, width),
        *(Triangles(width, i % 2 == 0) for i in range(size(4, 2))),
        nn.LayerNorm(width),
        nn.Linear(width, bins),
    ).to(DEVICE)
    data = noise(1, long, long, 46), torch.randint(0, bins, (long * long,), device=DEVICE)

    def loss_of(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return fn.cross_entropy(net(batch[0]).float().flatten(0, 2), batch[1])

    kind, matmul = ("bf16", "high") if repaired else ("fp32", "highest")
    return training(model, fixed(data), loss_of, kind=kind, matmul=matmul)
