"""The embedded backend: one broker, its own disk. Messages in segment files, everything else in SQLite."""
