"""Options that several commands share, under mqadmin's names, with the default name server and the parsing of
times and durations.
"""

import os
import re
import time
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from libramq.errors import ConfigError

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
#: Apache's clients and tools read the same variable (MixAll.NAMESRV_ADDR_ENV).
NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"


class LogLevel(StrEnum):
    """The log levels."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _log(context: typer.Context, level: LogLevel) -> LogLevel:
    """Set up logging before the command begins."""
    if not context.resilient_parsing:  # Shell completion must be quick, like --help.
        from libramq import logs

        logs.log_to_stderr(level)
    return level


class Damaged(StrEnum):
    """The treatment of a damaged store: `libramq.store.config.Damaged`, not imported to keep --help quick."""

    SKIP = "skip"
    CUT = "cut"


WhatOfDamage = Annotated[
    Damaged | None,
    typer.Option(
        "--damaged",
        help="How to start with a damaged commit log: skip the unreadable parts, or cut the log there and "
        "set the rest aside. Without this option the broker refuses to start and reports the losses of "
        "each choice.",
        show_default=False,
    ),
]
Namesrv = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namesrvAddr",
        help="Name servers, several separated by ';', or the URL of a list of them. "
        f"Default: ${NAMESRV_VARIABLE} or {DEFAULT_NAMESRV}.",
        show_default=False,
    ),
]
ConfigFile = Annotated[Path, typer.Option("-f", "--filename", help="A file with a list, as JSON.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Topic = Annotated[str, typer.Option("-t", "--topic", help="The topic.")]
Group = Annotated[str, typer.Option("-g", "--groupName", "--consumerGroup", help="The consumer group.")]
Log = Annotated[
    LogLevel,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help=f"Log messages of this level and above, on standard error: {', '.join(LogLevel)}.",
        callback=_log,
    ),
]
Master = Annotated[str, typer.Option(help="Spark's master: local[*], spark://HOST:PORT, yarn, k8s://….")]
Archive = Annotated[
    str | None,
    typer.Option(help="A .tar.gz of packages that the cluster's workers lack; see docs/clusters.md."),
]
Conf = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting for Spark; may be repeated.")
]
Secure = Annotated[
    bool,
    typer.Option(
        "--secure",
        help="Encrypt and authenticate clients, with a certificate and a first user created in DATA/secure.",
    ),
]
BrokerOptions = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="An option of broker.conf; may be repeated."),
]
KafkaPort = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, help="Serve Kafka's clients on this port; further brokers on the next ones."
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65535,
        help="Serve Prometheus metrics on this port of 127.0.0.1; further brokers use the next ones.",
    ),
]
BrokerFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "-c",
        "--configFile",
        help="A broker.conf for all brokers (docs/configuration.md); may be repeated.",
    ),
]
KeepGoing = Annotated[
    bool,
    typer.Option(
        "--keep-going",
        help="Do not restart a further broker that ends.",
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option("--property", "-p", metavar="NAME=VALUE", help="A property; may be repeated."),
]
Rows = Annotated[
    bool,
    typer.Option(
        "--rows",
        help="Lines are JSON objects with body, tags, keys, properties …, as from libra tail --json.",
    ),
]
TailFrom = Annotated[
    str,
    typer.Option(
        "--from",
        help="Where to begin: earliest, latest, a time (2026-05-01T08:30), or 10m for ten minutes ago.",
    ),
]
TailFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="The output for each message: text with {body}, {stored}, {queue}, {offset}, {keys}, {p.NAME} …",
    ),
]
Host = Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1, or a loopback --advertise.")]
Advertise = Annotated[
    str | None,
    typer.Option(
        metavar="IP",
        help="IP address to which clients connect, if it differs from --host, as behind a container's "
        "published ports.",
    ),
]
AllowPublic = Annotated[
    bool, typer.Option("--allow-public", help="Allow listening on an address that other machines can reach.")
]


def name_servers(option: str | None) -> str:
    """Return the name servers: the option's, or else the environment's, or else this machine's."""
    namesrv = chosen_name_servers(option)
    if "/" not in namesrv:
        return namesrv
    from libramq.transport.address import is_lookup
    from libramq.transport.name_server_lookup import fetch

    return ";".join(fetch(namesrv)) if is_lookup(namesrv) else namesrv


def chosen_name_servers(option: str | None) -> str:
    """Return the name servers, or the URL of their list."""
    return option or os.environ.get(NAMESRV_VARIABLE) or DEFAULT_NAMESRV


def timestamp_of(text: str) -> int:
    """Parse a time in mqadmin's notations (milliseconds are optional); return milliseconds since 1970."""
    if text == "now":
        return time.time_ns() // 1_000_000
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    try:
        seconds, _, milliseconds = text.rpartition(":") if text.count(":") == 3 else (text, "", "0")
        moment = datetime.strptime(seconds, "%Y-%m-%d#%H:%M:%S")
        return round(moment.timestamp() * 1_000) + int(milliseconds)
    except (ValueError, OverflowError):
        raise ConfigError(f"{text!r} is not a time: now, milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS") from None


#: The year 10000, the end of Python's dates; RocketMQ's timestamps go much further.
MOMENT_MS_MAX: Final = 253_402_300_800_000
_AGO: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str) -> int:
    """Parse a duration such as 500ms, 10s, 5m, 2h or 3d; return milliseconds."""
    found = _AGO.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} is not a duration: write a number with ms, s, m, h or d, such as 10s")
    return int(found[1]) * _UNITS_MS[found[2]]


def moment_ms(text: str) -> int:
    """Parse a date and time, a time ago, or one of mqadmin's notations; return milliseconds since 1970."""
    at_ms = _any_moment_ms(text)
    if not 0 <= at_ms < MOMENT_MS_MAX:
        raise ConfigError(f"{text!r} is not a time from 1970 to 9999")
    return at_ms


def _any_moment_ms(text: str) -> int:
    if _AGO.fullmatch(text):
        return timestamp_of("now") - duration_ms(text)
    if re.fullmatch(r"\d{9,}", text):  # 1767010112345 could also be read as 23:45 on a day in 1767.
        return int(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1_000)
    except (ValueError, OverflowError):
        pass
    try:
        return timestamp_of(text)
    except ConfigError:
        raise ConfigError(
            f"{text!r} is not a time: write 2026-05-01 or 2026-05-01T08:30 (in this machine's time zone, "
            "unless one follows), 10m for ten minutes ago, or milliseconds since 1970"
        ) from None


def truth_of(option: str, text: str) -> bool:
    """Parse `true` or `false`."""
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{option} is true or false, not {text!r}")
    return text.lower() == "true"
