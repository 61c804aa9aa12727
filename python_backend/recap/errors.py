"""What can go wrong, by whose fault it is.

Every module raises these; `serving` turns them into Triton status codes. An error that a client
caused carries the field and the rule it broke, so that one line tells what to mend. Anything
that is not one of these is a defect of ours: it is logged with the request id, and the client
sees the id only.
"""

from __future__ import annotations


class RecapError(Exception):
    """Base of all errors raised on purpose."""


class InvalidRequestError(RecapError):
    """The client broke a rule (INVALID_ARG).

    Args:
        field: Name of the input field as the client knows it, for example ``max_tokens``.
        rule: What holds for the field, as a clause: ``must be at least 1, got -3``.
    """

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


class NotFoundError(RecapError):
    """The client named something that does not exist, such as a request id (NOT_FOUND)."""


class CapacityError(RecapError):
    """No room now; the same request may succeed later (UNAVAILABLE)."""


class SettingsError(RecapError):
    """A setting, a checkpoint or the environment is unusable; raised at start-up only.

    The message names the setting or the path and what is expected of it.
    """


class EngineError(RecapError):
    """The engine broke; the request cannot go on (INTERNAL)."""
