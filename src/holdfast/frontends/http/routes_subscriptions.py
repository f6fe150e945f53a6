"""The calls for subscriptions that the cluster connects to."""

from __future__ import annotations

from typing import Final

from holdfast.frontends.http import schema, subscriptions
from holdfast.frontends.http.routing import BODY_ERRORS, Answer, Content, Route, ok
from holdfast.model import errors
from holdfast.model.callbacks import CallbackDescription

_DECISION_ERRORS: Final = (errors.Unavailable, errors.NoQuorum, errors.LeaderChanged, errors.NotSupported)

SUBSCRIPTIONS: Final = (
    Route(
        method="POST",
        path="/v1/subscriptions",
        operation="subscribe",
        tag="Subscriptions",
        summary="Have a topic delivered to an address",
        doc=(
            "The cluster connects to `callback` and sends a line for each message; the receiver answers `ACK`. While "
            "it is away its messages wait. A `name` that is known goes on where it stands, at this address."
        ),
        handler=subscriptions.subscribe,
        bodies=(Content(shape=schema.Subscribe, example={"topic": "orders", "callback": "receiver.example.org:9000"}),),
        answers=(
            Answer(
                status=201,
                doc="The subscription, durably.",
                contents=(Content(shape=CallbackDescription),),
                headers=(("Location", "the path of the subscription"),),
            ),
        ),
        errors=(
            *BODY_ERRORS,
            *_DECISION_ERRORS,
            errors.BadTopicName,
            errors.BadCursorName,
            errors.TopicNotFound,
            errors.CallbackRefused,
            errors.TooManySubscriptions,
            errors.TooManyTopics,
        ),
    ),
    Route(
        method="GET",
        path="/v1/subscriptions",
        operation="listSubscriptions",
        tag="Subscriptions",
        summary="List subscriptions and how they stand",
        doc="The node that is asked asks the others; one that does not answer within a second tells nothing.",
        handler=subscriptions.list_subscriptions,
        query=(subscriptions.TOPIC,),
        answers=ok("Every subscription with a callback, by topic and name.", schema.Subscriptions),
        errors=(errors.BadTopicName, *_DECISION_ERRORS),
    ),
    Route(
        method="DELETE",
        path="/v1/subscriptions/{topic}/{name}",
        operation="removeSubscription",
        tag="Subscriptions",
        summary="Remove a subscription",
        doc="Its cursor goes with it.",
        handler=subscriptions.remove_subscription,
        answers=(Answer(status=204, doc="It is gone."),),
        errors=(
            errors.BadTopicName,
            errors.BadCursorName,
            errors.SubscriptionNotFound,
            errors.CrossOrigin,
            *_DECISION_ERRORS,
        ),
    ),
)
