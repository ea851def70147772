"""The generated parts of the documentation: tables that are made from the code they describe.

A page marks each of them, and everything around them is written by hand:

    <!-- generated: NAME -->
    …
    <!-- end of NAME -->

    python -m tests.docs.generated        writes them into the pages
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Final

import typer
from prometheus_client import Counter, Gauge, Histogram

from libramq.broker.broker_conf import REFUSED
from libramq.broker.config import BrokerConfig
from libramq.broker.metrics import FAMILIES, Metrics
from libramq.cli.main import app
from libramq.client.consuming.ownership import transitions as ownership_transitions
from libramq.groups.coordinator import transitions as group_transitions
from libramq.nameserver.config import NameServerConfig
from libramq.transport.tls_options import OPTIONS

from . import limits as limits_table
from . import modules as module_rows
from . import requests

DOCS: Final = Path(__file__).resolve().parent.parent.parent / "docs"
_PART: Final = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


def broker_options() -> str:
    """Return a table of every option of `broker.conf` that has an effect."""
    rows = [
        (f"`{option.metadata['name']}`", _default(option.default), option.metadata["about"])
        for option in fields(BrokerConfig)
        if option.metadata
    ]
    return _table(("option", "default", "what it does"), rows)


def name_server_options() -> str:
    """Return a table of every option of `namesrv.conf`."""
    rows = [
        (
            f"`{option.metadata['name']}`",
            _default(option.default or None if isinstance(option.default, str) else option.default),
            "yes" if option.metadata["changes"] else "no",
            option.metadata["about"],
        )
        for option in fields(NameServerConfig)
    ]
    return _table(("option", "default", "can be changed while it runs", "what it does"), rows)


def tls_options() -> str:
    """Return a table of the options of TLS, which all servers have."""
    rows = [
        (f"`{name}`", _default(None if option.default == "" else option.default), option.metadata["about"])
        for name, option in OPTIONS.items()
    ]
    return _table(("option", "default", "what it does"), rows)


def refused_options() -> str:
    """Return a table of the options that the broker refuses, with the values that it accepts."""
    rows = [
        (f"`{refusal.name}`", ", ".join(f"`{value}`" for value in refusal.harmless), refusal.lacking)
        for refusal in REFUSED.values()
    ]
    return _table(("option", "accepted", "why anything else is refused"), rows)


def request_codes() -> str:
    """Return a table of Apache's request codes, and which of our programs serve them."""
    return _table(("code", "name", "served by", "why not"), requests.code_rows())


def mqadmin_commands() -> str:
    """Return a table of mqadmin's commands, and where each stands."""
    return _table(("command", "codes", "here", "`libra admin`", ""), requests.command_rows())


def limits() -> str:
    """Return a table of the limits that clients meet."""
    header = ("", "default", "option", "past it")
    parts = []
    for part in limits_table.LIMITS:
        parts.append(f"**{part}**\n\n" + _table(header, limits_table.rows(part)))
    return "\n".join(parts)


def metrics() -> str:
    """Return a table of every metric, with its labels."""
    kinds = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}
    rows = []
    for metric in vars(Metrics()).values():
        for each in metric.values() if isinstance(metric, dict) else (metric,):
            kind = kinds.get(type(each))
            if kind is not None:
                (family,) = each.describe()
                name = f"{family.name}_total" if kind == "counter" else family.name
                labels = ", ".join(f"`{label}`" for label in each._labelnames)
                rows.append((f"`{name}`", kind, labels, family.documentation))
    for family in FAMILIES:
        (kind,) = {family.kind(family.name, family.about, labels=family.labels).type}
        labels = ", ".join(f"`{label}`" for label in family.labels)
        rows.append((f"`{family.name}`", kind, labels, family.about))
    return _table(("metric", "kind", "labels", "what it is"), sorted(rows))


def owned_queue() -> str:
    """Return the states of a queue that a consumer owns, and what follows from each event."""
    return "\n".join(ownership_transitions.draw()) + "\n"


def coordinated_group() -> str:
    """Return the states of a coordinated group, and the action for each event."""
    return "\n".join(group_transitions.draw()) + "\n"


def commands() -> str:
    """Return a section for every command, with its arguments and options."""
    return "\n".join(_sections(typer.main.get_command(app), "libra"))


def modules() -> str:
    """Return a section for every package, with a row for each of its modules."""
    header = ("module", "what it decides or holds", "limits and times")
    return "\n".join(
        f"## {name}\n\n{about}\n\n"
        + _table(header, [(f"`{module}`", _cell(text), bounds) for module, text, bounds in rows])
        for name, about, rows in module_rows.packages()
    )


def _sections(command: object, path: str) -> Iterator[str]:
    # Typer may bring its own copy of click, so commands and parameters are known by what they have.
    subcommands: dict[str, object] = getattr(command, "commands", {})
    parameters = [each for each in command.params if each.name not in ("help", "version")]  # type: ignore[attr-defined]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    options = [each for each in parameters if each.param_type_name == "option" and not each.hidden]
    if path != "libra":
        usage = " ".join([path, *(f"[{each.name.upper()}]" for each in arguments)])
        yield f"## `{path}`\n"
        yield f"{' '.join((command.help or '').split())}\n"  # type: ignore[attr-defined]
        if arguments:
            yield f"    {usage}\n"
        rows = [(_spelling(each), _default(_shown(each)), _cell(each.help or "")) for each in options]
        rows[:0] = [(f"`{each.name.upper()}`", "", _cell(each.help or "")) for each in arguments]
        if rows:
            yield _table(("option", "default", ""), rows)
    for name, subcommand in subcommands.items():
        yield from _sections(subcommand, f"{path} {name}")


def _spelling(option: object) -> str:
    names = [*option.opts, *option.secondary_opts]  # type: ignore[attr-defined]
    return ", ".join(f"`{name}`" for name in names)


def _shown(option: object) -> object:
    if option.required:  # type: ignore[attr-defined]
        return "required"
    default = option.default  # type: ignore[attr-defined]
    return None if default in (None, False, ()) or not option.show_default else default  # type: ignore[attr-defined]


def _default(value: object) -> str:
    if value is None or value == frozenset() or type(value).__name__ == "Sentinel":
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return value if value == "required" else f"`{value}`"  # type: ignore[return-value]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


PARTS: Final[dict[str, Callable[[], str]]] = {
    "broker-options": broker_options,
    "name-server-options": name_server_options,
    "refused-options": refused_options,
    "tls-options": tls_options,
    "request-codes": request_codes,
    "mqadmin-commands": mqadmin_commands,
    "limits": limits,
    "metrics": metrics,
    "owned-queue": owned_queue,
    "coordinated-group": coordinated_group,
    "commands": commands,
    "modules": modules,
}


def renewed(text: str) -> str:
    """Return the text of a page with its generated parts regenerated."""
    return _PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n{part[3]}", text)


def pages() -> Iterator[Path]:
    """Yield the pages that have generated parts."""
    for page in sorted(DOCS.rglob("*.md")):
        if _PART.search(page.read_text()):
            yield page


if __name__ == "__main__":
    for page in pages():
        page.write_text(renewed(page.read_text()))
