"""Held reads, and what wakes them."""

from libramq.waits.held_pulls import HeldPull, HeldPulls

__all__ = ["HeldPull", "HeldPulls"]
