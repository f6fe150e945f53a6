"""The command line as people and scripts use it: the real program, a real broker, real signals."""
