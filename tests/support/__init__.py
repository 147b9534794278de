"""Helpers for tests: unpack captures, strip annotations, build small traces."""
