"""The recipes that ship, one file each, which sets ``RECIPE``."""
