"""The stream of a run's batches: shards, their data positions, the processes that read them, and stages.

Part of `data/`: imports its sources, objectives, tasks and deal, never jax.
"""
