"""What an engineer of this field knows, one entry a file: terms, threads, calls, errors, tools.

An entry is a TOML file under ``entries/KIND``; its name is its id. ``stepscope explain``, the
glossary and the pages of reference are made from them. What has a registry of its own (causes,
reports, limiters ...) is not repeated here: :mod:`stepscope.api.terms` asks those.
"""
