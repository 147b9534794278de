"""A twentieth set for one GPU: twelve fields far from each other, each with a cause of its own.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Attends, Feeds, done, graphed, made_optimizer, precision, size
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 400 pairs, opened"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
SHORT = torch.bfloat16


def held(x: Tensor) -> Tensor:
    """In page-locked memory, where there is a GPU."""
    return x.pin_memory() if CUDA else x


# --- tissue that grows ----------------------------------------------------------------------------


class Grows(nn.Module):
    """What a cell does next, by what lies around it; only some cells are awake."""

    def __init__(self, state: int, width: int, awake: float) -> None:
        super().__init__()
        self.around = nn.Conv2d(state, width, 3, 1, 1)
        self.acts = nn.Conv2d(width, state, 1, bias=False)
        nn.init.normal_(self.acts.weight, std=0.01)
        self.awake = awake

    def forward(self, x: Tensor) -> Tensor:
        change = self.acts(fn.relu(self.around(x), inplace=True))
        awake = torch.rand(x.shape[0], 1, *x.shape[2:], device=x.device) < self.awake
        return x + change * awake


@pair(
    "recomputation",
    "biology",
    "the rule is called at each time as it is, not by checkpoint: what all times keep has room",
)
def tissue_regrown_each_time_checkpointed(repaired: bool) -> Running:
    """Cells of an automaton learn to grow a stained tissue out of seeds; channels last."""
    tissues, state, side = size(48, 2), size(32, 6), size(96, 8)
    rule = Grows(state, size(256, 8), 0.5).to(DEVICE, memory_format=torch.channels_last)
    seeds = noise(tissues, state, side, side).contiguous(memory_format=torch.channels_last)
    stained = noise(tissues, 4, side, side)

    def loss_of() -> Tensor:
        x = seeds
        for _ in range(size(12, 3)):
            x = rule(x) if repaired else checkpoint(rule, x, use_reentrant=False)
        return fn.mse_loss(x[:, :4].float(), stained)

    return fit(loss_of, adam(rule), clip=1.0)


# --- tsunamis -------------------------------------------------------------------------------------


def shallow(net: nn.Module, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How far height and flow are from the equations of shallow water, at some points."""
    high, east, north = net(points).unbind(1)
    of_high, of_east, of_north = (
        torch.autograd.grad(part.sum(), points, create_graph=True)[0].unbind(1)
        for part in (high, east, north)
    )
    deep = 1.0 + high
    mass = of_high[2] + deep * (of_east[0] + of_north[1]) + east * of_high[0] + north * of_high[1]
    along = of_east[2] + east * of_east[0] + north * of_east[1] + of_high[0]
    across = of_north[2] + east * of_north[0] + north * of_north[1] + of_high[1]
    return mass.square().mean(), along.square().mean(), across.square().mean()


@pair(
    "step_jitter",
    "physics",
    "the terms' weights follow the norms of their gradients every 1000 steps, not every 4",
    period=4,
)
def tsunamis_terms_weighed_every_4(repaired: bool) -> Running:
    """A wave over the ocean that fits equations, a gauge and how it began; TF32."""
    points, few, width = size(49_152, 16), size(4096, 4), size(512, 8)
    parts: list[nn.Module] = [nn.Linear(3, width), nn.Tanh()]
    for _ in range(size(5, 1)):
        parts += [nn.Linear(width, width), nn.Tanh()]
    net = nn.Sequential(*parts, nn.Linear(width, 3)).to(DEVICE)
    weights, update = list(net.parameters()), adam(net)
    sea = torch.rand(points, 3, device=DEVICE).requires_grad_()
    gauges, told = torch.rand(few, 3, device=DEVICE), 0.1 * noise(few, 3)
    counts = torch.ones(4, device=DEVICE)
    every, made = 1000 if repaired else 4, 0

    def weighed(terms: list[Tensor]) -> None:
        norms = []
        for term in terms:
            slopes = torch.autograd.grad(term, weights, retain_graph=True)
            norms.append(torch.stack(torch._foreach_norm(slopes)).norm())
        all_norms = torch.stack(norms)
        counts.lerp_(all_norms.sum() / (all_norms + 1e-6), 0.1)

    def step() -> None:
        nonlocal made
        terms = [*shallow(net, sea), fn.mse_loss(net(gauges), told)]
        if made % every == every - 1:
            weighed(terms)
        (torch.stack(terms) * counts).sum().backward(inputs=weights)
        done(update)
        made += 1

    return Running(step, enter=precision("high"))


# --- voices of singers ----------------------------------------------------------------------------


class Styled(nn.Module):
    """A norm of each channel of a voice, scaled and shifted by its style; by formula or not."""

    def __init__(self, width: int, style: int, *, formula: bool) -> None:
        super().__init__()
        self.formula, self.told = formula, nn.Linear(style, 2 * width)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        if self.formula:
            mean = x.mean(2, keepdim=True)
            spread = (x.var(2, keepdim=True, unbiased=False) + 1e-5).sqrt()
            h = (x - mean) / spread
        else:
            h = fn.instance_norm(x, eps=1e-5)
        gain, shift = self.told(style)[..., None].chunk(2, 1)
        return h * (1 + gain) + shift


class Resounds(nn.Module):
    """Two dilated convolutions of a voice, each after a norm of its style."""

    def __init__(self, width: int, style: int, far: int, *, formula: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = (Styled(width, style, formula=formula) for _ in range(2))
        self.conv1 = nn.Conv1d(width, width, 7, padding=3 * far, dilation=far)
        self.conv2 = nn.Conv1d(width, width, 7, padding=3)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        h = self.conv1(fn.leaky_relu(self.norm1(x, style), 0.2))
        return x + self.conv2(fn.leaky_relu(self.norm2(h, style), 0.2))


@pair(
    "fusion_opportunity",
    "audio",
    "the library's instance_norm instead of mean, variance, root, difference and quotient",
)
def singers_styles_normed_by_formula(repaired: bool) -> Running:
    """A singer's voice from tones and loudness, in the style of another one; BF16."""
    voices, moments, width, style = size(16, 2), size(8192, 32), size(256, 8), size(128, 4)
    dilations = (1, 3, 5, 1, 3, 5)[: size(6, 2)]
    blocks = nn.ModuleList(Resounds(width, style, n, formula=not repaired) for n in dilations)
    into, out = nn.Conv1d(size(80, 4), width, 1), nn.Conv1d(width, size(24, 2), 1)
    model = nn.ModuleList([into, blocks, out]).to(DEVICE)
    tones, styles = noise(voices, size(80, 4), moments), noise(voices, style)
    true = noise(voices, size(24, 2), moments)

    def loss_of() -> Tensor:
        h = into(tones)
        for block in blocks:
            h = block(h, styles)
        return fn.l1_loss(out(h).float(), true)

    return fit(loss_of, adam(model))


# --- robots in kitchens ---------------------------------------------------------------------------


class Follows:
    """Weights that follow those of a model slowly, one after the other or all at once."""

    def __init__(self, model: nn.Module, keeps: float, *, at_once: bool) -> None:
        self.of, self.keeps, self.at_once = list(model.parameters()), keeps, at_once
        self.slow = [p.detach().clone() for p in self.of]

    @torch.no_grad()
    def update(self) -> None:
        if self.at_once:
            torch._foreach_lerp_(self.slow, self.of, 1 - self.keeps)
            return
        for slow, new in zip(self.slow, self.of, strict=True):
            slow.copy_(self.keeps * slow + (1.0 - self.keeps) * new)


@pair(
    "unfused_optimizer",
    "robotics",
    "the weights' average is one torch._foreach_lerp_, not two products, a sum and a copy of each",
)
def kitchens_average_of_policy_by_copies(repaired: bool) -> Running:
    """What a robot does in a kitchen, by flow from noise; an average of its weights is served."""
    robots, seen, chunk, joints = size(12, 2), size(160, 5), size(32, 3), size(24, 4)
    width, heads = size(2048, 16), size(16, 2)
    into, level, out = nn.Linear(joints, width), nn.Linear(1, width), nn.Linear(width, joints)
    parts = [p for _ in range(size(5, 1)) for p in (Attends(width, heads), Feeds(width))]
    model = nn.ModuleList([into, level, nn.Sequential(*parts), nn.LayerNorm(width), out])
    model = model.to(DEVICE)
    views, shown = noise(robots, seen, width).to(SHORT), noise(robots, chunk, joints)
    slow = Follows(model, 0.999, at_once=repaired)

    def loss_of() -> Tensor:
        dark, share = torch.randn_like(shown), torch.rand(robots, 1, 1, device=DEVICE)
        acts = into((1 - share) * dark + share * shown) + level(share)
        h = model[2](torch.cat([views, acts], 1))
        return fn.mse_loss(out(model[3](h[:, seen:])).float(), shown - dark)

    return fit(loss_of, adam(model), after=lambda _made, _loss: slow.update())


# --- adverts --------------------------------------------------------------------------------------


class Crossed(nn.Module):
    """Each field by each map of the layer before, and their sums; as in xDeepFM."""

    def __init__(self, fields: int, maps: int, layers: int) -> None:
        super().__init__()
        widths = [fields] + [maps] * layers
        self.layers = nn.ModuleList(nn.Linear(a * fields, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """What layers find in rows of (people, numbers of a row, fields)."""
        h, found = x, []
        for layer in self.layers:
            h = fn.relu(layer((h[..., None] * x[..., None, :]).flatten(2)))
            found.append(h.sum(1))
        return torch.cat(found, 1)


@pair(
    "half_weights",
    "recommender",
    "rows of the tables are cast to BF16 before they are crossed: products are of 16 bit, not 32",
)
def adverts_fields_crossed_in_32_bit(repaired: bool) -> Running:
    """Who opens an advert; fields are crossed in two layers of outer products, under autocast."""
    people, fields, each, maps = size(12_288, 4), size(40, 4), size(16, 2), size(64, 3)
    rows, width = size(20_000, 12), size(1024, 8)
    table = nn.Embedding(fields * rows, each)
    nn.init.normal_(table.weight, std=0.1)
    crosses, wide = Crossed(fields, maps, 2), nn.Linear(fields * each, width)
    deep = nn.Sequential(wide, nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    last = nn.Linear(width + 2 * maps, 1)
    model = nn.ModuleList([table, crosses, deep, last]).to(DEVICE)
    ids = labels(rows, people, fields) + torch.arange(fields, device=DEVICE) * rows
    opened = labels(2, people).float()

    def loss_of() -> Tensor:
        known = table(ids)
        if repaired:
            known = known.to(SHORT)
        found = crosses(known.transpose(1, 2).contiguous())
        said = last(torch.cat([deep(known.flatten(1)), found], 1))[:, 0]
        return fn.binary_cross_entropy_with_logits(said.float(), opened)

    return fit(loss_of, adam(model))


# --- quadrupeds -----------------------------------------------------------------------------------


class Trots(nn.Module):
    """A policy of three layers with norms."""

    def __init__(self, seen: int, width: int, joints: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for before in (seen, width, width):
            parts += [nn.Linear(before, width), nn.LayerNorm(width), nn.ELU()]
        self.layers = nn.Sequential(*parts, nn.Linear(width, joints), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pair(
    "larger_batch",
    "rl",
    "twice the quadrupeds (all moments and both passes are one CUDA graph on both sides)",
    samples=2.0,
)
def quadrupeds_gradients_through_contacts_twice(repaired: bool) -> Running:
    """Gradients go through the ground that feet push and through all moments; as in SHAC."""
    robots, joints, width = size(256, 2) * (2 if repaired else 1), size(12, 3), size(2048, 8)
    policy = Trots(3 * joints, width, joints).to(DEVICE)
    update = made_optimizer(policy.parameters(), "graph")
    bound = 0.1 * noise(joints, joints)
    begins, wanted = 0.1 * noise(robots, joints), noise(robots, joints).tanh()
    tick = 0.02

    def step() -> None:
        place, speed, lost = begins, torch.zeros_like(begins), []
        for _ in range(size(40, 3)):
            torque = policy(torch.cat([place, speed, wanted], 1))
            ground = fn.softplus(-10 * place) * (1 - speed)
            pulled = torque - 0.5 * speed - 2 * place.sin() + speed @ bound + ground
            speed = speed + tick * pulled
            place = place + tick * speed
            lost.append((place - wanted).square().mean() + 0.01 * torque.square().mean())
        torch.stack(lost).mean().backward()
        done(update)

    return graphed(Running(step, enter=precision("high")))


# --- citations ------------------------------------------------------------------------------------


def walked(neighbours: list[list[int]], starts: list[int], long: int) -> list[list[int]]:
    """Walks from some papers along citations, one paper after the other."""
    walks = []
    for start in starts:
        walk = [start]
        while len(walk) < long:
            walk.append(random.choice(neighbours[walk[-1]]))
        walks.append(walk)
    return walks


def walked_at_once(first: Tensor, many: Tensor, cited: Tensor, starts: Tensor, long: int) -> Tensor:
    """The same for all walks at once, of neighbours that lie one behind the other."""
    walks = [starts]
    for _ in range(long - 1):
        now = walks[-1]
        chosen = (torch.rand(len(now), device=now.device) * many[now]).long()
        walks.append(cited[first[now] + chosen])
    return torch.stack(walks, 1)


@pair(
    "input_starvation",
    "graph",
    "all walks are drawn at once, on the device, where Python chose one neighbour after the other",
    marks="phases",
)
def citations_walked_by_python(repaired: bool) -> Running:
    """Fields of papers, by walks along their citations that a transformer reads."""
    papers, walks, long, kinds = size(60_000, 40), size(1024, 4), size(16, 4), size(40, 5)
    facts, width, heads = size(128, 6), size(768, 8), size(12, 2)
    rng = np.random.default_rng(0)
    many = rng.integers(4, 16, papers)
    ends = many.cumsum()
    cited = rng.integers(0, papers, int(ends[-1]))
    neighbours = [part.tolist() for part in np.split(cited, ends[:-1])] if not repaired else []
    of_many, of_cited = torch.from_numpy(many).to(DEVICE), torch.from_numpy(cited).to(DEVICE)
    first = torch.from_numpy(ends - many).to(DEVICE)
    known, fields = noise(papers, facts).to(SHORT), labels(kinds, papers)
    parts = [p for _ in range(size(3, 1)) for p in (Attends(width, heads), Feeds(width))]
    into, last = nn.Linear(facts, width), nn.Linear(width, kinds)
    model = nn.ModuleList([into, nn.Sequential(*parts, nn.LayerNorm(width)), last]).to(DEVICE)
    update = adam(model)

    def batch() -> Tensor:
        if repaired:
            starts = labels(papers, walks)
            return walked_at_once(first, of_many, of_cited, starts, long)
        chosen = walked(neighbours, [random.randrange(papers) for _ in range(walks)], long)
        return held(torch.tensor(chosen)).to(DEVICE, non_blocking=True)

    def step() -> None:
        with phase("get_batch"):
            visited = batch()
        with phase("forward"), torch.autocast(DEVICE.type, SHORT):
            h = model[1](into(known.index_select(0, visited.flatten()).view(walks, long, facts)))
            loss = fn.cross_entropy(last(h.mean(1)).float(), fields[visited[:, 0]])
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            done(update)

    return Running(step, enter=precision("high"))


# --- ruins ----------------------------------------------------------------------------------------


class Rebuilds(nn.Module):
    """Layers that look within a photograph and over all of them, in turn; as in VGGT."""

    def __init__(self, width: int, heads: int, layers: int, patch: int) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(3 * patch**2, width), nn.LayerNorm(width)
        self.within, self.over = (
            nn.ModuleList(nn.Sequential(Attends(width, heads), Feeds(width)) for _ in range(layers))
            for _ in range(2)
        )
        self.out = nn.Linear(width, 4 * patch**2)

    def forward(self, photographs: Tensor) -> Tensor:
        views = photographs.shape[1]
        h = self.into(photographs)
        for within, over in zip(self.within, self.over, strict=True):
            h = within(h.flatten(0, 1)).unflatten(0, (-1, views))
            h = over(h.flatten(1, 2)).unflatten(1, (views, -1))
        return self.out(self.norm(h))


@pair(
    "fused_attention",
    "points",
    "sdpa_kernel(EFFICIENT_ATTENTION), chosen for older cards that have no flash, is removed",
)
def ruins_rebuilt_by_kernel_of_older_cards(repaired: bool) -> Running:
    """Points and their certainty for each pixel of 24 photographs of a ruin; autocast to BF16."""
    views, patches, patch = size(24, 3), size(384, 4), size(14, 2)
    model = Rebuilds(size(768, 16), size(12, 2), size(5, 1), patch).to(DEVICE)
    seen, true = noise(1, views, patches, 3 * patch**2), noise(1, views, patches, patch**2, 3)
    backends = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

    def rebuilt() -> Tensor:
        if repaired:
            return model(seen)
        with sdpa_kernel(backends):
            return model(seen)

    def loss_of() -> Tensor:
        points, sure = rebuilt().float().unflatten(-1, (-1, 4)).split((3, 1), -1)
        off = (points - true).abs().sum(-1, keepdim=True)
        return (off * sure.exp() - 0.2 * sure).mean()

    return fit(loss_of, adam(model), clip=1.0)


# --- weather of a week ----------------------------------------------------------------------------


class Region(nn.Module):
    """Attention within regions of the globe; both halves are scaled, dropped and added."""

    def __init__(self, width: int, heads: int, region: tuple[int, int], drop: float) -> None:
        super().__init__()
        self.heads, self.region = heads, region
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale1 = nn.Parameter(torch.full((width,), 0.1))
        self.scale2 = nn.Parameter(torch.full((width,), 0.1))
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        high, wide = self.region
        b, rows, columns, d = x.shape
        h = self.qkv(self.norm1(x)).view(b, rows // high, high, columns // wide, wide, 3, -1)
        h = h.permute(5, 0, 1, 3, 2, 4, 6).reshape(3, -1, high * wide, self.heads, d // self.heads)
        q, k, v = h.transpose(2, 3)
        h = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        h = h.reshape(b, rows // high, columns // wide, high, wide, d).transpose(2, 3)
        x = x + self.drop(self.join(h.reshape(b, rows, columns, d))) * self.scale1
        return x + self.drop(self.down(fn.gelu(self.up(self.norm2(x))))) * self.scale2


@pair("compile", "climate", "torch.compile(model)", compiles=True)
def week_of_weather_by_regions_compile(repaired: bool) -> Running:
    """The weather six hours on, of all fields of the globe; autocast to BF16."""
    days, rows, columns, fields = size(2, 1), size(96, 4), size(192, 8), size(69, 3)
    region, width, heads = (size(8, 2), size(16, 4)), size(384, 8), size(6, 2)
    parts: list[nn.Module] = [nn.Linear(fields, width)]
    parts += [Region(width, heads, region, 0.1) for _ in range(size(6, 1))]
    body = nn.Sequential(*parts, nn.LayerNorm(width), nn.Linear(width, fields)).to(DEVICE)
    model: Any = torch.compile(body, dynamic=False) if repaired else body
    now, then = noise(days, rows, columns, fields), noise(days, rows, columns, fields)

    def loss_of() -> Tensor:
        return fn.mse_loss(model(now).float(), then)

    return fit(loss_of, adam(body))


# --- repositories ---------------------------------------------------------------------------------


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Halves of a head turned by the place of a token."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Writes(nn.Module):
    """A layer of a decoder; angles of places are kept in single precision."""

    def __init__(self, width: int, heads: int, *, back: bool) -> None:
        super().__init__()
        self.heads, self.back, wide = heads, back, 8 * width // 3 // 64 * 64 or width
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.join = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, wide, bias=False) for _ in range(2))
        self.down = nn.Linear(wide, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        if self.back:
            q, k = q.to(v.dtype), k.to(v.dtype)
        found = fn.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True).to(x.dtype)
        x = x + self.join(found.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(fn.silu(self.gate(h)) * self.up(h))


@pair(
    "lower_precision",
    "code",
    "queries and keys are cast back to BF16 once turned: angles in FP32 made all of attention FP32",
)
def repositories_read_with_wide_angles(repaired: bool) -> Running:
    """The next tokens of source files; all weights are in BF16, without autocast."""
    files, long, vocab = size(4, 2), size(2048, 8), size(16_384, 40)
    width, heads = size(1024, 16), size(16, 2)
    embed, last = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
    nn.init.normal_(embed.weight, std=0.02)
    layers = nn.ModuleList(Writes(width, heads, back=repaired) for _ in range(size(5, 1)))
    norm = nn.RMSNorm(width)
    model = nn.ModuleList([embed, layers, norm, last]).to(DEVICE, SHORT)
    rates = 1e4 ** -torch.linspace(0, 1, width // heads // 2, device=DEVICE)
    angles = torch.arange(long, device=DEVICE)[:, None] * rates
    cos, sin = angles.cos(), angles.sin()
    text = labels(vocab, files, long + 1)

    def loss_of() -> Tensor:
        h = embed(text[:, :-1])
        for layer in layers:
            h = layer(h, cos, sin)
        return fn.cross_entropy(last(norm(h)).flatten(0, 1).float(), text[:, 1:].flatten())

    return fit(loss_of, adam(model), bf16=False, clip=1.0)


# --- shares ---------------------------------------------------------------------------------------


class Mixes(nn.Module):
    """Days are mixed, then shares; each by two layers and with a short cut; as in TSMixer."""

    def __init__(self, days: int, shares: int, wide: int, drop: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(shares), nn.LayerNorm(shares)
        self.days_up, self.days_down = nn.Linear(days, wide), nn.Linear(wide, days)
        self.up, self.down = nn.Linear(shares, wide), nn.Linear(wide, shares)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        h = fn.gelu(self.days_up(self.norm1(x).transpose(1, 2)))
        x = x + self.drop(self.days_down(h)).transpose(1, 2)
        return x + self.drop(self.down(fn.gelu(self.up(self.norm2(x)))))


@pair(
    "aligned_shapes",
    "finance",
    "windows begin with five days of zeros: 256 days, not the 251 that shares are traded in a year",
)
def shares_mixed_over_251_days(repaired: bool) -> Running:
    """How much shares will swing next month, from a year of 512 of them; BF16."""
    windows, days, shares, wide = size(128, 2), size(251, 11), size(512, 8), size(1024, 16)
    more = size(5, 5) if repaired else 0
    layers = nn.Sequential(*(Mixes(days + more, shares, wide, 0.1) for _ in range(size(6, 1))))
    last = nn.Linear(days + more, 1)
    model = nn.ModuleList([layers, nn.LayerNorm(shares), last]).to(DEVICE)
    year = fn.pad(noise(windows, days, shares), (0, 0, more, 0)).to(SHORT)
    swings = noise(windows, shares)

    def loss_of() -> Tensor:
        h = model[1](layers(year))
        return fn.huber_loss(last(h.transpose(1, 2))[..., 0].float(), swings)

    return fit(loss_of, adam(model))


# --- jaws -----------------------------------------------------------------------------------------


class Plain(nn.Module):
    """Two convolutions of a volume and a short cut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv3d(width, width, 3, 1, 1), nn.Conv3d(width, width, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(x + self.conv2(fn.relu(self.conv1(x), inplace=True)), inplace=True)


def shares_by_library(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


def shares_by_sums(scores: Tensor) -> Tensor:
    """A softmax whose maximum and sum are reductions, which many blocks share."""
    above = (scores - scores.amax(-1, keepdim=True).detach()).exp()
    return above * above.sum(-1, keepdim=True).reciprocal()


class Finds(nn.Module):
    """Where a few places of a volume are: the mean place of shares of all its voxels."""

    def __init__(self, width: int, places: int, shares_of: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.places, self.shares_of = places, shares_of
        self.into, self.down = nn.Conv3d(1, width, 2, 2), nn.Conv3d(width, 2 * width, 2, 2)
        self.fine, self.coarse = Plain(width), Plain(2 * width)
        self.up, self.joins = nn.ConvTranspose3d(2 * width, width, 2, 2), Plain(width)
        self.out = nn.Conv3d(width, 8 * places, 1)

    def forward(self, volume: Tensor) -> Tensor:
        fine = self.fine(self.into(volume))
        h = self.joins(fine + self.up(self.coarse(self.down(fine))))
        scores = self.out(h).unflatten(1, (self.places, 2, 2, 2))
        scores = scores.permute(0, 1, 5, 2, 6, 3, 7, 4).contiguous().float()
        side = 2 * h.shape[-1]
        shares = self.shares_of(scores.flatten(2)).view(-1, self.places, side, side, side)
        ruler = torch.linspace(-1, 1, side, device=volume.device)
        means = [(shares.sum(over) * ruler).sum(-1) for over in ((3, 4), (2, 4), (2, 3))]
        return torch.stack(means, -1)


@pair(
    "inefficient_kernel",
    "medicine",
    "a maximum, a sum and a product, which many blocks share: softmax() gives a volume one block",
)
def jaws_joints_softmax_of_all_voxels(repaired: bool) -> Running:
    """Where both joints of a jaw are in a scan of 256 slices; autocast to BF16."""
    side, places = size(256, 8), 2
    model = Finds(size(32, 4), places, shares_by_sums if repaired else shares_by_library)
    model = model.to(DEVICE, memory_format=torch.channels_last_3d)
    scan = noise(1, 1, side, side, side).contiguous(memory_format=torch.channels_last_3d)
    true = noise(1, places, 3).tanh()

    def loss_of() -> Tensor:
        return fn.mse_loss(model(scan), true)

    return fit(loss_of, adam(model))
