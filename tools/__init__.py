"""What the repository needs to work on itself; no part of the package."""
