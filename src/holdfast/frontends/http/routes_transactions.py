"""The calls of transactions."""

from __future__ import annotations

from typing import Final

from holdfast.frontends.http import schema, transactions
from holdfast.frontends.http.exchange import BATCHES_TYPE
from holdfast.frontends.http.routing import BODY_ERRORS, Answer, Content, Route, ok
from holdfast.model import errors
from holdfast.model.transactions import CommitResult, WriterDescription

_DECISION_ERRORS: Final = (
    errors.BadWriter,
    errors.CrossOrigin,
    errors.TooManyWriters,
    errors.Unavailable,
    errors.NoQuorum,
    errors.NotLeader,
    errors.LeaderChanged,
    errors.CommitPending,
    errors.ShuttingDown,
    errors.StorageFailed,
    errors.DiskFull,
)

TRANSACTIONS: Final = (
    Route(
        method="POST",
        path="/v1/transactions/{writer}/stage",
        operation="stage",
        tag="Transactions",
        summary="Stage messages",
        doc=(
            "Messages as in publish, or record batches for one partition. They are durable when the answer comes, and "
            "nobody sees them until a commit names their receipts. Ids of messages are kept and not compared: the "
            "transaction is recognised as a whole."
        ),
        handler=transactions.stage,
        query=(
            transactions.TOPIC,
            transactions.NUMBER,
            transactions.PARTITION,
            transactions.ATTEMPT,
            transactions.UNSUMMED,
        ),
        bodies=(
            Content(shape=schema.Publish, example={"messages": [{"value": "text"}]}),
            Content(media_type=BATCHES_TYPE),
        ),
        answers=ok("A receipt for each partition that gets some of it.", schema.StageReceipts),
        errors=(
            *BODY_ERRORS,
            *_DECISION_ERRORS,
            errors.BadTopicName,
            errors.BadMessage,
            errors.BadMessageId,
            errors.BadBatch,
            errors.TopicNotFound,
            errors.PartitionNotFound,
            errors.TooManyTopics,
            errors.TransactionCommitted,
            errors.StagingFull,
            errors.Overloaded,
        ),
    ),
    Route(
        method="POST",
        path="/v1/transactions/{writer}/commit",
        operation="commit",
        tag="Transactions",
        summary="Commit a transaction",
        doc=(
            "Everything that the receipts stand for becomes visible, in their order, or nothing does. The answer comes "
            "when all of it is visible. A number at or below the writer's last is recognised: `duplicate` is true, and "
            "nothing is stored again. A commit that got no answer is sent again."
        ),
        handler=transactions.commit,
        bodies=(Content(shape=schema.Commit, example={"number": 7, "receipts": []}),),
        answers=ok("It is committed, now or before.", CommitResult),
        errors=(
            *BODY_ERRORS,
            *_DECISION_ERRORS,
            errors.BadReceipt,
            errors.StagedExpired,
            errors.TopicNotFound,
            errors.WriterNotFound,
        ),
    ),
    Route(
        method="POST",
        path="/v1/transactions/{writer}/abort",
        operation="abort",
        tag="Transactions",
        summary="Drop what is staged",
        doc="Everything that the writer has staged and not committed is dropped, whatever its number.",
        handler=transactions.abort,
        bodies=(Content(shape=schema.Abort, example={"reason": "the query was stopped"}),),
        is_body_needed=False,
        answers=(Answer(status=204, doc="It is dropped."),),
        errors=(*BODY_ERRORS, *_DECISION_ERRORS),
    ),
    Route(
        method="GET",
        path="/v1/transactions",
        operation="listWriters",
        tag="Transactions",
        summary="List all writers",
        handler=transactions.list_writers,
        answers=ok("Every writer, by name.", schema.Writers),
        errors=(errors.NoQuorum, errors.Unavailable),
    ),
    Route(
        method="GET",
        path="/v1/transactions/{writer}",
        operation="describeWriter",
        tag="Transactions",
        summary="Describe a writer",
        handler=transactions.describe_writer,
        answers=ok("Its last number, and when that was committed.", WriterDescription),
        errors=(errors.BadWriter, errors.WriterNotFound, errors.NoQuorum, errors.Unavailable),
    ),
    Route(
        method="DELETE",
        path="/v1/transactions/{writer}",
        operation="forgetWriter",
        tag="Transactions",
        summary="Forget a writer",
        doc="For writers that write no more: their numbers are kept for ever otherwise. Its numbers then begin anew.",
        handler=transactions.forget_writer,
        answers=(Answer(status=204, doc="It is forgotten."),),
        errors=(
            errors.CommitPending,
            errors.BadWriter,
            errors.WriterNotFound,
            errors.CrossOrigin,
            errors.Unavailable,
            errors.NoQuorum,
            errors.LeaderChanged,
        ),
    ),
)
