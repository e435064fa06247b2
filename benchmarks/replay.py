"""Trains recorded batches from recorded parameters and compares every loss with the recording.

    python -m benchmarks.replay --golden PATH/curve_t5_1_1

PATH/curve_t5_1_1.json holds the configuration, the .npz `init/<name>` (T5X's names),
`batch/<step>/<feature>`, `loss_per_token`, `final_rms/<name>`. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from limba.cli import program
from limba.config import (
    InputError,
    LossConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    environment,
)
from limba.config.loss import LOGITS
from limba.config.model import ATTENTIONS
from limba.config.optimizer import Adafactor
from limba.formats.names import flatten, unflatten, unstack_layers
from limba.model import Network
from limba.sharding.mesh import make_mesh
from limba.tools.migrate.t5x.tables import LOSS_NORMALIZERS
from limba.training.optimizer import make_optimizer
from limba.training.schedule import make_schedule
from limba.training.state import TrainState, state_shardings
from limba.training.step import Gradient, jit_train_step
from tests.tiny import stack_layers


def model_config(recorded: dict, scan_layers: bool, attention: str = "auto") -> ModelConfig:
    """Returns our configuration of a network recorded by T5X (its float32_attention_logits is always on here)."""
    fields = {name: value for name, value in recorded.items() if name != "float32_attention_logits"}
    return ModelConfig(**fields, scan_layers=scan_layers, attention=attention)


def optimizer_config(recorded: dict) -> OptimizerConfig:
    """Returns the recorded optimizer: T5X's Adafactor under base * rsqrt_decay, with T5X's defaults.

    Raises ConfigError for another optimizer or schedule.
    """
    rule = recorded.get("optimizer", "Adafactor")
    rate = str(recorded.get("learning_rate", "rsqrt_decay"))
    if "adafactor" not in rule.lower() or "rsqrt_decay" not in rate:
        raise InputError(f"{rule} at {rate} is not replayed here; give a recording of Adafactor at rsqrt_decay.")
    schedule = ScheduleConfig(
        base_learning_rate=_number(rate, "base", 1.0), warmup_steps=int(_number(rate, "warmup", 10_000))
    )
    return Adafactor(
        schedule=schedule,
        decay_rate=_number(rule, "decay_rate", 0.8),
        clipping_threshold=_number(rule, "clipping_threshold", 1.0),
    )


def _number(text: str, name: str, default: float) -> float:
    """Returns the number behind a name in a recording's words, such as 10000 for warmup in "warmup 10000"."""
    match = re.search(rf"{name}[ =:]+(\d[\d.]*(?:e-?\d+)?)", text)
    return float(match[1].rstrip(".")) if match else default


def normalize_by(factor: str | float | None) -> str | float | None:
    """Returns our name of T5X's `loss_normalizing_factor`; a recording that gives none has T5X's default, None."""
    return LOSS_NORMALIZERS[factor] if isinstance(factor, str) else factor


class Recording(NamedTuple):
    """A recorded run: its network, its state before the first step, our step, and what was recorded."""

    network: Network
    optimizer: optax.GradientTransformation
    state: TrainState
    step: Callable[..., tuple[TrainState, dict[str, jax.Array]]]
    batches: list[dict[str, np.ndarray]]
    losses: np.ndarray
    final_rms: dict[str, float]


def recording(
    golden: str,
    scan_layers: bool = True,
    num_microbatches: int = 1,
    mesh: MeshConfig | None = None,
    attention: str = "auto",
    logits: str = "auto",
) -> Recording:
    """Returns the run that GOLDEN.json and GOLDEN.npz hold, ready for its first step on the mesh."""
    recorded = json.loads(Path(golden + ".json").read_text())
    arrays = np.load(golden + ".npz")
    model = Network(model_config(recorded["config"], scan_layers, attention))
    choice = optimizer_config(recorded)
    optimizer = make_optimizer(choice, recorded["steps"])
    schedule = make_schedule(choice.schedule, recorded["steps"])

    def arrays_of(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): arrays[name] for name in arrays.files if name.startswith(prefix)}

    params = jax.tree.map(jnp.asarray, unflatten(stack_layers(arrays_of("init/"))))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    if jax.tree.structure(shapes) != jax.tree.structure(params):
        raise InputError(f"The parameters recorded in {golden}.npz do not fit the network in its .json.")
    shardings = state_shardings(model, optimizer, make_mesh(mesh or MeshConfig()))
    state = jax.device_put(TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params)), shardings)
    divided_by = normalize_by(recorded.get("loss_normalizing_factor"))
    loss = LossConfig(recorded["z_loss"], recorded.get("label_smoothing", 0.0), logits, divided_by)
    step = jit_train_step(Gradient(model, loss, num_microbatches), optimizer, schedule, shardings)

    batches = [arrays_of(f"batch/{number}/") for number in range(recorded["steps"])]
    expected = np.asarray(arrays["loss_per_token"], np.float64)
    return Recording(model, optimizer, state, step, batches, expected, arrays_of("final_rms/"))


def replay(golden: str, *choices: Any, **named_choices: Any) -> dict:
    """Returns {loss, recorded, max_relative_difference(_first_10), final_rms_max_relative_difference}.

    The choices are `recording`'s.
    """
    recorded = recording(golden, *choices, **named_choices)
    state = recorded.state
    losses = []
    for batch in recorded.batches:
        state, metrics = recorded.step(state, batch, jax.random.key(0))
        losses.append(float(metrics["loss"]))
    differences = np.abs(np.array(losses) - recorded.losses) / np.abs(recorded.losses)
    final = unstack_layers(flatten(jax.device_get(state.params)))
    rms_differences = []
    for name, array in final.items():
        rms = np.sqrt(np.mean(np.square(array, dtype=np.float64)))
        rms_differences.append(abs(rms / recorded.final_rms[name] - 1))
    return {
        "loss": losses,
        "recorded": recorded.losses.tolist(),
        "max_relative_difference": float(differences.max()),
        "max_relative_difference_first_10": float(differences[:10].max()),
        "final_rms_max_relative_difference": float(max(rms_differences)),
    }


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", required=True, help="path of the pair of files, without .json or .npz")
    parser.add_argument("--unrolled", action="store_true", help="run the layers in a loop instead of a scan")
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--attention", default="auto", choices=ATTENTIONS)
    parser.add_argument("--logits", default="auto", choices=LOGITS)
    args = parser.parse_args(argv)
    scan_layers = not args.unrolled
    for ending in (".json", ".npz"):
        if not Path(args.golden + ending).is_file():
            raise InputError(f"{args.golden}{ending} does not exist; give the path of the pair without its ending.")
    choices = {"attention": args.attention, "logits": args.logits}
    print(json.dumps(replay(args.golden, scan_layers, args.microbatches, **choices), indent=1))


if __name__ == "__main__":
    environment.set_variables()
    sys.exit(program.exit_code(main, sys.argv[1:]))
