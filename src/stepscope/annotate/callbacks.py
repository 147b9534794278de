"""Steps for Hugging Face's ``Trainer`` and for Lightning, without a change of the loop.

A step goes from the end of one to the end of the next, so that getting the batch belongs to it.
"""

from __future__ import annotations

import importlib
from typing import Any

from stepscope.annotate.ranges import end_steps, step


def _base(*names: str) -> type:
    """The first class of those given as ``module:class`` that can be imported.

    Raises:
        ImportError: none can.
    """
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            found: type = getattr(importlib.import_module(module), attribute)
        except ImportError:
            continue
        return found
    raise ImportError(f"needs {' or '.join(name.partition(':')[0] for name in names)}")


def huggingface_callback() -> Any:
    """A ``TrainerCallback``: ``Trainer(..., callbacks=[stepscope.huggingface_callback()])``.

    Raises:
        ImportError: there is no transformers.
    """

    def begin(self: object, args: object, state: object, control: object, **_: object) -> None:
        step()

    def end(self: object, args: object, state: object, control: object, **_: object) -> None:
        end_steps()

    def following(self: object, args: object, state: object, control: object, **_: object) -> None:
        if getattr(control, "should_training_stop", False):  # no step follows the last one
            end_steps()
        else:
            step()

    body = {"on_train_begin": begin, "on_step_end": following, "on_train_end": end}
    return type("StepscopeCallback", (_base("transformers:TrainerCallback"),), body)()


def lightning_callback() -> Any:
    """A Lightning ``Callback``: ``Trainer(callbacks=[stepscope.lightning_callback()])``.

    Raises:
        ImportError: there is no Lightning.
    """

    def begin(self: object, trainer: object, module: object, *_: object, **__: object) -> None:
        step()

    def end(self: object, trainer: object, module: object, *_: object, **__: object) -> None:
        end_steps()

    base = _base("lightning.pytorch:Callback", "pytorch_lightning:Callback")
    body = {"on_train_start": begin, "on_train_batch_end": begin, "on_train_end": end}
    return type("StepscopeCallback", (base,), body)()
