"""Torture: a real broker is killed again and again, and must lose nothing it has acknowledged."""
