"""Where the target model runs: the contract (`base`) and its implementations."""

import os

# An OpenMP thread that waits spins by default, and a pass of a small model has hundreds of parallel
# regions. With more busy threads than cores (a server's processes, say) the spinner takes the
# core from the thread it waits for: a plain step of 6 ms took 56, a tree of 8 rows 700 instead of
# 14. On an idle machine spinning is the faster of the two by up to 2x for trees, which is for who
# owns the machine to ask for: a value in the environment is obeyed. Read once, by torch's import.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
