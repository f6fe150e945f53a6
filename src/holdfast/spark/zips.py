"""Files that executors are sent, as a zip in the cache: of the same files it is the same, and made once."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.spark.java import cache_directory

# A zip has no clock: the same files make the same bytes.
_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)


def zip_of(name: str, files: Mapping[str, bytes]) -> Path:
    """`<cache>/<name>-<digest>.zip` of files by their paths in it, made unless it is there."""
    digest = hashlib.sha256(b"\0".join(path.encode() + b"\0" + text for path, text in files.items())).hexdigest()[:12]
    target = cache_directory() / f"{name}-{digest}.zip"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}")
        with open(made, "wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                for path, text in files.items():
                    archive.writestr(zipfile.ZipInfo(path, _LONG_AGO), text, zipfile.ZIP_DEFLATED)
            # Under its name it is taken for whole for ever, so it must not get there before its bytes do.
            file.flush()
            os.fsync(file.fileno())
        made.replace(target)
    return target
