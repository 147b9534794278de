"""GPU memory: what was allocated when, by whom, for what, and what a change would need."""
