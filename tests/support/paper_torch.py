"""A torch made of paper: as much of its shape as fixes that are tried touch, and no arithmetic."""

from __future__ import annotations

import textwrap
from pathlib import Path

FILES = {
    "torch/__init__.py": """
        import os
        float32, float64, bfloat16, float16 = "float32", "float64", "bfloat16", "float16"
        channels_last, contiguous_format = "channels_last", "contiguous"
        class device:
            def __init__(self, name): self.type = name.partition(":")[0]
        class no_grad:
            def __enter__(self): pass
            def __exit__(self, *_): pass
        class Tensor:
            def __init__(self, value=0.0, where="cpu", pinned=False, dim=1, dtype=float32):
                self.value, self.pinned, self.dtype, self._dim = value, pinned, dtype, dim
                self.device = device(where)
                self.moves, self.format = [], contiguous_format
            is_cuda = property(lambda self: self.device.type == "cuda")
            def is_pinned(self): return self.pinned
            def numel(self): return 1
            def dim(self): return self._dim
            def is_floating_point(self): return True
            def is_contiguous(self, memory_format): return self.format == memory_format
            def contiguous(self, memory_format):
                made = Tensor(self.value, dim=self._dim); made.format = memory_format
                return made
            def detach(self): return self
            def reshape(self, shape): return self
            def to(self, *arguments, **named): return self._moved(*arguments, **named)
            def cuda(self, *arguments, **named): return self._moved("cuda", *arguments, **named)
            def _moved(self, *arguments, **named):
                made = Tensor(self.value, "cuda"); made.moves = [*arguments, named]
                return made
            def backward(self): pass
        class _Row:
            def __init__(self, values, at): self.values, self.at = values, at
            def copy_(self, other): self.values[self.at] = other.value
        class _Values(dict):
            def __getitem__(self, at):
                if isinstance(at, slice): return _Kept([self.get(i) for i in range(at.stop)])
                return _Row(self, at)
            def add_(self, number): return self
        class _Kept(list):
            def tolist(self): return self
        def zeros(n, dtype=float32, device=None): return _Values()
        class autocast:
            on = False
            def __init__(self, device, dtype): pass
            def __enter__(self): autocast.on = True
            def __exit__(self, *_): autocast.on = False
        def is_autocast_enabled(): return autocast.on
        def is_autocast_cpu_enabled(): return autocast.on
        def is_grad_enabled(): return True
        def are_deterministic_algorithms_enabled(): return False
        precision = "highest"
        def get_float32_matmul_precision(): return precision
        def set_float32_matmul_precision(wanted): global precision; precision = wanted
        class cuda:
            @staticmethod
            def is_available(): return os.environ.get("PAPER_CUDA") == "1"
            @staticmethod
            def is_initialized(): return cuda.is_available()
            @staticmethod
            def is_current_stream_capturing(): return False
            @staticmethod
            def get_device_capability(): return (9, 0)
            @staticmethod
            def set_sync_debug_mode(mode): cuda.mode = mode
            mode = "default"
        class backends:
            class cudnn: deterministic, benchmark, allow_tf32 = False, False, True
        class jit:
            class ScriptModule: pass
        class amp:
            class GradScaler:
                def __init__(self, enabled=True): self.enabled = enabled
                def is_enabled(self): return self.enabled
        from torch import nn, optim, utils
        import torch.utils.data
    """,
    "torch/nn/__init__.py": """
        from torch.nn.modules.module import Module
        import torch
        class Linear(Module):
            def forward(self, x): return x
        class Conv2d(Module):
            def __init__(self):
                super().__init__()
                self.weight = self.weights[0]
                self.weight._dim = 4
            def forward(self, x): return x
        class ConvTranspose2d(Conv2d): pass
    """,
    "torch/nn/modules/__init__.py": "",
    "torch/nn/modules/module.py": """
        class Handle:
            def __init__(self, hooks, call): self.hooks = hooks; hooks[self] = call
            def remove(self): self.hooks.pop(self, None)
        class Module:
            def __init__(self, *inner):
                import torch
                self.inner, self.own, self.training = inner, {}, True
                self.weights = [torch.Tensor(where="cuda" if torch.cuda.is_available() else "cpu")]
                self._compiled_call_impl = None
            def modules(self):
                yield self
                for one in self.inner: yield from one.modules()
            def parameters(self): return (p for one in self.modules() for p in one.weights)
            def register_forward_pre_hook(self, call): return Handle(self.own, call)
            def compile(self): self._compiled_call_impl = self._call
            def to(self, memory_format):
                for one in self.parameters(): one.format = memory_format
            def _call(self, *inputs):
                for call in list(self.own.values()): inputs = call(self, inputs) or inputs
                return self.forward(*inputs)
            def __call__(self, *inputs): return (self._compiled_call_impl or self._call)(*inputs)
            def forward(self, x):
                for one in self.inner: x = one(x)
                return x
    """,
    "torch/optim/__init__.py": """
        from torch.optim.optimizer import Optimizer
        class SGD(Optimizer):
            def __init__(self, params, lr=1e-3, *, foreach=None, fused=None, differentiable=False):
                self.given = {"foreach": foreach, "fused": fused}
                super().__init__(params)
            def step(self): self._step()
        class Rprop(Optimizer):
            def __init__(self, params, lr=1e-2): super().__init__(params)
            def step(self): self._step()
    """,
    "torch/optim/optimizer.py": """
        before, after = [], []
        def register_optimizer_step_pre_hook(hook): before.append(hook)
        def register_optimizer_step_post_hook(hook): after.append(hook)
        class Optimizer:
            def __init__(self, params): self.params = list(params); assert self.params
            def _step(self):
                for hook in before: hook(self, (), {})
                for hook in after: hook(self, (), {})
    """,
    "torch/utils/__init__.py": "from torch.utils import data",
    "torch/utils/data/__init__.py": """
        class IterableDataset: pass
        from torch.utils.data.dataloader import DataLoader
    """,
    "torch/utils/data/dataloader.py": """
        class DataLoader:
            def __init__(self, dataset, batch_size=1, shuffle=None, num_workers=0, collate_fn=None,
                         pin_memory=False, *, prefetch_factor=None, persistent_workers=False,
                         multiprocessing_context=None, worker_init_fn=None):
                if prefetch_factor == 999: raise ValueError("too many")
                self.dataset = dataset
                self.given = (num_workers, pin_memory, prefetch_factor, persistent_workers)
            def __iter__(self): return iter(self.dataset)
    """,
}

TRAIN = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Module(torch.nn.Linear(), torch.nn.Conv2d())
loader = DataLoader([0.5] * 20)
optimizer = torch.optim.SGD(p for p in model.parameters())
for i, value in enumerate(loader):
    loss = model(torch.Tensor(value / (i + 1)))
    loss.backward()
    optimizer.step()
"""
"""Twenty steps of training."""


def write(folder: Path) -> Path:
    """Write the package into a folder for ``PYTHONPATH``."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder
