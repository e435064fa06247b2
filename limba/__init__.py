"""Limba: pretrain a T5 for your own language in JAX/Flax. Read `limba/run.py` first."""
