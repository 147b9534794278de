"""Reports: named tables that answer standing questions, one file each under ``catalog``."""
