"""The effects of a popping consumer's core: requests of POP, and those that it has in common with consumers
of queues.
"""

from dataclasses import dataclass
from typing import Any

from libramq.client.consuming import effects as fx
from libramq.client.consuming.pop.held_message import HeldMessage
from libramq.client.popping.pop_round import Place
from libramq.clock import MonotonicMs


@dataclass(frozen=True, slots=True)
class Pop:
    """Pop messages → `popped`. sent_ms: when; no message was popped before."""

    place: Place
    address: str
    sent_ms: MonotonicMs


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Acknowledge messages of one broker → `acknowledged`."""

    broker_name: str
    address: str
    held: tuple[HeldMessage, ...]


@dataclass(frozen=True, slots=True)
class Postpone:
    """Have a message visible again after this time, counted from now → `postponed`.

    is_extension: its handler is not done with it.
    """

    held: HeldMessage
    address: str
    invisible_ms: int
    sent_ms: MonotonicMs
    is_extension: bool


@dataclass(frozen=True, slots=True)
class MakeDeadLetter:
    """Have the broker copy a message to the group's dead letters → `dead_letter_made`."""

    held: HeldMessage
    address: str


PopRequest = Pop | Acknowledge | Postpone | MakeDeadLetter
PopEffect = (
    fx.Deliver
    | PopRequest
    | fx.Abandon
    | fx.Ask[Any]
    | fx.FetchRoutes
    | fx.Trouble
    | fx.Recovered
    | fx.Unregister
    | fx.Stopped
)
