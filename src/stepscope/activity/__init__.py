"""What devices and threads did, as NumPy columns: kernels, calls, ranges, samples, names."""
