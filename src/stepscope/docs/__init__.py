"""The reference documentation, generated from the registries: ``python -m stepscope.docs``.

For those who work on Stepscope itself: it writes into the repository it is run from.
"""
