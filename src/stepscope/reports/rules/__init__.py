"""Rules: patterns that cost time, each with advice and the places where it applies."""
