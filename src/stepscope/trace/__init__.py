"""The canonical trace: schema, storage, metadata and import problems. Imports nothing above it.

``schema`` declares every table once; ``store`` writes and reads the Parquet directory; ``trace``
is one process's or rank's data opened for reading; ``cache`` keeps imported files.
"""
