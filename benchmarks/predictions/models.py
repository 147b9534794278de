"""Models and loops that the exam's programs are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from program import SMALL, Running, phase
from torch import Tensor, nn
from torch.nn import functional as fn

DEVICE = torch.device("cuda" if torch.cuda.is_available() and not SMALL else "cpu")


def size(large: int, small: int) -> int:
    """A size on the GPU, and where the programs are only tried."""
    return small if SMALL else large


# --- parts -----------------------------------------------------------------------------------


class RmsNorm(nn.Module):
    """Spelled out, or the library's."""

    def __init__(self, width: int, *, spelled: bool) -> None:
        super().__init__()
        self.weight, self.spelled = nn.Parameter(torch.ones(width)), spelled

    def forward(self, x: Tensor) -> Tensor:
        if not self.spelled:
            return fn.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), 1e-6)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y.to(x.dtype) * self.weight.to(x.dtype)


def spelled_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


def written_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, mask: Tensor | None
) -> Tensor:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    t = q.shape[-2]
    if causal:
        seen = torch.ones(t, t, dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ v


class Block(nn.Module):
    """A transformer layer."""

    def __init__(
        self, width: int, heads: int, *, causal: bool, written: bool, spelled: bool, rms: bool
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.written, self.spelled = heads, causal, written, spelled
        norm: Callable[[], nn.Module] = (
            (lambda: RmsNorm(width, spelled=spelled)) if rms else (lambda: nn.LayerNorm(width))
        )
        self.norm1, self.norm2 = norm(), norm()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.written:
            y = written_attention(q, k, v, causal=self.causal, mask=mask)
        else:
            y = fn.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=self.causal and mask is None
            )
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        h = self.up(self.norm2(x))
        h = spelled_gelu(h) if self.spelled else fn.gelu(h, approximate="tanh")
        return x + self.down(h)


class Gpt(nn.Module):
    """A decoder-only language model, or with ``causal=False`` an encoder."""

    def __init__(
        self,
        width: int = 512,
        layers: int = 4,
        vocab: int = 8192,
        *,
        length: int = 4096,
        head: int = 64,
        causal: bool = True,
        written: bool = False,
        spelled: bool = False,
        rms: bool = False,
    ) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            Block(
                width,
                max(width // head, 1),
                causal=causal,
                written=written,
                spelled=spelled,
                rms=rms,
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.embed(x) + self.place.weight[: x.shape[1]]
        for layer in self.layers:
            h = layer(h, mask)
        return self.head(self.norm(h))


class Vit(nn.Module):
    """A vision transformer."""

    def __init__(
        self,
        width: int = 384,
        layers: int = 6,
        patch: int = 16,
        classes: int = 1000,
        **options: bool,
    ) -> None:
        super().__init__()
        kinds = {"written": False, "spelled": False, "rms": False} | options
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.layers = nn.ModuleList(
            Block(width, width // 64 or 1, causal=False, **kinds) for _ in range(layers)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(h.shape[0], -1, -1).to(h.dtype), h], 1)
        for layer in self.layers:
            h = layer(h)
        return self.head(h[:, 0])


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.short = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = fn.relu(self.norm1(self.conv1(x)))
        return fn.relu(self.norm2(self.conv2(h)) + self.short(x))


def resnet(width: int = 64, blocks: int = 1, classes: int = 1000) -> nn.Module:
    """A residual network."""
    parts: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    before = width
    for level in range(4):
        for block in range(blocks):
            after = width * 2**level
            parts.append(Residual(before, after, 2 if block == 0 else 1))
            before = after
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class UnetBlock(nn.Module):
    """Two convolutions, with the activation and normalisation spelled out or not."""

    def __init__(self, before: int, after: int, *, spelled: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, 1, 1)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1)
        self.norm = nn.GroupNorm(8, after)
        self.time = nn.Linear(64, 2 * after)
        self.spelled = spelled

    def act(self, x: Tensor) -> Tensor:
        if not self.spelled:
            return fn.silu(x)
        return x * torch.tanh(torch.log1p(torch.exp(-x.abs())) + x.clamp_min(0))  # mish

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        scale, shift = self.time(t)[:, :, None, None].chunk(2, 1)
        h = self.act(self.norm(self.conv1(x)))
        h = h * (1 + scale) + shift
        return self.act(self.conv2(h)) + h


class Unet(nn.Module):
    """A small denoising network."""

    def __init__(self, width: int = 64, levels: int = 3, *, spelled: bool = False) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, width, 3, 1, 1)
        sizes = [width * 2**i for i in range(levels)]
        self.downs = nn.ModuleList(
            UnetBlock(sizes[max(i - 1, 0)], s, spelled=spelled) for i, s in enumerate(sizes)
        )
        self.ups = nn.ModuleList(
            UnetBlock(s + sizes[max(i - 1, 0)], sizes[max(i - 1, 0)], spelled=spelled)
            for i, s in reversed(list(enumerate(sizes)))
        )
        self.last = nn.Conv2d(width, 4, 3, 1, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(torch.arange(32, device=x.device) * -0.28)
        embedded = torch.cat([angles.sin(), angles.cos()], 1).to(x.dtype)
        h, kept = self.first(x), []
        for down in self.downs:
            kept.append(h)
            h = fn.avg_pool2d(down(h, embedded), 2)
        for up in self.ups:
            h = fn.interpolate(h, scale_factor=2.0)
            h = up(torch.cat([h, kept.pop()], 1), embedded)
        return self.last(h)


class Lstm(nn.Module):
    """A recurrent language model: cuDNN's, or cells in a Python loop."""

    def __init__(self, width: int, layers: int, vocab: int, *, cells: bool = False) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab)
        self.cells = nn.LSTMCell(width, width) if cells else None
        self.lstm = None if cells else nn.LSTM(width, width, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        if self.lstm is not None:
            return self.head(self.lstm(h)[0])
        assert self.cells is not None
        state, seen = None, []
        for t in range(x.shape[1]):
            state = self.cells(h[:, t], state)
            seen.append(state[0])
        return self.head(torch.stack(seen, 1))


class Moe(nn.Module):
    """Experts on one GPU; tokens are picked by masks, or by a sort into equal shares."""

    def __init__(self, width: int, experts: int, layers: int, vocab: int, *, masks: bool) -> None:
        super().__init__()
        self.masks, self.n = masks, experts
        self.embed, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab)
        self.routers = nn.ModuleList(nn.Linear(width, experts) for _ in range(layers))
        self.experts = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
                for _ in range(experts)
            )
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        h = self.embed(x).flatten(0, 1)
        for router, experts in zip(self.routers, self.experts, strict=True):
            weight, chosen = router(h).softmax(-1).max(-1)
            parts = torch.zeros_like(h)
            order = None if self.masks else chosen.argsort().chunk(self.n)
            for e, expert in enumerate(experts):
                rows = (chosen == e).nonzero()[:, 0] if order is None else order[e]
                parts = parts.index_add(0, rows, expert(h[rows]).to(parts.dtype))
            h = h + weight[:, None].to(h.dtype) * parts
        return self.head(h).view(*shape, -1)


class Gnn(nn.Module):
    """Messages over edges, summed by index_add."""

    def __init__(self, width: int, layers: int, classes: int = 40, *, chain: bool = False) -> None:
        super().__init__()
        self.chain = chain
        self.messages = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.owns = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def gate(self, m: Tensor, w: Tensor) -> Tensor:
        m = m * w
        if self.chain:
            m = torch.sigmoid(m) * torch.tanh(m) + 0.1 * m.clamp(-1, 1)
            m = m * torch.exp(-m.square()) + 0.5 * torch.sin(m)
        return m

    def forward(self, x: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        for message, own in zip(self.messages, self.owns, strict=True):
            m = self.gate(message(x)[source], weight)
            x = fn.relu(own(x) + torch.zeros_like(x).index_add(0, target, m.to(x.dtype)))
        return self.head(x)


class Recommender(nn.Module):
    """Embedding bags, their interactions and a tower."""

    def __init__(
        self, tables: int, rows: int, width: int, dense: int = 64, hidden: int = 1024
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(dense, hidden), nn.ReLU(), nn.Linear(hidden, width))
        pairs = (tables + 1) ** 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, 1),
        )  # fmt: skip

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        low = self.bottom(dense)
        rows = torch.stack([low, *(t(ids[:, i]) for i, t in enumerate(self.tables))], 1)
        pairs = (rows @ rows.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([low, pairs], 1))[:, 0]


class Attends(nn.Module):
    """The first half of a transformer's layer."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal, self.norm = heads, causal, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=self.causal)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


class Feeds(nn.Module):
    """The second half."""

    def __init__(self, width: int, times: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, times * width),
            nn.GELU(),
            nn.Linear(times * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def transformer_layers(
    width: int, layers: int, heads: int, *, causal: bool = False
) -> list[nn.Module]:
    """Both halves in turn."""
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [Attends(width, heads, causal=causal), Feeds(width)]
    return parts


class Experts(nn.Module):
    """What a layer of experts holds: a norm, a router, and all experts' weights in two tensors."""

    def __init__(self, width: int, wide: int, experts: int) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, wide) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, wide, width) * wide**-0.5)


def mlp(width: int, layers: int, inside: int, outside: int) -> nn.Module:
    parts: list[nn.Module] = [nn.Linear(inside, width), nn.Tanh()]
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*parts, nn.Linear(width, outside))


class Decoder:
    """Tokens one by one, with a cache of keys and values."""

    def __init__(self, width: int, layers: int, batch: int, length: int) -> None:
        self.model = Gpt(width, layers, size(8192, 128)).to(DEVICE).to(torch.bfloat16).eval()
        heads = max(width // 64, 1)
        shape = (layers, 2, batch, heads, length, width // heads)
        self.cache = torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE)
        self.token = torch.zeros(batch, 1, dtype=torch.long, device=DEVICE)
        self.place = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.length = length

    def forward(self, token: Tensor, place: Tensor) -> Tensor:
        h = self.model.embed(token) + self.model.place(place)
        seen = torch.arange(self.length, device=DEVICE) <= place
        for number, layer in enumerate(self.model.layers):
            b, t, d = h.shape
            qkv = layer.qkv(layer.norm1(h)).view(b, t, 3, layer.heads, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            keys, values = self.cache[number, 0], self.cache[number, 1]
            keys.index_copy_(2, place, k)
            values.index_copy_(2, place, v)
            y = fn.scaled_dot_product_attention(q, keys, values, attn_mask=seen[None, None, None])
            h = h + layer.out(y.transpose(1, 2).reshape(b, t, d))
            h = h + layer.down(fn.gelu(layer.up(layer.norm2(h))))
        return self.model.head(self.model.norm(h))[:, -1].argmax(-1, keepdim=True)

    def step(self) -> None:
        with torch.no_grad():
            self.token.copy_(self.forward(self.token, self.place))
            self.place.copy_((self.place + 1) % self.length)


# --- data ------------------------------------------------------------------------------------


def tokens(batch: int, length: int, vocab: int = 8192, device: Any = None) -> Tensor:
    return torch.randint(0, vocab, (batch, length + 1), device=device or DEVICE)


def images(batch: int, side: int, device: Any = None, channels: int = 3) -> tuple[Tensor, Tensor]:
    place = device or DEVICE
    x = torch.randn(batch, channels, side, side, device=place)
    return x, torch.randint(0, 1000 if not SMALL else 10, (batch,), device=place)


# --- loops -----------------------------------------------------------------------------------


def half(kind: str) -> AbstractContextManager[object]:
    """Autocast to BF16 where the program uses it."""
    return torch.autocast(DEVICE.type, dtype=torch.bfloat16) if kind == "bf16" else nullcontext()


def made_optimizer(parameters: Iterable[Tensor], kind: str) -> torch.optim.Optimizer:
    """An optimizer: fused, multi-tensor, or a loop over the parameters."""
    chosen = list(parameters)
    if kind.startswith("sgd"):
        return torch.optim.SGD(chosen, lr=1e-3, momentum=0.9, foreach=kind != "sgd_loop")
    flags = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}
    capturable = {"capturable": True} if kind == "graph" and DEVICE.type == "cuda" else {}
    return torch.optim.AdamW(chosen, lr=1e-4, **(flags.get(kind) or {"fused": True} | capturable))


def precision(setting: str) -> Callable[[], None]:
    """``highest``: single precision; ``high``: TF32. It is global, so each side sets it."""

    def enter() -> None:
        torch.set_float32_matmul_precision(setting)
        torch.backends.cudnn.allow_tf32 = setting != "highest"

    return enter


Loss = Callable[[nn.Module, Any], Tensor]
Hook = Callable[[int, Tensor], object]


def done(optimizer: torch.optim.Optimizer) -> None:
    """Update, and forget the gradients."""
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def next_token(model: nn.Module, batch: Tensor) -> Tensor:
    logits = model(batch[:, :-1])
    return fn.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def classified(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return fn.cross_entropy(model(batch[0]).float(), batch[1])


def training(
    model: nn.Module,
    batches: Callable[[], Any],
    loss_of: Loss,
    *,
    kind: str = "bf16",
    optimizer: str = "fused",
    matmul: str = "high",
    after_forward: Hook | None = None,
    after_backward: Hook | None = None,
    after_step: Hook | None = None,
    close: Callable[[], object] = lambda: None,
) -> Running:
    """The usual loop; the hooks get the number of the step and the loss."""
    update = made_optimizer(model.parameters(), optimizer)
    made = 0

    def step() -> None:
        nonlocal made
        with phase("get_batch"):
            batch = batches()
        with phase("forward"), half(kind):
            loss = loss_of(model, batch)
            if after_forward:
                after_forward(made, loss)
        with phase("backward"):
            loss.backward()
            if after_backward:
                after_backward(made, loss)
        with phase("optimizer"):
            update.step()
            update.zero_grad(set_to_none=True)
        if after_step:
            after_step(made, loss.detach())
        made += 1

    settle = 2 + getattr(batches, "ahead", 0)
    return Running(step, enter=precision(matmul), close=close, settle=settle)


def graphed(run: Running, warm: int = 3) -> Running:
    """The whole step as one CUDA graph; as it is where there is no GPU."""
    if DEVICE.type != "cuda":
        return run
    run.enter()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            run.step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run.step()

    def replay(kept: Running = run) -> None:  # the graph reads the tensors that this side holds
        graph.replay()

    return Running(replay, run.enter, run.leave, run.close, run.settle)


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader
