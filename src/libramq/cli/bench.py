"""The benchmark commands: progress while they run, one JSON object at the end."""

from typing import Annotated

import typer

from libramq.cli import options

app = typer.Typer(help="Measure how fast a cluster stores and delivers messages.", no_args_is_help=True)

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
        int, typer.Option(min=1, max=10_000, help="Senders, each with one message in flight.")
    ] = 32,
    batched: Annotated[
        bool,
        typer.Option("--batched", help="Send without waiting for each response; messages travel in batches."),
    ] = False,
    log_level: options.Log = options.LogLevel.WARNING,
) -> None:
    """Send messages as fast as the cluster stores them."""
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
        str | None, typer.Option("-g", "--groupName", help="The consumer group; a new one if left out.")
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after this many messages; if left out, at the end of the topic."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, max=1024, help="Messages per call of the handler.")] = 32,
    log_level: options.Log = options.LogLevel.WARNING,
) -> None:
    """Consume a topic as a member of a consumer group."""
    from libramq.cli import benchmarks, logs, running

    logs.set_up(log_level)
    running.run(
        benchmarks.consume(
            options.name_servers(namesrv), topic, group=group, count=count, batch_size=batch_size
        )
    )
