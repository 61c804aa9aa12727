"""Replays recorded greedy decoding against a drafter, without a model.

A trace says which tokens the target emits and what it predicted along the way. The replay asks
the drafter for a tree, accepts what the trace says, and hands back the predictions of the rows
passed. Those of rejected nodes are not in a trace: every method that recycles them is understated,
equally. Only numpy is needed; `scripts/replay.py` is the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recap.config import DrafterSettings
from recap.drafters import Drafter, make_drafter
from recap.predictions import Predictions, PromptPredictions
from recap.sequence import Sequence
from recap.tree import CandidateTree

PUBLISHED_NODES = 80


@dataclass(frozen=True)
class Trace:
    """One recorded request.

    Attributes:
        tokens: int32 [T], prompt then emitted ids.
        prompt_length: Prompt ids among them.
        category: Kind of prompt.
        ids: int32 [P, K]; row j predicts the token after token j.
        probs: float32 [P, K].
    """

    tokens: NDArray[np.int32]
    prompt_length: int
    category: str
    ids: NDArray[np.int32]
    probs: NDArray[np.float32]


@dataclass
class Tally:
    """Counts of a replay; times are CPU seconds, so that a busy machine does not distort them."""

    steps: int = 0
    tokens: int = 0
    nodes: int = 0
    propose_s: float = 0.0
    observe_s: float = 0.0

    @property
    def mat(self) -> float:
        """Mean accepted tokens: emitted per pass, bonus included; plain decoding is 1."""
        return self.tokens / self.steps if self.steps else 0.0


@dataclass
class ReplayResult:
    """Totals of a replay and the same by category."""

    total: Tally = field(default_factory=Tally)
    by_category: dict[str, Tally] = field(default_factory=dict)

    def record(self, category: str, step: Tally) -> None:
        """Adds one step."""
        for tally in (self.total, self.by_category.setdefault(category, Tally())):
            tally.steps += step.steps
            tally.tokens += step.tokens
            tally.nodes += step.nodes
            tally.propose_s += step.propose_s
            tally.observe_s += step.observe_s


def load_traces(path: Path) -> list[Trace]:
    """Reads a trace file (`tests/data/README.md` describes it)."""
    with np.load(path) as data:
        arrays = {name: data[name] for name in data.files}
    offsets, rows = arrays["offsets"], arrays["prediction_offsets"]
    return [
        Trace(
            tokens=arrays["tokens"][offsets[r] : offsets[r + 1]],
            prompt_length=int(arrays["prompt_lengths"][r]),
            category=str(arrays["categories"][r]),
            ids=arrays["topk_ids"][rows[r] : rows[r + 1]],
            probs=arrays["topk_probs"][rows[r] : rows[r + 1]].astype(np.float32),
        )
        for r in range(len(offsets) - 1)
    ]


def vocabulary_of(traces: Seq[Trace]) -> int:
    """The smallest vocabulary that holds all ids of the traces."""
    return 1 + max(int(max(trace.tokens.max(), trace.ids.max())) for trace in traces)


def drafter_settings(method: str, nodes: int, changes: Mapping[str, Any]) -> DrafterSettings:
    """Settings of a replayed method.

    Token recycling at 80 nodes is its published template; at any other budget it is the
    rank-cost tree of that size, unless `changes` say otherwise.

    Args:
        method: As in `DrafterSettings.method`.
        nodes: Drafts per step.
        changes: Values by dotted name below ``drafter``, such as ``recap.fusion``.

    Raises:
        ValueError: A name is unknown or a value out of range.
    """
    tree = "published" if nodes == PUBLISHED_NODES else "rank_cost"
    sections: dict[str, Any] = {
        "method": method,
        "nodes": nodes,
        "token_recycling": {"tree": tree},
    }
    for name, value in changes.items():
        *path, last = name.split(".")
        section = sections
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    return DrafterSettings.model_validate(sections)


def replay_settings(settings: DrafterSettings, traces: Seq[Trace], nodes: int) -> ReplayResult:
    """Replays with a new drafter: cold start, traces in order, memories kept between them."""
    drafter = make_drafter(settings, vocabulary_of(traces), np.empty(0, np.int32))
    return replay(drafter, traces, nodes)


def replay(drafter: Drafter, traces: Seq[Trace], nodes: int) -> ReplayResult:
    """Replays traces one after the other.

    Args:
        drafter: In the state it should start from.
        traces: In the order of the replay.
        nodes: Drafts per step.
    """
    result = ReplayResult()
    max_tokens = max(len(trace.tokens) - trace.prompt_length for trace in traces)
    for key, trace in enumerate(traces):
        request = Sequence.start(key, trace.tokens[: trace.prompt_length], max_tokens)
        # The prefill gives the first token; it counts in neither term of MAT.
        request.append(trace.tokens[trace.prompt_length : trace.prompt_length + 1])
        drafter.begin(request, _seed(trace))
        while request.length < len(trace.tokens):
            result.record(trace.category, _step(drafter, request, trace, nodes))
        drafter.end(request)
    return result


def _step(drafter: Drafter, request: Sequence, trace: Trace, nodes: int) -> Tally:
    start = thread_time()
    tree = drafter.propose([request], nodes)[0]
    proposed = thread_time()
    path = walk(tree, trace.tokens[request.length :])
    # The accepted drafts and the bonus token; nothing beyond the end of the trace.
    emitted = trace.tokens[request.length : request.length + len(path)]
    predictions = _predictions(trace, tree, path, request.length - 1)
    verified = thread_time()
    drafter.observe([request], [tree], [predictions], [path])
    observed = thread_time()
    request.append(emitted)
    return Tally(1, len(emitted), tree.nodes, proposed - start, observed - verified)


def walk(tree: CandidateTree, future: NDArray[np.int32]) -> NDArray[np.int32]:
    """Rows on the path that a trace takes down a tree, root first: int32 [1..].

    Args:
        tree: The drafts.
        future: int32 [m], what the target emits after the root.
    """
    path = [0]
    for token in future.tolist():
        below = np.flatnonzero((tree.parents == path[-1]) & (tree.tokens == token))
        if not len(below):
            break
        path.append(int(below[0]))
    return np.array(path, np.int32)


def _seed(trace: Trace) -> PromptPredictions:
    count = trace.prompt_length
    return PromptPredictions(
        positions=np.arange(count, dtype=np.int32),
        predictions=_as_predictions(trace.ids[:count], trace.probs[:count]),
    )


def _predictions(
    trace: Trace, tree: CandidateTree, path: NDArray[np.int32], position: int
) -> Predictions:
    """Rows for a whole tree: those on the path from the trace, the others unknown."""
    width = trace.ids.shape[1]
    ids = np.full((len(tree.tokens), width), -1, np.int32)
    probs = np.zeros((len(tree.tokens), width), np.float32)
    known = path[: max(0, len(trace.ids) - position)]
    ids[known] = trace.ids[position : position + len(known)]
    probs[known] = trace.probs[position : position + len(known)]
    return _as_predictions(ids, probs)


def _as_predictions(ids: NDArray[np.int32], probs: NDArray[np.float32]) -> Predictions:
    # Traces have no entropy of the full distribution, and no drafter of ours reads it.
    return Predictions(ids, probs, np.zeros(len(ids), np.float32))
