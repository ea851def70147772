"""The broker's files, and when they are written."""
