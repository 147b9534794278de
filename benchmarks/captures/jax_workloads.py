"""Small JAX training runs, each with one planted bottleneck, to make labelled captures on a GPU.

usage: jax_workloads.py SCENARIO [--capture none|nsys] [--steps N]

``--capture nsys`` calls ``cuProfilerStart`` and ``cuProfilerStop`` around the measured steps, for
whatever tool watches them. Prints one JSON line with the measured time a step.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

TRUTH = {
    "jax_healthy": "gpu_bound_healthy",
    "jax_eager": "launch_bound",
    "jax_host_compute": "host_compute",
    "jax_input": "input_starvation",
    "jax_upload": "blocking_copy",
}
"""Scenario -> the cause that was planted."""

LAYERS, WIDTH, HEADS, VOCAB = 10, 1536, 12, 16384


def parameters(width: int, layers: int) -> dict[str, list[jax.Array] | jax.Array]:
    """A decoder-only language model's weights."""
    keys = iter(jax.random.split(jax.random.key(0), 4 * layers + 2))
    make = partial(jax.random.normal, dtype=jnp.float32)
    return {
        "embed": make(next(keys), (VOCAB, width)) * 0.02,
        "qkv": [make(next(keys), (width, 3 * width)) * 0.02 for _ in range(layers)],
        "out": [make(next(keys), (width, width)) * 0.02 for _ in range(layers)],
        "up": [make(next(keys), (width, 4 * width)) * 0.02 for _ in range(layers)],
        "down": [make(next(keys), (4 * width, width)) * 0.02 for _ in range(layers)],
    }


def norm(x: jax.Array) -> jax.Array:
    """Layer norm without weights."""
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def loss_of(weights: dict, tokens: jax.Array) -> jax.Array:
    """Next-token cross entropy in bfloat16."""
    w = jax.tree.map(lambda one: one.astype(jnp.bfloat16), weights)
    x = w["embed"][tokens[:, :-1]]
    b, t, d = x.shape
    mask = jnp.tril(jnp.ones((t, t), bool))
    for qkv, out, up, down in zip(w["qkv"], w["out"], w["up"], w["down"], strict=True):
        q, k, v = jnp.split((norm(x) @ qkv).reshape(b, t, 3 * HEADS, d // HEADS), 3, axis=2)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(d // HEADS)
        probabilities = jax.nn.softmax(jnp.where(mask, scores, -1e9).astype(jnp.float32))
        y = jnp.einsum("bhqk,bkhd->bqhd", probabilities.astype(x.dtype), v)
        x = x + y.reshape(b, t, d) @ out
        x = x + jax.nn.gelu(norm(x) @ up) @ down
    logits = (x @ w["embed"].T).astype(jnp.float32)
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1)
    return -picked.mean()


def update(weights: dict, momentum: dict, tokens: jax.Array) -> tuple[dict, dict, jax.Array]:
    """One step of SGD with momentum."""
    loss, slopes = jax.value_and_grad(loss_of)(weights, tokens)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, slopes)
    return jax.tree.map(lambda w, m: w - 1e-3 * m, weights, momentum), momentum, loss


def make_batch(scenario: str, rng: np.random.Generator, batch: int) -> np.ndarray:
    """Tokens of one batch; in ``jax_input`` with work a sample, as a tokenizer has."""
    tokens = rng.integers(0, VOCAB, (batch, 513), dtype=np.int32)
    if scenario == "jax_input":
        for row in tokens:
            words = [str(n) for n in row.tolist() * 12]
            row[:] = [int(word) for word in words][:513]
    return tokens


def main() -> None:
    """Train and print the time a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=sorted(TRUTH))
    parser.add_argument("--capture", default="none", choices=["none", "nsys"])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=6)
    given = parser.parse_args()
    scenario = given.scenario
    small = scenario == "jax_eager"
    batch = 4 if small else 12
    weights = parameters(96 if small else WIDTH, 4 if small else LAYERS)
    momentum = jax.tree.map(jnp.zeros_like, weights)
    step = update if small else jax.jit(update, donate_argnums=(0, 1))
    rng = np.random.default_rng(0)
    ready = [jnp.asarray(make_batch("", rng, batch)) for _ in range(4)]
    ballast = np.zeros(64 << 20, np.float32) if scenario == "jax_upload" else None

    def train(i: int) -> None:
        nonlocal weights, momentum
        if scenario == "jax_input":
            tokens = jnp.asarray(make_batch(scenario, rng, batch))
        else:
            tokens = ready[i % len(ready)]
        if ballast is not None:
            jax.device_put(ballast).block_until_ready()
        weights, momentum, loss = step(weights, momentum, tokens)
        if scenario in ("jax_host_compute", "jax_input"):
            float(loss)  # waits for the step
        if scenario == "jax_host_compute":
            table: dict[int, int] = {}
            for j in range(250_000):
                table[j % 977] = table.get(j % 977, 0) + j

    for i in range(given.warmup):
        train(i)
    jax.block_until_ready(weights)
    driver = ctypes.CDLL("libcuda.so.1") if given.capture == "nsys" else None
    if driver:
        driver.cuProfilerStart()
    begin = time.perf_counter()
    for i in range(given.steps):
        train(i)
    jax.block_until_ready(weights)
    seconds = time.perf_counter() - begin
    if driver:
        driver.cuProfilerStop()
    row = {"scenario": scenario, "truth": TRUTH[scenario], "capture": given.capture}
    print(json.dumps({**row, "ms_per_step": round(seconds / given.steps * 1e3, 3)}), flush=True)


if __name__ == "__main__":
    main()
