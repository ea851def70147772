"""No popped message is lost or delivered twice, whenever the broker is killed."""

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from libramq.broker.pop import taking
from libramq.codes import ResponseCode
from libramq.message import MessageExt
from tests.broker.brokers import Conversation
from tests.broker.test_pop import Popper, take_new_handle
from tests.fakes import FakePeer, ManualClock
from tests.quick import quick

INVISIBLE_MS = 10_000


class Witness:
    """The consumers' view of a group: the end of each message's invisible time, and the done messages."""

    def __init__(self, broker: Conversation, *, wide: bool = False) -> None:
        self.wide = wide
        self.broker = broker
        self.popper = Popper(broker)
        self.sent: set[bytes] = set()
        self.done: set[bytes] = set()
        #: Acknowledged to a broker that was killed before it answered.
        self.unanswered: set[bytes] = set()
        self.until_ms: dict[bytes, int] = {}
        self.held: dict[bytes, MessageExt] = {}

    @property
    def now_ms(self) -> int:
        return int(self.broker.clock.monotonic_ms())

    def send(self, body: bytes) -> None:
        if self.broker.send(FakePeer(), body=body).code == ResponseCode.SUCCESS:
            self.sent.add(body)

    def pop(self, invisible_ms: int = INVISIBLE_MS, **fields: int) -> None:
        if self.wide:
            fields["lb_max_msg_nums"] = 3 * fields.get("max_msg_nums", 32)
        for message in self.popper.pop(invisible_time=invisible_ms, **fields):
            body = message.body
            assert body not in self.done, f"{body!r} comes again, after it was acknowledged"
            assert self.until_ms.get(body, 0) <= self.now_ms, f"{body!r} is visible to two"
            self.until_ms[body] = self.now_ms + invisible_ms
            self.held[body] = message

    def in_time(self) -> list[bytes]:
        """Return the messages whose invisible time is not over."""
        return sorted(body for body in self.held if self.until_ms[body] > self.now_ms)

    def ack(self, body: bytes) -> None:
        self.unanswered.add(body)
        if self.popper.ack(self.held.pop(body)).code == ResponseCode.SUCCESS:
            self.done.add(body)
        self.unanswered.discard(body)

    def change(self, body: bytes, invisible_ms: int) -> None:
        message, self.until_ms[body] = self.held.pop(body), 0  # Until when is unknown, if there is no answer.
        reply = self.popper.change(message, invisible_ms)
        if reply.code == ResponseCode.SUCCESS:
            take_new_handle(message, reply)
            self.until_ms[body] = self.now_ms + invisible_ms
            self.held[body] = message

    def moved_to(self, broker: Conversation) -> None:
        """Continue with the next process."""
        self.broker = broker
        self.popper = Popper(broker)

    def drain(self) -> None:
        """Handle every message that arrives until all sent messages are done."""
        for _ in range(40):
            self.pop()
            for body in self.in_time():
                self.ack(body)
            self.broker.advance(2_000)
        dead = {message.body for message in self.broker.messages("%DLQ%G")}
        lost = self.sent - dead - self.done - self.unanswered
        assert not lost, f"lost: {sorted(lost)}"


def work(witness: Witness) -> None:
    """Take messages once through every possible path."""
    for number in range(6):
        witness.send(b"%d" % number)
    witness.pop(max_msg_nums=4)
    witness.ack(b"0")
    witness.change(b"1", 30_000)
    witness.change(b"2", 1_000)
    witness.broker.advance(1_000)
    witness.pop(max_msg_nums=2)
    witness.broker.advance(INVISIBLE_MS - 1_000)
    witness.pop()
    witness.ack(b"1")
    witness.broker.flush()
    witness.broker.advance(6_000)


def count_writes(root: Path) -> int:
    broker = Conversation(root)
    broker.create_topic("T", queues=1)
    before = len(broker.disk.writes)
    work(Witness(broker))
    writes = len(broker.disk.writes) - before
    broker.kill()
    return writes


@pytest.mark.parametrize("step", quick([4, 1], 1))
def test_a_kill_after_any_write_loses_nothing_and_shows_nothing_twice(tmp_path: Path, step: int):
    """Consumers saw everything sent before that write; the next process continues from copied files."""
    writes = count_writes(tmp_path / "whole")
    assert writes > 20
    for kill_at in range(1, writes + 1, step):
        root, copy = tmp_path / f"run-{kill_at}", tmp_path / f"copy-{kill_at}"
        broker = Conversation(root)
        broker.create_topic("T", queues=1)
        witness = Witness(broker)
        clock = _work_until_killed(broker, witness, kill_at, copy)
        broker.kill()
        witness.moved_to(Conversation(copy, clock=clock))
        witness.drain()
        witness.broker.kill()
        shutil.rmtree(root)
        shutil.rmtree(copy)


class Killed(BaseException):
    """The process is gone: not even its error handling runs."""


def _work_until_killed(broker: Conversation, witness: Witness, kill_at: int, copy: Path) -> ManualClock:
    """Work until the given write is done; the rest of its turn never happens."""
    write, left = broker.disk.pwrite, kill_at

    def counted(file: int, data: bytes, offset: int) -> None:
        nonlocal left
        write(file, data, offset)
        left -= 1
        if left == 0:
            shutil.copytree(broker.config.store_path, copy)
        if left <= 0:
            raise Killed

    broker.disk.pwrite = counted  # type: ignore[method-assign]
    with contextlib.suppress(Killed):
        work(witness)
    return broker.clock


@pytest.mark.parametrize("seed", quick(range(12), 4))
def test_random_work_with_kills_and_stops(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch):
    """Half of the consumers pop as LibraMQ's do, with several check points per pop."""
    dice = random.Random(seed)
    wide = bool(seed % 2)
    if wide:
        monkeypatch.setattr(taking, "MESSAGES_MAX", 2)
    broker = Conversation(tmp_path)
    broker.create_topic("T", queues=2)
    witness = Witness(broker, wide=wide)
    for step in range(150):
        in_time = witness.in_time()
        match dice.randrange(10):
            case 0 | 1 | 2:
                witness.send(b"%d" % step)
            case 3 | 4 | 5:
                witness.pop(dice.choice((500, 3_000, 20_000)), max_msg_nums=dice.randint(1, 5))
            case 6 if in_time:
                witness.ack(dice.choice(in_time))
            case 7 if in_time:
                witness.change(dice.choice(in_time), dice.choice((0, 700, 15_000)))
            case 8:
                broker.advance(dice.choice((1, 400, 2_500)))
                if dice.random() < 0.3:
                    broker.flush()
            case 9 if dice.random() < 0.4:
                broker.kill() if dice.random() < 0.7 else broker.close()
                broker = Conversation(tmp_path, clock=broker.clock)
                witness.moved_to(broker)
    witness.drain()
    broker.close()
