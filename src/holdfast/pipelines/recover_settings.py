"""What a recovery may be told, checked before anything is started; for whoever has no Spark."""

from __future__ import annotations

from typing import Final

from holdfast.model.limits import PARTITIONS_PER_TOPIC_MAX
from holdfast.pipelines.errors import BadPipelineSetting

ORDERS: Final = ("time", "kept")
ORDER_DEFAULT: Final = ORDERS[0]
# The setting of a broker that starts a PostgreSQL itself, which ends with it.
_EMBEDDED: Final = "postgres"


def check(store: str | None, servers: str | None, order_by: str, partitions: int) -> None:
    """Raises `BadPipelineSetting`."""
    if (store is None) == (servers is None):
        raise BadPipelineSetting("where to? Give --store URL for a PostgreSQL, or --server HOST:PORT for brokers")
    if store == _EMBEDDED:
        raise BadPipelineSetting(
            "the store is a broker's own PostgreSQL: start that broker and give its address with --server"
        )
    if order_by not in ORDERS:
        raise BadPipelineSetting(f"--order-by {order_by}: there are {', '.join(ORDERS)}")
    if not 1 <= partitions <= PARTITIONS_PER_TOPIC_MAX:
        raise BadPipelineSetting(f"--partitions {partitions}: a topic has 1 to {PARTITIONS_PER_TOPIC_MAX}")
