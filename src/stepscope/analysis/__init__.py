"""Pure functions from canonical tables to results: no files, no rendering, no network."""
