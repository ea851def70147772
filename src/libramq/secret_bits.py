"""Secret bits: the source of ids that must not be guessed, which no predictable randomness can replace.

Anybody who knows the id of a group's member can act as that member. So these ids have a source of their own,
whose type no `random.Random` matches: predictable randomness cannot take its place.
"""

import secrets
from typing import Final, Protocol


class SecretBits(Protocol):
    """A source of unpredictable bits."""

    def token_hex(self, nbytes: int, /) -> str:
        """Return random bytes as hexadecimal digits."""
        ...


#: The operating system's source. Only simulations use another one.
SYSTEM_SECRETS: Final[SecretBits] = secrets
