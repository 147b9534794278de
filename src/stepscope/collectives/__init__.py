"""Collectives of several ranks: matched, on one clock, with waiting apart from transferring."""
