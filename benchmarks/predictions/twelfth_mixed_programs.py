"""A twelfth set for one GPU: seven programs of few and large kernels that the device paces.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, precision, size
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint_sequential

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 222 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
SHORT = torch.bfloat16


# --- keypoints of two pictures --------------------------------------------------------------------


class Looks(nn.Module):
    """Keypoints look at those of their own picture, or at those of its partner."""

    def __init__(self, width: int, heads: int, *, across: bool, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.across, self.by_hand = heads, across, by_hand
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asks, self.tells = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def seen(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.by_hand:
            scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / q.shape[-1] ** 0.5
            return torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v)
        y = fn.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)))
        return y.transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        own = self.norm1(x)
        other = own.view(-1, 2, n, d).flip(1).view(b, n, d) if self.across else own
        q = self.asks(own).view(b, n, self.heads, -1)
        k, v = self.tells(other).view(b, n, 2, self.heads, -1).unbind(2)
        x = x + self.out(self.seen(q, k, v).reshape(b, n, d))
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


class Matcher(nn.Module):
    """How likely a keypoint of the first picture is each one of the second."""

    def __init__(self, inside: int, width: int, heads: int, layers: int, *, by_hand: bool) -> None:
        super().__init__()
        self.into, self.place = nn.Linear(inside, width), nn.Linear(2, width)
        self.layers = nn.Sequential(
            *(Looks(width, heads, across=i % 2 == 1, by_hand=by_hand) for i in range(layers))
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, found: Tensor, places: Tensor) -> Tensor:
        h = self.layers(self.into(found) + self.place(places))
        first, second = self.out(self.norm(h)).unflatten(0, (-1, 2)).unbind(1)
        return first @ second.transpose(1, 2) / 16.0


@pair(
    "unfused_attention",
    "vision",
    "scaled_dot_product_attention, where two einsums and a softmax were",
)
def keypoints_matched_by_einsums(repaired: bool) -> Running:
    """Keypoints of two pictures look at each other until it is clear which belong together."""
    pairs, points, width, heads = size(8, 2), size(1024, 12), size(1536, 32), size(12, 2)
    model = Matcher(size(256, 16), width, heads, size(3, 2), by_hand=not repaired)
    model = model.to(DEVICE, SHORT)
    found = noise(2 * pairs, points, size(256, 16)).to(SHORT)
    places = torch.rand(2 * pairs, points, 2, device=DEVICE).to(SHORT)
    same = torch.arange(points, device=DEVICE).repeat(pairs)

    def loss_of() -> Tensor:
        scores = model(found, places).float()
        there = fn.cross_entropy(scores.flatten(0, 1), same)
        return there + fn.cross_entropy(scores.transpose(1, 2).flatten(0, 1), same)

    return fit(loss_of, adam(model), bf16=False)


# --- a body, from what X-rays left of it ----------------------------------------------------------

TURNS, NARROW = 6.0, 2.0


def wavelet(x: Tensor) -> Tensor:
    """A wave under a bell, as in networks of wavelets."""
    return torch.cos(TURNS * x) * torch.exp(-(NARROW * x).square())


class Body(nn.Module):
    """How dense a body is at a place; one network for one body."""

    def __init__(self, width: int, layers: int, *, merged: bool) -> None:
        super().__init__()
        self.into = nn.Linear(3, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.out = nn.Linear(width, 1)
        self.act = torch.compile(wavelet, dynamic=False) if merged else wavelet

    def forward(self, places: Tensor) -> Tensor:
        h = fn.silu(self.into(places))
        for layer in self.layers:
            h = self.act(layer(h))
        return fn.softplus(self.out(h))[..., 0]


@pair(
    "fusion_opportunity",
    "science",
    "torch.compile of the function that is the wavelet",
    compiles=True,
    marks="steps",
)
def bodies_by_wavelets_compile(repaired: bool) -> Running:
    rays, samples, width = size(512, 8), size(48, 4), size(2048, 16)
    model = Body(width, size(4, 2), merged=repaired).to(DEVICE)
    starts, ends = 2 * torch.rand(2, rays, 1, 3, device=DEVICE) - 1
    left = torch.rand(rays, device=DEVICE)
    middle = (torch.arange(samples, device=DEVICE)[:, None] + 0.5) / samples

    def loss_of() -> Tensor:
        shift = (torch.rand(rays, samples, 1, device=DEVICE) - 0.5) / samples
        dense = model(starts + (ends - starts) * (middle + shift))
        return fn.mse_loss(torch.exp(-dense.mean(1)), left)

    return fit(loss_of, adam(model), bf16=False)


# --- the next minutes of a power grid -------------------------------------------------------------


class Linearised(nn.Module):
    """States of a grid in which time is a matrix; as in Koopman's theory."""

    def __init__(self, buses: int, width: int) -> None:
        super().__init__()
        self.into = nn.Sequential(
            nn.Linear(buses, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, width),
        )  # fmt: skip
        self.back = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, buses),
        )  # fmt: skip
        self.advance = nn.Parameter(torch.eye(width) + 0.01 * torch.randn(width, width))

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is expected of each later minute, and it and the truth as linear states."""
        true = self.into(states)
        with torch.autocast(DEVICE.type, enabled=False):  # errors would grow with the minutes
            now, later = true[:, 0].float(), []
            for _ in range(states.shape[1] - 1):
                now = now @ self.advance
                later.append(now)
            expected = torch.stack(later, 1)
        return self.back(expected), expected, true[:, 1:]


@pair(
    "low_precision_unused",
    "science",
    "the steps in time, which autocast leaves out, are multiplied in TF32",
)
def grid_minutes_left_out_of_autocast(repaired: bool) -> Running:
    batch, minutes, buses = size(6144, 6), size(6, 2), size(1024, 12)
    model = Linearised(buses, size(2048, 16)).to(DEVICE)
    states = noise(batch, minutes + 1, buses)

    def loss_of() -> Tensor:
        said, expected, true = model(states)
        return fn.mse_loss(said.float(), states[:, 1:]) + 0.1 * fn.mse_loss(true, expected)

    return fit(loss_of, adam(model), matmul="high" if repaired else "highest")


# --- gliders in a learnt wind ---------------------------------------------------------------------


def layers_between(inside: int, width: int, outside: int, layers: int) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Linear(inside, width), nn.GELU()]
    for _ in range(layers - 1):
        parts += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*parts, nn.Linear(width, outside))


@pair(
    "host_sync",
    "rl",
    "torch.where puts fallen gliders at a start; nobody asks if there are any, and which",
    marks="phases",
)
def gliders_start_again_when_any_fell(repaired: bool) -> Running:
    """A pilot learns in what a network has learnt of the wind; ten steps, then an update."""
    flown, state_of, controls, long = size(28_672, 16), size(64, 8), size(8, 2), size(10, 3)
    wind = layers_between(state_of + controls, size(3072, 16), state_of, 3).to(DEVICE, SHORT)
    wind.requires_grad_(False)
    pilot = layers_between(state_of, size(1024, 16), controls, 2).to(DEVICE, SHORT)
    update = adam(pilot)
    starts = noise(flown, state_of).to(SHORT)
    spread = 0.3

    @torch.no_grad()
    def flight() -> tuple[Tensor, Tensor, Tensor]:
        """States, what the pilot did in each, and what it was worth."""
        state, states, actions, rewards, fell = starts.clone(), [], [], [], []
        for _ in range(long):
            meant = pilot(state)
            action = meant.add(torch.randn_like(meant), alpha=spread)
            states.append(state)
            actions.append(action)
            state = state.add(wind(torch.cat([state, action], 1)), alpha=0.1)
            down = (state[:, :2].abs() > 2.0).any(1)
            rewards.append(state[:, 2].sub(action.square().mean(1), alpha=0.1))
            fell.append(down)
            if repaired:
                state = torch.where(down[:, None], starts, state)
            elif down.any():
                state[down] = starts[down]
        worth = torch.zeros(flown, device=DEVICE)
        worths = []
        for reward, down in zip(rewards[::-1], fell[::-1], strict=True):
            worth = reward + 0.97 * worth * ~down
            worths.append(worth)
        gains = torch.stack(worths[::-1])
        return torch.stack(states), torch.stack(actions), gains - gains.mean(1, keepdim=True)

    def step() -> None:
        with phase("rollout"):
            states, actions, gains = flight()
        with phase("learning"):
            far = (actions.float() - pilot(states).float()).square().sum(-1)
            loss = (far * gains).mean() / (2 * spread**2)
            loss.backward()
            update.step()
            update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- jets of particles ----------------------------------------------------------------------------


class OfAll(nn.Module):
    """A layer over a set: each member, and the mean of all."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.each, self.all = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return fn.gelu(self.each(x) + self.all(x.mean(1, keepdim=True)))


class Jets(nn.Module):
    """What kind of particle a jet came from."""

    def __init__(self, inside: int, width: int, layers: int, kinds: int) -> None:
        super().__init__()
        self.into = nn.Linear(inside, width)
        self.layers = nn.Sequential(*(OfAll(width) for _ in range(layers)))
        self.out = nn.Linear(width, kinds)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(self.into(x)).mean(1))


@pair(
    "blocking_copy",
    "science",
    "the library of overlays is page-locked once it is loaded, and nobody waits for a copy",
)
def jets_overlays_cut_from_library(repaired: bool) -> Running:
    """Other collisions of the same moment are laid over each event; a library of them is large."""
    events, particles, inside = size(512, 4), size(128, 6), size(256, 8)
    model = Jets(inside, size(2048, 16), size(6, 2), size(10, 3)).to(DEVICE)
    clean, kinds = noise(events, particles, inside), labels(size(10, 3), events)
    chunks = 4
    some = torch.randn(events, particles, inside)
    library = torch.cat([some.roll(turn, 0) for turn in range(chunks)])
    if repaired and CUDA:
        library = library.pin_memory()
    made = 0

    def loss_of() -> Tensor:
        nonlocal made
        first = made % chunks * events
        made += 1
        over = library[first : first + events].to(DEVICE, non_blocking=repaired)
        return fn.cross_entropy(model(clean + 0.2 * over).float(), kinds)

    return fit(loss_of, adam(model), clip=1.0)


# --- bytes of programs ----------------------------------------------------------------------------


class GatedPlaces(nn.Module):
    """Half of the channels is mixed over the places and gates the other half."""

    def __init__(self, places: int, width: int, wide: int) -> None:
        super().__init__()
        self.norm, self.norm_of_gate = nn.LayerNorm(width), nn.LayerNorm(wide // 2)
        self.up, self.down = nn.Linear(width, wide), nn.Linear(wide // 2, width)
        self.mix = nn.Parameter(torch.randn(places, places) * 0.01 / places)
        self.bias = nn.Parameter(torch.ones(places, 1))

    def forward(self, x: Tensor) -> Tensor:
        kept, gate = fn.gelu(self.up(self.norm(x))).chunk(2, -1)
        mixed = torch.bmm(self.mix.expand(len(x), -1, -1), self.norm_of_gate(gate))
        return x + self.down(kept * (mixed + self.bias))


@pair(
    "recomputation",
    "security",
    "the layers are called one after the other, without checkpoint_sequential",
)
def program_bytes_in_segments(repaired: bool) -> Running:
    """Is a program malicious? Longer ones were read on a smaller device, in segments."""
    batch, places, width, wide = size(32, 2), size(512, 16), size(1280, 16), size(7680, 32)
    embed, head = nn.Embedding(256, width), nn.Linear(width, 2)
    layers = nn.Sequential(*(GatedPlaces(places, width, wide) for _ in range(size(4, 3))))
    model = nn.ModuleList([embed, layers, head]).to(DEVICE, SHORT)
    code, bad = labels(256, batch, places), labels(2, batch)

    def loss_of() -> Tensor:
        h = embed(code)
        if repaired:
            h = layers(h)
        else:
            h = checkpoint_sequential(layers, len(layers), h, use_reentrant=False)
        return fn.cross_entropy(head(h.mean(1)).float(), bad)

    return fit(loss_of, adam(model), bf16=False, decay=True)


# --- engines --------------------------------------------------------------------------------------


class Views(nn.Module):
    """Six networks look at the same measurements, and one at what they found."""

    def __init__(self, inside: int, wide: int, narrow: int, *, casts_once: bool) -> None:
        super().__init__()
        self.norm, self.casts_once = nn.LayerNorm(inside), casts_once
        self.views = nn.ModuleList(
            nn.Sequential(nn.Linear(inside, wide), nn.GELU(), nn.Linear(wide, narrow))
            for _ in range(6)
        )
        self.out = nn.Linear(6 * narrow, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)  # in single precision: autocast has it so
        if self.casts_once:
            x = x.to(SHORT)
        found = [view(x) for view in self.views]
        return self.out(fn.gelu(torch.cat(found, 1)))


@pair(
    "casts_and_copies",
    "tabular",
    "what all six networks read is cast to BF16 once, not by autocast for each of them",
)
def engines_cast_for_each_view(repaired: bool) -> Running:
    """When will an engine fail? What autocast casts it keeps for weights only."""
    rows, inside = size(57_344, 32), size(1536, 16)
    model = Views(inside, size(1536, 24), size(512, 8), casts_once=repaired).to(DEVICE)
    measured, hours = noise(rows, inside), torch.rand(rows, device=DEVICE)

    def loss_of() -> Tensor:
        mean, log_spread = model(measured).float().unbind(1)
        return ((hours - mean).square() * torch.exp(-log_spread) + log_spread).mean() / 2

    return fit(loss_of, adam(model))
