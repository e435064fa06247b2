"""The stream of a run's batches: shards, their data positions, the processes that read them, and stages.

The batch of a step comes this way: `limba/training/row_reader.py` asks the stream that `stages.open_stages` has opened,
a `streams.TrainStream`, or a `processes.ReaderProcesses`, which has one in each of its processes; a run in stages has
one for each stage in turn. It takes a batch of each shard (`shard.Shard`) from those that threads make ahead
(`ahead.Ahead`). `names.py` goes back from a row to its documents.

Part of `data/`: imports its sources, objectives, tasks and deal, never jax.
"""
