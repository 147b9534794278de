"""The collector: a C++ library that CUDA and NVTX load into the program, and its build.

It needs neither NVIDIA's headers nor CUPTI at link time, and it knows nothing of Python. The
sources are in ``src/``; :mod:`~stepscope.capture.collector.build` compiles them with whatever C++
compiler is there, once, when the package is built or when it is first needed.
"""
