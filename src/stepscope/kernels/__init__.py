"""What the kernels are, who launched them, and what a repair inside them would gain."""
