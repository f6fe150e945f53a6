"""The connector as a zip of Python files, for executors that have nothing but Python, pyspark, pyarrow and numpy.

Pipelines are in it, too. One that needs more of an executor than the connector does says so where it is documented.

Spark copies it to where each executor runs (`spark.files`), and its Python workers look into it
(`spark.executorEnv.PYTHONPATH`). `addPyFile` would not do: what it adds is not seen by what reads a Python source.
`python -m holdfast.spark.shipping` prints both as options of `spark-submit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import holdfast
from holdfast.spark.zips import zip_of

# What executors import: for the connector the first two, which need nothing compiled, and for pipelines the others.
_PACKAGES: Final = (
    "model",
    "spark",
    "backends",
    "broker",
    "pipelines",
    "recovery",
    "storage",
    "transactions",
    "wire",
)
_SUFFIXES: Final = (".py", ".sql")


def connector_zip() -> Path:
    """`<cache>/holdfast-connector-<digest>.zip`, made unless it is there."""
    root = Path(holdfast.__file__).parent
    files = {
        f"holdfast/{path.relative_to(root)}": path.read_bytes()
        for path in (
            root / "__init__.py",
            *(file for name in _PACKAGES for file in sorted((root / name).rglob("*")) if file.suffix in _SUFFIXES),
        )
    }
    return zip_of("holdfast-connector", files)


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
