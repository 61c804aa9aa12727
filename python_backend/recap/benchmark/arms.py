"""What is compared: a method at a node count, as settings of the one scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from recap.config import DrafterSettings

PUBLISHED_TREE_NODES = 80
"""Size of the template that token recycling was published with."""

METHODS = {
    "ar": "autoregressive",
    "autoregressive": "autoregressive",
    "prompt_lookup": "prompt_lookup",
    "token_recycling": "token_recycling",
    "recap": "recap",
}


@dataclass(frozen=True)
class Arm:
    """One line of a comparison.

    Attributes:
        method: Name as in ``drafter.method``.
        nodes: Drafts per step; 0 for plain decoding.
        drafter: Complete settings.
        label: For tables.
    """

    method: str
    nodes: int
    drafter: DrafterSettings
    label: str


PLAIN = Arm(
    "autoregressive", 0, DrafterSettings(method="autoregressive", nodes=0), "plain decoding"
)


def make_arms(
    methods: Iterable[str], nodes: Iterable[int], overrides: dict[str, Any] | None = None
) -> list[Arm]:
    """Arms for every method and node count, plain decoding first.

    Prompt lookup proposes one chain of its own length and is one arm. Token recycling is its
    published template as such, and the rank-cost tree at each node count.

    Args:
        methods: Keys of `METHODS`.
        nodes: Node counts.
        overrides: Fields of the ``recap`` section, for ablations.

    Raises:
        ValueError: A method is unknown.
    """
    counts, arms = list(nodes), [PLAIN]
    for name in methods:
        if name not in METHODS:
            raise ValueError(f"unknown method {name!r}; known: {', '.join(METHODS)}")
        method = METHODS[name]
        if method == "prompt_lookup":
            settings = DrafterSettings(method="prompt_lookup")
            length = settings.prompt_lookup.draft_tokens
            settings = settings.model_copy(update={"nodes": length})
            arms.append(Arm(method, length, settings, "prompt lookup"))
        elif method == "token_recycling":
            arms.extend(_token_recycling(counts))
        elif method == "recap":
            for count in counts:
                settings = DrafterSettings.model_validate(
                    {"method": "recap", "nodes": count, "recap": overrides or {}}
                )
                arms.append(Arm(method, count, settings, f"RECAP, {count} nodes"))
    # Asked for twice is measured once: runs are told apart by their arm's label.
    return list({arm.label: arm for arm in arms}.values())


def _token_recycling(counts: Iterable[int]) -> Iterable[Arm]:
    for tree, count in (
        ("published", PUBLISHED_TREE_NODES),
        *(("rank_cost", count) for count in counts),
    ):
        settings = DrafterSettings.model_validate(
            {"method": "token_recycling", "nodes": count, "token_recycling": {"tree": tree}}
        )
        name = "published tree" if tree == "published" else "rank-cost tree"
        yield Arm("token_recycling", count, settings, f"token recycling, {name}, {count} nodes")
