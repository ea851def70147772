"""Appending: messages of any protocol, checked, completed and stored.

        Draft ─► topic, queue, size, properties ─► log ─► the disk, if it is flushed synchronously ─► answered

`SendMessage` uses the same checks, and adds the features of RocketMQ's producers: topics created by a send,
retries, delays, batches.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from libramq.broker.messages import stored_properties
from libramq.broker.messages.message_log import MessageLog
from libramq.broker.messages.stored_properties import BrokerProperties
from libramq.catalog.requirements import Requirements
from libramq.clock import MonotonicMs, WallMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.kernel.gate import Gate, Gated, Missing
from libramq.kernel.waiter import Waiter
from libramq.message import properties as p
from libramq.message.ids import UniqueIdGenerator, born_host
from libramq.message.sys_flag import INNER_BATCH
from libramq.message.tags import tag_code
from libramq.store.log.append import NOT_SAFE, AppendResult, StoreMessage
from libramq.store.log.message_run import MessageRun, RunResult
from libramq.store.retention.disk_space import DiskSpace


class Draft(NamedTuple):
    """A message in its protocol's form.

    properties: the stored text (`message.properties`), with a separator behind each.

    born_ms: when its producer made it; None: now.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: str = ""
    born_ms: int | None = None


def _count(result: AppendResult) -> int:
    """Return how many messages a result is of."""
    return len(result.positions) if isinstance(result, RunResult) else 1


def _place(draft: Draft) -> tuple[str, int, int | None]:
    """Return what the messages of a run have in common."""
    return draft.topic, draft.queue_id, draft.born_ms


class _Stored(Gated):
    """Messages that are stored, but not yet on the disk."""

    __slots__ = ("_results", "_waiter")

    def __init__(self, results: Sequence[AppendResult], waiter: Waiter[Sequence[AppendResult]]) -> None:
        super().__init__(waiter.connection)
        self._results = results
        self._waiter = waiter

    def succeed(self) -> None:
        """Answer that they are on the disk."""
        self._waiter.answer(self._results)

    def fail(self, missing: Missing = Missing.ANSWER) -> None:
        """Answer: it is stored, and not as safe as it should be."""
        self._waiter.refuse(broker_error(*NOT_SAFE[missing]))


class Appending:
    """Stores messages. durability: the gate at which messages wait until they are on the disk."""

    def __init__(
        self,
        *,
        requirements: Requirements,
        log: MessageLog,
        durability: Gate,
        disk_space: DiskSpace,
        properties: BrokerProperties,
        unique_id: UniqueIdGenerator,
        message_bytes_max: int,
    ) -> None:
        self._requirements = requirements
        self._log = log
        self._durability = durability
        self._disk_space = disk_space
        self._properties = properties
        self._unique_id = unique_id
        self._message_bytes_max = message_bytes_max

    def append(
        self,
        drafts: Sequence[Draft],
        waiter: Waiter[Sequence[AppendResult]],
        *,
        wall_ms: WallMs,
        now_ms: MonotonicMs,
        stored: Callable[[int, int], None] | None = None,
    ) -> None:
        """Store messages by one write; the waiter gets their positions once they are safe.

        Raises BrokerError, and stores nothing, if one of them is refused. Where no file of the log holds all
        of them, the first ones may be stored although the disk refused the others. stored: called before
        anything else with how many were stored, if any, and where they end.
        """
        for topic, queue_id in dict.fromkeys((draft.topic, draft.queue_id) for draft in drafts):
            self._requirements.queue_to_write(topic, queue_id)
        self._require_space(now_ms)
        sender = born_host(waiter.connection.address)
        messages = self._runs(drafts, sender, wall_ms)
        if messages is None:
            messages = [self._message(draft, sender, wall_ms) for draft in drafts]
        results = self._log.append(messages)
        done = [result for result in results if result.is_ok]
        if stored is not None and done:
            stored(sum(map(_count, done)), done[-1].end)
        for result in results:
            if not result.is_ok:
                raise self._log.refused(result)
        self.answer_when_safe(results, waiter)

    def append_batch(
        self,
        draft: Draft,
        count: int,
        waiter: Waiter[Sequence[AppendResult]],
        *,
        wall_ms: WallMs,
        now_ms: MonotonicMs,
        stored: Callable[[int, int], None] | None = None,
    ) -> None:
        """Store a batch of so many messages as one record, in a queue of batches (`message.inner_batch`).

        Raises BrokerError, and stores nothing, if it is refused. stored: as for `append`.
        """
        self._requirements.queue_to_write(draft.topic, draft.queue_id)
        self._require_space(now_ms)
        self.check_size(draft.body)
        message = StoreMessage(
            draft.topic,
            draft.queue_id,
            draft.body,
            self._properties.added_to(draft.properties).encode("utf-8", "replace"),
            sys_flag=INNER_BATCH,
            born_timestamp_ms=int(wall_ms) if draft.born_ms is None else draft.born_ms,
            born_host=born_host(waiter.connection.address),
            count=count,
        )
        self._log.require_storable(message)
        results = self._log.append([message])
        if not results[0].is_ok:
            raise self._log.refused(results[0])
        if stored is not None:
            stored(count, results[0].end)
        self.answer_when_safe(results, waiter)

    def _require_space(self, now_ms: MonotonicMs) -> None:
        no_space = self._disk_space.refusal(now_ms)
        if no_space is not None:
            raise broker_error(ResponseCode.SERVICE_NOT_AVAILABLE, no_space)

    def answer_when_safe(
        self, results: Sequence[AppendResult], waiter: Waiter[Sequence[AppendResult]]
    ) -> None:
        """Answer with the positions of stored messages once they are safe; they may be stored long since."""
        if results and self._log.must_wait:
            self._durability.wait(_Stored(results, waiter), results[-1].end)
        else:
            waiter.answer(results)

    def _runs(
        self, drafts: Sequence[Draft], sender: bytes, wall_ms: WallMs
    ) -> list[StoreMessage | MessageRun] | None:
        """Return messages as runs of those with one queue and time: what these share is done once.

        None if one of them must be looked at by itself, or if no file of the log may hold all: a run is
        stored as a whole.
        """
        encoded = self._with_ids(drafts)
        plain = self._properties.suffix_of_all_plain(encoded) if encoded else None
        if plain is None or plain[1]:
            return None
        suffix = plain[0]
        longest = max(map(len, encoded)) + len(suffix)
        size = sum([len(draft.body) for draft in drafts]) + sum(map(len, encoded)) + len(suffix) * len(drafts)
        topics = [draft.topic for draft in drafts]
        if longest > p.PROPERTIES_BYTES_MAX or not self._log.may_hold(topics, size):
            return None
        runs: list[StoreMessage | MessageRun] = []
        start = 0
        for (topic, queue_id, born_ms), of_place in groupby(drafts, key=_place):
            bodies = [draft.body for draft in of_place]
            end, zeros = start + len(bodies), [0] * len(bodies)
            runs.append(
                MessageRun(
                    topic, queue_id, bodies, encoded[start:end], zeros, zeros, suffix,
                    born_timestamp_ms=int(wall_ms) if born_ms is None else born_ms, born_host=sender,
                )
            )  # fmt: skip
            start = end
        return runs

    def _with_ids(self, drafts: Sequence[Draft]) -> list[bytes]:
        """Return the properties of messages with a unique id each; none if that is not all they need."""
        texts = [draft.properties for draft in drafts]
        if (
            p.UNIQ_KEY in "".join(texts)
            or max([len(draft.body) for draft in drafts]) > self._message_bytes_max
        ):
            return []
        key, end = f"{p.UNIQ_KEY}{p.NAME_VALUE_SEPARATOR}", p.PROPERTY_SEPARATOR
        return [
            f"{text}{key}{unique_id}{end}".encode("utf-8", "replace")
            for text, unique_id in zip(texts, self._unique_id.many(len(texts)), strict=True)
        ]

    def _message(self, draft: Draft, sender: bytes, wall_ms: WallMs) -> StoreMessage:
        self.check_size(draft.body)
        text, _ = self.completed(draft.properties)
        message = StoreMessage(
            draft.topic,
            draft.queue_id,
            draft.body,
            text.encode("utf-8", "replace"),
            tag_code(stored_properties.find(text, p.TAGS)),
            born_timestamp_ms=int(wall_ms) if draft.born_ms is None else draft.born_ms,
            born_host=sender,
        )
        self._log.require_storable(message)  # Later the others would be stored without it.
        return message

    def check_size(self, body: bytes) -> None:
        """Refuse a body that is too large."""
        if len(body) > self._message_bytes_max:
            raise broker_error(
                ResponseCode.MESSAGE_ILLEGAL,
                f"message of {len(body)} bytes; maxMessageSize is {self._message_bytes_max}",
            )

    def completed_plain(self, properties: bytes) -> tuple[bytes, bool] | None:
        """Return encoded properties as they are stored, and whether they may have a tag.

        None for those that `completed` and the checks before it must see.
        """
        return self._properties.added_to_plain(properties)

    def suffix_of_all_plain(self, properties: Sequence[bytes]) -> tuple[bytes, bool] | None:
        """Return what is added to the properties of several messages, and whether any may have a tag.

        None if any of them must be looked at by itself.
        """
        return self._properties.suffix_of_all_plain(properties)

    def completed(self, text: str) -> tuple[str, str]:
        """Return properties as they are stored, and the message's unique key.

        Every stored message has those that the broker adds; none has the handle of a pop, because a consumer
        would acknowledge what that names.
        """
        stored_properties.require_storable(text)
        if p.POP_CK in text:
            text = stored_properties.without(text, p.POP_CK)
        if "INNER_" in text:
            for name in (p.INNER_MULTI_QUEUE_OFFSET, p.INNER_BASE, p.INNER_NUM):  # The broker's own.
                text = stored_properties.without(text, name)
            self._log.require_light(stored_properties.find(text, p.INNER_MULTI_DISPATCH))
        unique_key = stored_properties.find(text, p.UNIQ_KEY)
        if unique_key is None:
            unique_key = self._unique_id()
            text = stored_properties.with_property(text, p.UNIQ_KEY, unique_key)
        return self._properties.added_to(text), unique_key
