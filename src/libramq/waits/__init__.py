"""Held reads, and how they are woken."""

from libramq.waits.held_pulls import HeldPull, HeldPulls

__all__ = ["HeldPull", "HeldPulls"]
