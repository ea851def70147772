"""The life of a consumer: its phases, and its troubles, which stop deliveries and are reported to the user,
once each.
"""

from enum import Enum

from libramq.client.consuming import effects as fx
from libramq.errors import FilterRefused, LibraError, NoPermission
from libramq.kernel.effect import Effects


class Phase(Enum):
    """The phases of a consumer's life."""

    NEW = "new"
    RUNNING = "running"
    DRAINING = "draining"
    LEAVING = "leaving"
    STOPPED = "stopped"


class Troubles:
    """Problems that stop deliveries to a consumer, by subject; each is reported to the user once.

    Some keep it out of its group until others act: another client has its name, or a broker refuses it. The
    consumer recovers by itself when they are over.
    """

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        #: By subject: whether the trouble keeps the consumer out.
        self.present: dict[str, bool] = {}

    def begin(self, about: str, error: LibraError, *, keeps_out: bool = False) -> None:
        """Report a trouble, unless it is known already."""
        if about not in self.present:
            self.present[about] = keeps_out
            self._effects.add(fx.Trouble(error, keeps_out))

    def over(self, about: str) -> bool:
        """Clear a trouble; return whether there was one."""
        if about not in self.present:
            return False
        if self.present.pop(about) and not any(self.present.values()):
            self._effects.add(fx.Recovered())
        return True

    def answered(self, about: str, outcome: object, *, keeps_out: bool = False) -> None:
        """Handle a result: a denied request or filter is a trouble, until another request succeeds."""
        if isinstance(outcome, NoPermission | FilterRefused):
            self.begin(about, outcome, keeps_out=keeps_out)
        elif not isinstance(outcome, LibraError):
            self.over(about)
