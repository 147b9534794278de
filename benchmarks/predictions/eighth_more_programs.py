"""More programs of the eighth set for one GPU: few and large kernels, whatever is at fault.

Needs PyTorch and NumPy only; no weights are loaded.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, Attends, Feeds, precision, size, transformer_layers
from program import Program, Running, phase
from single_programs import entered, loaded
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 159 pairs"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- operators between fields -----------------------------------------------------------------


class Galerkin(nn.Module):
    """Attention without a softmax: keys by values first; as in the Galerkin transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm_k, self.norm_v = (nn.LayerNorm(width // heads) for _ in range(2))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        told = self.norm_k(k).transpose(-1, -2) @ self.norm_v(v) / n
        x = x + self.out((q @ told).transpose(1, 2).reshape(b, n, d))
        return x + self.down(fn.gelu(self.up(x)))


@pair(
    "low_precision_unused",
    "science",
    "torch.set_float32_matmul_precision('high') before the training",
)
def porous_flow_galerkin_fp32(repaired: bool) -> Running:
    width, side, batch = size(512, 32), size(64, 6), size(8, 2)
    model = nn.Sequential(
        nn.Linear(3, width),
        *(Galerkin(width, size(8, 2)) for _ in range(size(4, 2))),
        nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1),
    ).to(DEVICE)  # fmt: skip
    line = torch.linspace(0, 1, side, device=DEVICE)
    grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).view(1, -1, 2)
    let_through = noise(batch, side * side, 1).exp()
    x = torch.cat([let_through, grid.expand(batch, -1, -1)], -1)
    y = noise(batch, side * side, 1)

    def loss_of() -> Tensor:
        off = (model(x) - y).flatten(1).norm(dim=1)
        return (off / y.flatten(1).norm(dim=1)).mean()

    matmul = "high" if repaired else "highest"
    return fit(loss_of, adam(model), bf16=False, matmul=matmul, clip=1.0, decay=True)


class Spectral(nn.Module):
    """Products of the lowest waves of a field, and of its channels; as in FNO."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes, shape = modes, (2, width, width, modes, modes, 2)
        self.waves = nn.Parameter(torch.randn(shape) / width)
        self.near = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        m, side = self.modes, x.shape[-1]
        low, high = torch.view_as_complex(self.waves)
        seen = torch.fft.rfft2(x)
        told = torch.zeros_like(seen)
        told[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", seen[:, :, :m, :m], low)
        told[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", seen[:, :, -m:, :m], high)
        return fn.gelu(torch.fft.irfft2(told, s=(side, side)) + self.near(x))


@pair(
    "host_compute",
    "science",
    "spectra of the predicted fields are summed up on the GPU, not by NumPy after each step",
)
def turbulence_spectra_by_numpy(repaired: bool) -> Running:
    batch, side, width, modes = size(8, 2), size(256, 16), size(64, 4), size(24, 3)
    model = nn.Sequential(
        nn.Conv2d(3, width, 1),
        *(Spectral(width, modes) for _ in range(size(4, 2))),
        nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, 1, 1),
    ).to(DEVICE)  # fmt: skip
    x, y = noise(batch, 3, side, side), noise(batch, 1, side, side)
    # rings of waves of about one length
    up, along = np.fft.fftfreq(side, 1 / side), np.fft.rfftfreq(side, 1 / side)
    rings = np.hypot(up[:, None], along[None]).astype(np.int64).ravel()
    count = int(rings.max()) + 1
    kept: dict[str, Tensor] = {}

    def loss_of() -> Tensor:
        made = model(x)
        kept["made"] = made.detach()
        return (made - y).square().mean() / y.square().mean()

    total, total_there = np.zeros(count), torch.zeros(count, device=DEVICE)
    rings_there = torch.from_numpy(rings).to(DEVICE)

    def by_numpy(_number: int, _loss: Tensor) -> None:
        fields = kept.pop("made").cpu().numpy()[:, 0]
        for field in np.abs(np.fft.rfft2(fields)) ** 2 / side**4:
            total[:] += np.bincount(rings, field.ravel(), count)

    def on_device(_number: int, _loss: Tensor) -> None:
        energy = torch.fft.rfft2(kept.pop("made")[:, 0]).abs().square().sum(0) / side**4
        total_there.index_add_(0, rings_there, energy.flatten())

    after = on_device if repaired else by_numpy
    return fit(loss_of, adam(model), bf16=False, after=after)


# --- graphs -----------------------------------------------------------------------------------


class Heated(nn.Module):
    """Nodes look at all of their graph; heat that flows along edges weighs it; as in GraphiT."""

    def __init__(self, width: int, heads: int, *, written: bool) -> None:
        super().__init__()
        self.heads, self.written, self.norm = heads, written, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = Feeds(width, 2)

    def forward(self, x: Tensor, log_heat: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.written:
            scores = torch.einsum("bhid,bhjd->bhij", q, k) / (d // self.heads) ** 0.5
            share = fn.dropout((scores + log_heat).softmax(-1), 0.1, self.training)
            y = torch.einsum("bhij,bhjd->bhid", share, v)
        else:
            y = fn.scaled_dot_product_attention(q, k, v, attn_mask=log_heat, dropout_p=0.1)
        return self.feed(x + self.out(y.transpose(1, 2).reshape(b, n, d)))


@pair(
    "unfused_attention",
    "graph",
    "scaled_dot_product_attention with the heat as its mask and its dropout",
    marks="steps",
)
def meshes_heat_written(repaired: bool) -> Running:
    batch, nodes, width, degree = size(16, 2), size(768, 16), size(512, 32), size(6, 2)
    into, head = nn.Linear(16, width), nn.Linear(width, 16)
    layers = nn.ModuleList(
        Heated(width, size(8, 2), written=not repaired) for _ in range(size(5, 2))
    )
    model = nn.ModuleList([into, layers, head]).to(DEVICE)
    rng = np.random.default_rng(0)
    edges = np.zeros((batch, nodes, nodes), dtype=np.float32)
    for graph in edges:
        places = rng.random((nodes, 2))
        apart = ((places[:, None] - places[None]) ** 2).sum(-1)
        near = np.argpartition(apart, degree, axis=1)[:, : degree + 1]
        np.put_along_axis(graph, near, 1.0, axis=1)
    joined = torch.from_numpy(np.maximum(edges, edges.transpose(0, 2, 1))).to(DEVICE)
    walk = joined / joined.sum(-1, keepdim=True)
    for _ in range(4):  # sixteen steps of a walk
        walk = walk @ walk
    log_heat = walk.clamp_min(1e-6).log()[:, None].bfloat16()
    x, y = noise(batch, nodes, 16), noise(batch, nodes, 16)

    def loss_of() -> Tensor:
        h = into(x)
        for layer in layers:
            h = layer(h, log_heat)
        return fn.mse_loss(head(h).float(), y)

    return fit(loss_of, adam(model), decay=True)


# --- mixtures ---------------------------------------------------------------------------------


def strokes_unlikely(raw: Tensor, moved: Tensor, kinds: Tensor) -> Tensor:
    """How unlikely strokes are in mixtures of tied normal distributions; as Graves writes."""
    raw = raw.float()
    pens, odds, at_x, at_y, wide_x, wide_y, tie = raw.split([8] + [(raw.shape[1] - 8) // 6] * 6, 1)
    tie = torch.tanh(tie) * 0.95
    x = (moved[:, :1] - at_x) / torch.exp(wide_x)
    y = (moved[:, 1:] - at_y) / torch.exp(wide_y)
    left = 1 - tie.square()
    far = (x.square() + y.square() - 2 * tie * x * y) / (2 * left)
    each = -far - wide_x - wide_y - 0.5 * torch.log(left) - 1.8378771
    likely = torch.logsumexp(torch.log_softmax(odds, 1) + each, 1)
    return fn.cross_entropy(pens, kinds) - likely.mean()


@pair(
    "fusion_opportunity",
    "series",
    "torch.compile of the function of the mixture's loss",
    marks="phases",
    compiles=True,
)
def strokes_mixture_compile(repaired: bool) -> Running:
    rows, width, parts, past = size(196_608, 64), size(256, 16), size(64, 4), 32
    model = nn.Sequential(
        nn.Linear(3 * past, width), *(Feeds(width, 2) for _ in range(size(2, 1))),
        nn.LayerNorm(width), nn.Linear(width, 8 + 6 * parts),
    ).to(DEVICE)  # fmt: skip
    nn.init.normal_(model[-1].weight, std=1e-3)  # type: ignore[arg-type]
    seen, moved, kinds = noise(rows, 3 * past), noise(rows, 2), labels(8, rows)
    unlikely: Any = torch.compile(strokes_unlikely) if repaired else strokes_unlikely
    return fit(lambda: unlikely(model(seen), moved, kinds), adam(model), clip=10.0)


# --- pictures with holes ----------------------------------------------------------------------


class Gated(nn.Module):
    """A convolution whose one half of channels gates the other; as in DeepFill."""

    def __init__(
        self, before: int, after: int, kernel: int = 3, stride: int = 1, apart: int = 1
    ) -> None:
        super().__init__()
        padding = apart * (kernel // 2)
        self.conv = nn.Conv2d(before, 2 * after, kernel, stride, padding, apart, bias=False)
        self.norm = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.conv(x).chunk(2, 1)
        return self.norm(fn.elu(a) * b.sigmoid())


@pair(
    "layout_changes",
    "vision",
    "channels_last for the model, the pictures and their masks",
    marks="profiler",
)
def holes_gated_channels_last(repaired: bool) -> Running:
    w, batch, side = size(64, 8), size(12, 2), size(256, 32)
    model: nn.Module = nn.Sequential(
        Gated(4, w, 5), Gated(w, 2 * w, 3, 2), Gated(2 * w, 2 * w), Gated(2 * w, 4 * w, 3, 2),
        *(Gated(4 * w, 4 * w, apart=apart) for apart in (1, 2, 4, 8, 1)),
        nn.Upsample(scale_factor=2.0), Gated(4 * w, 2 * w),
        nn.Upsample(scale_factor=2.0), Gated(2 * w, w), nn.Conv2d(w, 3, 3, 1, 1),
    ).to(DEVICE)  # fmt: skip
    way = torch.channels_last if repaired else torch.contiguous_format
    model = model.to(memory_format=way)  # type: ignore[call-overload]
    pictures = noise(batch, 3, side, side).tanh().to(memory_format=way)
    holes = torch.zeros(batch, 1, side, side, device=DEVICE).to(memory_format=way)
    holes[..., side // 4 : side // 2, side // 4 : 3 * side // 4] = 1.0
    update = torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.9), fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=CUDA)

    def step() -> None:
        update.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.float16, enabled=CUDA):
            made = model(torch.cat([pictures * (1 - holes), holes], 1))
        off = (made.float().tanh() - pictures).abs()
        scaler.scale((off * holes).mean() * 6.0 + (off * (1 - holes)).mean()).backward()
        scaler.step(update)  # a fused update looks for infinities on the device
        scaler.update()

    return Running(step, enter=precision("high"))


# --- films ------------------------------------------------------------------------------------


class Foresees(nn.Module):
    """Frames to come from frames that were: space apart, then all frames as channels; as SimVP."""

    def __init__(self, frames: int, width: int, inside: int, layers: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), nn.SiLU())
        self.down = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.GroupNorm(4, 2 * width), nn.SiLU(),
            nn.Conv2d(2 * width, 2 * width, 3, 2, 1), nn.GroupNorm(4, 2 * width), nn.SiLU(),
        )  # fmt: skip
        channels, parts = frames * 2 * width, list[nn.Module]()
        for number in range(layers):
            before = inside if number else channels
            after = inside if number + 1 < layers else channels
            parts += [nn.Conv2d(before, after, 3, 1, 1), nn.GroupNorm(8, after), nn.SiLU()]
        self.along = nn.Sequential(*parts)
        self.up = nn.Sequential(
            nn.Conv2d(2 * width, 4 * width, 3, 1, 1), nn.PixelShuffle(2), nn.SiLU(),
            nn.Conv2d(width, 4 * width, 3, 1, 1), nn.PixelShuffle(2), nn.SiLU(),
        )  # fmt: skip
        self.last = nn.Conv2d(2 * width, 3, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, t = x.shape[:2]
        kept = self.first(x.flatten(0, 1))
        h = self.down(kept)
        h = h + self.along(h.view(b, -1, *h.shape[2:])).view_as(h)
        made = self.last(torch.cat([self.up(h), kept], 1))
        return made.view(b, t, *made.shape[1:])


@pair(
    "blocking_copy",
    "vision",
    "the prepared clips are kept in page-locked memory, so that non_blocking=True has an effect",
)
def foreseen_frames_from_memory(repaired: bool) -> Running:
    batch, frames, side = size(8, 2), size(10, 2), size(192, 16)
    model = Foresees(frames, size(32, 4), size(512, 16), size(5, 2)).to(DEVICE)
    draw = torch.Generator().manual_seed(0)
    clips = torch.rand(3, batch, 2 * frames, 3, side, side, generator=draw)
    if repaired and CUDA:
        clips = clips.pin_memory()
    turn = itertools.cycle(range(len(clips)))

    def loss_of() -> Tensor:
        clip = clips[next(turn)].to(DEVICE, non_blocking=True)
        past, future = clip.chunk(2, 1)
        return fn.mse_loss(model(past).float(), future)

    return fit(loss_of, adam(model))


# --- sharper pictures -------------------------------------------------------------------------


class Blurred(Dataset[tuple[Tensor, Tensor]]):
    """How bright cuts of pictures are, and the same blurred, four times smaller and noisy."""

    def __init__(self, side: int, taps: int, *, apart: bool) -> None:
        rng = np.random.default_rng(0)
        stored = side + side // 2
        self.pictures = rng.integers(0, 256, (8, 1, stored, stored), dtype=np.uint8)
        self.side, self.apart = side, apart
        self.line = np.exp(-0.5 * ((np.arange(taps) - taps // 2) / (taps / 5)) ** 2)
        self.line = (self.line / self.line.sum()).astype(np.float32)

    def __len__(self) -> int:
        return 1_000_000

    def blurred(self, x: Any) -> Any:
        n, taps = self.side, len(self.line)
        ends = (taps // 2, taps // 2)
        x = np.pad(x, ((0, 0), ends, ends), mode="reflect")
        if self.apart:  # a bell is the product of a line and a column
            x = sum(w * x[:, at : at + n] for at, w in enumerate(self.line))
            return sum(w * x[:, :, at : at + n] for at, w in enumerate(self.line))
        bell = np.outer(self.line, self.line)
        made = np.zeros((len(x), n, n), dtype=np.float32)
        for at_y, at_x in np.ndindex(taps, taps):
            made += bell[at_y, at_x] * x[:, at_y : at_y + n, at_x : at_x + n]
        return made

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rng, n = np.random.default_rng(index), self.side
        picture = self.pictures[index % len(self.pictures)]
        top, left = rng.integers(0, picture.shape[1] - n, 2)
        high = picture[:, top : top + n, left : left + n].astype(np.float32) / np.float32(255)
        if rng.random() < 0.5:
            high = np.ascontiguousarray(high[:, :, ::-1])
        low = self.blurred(high)[:, ::4, ::4]
        low = low + np.float32(0.02) * rng.standard_normal(low.shape, dtype=np.float32)
        return torch.from_numpy(np.clip(low, 0, 1)), torch.from_numpy(high)


class Attended(nn.Module):
    """Convolutions whose pixels are weighed by what is there; as in PAN."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, 1, 1) for _ in range(2))
        self.weigh = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = fn.leaky_relu(self.first(x), 0.1)
        return x + self.second(h * self.weigh(h).sigmoid())


@pair(
    "input_starvation",
    "vision",
    "workers blur by a line and a column of 17 taps each, not by a square of 289",
)
def blurred_squares_in_workers(repaired: bool) -> Running:
    width, side, workers = size(256, 8), size(256, 32), 4
    data = Blurred(side, size(17, 5), apart=repaired)
    batches = loaded(data, size(16, 2), workers)
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, 1, 1), *(Attended(width) for _ in range(size(12, 2))),
        nn.Conv2d(width, width, 3, 1, 1), nn.PixelShuffle(2), nn.LeakyReLU(0.1),
        nn.Conv2d(width // 4, width, 3, 1, 1), nn.PixelShuffle(2), nn.LeakyReLU(0.1),
        nn.Conv2d(width // 4, 1, 3, 1, 1),
    ).to(DEVICE)  # fmt: skip

    def loss_of() -> Tensor:
        with phase("get_batch"):
            low, high = batches()
        coarse = fn.interpolate(low, scale_factor=4.0, mode="bilinear")
        return fn.l1_loss(coarse + model(low).float(), high)

    return fit(loss_of, adam(model), decay=True, settle=2 + 2 * workers)


# --- speech from text -------------------------------------------------------------------------


class Voices(nn.Module):
    """Attention, and convolutions along the sequence; as in FastSpeech."""

    def __init__(self, width: int, heads: int, kernel: int) -> None:
        super().__init__()
        self.mixes, self.norm = Attends(width, heads), nn.LayerNorm(width)
        self.into = nn.Conv1d(width, 4 * width, kernel, padding=kernel // 2)
        self.out = nn.Conv1d(4 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mixes(x)
        h = self.into(self.norm(x).transpose(1, 2))
        return x + self.out(fn.relu(h)).transpose(1, 2)


class Speaks(nn.Module):
    """Sounds of a text, each as long as it lasts, then bands of a spectrum."""

    def __init__(self, width: int, layers: tuple[int, int], heads: int, bands: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, width)
        self.reads, self.says = (
            nn.Sequential(*(Voices(width, heads, 5) for _ in range(n))) for n in layers
        )
        self.lasts, self.out = nn.Linear(width, 1), nn.Linear(width, bands)

    def forward(self, sounds: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        h = self.reads(self.embed(sounds))
        long = h.gather(1, which[..., None].expand(-1, -1, h.shape[2]))
        return self.out(self.says(long)), self.lasts(h)[..., 0]


@pair(
    "checkpoint_stall",
    "audio",
    "the weights for listening tests are written every 2000 steps, not every 8",
    period=8,
)
def spoken_text_weights_every_8(repaired: bool) -> Running:
    batch, length, each, bands = size(24, 2), size(128, 6), size(8, 2), size(80, 8)
    model = Speaks(size(384, 16), (2, size(6, 1)), size(6, 2), bands).to(DEVICE)
    sounds = labels(96, batch, length)
    # as long as all sounds together last is each text; the longest ones come first
    rng = np.random.default_rng(0)
    lasting = rng.multinomial(length * each, np.full(length, 1 / length), batch)
    which = torch.from_numpy(np.stack([np.repeat(np.arange(length), n) for n in lasting]))
    which, goal_lasts = which.to(DEVICE), torch.from_numpy(lasting).to(DEVICE).float().log1p()
    spoken = noise(batch, length * each, bands)
    folder = Path(tempfile.mkdtemp(prefix="exam-"))
    every = 2000 if repaired else 8

    def loss_of() -> Tensor:
        made, lasts = model(sounds, which)
        return fn.l1_loss(made.float(), spoken) + fn.mse_loss(lasts.float(), goal_lasts)

    def after(number: int, _loss: Tensor) -> None:
        if number % every == every - 1:
            arrays = {name: w.half().cpu().numpy() for name, w in model.state_dict().items()}
            np.savez(folder / "weights.npz", **arrays)

    run = fit(loss_of, adam(model), after=after)
    run.close = lambda: shutil.rmtree(folder, ignore_errors=True)
    return run


# --- clouds of points -------------------------------------------------------------------------


class Hidden(nn.Module):
    """Patches of a cloud of points, most of them hidden, are filled in; as in Point-MAE."""

    def __init__(self, width: int, layers: int, heads: int, points: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 256))
        self.second = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, width))
        self.place = nn.Sequential(nn.Linear(3, 128), nn.GELU(), nn.Linear(128, width))
        self.hidden = nn.Parameter(torch.zeros(1, 1, width))
        parts = transformer_layers(width, layers, heads)
        self.body, self.head = nn.Sequential(*parts), nn.Linear(width, 3 * points)

    def forward(self, patches: Tensor, middles: Tensor, shown: int) -> Tensor:
        h = self.first(patches[:, :shown])
        h = torch.cat([h, h.amax(2, keepdim=True).expand_as(h)], -1)
        h = self.second(h).amax(2)
        covered = self.hidden.expand(len(h), middles.shape[1] - shown, -1)
        h = self.body(torch.cat([h, covered.to(h.dtype)], 1) + self.place(middles))
        return self.head(h[:, shown:])


@pair(
    "cpu_offload",
    "vision",
    "gradients of the micro-batches add up in .grad on the GPU, not in buffers on the CPU",
)
def point_patches_gradients_on_cpu(repaired: bool) -> Running:
    batch, groups, points, micro = size(512, 2), size(64, 8), size(16, 4), 2
    width, shown = size(512, 32), size(24, 3)
    model = Hidden(width, size(4, 1), size(8, 2), points).to(DEVICE)
    update = adam(model, weight_decay=0.05)
    patches, middles = noise(micro, batch, groups, points, 3), noise(micro, batch, groups, 3)

    def chamfer(made: Tensor, true: Tensor) -> Tensor:
        apart = (made[:, :, :, None] - true[:, :, None]).square().sum(-1)
        return apart.amin(2).mean() + apart.amin(3).mean()

    def loss_of(number: int) -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            made = model(patches[number], middles[number], shown)
        true = patches[number][:, shown:]
        return chamfer(made.float().view_as(true), true) / micro

    def step_on_device() -> None:
        for number in range(micro):
            loss_of(number).backward()
        update.step()
        update.zero_grad(set_to_none=True)

    weights = list(model.parameters())
    sums = [torch.zeros(p.shape) for p in weights] if not repaired else []

    def step() -> None:
        for number in range(micro):
            loss_of(number).backward()
            for total, p in zip(sums, weights, strict=True):
                assert p.grad is not None
                total.add_(p.grad.cpu())
                p.grad = None
        for total, p in zip(sums, weights, strict=True):
            p.grad = total.to(DEVICE, copy=True)
            total.zero_()
        update.step()
        update.zero_grad(set_to_none=True)

    return Running(step_on_device if repaired else step, enter=precision("high"))


# --- codes of sound ---------------------------------------------------------------------------


class Narrows(nn.Module):
    """A residual convolution, and one that takes fewer samples."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.far = nn.Conv1d(before, before, 7, padding=9, dilation=3)
        self.down = nn.Conv1d(before, after, 2 * stride, stride, stride // 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(fn.elu(x + self.far(fn.elu(x))))


class Broadens(nn.Module):
    """The way back."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(before, after, 2 * stride, stride, stride // 2)
        self.far = nn.Conv1d(after, after, 7, padding=9, dilation=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(fn.elu(x))
        return x + self.far(fn.elu(x))


class Coded(nn.Module):
    """Sound as a sequence of entries of a table; as in SoundStream."""

    def __init__(self, width: int, codes: int, strides: tuple[int, ...]) -> None:
        super().__init__()
        sizes = [width * 2**i for i in range(len(strides) + 1)]
        steps = list(zip(sizes, sizes[1:], strides, strict=False))
        self.into = nn.Sequential(
            nn.Conv1d(1, width, 7, padding=3), *(Narrows(a, b, s) for a, b, s in steps),
            nn.Conv1d(sizes[-1], 128, 3, padding=1),
        )  # fmt: skip
        self.back = nn.Sequential(
            nn.Conv1d(128, sizes[-1], 3, padding=1),
            *(Broadens(b, a, s) for a, b, s in reversed(steps)),
            nn.ELU(), nn.Conv1d(width, 1, 7, padding=3),
        )  # fmt: skip
        self.codes = nn.Parameter(torch.randn(codes, 128))


def nearest(seen: Tensor, centres: Tensor) -> Tensor:
    return (centres.square().sum(1) - 2 * seen @ centres.T).argmin(1)


@torch.no_grad()
def gathered(seen: Tensor, centres: Tensor, turns: int) -> Tensor:
    """Lloyd's algorithm; an entry that nothing is near to stays where it is."""
    ones = torch.ones(len(seen), device=seen.device)
    for _ in range(turns):
        at = nearest(seen, centres)
        count = torch.zeros(len(centres), device=seen.device).index_add_(0, at, ones)[:, None]
        total = torch.zeros_like(centres).index_add_(0, at, seen)
        centres = torch.where(count > 0, total / count.clamp_min(1), centres)
    return centres


@pair(
    "step_jitter",
    "audio",
    "the table of codes is clustered anew every 1000 steps, not every 5",
    marks="steps",
    period=5,
)
def sound_codes_clustered_every_5(repaired: bool) -> Running:
    batch, samples, strides = size(16, 2), size(65_536, 256), (4, 4, 8)
    model = Coded(size(64, 8), size(1024, 16), strides).to(DEVICE)
    sound = noise(batch, 1, samples)
    window = torch.hann_window(size(1024, 64), device=DEVICE)
    frames = batch * (samples // 128)
    # latents of the last steps, the oldest are replaced
    seen = noise(size(8, 2) * frames, 128)
    every = 1000 if repaired else 5

    def bands(x: Tensor) -> Tensor:
        waves = torch.stft(x[:, 0].float(), len(window), window=window, return_complex=True)
        return (waves.abs() + 1e-3).log()

    goal = bands(sound)
    made_steps = 0

    def loss_of() -> Tensor:
        nonlocal made_steps
        z = model.into(sound).float().transpose(1, 2).flatten(0, 1)
        place = made_steps % (len(seen) // frames) * frames
        seen[place : place + frames] = z.detach()
        made_steps += 1
        with torch.no_grad():
            at = nearest(z, model.codes)
        chosen = model.codes[at]
        near = fn.mse_loss(chosen, z.detach()) + 0.25 * fn.mse_loss(z, chosen.detach())
        straight = (z + (chosen - z).detach()).view(batch, -1, 128).transpose(1, 2)
        made = model.back(straight)
        return fn.l1_loss(made.float(), sound) + fn.l1_loss(bands(made), goal) + near

    def after(number: int, _loss: Tensor) -> None:
        if number % every == every - 1:
            model.codes.data.copy_(gathered(seen, model.codes.data, size(64, 3)))

    return fit(loss_of, adam(model), after=after)


# --- two cameras ------------------------------------------------------------------------------


class Peak:
    """What a step takes of the memory at most, for the log."""

    def __init__(self, *, emptied: bool) -> None:
        self.most, self.emptied = 0, emptied

    def __enter__(self) -> None:
        if not CUDA:
            return
        if self.emptied:  # so that what the last step left does not count
            torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def __exit__(self, *_error: object) -> None:
        if CUDA:
            self.most = max(self.most, torch.cuda.max_memory_allocated())


def volumes(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(before, after, 3, 1, 1, bias=False), nn.BatchNorm3d(after), nn.ReLU()
    )


class Stereo(nn.Module):
    """How far to the side things are in the other picture; as in PSMNet."""

    def __init__(self, width: int, shifts: int) -> None:
        super().__init__()
        self.shifts, parts = shifts, list[nn.Module]()
        for before, after, stride in ((3, width, 2), (width, width, 1), (width, width, 2)):
            parts += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)]
            parts += [nn.ReLU()]
        self.sees = nn.Sequential(*parts, nn.Conv2d(width, width, 3, 1, 1))
        self.joins = nn.Sequential(
            volumes(2 * width, width), *(volumes(width, width) for _ in range(4)),
            nn.Conv3d(width, 1, 3, 1, 1),
        )  # fmt: skip

    def forward(self, pictures: Tensor) -> Tensor:
        left, right = self.sees(pictures).chunk(2)
        padded = fn.pad(right, (self.shifts - 1, 0))
        wide = padded.unfold(3, self.shifts, 1).permute(0, 1, 4, 2, 3).flip(2)
        cost = torch.cat([left[:, :, None].expand_as(wide), wide], 1)
        share = self.joins(cost)[:, 0].float().softmax(1)
        steps = torch.arange(self.shifts, device=share.device, dtype=share.dtype)
        far = (share * steps[:, None, None]).sum(1, keepdim=True)
        return fn.interpolate(far, scale_factor=4.0, mode="bilinear")[:, 0] * 4


@pair(
    "allocator_churn",
    "vision",
    "the meter of the peak memory does not empty the cache before each step",
)
def stereo_peak_memory_meter(repaired: bool) -> Running:
    batch, high, wide, shifts = size(10, 1), size(256, 32), size(512, 64), size(24, 4)
    model = Stereo(size(32, 4), shifts).to(DEVICE)
    pictures = noise(2 * batch, 3, high, wide)
    true = 4 * shifts * torch.rand(batch, high, wide, device=DEVICE)
    run = fit(lambda: fn.smooth_l1_loss(model(pictures), true), adam(model))
    meter, inner = Peak(emptied=not repaired), run.step

    def step() -> None:
        with meter:
            inner()

    run.step = step
    return run


# --- dictionaries of what a model holds -------------------------------------------------------


class PlainAdamW(torch.optim.Optimizer):
    """AdamW as the paper writes it, parameter by parameter."""

    def __init__(
        self, weights: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.01,
    ) -> None:  # fmt: skip
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(weights, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (first, second), lr = group["betas"], group["lr"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["m"], state["v"] = (
                        0, torch.zeros_like(p), torch.zeros_like(p)
                    )  # fmt: skip
                state["step"] += 1
                m, v, n = state["m"], state["v"], state["step"]
                m.mul_(first).add_(p.grad, alpha=1 - first)
                v.mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                m_hat, v_hat = m / (1 - first**n), v / (1 - second**n)
                p.mul_(1 - lr * group["weight_decay"])
                p.add_(m_hat / (v_hat.sqrt() + group["eps"]), alpha=-lr)


class Dictionary(nn.Module):
    """Few of many directions add up to what a layer of another model holds."""

    def __init__(self, width: int, many: int) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(width, many), nn.Linear(many, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        on = fn.relu(self.into(x - self.back.bias))
        return self.back(on), on


@pair(
    "unfused_optimizer",
    "language",
    "torch.optim.AdamW(fused=True) instead of a class that updates each parameter by itself",
    marks="phases",
)
def dictionaries_plain_adamw(repaired: bool) -> Running:
    width, many, layers, tokens = size(1024, 16), size(8192, 64), size(6, 2), size(6144, 32)
    models = nn.ModuleList(Dictionary(width, many) for _ in range(layers)).to(DEVICE)
    held = noise(layers, tokens, width)

    def loss_of() -> Tensor:
        total = torch.zeros((), device=DEVICE)
        for model, x in zip(models, held, strict=True):
            made, on = model(x)
            few = on.sum(-1, dtype=torch.float).mean()
            total = total + fn.mse_loss(made.float(), x) + 1e-4 * few
        return total

    update: torch.optim.Optimizer = (
        torch.optim.AdamW(models.parameters(), lr=2e-4, fused=True)
        if repaired
        else PlainAdamW(models.parameters(), lr=2e-4)
    )
    return fit(loss_of, update)
