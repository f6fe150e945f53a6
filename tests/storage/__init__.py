"""The log on disk: what a crash, a flipped bit, a full disk and a failing sync may not do to it."""
