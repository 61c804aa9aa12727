"""RECAP speculative decoding for vision-language models (arXiv 2611.05894).

A target model's own predictions are kept and proposed again as a tree of drafts; one pass of the
target checks all branches, and the output is token for token what plain decoding gives.

Where to start: `config.load_settings` reads the settings, `assembly.build_scheduler` loads a model
and joins the parts, `scheduler.Scheduler` runs `requests.GenerationRequest`s into
`requests.Sink`s, `drafters.make_drafter` gives a drafter by itself, and `models.processor` makes
prompts. Nothing is imported here: most users need no torch.
"""

__version__ = "0.1.0"
