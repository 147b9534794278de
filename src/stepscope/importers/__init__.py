"""Readers of captured formats, one folder each: ``sniff`` a path, ``read`` it into the store."""
