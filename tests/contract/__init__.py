"""One contract, every backend: what `broker/backend.py` promises, checked the same way wherever messages live."""
