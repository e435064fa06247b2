"""A training step compiled for chips that may not be here: their descriptions, the step, and what its program says.

Part of `preflight`. `process.py` alone is imported where jax must not be.
"""
