"""The stream of a run's batches: shards, their data positions, the processes that read them, and stages.

The batch of a step comes this way: `limba/training/row_reader.py` asks `stages.StagedStream`, which asks the stream of
its current stage: `streams.TrainStream`, or `processes.ReaderProcesses`, which has one in each process. It takes a batch
of each shard (`shard.Shard`) from those that threads make ahead (`ahead.Ahead`). `names.py` goes back from a row to its
documents.

Part of `data/`: imports its sources, objectives, tasks and deal, never jax.
"""
