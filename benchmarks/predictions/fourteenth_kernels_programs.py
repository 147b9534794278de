"""Programs of the fourteenth set whose fault lies in the GPU's kernels, which are few and large.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Feeds, precision, size
from program import Program, Running
from single_programs import entered
from tenth_pictures_programs import scaled
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 242 pairs"
pair = entered(PROGRAMS)
SHORT = torch.bfloat16


# --- what was listened to -------------------------------------------------------------------------


class Remembers(nn.Module):
    """Songs of a session look at those before them; the session's start is padding."""

    def __init__(self, width: int, heads: int, drop: float, *, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.drop, self.by_hand = heads, drop, by_hand
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.by_hand:
            scores = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
            shares = scores.masked_fill(~seen, -1e9).softmax(-1)
            y = fn.dropout(shares, self.drop, self.training) @ v
        else:
            y = fn.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=self.drop)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


@pair(
    "unfused_attention",
    "recommender",
    "scaled_dot_product_attention with the mask of padding and its own dropout",
)
def sessions_padded_at_their_start(repaired: bool) -> Running:
    """The next song of a session, against songs that were drawn at random; as SASRec, in BF16."""
    batch, long, songs = size(20, 2), size(768, 12), size(60_000, 50)
    width, heads, layers, others = size(1536, 16), size(12, 2), size(3, 1), size(4096, 20)
    with torch.device(DEVICE):
        table, place = nn.Embedding(songs, width), nn.Embedding(long, width)
        looks = nn.ModuleList(
            Remembers(width, heads, 0.1, by_hand=not repaired) for _ in range(layers)
        )
        feeds = nn.ModuleList(Feeds(width) for _ in looks)
        norm = nn.LayerNorm(width)
    model = nn.ModuleList([table, place, looks, feeds, norm]).to(SHORT)
    heard = labels(songs, batch, long + 1)
    first = torch.randint(0, long // 3, (batch, 1), device=DEVICE)
    there = torch.arange(long, device=DEVICE) >= first
    before = torch.ones(long, long, dtype=torch.bool, device=DEVICE).tril()
    # what stands before a session sees itself, so that no row is without any
    own = torch.eye(long, dtype=torch.bool, device=DEVICE)
    seen = ((before & there[:, None]) | own)[:, None]
    flat = there.flatten().float()

    def loss_of() -> Tensor:
        h = table(heard[:, :-1]) + place.weight
        for look, feed in zip(looks, feeds, strict=True):
            h = feed(look(h, seen))
        h = norm(h).flatten(0, 1)
        right = (h * table(heard[:, 1:].flatten())).sum(-1, keepdim=True)
        wrong = h @ table(labels(songs, others)).t()
        scores = torch.cat([right, wrong], 1) * width**-0.5
        off = fn.cross_entropy(scores, torch.zeros_like(heard[:, 1:]).flatten(), reduction="none")
        return (off.float() * flat).sum() / flat.sum()

    return fit(loss_of, adam(model), bf16=False)


# --- pixels after pixels --------------------------------------------------------------------------


def mixture_loss(said: Tensor, pixel: Tensor) -> Tensor:
    """How unlikely a pixel is under a mixture of logistic distributions, cut into 256 steps."""
    weight, mean, log_scale = said.float().chunk(3, -1)
    log_scale = log_scale.clamp(min=-7.0)
    narrow = torch.exp(-log_scale)
    off = pixel[..., None] - mean
    above, below = narrow * (off + 1 / 255), narrow * (off - 1 / 255)
    share = torch.sigmoid(above) - torch.sigmoid(below)
    middle = narrow * off
    dense = middle - log_scale - 2 * fn.softplus(middle) - 4.8481  # log of 127.5
    inside = torch.where(share > 1e-5, torch.log(share.clamp(min=1e-12)), dense)
    edge = torch.where(pixel[..., None] > 0.999, -fn.softplus(below), inside)
    least = torch.where(pixel[..., None] < -0.999, above - fn.softplus(above), edge)
    return -torch.logsumexp(least + torch.log_softmax(weight, -1), -1).mean()


class Before(nn.Conv2d):
    """A convolution that sees the pixels before its own one only."""

    seen: Tensor

    def __init__(self, inside: int, outside: int, wide: int, *, own: bool) -> None:
        super().__init__(inside, outside, wide, padding=wide // 2)
        seen = torch.ones(1, 1, wide, wide)
        seen[..., wide // 2, wide // 2 + own :] = 0
        seen[..., wide // 2 + 1 :, :] = 0
        self.register_buffer("seen", seen)

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight * self.seen, self.bias)


@pair(
    "fusion_opportunity",
    "vision",
    "torch.compile of the loss by a mixture of logistic distributions",
    compiles=True,
    marks="phases",
)
def x_ray_pixels_logistic_mixture_compile(repaired: bool) -> Running:
    """Pixels of X-rays, each from those before it, to find what is unusual; BF16."""
    batch, side, width, mixed = size(20, 2), size(256, 12), size(128, 8), size(16, 3)
    parts: list[nn.Module] = [Before(8, width, 7, own=False), nn.GELU()]
    for _ in range(size(3, 1)):
        parts += [Before(width, width, 3, own=True), nn.GELU()]
    net = nn.Sequential(*parts, nn.Conv2d(width, 3 * mixed, 1))
    net = net.to(DEVICE, memory_format=torch.channels_last)
    gray = (torch.rand(batch, 1, side, side, device=DEVICE) * 255).round() / 127.5 - 1
    pixel = gray[:, 0]
    waves = [turn(n * gray) for n in (1.0, 2.0, 4.0, 8.0) for turn in (torch.sin, torch.cos)]
    seen = torch.cat(waves, 1).contiguous(memory_format=torch.channels_last)
    loss: Any = torch.compile(mixture_loss, dynamic=False) if repaired else mixture_loss

    def loss_of() -> Tensor:
        return loss(net(seen).permute(0, 2, 3, 1), pixel)

    return fit(loss_of, adam(net), clip=1.0)


# --- few sources of many measurements -------------------------------------------------------------


class Sparse(nn.Module):
    """A code of few numbers, by steps that are learnt: as LISTA."""

    def __init__(self, seen: int, codes: int, rounds: int, rest: float, *, spelled: bool) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(seen, codes), nn.Linear(codes, seen)
        self.turns = nn.ModuleList(nn.Linear(codes, codes, bias=False) for _ in range(rounds))
        self.rest, self.spelled = rest, spelled

    def shrunk(self, x: Tensor) -> Tensor:
        if self.spelled:
            return torch.sign(x) * torch.relu(torch.abs(x) - self.rest)
        return fn.softshrink(x, self.rest)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = self.into(x)
        code = self.shrunk(first)
        for turn in self.turns:
            code = self.shrunk(first + turn(code))
        return self.back(code), code


@pair(
    "fusion_opportunity",
    "science",
    "the library's softshrink instead of sign, abs and relu",
    marks="steps",
)
def neutrino_arrays_shrunk_by_sign(repaired: bool) -> Running:
    """Where light came from in the ice, from what all sensors of an array saw; TF32."""
    events, sensors, places = size(12_288, 8), size(2048, 12), size(4096, 16)
    model = Sparse(sensors, places, size(3, 2), 0.2, spelled=not repaired).to(DEVICE)
    light = noise(events, sensors)

    def loss_of() -> Tensor:
        again, code = model(light)
        return fn.mse_loss(again, light) + 1e-3 * code.abs().mean()

    return fit(loss_of, adam(model), bf16=False)


# --- letters, and weights that turn ---------------------------------------------------------------


def orthogonal(moved: Tensor) -> Tensor:
    """Matrices whose singular values are all near one: five steps of Newton and Schulz."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = moved / (moved.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = torch.bmm(x, x.mT)
        x = a * x + torch.bmm(torch.baddbmm(square, square, square, beta=b, alpha=c), x)
    return x


class Turns(torch.optim.Optimizer):
    """Momentum, made orthogonal, of square matrices in stacks: as Muon."""

    def __init__(self, stacks: list[nn.Parameter], lr: float) -> None:
        super().__init__(stacks, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for stack in group["params"]:
                kept = self.state[stack]
                if not kept:
                    kept["moved"] = torch.zeros_like(stack)
                kept["moved"].lerp_(stack.grad, 0.05)
                stack.add_(orthogonal(kept["moved"]), alpha=-group["lr"])


class Stacked(nn.Module):
    """A decoder whose matrices are all square, and stacked by layer: seven a layer."""

    def __init__(self, letters: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.embed, self.last = nn.Embedding(letters, width), nn.Linear(width, letters, bias=False)
        self.stacks = nn.ParameterList(
            nn.Parameter(torch.randn(7, width, width) * width**-0.5) for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        b, t, d = h.shape
        for stack in self.stacks:
            # 16 bit for the whole stack at once: autocast would cast each matrix
            q_of, k_of, v_of, out, gate, up, down = stack.to(SHORT).unbind()
            y = fn.layer_norm(h, (d,)).to(SHORT)
            q, k, v = (
                (y @ of).view(b, t, self.heads, -1).transpose(1, 2) for of in (q_of, k_of, v_of)
            )
            y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + y.transpose(1, 2).reshape(b, t, d) @ out
            y = fn.layer_norm(h, (d,)).to(SHORT)
            h = h + (fn.silu(y @ gate) * (y @ up)) @ down
        return self.last(fn.layer_norm(h, (d,)))


@pair(
    "low_precision_unused",
    "language",
    "torch.set_float32_matmul_precision('high'): the update multiplies matrices, too",
    marks="steps",
)
def letters_turned_outside_of_autocast(repaired: bool) -> Running:
    """All of the model is under autocast, so nobody thought of products in single precision."""
    batch, long, letters = size(16, 2), size(1024, 12), size(16_384, 40)
    width, heads = size(1536, 16), size(12, 2)
    model = Stacked(letters, width, heads, size(2, 1)).to(DEVICE)
    turns = Turns(list(model.stacks), 2e-3)
    rest = torch.optim.AdamW(
        [model.embed.weight, model.last.weight], lr=1e-4, betas=(0.9, 0.95), fused=True
    )
    text = labels(letters, batch, long + 1)

    def step() -> None:
        with torch.autocast(DEVICE.type, SHORT):
            said = model(text[:, :-1])
            loss = fn.cross_entropy(said.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        turns.step()
        rest.step()
        turns.zero_grad(set_to_none=True)
        rest.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high" if repaired else "highest"))


# --- what a laser saw from a car ------------------------------------------------------------------


class Residue(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.short = nn.Conv2d(before, width, 1, stride, bias=False) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        h = fn.relu(self.norm1(self.conv1(x)), inplace=True)
        kept = x if self.short is None else self.short(x)
        return fn.relu(self.norm2(self.conv2(h)) + kept, inplace=True)


class FromAbove(nn.Module):
    """Pillars of points are laid on a canvas, on which cars are sought; as PointPillars."""

    def __init__(self, inside: int, width: int, side: int, kinds: int) -> None:
        super().__init__()
        self.side, self.width = side, width
        self.point = nn.Linear(inside, width)
        self.near = nn.Sequential(Residue(width, width, 1), Residue(width, width, 1))
        self.far = nn.Sequential(Residue(width, 2 * width, 2), Residue(2 * width, 2 * width, 1))
        self.heads = nn.Conv2d(3 * width, kinds + 7, 3, 1, 1)

    def forward(self, points: Tensor, place: Tensor, *, last: bool) -> Tensor:
        b, n = place.shape
        found = fn.relu(self.point(points)).amax(2)
        canvas = found.new_zeros(b, self.side * self.side, self.width)
        canvas = canvas.scatter(1, place[..., None].expand(b, n, self.width), found)
        canvas = canvas.transpose(1, 2).unflatten(2, (self.side, self.side))
        if not last:  # as others publish it: channels, rows and columns
            canvas = canvas.contiguous()
        near = self.near(canvas)
        far = fn.interpolate(self.far(near), scale_factor=2.0)
        return self.heads(torch.cat([near, far], 1))


@pair(
    "layout_changes",
    "points",
    "channels_last for the model; the canvas, made pixel by pixel, is so when it is not copied",
)
def laser_pillars_on_canvas(repaired: bool) -> Running:
    """Nine kinds of things around a car, and their boxes; FP16 with a scaler."""
    batch, side, pillars, inside = size(8, 2), size(256, 8), size(12_000, 20), size(9, 4)
    width, kinds = size(128, 8), 9
    net = FromAbove(inside, width, side, kinds).to(DEVICE)
    if repaired:
        net = net.to(memory_format=torch.channels_last)
    points = noise(batch, pillars, size(16, 3), inside)
    place = torch.stack(
        [torch.randperm(side * side, device=DEVICE)[:pillars] for _ in range(batch)]
    )
    there = (torch.rand(batch, kinds, side, side, device=DEVICE) < 0.01).float()
    boxes = noise(batch, 7, side, side)
    many = there.sum().clamp(min=1)

    def loss_of() -> Tensor:
        said = net(points, place, last=repaired).float()
        kind, box = said.split([kinds, 7], 1)
        seen = fn.binary_cross_entropy_with_logits(kind, there, reduction="sum")
        far = fn.smooth_l1_loss(box, boxes, reduction="none").sum(1, keepdim=True)
        return (seen + (far * there.amax(1, keepdim=True)).sum()) / many

    return scaled(loss_of, adam(net), clip=10.0)


# --- flats and who looks at them ------------------------------------------------------------------


class Crossing(nn.Module):
    """Columns are multiplied with what is learnt of all columns: as DCN, second version."""

    def __init__(self, columns: int, tables: int, rows: int, each: int, layers: int) -> None:
        super().__init__()
        wide = columns + tables * each
        self.table = nn.Embedding(tables * rows, each)
        self.layers = nn.ModuleList(nn.Linear(wide, wide) for _ in range(layers))
        self.out = nn.Linear(wide, 1)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        first = torch.cat([numbers, self.table(ids).flatten(1)], 1)
        x = first
        for layer in self.layers:
            x = torch.addcmul(x, first, layer(x))
        return self.out(x)[:, 0]


@pair(
    "aligned_shapes",
    "recommender",
    "three columns of zeros beside the 13 numbers, so that rows are 1,680 wide",
    marks="profiler",
)
def flats_thirteen_numbers_beside_tables(repaired: bool) -> Running:
    """Is a flat asked for? 13 numbers and 26 kinds of things are known; BF16."""
    rows, numbers, tables, each = size(49_152, 16), 13, 26, size(64, 4)
    many = size(8000, 20)
    wide = 16 if repaired else numbers
    model = Crossing(wide, tables, many, each, size(4, 2)).to(DEVICE, SHORT)
    known = noise(rows, numbers).to(SHORT)
    known = fn.pad(known, (0, wide - numbers))
    first = torch.arange(tables, device=DEVICE) * many
    ids = labels(many, rows, tables) + first
    asked = (torch.rand(rows, device=DEVICE) < 0.1).float()

    def loss_of() -> Tensor:
        return fn.binary_cross_entropy_with_logits(model(known, ids).float(), asked)

    return fit(loss_of, adam(model), bf16=False, decay=True)


# --- the next hours of a water works --------------------------------------------------------------


class OverTime(nn.Module):
    """What all gauges say is mixed over the hours, between two layers over the gauges."""

    def __init__(self, hours: int, gauges: int, *, turned: bool) -> None:
        super().__init__()
        self.turned, self.norm = turned, nn.LayerNorm(gauges)
        self.up, self.down = nn.Linear(gauges, gauges), nn.Linear(gauges, gauges)
        self.mix = nn.Linear(hours, hours, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(fn.gelu(self.norm(x)))
        if self.turned:
            y = self.mix(y.transpose(1, 2).contiguous()).transpose(1, 2).contiguous()
        else:  # the same product from the left: hours stay where they are
            y = torch.bmm(self.mix.weight.expand(len(y), -1, -1), y)
        return x + self.down(y)


@pair(
    "casts_and_copies",
    "series",
    "hours are mixed by a product from the left, without turning the series there and back",
)
def water_gauges_turned_for_the_hours(repaired: bool) -> Running:
    """Levels and flows of all gauges for the next two days; BF16, two micro-batches."""
    batch, hours, gauges, ahead = size(96, 3), size(512, 8), size(1024, 12), size(48, 4)
    layers = nn.Sequential(
        *(OverTime(hours, gauges, turned=not repaired) for _ in range(size(4, 2)))
    ).to(DEVICE, SHORT)
    last = nn.Parameter((torch.randn(ahead, hours, device=DEVICE) * hours**-0.5).to(SHORT))
    seen = noise(batch, hours, gauges).to(SHORT)
    came = noise(batch, ahead, gauges)
    update = torch.optim.SGD([*layers.parameters(), last], lr=1e-3, momentum=0.9, fused=True)

    def loss_of() -> Tensor:
        told = torch.bmm(last.expand(batch, -1, -1), layers(seen))
        return fn.smooth_l1_loss(told.float(), came)

    return fit(loss_of, update, bf16=False, micro=2, decay=True)


# --- whales ---------------------------------------------------------------------------------------


class WholeNorm(torch.autograd.Function):
    """Group normalisation with one group, whose mean and variance all of the device computes.

    The library's kernel of the forward pass has one block for each group of each sample.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, (1, 2), correction=0)
        mean, scale = mean[:, None], torch.rsqrt(var + 1e-5)[:, None]
        ctx.save_for_backward(x, mean, scale, weight)
        times = scale * weight
        plus = bias - mean * times
        return torch.addcmul(plus[..., None], x, times[..., None])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        x, mean, scale, weight = ctx.saved_tensors
        n, c, t = x.shape
        return torch.ops.aten.native_group_norm_backward(
            grad.contiguous(), x, mean, scale, weight, n, c, t, 1, [True, True, True]
        )


class Hears(nn.Module):
    """A layer of a separator; all of a recording is normalised at once."""

    def __init__(self, width: int, *, spread: bool) -> None:
        super().__init__()
        self.into, self.back = (nn.Conv1d(width, width, 3, padding=1) for _ in range(2))
        self.norm, self.spread = nn.GroupNorm(1, width), spread

    def forward(self, x: Tensor) -> Tensor:
        y = fn.relu(self.into(x)).float()  # as autocast has it for norms
        norm = self.norm
        y = WholeNorm.apply(y, norm.weight, norm.bias) if self.spread else norm(y)
        return x + self.back(y)


@pair(
    "inefficient_kernel",
    "audio",
    "mean and variance by var_mean, which gives each recording many blocks, and one addcmul",
)
def whale_calls_normed_as_one_group(repaired: bool) -> Running:
    """Calls of whales without the noise of ships, in long recordings; BF16."""
    batch, tones, moments, width = size(8, 2), size(128, 6), size(32_768, 24), size(256, 8)
    net = nn.Sequential(
        nn.Conv1d(tones, width, 1),
        *(Hears(width, spread=repaired) for _ in range(size(4, 2))),
        nn.Conv1d(width, tones, 1),
    ).to(DEVICE)
    calls = noise(batch, tones, moments).abs()
    heard = calls + noise(batch, tones, moments).abs()

    def loss_of() -> Tensor:
        return fn.l1_loss(torch.sigmoid(net(heard)) * heard, calls)

    return fit(loss_of, adam(net))


# --- what a robot does to its world ---------------------------------------------------------------


def own_amsgrad(weights: list[Tensor], *, lr: float, decay: float) -> Callable[[], None]:
    """AMSGrad as in the paper, one weight after the other."""
    means, squares, most = ([torch.zeros_like(w) for w in weights] for _ in range(3))
    made = 0

    @torch.no_grad()
    def update() -> None:
        nonlocal made
        made += 1
        root = (1 - 0.999**made) ** 0.5
        for w, m, v, top in zip(weights, means, squares, most, strict=True):
            assert w.grad is not None
            w.mul_(1 - lr * decay)
            m.mul_(0.9).add_(w.grad, alpha=0.1)
            v.mul_(0.999).addcmul_(w.grad, w.grad, value=0.001)
            torch.maximum(top, v, out=top)
            w.addcdiv_(m, (top.sqrt() / root).add_(1e-8), value=-lr / (1 - 0.9**made))
            w.grad = None

    return update


@pair(
    "unfused_optimizer",
    "rl",
    "torch.optim.AdamW(amsgrad=True, fused=True) instead of a loop of one's own",
    marks="steps",
)
def robot_worlds_amsgrad_of_paper(repaired: bool) -> Running:
    """What comes after a movement, and its reward, from all that robots did; BF16."""
    batch, states, moves, width = size(6144, 8), size(480, 12), size(32, 4), size(7168, 16)
    parts: list[nn.Module] = []
    for before in (states + moves, *[width] * size(2, 1)):
        parts += [
            nn.Linear(before, width, bias=False),
            nn.LayerNorm(width, elementwise_affine=False),
            nn.SiLU(),
        ]
    world = nn.Sequential(*parts, nn.Linear(width, states + size(32, 4), bias=False)).to(DEVICE)
    many = size(65_536, 32)
    was, came = noise(many, states + moves), noise(many, states + size(32, 4))
    weights = list(world.parameters())
    if repaired:
        known = torch.optim.AdamW(weights, lr=1e-4, weight_decay=0.01, amsgrad=True, fused=True)

        def update() -> None:
            known.step()
            known.zero_grad(set_to_none=True)

    else:
        update = own_amsgrad(weights, lr=1e-4, decay=0.01)

    def step() -> None:
        chosen = labels(many, batch)
        with torch.autocast(DEVICE.type, SHORT):
            loss = fn.mse_loss(world(was[chosen]).float(), came[chosen])
        loss.backward()
        update()

    return Running(step, enter=precision("high"))
