"""Held pulls and pops: requests that found no message and wait for one (long polling)."""
