"""The recorded effects: what a coordinator has decided, performed in order once the disk has its records.

decided ─► recorded ─► on the disk ─► performed: granted, answered, reported
                                 └─► withdrawn, if another broker coordinates the group by then
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from libramq.catalog.journal_sync import JournalSync
from libramq.codes import ResponseCode
from libramq.groups.coordinator import effect as fx
from libramq.kernel.waiter import ParkedWaiter, Waiter
from libramq.logs import get_logger

log = get_logger(__name__)

#: A member that waits for the coordinator's answer.
MemberWaiter = Waiter[fx.Answer[Any]]


class Ticket(ParkedWaiter[fx.Answer[Any]]):
    """A request that the coordinator answers, and the group that it concerns."""

    __slots__ = ("group",)

    def __init__(self, waiter: MemberWaiter, group: str, *, cost_bytes: int) -> None:
        super().__init__(waiter, cost_bytes=cost_bytes)
        self.group = group


Effect = fx.Effect[Ticket]


class RecordedEffects:
    """The effects that wait. do: performs one."""

    def __init__(self, journals: JournalSync, do: Callable[[Effect], None]) -> None:
        self._journals = journals
        self._do = do
        # Each with the number of recorded changes it waits for.
        self._waiting: deque[tuple[int, Effect]] = deque()
        self._is_performing = self._waits_for_disk = False

    def perform(self, effects: Iterable[Effect]) -> None:
        """Perform effects and what follows from them, in order, once the changes recorded before are durable.

        A failing effect does not stop the others.
        """
        self._waiting.extend((self._journals.written, effect) for effect in effects)
        if self._is_performing or self._waits_for_disk:
            return
        self._is_performing = True
        while self._waiting:
            recorded, effect = self._waiting[0]
            if recorded > self._journals.synced:
                self._waits_for_disk = True
                self._journals.when_synced(self._go_on, through=recorded)
                break
            self._waiting.popleft()
            try:
                self._do(effect)
            except Exception:
                log.exception("effect of coordination failed", effect=type(effect).__name__)
        self._is_performing = False

    def withdraw(self, group: str, address: str) -> None:
        """Withdraw the grants and assignments of a group that the broker at that address coordinates now.

        It asks our fence who holds what. Granted after that, queues would have holders it does not know of.
        """
        waiting, self._waiting = self._waiting, deque()
        for recorded, effect in waiting:
            match effect:
                case fx.Grant(grant=grant) if grant.group == group:
                    continue
                case fx.ModeChanged() if effect.group == group:
                    continue
                case fx.Answer(ticket=ticket) if ticket.group == group and effect.assignment is not None:
                    refused = fx.Answer(ticket, ResponseCode.NOT_COORDINATOR, address)
                    self._waiting.append((recorded, refused))
                case _:
                    self._waiting.append((recorded, effect))

    def _go_on(self, is_synced: bool) -> None:
        """Perform effects whose records are on the disk now; if the disk failed, they are held forever."""
        if is_synced:
            self._waits_for_disk = False
            self.perform(())
