"""Record a training job: launcher, back-ends, the collector. Standard library only.

Nothing here imports another room of Stepscope, and only ``hook/`` is ever loaded into the
program that is recorded.
"""
