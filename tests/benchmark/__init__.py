"""Tests of the measuring protocol."""
