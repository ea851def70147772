"""The admin commands."""
