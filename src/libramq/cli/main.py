"""The `libra` command.

Every failure is one line on standard error that names the thing and the remedy, and exit code 2.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from libramq.cli import admin, bench, groups, lab, options, pipeline
from libramq.cli.layout import BROKERS_MAX
from libramq.cli.printable import printable

EXIT_FAILED: Final = 2
#: What a shell reports for a process that SIGINT ended.
EXIT_INTERRUPTED: Final = 130

app = typer.Typer(
    name="libra",
    help="LibraMQ: the RocketMQ message system in Python.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(admin.app, name="admin")
app.add_typer(bench.app, name="bench")
app.add_typer(groups.app, name="groups")
app.add_typer(lab.app, name="lab")
app.add_typer(pipeline.app, name="pipeline")


@app.command()
def up(
    nameserver_port: Annotated[
        int | None, typer.Option(help="Port of the name server; 9876, or a free one if that is taken.")
    ] = None,
    broker_port: Annotated[
        int | None, typer.Option(help="Port of the broker; 10911, or a free one if that is taken.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    data: Annotated[Path, typer.Option(help="Directory for messages and configuration.")] = Path(
        "libra-data"
    ),
    brokers: Annotated[
        int,
        typer.Option(
            min=1, max=BROKERS_MAX, help="Brokers under the name server, each further one a process."
        ),
    ] = 1,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Serve metrics for Prometheus at this port of 127.0.0.1; further brokers at those above.",
        ),
    ] = None,
    allow_public: options.AllowPublic = False,
    damaged: options.WhatOfDamage = None,
    log_level: options.Log = options.LogLevel.WARNING,
) -> None:
    """Start a name server and a broker in one process. More brokers are processes of their own."""
    from libramq.cli import logs, running, servers

    logs.set_up(log_level)
    running.run(
        servers.up(
            nameserver_port=nameserver_port,
            broker_port=broker_port,
            brokers=brokers,
            metrics_port=metrics_port,
            host=host,
            data=data,
            allow_public=allow_public,
            damaged=damaged,
            log_level=log_level,
        )
    )


@app.command()
def nameserver(
    config: Annotated[
        Path | None,
        typer.Option("-c", "--configFile", help="namesrv.conf: innerClientAuthenticationCredentials."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 9876,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    allow_public: options.AllowPublic = False,
    log_level: options.Log = options.LogLevel.INFO,
) -> None:
    """Start a name server."""
    from libramq.cli import logs, running, servers

    logs.set_up(log_level)
    running.run(servers.nameserver(config_file=config, host=host, port=port, allow_public=allow_public))


@app.command()
def broker(
    config: Annotated[
        Path | None,
        typer.Option("-c", "--configFile", help="broker.conf, with RocketMQ's own property names."),
    ] = None,
    namesrv: options.Namesrv = None,
    allow_public: options.AllowPublic = False,
    damaged: options.WhatOfDamage = None,
    log_level: options.Log = options.LogLevel.INFO,
) -> None:
    """Start a broker."""
    from libramq.cli import logs, running, servers

    logs.set_up(log_level)
    running.run(
        servers.broker(config_file=config, namesrv=namesrv, allow_public=allow_public, damaged=damaged)
    )


@app.command()
def send(
    topic: options.Topic,
    body: Annotated[
        str | None, typer.Argument(help="The message; without it every line of standard input is one.")
    ] = None,
    namesrv: options.Namesrv = None,
    tags: Annotated[str | None, typer.Option(help="The tag consumers can subscribe to.")] = None,
    keys: Annotated[
        str | None, typer.Option(help="Keys to find the message by, separated by blanks.")
    ] = None,
    json: options.Json = False,
    log_level: options.Log = options.LogLevel.WARNING,
) -> None:
    """Send messages to a topic."""
    from libramq.cli import logs, running, sending

    logs.set_up(log_level)
    namesrv = options.name_servers(namesrv)
    if body is not None:
        running.run(sending.send_one(namesrv, topic, body, tags=tags, keys=keys, as_json=json))
    else:
        running.run(
            sending.send_lines(namesrv, topic, sys.stdin.fileno(), tags=tags, keys=keys, as_json=json)
        )


@app.command()
def tail(
    topic: options.Topic,
    namesrv: options.Namesrv = None,
    start: Annotated[str, typer.Option("--from", help="earliest or latest.")] = "latest",
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after so many messages.")] = None,
    json: options.Json = False,
    log_level: options.Log = options.LogLevel.WARNING,
) -> None:
    """Follow a topic: print what it holds and what comes. Belongs to no group and commits nothing."""
    from libramq.cli import logs, tailing

    logs.set_up(log_level)
    tailing.tail(options.name_servers(namesrv), topic, start=start, count=count, as_json=json)


@app.command()
def simulate(
    seeds: Annotated[int | None, typer.Option(min=1, help="How many; 100, or 1 with --seed.")] = None,
    seed: Annotated[int | None, typer.Option(help="The first, or the only one.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=0, help="Only so many of what happens to each cluster.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes to share the seeds out over.")] = 1,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Run every seed, and list those that failed.")
    ] = False,
    log: Annotated[bool, typer.Option("--log", help="Print what happened, event by event.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print how often each kind of thing happened.")
    ] = False,
) -> int:
    """Simulate clusters with faults, one a seed, until an invariant does not hold: that is exit code 1."""
    from libramq.cli import simulating

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
    """Run the command and exit as shells expect."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command line; the exit code."""
    try:
        result: Any = app(arguments, prog_name="libra", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Who read our output has seen enough; nothing may be written to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        line = failure_line(error)
        if line is None:
            raise
        print(f"libra: {printable(line)}", file=sys.stderr)
        return EXIT_FAILED
    return result if isinstance(result, int) else 0


def failure_line(error: Exception) -> str | None:
    """What to tell a person about an error; None for a bug of ours."""
    from libramq.errors import LibraError

    if isinstance(error, LibraError):
        return " ".join(str(error).split())
    if isinstance(error, ExceptionGroup):
        return failure_line(error.exceptions[0])
    if isinstance(error, OSError) and error.strerror:
        named = f"{error.filename}: " if error.filename else ""
        if isinstance(error, FileExistsError | NotADirectoryError):
            return f"{named}this is a file; name a directory"
        return f"{named}{error.strerror}; check that the path exists and is yours"
    format_message = getattr(error, "format_message", None)  # The command-line library's own errors.
    if format_message is None:
        return None
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "libra"
    return f"{str(format_message()).strip().rstrip('.')}; see {command} --help"


if __name__ == "__main__":
    main()
