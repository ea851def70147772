"""A listing: a whole table of topics or groups, or a page of it, encoded once per version of the table; and
the size of a page.

    no parameters                          everything: an old client
    sequence, data version, page size      [sequence, sequence + page size) in the order of names;
                                           from the beginning if the version is outdated

A client continues until it has all entries. Large replies are encoded on a thread, one after the other, so a
hundred requests for one version cause one encoding.

Upstream: AdminBrokerProcessor.getAllTopicConfig, TopicConfigManager.subTopicConfigTable.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from libramq.codes import ResponseCode
from libramq.errors import ProtocolError, broker_error
from libramq.formats.document import decode_body, encode_body
from libramq.formats.tables import (
    DataVersion,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from libramq.rpc.outcome import Outcome, Reply, reply_encoded

#: BrokerConfig.splitMetadataSize.
PAGE_MAX: Final = 2_000
#: Ours: an entry takes 10 µs to encode; larger replies are encoded on a thread.
INLINE_ENTRIES_MAX: Final = 100
#: Ours: cached replies of one version: everything, and 50,000 topics in pages of PAGE_MAX.
ANSWERS_KEPT: Final = 26
#: Ours: three numbers with their names.
DATA_VERSION_CHARACTERS_MAX: Final = 256

Table = TopicConfigSerializeWrapper | SubscriptionGroupWrapper


class Page(NamedTuple):
    """The page that a client requested."""

    data_version: str
    sequence: int
    size: int


def requested_page(data_version: str | None, sequence: int | None, count: int | None) -> Page | None:
    """Return the requested page, None for everything; raises BrokerError for an invalid one."""
    if data_version is None and sequence is None and count is None:
        return None
    if (sequence or 0) < 0 or (count is not None and count < 1):
        raise broker_error(
            ResponseCode.INVALID_PARAMETER,
            f"a page of {count} from {sequence} on; ask for 1 or more from 0 on",
        )
    return Page(data_version or "", sequence or 0, min(PAGE_MAX, count or PAGE_MAX))


class _Encoded:
    """The encoded pages of one version, never of two, even if several requests encode at once."""

    def __init__(self, version: DataVersion, names: list[str]) -> None:
        self.version = version
        self.names = names
        self.answers: dict[tuple[int, int] | None, bytes] = {}


class Listing:
    """The encoded pages of a table's latest version. field: the paged member of the table."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._encoded = _Encoded(DataVersion(counter=-1), [])

    def answer(self, table: Table, page: Page | None, ext: Mapping[str, str]) -> Outcome:
        """Return the reply for a table or a page of it, now or when it is encoded."""
        key = None
        if page is not None:
            key = (page.sequence if _is_version(page.data_version, table.data_version) else 0, page.size)
        encoded = self._encoded
        body = encoded.answers.get(key) if encoded.version == table.data_version else None
        if body is not None:
            return Reply(ext=dict(ext), body=body)
        if len(getattr(table, self._field)) <= INLINE_ENTRIES_MAX:
            return Reply(ext=dict(ext), body=self._encode(table, key))
        return reply_encoded(partial(self._encode, table, key), dict(ext))

    def _encode(self, table: Table, key: tuple[int, int] | None) -> bytes:
        """Encode a reply, unless an earlier request has done so."""
        entries = getattr(table, self._field)
        encoded = self._encoded
        if encoded.version != table.data_version:
            encoded = self._encoded = _Encoded(table.data_version, sorted(entries))
        body = encoded.answers.get(key)
        if body is None:
            if key is not None:
                names = encoded.names[key[0] : key[0] + key[1]]
                changes: dict[str, Any] = {self._field: {name: entries[name] for name in names}}
                table = msgspec.structs.replace(table, **changes)
            body = encode_body(table)
            if len(encoded.answers) < ANSWERS_KEPT:
                encoded.answers[key] = body
        return body


def _is_version(text: str, version: DataVersion) -> bool:
    if not text.strip() or len(text) > DATA_VERSION_CHARACTERS_MAX:
        return False
    try:
        return decode_body(text.encode(), DataVersion) == version
    except (ProtocolError, UnicodeError):
        return False
