"""Programs whose signal handlers use blocking clients: `python signals.py NAME NAMESRV`."""

import contextlib
import itertools
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from libramq import Message
from libramq.errors import LocalProtocolError
from libramq.sync import Admin, Consumer, Producer, PushConsumer, SimpleConsumer

#: How often a handler interrupts the main thread, wherever it is.
INTERRUPTIONS = 200


def client_of(name: str, namesrv: str) -> Any:
    """Return a client whose start and stop take work."""
    if name == "push":
        consumer = PushConsumer(group="g", namesrv=namesrv)
        consumer.subscribe("T", "*", print)
        return consumer
    if name == "fetching":
        fetching = Consumer(group="g", namesrv=namesrv)
        fetching.subscribe("T")
        return fetching
    if name == "simple":
        return SimpleConsumer(group="g", namesrv=namesrv)
    return Producer(namesrv=namesrv, send_timeout_ms=500)


def stopping(client: Consumer | Producer | PushConsumer) -> None:
    """Stop the client, and again at a SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: client.stop())
    client.start()
    if isinstance(client, Producer):
        client.send_nowait(Message("T", b"x"), lambda outcome: None)  # Its outcome is known then.
    else:
        while not client.assignment():  # The broker knows it then.
            time.sleep(0.01)
    client.stop()
    client.start()  # Nothing is left of the life before.
    client.stop()


def starting(client: Consumer | Producer | PushConsumer) -> None:
    """Start the client, and stop it at a SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: client.stop())
    try:
        client.start()
    except LocalProtocolError as error:
        print(error)


def calling(namesrv: str) -> None:
    """Call a producer's methods in a handler that interrupts calls of the same."""
    with Producer(namesrv=namesrv) as producer, Admin(namesrv=namesrv) as admin:
        left = INTERRUPTIONS

        def interrupt(*_: object) -> None:
            nonlocal left
            left -= 1
            producer.publish_queues("T")
            producer.send_nowait(Message("T", b"x"))
            if not left % 50:
                admin.topics()
            if left:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))

        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 1e-3)
        while left > 0:
            producer.send_nowait(Message("T", b"x"))
            producer.publish_queues("T")


def ending(namesrv: str) -> None:
    """Stop a producer repeatedly, in the middle of any operation."""
    for _ in range(30):
        producer = Producer(namesrv=namesrv, buffer_bytes_max=2_000)
        signal.signal(signal.SIGALRM, lambda *_, producer=producer: producer.stop())
        with contextlib.suppress(LocalProtocolError), producer:
            producer.publish_queues("T")
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-3))
            while True:
                producer.send_nowait(Message("T", bytes(100)))


def receiving(namesrv: str) -> None:
    """End the loop of a program that fetches."""
    with Consumer(group="g", namesrv=namesrv) as consumer:
        consumer.assign(consumer.queues("T"))
        signal.signal(signal.SIGALRM, lambda *_: consumer.stop())
        signal.setitimer(signal.ITIMER_REAL, 1e-2)
        for message in consumer:
            print(message)


class Interrupted(Exception):
    """The exception that a signal handler raises."""


@contextlib.contextmanager
def interruption(handler: Callable[[], object], *at: int) -> Iterator[None]:
    """Call a signal's handler after this many calls and returns of a client.

    A signal comes anywhere: this is where Python looks for one, without chance.
    """
    seen = 0

    def look(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        nonlocal seen
        if event in ("call", "return") and frame.f_globals["__name__"].startswith("libramq"):
            seen += 1
            if seen in at:
                handler()
        return look

    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(None)


def interrupt() -> None:
    """Be a handler that raises."""
    raise Interrupted


def queueing(namesrv: str) -> None:
    """Interrupt `send_nowait` everywhere: the next message leaves by itself."""
    with Producer(namesrv=namesrv) as producer:
        for at in itertools.count(1):
            try:
                with interruption(interrupt, at):
                    producer.send_nowait(Message("T", b"x"))
                return
            except Interrupted:
                left = threading.Event()
                producer.send_nowait(Message("T", b"y"), lambda _, left=left: left.set())
                if not left.wait(10):
                    print("interrupted at", at, "and nothing leaves")
                    return


def beginning(namesrv: str) -> None:
    """Interrupt a start and a stop everywhere: no thread stays."""
    for at in itertools.count(1):
        producer = Producer(namesrv=namesrv)
        try:
            with interruption(interrupt, at):
                producer.start()
                producer.stop()
            break
        except Interrupted:
            producer.stop()
    for thread in threading.enumerate():
        if thread.name.startswith("libramq"):
            thread.join(5)
            print(thread)


def beginning_again(namesrv: str) -> None:
    """Interrupt a start everywhere: the same client can be started again, unless the start had ended."""
    for kind, step in ("producer", 1), ("fetching", 7), ("simple", 2):
        refusals = 0
        for at in itertools.count(1, step):
            client = client_of(kind, namesrv)
            try:
                with interruption(interrupt, at):
                    client.start()
                break
            except Interrupted:
                try:
                    client.start()
                except LocalProtocolError as error:
                    refusals += 1
                    if "runs already" not in str(error) or refusals > 1:
                        print(kind, "interrupted at", at, error)
            finally:
                client.stop()


def starting_again(namesrv: str) -> None:
    """Stop a client in the middle of its start, and once more: the start alone says so."""
    for first, second in itertools.product((8, 12), range(9, 50)):
        producer = Producer(namesrv=namesrv)
        try:
            with interruption(producer.stop, first, second):
                producer.start()
            producer.stop()
        except LocalProtocolError as error:
            if "was stopped while it was being started" not in str(error):
                print(error)


def main() -> None:
    """Run one of the programs, and print that it has ended."""
    name, namesrv, *kind = sys.argv[1:]
    function = globals()[name]
    function(client_of(*kind, namesrv) if kind else namesrv)
    print("ended", flush=True)


if __name__ == "__main__":
    main()
