"""A third set of programs for one GPU: models of public libraries, in the loops that people write.

Needs transformers, timm, torch_geometric, scipy and Pillow beside PyTorch; no weights are loaded.
"""

from __future__ import annotations

import io
import queue
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models import DEVICE, graphed, images, made_optimizer, precision, size, tokens, training
from program import Program, Running, phase
from single_programs import ahead, entered, fixed, loaded, scratch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import Dataset

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with the compiled replay and 98 pairs"
pair = entered(PROGRAMS)


# --- models of libraries ----------------------------------------------------------------------


def llama(width: int = 768, layers: int = 8, attention: str = "sdpa") -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    width = size(width, 64)
    config = LlamaConfig(
        vocab_size=size(16_000, 128),
        hidden_size=width,
        intermediate_size=size(2048, 128),
        num_hidden_layers=size(layers, 2),
        num_attention_heads=width // size(64, 32),
        num_key_value_heads=width // size(128, 32),
        use_cache=False,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).to(DEVICE)


def bert(layers: int = 6, attention: str = "sdpa") -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=size(30_522, 128),
        hidden_size=size(768, 64),
        num_hidden_layers=size(layers, 2),
        num_attention_heads=size(12, 2),
        intermediate_size=size(3072, 128),
        num_labels=4,
        attn_implementation=attention,
    )
    return BertForSequenceClassification(config).to(DEVICE)


def gpt2(attention: str) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=size(16_000, 128),
        n_positions=size(1024, 64),
        n_embd=size(768, 64),
        n_layer=size(8, 2),
        n_head=size(12, 2),
        use_cache=False,
        attn_implementation=attention,
    )
    return GPT2LMHeadModel(config).to(DEVICE)


def wav2vec() -> nn.Module:
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(
        hidden_size=size(512, 32),
        num_hidden_layers=size(6, 1),
        num_attention_heads=size(8, 2),
        intermediate_size=size(2048, 64),
        num_conv_pos_embedding_groups=size(16, 2),
        num_labels=12,
        mask_time_prob=0.0,
        apply_spec_augment=False,
    )
    return Wav2Vec2ForSequenceClassification(config).to(DEVICE)


def timm_model(name: str, **more: Any) -> nn.Module:
    import timm

    return timm.create_model(name, num_classes=size(1000, 10), **more).to(DEVICE)


def causal(model: nn.Module, batch: Tensor) -> Tensor:
    return model(input_ids=batch, labels=batch).loss


def labelled(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model(input_ids=batch[0], labels=batch[1]).loss


def sentences(batch: int = 32, length: int = 128) -> tuple[Tensor, Tensor]:
    batch = size(batch, 2)
    words = tokens(batch, size(length, 16) - 1, size(30_522, 128))
    return words, torch.randint(0, 4, (batch,), device=DEVICE)


def predicted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return fn.cross_entropy(model(batch[0]).float(), batch[1] % size(1000, 10))


# --- the host waits ---------------------------------------------------------------------------


@pair(
    "host_sync",
    "language",
    "loss and accuracy are summed on the device and read every 50 steps",
    marks="profiler",
)
def bert_reads_metrics(repaired: bool) -> Running:
    batch = sentences()
    sums = torch.zeros(2, device=DEVICE)
    told: list[float] = []

    def loss_of(model: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
        out = model(input_ids=given[0], labels=given[1])
        right = (out.logits.argmax(-1) == given[1]).float().mean()
        if repaired:
            sums.add_(torch.stack([out.loss.detach().float(), right]))
        else:
            told.extend([out.loss.item(), right.item()])
            best = out.logits.argmax(-1)  # recall of each class
            told.extend(((best == i) & (given[1] == i)).sum().item() for i in range(4))
        return out.loss

    return training(bert(), fixed(batch), loss_of)


@pair("host_sync", "audio", "gradients that are not finite are not looked for in each step")
def wav2vec_clip_raises(repaired: bool) -> Running:
    model = wav2vec()
    batch = size(16, 2)
    data = (
        torch.randn(batch, size(32_000, 4_000), device=DEVICE),
        torch.randint(0, 12, (batch,), device=DEVICE),
    )

    def loss_of(net: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
        return net(input_values=given[0], labels=given[1]).loss

    def clip(_number: int, _loss: Tensor) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=not repaired)

    return training(model, fixed(data), loss_of, after_backward=clip)


@pair("host_sync", "graph", "the nodes to learn from are a list of numbers instead of a mask")
def gat_boolean_mask(repaired: bool) -> Running:
    from torch_geometric.nn import GATConv

    nodes, edges, width = size(40_000, 200), size(320_000, 800), size(128, 16)

    class Gat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(GATConv(width, width // 4, heads=4) for _ in range(4))
            self.out = nn.Linear(width, 40)

        def forward(self, x: Tensor, edge: Tensor) -> Tensor:
            for i, conv in enumerate(self.convs):
                x = fn.elu(conv(x, edge))
                if not repaired and i < 3:  # isolated nodes are looked for between the layers
                    x = x * (x[x.abs().sum(-1) > 0].mean() != 0)
            return self.out(x)

    x = torch.randn(nodes, width, device=DEVICE)
    edge = torch.randint(0, nodes, (2, edges), device=DEVICE)
    y = torch.randint(0, 40, (nodes,), device=DEVICE)
    mask = torch.rand(nodes, device=DEVICE) < 0.3
    chosen = mask.nonzero().flatten()

    def loss_of(model: nn.Module, _: Any) -> Tensor:
        where = chosen if repaired else mask
        return fn.cross_entropy(model(x, edge)[where], y[where])

    return training(Gat().to(DEVICE), fixed(None), loss_of, kind="fp32")


@pair("host_sync", "vision", "phases are timed by events that are read later", marks="phases")
def gan_timed_phases(repaired: bool) -> Running:
    width = size(64, 8)
    make = nn.Sequential(
        nn.ConvTranspose2d(128, 4 * width, 4, 1, 0), nn.BatchNorm2d(4 * width), nn.ReLU(),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh(),
    ).to(DEVICE)  # fmt: skip
    judge = nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.BatchNorm2d(4 * width), nn.LeakyReLU(0.2),
        nn.Conv2d(4 * width, 1, 4),
    ).to(DEVICE)  # fmt: skip
    batch = size(256, 4)
    real = torch.randn(batch, 3, 32, 32, device=DEVICE)
    first = made_optimizer(judge.parameters(), "fused")
    second = made_optimizer(make.parameters(), "fused")

    def wait() -> None:
        if not repaired and DEVICE.type == "cuda":
            torch.cuda.synchronize()

    def step() -> None:
        with phase("judge"):
            fake = make(torch.randn(batch, 128, 1, 1, device=DEVICE))
            wait()
            loss = fn.softplus(-judge(real)).mean() + fn.softplus(judge(fake.detach())).mean()
            loss.backward()
            wait()
            first.step()
            first.zero_grad(set_to_none=True)
            wait()
        with phase("make"):
            fn.softplus(-judge(fake)).mean().backward()
            wait()
            second.step()
            second.zero_grad(set_to_none=True)
            first.zero_grad(set_to_none=True)
            wait()

    return Running(step, enter=precision("high"))


# --- the host works ---------------------------------------------------------------------------


@pair("host_compute", "rl", "the environments are simulated on the device", marks="steps")
def ppo_numpy_environment(repaired: bool) -> Running:
    envs, horizon = size(512, 8), size(16, 2)
    policy = nn.Sequential(
        nn.Linear(24, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 5)
    ).to(DEVICE)
    update = made_optimizer(policy.parameters(), "fused")
    rng = np.random.default_rng(0)
    springs = rng.standard_normal((24, 24)).astype(np.float32) * 0.1
    springs_there = torch.from_numpy(springs).to(DEVICE)
    start = rng.standard_normal((envs, 24)).astype(np.float32)

    def simulated(state: np.ndarray[Any, Any], action: np.ndarray[Any, Any]) -> Any:
        for _ in range(6):
            force = np.tanh(state @ springs) + np.float32(0.01) * (action[:, None] - np.float32(2))
            state = state + 0.02 * force - 0.001 * state * np.abs(state)
        return state

    def simulated_there(state: Tensor, action: Tensor) -> Tensor:
        for _ in range(6):
            force = torch.tanh(state @ springs_there) + 0.01 * (action[:, None] - 2)
            state = state + 0.02 * force - 0.001 * state * state.abs()
        return state

    def step() -> None:
        state: Any = torch.from_numpy(start).to(DEVICE) if repaired else start
        seen, chosen = [], []
        with torch.no_grad():
            for _ in range(horizon):
                here = state if repaired else torch.from_numpy(state).to(DEVICE)
                action = torch.distributions.Categorical(
                    logits=policy(here), validate_args=False
                ).sample()
                seen.append(here)
                chosen.append(action)
                if repaired:
                    state = simulated_there(state, action)
                else:
                    state = simulated(state, action.cpu().numpy().astype(np.float32))
        x, a = torch.cat(seen), torch.cat(chosen)
        for _ in range(2):
            logp = fn.log_softmax(policy(x), -1).gather(1, a[:, None])
            (-(logp * x[:, :1]).mean()).backward()
            update.step()
            update.zero_grad(set_to_none=True)

    return Running(step, enter=precision("high"))


@pair("host_compute", "vision", "boxes are matched by the nearest on the device", marks="none")
def detector_hungarian(repaired: bool) -> Running:
    from scipy.optimize import linear_sum_assignment

    body = timm_model("resnet18", features_only=True)
    queries, objects, batch = size(100, 10), size(20, 4), size(16, 2)
    head = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(size(256, 32), 8, size(1024, 64), 0.0, batch_first=True),
        size(4, 1),
    ).to(DEVICE)
    shrink = nn.Conv2d(512, size(256, 32), 1).to(DEVICE)
    boxes = nn.Linear(size(256, 32), 4).to(DEVICE)
    asked = nn.Parameter(torch.randn(1, queries, size(256, 32), device=DEVICE))
    parts = nn.ModuleList([body, head, shrink, boxes])
    x = torch.randn(batch, 3, size(256, 64), size(256, 64), device=DEVICE)
    true = torch.rand(batch, objects, 4, device=DEVICE)

    def loss_of(_: nn.Module, given: Tensor) -> Tensor:
        kept = shrink(body(given)[-1]).flatten(2).transpose(1, 2)
        found = boxes(head(asked.expand(batch, -1, -1), kept)).float().sigmoid()
        cost = torch.cdist(found, true, p=1)
        if repaired:
            match = cost.detach().argmin(1)
            return fn.l1_loss(found.gather(1, match[..., None].expand(-1, -1, 4)), true)
        total = found.new_zeros(())
        for i, one in enumerate(cost.detach().cpu().numpy()):
            rows, columns = linear_sum_assignment(one)
            total = total + fn.l1_loss(found[i, rows], true[i, columns])
        return total / batch

    return training(parts, fixed(x), loss_of)


# --- input ------------------------------------------------------------------------------------


class Jpegs(Dataset[tuple[Tensor, int]]):
    """JPEG files in memory that Pillow decodes, crops and flips."""

    def __init__(self, side: int) -> None:
        from PIL import Image

        self.side = side
        rng = np.random.default_rng(0)
        self.files = []
        for _ in range(16):
            low = rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)
            image = Image.fromarray(low).resize((size(500, 48), size(375, 48)), Image.BICUBIC)
            file = io.BytesIO()
            image.save(file, "JPEG", quality=88)
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        image = Image.open(io.BytesIO(self.files[index % 16])).convert("RGB")
        rng = np.random.default_rng(index)
        left, top = (int(rng.integers(0, 40 if s > 100 else 4)) for s in image.size)
        image = image.crop((left, top, image.size[0] - 8, image.size[1] - 8))
        image = image.resize((self.side, self.side), Image.BILINEAR)
        array = np.asarray(image, dtype=np.float32) / 255.0
        if index & 1:
            array = array[:, ::-1]
        array = (array - 0.45) / 0.225
        return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1))), index % 10


@pair("input_starvation", "vision", "8 workers instead of none", marks="profiler")
def convnext_jpegs_main(repaired: bool) -> Running:
    batches = loaded(Jpegs(size(224, 32)), size(32, 2), 8 if repaired else 0)
    return training(timm_model("convnext_pico"), batches, predicted)


@pair("input_starvation", "vision", "12 workers instead of 3")
def efficientnet_three_workers(repaired: bool) -> Running:
    batches = loaded(Jpegs(size(224, 32)), size(64, 2), 12 if repaired else 3)
    return training(timm_model("efficientnet_b0"), batches, predicted)


class Waves(Dataset[tuple[Tensor, int]]):
    """Sound whose spectrogram is computed on the CPU."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng(index)
        sound = torch.from_numpy(rng.standard_normal(size(64_000, 4_000), dtype=np.float32))
        window = torch.hann_window(400)
        power = torch.stft(sound, 400, 160, window=window, return_complex=True).abs().square()
        return (power + 1e-6).log()[None, :, : size(384, 20)], index % 10


@pair("input_starvation", "audio", "6 workers instead of 1", marks="phases")
def spectrograms_one_worker(repaired: bool) -> Running:
    batches = loaded(Waves(), size(32, 2), 6 if repaired else 1)
    model = timm_model("resnet34", in_chans=1)
    return training(model, batches, predicted)


@pair("gil_contention", "vision", "batches are prepared in 4 processes instead of 2 threads")
def regnet_threads(repaired: bool) -> Running:
    side, batch = size(160, 32), size(16, 2)
    model = timm_model("regnety_008")
    if repaired:
        return training(model, loaded(Scrambled(side), batch, 4), predicted)
    data = Scrambled(side)
    ready: queue.Queue[Any] = queue.Queue(4)
    going = threading.Event()
    ended = threading.Event()

    def prepare(first: int) -> None:
        number = first
        while not ended.is_set():
            going.wait()
            rows = [data[number + 2 * i] for i in range(batch)]
            number += 2 * batch
            made = torch.stack([r[0] for r in rows]), torch.tensor([r[1] for r in rows])
            while not ended.is_set():
                try:
                    ready.put(made, timeout=0.1)
                    break
                except queue.Full:
                    continue

    for i in range(2):
        threading.Thread(target=prepare, args=(i,), daemon=True).start()

    def following() -> Any:
        return tuple(part.to(DEVICE, non_blocking=True) for part in ready.get())

    run = training(model, ahead(following, 4), predicted, close=lambda: (ended.set(), going.set()))
    enter = run.enter
    run.enter = lambda: (enter(), going.set())
    run.leave = going.clear
    return run


class Scrambled(Dataset[tuple[Tensor, int]]):
    """Images with a text beside each that Python reads letter by letter."""

    def __init__(self, side: int) -> None:
        self.image = torch.randn(3, side, side)
        self.text = "".join(chr(97 + i * 7 % 26) for i in range(size(6_000, 60)))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = 0
        for letter in self.text:
            label = (label * 31 + ord(letter) + index) % 1000
        return self.image + 0.01 * label, label % 10


@pair("blocking_copy", "recommender", "26 columns travel as one pinned tensor", marks="steps")
def columns_one_by_one(repaired: bool) -> Running:
    columns, rows, width = 26, size(8192, 32), size(64, 8)
    tables = nn.ModuleList(nn.Embedding(size(20_000, 50), width) for _ in range(columns))
    top = nn.Sequential(
        nn.Linear(columns * width, size(1024, 32)), nn.ReLU(), nn.Linear(size(1024, 32), 1)
    )
    model = nn.ModuleList([tables, top]).to(DEVICE)
    apart = [torch.randint(0, size(20_000, 50), (rows,)) for _ in range(columns)]
    whole = torch.stack(apart)
    if DEVICE.type == "cuda":
        whole = whole.pin_memory()
    y = torch.rand(rows, device=DEVICE).round()

    def following() -> list[Tensor]:
        if repaired:
            return list(whole.to(DEVICE, non_blocking=True))
        return [column.to(DEVICE) for column in apart]

    def loss_of(_: nn.Module, ids: list[Tensor]) -> Tensor:
        h = torch.cat([table(i) for table, i in zip(tables, ids, strict=True)], -1)
        return fn.binary_cross_entropy_with_logits(top(h).flatten().float(), y)

    return training(model, following, loss_of, kind="fp32")


@pair("blocking_copy", "vision", "batches are pinned and copied non_blocking")
def swin_pageable_video(repaired: bool) -> Running:
    batch, side = size(32, 2), size(224, 224)
    x, y = torch.randn(batch * 4, 3, side, side), torch.randint(0, 10, (batch,), device=DEVICE)
    if repaired and DEVICE.type == "cuda":
        x = x.pin_memory()

    def following() -> tuple[Tensor, Tensor]:  # four frames a clip, of which the mean is seen
        return x.to(DEVICE, non_blocking=repaired).view(4, batch, 3, side, side).mean(0), y

    return training(timm_model("swin_tiny_patch4_window7_224"), following, predicted)


# --- launches ---------------------------------------------------------------------------------


@pair("launch_bound", "vision", "the whole step is one CUDA graph")
def mobilenet_graph(repaired: bool) -> Running:
    x, y = images(size(16, 2), size(160, 32))
    model = timm_model("mobilenetv3_small_100")

    def made(optimizer: str) -> Running:
        return training(model, fixed((x, y)), predicted, kind="fp32", optimizer=optimizer)

    run = made("graph")
    return graphed(run) if repaired else run


@pair("launch_bound", "language", "the whole step is one CUDA graph", marks="profiler")
def bert_short_graph(repaired: bool) -> Running:
    batch = sentences(8, 64)
    model = bert(4)

    def loss_of(net: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
        logits = net(input_ids=given[0]).logits
        return fn.cross_entropy(logits.float(), given[1])

    run = training(model, fixed(batch), loss_of, optimizer="graph")
    return graphed(run) if repaired else run


# --- kernels ----------------------------------------------------------------------------------


@pair("unfused_attention", "language", "attn_implementation='sdpa' instead of 'eager'")
def gpt2_eager_attention(repaired: bool) -> Running:
    batch = tokens(size(8, 2), size(1023, 31), size(16_000, 128))
    return training(gpt2("sdpa" if repaired else "eager"), fixed(batch), causal)


@pair("unfused_attention", "language", "attn_implementation='sdpa' instead of 'eager'")
def bert_eager_attention(repaired: bool) -> Running:
    batch = sentences(32, 512)
    return training(bert(6, "sdpa" if repaired else "eager"), fixed(batch), labelled)


@pair("low_precision_unused", "language", "bf16 autocast instead of fp32 without TF32")
def llama_fp32(repaired: bool) -> Running:
    batch = tokens(size(8, 2), size(511, 31), size(16_000, 128))
    kind, matmul = ("bf16", "high") if repaired else ("fp32", "highest")
    return training(llama(1024, 8), fixed(batch), causal, kind=kind, matmul=matmul)


@pair("low_precision_unused", "vision", "TF32 for convolutions and products", marks="steps")
def resnext_fp32(repaired: bool) -> Running:
    matmul = "high" if repaired else "highest"
    data = images(size(64, 2), size(176, 32))
    model = timm_model("resnet50d")
    return training(model, fixed(data), predicted, kind="fp32", matmul=matmul)


@pair("compile", "language", "torch.compile(model)", compiles=True)
def llama_compile(repaired: bool) -> Running:
    batch = tokens(size(8, 2), size(1023, 31), size(16_000, 128))
    model = llama(1024, 8)
    return training(torch.compile(model) if repaired else model, fixed(batch), causal)


@pair("compile", "vision", "torch.compile(model)", compiles=True, marks="profiler")
def convnext_compile(repaired: bool) -> Running:
    model = timm_model("convnext_nano")
    data = images(size(64, 2), size(224, 32))
    return training(torch.compile(model) if repaired else model, fixed(data), predicted)


@pair("unfused_optimizer", "language", "AdamW(fused=True) instead of a loop over parameters")
def bert_adam_loop(repaired: bool) -> Running:
    kind = "fused" if repaired else "loop"
    return training(bert(8), fixed(sentences(16, 128)), labelled, optimizer=kind)


@pair("unfused_optimizer", "vision", "the average of the weights by torch._foreach_lerp_")
def efficientnet_average_loop(repaired: bool) -> Running:
    model = timm_model("efficientnet_b0")
    weights = [p.detach() for p in model.parameters()]
    averages = [w.clone() for w in weights]

    def average(_number: int, _loss: Tensor) -> None:
        if repaired:
            torch._foreach_lerp_(averages, weights, 0.001)
            return
        for kept, weight in zip(averages, weights, strict=True):
            kept.mul_(0.999).add_(weight, alpha=0.001)

    data = images(size(64, 2), size(192, 32))
    return training(model, fixed(data), predicted, after_step=average)


# --- seldom -----------------------------------------------------------------------------------


@pair(
    "checkpoint_stall",
    "language",
    "weights are copied to pinned memory and written by a thread",
    period=8,
)
def llama_saves(repaired: bool) -> Running:
    model = llama(512, 6)
    file = Path(scratch()) / "llama.pt"
    pinned: dict[str, Tensor] = {}
    writing: list[threading.Thread] = []

    def save(number: int, _loss: Tensor) -> None:
        if number % 8 != 7:
            return
        if not repaired:
            torch.save(model.state_dict(), file)
            return
        for thread in writing:
            thread.join()
        writing.clear()
        for name, value in model.state_dict().items():
            if name not in pinned:
                pinned[name] = torch.empty_like(value, device="cpu")
                if DEVICE.type == "cuda":
                    pinned[name] = pinned[name].pin_memory()
            pinned[name].copy_(value, non_blocking=True)
        done = torch.cuda.Event() if DEVICE.type == "cuda" else None
        if done:
            done.record()

        def write() -> None:
            if done:
                done.synchronize()
            torch.save(pinned, file)

        writing.append(threading.Thread(target=write))
        writing[0].start()

    batch = tokens(size(16, 2), size(255, 15), size(16_000, 128))
    return training(model, fixed(batch), causal, after_step=save)
