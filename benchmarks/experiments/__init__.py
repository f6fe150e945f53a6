"""Small measurements behind single decisions; each runs on its own with `python -m`."""
