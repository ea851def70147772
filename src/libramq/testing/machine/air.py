"""The air: what lies between two processes, as unreliable as configured.

A blocked direction drops data, or keeps it until it is unblocked.
"""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from libramq.testing.scenarios.happening import Happening


@dataclass(slots=True)
class Weather:
    """The faults that frames meet. Chances are between 0 and 1."""

    latency_ms_max: int = 3
    split_chance: float = 0.02
    #: For notifications (one-way requests of servers): dropped, sent twice, late by up to `late_ms_max`.
    loss_chance: float = 0.0
    double_chance: float = 0.0
    late_chance: float = 0.0
    late_ms_max: int = 3_000

    @property
    def harms_notifications(self) -> bool:
        """Return whether a server's frames have to be examined one by one."""
        return bool(self.loss_chance or self.double_chance or self.late_chance)


class Kept:
    """The bytes that a blocked direction has dropped, or keeps."""

    __slots__ = ("has_lost", "keeps", "sent")

    def __init__(self, keeps: bool) -> None:
        self.keeps = keeps
        self.has_lost = False
        self.sent: list[tuple[Callable[[bytes | None], None], bytes | None]] = []


class Air:
    """The network that all frames pass through, with delays, splits, losses and blocks from one source.

    happened: called with the fate of a notification.
    """

    def __init__(self, randomness: random.Random, happened: Callable[[Happening], None]) -> None:
        self.weather = Weather()
        self._happened = happened
        #: Blocked directions, as pairs of process names.
        self.blocked: dict[tuple[str, str], Kept] = {}
        #: The checksum of every byte sent: equal in two runs of one seed.
        self.checksum = 0
        self.frame_count = 0
        self._random = randomness
        self._port = 40_000

    def carry(self, data: bytes | None) -> int:
        """Take sent data, or the end of a connection; return how many milliseconds it takes."""
        self.frame_count += 1
        self.checksum = zlib.crc32(data or b"end", self.checksum)
        return int(self._random.random() * (self.weather.latency_ms_max + 1))

    def latency_ms(self) -> int:
        """Return how long the next frame takes."""
        return int(self._random.random() * (self.weather.latency_ms_max + 1))

    def cut(self, size: int) -> int:
        """Return where a read is split; 0: nowhere."""
        if self._random.random() >= self.weather.split_chance:
            return 0
        return self._random.randrange(size)

    def fate_of_notification(self) -> list[int]:
        """Return after how many milliseconds it is sent: empty if it is lost, twice if duplicated."""
        weather, random_ = self.weather, self._random
        if random_.random() < weather.loss_chance:
            self._happened(Happening.NOTICE_LOST)
            return []
        times = 1
        if random_.random() < weather.double_chance:
            self._happened(Happening.NOTICE_DOUBLED)
            times = 2
        fate = []
        for _ in range(times):
            is_late = random_.random() < weather.late_chance
            if is_late:
                self._happened(Happening.NOTICE_LATE)
            fate.append(random_.randrange(weather.late_ms_max) if is_late else 0)
        return fate

    def next_port(self) -> int:
        """Return the port of a client's end of a connection."""
        self._port += 1
        return self._port
