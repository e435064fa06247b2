"""Results that one can publish: tasks of a suite, each by a protocol, measured on several models beside baselines.

A model is scored as it is on the tasks of `kinds/pairs.py` and `kinds/bits.py`. For each task of `kinds/fine_tuned.py`
(classes, similarity, tags) copies of it are trained: by `trainer.py` with transformers' Trainer, with the rates, epochs
and seeds of `protocol.py`, among which `grid_search.py` chooses. The model itself is never changed.

Imports the engine by `limba.api`.
"""
