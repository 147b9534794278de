"""Programs of the ninth set for one GPU: tables, graphs, molecules and what their hosts do.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import io
import itertools
import math
import multiprocessing
import queue
import random
import re
import threading
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import (
    DEVICE,
    Feeds,
    endless,
    graphed,
    made_optimizer,
    precision,
    resnet,
    size,
    transformer_layers,
)
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import DataLoader, Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 155 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


class Scattered(Dataset[Any]):
    """Always the same order, far from that of the list."""

    def __init__(self, given: Sequence[Any]) -> None:
        self.given = given

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> Any:
        return self.given[index * 7919 % len(self.given)]


class Hops:
    """Collates seeds: so many neighbours of each, and so many of each of these; as GraphSAGE."""

    def __init__(self, nodes: int, degree: int, fanouts: tuple[int, int]) -> None:
        draw = random.Random(0)
        # each row twice, so that a slice from any place on is long enough
        rows = [[int(draw.random() * nodes) for _ in range(degree)] for _ in range(nodes)]
        self.rows, self.degree, self.fanouts = [row + row for row in rows], degree, fanouts
        self.weights = [1.0 / (1 + node % 17) for node in range(nodes)]

    def __call__(self, seeds: list[int]) -> tuple[Tensor, ...]:
        draw = random.Random(seeds[0])
        frontier, found = seeds, [torch.tensor(seeds)]
        for fanout in self.fanouts:
            reached: list[int] = []
            for node in frontier:
                start = int(draw.random() * self.degree)
                reached.extend(self.rows[node][start : start + fanout])
            weights = np.array([self.weights[node] for node in reached], dtype=np.float32)
            found += [torch.from_numpy(np.array(reached)), torch.from_numpy(weights)]
            frontier = reached
        return tuple(found)


class Pools(nn.Module):
    """The largest of what the neighbours say, beside what the node says itself."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.says = nn.Sequential(
            nn.Linear(before, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.own, self.out = nn.Linear(before, width), nn.Linear(width, width)

    def forward(self, own: Tensor, near: Tensor, weights: Tensor) -> Tensor:
        told = self.says(near) * weights[:, None].to(torch.bfloat16)
        told = told.view(len(own), -1, told.shape[1]).amax(1)
        return fn.relu(self.own(own) + self.out(told))


@pair("input_starvation", "graph", "12 workers instead of 3 sample neighbours")
def papers_neighbours_three_workers(repaired: bool) -> Running:
    nodes, features, width = size(30_000, 64), size(256, 8), size(1024, 8)
    kinds, workers = size(172, 5), 12 if repaired else 3
    hops = Hops(nodes, size(24, 6), (size(15, 3), size(10, 2)))
    loader = DataLoader(
        Scattered(range(nodes)), size(512, 4), collate_fn=hops, num_workers=size(workers, 1),
        pin_memory=CUDA, persistent_workers=True, prefetch_factor=2,
    )  # fmt: skip
    batches = endless(loader)
    table, kind = noise(nodes, features).bfloat16(), labels(kinds, nodes)
    first, second = Pools(features, width).to(DEVICE), Pools(width, width).to(DEVICE)
    head, lift = nn.Linear(width, kinds).to(DEVICE), nn.Linear(features, width).to(DEVICE)

    def loss_of() -> Tensor:
        seeds, near, near_weights, far, far_weights = (
            part.to(DEVICE, non_blocking=True) for part in next(batches)
        )
        middle = first(table[near], table[far], far_weights)
        h = second(lift(table[seeds]), middle, near_weights)
        return fn.cross_entropy(head(h).float(), kind[seeds])

    update = adam(first, second, head, lift)
    return fit(loss_of, update, decay=True, settle=2 + 2 * workers)


PIECE = re.compile(
    r"(\[[^\]]+]|Br|Cl|N|O|S|P|F|I|b|c|n|o|s|p|C|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\*|\$|%[0-9]{2}|[0-9])"
)
ATOMS = ("C", "c", "N", "n", "O", "o", "S", "Cl", "Br", "F", "[nH]", "[C@@H]", "[C@H]", "[N+]")
OTHERS = ("(", ")", "=", "#", "-", "1", "2", "3", ".", "/")


def written_reactions(many: int, tokens: int) -> list[str]:
    """Lines of so many tokens."""
    draw = random.Random(0)
    half = tokens // 2
    return [
        "~".join("".join(draw.choices(ATOMS + OTHERS, k=half)) for _ in range(2))
        for _ in range(many)
    ]


def cut(text: str, numbers: dict[str, int]) -> tuple[list[int], list[int]]:
    """The tokens' numbers and, for each, in how many branches it stands."""
    tokens = PIECE.findall(text)
    assert text == "".join(tokens)
    depth, depths = 0, []
    for token in tokens:
        if token == "(":
            depth += 1
        elif token == ")" and depth:
            depth -= 1
        depths.append(min(depth, 7))
    return [numbers.get(token, 1) for token in tokens], depths


@pair(
    "input_starvation",
    "science",
    "all reactions are cut into tokens once, before the training, not by collate_fn",
    marks="profiler",
)
def reactions_cut_by_collate(repaired: bool) -> Running:
    batch, length, width = size(192, 2), size(160, 16), size(512, 16)
    numbers = {token: n + 2 for n, token in enumerate((*ATOMS, *OTHERS, "~"))}
    lines = written_reactions(size(2048, 8), length)
    given: list[Any] = lines
    if repaired:
        given = [torch.from_numpy(np.array(cut(line, numbers))) for line in lines]

    def collate(chosen: list[Any]) -> Tensor:
        if repaired:
            return torch.stack(chosen)
        rows = np.zeros((len(chosen), 2, length + 1), dtype=np.int64)
        for row, line in zip(rows, chosen, strict=True):
            ids, depths = cut(line, numbers)
            row[0, : len(ids)], row[1, : len(ids)] = ids, depths
        return torch.from_numpy(rows)

    loader = DataLoader(Scattered(given), batch, collate_fn=collate, pin_memory=CUDA)
    batches = endless(loader)
    embed, deep = nn.Embedding(size(64, 32), width), nn.Embedding(8, width)
    body = nn.Sequential(
        *transformer_layers(width, size(6, 1), size(8, 2), causal=True), nn.LayerNorm(width)
    )
    model = nn.ModuleList([embed, deep, body, nn.Linear(width, size(64, 32))]).to(DEVICE)
    weights = list(model.parameters())
    means = [p.detach().clone() for p in weights]

    def loss_of() -> Tensor:
        ids, depths = next(batches).to(DEVICE, non_blocking=True).unbind(1)
        scores = model[3](model[2](embed(ids[:, :-1]) + deep(depths[:, :-1])))
        return fn.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten())

    def average(_number: int, _loss: Tensor) -> None:
        with torch.no_grad():
            torch._foreach_lerp_(means, weights, 0.001)

    return fit(loss_of, adam(model), clip=1.0, after=average)


def concordance(times: list[float], events: list[bool], risks: list[float]) -> float:
    """The share of comparable pairs whose risks are in the order of their times."""
    right, comparable = 0.0, 0
    for i, j in itertools.permutations(range(len(times)), 2):
        if events[i] and times[i] < times[j]:
            comparable += 1
            if risks[i] > risks[j]:
                right += 1.0
            elif risks[i] == risks[j]:
                right += 0.5
    return right / max(comparable, 1)


class Visits(nn.Module):
    """How much at risk a patient is, by the codes of all visits."""

    def __init__(self, codes: int, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.codes, self.place = nn.Embedding(codes, width), nn.Embedding(length, width)
        self.body = nn.Sequential(*transformer_layers(width, depth, heads), nn.LayerNorm(width))
        self.head = nn.Linear(width, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.codes(ids) + self.place.weight).mean(1))[:, 0]


@pair(
    "host_compute",
    "science",
    "the concordance is counted on the GPU, all pairs at once, not by Python after each step",
)
def survival_concordance_by_python(repaired: bool) -> Running:
    patients, length, codes = size(320, 6), size(160, 6), size(12_000, 30)
    model = Visits(codes, size(320, 16), size(4, 1), size(5, 2), length).to(DEVICE)
    ids = labels(codes, patients, length)
    draw = random.Random(0)
    # the longest time first: those at risk at a time are all before it
    times = sorted((draw.expovariate(0.1) for _ in range(patients)), reverse=True)
    events = [draw.random() < 0.6 for _ in range(patients)]
    time, event = torch.tensor(times, device=DEVICE), torch.tensor(events, device=DEVICE)
    before = event[:, None] & (time[:, None] < time)
    curve: list[float] = []
    total = torch.zeros((), device=DEVICE)
    risks: list[Tensor] = []

    def loss_of() -> Tensor:
        risk = model(ids).float()
        risks[:] = [risk.detach()]
        return -((risk - risk.logcumsumexp(0)) * event).sum() / event.sum()

    def judge(_number: int, _loss: Tensor) -> None:
        (risk,) = risks
        if repaired:
            right = (risk[:, None] > risk).float() + 0.5 * (risk[:, None] == risk).float()
            total.add_((right * before).sum() / before.sum())
        else:
            curve.append(concordance(times, events, risk.tolist()))

    return fit(loss_of, adam(model, weight_decay=0.1), clip=1.0, after=judge)


def targets_of(index: Tensor, nodes: int | None) -> int:
    return int(index.max()) + 1 if nodes is None else nodes


def summed(x: Tensor, index: Tensor, nodes: int | None = None) -> Tensor:
    return x.new_zeros(targets_of(index, nodes), *x.shape[1:]).index_add(0, index, x)


def highest(x: Tensor, index: Tensor, nodes: int | None = None) -> Tensor:
    found = x.new_full((targets_of(index, nodes), x.shape[1]), -math.inf)
    return found.scatter_reduce(0, index[:, None].expand_as(x), x, "amax")


class Along(nn.Module):
    """Each node looks at where its edges come from; as a graph attention network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.asks, self.told = nn.Linear(width, heads), nn.Linear(width, heads)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, nodes: int | None) -> Tensor:
        h = self.norm(x)
        value = self.value(h).view(len(x), self.heads, -1)
        told = self.told(h).index_select(0, source)
        scores = fn.leaky_relu(told + self.asks(h).index_select(0, target), 0.2)
        scores = (scores - highest(scores.detach(), target, nodes).index_select(0, target)).exp()
        share = scores / summed(scores, target, nodes).index_select(0, target)
        found = summed(value.index_select(0, source) * share[..., None], target, nodes)
        return x + self.out(fn.elu(found.flatten(1)))


@pair(
    "host_sync",
    "graph",
    "the number of nodes is handed down; no layer asks the device for the largest index",
    marks="steps",
)
def proteins_edges_count_nodes(repaired: bool) -> Running:
    nodes, edges, width = size(9_000, 12), size(80_000, 40), size(128, 8)
    kinds = size(112, 4)
    into, head = nn.Linear(size(64, 8), width), nn.Linear(width, kinds)
    body = nn.ModuleList(Along(width, size(8, 2)) for _ in range(size(12, 2)))
    model = nn.ModuleList([into, body, head]).to(DEVICE)
    x, y = noise(nodes, size(64, 8)), (noise(nodes, kinds) > 1.0).float()
    own = torch.arange(nodes, device=DEVICE)
    source = torch.cat([labels(nodes, edges), own])
    target = torch.cat([labels(nodes, edges), own])
    told = nodes if repaired else None

    def loss_of() -> Tensor:
        h = into(x)
        for layer in body:
            h = layer(h, source, target, told)
        return fn.binary_cross_entropy_with_logits(head(h), y)

    return fit(loss_of, adam(model), bf16=False, clip=1.0)


@pair(
    "blocking_copy",
    "vision",
    "the memory of old pictures is page-locked, and its slices are copied with non_blocking=True",
    marks="phases",
)
def rehearsed_pictures_pageable(repaired: bool) -> Running:
    """Old pictures with the scores they once had, beside new ones; as dark experience replay."""
    side, new, old, kinds = size(128, 32), size(128, 2), size(256, 2), size(100, 5)
    model = resnet(size(64, 8), 2, kinds).to(DEVICE)
    pinned, many = repaired and CUDA, 4 * old
    # filled in a random order when a task ends; its slices are therefore random already
    pictures = torch.empty(many, 3, side, side, pin_memory=pinned)
    pictures.view(4, old, 3, side, side)[:] = torch.randn(old, 3, side, side)
    scores = torch.empty(many, kinds, pin_memory=pinned).normal_()
    kind = torch.empty(many, dtype=torch.long, pin_memory=pinned).random_(kinds)
    x, y = noise(new, 3, side, side), labels(kinds, new)
    turn = 0

    def loss_of() -> Tensor:
        nonlocal turn
        start = turn % 4 * old
        turn += 1
        with phase("get_batch"):
            past, said, true = (
                part[start : start + old].to(DEVICE, non_blocking=pinned)
                for part in (pictures, scores, kind)
            )
        found = model(torch.cat([x, past])).float()
        now, then = found[:new], found[new:]
        kept = 0.3 * fn.mse_loss(then, said) + 0.5 * fn.cross_entropy(then, true)
        return fn.cross_entropy(now, y) + kept

    return fit(loss_of, sgd(model), decay=True)


class Mixes(nn.Module):
    """Across the places, then across the channels; as an MLP-Mixer."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.across = nn.Sequential(
            nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places)
        )
        self.feeds = Feeds(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.feeds(x + self.across(self.norm(x).transpose(1, 2)).transpose(1, 2))


@pair(
    "cpu_offload",
    "series",
    "how much each weight mattered is added up on the device, not on the CPU",
)
def motions_importance_on_cpu(repaired: bool) -> Running:
    """Tasks one after the other; each weight's path is kept, as in synaptic intelligence."""
    batch, places, width, kinds = size(640, 2), size(128, 8), size(256, 16), size(60, 5)
    into, head = nn.Linear(size(72, 6), width), nn.Linear(width, kinds)
    body = nn.Sequential(*(Mixes(places, width) for _ in range(size(6, 2))), nn.LayerNorm(width))
    model = nn.ModuleList([into, body, head]).to(DEVICE)
    x, y = noise(batch, places, size(72, 6)), labels(kinds, batch)
    weights = list(model.parameters())
    where = DEVICE if repaired else torch.device("cpu")
    before = [p.detach().to(where, copy=True) for p in weights]
    path = [torch.zeros_like(p) for p in before]

    def loss_of() -> Tensor:
        return fn.cross_entropy(head(body(into(x)).mean(1)).float(), y)

    def account(_number: int, _loss: Tensor) -> None:
        with torch.no_grad():
            if repaired:
                moved = torch._foreach_sub(weights, before)
                torch._foreach_addcmul_(path, [p.grad for p in weights], moved, value=-1.0)
                torch._foreach_copy_(before, weights)
                return
            for p, old, total in zip(weights, before, path, strict=True):
                now, gradient = p.detach().cpu(), p.grad.cpu()
                total.addcmul_(gradient, now - old, value=-1.0)
                old.copy_(now)

    return fit(loss_of, adam(model), after=account)


@pair(
    "checkpoint_stall",
    "recommender",
    "model and optimizer are saved every 2000 steps, not every 8",
    period=8,
    others=("host_sync",),
)
def sessions_saved_every_8(repaired: bool) -> Running:
    """The next item of a session; FP16 with a scaled loss, which reads from the device."""
    items, width, hidden = size(60_000, 64), size(128, 8), size(512, 16)
    batch, length, many = size(512, 2), size(64, 4), size(4096, 8)
    embed, out = nn.Embedding(items, width), nn.Linear(hidden, width)
    memory = nn.GRU(width, hidden, 2, batch_first=True)
    model = nn.ModuleList([embed, memory, out]).to(DEVICE)
    update = torch.optim.Adagrad(model.parameters(), lr=0.01, foreach=True)
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=256.0, enabled=CUDA)
    ids, wrong = labels(items, batch, length + 1), labels(items, many)
    first = torch.zeros(batch * length, dtype=torch.long, device=DEVICE)
    kept: dict[str, bytes | memoryview] = {}
    made = 0

    def step() -> None:
        nonlocal made
        update.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.float16 if CUDA else torch.bfloat16):
            h = out(memory(embed(ids[:, :-1]))[0]).flatten(0, 1)
            right = (h * embed(ids[:, 1:]).flatten(0, 1)).sum(1, keepdim=True)
            scores = torch.cat([right.float(), (h @ embed(wrong).t()).float()], 1)
            loss = fn.cross_entropy(scores, first)
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        if made % (2000 if repaired else 8) == (1999 if repaired else 5):
            # the storage of the team takes bytes; none of them go to a disk here
            file = io.BytesIO()
            torch.save(
                {"step": made, "model": model.state_dict(), "optimizer": update.state_dict()}, file
            )
            kept["last"] = file.getbuffer()
        made += 1

    return Running(step, enter=precision("high"), close=kept.clear)


def judged(users: list[int], clicked: list[list[bool]]) -> Callable[[bytes], list[float]]:
    """For each task the area under the curve of each user, and the mean of them."""

    def judge(data: bytes) -> list[float]:
        values, n, found = array("f", data).tolist(), len(users), []
        for task, clicks in enumerate(clicked):
            lists: dict[int, list[tuple[float, bool]]] = defaultdict(list)
            for user, score, click in zip(
                users, values[task * n : (task + 1) * n], clicks, strict=True
            ):
                lists[user].append((score, click))
            total, counted = 0.0, 0
            for shown in lists.values():
                shown.sort()
                ranks, good = 0, 0
                for rank, (_score, click) in enumerate(shown, 1):
                    if click:
                        ranks += rank
                        good += 1
                if good and (bad := len(shown) - good):
                    total += (ranks - good * (good + 1) / 2) / (good * bad)
                    counted += 1
            found.append(total / max(counted, 1))
        return found

    return judge


class Aside:
    """What is handed over is judged in a thread of the program, or in a process."""

    def __init__(self, judge: Callable[[bytes], Any], *, process: bool) -> None:
        self.judge, self.process, self.last = judge, process, None
        if process:
            context = multiprocessing.get_context("fork")
            self.into, out = context.Pipe()
            self.worker: Any = context.Process(target=self.receive, args=(out,), daemon=True)
        else:
            # a few may wait; then the training does
            self.queue: queue.Queue[bytes | None] = queue.Queue(3)
            self.worker = threading.Thread(target=self.take, daemon=True)
        self.worker.start()
        if process:
            out.close()

    def receive(self, out: Any) -> None:
        self.into.close()  # so that the end of the parent is seen
        try:
            while data := out.recv_bytes():
                self.last = self.judge(data)
        except (EOFError, OSError):
            pass

    def take(self) -> None:
        while (data := self.queue.get()) is not None:
            self.last = self.judge(data)
            self.queue.task_done()

    def give(self, data: bytes) -> None:
        if self.process:
            self.into.send_bytes(data)
        else:
            self.queue.put(data)

    def idle(self) -> None:
        if not self.process:
            self.queue.join()

    def close(self) -> None:
        if self.process:
            self.worker.terminate()
        else:
            self.queue.put(None)
        self.worker.join(5.0)


class Extracts(nn.Module):
    """Experts of each task and of all; each task weighs its own and those; as in PLE."""

    def __init__(self, before: int, width: int, tasks: int, experts: int) -> None:
        super().__init__()
        self.shared, self.owns = (
            nn.ModuleList(
                nn.Sequential(nn.Linear(before, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
                for _ in range(n)
            )
            for n in (experts, tasks * experts)
        )
        self.gates = nn.ModuleList(nn.Linear(before, 2 * experts) for _ in range(tasks))
        self.experts = experts

    def forward(self, given: list[Tensor]) -> list[Tensor]:
        shared, found = [expert(given[-1]) for expert in self.shared], []
        for task, (gate, x) in enumerate(zip(self.gates, given, strict=False)):
            own = self.owns[task * self.experts : (task + 1) * self.experts]
            said = torch.stack([*shared, *(expert(x) for expert in own)], 1)
            found.append((gate(x).softmax(-1)[..., None] * said).sum(1))
        return [*found, torch.stack(shared, 1).mean(1)]


@pair(
    "gil_contention",
    "recommender",
    "the users' areas under the curve are computed by a process, not by a thread of the training",
    others=("launch_bound",),
    record=("--waits",),
)
def impressions_areas_in_thread(repaired: bool) -> Running:
    batch, tables, rows, dim = size(4096, 8), size(36, 3), size(20_000, 20), size(16, 4)
    tasks, width = 4, size(96, 8)
    bags = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(tables))
    body = nn.ModuleList(
        Extracts(before, width, tasks, size(4, 1)) for before in (tables * dim, width, width)
    )
    heads = nn.ModuleList(nn.Linear(width, 1) for _ in range(tasks))
    model = nn.ModuleList([bags, body, heads]).to(DEVICE)
    ids = labels(rows, tables, batch, 4)
    clicks = (torch.rand(tasks, batch, device=DEVICE) < 0.2).float()
    draw = random.Random(0)
    users = [int(draw.random() * batch / 16) for _ in range(batch)]
    aside = Aside(judged(users, clicks.bool().tolist()), process=repaired)
    said: list[Tensor] = []

    def loss_of() -> Tensor:
        x = torch.cat([bag(part) for bag, part in zip(bags, ids, strict=True)], 1)
        given = [x] * (tasks + 1)
        for part in body:
            given = part(given)
        scores = torch.cat([head(h) for head, h in zip(heads, given, strict=False)], 1).t()
        said[:] = [scores.detach()]
        return fn.binary_cross_entropy_with_logits(scores, clicks)

    def show(_number: int, _loss: Tensor) -> None:
        aside.give(said[0].contiguous().cpu().numpy().tobytes())

    run = fit(loss_of, adam(model), bf16=False, after=show)
    run.leave, run.close = aside.idle, aside.close
    return run


def alias_table(counts: list[int]) -> tuple[list[float], list[int]]:
    """From which each item is drawn by its popularity with two random numbers (Vose)."""
    n = len(counts)
    weights = [(count + 1.0) ** 0.75 for count in counts]
    total = sum(weights)
    scaled = [weight * n / total for weight in weights]
    keep, other = [1.0] * n, list(range(n))
    small = [i for i, share in enumerate(scaled) if share < 1.0]
    large = [i for i, share in enumerate(scaled) if share >= 1.0]
    while small and large:
        low, high = small.pop(), large.pop()
        keep[low], other[low] = scaled[low], high
        scaled[high] -= 1.0 - scaled[low]
        (small if scaled[high] < 1.0 else large).append(high)
    return keep, other


class Tower(nn.Module):
    """A vector of length one."""

    def __init__(self, before: int, width: int, out: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(before, width), nn.LayerNorm(width), nn.GELU(),
            nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, out),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return fn.normalize(self.layers(x).float(), dim=-1)


@pair(
    "step_jitter",
    "recommender",
    "the table that negatives are drawn from is made anew every 1000 steps, not every 6",
    period=6,
    marks="profiler",
)
def towers_alias_table_every_6(repaired: bool) -> Running:
    items, dim, batch, many = size(40_000, 64), size(128, 8), size(12_288, 4), size(8192, 8)
    bag, embed = nn.EmbeddingBag(items, dim, mode="mean"), nn.Embedding(items, dim)
    asks, told = (Tower(dim, size(1024, 16), size(256, 8)) for _ in range(2))
    model = nn.ModuleList([bag, embed, asks, told]).to(DEVICE)
    seen = labels(items, batch, size(40, 3))
    # most are for few items
    true = (torch.rand(batch, device=DEVICE).square() * items).long()
    counts = torch.zeros(items, dtype=torch.long, device=DEVICE)
    ones, first = torch.ones_like(true), torch.zeros_like(true)
    keep, other = torch.zeros(items, device=DEVICE), torch.zeros_like(counts)

    def popular() -> None:
        kept, others = alias_table(counts.tolist())
        keep.copy_(torch.tensor(kept))
        other.copy_(torch.tensor(others))

    popular()

    def loss_of() -> Tensor:
        counts.index_add_(0, true, ones)
        place = (torch.rand(many, device=DEVICE) * items).long()
        drawn = torch.where(torch.rand(many, device=DEVICE) < keep[place], place, other[place])
        user, item, wrong = asks(bag(seen)), told(embed(true)), told(embed(drawn))
        right = (user * item).sum(1, keepdim=True)
        scores = torch.cat([right, (user @ wrong.t()).float()], 1) / 0.05
        return fn.cross_entropy(scores, first)

    def renew(number: int, _loss: Tensor) -> None:
        if number % (1000 if repaired else 6) == (999 if repaired else 4):
            popular()

    return fit(loss_of, adam(model), after=renew)


def dense(before: int, width: int, out: int) -> nn.Module:
    parts: list[nn.Module] = []
    for _ in range(3):
        parts += [nn.Linear(before, width), nn.LayerNorm(width), nn.ReLU()]
        before = width
    return nn.Sequential(*parts, nn.Linear(width, out))


@pair("launch_bound", "rl", "the whole step is one CUDA graph")
def truncated_critics_graph(repaired: bool) -> Running:
    """Five critics of 25 quantiles each, the highest cut off; as truncated quantile critics."""
    sees, does, width, critics, parts = size(64, 5), size(16, 2), size(512, 16), size(5, 2), 25
    batch, stored, cut_off = size(512, 4), size(100_000, 32), 2 * critics
    actor = dense(sees, width, 2 * does).to(DEVICE)
    online, target = (
        nn.ModuleList(dense(sees + does, width, parts) for _ in range(critics)).to(DEVICE)
        for _ in range(2)
    )
    target.load_state_dict(online.state_dict())
    target.requires_grad_(False)
    heat = nn.Parameter(torch.zeros((), device=DEVICE))
    updates = [
        made_optimizer(p, "graph") for p in (online.parameters(), actor.parameters(), [heat])
    ]
    olds, news = list(target.parameters()), list(online.parameters())
    states, nexts = noise(stored, sees), noise(stored, sees)
    actions, gains = noise(stored, does).tanh(), noise(stored, 1)
    middles = (torch.arange(parts, device=DEVICE) + 0.5) / parts

    def acts(state: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = actor(state).chunk(2, -1)
        spread = spread.clamp(-5, 2)
        random_part = torch.randn_like(mean)
        raw = mean + random_part * spread.exp()
        odds = -0.5 * random_part.square() - spread - 0.91893853
        odds = odds - 2 * (math.log(2) - raw - fn.softplus(-2 * raw))
        return raw.tanh(), odds.sum(-1, keepdim=True)

    def worth(nets: nn.ModuleList, state: Tensor, action: Tensor) -> Tensor:
        given = torch.cat([state, action], -1)
        return torch.stack([net(given) for net in nets], 1)

    def step() -> None:
        chosen = torch.randint(stored, (batch,), device=DEVICE)
        state, later, action, gain = states[chosen], nexts[chosen], actions[chosen], gains[chosen]
        warmth = heat.detach().exp()
        with torch.no_grad():
            following, odds = acts(later)
            ends = worth(target, later, following).flatten(1).sort(-1).values[:, :-cut_off]
            goal = gain + 0.99 * (ends - warmth * odds)
        updates[0].zero_grad(set_to_none=True)
        found = worth(online, state, action)
        off = goal[:, None, None] - found[..., None]
        huber = fn.huber_loss(off, torch.zeros_like(off), reduction="none")
        ((middles[:, None] - (off < 0).float()).abs() * huber).mean().backward()
        updates[0].step()
        updates[1].zero_grad(set_to_none=True)
        action, odds = acts(state)
        (warmth * odds - worth(online, state, action).mean((1, 2))[:, None]).mean().backward()
        updates[1].step()
        updates[2].zero_grad(set_to_none=True)
        (-heat * (odds.detach() - does).mean()).backward()
        updates[2].step()
        with torch.no_grad():
            torch._foreach_lerp_(olds, news, 0.005)

    run = Running(step, enter=precision("high"))
    return graphed(run) if repaired else run


@pair(
    "allocator_churn",
    "science",
    "empty_cache() between scoring the designs and learning from them is removed",
    marks="steps",
)
def designed_proteins_empty_cache(repaired: bool) -> Running:
    """A policy that writes proteins learns from rewards, not far from where it began; as PPO."""
    batch, length, width, depth, kinds = size(64, 2), size(320, 8), size(768, 16), size(4, 1), 32

    def writer() -> nn.Module:
        parts = transformer_layers(width, depth, size(12, 2), causal=True)
        return nn.Sequential(
            nn.Embedding(kinds, width), *parts, nn.LayerNorm(width), nn.Linear(width, kinds)
        )

    model, origin = writer().to(DEVICE), writer().to(DEVICE)
    origin.load_state_dict(model.state_dict())
    origin.requires_grad_(False)
    update = adam(model, betas=(0.9, 0.95))
    ids, rewards = labels(kinds, batch, length + 1), noise(batch, 1)

    def odds(net: nn.Module) -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            scores = net(ids[:, :-1])
        found = scores.float().log_softmax(-1)
        return found.gather(-1, ids[:, 1:, None])[..., 0]

    def step() -> None:
        with torch.no_grad():
            old, far = odds(model), odds(origin)
            gain = rewards - 0.05 * (old - far)
            gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        if not repaired and CUDA:
            torch.cuda.empty_cache()  # so that learning has all of the memory
        for _ in range(2):
            share = (odds(model) - old).exp()
            loss = -torch.minimum(share * gain, share.clamp(0.8, 1.2) * gain).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            update.step()
            update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


class Columns(nn.Module):
    """A token for each column of a table; as the FT-Transformer."""

    def __init__(self, numbers: int, kinds: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.randn(numbers, width) * 0.1) for _ in "ab")
        self.kinds = nn.Embedding(kinds, width)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.body = nn.Sequential(*transformer_layers(width, depth, heads), nn.LayerNorm(width))
        self.head = nn.Linear(width, 1)

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        given = numbers[..., None] * self.scale + self.shift
        first = self.first.expand(len(numbers), -1, -1)
        return self.head(self.body(torch.cat([first, given, self.kinds(kinds)], 1))[:, 0])[:, 0]


@pair(
    "unfused_optimizer",
    "tabular",
    "the rate is a number and AdamW is fused; for a rate that is a tensor PyTorch takes the loop",
)
def columns_rate_is_a_tensor(repaired: bool) -> Running:
    batch, numbers, kinds = size(704, 4), size(28, 3), size(12, 2)
    model = Columns(numbers, size(3000, 20), size(192, 16), size(10, 2), size(6, 2)).to(DEVICE)
    x, ids, y = noise(batch, numbers), labels(size(3000, 20), batch, kinds), noise(batch)
    how: dict[str, Any] = {"lr": 1e-4, "fused": True} if repaired else {"lr": torch.tensor(1e-4)}
    update = torch.optim.AdamW(model.parameters(), weight_decay=1e-5, **how)

    def loss_of() -> Tensor:
        return fn.smooth_l1_loss(model(x, ids).float(), y)

    return fit(loss_of, update)


class Histories(nn.Module):
    """What a user likes, of all items, by what was liked; as Mult-VAE."""

    def __init__(self, items: int, width: int, inner: int) -> None:
        super().__init__()
        self.into, self.middle = nn.Linear(items, width), nn.Linear(width, 2 * inner)
        self.back, self.out = nn.Linear(inner, width), nn.Linear(width, items)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = fn.dropout(fn.normalize(x), 0.5)
        mean, spread = self.middle(self.into(h).tanh()).float().chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        return self.out(self.back(z).tanh()), mean, spread


@pair(
    "fusion_opportunity",
    "recommender",
    "torch.nn.functional.log_softmax instead of the same written out",
    marks="phases",
)
def liked_items_softmax_written(repaired: bool) -> Running:
    items, batch = size(24_000, 40), size(3072, 4)
    model = Histories(items, size(600, 16), size(200, 8)).to(DEVICE)
    x = (torch.rand(batch, items, device=DEVICE) < 0.01).float()

    def loss_of() -> Tensor:
        scores, mean, spread = model(x)
        scores = scores.float()
        if repaired:
            odds = fn.log_softmax(scores, 1)
        else:
            scores = scores - scores.detach().amax(1, keepdim=True)
            odds = scores - scores.exp().sum(1, keepdim=True).log()
        away = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        return -(odds * x).sum(1).mean() + 0.2 * away

    return fit(loss_of, adam(model), decay=True)
