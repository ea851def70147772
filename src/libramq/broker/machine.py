"""The machine of a broker: the clock, file system and randomness of its process, real or simulated."""

import random
from typing import NamedTuple

from libramq.clock import Clock
from libramq.filesystem import FileSystem
from libramq.secret_bits import SYSTEM_SECRETS, SecretBits


class Machine(NamedTuple):
    """The surroundings of a process.

    secret_bits: for ids that must not be guessed; only the simulator draws them from a seed.
    """

    clock: Clock
    filesystem: FileSystem
    randomness: random.Random
    secret_bits: SecretBits = SYSTEM_SECRETS
    process_id: int = 0
