"""The admin command startMonitoring: rounds over all groups, what they have not consumed, and what is wrong.

Upstream: tools/monitor/MonitorService.java, DefaultMonitorListener.java, body/ConsumerRunningInfo.java.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from libramq.cli import options
from libramq.cli.admin.printing import show_rows

if TYPE_CHECKING:
    from libramq.cli.admin.session import AdminSession
    from libramq.remoting.body.running_info import ConsumerRunningInfo

app = typer.Typer()

#: MonitorConfig.roundInterval.
INTERVAL_SECONDS: Final = 60
#: ConsumerRunningInfo.analyzeProcessQueue: a queue with messages is stuck if none was handled for so long.
STUCK_MS: Final = 60_000
#: ConsumerRunningInfo.analyzeSubscription: members may differ while they are deployed.
DEPLOYING_MS: Final = 120_000
_COLUMNS: Final = {
    "group": "group",
    "topic": "topic",
    "undone": "undone",
    "undoneOfQueue": "most in a queue",
    "delayMs": "delay in ms",
}


@app.command("startMonitoring")
def start_monitoring(
    interval: Annotated[
        int, typer.Option("-i", "--interval", min=1, help="Seconds from one round to the next.")
    ] = INTERVAL_SECONDS,
    rounds: Annotated[int, typer.Option("-r", "--rounds", min=0, help="0: until Ctrl-C.")] = 0,
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Show every minute what each group has not consumed, and members that are stuck or differ."""
    from libramq.cli import output
    from libramq.cli.printable import printable

    with options.session(namesrv) as session:
        done = 0
        while True:
            rows, notices = one_round(session, int(time.time() * 1000))
            if json:
                output.print_json({"groups": rows, "notices": notices})
            else:
                show_rows(rows, _COLUMNS, json=False)
                for notice in notices:
                    print(printable(notice))
            done += 1
            if done == rounds:
                return
            time.sleep(interval)


def one_round(session: "AdminSession", now_ms: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for each group and topic, and what an operator should hear of."""
    from libramq.cli.admin.queries import group_progress, topic_status
    from libramq.errors import RemoteError
    from libramq.message.names import groups_of
    from libramq.rpc import name_server_calls

    rows: list[dict[str, Any]] = []
    notices: list[str] = []
    newest: dict[str, dict[tuple[str, int], int]] = {}
    for group in groups_of(session.ask_name_server(name_server_calls.all_topics())):
        try:
            queues = group_progress(session, group, None)["queues"]
            for topic in dict.fromkeys(row["topic"] for row in queues):
                if topic not in newest:
                    newest[topic] = {
                        (row["broker"], row["queueId"]): row["lastUpdateTimestamp"]
                        for row in topic_status(session, topic)
                    }
                of_topic = [row for row in queues if row["topic"] == topic]
                rows.append({"group": group, "topic": topic, **undone(of_topic, newest[topic])})
            notices += notices_of(group, _members(session, group), now_ms)
        except RemoteError:  # A group that never committed, or a topic that is gone: as mqadmin's.
            continue
    return rows, notices


def undone(queues: list[dict[str, Any]], newest: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """Return what a group has not consumed of a topic. newest: when each queue's last message was stored."""
    behind = [row["diff"] for row in queues]
    delays = [
        newest.get((row["broker"], row["queueId"]), 0) - row["lastTimestamp"]
        for row in queues
        if row["lastTimestamp"] > 0
    ]
    return {
        "undone": sum(each for each in behind if each > 0),
        "undoneOfQueue": max(0, *behind, 0),
        "delayMs": max(0, *delays, 0),
    }


def _members(session: "AdminSession", group: str) -> dict[str, "ConsumerRunningInfo"]:
    from libramq.cli.admin.queries import brokers_of_group
    from libramq.errors import RemoteError
    from libramq.rpc import admin_calls

    found: dict[str, ConsumerRunningInfo] = {}
    for address in brokers_of_group(session, group):
        try:
            connection = session.ask(address, admin_calls.consumer_connection(group))
        except RemoteError:
            continue  # Nobody is connected to this broker.
        for member in sorted({each.client_id for each in connection.connection_set} - set(found)):
            try:
                found[member] = session.ask(address, admin_calls.running_info(group, member))
            except RemoteError:
                continue  # It does not answer, or has left meanwhile.
    return found


def notices_of(group: str, members: Mapping[str, "ConsumerRunningInfo"], now_ms: int) -> list[str]:
    """Return what is wrong with a group's members, of those that are pushed their messages."""
    from libramq.filter.subscription import CONSUME_PASSIVELY

    pushed = {
        client_id: info
        for client_id, info in sorted(members.items())
        if info.properties.get("PROP_CONSUME_TYPE") == CONSUME_PASSIVELY
    }
    notices = []
    wanted = {
        frozenset((each.topic, each.sub_string, each.expression_type) for each in info.subscription_set)
        for info in pushed.values()
    }
    started_ms = [_number(info.properties.get("PROP_CONSUMER_START_TIMESTAMP")) for info in pushed.values()]
    if len(wanted) > 1 and now_ms - started_ms[0] > DEPLOYING_MS:
        notices.append(f"group {group}: members' subscriptions differ")
    for client_id, info in pushed.items():
        is_orderly = info.properties.get("PROP_CONSUMEORDERLY") == "true"
        for queue, state in sorted(info.mq_table.items()):
            where = f"group {group}: {client_id}, queue {queue.queue_id} of {queue.topic}"
            idle_ms = now_ms - (state.last_consume_timestamp or now_ms)
            if is_orderly and not state.locked:
                notices.append(f"{where}: not locked for {now_ms - state.last_lock_timestamp} ms")
            elif not is_orderly and state.cached_msg_count > 0 and idle_ms > STUCK_MS:
                notices.append(f"{where}: nothing handled for {idle_ms} ms, perhaps it is blocked")
    return notices


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0
