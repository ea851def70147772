"""The gathering: a group's new coordinator queries the cluster's fences."""

from collections.abc import Iterable
from typing import Final

from libramq.broker.groups.coordination import Gathered
from libramq.clock import MonotonicMs
from libramq.fencing import EPOCHS_AHEAD_MAX, FenceGrant, FenceReport
from libramq.logs import get_logger

log = get_logger(__name__)

#: The design's limit of a take-over: a broker that has not answered by then is ignored. Its fence refuses
#: what contradicts its state, and then we ask again.
ANSWER_MS_MAX: Final = 1_000
#: Ours: how soon a broker that did not know us is asked again; its name server has answered it by then.
AGAIN_MS: Final = 20


class Gathering:
    """The gathering of one group. own: our own fence's report. gathered: called once with all reports."""

    def __init__(
        self,
        group: str,
        own: FenceReport,
        broker_names: Iterable[str],
        *,
        now_ms: MonotonicMs,
        gathered: Gathered,
    ) -> None:
        self.group = group
        self.gathered = gathered
        self.answers = [own]
        self.until_ms = now_ms + ANSWER_MS_MAX
        self._waiting = dict.fromkeys(broker_names)
        self._again_ms: dict[str, MonotonicMs] = {}
        self._epoch_max = own.highest_epoch + EPOCHS_AHEAD_MAX

    @property
    def due_ms(self) -> MonotonicMs:
        """Return when the next query or the end of waiting is due."""
        return min([self.until_ms, *self._again_ms.values()])

    def not_let_in(self, broker_name: str, now_ms: MonotonicMs) -> None:
        """Note that a broker has not discovered us yet: brokers find a new one at different times."""
        self._again_ms[broker_name] = now_ms + AGAIN_MS

    def take_due(self, now_ms: MonotonicMs) -> list[str]:
        """Return the brokers to query again."""
        due = [name for name, again_ms in self._again_ms.items() if again_ms <= now_ms]
        for name in due:
            del self._again_ms[name]
        return due

    def answered(self, broker_name: str, answer: FenceReport | None) -> None:
        """Take a broker's answer, or None if it cannot answer."""
        self._waiting.pop(broker_name, None)
        if answer is None:
            log.warning("a fence is ignored", group=self.group, broker=broker_name)
        elif (epoch := answer.highest_epoch) > self._epoch_max:
            log.warning(
                "a fence reports an implausible epoch and is ignored",
                group=self.group, broker=broker_name, epoch=epoch, highest=self._epoch_max,
            )  # fmt: skip
        else:
            self.answers.append(answer)

    def is_over(self, now_ms: MonotonicMs) -> bool:
        """Return whether every answer has arrived or timed out."""
        if now_ms < self.until_ms:
            return not self._waiting
        for name in self._waiting:
            log.warning("a fence is ignored", group=self.group, broker=name)
        return True


def credible_epoch(broker_name: str, epoch: int, grant: FenceGrant) -> int:
    """Return the epoch that a fence named when it refused a grant, or a step towards an implausible one.

    Steps reach a misled fence in the end, and a lying one never leads to the last epoch.
    """
    if epoch <= grant.epoch + EPOCHS_AHEAD_MAX:
        return epoch
    log.warning(
        "a fence reports an implausible epoch",
        group=grant.group, broker=broker_name, epoch=epoch, ours=grant.epoch,
    )  # fmt: skip
    return grant.epoch + EPOCHS_AHEAD_MAX // 2
