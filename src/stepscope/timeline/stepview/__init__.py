"""Steps side by side: every step of a device begins at the same edge, so that jitter is seen."""
