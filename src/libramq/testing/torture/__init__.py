"""Torture: a real broker that is killed again and again, and what it must not lose by that."""
