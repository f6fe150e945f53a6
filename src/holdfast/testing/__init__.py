"""For your own tests: a cluster of real processes on this machine, whose nodes you kill, pause and start again.

::

    from holdfast.testing import LocalCluster

    with LocalCluster(nodes=3) as cluster, cluster.connect_blocking() as broker:
        broker.publish("orders", b"1")
        cluster.kill(cluster.leader("orders"))
        broker.publish("orders", b"2")

`cluster` (all nodes) → `node_process` (one of them) → `leash` (what it runs in); `ports` says where they listen,
`temporary` where they write. It starts processes and uses the client, and knows nothing of what is inside a broker.
"""

from holdfast.testing.cluster import LocalCluster
from holdfast.testing.errors import ClusterFailed
from holdfast.testing.node_process import NodeProcess

__all__ = ["ClusterFailed", "LocalCluster", "NodeProcess"]
