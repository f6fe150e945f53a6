"""Transactions: messages are staged where nobody sees them, and one commit shows all of them or none.

    stage ──▶ .holdfast.staged/w ──────────────┐ pieces, hidden
    commit ─▶ .holdfast.transactions/w ──▶ coordinator of w ──▶ the topics ──▶ the writer's number

`staging` stores pieces, `deciding` appends the one record that is the decision, `coordinators` says which partitions of
decisions this node looks after, `coordinator` does what was decided, in order, `copying` brings pieces to their topics,
`sweeping` lets go of what is done with, and `writers` keeps each writer's number. docs/decisions/0024 says why.
"""
