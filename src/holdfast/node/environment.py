"""Settings in the environment, and which other variables there begin like them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Final

from holdfast.model.errors import ConfigError

PREFIX: Final = "HOLDFAST_"
# Read elsewhere, and no settings of a broker.
NO_SETTINGS: Final = frozenset(
    (
        # Of commands: the settings file, the broker to ask, no greeting, which event loop.
        *("HOLDFAST_CONFIG", "HOLDFAST_SERVER", "HOLDFAST_QUIET", "HOLDFAST_LOOP"),
        "HOLDFAST_SPARK_CLASS_ARCHIVE",
        # Of tests and chaos.
        *("HOLDFAST_LONG", "HOLDFAST_SEED", "HOLDFAST_TEST_LOOP", "HOLDFAST_SCREENSHOTS", "HOLDFAST_CHAOS_IS_EXECUTOR"),
    )
)
# Kubernetes tells each container where its services are. One that is called holdfast makes names like these.
_KUBERNETES: Final = re.compile(r"(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)")
_KUBERNETES_URL: Final = re.compile(r"(?:\w+_)?PORT")


def settings_in(environment: Mapping[str, str], settings: Collection[str]) -> dict[str, str]:
    """The settings that the environment has. Raises `ConfigError` for a name that nothing here reads.

    It may be misspelt, and a broker that ran without it would keep less than its owner thinks.
    """
    found = {}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable in NO_SETTINGS:
            continue
        name = variable.removeprefix(PREFIX)
        if name.lower() in settings:
            found[name.lower()] = value
        elif not _is_of_kubernetes(name, value):
            raise ConfigError(f"in the environment: there is no setting {variable}{_hint(variable, settings)}")
    return found


def _is_of_kubernetes(name: str, value: str) -> bool:
    return _KUBERNETES.fullmatch(name) is not None or (_KUBERNETES_URL.fullmatch(name) is not None and "://" in value)


def _hint(variable: str, settings: Collection[str]) -> str:
    # Without what all begin with, which would make any of them look close.
    known = [*(name.upper() for name in settings), "CONFIG", "SERVER", "QUIET"]
    close = difflib.get_close_matches(variable.removeprefix(PREFIX).upper(), known, n=1)
    return f"; did you mean {PREFIX}{close[0]}?" if close else "; unset it, or see docs/configuration.md"
