"""From files to a shard's rows: sources, objectives, vocabularies, and the stream that training reads.

Floor 2: imports `config/` and `storage/`, never jax. Only `bridge/` knows TensorFlow and seqio.
"""
