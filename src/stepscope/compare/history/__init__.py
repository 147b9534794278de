"""The history of runs: an SQLite file, a folder of Parquet files, or a PostgreSQL server."""

from stepscope.compare.history.model import Entry, Mark, Plot, Record, record_of, suspects
from stepscope.compare.history.store import History, Store

__all__ = ["Entry", "History", "Mark", "Plot", "Record", "Store", "record_of", "suspects"]
