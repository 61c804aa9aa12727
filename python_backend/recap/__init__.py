"""RECAP speculative decoding for vision-language models (arXiv 2611.05894).

A target model's own predictions are kept and proposed again as a tree of drafts; one pass of the
target checks all branches, and the output is token for token what plain decoding gives.
"""

__version__ = "0.1.0"
