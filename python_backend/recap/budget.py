"""How many nodes a pass verifies. Drafters only score; the scheduler asks here.

For now a constant per request.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FixedBudget:
    """The same number of drafts for every request and step.

    Attributes:
        nodes: Drafts per request; 0 is plain decoding.
    """

    nodes: int

    def total(self, batch: int) -> int:
        """Drafts that one pass over `batch` requests may verify, all of them together."""
        return self.nodes * batch
