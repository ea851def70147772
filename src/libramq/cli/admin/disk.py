"""The admin commands that free brokers' disks, under mqadmin's names."""

from typing import Annotated

import typer

from libramq.cli import options

app = typer.Typer()

_OneBroker = Annotated[str | None, typer.Option("-b", "--brokerAddr", help="Only this broker, host:port.")]
_OneCluster = Annotated[
    str | None, typer.Option("-c", "--cluster", help="The brokers of this cluster. Default: all brokers.")
]


@app.command("deleteExpiredCommitLog")
def delete_expired_commit_log(
    namesrv: options.Namesrv = None,
    broker: _OneBroker = None,
    cluster: _OneCluster = None,
    json: options.Json = False,
) -> None:
    """Delete messages older than fileReservedTime now, and not at the hour deleteWhen."""
    _free_disk("delete_expired_files", namesrv, broker, cluster, json=json)


@app.command("cleanExpiredCQ")
def clean_expired_cq(
    namesrv: options.Namesrv = None,
    broker: _OneBroker = None,
    cluster: _OneCluster = None,
    json: options.Json = False,
) -> None:
    """Remove files of consume queues whose messages are deleted."""
    _free_disk("clean_expired_queues", namesrv, broker, cluster, json=json)


@app.command("cleanUnusedTopic")
def clean_unused_topic(
    namesrv: options.Namesrv = None,
    broker: _OneBroker = None,
    cluster: _OneCluster = None,
    json: options.Json = False,
) -> None:
    """Remove consume queues whose topics are deleted."""
    _free_disk("clean_unused_topics", namesrv, broker, cluster, json=json)


def _free_disk(
    call: str, namesrv: str | None, broker: str | None, cluster: str | None, *, json: bool
) -> None:
    from libramq.cli import output
    from libramq.cli.admin import queries as admin_queries
    from libramq.rpc import admin_calls

    with options.session(namesrv) as session:
        request = getattr(admin_calls, call)()
        brokers = admin_queries.free_disk(session, request, broker=broker, cluster=cluster)
    if json:
        output.print_json({"brokers": brokers})
    else:
        for address in brokers:
            print(f"success at broker [{address}]")
