"""Part of `limba/training/`: saving a run's checkpoints, resuming from them, initializing a run from another model.

Imports what `limba/training/` may import.
"""
