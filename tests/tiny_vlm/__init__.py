"""Tests of the small checkpoint, its data generator and the suites made by it."""
