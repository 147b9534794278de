"""The ranks of one job."""
