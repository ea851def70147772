"""Secret bits: the source of ids that nobody may guess.

Whoever knows the id of a group's member is that member. So these ids have a source of their own, which no
`random.Random` fits: chance, which is predictable from what it has shown, cannot take its place.
"""

import secrets
from typing import Final, Protocol


class SecretBits(Protocol):
    """A source of bits that only whoever draws them knows."""

    def token_hex(self, nbytes: int, /) -> str:
        """Return so many bytes in hexadecimal digits."""
        ...


#: The operating system's. Only a simulation has another one.
SYSTEM_SECRETS: Final[SecretBits] = secrets
