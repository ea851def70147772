"""Redelivery: which message a consumer sent back (another may occupy its offset now), how long its next
attempt is delayed, and after how many attempts it becomes a dead letter.

A copy goes to the group's retry topic after a delay or, after enough attempts, to the group's dead letters.
Upstream: AbstractSendMessageProcessor.java (consumerSendMsgBack, handleRetryAndDLQ).
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from libramq.auth.authorizer import Authorizer, require_permission
from libramq.auth.operation import Consume
from libramq.broker.files.files import BrokerFiles
from libramq.catalog.group_table import GroupTable
from libramq.catalog.topic_table import DLQ_QUEUES, TopicTable
from libramq.clock import MonotonicMs, WallMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.formats.tables import PERM_READ, PERM_WRITE, SubscriptionGroupConfig, TopicConfig
from libramq.groups.queue_lock import QueueLocks
from libramq.kernel.connection import Principal
from libramq.logs import get_logger
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.store.log.append import stored_again

log = get_logger(__name__)

#: The level of a first redelivery; each further one is a level higher: 10 s, 30 s, 1 min …
FIRST_DELAY_LEVEL: Final = 3
#: The broker chooses the delay by the number of attempts.
DELAY_OF_BROKER: Final = 0
#: The level that makes a message a dead letter.
DEAD_LETTER: Final = -1
#: Ours: how long a group's members may leave a topic without a subscriber before its retries become dead
#: letters: a day, in which a deployment that dropped the topic can be reverted.
NO_SUBSCRIBER_MS_MAX: Final = 24 * 60 * 60 * 1000
#: Ours: how often a retry without a subscriber is checked: level 5 is a minute.
WAIT_LEVEL: Final = 5
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_ERROR: Final = (p.ERROR_TYPE, p.ERROR_TEXT)
#: Ours: the limit of our clients; texts of others are truncated.
ERROR_CHARACTERS_MAX: Final = 512
_UNSTORABLE: Final = (p.NUL, p.NAME_VALUE_SEPARATOR, p.PROPERTY_SEPARATOR)


@dataclass(frozen=True, slots=True)
class Target:
    """The message's target, and its delay level (0: at once)."""

    config: TopicConfig
    queue_id: int
    delay_level: int


class Redelivery:
    """The rules of redelivery, with the topics they create."""

    def __init__(
        self, topics: TopicTable, groups: GroupTable, locks: QueueLocks, randomness: random.Random
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._random = randomness

    def target(
        self,
        group: SubscriptionGroupConfig,
        *,
        reconsume_times: int,
        reconsume_times_max: int,
        delay_level: int,
        wall_ms: WallMs,
    ) -> Target:
        """Return the target after another failure; a level below 0 makes the message a dead letter."""
        if reconsume_times >= reconsume_times_max or delay_level < 0:
            return self.dead_letters(group.group_name, wall_ms)
        config = self._topics.for_retries(group, wall_ms)
        level = delay_level or FIRST_DELAY_LEVEL + reconsume_times
        return Target(config, self._random.randrange(config.write_queue_nums), level)

    def dead_letters(self, group: str, wall_ms: WallMs) -> Target:
        """Return the group's dead-letter queue as the target."""
        config = self._topics.for_group(names.dlq_topic(group), DLQ_QUEUES, PERM_READ | PERM_WRITE, wall_ms)
        return Target(config, 0, 0)

    def dead_letters_of_send(
        self, topic: str, times: int, times_max: int | None, *, wall_ms: WallMs, now_ms: MonotonicMs
    ) -> Target | None:
        """Return the dead-letter queue for a client's send to its group's retry topic; None if it goes there.

        The message becomes a dead letter after too many attempts, and in orderly consumption. times_max:
        None: the group's.
        """
        name = names.retry_group(
            topic, is_group=self._groups.__contains__, is_topic=self._topics.__contains__
        )
        group = self._groups.require(name, wall_ms)
        orderly = self._locks.holds_any(group.group_name, now_ms=now_ms)
        if times > (group.retry_max_times if times_max is None else times_max) or orderly:
            return self.dead_letters(group.group_name, wall_ms)
        return None


class SentBack(NamedTuple):
    """A message that a consumer could not handle.

    origin_id: the id by which the consumer knows it; may be empty. times_max: attempts before it becomes a
    dead letter; None or less than 0: the group's. error: the handler's exception, as properties of a dead
    letter.
    """

    group: SubscriptionGroupConfig
    message: MessageExt
    origin_id: str
    times_max: int | None
    wall_ms: WallMs
    error: Mapping[str, str] = NOTHING

    @property
    def topic(self) -> str:
        """Return the topic that the handler subscribes to."""
        return self.message.properties.get(p.RETRY_TOPIC, self.message.topic)


class SendingBack:
    """Stores messages that consumers send back; methods return the log's end to wait for, or 0."""

    def __init__(self, files: BrokerFiles, redelivery: Redelivery, authorizer: Authorizer) -> None:
        self._log, self._groups, self._schedule = files.log, files.tables.groups, files.schedule
        self._redelivery = redelivery
        self._authorizer = authorizer

    def find(
        self,
        group_name: str,
        physical_offset: int,
        origin_id: str,
        times_max: int | None,
        principal: Principal,
        wall_ms: WallMs,
    ) -> SentBack | None:
        """Return the message at an offset; None if its group has no retries. Raises BrokerError."""
        if any(mark in origin_id for mark in _UNSTORABLE):
            raise broker_error(
                ResponseCode.MESSAGE_ILLEGAL,
                "the originMsgId, which is stored as a property, has a NUL or a separator in it",
            )
        group = self._groups.require(group_name, wall_ms)
        if group.retry_queue_nums <= 0:
            return None
        message = self._log.message_at(physical_offset)
        remark = f"look message by offset failed, {physical_offset}"
        if message is None:
            raise broker_error(ResponseCode.SYSTEM_ERROR, remark)
        if not _is_meant(message, origin_id):
            raise broker_error(ResponseCode.SYSTEM_ERROR, f"{remark}: {origin_id} is gone")
        # A request may name a topic, but the offset decides which message the group can read.
        require_permission(self._authorizer, Consume(principal, group_name, (message.topic,)))
        return SentBack(group, message, origin_id, times_max, wall_ms)

    def wait_for_subscriber(self, sent: SentBack) -> int:
        """Repeat a retry, uncounted, until a member subscribes to its topic or a day has passed."""
        about = {"group": sent.group.group_name, "topic": sent.topic, "message_id": sent.message.message_id}
        known = sent.message.properties.get(p.NO_SUBSCRIBER_SINCE, "")[:15]
        wall_ms = int(sent.wall_ms)
        is_known = known.isascii() and known.isdigit()
        since_ms = min(int(known), wall_ms) if is_known else wall_ms  # The clock may have been set back.
        if not is_known:
            log.warning("a retry waits: no member of its group subscribes to its topic", **about)
        if wall_ms - since_ms >= NO_SUBSCRIBER_MS_MAX:
            hours = NO_SUBSCRIBER_MS_MAX // 3_600_000
            log.warning(
                "a retry becomes a dead letter: no member of its group has subscribed to its topic",
                hours=hours,
                **about,
            )
            return self.again(sent, DEAD_LETTER, is_counted=True)
        return self.again(sent, WAIT_LEVEL, is_counted=False, added={p.NO_SUBSCRIBER_SINCE: str(since_ms)})

    def again(
        self, sent: SentBack, delay_level: int, *, is_counted: bool, added: Mapping[str, str] = NOTHING
    ) -> int:
        """Store a copy for another attempt, or as a dead letter. Raises BrokerError.

        If the last delivery was not an attempt (not is_counted), the limit of attempts does not apply.
        """
        group, message, times_max = sent.group, sent.message, sent.times_max
        if times_max is None or times_max < 0:
            times_max = group.retry_max_times
        target = self._redelivery.target(
            group,
            reconsume_times=message.reconsume_times,
            reconsume_times_max=times_max if is_counted else message.reconsume_times + 1,
            delay_level=delay_level,
            wall_ms=sent.wall_ms,
        )
        properties = dict(message.properties)
        properties.setdefault(p.RETRY_TOPIC, message.topic)
        properties.setdefault(p.ORIGIN_MESSAGE_ID, sent.origin_id or message.offset_id)
        properties[p.WAIT] = "false"
        # Properties of an earlier delay do not apply to this one.
        for name in (p.DELAY, p.REAL_TOPIC, p.REAL_QUEUE_ID, p.NO_SUBSCRIBER_SINCE):
            properties.pop(name, None)
        if target.delay_level:
            properties[p.DELAY] = str(target.delay_level)
        elif target.config.topic_name == names.dlq_topic(group.group_name):
            added = {**added, **sent.error}
        again = stored_again(
            message,
            target.config.topic_name,
            target.queue_id,
            {**properties, **added},
            expendable=_ERROR,
            reconsume_times=message.reconsume_times + is_counted,
        )
        if target.delay_level:
            self._schedule.delay(again, str(target.delay_level))
        (result,) = self._log.append_all([again])
        return result.end if self._log.must_wait else 0


def error_properties(kind: str | None, text: str | None) -> dict[str, str]:
    """Return a handler's exception as properties; separators become spaces."""
    found = {}
    for name, value in zip(_ERROR, (kind, text), strict=True):
        kept = "".join(" " if each in _UNSTORABLE else each for each in (value or "")[:ERROR_CHARACTERS_MAX])
        if kept:
            found[name] = kept
    return found


def _is_meant(message: MessageExt, origin_id: str) -> bool:
    """Return whether a request means this message, and not a lost one that had the same offset.

    Under ASYNC_FLUSH, a power cut can lose messages that members still handle, and any others can take their
    place, even the broker's own messages without a unique id. Clients send a message's unique id or its
    offset id. Of an offset id, only the end is compared: it begins with the broker's address, which may have
    changed.
    """
    if not origin_id or origin_id == message.properties.get(p.UNIQ_KEY):
        return True
    return origin_id.upper().endswith(f"{message.physical_offset:016X}")
