"""Tests of Apache's documents."""
