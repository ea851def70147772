"""The send-back of failed messages: the delay level of their redelivery, when they become dead letters, and
the copy that is sent if a broker refuses.

Upstream: DefaultMQPushConsumerImpl.sendMessageBack, sendMessageBackAsNormalMessage.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

from libramq.client.consuming.consumer_settings import RECONSUME_TIMES_MAX, ConsumerSettings
from libramq.client.consuming.queues.owned_queue import HandlerError
from libramq.client.producing.send_request import Prepared, SendSettings
from libramq.logs import get_logger
from libramq.message import properties as names
from libramq.message.delay_level import DELAY_LEVEL_MAX, DELAY_LEVELS_MS, delay_ms
from libramq.message.message import MessageExt
from libramq.message.names import dlq_topic, retry_topic
from libramq.message.properties import properties_to_text
from libramq.remoting.headers import SendBackHeader

log = get_logger(__name__)

#: MixAll.CLIENT_INNER_PRODUCER_GROUP.
INNER_PRODUCER: Final = SendSettings(group="CLIENT_INNER_PRODUCER")
#: The broker's first redelivery has delay level 3 (AbstractSendMessageProcessor).
FIRST_RETRY_LEVEL: Final = 3
#: CONSUMER_SEND_MSG_BACK: the broker chooses the level by the number of attempts.
CHOSEN_BY_BROKER: Final = 0
#: CONSUMER_SEND_MSG_BACK: the broker makes the message a dead letter.
DEAD_LETTER: Final = -1
_SEPARATORS: Final = str.maketrans(
    dict.fromkeys((names.NUL, names.NAME_VALUE_SEPARATOR, names.PROPERTY_SEPARATOR), " ")
)
#: The usual outcome for the messages of a failed handler, for the log: see `what_follows`.
REDELIVERED: Final = "its messages are redelivered later"
_PULL_ONLY: Final = (names.MIN_OFFSET, names.MAX_OFFSET, names.TRANSACTION_PREPARED)


def delay_level(after_ms: int | None) -> int:
    """Return the lowest delay level that is at least as long."""
    if after_ms is None:
        return CHOSEN_BY_BROKER
    return min(bisect_left(DELAY_LEVELS_MS, after_ms) + 1, DELAY_LEVEL_MAX)


def send_back_header(
    message: MessageExt,
    settings: ConsumerSettings,
    delay_level: int,
    *,
    is_counted: bool = True,
    pass_on_ms: int = 0,
    error: HandlerError | None = None,
) -> SendBackHeader:
    """Return the request by which the broker redelivers its stored message, or makes it a dead letter."""
    kept = _kept(message, settings, delay_level, error)
    return SendBackHeader(
        offset=message.physical_offset,
        group=settings.group,
        delay_level=delay_level,
        origin_msg_id=message.message_id,
        origin_topic=message.topic,
        max_reconsume_times=settings.retries_max,
        lb_uncounted=None if is_counted else True,
        lb_pass_on_ms=pass_on_ms or None,
        lb_error_type=kept.get(names.ERROR_TYPE),
        lb_error_text=kept.get(names.ERROR_TEXT),
    )


def retry_copy(
    message: MessageExt, settings: ConsumerSettings, delay_level: int, *, error: HandlerError | None = None
) -> Prepared:
    """Return a copy for the group's retry topic, as the broker would make it.

    After too many attempts it becomes a dead letter.
    """
    properties = {name: value for name, value in message.properties.items() if name not in _PULL_ONLY}
    properties.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
    properties[names.RETRY_TOPIC] = message.topic
    properties |= _kept(message, settings, delay_level, error)
    properties[names.DELAY] = str(
        delay_level if delay_level > 0 else FIRST_RETRY_LEVEL + message.reconsume_times
    )
    return Prepared(
        topic=retry_topic(settings.group),
        ids=(message.message_id,),
        properties=properties_to_text(properties),
        body=message.body,
        flag=message.flag,
        reconsume_times=message.reconsume_times + 1,
        max_reconsume_times=0 if delay_level == DEAD_LETTER else settings.retries_max,
    )


def _kept(
    message: MessageExt, settings: ConsumerSettings, delay_level: int, error: HandlerError | None
) -> dict[str, str]:
    """Return the properties of a dead letter that describe its exception; none for other messages."""
    is_dead = delay_level == DEAD_LETTER or settings.is_last_attempt(message.reconsume_times)
    if error is None or not is_dead or not settings.dead_letter_errors:
        return {}
    kind, text = (each.translate(_SEPARATORS) for each in error)
    return {names.ERROR_TYPE: kind, names.ERROR_TEXT: text}


def log_rejected(message: MessageExt, group: str) -> None:
    """Log that a handler made a message a dead letter."""
    log.warning(
        f"a handler rejected a message; it becomes a dead letter in {dlq_topic(group)}",
        topic=message.topic,
        message_id=message.message_id,
    )


def log_dead_letter(message: MessageExt, group: str, error: HandlerError | None) -> None:
    """Log that a message has failed for the last time; error: its handler's exception, if any."""
    about = {} if error is None else {"error": error.kind, "reason": error.text}
    log.error(
        f"a message failed for the last time; it becomes a dead letter in {dlq_topic(group)}",
        topic=message.topic,
        message_id=message.message_id,
        attempts=message.reconsume_times + 1,
        **about,
    )


def failure_of(
    messages: Sequence[MessageExt], settings: ConsumerSettings
) -> tuple[str, Mapping[str, object]]:
    """Return the log text for a failed handler's messages, and fields about the first one's attempt."""
    about: dict[str, object] = {"group": settings.group}
    if not settings.broadcasting:
        times, endless = messages[0].reconsume_times, settings.retries_max >= RECONSUME_TIMES_MAX
        about["attempt"] = f"{times + 1}" if endless else f"{times + 1} of {settings.retries_max + 1}"
        if not settings.is_last_attempt(times) and not settings.pop:
            # A broker redelivers it by its level, if it has Apache's.
            level = FIRST_RETRY_LEVEL + max(times, 0)
            again_ms = settings.suspend_ms if settings.orderly else delay_ms(level)
            about["next_attempt"] = f"in {again_ms / 1000:g} s"
    return what_follows(messages, settings), about


def what_follows(messages: Sequence[MessageExt], settings: ConsumerSettings) -> str:
    """Return the log text for the outcome of a failed handler's messages."""
    if settings.broadcasting:
        return "its messages are dropped: a broadcasting group has no redelivery"
    last = sum(settings.is_last_attempt(message.reconsume_times) for message in messages)
    if not last:
        return REDELIVERED
    topic = dlq_topic(settings.group)
    if last < len(messages):
        of_all = f"{last} of its {len(messages)} messages"
        return f"{of_all} become dead letters in {topic}, the others are redelivered"
    return (
        f"its {'message becomes a dead letter' if last == 1 else 'messages become dead letters'} in {topic}"
    )
