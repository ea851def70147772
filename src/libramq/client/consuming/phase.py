"""The phase of a consumer's life, whatever it consumes by."""

from enum import Enum


class Phase(Enum):
    """The phases of a consumer's life."""

    NEW = "new"
    RUNNING = "running"
    DRAINING = "draining"
    LEAVING = "leaving"
    STOPPED = "stopped"
