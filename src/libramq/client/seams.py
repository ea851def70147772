"""The seams of a client's network: the servers, sockets, timers, randomness and credentials that it is given,
real or simulated.
"""

import random
from collections.abc import Sequence
from typing import Required, TypedDict

from libramq.clock import Clock
from libramq.runtime.seams import Dialer, Timers
from libramq.transport.access import Access


class NetworkSeams(TypedDict, total=False):
    """The seams that networks of producers and consumers are given."""

    name_server_addresses: Required[Sequence[str]]
    dialer: Required[Dialer]
    timers: Required[Timers]
    clock: Required[Clock]
    randomness: Required[random.Random]
    access: Access
