"""What `import t5.data` and `t5.evaluation` find where the package t5 is not installed: the names that tasks use.

Part of `migrate`: imports seqio and TensorFlow, never jax; `finder`, which a command installs, nothing.
"""
