"""The stream of a run's batches: shards, their data positions, the processes that read them, stages, and devices.

Part of `data/`: imports its sources, objectives, tasks and deal; only `placement` imports jax.
"""
