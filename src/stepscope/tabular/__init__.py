"""What reports and rules share: rows under a scope, statistics, attribution, arguments."""
