"""The step of a network of one layer of width 16: recorded losses, and the slope of the loss, in micro-batches too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.config import LossConfig, ModelConfig, OptimizerConfig, ScheduleConfig, optimizer_config
from limba.model import Network
from limba.training.step import Gradient, gradients
from tests import tiny

pytestmark = pytest.mark.core
SIZES = {"emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 24, "num_decoder_layers": 1, "scan_layers": False}
T5 = tiny.model(**SIZES, num_encoder_layers=1)
DECODER = tiny.language_model(**SIZES, num_kv_heads=1)
ADAFACTOR = optimizer_config(schedule=ScheduleConfig("factors", 0.1, "constant", 0), min_dim_size_to_factor=8)
ADAM = optimizer_config("adamw", ScheduleConfig("linear", 0.01, warmup_steps=2), weight_decay=0.1, clip_global_norm=1.0)
LOSS = LossConfig(z_loss=1e-2, label_smoothing=0.1)


@pytest.mark.parametrize(
    ("config", "optimizer", "recorded"),
    [(T5, ADAFACTOR, [5.2945528, 5.3307867, 5.3316679]), (DECODER, ADAM, [5.4876624, 5.5786366, 5.4117818])],
    ids=["t5", "decoder"],
)
def test_three_steps_have_the_recorded_losses(
    config: ModelConfig, optimizer: OptimizerConfig, recorded: list[float]
) -> None:
    losses, _ = tiny.train(config, optimizer, loss=LOSS)
    np.testing.assert_allclose(losses, recorded, rtol=2e-6)


@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_are_the_slope_of_the_loss(parts: int) -> None:
    """Along a direction, by central differences; float32 leaves three digits of them."""
    network = Network(T5)
    params = tiny.parameters(T5)
    batch = jax.tree.map(jnp.asarray, tiny.batch())
    random = np.random.default_rng(1)
    direction = jax.tree.map(lambda leaf: random.standard_normal(leaf.shape, np.float32), params)
    compute = jax.jit(lambda params: gradients(Gradient(network, LOSS, parts), params, batch, None))
    gradient, _ = compute(params)

    def difference(distance: float) -> float:
        moved = [jax.tree.map(lambda x, d, by=by: x + by * d, params, direction) for by in (distance, -distance)]
        ahead, behind = (float(compute(point)[1]["loss"]) for point in moved)
        return (ahead - behind) / (2 * distance)

    slope = sum(np.vdot(*pair) for pair in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))
    # Richardson's extrapolation: the error of third order cancels out
    assert (4 * difference(4e-3) - difference(8e-3)) / 3 == pytest.approx(slope, rel=3e-3)
