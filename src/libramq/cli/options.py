"""Options that several commands share, under mqadmin's names."""

import os
from enum import StrEnum
from typing import Annotated, Final

import typer

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
#: Apache's clients and tools read the same variable (MixAll.NAMESRV_ADDR_ENV).
NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Damaged(StrEnum):
    """What to do with a damaged store: `libramq.store.config.Damaged`, which a help text need not load."""

    SKIP = "skip"
    CUT = "cut"


WhatOfDamage = Annotated[
    Damaged | None,
    typer.Option(
        "--damaged",
        help="For this start, where the commit log cannot be read although it was on the disk: skip what "
        "cannot be read, or cut the log there and keep the rest aside. Without it the broker does not start "
        "then, and says what each would lose.",
        show_default=False,
    ),
]
Namesrv = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namesrvAddr",
        help=f"Name servers, several separated by ';'. Default: ${NAMESRV_VARIABLE} or {DEFAULT_NAMESRV}.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Topic = Annotated[str, typer.Option("-t", "--topic", help="The topic.")]
Group = Annotated[str, typer.Option("-g", "--groupName", "--consumerGroup", help="The consumer group.")]
Log = Annotated[LogLevel, typer.Option("--log-level", help="What is logged to standard error.")]
Master = Annotated[str, typer.Option(help="Spark's master: local[*], spark://HOST:PORT, yarn, k8s://….")]
Archive = Annotated[
    str | None,
    typer.Option(help="Packages that a cluster's workers lack, as .tar.gz; docs/clusters.md says how."),
]
Conf = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark's; as often as needed.")
]
AllowPublic = Annotated[
    bool, typer.Option("--allow-public", help="Listen on an address that other machines can reach.")
]


def name_servers(given: str | None) -> str:
    """The name servers to use: what was given, else the environment's, else this machine's."""
    return given or os.environ.get(NAMESRV_VARIABLE) or DEFAULT_NAMESRV
