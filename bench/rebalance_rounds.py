"""Rounds of rebalances under load, with the cost of each event.

A consumes, B joins, C joins, B stops, C is killed. With a freeze, D joins, is stopped (SIGSTOP) beyond its
session, and continues (SIGCONT). Every message carries its number and send time; every consumer appends its
deliveries and their times to its own file. Both use the machine's clock. An event's window ends at the next
event. A message's delay is that of its first delivery; redeliveries count as duplicates.
"""

import itertools
import os
import random
import signal
import statistics
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tables import print_table
from tests.interop.process import Process

#: The events of a round once A consumes: (consumer, event).
EVENTS: Final = (("B", "joins"), ("C", "joins"), ("B", "stops"), ("C", "killed"))
FREEZE: Final = (("D", "joins"), ("D", "frozen"), ("D", "continues"))
QUEUES: Final = 16
ENTRY: Final = struct.Struct(">qqqq")  # Number, sent and delivered in µs since 1970, queue.
READY_S: Final = 60.0
#: How long A consumes alone, before the first event and after the last.
WARM_S: Final = 3.0
MEMBER: Final = Path(__file__).parent / "rebalance_member"

StartMember = Callable[[str, str, Path], Process]  # (name, topic and group, directory of journals)


class Delivery(NamedTuple):
    """One message given to one consumer."""

    number: int
    sent_us: int
    at_us: int
    queue: int
    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one event."""

    event: str
    delay_ms: float
    duplicates: int
    moved: int
    still_gap_ms: float
    baseline_gap_ms: float


class Target(Protocol):
    """The cluster of the rounds. namesrv: the address that members connect to."""

    namesrv: str
    home: Path

    def fresh_name(self, name: str) -> str: ...

    def create_topic(self, topic: str, queues: int) -> object: ...


def play(
    cluster: Target,
    start: StartMember,
    *,
    rate: int,
    spacing: tuple[float, float],
    randomness: random.Random,
    after_kill_s: float = 0.0,
    frozen_s: float = 0.0,
    parked: bool = False,
    member: Path = MEMBER,
    before_kill: Callable[[Process], None] | None = None,
) -> tuple[list[Cost], int]:
    """Play one round; return the cost of each event and the number of undelivered messages.

    frozen_s: 0 means no freeze. parked: start all processes before the first member joins. member: the
    producing program. before_kill: waits for the moment to kill the member.
    """
    topic = cluster.fresh_name("Rebalance")
    cluster.create_topic(topic, QUEUES)
    home = cluster.home / topic
    journals = {name: home / f"{name}.bin" for name in "ABCD"}
    running: dict[str, Process] = {}
    times_us: list[int] = []

    def begin(name: str) -> None:
        if not parked:
            running[name] = start(name, topic, home)
        running[name].tell(f"join {name}")

    acts: dict[str, Callable[[str], None]] = {
        "joins": begin,
        "stops": lambda name: running[name].tell("stop"),
        "killed": lambda name: running.pop(name).kill(),
        "frozen": lambda name: os.kill(running[name].pid, signal.SIGSTOP),
        "continues": lambda name: os.kill(running[name].pid, signal.SIGCONT),
    }
    lasting_s = {"killed": after_kill_s, "frozen": frozen_s}
    events = EVENTS + (FREEZE if frozen_s else ())
    try:
        for name in sorted({"A", *(name for name, _ in events)}) if parked else ():
            running[name] = start(name, topic, home)
            running[name].wait_line("ready", within_s=READY_S)
        begin("A")
        running["A"].wait_line("started", within_s=READY_S)
        command = [sys.executable, str(member), "produce", cluster.namesrv, topic, str(rate)]
        producer = running["producer"] = Process("producer", command, directory=home)
        producer.wait_line("started", within_s=READY_S)
        time.sleep(WARM_S + randomness.random())
        for name, what in events:
            if what == "killed" and before_kill is not None:
                before_kill(running[name])
            times_us.append(time.time_ns() // 1000)
            acts[what](name)
            time.sleep(randomness.uniform(*spacing) + lasting_s.get(what, 0.0))
        producer.tell("stop")
        sent, *failed = map(int, producer.wait_line("sent ", within_s=READY_S).split()[1:])
        time.sleep(WARM_S)
    finally:
        for process in running.values():
            process.stop()
    deliveries = sorted(
        (delivery for name, path in journals.items() if path.exists() for delivery in read(name, path)),
        key=lambda delivery: delivery.at_us,
    )
    if not deliveries:
        raise SystemExit(f"nothing was consumed: look at {home}")
    if failed:
        print(f"{len(failed)} of {sent} sends failed: the delays of this round say little", flush=True)
    stored = set(range(sent)) - set(failed)
    return costs(deliveries, [" ".join(event) for event in events], times_us), len(
        stored - {delivery.number for delivery in deliveries}
    )


def read(member: str, path: Path, last: int | None = None) -> list[Delivery]:
    """Return a consumer's journal or its last entries; a kill may have truncated the last one."""
    with path.open("rb") as journal:
        count = path.stat().st_size // ENTRY.size
        skipped = max(0, count - last) if last is not None else 0
        journal.seek(skipped * ENTRY.size)
        data = journal.read((count - skipped) * ENTRY.size)
    return [Delivery(*fields, member) for fields in ENTRY.iter_unpack(data)]


def costs(deliveries: Sequence[Delivery], events: Sequence[str], times_us: Sequence[int]) -> list[Cost]:
    """Return the cost of each event, computed from deliveries in order of time."""
    found = []
    before: list[Delivery] = []
    seen: set[int] = set()
    bounds = [times_us[0] - int(WARM_S * 1e6 / 2), *times_us, sys.maxsize]
    windows = [
        [delivery for delivery in deliveries if start <= delivery.at_us < end]
        for start, end in itertools.pairwise(bounds)
    ]
    seen.update(delivery.number for delivery in deliveries if delivery.at_us < times_us[0])
    before = windows[0]
    baseline = max(gaps(before).values(), default=0.0)
    for event, window in zip(events, windows[1:], strict=True):
        first_owner = {delivery.queue: delivery.member for delivery in before}
        last_owner = {delivery.queue: delivery.member for delivery in window}
        still = {queue for queue, owner in last_owner.items() if first_owner.get(queue) == owner}
        fresh = []
        for delivery in window:
            if delivery.number not in seen:
                seen.add(delivery.number)
                fresh.append(delivery)
        found.append(
            Cost(
                event=event,
                delay_ms=max((each.at_us - each.sent_us for each in fresh), default=0) / 1000,
                duplicates=len(window) - len(fresh),
                moved=len(last_owner) - len(still),
                still_gap_ms=max((gap for queue, gap in gaps(window).items() if queue in still), default=0.0),
                baseline_gap_ms=baseline,
            )
        )
        before = window
    return found


def gaps(deliveries: Sequence[Delivery]) -> dict[int, float]:
    """Return the longest time between two deliveries of each queue, in ms."""
    last: dict[int, int] = {}
    longest: dict[int, float] = defaultdict(float)
    for delivery in deliveries:
        if delivery.queue in last:
            longest[delivery.queue] = max(
                longest[delivery.queue], (delivery.at_us - last[delivery.queue]) / 1000
            )
        last[delivery.queue] = delivery.at_us
    return longest


def print_round(label: str, number: int, found: Sequence[Cost], lost: int) -> None:
    """Print one line for a round."""
    told = "  ".join(f"{each.event} {each.delay_ms:,.0f} ms/{each.duplicates} dup" for each in found)
    print(f"{label} round {number}: {told}  lost {lost}", flush=True)


def print_costs(rounds: dict[str, list[list[Cost]]]) -> None:
    """Print the medians and the worst values of all rounds."""
    rows = []
    for label, played in rounds.items():
        for position, cost in enumerate(played[0]):
            mine = [found[position] for found in played]
            delays = [each.delay_ms for each in mine]
            rows.append(
                (
                    label,
                    cost.event,
                    f"{statistics.median(delays):,.0f}",
                    f"{max(delays):,.0f}",
                    f"{statistics.median(each.duplicates for each in mine):,.0f}",
                    f"{max(each.duplicates for each in mine):,}",
                    f"{statistics.median(each.moved for each in mine):.0f}",
                    f"{max(each.still_gap_ms for each in mine):,.0f}",
                    f"{max(each.baseline_gap_ms for each in mine):,.0f}",
                )
            )
    print()
    print_table(
        ("group", "event", "delay ms: median", "worst", "duplicates: median", "worst", "moved",
         "others' worst gap ms", "before"),
        rows,
    )  # fmt: skip
