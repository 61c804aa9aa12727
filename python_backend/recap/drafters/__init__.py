"""Drafters: what is proposed for a verify pass, and what is learnt from its outcome.

One interface (`Drafter`), written for the whole batch. A drafter sees token ids and predictions
only; it knows nothing of models, text, images or servers. `make_drafter` picks one by settings.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from recap.config import DrafterSettings
from recap.drafters.autoregressive import AutoregressiveDrafter
from recap.drafters.base import Drafter, Source, Vocabulary
from recap.drafters.prompt_lookup import PromptLookupDrafter
from recap.drafters.recap import RecapDrafter
from recap.drafters.token_recycling import TokenRecyclingDrafter

__all__ = ["Drafter", "Source", "make_drafter"]


def make_drafter(
    settings: DrafterSettings,
    vocab_size: int,
    forbidden_ids: NDArray[np.int32],
    eos_ids: Iterable[int] = (),
) -> Drafter:
    """The drafter that `settings.method` names.

    Args:
        settings: Method and its switches.
        vocab_size: Ids from here on are never drafted.
        forbidden_ids: int32 [any], ids never drafted and in no key: image placeholders, pads.
        eos_ids: Ids that may be drafted but end their branch.
    """
    vocabulary = Vocabulary(vocab_size, np.asarray(forbidden_ids, np.int32), eos_ids)
    if settings.method == "recap":
        return RecapDrafter(settings.recap, vocabulary)
    if settings.method == "token_recycling":
        return TokenRecyclingDrafter(settings.token_recycling, vocabulary)
    if settings.method == "prompt_lookup":
        return PromptLookupDrafter(settings.prompt_lookup, vocabulary)
    return AutoregressiveDrafter()
