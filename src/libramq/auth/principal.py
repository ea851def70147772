"""The principal: in whose name an operation is asked for."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Principal:
    """A user, as whichever protocol authenticated it."""

    name: str


#: Whoever has not authenticated itself; so far nobody has to.
ANONYMOUS: Final = Principal("anonymous")
