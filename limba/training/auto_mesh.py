"""The mesh of a run with `MeshConfig.auto`: the least sharding whose compiled step fits the devices' memory.

All processes choose the same mesh: they use the smallest memory limit and the largest size over all of them.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh
from jaxtyping import PyTree

from limba.config import InputError, MeshConfig, Open, RunConfig
from limba.config.errors import is_out_of_memory
from limba.config.waiting import waiting
from limba.model import Network
from limba.sharding.agreement import gather
from limba.sharding.mesh import batch_sharding, make_mesh
from limba.storage.files import read_text, write_whole
from limba.training.optimizer import optimizer_of
from limba.training.schedule import make_schedule
from limba.training.state import TrainState, abstract_state, state_shardings
from limba.training.step import Gradient, jit_train_step

FILE = "mesh.json"
USABLE = 0.95  # of a device's memory; evaluation and the next batch need some too


def choose(config: RunConfig, feature_shapes: Mapping[str, tuple[int, int]]) -> tuple[Mesh, Callable | None]:
    """Returns the mesh for this run's step, and the compiled step where choosing has compiled it.

    The choice is saved in model_dir/mesh.json, and reused while the devices and the step are the same.
    `feature_shapes` are those of a global batch. Raises InputError if no mesh fits, or if the devices report no
    memory limit and `MeshConfig.auto` names none.
    """
    limit = _limit(config.mesh)
    about = _about(config, feature_shapes, limit)
    saved = _saved(config.model_dir, about)
    if saved is not None:
        _say(f"Mesh as chosen before: {_in_words(saved)} ({config.model_dir}/{FILE})")
        return make_mesh(saved), None
    least = math.inf
    for sizes in candidates(config, jax.device_count()):
        mesh = make_mesh(sizes)
        compiled, size = _compiled(config, mesh, feature_shapes, limit)
        least = min(least, size)
        fits = size <= limit
        what = ", chosen" if fits else "" if compiled is not None else " for the state alone"
        _say(f"Mesh {_in_words(sizes)}: {size / 2**30:.3g} GiB a device of {limit / 2**30:.3g}{what}")
        if fits:
            _save(config.model_dir, sizes, size, about)
            return mesh, compiled
    raise InputError(
        f"No mesh of {jax.device_count()} devices fits their {limit / 2**30:.3g} GiB; the smallest needs"
        f" {least / 2**30:.3g}: set ModelConfig.remat to 'full', raise RunConfig.num_microbatches, or lower"
        " DataConfig.batch_size.",
        fix=("ModelConfig.remat", "full"),
    )


def mesh_of_run(config: RunConfig) -> Mesh:
    """Returns the mesh for using a trained model: with auto the run's choice, if the number of devices is the same."""
    saved = _read(config.model_dir) if config.mesh.auto else None
    if saved is not None and saved["about"].get("devices") == jax.device_count():
        return make_mesh(MeshConfig(fsdp=saved["fsdp"], model=saved["model"]))
    return make_mesh(config.mesh)


def candidates(config: RunConfig, num_devices: int) -> list[MeshConfig]:
    """Returns the meshes in the order of trial: pure data parallelism, then larger fsdp, then also model.

    With a given `gradient_reduce_dtype` only pure data parallelism: on other meshes XLA places the reductions.
    """
    factors = [n for n in range(1, num_devices + 1) if num_devices % n == 0]
    found = [MeshConfig(fsdp=n) for n in factors]
    found += [MeshConfig(fsdp=num_devices // n, model=n) for n in factors[1:] if config.model.num_heads % n == 0]
    return found if config.gradient_reduce_dtype == "auto" else found[:1]


def abstract_step(
    config: RunConfig, mesh: Mesh, feature_shapes: Mapping[str, tuple[int, int]]
) -> tuple[Any, tuple[PyTree, ...]]:
    """Returns the run's jitted training step and its arguments' shapes, the state first; nothing is compiled.

    The mesh's devices need not be on this machine.
    """
    model = Network(config.model, mesh)
    optimizer = optimizer_of(config, model)
    schedule = make_schedule(config.optimizer.schedule, config.train_steps)
    state, rows = abstract_state(model, optimizer, mesh, config.mesh.shard_update), batch_sharding(mesh)
    shardings = state_shardings(model, optimizer, mesh, config.mesh.shard_update)
    batch = {name: jax.ShapeDtypeStruct(shape, np.int32, sharding=rows) for name, shape in feature_shapes.items()}
    key = jax.eval_shape(lambda: jax.random.key(0, impl=config.random_bits))
    drops = config.guard.action == "skip"
    gradient = Gradient(model, config.loss, config.num_microbatches, config.gradient_reduce_dtype)
    step = jit_train_step(gradient, optimizer, schedule, shardings, drops)
    return step, (state, batch, key, *((jax.ShapeDtypeStruct((2,), np.float32),) if drops else ()))


def live_bytes(compiled: jax.stages.Compiled) -> int:
    """Returns the bytes of a device while a compiled step runs: arguments, outputs and temporaries."""
    memory = compiled.memory_analysis()
    assert memory is not None  # as on all platforms that jax compiles for
    size = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return size - memory.alias_size_in_bytes


def step_bytes(compiled: jax.stages.Compiled, mesh: Mesh) -> int:
    """Returns the bytes of a device that a compiled step needs, by which the mesh is chosen.

    A TPU's compiler lets arrays share places that jax's analysis adds up; its peak, with the program itself, is at
    least what its own report names. Elsewhere, and where the analysis has no peak, as `live_bytes`.
    """
    memory = compiled.memory_analysis()
    assert memory is not None
    peak = getattr(memory, "peak_memory_in_bytes", 0)
    if mesh.devices.flat[0].platform != "tpu" or not peak:
        return live_bytes(compiled)
    return peak + memory.generated_code_size_in_bytes


def _compiled(
    config: RunConfig, mesh: Mesh, feature_shapes: Mapping[str, tuple[int, int]], limit: int
) -> tuple[Callable | None, float]:
    """Returns the compiled step and the bytes of a device while it runs.

    If the state alone exceeds the limit nothing is compiled: returns (None, the state's bytes).
    """
    step, arguments = abstract_step(config, mesh, feature_shapes)
    if (size := bytes_of(arguments[0])) > limit:
        return None, size
    try:
        with waiting("compiling the step for this mesh", shows=jax.process_index() == 0):
            compiled = step.lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        compiled, size = None, math.inf
    else:
        size = step_bytes(compiled, mesh)
    return compiled, _over_processes(size, max)


def bytes_of(state: TrainState) -> int:
    """Returns the bytes of a state on one device."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(state))


def _limit(mesh: MeshConfig) -> int:
    """Returns the bytes per device that a step may use."""
    if mesh.memory_gib is None:
        here = USABLE * (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    else:
        here = mesh.memory_gib * 2**30
    limit = int(_over_processes(here, min))
    if not limit:
        raise InputError(
            f"MeshConfig.auto needs the devices' memory, and a {jax.devices()[0].device_kind} reports no limit; set"
            " MeshConfig.auto to the GiB of one.",
            fix=("MeshConfig.auto", Open("the GiB of a device")),
        )
    return limit


def _over_processes(size: float, choose: Callable) -> float:
    """Returns the minimum or maximum over all processes, in whole KiB if there are several."""
    if jax.process_count() == 1:
        return size
    chosen = int(choose(gather(np.array(min(size / 2**10, 2**31 - 1), np.int32)).tolist()))
    return math.inf if chosen == 2**31 - 1 else chosen * 2**10


def _about(config: RunConfig, feature_shapes: Mapping[str, tuple[int, int]], limit: int) -> dict[str, object]:
    """Returns all that the choice of the mesh depends on."""
    trained = (config.model, config.optimizer, config.loss, config.num_microbatches, config.gradient_reduce_dtype)
    trained += (config.mesh.shard_update, sorted(feature_shapes.items()))
    trained += (config.guard.action,) if config.guard.action == "skip" else ()  # other actions compile the same step
    trained += () if config.evaluation.average is None else (config.evaluation.average,)
    digest = hashlib.blake2b(repr(trained).encode(), digest_size=8).hexdigest()
    kind = jax.devices()[0].device_kind
    return {"devices": jax.device_count(), "kind": kind, "limit_gib": round(limit / 2**30, 3), "trained": digest}


def _saved(model_dir: str, about: Mapping[str, object]) -> MeshConfig | None:
    """Returns the choice saved in model_dir, as the first process reads it."""
    sizes = np.zeros(2, np.int32)
    saved = _read(model_dir) if jax.process_index() == 0 else None
    if saved is not None and saved["about"] == about:
        sizes[:] = saved["fsdp"], saved["model"]
    fsdp, model = gather(sizes)[0].tolist()
    return MeshConfig(fsdp=fsdp, model=model) if fsdp else None


def _read(model_dir: str) -> dict[str, Any] | None:
    """Returns what `_save` has written; None, with a warning, if it is damaged: then the mesh is chosen again."""
    path = epath.Path(model_dir) / FILE
    if not path.exists():
        return None
    try:
        saved = json.loads(read_text(path))
        MeshConfig(fsdp=saved["fsdp"], model=saved["model"])
        if isinstance(saved["about"], dict):
            return saved
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    _say(f"{path} is damaged: the mesh that it named is not used.")
    return None


def _save(model_dir: str, sizes: MeshConfig, size: float, about: Mapping[str, object]) -> None:
    if jax.process_index() == 0:
        choice = {"fsdp": sizes.fsdp, "model": sizes.model, "live_gib": round(size / 2**30, 3), "about": about}
        write_whole(epath.Path(model_dir) / FILE, json.dumps(choice, indent=1) + "\n")


def _in_words(sizes: MeshConfig) -> str:
    data, fsdp, model = sizes.sizes(jax.device_count())
    return f"data {data} x fsdp {fsdp} x model {model}"


def _say(sentence: str) -> None:
    if jax.process_index() == 0:
        print(sentence, flush=True)
