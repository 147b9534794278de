"""Reports: named tables that answer standing questions, one file each under ``catalog``.

A Python file in a report folder builds its own with the names exported here.
"""

from stepscope.reports.report import Argument, Arguments, Column, Report
from stepscope.reports.source import Source

__all__ = ["Argument", "Arguments", "Column", "Report", "Source"]
