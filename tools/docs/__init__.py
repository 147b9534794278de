"""The reference documentation, generated from the registries: ``python3 dev.py docs``."""
