"""A running name server and broker, Apache's or ours, and the programs that a test starts against them."""

import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.interop import wire
from tests.interop.apache import BINARY_HEADERS, VIP_CHANNEL, MqAdmin, start_program
from tests.interop.process import PATIENCE_S, STOP_TIMEOUT_S, Event, Events, Program, T

POLL_S = 0.02
#: Some conditions read whole files, and most waits are for timers of several seconds.
POLL_S_MAX = 0.3
PERM_READ_WRITE = 6
# The clients' default is 3 s, too short for a busy machine: a retried send stores the message twice.
SEND_TIMEOUT_MS = 30_000

# The ways in which a stock client can be set up to communicate; the service must be the same for all.
DIALECTS: dict[str, dict[str, str]] = {"json": {}, "rocketmq": BINARY_HEADERS, "vip": VIP_CHANNEL}

_serial = itertools.count(1)


class Consumer(Events):
    """An Apache push consumer in a process shared with others: a JVM takes half a second to start."""

    def __init__(self, process: Program, name: str, settings: Mapping[str, object]) -> None:
        self.name = name
        self._process = process
        process.tell(json.dumps({"consumer": name, **settings}))

    @property
    def events(self) -> list[Event]:
        return [event for event in self._process.events if event.get("consumer") == self.name]

    def wait_until(self, condition: Callable[[], T | None], what: str, *, within_s: float) -> T:
        return self._process.wait_until(condition, f"{self.name}: {what}", within_s=within_s)

    def finish(self, *, within_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the consumer as a user would: it unregisters from its servers."""
        self._process.tell(json.dumps({"consumer": self.name, "stop": True}))
        self.wait_event("stopped", within_s=within_s)

    def stop(self) -> None:
        if self._process.returncode is None and not self.of("stopped"):
            self.finish()


class Cluster:
    def __init__(self, kind: str, namesrv: str, home: Path) -> None:
        self.kind = kind
        self.namesrv = namesrv
        self.home = home
        brokers = sorted(wire.brokers_of(namesrv).items())
        self.brokers: dict[str, str] = {name: data["brokerAddrs"]["0"] for name, data in brokers}
        self.broker_name, data = brokers[0]
        self.cluster_name: str = data["cluster"]
        self.broker_address: str = data["brokerAddrs"]["0"]
        self.admin = MqAdmin(home / "admin", namesrv)
        self._started: list[Program | Consumer] = []
        self._shared: dict[str, Program] = {}

    def fresh_name(self, what: str) -> str:
        """Return a name of a topic or group that no other test uses."""
        return f"{what}_{next(_serial)}"

    def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic and wait for its route. Several brokers share the queues as evenly as possible.

        The request is the one that mqadmin sends; mqadmin itself would take seconds.
        """
        for position, address in enumerate(self.brokers.values()):
            share = str((queues + position) // len(self.brokers))
            answer = wire.ask(
                address,
                wire.UPDATE_AND_CREATE_TOPIC,
                {
                    "topic": topic,
                    "defaultTopic": "TBW102",
                    "readQueueNums": share,
                    "writeQueueNums": share,
                    "perm": str(PERM_READ_WRITE),
                    "topicFilterType": "SINGLE_TAG",
                    "topicSysFlag": "0",
                    "order": "false",
                    "attributes": "",
                },
            )
            assert answer.header["code"] == 0, answer.header
        self.wait_until(lambda: self._is_whole(topic), f"no route of {topic}", within_s=PATIENCE_S)

    def _is_whole(self, topic: str) -> bool:
        route = self.route(topic)
        return route is not None and len(route["queueDatas"]) == len(self.brokers)

    def route(self, topic: str) -> dict[str, Any] | None:
        answer = wire.ask(self.namesrv, wire.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if answer.header["code"] != 0:
            return None
        route: dict[str, Any] = json.loads(answer.body)
        return route

    def wait_stored(self, topic: str, count: int) -> None:
        """Wait until a topic's queues have this many messages: Apache's broker acknowledges earlier."""

        def stored() -> int:
            return sum(
                int(self._field(address, wire.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue)}) or 0)
                for address, queue in self._queues(topic)
            )

        self.wait_until(lambda: stored() == count, f"{count} messages in {topic}", within_s=PATIENCE_S)

    def wait_committed(self, group: str, topic: str, count: int) -> None:
        """Wait until a group has committed this many messages: Java's client commits one way, every 5 s."""

        def committed(address: str, queue: int) -> int:
            fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
            return int(self._field(address, wire.QUERY_CONSUMER_OFFSET, fields) or 0)

        self.wait_until(
            lambda: sum(committed(*queue) for queue in self._queues(topic)) == count,
            f"{count} messages of {topic} committed by {group}",
            within_s=PATIENCE_S,
        )

    def begin_offsets(self, group: str, topic: str) -> None:
        """Commit a group's first offset: Apache's broker can lose one of two simultaneous first commits."""
        if self.kind != "apache":
            return
        body = json.dumps({"groupName": group}).encode()
        made = wire.ask(self.broker_address, wire.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert made.header["code"] == 0, made.header
        fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "0"}
        begun = wire.ask(self.broker_address, wire.UPDATE_CONSUMER_OFFSET, fields)
        assert begun.header["code"] == 0, begun.header

    def _queues(self, topic: str) -> list[tuple[str, int]]:
        """Return each queue of a topic with its broker's address; none while the topic has no route."""
        datas = (self.route(topic) or {"queueDatas": []})["queueDatas"]
        return [
            (self.brokers[data["brokerName"]], queue)
            for data in datas
            for queue in range(data["readQueueNums"])
        ]

    @staticmethod
    def _field(address: str, code: int, fields: dict[str, str]) -> str | None:
        """Return the offset in a broker's answer, if there is one."""
        header = wire.ask(address, code, fields).header
        offset: str | None = header["extFields"].get("offset") if header["code"] == 0 else None
        return offset

    @staticmethod
    def wait_until(condition: Callable[[], bool], what: str, *, within_s: float) -> None:
        """Poll a condition at a server for which no event exists."""
        pause, pause_s = threading.Event(), POLL_S
        end_s = time.monotonic() + within_s
        while time.monotonic() < end_s:
            if condition():
                return
            pause.wait(pause_s)
            pause_s = min(2 * pause_s, POLL_S_MAX)
        raise AssertionError(f"{what} within {within_s} s")

    def start(self, main: str, properties: Mapping[str, object], *, dialect: str = "json") -> Program:
        name = self.fresh_name(main.lower())
        settings = {"namesrv": self.namesrv, **DIALECTS[dialect], **properties}
        program = start_program(main, settings, name=name, home=self.home / name)
        self._started.append(program)
        return program

    def shared(self, main: str, properties: Mapping[str, object], *, dialect: str = "json") -> Program:
        """Return the session's program of this kind: a JVM takes half a second of processor time to start."""
        name = f"{main} {dialect}"
        if name not in self._shared:
            program = self.start(main, properties, dialect=dialect)
            program.wait_event("started")
            self._shared[name] = program
        return self._shared[name]

    def producer(self, dialect: str = "json") -> Program:
        """Return the session's producer for a dialect."""
        settings = {"group": f"producers_{dialect}", "timeout": SEND_TIMEOUT_MS}
        return self.shared("Produce", settings, dialect=dialect)

    def consumer(self, group: str, topic: str, *, dialect: str = "json", **settings: object) -> Consumer:
        """Start a push consumer, and wait until it has its queues."""
        process = self.shared("Consume", {}, dialect=dialect)
        consumer = Consumer(process, self.fresh_name("consume"), {"group": group, "topic": topic, **settings})
        self._started.append(consumer)
        consumer.wait_event("queues", topic=topic)
        return consumer

    def consumer_process(self, group: str, topic: str, **settings: object) -> Program:
        """Start a push consumer in a separate process, to be killed; wait until it has its queues."""
        process = self.start("Consume", {"group": group, "topic": topic, **settings})
        process.wait_event("queues", topic=topic)
        return process

    def send(self, dialect: str = "json", **message: object) -> Event:
        """Send and insist on SEND_OK."""
        sent = self.producer(dialect).ask("sent", {"kind": "sync", **message})
        assert sent["status"] in {"SEND_OK", "SENT"}, sent
        return sent

    def stop_programs(self, *, keep_producers: bool = True) -> None:
        """End the programs that a test has left running."""
        kept = list(self._shared.values()) if keep_producers else []
        for program in reversed(self._started):
            if program not in kept:
                program.stop()
        self._started = [*kept]
        if not keep_producers:
            self._shared = {}
            self.admin.stop()
