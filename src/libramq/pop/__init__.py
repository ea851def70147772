"""POP as values and plain functions: messages that are handed out one by one, and stay invisible to others
until acknowledged; `broker.pop` uses them.
"""

from libramq.pop.check_point import CheckPoint
from libramq.pop.in_flight import InFlight

__all__ = ["CheckPoint", "InFlight"]
