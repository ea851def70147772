"""Fetching: `Consumer`, whose program takes messages itself instead of registering handlers."""
