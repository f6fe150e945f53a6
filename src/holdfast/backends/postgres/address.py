"""Where the database is, as the setting `store` says it. A password in it is for the driver alone."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from holdfast.model.errors import ConfigError

# Started by the broker itself, under its data directory.
EMBEDDED: Final = "postgres"
_SCHEMES: Final = ("postgresql", "postgres")
_HIDDEN: Final = "***"
# Whatever stands where a password would: also in a text that is no good address, and up to the last @, since a
# password may hold anything.
_PASSWORD = re.compile(r"((?:^|:/{1,2})[^\s/?#@:]*):(?!/)(.*)@", re.DOTALL)
_PASSWORD_PARAMETER = re.compile(r"(?i)\b(password|passfile|sslpassword)=('[^']*'|[^&\s]*)")


def check(text: str) -> None:
    """Raises `ConfigError`, which does not repeat the password."""
    if text == EMBEDDED:
        return
    try:
        parts = urlsplit(text)
        if "," not in parts.netloc:  # several hosts, each with its port, are the driver's to read
            _ = parts.port
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in _SCHEMES:
        raise ConfigError(
            f"store is {shown(text)!a}; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, or postgres for one "
            "that the broker starts itself"
        )
    if parts.fragment or (parts.netloc and "@" in text and "@" not in parts.netloc):
        raise ConfigError(
            f"store is {shown(text)!a}, which cannot be read; in a user or password write %2F for /, %3F for ?, "
            "%23 for # and %40 for @"
        )
    if not parts.hostname and "host" not in dict(parse_qsl(parts.query)):
        raise ConfigError(f"store is {shown(text)!a}, which names no host; for a Unix socket add ?host=/directory")


def shown(text: str) -> str:
    """The same for people: without what is secret."""
    hidden = _PASSWORD.sub(rf"\1:{_HIDDEN}@", text)
    return _PASSWORD_PARAMETER.sub(rf"\1={_HIDDEN}", hidden)


def place(text: str) -> str:
    """Host and database alone, for messages."""
    parts = urlsplit(text)
    host = parts.netloc.rpartition("@")[2] or dict(parse_qsl(parts.query)).get("host", "")
    return f"{unquote(parts.path.lstrip('/')) or 'the default database'} at {host}"


def over_socket(directory: str, user: str, database: str) -> str:
    """The address of a database that listens on a Unix socket in a directory."""
    return urlunsplit(("postgresql", f"{quote(user)}@", f"/{quote(database)}", urlencode({"host": directory}), ""))
