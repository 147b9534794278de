"""Kernel categories and arithmetic from kernel names. One place, so that all agree.

Rules are matched against distinct names only (a few hundred in a trace), never row by row. They
know the names of cuBLAS, cuDNN, CUTLASS, PyTorch, FlashAttention, FlashInfer, Triton, Inductor, XLA
and NCCL, and on AMD's GPUs those of Tensile and hipBLASLt (``Cijk_*``), Composable Kernel, AITER,
AOTriton and MIOpen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

from stepscope.activity import names as words
from stepscope.activity.communication import is_communication
from stepscope.trace.text import LONGEST_JUDGED

CATEGORIES: Final = {
    "matmul": "GEMMs",
    "attention": "fused attention",
    "convolution": "convolutions",
    "elementwise": "element by element, the shape stays",
    "copy": "copies, casts, transposes and concatenations by kernels",
    "reduction": "sums, means, norms, maxima",
    "softmax": "softmax and log-softmax",
    "normalisation": "layer, batch, group and RMS normalisation",
    "index": "embedding, gather, scatter, indexing",
    "dropout": "dropout",
    "optimizer": "fused or multi-tensor updates of parameters",
    "sort": "sorting, scans, top-k, compaction",
    "random": "random numbers",
    "loss": "loss functions",
    "recurrent": "recurrent cells",
    "pooling": "pooling and resampling",
    "communication": "data between GPUs",
    "compiled": "merged by a compiler (Inductor, Triton, XLA)",
    "graph": "a whole CUDA graph that the capture did not look into",
    "other": "not recognised",
}
"""Every category and what it holds."""

PRODUCTS: Final = ("matmul", "convolution", "attention")
"""Categories of the kernels that multiply matrices: they do nearly all of the arithmetic."""

MATHS: Final = {
    "fp64": "double precision",
    "fp32": "single precision on the CUDA cores, without tensor cores",
    "tf32": "single-precision operands on tensor cores (TF32)",
    "16bit": "FP16 or BF16 on tensor cores",
    "8bit": "FP8 or INT8 on tensor cores",
    "tensor": "tensor cores, operands not known",
}
"""Arithmetic of GEMMs, convolutions and attention, as far as the name tells."""

_WRAPPER = re.compile(
    r"elementwise_kernel(?!\w)|elementwise_kernel_(with_index|manual_unroll)"
    r"|_elementwise_kernel(_for_multi_outputs)?"
)
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::")


@dataclass(frozen=True)
class KernelClass:
    """What a kernel's name says.

    Attributes:
        category: key of ``CATEGORIES``.
        math: key of ``MATHS``; empty where it does not apply or the name does not tell.
        label: short name for people, with the operation of generic kernels:
            ``vectorized_elementwise_kernel [addcmul]``.
        operation: that operation; empty where the kernel is not generic.
        tensors: number of tensors a generic elementwise kernel reads and writes; 0 where unknown.
        element_bytes: bytes that it reads and writes for one element of its result, broadcasting
            left aside; 0 where the name does not tell.
        thread_elements: elements that each thread of it does; 0 where the name does not tell.
    """

    category: str
    math: str
    label: str
    operation: str
    tensors: int
    element_bytes: int
    thread_elements: int


def _rule(category: str, pattern: str) -> tuple[str, re.Pattern[str]]:
    return category, re.compile(pattern, re.IGNORECASE)


_RULES: Final = (
    # the first that matches counts: names of fused kernels hold the names of what they fuse
    _rule("compiled", r"\btriton_(poi|red|per|for|unk|spl|mix)_"),
    _rule(
        "attention",
        r"flash_?(fwd|bwd|attn|attention|mla)|flash::compute_attn|fmha|sdpa|[a-z_]attention|^attention"
        r"|attn_fwd|attn_bwd|bwd_kernel_(dk_dv|dq|fuse)|bwd_preprocess|memefficient|pytorchmemeff"
        r"|mha_(fwd|bwd)|compute_dot_do_o|convert_dq_to_16bits|dq_dk_dv|ring_attn|paged_?attn"
        r"|With(Paged|Ragged)?KVCacheKernel|MergeStates?Kernel|kernel_mha|\bxqa_|(?<![a-z])mmha"
        r"|(?<![a-z])mla_(fwd|dec|pfl|a16w16|a8w8|decode|prefill)|aiter\d*pa_"
        r"|_fwd(_grouped)?_kernel_stage\d",
    ),
    _rule(
        "recurrent",
        r"lstm_|gru_cell|rnn_(fwd|bwd|cell)|persist_?rnn|_lstm|elemwiserecurrent|lstm.*elementwise",
    ),
    _rule(
        "matmul",
        r"^(void )?cublas\w*::(gemv|gemm)|nvjet|triton_(tem(?!\w*conv)|mm|bmm)\w*|gemm_fusion"
        r"|triton_gemm|\bgemmk1|^(Custom_)?Cijk_",
    ),
    _rule("compiled", r"^triton_(?!tem)|\btriton_(?!tem)\w+_fused"),
    _rule(
        "compiled",
        r"^(loop|input|wrapped|transpose|copy|concatenate|scatter|gather|reduce|custom)?_?\w*fusion(_\d+)*$"
        r"|^input_\w*reduce|^wrapped_\w+|^loop_\w+",
    ),
    _rule(
        "copy",
        r"nchwtonhwc|nhwctonchw|nhwcaddpadding|paddingkernel|tensortransform|permute_?\w*kernel"
        r"|^batched_transpose_",
    ),
    _rule(
        "convolution",
        r"implicit_?(gemm|convolve)|convolution|conv(1|2|3)d|_conv_|conv_|fprop|dgrad|wgrad|winograd|scudnn|hcudnn"
        r"|im2col|col2im|im2d2col|col2im2d|depthwise|fft2d_[rc]2[rc]|xmma__5x_cudnn"
        r"|reducesplitk.*conv|conv.*reducesplitk|igemm_(fwd|bwd|wrw)|miopen\w*conv|sp3asmconv"
        r"|gridwise_conv|_wrw_|(?<![a-z])mloconv",
    ),
    _rule(
        "matmul",
        r"(?<!fb)gemm|gemv|(?<![a-z])wvsplitk|(?<![a-z])fmoe|fused_moe_kernel|marlin<|machete"
        r"|splitkreduce|(^|_)matmul|(^|_)s16816|cutlass::kernel|magma_|dot_kernel|cublas"
        r"|\bmm_kernel|tensorop_|_xmma_|reducesplitk",
    ),
    _rule(
        "normalisation",
        r"layer_?norm|batch_?norm|bn_(fw|bw)|rms_?norm|group_?norm|instance_?norm|gammabeta"
        r"|rowwisemoments|compute(backward)?fusedparams|computeinternalgradients|cudnn.*norm",
    ),
    _rule("softmax", r"softmax|soft_max"),
    _rule("dropout", r"dropout"),
    _rule("loss", r"nll_?loss|nllcriterion|cross_?entropy|mse_|smooth_l1|kl_div|bce|ctc_loss"),
    ("optimizer", words.OPTIMIZER_KERNEL),
    _rule("sort", r"sort|topk|top_k|cub::.*(scan|select|unique|histogram|partition)|scan_|nonzero"
                  r"|write_indices|kthvalue|median|bitonic|devicescan|deviceselect|devicecompact"
                  r"|cumsum|cumprod"),
    _rule(
        "index",
        r"(?<!rotary_)(?<!rope_)embedding|gather|scatter|index|indices|take_|(?<![a-z])put_"
        r"|compute_grad_weight|sum_and_scatter"
        r"|krn_partial|partial_segments|masked_?select|roll_cuda",
    ),
    _rule("random", r"distribution_|philox|random|curand|bernoulli|normal_kernel|uniform"),
    _rule("pooling", r"pool|upsample|interpolat|grid_sampl"),
    _rule("copy", r"catarray|copy_|transpose|memcpy|cast_kernel|cast_to_|triu_tril|store_?kv_?cache"
                  r"|reshape_and_cache|concat_and_cast"),
    _rule("reduction", r"reduce|reduction|norm_kernel|l2norm|argmax|sum_kernel|mean_kernel"),
    _rule(
        "elementwise",
        r"elementwise|pointwise|fill|memset|gelu|silu|relu|swiglu|rotary|rope|glu",
    ),
)  # fmt: skip

_OF_OPERATION: Final = (
    # generic kernels of PyTorch: the wrapper says nothing, the function inside does
    _rule("copy", r"copy|to_dtype|cast"),
    _rule("dropout", r"dropout"),
    _rule("random", r"distribution|bernoulli|normal|uniform|random|exponential"),
    _rule("index", r"^index|gpu_index|gather|scatter|take|put$|put_"),
    _rule("normalisation", r"batch_?norm|layer_?norm|group_?norm"),
)

_MATH: Final = (
    ("fp64", re.compile(r"dgemm|f64|d884|zgemm|\bdouble\b|_ddd_|cijk_[a-z]+_[a-z]+_d_?b", re.I)),
    (
        "8bit",
        re.compile(
            r"e4m3|e5m2|fp8(?!kvcache)|i8816|i16832|imma|_s8_|s8s8|int8|nvjet_(sm\d+_)?[qo]"
            r"|cijk_[a-z]+_[a-z]+_(f8|b8|i8)",
            re.I,
        ),
    ),
    (
        "fp32",
        re.compile(
            r"simt|_ffma|scudnn|(^|[^a-z0-9])(ampere|volta|maxwell|turing|pascal|hopper|kepler|magma)?_?"
            r"sgemm(?!.*tensorop)|convolve_sgemm|f32f32_f32f32_f32(?!.*tensor)"
            r"|gemv\w*(<|.*[<,( ])float\b(?!.*(bfloat16|half))|gemmsn_\w*<float|gemmk1_kernel<float"
            r"|implicit_convolve_sgemm|fft2d_r2c|dot_kernel<float|_engine(_nhwc)?<float",
            re.IGNORECASE,
        ),
    ),
    (
        "tf32",
        re.compile(r"tf32|(?<!f16_)(?<!fp16_)s1688gemm(?!.*(bf16|f16))|nvjet_(sm\d+_)?sss", re.I),
    ),
    (
        "16bit",
        re.compile(
            r"bf16|f16|bfloat16|(?<![a-z])half|fp16|hgemm|h884|h1688|h16816|s884|s16816|s161616"
            r"|nvjet_(sm\d+_)?[th]s|hcudnn|cijk_[a-z]+_[a-z]+_[bh](_b|[bhs])",
            re.IGNORECASE,
        ),
    ),
    (
        "tensor",
        re.compile(r"tensorop|nvjet|wgmma|gmma|hmma|wmma|tensor\d|xmma|utcmma|_mfma|_MI\d+x", re.I),
    ),
)

_INNER: Final = re.compile(
    r"CUDAFunctor_?(?P<a>\w+)|(?P<b>[A-Za-z0-9_]+?)_kernel_(?:cuda|impl)\w*"
    r"|(?P<c>[A-Za-z0-9_]+?)_cuda_kernel|(?P<d>[A-Za-z0-9]+?)(?:CUDA)?KernelImpl"
    r"|(?P<e>[A-Za-z0-9]+?)Functor(?:_\w+)?\b|launch_(?P<f>\w+)|(?P<g>[A-Za-z0-9_]+?)_kernel\b"
    r"|std::(?P<h>plus|multiplies|divides|minus)|at::native::(?P<i>Sqrt|\w+_cuda_out|\w+_stats\w*)"
)
_WRAPPING: Final = {"Binary", "BUnary", "AUnary", "Unary", "BinaryOpScalar", "BinaryOpList",
                    "UnaryOp", "elementwise", "BinaryOpScalarList", "BinaryOpListAlpha",
                    "gpu", "gpu_impl", "unrolled_elementwise", "vectorized_elementwise",
                    "PointwiseOpScalar", "PointwiseOpScalarList", "TernaryOpScalar",
                    "gpu_kernel_impl", "func_wrapper", "ReduceOp",
                    "gpu_kernel_impl_nocast"}  # fmt: skip
_LONGEST = 72
_ARRAY = r"(?:std::array|at::detail::Array)<char ?\*, ?(?:\(\w[\w ]*\))?(\d+)(?:ul)?>"
_TENSORS = re.compile(_ARRAY)
_UNROLLED = re.compile(_ARRAY + r", ?(?:\(int\))?(\d+)")


@cache
def classify(name: str, kind: str = "kernel") -> KernelClass:
    """What a kernel's name says.

    Args:
        name: demangled name.
        kind: ``gpu_op.kind``.
    """
    if kind == "graph":
        return KernelClass("graph", "", name, "", 0, 0, 0)
    name = name[:LONGEST_JUDGED]
    plain = _ANONYMOUS.sub("", name).removeprefix("void ")
    base = re.split(r"[<(]", plain, maxsplit=1)[0]
    short = base.rsplit("::", 1)[-1] or plain[:60]
    if is_communication(name):
        return KernelClass("communication", "", short, "", 0, 0, 0)
    generic = bool(_WRAPPER.search(base)) or short in ("reduce_kernel", "multi_tensor_apply_kernel")
    if not generic:
        category = next((category for category, rule in _RULES if rule.search(plain)), "other")
        math = _math(plain) if category in PRODUCTS else ""
        return KernelClass(category, math, _shortened(short, plain), "", 0, 0, 0)
    operation = _operation(plain[len(base) :])
    if short == "reduce_kernel":
        category = "reduction"
    elif short == "multi_tensor_apply_kernel":
        category = "optimizer"
    else:
        what = short.split("elementwise")[0] + " " + operation
        category = next((f for f, rule in _OF_OPERATION if rule.search(what)), "elementwise")
    found = _TENSORS.search(plain)
    tensors = int(found.group(1)) if found else 0
    label = f"{short} [{operation}]" if operation else short
    return KernelClass(
        category=category,
        math="",
        label=label,
        operation=operation,
        tensors=tensors,
        element_bytes=_element_bytes(plain, operation, tensors),
        thread_elements=_thread_elements(short, plain),
    )


def _math(plain: str) -> str:
    return next((math for math, rule in _MATH if rule.search(plain)), "")


def _shortened(short: str, plain: str) -> str:
    """A name for people: where the function is a mere wrapper, the first thing it wraps."""
    if short in ("Kernel", "Kernel2", "kernel", "device_kernel"):
        inner = re.search(r"<(?:[\w:]*::)?(\w+)", plain)
        short = inner.group(1) if inner else short
    return short if len(short) <= _LONGEST else short[: _LONGEST - 3] + "..."


def _operation(inside: str) -> str:
    """The operation that a generic kernel was instantiated for."""
    for found in _INNER.finditer(inside):
        text = next(group for group in found.groups() if group)
        if text and text not in _WRAPPING:
            return text.removesuffix("_kernel").strip("_")
    return ""


def _element_bytes(plain: str, operation: str, tensors: int) -> int:
    """Bytes moved for one element: all tensors alike, or a cast between 4 and 2 bytes."""
    if operation in ("bfloat16_copy", "float16_copy") and tensors == 2:
        return 6
    small = bool(re.search(r"BFloat16|Half|bfloat16|half", plain))
    single = bool(re.search(r"\bfloat\b", plain))
    return tensors * {(True, False): 2, (False, True): 4}.get((small, single), 0)


def _thread_elements(short: str, plain: str) -> int:
    """Elements a thread of PyTorch's contiguous elementwise kernels.

    Unrolled kernels have it in their name. Vectorised ones do 8 since they are built on
    ``std::array`` (PyTorch 2.7), and did 4 before.
    """
    if short == "unrolled_elementwise_kernel":
        found = _UNROLLED.search(plain)
        return int(found.group(2)) if found else 4
    if short == "vectorized_elementwise_kernel":
        return 8 if "std::array" in plain else 4
    return 0
