"""Epochs whose rows are dealt evenly: how many documents a corpus has, which of them each data shard reads, and how
many steps that gives. It may import `limba.data.sources`, and what stands below; no jax.
"""
