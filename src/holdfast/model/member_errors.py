"""What can go wrong where nodes of a cluster come and go; with codes as in `errors`."""

from __future__ import annotations

from holdfast.model.errors import CallerError, NotFound, Unavailable


class NodeNotFound(NotFound):
    """There is no such node in this cluster, or not any more."""

    code = "node_not_found"


class NodeNameTaken(CallerError):
    """A node that is up goes by this name already."""

    code = "node_name_taken"
    http_status = 409


class MembershipChanging(CallerError):
    """One node at a time comes or goes, and another one does now. Nothing was changed."""

    code = "membership_changing"
    http_status = 409


class WouldLoseQuorum(CallerError):
    """Without this node the others could not decide anything, or not lead. Nothing was changed."""

    code = "would_lose_quorum"
    http_status = 409


class NodeRemoved(Unavailable):
    """This node was taken out of its cluster. Nothing was stored: go to another node."""

    code = "node_removed"
