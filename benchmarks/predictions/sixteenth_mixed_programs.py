"""A sixteenth set for one GPU: nine programs after public training code, each with its known fault.

The models are written anew and small; the lines that cost time stand as they do in such code.
Needs PyTorch only; no weights are loaded.
"""

from __future__ import annotations

import torch
from fourth_programs import adam, fit, labels, noise, sgd
from models import DEVICE, precision, size
from program import Program, Running, phase
from single_programs import entered
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 303 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"
SHORT = torch.bfloat16


# --- speech to text: attention whose softmax is in single precision -------------------------------


class Listens(nn.Module):
    """Queries of one sequence, keys and values of it or of another one."""

    def __init__(self, width: int, heads: int, *, causal: bool, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.by_hand = heads, causal, by_hand
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)

    def seen(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.by_hand:
            return fn.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        scale = q.shape[-1] ** -0.25  # on both sides, against overflow in half precision
        scores = (q * scale) @ (k * scale).transpose(-1, -2)
        if self.causal:
            hidden = torch.full(scores.shape[-2:], float("-inf"), device=q.device).triu_(1)
            scores = scores + hidden.to(scores.dtype)
        return scores.float().softmax(-1).to(q.dtype) @ v

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        q = self.query(x).view(b, t, self.heads, -1).transpose(1, 2)
        told = self.key_value(x if other is None else other)
        k, v = told.view(b, -1, 2, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(self.seen(q, k, v).transpose(1, 2).reshape(b, t, d))


class SpeechLayer(nn.Module):
    def __init__(self, width: int, heads: int, *, writes: bool, by_hand: bool) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.own = Listens(width, heads, causal=writes, by_hand=by_hand)
        self.heard = Listens(width, heads, causal=False, by_hand=by_hand) if writes else None
        self.between = nn.LayerNorm(width) if writes else None
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, sound: Tensor | None = None) -> Tensor:
        x = x + self.own(self.norm(x))
        if self.heard is not None and self.between is not None:
            x = x + self.heard(self.between(x), sound)
        return x + self.down(fn.gelu(self.up(self.last(x))))


class Transcriber(nn.Module):
    """Half a minute of sound is encoded, and its text is written token by token."""

    def __init__(self, bands: int, width: int, heads: int, vocab: int, *, by_hand: bool) -> None:
        super().__init__()
        self.into = nn.Conv1d(bands, width, 4, 2, 1)
        self.embed = nn.Embedding(vocab, width)
        nn.init.normal_(self.embed.weight, std=0.02)  # it is the last layer's weight, too
        self.encoder = nn.Sequential(
            *(SpeechLayer(width, heads, writes=False, by_hand=by_hand) for _ in range(2))
        )
        self.writer = SpeechLayer(width, heads, writes=True, by_hand=by_hand)
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, sound: Tensor, written: Tensor) -> Tensor:
        heard = self.norm(self.encoder(fn.gelu(self.into(sound)).transpose(1, 2)))
        return self.last(self.writer(self.embed(written), heard)) @ self.embed.weight.T


@pair(
    "unfused_attention",
    "audio",
    "scaled_dot_product_attention in place of products and a softmax in single precision",
)
def half_minutes_of_speech_scores_in_float(repaired: bool) -> Running:
    batch, frames, words = size(6, 2), size(3000, 24), size(224, 6)
    bands, vocab, width = size(80, 8), size(8192, 32), size(2048, 32)
    model = Transcriber(bands, width, size(16, 2), vocab, by_hand=not repaired)
    model = model.to(DEVICE, SHORT)
    sound, text = noise(batch, bands, frames).to(SHORT), labels(vocab, batch, words + 1)

    def loss_of() -> Tensor:
        said = model(sound, text[:, :-1])
        return fn.cross_entropy(said.flatten(0, 1).float(), text[:, 1:].flatten())

    return fit(loss_of, adam(model), bf16=False, clip=1.0)


# --- restored photographs: normalisation over channels, spelled out -------------------------------


class OverChannels(nn.Module):
    """Layer normalisation over the channels of each pixel."""

    def __init__(self, width: int, *, spelled: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.spelled = spelled

    def forward(self, x: Tensor) -> Tensor:
        if not self.spelled:  # channels are last in memory: the permutations move nothing
            y = x.permute(0, 2, 3, 1)
            return fn.layer_norm(y, self.weight.shape, self.weight, self.bias, 1e-6).permute(
                0, 3, 1, 2
            )
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        y = (x - mean) / torch.sqrt(var + 1e-6)
        return self.weight[:, None, None] * y + self.bias[:, None, None]


class Restores(nn.Module):
    """Two gated halves, without any other activation."""

    def __init__(self, width: int, *, spelled: bool) -> None:
        super().__init__()
        self.norm1 = OverChannels(width, spelled=spelled)
        self.norm2 = OverChannels(width, spelled=spelled)
        self.around = nn.Conv2d(width, 2 * width, 3, 1, 1)
        self.shares, self.back = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.up, self.down = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.around(self.norm1(x)).chunk(2, 1)
        h = a * b
        x = x + self.back(h * self.shares(h.mean((2, 3), keepdim=True)))
        a, b = self.up(self.norm2(x)).chunk(2, 1)
        return x + self.down(a * b)


@pair(
    "fusion_opportunity",
    "vision",
    "layer_norm over the channels, which are last in memory, instead of the formula",
    marks="phases",
)
def blurred_photographs_norm_by_formula(repaired: bool) -> Running:
    batch, side, width = size(8, 2), size(224, 8), size(128, 8)
    layers = [Restores(width, spelled=not repaired) for _ in range(size(3, 2))]
    model = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), *layers, nn.Conv2d(width, 3, 3, 1, 1))
    model = model.to(DEVICE, SHORT, memory_format=torch.channels_last)
    sharp = torch.rand(batch, 3, side, side, device=DEVICE).to(SHORT)
    sharp = sharp.to(memory_format=torch.channels_last)
    blurred = fn.avg_pool2d(sharp, 5, 1, 2).contiguous(memory_format=torch.channels_last)

    def loss_of() -> Tensor:
        return (blurred + model(blurred) - sharp).float().square().mean().add(1e-8).log()

    return fit(loss_of, adam(model), bf16=False)


# --- units of speech: the library's optimizer for those without its extension ---------------------


class PlainAdam(torch.optim.Optimizer):
    """Adam with decoupled decay, tensor by tensor, as where a fused one was not built."""

    def __init__(self, weights: list[nn.Parameter], lr: float, decay: float) -> None:
        super().__init__(weights, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "decay": decay})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (b1, b2), rate = group["betas"], group["lr"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                first, second = state["exp_avg"], state["exp_avg_sq"]
                state["step"] += 1
                first.mul_(b1).add_(p.grad, alpha=1 - b1)
                second.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                below = second.sqrt().add_(group["eps"])
                far = (1 - b2 ** state["step"]) ** 0.5 / (1 - b1 ** state["step"])
                p.add_(p, alpha=-group["decay"] * rate)
                p.addcdiv_(first, below, value=-rate * far)


class UnitLayer(nn.Module):
    """A layer of an encoder without biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(seen)
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


class Units(nn.Module):
    """Frames of sound, some of them hidden, and the unit that each one is."""

    def __init__(self, inside: int, width: int, heads: int, layers: int, units: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(inside, width), nn.Linear(width, units)
        self.hidden = nn.Parameter(torch.randn(width) * 0.02)
        self.layers = nn.Sequential(*(UnitLayer(width, heads) for _ in range(layers)))

    def forward(self, frames: Tensor, hide: Tensor) -> Tensor:
        h = self.into(frames)
        h = torch.where(hide[..., None], self.hidden.to(h.dtype), h)
        return self.out(self.layers(h))


@pair(
    "unfused_optimizer",
    "audio",
    "torch.optim.AdamW(fused=True) instead of the library's own Adam in Python",
)
def units_of_speech_adam_of_library(repaired: bool) -> Running:
    batch, frames, inside, units = size(14, 2), size(512, 12), size(640, 16), size(512, 16)
    model = Units(inside, size(2304, 32), size(18, 2), size(3, 2), units).to(DEVICE)
    weights = list(model.parameters())
    update: torch.optim.Optimizer
    if repaired:
        update = torch.optim.AdamW(weights, lr=1e-4, weight_decay=0.01, fused=True)
    else:
        update = PlainAdam(weights, 1e-4, 0.01)
    sound, true = noise(batch, frames, inside), labels(units, batch, frames)
    hide = torch.rand(batch, frames, device=DEVICE) < 0.4

    def loss_of() -> Tensor:
        each = fn.cross_entropy(
            model(sound, hide).flatten(0, 1).float(), true.flatten(), reduction="none"
        )
        return (each * hide.flatten()).mean()

    return fit(loss_of, update)


# --- a generator with styles, and its critic ------------------------------------------------------


def leaky(x: Tensor) -> Tensor:
    return fn.leaky_relu(x, 0.2)


class Styled(nn.Module):
    """A convolution whose input channels a style scales; its output gets unit variance again."""

    def __init__(self, width: int, styles: int) -> None:
        super().__init__()
        self.style = nn.Linear(styles, width)
        self.weight = nn.Parameter(torch.randn(width, width, 3, 3) / (3 * width**0.5))
        self.strength = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        style = 1 + self.style(w)
        even = torch.rsqrt(style.square() @ self.weight.square().sum((2, 3)).T + 1e-8)
        h = fn.conv2d(x * style[:, :, None, None], self.weight, padding=1)
        h = h * even[:, :, None, None]
        seeds = torch.randn(len(x), 1, *h.shape[2:], device=h.device)
        return leaky(h + self.strength * seeds)


class Generator(nn.Module):
    def __init__(self, width: int, styles: int, side: int, levels: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(1, width, side, side))
        self.mapping = nn.Sequential(nn.Linear(styles, styles), nn.LeakyReLU(0.2))
        self.levels = nn.ModuleList(Styled(width, styles) for _ in range(levels))
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, z: Tensor) -> Tensor:
        w = self.mapping(z)
        h = self.start.expand(len(z), -1, -1, -1)
        for i, level in enumerate(self.levels):
            if i:
                h = fn.interpolate(h, scale_factor=2.0)
            h = level(h, w)
        return self.out(h)


class Critic(nn.Module):
    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, width, 1)
        self.levels = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(levels))
        self.out = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = leaky(self.into(x))
        for level in self.levels:
            h = fn.avg_pool2d(leaky(level(h)), 2)
        return self.out(h.mean((2, 3)))


@pair(
    "low_precision_unused",
    "vision",
    "TF32 is no longer switched off in cuDNN and for matrix products",
    marks="phases",
)
def portraits_of_styles_tf32_switched_off(repaired: bool) -> Running:
    """The code switches TF32 off at its start, 'for reproducibility'."""
    batch, width, styles, first, levels = size(40, 2), size(256, 8), size(512, 8), size(16, 4), 3
    generator = Generator(width, styles, first, levels).to(DEVICE)
    critic = Critic(width, levels).to(DEVICE)
    made_by = adam(generator, betas=(0.0, 0.99))
    judged_by = adam(critic, betas=(0.0, 0.99))
    side = first * 2 ** (levels - 1)
    real = noise(batch, 3, side, side)

    def step() -> None:
        with phase("critic"):
            with torch.no_grad():
                fake = generator(noise(batch, styles))
            of_fake, of_real = critic(torch.cat([fake, real])).chunk(2)
            loss = fn.softplus(of_fake).mean() + fn.softplus(-of_real).mean()
            loss.backward()
            judged_by.step()
            judged_by.zero_grad(set_to_none=True)
        with phase("generator"):
            critic.requires_grad_(False)
            loss = fn.softplus(-critic(generator(noise(batch, styles)))).mean()
            loss.backward()
            critic.requires_grad_(True)
            made_by.step()
            made_by.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high" if repaired else "highest"))


# --- a policy learns from what was played ---------------------------------------------------------


class Player(nn.Module):
    """The convolutions that most players of old video games have."""

    def __init__(self, wide: int, hidden: int, actions: int, side: int) -> None:
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(4, wide, 8, 4), nn.ReLU(), nn.Conv2d(wide, 2 * wide, 4, 2), nn.ReLU(),
            nn.Conv2d(2 * wide, 2 * wide, 3, 1), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        with torch.no_grad():
            flat = self.look(torch.zeros(1, 4, side, side)).shape[1]
        self.think = nn.Sequential(nn.Linear(flat, hidden), nn.ReLU())
        self.act, self.worth = nn.Linear(hidden, actions), nn.Linear(hidden, 1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        h = self.think(self.look(seen.float() / 255.0))
        return fn.log_softmax(self.act(h), -1), self.worth(h)[:, 0]


@pair(
    "host_sync",
    "rl",
    "what is logged of each minibatch stays on the device and is read every 200 minibatches",
)
def minibatches_of_play_logged_by_item(repaired: bool) -> Running:
    """A step is a minibatch of the clipped objective, drawn from the frames of a rollout."""
    kept, batch, actions, side = size(16_384, 32), size(8192, 8), size(18, 3), size(84, 40)
    player = Player(size(32, 4), size(512, 8), actions, side).to(DEVICE)
    update = adam(player, eps=1e-5)
    weights = list(player.parameters())
    frames = torch.randint(0, 256, (kept, 4, side, side), dtype=torch.uint8, device=DEVICE)
    done, gains, returns = labels(actions, kept), noise(kept), noise(kept)
    with torch.no_grad():
        before = torch.cat([player(some)[0] for some in frames.split(batch)])
    before = before.gather(1, done[:, None])[:, 0]
    order = torch.randperm(kept, device=DEVICE).split(batch)
    logs: dict[str, list[float]] = {}
    unread: list[Tensor] = []
    names = ("policy", "clipped", "value", "entropy", "divergence")
    made = 0

    def log(name: str, value: Tensor) -> None:
        if repaired:
            unread.append(value.detach())
        else:
            logs.setdefault(name, []).append(value.item())

    def read() -> None:
        if unread:
            for i, value in enumerate(torch.stack(unread).tolist()):
                logs.setdefault(names[i % len(names)], []).append(value)
            unread.clear()
        logs.clear()  # written to the log's file

    def step() -> None:
        nonlocal made
        rows = order[made % len(order)]
        made += 1
        said, worth = player(frames[rows])
        now = said.gather(1, done[rows, None])[:, 0]
        gain = gains[rows]
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        apart = now - before[rows]
        ratio = torch.exp(apart)
        policy = -torch.min(gain * ratio, gain * ratio.clamp(0.8, 1.2)).mean()
        log("policy", policy)
        log("clipped", ((ratio - 1).abs() > 0.2).float().mean())
        value = fn.mse_loss(returns[rows], worth)
        log("value", value)
        entropy = -(said * said.exp()).sum(1).mean()
        log("entropy", entropy)
        loss = policy - 0.01 * entropy + 0.5 * value
        with torch.no_grad():
            log("divergence", ((ratio - 1) - apart).mean())
        update.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 0.5)
        update.step()
        if made % 200 == 0:
            read()

    return Running(step, enter=precision("high"))


# --- a recurrent language model in its parallel form ----------------------------------------------


class MixesTime(nn.Module):
    """What was said decays with time, as fast as the head says."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.of_heads = nn.LayerNorm(width), nn.LayerNorm(width)
        self.shares = nn.Parameter(torch.full((2, width), 0.5))
        self.ask_gate, self.key_value = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, decay: Tensor) -> Tensor:
        b, t, d = x.shape
        h = self.norm(x)
        past = fn.pad(h, (0, 0, 1, -1))
        ask, gate = self.ask_gate(torch.lerp(past, h, self.shares[0])).chunk(2, -1)
        key, value = self.key_value(torch.lerp(past, h, self.shares[1])).chunk(2, -1)
        r, k, v = (y.reshape(b, t, self.heads, -1).transpose(1, 2) for y in (ask, key, value))
        heard = ((r @ k.transpose(-1, -2)) * decay) @ v
        heard = self.of_heads(heard.transpose(1, 2).reshape(b, t, d))
        return x + self.out(heard * fn.silu(gate))


class MixesChannels(nn.Module):
    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.share = nn.Parameter(torch.full((width,), 0.5))
        self.key, self.value = nn.Linear(width, wide), nn.Linear(wide, width)
        self.allows = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        mixed = torch.lerp(fn.pad(h, (0, 0, 1, -1)), h, self.share)
        return x + torch.sigmoid(self.allows(mixed)) * self.value(fn.relu(self.key(mixed)).square())


class Recurrent(nn.Module):
    def __init__(
        self, width: int, heads: int, layers: int, vocab: int, length: int, *, again: bool
    ) -> None:
        super().__init__()
        self.again = again
        self.embed, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        self.times = nn.ModuleList(MixesTime(width, heads) for _ in range(layers))
        self.channels = nn.ModuleList(MixesChannels(width, 7 * width // 2) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        rates = 1 - 2.0 ** (-3 - torch.arange(heads) * 5.0 / heads)
        places = torch.arange(length)
        since = (places[:, None] - places).clamp_min(0)
        decay = (rates[:, None, None] ** since).tril() * (width // heads) ** -0.5
        self.register_buffer("decay", decay, persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        h = self.embed(words)
        for time, channel in zip(self.times, self.channels, strict=True):
            if self.again:
                h = checkpoint(time, h, self.decay, use_reentrant=False)
                h = checkpoint(channel, h, use_reentrant=False)
            else:
                h = channel(time(h, self.decay))
        return self.head(self.norm(h))


@pair(
    "recomputation",
    "language",
    "the layers are called without checkpoint: memory holds their activations",
    marks="steps",
)
def decaying_heads_checkpoints_by_default(repaired: bool) -> Running:
    """Checkpoints are on in the trainer's default configuration, however small the model."""
    batch, length, vocab, width = size(20, 2), size(512, 10), size(8192, 32), size(2048, 32)
    model = Recurrent(width, size(16, 2), 2, vocab, length, again=not repaired)
    model = model.to(DEVICE, SHORT)
    words = labels(vocab, batch, length + 1)

    def loss_of() -> Tensor:
        said = model(words[:, :-1])
        return fn.cross_entropy(said.flatten(0, 1).float(), words[:, 1:].flatten())

    return fit(loss_of, adam(model), bf16=False, clip=1.0)


# --- objects on a grid ----------------------------------------------------------------------------


class Normed(nn.Module):
    """A convolution, normalised over the batch."""

    def __init__(self, before: int, after: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(after, eps=1e-3, momentum=0.03)

    def forward(self, x: Tensor) -> Tensor:
        return fn.silu(self.norm(self.conv(x)))


class PartlyCrossed(nn.Module):
    """Half of the channels passes two convolutions, the other half none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        part = width // 2
        self.to_deep, self.to_flat = Normed(width, part), Normed(width, part)
        self.deep = nn.Sequential(Normed(part, part), Normed(part, part, 3))
        self.out = Normed(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.to_deep(x)
        return self.out(torch.cat([h + self.deep(h), self.to_flat(x)], 1))


@pair(
    "layout_changes",
    "vision",
    "channels_last for the network and for its pictures",
)
def grid_of_objects_channels_first(repaired: bool) -> Running:
    """Half precision with a scaler, as detectors have it; the stages are the first three."""
    batch, side, width, kinds = size(64, 2), size(512, 32), size(48, 8), 91
    parts: list[nn.Module] = [Normed(3, width, 3, 2)]
    for level in range(3):
        wide = width * 2 ** (level + 1)
        parts += [Normed(wide // 2, wide, 3, 2), PartlyCrossed(wide)]
    model = nn.Sequential(*parts, nn.Conv2d(wide, 5 + kinds, 1)).to(DEVICE)
    pictures = torch.rand(batch, 3, side, side, device=DEVICE)
    if repaired:
        model = model.to(memory_format=torch.channels_last)
        pictures = pictures.to(memory_format=torch.channels_last)
    cells = side // 16
    there = (torch.rand(batch, cells, cells, device=DEVICE) < 0.1).float()
    boxes = torch.rand(batch, 4, cells, cells, device=DEVICE)
    which = fn.one_hot(labels(kinds, batch, cells, cells), kinds).permute(0, 3, 1, 2).float()
    update = sgd(model, nesterov=True)  # fused: it takes the scale itself, and nobody asks
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=CUDA, init_scale=1024.0)

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.float16 if CUDA else SHORT):
            found = model(pictures)
        found = found.float()
        off = (found[:, :4].sigmoid() - boxes).abs().mean(1)
        unsure = fn.binary_cross_entropy_with_logits(found[:, 4], there)
        wrong = fn.binary_cross_entropy_with_logits(found[:, 5:], which, reduction="none").mean(1)
        loss = unsure + ((5 * off + wrong) * there).sum() / there.sum()
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- pictures and their captions ------------------------------------------------------------------


class TowerLayer(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = fn.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).reshape(b, t, d))
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


class TwoTowers(nn.Module):
    """A picture and a caption are near each other where they belong together."""

    def __init__(self, width: int, heads: int, vocab: int, patch: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch, bias=False)
        self.embed = nn.Embedding(vocab, width)
        self.seen = nn.Sequential(*(TowerLayer(width, heads, causal=False) for _ in range(3)))
        self.read = nn.Sequential(*(TowerLayer(width, heads, causal=True) for _ in range(2)))
        self.of_seen, self.of_read = nn.LayerNorm(width), nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.tensor(2.66))

    def forward(self, pictures: Tensor, captions: Tensor) -> Tensor:
        seen = self.seen(self.patch(pictures).flatten(2).transpose(1, 2)).mean(1)
        read = self.read(self.embed(captions))[:, -1]
        a, b = fn.normalize(self.of_seen(seen), dim=-1), fn.normalize(self.of_read(read), dim=-1)
        return self.scale.exp() * a @ b.T


@pair(
    "blocking_copy",
    "vision",
    "the loader of shards pins its batches, so that non_blocking=True holds",
    marks="profiler",
)
def shards_of_captions_loader_never_pins(repaired: bool) -> Running:
    """The loader of web shards has no ``pin_memory`` of its own, unlike PyTorch's."""
    batch, side, vocab, words = size(128, 2), size(224, 32), size(16_384, 32), size(77, 6)
    model = TwoTowers(size(1024, 32), size(16, 2), vocab, size(16, 8)).to(DEVICE, SHORT)
    update = adam(model, weight_decay=0.2)
    same = torch.arange(batch, device=DEVICE)
    shard = []
    for _ in range(3):
        both = torch.randn(batch, 3, side, side), torch.randint(0, vocab, (batch, words))
        if repaired and CUDA:
            both = both[0].pin_memory(), both[1].pin_memory()
        shard.append(both)
    made = 0

    def step() -> None:
        nonlocal made
        pictures, captions = shard[made % len(shard)]
        made += 1
        pictures = pictures.to(DEVICE, non_blocking=True)
        captions = captions.to(DEVICE, non_blocking=True)
        update.zero_grad(set_to_none=True)
        near = model(pictures.to(SHORT), captions).float()
        loss = (fn.cross_entropy(near, same) + fn.cross_entropy(near.T, same)) / 2
        loss.backward()
        update.step()
        with torch.no_grad():
            model.scale.clamp_(0, 4.6052)

    return Running(step, enter=precision("high"))


# --- will it be clicked? --------------------------------------------------------------------------


class Clicks(nn.Module):
    """Numbers and tables of things; each pair of them is multiplied."""

    def __init__(self, tables: int, rows: int, width: int, wide: int, *, padded: bool) -> None:
        super().__init__()
        self.padded = padded
        self.register_buffer("first", torch.arange(tables) * rows, persistent=False)
        self.table = nn.Embedding(tables * rows, width)
        nn.init.uniform_(self.table.weight, -(rows**-0.5), rows**-0.5)
        self.bottom = nn.Sequential(
            nn.Linear(16, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.ReLU()
        )
        parts = tables + 1
        i, j = torch.tril_indices(parts, parts, -1)
        self.register_buffer("pairs", i * parts + j, persistent=False)
        inside = width + len(i) + padded
        self.top = nn.Sequential(
            nn.Linear(inside, wide), nn.ReLU(), nn.Linear(wide, wide // 4), nn.ReLU(),
            nn.Linear(wide // 4, 8),
        )  # fmt: skip

    def forward(self, numbers: Tensor, things: Tensor) -> Tensor:
        x = self.bottom(numbers)
        rows = self.table(things + self.first).to(x.dtype)
        parts = torch.cat([x[:, None], rows], 1)
        products = torch.bmm(parts, parts.transpose(1, 2)).flatten(1)
        found = [x, products.index_select(1, self.pairs)]
        if self.padded:
            found.append(x.new_zeros(len(x), 1))
        return self.top(torch.cat(found, 1))


@pair(
    "aligned_shapes",
    "recommender",
    "a column of zeros makes 480 of the 479 numbers that enter the upper network",
)
def clicks_of_479_numbers(repaired: bool) -> Running:
    """26 tables and a bottom network of 128: 351 products and 128 numbers, as published."""
    batch, tables, rows = size(49_152, 8), size(26, 4), size(2000, 20)
    model = Clicks(tables, rows, size(128, 8), size(4096, 16), padded=repaired).to(DEVICE)
    numbers, things = noise(batch, 16), labels(rows, batch, tables)
    liked = torch.rand(batch, 8, device=DEVICE).round()

    def loss_of() -> Tensor:
        return fn.binary_cross_entropy_with_logits(model(numbers, things).float(), liked)

    return fit(loss_of, sgd(model), decay=True)
