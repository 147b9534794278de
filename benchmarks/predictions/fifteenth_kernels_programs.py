"""Programs of the fifteenth set whose fault lies in the GPU's kernels, which are few and large.

Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Feeds, size
from program import Program, Running
from single_programs import entered
from tenth_pictures_programs import scaled
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 276 pairs"
pair = entered(PROGRAMS)
SHORT = torch.bfloat16


# --- what a surgeon does --------------------------------------------------------------------------


class WithinFrames(nn.Module):
    """Patches of a frame look at each other; channels then pass from frame to frame."""

    def __init__(self, width: int, heads: int, frames: int, *, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.frames, self.by_hand = heads, frames, by_hand
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = Feeds(width)

    def forward(self, x: Tensor) -> Tensor:
        n, s, d = x.shape
        qkv = self.qkv(self.norm(x)).view(n, s, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.by_hand:
            shares = ((q * (d // self.heads) ** -0.5) @ k.mT).softmax(dim=-1)
            y = shares @ v
        else:
            y = fn.scaled_dot_product_attention(q, k, v)
        y = y.transpose(1, 2).reshape(-1, self.frames, s, d)
        # an eighth of the channels comes from the frame before, as in temporal shifts
        y = torch.cat([y[..., : d // 8].roll(1, 1), y[..., d // 8 :]], -1)
        return self.feed(x + self.out(y.view(n, s, d)))


@pair(
    "unfused_attention",
    "video",
    "scaled_dot_product_attention where queries were scaled, multiplied, and their softmax taken",
)
def surgery_clips_looks_within_frames(repaired: bool) -> Running:
    """What a surgeon is doing in a clip, frame by frame; FP16 with a scaler."""
    clips, frames, patches, inside = size(2, 2), size(8, 2), size(784, 9), size(768, 12)
    width, heads, acts = size(1536, 16), size(12, 2), size(48, 5)
    layers = (WithinFrames(width, heads, frames, by_hand=not repaired) for _ in range(size(3, 1)))
    model = nn.Sequential(nn.Linear(inside, width), *layers).to(DEVICE)
    place = nn.Parameter(0.02 * noise(patches, inside))
    last = nn.Linear(width, acts).to(DEVICE)
    update = torch.optim.AdamW([*model.parameters(), *last.parameters(), place], 1e-4, fused=True)
    seen, done = noise(clips * frames, patches, inside), labels(acts, clips * frames)

    def loss_of() -> Tensor:
        return fn.cross_entropy(last(model(seen + place).mean(1)).float(), done)

    return scaled(loss_of, update)


# --- a flute, as sines ----------------------------------------------------------------------------


def harmonics(shares: Tensor, loud: Tensor, pitch: Tensor, turns: Tensor, count: Tensor) -> Tensor:
    """Sines at the multiples of a pitch; those above half of the sampling rate are left out.

    Args:
        shares: how strong each is, held for a frame: batch, frames, 1, harmonics.
        loud: how loud the sound is: batch, frames, 1.
        pitch: cycles a sample: batch, frames, samples.
        turns: its sum so far, in cycles.
        count: 1, 2, 3 and so on.
    """
    heard = pitch[..., None] * count < 0.5
    strong = torch.where(heard, shares, 0.0)
    strong = strong / (strong.sum(-1, keepdim=True) + 1e-7)
    waves = torch.sin((2 * math.pi) * (turns[..., None] * count))
    return (waves * strong * loud[..., None]).sum(-1)


@pair(
    "fusion_opportunity",
    "audio",
    "torch.compile of the function that adds the harmonics up",
    compiles=True,
)
def flutes_harmonics_compile(repaired: bool) -> Running:
    """A flute's sound from pitch and how it is blown, as in DDSP; the network in BF16."""
    sounds, frames, hop, many = size(40, 2), size(250, 4), size(192, 8), size(64, 5)
    width, blown_by = size(4096, 16), size(128, 6)
    parts: list[nn.Module] = [nn.Linear(blown_by, width), nn.GELU()]
    for _ in range(size(4, 1)):
        parts += [nn.Linear(width, width), nn.GELU()]
    net = nn.Sequential(*parts, nn.Linear(width, many + 1)).to(DEVICE)
    blown = noise(sounds, frames, blown_by)
    pitch = 0.005 + 0.02 * torch.rand(sounds, frames, 1, device=DEVICE).expand(-1, -1, hop)
    turns = pitch.flatten(1).cumsum(1).frac().view(sounds, frames, hop)
    count = torch.arange(1, many + 1, device=DEVICE).float()
    truth = noise(sounds, frames, hop)
    added: Any = torch.compile(harmonics, dynamic=False) if repaired else harmonics

    def loss_of() -> Tensor:
        said = net(blown).float()
        shares, loud = said[..., None, 1:].sigmoid(), said[..., :1].exp()
        return fn.mse_loss(added(shares, loud, pitch, turns, count), truth)

    return fit(loss_of, adam(net))


# --- echoes of rooms ------------------------------------------------------------------------------


def wide(inside: int, width: int, layers: int, outside: int) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Linear(inside, width), nn.SiLU()]
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.SiLU()]
    return nn.Sequential(*parts, nn.Linear(width, outside))


@pair(
    "low_precision_unused",
    "audio",
    "the decoder is called, and its loss taken, inside of the autocast block, as the encoder is",
)
def room_echoes_decoded_below_autocast(repaired: bool) -> Running:
    """Echoes of rooms as few numbers, by a variational autoencoder; the block ends too early."""
    echoes, long, few = size(16_384, 6), size(1024, 12), size(256, 4)
    encoder = wide(long, size(4096, 16), size(3, 1), 2 * few).to(DEVICE)
    decoder = wide(few, size(2048, 16), size(1, 1), long).to(DEVICE)
    heard = noise(echoes, long)

    def decoded(codes: Tensor) -> Tensor:
        return fn.mse_loss(decoder(codes).float(), heard)

    def loss_of() -> Tensor:
        with torch.autocast(DEVICE.type, SHORT):
            mean, log_spread = encoder(heard).float().chunk(2, -1)
            codes = mean + torch.exp(log_spread / 2) * torch.randn_like(mean)
            far = (mean.square() + log_spread.exp() - log_spread - 1).mean()
            if repaired:
                return decoded(codes) + 0.01 * far
        return decoded(codes) + 0.01 * far

    return fit(loss_of, adam(encoder, decoder), bf16=False, matmul="highest", clip=1.0)


# --- returns that are wished for ------------------------------------------------------------------


class Recalls(nn.Module):
    """What was wished, seen and done looks at what came before it; as in a small GPT."""

    seen: Tensor

    def __init__(self, width: int, heads: int, long: int, drop: float, *, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.drop, self.by_hand = heads, drop, by_hand
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.feed = Feeds(width)
        seen = torch.ones(1, 1, long, long, dtype=torch.bool).tril()
        self.register_buffer("seen", seen, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        y = self.norm(x)
        q, k, v = (
            of(y).view(b, t, self.heads, -1).transpose(1, 2) for of in (self.q, self.k, self.v)
        )
        if self.by_hand:
            scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(d // self.heads)
            least = torch.full((), torch.finfo(x.dtype).min, dtype=x.dtype, device=x.device)
            shares = fn.softmax(torch.where(self.seen[..., :t, :t], scores, least), dim=-1)
            y = torch.matmul(fn.dropout(shares, self.drop, self.training), v)
        else:
            y = fn.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.drop)
        return self.feed(x + self.out(y.transpose(1, 2).reshape(b, t, d)))


@pair(
    "unfused_attention",
    "rl",
    "scaled_dot_product_attention(is_causal=True) with its own dropout, not where and softmax",
    marks="phases",
)
def wished_returns_masks_by_where(repaired: bool) -> Running:
    """What a kiln's pilot does next, if so much is to be gained; a decision transformer in BF16."""
    batch, moments, width, heads = size(28, 2), size(256, 4), size(1024, 16), size(8, 2)
    state_of, acts = size(192, 6), size(32, 3)
    with torch.device(DEVICE):
        wished, stated, acted = (
            nn.Linear(1, width),
            nn.Linear(state_of, width),
            nn.Linear(acts, width),
        )
        layers = nn.Sequential(
            *(
                Recalls(width, heads, 3 * moments, 0.1, by_hand=not repaired)
                for _ in range(size(4, 1))
            )
        )
        norm, last = nn.LayerNorm(width), nn.Linear(width, acts)
        when = nn.Embedding(moments, width)
    model = nn.ModuleList([wished, stated, acted, layers, norm, last, when]).to(SHORT)
    gain, state = noise(batch, moments, 1).to(SHORT), noise(batch, moments, state_of).to(SHORT)
    act = noise(batch, moments, acts).clamp(-1, 1).to(SHORT)

    def loss_of() -> Tensor:
        three = torch.stack([wished(gain), stated(state), acted(act)], 2) + when.weight[:, None]
        h = norm(layers(three.flatten(1, 2)))
        # what is done follows from the place of the state, the second one of three
        said = last(h.unflatten(1, (moments, 3))[:, :, 1]).float().tanh()
        return fn.mse_loss(said, act.float())

    return fit(loss_of, adam(model), bf16=False, clip=0.25)


# --- what comes out of wells ----------------------------------------------------------------------


class Mish(nn.Module):
    """A smooth ramp with a dip; by the formula, or the library's."""

    def __init__(self, *, by_formula: bool) -> None:
        super().__init__()
        self.by_formula = by_formula

    def forward(self, x: Tensor) -> Tensor:
        if self.by_formula:
            return x * torch.tanh(torch.log(1 + torch.exp(x)))
        return fn.mish(x)


class Foresees(nn.Module):
    """A part of what comes, and which part of what was seen that explains; as in N-BEATS."""

    def __init__(self, past: int, width: int, future: int, *, by_formula: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(past, width), Mish(by_formula=by_formula),
            nn.Linear(width, width), Mish(by_formula=by_formula),
            nn.Linear(width, width), Mish(by_formula=by_formula),
        )  # fmt: skip
        self.back, self.on = nn.Linear(width, past), nn.Linear(width, future)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(seen)
        return seen - self.back(h), self.on(h)


@pair(
    "fusion_opportunity",
    "series",
    "torch.nn.functional.mish instead of its formula",
    marks="steps",
)
def pressures_of_wells_mish_by_formula(repaired: bool) -> Running:
    """Pressures in wells for the next days, from the last weeks; TF32, gradients clipped."""
    wells, past, future, width = size(9216, 6), size(1536, 12), size(384, 4), size(3072, 16)
    blocks = nn.ModuleList(
        Foresees(past, width, future, by_formula=not repaired) for _ in range(size(2, 2))
    ).to(DEVICE)
    seen, comes = noise(wells, past), noise(wells, future)

    def loss_of() -> Tensor:
        rest, said = seen, torch.zeros_like(comes)
        for block in blocks:
            rest, part = block(rest)
            said = said + part
        return fn.smooth_l1_loss(said, comes)

    return fit(loss_of, adam(blocks), bf16=False, clip=1.0)


# --- roads ----------------------------------------------------------------------------------------


class OverRoads(nn.Module):
    """Sensors take up what the graph, which is learnt, sends them; then each by itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.own, self.sent = nn.Linear(channels, channels), nn.Linear(channels, channels)

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        n, b, c = x.shape
        y = self.norm(x)
        got = (graph @ y.reshape(n, b * c)).view(n, b, c)
        return x + fn.gelu(self.own(y) + self.sent(got))


@pair(
    "aligned_shapes",
    "graph",
    "seven sensors that measure nothing and are not scored make the graph 2720 wide",
)
def road_sensors_graph_of_2713(repaired: bool) -> Running:
    """Speeds on a city's roads; which sensors concern each other is learnt; weights in BF16."""
    real = size(2713, 13)
    sensors = -(-real // 16) * 16 if repaired else real
    times, channels, known, hours = size(160, 3), size(128, 8), size(24, 4), size(12, 2)
    with torch.device(DEVICE):
        into, out = nn.Linear(known, channels), nn.Linear(channels, hours)
        layers = nn.ModuleList(OverRoads(channels) for _ in range(size(4, 2)))
        ends = nn.Parameter(torch.randn(2, sensors, size(64, 4)) * 0.3)
    model = nn.ModuleList([into, out, layers]).to(SHORT)
    update = torch.optim.AdamW([*model.parameters(), ends], 1e-4, fused=True)
    seen = fn.pad(noise(real, times, known), (0, 0, 0, 0, 0, sensors - real)).to(SHORT)
    comes = noise(real, times, hours)
    # nobody listens to sensors that are not there
    there = torch.arange(sensors, device=DEVICE) < real

    def loss_of() -> Tensor:
        near = fn.relu(ends[0] @ ends[1].t()).masked_fill(~there, -1e4)
        graph = near.softmax(1).to(SHORT)
        h = into(seen)
        for layer in layers:
            h = layer(h, graph)
        return fn.l1_loss(out(h)[:real].float(), comes)

    return fit(loss_of, update, bf16=False)


# --- substations ----------------------------------------------------------------------------------


class AmongSeries(nn.Module):
    """Each series is a token, and looks at all others."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = Feeds(width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        qkv = self.qkv(self.norm(x)).view(b, n, 3, self.heads, d // self.heads)
        y = fn.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4).unbind())
        return self.feed(x + self.out(y.transpose(1, 2).reshape(b, n, d)))


@pair("lower_precision", "series", "autocast to BF16 around model and loss, which were in TF32")
def substations_series_as_tokens_tf32(repaired: bool) -> Running:
    """What flows through substations tomorrow; series are tokens, as in the iTransformer."""
    batch, series, past, future = size(48, 2), size(320, 6), size(672, 12), size(96, 4)
    width, heads = size(1536, 16), size(12, 2)
    layers = (AmongSeries(width, heads) for _ in range(size(3, 1)))
    model = nn.Sequential(
        nn.Linear(past, width), *layers, nn.LayerNorm(width), nn.Linear(width, future)
    ).to(DEVICE)
    seen, comes = noise(batch, series, past), noise(batch, series, future)

    def loss_of() -> Tensor:
        # each series is seen by its own scale, and foreseen by it
        middle, spread = seen.mean(-1, keepdim=True), seen.std(-1, keepdim=True) + 1e-5
        said = model((seen - middle) / spread).float() * spread + middle
        return fn.mse_loss(said, comes)

    return fit(loss_of, adam(model), bf16=repaired, decay=True)


# --- an arcade ------------------------------------------------------------------------------------


class Beside(nn.Module):
    """Two convolutions beside what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(fn.relu(self.first(fn.relu(x))))


class Player(nn.Module):
    """What to do, and what the moment is worth; a wide network of IMPALA's kind."""

    def __init__(self, frames: int, channels: tuple[int, ...], side: int, acts: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for before, after in zip((frames, *channels[:-1]), channels, strict=True):
            parts += [nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            parts += [Beside(after), Beside(after)]
            side = (side + 1) // 2
        self.sees = nn.Sequential(*parts, nn.ReLU())
        self.thinks = nn.Linear(channels[-1] * side * side, size(512, 8))
        self.acts, self.worth = nn.Linear(size(512, 8), acts), nn.Linear(size(512, 8), 1)

    def forward(self, screens: Tensor) -> tuple[Tensor, Tensor]:
        h = fn.relu(self.thinks(self.sees(screens / 255).flatten(1)))
        return self.acts(h).float(), self.worth(h).float()[:, 0]


@pair("layout_changes", "rl", "channels_last for the player and the screens that it learns from")
def arcade_player_screens_by_channel(repaired: bool) -> Running:
    """A minibatch of proximal policy optimisation, from an arcade's screens; BF16."""
    batch, side, frames, acts = size(800, 3), size(84, 12), size(4, 2), size(16, 4)
    channels = (size(64, 8), size(128, 8), size(128, 8))
    player = Player(frames, channels, side, acts).to(DEVICE)
    screens = labels(256, batch, frames, side, side).to(torch.uint8)
    if repaired:
        player = player.to(memory_format=torch.channels_last)
        screens = screens.contiguous(memory_format=torch.channels_last)
    did, gains, worths = labels(acts, batch, 1), noise(batch), noise(batch)
    before = torch.full((batch,), -math.log(acts), device=DEVICE)

    def loss_of() -> Tensor:
        said, worth = player(screens)
        likely = said.log_softmax(-1)
        ratio = (likely.gather(1, did)[:, 0] - before).exp()
        better = torch.minimum(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()
        spread = -(likely.exp() * likely).sum(-1).mean()
        return 0.5 * fn.mse_loss(worth, worths) - better - 0.01 * spread

    return fit(loss_of, adam(player, eps=1e-5), clip=0.5)


# --- what is put into carts -----------------------------------------------------------------------


class Gathers(nn.Module):
    """What was put into a cart so far, as running means of what a layer makes of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.both = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        kept, gate = self.both(self.norm(x)).chunk(2, -1)
        return x + self.out(torch.matmul(before, kept) * fn.silu(gate))


@pair(
    "casts_and_copies",
    "recommender",
    "the items' rows are cast to BF16 once, not by autocast in each part of the scores",
)
def carts_scored_in_parts(repaired: bool) -> Running:
    """The next item of a cart, among all; scores are made in parts, and item 0 fills carts up.

    Autocast remembers casts of weights; rows of a weight are none.
    """
    carts, long, width, parts = size(96, 4), size(64, 5), size(2048, 16), size(8, 2)
    items = size(40_960, 40)
    table, norm = nn.Embedding(items + 1, width, padding_idx=0), nn.LayerNorm(width)
    gathers = Gathers(width)
    model = nn.ModuleList([table, gathers, norm]).to(DEVICE)
    bought = labels(items, carts, long + 1) + 1
    before = torch.ones(long, long, device=DEVICE).tril()
    before = before / before.sum(1, keepdim=True)

    def loss_of() -> Tensor:
        h = gathers(table(bought[:, :-1]), before)
        found = (norm(h) * width**-0.5).flatten(0, 1).chunk(parts)
        following = (bought[:, 1:] - 1).flatten().chunk(parts)
        rows = table.weight[1:]
        if repaired:
            rows = rows.to(SHORT)
        off = [
            fn.cross_entropy(fn.linear(part, rows), right, reduction="sum")
            for part, right in zip(found, following, strict=True)
        ]
        return torch.stack(off).sum() / bought[:, 1:].numel()

    return fit(loss_of, adam(model))
