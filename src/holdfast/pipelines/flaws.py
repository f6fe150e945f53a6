"""The names of what an audit can find, for whoever has no Spark."""

from __future__ import annotations

from typing import Final

FLAWS: Final = ("lost", "duplicated", "out_of_order", "phantom", "malformed")
