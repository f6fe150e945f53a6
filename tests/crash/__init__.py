"""Real processes, real kills, real disks that fail: what was acknowledged is there afterwards."""
