"""The networks behind one interface: `Network.init(key) -> parameters`, `Network.apply(parameters, batch) -> logits`.

Floor 2: imports `config/` and `sharding/`; Flax is imported only here and in `training/state.py`.
"""

from limba.model.network import Network
from limba.model.trees import Batch

__all__ = ["Batch", "Network"]
