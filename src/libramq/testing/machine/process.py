"""The process: a simulated program that can be stopped, frozen (SIGSTOP) and killed (SIGKILL).

running ⇄ paused        events wait, and happen all at once when it resumes (SIGSTOP)
   │         │
   └─► dead ◄┘          scheduled events are dropped (SIGKILL); `start` begins another life
"""

from functools import partial

from libramq.clock import MonotonicMs
from libramq.testing.machine.virtual_time import Action, Event, NodeClock, VirtualTime


class PowerCut(BaseException):
    """The process ended in the middle of its work. No code may catch this, as none survives a power cut."""


class Process:
    """Runs the events of a process one after another.

    host: the address of its connections. clock: the machine's clock; None for an exact one.
    """

    def __init__(
        self, name: str, time: VirtualTime, *, host: str = "10.1.0.1", clock: NodeClock | None = None
    ) -> None:
        self.name = name
        self.host = host
        self.time = time
        self.clock = clock or NodeClock(time)
        self.is_alive = False
        self.is_paused = False
        self._life = 0
        self._kept: list[Event] = []
        self._on_cut: Action | None = None

    def start(self, on_cut: Action | None = None) -> None:
        """Begin a life. on_cut: called if it ends by a PowerCut in the middle of an event."""
        assert not self.is_alive, f"{self.name} runs already"
        self.is_alive = True
        self._on_cut = on_cut

    def kill(self) -> None:
        """End this life: scheduled events are dropped."""
        self.is_alive = self.is_paused = False
        self._life += 1
        self._kept.clear()

    def pause(self) -> None:
        """Freeze."""
        self.is_paused = self.is_alive

    def resume(self) -> None:
        """Continue, with all waiting events in order."""
        if not self.is_paused:
            return
        self.is_paused = False
        kept, self._kept = self._kept, []
        for event in kept:
            self.time.happen(event)

    @property
    def now_ms(self) -> MonotonicMs:
        """Return the monotonic time on the machine's clock."""
        return self.clock.monotonic_ms()

    def after(self, delay_ms: int, action: Action) -> Event:
        """Schedule an event in this life, on the machine's clock."""
        time = self.time
        due_ms = time.now_ms + self.clock.true_ms(delay_ms) if delay_ms else time.now_ms
        return time.at(due_ms, partial(self._perform, self._life, action))

    def reach(self, delay_ms: int, action: Action) -> None:
        """Schedule an external event in this life, in true time."""
        self.time.at(self.time.now_ms + delay_ms, partial(self._perform, self._life, action))

    def every(self, period_ms: int, action: Action) -> None:
        """Repeat an event, with each interval counted from the end of the last event."""

        def again() -> None:
            action()
            self.after(period_ms, again)

        self.after(period_ms, again)

    def do(self, action: Action) -> None:
        """Run an event now, or on resumption if the process is paused."""
        if self.is_paused:
            now_ms = self.time.now_ms
            self._kept.append(Event((now_ms, 0, partial(self._perform, self._life, action))))
        else:
            self._perform(self._life, action)

    def _perform(self, life: int, action: Action) -> None:
        if life != self._life or not self.is_alive:
            return
        if self.is_paused:
            self._kept.append(self.time.event)  # Earlier events may still cancel it.
            return
        try:
            action()
        except PowerCut:
            assert self._on_cut is not None, f"nobody expects {self.name} to be cut off"
            self._on_cut()
