"""The text protocol over real sockets, as its users see it."""
