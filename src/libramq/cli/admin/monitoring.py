"""The admin command startMonitoring: what groups have not consumed and what is wrong, round after round."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Final

from typer import Option, Typer

from libramq.cli.admin.frame import Answer, Operator, Table, command
from libramq.cli.admin.lazy import monitor
from libramq.cli.printable import printable

app = Typer()

#: MonitorConfig.roundInterval.
INTERVAL_SECONDS: Final = 60


@command(app, "startMonitoring", no_args_is_help=False)
async def start_monitoring(
    *,
    interval: Annotated[
        int, Option("-i", "--interval", min=1, help="Seconds from one round to the next.")
    ] = INTERVAL_SECONDS,
    rounds: Annotated[int, Option("-r", "--rounds", min=0, help="0: until Ctrl-C.")] = 0,
    admin: Operator,
) -> AsyncGenerator[Answer, None]:
    """Show every minute what each group has not consumed, and members that are stuck or differ."""
    headings = "group, topic, undone, undoneOfQueue: most in a queue, delayMs: delay in ms"
    for done in itertools.count(1):
        groups, notices = await monitor.one_round(admin, int(time.time() * 1000))
        yield Answer(
            {"groups": groups, "notices": notices}, Table(groups, headings), *map(printable, notices)
        )
        if done == rounds:
            return
        await asyncio.sleep(interval)
