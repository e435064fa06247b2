"""Numbers of half precision in training: float16's loss scale.

Part of `training/`; imports `config/` only.
"""
