"""The message run: messages of one batch send, for one queue, stored together or not at all.

What they share is kept once, and what differs in columns, which are packed together (`run_packing`): a value
and a result for each message took most of a batch's time in the broker.
"""

from collections.abc import Sequence
from typing import NamedTuple, final

import msgspec

from libramq.message.ids import encode_offset_ids
from libramq.store.log.append import AppendResult, StoreMessage


@final
class MessageRun(NamedTuple):
    """Messages in their order, a column for each field that may differ.

    suffix: what the properties of all of them end with. What they share is as in StoreMessage.
    """

    topic: str
    queue_id: int
    bodies: Sequence[bytes]
    properties: Sequence[bytes]
    tag_codes: Sequence[int]
    flags: Sequence[int]
    suffix: bytes = b""
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class RunResult(AppendResult, frozen=True, gc=False):
    """The positions of a stored run; `end` is that of its last message, the other fields the first one's."""

    positions: list[int] = msgspec.field(default_factory=list)

    @property
    def offset_ids(self) -> str:
        """Return the offset message ids of all, as in the answer to their send."""
        return encode_offset_ids(self.store_host, self.positions)


def run_of_one(message: StoreMessage) -> MessageRun:
    """Return a message as a run."""
    return MessageRun(
        message.topic,
        message.queue_id,
        (message.body,),
        (message.properties_text,),
        (message.tag_code,),
        (message.flag,),
        b"",
        message.sys_flag,
        message.born_timestamp_ms,
        message.born_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
    )


def halves_of(message: StoreMessage | MessageRun) -> Sequence[MessageRun]:
    """Return a run as two with half of its messages each; none for a single message."""
    if isinstance(message, StoreMessage) or len(message.bodies) < 2:
        return ()
    middle = len(message.bodies) // 2
    return part_of(message, slice(middle)), part_of(message, slice(middle, None))


def part_of(run: MessageRun, part: slice) -> MessageRun:
    """Return some of a run's messages."""
    return run._replace(
        bodies=run.bodies[part],
        properties=run.properties[part],
        tag_codes=run.tag_codes[part],
        flags=run.flags[part],
    )


def joined(results: Sequence[AppendResult]) -> AppendResult:
    """Return the result of a run that was stored in parts: the first refusal, if there is one."""
    refused = next((each for each in results if not isinstance(each, RunResult)), None)
    if refused is not None:
        return refused
    first = results[0]
    positions = [at for each in results if isinstance(each, RunResult) for at in each.positions]
    return RunResult(
        first.status, first.physical_offset, results[-1].end - first.physical_offset, first.queue_offset,
        first.store_timestamp_ms, first.store_host, positions,
    )  # fmt: skip
