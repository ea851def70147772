"""POP: messages that a broker hands out one by one, invisible to others until they are acknowledged."""

from libramq.pop.check_point import CheckPoint
from libramq.pop.in_flight import InFlight

__all__ = ["CheckPoint", "InFlight"]
