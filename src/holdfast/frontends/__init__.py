"""Bytes in, broker calls, bytes out. A front end holds no rule of the broker."""
