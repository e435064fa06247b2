"""From files to global batches: sources, objectives, vocabularies, and the stream that training reads.

Floor 2: imports `config/` and `sharding/`. TensorFlow and seqio are imported where a task needs them (`bridge`).
"""
