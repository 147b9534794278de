"""Levers, one file each; see :mod:`stepscope.diagnosis.lever`."""
