"""One function over many inputs: on the processes of this machine, or on a Dask cluster.

A task is an importable function ``function(input: Path, output: Path, options: dict)`` that makes
one Parquet file of one input, named as ``package.module:function`` (:mod:`.work`). :mod:`.run`
applies it to many inputs; what fails is told, and stops nobody. :mod:`.reduce` puts the files
together. It knows nothing of traces.
"""
