"""Initializes a run from an existing checkpoint: Limba, T5X (both formats), Hugging Face folder or hub id.

The format is detected. Arrays are read one by one and placed on the devices, so that no host holds a whole model;
a flax_model.msgpack alone is read at once.
"""

import logging
import re
from collections.abc import Callable, Mapping

import jax
import numpy as np

from limba.config import ConfigError, InputError, ModelConfig, NoModelError, RunConfig, saved_config
from limba.data.vocabulary.special_ids import SpecialIds, of_folder
from limba.formats import huggingface, limba_checkpoint, t5x
from limba.formats.huggingface_tokenizer import LAST_BYTE, extra_ids_in
from limba.formats.names import Arrays, copy_to
from limba.formats.open import HUGGING_FACE, LIMBA, T5X, Opened, open_path
from limba.sharding.mesh import leaf_name, named_leaves
from limba.storage.files import read_text
from limba.training.checkpoints.directory import check_together, load_limba_checkpoint
from limba.training.optimizer import restarted
from limba.training.state import TrainState

logger = logging.getLogger(__name__)

_MOMENTS = re.compile(r"(?:^|/)(v_row|v_col|v)/([^0-9/].*)$")
_EMBEDDING = "state/param_states/token_embedder/embedding/v_col"  # T5X's factor with one value a row
NEVER_TRAINED = 1e-9  # of the highest row's squared gradients: Adafactor adds 1e-30 to a row's that has none


def load_initial(
    path: str,
    abstract: TrainState,
    model: ModelConfig,
    fresh: TrainState,
    reset_step: bool,
    check_step: Callable[[int], None] = lambda step: None,
) -> TrainState:
    """Returns a state with the parameters at `path`, and with its optimizer state if that fits the run.

    `path` is a local path, an address, or, if no such path exists, a hub id (user/name, user/name@revision).
    `fresh` is a new state. Its optimizer state is used if the path has none (Hugging Face, an imported model), or
    if a T5X checkpoint has another optimizer. The step is the checkpoint's, 0 for Hugging Face. With `reset_step` the
    step is 0 and the optimizer state is new. `check_step` gets the checkpoint's step before its arrays are read, and
    may raise an error. An average of the weights begins as them; at step 0 a Limba checkpoint's own average, if it has
    one, gives the parameters. Raises InputError if there is no checkpoint, if it has another network, and if a Limba
    checkpoint after step 0 has another optimizer.
    """
    opened = _opened(path)
    if opened.kind == T5X:
        tree = t5x.open_checkpoint(opened.newest)
        tree.check_whole()
        stored_step = int(np.asarray(tree["state/step"]))
        if not reset_step:
            check_step(stored_step)
        stored = t5x.unscanned(tree, model)
        parameters = {name.removeprefix("target/"): name for name in stored if name.startswith("target/")}
        state = _filled(fresh, abstract, stored, parameters, path)
        return state if reset_step else _with_optimizer(state, abstract, stored, stored_step)
    if opened.kind == HUGGING_FACE:
        stored = huggingface.open_folder(str(opened.directory), model)
        return _filled(fresh, abstract, stored, {name: name for name in stored}, path)
    check_together(opened.newest)
    step = int(opened.newest.name)
    if not reset_step and step:
        check_step(step)
        return load_limba_checkpoint(opened.newest, abstract)
    # At step 0 the optimizer state is new anyway, so another optimizer may start there.
    stored = limba_checkpoint.LimbaCheckpoint(opened.newest, verify=None, average=True)
    return _filled(fresh, abstract, stored, {name: name for name in stored}, path)


def check_initial(path: str, byte_extra_ids: int | None = None, reads_folder: bool = False) -> None:
    """Raises InputError, before anything is compiled, if `load_initial` would find no checkpoint at the path.

    So it does for a folder for transformers that is an encoder without logits, and for one whose padding or start is
    not T5's 0, unless the run `reads_folder`: its vocabulary is such a folder, which has ids of its own.
    With `byte_extra_ids`, for a run over bytes whose objective has sentinels: also if the checkpoint was trained with
    others, which this run would have to learn again.
    """
    opened = _opened(path)
    if byte_extra_ids is not None:
        _check_sentinels(opened, byte_extra_ids)
    if opened.kind == T5X:
        t5x.open_checkpoint(opened.newest)
    elif opened.kind == HUGGING_FACE:
        model = huggingface.model_config(str(opened.directory))
        if not model.has_logits:
            raise ConfigError(
                "RunConfig.initial_checkpoint_path",
                f"is {path}, an encoder without an output layer for the vocabulary, from which no objective can go on;"
                " give a model whose class ends in ForMaskedLM, or in ForConditionalGeneration.",
            )
        special = of_folder(opened.directory, None, model)
        if not reads_folder and not special.has_t5_layout(model):
            raise _other_layout(path, special, model)


def _other_layout(path: str, special: SpecialIds, model: ModelConfig) -> ConfigError:
    """Returns the error for a run in T5's layout that goes on from a model with other ids."""
    ids = {"pad_token_id": special.padding, "eos_token_id": special.end}
    if not model.is_decoder_only:
        ids["decoder_start_token_id"] = special.decoder_start
    elif not model.is_encoder:
        ids["bos_token_id"] = special.start
    named = ", ".join(f"{name} {'none' if number is None else number}" for name, number in ids.items())
    return ConfigError(
        "DataConfig.vocabulary",
        f"is not the folder of a model, and {path} has ids of its own ({named}) where other runs have padding and the"
        f" decoder's start at 0; set it to {path}.",
        ("DataConfig.vocabulary", path),
    )


def check_length(config: RunConfig) -> None:
    """Raises ConfigError if an encoder's rows are longer than those that its initial model was trained with.

    A rotary base above that model's lets them be: ModernBERT (arXiv:2412.13663) went from 1,024 tokens to 8,192 so,
    with 160,000 in place of 10,000. Without a known length nothing is logged.
    """
    path = config.initial_checkpoint_path
    model = config.model
    length = config.data.sequence_length or 0
    known = _trained(path) if path and model.is_encoder else None
    if known is None or length <= known[1] or model.rotary_base > known[0].rotary_base:
        return
    begun, longest = known
    ways = f"give rows of at most {longest:,}"
    if model.positions == "rotary":
        ways += f", or to learn longer ones raise ModelConfig.rotary_base above its {begun.rotary_base:.12g}"
    raise ConfigError(
        "DataConfig.task_feature_lengths",
        f"gives rows of {length:,} tokens, and {path} was trained with {longest:,}; {ways}.",
        ("DataConfig.task_feature_lengths", {"targets": longest}),
    )


def _trained(path: str) -> tuple[ModelConfig, int] | None:
    """Returns the network at a path and the longest rows it was trained with; None if that is not known."""
    opened = _opened(path)
    if opened.kind == T5X:  # of which Limba reads no encoder alone
        return None
    if opened.kind == HUGGING_FACE:
        model = huggingface.model_config(str(opened.directory))
        return model, model.max_length
    file = opened.directory / saved_config.FILE
    saved = saved_config.from_text(read_text(file), str(file)) if file.exists() else None
    if not isinstance(saved, RunConfig):
        return saved and (saved, saved.max_length)
    if not saved.initial_checkpoint_path:
        return saved.model, saved.data.sequence_length or 0
    try:
        before = _trained(saved.initial_checkpoint_path)
    except InputError:  # gone, or moved
        return None
    return before and (saved.model, max(before[1], saved.data.sequence_length or 0))


def _check_sentinels(opened: Opened, extra_ids: int) -> None:
    """Raises ConfigError where a checkpoint has learned other sentinels of bytes than a run with these extra ids."""
    path = opened.path
    learned = _learned_extra_ids(opened, extra_ids)
    if learned is None:
        logger.warning(
            "%s does not tell which sentinels it was trained with; those of this run count down from %d, and those of"
            " ByT5 as published from %d, which DataConfig.extra_ids 0 gives.",
            path, LAST_BYTE + extra_ids, LAST_BYTE,
        )  # fmt: skip
    elif learned != extra_ids:
        raise ConfigError(
            "DataConfig.extra_ids",
            f"is {extra_ids}, whose sentinels are the ids {LAST_BYTE + extra_ids},"
            f" {LAST_BYTE + extra_ids - 1}, …, and {path} has learned {LAST_BYTE + learned},"
            f" {LAST_BYTE + learned - 1}, …; set it to {learned}, or the run learns all its sentinels again.",
        )


def _learned_extra_ids(opened: Opened, extra_ids: int) -> int | None:
    """Returns the extra ids that a ByT5 has learned: `extra_ids` where nothing speaks against them.

    A T5X checkpoint tells by Adafactor's averages which row of `<extra_id_0>` was ever trained; None if it does not.
    """
    if opened.kind != T5X:
        in_folder = extra_ids_in(opened.directory)
        return extra_ids if in_folder is None else in_folder
    tree = t5x.open_checkpoint(opened.newest)
    rows = np.asarray(tree[_EMBEDDING]) if _EMBEDDING in tree else np.zeros(1)
    trained = np.flatnonzero(rows > NEVER_TRAINED * rows.max())
    return next((count for count in (extra_ids, 0) if LAST_BYTE + count in trained), None)


def _opened(path: str) -> Opened:
    """Returns what a run begins from; ConfigError if there is no model, or if a run's newest checkpoint has no files.

    Whoever begins from a run means its newest step: an older one would be another beginning.
    """
    try:
        opened = open_path(path)
    except NoModelError as error:
        raise ConfigError("RunConfig.initial_checkpoint_path", f"names no model: {error}") from error
    if opened.kind == LIMBA and not opened.is_checkpoint:
        directory = opened.directory / "checkpoints"
        newest = max(limba_checkpoint.steps_in(directory))
        if newest not in opened.steps:
            raise ConfigError(
                "RunConfig.initial_checkpoint_path",
                f"is {path}, whose newest checkpoint, step {newest}, has no state/manifest.ocdbt; give another step,"
                f" such as {opened.newest}.",
            )
    return opened


def _placed(leaf: jax.ShapeDtypeStruct, array: np.ndarray) -> jax.Array:
    array = np.asarray(array, leaf.dtype)
    return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: array[index])


def stacked(name: str, num_layers: int, read: Callable[[str], np.ndarray]) -> np.ndarray:
    """Returns an array by Limba's name; the layers of a stack are read one after the other."""
    if "/layers/" not in name:
        return read(name)
    return stacked_layers(name, range(num_layers), read)


def stacked_layers(name: str, layers: range, read: Callable[[str], np.ndarray]) -> np.ndarray:
    """Returns these layers of a stack, read one after the other."""
    first = read(name.replace("/layers/", f"/layers_{layers[0]}/"))
    array = np.empty((len(layers), *first.shape), first.dtype)
    copy_to(first, array[0, ...])
    del first  # it may be a view of a whole block of layers, which the next ones replace
    for i, layer in enumerate(layers[1:], start=1):
        copy_to(read(name.replace("/layers/", f"/layers_{layer}/")), array[i, ...])
    return array


def _filled(
    fresh: TrainState,
    abstract: TrainState,
    stored: Mapping[str, np.ndarray],
    names: Mapping[str, str],
    path: str,
) -> TrainState:
    """Returns `fresh` with the parameters of `stored`; `names` gives the stored name for T5X's, unstacked one."""
    wanted: dict[str, tuple[int, ...]] = {}
    for name, leaf in named_leaves(abstract.params).items():
        if "/layers/" in name:
            wanted |= {name.replace("/layers/", f"/layers_{i}/"): leaf.shape[1:] for i in range(leaf.shape[0])}
        else:
            wanted[name] = leaf.shape
    differing = sorted(set(wanted) ^ set(names))
    if differing:
        verb = "lacks" if differing[0] in wanted else "also has"
        more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        raise ConfigError(
            "RunConfig.initial_checkpoint_path",
            f"is {path}, which has another network: it {verb} {differing[0]}{more}; set ModelConfig to that network.",
        )

    def read(name: str) -> np.ndarray:
        array = stored[names[name]]
        if array.shape != wanted[name]:
            hint = ".vocab_size" if "embedding" in name or "logits" in name else ""
            raise ConfigError(
                "RunConfig.initial_checkpoint_path",
                f"is {path}, which has another network: {name} is {array.shape} in it and {wanted[name]} in this run;"
                f" set ModelConfig{hint} to that network's.",
            )
        return array

    def placed(tree_path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return _placed(leaf, stacked(leaf_name(tree_path), leaf.shape[0], read))

    params = jax.tree.map_with_path(placed, abstract.params)
    return TrainState(fresh.step, params, restarted(params, fresh.opt_state))


def _with_optimizer(state: TrainState, abstract: TrainState, stored: Arrays, step: int) -> TrainState:
    """Returns the state at the checkpoint's step, with T5X's Adafactor averages if this run's optimizer has them."""
    places = list(named_leaves(abstract.opt_state))
    matches = [_MOMENTS.search(name) for name in places]
    own_averages = {match[2] for match in matches if match}
    kept = {name.split("/", 2)[2].rpartition("/")[0] for name in stored if name.startswith("state/param_states/")}
    has_averages = bool(own_averages) and kept >= {name.replace("/layers/", "/layers_0/") for name in own_averages}
    if not has_averages:
        logger.warning(
            "The checkpoint has no Adafactor state for this run's optimizer, whose averages start from zero."
        )
    # Averages that start from zero count their own steps from 0; the schedule's count is the checkpoint's.
    fresh_counts: set[str] = set()
    if not has_averages:
        fresh_counts = {f"{re.split(r'/(?:mu|nu|v_row)/', name)[0]}/count" for name in places}

    def average(tree_path: tuple, leaf: jax.ShapeDtypeStruct, now: jax.Array) -> jax.Array:
        name = leaf_name(tree_path)
        match = _MOMENTS.search(name)
        if has_averages and match:
            kind = match[1]
            parameter = match[2]

            def read(one: str) -> np.ndarray:
                shape = stored.stored[f"target/{one}"].shape
                return stored[f"state/param_states/{one}/{exchanged_kind(kind, one, shape)}"]

            return _placed(leaf, stacked(parameter, leaf.shape[0], read))
        if name.endswith("count") and name not in fresh_counts:
            return _placed(leaf, np.full(leaf.shape, step))
        return now

    opt_state = jax.tree.map_with_path(average, abstract.opt_state, state.opt_state)
    return TrainState(_placed(abstract.step, np.asarray(step)), state.params, opt_state)


def exchanged_kind(kind: str, name: str, shape: tuple[int, ...]) -> str:
    """Maps the kind of optax's factored average of a parameter to T5X's, and back.

    T5X's v_row has the axis of the model width and v_col the other one; optax's v_row has the shorter axis, or the
    first if both are equal.

    >>> exchanged_kind("v_row", "encoder/layers_0/mlp/wi_0/kernel", (768, 2048))
    'v_row'
    >>> exchanged_kind("v_row", "encoder/layers_0/mlp/wi_0/kernel", (768, 512))
    'v_col'
    """
    if kind == "v" or len(shape) != 2:
        return kind
    width_axis = 1 if name.endswith(("token_embedder/embedding", "out/kernel", "wo/kernel")) else 0
    shorter_axis = int(np.argsort(shape, kind="stable")[0])
    same = shorter_axis == width_axis
    return kind if same else {"v_row": "v_col", "v_col": "v_row"}[kind]
