"""DuckDB views over stored traces: the user's SQL window and the language of evidence."""
