"""The stream of a run's batches: shards, their data positions, the processes that read them, and stages.

The batch of a step comes this way: `limba/training/row_reader.py` asks the stream that `stages.open_stages` has opened,
a `streams.TrainStream`, or a `processes.ReaderProcesses`, which has one in each of its processes; a run in stages has
one for each stage in turn. It takes a batch of each shard (`shard.Shard`) from those that threads make ahead
(`ahead.Ahead`). `names.py` goes back from a row to its documents.

The words of this folder, from the smallest to the largest. A row is what the network reads at once, of one document
or several. A shard is one of `num_data_shards` sequences of rows, and each batch takes `rows_per_shard` rows of it. A
place says how far a shard has been read (`ShardPlace`). A data position is a place with the files that it belongs to,
as a checkpoint keeps it (`positions.py`). A process reads whole shards, so no row depends on the number of processes.
The deal (`limba/data/deal.py`) says how a corpus's documents are divided among the shards: in whole units, or one by
one.

Part of `data/`: imports its sources, objectives, tasks and deal, never jax.
"""
