"""The `libra` command: its subcommands with their options, and exit codes.

Every failure is one line on standard error with cause and remedy, and exit code 2.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from libramq.cli import bench, dlq, options, store, topics
from libramq.cli.admin import commands as admin
from libramq.cli.failure import EXIT_FAILED, failure_line
from libramq.cli.groups import commands as groups
from libramq.cli.lazy import running, sending, servers, simulating, tailing
from libramq.cli.printable import printable
from libramq.cli.servers.layout import BROKERS_MAX
from libramq.cli.spark import lab, pipeline
from libramq.errors import ConfigError

#: The exit code that a shell reports for a process ended by SIGINT.
EXIT_INTERRUPTED: Final = 130
#: The exception with which the command-line library ends a command after showing help for lack of arguments.
_HELP_SHOWN: Final = "NoArgsIsHelpError"
_HELP: Final = ["-h", "--help"]

app = typer.Typer(
    name="libra",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": _HELP},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from libramq import __version__

        print(f"libra {__version__}")
        raise typer.Exit


@app.callback()
def libra(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """RocketMQ in Python: name server, broker, tools, and pipelines on Spark."""


app.add_typer(admin.app, name="admin")
app.add_typer(bench.app, name="bench")
app.add_typer(dlq.app, name="dlq")
app.add_typer(groups.app, name="groups")
app.add_typer(lab.app, name="lab")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(store.app, name="store")


@app.command()
def up(
    nameserver_port: Annotated[
        int | None, typer.Option(help="Port of the name server; 9876, or a free one if that is in use.")
    ] = None,
    broker_port: Annotated[
        int | None, typer.Option(help="Port of the broker; 10911, or a free one if that is in use.")
    ] = None,
    host: options.Host = None,
    data: Annotated[Path, typer.Option(help="Directory for messages and configuration.")] = Path(
        "libra-data"
    ),
    brokers: Annotated[
        int,
        typer.Option(
            min=1,
            max=BROKERS_MAX,
            help="Brokers to start; the first shares the name server's process, the others have their own.",
        ),
    ] = 1,
    metrics_port: options.MetricsPort = None,
    kafka_port: options.KafkaPort = None,
    advertise: options.Advertise = None,
    allow_public: options.AllowPublic = False,
    secure: options.Secure = False,
    config: options.BrokerFiles = None,
    settings: options.BrokerOptions = None,
    keep_going: options.KeepGoing = False,
    damaged: options.WhatOfDamage = None,
    log_level: options.Log = options.LogLevel.WARNING,
) -> None:
    """Start a name server and a broker, ready for clients; Ctrl-C stops them."""
    running.run(
        servers.up(
            nameserver_port=nameserver_port,
            broker_port=broker_port,
            brokers=brokers,
            metrics_port=metrics_port,
            kafka_port=kafka_port,
            host=host,
            data=data,
            advertise=advertise,
            allow_public=allow_public,
            secure=secure,
            config_files=config or (),
            settings=settings or (),
            keep_going=keep_going,
            damaged=damaged,
            log_level=log_level,
        )
    )


@app.command()
def nameserver(
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "-c",
            "--configFile",
            help="A namesrv.conf with RocketMQ's property names (docs/configuration.md); may be repeated.",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 9876 if the file names none.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; 127.0.0.1 if the file names none.")
    ] = None,
    allow_public: options.AllowPublic = False,
    log_level: options.Log = options.LogLevel.INFO,
) -> None:
    """Start a name server."""
    running.run(
        servers.nameserver(config_files=config or (), host=host, port=port, allow_public=allow_public)
    )


@app.command()
def broker(
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "-c",
            "--configFile",
            help="A broker.conf with RocketMQ's property names; repeat it for a file with secrets.",
        ),
    ] = None,
    settings: options.BrokerOptions = None,
    namesrv: options.Namesrv = None,
    allow_public: options.AllowPublic = False,
    damaged: options.WhatOfDamage = None,
    log_level: options.Log = options.LogLevel.INFO,
) -> None:
    """Start a broker."""
    running.run(
        servers.broker(
            config_files=config or (),
            settings=settings or (),
            namesrv=namesrv,
            allow_public=allow_public,
            damaged=damaged,
        )
    )


@app.command(no_args_is_help=True)
def send(
    topic: options.Topic,
    body: Annotated[
        str | None,
        typer.Argument(help="The message; by default each line of standard input is a message."),
    ] = None,
    namesrv: options.Namesrv = None,
    tags: Annotated[str | None, typer.Option(help="The tag consumers can subscribe to.")] = None,
    keys: Annotated[
        str | None, typer.Option(help="Keys that identify the message, separated by spaces.")
    ] = None,
    properties: options.Properties = None,
    delay: Annotated[
        str | None, typer.Option("--delay", help="Deliver it this long after it is stored: 10s, 5m, 2h.")
    ] = None,
    at: Annotated[str | None, typer.Option("--at", help="Deliver it at this time: 2026-05-01T08:30.")] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", help="Send to this queue: its number, or BROKER:NUMBER.")
    ] = None,
    order_key: Annotated[
        str | None, typer.Option("--order-key", help="Messages with the same order key go to the same queue.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Send each line of a file, instead of standard input.")
    ] = None,
    rows: options.Rows = False,
    json: options.Json = False,
    log_level: options.Log = options.LogLevel.WARNING,
) -> None:
    """Send messages to a topic."""
    if body is not None and (file is not None or rows):
        raise ConfigError("name either a message, or lines of a file (--file, --rows)")
    if delay is not None and at is not None:
        raise ConfigError("name either --delay or --at")
    if queue is not None and order_key is not None:
        raise ConfigError("name either --queue or --order-key")
    of_each = sending.Sending(
        topic=topic,
        tags=tags,
        keys=keys,
        properties=sending.named_properties(properties or ()),
        delay_ms=options.duration_ms(delay) if delay is not None else 0,
        deliver_at_ms=options.moment_ms(at) if at is not None else None,
        queue=queue,
        order_key=order_key,
    )
    namesrv = options.name_servers(namesrv)
    if body is not None:
        running.run(sending.send_one(namesrv, of_each, body, as_json=json))
        return
    try:
        lines = os.open(file, os.O_RDONLY) if file is not None else sys.stdin.fileno()
    except OSError as error:
        raise ConfigError(f"--file {file}: {error.strerror}") from None
    running.run(sending.send_lines(namesrv, of_each, lines, is_rows=rows, as_json=json))


@app.command(no_args_is_help=True)
def tail(
    topic: options.Topic,
    namesrv: options.Namesrv = None,
    start: options.TailFrom = "latest",
    offset: Annotated[
        int | None, typer.Option("--offset", min=0, help="Begin at this offset of each queue.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", help="Only this queue: its number, or BROKER:NUMBER.")
    ] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="Only these tags: 'A || B'.")] = None,
    sql: Annotated[
        str | None, typer.Option("--sql", help='Only messages selected by an SQL92 expression: "price > 3".')
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="Stop after this many messages.")
    ] = None,
    to_end: Annotated[bool, typer.Option("--exit", "-e", help="Stop after the last stored message.")] = False,
    line: options.TailFormat = None,
    json: options.Json = False,
    log_level: options.Log = options.LogLevel.WARNING,
) -> None:
    """Print a topic's messages as they arrive. Joins no group and commits nothing."""
    from libramq.filter.subscription import Sql

    for one, other, is_both in (
        ("--tags", "--sql", tags is not None and sql is not None),
        ("--format", "--json", line is not None and json),
        ("--offset", "--from", offset is not None and start != "latest"),
    ):
        if is_both:
            raise ConfigError(f"name either {one} or {other}")
    tailing.tail(
        options.name_servers(namesrv),
        topic,
        start=start,
        offset=offset,
        queue=queue,
        expression=Sql(sql) if sql is not None else tags or "*",
        line=line,
        as_json=json,
        count=count,
        to_end=to_end,
    )


app.command()(topics.topics)


@app.command()
def simulate(
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds to run; 100, or 1 with --seed.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The first seed.")] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=0, help="Stop each seed after this many actions, such as joins and faults."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that run seeds in parallel.")] = 1,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Run every seed and list the failures.")
    ] = False,
    log: Annotated[bool, typer.Option("--log", help="Print every event.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Count each kind of event.")] = False,
) -> int:
    """Test LibraMQ itself: simulate a cluster with faults for each seed; exit with 1 if a rule breaks."""
    count = seeds if seeds is not None else 100 if seed is None else 1
    return simulating.simulate(
        seed or 0,
        count,
        steps=steps,
        jobs=jobs,
        keeps_going=keep_going,
        shows_log=log,
        shows_kinds=verbose,
    )


def main() -> None:
    """Run the command and exit, if `entry` was not loaded before."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code."""
    try:
        result: Any = _command_line()(arguments, prog_name="libra", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _output_closed()
    except SystemExit as error:  # Raised by the command-line library, for a closed pipe among other things.
        if isinstance(error.__context__, BrokenPipeError):
            return _output_closed()
        raise
    except Exception as error:
        if type(error).__name__ == _HELP_SHOWN:
            return EXIT_FAILED
        line = failure_line(error)
        if line is None:
            raise
        print(f"libra: {printable(line)}", file=sys.stderr)
        return EXIT_FAILED
    return result if isinstance(result, int) else 0


def _output_closed() -> int:
    """Handle a closed output pipe (`| head`): nothing may be written at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _command_line() -> Any:
    """Return the command line. Help shows no type for flags: `--once <bool>` would seem to take a value."""
    root = typer.main.get_command(app)
    commands: list[Any] = [root]
    while commands:
        command = commands.pop()
        for parameter in command.get_params(typer.Context(command, help_option_names=_HELP)):
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        commands += getattr(command, "commands", {}).values()
    return root


if __name__ == "__main__":
    main()
