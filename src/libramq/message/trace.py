"""The trace: clients' records of sent and consumed messages, as encoded in the bodies of the message trace
topic.

    trace    record \\x02 record \\x02 …
    record   name \\x01 field \\x01 field …       the fields in the order of the tuples below, as text

Records of older versions have fewer fields, and those of later ones may have more. A missing text is written
`null`. No record names a queue, and a consumption record names no topic. Keys are not escaped.

Upstream: TraceDataEncoder, TraceConstants and AsyncTraceDispatcher (bodies of 128 KB) in client/trace.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from libramq.errors import RemoteProtocolError

FIELD_END: Final = "\x01"  # TraceConstants.CONTENT_SPLITOR
RECORD_END: Final = "\x02"  # TraceConstants.FIELD_SPLITOR
FIELDS_MAX: Final = 32  # Ours: twice the fields of the longest known record.
TIME_MS_MAX: Final = 253_402_300_800_000  # Ours: the year 10000, beyond Python's calendar.
ABSENT: Final = "null"  # Java's StringBuilder appends this for a null.


class Pub(NamedTuple):
    """A message or batch was sent; commas separate a batch's ids. message_type: Java's MessageType."""

    at_ms: int  # When sending began.
    region: str | None
    group: str | None
    topic: str | None
    unique_id: str | None
    tags: str | None
    keys: str | None
    store_host: str | None
    body_size: int
    cost_ms: int
    message_type: int
    offset_id: str | None  # Missing in the first versions.
    is_success: bool
    client_host: str | None = None


class SubBefore(NamedTuple):
    """A consumer is about to handle a message. request_id: of the listener's call, like a unique id."""

    at_ms: int
    region: str | None
    group: str | None
    request_id: str
    unique_id: str
    retry_times: int
    keys: str | None


class SubAfter(NamedTuple):
    """A consumer has handled a message. context_code: Java's ConsumeReturnType. cost_ms: per message."""

    request_id: str
    unique_id: str
    cost_ms: int
    is_success: bool
    keys: str | None
    context_code: int | None = None
    at_ms: int | None = None
    group: str | None = None


class EndTransaction(NamedTuple):
    """A transaction was ended. transaction_state: Java's LocalTransactionState."""

    at_ms: int
    region: str | None
    group: str | None
    topic: str | None
    unique_id: str | None
    tags: str | None
    keys: str | None
    store_host: str | None
    message_type: int
    transaction_id: str | None
    transaction_state: str
    is_from_check: bool


class Recall(NamedTuple):
    """A delayed message was recalled."""

    at_ms: int
    region: str | None
    group: str | None
    topic: str | None
    unique_id: str | None
    is_success: bool


TraceRecord = Pub | SubBefore | SubAfter | EndTransaction | Recall


class Trace(NamedTuple):
    """The valid records of one body, and the number of invalid ones."""

    records: list[TraceRecord]
    unreadable: int


def encode_trace(records: Iterable[TraceRecord]) -> bytes:
    """Encode records as a body, byte for byte as Java does."""
    return "".join(_encode_record(record) for record in records).encode()


def decode_trace(body: bytes) -> Trace:
    """Decode a body. An invalid or unknown record does not affect the others."""
    records, unreadable = [], 0
    for text in body.decode(errors="replace").split(RECORD_END):
        if not text:
            continue
        try:
            records.append(decode_record(text))
        except RemoteProtocolError:
            unreadable += 1
    return Trace(records, unreadable)


def decode_record(text: str) -> TraceRecord:
    """Decode one record; RemoteProtocolError if it is invalid."""
    name, *fields = text.split(FIELD_END, FIELDS_MAX)
    form = _FORMS.get(name)
    if form is None:
        raise RemoteProtocolError(f"a trace record {name[:40]!r}; there are {', '.join(_FORMS)}")
    while len(fields) > form.fields_min and not fields[-1]:
        fields.pop()  # SubAfter of access channel CLOUD has an additional separator.
    if form.record is Pub and len(fields) == _PUB_FIELDS_FIRST:
        fields.insert(-1, ABSENT)
    if len(fields) < form.fields_min:
        raise RemoteProtocolError(f"{name} with {len(fields)} fields, under {form.fields_min}")
    try:
        made: TraceRecord = form.record(
            *[read(field) for read, field in zip(form.readers, fields, strict=False)]
        )
    except ValueError as error:
        raise RemoteProtocolError(f"{name}: {error}") from None
    return made


def _encode_record(record: TraceRecord) -> str:
    fields: list[object] = list(record)
    match record:
        case Pub(offset_id=None, client_host=None):
            del fields[11], fields[-1]
        case Pub(client_host=None):
            fields.pop()
        case SubAfter(context_code=None):
            del fields[5:]
        case SubAfter(at_ms=None):
            fields[6:] = [""]
    return FIELD_END.join((type(record).__name__, *map(_as_text, fields))) + RECORD_END


def _as_text(value: object) -> str:
    if value is None:
        return ABSENT
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(field: str) -> str | None:
    return None if field == ABSENT else field


def _flag(field: str) -> bool:
    return field.lower() == "true"


def _int(field: str) -> int:
    value = int(field)
    if not -(2**31) <= value < 2**31:
        raise ValueError(f"{field} is no int")
    return value


def _time(field: str) -> int:
    value = int(field)
    if not 0 <= value < TIME_MS_MAX:
        raise ValueError(f"{field} is no time")
    return value


class _Form(NamedTuple):
    """The decoder of a record's fields, and the number of fields in the first version."""

    record: Callable[..., Any]
    fields_min: int
    readers: tuple[Callable[[str], Any], ...]


_PUB_FIELDS_FIRST: Final = 12
_SENT = (_time, _text, _text, _text, _text)
_FORMS: Final[Mapping[str, _Form]] = MappingProxyType(
    {
        "Pub": _Form(
            Pub, 13, (*_SENT, _text, _text, _text, _int, _int, _int, _text, _flag, _text)
        ),
        "SubBefore": _Form(SubBefore, 7, (_time, _text, _text, str, str, _int, _text)),
        "SubAfter": _Form(SubAfter, 5, (str, str, _int, _flag, _text, _int, _time, _text)),
        "EndTransaction": _Form(
            EndTransaction, 12, (*_SENT, _text, _text, _text, _int, _text, str, _flag)
        ),
        "Recall": _Form(Recall, 6, (*_SENT, _flag)),
    }
)  # fmt: skip
