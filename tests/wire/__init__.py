"""Codecs against somebody else's implementation, against slow references, and against nonsense."""
