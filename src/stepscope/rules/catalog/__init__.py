"""The rules; each module registers one or more as ``RULES``."""
