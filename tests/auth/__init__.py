"""Tests of authorisation's seam."""
