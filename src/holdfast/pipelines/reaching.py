"""The first contact of a pipeline's command: who is not there is told soon, by the option that names it."""

from __future__ import annotations

import socket
from typing import Final

from holdfast.model.errors import OutcomeUnknown
from holdfast.pipelines.errors import BadPipelineSetting, PipelineFailed

# Once it runs, a broker may be away for longer (`brokerTimeout`): by then its address has proved right.
BROKERS_S: Final = 30.0
_MASTER_S: Final = 5.0
_STANDALONE: Final = "spark://"
# What all of Spark says once its master has turned it away, or has not answered.
_GONE: Final = "stopped SparkContext"


class NotReached(OutcomeUnknown):
    """Nobody answers at an address that an option names."""

    code = "connection_lost"


def reach_brokers(servers: str) -> None:
    """Wait for one of these brokers, for half a minute."""
    from holdfast.client import ConnectionLost, connect_blocking

    try:
        connect_blocking(servers if "://" in servers else f"holdfast://{servers}", timeout_s=BROKERS_S).close()
    except ConnectionLost as error:
        raise NotReached(f"{error.message}. Start the broker, or correct --server") from error


def reach_master(master: str) -> None:
    """Look whether a standalone master is there: Spark asks for a minute, and then says something else."""
    if not master.startswith(_STANDALONE):
        return
    failures = []
    for place in master.removeprefix(_STANDALONE).split(","):
        host, _, port = place.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise BadPipelineSetting(
                f"--master {master} has no port; write spark://HOST:PORT, as in spark://{place}:7077"
            )
        try:
            socket.create_connection((host.strip("[]"), int(port)), _MASTER_S).close()
        except OSError as error:
            failures.append(f"{place}: {error.strerror or error}")
        else:
            return
    raise NotReached(
        f"no Spark master answers at {master} ({'; '.join(failures)}). Start it, correct --master, or leave that out "
        "to run on this machine"
    )


def is_master_gone(master: str, error: Exception) -> bool:
    return not master.startswith("local") and _GONE in str(error)


def master_gone(master: str) -> PipelineFailed:
    return PipelineFailed(
        f"Spark at {master} ended it: the master did not take it, or went away. Look at the master's page and log, and "
        "start the pipeline again; --conf spark.log.level=WARN shows what Spark says"
    )
