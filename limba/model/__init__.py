"""The networks, behind a wall: `Model.init(key) -> params`, `Model.apply(params, batch, …) -> logits`."""

from limba.model.transformer import Model

__all__ = ["Model"]
