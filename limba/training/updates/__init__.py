"""Parts of the optimizer: Muon's rule, the average of the weights, and float16's loss scale.

Part of `training/`; imports `config/` and `sharding/` only.
"""
