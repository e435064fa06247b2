"""Trains recorded batches from recorded parameters and compares every loss with the recording.

    python -m benchmarks.replay --golden PATH/curve_t5_1_1

PATH/curve_t5_1_1.json holds the configuration, the .npz `init/<name>` (T5X's names),
`batch/<step>/<feature>`, `loss_per_token`, `final_rms/<name>`. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from limba.config import LossConfig, MeshConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from limba.formats.names import flatten, stack_layers, unflatten, unstack_layers
from limba.mesh import make_mesh
from limba.model import Model
from limba.optimizer import make_optimizer, make_schedule
from limba.state import TrainState, state_shardings
from limba.train_step import compile_ready_step


def model_config(recorded: dict, scan_layers: bool) -> ModelConfig:
    """Returns our configuration of a network recorded by T5X (its float32_attention_logits is always on here)."""
    fields = {k: v for k, v in recorded.items() if k != "float32_attention_logits"}
    return ModelConfig(**fields, scan_layers=scan_layers)


def replay(golden: str, scan_layers: bool = True, num_microbatches: int = 1, mesh: MeshConfig | None = None) -> dict:
    """Returns {loss, recorded, max_relative_difference(_first_10), final_rms_max_relative_difference}."""
    recorded = json.loads(Path(golden + ".json").read_text())
    arrays = np.load(golden + ".npz")
    model = Model(model_config(recorded["config"], scan_layers))
    optimizer_config = OptimizerConfig(schedule=ScheduleConfig(base_learning_rate=1.0, warmup_steps=10_000))
    optimizer = make_optimizer(optimizer_config, recorded["steps"])
    schedule = make_schedule(optimizer_config.schedule, recorded["steps"])

    init = {name.removeprefix("init/"): arrays[name] for name in arrays.files if name.startswith("init/")}
    params = jax.tree.map(jnp.asarray, unflatten(stack_layers(init)))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    if jax.tree.structure(shapes) != jax.tree.structure(params):
        raise SystemExit(f"{golden}: the recorded parameters are not those of this network.")
    shardings = state_shardings(model, optimizer, make_mesh(mesh or MeshConfig()))
    state = jax.device_put(TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params)), shardings)
    loss = LossConfig(z_loss=recorded["z_loss"])
    step = compile_ready_step(model, optimizer, schedule, loss, num_microbatches, shardings)

    losses = []
    for i in range(recorded["steps"]):
        prefix = f"batch/{i}/"
        batch = {name.removeprefix(prefix): arrays[name] for name in arrays.files if name.startswith(prefix)}
        state, metrics = step(state, batch, jax.random.key(0))
        losses.append(float(metrics["loss"]))

    expected = np.asarray(arrays["loss_per_token"], np.float64)
    differences = np.abs(np.array(losses) - expected) / np.abs(expected)
    final = unstack_layers(flatten(jax.device_get(state.params)))
    rms = {
        name: abs(np.sqrt(np.mean(np.square(array, dtype=np.float64))) / arrays[f"final_rms/{name}"] - 1)
        for name, array in final.items()
    }
    return {
        "loss": losses,
        "recorded": expected.tolist(),
        "max_relative_difference": float(differences.max()),
        "max_relative_difference_first_10": float(differences[:10].max()),
        "final_rms_max_relative_difference": float(max(rms.values())),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", required=True, help="path of the pair of files, without .json or .npz")
    parser.add_argument("--unrolled", action="store_true", help="run the layers in a loop instead of a scan")
    parser.add_argument("--microbatches", type=int, default=1)
    args = parser.parse_args()
    for ending in (".json", ".npz"):
        if not Path(args.golden + ending).is_file():
            print(f"{args.golden}{ending} is not there; give the path of the pair without its ending.", file=sys.stderr)
            return 2
    print(json.dumps(replay(args.golden, not args.unrolled, args.microbatches), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
