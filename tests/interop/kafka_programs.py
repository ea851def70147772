"""Kafka's Java clients and tools from Maven Central, and our servers with a Kafka port."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.interop.apache import CACHE, SMALL_JVM
from tests.interop.libra import LibraUp
from tests.interop.ports import free_port
from tests.interop.process import PATIENCE_S, Program

#: The newest release, and the last one that still speaks to brokers before 2.1.
VERSIONS = ("4.3.1", "3.9.2")
TOOL_TIMEOUT_S = 120.0


class KafkaUp(LibraUp):
    """`libra up` with a Kafka port."""

    def __init__(self, home: Path, *options: str) -> None:
        self.kafka = f"127.0.0.1:{free_port()}"
        super().__init__(home, "--kafka-port", self.kafka.rpartition(":")[2], *options)


class KafkaClients:
    """One process of `KafkaClients.java`: a producer, and consumers with names."""

    def __init__(
        self,
        servers: str,
        *,
        home: Path,
        version: str = VERSIONS[0],
        producer: Mapping[str, object] | None = None,
        common: Mapping[str, object] | None = None,
    ) -> None:
        settings = {"servers": servers} | {
            f"producer.{name}": value for name, value in (producer or {}).items()
        }
        settings |= {f"common.{name}": str(value) for name, value in (common or {}).items()}
        command = java_command("KafkaClients", home=home, version=version, properties=settings)
        self.program = Program(f"kafka-clients {version}", command, directory=home)
        assert self.program.wait_event("started")["version"] == version

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        self._ask("create", topic=topic, partitions=partitions)

    def produce(self, topic: str, partition: int, *values: str) -> list[int]:
        """Store values; return their offsets."""
        offsets: list[int] = self._ask("produce", topic=topic, partition=partition, values=values)["offsets"]
        return offsets

    def subscribe(self, name: str, topic: str, group: str, **settings: object) -> None:
        """Start a consumer, with settings whose dots are underscores.

        A topic that begins with ^ is a pattern behind that, which the broker resolves.
        """
        named = {key.replace("_", "."): str(value) for key, value in settings.items()}
        self._ask("subscribe", name=name, topic=topic, settings={"group.id": group, **named})

    def close(self, name: str) -> None:
        """Close a consumer."""
        self._ask("close", name=name)

    def clear(self) -> None:
        """Close all consumers and forget what they did, for the next test: a JVM takes seconds to start."""
        self._ask("clear")
        self.program.forget()

    def remove(self, group: str, instance: str) -> None:
        """Have a static member removed from its group, as an operator would."""
        self._ask("remove", group=group, instance=instance)

    def _ask(self, what: str, **fields: Any) -> dict[str, Any]:
        answer = self.program.ask("answer", {"do": what, **fields}, within_s=PATIENCE_S)
        assert "error" not in answer, answer
        return answer

    def wait_owned(self, **expected: Sequence[int]) -> None:
        """Wait until consumers have exactly these partitions."""
        self.program.wait_until(
            lambda: all(self.owned(name) == list(wanted) for name, wanted in expected.items()),
            f"not owned: {expected}",
            within_s=PATIENCE_S,
        )

    def wait_share(self, name: str, count: int) -> None:
        """Wait until a consumer has this many partitions."""
        self.program.wait_until(
            lambda: len(self.owned(name) or ()) == count, f"{name} has not {count}", within_s=PATIENCE_S
        )

    def owned(self, name: str) -> list[int] | None:
        """Return a consumer's partitions after the last change; None if it had none yet."""
        changes = [each for each in list(self.program.events) if "owned" in each and each["name"] == name]
        if not changes:
            return None
        last = changes[-1]
        # The listener is called before the partitions are released.
        gone = () if last["event"] == "assigned" else last["partitions"]
        return [each for each in last["owned"] if each not in gone]

    def records(self, *names: str) -> list[tuple[int, int]]:
        """Return partition and offset of every record that these consumers received, in order."""
        return [
            (each["partition"], each["offset"])
            for each in self.program.of("record")
            if not names or each["name"] in names
        ]

    def wait_records(self, count: int) -> list[dict[str, Any]]:
        """Wait for this many records, over all consumers."""
        return self.program.wait_count(count, "record")

    def finish(self) -> None:
        """End the process as a user would."""
        self.program.finish()

    def stop(self) -> None:
        """Terminate the process."""
        self.program.stop()


class KafkaTools(Program):
    """Kafka's command line tools at one of our servers, all in one process."""

    def __init__(self, servers: str, home: Path) -> None:
        self._servers = servers
        super().__init__("kafka-tools", java_command("KafkaTools", home=home), directory=home)

    def topics(self, *options: str) -> str:
        return self._run("TopicCommand", *options)

    def groups(self, *options: str) -> str:
        return self._run("consumer.group.ConsumerGroupCommand", *options)

    def _run(self, main: str, *options: str) -> str:
        """Return what a tool prints; it ends with 0 even after a failure."""
        arguments = ["--bootstrap-server", self._servers, *options]
        ran = self.ask("ran", {"main": main, "arguments": arguments}, within_s=TOOL_TIMEOUT_S)
        assert ran["code"] == 0, ran["out"]
        printed: str = ran["out"]
        return printed


def java_command(
    main: str,
    *,
    home: Path,
    version: str = VERSIONS[0],
    jvm: Sequence[str] = SMALL_JVM,
    properties: Mapping[str, object] | None = None,
) -> list[str]:
    """Return the command of a Java program with this version of Kafka's clients."""
    settings = {"user.home": home, "java.io.tmpdir": home, **(properties or {})}
    # Java loads a class from the first jar that has it.
    path = [
        f"{CACHE}/classes/programs.jar",
        f"{CACHE}/kafka/older/kafka-clients-{version}.jar",
        f"{CACHE}/kafka/*",
    ]
    return [
        "java",
        *jvm,
        *(f"-D{name}={value}" for name, value in settings.items()),
        "-cp",
        ":".join(path),
        main,
    ]
