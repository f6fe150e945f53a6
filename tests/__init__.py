"""Everything that tries to make Holdfast lose, invent or repeat a message."""
