"""The groups commands: a live view of groups, a timeline of their rebalances, removal of members."""

import asyncio
import getpass
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from libramq.cli import options
from libramq.cli.lazy import groups as admin_groups
from libramq.cli.lazy import output, running
from libramq.cli.printable import printable
from libramq.clock import SystemClock

if TYPE_CHECKING:
    from rich.table import Table

    from libramq.admin.groups import GroupWatch
    from libramq.cli.groups.row import GroupRow

#: Ours: how often the live view is refreshed.
LOOK_SECONDS: Final = 1.0
NO_GROUP: Final = "no consumer group yet; a group appears when its first consumer starts"

app = typer.Typer(help="Watch consumer groups, their members and their rebalances.")


@app.callback(invoke_without_command=True)
def groups(
    context: typer.Context,
    namesrv: options.Namesrv = None,
    group: Annotated[
        str | None, typer.Option("-g", "--groupName", "--consumerGroup", help="Only this group.")
    ] = None,
    problems: Annotated[
        bool, typer.Option("--problems", help="Only groups with a problem, dead letters or a rebalance.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the table once and exit.")] = False,
    members: Annotated[
        bool, typer.Option("--members", help="Print each member with its queues, and exit.")
    ] = False,
    json: options.Json = False,
    log_level: options.Log = options.LogLevel.WARNING,
) -> None:
    """Show every consumer group: members, queues, lag, dead letters, last rebalance and problems.

    Groups with the worst problems come first. Updates live in a terminal.
    """
    if context.invoked_subcommand is None:
        chosen = _Chosen(options.name_servers(namesrv), group, only_problems=problems)
        if members:
            running.run(_members(chosen, as_json=json))
        else:
            is_live = not once and not json and sys.stdout.isatty()
            running.run(_watch(chosen, is_live=is_live, as_json=json))


@app.command(no_args_is_help=True)
def history(
    context: typer.Context,
    group: options.Group,
    namesrv: options.Namesrv = None,
    last: Annotated[
        int, typer.Option("--last", min=1, help="How many rebalances to show, counted from the newest.")
    ] = 10,
    json: options.Json = False,
) -> None:
    """Show a group's rebalances: their causes, moved queues, and pauses."""
    from libramq.cli.groups import history as group_history

    servers = _name_servers(context, namesrv)
    found = admin_groups.group_rebalances(servers, group, last=last)
    if json:
        output.print_json([group_history.as_json(rebalance) for rebalance in found])
        return
    for rebalance in found:
        print("\n".join(map(printable, group_history.timeline(rebalance))))


@app.command(no_args_is_help=True)
def remove(
    context: typer.Context,
    group: options.Group,
    member: Annotated[str, typer.Option("--member", help="The name of a static member, or a client id.")],
    namesrv: options.Namesrv = None,
) -> None:
    """Remove a member that will not return, so that its queues move at once. A live member joins again."""
    running.run(_remove(_name_servers(context, namesrv), group, member))
    print(f"removed {member} from {group}")


async def _remove(namesrv: str, group: str, member: str) -> None:
    from libramq.admin.admin import Admin

    async with Admin(namesrv=namesrv) as admin:
        await admin.remove_member(group, member, operator=_user())


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # In a container the user may have no name.
        return None


def _name_servers(context: typer.Context, namesrv: str | None) -> str:
    """Return the name servers, which may also be given before the subcommand."""
    return options.name_servers(namesrv or (context.parent.params.get("namesrv") if context.parent else None))


class _Chosen(NamedTuple):
    """The groups to show: all, one, or those with problems."""

    namesrv: str
    group: str | None = None
    only_problems: bool = False

    @property
    def nothing(self) -> str:
        """Return the text for no groups."""
        return "no group has a problem" if self.only_problems else NO_GROUP


async def _watch(chosen: _Chosen, *, is_live: bool, as_json: bool) -> None:
    from libramq.cli.groups.row import COLUMNS

    async with admin_groups.GroupWatch(chosen.namesrv) as watch:
        rows = await _look(watch, chosen)
        if as_json:
            output.print_json([row.as_json() for row in rows])
        elif is_live:
            from rich.live import Live

            # If there are more groups than lines, all are printed and the terminal scrolls.
            with Live(
                _table(rows, chosen.nothing),
                console=output.console(),
                auto_refresh=False,
                vertical_overflow="visible",
            ) as live:
                while True:
                    await asyncio.sleep(LOOK_SECONDS)
                    live.update(_table(await _look(watch, chosen), chosen.nothing), refresh=True)
        elif not rows:
            print(chosen.nothing)
        else:
            output.print_table(COLUMNS, _cells(rows))
            for remark in _remarks(rows):
                print(printable(remark))


async def _members(chosen: _Chosen, *, as_json: bool) -> None:
    from libramq.cli.groups.row import MEMBER_COLUMNS

    async with admin_groups.GroupWatch(chosen.namesrv) as watch:
        rows = await _look(watch, chosen)
    if as_json:
        output.print_json([{"group": row.group, "members": row.members_as_json()} for row in rows])
    elif not any(row.members for row in rows):
        print("no consumer group has a connected member")
    else:
        output.print_table(MEMBER_COLUMNS, [cells for row in rows for cells in row.member_cells()])


async def _look(watch: "GroupWatch", chosen: _Chosen) -> "list[GroupRow]":
    from libramq.cli.groups.row import GroupRow, Trouble

    rows = [GroupRow.of(state) for state in await watch.look(chosen.group)]
    if chosen.only_problems:
        rows = [row for row in rows if row.trouble is not Trouble.NONE]
    return sorted(rows, key=lambda row: (row.trouble, row.group))


def _table(rows: "Sequence[GroupRow]", nothing: str) -> "Table":
    from libramq.cli.groups.row import COLUMNS

    caption = "\n".join([*([] if rows else [nothing]), *_remarks(rows), "Ctrl-C to quit"])
    return output.table(COLUMNS, _cells(rows), width=output.console().width, caption=caption)


def _cells(rows: "Sequence[GroupRow]") -> list[list[str]]:
    wall_ms = SystemClock().wall_ms()
    return [row.cells(wall_ms) for row in rows]


def _remarks(rows: "Sequence[GroupRow]") -> list[str]:
    return [remark for row in rows for remark in row.remarks()]
