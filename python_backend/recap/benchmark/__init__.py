"""The measuring protocol: the scheduler that is served, timed over a suite of prompts."""
