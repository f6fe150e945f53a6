"""Options that take several values at once, as a shell's pattern gives them: `--sent runs/*.ndjson`."""

from __future__ import annotations

from typing import Any, ClassVar

from typer.core import TyperCommand


class ManyValues(TyperCommand):
    """A command without arguments, so that what follows a value of these options can only be another one."""

    OPTIONS: ClassVar = frozenset(("--sent", "--received"))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spread: list[str] = []
        option, values = None, 0
        for word in args:
            if word.startswith("-"):
                option, values = (word if word in self.OPTIONS else None), 0
            elif option is not None:
                if values:
                    spread.append(option)
                values += 1
            spread.append(word)
        return super().parse_args(ctx, spread)
