"""Members of one group in their own processes, the queues they own, and a flow of messages meanwhile."""

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from libramq.message import Message, MessageQueue
from libramq.sync import Producer
from tests.interop.cluster import SEND_TIMEOUT_MS, Cluster
from tests.interop.process import Event, Program

ROOT = Path(__file__).parent.parent.parent


class Members:
    """Processes that run tests.interop.member; the options are those of PushConsumer."""

    def __init__(self, cluster: Cluster, topic: str, **options: object) -> None:
        self._cluster = cluster
        self._options = {"namesrv": cluster.namesrv, "topic": topic, **options}
        self.all: list[Program] = []

    def start(self, **options: object) -> Program:
        name = self._cluster.fresh_name("member")
        member = Program(
            name,
            [sys.executable, "-m", "tests.interop.member", json.dumps(self._options | options)],
            directory=self._cluster.home / name,
            env={"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        )
        self.all.append(member)
        member.wait_event("started")
        return member

    def stop(self) -> None:
        for member in self.all:
            member.stop()

    def deliveries(self) -> list[Event]:
        return [event for member in self.all for event in member.of("message")]


def owned(member: Program) -> set[int]:
    """Return the queues that a member owns, according to its listener."""
    queues: set[int] = set()
    for event in list(member.events):
        if event["event"] == "assigned":
            queues |= set(event["queues"])
        elif event["event"] in {"revoked", "lost"}:
            queues -= set(event["queues"])
    return queues


@contextmanager
def flow(cluster: Cluster, topic: str, queues: int, pause_s: float = 0.001) -> Iterator[list[int]]:
    """Send messages to every queue in turn until the block ends; yield their count in a list of one."""
    done, sent = threading.Event(), [0]

    def send() -> None:
        with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
            while not done.wait(pause_s):
                queue = MessageQueue(topic, cluster.broker_name, sent[0] % queues)
                producer.send(Message(topic, b"%d" % sent[0]), queue=queue)
                sent[0] += 1

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield sent
    finally:
        done.set()
        sender.join()
