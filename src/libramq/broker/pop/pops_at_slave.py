"""Pops at an acting slave: groups go on with what their master has left, and nothing is written but offsets.

    taken ─► in flight, in memory ─┬─► acknowledged ─► done
                                   └─► due ─► taken again

What the slave has in flight when the master is back, or when it ends, the master hands out again. Attempts
are not counted: a message that fails comes back for as long as the slave acts.

Upstream: PopMessageProcessor, whose slaves pop as masters do. Apache's sends check points to other masters
(EscapeBridge.putMessageToSpecificQueue), and keeps them in memory where that fails.
"""

from collections.abc import Callable, Iterable

from libramq.broker.files.files import BrokerFiles
from libramq.broker.messages.rounds import Rounds
from libramq.broker.pop.acknowledging import Acknowledging
from libramq.broker.pop.popping import Popping
from libramq.broker.pop.reviving import AGAIN_MS
from libramq.clock import MonotonicMs, Now
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.kernel.parts import Kernel
from libramq.pop.check_point import AckSet, Key


class PopsAtSlave:
    """Has messages handed out again, and forgets everything when the slave does not act any more.

    may_serve: whether it acts, and knows what its master has popped.
    """

    def __init__(
        self,
        files: BrokerFiles,
        popping: Popping,
        acknowledging: Acknowledging,
        kernel: Kernel,
        *,
        may_serve: Callable[[], bool],
    ) -> None:
        assert files.pop.unwritten is not None
        self._unwritten, self._in_flight = files.pop.unwritten, files.pop.in_flight
        self._popping = popping
        self._acknowledging = acknowledging
        self._may_serve = may_serve
        self._store, self._end = files.store, 0
        self._was_serving = False
        self._rounds = Rounds(files.store, kernel, self._hand_out_again, again_ms=AGAIN_MS)

    @property
    def is_serving(self) -> bool:
        """Return whether pops are served now."""
        return self._may_serve()

    def has(self, key: Key) -> bool:
        """Return whether a check point is in flight here."""
        return self._in_flight.find(key) is not None

    def acknowledge(self, done: Iterable[AckSet], now: Now) -> None:
        """Note messages of check points that are in flight here as done."""
        self._acknowledging.acknowledge_sets(done, now)

    def settle(self) -> None:
        """Set the deadline; forget all if the master is back.

        It is back where the log was cut, too: offsets may soon mean other messages.
        """
        before, self._end = self._end, self._store.end
        is_serving = self._may_serve()
        if self._was_serving and (self._end < before or not is_serving):
            self._forget()
        self._was_serving = is_serving
        if not self._rounds.is_running:
            self._look()

    def _look(self) -> None:
        """Set the deadline to when the next check point is due."""
        due_ms = self._in_flight.next_due_ms
        if due_ms is not None:
            self._rounds.by(due_ms)

    def _forget(self) -> None:
        self._unwritten.clear()
        for check_point in list(self._in_flight):
            self._in_flight.acknowledge(check_point, (1 << len(check_point.diffs)) - 1)
        self._popping.refuse_held(broker_error(ResponseCode.SYSTEM_BUSY, "this slave does not act any more"))

    def _hand_out_again(self, now_ms: MonotonicMs) -> bool:
        """Hand out the next check point that is due; return whether there was one."""
        check_point = self._in_flight.next_due(now_ms)
        if check_point is None:
            self._look()
            return False
        queue = check_point.group, check_point.topic, check_point.queue_id
        self._unwritten.give_again(queue, check_point.open_offsets())
        self._in_flight.acknowledge(check_point, (1 << len(check_point.diffs)) - 1)
        self._popping.visible(check_point.topic, check_point.group)
        return True
