"""The soak: servers, programs, churn and kills; a row a minute, and the verdict."""

import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.soaking import measures
from bench.soaking.measures import DESCRIPTORS, JOURNALS, MEMORY, STORE, Quantity, judge
from bench.soaking.program import KAFKA, PLAIN, POPPED, SPARK, TIMERS
from bench.soaking.tally import Tally
from bench.torturing.broker import check_files
from tests.interop.libra import ENVIRONMENT, LibraServers
from tests.interop.ports import free_port
from tests.interop.process import Process

from libramq.errors import ConfigError
from libramq.sync import Admin

ROOT: Final = Path(__file__).resolve().parent.parent.parent
STEADY, KILLED = "broker-a", "broker-b"
BROKERS: Final = (STEADY, KILLED)
QUEUES: Final = 4
#: Ours: small files, so that many are created and deleted; files are deleted only by age.
SETTINGS: Final = {
    "mappedFileSizeCommitLog": 8 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 3_000,
    "mappedFileSizeTimerLog": 52 * 5_000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 50_000,
    "timerPrecisionMs": 100,
    "fileReservedTime": 1,
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "cleanFileForciblyEnable": "false",
    "diskSpaceWarningLevelRatio": 100,
}
RESERVED_S: Final = 3_600
#: Ours: the age at which a commit log file is dated back by the brokers' retention time.
KEPT_S: Final = 600
ROW_S: Final = 60
CHURN_S: Final = 20
BROKER_FAULT_S: Final = 240
AWAY_S: Final = 2
DELAY_S_MAX: Final = 300
#: Ours: a message unhandled this long after its longest delay is late, and lost at the end. Messages popped
#: by a killed member are invisible for a minute, and its session may last as long.
PATIENCE_S: Final = 240
MEMBERS_MAX: Final = 3
START_S: Final = 180
TICK_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The duration and rate of a soak, and whether it includes Spark."""

    minutes: float
    rate: int
    has_spark: bool

    @property
    def fault_period_s(self) -> float:
        """Return how long broker-b runs between faults; a short soak kills it as well."""
        return min(BROKER_FAULT_S, self.minutes * 60 / 3)

    @property
    def delay_s_max(self) -> float:
        """Return the longest delay of timer messages, at most a quarter of the soak."""
        return max(2.0, min(DELAY_S_MAX, self.minutes * 60 / 4))


class Reporting(Process):
    """A program of `bench.soaking.program` whose events are counted and forgotten."""

    def __init__(
        self, role: str, number: int, options: Mapping[str, object], home: Path, count: Callable[..., None]
    ) -> None:
        self.is_started = threading.Event()
        self._count = count
        super().__init__(
            f"{role}-{number}",
            [sys.executable, "-m", "bench.soaking.program", role, json.dumps(options)],
            directory=home,
            env={"PYTHONPATH": os.pathsep.join([str(ROOT), ENVIRONMENT["PYTHONPATH"]])},
        )

    def _accept(self, line: str) -> None:
        with contextlib.suppress(ValueError):  # A kill truncated the line: its messages are redelivered.
            event = json.loads(line)
            if event["event"] == "started":
                self.is_started.set()
            self._count(event)

    def finish(self) -> None:
        """Ask the program to end, and wait for it."""
        if self.returncode is None:
            self.tell("stop")
        code = self.wait_end(within_s=START_S)
        assert code == 0, self.complaint()
        self._close()


@dataclass(slots=True)
class Counts:
    """The programs' reports, shared by their threads."""

    tallies: dict[str, Tally] = field(
        default_factory=lambda: {stream: Tally() for stream in (PLAIN, TIMERS, POPPED, KAFKA)}
    )
    events: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, event: Mapping[str, Any]) -> None:
        """Count an event."""
        kind, numbers = event["event"], event.get("numbers", ())
        with self._lock:
            self.events[kind] += max(1, len(numbers))
            if kind == "handled":
                self.tallies[event["stream"]].handled(numbers)
            elif kind == "acknowledged":
                now_s = time.monotonic()
                self.tallies[event["stream"]].acknowledged(numbers, now_s)
                if event["stream"] == PLAIN and SPARK in self.tallies:
                    self.tallies[SPARK].acknowledged(numbers, now_s)

    def all_overdue(self, before_s: float) -> dict[str, list[int]]:
        """Return each stream's unhandled messages that were acknowledged before a time."""
        with self._lock:
            found = {stream: tally.overdue(before_s) for stream, tally in self.tallies.items()}
            return {stream: numbers for stream, numbers in found.items() if numbers}

    def progress(self) -> tuple[int, int]:
        """Return the numbers of handled and of waiting messages."""
        with self._lock:
            tallies = self.tallies.values()
            return sum(each.handled_count for each in tallies), sum(each.waiting_count for each in tallies)


class Soak:
    """One run. directory: a new or empty one; by default a temporary one, which stays after a failure."""

    def __init__(self, workload: Workload, directory: Path | None) -> None:
        if directory is not None and directory.exists() and any(directory.iterdir()):
            raise ConfigError(f"{directory} is not empty; name a new directory")
        self._workload = workload
        self._directory = directory
        self._home = Path()
        self._counts = Counts()
        if workload.has_spark:
            self._counts.tallies[SPARK] = Tally()
        self._number = itertools.count()
        self._groups: dict[str, list[Reporting]] = {"member": [], "popper": [], "kafka_member": []}
        self._producers: list[Reporting] = []
        self._spark: Reporting | None = None
        self._servers: LibraServers | None = None
        self._kafka = {name: free_port() for name in BROKERS}
        self._series: dict[tuple[str, Quantity], list[tuple[float, float]]] = {}

    def run(self) -> int:
        """Run to the end; print rows and verdict; return the exit code."""
        self._home = self._directory or Path(tempfile.mkdtemp(prefix="libra-soak-"))
        self._home.mkdir(parents=True, exist_ok=True)
        print(f"soak in {self._home}", flush=True)
        wrong: list[str] = ["it did not come to its end"]
        try:
            self._start()
            self._load()
            wrong = self._drain()
            wrong += self._judge()
        finally:
            self._stop_all()
            if self._directory is None and not wrong:
                shutil.rmtree(self._home)
        for text in wrong:
            print(f"broken: {text}")
        print(self._summary(wrong))
        if wrong:
            print(f"files and logs are in {self._home}")
        return 1 if wrong else 0

    # Programs

    def _start(self) -> None:
        self._servers = LibraServers(self._home, settings=SETTINGS)
        for name in BROKERS:
            self._servers.start(name, kafkaListenPort=self._kafka[name])
        with Admin(namesrv=self._servers.namesrv) as admin:
            for topic in (PLAIN, TIMERS, POPPED, KAFKA):
                admin.create_topic(topic, queues=QUEUES)
        for role in self._groups:
            for _ in range(2):
                self._join(role)
        if self._workload.has_spark:
            self._spark = self._program("spark", checkpoint=str(self._home / "checkpoint"))
            self._wait_started(self._spark)
        self._producers = [self._program(role) for role in ("sender", "kafka_sender")]
        for producer in self._producers:
            self._wait_started(producer)

    def _program(self, role: str, **options: object) -> Reporting:
        assert self._servers is not None
        every = {
            "namesrv": self._servers.namesrv,
            "kafka": ",".join(f"127.0.0.1:{port}" for port in self._kafka.values()),
            "rate": self._workload.rate,
            "delay_ms_max": int(self._workload.delay_s_max * 1_000),
        }
        home = self._home / "programs"
        return Reporting(role, next(self._number), {**every, **options}, home, self._counts.count)

    def _wait_started(self, program: Reporting) -> None:
        assert program.is_started.wait(START_S), program.complaint()

    def _join(self, role: str) -> None:
        program = self._program(role)
        self._groups[role].append(program)
        self._wait_started(program)

    # Load

    def _load(self) -> None:
        began = time.monotonic()
        end = began + self._workload.minutes * 60
        turns = [
            (ROW_S, self._rows(began)),
            (CHURN_S, self._churn()),
            (self._workload.fault_period_s, self._broker_faults()),
        ]
        next_s = [began + period for period, _ in turns]
        print(_HEAD, flush=True)
        while (now := time.monotonic()) < end + TICK_S:
            for place, (period, turn) in enumerate(turns):
                if now >= next_s[place]:
                    next_s[place] += period
                    next(turn)
            self._check_alive()
            time.sleep(TICK_S)

    def _churn(self) -> Iterator[None]:
        """Per turn, let one member join, leave or be killed, group by group; the first member stays."""
        ways = itertools.cycle(("leave", "kill"))
        for role in itertools.cycle(self._groups):
            members = self._groups[role]
            if len(members) < MEMBERS_MAX:
                self._join(role)
            else:
                leaving = members.pop(1)
                leaving.finish() if next(ways) == "leave" else leaving.kill()
            self._counts.events["churn"] += 1
            yield

    def _broker_faults(self) -> Iterator[None]:
        assert self._servers is not None
        for is_killed in itertools.cycle((True, False)):
            if is_killed:
                self._servers.kill(KILLED)
            else:
                self._servers.stop_broker(KILLED)
            time.sleep(AWAY_S)
            self._servers.start(KILLED, kafkaListenPort=self._kafka[KILLED])
            self._counts.events["killed" if is_killed else "stopped broker"] += 1
            yield

    def _check_alive(self) -> None:
        for program in self._steady().values():
            assert program.returncode is None, f"{program.name} has ended\n{program.complaint()}"

    # Measures

    def _steady(self) -> dict[str, Process]:
        """Return the processes that run for the whole soak."""
        assert self._servers is not None
        found: dict[str, Process] = {
            "name server": self._servers.name_server,
            STEADY: self._servers.process(STEADY),
            **{program.name.rpartition("-")[0]: program for program in self._producers},
            **{role: members[0] for role, members in self._groups.items()},
        }
        return found if self._spark is None else {**found, SPARK: self._spark}

    def _rows(self, began: float) -> Iterator[None]:
        while True:
            self._row((time.monotonic() - began) / 60)
            self._age_files()
            yield

    def _row(self, minute: float) -> None:
        assert self._servers is not None
        cells = [f"{minute:5.0f}"]
        for name, process in self._steady().items():
            memory, descriptors = measures.of_process(process.pid)
            if name != SPARK:  # A JVM fills its heap.
                self._note(minute, name, MEMORY, memory)
            self._note(minute, name, DESCRIPTORS, descriptors)
            cells.append(f"{memory:6.1f} {descriptors:4}")
        for name in BROKERS:
            journals, store = measures.store_mib(self._home / name / "store")
            self._note(minute, name, JOURNALS, journals)
            self._note(minute, name, STORE, store)
            cells.append(f"{journals:6.2f} {store:6.1f}")
        late = self._counts.all_overdue(time.monotonic() - self._workload.delay_s_max - PATIENCE_S)
        handled, waiting = self._counts.progress()
        sent = sum(tally.acknowledged_count for tally in self._counts.tallies.values())
        twice = sum(tally.twice_count for tally in self._counts.tallies.values())
        cells.append(f"{sent:9,} {handled:9,} {waiting:6,} {sum(map(len, late.values())):4,} {twice:5,}")
        print(" | ".join(cells), flush=True)

    def _note(self, minute: float, what: str, quantity: Quantity, value: float) -> None:
        self._series.setdefault((what, quantity), []).append((minute, value))

    def _age_files(self) -> None:
        """Date back commit log files, so that brokers delete them as if an hour had passed."""
        now_s = time.time()
        for name in BROKERS:
            for path in sorted((self._home / name / "store" / "commitlog").iterdir())[:-1]:
                with contextlib.suppress(FileNotFoundError):
                    if RESERVED_S > now_s - path.stat().st_mtime >= KEPT_S:
                        os.utime(path, (now_s, now_s - RESERVED_S - KEPT_S))

    # The end

    def _drain(self) -> list[str]:
        """Stop the producers, wait until all messages are handled, and return errors for the rest."""
        for producer in self._producers:
            producer.finish()
        deadline = time.monotonic() + self._workload.delay_s_max + PATIENCE_S
        while self._counts.progress()[1] and time.monotonic() < deadline:
            time.sleep(TICK_S)
        wrong = [
            f"{len(numbers):,} acknowledged messages of {stream} were never handled, such as {numbers[:5]}"
            for stream, numbers in self._counts.all_overdue(time.monotonic()).items()
        ]
        if early := self._counts.events["early"]:
            wrong.append(f"{early:,} timer messages came before their time")
        for program in self._consumers():
            program.finish()
        assert self._servers is not None
        for name in BROKERS:
            self._servers.stop_broker(name)
            wrong += check_files(self._home / name / "store")[1]
        return wrong

    def _consumers(self) -> list[Reporting]:
        found = [program for members in self._groups.values() for program in members]
        return [*found, self._spark] if self._spark is not None else found

    def _judge(self) -> list[str]:
        """Print a line for each series; return the growing ones."""
        verdicts = [judge(what, quantity, rows) for (what, quantity), rows in sorted(self._series.items())]
        for verdict in verdicts:
            print(verdict.text)
        return [verdict.text for verdict in verdicts if verdict.is_flat is False]

    def _stop_all(self) -> None:
        for program in (*self._producers, *self._consumers()):
            if program.returncode is None:
                program.stop()
        if self._servers is not None:
            self._servers.stop()

    def _summary(self, wrong: list[str]) -> str:
        tallies, events = self._counts.tallies, self._counts.events
        streams = "; ".join(
            f"{stream}: {tally.acknowledged_count:,} acknowledged, {tally.waiting_count:,} lost, "
            f"{tally.twice_count:,} handled twice"
            for stream, tally in tallies.items()
        )
        faults = (
            f"{events['churn']} changes of members, {events['killed']} kills and {events['stopped broker']} "
            f"restarts of {KILLED}; {events['failed']:,} sends failed; Spark's query began again "
            f"{events['restarted']} times"
        )
        return f"{'BROKEN' if wrong else 'sound'}: {streams}; {faults}"


_HEAD: Final = (
    "min | memory in MiB and descriptors: name server | broker-a | sender | kafka_sender | member | popper | "
    "kafka_member | spark | journals and store in MiB: broker-a | broker-b | "
    "acknowledged, handled, waiting, late, twice"
)
