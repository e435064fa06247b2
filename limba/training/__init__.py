"""The training loop, its step, optimizer, checkpoints and logs.

Floor 3: imports `config/`, `sharding/`, `data/`, `model/` and `formats/`.
"""
