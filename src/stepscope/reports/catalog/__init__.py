"""The reports that ship with Stepscope; each module registers one or more as ``REPORTS``."""
