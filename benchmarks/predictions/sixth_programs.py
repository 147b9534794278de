"""A sixth set of programs for one GPU: language and vision models with other losses and loops.

Needs transformers and Pillow beside PyTorch; no weights are loaded.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fourth_programs import adam, fit, labels, noise
from models import DEVICE, graphed, made_optimizer, size
from program import Program, Running, phase
from single_programs import entered, loaded, scratch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 147 pairs, opened"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


# --- precision --------------------------------------------------------------------------------


@pair("low_precision_unused", "language", "torch.set_float32_matmul_precision('high')")
def t5_translation_tf32(repaired: bool) -> Running:
    from transformers import T5Config, T5ForConditionalGeneration

    vocab, batch = size(16_000, 128), size(24, 2)
    config = T5Config(
        vocab_size=vocab,
        d_model=size(640, 32),
        d_kv=size(64, 16),
        d_ff=size(2560, 64),
        num_layers=size(4, 1),
        num_heads=size(10, 2),
        decoder_start_token_id=0,
        use_cache=False,
    )
    model = T5ForConditionalGeneration(config).to(DEVICE)
    source, target = labels(vocab, batch, size(256, 16)), labels(vocab, batch, size(128, 8))
    return fit(
        lambda: model(input_ids=source, labels=target).loss,
        torch.optim.NAdam(model.parameters(), lr=1e-4, foreach=True),
        bf16=False,
        matmul="high" if repaired else "highest",
        clip=1.0,
        decay=True,
    )


@pair("low_precision_unused", "vision", "autocast to BF16 instead of FP32", marks="phases")
def segformer_scenes_bf16(repaired: bool) -> Running:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    classes, side, batch = size(19, 3), size(512, 64), size(8, 2)
    config = SegformerConfig(
        num_labels=classes,
        hidden_sizes=[size(n, m) for n, m in ((64, 8), (128, 16), (320, 16), (512, 32))],
        num_attention_heads=[1, 2, size(5, 2), size(8, 2)],
        depths=[size(2, 1)] * 4,
        decoder_hidden_size=size(256, 16),
        drop_path_rate=0.1,
    )
    model = SegformerForSemanticSegmentation(config).to(DEVICE)
    x, y = noise(batch, 3, side, side), labels(classes, batch, side, side)
    return fit(
        lambda: model(pixel_values=x, labels=y).loss, adam(model), bf16=repaired, matmul="highest"
    )


# --- attention --------------------------------------------------------------------------------


class Rms(nn.RMSNorm):
    """A norm whose weights are as precise as what it norms."""

    def forward(self, x: Tensor) -> Tensor:
        return fn.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), 1e-6)


class Local(nn.Module):
    """A decoder's layer: normed queries and keys, fewer keys than queries, a band of the past."""

    def __init__(self, width: int, heads: int, shared: int, band: Tensor, *, written: bool) -> None:
        super().__init__()
        self.heads, self.shared, self.each, self.written = heads, shared, width // heads, written
        self.norm1, self.norm2 = Rms(width), Rms(width)
        self.normq, self.normk = Rms(self.each), Rms(self.each)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * shared * self.each, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("band", band)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        y = self.norm1(x)
        q = self.normq(self.q(y).view(b, t, self.heads, self.each)).transpose(1, 2)
        k, v = self.kv(y).view(b, t, 2, self.shared, self.each).permute(2, 0, 3, 1, 4)
        k = self.normk(k).repeat_interleave(self.heads // self.shared, 1)
        v = v.repeat_interleave(self.heads // self.shared, 1)
        q, k = q.to(v.dtype), k.to(v.dtype)
        if self.written:
            scores = torch.matmul(q, k.transpose(-1, -2)) / self.each**0.5
            scores = scores.masked_fill(~self.band, torch.finfo(scores.dtype).min)
            y = torch.matmul(fn.softmax(scores, -1, torch.float32).to(v.dtype), v)
        else:
            y = fn.scaled_dot_product_attention(q, k, v, attn_mask=self.band)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(fn.relu(self.up(self.norm2(x))).square())


@pair("unfused_attention", "language", "scaled_dot_product_attention with the band as attn_mask")
def banded_decoder_written(repaired: bool) -> Running:
    width, heads, length, vocab = size(1024, 64), size(16, 4), size(1024, 16), size(8192, 64)
    place = torch.arange(length)
    behind = place[:, None] - place[None]
    band = (behind >= 0) & (behind < size(256, 4))
    layers = [
        Local(width, heads, size(4, 2), band, written=not repaired) for _ in range(size(6, 2))
    ]
    model = nn.Sequential(
        nn.Embedding(vocab, width), *layers, Rms(width), nn.Linear(width, vocab, bias=False)
    ).to(DEVICE)
    x = labels(vocab, size(4, 2), length)

    def loss_of() -> Tensor:
        return fn.cross_entropy(model(x)[:, :-1].flatten(0, 1).float(), x[:, 1:].flatten())

    return fit(loss_of, adam(model), clip=1.0, decay=True)


class Looked(nn.Module):
    """Attention over all patches of a clip, with dropout of what is looked at."""

    def __init__(self, width: int, heads: int, dropout: float, *, written: bool) -> None:
        super().__init__()
        self.heads, self.written = heads, written
        self.scale, self.dropout = (width // heads) ** -0.5, nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = (
            part.view(b, n, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        if self.written:
            scores = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
            looks = self.dropout(scores.softmax(-1))
            y = torch.einsum("bhij,bhjd->bhid", looks, v)
        else:
            y = fn.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout.p)
        return x + self.out(y.transpose(1, 2).reshape(b, n, d))


class Inner(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Clips(nn.Module):
    """A transformer over tubelets of a video."""

    def __init__(self, width: int, layers: int, heads: int, patches: int, *, written: bool) -> None:
        super().__init__()
        self.patch = nn.Conv3d(3, width, (2, 16, 16), (2, 16, 16))
        self.place = nn.Parameter(torch.randn(1, patches, width) * 0.02)
        parts = ([Looked(width, heads, 0.1, written=written), Inner(width)] for _ in range(layers))
        self.layers = nn.Sequential(*(part for both in parts for part in both))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 174))

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.layers(h).mean(1))


@pair(
    "unfused_attention", "vision", "scaled_dot_product_attention with dropout_p", marks="profiler"
)
def video_dropout_einsum(repaired: bool) -> Running:
    width, frames, side, batch = size(512, 32), size(16, 4), size(224, 32), size(5, 2)
    patches = frames // 2 * (side // 16) ** 2
    model = Clips(width, size(6, 2), size(8, 2), patches, written=not repaired)
    model = model.to(DEVICE).bfloat16()
    x, y = noise(batch, 3, frames, side, side).bfloat16(), labels(174, batch)
    return fit(
        lambda: fn.cross_entropy(model(x).float(), y, label_smoothing=0.1),
        adam(model, weight_decay=0.05),
        bf16=False,
    )


# --- launches ---------------------------------------------------------------------------------


class Replaced(nn.Module):
    """A small model that guesses hidden words, and a larger one that finds wrong guesses."""

    def __init__(self, vocab: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        thin = width // 2
        self.words, self.places = nn.Embedding(vocab, thin), nn.Embedding(length, thin)
        self.norm, self.wider = nn.LayerNorm(thin), nn.Linear(thin, width)
        self.guesses, self.finds = self.encoder(thin, layers), self.encoder(width, layers)
        self.mixed, self.bias = nn.Linear(thin, thin), nn.Parameter(torch.zeros(vocab))
        self.wrong = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    @staticmethod
    def encoder(width: int, layers: int) -> nn.Module:
        heads = max(width // 64, 1)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True)
        return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def embedded(self, ids: Tensor) -> Tensor:
        return self.norm(self.words(ids) + self.places.weight)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = torch.rand(ids.shape, device=ids.device) < 0.15
        h = fn.gelu(self.mixed(self.guesses(self.embedded(ids.masked_fill(hidden, 3)))))
        scores = fn.linear(h, self.words.weight, self.bias)
        losses = fn.cross_entropy(scores.flatten(0, 1), ids.flatten(), reduction="none")
        guess = (losses * hidden.flatten()).sum() / hidden.sum().clamp(min=1)
        noisy = scores.detach() - torch.empty_like(scores).exponential_().log()
        given = torch.where(hidden, noisy.argmax(-1), ids)
        found = self.wrong(self.finds(self.wider(self.embedded(given))))[..., 0]
        wrong = (given != ids).to(found.dtype)
        return guess + 50.0 * fn.binary_cross_entropy_with_logits(found, wrong)


@pair("launch_bound", "language", "the whole step is one CUDA graph", marks="steps")
def replaced_words_graph(repaired: bool) -> Running:
    vocab, length = size(4096, 64), size(64, 8)
    model = Replaced(vocab, length, size(256, 32), size(10, 1)).to(DEVICE)
    ids = labels(vocab, size(16, 2), length)
    update = made_optimizer(model.parameters(), "graph")
    run = fit(lambda: model(ids), update, bf16=False, clip=1.0)
    return graphed(run) if repaired else run


# --- input ------------------------------------------------------------------------------------


class Plates(Dataset[tuple[Tensor, Tensor]]):
    """Number plates that Pillow writes, bends, blurs and compresses."""

    signs = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def __init__(self, wide: int, high: int, shown: int) -> None:
        self.wide, self.high, self.shown = wide, high, shown

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        from PIL import Image, ImageDraw, ImageFilter, ImageFont

        rng = np.random.default_rng(index)
        chosen = rng.integers(0, len(self.signs), self.shown)
        ground, ink = (tuple(int(c) for c in rng.integers(a, a + 90, 3)) for a in (160, 0))
        image = Image.new("RGB", (self.wide, self.high), ground)
        draw = ImageDraw.Draw(image)
        font = ImageFont.load_default(self.high * 0.5)
        for place, sign in enumerate(chosen):
            at = (self.wide * (place + 0.2) / self.shown, self.high * float(rng.uniform(0.1, 0.3)))
            draw.text(at, self.signs[sign], ink, font)
        bent = [1.0, float(rng.uniform(-0.1, 0.1)), 0.0, float(rng.uniform(-0.08, 0.08)), 1.0, 0.0]
        image = image.transform(image.size, Image.AFFINE, bent, Image.BILINEAR, fillcolor=ground)
        image = image.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.3, 1.8))))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=int(rng.integers(30, 90)))
        array = np.asarray(Image.open(file), dtype=np.float32) / 255.0
        array = array + rng.standard_normal(array.shape, dtype=np.float32) * np.float32(0.03)
        array = (array - array.mean()) / (array.std() + np.float32(1e-5))
        return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1))), torch.from_numpy(
            chosen
        )


def reading(width: int, shown: int) -> nn.Module:
    """Convolutions, then a sign from each part of the picture's width."""
    layers: list[nn.Module] = []
    before = 3
    for stage in range(4):
        after = width * 2 ** min(stage, 2)
        for number in range(3):
            stride = 2 if number == 0 else 1
            layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False)]
            layers += [nn.BatchNorm2d(after), nn.LeakyReLU(0.1)]
            before = after
    layers += [nn.AdaptiveAvgPool2d((1, shown)), nn.Conv2d(before, len(Plates.signs), 1)]
    return nn.Sequential(*layers, nn.Flatten(2)).to(DEVICE)


@pair("input_starvation", "vision", "12 workers instead of 4", marks="phases")
def plates_four_workers(repaired: bool) -> Running:
    shown, workers = 8, 12 if repaired else 4
    data = Plates(size(320, 64), size(96, 32), shown)
    batches = loaded(data, size(40, 2), workers)
    model = reading(size(192, 8), shown)

    def loss_of() -> Tensor:
        with phase("get_batch"):
            x, y = batches()
        return fn.cross_entropy(model(x).float(), y)

    update = torch.optim.SGD(
        model.parameters(), lr=1e-3, momentum=0.9, nesterov=True, weight_decay=1e-4, foreach=True
    )
    return fit(loss_of, update, settle=2 + 2 * workers)


# --- copies -----------------------------------------------------------------------------------


@pair("blocking_copy", "language", "pinned memory and non_blocking copies", marks="steps")
def distil_stored_scores_pageable(repaired: bool) -> Running:
    """The teacher's scores were stored before, so they come from the host with each batch."""
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    vocab, batch, length = size(8192, 64), size(24, 2), size(256, 8)
    config = DistilBertConfig(
        vocab_size=vocab,
        dim=size(768, 32),
        hidden_dim=size(3072, 64),
        n_layers=size(6, 1),
        n_heads=size(12, 2),
        max_position_embeddings=size(256, 8),
    )
    student: Any = DistilBertForMaskedLM(config).to(DEVICE)
    stored = []
    for _ in range(2):
        words = torch.randint(0, vocab, (batch, length))
        scores = torch.randn(batch, length, vocab, dtype=torch.float16)
        kept = words, scores
        stored.append(tuple(part.pin_memory() for part in kept) if repaired and CUDA else kept)
    turn = 0

    def loss_of() -> Tensor:
        nonlocal turn
        words, scores = (part.to(DEVICE, non_blocking=repaired) for part in stored[turn % 2])
        turn += 1
        mine = student(input_ids=words).logits.float() / 2.0
        goal = (scores.float() / 2.0).log_softmax(-1)
        mine, goal = mine.log_softmax(-1).flatten(0, 1), goal.flatten(0, 1)
        return fn.kl_div(mine, goal, reduction="batchmean", log_target=True)

    return fit(loss_of, adam(student), clip=5.0)


# --- the host waits ---------------------------------------------------------------------------


class Lars(torch.optim.Optimizer):
    """SGD whose rate is scaled, weight by weight, by how long weight and gradient are."""

    def __init__(self, params: Any, lr: float, *, asks: bool) -> None:
        super().__init__(params, {"lr": lr, "momentum": 0.9, "decay": 1e-4, "trust": 1e-3})
        self.asks = asks

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                long, steep = p.norm(), p.grad.norm()
                slope = p.grad.add(p, alpha=group["decay"])
                scaled = group["trust"] * long / (steep + group["decay"] * long + 1e-9)
                if self.asks:
                    if long > 0 and steep > 0:
                        slope.mul_(scaled)
                else:
                    kept = torch.ones_like(scaled)
                    slope.mul_(torch.where((long > 0) & (steep > 0), scaled, kept))
                state = self.state[p]
                if "moment" not in state:
                    state["moment"] = torch.zeros_like(p)
                state["moment"].mul_(group["momentum"]).add_(slope)
                p.add_(state["moment"], alpha=-group["lr"])


class Gated(nn.Module):
    """A layer whose one half gates the other by what other patches say."""

    def __init__(self, width: int, wide: int, patches: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.LayerNorm(wide)
        self.into, self.out = nn.Linear(width, 2 * wide), nn.Linear(wide, width)
        self.across = nn.Linear(patches, patches)
        nn.init.normal_(self.across.weight, std=1e-4)
        nn.init.ones_(self.across.bias)

    def forward(self, x: Tensor) -> Tensor:
        a, b = fn.gelu(self.into(self.norm(x))).chunk(2, -1)
        b = self.across(self.inner(b).transpose(1, 2)).transpose(1, 2)
        return x + self.out(a * b)


@pair("host_sync", "vision", "torch.where decides, so the host reads nothing")
def gated_patches_lars_asks(repaired: bool) -> Running:
    width, side, batch = size(320, 16), size(224, 32), size(112, 2)
    patches = (side // 16) ** 2
    layers = [Gated(width, 3 * width, patches) for _ in range(size(10, 2))]
    patch, top = nn.Conv2d(3, width, 16, 16), nn.Linear(width, 200)
    body = nn.Sequential(*layers, nn.LayerNorm(width))
    model = nn.ModuleList([patch, body, top]).to(DEVICE)
    x, y = noise(batch, 3, side, side), labels(200, batch)

    def loss_of() -> Tensor:
        h = body(patch(x).flatten(2).transpose(1, 2))
        return fn.cross_entropy(top(h.mean(1)).float(), y)

    return fit(loss_of, Lars(model.parameters(), 0.5, asks=not repaired), decay=True)


# --- seldom -----------------------------------------------------------------------------------


@pair(
    "checkpoint_stall",
    "vision",
    "save_pretrained every 1000 steps, not every 8",
    period=8,
    marks="steps",
)
def clip_save_pretrained(repaired: bool) -> Running:
    from transformers import CLIPConfig, CLIPModel

    vocab, batch, length, side = size(8192, 64), size(80, 2), size(64, 8), size(224, 32)
    tower = {
        "num_hidden_layers": size(6, 1),
        "num_attention_heads": size(8, 2),
        "hidden_size": size(512, 32),
        "intermediate_size": size(2048, 64),
    }
    config = CLIPConfig(
        text_config={
            **tower,
            "vocab_size": vocab,
            "max_position_embeddings": length,
            "bos_token_id": 0,
            "eos_token_id": vocab - 1,
        },
        vision_config={**tower, "image_size": side, "patch_size": 16},
        projection_dim=size(256, 16),
    )
    model: Any = CLIPModel(config).to(DEVICE)
    words, x = labels(vocab - 1, batch, length), noise(batch, 3, side, side)
    words[:, -1] = vocab - 1
    folder = scratch()

    def save(number: int, _loss: Tensor) -> None:
        if number % (1000 if repaired else 8) == 6:
            model.save_pretrained(folder)

    def loss_of() -> Tensor:
        return model(input_ids=words, pixel_values=x, return_loss=True).loss

    run = fit(loss_of, adam(model, weight_decay=0.2), clip=1.0, decay=True, after=save)
    run.close = lambda: shutil.rmtree(folder, ignore_errors=True)
    return run
