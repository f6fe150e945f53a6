"""What is archived, and how; checked before Spark is started, or even installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.pipelines.errors import BadPipelineSetting

_COMPACT_FILES_MIN: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """As `docs/pipelines.md` has them; exactly one of `topics` and `pattern`."""

    servers: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    group: str = "archive"
    batch_bytes: int = 256 << 20
    file_bytes: int = 128 << 20
    compact_files: int = 8
    keep_replaced_s: float = 3600.0
    allow_gaps: bool = False

    def __post_init__(self) -> None:
        if bool(self.topics) == (self.pattern is not None):
            raise BadPipelineSetting("which topics? Name them, or give --pattern, and not both")
        if self.compact_files < _COMPACT_FILES_MIN:
            raise BadPipelineSetting(f"--compact-files is at least {_COMPACT_FILES_MIN}: that many files become one")
