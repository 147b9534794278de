"""Names by which CUDA calls, kernels and ranges are recognised. One place, so that all agree.

Patterns are matched against distinct names only, never row by row. Ranges may have hundreds of
thousands of them (``request 4711``) of a few hundred shapes (``request 0``): :func:`judged` and
:func:`hits` ask once a shape. A predicate of ranges here must therefore not tell one number from
another.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from stepscope.trace.frame import BoolArray, Frame, IntArray
from stepscope.trace.text import KEPT_ANSWERS, LONGEST_JUDGED

T = TypeVar("T")


def _judged(judge: Callable[[str], T]) -> Callable[[str], T]:
    """The same for the beginning of a text: names of traces are untrusted, and may be megabytes."""
    known = functools.lru_cache(maxsize=KEPT_ANSWERS)(judge)

    @functools.wraps(judge)
    def of_beginning(text: str) -> T:
        return known(text[:LONGEST_JUDGED])

    return of_beginning


SYNC_CALL = re.compile(
    r"^(cuda|cu|hip)(Device|Stream|Event|Ctx|Thread|Context)Synchronize"
    r"|^hipCtxSynchronize|^cudaStreamWaitValue"
)
"""Host calls that return only when queued GPU work has finished."""

DEVICE_SYNC_CALL = re.compile(r"^(cuda|cu|hip)(Device|Ctx|Thread|Context)Synchronize")
"""Those of them that wait for all that the device was given."""

COPY_CALL = re.compile(r"^(cuda|cu|hip)Memcpy")
"""Host calls that copy memory."""

ASYNC_COPY_CALL = re.compile(r"Async")
"""Copy calls that by name do not wait."""

ALLOCATION_CALL = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|HostRegister|HostUnregister|MemPool|MallocHost|FreeHost)"
    r"|^cu(Mem(Alloc|Free|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess|HostAlloc"
    r"|FreeHost|HostRegister))"
)
"""Host calls that allocate or release memory; several of them also synchronise the device."""

RELEASE_CALL = re.compile(r"^(cuda|hip)Free|^cuMem(Free|Release|Unmap)")
"""Host calls that release device or host memory."""

TORCH_NAME = re.compile(
    r"\b(at|c10)::|^(aten|c10d|autograd)::|\btorch\b|^triton_(poi|red|per|tem|for|mm|bmm|spl)_"
)
"""Kernels and ranges that only PyTorch has."""

MODULE_CALL = re.compile(
    r"^cu(Module(Load|Unload)|Library(Load|Unload)|Link(Create|AddData|AddFile|Complete))"
    r"|^nvrtc|^hipModuleLoad|^hiprtc|^cudaLibraryLoad"
)
"""Host calls that load or compile device code."""

LOADING_OVERHEAD = re.compile(
    r"(module|function|library)[_ ]loading|lazy[_ ](function|module)", re.IGNORECASE
)
"""What CUPTI records among its own overhead and is CUDA's: code that is loaded when first used."""

OWN_DOMAIN = "stepscope"
"""NVTX domain of ``stepscope run``'s hook and of ``import stepscope`` in the program: their steps
are ``step_0``, ``step_1`` and so on, one after the other on one thread."""

CAPTURE_START_CALL = re.compile(r"^(cuda|cu|hip)ProfilerStart")
"""Host calls that start a capture range."""

PINNING_CALL = re.compile(
    r"HostAlloc|HostRegister|MallocHost|EventQuery|PointerGetAttribute|HostGetDevicePointer"
)
"""What PyTorch's pinned-memory allocator calls while it pins a batch."""

QUERY_CALL = re.compile(
    r"IsCapturing|GetDevice|SetDevice|GetLastError|PeekAtLastError|GetAttribute|GetName"
    r"|StreamQuery|GetCaptureInfo|CtxGetCurrent|CtxSetCurrent|EventCreate|EventDestroy|EventRecord"
)
"""Calls that only ask or prepare, and say nothing about what the thread is doing."""

_UPDATE_NAME = re.compile(
    r"(?<![A-Za-z])(?:n?adam(?:w|ax|ini|2d)?|radam|sgd|lamb|lion|momentum|rms_?prop|adagrad|adadelta"
    r"|adafactor|lars|muon)(?![a-z])"
    r"|(?:Adam(?:W|ax)?|SGD|Sgd|LAMB|Lamb|Lion|LION|Momentum|RMSProp|Rmsprop|Adagrad|Adadelta|Muon"
    r"|Adafactor)(?![a-z])|FusedOptim|\bkOptimizer\w*State|apply_?gradient",
)
OPTIMIZER_KERNEL = re.compile(rf"{_UPDATE_NAME.pattern}|multi_tensor|multitensor|MultiTensor")
"""Kernels that update parameters, as frameworks name them.

The algorithms' names count as words: ``lambda``, which C++ writes into the name of every second
kernel, is no LAMB, and the Hadamard transform no Adam. Case matters for the same reason.
"""

OPTIMIZER_NAME = _UPDATE_NAME
"""The same without kernels over lists of tensors, which inference uses for other things too."""

_INPUT_WORDS = re.compile(
    r"(?<![a-z])(data_?load(er|ing)?|load_?(data|batch)|get_?batch|next_?batch|fetch(_?data|_?batch)?"
    r"|batch_?(load|fetch|prep)\w*|data_?(fetch|prep|iter|time|wait|next)\w*|dataset"
    # weights, caches and pages are fetched ahead as well: alone, or with a word of input
    r"|prefetch(er|ed|ing)?(_?(next|data|batch|inputs?|samples?|images?|queue|loader|to_?(gpu|device)|wait))*"
    r"[^a-z]*$"
    r"|input_?(pipeline|wait)|collate\w*|tokeni[sz]\w*|augment\w*|preprocess\w*"
    r"|decode_?(image|jpeg|video)\w*|read_?(data|batch|sample|image)\w*|sampl(e|er)_?batch)(?![a-z])"
    r"|dataloader|__next__|^[^a-z]*(data|inputs?|batch_?wait)[^a-z]*$",
    re.IGNORECASE,
)
_MODEL_WORDS = re.compile(
    r"fsdp|fullysharded|param|gather|unshard|embed|norm|proj|forward|backward|^aten::|nn\.\w",
    re.IGNORECASE,
)


@_judged
def is_input_range(text: str) -> bool:
    """Whether a range name says that its thread is getting the next batch.

    Names of model parts that contain the same words (``input_layernorm``, FSDP's ``prefetch``)
    are not input.
    """
    return bool(_INPUT_WORDS.search(text)) and not _MODEL_WORDS.search(text)


INPUT_FUNCTION = re.compile(
    r"torch/utils/data/|dataloader\.py|(^|/)datasets?/|torchvision/transforms|webdataset|streaming/base"
    r"|multiprocessing/queues\.py|multiprocessing/connection\.py|tokenizers?/|_next_data"
    r"|(^|/)(image_processing|video_processing|feature_extraction|tokenization)_\w+\.py"
    r"(?!.*: _?(post_?process|decode|batch_decode|convert_ids|convert_tokens))"
    r"|(^|/)processing_\w+\.py.*: (__call__|preprocess|_process\w*|apply_chat_template)"
    r"|transformers/pipelines/.*: preprocess|(^|/)(decord|torchcodec|albumentations|timm/data)/"
    r"|(^|/)PIL/Image\.py.*: (open|resize|convert|load|decode)|librosa/|soundfile\.py|nvidia/dali/"
    r"|: _?(get|next|load|fetch|prepare)_(next_)?((train|val)_)?batch(es)?$|: _?collate\w*$"
    r"|: _?tokeni[sz]e\w*$",
    re.IGNORECASE,
)
"""Python functions, as file(line): name, that belong to the input pipeline.

Hugging Face's processors turn images, sound and text into tensors in ``image_processing_*``,
``feature_extraction_*``, ``tokenization_*`` and ``processing_*``; what they do to a model's results
is no input.
"""

LOADER_WITH_WORKERS = re.compile(r"_MultiProcessingDataLoaderIter|^pt_data_(pin|worker)")
"""Ranges and threads that show PyTorch's DataLoader with worker processes."""

BEGIN_CAPTURE = re.compile(r"^(cuda|cu|hip)StreamBeginCapture")
"""Calls from which on what is launched is recorded into a graph, not run."""

LOADER_WITHOUT_WORKERS = re.compile(r"_SingleProcessDataLoaderIter")
"""Ranges that show PyTorch's DataLoader loading on the thread that asks."""

STEP_RANGE = re.compile(
    r"(?<![a-z])(train(ing)?[_ ]?)?(global[_ ]?)?(step|iter(ation)?s?|batch|1f1b)"
    r"([_ ]?(idx|id|num|number|no))?[^a-z]*$",
    re.IGNORECASE,
)
"""Range names that usually hold one training step, with or without a number."""

_PART_OF_STEP = re.compile(r"optim|zero_?grad|scaler|schedul|forward|backward|micro", re.IGNORECASE)

ENGINE_STEP = re.compile(
    # vLLM: gpu_worker annotate_profile, gpu_model_runner, llm_engine
    r"^execute_(\d+_)?(context_\d|new_\d|model\b)|^gpu_model_runner: forward$"
    r"|^(llm_?)?engine(_core)?[._ ]step$"
    # SGLang: scheduler's and model runner's annotations
    r"|^step\[[A-Z_]+|^Scheduler\.run_batch|^(run|forward)_batch(_generation)?\b"
    # TensorRT-LLM: PyExecutor
    r"|_forward_step \d"
    # TensorRT's own ranges: one inference
    r"|^ExecutionContext::(execute|enqueue)"
    # xDiT, diffusers and scripts around them
    r"|^execute_diffusion|^model_inference$|^denois(e|ing)(_?step)?[^a-z]*$"
    r"|^(decode|prefill|generate|inference|predict)(_?step)?[^a-z]*$"
    # one more token of every sequence
    r"|^(?i:(decode|generate|gen)_?)?(?i:token)[ _#]?\d+"
    r"(?i:[ _](processing|decode|generation|step))?$"
    # Lightning's profilers: the whole of one batch
    r"|\brun_training_batch$"
)
"""Ranges that inference engines and training frameworks put around one iteration."""

_ENGINE_FAMILY = re.compile(
    r"^(execute_|step\[|Scheduler\.run_batch|gpu_model_runner: forward|\[Executor\] _forward_step"
    r"|[^\d]*_forward_step)"
)
_DECODE = re.compile(
    r"^step\[DECODE|^((decode|generate|gen)_?)?token[ _#]?\d|(?<![a-z])decode(_?step)?[^a-z]*$"
    r"|_context_0(?!\d).*_generation_[1-9]|: 0 ctx reqs.*?(?<!\d)[1-9]\d* gen reqs",
    re.IGNORECASE,
)
_DENOISING = re.compile(r"^denois|diffusion_step", re.IGNORECASE)

NEVER_A_STEP = re.compile(
    # operators, their libraries, and what autograd, emit_nvtx and compilers put around them
    r"^(aten|c10d?|prims?|nccl|rccl|torch|torchvision|torchaudio|fbgemm|autograd|cudnn|triton"
    r"|inductor|xformers|flash_attn\w*|vllm|_C\w*|sgl_kernel|trtllm|mscclpp|fsdp|te|transformer_engine"
    r"|quantized|sparse|profiler|nvshmem|aiter|mamba\w*|deep_ep|dpsk)::"
    r"|op_id ?=|, ?seq ?= ?\d|[A-Za-z]Backward\d*\b|^## Call|^CompiledFunction"
    r"|^Torch-Compiled Region|^TorchDynamo|^Pregraph|^Optimizer\.|^enumerate\(DataLoader\)"
    r"|^record_param_comms|^\[memory\]"
    r"|^(cuda|cu|hip|nccl|rccl|Mem(cpy|set))[A-Z ]|^PythonFallback|^nn\.Module"
    # what wraps a model, and the parts of one
    r"|FSDP|Fully_?Sharded|DistributedDataParallel|^DDP\b|DeepSpeed\w*\.(forward|backward|step)\b"
    r"|(?<![A-Za-z])(?i:layers?|blocks?|modules?|stages?|experts?|encoders?|decoders?|attn|attention|mlp"
    r"|ffn|norms?|embed\w*|(lm_?)?heads?|proj\w*|conv\w*|linear|buckets?|chunks?|micro\w*|param\w*"
    r"|resblock|transformer|streams?|workers?|threads?|ranks?|tokens?|gemm|matmul|softmax)(?![A-Za-z])"
    # a number or another word may follow: DecoderLayer_3, EncoderBlock.forward
    r"|[a-z](Layer|Block|Attention|MLP|Norm|Embeddings?|Linear|Conv\d?d|Experts?|Encoder|Decoder|Head)"
    r"(?![a-z])"
)
"""Ranges of operators, autograd, compilers and parts of a model. They never mark a step, however
regularly they repeat: layers repeat inside one step."""


_XLA_MODULE = re.compile(
    r"^(?:TSL:)?XlaModule:#.*?hlo_module=(?P<nvtx>[\w.\-]+)|^(?P<trace>[\w.\-]+):XLA GPU module$"
)
_XLA_STEP = re.compile(r"step|train|update(?!_slice)", re.IGNORECASE)


@_judged
def is_step_range(text: str) -> bool:
    """Whether a range name says that it holds a whole iteration of the program's loop.

    XLA names the range of a compiled program after the function that it was compiled from
    (``XlaModule:#hlo_module=jit_train_step,program_id=7#`` in NVTX, ``jit_train_step:XLA GPU
    module`` in its own profiles).
    """
    module = _XLA_MODULE.match(text)
    if module:
        name = module["nvtx"] or module["trace"]
        return bool(_XLA_STEP.search(name)) and not EPOCH_RANGE.search(name)
    if ENGINE_STEP.search(text):
        return True
    if NEVER_A_STEP.search(text):
        return False
    is_part = _PART_OF_STEP.search(text) or is_input_range(text)
    return bool(STEP_RANGE.search(text)) and not is_part


@_judged
def engine_family(text: str) -> str:
    """The fixed beginning of an engine's range name, whose rest differs each iteration.

    Empty for other names: ``step[DECODE bs=32]`` and ``step[EXTEND bs=1 toks=9]`` are both
    iterations of one loop, ``step_1`` and ``step_2`` differ in their number only.
    """
    if not ENGINE_STEP.search(text):
        return ""
    family = _ENGINE_FAMILY.match(text)
    return family[1] if family else ""


@_judged
def is_decode(text: str) -> bool:
    """Whether an iteration's range name says that it only generates tokens, with no new prompt."""
    return bool(_DECODE.search(text))


@_judged
def is_denoising(text: str) -> bool:
    """Whether an iteration's range name says that it is one denoising step of a diffusion model."""
    return bool(_DENOISING.search(text))


LAYER_NUMBER = re.compile(
    r"(?:(?<![A-Za-z])(?i:layers?|blocks?|h)|(?<=[a-z])(?:Layer|Block)s?)[._ \[(]{0,2}(\d+)(?!\d)"
)
"""The number of a layer in the name of a range, as module paths have it."""

EPOCH_RANGE = re.compile(r"(?<![a-z])(epoch|warm_?up|eval(uation)?|valid(ation)?)", re.IGNORECASE)
"""Range names that hold something else than one training step."""

PROFILER_STEP = re.compile(r"^ProfilerStep#\d+$")
"""The annotation of one step by torch.profiler's schedule."""

_CHECKPOINT_WORDS = re.compile(
    r"(?<![a-z])(check_?point\w*|ckpt\w*|state_?dict\w*|torch\.save|snapshot\w*|saving"
    r"|(save|persist|write)_?(model|state|weights|optimizer)\w*)(?![a-z])|^[^a-z]*save[^a-z_]*$",
    re.IGNORECASE,
)
_RECOMPUTE_WORDS = re.compile(
    r"activation|recompute|checkpoint_?(function|wrapp|impl|hook|sequential)|_checkpoint_wrapped"
    r"|save_?for_?backward|saved_?tensors|(?<![a-z])load|autograd|^aten::|nn\.Module|backward",
    re.IGNORECASE,
)


@_judged
def is_checkpoint_range(text: str) -> bool:
    """Whether a range name says that the program saves its state.

    Activation checkpointing (recomputation in the backward pass) shares the word, not the meaning.
    """
    return bool(_CHECKPOINT_WORDS.search(text)) and not _RECOMPUTE_WORDS.search(text)


CHECKPOINT_FUNCTION = re.compile(
    r"torch/serialization\.py.*(save|write)|torch/distributed/checkpoint/.*save"
    r"|^(?!.*torch/utils/checkpoint).*[/: ](save_)?(check_?point|ckpt|state_dict)(_hook)?$"
    r"|safetensors.*save"
    r"|nn\.Module.*: state_dict|module\.py\(\d+\): state_dict",
    re.IGNORECASE,
)
"""Python functions, as file(line): name, that save the state of training."""

WRITE_CALL = re.compile(
    r"^(p?write(v|64|v2)?|pwritev2?|fwrite\w*|fsync|fdatasync|sync_file_range|fflush|rename\w*"
    r"|ftruncate\w*|fallocate\w*|posix_fallocate\w*|sendfile\w*|msync)$"
)
"""Operating-system calls in which a thread writes a file."""

LOCK_WAIT_CALL = re.compile(
    r"^(pthread_cond_(timed|clock)wait|sem_(timed|clock)wait|futex\w*|syscall_futex)"
)
"""Operating-system calls with a time limit that CPython's GIL waits in."""

COMPILE_RANGE = re.compile(
    r"dynamo_timed|compile_inner|_compile\.|call_user_compiler|compile_fx|fx_codegen|GraphLowering"
    r"|Scheduler\.codegen|inductor_compile|triton_?(jit_?)?compile|async_compile\.|autotun"
    r"|CachingAutotuner\.bench|aot_(autograd|dispatch|trace)|^(re)?compil(e|ing|ation)\b"
    # nvFuser (csrc/runtime, csrc/fusion_segmenter.cpp), NVRTC and the assembler
    r"|::(re|new)?compile(?!d|r)\w*$|::Compile(Program|Fusion)|nvrtc|hiprtc|ptxas|SegmentCandidateFinder::"
    r"|^(TSL:)?Xla(Compile|Pass\b|Autotun|EmitLlvmIr|CreateGpuExecutable|BufferAssign|OptimizeHlo"
    r"|MemorySched)",
    re.IGNORECASE,
)
"""Ranges of a run-time compiler at work. TorchDynamo's cache lookup, made each call, is none."""


@_judged
def is_compile_range(text: str) -> bool:
    """Whether a range or an operator is a run-time compiler at work."""
    return COMPILE_RANGE.search(text) is not None


COMPILE_FUNCTION = re.compile(
    r"torch/_dynamo/(symbolic_convert|output_graph)\.py"
    r"|torch/_dynamo/convert_frame\.py.*: (_?compile(_inner|_frame)?|transform)$"
    r"|torch/_inductor/(graph|lowering|scheduler|async_compile|select_algorithm)\.py"
    r"|torch/_inductor/compile_fx\.py.*: \w*(compile(?!d)|codegen)"
    r"|torch/_inductor/codecache\.py.*: \w*(load|compile(?!d)|lookup|write)"
    r"|torch/_inductor/runtime/triton_heuristics\.py.*: (_?precompile|bench|autotune_to"
    r"|coordinate_descent|make_launcher)"
    r"|torch/_functorch/aot_autograd\.py.*: (_?create_aot|aot_|dispatch_and_compile)"
    r"|torch/_functorch/_aot_autograd/(jit_compile|graph_compile|graph_capture|collect_metadata"
    r"|dispatch_and_compile)"
    r"|triton/compiler/(code_generator|make_launcher)"
    r"|triton/compiler/compiler\.py.*: (compile|make_ir)$"
    r"|triton/runtime/(jit|autotuner|build)\.py.*(compile|bench|_build)"
    r"|torch/utils/cpp_extension",
    re.IGNORECASE,
)
"""Python functions of a run-time compiler at work, as file(line): name.

The same files hold frames of compiled code that runs, which are none of it: ``forward`` in
``aot_autograd.py``, ``run`` in ``compile_fx.py``, ``__call__`` in ``codecache.py``,
``launch_metadata`` and ``_init_handles`` in Triton's ``compiler.py``.
"""

PLANNING_OPERATOR = re.compile(r"cudnn|miopen|mkldnn_convolution|_convolution", re.IGNORECASE)
"""Operators whose library builds (often compiles) a plan for each shape it has not seen yet."""

COMPILED_KERNEL = re.compile(r"triton|inductor|nvrtc|jiterator|cupy_|numba|^fused_", re.IGNORECASE)
"""Kernels that are compiled while the program runs, as their compilers name them."""

COLLECTION_RANGE: Final = re.compile(r"garbage collection, generation \d")
"""Ranges of Python's garbage collections, as ``stepscope run --gc`` records them."""

EVALUATION_RANGE = re.compile(
    r"(?<![a-z])(eval(uate|uation)?|valid(ate|ation)?|val|test|predict|inference|sample|generate)"
    r"(?![a-z])",
    re.IGNORECASE,
)
"""Range names that hold an evaluation between the training steps."""

WAIT_CALL = re.compile(
    r"^(poll|ppoll|select|pselect|epoll_|sem_|pthread_cond_|pthread_join|futex|read$|recv|accept"
    r"|wait|nanosleep|clock_nanosleep|usleep|sleep|msgrcv|io_getevents|pthread_rwlock"
    r"|pthread_mutex)"
)
"""Operating-system calls in which a thread waits."""


def marks_steps(text: str, step_label: str) -> bool:
    """Whether a range marks a whole step or more, and so says nothing about a part of one.

    Args:
        text: name of the range.
        step_label: stem of the ranges that were found to mark the steps.
    """
    return is_labelled(text, step_label) or holds_a_step(text)


def is_labelled(text: str, step_label: str) -> bool:
    """Whether a range is named by the label of the steps, or by it and a number.

    The label of names with a number inside has 0 there.
    """
    if not step_label or not text.startswith(step_label):
        return bool(step_label) and _NUMBER.sub("0", text) == step_label
    return not any(letter.isalpha() for letter in text[len(step_label) :])


@_judged
def holds_a_step(text: str) -> bool:
    """Whether a range's name by itself says that it holds a whole step or more."""
    return bool(PROFILER_STEP.match(text) or EPOCH_RANGE.search(text)) or is_step_range(text)


_NUMBER: Final = re.compile(r"[0-9]+")
_KEPT: Final = 4
"""Lists of names whose shapes are kept: those of the ranges and operators of two traces."""


@dataclass(frozen=True)
class _Shapes:
    """Shapes of a list of names: the list, the shape of each, and the distinct ones."""

    texts: Sequence[str]
    code: IntArray
    distinct: list[str]


_known: dict[int, _Shapes] = {}


def judged(texts: Sequence[str], holds: Callable[[str], bool]) -> BoolArray:
    """Which names satisfy a predicate that does not tell one number from another.

    Args:
        texts: the names; must not be changed afterwards.
        holds: the predicate.
    """
    found = _shapes(texts)
    return np.array([holds(shape[:LONGEST_JUDGED]) for shape in found.distinct], bool)[found.code]


def hits(frame: Frame, column: str, holds: Callable[[str], bool]) -> BoolArray:
    """Mask of the rows whose text satisfies such a predicate; null does not."""
    mask = np.append(judged(frame.texts[column], holds), False)
    return mask.take(frame[column])


def marking_steps(texts: Sequence[str], step_label: str) -> BoolArray:
    """Which names mark a whole step or more, see :func:`marks_steps`.

    Args:
        texts: names of ranges.
        step_label: stem of the ranges that were found to mark the steps.
    """
    found = judged(texts, holds_a_step)
    if step_label:  # it may hold a number itself, so that it is looked for in the names
        for code, text in enumerate(texts):
            if text.startswith(step_label) and is_labelled(text, step_label):
                found[code] = True
    return found


def _shapes(texts: Sequence[str]) -> _Shapes:
    known = _known.get(id(texts))
    if known is not None and known.texts is texts:
        return known
    place: dict[str, int] = {}
    shaped = (_NUMBER.sub("0", text) for text in texts)
    code = np.fromiter(
        (place.setdefault(shape, len(place)) for shape in shaped), np.int64, len(texts)
    )
    made = _Shapes(texts, code, list(place))
    _known[id(texts)] = made  # the list is held, so that no other gets its number
    while len(_known) > _KEPT:
        _known.pop(next(iter(_known)))
    return made
