"""The tools that can make a capture. Each module holds one ``BACKEND``; the registry lists them."""
