"""Experiment trackers that recorded runs can be sent to, imported only when asked for."""
