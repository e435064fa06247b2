"""Preparing a corpus before training: inspecting it, writing shards, writing TensorFlow Datasets.

Part of `data/`: imports `config/`, never jax.
"""
