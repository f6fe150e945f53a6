"""The connector as a zip of Python files, for executors that have nothing but Python, pyspark, pyarrow and numpy.

Spark copies it to where each executor runs (`spark.files`), and its Python workers look into it
(`spark.executorEnv.PYTHONPATH`). `addPyFile` would not do: what it adds is not seen by what reads a Python source.
`python -m holdfast.spark.shipping` prints both as options of `spark-submit`.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import holdfast
from holdfast.spark.java import cache_directory

# What executors import; everything else of Holdfast stays here.
_PACKAGES: Final = ("model", "pipelines", "spark")
# A zip has no clock: the same files make the same bytes.
_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)


def connector_zip() -> Path:
    """`<cache>/holdfast-connector-<digest>.zip`, made unless it is there."""
    root = Path(holdfast.__file__).parent
    files = {
        f"holdfast/{path.relative_to(root)}": path.read_bytes()
        for path in (
            root / "__init__.py",
            *(file for name in _PACKAGES for file in sorted((root / name).rglob("*.py"))),
        )
    }
    digest = hashlib.sha256(b"\0".join(name.encode() + b"\0" + text for name, text in files.items())).hexdigest()[:12]
    target = cache_directory() / f"holdfast-connector-{digest}.zip"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in files.items():
                archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), text)
        made.replace(target)
    return target


def cluster_config(config: Mapping[str, str] | None = None) -> dict[str, str]:
    """Settings with which executors get the connector; for sessions that `session` does not make."""
    settings = dict(config or {})
    shipped = connector_zip()
    files = [settings.get("spark.files", ""), str(shipped)]
    settings["spark.files"] = ",".join(filter(None, files))
    paths = [f"./{shipped.name}", settings.get("spark.executorEnv.PYTHONPATH", "")]
    settings["spark.executorEnv.PYTHONPATH"] = ":".join(filter(None, paths))
    return settings


if __name__ == "__main__":
    print(" ".join(f"--conf {name}={value}" for name, value in cluster_config().items()))
