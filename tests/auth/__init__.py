"""Tests of authorization and authentication."""
