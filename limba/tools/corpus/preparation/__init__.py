"""Preparing a corpus before training: inspecting it, writing shards, writing TensorFlow Datasets.

Part of `corpus`: imports `data/`, never jax.
"""
