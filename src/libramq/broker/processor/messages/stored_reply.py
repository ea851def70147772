"""RocketMQ's reply for messages that were stored, or not."""

from libramq.broker.messages.message_log import MessageLog
from libramq.rpc.outcome import Outcome, Reply, ReplyWhenAnnounced, ReplyWhenDurable
from libramq.store.log.append import AppendResult


def stored_reply(
    log: MessageLog, reply: Reply | ReplyWhenAnnounced, last: AppendResult, *, is_send: bool = False
) -> Outcome:
    """Return the answer for stored messages: at once, or when the last of them is safe."""
    return ReplyWhenDurable(last.end, reply, is_send) if log.must_wait else reply


def refusal(log: MessageLog, result: AppendResult) -> Reply:
    """Return the reply for a message that was not stored."""
    error = log.refused(result)
    return Reply(error.response_code, error.remark)
