"""Part of `limba/training/`: saving a run's checkpoints, resuming from them, initializing a run from another model.

A save goes this way: `directory.Checkpoints.save` copies the state to the host (`arrays.py`); the thread of `saver.py`
writes it, and tries again where that fails; `step_directory.commit_step` makes it a checkpoint, by a rename on a file
system and by writing manifest.json last in a bucket.

Imports what `limba/training/` may import.
"""
