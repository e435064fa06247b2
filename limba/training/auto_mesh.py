"""The mesh of a run that asks for `MeshConfig.auto`: the smallest sharding that fits, by the compiler's own account.

All processes choose alike: the narrowest memory counts, and the largest account.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from limba.config import InputError, MeshConfig, RunConfig
from limba.model import Network
from limba.sharding.mesh import batch_sharding, make_mesh
from limba.training.optimizer import make_optimizer, make_schedule
from limba.training.state import TrainState, abstract_state, state_shardings
from limba.training.step import jit_train_step

FILE = "mesh.json"
USABLE = 0.95  # of a device's memory: evaluation and the next batch want some, too


def choose(config: RunConfig, feature_shapes: Mapping[str, tuple[int, int]]) -> tuple[Mesh, Callable | None]:
    """Returns the mesh for this run's step, and the compiled step where one had to be compiled to find out.

    The choice is kept in model_dir/mesh.json, and taken again as long as the devices and what is trained on them are
    the same. `feature_shapes` are those of a global batch. Raises ConfigError where no mesh fits, or where the
    devices tell no limit and `MeshConfig.memory_gib` gives none.
    """
    limit = _limit(config.mesh)
    about = _about(config, feature_shapes, limit)
    kept = _kept(config.model_dir, about)
    if kept is not None:
        _say(f"Mesh as chosen before: {_in_words(kept)} ({config.model_dir}/{FILE})")
        return make_mesh(kept), None
    least = math.inf
    for sizes in candidates(config, jax.device_count()):
        mesh = make_mesh(sizes)
        compiled, size = _compiled(config, mesh, feature_shapes, limit)
        least = min(least, size)
        fits = size <= limit
        what = ", taken" if fits else "" if compiled is not None else " for the state alone"
        _say(f"Mesh {_in_words(sizes)}: {size / 2**30:.3g} GiB a device of {limit / 2**30:.3g}{what}")
        if fits:
            _keep(config.model_dir, sizes, size, about)
            return mesh, compiled
    raise InputError(
        f"No mesh of {jax.device_count()} devices fits their {limit / 2**30:.3g} GiB, the nearest takes"
        f" {least / 2**30:.3g}; set ModelConfig.remat to full, raise RunConfig.num_microbatches, or take a "
        "smaller DataConfig.batch_size."
    )


def mesh_of_run(config: RunConfig) -> Mesh:
    """Returns the mesh to read a trained model on: with auto as it was chosen for so many devices, else data alone."""
    path = _path(config.model_dir)
    if config.mesh.auto and path.exists():
        kept = json.loads(path.read_text())
        if kept["about"]["devices"] == jax.device_count():
            return make_mesh(MeshConfig(fsdp=kept["fsdp"], model=kept["model"]))
    return make_mesh(config.mesh)


def candidates(config: RunConfig, num_devices: int) -> list[MeshConfig]:
    """Returns the meshes in the order they are tried: data alone, fsdp over ever more devices, then also model.

    Where the dtype of reductions is chosen, only the first has them in hand.
    """
    factors = [n for n in range(1, num_devices + 1) if num_devices % n == 0]
    found = [MeshConfig(fsdp=n) for n in factors]
    found += [MeshConfig(fsdp=num_devices // n, model=n) for n in factors[1:] if config.model.num_heads % n == 0]
    return found if config.gradient_reduce_dtype == "auto" else found[:1]


def _compiled(
    config: RunConfig, mesh: Mesh, feature_shapes: Mapping[str, tuple[int, int]], limit: int
) -> tuple[Callable | None, float]:
    """Returns the compiled step and a device's bytes while it runs; without it those of the state, if they exceed."""
    model, optimizer = Network(config.model, mesh), make_optimizer(config.optimizer, config.train_steps)
    schedule = make_schedule(config.optimizer.schedule, config.train_steps)
    state, rows = abstract_state(model, optimizer, mesh, config.mesh.shard_update), batch_sharding(mesh)
    if (size := _bytes_of(state)) > limit:
        return None, size
    shardings = state_shardings(model, optimizer, mesh, config.mesh.shard_update)
    batch = {name: jax.ShapeDtypeStruct(shape, np.int32, sharding=rows) for name, shape in feature_shapes.items()}
    key = jax.eval_shape(lambda: jax.random.key(0, impl=config.random_bits))
    step = jit_train_step(
        model, optimizer, schedule, config.loss, config.num_microbatches, shardings, config.gradient_reduce_dtype
    )
    try:
        compiled = step.lower(state, batch, key).compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        compiled, size = None, math.inf
    else:
        memory = compiled.memory_analysis()
        size = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
        size -= memory.alias_size_in_bytes
    return compiled, _over_processes(size, max)


def _bytes_of(state: TrainState) -> int:
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(state))


def _limit(mesh: MeshConfig) -> int:
    """Returns the bytes of a device that a step may take."""
    if mesh.memory_gib is None:
        here = USABLE * (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    else:
        here = mesh.memory_gib * 2**30
    limit = int(_over_processes(here, min))
    if not limit:
        raise InputError(
            f"MeshConfig.auto: a {jax.devices()[0].device_kind} does not tell how much memory it has; set"
            " MeshConfig.memory_gib."
        )
    return limit


def _over_processes(size: float, choose: Callable) -> float:
    if jax.process_count() == 1:
        return size
    kib = np.array(min(size / 2**10, 2**31 - 1), np.int32)  # no process may round otherwise than another
    chosen = int(choose(multihost_utils.process_allgather(kib).tolist()))
    return math.inf if chosen == 2**31 - 1 else chosen * 2**10


def _about(config: RunConfig, feature_shapes: Mapping[str, tuple[int, int]], limit: int) -> dict[str, Any]:
    """Returns what a choice depends on."""
    trained = (config.model, config.optimizer, config.loss, config.num_microbatches, config.gradient_reduce_dtype)
    trained += (config.mesh.shard_update, sorted(feature_shapes.items()))
    digest = hashlib.blake2b(repr(trained).encode(), digest_size=8).hexdigest()
    kind = jax.devices()[0].device_kind
    return {"devices": jax.device_count(), "kind": kind, "limit_gib": round(limit / 2**30, 3), "trained": digest}


def _path(model_dir: str) -> epath.Path:
    return epath.Path(model_dir) / FILE


def _kept(model_dir: str, about: Mapping[str, Any]) -> MeshConfig | None:
    """Returns what model_dir says, as the first process reads it."""
    sizes = np.zeros(2, np.int32)
    if jax.process_index() == 0 and _path(model_dir).exists():
        kept = json.loads(_path(model_dir).read_text())
        if kept["about"] == about:
            sizes[:] = kept["fsdp"], kept["model"]
    if jax.process_count() > 1:
        sizes = multihost_utils.broadcast_one_to_all(sizes)
    return MeshConfig(fsdp=int(sizes[0]), model=int(sizes[1])) if sizes[0] else None


def _keep(model_dir: str, sizes: MeshConfig, size: float, about: Mapping[str, Any]) -> None:
    if jax.process_index() == 0:
        choice = {"fsdp": sizes.fsdp, "model": sizes.model, "live_gib": round(size / 2**30, 3), "about": about}
        _path(model_dir).write_text(json.dumps(choice, indent=1) + "\n")


def _in_words(sizes: MeshConfig) -> str:
    data, fsdp, model = sizes.sizes(jax.device_count())
    return f"data {data} x fsdp {fsdp} x model {model}"


def _say(sentence: str) -> None:
    if jax.process_index() == 0:
        print(sentence, flush=True)
