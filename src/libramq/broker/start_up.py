"""The start-up: a broker listens once it knows the other brokers, and then registers.

begin ─► looking for brokers, at most a second ─► listening ─► registered

Any earlier, it would send members that look for their coordinator to the wrong broker.
"""

from collections.abc import Callable
from typing import Final

from libramq.broker.cluster.cluster import Cluster
from libramq.broker.cluster.registration import Registration
from libramq.clock import MonotonicMs
from libramq.kernel.effect import Listen
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours: how long a start waits to see the other brokers.
LOOK_AROUND_MS_MAX: Final = 1_000


class StartUp:
    """Starts the service. cluster: None if there are no name servers."""

    def __init__(self, cluster: Cluster | None, registration: Registration, kernel: Kernel) -> None:
        self._cluster = cluster
        self._registration = registration
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._waited_enough = kernel.deadlines.new(self._give_up)
        self._is_looking = False
        self._started: Callable[[], None] | None = None
        if cluster is not None:
            cluster.view.observe(self._look)

    def begin(self, started: Callable[[], None]) -> None:
        """Start; `started` is called when name servers were informed, or could not be reached."""
        self._started = started
        self._is_looking = True
        if self._cluster is None or self._cluster.view.is_known:
            self._listen()
        else:
            self._waited_enough.at(self._clock.monotonic_ms() + LOOK_AROUND_MS_MAX)

    def _look(self) -> None:
        """Listen, as the brokers of the cluster are known now."""
        if self._is_looking:
            self._listen()

    def _give_up(self, _: MonotonicMs) -> None:
        if self._is_looking:
            log.warning("no name server answers; group members wait until one does")
            self._listen()

    def _listen(self) -> None:
        self._is_looking = False
        self._waited_enough.cancel()
        self._effects.add(Listen(self._listening))

    def _listening(self) -> None:
        assert self._started is not None
        self._registration.begin(self._started)
