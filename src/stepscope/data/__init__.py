"""Bundled captures.

``h200_input_starvation.sqlite.xz``: a small GPT trained on one NVIDIA H200 whose data set does
about 5 ms of NumPy work a sample on the training thread (``DataLoader(num_workers=0)``); 12 steps,
Nsight Systems 2025.3, ``-t cuda,nvtx``.

``tutorials/``: the captures that the tutorials read, from the same and other H200 machines; each
is described in ``stepscope.api.bundled``. ``benchmarks/captures/bundle.py`` cut them to a few steps
and removed what they tell of the machine.
"""
