"""Parts of the optimizer: Muon's rule, and the average of the weights.

Part of `training/`; imports `config/` and `sharding/` only.
"""
