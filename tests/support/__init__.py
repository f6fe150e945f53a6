"""What the tests share: a broker as a real process, clients that share no code with it, and broken disks."""
