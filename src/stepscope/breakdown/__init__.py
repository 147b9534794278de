"""A device explained: its steps, their accounting, idle time by cause."""
