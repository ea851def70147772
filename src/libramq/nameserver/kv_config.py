"""The KV configuration: values by namespace and key that operators store at name servers, with limits and a
file.

    namespace ORDER_TOPIC_CONFIG      topic → "broker:queues;broker:queues", in routes if orderMessageEnable
    any other                         the operators' own

If kvConfigPath is configured, the values are stored in that file, in Apache's format.
Upstream: kvconfig/KVConfigManager.java, KVConfigSerializeWrapper.java.
"""

from pathlib import Path
from typing import Final

from libramq.codes import ResponseCode
from libramq.errors import ConfigError, ProtocolError, broker_error
from libramq.filesystem import FileSystem, read_with_backup
from libramq.formats.document import Document, decode_body, encode_body

#: NamesrvUtil.NAMESPACE_ORDER_TOPIC_CONFIG.
ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
#: Ours: characters of a namespace or key. Apache has no limit.
NAME_LENGTH_MAX: Final = 255
#: Ours: characters of a value, which lists brokers with their queues. Apache has no limit.
VALUE_LENGTH_MAX: Final = 64 * 1024
#: Ours: values in all; the file is written whole at every change, in about 10 ms.
VALUES_MAX: Final = 10_000
#: Ours: characters of all keys and values, for the same reason.
CHARACTERS_MAX: Final = 4 * 1024 * 1024


class KVFile(Document, frozen=True, kw_only=True):
    """The content of kvConfig.json."""

    config_table: dict[str, dict[str, str]] = {}


class KVConfig:
    """The values of one name server. path: their file; None keeps them in memory only."""

    def __init__(self, filesystem: FileSystem | None = None, path: Path | None = None) -> None:
        self._filesystem = filesystem
        self._path = path
        self._tables: dict[str, dict[str, str]] = {}
        if filesystem is not None and path is not None:
            self._tables = _load(filesystem, path)
        self._count = sum(len(table) for table in self._tables.values())
        self._characters = sum(_characters(table) for table in self._tables.values())

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value."""
        return self._tables.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all values of a namespace; None if nothing was ever put there."""
        table = self._tables.get(namespace)
        return None if table is None else dict(table)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; raises BrokerError if it exceeds a limit."""
        for what, text, length_max in (
            ("namespace", namespace, NAME_LENGTH_MAX),
            ("key", key, NAME_LENGTH_MAX),
            ("value", value, VALUE_LENGTH_MAX),
        ):
            if not text and what != "value":
                raise broker_error(ResponseCode.SYSTEM_ERROR, f"the {what} is empty; name one")
            if len(text) > length_max:
                raise broker_error(
                    ResponseCode.SYSTEM_ERROR,
                    f"the {what} has {len(text)} characters; {length_max} are allowed",
                )
        before = self.get(namespace, key)
        grown = len(value) - len(before) if before is not None else len(key) + len(value)
        if self._count + (before is None) > VALUES_MAX or self._characters + grown > CHARACTERS_MAX:
            raise broker_error(
                ResponseCode.SYSTEM_ERROR,
                f"over {VALUES_MAX} values or {CHARACTERS_MAX} characters; delete some first",
            )
        self._tables.setdefault(namespace, {})[key] = value
        self._count += before is None
        self._characters += grown

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if it exists; its namespace stays, as at Apache's name server."""
        value = self._tables.get(namespace, {}).pop(key, None)
        if value is not None:
            self._count -= 1
            self._characters -= len(key) + len(value)

    @property
    def is_kept(self) -> bool:
        """Return whether the values are stored in a file."""
        return self._path is not None

    def encoded(self) -> str:
        """Return the content of the file."""
        return encode_body(KVFile(config_table=self._tables)).decode()

    def write(self, text: str) -> None:
        """Replace the file; called on a thread."""
        assert self._filesystem is not None
        assert self._path is not None, "without a file there is nothing to write"
        self._filesystem.replace_text(self._path, text)


def _characters(table: dict[str, str]) -> int:
    return sum(len(key) + len(value) for key, value in table.items())


def _load(filesystem: FileSystem, path: Path) -> dict[str, dict[str, str]]:
    try:
        found = read_with_backup(filesystem, path, lambda text: decode_body(text.encode(), KVFile))
    except ProtocolError as error:
        raise ConfigError(
            f"{path} cannot be read: {error}; repair it, or remove it to start without its values"
        ) from None
    return {namespace: dict(table) for namespace, table in found.config_table.items()} if found else {}
