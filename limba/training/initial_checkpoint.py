"""Where a run may start from: a checkpoint of Limba's, of T5X's (both forms), a folder or a hub id of Hugging Face's.

What a path holds is detected. Arrays are read one by one and put in their place on the devices, so that no host
holds a whole model.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from limba.config import ConfigError, InputError, ModelConfig
from limba.formats import hub, huggingface, t5x
from limba.formats import limba_checkpoint as own
from limba.model import Network
from limba.sharding.mesh import parameter_shardings
from limba.training.checkpoint import limba_checkpoint_at, load_limba_checkpoint
from limba.training.state import TrainState

logger = logging.getLogger(__name__)

_MOMENTS = re.compile(r"(?:^|/)(v_row|v_col|v)/([^0-9/].*)$")
_SCANNED = re.compile(r"(encoder|decoder)/\1/(.+)")


def load_initial(
    path: str, abstract: TrainState, model: ModelConfig, fresh: TrainState, reset_step: bool
) -> TrainState:
    """Returns a state with the parameters found at `path`, and the optimizer's where they are there and fit.

    `path` is a local path, an address, or where nothing lies there a hub id (user/name, user/name@revision).
    `fresh` is a new state, whose optimizer part is kept where the path has none (Hugging Face, an import) or, of
    T5X's, another optimizer's. The step number is the source's (0 for Hugging Face), or 0 with `reset_step`, and
    then the optimizer is fresh too. ConfigError where nothing is there, it is another network's, or, of ours with
    a step to go on from, another optimizer's.
    """
    root = epath.Path(path) if "://" in path else epath.Path(path).expanduser().resolve()
    if "://" not in path and not root.exists() and hub.is_id(path):
        root = epath.Path(hub.download(path))
    found = t5x.checkpoints_of(root)
    if (t5x.is_t5x(root) and not own.is_own(root)) or found:
        tree = t5x.open_checkpoint(root if t5x.is_t5x(root) else found[max(found)])
        tree.check_whole()
        stored = unscanned(tree, model)
        stored_step = int(np.asarray(stored["state/step"]))
        parameters = {name.removeprefix("target/"): name for name in stored if name.startswith("target/")}
        state = _filled(fresh, abstract, stored, parameters, path)
        return state if reset_step else _with_optimizer(state, abstract, stored, stored_step)
    if "://" not in path and huggingface.is_huggingface(root):
        stored = huggingface.open_folder(root, model)
        return _filled(fresh, abstract, stored, {name: name for name in stored}, path)
    place = limba_checkpoint_at(path)
    if not reset_step and int(place.name):
        return load_limba_checkpoint(place, abstract)
    # At step 0 an optimizer has learnt nothing yet, so that any other may begin there.
    stored = own.LimbaCheckpoint(place)
    return _filled(fresh, abstract, stored, {name: name for name in stored}, path)


def _placed(leaf: jax.ShapeDtypeStruct, array: np.ndarray) -> jax.Array:
    array = np.asarray(array, leaf.dtype)
    return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: array[index])


def name_of(path: tuple) -> str:
    """Returns the name of a leaf: its keys, joined with slashes."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def stacked(name: str, num_layers: int, read: Callable[[str], np.ndarray]) -> np.ndarray:
    """Returns an array by our name, the layers of a stack being read one after the other."""
    if "/layers/" not in name:
        return read(name)
    first = read(name.replace("/layers/", "/layers_0/"))
    array = np.empty((num_layers, *first.shape), first.dtype)
    array[0] = first
    for i in range(1, num_layers):
        array[i] = read(name.replace("/layers/", f"/layers_{i}/"))
    return array


def _filled(
    fresh: TrainState, abstract: TrainState, stored: Mapping[str, np.ndarray], names: Mapping[str, str], path: str
) -> TrainState:
    """Returns `fresh` with the parameters of `stored`, whose `names` are T5X's, unstacked."""
    wanted: dict[str, tuple[int, ...]] = {}
    for place, leaf in jax.tree.leaves_with_path(abstract.params):
        name = name_of(place)
        if "/layers/" in name:
            wanted |= {name.replace("/layers/", f"/layers_{i}/"): leaf.shape[1:] for i in range(leaf.shape[0])}
        else:
            wanted[name] = leaf.shape
    differing = sorted(set(wanted) ^ set(names))
    if differing:
        where = "it lacks" if differing[0] in wanted else "it has, and the run's network has not,"
        raise ConfigError(
            "RunConfig.initial_checkpoint_path",
            f"{path} is another network's: {where} {differing[0]}"
            f"{f' and {len(differing) - 1} more' if len(differing) > 1 else ''}; include its own file of gin/models.",
        )

    def read(name: str) -> np.ndarray:
        array = stored[names[name]]
        if array.shape != wanted[name]:
            hint = "; set ModelConfig.vocab_size" if "embedding" in name or "logits" in name else ""
            raise ConfigError(
                "RunConfig.initial_checkpoint_path",
                f"{path} is another network's: {name} is {array.shape} there and"
                f" {wanted[name]} here{hint}; include its own file of gin/models.",
            )
        return array

    params = jax.tree.map_with_path(
        lambda place, leaf: _placed(leaf, stacked(name_of(place), leaf.shape[0], read)), abstract.params
    )
    return fresh.replace(params=params)


def _with_optimizer(state: TrainState, abstract: TrainState, stored: Mapping[str, np.ndarray], step: int) -> TrainState:
    """Returns the state at the source's step, with T5X's Adafactor averages where this run's optimizer has them."""
    places = [name_of(place) for place, _ in jax.tree.leaves_with_path(abstract.opt_state)]
    own_averages = {match[2] for place in places if (match := _MOMENTS.search(place))}
    kept = {name.split("/", 2)[2].rpartition("/")[0] for name in stored if name.startswith("state/param_states/")}
    has_averages = bool(own_averages) and kept >= {name.replace("/layers/", "/layers_0/") for name in own_averages}
    if not has_averages:
        logger.warning("The checkpoint holds no Adafactor state for this run's optimizer: its averages begin anew.")
    # An average that begins anew counts its own steps from 0; the schedule's count goes on.
    fresh_counts = {f"{re.split(r'/(?:mu|nu|v_row)/', place)[0]}/count" for place in places if not has_averages}

    def average(place: tuple, leaf: jax.ShapeDtypeStruct, now: jax.Array) -> jax.Array:
        name = name_of(place)
        match = _MOMENTS.search(name)
        if has_averages and match:
            kind, parameter = match[1], match[2]

            def read(one: str) -> np.ndarray:
                shape = _shape(stored, f"target/{one}")
                return stored[f"state/param_states/{one}/{exchanged_kind(kind, one, shape)}"]

            return _placed(leaf, stacked(parameter, leaf.shape[0], read))
        if name.endswith("count") and name not in fresh_counts:
            return _placed(leaf, np.full(leaf.shape, step))
        return now

    opt_state = jax.tree.map_with_path(average, abstract.opt_state, state.opt_state)
    return state.replace(step=_placed(abstract.step, np.asarray(step)), opt_state=opt_state)


def exchanged_kind(kind: str, name: str, shape: tuple[int, ...]) -> str:
    """Returns which of T5X's averages is optax's `kind` of a parameter, and the other way round.

    T5X's v_row runs along the model width, v_col along the other axis; optax's v_row along the shorter axis,
    the first where both are equal.
    """
    if kind == "v":
        return kind
    if len(shape) != 2:
        return kind
    width_axis = 1 if name.endswith(("token_embedder/embedding", "out/kernel", "wo/kernel")) else 0
    shorter_axis = int(np.argsort(shape, kind="stable")[0])
    same = shorter_axis == width_axis
    return kind if same else {"v_row": "v_col", "v_col": "v_row"}[kind]


def _shape(stored: Mapping[str, np.ndarray], name: str) -> tuple[int, ...]:
    describe: Any = getattr(stored, "describe", None)
    return describe(name)[0] if describe else stored[name].shape


def unscanned(stored: t5x.StoredTree, model: ModelConfig) -> Mapping[str, np.ndarray]:
    """Returns the tree as it is, or a scanned one (scalable_t5, a bias in every layer) under unscanned names."""
    if not any(_SCANNED.search(name) for name in stored):
        return stored
    if not model.relative_bias_per_layer:
        raise InputError(
            f"{stored.path} is a scanned T5X network (examples/scalable_t5), which has a relative bias in every layer;"
            " include a file of gin/models/umt5."
        )
    return UnscannedTree(stored, model)


class UnscannedTree(Mapping[str, np.ndarray]):
    """A tree of T5X's `scalable_t5` (layers on axis 1, attention kernels with heads apart) under unscanned names."""

    def __init__(self, stored: t5x.StoredTree, model: ModelConfig):
        self._stored = stored
        self._places: dict[str, tuple[str, int | None]] = {}
        layers = {"encoder": model.num_encoder_layers, "decoder": model.num_decoder_layers}
        for name in stored:
            if name.startswith("state/param_states/"):
                continue  # averages over all layers together cannot be cut apart
            match = _SCANNED.search(name)
            if match is None:
                self._places[name] = (name, None)
            else:
                for i in range(layers[match[1]]):
                    self._places[_SCANNED.sub(rf"\1/layers_{i}/\2", name)] = (name, i)

    def __getitem__(self, name: str) -> np.ndarray:
        place, layer = self._places[name]
        array = self._stored[place]
        if layer is None:
            return array
        array = np.take(array, layer, axis=1)
        if array.ndim == 3:  # [D, H, C] or, for `out`, [H, C, D]
            joined_last = not place.removesuffix("/kernel").endswith("/out")
            array = array.reshape((array.shape[0], -1) if joined_last else (-1, array.shape[2]))
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def load_parameters(path: str, model: Network, mesh: Mesh) -> tuple[Any, int]:
    """Returns (the parameters found at `path`, on the devices, and their step); ConfigError as `load_initial`."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    shardings = parameter_shardings(mesh, model.logical_axes(), shapes)
    params = jax.tree.map(lambda s, sh: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sh), shapes, shardings)
    nothing = TrainState(jax.ShapeDtypeStruct((), np.int32), params, ())
    root = epath.Path(path) if "://" in path else epath.Path(path).expanduser().resolve()
    own_places = {int(root.name): root} if own.is_own(root) else own.checkpoints_of(root)
    places = own_places or t5x.checkpoints_of(root)
    state = load_initial(path, nothing, model.config, nothing, reset_step=True)
    return state.params, max(places, default=0)
