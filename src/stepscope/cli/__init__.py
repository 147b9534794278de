"""The command line: thin commands over :mod:`stepscope.api`, one file each."""
