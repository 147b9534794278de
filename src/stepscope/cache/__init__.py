"""The one artifact store: what took long to make, kept on the disk for the next time.

* :mod:`~stepscope.cache.store`: entries, one a trace; locks, publication, sizes, eviction.
* :mod:`~stepscope.cache.inputs`: what a capture holds, told by a digest.
* :mod:`~stepscope.cache.artifacts`: files beside a trace: a name, a revision, how they are made.
* :mod:`~stepscope.cache.arrays`: the form of these files: arrays that are mapped, with checksums.
* :mod:`~stepscope.cache.revisions`: what an artifact depends on.
"""
