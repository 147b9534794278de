"""Timelines in the formats of other viewers."""
