"""What one of a plain pair must know after a restart: its part, its reign, and how far it has come.

`plain.json` in the data directory::

    {"token": "5f0c…", "role": "primary", "has_met": true, "reign": [3, "5f0c…"], "previous": [2, "91aa…"], "base": 70,
     "drained": 69, "apart": [], "kept": 60, "cut": null, "given": null, "void": {"t": [[7, 9]]}}

`token` is drawn once. `role`, `reign`, `previous` and `base` are as in `consensus/plain_standing.py`; the setting only
counts where there is no such file. `has_met`: it has heard of its partner at least once. Journal entries below
`drained` are in their topics; those in `apart` are, too, as delivered ones. From `kept` on a partner may need them.
`given`: how much of its own was given to the winner of a reign. `cut`: the journal is to be cut here (or, below its
start, to begin anew here), which was not finished yet. `void`: offsets of topics whose messages were given away
(`orphans.py`).

The file is replaced as a whole and synced with its name before anything is done that it speaks of. `drained`, `apart`
of a backup, and `kept` only ever lag behind: more is looked at then, and found to be done. Crash case: the old file is
there, and what it would have allowed was not done.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from holdfast.consensus.plain_standing import NO_REIGN, Reign
from holdfast.model.errors import DataDirectoryError
from holdfast.storage.durable import replace_file, sync_directory

FILE: Final = "plain.json"


class Note(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    role: Literal["primary", "backup"]
    has_met: bool = False
    reign: Reign = NO_REIGN
    previous: Reign = NO_REIGN
    base: int = 0
    drained: int = 0
    apart: list[tuple[int, int]] = msgspec.field(default_factory=list)
    kept: int = 0
    cut: int | None = None
    given: tuple[Reign, int] | None = None
    void: dict[str, list[tuple[int, int]]] = msgspec.field(default_factory=dict)


class NoteFile:
    """The note of one data directory."""

    def __init__(self, directory: Path, first_role: Literal["primary", "backup"]) -> None:
        self._path = directory / FILE
        try:
            self.note = msgspec.json.decode(self._path.read_bytes(), type=Note)
        except FileNotFoundError:
            self.note = Note(token=secrets.token_hex(8), role=first_role)
            self._store(self.note)
        except (OSError, msgspec.DecodeError) as error:
            raise DataDirectoryError(
                f"cannot read {self._path}: {error}; restore it, or begin with an empty directory as a backup"
            ) from error

    def write(self, **changes: Any) -> None:
        """Durable on return. Raises `OSError`; the old note counts then."""
        note = msgspec.structs.replace(self.note, **changes)
        if note != self.note:
            self._store(note)
            self.note = note

    def _store(self, note: Note) -> None:
        replace_file(self._path, msgspec.json.encode(note) + b"\n")
        sync_directory(self._path.parent)
