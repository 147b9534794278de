"""Single-precision GEMMs and convolutions on tensor cores."""

from __future__ import annotations

from .base import Try

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .base import Change

TRY = Try(
    "tf32",
    summary="GEMMs and convolutions in single precision use tensor cores, with inputs rounded "
    "to 10 bits",
    repairs=("low_precision_unused",),
    lines="torch.set_float32_matmul_precision('high')",
    refused="Refused without a CUDA device of compute capability 8.0 or newer. Set when the first "
    "forward pass begins; a program that sets it back afterwards has it as it says.",
    rounding=True,
)


def at_work(change: Change) -> None:
    """The first forward pass begins."""
    torch = change.torch
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
        change.refuse("there is no CUDA device of compute capability 8.0 or newer")
        return
    if torch.get_float32_matmul_precision() != "highest" and torch.backends.cudnn.allow_tf32:
        change.left("the program allows TF32 already")
        return
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    change.applied()
