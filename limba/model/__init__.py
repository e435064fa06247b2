"""The networks, behind a wall: `Network.init(key) -> params`, `Network.apply(params, batch, …) -> logits`.

Floor 2: imports `config/` and `sharding/`; Flax is imported here and in `training/state.py` alone.
"""

from limba.model.network import Network

__all__ = ["Network"]
