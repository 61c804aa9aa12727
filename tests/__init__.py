"""Tests mirror python_backend/recap; tests/server needs the real tritonserver."""
