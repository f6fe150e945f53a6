"""Parts that most brokers do not need are not installed with all of them: what to say where one is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from holdfast.model.errors import ConfigError


@contextlib.contextmanager
def needs_postgres() -> Iterator[None]:
    """Raises `ConfigError` where what is imported within is not installed."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"a PostgreSQL store needs the package {error.name}, which is not installed: "
            "run pip install -e '.[postgres]' in the directory of the sources, with the pip of this environment"
        ) from error
