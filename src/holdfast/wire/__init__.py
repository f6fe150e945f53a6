"""Pure codecs: bytes to values and back. No sockets, no files, no clock."""
