"""The calls that are about the broker and its cluster, not about messages."""

from __future__ import annotations

from typing import Any, Final

from holdfast.frontends.http import cluster, docs_page, health, metrics, openapi, schema
from holdfast.frontends.http.routing import BODY_ERRORS, Answer, Content, Route, ok
from holdfast.model import errors, member_errors
from holdfast.model.cluster import ClusterDescription, MembersDescription

CLUSTER: Final = (
    Route(
        method="GET",
        path="/v1/cluster",
        operation="describeCluster",
        tag="Cluster",
        summary="Describe the cluster",
        doc=(
            "The nodes, who leads, and who is how far behind. The node that is asked asks the others; one that does "
            "not answer within a second is shown as not up. A broker without peers is a cluster of one."
        ),
        handler=cluster.describe_cluster,
        answers=ok("The cluster as this node sees it.", ClusterDescription),
    ),
    Route(
        method="GET",
        path="/v1/cluster/groups",
        operation="listGroups",
        tag="Cluster",
        summary="List the groups",
        doc="The control group and one for each partition, as this node sees them; a leader tells of its followers.",
        handler=cluster.list_groups,
        query=(cluster.TOPIC,),
        answers=ok("The groups: the control group first, then by topic and partition.", schema.Groups),
        errors=(errors.BadTopicName, errors.TopicNotFound, errors.NoQuorum),
    ),
    Route(
        method="POST",
        path="/v1/cluster/transfer",
        operation="transfer",
        tag="Cluster",
        summary="Have another node lead",
        doc="A partition, or without `topic` and `partition` the control group. The answer comes when it does.",
        handler=cluster.transfer,
        bodies=(Content(shape=schema.Transfer, example={"topic": "orders", "partition": 0, "to": "n1"}),),
        answers=ok("Who leads now.", schema.Transferred),
        errors=(
            *BODY_ERRORS,
            errors.BadTopicName,
            errors.TopicNotFound,
            errors.PartitionNotFound,
            errors.NoQuorum,
            errors.NotLeader,
        ),
    ),
)

MEMBERS: Final = (
    Route(
        method="GET",
        path="/v1/cluster/members",
        operation="listMembers",
        tag="Cluster",
        summary="List the members",
        doc=(
            "The nodes of the cluster with their places: who votes, who learns, who is silent and since when, who is "
            "joining or leaving and how far that is. Nodes that have left are listed as removed."
        ),
        handler=cluster.list_members,
        answers=ok("The members as this node sees them.", MembersDescription),
        errors=(errors.NotSupported,),
    ),
    Route(
        method="POST",
        path="/v1/cluster/members/{node}",
        operation="changeMember",
        tag="Cluster",
        summary="Have a node leave, lead nothing, or be replaced",
        doc=(
            "`remove`: it hands over what it leads, then leaves all groups, one voter at a time. `keep`: it stays, "
            "where it is leaving and not gone yet. `drain`: it hands over what it leads, and is given nothing until "
            "`undrain`. `replace`: it leaves as soon as the node `by`, which has joined or is joining, votes in every "
            "group. The answer comes when that is decided; `GET /v1/cluster/members` tells when it is done."
        ),
        handler=cluster.change_member,
        bodies=(Content(shape=schema.MemberChange, example={"change": "undrain"}),),
        answers=(Answer(status=202, doc="It is decided.", contents=(Content(shape=MembersDescription),)),),
        errors=(
            *BODY_ERRORS,
            member_errors.NodeNotFound,
            member_errors.MembershipChanging,
            member_errors.WouldLoseQuorum,
            errors.NotSupported,
            errors.NoQuorum,
            errors.LeaderChanged,
        ),
    ),
)

OPERATION: Final = (
    Route(
        method="GET",
        path="/health",
        operation="health",
        tag="Operation",
        summary="Liveness",
        doc="Answers while the process does, also where nothing can be stored: `database` says whether it can.",
        handler=health.health,
        answers=ok("It does.", schema.Health),
    ),
    Route(
        method="GET",
        path="/ready",
        operation="ready",
        tag="Operation",
        summary="Readiness",
        doc="Whether publishes are taken, and if not, why.",
        handler=health.ready,
        answers=(
            *ok("They are.", schema.Ready),
            Answer(status=503, doc="They are not, and why.", contents=(Content(shape=schema.Ready),)),
        ),
    ),
    Route(
        method="GET",
        path="/metrics",
        operation="metrics",
        tag="Operation",
        summary="Metrics",
        doc="JSON; Prometheus or OpenMetrics text where `Accept` ranks it higher, or `format` says so.",
        handler=metrics.metrics,
        query=(metrics.FORMAT,),
        errors=(errors.BadValue,),
        answers=(
            Answer(
                status=200,
                doc="All metrics as they are now.",
                contents=(
                    Content(shape=schema.Metrics),
                    Content(media_type=metrics.TEXT_TYPE),
                    Content(media_type=metrics.OPENMETRICS_TYPE),
                ),
            ),
        ),
    ),
    Route(
        method="GET",
        path="/v1/info",
        operation="info",
        tag="Operation",
        summary="About this node",
        handler=health.info,
        answers=ok("Version, node, cluster, addresses, uptime.", schema.Info),
    ),
    Route(
        method="GET",
        path="/openapi.json",
        operation="openapi",
        tag="Operation",
        summary="OpenAPI document",
        handler=openapi.openapi,
        answers=ok("An OpenAPI 3.1 document.", dict[str, Any]),
    ),
    Route(
        method="GET",
        path="/docs",
        operation="docs",
        tag="Operation",
        summary="This page",
        handler=docs_page.docs,
        answers=(
            Answer(
                status=200,
                doc="A page that needs no network but this broker.",
                contents=(Content(media_type=docs_page.HTML_TYPE),),
            ),
        ),
    ),
)
