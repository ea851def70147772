"""Held pulls and pops: requests that found no message and wait for one (long polling)."""

from libramq.waits.held_pops import HeldPop, HeldPops
from libramq.waits.held_pulls import HeldPull, HeldPulls

__all__ = ["HeldPop", "HeldPops", "HeldPull", "HeldPulls"]
