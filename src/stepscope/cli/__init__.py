"""The command line: thin commands over :mod:`stepscope.session`, one file each."""
