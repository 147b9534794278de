"""Idle time of a device and what explains it."""
