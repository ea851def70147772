"""Held reads, and how they are woken."""

from libramq.waits.held_pops import HeldPop, HeldPops
from libramq.waits.held_pulls import HeldPull, HeldPulls

__all__ = ["HeldPop", "HeldPops", "HeldPull", "HeldPulls"]
