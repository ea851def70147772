"""The frame of admin commands: turns a coroutine into a command with mqadmin's options, and shows its answer
as tables or JSON.

    @command(app, "topicClusterList")
    async def topic_cluster_list(*, topic: options.Topic, admin: Operator) -> Answer:

The parameter `admin` becomes the option -n, `target` becomes -b and -c; --json comes last. A command with
several answers yields them; one without an operator is a plain generator.
"""

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from typer import Option

from libramq.cli import options
from libramq.cli.lazy import operator, output, running
from libramq.cli.printable import printable, time_text

if TYPE_CHECKING:
    from libramq.admin.operator import Operator as Operator
    from libramq.admin.operator import Target as Target
else:
    Operator, Target = options.Namesrv, Any

#: The brokers to change. The options appear in --help in this order.
Changed = Annotated[
    Target,
    Option("-b", "--brokerAddr", help="Change it at one broker, host:port; or use -c."),
    Option("-c", "--clusterName", help="Change it at all brokers of a cluster; or use -b."),
]
#: The brokers to show.
Shown = Annotated[
    Target,
    Option("-b", "--brokerAddr", help="The broker, host:port; or use -c."),
    Option("-c", "--clusterName", help="All masters of this cluster; or use -b."),
]
_NAMES: Final = {
    "--namesrvAddr": "namesrv", "--brokerAddr": "broker", "--clusterName": "cluster", "--cluster": "cluster"
}  # fmt: skip


class Table(NamedTuple):
    """A table of some of the rows' values. columns: names with headings, as in `broker, queueId: queue`."""

    rows: Sequence[Mapping[str, Any]]
    columns: str


class Answer:
    """A value for JSON, and its display: lines, names with values, and tables.

    is_line: the value is one of many, each printed as one line of JSON.
    """

    def __init__(self, value: Any, *shown: str | Mapping[str, Any] | Table, is_line: bool = False) -> None:
        self.value, self.shown, self.is_line = value, shown, is_line

    def show(self, *, json: bool) -> None:
        """Print the value as JSON, or its display."""
        if json:
            output.print_json(self.value, indent=None if self.is_line else 2)
            return
        for part in self.shown:
            if isinstance(part, str):
                print(part)
            elif isinstance(part, Table):
                output.print_table(*_cells(part))
            else:
                for name, value in sorted(part.items()):
                    print(f"{name:<32}: {printable(str(value))}")


def _cells(table: Table) -> tuple[list[str], list[list[Any]]]:
    """Return a table's headings, by default the names, and its cells; columns …Timestamp hold times."""
    columns = [each.partition(": ") for each in table.columns.split(", ")]
    cells = [[_cell(name, row[name]) for name, _, _ in columns] for row in table.rows]
    return [heading or name for name, _, heading in columns], cells


def _cell(name: str, value: Any) -> Any:
    """Return the display of a value; a dash for None."""
    if name.endswith("Timestamp"):
        return time_text(value)
    return "–" if value is None else value


def rows(found: Sequence[Mapping[str, Any]], columns: str) -> Answer:
    """Return an answer of rows: all their values as JSON, some of them in a table."""
    return Answer(found, Table(found, columns))


def sections(found: Mapping[str, Mapping[str, Any]]) -> Answer:
    """Return an answer with names and values of several servers, each under its address."""
    parts = [(f"============{address}============", each) for address, each in found.items()]
    return Answer(found, *(part for pair in parts for part in pair))


#: A coroutine with one answer, or a generator of several, asynchronous or not.
_Ask = Callable[..., Any]


def command(app: typer.Typer, name: str, *, no_args_is_help: bool = True) -> Callable[[_Ask], _Ask]:
    """Return a decorator that makes a function an admin command."""

    def made(ask: _Ask) -> _Ask:
        parameters: dict[str, inspect.Parameter] = {}
        for each in inspect.signature(ask).parameters.values():
            is_server = each.name in ("admin", "target")
            for option in each.annotation.__metadata__ if is_server else ():
                named = _NAMES[option.param_decls[-1]]
                kind = Annotated[str | None, option]
                parameters[named] = each.replace(name=named, default=None, annotation=kind)
            if not is_server:
                parameters[each.name] = each
        json = inspect.Parameter(
            "json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=options.Json
        )

        def run(*, json: bool, **arguments: Any) -> None:
            if inspect.isgeneratorfunction(ask):
                for answer in ask(**arguments):
                    answer.show(json=json)
            else:
                running.run(_show(ask, json=json, **arguments))

        run.__signature__ = inspect.Signature([*parameters.values(), json])  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in (*parameters.values(), json)}
        run.__doc__ = ask.__doc__
        app.command(name, no_args_is_help=no_args_is_help)(run)
        return ask

    return made


async def _show(ask: _Ask, *, namesrv: str | None, json: bool, **arguments: Any) -> None:
    """Run a function with an operator of the name servers, and show its answers."""
    if "target" in inspect.signature(ask).parameters:
        arguments["target"] = operator.Target(arguments.pop("broker"), arguments.pop("cluster"))
    async with operator.Operator(options.name_servers(namesrv)) as admin:
        found = ask(admin=admin, **arguments)
        if isinstance(found, AsyncGenerator):
            async for answer in found:
                answer.show(json=json)
            return
        answer = await found
    answer.show(json=json)


def plain(value: object) -> Any:
    """Return a document as dicts and lists, with its names on the wire."""
    import msgspec  # Imported late: --help must be quick.

    return msgspec.to_builtins(value)
