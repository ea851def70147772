"""Options of a Spark table: parsing of strings into numbers, times, sizes and choices, and the errors for
invalid or unknown options.

Spark's mapping ignores case, and a plain copy of it has lower-case names, so names are compared in lower case
and printed as documented. Each getter's error names the option and the allowed values.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from libramq.errors import ConfigError, nearest_name
from libramq.transport.address import split_name_servers

if TYPE_CHECKING:
    from libramq.transport.access import Access

NAMESRV_DEFAULT: Final = "127.0.0.1:9876"
NUMBER_MAX: Final = (1 << 63) - 1
#: Ours: numbers in this range are probably seconds (September 2001 to the year 5138); as milliseconds they
#: would lie between January 1970 and March 1973.
SECONDS: Final = range(1_000_000_000, 100_000_000_000)

#: Access options of source and sink: this prefix, then the name in libramq.transport.access. Spark redacts
#: the secret ones in plans and logs (spark.redaction.regex).
ACCESS_PREFIX: Final = "rocketmq."
ACCESS: Final = (
    "rocketmq.accessKey", "rocketmq.secretKey", "rocketmq.securityToken", "rocketmq.tls.enable",
    "rocketmq.tls.client.trustCertPath", "rocketmq.tls.client.certPath", "rocketmq.tls.client.keyPath",
    "rocketmq.tls.client.keyPassword", "rocketmq.tls.verify",
)  # fmt: skip

#: Options that have another name here: the names of Spark's Kafka source, and likely guesses.
MEANT: Final = {
    "includeproperties": "includeHeaders",
    "kafka.bootstrap.servers": "namesrv",
    "bootstrap.servers": "namesrv",
    "bootstrapservers": "namesrv",
    "nameserver": "namesrv",
    "namesrvaddr": "namesrv",
    "rocketmq.namesrvaddr": "namesrv",
    "kafka.group.id": "groupId",
    "group.id": "groupId",
    "group": "groupId",
    "consumergroup": "groupId",
    "timeoutmillis": "rocketmq.mqClientApiTimeout",
    "accesskey": "rocketmq.accessKey",
    "secretkey": "rocketmq.secretKey",
    "usetls": "rocketmq.tls.enable",
    "rocketmq.usetls": "rocketmq.tls.enable",
    "rocketmq.tls.client.authserver": "rocketmq.tls.verify",
    "rocketmq.tls.test.mode.enable": "rocketmq.tls.verify",
    "kafka.security.protocol": "rocketmq.tls.enable",
    "kafka.ssl.truststore.location": "rocketmq.tls.client.trustCertPath",
    "assignment": "assign",
}

#: The key that Spark adds to the options of CREATE TABLE. Spark stores those options but does not pass them
#: on when the table is read.
OF_TABLES: Final = "provider"
_VIEW: Final = (
    "Spark passes no OPTIONS of a table to a Python source; "
    "use CREATE TEMPORARY VIEW NAME USING rocketmq OPTIONS (…)"
)

# JavaUtils.timeStringAs: the units of Spark's own durations.
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
# JavaUtils.byteStringAs.
_SIZE: Final = re.compile(r"(\d+)\s*(?:([kmgt])?b?)?")
_BYTES: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MILLIS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(name: str, time_ms: int) -> int:
    """Return a time in milliseconds since 1970; ConfigError if the number must be seconds."""
    if time_ms in SECONDS:
        raise ConfigError(
            f"{name}={time_ms} is before 1974: times are milliseconds; {time_ms * 1000} if these are seconds"
        )
    return time_ms


def hint_at(name: str, names: Collection[str]) -> str:
    """Return a hint: the existing name closest to a misspelt one, or all names."""
    near = nearest_name(name, names)
    return f"did you mean {near}?" if near else f"there are: {', '.join(names)}"


class Options:
    """The options of one table. `known`: their documented names."""

    def __init__(self, options: Mapping[str, str], known: Sequence[str]) -> None:
        self._known = {name.lower(): name for name in known}
        self._options = {name.lower(): str(options[name]) for name in options}
        if OF_TABLES in self._options:
            raise ConfigError(f"format rocketmq cannot be read as a table: {_VIEW}")
        for name in self._options:
            if name not in self._known:
                raise ConfigError(f"format rocketmq has no option {name}; {self._hint(name)}")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._options

    def text(self, name: str) -> str | None:
        """Return the option's text; None if it is not set."""
        return self._options.get(name.lower())

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a flag: true or false."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name}={text!r}: give true or false")
        return text.lower() == "true"

    def number(self, name: str, least: int = 1, most: int = NUMBER_MAX) -> int | None:
        """Return a whole number within bounds."""
        text = self.text(name)
        if text is None:
            return None
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise ConfigError(f"{name}={text!r}: give a whole number from {least} to {most}")
        return number

    def time_ms(self, name: str) -> int | None:
        """Return a time: milliseconds since 1970, or ISO 8601 with a zone."""
        text = self.text(name)
        if text is None:
            return None
        if text.strip().isdecimal():
            return milliseconds(name, int(text))
        try:
            time = datetime.fromisoformat(text.strip())
        except ValueError:
            time = None
        if time is None or time.tzinfo is None or time.timestamp() < 0:
            raise ConfigError(
                f"{name}={text!r}: give a whole number from 0, milliseconds since 1970, or a time with its "
                "zone like 2026-05-01T12:00:00Z"
            )
        return int(time.timestamp() * 1000)

    def duration_ms(self, name: str, default_ms: int) -> int:
        """Return a duration in Spark's notation: 500ms, 30s, 15m, 2h, 1d; milliseconds without a unit."""
        text = self.text(name)
        if text is None:
            return default_ms
        found = _DURATION.fullmatch(text.strip().lower())
        if found is None:
            raise ConfigError(f"{name}={text!r}: give a duration like 500ms, 30s, 15m, 2h or 1d")
        return int(found[1]) * _MILLIS[found[2] or "ms"]

    def size(self, name: str) -> int | None:
        """Return a size in Spark's notation: 500k, 64m, 2g; bytes without a unit."""
        text = self.text(name)
        if text is None:
            return None
        found = _SIZE.fullmatch(text.strip().lower())
        size = int(found[1]) * _BYTES.get(found[2], 1) if found else 0
        if not 1 <= size <= NUMBER_MAX:
            raise ConfigError(f"{name}={text!r}: give a size like 500k, 64m or 2g")
        return size

    def choice(self, name: str, allowed: Sequence[str], default: str) -> str:
        """Return one of the allowed words."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in allowed:
            raise ConfigError(f"{name}={text!r}: give {' or '.join(allowed)}")
        return text.lower()

    def namesrv(self) -> tuple[str, ...]:
        """Return the name servers; the environment's by default."""
        return split_name_servers(self.text("namesrv") or os.environ.get("NAMESRV_ADDR") or NAMESRV_DEFAULT)

    def access(self) -> "Access | None":
        """Return credentials and TLS; None if no option is set."""
        options = {
            name.removeprefix(ACCESS_PREFIX): text for name in ACCESS if (text := self.text(name)) is not None
        }
        if not options:
            return None
        from libramq.transport.access import access_of

        return access_of(options, prefix=ACCESS_PREFIX)

    def exactly_one(self, names: Sequence[str], example: str) -> str:
        """Return the name of the one option that is set; ConfigError unless exactly one is."""
        options = [name for name in names if name in self]
        if len(options) != 1:
            found = " and ".join(options) if options else "none of them"
            table = "" if self._options else f". If this is a table: {_VIEW}"
            raise ConfigError(
                f"format rocketmq needs exactly one of {', '.join(names)}, and got {found}; for example "
                f"{example}{table}"
            )
        return options[0]

    def _hint(self, name: str) -> str:
        meant = MEANT.get(name)
        if meant is not None and meant.lower() in self._known:
            return f"did you mean {meant}?"
        return hint_at(name, self._known.values())
