"""Turns rows of logits into `Predictions`, with one defined order.

Order is by logit, equal logits by lowest id, so that greedy decoding is the same on every device;
`torch.topk` promises no order among equals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recap.predictions import Predictions


@dataclass(frozen=True)
class Scored:
    """Scored rows, still on the device.

    Attributes:
        logits: float32 [n, vocab].
        values: float32 [n, K + 1], largest logits, descending (K columns if K is the vocabulary).
        ids: int64, the same shape.
        probs: float32, the same shape, under the full softmax.
        entropy: float32 [n] in nats.
        top_k: K.
    """

    logits: Tensor
    values: Tensor
    ids: Tensor
    probs: Tensor
    entropy: Tensor
    top_k: int


def score(logits: Tensor, top_k: int) -> Scored:
    """Starts scoring float32 [n, vocab] without waiting for the device."""
    # One more than K, to see whether the last place is tied with one left out.
    values, ids = torch.topk(logits, min(top_k + 1, logits.shape[-1]), dim=-1)
    shifted = logits - values[:, :1]
    weights = shifted.exp()
    total = weights.sum(-1)
    # H = -sum p ln p with p = exp(shifted) / total.
    entropy = total.log() - (weights * shifted).sum(-1) / total
    probs = (values - values[:, :1]).exp() / total[:, None]
    return Scored(logits, values, ids, probs, entropy, top_k)


def predictions(scored: Scored) -> Predictions:
    """Waits for the device and puts ties in order."""
    k = scored.top_k
    values = scored.values.cpu().numpy()
    ids = scored.ids.cpu().numpy().astype(np.int32)
    if (values[:, 1:] == values[:, :-1]).any():
        if values.shape[1] > k:
            for row in np.flatnonzero(values[:, k] == values[:, k - 1]):
                ids[row, :k] = _lowest_ids(scored.logits[row], values[row, k - 1], k)
        values, ids = values[:, :k], ids[:, :k]
        ids = np.take_along_axis(ids, np.lexsort((ids, -values), axis=-1), axis=-1)
    # The order of equals changes neither their values nor their probabilities.
    return Predictions(
        ids=np.ascontiguousarray(ids[:, :k]),
        probs=np.ascontiguousarray(scored.probs.cpu().numpy()[:, :k]),
        entropy=scored.entropy.cpu().numpy(),
    )


def _lowest_ids(logits: Tensor, least: np.float32, k: int) -> NDArray[np.int64]:
    """int64 [k]: the k best ids of a row [vocab] whose k-th best logit is `least`."""
    row = logits.cpu().numpy()
    candidates = np.flatnonzero(row >= least)
    return candidates[np.lexsort((candidates, -row[candidates]))[:k]]


def none(top_k: int) -> Predictions:
    """Predictions at no positions."""
    return Predictions(
        ids=np.empty((0, top_k), np.int32),
        probs=np.empty((0, top_k), np.float32),
        entropy=np.empty(0, np.float32),
    )


def slice_of(all_rows: Predictions, begin: int, end: int) -> Predictions:
    """Rows begin to end as views."""
    return Predictions(
        all_rows.ids[begin:end], all_rows.probs[begin:end], all_rows.entropy[begin:end]
    )


def concat(parts: list[Predictions]) -> Predictions:
    """Rows of all parts in order."""
    if len(parts) == 1:
        return parts[0]
    return Predictions(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.probs for part in parts]),
        np.concatenate([part.entropy for part in parts]),
    )
