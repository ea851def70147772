"""The principal: the user on whose behalf an operation is requested."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Principal:
    """A user, as authenticated by any protocol."""

    name: str


#: A client that has not authenticated itself; so far no client has to.
ANONYMOUS: Final = Principal("anonymous")
