"""The gathering: what the fences of a cluster know of a group, asked by its new coordinator."""

from collections.abc import Iterable
from typing import Final

from libramq.clock import MonotonicMs
from libramq.logs import get_logger
from libramq.remoting.body.coordination import PeerGathered

log = get_logger(__name__)

#: The brief of a take-over: a broker that has not answered by then is left out. Its fence refuses what goes
#: against what it knows, and then we ask again.
ANSWER_MS_MAX: Final = 1_000


class Gathering:
    """One group's. own: what our own fence knows."""

    def __init__(self, group: str, own: PeerGathered, asked: Iterable[str], *, now_ms: MonotonicMs) -> None:
        self.group = group
        self.answers = [own]
        self.until_ms = now_ms + ANSWER_MS_MAX
        self._waiting = dict.fromkeys(asked)

    def answered(self, broker_name: str, answer: PeerGathered | None) -> None:
        """A broker has answered, or cannot."""
        self._waiting.pop(broker_name, None)
        if answer is None:
            log.warning("a fence is left out", group=self.group, broker=broker_name)
        else:
            self.answers.append(answer)

    def is_over(self, now_ms: MonotonicMs) -> bool:
        """Whether there is nothing to wait for any more."""
        if now_ms < self.until_ms:
            return not self._waiting
        for name in self._waiting:
            log.warning("a fence is left out", group=self.group, broker=name)
        return True
