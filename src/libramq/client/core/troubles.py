"""The troubles: what keeps messages from a consumer, each told to its user when it begins.

Some keep it out altogether, until somebody else does something: another client has its name, a broker does
not let it in. From those it returns by itself when they are over.
"""

from libramq.client.core import effects as fx
from libramq.client.core.effects import Effects
from libramq.errors import LibraError, NoPermission


class Troubles:
    """The current troubles, by what they are about."""

    def __init__(self) -> None:
        self._present: dict[str, bool] = {}  # With whether it keeps the consumer out.
        self._effects: Effects = []

    def begin(self, about: str, error: LibraError, *, keeps_out: bool = False) -> None:
        """Report a trouble, unless it is known."""
        if about not in self._present:
            self._present[about] = keeps_out
            self._effects.append(fx.Trouble(error, keeps_out))

    def over(self, about: str) -> None:
        """A trouble is over, if it was there."""
        if self._present and self._present.pop(about, False) and not any(self._present.values()):
            self._effects.append(fx.Recovered())

    def answered(self, about: str, outcome: object, *, keeps_out: bool = False) -> None:
        """A request was answered: one that is denied is a trouble, until another is not."""
        if isinstance(outcome, NoPermission):
            self.begin(about, outcome, keeps_out=keeps_out)
        elif not isinstance(outcome, LibraError):
            self.over(about)

    def take(self) -> Effects:
        """Return what the user is to be told."""
        if not self._effects:
            return []
        effects, self._effects = self._effects, []
        return effects
