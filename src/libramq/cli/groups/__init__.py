"""The groups commands."""
