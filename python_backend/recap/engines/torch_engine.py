"""The target model on PyTorch: transformers' own layers over a slot KV cache.

All trees of a pass run as one padded batch; each prefill chunk runs on its own before them. In
the pass of a single root (plain decoding) there is no mask, no padding and no index tensor, so that
the baseline is as lean as the speculative path. Scores of all rows are computed together.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recap.config import EngineSettings
from recap.engines import costs, masks, topk
from recap.engines.base import (
    Capabilities,
    Pass,
    PassResult,
    PrefillChunk,
    PromptLayout,
    TreeVerification,
)
from recap.engines.kv_cache import SlotKVCache
from recap.errors import CapacityError, InvalidRequestError, SettingsError
from recap.models import adapter_for
from recap.models.loading import DecoderParts, decode_layers
from recap.predictions import Predictions

SCORED_VALUES_AT_ONCE = 1 << 24
"""Most logits held at a time for prompt positions (64 MiB of float32), whose rows are not kept."""


@dataclass
class _Slot:
    """State of one allocated slot: entries held, entries allowed, rows of an uncommitted tree."""

    limit: int
    length: int = 0
    pending: int = 0


def pick_device(name: str) -> torch.device:
    """The device a setting names; ``auto`` is CUDA when there is one.

    Raises:
        SettingsError: There is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= found:
        raise SettingsError(f"engine.device: {name} asked for, torch sees {found} CUDA devices")
    return device


class TorchEngine:
    """Implements `base.Engine` on PyTorch, on the CPU or one GPU.

    Args:
        checkpoint: Directory of a transformers checkpoint.
        settings: Device, dtype, slots, lengths, threads.
        top_k: Predictions per position, K.
        max_nodes: Most drafts of one tree; decides the headroom kept behind every slot.

    Raises:
        SettingsError: The checkpoint cannot be served.
    """

    def __init__(
        self, checkpoint: Path, settings: EngineSettings, *, top_k: int = 8, max_nodes: int = 255
    ) -> None:
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self.adapter = adapter_for(checkpoint)
        self.device = pick_device(settings.device)
        self.dtype: torch.dtype = getattr(torch, settings.dtype)
        self.parts: DecoderParts = self.adapter.load_decoder(self.dtype, self.device)
        self.capabilities = Capabilities(
            mixed_passes=True,
            chunked_prefill=True,
            prompt_predictions=True,
            max_sequence_tokens=min(settings.max_sequence_tokens, self.adapter.max_positions),
            slots=settings.slots,
            max_nodes=max_nodes,
            vocab_size=self.adapter.vocab_size,
            feature_width=self.adapter.hidden_size,
        )
        self.top_k = min(top_k, self.adapter.vocab_size)
        self._cache = SlotKVCache(
            layers=len(self.parts.layers),
            slots=settings.slots,
            kv_heads=self.parts.kv_heads,
            max_len=self.capabilities.max_sequence_tokens + max_nodes + 1,
            head_dim=self.parts.head_dim,
            dtype=self.dtype,
            device=self.device,
        )
        self._slots: dict[int, _Slot] = {}
        self._free = list(range(settings.slots))
        self._costs: costs.CostTable | None = None

    def layout(
        self, ids: NDArray[np.int32], image_layout: NDArray[np.int64] | None
    ) -> PromptLayout:
        """Positions of a prompt; see `Engine.layout`."""
        return self.adapter.layout(ids, image_layout)

    def allocate(self, n_tokens: int) -> int:
        """Reserves a slot; see `Engine.allocate`."""
        limit = self.capabilities.max_sequence_tokens
        if n_tokens > limit:
            raise InvalidRequestError(
                "max_tokens", f"prompt and output together must be at most {limit}, got {n_tokens}"
            )
        if not self._free:
            raise CapacityError(f"all {self.capabilities.slots} slots are taken")
        # The lowest first: slots of a batch that are neighbours are read without a copy.
        slot = heapq.heappop(self._free)
        self._slots[slot] = _Slot(limit=n_tokens)
        return slot

    def release(self, slot: int) -> None:
        """Frees a slot and wipes it; see `Engine.release`."""
        if self._slots.pop(slot, None) is not None:
            self._cache.clear(slot)
            heapq.heappush(self._free, slot)

    @torch.inference_mode()
    def submit(self, work: Pass) -> TorchHandle:
        """Runs the target once; see `Engine.submit`.

        Raises:
            InvalidRequestError: Feature rows do not fit the placeholders of a chunk. Nothing was
                run or written then.
        """
        self._check(work)
        kept: list[Tensor] = []  # [n, hidden] of rows whose logits can be asked for
        seeds: list[Predictions] = []
        if work.trees:
            kept.append(self._run_trees(work.trees))
        for chunk in work.prefills:
            hidden = self._run_chunk(chunk)
            seeds.append(self._score_wanted(hidden, chunk.wanted))
            if chunk.last:
                kept.append(hidden[-1:])
        scored = self._score(torch.cat(kept)) if kept else None
        return TorchHandle(work, seeds, scored)

    @torch.inference_mode()
    def commit(self, slot: int, rows: NDArray[np.int32]) -> None:
        """Keeps accepted rows of the slot's tree; see `Engine.commit`."""
        state = self._slots[slot]
        accepted = rows.tolist()
        assert accepted and accepted[0] == 0, "accepted rows start at the root"
        assert accepted[-1] < state.pending, "no such row in the slot's submitted tree"
        self._cache.compact(slot, state.length, accepted)
        state.length += len(accepted)
        state.pending = 0
        assert state.length <= state.limit, "the sequence outgrew its reservation"

    def cost(self, rows: int, batch: int, context: int) -> float:
        """Measured seconds of a pass; the first call measures. See `Engine.cost`."""
        return self.calibrate()(rows, batch, context)

    @torch.inference_mode()
    def calibrate(self) -> costs.CostTable:
        """Measures passes once, on the first slots; what these hold is put back afterwards."""
        if self._costs is None:
            most = self.capabilities.max_nodes + 1
            long = self.capabilities.max_sequence_tokens
            contexts = sorted({min(context, long) for context in costs.CONTEXTS})
            batch = min(self.capabilities.slots, costs.BATCH)
            held = self._cache.memory[:, :, :batch]
            saved = [held[..., context : context + most, :].clone() for context in contexts]
            self._costs = costs.measure(
                self._mock_pass,
                rows=[rows for rows in costs.ROWS if rows <= most],
                batches=sorted({1, batch}),
                contexts=contexts,
            )
            for context, original in zip(contexts, saved, strict=True):
                held[..., context : context + most, :] = original
        return self._costs

    def _mock_pass(self, rows: int, batch: int, context: int) -> None:
        tokens = torch.zeros((batch, rows), dtype=torch.int64)
        places = torch.arange(context, context + rows).expand(batch, rows)
        chain = np.arange(-1, rows - 1, dtype=np.int32)
        slots, starts = list(range(batch)), [context] * batch
        hidden = self._forward(slots, starts, [chain] * batch, tokens, places)
        topk.predictions(self._score(hidden.flatten(0, 1)))

    def _check(self, work: Pass) -> None:
        slots = [chunk.slot for chunk in work.prefills] + [entry.slot for entry in work.trees]
        assert len(set(slots)) == len(slots), "a slot appears twice in a pass"
        for chunk in work.prefills:
            state = self._slots[chunk.slot]
            assert state.length + len(chunk.ids) <= state.limit, "prompt exceeds its reservation"
            needed = int(chunk.is_image.sum())
            given = (
                (0, self.adapter.hidden_size) if chunk.features is None else chunk.features.shape
            )
            if tuple(given) != (needed, self.adapter.hidden_size):
                raise InvalidRequestError(
                    "image",
                    f"the prompt's placeholders need features of shape "
                    f"({needed}, {self.adapter.hidden_size}), got {tuple(given)}",
                )
        for entry in work.trees:
            assert entry.tree.nodes <= self.capabilities.max_nodes, "tree exceeds max_nodes"
            assert self._slots[entry.slot].length, "a tree needs a prompt in its slot"

    def _run_chunk(self, chunk: PrefillChunk) -> Tensor:
        """Hidden states [n, hidden] of a chunk, whose keys and values are kept."""
        state = self._slots[chunk.slot]
        n = len(chunk.ids)
        hidden = self.parts.embed(self._to_device(torch.tensor(chunk.ids, dtype=torch.int64)))
        if chunk.features is not None and len(chunk.features):
            features = self._to_device(torch.tensor(chunk.features)).to(self.dtype)
            hidden[self._to_device(torch.tensor(chunk.is_image))] = features
        positions = self._to_device(torch.tensor(chunk.positions, dtype=torch.int64))
        self._cache.begin([chunk.slot], [state.length], n)
        # Without a prefix the layers mask causally by themselves, with a faster kernel.
        mask = None
        if n > 1 and state.length:
            mask = self._mask(masks.chunk_mask(state.length, n))
        out = decode_layers(self.parts, hidden[None], positions[:, None], mask, self._cache)
        state.length += n
        return out[0]

    def _run_trees(self, trees: Sequence[TreeVerification]) -> Tensor:
        """Hidden states [sum of rows, hidden] of all trees, in their order."""
        order = sorted(range(len(trees)), key=lambda i: trees[i].slot)
        batch = [trees[i] for i in order]
        sizes = [entry.tree.nodes + 1 for entry in batch]
        width = max(sizes)
        tokens = np.zeros((len(batch), width), np.int64)
        places = np.zeros((len(batch), width), np.int64)
        for i, entry in enumerate(batch):
            tokens[i, : sizes[i]] = entry.tree.tokens
            places[i, : sizes[i]] = entry.tree.depth + entry.root_position
        slots = [entry.slot for entry in batch]
        starts = [self._slots[slot].length for slot in slots]
        parents = [entry.tree.parents for entry in batch]
        hidden = self._forward(
            slots, starts, parents, torch.from_numpy(tokens), torch.from_numpy(places)
        )
        for slot, size in zip(slots, sizes, strict=True):
            self._slots[slot].pending = size
        if len(batch) == 1:
            return hidden[0]
        place_of = {index: i for i, index in enumerate(order)}
        rows = [
            np.arange(sizes[i]) + i * width
            for i in (place_of[index] for index in range(len(trees)))
        ]
        picked = self._to_device(torch.from_numpy(np.concatenate(rows)))
        return hidden.flatten(0, 1).index_select(0, picked)

    def _forward(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        parents: Sequence[NDArray[np.int32]],
        tokens: Tensor,
        places: Tensor,
    ) -> Tensor:
        """One padded batch of trees through the decoder.

        Args:
            slots: B slots, ascending.
            starts: Entries each holds.
            parents: Per slot, the tree's parents.
            tokens: int64 [B, T].
            places: int64 [B, T], rotary positions.

        Returns:
            float [B, T, hidden].
        """
        width = tokens.shape[1]
        used = self._cache.begin(slots, starts, width)
        mask = None
        # Nothing to hide from roots whose prefixes have one length.
        if width > 1 or len(set(starts)) > 1:
            mask = self._mask(masks.tree_mask(parents, starts, width, used))
        hidden = self.parts.embed(self._to_device(tokens))
        positions = self._to_device(places).expand(self.parts.axes, -1, -1)
        return decode_layers(self.parts, hidden, positions, mask, self._cache)

    def _score_wanted(self, hidden: Tensor, wanted: NDArray[np.int32]) -> Predictions:
        """Predictions at rows `wanted` of [n, hidden], in pieces of bounded memory."""
        if not len(wanted):
            return topk.none(self.top_k)
        rows = self._to_device(torch.tensor(wanted, dtype=torch.int64))
        size = max(1, SCORED_VALUES_AT_ONCE // self.adapter.vocab_size)
        pieces = hidden.index_select(0, rows).split(size)
        return topk.concat([topk.predictions(self._score(piece)) for piece in pieces])

    def _score(self, hidden: Tensor) -> topk.Scored:
        return topk.score(self.parts.lm_head(hidden).float(), self.top_k)

    def _mask(self, mask: NDArray[np.float32]) -> Tensor:
        return self._to_device(torch.from_numpy(mask)).to(self.dtype)

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


class TorchHandle:
    """A pass under way; implements `base.Handle`.

    Args:
        work: What was submitted.
        seeds: Per prefill chunk, predictions at its wanted positions.
        scored: Rows whose logits are kept: all tree rows, then one for each last chunk. None
            when there are none.
    """

    def __init__(self, work: Pass, seeds: list[Predictions], scored: topk.Scored | None) -> None:
        self._seeds = seeds
        self._scored = scored
        self._result: PassResult | None = None
        ends = np.cumsum([entry.tree.nodes + 1 for entry in work.trees], dtype=np.int64)
        self._tree_ends: list[int] = ends.tolist()
        row = self._tree_ends[-1] if work.trees else 0
        self._last_rows: list[int | None] = []
        for chunk in work.prefills:
            self._last_rows.append(row if chunk.last else None)
            row += chunk.last

    def result(self) -> PassResult:
        """Waits for the pass; see `base.Handle.result`."""
        if self._result is None:
            rows = topk.predictions(self._scored) if self._scored is not None else None
            self._result = PassResult(prefills=self._prefills(rows), trees=self._trees(rows))
        return self._result

    def _trees(self, rows: Predictions | None) -> list[Predictions]:
        begins = [0, *self._tree_ends]
        return [
            topk.slice_of(rows, begin, end)
            for begin, end in zip(begins, self._tree_ends, strict=False)
            if rows is not None
        ]

    def _prefills(self, rows: Predictions | None) -> list[Predictions]:
        prefills = []
        for seed, row in zip(self._seeds, self._last_rows, strict=True):
            if row is not None and rows is not None:
                seed = topk.concat([seed, topk.slice_of(rows, row, row + 1)])
            prefills.append(seed)
        return prefills

    def tree_logits(self, tree: int, row: int) -> NDArray[np.float32]:
        """float32 [vocab]: the row of one tree node; see `base.Handle.tree_logits`."""
        begin = self._tree_ends[tree - 1] if tree else 0
        assert 0 <= row < self._tree_ends[tree] - begin, "no such row in the tree"
        return self._row(begin + row)

    def prefill_logits(self, prefill: int) -> NDArray[np.float32]:
        """float32 [vocab]: a last chunk's last position; see `base.Handle.prefill_logits`."""
        row = self._last_rows[prefill]
        assert row is not None, "logits are kept for a prompt's last chunk only"
        return self._row(row)

    def _row(self, row: int) -> NDArray[np.float32]:
        assert self._scored is not None
        return self._scored.logits[row].cpu().numpy()
