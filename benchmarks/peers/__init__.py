"""The servers that are measured: how each is found, configured, started and ended."""
