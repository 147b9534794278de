"""Run against run: profiles, statistics, comparison, baselines, budgets and the run history."""
