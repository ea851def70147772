"""Fetching: a program that takes messages itself, instead of having handlers called with them."""
