"""The text front end: the seeds' pipe-separated packets over TCP (`wire/text.py` has the format)."""
