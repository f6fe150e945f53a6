"""The campaigns of `python -m chaos`, one module each: `add_options` says what it is told, `main` does it."""
