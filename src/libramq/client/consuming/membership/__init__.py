"""Membership: who is in the group, and who reads which queue."""
