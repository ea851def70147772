"""The benchmark commands: progress while they run, a table or a JSON object at the end."""

from typing import Annotated

import typer

from libramq.cli import options
from libramq.cli.lazy import benchmarks, running

app = typer.Typer(help="Measure how fast a cluster stores and delivers messages.", no_args_is_help=True)

#: TopicValidator.RMQ_SYS_BENCHMARK_TOPIC: every broker has it, with 1024 queues.
BENCHMARK_TOPIC = "BenchmarkTest"

#: Ours: the topic of `latency`, created by the first message with few queues.
LATENCY_TOPIC = "LibraLatency"

BenchTopic = Annotated[str, typer.Option("-t", "--topic", help="The topic.")]
Size = Annotated[
    int, typer.Option(min=1, max=4 * 1024 * 1024, help="Bytes of each body, which is incompressible.")
]


@app.command()
def produce(
    namesrv: options.Namesrv = None,
    topic: BenchTopic = BENCHMARK_TOPIC,
    count: Annotated[int, typer.Option(min=1, max=100_000_000, help="Messages to send.")] = 100_000,
    size: Size = 1024,
    warm_up: Annotated[
        int, typer.Option("--warm-up", min=0, help="Messages to send before the measurement.")
    ] = 0,
    concurrency: Annotated[
        int, typer.Option(min=1, max=10_000, help="Senders, each with one message in flight.")
    ] = 32,
    batched: Annotated[
        bool,
        typer.Option("--batched", help="Send without waiting for each response; messages travel in batches."),
    ] = False,
    json: options.Json = False,
    log_level: options.Log = options.LogLevel.WARNING,
) -> None:
    """Send messages as fast as the cluster stores them."""
    load = benchmarks.Load(
        namesrv=options.name_servers(namesrv),
        topic=topic,
        count=count,
        size=size,
        concurrency=concurrency,
        batched=batched,
        warm_up=warm_up,
    )
    benchmarks.report(running.run(benchmarks.produce(load)), as_json=json)


@app.command()
def consume(
    namesrv: options.Namesrv = None,
    topic: BenchTopic = BENCHMARK_TOPIC,
    group: Annotated[
        str | None, typer.Option("-g", "--groupName", help="The consumer group; a new one by default.")
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after this many messages; by default at the end of the topic."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, max=1024, help="Messages per call of the handler.")] = 32,
    json: options.Json = False,
    log_level: options.Log = options.LogLevel.WARNING,
) -> None:
    """Consume a topic as a member of a consumer group."""
    found = running.run(
        benchmarks.consume(
            options.name_servers(namesrv), topic, group=group, count=count, batch_size=batch_size
        )
    )
    benchmarks.report(found, as_json=json)


@app.command()
def latency(
    namesrv: options.Namesrv = None,
    topic: BenchTopic = LATENCY_TOPIC,
    rate: Annotated[int, typer.Option(min=1, max=100_000, help="Messages to send a second.")] = 500,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure.")] = 10,
    warm_up: Annotated[
        float, typer.Option("--warm-up", min=0, help="Seconds to send before the measurement.")
    ] = 1,
    size: Size = 1024,
    json: options.Json = False,
    log_level: options.Log = options.LogLevel.WARNING,
) -> None:
    """Measure how long messages take from the producer's send to the consumer's handler."""
    found = running.run(
        benchmarks.latency(
            options.name_servers(namesrv),
            topic,
            rate=rate,
            seconds=seconds,
            warm_up_seconds=warm_up,
            size=size,
        )
    )
    benchmarks.report(found, as_json=json)
