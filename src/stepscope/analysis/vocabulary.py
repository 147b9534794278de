"""Names by which CUDA calls, kernels and ranges are recognised. One place, so that all agree.

Patterns are matched against distinct names only (a few hundred in a trace), never row by row.
"""

from __future__ import annotations

import re

SYNC_CALL = re.compile(
    r"^(cuda|cu|hip)(Device|Stream|Event|Ctx|Thread|Context)Synchronize"
    r"|^hipCtxSynchronize|^cudaStreamWaitValue"
)
"""Host calls that return only when queued GPU work has finished."""

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

MODULE_CALL = re.compile(
    r"^cu(Module(Load|Unload)|Library(Load|Unload)|Link(Create|AddData|AddFile|Complete))"
    r"|^nvrtc|^hipModuleLoad|^hiprtc|^cudaLibraryLoad"
)
"""Host calls that load or compile device code."""

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

COMMUNICATION_KERNEL = re.compile(
    r"^(nccl|rccl|void nccl|msccl|mscclpp)|^ncclDevKernel|^ncclKernel|nvshmem|deep_ep|"
    r"(all_?reduce|reduce_?scatter|all_?gather|all_?to_?all).*(one_shot|two_shot|multimem|symm)"
    r"|cross_device_reduce|(one|two)_shot_all_reduce|multimem_",
    re.IGNORECASE,
)
"""Kernels that move data between GPUs."""

OPTIMIZER_KERNEL = re.compile(
    r"adam|sgd|lamb|lion|momentum|rmsprop|adagrad|multi_tensor|multitensor|FusedOptim|muon",
    re.IGNORECASE,
)
"""Kernels that update parameters, as frameworks name them."""

_INPUT_WORDS = re.compile(
    r"(?<![a-z])(data_?load(er|ing)?|load_?(data|batch)|get_?batch|next_?batch|fetch(_?data|_?batch)?"
    r"|batch_?(load|fetch|prep)\w*|data_?(fetch|prep|iter|time|wait|next)\w*|dataset|prefetch\w*"
    r"|input_?(pipeline|wait)|collate\w*|tokeni[sz]\w*|augment\w*|preprocess\w*"
    r"|decode_?(image|jpeg|video)\w*|read_?(data|batch|sample|image)\w*|sampl(e|er)_?batch)(?![a-z])"
    r"|dataloader|__next__|^[^a-z]*(data|inputs?|batch_?wait)[^a-z]*$",
    re.IGNORECASE,
)
_MODEL_WORDS = re.compile(
    r"fsdp|fullysharded|param|gather|unshard|embed|norm|proj|forward|backward|^aten::|nn\.\w",
    re.IGNORECASE,
)


def is_input_range(text: str) -> bool:
    """Whether a range name says that its thread is getting the next batch.

    Names of model parts that contain the same words (``input_layernorm``, FSDP's ``prefetch``)
    are not input.
    """
    return bool(_INPUT_WORDS.search(text)) and not _MODEL_WORDS.search(text)


INPUT_FUNCTION = re.compile(
    r"torch/utils/data/|dataloader\.py|/datasets?/|torchvision/transforms|webdataset"
    r"|multiprocessing/queues\.py|multiprocessing/connection\.py|tokenizers?/|_next_data",
    re.IGNORECASE,
)
"""Python functions, as file(line): name, that belong to the input pipeline."""

STEP_RANGE = re.compile(
    r"(?<![a-z])(train(ing)?[_ ]?)?(global[_ ]?)?(step|iter(ation)?s?|batch)"
    r"([_ ]?(idx|id|num|number|no))?[^a-z]*$",
    re.IGNORECASE,
)
"""Range names that usually hold one training step, with or without a number."""

_PART_OF_STEP = re.compile(r"optim|zero_?grad|scaler|schedul|forward|backward|micro", re.IGNORECASE)


def is_step_range(text: str) -> bool:
    """Whether a range name says that it holds a whole training step."""
    is_part = _PART_OF_STEP.search(text) or is_input_range(text)
    return bool(STEP_RANGE.search(text)) and not is_part


EPOCH_RANGE = re.compile(r"(?<![a-z])(epoch|warm_?up|eval(uation)?|valid(ation)?)", re.IGNORECASE)
"""Range names that hold something else than one training step."""

PROFILER_STEP = re.compile(r"^ProfilerStep#\d+$")
"""The annotation of one step by torch.profiler's schedule."""

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
    if step_label and text.startswith(step_label):
        rest = text[len(step_label) :]
        if not any(letter.isalpha() for letter in rest):
            return True  # the label itself, or the label and a number
    if PROFILER_STEP.match(text) or EPOCH_RANGE.search(text):
        return True
    return is_step_range(text)
