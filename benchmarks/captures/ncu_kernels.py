"""Kernels with a known limiter, of PyTorch, Triton and CUDA C, to be profiled by Nsight Compute.

usage: ncu_kernels.py GROUP [--after] [--trace PATH] [--cases NAME,...]

GROUP is ``torch``, ``triton``, ``cuda`` or ``small`` (few kernels, for small reports). Every case
runs once unprofiled (compilation, library set-up), then once between cudaProfilerStart and Stop,
so that ``ncu --profile-from-start off`` sees each kernel once. ``--after`` runs the repaired
variant of the kernels that have one, under the same names; ``--trace`` writes a torch.profiler
trace of the same calls instead. Prints a line for each case that could not run.
"""

# ruff: noqa: N803 - constants of Triton kernels are written in capitals
from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from torch.nn import functional as fn
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    import triton
    import triton.language as tl
except ImportError:  # the other groups need none
    triton = None

D = "cuda"
Case = Callable[[], object]


def torch_cases() -> dict[str, Case]:
    """Operators of PyTorch as training uses them."""
    bf16 = torch.bfloat16
    a, b = (torch.randn(4096, 4096, device=D, dtype=bf16) for _ in range(2))
    c, d = (torch.randn(2048, 2048, device=D) for _ in range(2))
    row = torch.randn(1, 4096, device=D, dtype=bf16)
    q, k, v = (torch.randn(8, 16, 2048, 64, device=D, dtype=bf16) for _ in range(3))
    x = torch.randn(8192, 2048, device=D, requires_grad=True)
    weight = torch.ones(2048, device=D)
    y = torch.randn(64 << 20, device=D)
    logits = torch.randn(2048, 32000, device=D, requires_grad=True)
    targets = torch.randint(32000, (2048,), device=D)
    table = torch.nn.Embedding(50000, 512, device=D)
    tokens = torch.randint(50000, (16, 1024), device=D)
    hot = torch.randint(4, (1 << 18,), device=D)
    sums = torch.zeros(4, 16, device=D)
    values = torch.randn(1 << 18, 16, device=D)
    image = torch.randn(64, 64, 56, 56, device=D, dtype=bf16).to(memory_format=torch.channels_last)
    conv = torch.nn.Conv2d(64, 128, 3, padding=1, device=D, dtype=bf16).to(
        memory_format=torch.channels_last
    )
    parameters = [torch.nn.Parameter(torch.randn(1024, 1024, device=D)) for _ in range(8)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    adam = torch.optim.Adam(parameters, foreach=True)
    fused = torch.optim.Adam(parameters, fused=True)
    few = torch.randn(16, device=D)
    order = torch.randint(1 << 24, (1 << 22,), device=D)

    def tf32() -> object:
        torch.backends.cuda.matmul.allow_tf32 = True
        out = c @ d
        torch.backends.cuda.matmul.allow_tf32 = False
        return out

    def attention(backend: SDPBackend, n: int) -> object:
        with sdpa_kernel(backend):
            return fn.scaled_dot_product_attention(q[:n], k[:n], v[:n], is_causal=True)

    def norm() -> object:
        return fn.layer_norm(x, (2048,), weight).sum().backward()

    def embed() -> object:
        table.weight.grad = None
        return table(tokens).sum().backward()

    return {
        "mm_bf16": lambda: a @ b,
        "mm_fp32": lambda: c @ d,
        "mm_tf32": tf32,
        "mv_bf16": lambda: row @ b,
        "mm_fp64": lambda: c.double() @ d.double(),
        "flash": lambda: attention(SDPBackend.FLASH_ATTENTION, 8),
        "efficient": lambda: attention(SDPBackend.EFFICIENT_ATTENTION, 8),
        "math_attention": lambda: attention(SDPBackend.MATH, 1),
        "layer_norm": norm,
        "chain": lambda: torch.tanh(fn.gelu(y * 2 + 1)),
        "softmax": lambda: torch.softmax(logits, -1),
        "cross_entropy": lambda: fn.cross_entropy(logits, targets).backward(),
        "embedding": embed,
        "index_add": lambda: sums.index_add_(0, hot, values),
        "conv": lambda: conv(image),
        "adam_foreach": adam.step,
        "adam_fused": fused.step,
        "tiny": lambda: few * 2,
        "transpose": lambda: a.t().contiguous(),
        "gather": lambda: y[order],
        "reduce": y.sum,
        "cumsum": lambda: torch.cumsum(y[: 1 << 22], 0),
        "sort": lambda: torch.sort(y[: 1 << 20]),
    }


if triton is not None:

    @triton.jit
    def fused_softmax(x, y, n, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        at = tl.arange(0, BLOCK)
        v = tl.load(x + row * n + at, mask=at < n, other=-float("inf"))
        e = tl.exp(v - tl.max(v, 0))
        tl.store(y + row * n + at, e / tl.sum(e, 0), mask=at < n)

    @triton.jit
    def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
        pm, pn = tl.program_id(0), tl.program_id(1)
        rm, rn = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN)
        rk = tl.arange(0, BK)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for start in range(0, k, BK):
            p = tl.load(a + rm[:, None] * k + (start + rk)[None, :])
            q = tl.load(b + (start + rk)[:, None] * n + rn[None, :])
            total = tl.dot(p, q, total)
        tl.store(c + rm[:, None] * n + rn[None, :], total.to(tl.bfloat16))

    @triton.jit
    def copy(x, y, n, stride, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        # a permutation of the elements: neighbours lie `stride` apart
        where = (at % (n // stride)) * stride + at // (n // stride)
        tl.store(y + where, tl.load(x + where))

    @triton.jit
    def many_registers(x, y, rounds, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x + at)
        w = v * 0.5
        for _ in range(rounds):
            v = v * w + 0.25
            w = w * 0.999 + v * tl.sum(v, 0) * 1e-9
        tl.store(y + at, v + w)


def triton_cases(after: bool) -> dict[str, Case]:
    """Kernels of Triton: good ones, and ones with a planted fault that ``after`` repairs."""
    x = torch.randn(8192, 1000, device=D)
    y = torch.empty_like(x)
    m = 2048
    a, b, c = (torch.randn(m, m, device=D, dtype=torch.bfloat16) for _ in range(3))
    flat, out = (torch.randn(1 << 24, device=D) for _ in range(2))

    def spilling() -> object:
        # 4,096 elements in one warp are 128 values of 2 arrays a thread; 32 registers cannot hold
        options = {"num_warps": 8} if after else {"num_warps": 1, "maxnreg": 32}
        return many_registers[(4096,)](flat, out, 8, BLOCK=4096, **options)

    return {
        "softmax": lambda: fused_softmax[(8192,)](x, y, 1000, BLOCK=1024),
        "matmul": lambda: matmul[(m // 128, m // 128)](
            a, b, c, m, m, m, BM=128, BN=128, BK=64, num_warps=8, num_stages=3
        ),
        "small_tiles": lambda: matmul[(m // 32, m // 32)](
            a, b, c, m, m, m, BM=32, BN=32, BK=16, num_warps=1, num_stages=1
        ),
        "few_blocks": lambda: matmul[(2, 2)](
            a, b, c, 256, 256, 2048, BM=128, BN=128, BK=64, num_warps=8, num_stages=3
        ),
        "copy": lambda: copy[((1 << 24) // 1024,)](
            flat, out, 1 << 24, 1 if after else 64, BLOCK=1024
        ),
        "spilling": spilling,
    }


CUDA = {
    "low_occupancy_sum": """
        extern "C" __global__ void low_occupancy_sum(const float* x, float* y, int n) {
            __shared__ float room[ROOM];
            int t = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
            float total = 0;
            room[threadIdx.x] = 0;
            #pragma unroll 1
            for (int i = t; i < n; i += all) total += __sinf(total) + x[i];
            room[threadIdx.x] += total;
            y[t] = room[threadIdx.x];
        }""",
    "histogram": """
        extern "C" __global__ void histogram(const float* x, float* y, int n) {
            __shared__ int bins[64];
            if (threadIdx.x < 64) bins[threadIdx.x] = 0;
            __syncthreads();
            int all = gridDim.x * blockDim.x;
            for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += all) {
                int bin = HOT ? 0 : (__float_as_int(x[i]) >> 8) & 63;
                HOT ? atomicAdd((int*)y + bin, 1) : atomicAdd(&bins[bin], 1);
            }
            __syncthreads();
            if (!HOT && threadIdx.x < 64) atomicAdd((int*)y + threadIdx.x, bins[threadIdx.x]);
        }""",
    "transpose_shared": """
        extern "C" __global__ void transpose_shared(const float* x, float* y, int n) {
            __shared__ float tile[32][32 + PAD];
            int w = 4096, bx = blockIdx.x % 128 * 32, by = blockIdx.x / 128 * 32;
            int tx = threadIdx.x % 32, ty = threadIdx.x / 32;
            for (int r = 0; r < 32; r += 8) tile[ty + r][tx] = x[(by + ty + r) * w + bx + tx];
            __syncthreads();
            for (int r = 0; r < 32; r += 8) y[(bx + ty + r) * w + by + tx] = tile[tx][ty + r];
        }""",
    "fp64_chain": """
        extern "C" __global__ void fp64_chain(const float* x, float* y, int n) {
            int t = blockIdx.x * blockDim.x + threadIdx.x;
            double a = x[t], b = a + 1, c = a + 2, d = a + 3;
            for (int i = 0; i < 2000; i++) {
                a = a * 0.999 + 0.1; b = b * 0.999 + 0.1; c = c * 0.999 + 0.1; d = d * 0.999 + 0.1;
            }
            y[t] = a + b + c + d;
        }""",
    "special_functions": """
        extern "C" __global__ void special_functions(const float* x, float* y, int n) {
            int t = blockIdx.x * blockDim.x + threadIdx.x;
            float a = x[t], b = a + 1, c = a + 2, d = a + 3;
            for (int i = 0; i < 500; i++) {
                a = __sinf(a); b = __sinf(b); c = __sinf(c); d = __sinf(d);
            }
            y[t] = a + b + c + d;
        }""",
    "dependent_chain": """
        extern "C" __global__ void dependent_chain(const float* x, float* y, int n) {
            int t = blockIdx.x * blockDim.x + threadIdx.x;
            float a = x[t];
            #pragma unroll 16
            for (int i = 0; i < 20000; i++) a = a * 0.999f + 0.1f;
            y[t] = a;
        }""",
    "diverging_loops": """
        extern "C" __global__ void diverging_loops(const float* x, float* y, int n) {
            int t = blockIdx.x * blockDim.x + threadIdx.x;
            float a = x[t];
            for (int i = 0; i < (t % 32 == 0 ? 4096 : 32); i++) a = a * 0.999f + 0.1f;
            y[t] = a;
        }""",
    "l2_resident": """
        extern "C" __global__ void l2_resident(const float* x, float* y, int n) {
            int t = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
            float4 s = {0, 0, 0, 0};
            const float4* v = (const float4*)x;
            for (int r = 0; r < 64; r++)
                for (int i = t; i < (1 << 20); i += all) {
                    float4 p = __ldcg(v + i);
                    s.x += p.x; s.y += p.y; s.z += p.z; s.w += p.w;
                }
            y[t] = s.x + s.y + s.z + s.w;
        }""",
}  # fmt: skip
"""Kernels in CUDA C, each of (const float* x, float* y, int n)."""

SHAPES = {
    "low_occupancy_sum": (1320, 32),
    "histogram": (1056, 256),
    "transpose_shared": (128 * 128, 256),
    "fp64_chain": (1056, 256),
    "special_functions": (2112, 256),
    "dependent_chain": (132, 128),
    "diverging_loops": (2112, 256),
    "l2_resident": (1056, 256),
}
"""Kernel -> (blocks, threads of a block)."""


def cuda_cases(after: bool) -> dict[str, Case]:
    """Kernels of CUDA C through NVRTC."""
    x, y = (torch.rand(1 << 24, device=D) for _ in range(2))
    fixed = {"ROOM": "32" if after else "12000", "HOT": str(int(not after)), "PAD": str(int(after))}

    def case(name: str) -> Case:
        source = CUDA[name]
        for key, value in fixed.items():
            source = source.replace(key, value)
        kernel = torch.cuda._compile_kernel(source, name)
        blocks, threads = SHAPES[name]
        return lambda: kernel((blocks, 1, 1), (threads, 1, 1), (x, y, x.numel()))

    return {name: case(name) for name in CUDA}


def small_cases(after: bool) -> dict[str, Case]:
    """Few kernels with little code, for a small report."""
    cases = triton_cases(after)
    return {name: cases[name] for name in ("softmax", "copy", "spilling")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("group", choices=["torch", "triton", "cuda", "small"])
    parser.add_argument("--after", action="store_true")
    parser.add_argument("--trace", default="")
    parser.add_argument("--cases", default="", help="only these, as in flash,softmax")
    given = parser.parse_args()
    torch.manual_seed(0)
    makers = {"triton": triton_cases, "cuda": cuda_cases, "small": small_cases}
    try:
        cases = torch_cases() if given.group == "torch" else makers[given.group](given.after)
    except (AttributeError, TypeError, RuntimeError, NameError) as error:
        print(f"{given.group}: {error}", file=sys.stderr)
        return 1
    fit: dict[str, Case] = {}
    wanted = given.cases.split(",") if given.cases else list(cases)
    for name, case in cases.items():
        if name not in wanted:
            continue
        try:
            case()
            torch.cuda.synchronize()
            fit[name] = case
        except Exception as error:  # another version of a library: go on with the others
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)

    def all_of() -> None:
        for name, case in fit.items():
            with torch.autograd.profiler.record_function(name):
                torch.cuda.nvtx.range_push(name)
                case()
                torch.cuda.nvtx.range_pop()
        torch.cuda.synchronize()

    if given.trace:
        from torch.profiler import ProfilerActivity, profile

        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True
        ) as p:
            all_of()
        p.export_chrome_trace(given.trace)
        return 0
    torch.cuda.profiler.start()
    all_of()
    torch.cuda.profiler.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
