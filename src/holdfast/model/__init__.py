"""The words of the system: ids, messages, topics, errors and limits. Imports nothing of ours."""

# All codes of brokers are known as soon as any are: what a `RemoteError` is depends on its code.
from holdfast.model import errors, member_errors

__all__ = ["errors", "member_errors"]
