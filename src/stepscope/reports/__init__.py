"""Reports: named tables that answer standing questions, one file each under ``catalog``.

A Python file in a report folder builds its own with the names exported here.
"""

from stepscope.tabular.report import Argument, Arguments, Column, Report
from stepscope.tabular.source import Source

__all__ = ["Argument", "Arguments", "Column", "Report", "Source"]
