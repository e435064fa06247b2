"""What is done to a corpus before training: looking at it, writing it as shards, TensorFlow Datasets.

Part of `data/`: imports `config/`, never jax.
"""
