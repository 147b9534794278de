"""Results as text: terminal, Markdown, JSON, CSV. Results in, text out."""
