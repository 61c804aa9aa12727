"""Keys and values of many sequences, one slot each.

A pass writes its new rows behind what each of its slots already holds, and reads the prefix of all
of them together. Nothing here knows what the rows mean: which of them are kept is decided by
`compact` after a tree was verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class SlotKVCache:
    """KV cache [2, layers, slots, kv_heads, max_len, head_dim]; index 0 keys, 1 values.

    Call `begin` before a pass; the attention layers then call `update` once each. Within a pass
    every slot gets the same number of rows. Those beyond a slot's own tree are padding: they land
    behind the tree, where nothing reads them before something else is written there.

    The memory is zeroed at first and on `clear`, because masked entries still meet the softmax
    as 0 * value: what is there must be finite, and must not be another request's.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        kv_heads: int,
        max_len: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (2, layers, slots, kv_heads, max_len, head_dim)
        self.memory = torch.zeros(shape, dtype=dtype, device=device)
        self._high = [0] * slots
        self._read: tuple[Sequence[Tensor], Sequence[Tensor]] = ((), ())
        self._write: tuple[Sequence[Tensor], Sequence[Tensor]] = ((), ())
        self._scatter: tuple[Tensor, Tensor] | None = None
        self._gather: Tensor | None = None

    def begin(self, slots: Sequence[int], starts: Sequence[int], rows: int) -> int:
        """Points the cache at the slots of the coming pass.

        Args:
            slots: Ascending.
            starts: Entries each slot holds; the new rows go behind them.
            rows: New rows of every slot, padding included.

        Returns:
            Length of the prefix that `update` returns: the longest slot with its new rows.
        """
        for slot, start in zip(slots, starts, strict=True):
            self._high[slot] = max(self._high[slot], start + rows)
        used = max(starts) + rows
        first, last = slots[0], slots[-1]
        self._scatter = self._gather = None
        device = self.memory.device
        if len(slots) == 1:
            # One sequence, the case whose speed matters most: plain views, no index tensors.
            block = self.memory[:, :, first : first + 1, :, starts[0] : used]
            self._write = (block[0].unbind(0), block[1].unbind(0))
        else:
            self._write = (self.memory[0].unbind(0), self.memory[1].unbind(0))
            index = torch.tensor(slots, device=device)
            place = torch.tensor(starts, device=device)[:, None] + torch.arange(rows, device=device)
            self._scatter = (index[:, None], place)
            if last - first + 1 != len(slots):
                self._gather = index
        view = self.memory[:, :, first : last + 1, :, :used]
        if self._gather is not None:
            view = self.memory[..., :used, :]
        self._read = (view[0].unbind(0), view[1].unbind(0))
        return used

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores one layer's new rows and returns all that the pass may attend to.

        Args:
            key_states: [B, kv_heads, rows, head_dim], slots in the order given to `begin`.
            value_states: The same shape.
            layer_idx: Which layer.
            *args: Ignored; transformers' versions pass different extras.
            **kwargs: Ignored.

        Returns:
            Keys and values, [B, kv_heads, used, head_dim].
        """
        for write, new in zip(self._write, (key_states, value_states), strict=True):
            if self._scatter is None:
                write[layer_idx].copy_(new)
            else:
                index, place = self._scatter
                write[layer_idx][index, :, place] = new.transpose(1, 2)
        keys, values = self._read[0][layer_idx], self._read[1][layer_idx]
        if self._gather is not None:
            return keys.index_select(0, self._gather), values.index_select(0, self._gather)
        return keys, values

    def compact(self, slot: int, start: int, rows: Sequence[int]) -> None:
        """Moves the entries ``start + rows`` to ``start, start + 1, ...``; rows ascend."""
        kept = next((i for i, row in enumerate(rows) if row != i), len(rows))
        if kept == len(rows):
            return
        moved = torch.tensor(rows[kept:], device=self.memory.device) + start
        block = self.memory[:, :, slot]
        block[..., start + kept : start + len(rows), :] = block.index_select(3, moved)

    def clear(self, slot: int) -> None:
        """Wipes whatever was ever written to a slot since it was last cleared."""
        self.memory[:, :, slot, :, : self._high[slot]] = 0
        self._high[slot] = 0
