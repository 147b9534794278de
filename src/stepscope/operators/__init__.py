"""Operators against the ceilings of the device."""
