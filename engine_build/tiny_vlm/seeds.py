"""Who may use which seeds.

A sample is a pure function of its seed and family, so data are kept apart by keeping the ranges of
seeds apart. Within a range that serves several families each family has a block of its own:
`scene` and `gqa` would otherwise show the same pictures.
"""

PROTOTYPE_PROBE_SEEDS = range(0, 200)
"""Watched during the training of the shipped checkpoint; not to be measured on."""

MINI_SEEDS = range(200_000, 300_000)
"""The benchmark suite `mini`."""

WARMUP_SEEDS = range(300_000, 400_000)
"""The suite `warmup`, which a benchmark runs before it measures."""

DEMO_SEEDS = range(400_000, 500_000)
"""The demo image."""

PROTOTYPE_PRECISION_SEEDS = range(800_000, 900_000)
"""Used to compare 16-bit weights of the shipped checkpoint with 32-bit ones."""

HELD_OUT_SEEDS = range(900_000, 1_000_000)
"""Accuracy of a checkpoint (`evaluate`)."""

TRAINING_SEEDS = range(1_000_000, 1_000_000 + 2**48)
"""Training, and the text of the tokenizer (from 5,000,000 on)."""

BLOCK = 10_000
"""Seeds in one family's block of a range."""


def block_seed(seeds: range, block: int, index: int) -> int:
    """The seed of sample `index` in block `block` of a range.

    Raises:
        ValueError: the index lies outside the block or the block outside the range.
    """
    if not 0 <= index < BLOCK:
        raise ValueError(f"a block holds {BLOCK} seeds, index {index} is not among them")
    offset = block * BLOCK + index
    if not 0 <= offset < len(seeds):
        raise ValueError(f"block {block} lies outside {seeds}")
    return seeds[offset]
