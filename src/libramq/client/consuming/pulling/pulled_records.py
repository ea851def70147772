"""The pulled records: the messages of one pull, parsed as whole arrays, without an object for each.

        pull reply ─► Records ─► PulledRecords ─► record batch        by `Consumer.batches`
                                       └────────► MessageExt          by index

The structure of every record is checked on receipt. numpy and pyarrow are imported with the first pull.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Self, overload

from libramq.errors import BodyDamaged, ConfigError, needs_extra
from libramq.message import properties as names
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.message.record import decode_records, stored_record

if TYPE_CHECKING:
    import pyarrow as pa

    from libramq.columns.fields import Positions
    from libramq.columns.records import Records

#: Properties that `Pulling` adds to messages; records and batches lack them.
_ADDED = (names.MIN_OFFSET, names.MAX_OFFSET)


class PulledRecords(Sequence[MessageExt]):
    """Messages of one queue, in order. rows: their positions in the records; all by default."""

    __slots__ = ("_broker_name", "_made", "_records", "_rows")

    def __init__(
        self,
        records: "Records",
        broker_name: str,
        rows: "Positions | range | None" = None,
        made: "list[pa.RecordBatch] | None" = None,
    ) -> None:
        self._records = records
        self._broker_name = broker_name
        self._rows = range(len(records)) if rows is None else rows
        #: The columns of all records, once they were made; slices share them.
        self._made = [] if made is None else made

    @classmethod
    def of(cls, data: bytes, broker_name: str, offset: int = 0, *, check_crc: bool = False) -> Self:
        """Parse the body of a pull reply; raises RemoteProtocolError, with check_crc also BodyDamaged.

        offset: the offset of the pull; a batch may begin before it.
        """
        from libramq.columns.records import Records

        records = Records(bytes(data), wrapped=True)
        if check_crc and not records.has_good_crcs():
            raise BodyDamaged("the body of a message does not match its checksum")
        if records.wrapped_rows:
            return cls._unwrapped(records, broker_name, offset)
        return cls(records, broker_name)

    @classmethod
    def _unwrapped(cls, records: "Records", broker_name: str, offset: int) -> Self:
        from libramq.columns.unwrapped import UnwrappedRecords

        messages = UnwrappedRecords(records)
        import numpy as np

        first = int(np.searchsorted(messages.queue_offsets, offset))
        return cls(messages, broker_name, range(first, len(messages)))

    @classmethod
    def of_messages(cls, messages: Iterable[MessageExt], broker_name: str) -> Self:
        """Return the records of messages that were decoded before batches were wanted."""
        return cls.of(b"".join([stored_record(each, added=_ADDED) for each in messages]), broker_name)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> MessageExt: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> MessageExt | Self:
        """Return one message, decoded anew each time, or a slice."""
        if isinstance(index, slice):
            return type(self)(self._records, self._broker_name, self._rows[index], self._made)
        (message,) = decode_records(
            self._records.record(int(self._rows[index])), broker_name=self._broker_name
        )
        return message

    def queue_offset(self, index: int) -> int:
        """Return the queue offset of one message, without decoding it."""
        return self._records.queue_offset(int(self._rows[index]))

    def physical_offset(self, index: int) -> int:
        """Return the physical offset of one message."""
        return self._records.physical_offset(int(self._rows[index]))

    def store_timestamp_ms(self, index: int) -> int:
        """Return the store time of one message."""
        return self._records.store_timestamp_ms(int(self._rows[index]))

    @property
    def size(self) -> int:
        """Return the size of the whole reply, which stays in memory as long as any of its records does."""
        return self._records.size

    def with_tags(self, tags: Collection[str]) -> Self:
        """Return the messages with one of these tags."""
        import numpy as np

        found = self._records.tags().to_pylist()
        rows = [row for row in self._rows if found[row] in tags]
        return type(self)(self._records, self._broker_name, np.array(rows, dtype=np.int64), self._made)

    def batch(self, schema: "pa.Schema") -> "pa.RecordBatch":
        """Return the messages as a record batch with the columns of the schema."""
        rows, made = self._rows, self._made
        if not made or not made[0].schema.equals(schema):
            made[:] = [self._records.batch([(self._broker_name, self._records.size)], schema)]
        if isinstance(rows, range):
            return made[0] if len(rows) == len(made[0]) else made[0].slice(rows.start, len(rows))
        return made[0].take(rows)


def schema_of(columns: Sequence[str] | None) -> "pa.Schema":
    """Return the schema of batches with these columns, all by default; raises ConfigError."""
    with needs_extra("batches()", "arrow"):
        from libramq.columns.records import COLUMNS, arrow_schema
    if columns is None:
        return arrow_schema(COLUMNS)
    if isinstance(columns, str) or not columns:
        raise ConfigError(f"columns is a list of names, not {columns!r}; there are {', '.join(COLUMNS)}")
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or len(set(columns)) < len(columns):
        raise ConfigError(f"columns are some of {', '.join(COLUMNS)}, each once, not {list(columns)}")
    return arrow_schema(columns)


def queue_offset_at(messages: Sequence[MessageExt], index: int) -> int:
    """Return the queue offset of one message, decoded or not.

    The ends of each pull are read many times, and PulledRecords decode a message anew each time.
    """
    return (
        messages.queue_offset(index) if isinstance(messages, PulledRecords) else messages[index].queue_offset
    )


def ends_of(messages: Sequence[MessageExt]) -> tuple[int, int]:
    """Return the physical offset of the first message and the store time of the last."""
    if isinstance(messages, PulledRecords):
        return messages.physical_offset(0), messages.store_timestamp_ms(-1)
    return messages[0].physical_offset, messages[-1].store_timestamp_ms


def record_batch(
    queue: MessageQueue, messages: Sequence[MessageExt], schema: "pa.Schema"
) -> "pa.RecordBatch":
    """Return messages of a queue, decoded or not, as a record batch."""
    if not isinstance(messages, PulledRecords):
        messages = PulledRecords.of_messages(messages, queue.broker_name)
    return messages.batch(schema)
