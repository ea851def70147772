"""Fetching: `Consumer`, whose program takes messages itself instead of having handlers called with them."""
