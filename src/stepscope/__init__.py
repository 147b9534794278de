"""Stepscope: why is my training step slow, and what happens if I fix it?"""

__version__ = "0.1.0"
