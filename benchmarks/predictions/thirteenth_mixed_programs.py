"""A thirteenth set for one GPU: eight programs of few and large kernels that the device paces.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, Attends, Feeds, precision, size
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 219 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- earthquakes ------------------------------------------------------------------------------


class Listens(nn.Module):
    """A layer over a seismogram; the attention is the paper's, or the library's."""

    def __init__(self, width: int, heads: int, *, of_paper: bool) -> None:
        super().__init__()
        self.heads, self.of_paper = heads, of_paper
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.of_paper:
            scores = torch.matmul(q, k.transpose(2, 3)) / q.shape[-1] ** 0.5
            y = torch.matmul(torch.softmax(scores, dim=-1), v)
        else:
            y = fn.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


@pair(
    "unfused_attention",
    "science",
    "scaled_dot_product_attention instead of two products and a softmax",
)
def earthquakes_picked_as_in_the_paper(repaired: bool) -> Running:
    """When P and S waves arrive, sample by sample; FP16 with a scaler, SGD."""
    batch, samples, hop = size(10, 2), size(16_384, 64), 16
    width, heads = size(2048, 16), size(16, 2)
    into, last = nn.Linear(3 * hop, width, bias=False), nn.Linear(width, 3 * hop, bias=False)
    place = nn.Embedding(samples // hop, width)
    layers = nn.Sequential(
        *(Listens(width, heads, of_paper=not repaired) for _ in range(size(2, 1)))
    )
    model = nn.ModuleList([into, place, layers, last]).to(DEVICE)
    ground, arrivals = noise(batch, samples // hop, 3 * hop), labels(3, batch, samples)
    update = sgd(model)
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0)
    short = torch.float16 if CUDA else torch.bfloat16

    def step() -> None:
        with torch.autocast(DEVICE.type, short):
            h = last(layers(into(ground) + place.weight))
        loss = fn.cross_entropy(h.float().view(-1, 3), arrivals.flatten())
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- antennas ---------------------------------------------------------------------------------


class Phasors(nn.Module):
    """A layer of complex numbers: real parts, then imaginary ones, side by side.

    They are scaled to a mean power of one; then those of small magnitude are cut off while their
    phases stay (modReLU).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(2 * width, 2 * width, bias=False)
        self.gain = nn.Parameter(torch.ones(width))
        self.least = nn.Parameter(torch.full((width,), -0.1))

    def forward(self, x: Tensor) -> Tensor:
        real, imaginary = self.mix(x).float().chunk(2, -1)
        power = (real.pow(2) + imaginary.pow(2)).mean(-1, keepdim=True)
        scale = torch.rsqrt(power + 1e-6)
        real, imaginary = real * scale * self.gain, imaginary * scale * self.gain
        magnitude = torch.sqrt(real.pow(2) + imaginary.pow(2) + 1e-6)
        kept = torch.relu(magnitude + self.least) / magnitude
        return x + torch.cat([real * kept, imaginary * kept], -1).to(x.dtype)


@pair("fusion_opportunity", "science", "torch.compile(model)", compiles=True)
def antennas_magnitudes_and_phases_compile(repaired: bool) -> Running:
    """The channels between many antennas, from pilots of few of them."""
    rows, pilots, width = size(16_384, 4), size(256, 4), size(1536, 8)
    into = nn.Linear(2 * pilots, 2 * width, bias=False)
    out = nn.Linear(2 * width, 2 * width, bias=False)
    model = nn.Sequential(into, *(Phasors(width) for _ in range(size(4, 2))), out).to(DEVICE)
    heard, channels = noise(rows, 2 * pilots), noise(rows, 2 * width)
    update = adam(model)
    if repaired:
        model = torch.compile(model, dynamic=False)  # type: ignore[assignment]
    return fit(lambda: fn.mse_loss(model(heard).float(), channels), update)


# --- the air of a city ------------------------------------------------------------------------


class SelfNormed(nn.Module):
    """A layer of a network that keeps its mean and variance by itself."""

    def __init__(self, before: int, after: int, *, formula: bool) -> None:
        super().__init__()
        self.linear, self.formula = nn.Linear(before, after, bias=False), formula
        nn.init.normal_(self.linear.weight, std=before**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if not self.formula:
            return fn.selu(x)
        alpha, scale = 1.6732632423543772, 1.0507009873554805
        return scale * torch.where(x > 0, x, alpha * (torch.exp(x) - 1))


@pair("fusion_opportunity", "tables", "the library's selu instead of its formula", marks="steps")
def sensors_of_air_selu_by_formula(repaired: bool) -> Running:
    """Six pollutants at noon from what cheap sensors said during the week."""
    rows, inside, width = size(16_384, 4), size(1344, 8), size(4096, 16)
    widths = [inside] + [width] * size(5, 2)
    layers = [SelfNormed(before, after, formula=not repaired) for before, after in pairwise(widths)]
    model = nn.Sequential(*layers, nn.Linear(width, 8)).to(DEVICE)
    said, true = noise(rows, inside), noise(rows, 8)
    return fit(lambda: fn.huber_loss(model(said).float(), true), sgd(model), decay=True)


# --- fibres of the brain ----------------------------------------------------------------------


class Fibres(nn.Module):
    """How fibres run in each voxel, from it and its neighbours of the same slice."""

    def __init__(self, directions: int, channels: int, width: int, terms: int) -> None:
        super().__init__()
        self.near = nn.Sequential(
            nn.Conv2d(directions, channels, 3, 1, 1, bias=False),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.ReLU(),
        ).to(memory_format=torch.channels_last)
        self.own = nn.Sequential(
            nn.Linear(channels, width, bias=False),
            nn.ReLU(),
            nn.Linear(width, width, bias=False),
            nn.ReLU(),
            nn.Linear(width, width, bias=False),
            nn.ReLU(),
            nn.Linear(width, terms),
        )

    def forward(self, x: Tensor) -> Tensor:
        # the channels of a voxel lie side by side already: nothing is copied
        return self.own(self.near(x).permute(0, 2, 3, 1))


@pair(
    "low_precision_unused",
    "science",
    "torch.set_float32_matmul_precision('high') beside cuDNN's flag",
)
def fibres_cudnn_flag_is_not_for_linears(repaired: bool) -> Running:
    """The script allows TF32, but the flag it sets is cuDNN's: linear layers have their own."""
    slices, side, directions = size(16, 2), size(64, 8), size(96, 4)
    model = Fibres(directions, size(512, 8), size(1024, 16), size(48, 4)).to(DEVICE)
    signal = noise(slices, directions, side, side).to(memory_format=torch.channels_last)
    true = noise(slices, side, side, size(48, 4))

    def enter() -> None:
        torch.set_float32_matmul_precision("high" if repaired else "highest")
        torch.backends.cudnn.allow_tf32 = True

    run = fit(lambda: fn.mse_loss(model(signal), true), adam(model), bf16=False)
    return Running(run.step, enter=enter)


# --- packets ----------------------------------------------------------------------------------


class Gates(nn.Module):
    """What is said at the other places of a packet gates what is said here; as in gMLP."""

    def __init__(self, width: int, places: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.LayerNorm(2 * width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.across = nn.Parameter(torch.randn(places, places) * 0.02)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h, gate = fn.gelu(self.up(self.norm(x))).chunk(2, -1)
        across = self.across.expand(len(x), -1, -1)
        return x + self.down(h * (1 + torch.bmm(across, self.inner(gate))))


@pair(
    "low_precision_unused",
    "language",
    "autocast to BF16 is given the device of the model, not that of the rows before their upload",
    marks="steps",
)
def packets_autocast_where_rows_were_read(repaired: bool) -> Running:
    """The kind of traffic from the first bytes of packets; the rows wait in pinned memory."""
    batch, places, width, kinds = size(1024, 4), size(128, 8), size(256, 8), size(24, 3)
    embed = nn.Embedding(256, width)
    layers = nn.Sequential(*(Gates(width, places) for _ in range(2)))
    last = nn.Linear(width, kinds)
    model = nn.ModuleList([embed, layers, last]).to(DEVICE)
    traffic = torch.randint(0, 256, (4 * batch, places), dtype=torch.uint8)
    kind = labels(kinds, batch)
    if CUDA:
        traffic = traffic.pin_memory()
    update = adam(model)
    made = 0

    def step() -> None:
        nonlocal made
        rows = traffic[made % 4 * batch : (made % 4 + 1) * batch]
        place = DEVICE.type if repaired else rows.device.type
        with torch.autocast(place, torch.bfloat16):
            given = rows.to(DEVICE, non_blocking=True).int()
            scores = last(layers(embed(given)).mean(1))
        loss = fn.cross_entropy(scores.float(), kind)
        loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)
        made += 1

    return Running(step, enter=precision("highest"))


# --- species ----------------------------------------------------------------------------------


class Ball:
    """Points of hyperbolic space inside of a unit ball (Poincare's), and what leaves it.

    As it came each operation asserts that its points are inside; repaired, they are counted on
    the device.
    """

    def __init__(self, *, asserts: bool) -> None:
        self.asserts, self.outside = asserts, torch.zeros((), dtype=torch.long, device=DEVICE)

    def inside(self, norm: Tensor) -> None:
        if self.asserts:
            assert not norm.isnan().any(), "points are no numbers"
            assert (norm < 1).all(), "points have left the ball"
        else:
            # what is no number is not below one, either
            self.outside.add_((norm < 1).logical_not().sum())

    def to_plane(self, x: Tensor) -> Tensor:
        norm = x.norm(dim=-1, keepdim=True)
        self.inside(norm)
        norm = norm.clamp_min(1e-6)
        return x * (torch.atanh(norm) / norm)

    def from_plane(self, x: Tensor) -> Tensor:
        norm = x.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        # a little less than one, since it is rounded
        reached = torch.tanh(norm).clamp_max(0.996)
        self.inside(reached)
        return x * (reached / norm)

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Between all x and all y."""
        of_x, of_y = x.square().sum(-1, keepdim=True), y.square().sum(-1)
        self.inside(of_x)
        self.inside(of_y)
        apart = (of_x + of_y - 2 * x @ y.t()).clamp_min(1e-6)
        return torch.acosh(1 + 2 * apart / ((1 - of_x) * (1 - of_y)))


@pair(
    "host_sync",
    "tables",
    "points outside are counted on the device and read every 50 steps, instead of the assertions",
)
def species_asserted_to_be_in_the_ball(repaired: bool) -> Running:
    """Species from measures of a plant, near those of the same genus; in TF32."""
    rows, inside, width, species = size(32_768, 4), size(256, 8), size(2048, 16), size(256, 5)
    ball = Ball(asserts=not repaired)
    into = nn.Linear(inside, width, bias=False)
    layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(size(3, 2)))
    last = nn.Linear(width, size(256, 8), bias=False)
    known = nn.Embedding(species, size(256, 8))
    model = nn.ModuleList([into, layers, last, known]).to(DEVICE)
    nn.init.normal_(known.weight, std=0.02)
    measures, y = noise(rows, inside), labels(species, rows)
    update = adam(model)
    made = 0

    def step() -> None:
        nonlocal made
        h = ball.from_plane(0.02 * into(measures))
        for layer in layers:
            h = ball.from_plane(layer(ball.to_plane(h)))
        h = ball.from_plane(last(ball.to_plane(h)))
        far = ball.distance(h, ball.from_plane(known.weight))
        loss = fn.cross_entropy(-far, y)
        loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)
        made += 1
        if repaired and made % 50 == 0:
            assert ball.outside.item() == 0, "points have left the ball"

    return Running(step, enter=precision("high"))


# --- ultrasound -------------------------------------------------------------------------------


@pair(
    "blocking_copy",
    "science",
    "what pin_memory() returns is kept: it pins a copy, not the tensor itself",
    marks="phases",
)
def echoes_pinned_in_vain(repaired: bool) -> Running:
    """Images of tissue from what each element of the probe heard; some recordings are in memory."""
    batch, elements, samples, hop = size(80, 2), size(128, 4), size(2048, 16), size(8, 2)
    width, kept = size(1536, 16), 4
    heard = torch.randn(kept * batch, samples // hop, hop * elements)
    if CUDA:
        if repaired:
            heard = heard.pin_memory()
        else:
            heard.pin_memory()
    layers: list[nn.Module] = [nn.Linear(hop * elements, width)]
    for _ in range(size(2, 1)):
        layers += [Attends(width, size(12, 2)), Feeds(width)]
    model = nn.Sequential(*layers, nn.LayerNorm(width), nn.Linear(width, 128)).to(DEVICE)
    tissue = noise(batch, samples // hop, 128)
    update = adam(model)
    made = 0

    def step() -> None:
        nonlocal made
        with phase("get_batch"):
            at = made % kept * batch
            x = heard[at : at + batch].to(DEVICE, non_blocking=True)
        with phase("forward"), torch.autocast(DEVICE.type, torch.bfloat16):
            loss = fn.l1_loss(model(x).float(), tissue)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            update.step()
            update.zero_grad(set_to_none=True)
        made += 1

    return Running(step, enter=precision("high"))


# --- gravity ----------------------------------------------------------------------------------


class Harmonic(nn.Module):
    """What a month changes in all coefficients of a field."""

    def __init__(self, many: int, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(many, width, bias=False), nn.Linear(width, many, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(fn.silu(self.up(x)))


@pair(
    "aligned_shapes",
    "science",
    "the 2025 coefficients of degrees up to 44 are filled up with zeros to 2048",
)
def gravity_of_2025_coefficients(repaired: bool) -> Running:
    """The Earth's gravity in a month from that in the month before, in spherical harmonics."""
    degrees, rows, width = size(45, 5), size(20_480, 4), size(4096, 16)
    many = degrees**2
    wide = size(2048, 32) if repaired else many
    model = nn.Sequential(*(Harmonic(wide, width) for _ in range(size(4, 2)))).to(DEVICE)
    before, after = noise(rows, many), noise(rows, many)
    if repaired:
        before, after = (fn.pad(part, (0, wide - many)) for part in (before, after))
    before = before.to(torch.bfloat16)

    def loss_of() -> Tensor:
        # coefficients that are filled up stay near zero; the mean is that of the others
        return (model(before) - after).square().sum() / (rows * many)

    return fit(loss_of, adam(model))
