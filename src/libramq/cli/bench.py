"""The benchmarks of the command line: progress while they run, one JSON object at the end."""

from typing import Annotated

import typer

from libramq.cli import options

app = typer.Typer(help="Measure how fast a cluster takes and gives messages.", no_args_is_help=True)

#: TopicValidator.RMQ_SYS_BENCHMARK_TOPIC: every broker has it, with 1024 queues.
BENCHMARK_TOPIC = "BenchmarkTest"

BenchTopic = Annotated[str, typer.Option("-t", "--topic", help="The topic.")]


@app.command()
def produce(
    namesrv: options.Namesrv = None,
    topic: BenchTopic = BENCHMARK_TOPIC,
    count: Annotated[int, typer.Option(min=1, max=100_000_000, help="Messages to send.")] = 100_000,
    size: Annotated[int, typer.Option(min=1, max=4 * 1024 * 1024, help="Bytes of each body.")] = 1024,
    concurrency: Annotated[
        int, typer.Option(min=1, max=10_000, help="Senders that each wait for their answer.")
    ] = 32,
    batched: Annotated[
        bool, typer.Option("--batched", help="Hand messages over without waiting; they travel in batches.")
    ] = False,
    log_level: options.Log = options.LogLevel.WARNING,
) -> None:
    """Send messages as fast as they are taken."""
    from libramq.cli import benchmarks, logs, running

    logs.set_up(log_level)
    load = benchmarks.Load(
        namesrv=options.name_servers(namesrv),
        topic=topic,
        count=count,
        size=size,
        concurrency=concurrency,
        batched=batched,
    )
    running.run(benchmarks.produce(load))


@app.command()
def consume(
    namesrv: options.Namesrv = None,
    topic: BenchTopic = BENCHMARK_TOPIC,
    group: Annotated[
        str | None, typer.Option("-g", "--groupName", help="The group; without it a new one.")
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="End after so many; without it, after all there are.")
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, max=1024, help="Messages that one call of the handler gets.")
    ] = 32,
    log_level: options.Log = options.LogLevel.WARNING,
) -> None:
    """Consume what a topic holds, as a member of a group."""
    from libramq.cli import benchmarks, logs, running

    logs.set_up(log_level)
    running.run(
        benchmarks.consume(
            options.name_servers(namesrv), topic, group=group, count=count, batch_size=batch_size
        )
    )
