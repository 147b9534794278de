"""Commands that record what a finding lacks. Each cause names one of them."""

from __future__ import annotations

from typing import Final

PLAIN: Final = "stepscope run -- python train.py"
WAITS: Final = "stepscope run --waits -- python train.py"
WAITS_AND_NODES: Final = "stepscope run --waits --graph node -- python train.py"
NODES: Final = "stepscope run --graph node -- python train.py"
COLLECTIONS: Final = "stepscope run --waits --gc -- python train.py"
LONGER: Final = "stepscope run --warmup 20 --steps 60 -- python train.py"
SAMPLES: Final = "stepscope run --sample-hz 50 -- python train.py"
STACKS: Final = "stepscope run --backend torch --stacks --steps 5 -- python train.py"

RECORDS: Final = {
    PLAIN: "GPU work, CUDA calls and ranges, at the least cost; clocks and power beside them",
    WAITS: "Also what threads wait for: locks, files, queues, the GIL",
    WAITS_AND_NODES: "Also the kernels inside CUDA graphs",
    NODES: "The kernels inside CUDA graphs, each by itself",
    COLLECTIONS: "Also Python's garbage collections",
    LONGER: "More steps than a loader prepares ahead, so that its own pace shows",
    SAMPLES: "Python stacks of all threads, 50 times a second",
    STACKS: "Operators with shapes, and the Python lines that call them; it slows the host",
}
"""What each of them records."""
