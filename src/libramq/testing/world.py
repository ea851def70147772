"""The world: time, network, history and randomness of a simulation, all derived from one seed.

Each part draws from its own stream, so that changing one does not affect the others.
"""

import random

from libramq.testing.history import LINES_KEPT, History
from libramq.testing.machine.network import Network
from libramq.testing.machine.virtual_time import NodeClock, VirtualTime


class SeededSecretBits:
    """Secrets for a simulation, equal for equal seeds; nothing here tries to guess them."""

    def __init__(self, randomness: random.Random) -> None:
        self._random = randomness

    def token_hex(self, nbytes: int, /) -> str:
        """Return random bytes as hexadecimal digits."""
        return self._random.randbytes(nbytes).hex()


class World:
    """Time, network, history and randomness. lines_kept: the last lines of the log to keep; None for all."""

    def __init__(self, seed: int, *, lines_kept: int | None = LINES_KEPT) -> None:
        self.seed = seed
        self.time = VirtualTime()
        self.history = History(self.time, lines_kept)
        self.network = Network(self.stream("network"), self.history.happened)

    def clock(self, name: str) -> NodeClock:
        """Return the clock of one machine, with its own errors."""
        return NodeClock(self.time, self.stream(f"clock of {name}"))

    def stream(self, name: str) -> random.Random:
        """Return a random stream for one part, equal for equal seeds."""
        return random.Random(f"{self.seed}/{name}")
