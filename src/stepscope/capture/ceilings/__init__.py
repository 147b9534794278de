"""What the GPU of this machine can do at most, measured: bandwidths and arithmetic.

Standard library only: the driver through ctypes, kernels as PTX text, GEMMs by cuBLASLt.
"""
