"""Training jobs of the eleventh set, on four GPUs: few and large kernels."""

from __future__ import annotations

import copy
import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from eleventh_job_models import (
    SHORT,
    Clean,
    Filled,
    FlatWeights,
    Groups,
    Heard,
    Mixer,
    Packed,
    Rooms,
    Routes,
    Sentences,
    Speakers,
    Values,
    Voice,
    warped_distance,
    within_capacity,
)
from job_programs import DEVICE, RANK, WORLD, ddp, half
from models import done, size
from program import SMALL, Program, Running
from single_programs import entered, loaded, scratch
from torch import Tensor, nn
from torch.nn import functional as fn

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 191 pairs"
four = partial(entered(PROGRAMS), marks="steps", ranks=4)  # type: ignore[call-arg]


# --- one rank has more to do on its host ------------------------------------------------------


@four(
    "straggler",
    "audio",
    "rank 0 logs the distance along the best way every 500 steps, not in each",
)
def job_rank0_warps_voices(repaired: bool) -> Running:
    """What is logged of a voice is how far its spectra are when both are warped in time."""
    phones, bands, width, rows, frames = size(90, 9), 80, size(1536, 32), size(32, 2), size(320, 12)
    net = ddp(Voice(phones, bands, width, size(4, 1)).to(DEVICE))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-4, betas=(0.9, 0.98), fused=True)
    text = torch.randint(0, phones, (rows, frames), device=DEVICE)
    goal = torch.randn(rows, frames, bands, device=DEVICE)
    every = 500 if repaired else 1
    made = 0
    log: list[float] = []

    def step() -> None:
        nonlocal made
        with half():
            out = net(text)
        fn.l1_loss(out.float(), goal).backward()
        done(optimizer)
        made += 1
        if RANK == 0 and made % every == 0:
            said, true = torch.stack([out[0].detach().float(), goal[0]])[..., :24].cpu().numpy()
            log.append(warped_distance(said, true))

    return Running(step)


@four(
    "straggler",
    "rl",
    "rank 0 keeps priorities on its GPU, and draws there: the largest of weights over times",
)
def job_rank0_draws_replay(repaired: bool) -> Running:
    """Rank 0 draws what all ranks learn from, as the last errors have it, and tells the others."""
    entries, rows, side, actions = size(200_000, 200), size(512, 4), size(64, 32), 18
    drawn = WORLD * rows
    net_ = Values(side, size(128, 8), actions).to(DEVICE, memory_format=torch.channels_last)
    later = copy.deepcopy(net_).requires_grad_(False)
    net = ddp(net_)
    optimizer = torch.optim.Adam(net.parameters(), lr=6e-5, eps=1.5e-4, fused=True)
    pictures = torch.randint(0, 255, (entries, side, side), device=DEVICE, dtype=torch.uint8)
    acted = torch.randint(0, actions, (entries,), device=DEVICE)
    reward = torch.randn(entries, device=DEVICE)
    history = torch.arange(4, device=DEVICE)
    rng = np.random.default_rng(0)
    usable = entries - 7
    of_host, of_device = np.ones(usable), torch.ones(usable, device=DEVICE)
    chosen = torch.randint(0, usable, (drawn,), device=DEVICE)
    errors = torch.rand(drawn, device=DEVICE)

    def draw() -> None:
        if repaired:
            of_device[chosen] = errors + 1e-3
            weights = of_device.pow(0.6)
            chosen.copy_((weights / torch.empty_like(weights).exponential_()).topk(drawn).indices)
            return
        of_host[chosen.cpu().numpy()] = errors.cpu().numpy() + 1e-3
        weights_ = of_host**0.6
        found = rng.choice(usable, drawn, replace=False, p=weights_ / weights_.sum())
        chosen.copy_(torch.from_numpy(found))

    def seen(ids: Tensor) -> Tensor:
        x = pictures[ids[:, None] + history].float().div_(255.0)
        return x.contiguous(memory_format=torch.channels_last)

    def step() -> None:
        if RANK == 0:
            draw()
        dist.broadcast(chosen, 0)
        mine = chosen.view(WORLD, rows)[RANK]
        with half():
            with torch.no_grad():
                worth = reward[mine] + 0.97 * later(seen(mine + 3)).float().amax(1)
            out = net(seen(mine)).float()
        error = out.gather(1, acted[mine, None])[:, 0] - worth
        fn.huber_loss(error, torch.zeros_like(error)).backward()
        done(optimizer)
        dist.all_gather_into_tensor(errors, error.detach().abs())
        with torch.no_grad():
            torch._foreach_lerp_(list(later.parameters()), list(net_.parameters()), 0.005)

    return Running(step)


# --- ranks are given unequal work -------------------------------------------------------------

LENGTHS = (256, 512, 768, 1024)
"""Texts are cut to one of these."""


@four(
    "load_imbalance",
    "language",
    "each rank takes every fourth text of the batch sorted by length, not a quarter in a row",
)
def job_quarters_of_sorted_texts(repaired: bool) -> Running:
    lengths = [size(length, length // 64) for length in LENGTHS]
    vocab, width, rows = size(6144, 50), size(1536, 32), size(16, 4)
    every = sorted(length for length in lengths for _ in range(rows))  # of all ranks
    mine = every[RANK::WORLD] if repaired else every[RANK * rows :][:rows]
    groups = Groups([(length, mine.count(length)) for length in lengths])
    net = ddp(Packed(vocab, width, size(3, 1), max(lengths)).to(DEVICE))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    text = torch.randint(0, vocab, (groups.tokens + 1,), device=DEVICE)
    tokens_of_all = sum(every)

    def step() -> None:
        with half():
            out = net(text[:-1], groups)
        loss = fn.cross_entropy(out.float(), text[1:], reduction="sum")
        (loss * WORLD / tokens_of_all).backward()
        done(optimizer)

    return Running(step)


SILENCE = 0.4
"""How much of the recordings is silence, all of which one expert has learned to take."""


@four(
    "load_imbalance",
    "moe",
    "an expert takes a quarter of a rank's frames at most, others take the rest of the silence",
)
def job_expert_of_silence(repaired: bool) -> Running:
    bands, width, wide, units = size(160, 8), size(1024, 32), size(6144, 64), size(2000, 20)
    rows, frames, layers = size(32, 4), size(512, 8), size(3, 2)
    other = (1.0 - SILENCE) / (WORLD - 1)
    shares = [SILENCE if expert == 0 else other for expert in range(WORLD)]
    chosen = [
        np.random.default_rng((5, rank)).choice(WORLD, rows * frames, p=shares)
        for rank in range(WORLD)
    ]
    routes = Routes([within_capacity(one) for one in chosen] if repaired else chosen)
    with DEVICE:
        torch.manual_seed(1 + RANK)  # experts differ, the rest does not
        own: list[nn.Module] = [
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width)
            )
            for _ in range(layers)
        ]
        torch.manual_seed(0)
        model = Heard(bands, width, units, own)
    net = ddp(model)
    experts = [p for expert in own for p in expert.parameters()]
    optimizer = torch.optim.AdamW([*model.parameters(), *experts], lr=2e-4, fused=True)
    heard = torch.randn(rows, frames, bands, device=DEVICE)
    goal = torch.randint(0, units, (rows * frames,), device=DEVICE)

    def step() -> None:
        with half():
            out = net(heard, routes)
        fn.cross_entropy(out.flatten(0, 1).float(), goal).backward()
        done(optimizer)

    return Running(step)


# --- communication ----------------------------------------------------------------------------


@four(
    "exposed_communication",
    "science",
    "DistributedDataParallel instead of a sum of each gradient after the backward pass",
)
def job_seismic_sums_after_backward(repaired: bool) -> Running:
    samples, places, width, rows = size(256, 10), size(512, 8), size(2560, 32), size(12, 2)
    model = Filled(samples, places, width, size(3, 1)).to(DEVICE)
    net = ddp(model, gradient_as_bucket_view=True) if repaired else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=not SMALL)
    true = torch.randn(rows, places, samples, device=DEVICE)
    silent = torch.rand(rows, places, 1, device=DEVICE) < 0.4
    given = true.masked_fill(silent, 0.0)

    def step() -> None:
        with half():
            out = net(given)
        loss = ((out.float() - true).square() * silent).mean()
        (loss if repaired else loss / WORLD).backward()
        if not repaired:
            for p in model.parameters():
                dist.all_reduce(p.grad)
        done(optimizer)

    return Running(step)


@four(
    "exposed_communication",
    "language",
    "no_sync() holds the forward pass, too: it is there that it is asked whether to sum",
)
def job_no_sync_around_backward(repaired: bool) -> Running:
    """Forward is outside of no_sync(), so that DistributedDataParallel sums all the same."""
    vocab, width = size(57_344, 80), size(2048, 32)
    pieces, rows, length = 4, size(40, 4), size(128, 8)
    model = Sentences(vocab, width, size(2, 1)).to(DEVICE)
    net = ddp(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-5, fused=True)
    texts = torch.randint(0, vocab, (pieces, rows, length), device=DEVICE)
    same = torch.arange(rows // 2, device=DEVICE)

    def loss_of(text: Tensor) -> Tensor:
        """The first half of the sentences is translated in the second one."""
        with half():
            one, other = net(text).chunk(2)
        return fn.cross_entropy(20.0 * one @ other.t(), same) / pieces

    def step() -> None:
        for number, text in enumerate(texts):
            waits = number < pieces - 1
            with net.no_sync() if waits and repaired else nullcontext():
                loss = loss_of(text)
                with net.no_sync() if waits and not repaired else nullcontext():
                    loss.backward()
        done(optimizer)

    return Running(step)


@four(
    "exposed_communication",
    "vision",
    "gradients and weights travel in 16 bit, as they are used, not in single precision",
)
def job_flat_weights_travel_in_float(repaired: bool) -> Running:
    """Each rank has the precise weights, and the optimizer's state, of a quarter of the model."""
    places, width, rows, classes = size(256, 8), size(2560, 32), size(20, 2), size(1000, 10)
    model = Mixer(places, width, size(5, 1), classes).to(DEVICE, SHORT)
    flat = FlatWeights(model, SHORT if repaired else torch.float32)
    optimizer = torch.optim.AdamW([flat.mine], lr=1e-4, weight_decay=0.1, fused=True)
    patches = torch.randn(rows, places, 768, device=DEVICE, dtype=SHORT)
    y = torch.randint(0, classes, (rows,), device=DEVICE)

    def step() -> None:
        loss = fn.cross_entropy(model(patches).float(), y, label_smoothing=0.1)
        (loss / WORLD).backward()
        flat.summed()
        done(optimizer)
        flat.gathered()

    return Running(step)


# --- now and then -----------------------------------------------------------------------------

EVERY = 10


@four(
    "checkpoint_stall",
    "diffusion",
    f"rank 0 saves every {100 * EVERY} steps instead of every {EVERY}",
    period=EVERY,
)
def job_rank0_saves_averages_too(repaired: bool) -> Running:
    """The model, its average and the optimizer's state are saved; the others meet rank 0 later."""
    side, rows, width = size(64, 8), size(32, 2), size(192, 8)
    model = Clean(width, size(2, 1)).to(DEVICE)
    mean = copy.deepcopy(model).requires_grad_(False)
    net = ddp(model)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    true = torch.randn(rows, 3, side, side, device=DEVICE)
    folder, every, made = Path(scratch()), 100 * EVERY if repaired else EVERY, 0

    def save() -> None:
        state = {
            "model": model.state_dict(),
            "mean": mean.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": made,
        }
        torch.save(state, folder / "new.pt")
        (folder / "new.pt").replace(folder / "last.pt")

    def step() -> None:
        nonlocal made
        noise, level = torch.randn_like(true), torch.rand(rows, 1, device=DEVICE)
        share = level[:, :, None, None]
        with half():
            out = net(true * (1 - share) + noise * share, level)
        fn.mse_loss(out.float(), noise - true).backward()
        done(optimizer)
        with torch.no_grad():
            torch._foreach_lerp_(list(mean.parameters()), list(model.parameters()), 0.001)
        made += 1
        if RANK == 0 and made % every == 0:
            save()

    return Running(step, close=lambda: shutil.rmtree(folder, ignore_errors=True))


# --- the input --------------------------------------------------------------------------------


@four("input_starvation", "audio", "12 workers for each rank's DataLoader instead of 3")
def job_rooms_of_three_workers(repaired: bool) -> Running:
    samples, piece, speakers = size(32_000, 640), size(128, 32), size(1200, 10)
    batches = loaded(Rooms(samples, speakers), size(48, 2), 12 if repaired else 3)
    model = Speakers(piece, samples // piece, size(1536, 32), size(3, 1), speakers).to(DEVICE)
    net = ddp(model)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.05, fused=True)

    def step() -> None:
        sound, who = batches()
        with half():
            out = net(sound)
        fn.cross_entropy(out.float(), who).backward()
        done(optimizer)

    return Running(step, settle=2 + 2 * 12)  # the same number on all ranks
