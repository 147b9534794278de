"""Programs of the eighth set whose fault comes back every few steps; PyTorch and NumPy only."""

from __future__ import annotations

import gc
import itertools
import random
from collections import deque
from typing import Any

import numpy as np
import torch
from fourth_programs import noise
from models import DEVICE, done, half, precision, size
from program import Program, Running
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 159 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- what is kept of the state ----------------------------------------------------------------


class Dilated(nn.Module):
    """Gated convolutions that look further and further back; as in WaveNet."""

    def __init__(self, width: int, layers: int, levels: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding=2**n, dilation=2**n) for n in range(layers)
        )
        self.outs = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))
        self.last = nn.Sequential(
            nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, levels, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        told = torch.zeros_like(x)
        for gate, out in zip(self.gates, self.outs, strict=True):
            a, b = gate(x).chunk(2, 1)
            stay, tell = out(a.tanh() * b.sigmoid()).chunk(2, 1)
            x, told = x + stay, told + tell
        return self.last(told)


class Beside:
    """The newest copy of tensors in page-locked memory, made while the device goes on."""

    def __init__(self) -> None:
        self.stream: Any = torch.cuda.Stream() if CUDA else None
        self.clones: list[Tensor] = []
        self.hosts: list[Tensor] = []

    @torch.no_grad()
    def keep(self, values: list[Tensor]) -> None:
        if not self.clones:
            self.clones = [torch.empty_like(v) for v in values]
            self.hosts = [torch.empty(v.shape, dtype=v.dtype, pin_memory=CUDA) for v in values]
        if self.stream is None:
            torch._foreach_copy_(self.hosts, values)
            return
        now = torch.cuda.current_stream()
        now.wait_stream(self.stream)  # the clones of the last time were sent
        torch._foreach_copy_(self.clones, values)
        self.stream.wait_stream(now)
        with torch.cuda.stream(self.stream):
            for host, clone in zip(self.hosts, self.clones, strict=True):
                host.copy_(clone, non_blocking=True)


@pair(
    "checkpoint_stall",
    "audio",
    "weights and moments are cloned, and a stream copies them to page-locked buffers that stay",
    period=8,
)
def dilated_speech_kept_every_8(repaired: bool) -> Running:
    """The last good state is kept on the host, to go back to when the loss explodes."""
    levels, batch, length = size(256, 16), size(4, 2), size(4096, 256)
    model = Dilated(size(512, 8), size(10, 3), levels).to(DEVICE)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=2e-4, fused=True)
    x = torch.rand(batch, 1, length, device=DEVICE) * 2 - 1
    y = ((x[:, 0] + 1) / 2 * (levels - 1)).round().long()
    beside = Beside()
    good: dict[str, list[Tensor]] = {}
    made = 0

    def keep() -> None:
        moments = [optimizer.state[p][name] for p in weights for name in ("exp_avg", "exp_avg_sq")]
        if repaired:
            beside.keep([*weights, *moments])
            return
        good["weights"] = [p.detach().cpu() for p in weights]
        good["moments"] = [moment.cpu() for moment in moments]

    def step() -> None:
        nonlocal made
        with half("bf16"):
            out = model(x)
        fn.cross_entropy(out[..., :-1].float(), y[:, 1:]).backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        done(optimizer)
        made += 1
        if made % 8 == 6:
            keep()

    return Running(step, enter=precision("high"))


# --- what is looked at ------------------------------------------------------------------------


class Notes(nn.Module):
    """A recurrent model of notes."""

    def __init__(self, notes: int, width: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(notes, width), nn.Linear(width, notes)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, dropout=0.2)

    def forward(self, ids: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        h, state = self.lstm(self.embed(ids), state)
        return self.head(h), state

    @torch.no_grad()
    def played(self, phrases: int, length: int, heat: float) -> Tensor:
        """Phrases that begin with the first note."""
        self.eval()
        ids = torch.zeros(phrases, 1, dtype=torch.long, device=DEVICE)
        heard, state = [ids], None
        for _ in range(length):
            out, state = self(ids, state)
            ids = torch.multinomial((out[:, -1] / heat).softmax(-1), 1)
            heard.append(ids)
        self.train()
        return torch.cat(heard, 1)


@pair(
    "step_jitter",
    "audio",
    "phrases are played every 1000 steps, not every 8",
    period=8,
    marks="profiler",
)
def notes_played_every_8(repaired: bool) -> Running:
    notes, batch, length = size(388, 24), size(96, 2), size(192, 8)
    model = Notes(notes, size(768, 16)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    ids = torch.randint(0, notes, (batch, length + 1), device=DEVICE)
    phrases: list[list[int]] = []
    made, every = 0, 1000 if repaired else 8

    def step() -> None:
        nonlocal made
        out, _ = model(ids[:, :-1])
        fn.cross_entropy(out.flatten(0, 1), ids[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        done(optimizer)
        made += 1
        if made % every == every - 1:
            phrases[:] = model.played(4, size(144, 4), 0.9).tolist()

    return Running(step, enter=precision("high"))


def area(scores: np.ndarray[Any, Any], clicked: np.ndarray[Any, Any]) -> float:
    """The area under the curve, from the ranks of what was clicked."""
    order = scores.argsort(kind="stable")
    ranks = np.empty(len(scores), np.float64)
    ranks[order] = np.arange(1, len(scores) + 1)
    yes = int(clicked.sum())
    no = len(clicked) - yes
    if not yes or not no:
        return 0.5
    return float((ranks[clicked].sum() - yes * (yes + 1) / 2) / (yes * no))


class Crossed(nn.Module):
    """Products of all features with the first ones, beside a tower; as in DCN."""

    def __init__(self, fields: int, rows: int, width: int, dense: int, hidden: int) -> None:
        super().__init__()
        n = fields * width + dense
        self.rows = nn.Embedding(fields * rows, width)
        self.register_buffer("first", torch.arange(fields) * rows)
        self.crosses = nn.ModuleList(nn.Linear(n, n) for _ in range(3))
        self.tower = nn.Sequential(
            nn.Linear(n, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(n + hidden, 1)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        x = torch.cat([self.rows(ids + self.first).flatten(1), dense], 1)
        h = x
        for cross in self.crosses:
            h = h + x * cross(h)
        return self.head(torch.cat([h, self.tower(x)], 1))[:, 0]


@pair(
    "step_jitter",
    "recommender",
    "areas under the curve of all slots are computed every 1000 steps, not every 6",
    period=6,
)
def slots_areas_every_6(repaired: bool) -> Running:
    fields, rows, dense, batch = size(26, 3), size(40_000, 20), 16, size(16_384, 32)
    model = Crossed(fields, rows, 16, dense, size(1024, 16)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    rng = np.random.default_rng(0)
    clicked = rng.random(batch) < 0.2
    slots = rng.integers(0, size(24, 2), batch)
    ids, x = torch.randint(0, rows, (batch, fields), device=DEVICE), noise(batch, dense)
    y = torch.from_numpy(clicked).to(DEVICE, torch.float32)
    lately: deque[Tensor] = deque(maxlen=6)
    log: deque[dict[int, float]] = deque(maxlen=100)
    made, every = 0, 1000 if repaired else 6

    def look() -> None:
        scores = torch.cat(list(lately)).cpu().numpy()
        right, of = np.tile(clicked, len(lately)), np.tile(slots, len(lately))
        found = {}
        for slot in range(int(slots.max()) + 1):
            among = of == slot
            found[slot] = area(scores[among], right[among])
        log.append(found)

    def step() -> None:
        nonlocal made
        out = model(ids, x)
        fn.binary_cross_entropy_with_logits(out, y).backward()
        done(optimizer)
        lately.append(out.detach())
        made += 1
        if made % every == every - 2:
            look()

    return Running(step, enter=precision("high"))


class Beats(nn.Module):
    """Residual convolutions over the leads of an electrocardiogram."""

    def __init__(self, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        sizes = [width, width, 2 * width, 3 * width, 4 * width]
        self.stem = nn.Conv1d(12, width, 15, 2, 7)
        self.downs = nn.ModuleList(
            nn.Conv1d(a, b, 4, 4) if a != b else nn.Conv1d(a, b, 1)
            for a, b in itertools.pairwise(sizes)
        )
        self.levels = nn.ModuleList(
            nn.ModuleList(self.block(after) for _ in range(depth)) for after in sizes[1:]
        )
        self.head = nn.Linear(sizes[-1], kinds)

    @staticmethod
    def block(width: int) -> nn.Module:
        parts: list[nn.Module] = []
        for _ in range(2):
            parts += [
                nn.BatchNorm1d(width), nn.ReLU(),
                nn.Conv1d(width, width, 9, padding=4, bias=False),
            ]  # fmt: skip
        return nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for down, level in zip(self.downs, self.levels, strict=True):
            h = down(h)
            for block in level:
                h = h + block(h)
        return self.head(h.mean(-1))


@pair(
    "host_sync",
    "science",
    "norms of all gradients and weights are multi-tensor ones, stay there, and are read every 1000",
    period=4,
    marks="steps",
)
def beats_ratios_every_4(repaired: bool) -> Running:
    kinds, batch, length = size(71, 5), size(32, 2), size(4096, 1024)
    model = Beats(size(128, 8), size(5, 1), kinds).to(DEVICE)
    weights = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-3, weight_decay=0.01, fused=True)
    x, y = noise(batch, 12, length), (torch.rand(batch, kinds, device=DEVICE) < 0.1).float()
    log: deque[dict[str, tuple[float, ...]]] = deque(maxlen=100)
    there: list[Tensor] = []
    made = 0

    def looked() -> None:
        """How large gradients are beside their weights, and the largest number in each."""
        log.append(
            {
                name: ((p.grad.norm() / p.norm()).item(), p.grad.abs().max().item())
                for name, p in weights.items()
                if p.grad is not None
            }
        )

    def looked_there() -> None:
        grads = [p.grad for p in weights.values()]
        whole = torch.stack(torch._foreach_norm(grads))
        ratios = whole / torch.stack(torch._foreach_norm(list(weights.values())))
        there.append(torch.stack([ratios, torch.stack(torch._foreach_norm(grads, float("inf")))]))

    def step() -> None:
        nonlocal made
        fn.binary_cross_entropy_with_logits(model(x), y).backward()
        made += 1
        if made % 4 == 3:
            with torch.no_grad():
                (looked_there if repaired else looked)()
        done(optimizer)
        if made % 1000 == 0 and there:
            for values in torch.stack(there).tolist():
                log.append(dict(zip(weights, zip(*values, strict=True), strict=True)))
            there.clear()

    return Running(step, enter=precision("high"))


# --- garbage ----------------------------------------------------------------------------------


class Moment:
    """What the memory of an agent knows of a moment; the numbers are on the device."""

    __slots__ = ("at", "before", "seen", "tags")

    def __init__(self, at: int, before: Moment | None) -> None:
        self.at, self.before, self.seen = at, before, 0
        self.tags = [f"episode {at // 200}", at % 200]


class Critics(nn.Module):
    """Many critics at once: their weights are stacked; as in REDQ."""

    def __init__(self, critics: int, inside: int, width: int) -> None:
        super().__init__()
        sizes = [inside, width, width, width, 1]
        self.weights = nn.ParameterList(
            torch.randn(critics, a, b) * (2 / a) ** 0.5 for a, b in itertools.pairwise(sizes)
        )
        self.biases = nn.ParameterList(torch.zeros(critics, 1, b) for b in sizes[1:])

    def forward(self, x: Tensor) -> Tensor:
        h = x.expand(len(self.weights[0]), -1, -1)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, fn.relu(h) if number else h, weight)
        return h[..., 0]


@pair(
    "step_jitter",
    "rl",
    "gc.freeze(): what stays is not walked through by the gc.collect() of every 7 steps",
    period=7,
    record=("--gc",),
)
def critics_gc_every_7(repaired: bool) -> Running:
    """Automatic collections are off; the loop collects by itself."""
    seen, acts, batch, critics = size(52, 6), size(12, 2), size(4096, 8), size(10, 2)
    chance = random.Random(0)
    memory: list[Moment] = []
    for at in range(size(30_000, 50)):
        memory.append(Moment(at, memory[-1] if at % 200 else None))
    states, done_ = noise(len(memory), seen), torch.rand(len(memory), device=DEVICE) < 0.01
    actions, rewards = noise(len(memory), acts).tanh(), noise(len(memory))
    both, width = seen + acts, size(1024, 16)
    now, late = Critics(critics, both, width).to(DEVICE), Critics(critics, both, width).to(DEVICE)
    late.load_state_dict(now.state_dict())
    late.requires_grad_(False)
    policy = nn.Sequential(
        nn.Linear(seen, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 2 * acts),
    ).to(DEVICE)  # fmt: skip
    judging = torch.optim.Adam(now.parameters(), lr=3e-4, fused=True)
    acting = torch.optim.Adam(policy.parameters(), lr=3e-4, fused=True)
    made = 0

    def act(state: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = policy(state).chunk(2, -1)
        spread = spread.clamp(-5, 2)
        drawn = torch.randn_like(mean)
        odds = (-0.5 * drawn.square() - spread).sum(-1)
        return (mean + drawn * spread.exp()).tanh(), odds

    def step() -> None:
        nonlocal made
        chosen = chance.choices(memory, k=batch)
        for moment in chosen:
            moment.seen += 1
        at = torch.tensor([moment.at for moment in chosen])
        at = (at.pin_memory() if CUDA else at).to(DEVICE, non_blocking=True)
        state, after = states[at], states[(at + 1) % len(states)]
        with torch.no_grad():
            action, odds = act(after)
            least = late(torch.cat([after, action], -1))[:2].amin(0)
            goal = rewards[at] + 0.99 * (least - 0.1 * odds).masked_fill(done_[at], 0.0)
        found = now(torch.cat([state, actions[at]], -1))
        fn.mse_loss(found, goal.expand_as(found)).backward()
        done(judging)
        action, odds = act(state)
        (0.1 * odds - now(torch.cat([state, action], -1)).mean(0)).mean().backward()
        done(acting)
        now.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(list(late.parameters()), list(now.parameters()), 0.005)
        made += 1
        if made % 7 == 5:
            gc.collect()

    enter_precision = precision("high")

    def enter() -> None:
        enter_precision()
        gc.disable()
        if repaired:
            gc.freeze()

    def leave() -> None:
        if repaired:
            gc.unfreeze()
        gc.enable()

    return Running(step, enter=enter, leave=leave)
