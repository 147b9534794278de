"""Training jobs of the ninth set, on four GPUs and on two."""

from __future__ import annotations

import shutil
from collections import deque
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from job_programs import DEVICE, LAST, RANK, WORLD, Exchange, ddp, half
from models import done, size
from ninth_job_models import (
    SHORT,
    AllRows,
    Captions,
    Crossed,
    Experts,
    Lars,
    LongText,
    OverRanks,
    Painted,
    Restored,
    Seen,
    Shards,
    Slices,
    Spans,
    Stage,
    channels_of,
    dealt,
    passed,
    turn_of,
)
from program import SMALL, Program, Running
from single_programs import entered, loaded, scratch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as fn
from torch.nn.parallel import DistributedDataParallel

PROGRAMS: list[Program] = []
WRITTEN_AFTER = "version 0.1 with 155 pairs, opened"
four = partial(entered(PROGRAMS), marks="steps", ranks=4)  # type: ignore[call-arg]
two = partial(entered(PROGRAMS), marks="steps", ranks=2)  # type: ignore[call-arg]


@four("pipeline_bubble", "language", "8 micro-batches in each step instead of 4")
def job_four_stages_four_pieces(repaired: bool) -> Running:
    """One forward, one backward over four stages; the output stands for a layer."""
    micro, rows, length = 8 if repaired else 4, size(16, 8), size(1024, 16)
    width, inner, vocab = size(2048, 64), size(5632, 96), size(16_000, 100)
    layers = size(3, 2) - (RANK == LAST)
    stage = Stage(layers, width, inner, vocab).to(DEVICE, SHORT)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    pieces = torch.randint(0, vocab, (micro, rows // micro, length + 1), device=DEVICE)
    turn = turn_of(torch.arange(length, device=DEVICE), channels_of(width))
    before, after = RANK - 1, RANK + 1
    ahead = min(LAST - RANK, micro)
    kept: deque[tuple[Tensor | None, Tensor]] = deque()
    dist.barrier()

    def room() -> Tensor:
        return torch.empty(rows // micro, length, width, device=DEVICE, dtype=SHORT)

    def forth(number: int, x: Tensor | None) -> Tensor:
        text = pieces[number]
        out = stage(text[:, :-1] if x is None else x.requires_grad_(), turn)
        if RANK == LAST:
            out = fn.cross_entropy(out.flatten(0, 1).float(), text[:, 1:].flatten()) / micro
        kept.append((x, out))
        return out.detach()

    def back(grad: Tensor | None) -> Tensor | None:
        x, out = kept.popleft()
        out.backward(grad)
        return None if x is None else x.grad

    def step() -> None:
        for number in range(ahead):
            out = forth(number, passed(None, after, room(), before))
            passed(out, after, None, after)
        x = passed(None, after, room(), before)
        for number in range(ahead, micro):
            out = forth(number, x)
            grad = back(passed(out, after, room(), after))
            more = number < micro - 1
            x = passed(grad, before, room() if more else None, before)
        for _ in range(ahead):
            grad = back(passed(None, after, room(), after))
            passed(grad, before, None, before)
        done(optimizer)

    return Running(step)


@four(
    "exposed_communication",
    "vision",
    "a half of the batch is summed while the other computes; backward, beside weights' gradients",
)
def job_tensor_parallel_sums_alone(repaired: bool) -> Running:
    width, layers, side, rows = size(2048, 64 * WORLD), size(10, 2), size(256, 32), size(32, 2)
    classes, places = size(1000, 10), (side // 16) ** 2
    net = Slices(width, layers, classes, places, early=repaired).to(DEVICE, SHORT)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    x = torch.randn(rows, 3, side, side, device=DEVICE, dtype=SHORT)
    y = torch.randint(0, classes, (rows,), device=DEVICE)

    def step() -> None:
        fn.cross_entropy(net(x).float(), y, label_smoothing=0.1).backward()
        done(optimizer)

    return Running(step)


@four(
    "load_imbalance",
    "language",
    "each rank has a chunk from the begin of the text and one from its end, not two in a row",
)
def job_context_in_a_row(repaired: bool) -> Running:
    width, long, chunks = size(1024, 64), size(2048, 8), 2 * WORLD
    row = [[2 * rank, 2 * rank + 1] for rank in range(WORLD)]
    ends = [[rank, chunks - 1 - rank] for rank in range(WORLD)]
    held = ends if repaired else row
    net = ddp(LongText(width, size(8, 2), OverRanks(held)).to(DEVICE))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-4, betas=(0.9, 0.95), fused=True)
    text = torch.randint(0, 256, (chunks * long + 1,), device=DEVICE)
    first = torch.tensor(held[RANK], device=DEVICE)[:, None] * long
    places = first + torch.arange(long, device=DEVICE)
    x, y = text[places], text[places + 1].flatten()
    turn = turn_of(places, channels_of(width))

    def step() -> None:
        with half():
            out = net(x, turn)
        fn.cross_entropy(out.flatten(0, 1).float(), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        done(optimizer)

    return Running(step)


PRECISE = {LAST: True}
"""What the nodes' settings say; gradients were once compared on the last one."""


@four(
    "low_precision_unused",
    "vision",
    "the last rank multiplies matrices in TF32, as the others do, not in single precision",
)
def job_contrast_one_rank_precise(repaired: bool) -> Running:
    rows, side, length = size(192, 2), size(128, 32), size(64, 8)
    width, vocab, out = size(512, 64), size(16_000, 50), size(512, 16)
    seen = Seen(size(128, 8), (2, 2, 2), out).to(memory_format=torch.channels_last)
    net = ddp(Captions(seen, width, size(4, 1), vocab, out).to(DEVICE))
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-4, weight_decay=0.2, fused=True)
    x = torch.randn(rows, 3, side, side, device=DEVICE)
    x = x.contiguous(memory_format=torch.channels_last)
    text = torch.randint(0, vocab, (rows, length), device=DEVICE)
    cos, sin = turn_of(torch.arange(length, device=DEVICE), channels_of(width))
    turn = cos.float(), sin.float()
    same = torch.arange(rows, device=DEVICE) + RANK * rows
    precise = PRECISE.get(RANK, False) and not repaired

    def enter() -> None:
        torch.backends.cuda.matmul.allow_tf32 = not precise

    def leave() -> None:
        torch.backends.cuda.matmul.allow_tf32 = True

    def step() -> None:
        pictures, said, scale = net(x, text, turn)
        every = AllRows.apply(torch.cat([pictures, said], 1))
        pictures_of_all, said_of_all = every.chunk(2, 1)
        there = fn.cross_entropy(scale * pictures @ said_of_all.t(), same)
        back = fn.cross_entropy(scale * said @ pictures_of_all.t(), same)
        ((there + back) / 2).backward()
        done(optimizer)

    return Running(step, enter, leave)


@two(
    "exposed_communication",
    "language",
    "set_requires_gradient_sync(False) for all micro-batches but the last",
)
def job_shards_sum_each_piece(repaired: bool) -> Running:
    width, vocab, rows, length = size(3072, 48), size(8192, 50), 1, size(1024, 16)
    model = Shards(width, size(3, 2), vocab).to(DEVICE)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not SMALL)
    pieces = torch.randint(0, vocab, (size(6, 3), rows, length + 1), device=DEVICE)
    turn = turn_of(torch.arange(length, device=DEVICE), channels_of(width))
    last = len(pieces) - 1

    def step() -> None:
        for number, text in enumerate(pieces):
            if repaired:
                model.set_requires_gradient_sync(number == last)
            out = model(text[:, :-1], turn)
            loss = fn.cross_entropy(out.flatten(0, 1).float(), text[:, 1:].flatten())
            (loss / len(pieces)).backward()
        done(optimizer)

    return Running(step)


@two(
    "exposed_communication",
    "moe",
    "the expert for all tokens computes while the others' tokens travel",
)
def job_experts_wait_for_tokens(repaired: bool) -> Running:
    width, vocab, rows, length = size(1024, 64), size(8192, 50), size(16, 2), size(512, 32)
    group = dist.new_group()
    model = Experts(width, size(4, 2), vocab, group, early=repaired).to(DEVICE)
    own = [name for name, _ in model.named_parameters() if name.endswith(("first", "second"))]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
    net = ddp(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    true = torch.randint(1, vocab, (rows, length), device=DEVICE)
    hidden = torch.rand(rows, length, device=DEVICE) < 0.2
    seen, goal = true.masked_fill(hidden, 0), true.masked_fill(~hidden, -100).flatten()

    def step() -> None:
        with half():
            out = net(seen)
        fn.cross_entropy(out.flatten(0, 1).float(), goal).backward()
        done(optimizer)

    return Running(step)


@two(
    "load_imbalance",
    "recommender",
    "tables are dealt out by how many ids are looked up in them, not by their number",
)
def job_tables_by_number(repaired: bool) -> Running:
    ids_of = [size(56, 6)] * 6 + [1] * 10  # what users did before comes first in the schema
    each = len(ids_of) // WORLD
    by_number = [list(range(each * rank, each * (rank + 1))) for rank in range(WORLD)]
    tables = dealt(ids_of, each) if repaired else by_number
    width, rows, entries = size(128, 8), size(24_576, 4), size(100_000, 50)
    net = ddp(Crossed(len(ids_of), width, 13, 3, size(2048, 16)).to(DEVICE))
    mine = [nn.Parameter(0.01 * torch.randn(entries, width, device=DEVICE)) for _ in range(each)]
    optimizer = torch.optim.Adam([*net.parameters(), *mine], lr=1e-3, fused=True)
    # ids of all ranks' samples; some are looked up far more often than others
    shapes = [(WORLD * rows, ids_of[table]) for table in tables[RANK]]
    ids = [(torch.rand(shape, device=DEVICE).pow(3) * entries).long() for shape in shapes]
    numbers = torch.rand(rows, 13, device=DEVICE)
    clicked = (torch.rand(rows, device=DEVICE) < 0.1).float()
    sent = [rows * each] * WORLD

    def step() -> None:
        pairs = zip(ids, mine, strict=True)
        found = [fn.embedding_bag(one, table, mode="sum") for one, table in pairs]
        flat = torch.stack(found, 1).flatten(0, 1)
        pooled = Exchange.apply(flat, sent, sent).view(WORLD, rows, each * width)
        with half():
            odds = net(numbers, pooled.transpose(0, 1).flatten(1))
        fn.binary_cross_entropy_with_logits(odds.float(), clicked).backward()
        done(optimizer)

    return Running(step)


@two(
    "host_sync",
    "vision",
    "where a norm is 0 is decided on the device, and no norm is read",
    others=("unfused_optimizer",),
)
def job_sharded_lars_reads_norms(repaired: bool) -> Running:
    """Each rank updates every second parameter, and sends what it updated; as in ZeRO."""
    side, rows, classes = size(112, 32), size(320, 2), size(1000, 10)
    model = Seen(size(128, 8), (size(6, 1), size(6, 1), size(4, 1)), classes)
    model = model.to(DEVICE, memory_format=torch.channels_last)
    net = ddp(model)
    parts = [list(model.parameters())[rank::WORLD] for rank in range(WORLD)]
    optimizer = Lars(parts[RANK], reads=not repaired)
    x = torch.randn(rows, 3, side, side, device=DEVICE)
    x = x.contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, classes, (rows,), device=DEVICE)

    @torch.no_grad()
    def shared() -> None:
        for rank, part in enumerate(parts):
            flat = torch.cat([p.flatten() for p in part])
            dist.broadcast(flat, rank)
            pieces = flat.split([p.numel() for p in part])
            torch._foreach_copy_(part, [v.view_as(p) for v, p in zip(pieces, part, strict=True)])

    def step() -> None:
        with half():
            loss = fn.cross_entropy(net(x).float(), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        shared()
        net.zero_grad(set_to_none=True)

    return Running(step)


EVERY = 12


@two(
    "checkpoint_stall",
    "vision",
    f"the whole model is saved every {100 * EVERY} steps instead of every {EVERY}",
    period=EVERY,
)
def job_painted_whole_model_saved(repaired: bool) -> Running:
    side, rows, width, narrow = size(224, 64), size(224, 2), size(768, 64), size(512, 64)
    model = Painted(width, size(5, 1), narrow, size(3, 1), side).to(DEVICE)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in (*model.layers, *model.painting):
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not SMALL)
    patches = torch.randn(rows, model.cut, 768, device=DEVICE)
    places = torch.arange(model.cut, device=DEVICE)
    turns = [turn_of(places, channels_of(w)) for w in (width, narrow)]
    folder, every, made = Path(scratch()), 100 * EVERY if repaired else EVERY, 0

    def save() -> None:
        whole = {}
        for name, part in model.state_dict().items():
            tensor = part.full_tensor()  # every rank takes part
            if RANK == 0:
                whole[name] = tensor.cpu()
        if RANK == 0:
            torch.save(whole, folder / "new.pt")
            (folder / "new.pt").replace(folder / "model.pt")

    def step() -> None:
        nonlocal made
        order = torch.rand(rows, model.cut, device=DEVICE).argsort(1)
        out = model(patches, order, turns)
        hidden = order[:, model.seen :, None].expand(-1, -1, patches.shape[-1])
        fn.mse_loss(out.float(), patches.gather(1, hidden)).backward()
        done(optimizer)
        made += 1
        if made % every == 0:
            save()

    return Running(step, close=lambda: shutil.rmtree(folder, ignore_errors=True))


@two(
    "input_starvation",
    "language",
    "texts are cut by 8 workers of each rank's DataLoader, not by its training thread",
)
def job_spans_cut_in_the_loop(repaired: bool) -> Running:
    workers, vocab = 8 if repaired else 0, size(16_000, 500)
    rows, source, target = size(64, 2), size(480, 48), size(128, 16)
    batches = loaded(Spans(vocab, source, target), rows, workers)
    net = ddp(Restored(size(512, 64), size(6, 1), size(4, 1), vocab, source).to(DEVICE))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        text, goal = batches()
        with half():
            out = net(text, goal[:, :-1])
        fn.cross_entropy(
            out.flatten(0, 1).float(), goal[:, 1:].flatten(), ignore_index=0
        ).backward()
        done(optimizer)

    return Running(step, settle=2 + 2 * 8)  # the same number on all ranks
