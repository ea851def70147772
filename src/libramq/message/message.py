"""The message: its fields as a producer sends it, as it is stored and received, and as handlers receive it
(copies); how large a body may be.

`Message` is the producer's value. `MessageExt` adds everything a broker knows about it; its byte form is the
record in the commit log and in pull replies.

Upstream: common/message/Message.java, MessageExt.java.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import msgspec

from libramq.message import properties as names
from libramq.message.checksum import crc32
from libramq.message.ids import decode_host, encode_host, encode_offset_id, place_of
from libramq.message.record_head import (
    HEADS,
    HOST_BITS,
    SYS_FLAG_LOW_AT,
    TOPIC_V1_BYTES_MAX,
    RecordFields,
    head_fields,
)
from libramq.message.sys_flag import COMPRESSED

BODY_BYTES_MAX: Final = 4 * 1024 * 1024  # maxMessageSize
#: Replaces the magic in a head shared by all messages of an inner batch. Its offsets are the first message's;
#: size, checksum and place of each message are computed on demand.
IN_A_BATCH: Final = bytes(4)
_host = lru_cache(maxsize=4096)(decode_host)  # There are few producers, but many messages.


#: Converts a body to a value.
Deserializer = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A deserializer that returns an existing value; unlike a closure it can be pickled."""

    value: Any

    def __call__(self, _: bytes) -> Any:
        """Return the value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Message:
    """A message for a producer to send.

    keys: one string or several, by which the message can be queried. properties: the user's own; names with a
    meaning in RocketMQ are refused, except WAIT and the TIMER_DELAY_SEC, TIMER_DELAY_MS and TIMER_DELIVER_MS
    requests. At most one of these delays delivery: delay_level: 0 for none, 1 (one second) to 18 (two hours);
    delay_ms: from the time it is stored; deliver_at: a time with a time zone.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | Sequence[str] = ()
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    delay_ms: int = 0
    deliver_at: datetime | None = None

    @property
    def is_delayed(self) -> bool:
        """Return whether delivery is delayed."""
        return bool(
            self.delay_level
            or self.delay_ms
            or self.deliver_at is not None
            or (self.properties and any(name in self.properties for name in names.TIMER_REQUESTS))
        )

    def all_properties(self) -> dict[str, str]:
        """Return the properties to send: the user's, and those for tags, keys and delay level."""
        together = dict(self.properties)
        if self.keys:
            together[names.KEYS] = self.keys if isinstance(self.keys, str) else " ".join(self.keys)
        if self.tags:
            together[names.TAGS] = self.tags
        if self.delay_level:
            together[names.DELAY] = str(self.delay_level)
        if self.delay_ms:
            together[names.TIMER_DELAY_MS] = str(self.delay_ms)
        if self.deliver_at is not None:
            together[names.TIMER_DELIVER_MS] = str(int(self.deliver_at.timestamp() * 1000))
        return together


def snapshot(message: Message) -> Message:
    """Return a valid message unaffected by later changes to the original's body, keys and properties."""
    if isinstance(message.body, bytes) and not message.properties and isinstance(message.keys, str | tuple):
        return message
    keys = message.keys if isinstance(message.keys, str) else tuple(message.keys)
    return replace(message, body=bytes(message.body), keys=keys, properties=dict(message.properties))


class MessageExt:
    """A message as stored and received: a view that decodes its fields on first access.

    A record's structure is checked on receipt, so no access fails later. Hosts and properties are decoded
    on first access, because most are never read. Do not change it.
    body is the producer's (decompressed); body_crc and store_size are those of the record.
    """

    if not TYPE_CHECKING:  # Declared in `Received`.
        __slots__ = ()
    #: Unhashable, as its fields can change, like a dataclass that is not frozen.
    __hash__ = None  # type: ignore[assignment]
    topic: str
    queue_offset: int
    reconsume_times: int
    body: bytes
    broker_name: str
    _head: RecordFields | bytes
    _stored: bytes
    _added: Mapping[str, str]
    _properties: dict[str, str] | None
    _popped_as: str | None
    _popped_at: int
    _deserializer: Deserializer | None

    def __new__(
        cls,
        *,
        topic: str,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: tuple[str, int],
        store_timestamp_ms: int,
        store_host: tuple[str, int],
        reconsume_times: int,
        prepared_transaction_offset: int,
        body: bytes,
        properties: dict[str, str],
        store_size: int,
        body_crc: int,
        broker_name: str = "",
    ) -> "MessageExt":
        """Return a message with these fields, as if received; for tests of handlers."""
        head: RecordFields = (
            store_size, 0, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag,
            born_timestamp_ms, encode_host(born_host), store_timestamp_ms, encode_host(store_host),
            reconsume_times, prepared_transaction_offset, len(body),
        )  # fmt: skip
        return Received(
            topic, queue_offset, reconsume_times, body, broker_name, head, b"", NONE_ADDED, properties
        )

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in _FIELDS)
        return f"MessageExt({fields})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageExt):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _FIELDS)

    def __ne__(self, other: object) -> bool:
        return not self == other  # Struct's own `__ne__` would compare identities.

    @property
    def _fields(self) -> RecordFields:
        head = self._head
        if isinstance(head, bytes):
            fields = head_fields(head)
            if head[4:8] == IN_A_BATCH:
                fields = self._fields_in_batch(fields)
            head = self._head = fields
        return head

    def _fields_in_batch(self, fields: RecordFields) -> RecordFields:
        """Return the fields of one of a batch's messages as if it had its own record."""
        body, offset, topic_bytes = self.body, self.queue_offset, len(self.topic.encode())
        around_topic = 3 if topic_bytes <= TOPIC_V1_BYTES_MAX else 4
        size = HEADS[fields[7] & HOST_BITS].size + len(body) + around_topic + topic_bytes + len(self._stored)
        place = place_of(fields[6], offset - fields[5])
        return (
            size, 0, crc32(body) & 0x7FFF_FFFF, fields[3], fields[4], offset, place, fields[7], fields[8],
            fields[9], fields[10], fields[11], 0, 0, len(body),
        )  # fmt: skip

    @property
    def queue_id(self) -> int:
        """Return its queue id."""
        head = self._head
        return int.from_bytes(head[12:16], signed=True) if isinstance(head, bytes) else head[3]

    @property
    def physical_offset(self) -> int:
        """Return the position of its record in the broker's log."""
        return self._fields[6]

    @property
    def flag(self) -> int:
        """Return the producer's flag."""
        return self._fields[4]

    @property
    def sys_flag(self) -> int:
        """Return its system flag: see `message.sys_flag`."""
        return self._fields[7]

    @property
    def born_timestamp_ms(self) -> int:
        """Return when its producer sent it, by the producer's clock (ms)."""
        return self._fields[8]

    @property
    def born_host(self) -> tuple[str, int]:
        """Return the address and port of its producer, as the broker saw it."""
        return _host(self._fields[9])

    @property
    def store_timestamp_ms(self) -> int:
        """Return when it was stored, by the broker's clock (ms)."""
        return self._fields[10]

    @property
    def store_host(self) -> tuple[str, int]:
        """Return the address and port of the broker that stored it."""
        return _host(self._fields[11])

    @property
    def prepared_transaction_offset(self) -> int:
        """Return the position of its transaction's half message."""
        return self._fields[13]

    @property
    def store_size(self) -> int:
        """Return the size of its record in bytes."""
        return self._fields[0]

    @property
    def body_crc(self) -> int:
        """Return the checksum of the stored body."""
        return self._fields[2]

    @property
    def properties(self) -> dict[str, str]:
        """Return its properties: the user's, and those of clients and brokers."""
        if self._properties is None:
            properties = names.decode_properties(self._stored)
            properties.update(self._added)
            if self._popped_as is not None:
                properties[names.POP_CK] = f"{self._popped_as} {self._popped_at}"
            self._properties = properties
        return self._properties

    def find_property(self, name: str) -> str | None:
        """Return one property, or None. One added by the receiver is found without decoding the others."""
        if self._properties is None:
            if name in self._added:
                return self._added[name]
            if self._popped_as is not None and name == names.POP_CK:
                return f"{self._popped_as} {self._popped_at}"
        return self.properties.get(name)

    def add_properties(self, added: Mapping[str, str]) -> None:
        """Add properties known to the receiver. The mapping is kept, and must not change."""
        if self._properties is None and not self._added:
            self._added = added
        else:
            self.properties.update(added)

    @property
    def popped_as(self) -> str | None:
        """Return the common beginning of the handles of all messages that were popped together.

        None if the message was not popped, or its properties were read since; then the property counts.
        """
        return self._popped_as if self._properties is None else None

    def name_popped(self, popped_as: str) -> None:
        """Note the beginning of the handle, POP_CK, under which it was popped; its offset completes it."""
        self._popped_as, self._popped_at = popped_as, self.queue_offset
        if self._properties is not None:
            self._properties[names.POP_CK] = f"{popped_as} {self._popped_at}"

    def as_stored(self) -> tuple[bytes, bytes, bytes] | None:
        """Return head, body and properties as stored, or None if they are no longer known.

        For a message of a batch the head is that of its own record, except for the magic.
        """
        head = self._head
        if not isinstance(head, bytes) or self._properties is not None or head[SYS_FLAG_LOW_AT] & COMPRESSED:
            return None
        if head[4:8] == IN_A_BATCH:
            fields = self._fields_in_batch(head_fields(head))
            head = HEADS[fields[7] & HOST_BITS].pack(*fields)
        return head, self.body, self._stored

    def stored_again(self, properties: dict[str, str], queue_offset: int, physical_offset: int) -> None:
        """Adopt the properties and offsets of a stored copy."""
        self._properties = properties
        fields = self._fields
        self.queue_offset = queue_offset
        self._head = (*fields[:5], queue_offset, physical_offset, *fields[7:])

    @property
    def tags(self) -> str | None:
        """Return the tag, or None."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys by which it can be queried."""
        return tuple(self.properties.get(names.KEYS, "").split())

    @property
    def delay_level(self) -> int:
        """Return the delay level it was sent with; 0 for none."""
        level = self.properties.get(names.DELAY, "0")
        return names.whole_number(level, digits_max=9) or 0

    @property
    def offset_id(self) -> str:
        """Return its storage position as an id."""
        return encode_offset_id(self._fields[11], self.physical_offset)

    @property
    def value(self) -> Any:
        """Return the body as converted by the consumer's `deserializer`; raises what that raises.

        Converted on first access. Without a deserializer, the value is the body.
        """
        if self._deserializer is None:
            return self.body
        value = self.decoded_by(self._deserializer)
        self._deserializer = Known(value)  # The next access returns the same object.
        return value

    def decoded_by(self, deserializer: Deserializer) -> Any:
        """Return the body as converted by a function; an exception gets a note that names the message."""
        try:
            return deserializer(self.body)
        except (StopIteration, StopAsyncIteration) as error:  # It would silently end the caller's loop.
            raise RuntimeError(f"the deserializer raised {error!r} for {self._named}") from error
        except Exception as error:
            error.add_note(f"while the body of {self._named} was deserialized")
            raise

    @property
    def _named(self) -> str:
        place = f"{self.topic}, queue {self.queue_id}, offset {self.queue_offset}"
        return f"message {self.message_id} ({place})"

    @property
    def message_id(self) -> str:
        """Return the producer's id of the message, or else its offset id (MessageClientExt.java)."""
        return self.properties.get(names.UNIQ_KEY) or self.offset_id


#: The fields by which messages are compared.
_FIELDS: Final = (
    "topic", "queue_id", "queue_offset", "physical_offset", "flag", "sys_flag", "born_timestamp_ms",
    "born_host", "store_timestamp_ms", "store_host", "reconsume_times", "prepared_transaction_offset", "body",
    "properties", "store_size", "body_crc", "broker_name",
)  # fmt: skip
NONE_ADDED: Final[Mapping[str, str]] = {}
# msgspec accepts no base class with a constructor, so it is removed while `Received` is defined.
_constructor: Final = MessageExt.__dict__["__new__"]
del MessageExt.__new__


class Received(MessageExt, msgspec.Struct, gc=False, eq=False):
    """A message as decoded from a record.

    One is created for every pulled message. A Struct takes 0.05 µs, an ordinary object 0.2; and the garbage
    collector, which took a sixth of a consumer's time, never scans these.
    """

    topic: str
    queue_offset: int
    reconsume_times: int
    body: bytes
    broker_name: str
    #: Its head as stored, until it is decoded; the stored properties, and those that the receiver adds.
    _head: RecordFields | bytes
    _stored: bytes
    _added: Mapping[str, str]
    _properties: dict[str, str] | None = None
    #: The beginning of its handle, POP_CK, if it was popped; its offset at that time completes the handle.
    _popped_as: str | None = None
    _popped_at: int = 0
    _deserializer: Deserializer | None = None


MessageExt.__new__ = _constructor  # type: ignore[method-assign]


def handed_out(messages: Iterable[MessageExt]) -> list[MessageExt]:
    """Return copies of messages for a handler, whose changes do not affect the originals."""
    copies: list[MessageExt] = [*map(_copy, messages)]
    for each in copies:
        if each._properties is not None:
            each._properties = dict(each._properties)
    return copies


def set_deserializer(messages: Iterable[MessageExt], deserializer: Deserializer) -> None:
    """Set the deserializer of messages; it is called when their values are first read."""
    for message in messages:
        message._deserializer = deserializer


_copy: Final = Received.__copy__  # type: ignore[attr-defined]


def name_popped_together(messages: Iterable[MessageExt], popped_as: str) -> None:
    """Call `MessageExt.name_popped` for all messages of one check point."""
    for message in messages:
        message._popped_as, message._popped_at = popped_as, message.queue_offset
        if message._properties is not None:
            message.name_popped(popped_as)


def popped_offsets(messages: Iterable[MessageExt]) -> list[int]:
    """Return the offsets at which messages were popped, regardless of changes to `queue_offset`."""
    return [message._popped_at for message in messages]


def popped_together(messages: Sequence[MessageExt]) -> Iterator[tuple[str | None, Sequence[MessageExt]]]:
    """Yield runs of messages popped together, with their `popped_as`, or None for messages without one.

    Compares the strings by identity: equal handles may be of different topics, as they name none.
    """
    names_of = [each._popped_as if each._properties is None else None for each in messages]
    end = 0
    for _, run in groupby(map(id, names_of)):
        first = end
        end += len(list(run))
        yield names_of[first], messages[first:end]
