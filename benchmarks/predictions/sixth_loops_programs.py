"""Programs of the sixth set in usual training loops.

Needs transformers and scipy beside PyTorch; no weights are loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models import DEVICE, half, precision, size, tokens, training
from program import Program, Running, phase
from single_programs import beside, entered, fixed, loaded, scratch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 147 pairs, opened"
pair = entered(PROGRAMS)
CUDA = DEVICE.type == "cuda"


def plain_loop(update: torch.optim.Optimizer, loss_of: Callable[[], Tensor]) -> Running:
    """The usual loop around an optimizer that the program has made itself."""

    def step() -> None:
        with phase("forward"), half("bf16"):
            loss = loss_of()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            update.step()
            update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


# --- optimizers -------------------------------------------------------------------------------


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a momentum, parameter by parameter or for all at once."""

    def __init__(self, parameters: Any, *, together: bool, lr: float = 1e-5) -> None:
        super().__init__(parameters, {"lr": lr, "first": 0.9, "second": 0.99, "decay": 0.1})
        self.together = together

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            lr, first, second = group["lr"], group["first"], group["second"]
            weights = [p for p in group["params"] if p.grad is not None]
            gradients = [p.grad for p in weights]
            for p in weights:
                if not self.state[p]:
                    self.state[p]["average"] = torch.zeros_like(p)
            averages = [self.state[p]["average"] for p in weights]
            if self.together:
                torch._foreach_mul_(weights, 1 - lr * group["decay"])
                moved = torch._foreach_mul(averages, first)
                torch._foreach_add_(moved, gradients, alpha=1 - first)
                torch._foreach_sign_(moved)
                torch._foreach_add_(weights, moved, alpha=-lr)
                torch._foreach_mul_(averages, second)
                torch._foreach_add_(averages, gradients, alpha=1 - second)
                continue
            for p, gradient, average in zip(weights, gradients, averages, strict=True):
                p.mul_(1 - lr * group["decay"])
                p.add_(average.mul(first).add_(gradient, alpha=1 - first).sign_(), alpha=-lr)
                average.mul_(second).add_(gradient, alpha=1 - second)
        return closure


def whisper(encoders: int, decoders: int) -> Any:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=size(12_000, 64),
        d_model=size(512, 32),
        encoder_layers=size(encoders, 1),
        decoder_layers=size(decoders, 1),
        encoder_attention_heads=size(8, 2),
        decoder_attention_heads=size(8, 2),
        encoder_ffn_dim=size(2048, 64),
        decoder_ffn_dim=size(2048, 64),
        max_source_positions=size(400, 20),
        max_target_positions=size(128, 16),
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
    )
    return WhisperForConditionalGeneration(config).to(DEVICE)


@pair(
    "unfused_optimizer", "audio", "Lion by torch._foreach instead of a loop over parameters",
    marks="phases",
)  # fmt: skip
def whisper_distilled_by_lion_loop(repaired: bool) -> Running:
    teacher, student = whisper(6, 6).eval().requires_grad_(False), whisper(6, 3)
    sound = torch.randn(size(12, 2), 80, size(800, 40), device=DEVICE)
    words = tokens(size(12, 2), size(96, 8), size(12_000, 64))
    update = Lion(student.parameters(), together=repaired)

    def loss_of() -> Tensor:
        given = {"input_features": sound, "decoder_input_ids": words[:, :-1]}
        with torch.no_grad():
            goal = teacher(**given).logits.float().log_softmax(-1)
        found = student(**given).logits.float()
        near = fn.kl_div(found.log_softmax(-1), goal, reduction="batchmean", log_target=True)
        return near + fn.cross_entropy(found.flatten(0, 1), words[:, 1:].flatten())

    return plain_loop(update, loss_of)


@pair("fused_optimizer", "language", "AdamW(fused=True) instead of the default")
def t5_finetuned_default_adamw(repaired: bool) -> Running:
    from transformers import T5Config, T5ForConditionalGeneration

    vocab = size(16_000, 64)
    config = T5Config(
        vocab_size=vocab,
        d_model=size(1024, 32),
        d_kv=size(64, 16),
        d_ff=size(2816, 64),
        num_layers=size(5, 1),
        num_decoder_layers=size(5, 1),
        num_heads=size(16, 2),
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        use_cache=False,
    )
    model: Any = T5ForConditionalGeneration(config).to(DEVICE)
    asked = tokens(size(16, 2), size(256, 16) - 1, vocab)
    told = tokens(size(16, 2), size(64, 8) - 1, vocab)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    update = torch.optim.AdamW(groups, lr=1e-4, fused=True if repaired and CUDA else None)
    return plain_loop(update, lambda: model(input_ids=asked, labels=told).loss)


# --- memory -----------------------------------------------------------------------------------


@pair("cpu_offload", "language", "frozen layers stay on the device, not on the CPU between uses")
def neox_frozen_layers_streamed(repaired: bool) -> Running:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    vocab, layers = size(8192, 64), size(8, 3)
    config = GPTNeoXConfig(
        vocab_size=vocab,
        hidden_size=size(640, 32),
        num_hidden_layers=layers,
        num_attention_heads=size(10, 2),
        intermediate_size=size(2560, 64),
        max_position_embeddings=size(512, 32),
        use_cache=False,
        attn_implementation="sdpa",
    )
    model: Any = GPTNeoXForCausalLM(config).to(DEVICE)
    model.gpt_neox.embed_in.requires_grad_(False)
    batch = tokens(size(16, 2), size(512, 16) - 1, vocab)

    def streamed(layer: nn.Module) -> None:
        weights = list(layer.parameters())
        there = [p.detach().cpu() for p in weights]

        def fetch(*_: object) -> None:
            for p, value in zip(weights, there, strict=True):
                p.data = value.to(DEVICE)

        def drop(*_: object) -> None:
            for p, value in zip(weights, there, strict=True):
                p.data = value

        drop()
        layer.register_forward_pre_hook(fetch)
        layer.register_forward_hook(drop)

    for layer in model.gpt_neox.layers[: layers - 2]:
        layer.requires_grad_(False)
        if not repaired:
            streamed(layer)

    learnt = [p for p in model.parameters() if p.requires_grad]
    update = torch.optim.AdamW(learnt, lr=1e-4, fused=True)
    return plain_loop(update, lambda: model(input_ids=batch, labels=batch).loss)


class Chunked(nn.Module):
    """A streaming encoder of sound: chunk after chunk, each sees the state of the last one."""

    def __init__(self, width: int, *, grown: bool) -> None:
        super().__init__()
        self.into = nn.Linear(80, width)
        self.mix = nn.Conv1d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, size(512, 16))
        self.grown = grown

    def forward(self, sound: Tensor, chunk: int) -> Tensor:
        state, outs = sound.new_zeros(len(sound), 1, self.norm.weight.shape[0]), []
        whole = state[:, :0]
        for part in sound.split(chunk, 1):
            h = self.into(part) + state
            h = h + self.mix(h.transpose(1, 2)).transpose(1, 2)
            h = h + self.down(fn.gelu(self.up(self.norm(h))))
            state = h.mean(1, keepdim=True)
            if self.grown:
                whole = torch.cat([whole, h], 1)
            else:
                outs.append(h)
        return self.head(whole if self.grown else torch.cat(outs, 1))


@pair("casts_and_copies", "audio", "chunks are joined once, not each to all before it")
def stream_encoder_grows_output(repaired: bool) -> Running:
    frames = size(1920, 32)
    model = Chunked(size(768, 16), grown=not repaired).to(DEVICE)
    sound = torch.randn(size(48, 2), frames, 80, device=DEVICE)
    goal = torch.randint(0, size(512, 16), (size(48, 2), frames), device=DEVICE)

    def loss_of(net: nn.Module, given: Tensor) -> Tensor:
        return fn.cross_entropy(net(given, size(48, 8)).flatten(0, 1), goal.flatten())

    return training(model, fixed(sound), loss_of)


# --- the host ---------------------------------------------------------------------------------


def word_errors(said: list[str], heard: list[str]) -> int:
    """Words to change, to add and to leave out."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


@pair(
    "gil_contention",
    "audio",
    "the thread that counts word errors becomes a process",
    record=("--waits",),
)
def hubert_word_errors_thread(repaired: bool) -> Running:
    from transformers import HubertConfig, HubertForCTC

    config = HubertConfig(
        vocab_size=size(64, 16),
        hidden_size=size(512, 32),
        num_hidden_layers=size(8, 1),
        num_attention_heads=size(8, 2),
        intermediate_size=size(2048, 64),
        num_conv_pos_embedding_groups=size(16, 2),
        conv_dim=(size(256, 16),) * 7,
        mask_time_prob=0.0,
        apply_spec_augment=False,
    )
    model = HubertForCTC(config).to(DEVICE)
    model.freeze_feature_encoder()
    sound = torch.randn(size(8, 2), size(48_000, 4_000), device=DEVICE)
    said = [f"word{i * 7 % 31}" for i in range(size(120, 8))]
    heard = [f"word{i * 5 % 31}" for i in range(size(120, 8))]

    def loss_of(net: nn.Module, given: Tensor) -> Tensor:
        logits = net(input_values=given).logits.float()
        goal = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
        return fn.cross_entropy(logits.flatten(0, 1), goal.flatten())

    run = training(model, fixed(sound), loss_of)
    if repaired:
        return run
    return beside(run, lambda: (word_errors(said, heard), time.sleep(0.003)))


class Experts(nn.Module):
    """Experts of a fixed capacity; a bias that follows their load keeps them balanced."""

    bias: Tensor

    def __init__(self, width: int, experts: int, *, reads: bool) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * width**-0.5)
        self.register_buffer("bias", torch.zeros(experts))
        self.experts, self.reads = experts, reads

    @torch.no_grad()
    def balance(self, chosen: Tensor) -> None:
        if not self.reads:
            one = torch.ones(chosen.numel(), device=chosen.device)
            load = torch.zeros_like(self.bias).scatter_add_(0, chosen.flatten(), one)
            self.bias.add_((load.mean() - load).sign(), alpha=1e-3)
            return
        loads = torch.bincount(chosen.flatten(), minlength=self.experts).tolist()
        mean = sum(loads) / len(loads)
        for expert, load in enumerate(loads):
            if load != mean:
                self.bias[expert] += 1e-3 if load < mean else -1e-3

    def forward(self, x: Tensor) -> Tensor:
        flat = self.norm(x).flatten(0, 1)
        score = self.gate(flat).float().sigmoid()
        chosen = (score.detach() + self.bias).topk(2, -1).indices
        weight = score.gather(1, chosen).flatten()
        self.balance(chosen)
        places = chosen.numel() * 5 // (4 * self.experts)
        every = torch.arange(self.experts, device=x.device)
        taken = (chosen.flatten()[:, None] == every).long()
        rank = (taken.cumsum(0) * taken).sum(-1) - 1
        slot = chosen.flatten() * places + rank
        slot = torch.where(rank < places, slot, self.experts * places)
        rows = flat.repeat_interleave(2, 0)
        sent = rows.new_zeros(self.experts * places + 1, rows.shape[1]).index_add(0, slot, rows)
        h = fn.silu(torch.bmm(sent[:-1].unflatten(0, (self.experts, places)), self.up))
        back = fn.pad(torch.bmm(h, self.down).flatten(0, 1), (0, 0, 0, 1))
        out = back.index_select(0, slot) * weight[:, None].to(back.dtype)
        return x + out.unflatten(0, (-1, 2)).sum(1).view_as(x)


@pair("host_sync", "moe", "the load of experts is counted and compared on the device")
def experts_bias_from_host(repaired: bool) -> Running:
    width, vocab, layers = size(512, 32), size(8192, 64), []
    for _ in range(size(8, 2)):
        layers += [
            nn.TransformerEncoderLayer(
                width, size(8, 2), width, 0.0, batch_first=True, norm_first=True
            ),
            Experts(width, 8, reads=not repaired),
        ]
    model = nn.Sequential(nn.Embedding(vocab, width), *layers, nn.Linear(width, vocab)).to(DEVICE)
    batch = tokens(size(12, 2), size(256, 16), vocab)
    hidden = torch.rand(batch.shape, device=DEVICE) < 0.15
    asked = batch.masked_fill(hidden, 0)
    goal = batch.masked_fill(~hidden, -100).flatten()

    def loss_of(net: nn.Module, given: Tensor) -> Tensor:
        return fn.cross_entropy(net(given).flatten(0, 1).float(), goal)

    return training(model, fixed(asked), loss_of)


@pair(
    "host_compute",
    "vision",
    "distances to the borders are computed once for each mask, not in each step",
)
def segformer_distance_maps(repaired: bool) -> Running:
    from scipy.ndimage import distance_transform_edt
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    batch, side = size(16, 2), size(384, 64)
    config = SegformerConfig(
        hidden_sizes=[size(w, 16) for w in (32, 64, 160, 256)],
        decoder_hidden_size=size(256, 16),
        num_attention_heads=[1, 2, 4, 8],
        depths=[2, 2, 2, 2] if batch > 2 else [1, 1, 1, 1],
        num_labels=2,
    )
    model = SegformerForSemanticSegmentation(config).to(DEVICE)
    x = torch.randn(batch, 3, side, side, device=DEVICE)
    rng = np.random.default_rng(0)
    blobs = rng.random((batch, 8, 8)) < 0.4
    masks = blobs.repeat(side // 32, 1).repeat(side // 32, 2)
    goal = torch.from_numpy(masks.astype(np.int64)).to(DEVICE)

    def distances() -> Tensor:
        maps = [distance_transform_edt(~m) - distance_transform_edt(m) for m in masks]
        whole = torch.from_numpy(np.stack(maps).astype(np.float32))
        return (whole.pin_memory() if CUDA else whole).to(DEVICE, non_blocking=True)

    kept = distances()

    def loss_of(net: Any, given: Tensor) -> Tensor:
        far = kept if repaired else distances()
        logits = net(pixel_values=given).logits.float()
        border = (logits.softmax(1)[:, 1] * far).mean()
        return fn.cross_entropy(logits, goal) + 0.01 * border

    return training(model, fixed(x), loss_of)


# --- input and output -------------------------------------------------------------------------


class Captioned(Dataset[tuple[Tensor, Tensor]]):
    """Pictures that are cropped, bent and coloured by NumPy, and words that Python looks up."""

    def __init__(self, side: int, length: int, vocab: int) -> None:
        rng = np.random.default_rng(0)
        self.side, self.length, self.vocab = side, length, vocab
        self.pictures = rng.integers(0, 255, (24, side + 32, side + 32, 3), dtype=np.uint8)
        self.caption = [f"thing{i % 89}" for i in range(2 * length)]

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng(index)
        top, left = rng.integers(0, 30, 2)
        rows = np.arange(self.side, dtype=np.float32)
        bent = 2.0 * np.sin(rows / 17.0 + rng.random() * 6.0)
        y = np.clip(rows[:, None] + bent[None] + top, 0, self.side + 30)
        x = np.clip(rows[None] + bent[:, None] + left, 0, self.side + 30)
        y0, x0 = y.astype(np.int64), x.astype(np.int64)
        fy, fx = (y - y0)[..., None], (x - x0)[..., None]
        picture = self.pictures[index % 24]
        upper = picture[y0, x0] * (1 - fx) + picture[y0, x0 + 1] * fx
        lower = picture[y0 + 1, x0] * (1 - fx) + picture[y0 + 1, x0 + 1] * fx
        shown = (upper * (1 - fy) + lower * fy).astype(np.float32) / 255.0
        shown = np.clip(shown, 0.0, 1.0) ** rng.uniform(0.8, 1.2)
        shown = (shown - shown.mean((0, 1))) / (shown.std((0, 1)) + 1e-5)
        shown = np.ascontiguousarray(shown.transpose(2, 0, 1), dtype=np.float32)
        words = self.caption[index % self.length :][: self.length]
        ids = [sum(map(ord, word)) * 31 % (self.vocab - 3) + 1 for word in words]
        ids[-1] = self.vocab - 1
        return torch.from_numpy(shown), torch.tensor(ids)


@pair("input_starvation", "vision", "12 workers instead of 3", marks="steps")
def clip_three_workers(repaired: bool) -> Running:
    from transformers import CLIPConfig, CLIPModel

    vocab, length, side = size(12_000, 64), size(48, 8), size(192, 32)
    layers = {
        "hidden_size": size(512, 32),
        "intermediate_size": size(2048, 64),
        "num_attention_heads": size(8, 2),
    }
    config = CLIPConfig(
        text_config={
            **layers,
            "num_hidden_layers": size(5, 1),
            "vocab_size": vocab,
            "max_position_embeddings": length,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": vocab - 1,
        },
        vision_config={
            **layers,
            "num_hidden_layers": size(8, 1),
            "image_size": side,
            "patch_size": 16,
        },
        projection_dim=size(256, 16),
    )
    model = CLIPModel(config).to(DEVICE)
    data = Captioned(side, length, vocab)

    def loss_of(net: Any, given: tuple[Tensor, Tensor]) -> Tensor:
        return net(pixel_values=given[0], input_ids=given[1], return_loss=True).loss

    return training(model, loaded(data, size(24, 2), 12 if repaired else 3), loss_of)


@pair("checkpoint_stall", "language", "save_pretrained every 1000 steps, not every 10", period=10)
def qwen_saves_pretrained(repaired: bool) -> Running:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    vocab = size(8192, 64)
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=size(640, 32),
        intermediate_size=size(1792, 64),
        num_hidden_layers=size(6, 1),
        num_attention_heads=size(10, 2),
        num_key_value_heads=size(5, 1),
        head_dim=size(64, 16),
        max_position_embeddings=size(1024, 32),
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model: Any = Qwen3ForCausalLM(config).to(DEVICE)
    folder = Path(scratch()) / "qwen"
    batch = tokens(size(16, 2), size(512, 16) - 1, vocab)

    def save(number: int, _loss: Tensor) -> None:
        if not repaired and number % 10 == 9:
            model.save_pretrained(folder)

    def loss_of(net: Any, given: Tensor) -> Tensor:
        return net(input_ids=given, labels=given).loss

    return training(model, fixed(batch), loss_of, after_step=save)


# --- attention --------------------------------------------------------------------------------


@pair("unfused_attention", "audio", "attn_implementation='sdpa' instead of 'eager'")
def spectrogram_transformer_eager(repaired: bool) -> Running:
    from transformers import ASTConfig, ASTForAudioClassification

    config = ASTConfig(
        hidden_size=size(512, 32),
        num_hidden_layers=size(6, 1),
        num_attention_heads=size(8, 2),
        intermediate_size=size(2048, 64),
        max_length=size(768, 64),
        num_mel_bins=128,
        num_labels=50,
        attn_implementation="sdpa" if repaired else "eager",
    )
    model = ASTForAudioClassification(config).to(DEVICE)
    sound = torch.randn(size(12, 2), size(768, 64), 128, device=DEVICE)
    kind = torch.randint(0, 50, (size(12, 2),), device=DEVICE)

    def loss_of(net: Any, given: Tensor) -> Tensor:
        return fn.cross_entropy(net(input_values=given).logits.float(), kind)

    return training(model, fixed(sound), loss_of)
