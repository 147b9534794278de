"""Programs of the thirteenth set: what the host asks, copies, computes and keeps in a step.

Most of a step are a few hundred large kernels. Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import io
from collections import deque
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import (
    DEVICE,
    Attends,
    Feeds,
    graphed,
    half,
    precision,
    size,
    transformer_layers,
)
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 219 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- cells of one day and of the next ---------------------------------------------------------


@pair(
    "host_sync",
    "transport",
    "the error of the plan stays on the device; all 40 rounds were needed in any case",
)
def cells_between_days_plan_asked(repaired: bool) -> Running:
    """Cells of two days are embedded so that moving the one onto the other costs little."""
    cells, genes, width, after = size(14_336, 24), size(2048, 16), size(2048, 16), size(128, 4)
    model = nn.Sequential(
        nn.Linear(genes, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
        nn.Linear(width, after),
    ).to(DEVICE)  # fmt: skip
    back = nn.Sequential(nn.Linear(after, width), nn.GELU(), nn.Linear(width, genes)).to(DEVICE)
    kinds = 3 * noise(64, genes)  # of cells
    counts = fn.softplus(kinds[labels(64, 2 * cells)] + noise(2 * cells, genes))
    share = torch.full((cells,), 1 / cells, device=DEVICE)
    update = adam(model, back)
    errors: deque[Tensor | float] = deque(maxlen=100)

    @torch.no_grad()
    def plan(cost: Tensor) -> Tensor:
        kernel = (cost * -4.0).exp_()
        left, right = share, torch.ones_like(share)
        for _ in range(size(40, 3)):
            rows = torch.mv(kernel, right)
            error = torch.dist(left * rows, share, 1)
            if repaired:
                errors.append(error)
            else:
                errors.append(error.item())
                if errors[-1] < 1e-9:
                    break
            left = share / rows
            right = share / torch.mv(kernel.t(), left)
        return kernel.mul_(left[:, None]).mul_(right)

    def step() -> None:
        with half("bf16"):
            h = model(counts)
            found = back(h)
        a, b = fn.normalize(h.float(), dim=1).chunk(2)
        cost = torch.addmm(a.new_ones(()), a, b.t(), alpha=-1.0)  # 1 less the cosine
        moved = torch.dot(plan(cost.detach()).flatten(), cost.flatten())
        loss = fn.mse_loss(found.float(), counts) + 0.1 * moved
        loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"), close=errors.clear)


# --- many tasks of one room -------------------------------------------------------------------


@pair(
    "host_sync",
    "multitask",
    "shares of conflicting gradients are computed on the device and not read as floats",
)
def indoor_tasks_conflicts_by_floats(repaired: bool) -> Running:
    """Six things are told of each patch of a room; what one task's gradient takes from another
    is projected out, at what the trunk gives (as in PCGrad)."""
    batch, patches, inside, width = size(36, 2), size(1024, 6), size(768, 12), size(768, 16)
    trunk = nn.Sequential(
        nn.Linear(inside, width), *transformer_layers(width, size(2, 1), size(12, 2)),
        nn.LayerNorm(width),
    ).to(DEVICE)  # fmt: skip
    wide, outs = size(1024, 16), (1, 3, 1, 3, 1, 4)
    heads = nn.ModuleList(
        nn.Sequential(
            nn.Linear(width, wide, bias=False), nn.GELU(), nn.Linear(wide, 8 * n, bias=False)
        )
        for n in outs
    ).to(DEVICE)  # fmt: skip
    x, update = noise(batch, patches, inside), adam(trunk, heads)
    true = [noise(batch, patches, 8 * n) for n in outs]

    def without_conflicts(grads: list[Tensor]) -> Tensor:
        """The sum of the gradients, each without what points against another one."""
        total = torch.zeros_like(grads[0])
        squares: list[Any] = [torch.dot(g, g) for g in grads]
        if not repaired:
            squares = [float(square) for square in squares]
        for i, own in enumerate(grads):
            g = own.clone()
            for j, other in enumerate(grads):
                if i == j:
                    continue
                if repaired:
                    against = torch.dot(g, other).clamp_(max=0.0).div_(squares[j])
                    g.addcmul_(other, against, value=-1.0)
                else:
                    against = min(float(torch.dot(g, other)), 0.0) / squares[j]
                    g.sub_(other, alpha=against)
            total.add_(g)
        return total

    def step() -> None:
        with half("bf16"):
            h = trunk(x)
        grads = []
        for head, y in zip(heads, true, strict=True):
            leaf = h.detach().requires_grad_()
            with half("bf16"):
                found = head(leaf)
            fn.smooth_l1_loss(found.float(), y).backward()
            assert leaf.grad is not None
            grads.append(leaf.grad.float().flatten())
        with torch.no_grad():
            gradient = without_conflicts(grads)
        h.backward(gradient.view(h.shape).to(h.dtype))
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- spectra of minerals ----------------------------------------------------------------------


class Unmixed(nn.Module):
    """Shares of pure materials in each pixel, and the pixel as their sum."""

    def __init__(self, bands: int, width: int, pure: int) -> None:
        super().__init__()
        self.shares = nn.Sequential(
            nn.Linear(bands, width), nn.LeakyReLU(0.1), nn.Linear(width, width), nn.LeakyReLU(0.1),
            nn.Linear(width, width), nn.LeakyReLU(0.1), nn.Linear(width, pure),
        )  # fmt: skip
        self.pure = nn.Linear(pure, bands, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.pure(self.shares(x).float().softmax(-1))


@pair(
    "blocking_copy",
    "spectra",
    "the archive's pixels lie in page-locked memory, and the copy does not wait",
)
def minerals_spectra_from_archive(repaired: bool) -> Running:
    """Pixels of 448 bands, from an array of the host into what a graph of both passes reads."""
    pixels, bands = size(32_768, 16), size(448, 12)
    model = Unmixed(bands, size(3072, 16), size(32, 4)).to(DEVICE)
    rng = np.random.default_rng(5)
    cube = rng.random((4 * pixels, bands), dtype=np.float32)
    archive = torch.from_numpy(cube)
    if repaired and CUDA:
        archive = archive.pin_memory()
    x, update, made = torch.zeros(pixels, bands, device=DEVICE), adam(model), 0

    def learn() -> None:
        update.zero_grad(set_to_none=True)  # the graph writes its gradients in place
        with half("bf16"):
            found = model(x).float()
        loss = 1 - fn.cosine_similarity(found, x, dim=1).mean() + 0.1 * fn.mse_loss(found, x)
        loss.backward()

    once = graphed(Running(learn, enter=precision("high")))

    def step() -> None:
        nonlocal made
        begin = made % 4 * pixels
        x.copy_(archive[begin : begin + pixels], non_blocking=repaired)
        once.step()
        update.step()
        made += 1

    return Running(step, enter=once.enter)


# --- heartbeats -------------------------------------------------------------------------------


class Beats(nn.Module):
    """Twelve leads in patches; what is to be clustered, and the classes of the last clusters."""

    def __init__(self, inside: int, places: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.into, self.place = nn.Linear(inside, width), nn.Parameter(torch.zeros(places, width))
        self.layers = nn.Sequential(*transformer_layers(width, layers, max(width // 64, 1)))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor, parts: int) -> tuple[Tensor, Tensor]:
        h = self.norm(self.layers(self.into(x) + self.place))
        h = h.view(len(h), parts, -1, h.shape[-1]).mean(2)
        return h, self.last(h)


@pair(
    "blocking_copy",
    "clustering",
    "the bank of features lies in page-locked memory, and the copy into it does not wait",
    marks="profiler",
)
def heartbeats_features_into_bank(repaired: bool) -> Running:
    """Features of an epoch are kept on the host, where they are clustered when it has ended."""
    batch, patches, inside, parts = size(512, 2), size(128, 8), size(480, 12), size(16, 2)
    width, classes = size(768, 16), size(1000, 5)
    model = Beats(inside, patches, width, size(2, 1), classes).to(DEVICE)
    x, y, update = noise(batch, patches, inside), labels(classes, batch * parts), adam(model)
    turns, made = 6, 0
    bank = torch.empty(turns * batch, parts, width, pin_memory=repaired and CUDA).fill_(0.0)

    def step() -> None:
        nonlocal made
        with half("bf16"):
            features, scores = model(x, parts)
            loss = fn.cross_entropy(scores.flatten(0, 1).float(), y)
        begin = made % turns * batch
        bank[begin : begin + batch].copy_(features.detach().float(), non_blocking=repaired)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update.step()
        update.zero_grad(set_to_none=True)
        made += 1

    return Running(step, enter=precision("high"))


# --- peptides ---------------------------------------------------------------------------------


class Crosses(nn.Module):
    """A residue looks at the peaks of its spectrum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.q = heads, nn.LayerNorm(width), nn.Linear(width, width)
        self.kv, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, peaks: Tensor) -> Tensor:
        b, t, d = x.shape
        q = self.q(self.norm(x)).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = self.kv(peaks).view(b, -1, 2, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


@pair(
    "host_compute",
    "proteomics",
    "fragments are matched every 500 steps, not in each",
)
def peptides_fragments_matched(repaired: bool) -> Running:
    """Residues of peptides from spectra; how many fragments of what is read are peaks."""
    batch, peaks, length, width = size(128, 3), size(384, 8), size(32, 4), size(768, 16)
    heads, kinds = size(12, 2), size(24, 6)
    reads = nn.Sequential(
        nn.Linear(64, width), *transformer_layers(width, size(3, 1), heads), nn.LayerNorm(width)
    )
    embed, cross = nn.Embedding(kinds, width), Crosses(width, heads)
    tells = nn.Sequential(
        Attends(width, heads, causal=True), Feeds(width), nn.LayerNorm(width),
        nn.Linear(width, kinds),
    )  # fmt: skip
    model = nn.ModuleList([reads, embed, cross, tells]).to(DEVICE)
    rng = np.random.default_rng(11)
    places = np.sort(rng.uniform(50.0, 4000.0, (batch, peaks)), axis=1)
    masses = rng.uniform(57.0, 187.0, kinds)
    waves = torch.from_numpy(places).to(DEVICE)[..., None] / torch.logspace(
        -2, 4, 32, dtype=torch.float64, device=DEVICE
    )
    x = torch.cat([waves.sin(), waves.cos()], -1).float()
    ids, update = labels(kinds, batch, length + 1), adam(model, weight_decay=0.01)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=CUDA, init_scale=2.0**10)
    kept: deque[float] = deque(maxlen=100)
    every, made = 500 if repaired else 1, 0

    def matched(read: np.ndarray) -> float:
        """The share of fragments of two charges, from either end, at a peak, less that at
        peaks of a decoy."""
        hits = 0
        for row, seen in zip(read, places, strict=True):
            ends = np.cumsum(masses[row]) + 1.007, np.cumsum(masses[row[::-1]]) + 19.018
            for charge in (1, 2):
                for end in ends:
                    fragments = (end + 1.007 * (charge - 1)) / charge
                    for peaks, sign in ((seen, 1), (seen + 11.3, -1)):
                        after = np.minimum(np.searchsorted(peaks, fragments), len(peaks) - 1)
                        near = np.abs(peaks[after] - fragments) < 0.5
                        hits += sign * int(np.count_nonzero(near))
        return hits / (4 * read.size)

    def step() -> None:
        nonlocal made
        with torch.autocast(DEVICE.type, torch.float16 if CUDA else torch.bfloat16):
            scores = tells(cross(embed(ids[:, :-1]), reads(x))).float()
        loss = fn.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.01)
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        update.zero_grad(set_to_none=True)
        made += 1
        if made % every == 0:
            kept.append(matched(scores.detach().argmax(-1).cpu().numpy()))

    return Running(step, enter=precision("high"), close=kept.clear)


# --- rain that might have fallen --------------------------------------------------------------


class Gated(nn.Module):
    """A residual layer of a gated MLP, told the time by a shift."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.gate = nn.Linear(width, wide, bias=False), nn.Linear(width, wide, bias=False)
        self.down = nn.Linear(wide, width, bias=False)

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        h = self.norm(x) + when
        return x + self.down(fn.silu(self.gate(h)) * self.up(h))


class Rain(nn.Module):
    def __init__(self, stations: int, width: int, wide: int, layers: int) -> None:
        super().__init__()
        self.into, self.time = nn.Linear(stations, width), nn.Linear(1, width)
        self.layers = nn.ModuleList(Gated(width, wide) for _ in range(layers))
        self.out = nn.Linear(width, stations)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h, when = self.into(x), self.time(t)
        for layer in self.layers:
            h = layer(h, when)
        return self.out(h)


@pair(
    "step_jitter",
    "generation",
    "made and measured rain are compared by kernels every 1000 steps, not every 6",
    period=6,
)
def rainfall_two_samples_every_6(repaired: bool) -> Running:
    """Daily rain at 512 stations is made out of noise; a test of two samples watches it."""
    days, stations = size(12_288, 12), size(512, 6)
    model = Rain(stations, size(1024, 16), size(2560, 16), size(5, 1)).to(DEVICE)
    rain, pool = noise(days, stations), noise(days, stations)
    update = adam(model, betas=(0.9, 0.95))
    watched: deque[Tensor] = deque(maxlen=50)
    every, made = 1000 if repaired else 6, 0

    @torch.no_grad()
    def likeness(a: Tensor, b: Tensor) -> Tensor:
        """The mean of kernels of four widths over all pairs of days."""
        lengths = a.square().sum(1)[:, None] + b.square().sum(1)
        apart = torch.addmm(lengths, a, b.t(), alpha=-2.0).div_(-2 * stations)
        total = torch.zeros((), device=DEVICE)
        for scale in (0.5, 1.0, 2.0, 4.0):
            total = total + (apart * scale).exp_().mean()
        return total

    def step() -> None:
        nonlocal made
        t, start = torch.rand(days, 1, device=DEVICE), torch.randn_like(rain)
        flow = model(torch.lerp(start, rain, t), t)
        loss = fn.mse_loss(flow, rain - start)
        loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)
        made += 1
        if made % every == 0:
            now = (start + flow).detach()
            same = likeness(now, now) + likeness(pool, pool)
            watched.append(same - 2 * likeness(now, pool))

    return Running(step, enter=precision("high"), close=watched.clear)


# --- what people wear -------------------------------------------------------------------------


class Strides(nn.Module):
    """Windows of many sensors: layers that all share, and those of whoever wears them."""

    def __init__(self, inside: int, width: int, layers: int, own: int, classes: int) -> None:
        super().__init__()
        self.shared = nn.Sequential(
            nn.Linear(inside, width), *transformer_layers(width, layers, max(width // 64, 1))
        )
        parts: list[nn.Module] = []
        for _ in range(own):
            parts += [nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()]
        self.own = nn.Sequential(*parts)
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.own(self.shared(x)).mean(1))


@pair(
    "cpu_offload",
    "wearables",
    "the layers of all wearers and their momenta stay on the GPU while another one has his turn",
    marks="steps",
)
def wearers_layers_rest_on_host(repaired: bool) -> Running:
    """Four wearers in turn, each with layers of his own, which are put aside afterwards."""
    batch, length, inside, width = size(176, 2), size(256, 6), size(96, 6), size(1024, 16)
    wearers, classes = 4, size(24, 3)
    model = Strides(inside, width, size(2, 1), size(3, 1), classes).to(DEVICE)
    x, y = noise(wearers, batch, length, inside), labels(classes, wearers, batch)
    update, own = sgd(model, weight_decay=1e-4), list(model.own.parameters())
    for p in model.parameters():
        update.state[p]["momentum_buffer"] = torch.zeros_like(p)
    here = [*own, *(update.state[p]["momentum_buffer"] for p in own)]
    rests = DEVICE if repaired else torch.device("cpu")
    aside = [[t.detach().to(rests, copy=True) for t in here] for _ in range(wearers)]
    made = 0

    def step() -> None:
        nonlocal made
        who = made % wearers
        with torch.no_grad():
            for t, kept in zip(here, aside[who], strict=True):
                t.copy_(kept)
        with half("bf16"):
            scores = model(x[who])
        loss = fn.cross_entropy(scores.float(), y[who], label_smoothing=0.1)
        loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)
        with torch.no_grad():
            for t, kept in zip(here, aside[who], strict=True):
                kept.copy_(t)
        made += 1

    return Running(step, enter=precision("high"), close=aside.clear)


# --- power grids ------------------------------------------------------------------------------


class Buses(nn.Module):
    """Each bus gets what its neighbours send, over a dense matrix of admittances."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.sends = nn.LayerNorm(width), nn.Linear(width, width, bias=False)
        self.feeds = Feeds(width)

    def forward(self, x: Tensor, lines: Tensor) -> Tensor:
        return self.feeds(x + torch.matmul(lines, self.sends(self.norm(x))))


@pair(
    "checkpoint_stall",
    "energy",
    "the state to go back to is written into memory every 1000 steps, not every 10",
    period=10,
)
def grids_rolled_back_every_10(repaired: bool) -> Running:
    """Voltages of grids; should the loss explode, the run goes back to the last written state."""
    grids, buses, inside, width = size(96, 2), size(640, 6), size(16, 4), size(512, 16)
    into, out = nn.Linear(inside, width), nn.Linear(width, 2)
    layers = nn.ModuleList(Buses(width) for _ in range(size(3, 1)))
    model = nn.ModuleList([into, layers, out]).to(DEVICE)
    x, y = noise(grids, buses, inside), noise(grids, buses, 2)
    lines = noise(grids, buses, buses).mul_(buses**-0.5).to(torch.bfloat16)
    update = adam(model, weight_decay=0.0)
    states: deque[io.BytesIO] = deque(maxlen=2)
    every = 1000 if repaired else 10

    def loss_of() -> Tensor:
        h = into(x)
        for layer in layers:
            h = layer(h, lines)
        return fn.mse_loss(out(h).float(), y)

    def keep(made: int, _loss: Tensor) -> None:
        if made % every == every - 2:
            written = io.BytesIO()
            with phase("save"):
                state = {"model": model.state_dict(), "optimizer": update.state_dict()}
                torch.save(state, written)
            states.append(written)

    run = fit(loss_of, update, clip=1.0, after=keep)
    return Running(run.step, run.enter, run.leave, states.clear, run.settle)
