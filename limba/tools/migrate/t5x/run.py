"""T5X's data sets, evaluation, checkpoints, devices and scripts as ours."""

from __future__ import annotations

import math
import re

from limba.cli.gin.statements import Macro
from limba.tools.migrate.t5x.model import Model
from limba.tools.migrate.t5x.settings import Setting, class_of, owner_of, refuse
from limba.tools.migrate.t5x.tables import VOCABULARIES
from limba.tools.migrate.t5x.translation import SCRIPTS, Translation

NEVER = 10**9  # steps between two
ALL_EXAMPLES = 1_000_000
_CACHE = "Limba reads the source itself, in an order that resumes; config.DataConfig.cache_dir names a cache of seqio"
_OWN_VOCABULARY = "the task's own vocabulary counts, as in T5X"
_ANY = "Limba does this in its own way"
_DATASET_DROPPED = {
    "use_custom_packing_ops": "Limba packs in its own way",
    "use_memory_cache": "Limba keeps no data set in memory",
    "trim_output_features": "rows have exactly their length",
    "num_prefetch_threads": "Limba prefetches with two threads a core",
    "num_workers": "config.DataConfig.num_reader_processes",
}


def translate_data(translation: Translation, is_decoder: bool) -> None:
    """Sets the task, its lengths, batch and order, from the script's DatasetConfig."""
    is_train = translation.script == "train"
    owner = _training_data(translation) if is_train else _dataset(translation, "dataset_cfg", "")
    find = lambda name, default=None: translation.settings.find(owner, name, default)
    task = find("mixture_or_task_name")
    if not isinstance(task.value, str):
        raise refuse(task, "give the name of a task or mixture that a module registers")
    translation.set("MIXTURE_OR_TASK_NAME", task)
    _lengths(translation, find("task_feature_lengths"), is_decoder)
    translation.set("BATCH_SIZE", find("batch_size"))
    translation.set(f"config.DataConfig.{'train' if is_train else 'validation'}_split", find("split"))
    module = find("module")
    if module.value:
        translation.modules.append(module.value)
    cached = find("use_cached")
    if cached.value:
        translation.differs(cached, "", _CACHE)
    pack = find("pack", False)
    if pack.value:
        translation.set("PACK", pack)
    shuffle = find("shuffle")
    seed = find("seed")
    if is_train:
        translation.set("SHUFFLE_TRAIN_EXAMPLES", shuffle)
        if seed.value is None:
            translation.differs(
                seed, "RANDOM_SEED", "T5X draws a new order at each start; Limba keeps one, so that runs resume"
            )
        else:
            translation.set("config.DataConfig.seed", seed)
    translation.drop(owner, _DATASET_DROPPED)
    preprocessors = find("runtime_preprocessors")
    if preprocessors.value:
        raise refuse(preprocessors, "Limba has none; add them to the task's preprocessors")


def _dataset(translation: Translation, name: str, otherwise: str) -> str:
    """Returns the DatasetConfig of a field of the script; where that is None, the one in the scope `otherwise`."""
    return translation.owner(translation.script, name, "utils.DatasetConfig", otherwise)


def _training_data(translation: Translation) -> str:
    return _dataset(translation, "train_dataset_cfg", "train")


def _lengths(translation: Translation, setting: Setting, is_decoder: bool) -> None:
    """Sets the lengths of a row.

    A decoder-only model of T5X reads inputs and targets as one row where both have a length, and targets alone where
    only they have one (seqio's DecoderFeatureConverter): 'prefix' says which of both.
    """
    lengths = setting.value
    if lengths is None and translation.skeleton != SCRIPTS["train"]:
        translation.differs(
            setting, "TASK_FEATURE_LENGTHS = {'inputs': 512, 'targets': 512}", "T5X reads all examples to measure"
        )
        if is_decoder:
            translation.fix("TASK_FEATURE_LENGTHS", {"targets": 1024}, setting.origin)
        return
    if not isinstance(lengths, dict) or not lengths:
        raise refuse(setting, "give lengths such as {'inputs': 512, 'targets': 114}")
    if is_decoder and "inputs" in lengths:
        if translation.skeleton == SCRIPTS["infer"]:
            raise refuse(
                setting, "limba generate reads a prompt as text to continue, not as inputs; use eval.gin for these"
            )
        if "targets" not in lengths:
            raise refuse(setting, "a decoder-only row has inputs and targets; give the length of both")
        row = {"targets": lengths["inputs"] + lengths["targets"], "prefix": lengths["inputs"]}
        translation.set(
            "TASK_FEATURE_LENGTHS", setting, row, differs="it is a row's whole length, of which inputs have a part"
        )
        if translation.skeleton == SCRIPTS["train"]:
            translation.fix(
                "config.GenerationConfig.max_tokens", lengths["targets"], f"{setting.origin}, of the targets"
            )
        return
    if is_decoder:
        alone = {**lengths, "prefix": 0}
        translation.set(
            "TASK_FEATURE_LENGTHS", setting, alone, differs="the same rows, of targets alone: no 'inputs' has a length"
        )
        return
    translation.set("TASK_FEATURE_LENGTHS", setting)


def translate_vocabulary(translation: Translation, model: Model) -> None:
    """Sets VOCABULARY where the user's own lines name a file; else the task's own vocabulary counts, as in T5X."""
    setting = translation.settings.find(model.owner, "vocabulary" if model.is_decoder else "input_vocabulary")
    if setting.value is None:
        setting = translation.settings.macro("VOCABULARY") or setting
    vocabulary = setting.value
    kind = "SentencePieceVocabulary"
    owner = owner_of(vocabulary, kind)
    find = lambda name: translation.settings.find(owner, name)
    path = find("sentencepiece_model_file")
    extra_ids = find("extra_ids")
    translation.drop(owner, {"reverse_extra_ids": "sentinels count down from the top", "use_fast_tokenizer": _ANY})
    for other in ("ByteVocabulary", "PassThroughVocabulary"):
        for name in ("extra_ids", "vocab_size", "size", "eos_id", "unk_id"):
            translation.dropped(translation.settings.find(owner_of(vocabulary, other), name), _OWN_VOCABULARY)
    is_own = path.line is not None and not (path.line.is_table and path.value in VOCABULARIES.values())
    if class_of(vocabulary) != kind or not is_own:
        for setting in (path, extra_ids):
            translation.dropped(setting, _OWN_VOCABULARY)
        if translation.skeleton != SCRIPTS["train"]:
            translation.fix("VOCABULARY", None, "the task's own, as in T5X")
        return
    translation.set("VOCABULARY", path)
    translation.fix("EXTRA_IDS", extra_ids.value or 0, extra_ids.origin)


def translate_train_evaluation(translation: Translation, is_decoder: bool) -> None:
    """Sets what a training run evaluates, and how often."""
    find = translation.settings.find
    steps = find("train", "eval_steps")
    period = find("train", "eval_period")
    translation.set("EVAL_STEPS", steps)
    train_eval = find("train", "train_eval_dataset_cfg")
    infer_eval = find("train", "infer_eval_dataset_cfg")
    trained = _training_data(translation)
    never = not period.value or (train_eval.value is None and infer_eval.value is None)
    translation.set("EVAL_PERIOD", period, NEVER if never else period.value)
    for scope, config in (("train_eval", train_eval), ("infer_eval", infer_eval)):
        owner = _dataset(translation, f"{scope}_dataset_cfg", scope)
        for name in ("task_feature_lengths", "batch_size", "shuffle", "seed", "use_cached", "pack", "module"):
            setting = find(owner, name)
            if name in ("task_feature_lengths", "batch_size") and setting.value != find(trained, name).value:
                translation.dropped(setting, "an evaluation has the training's lengths and batch")
        translation.drop(owner, _DATASET_DROPPED)
        task = find(owner, "mixture_or_task_name")
        split = find(owner, "split")
        if config.value is None:
            translation.dropped(split, f"{scope}_dataset_cfg is None")
            continue
        if task.value not in (None, translation.bindings["MIXTURE_OR_TASK_NAME"][0]):
            translation.differs(
                task, "MIXTURE_OR_TASK_NAME", "Limba evaluates on a split of the task that it trains on"
            )
        known = translation.bindings.get("config.DataConfig.validation_split")
        if split.value is not None and known is not None and known[0] != split.value:
            translation.differs(split, "", f"loss and text are evaluated on one split in Limba, {known[0]!r}")
        elif split.value is not None:
            translation.set("config.DataConfig.validation_split", split)
    evaluator = translation.owner("train", "inference_evaluator_cls", "seqio.Evaluator")
    examples = find(evaluator, "num_examples")
    if infer_eval.value is not None and not never:
        translation.set("config.EvaluationConfig.num_examples", examples, examples.value or ALL_EXAMPLES)
        length = translation.bindings["TASK_FEATURE_LENGTHS"][0].get("targets")
        if length and not is_decoder:
            translation.fix("config.GenerationConfig.max_tokens", length, "TASK_FEATURE_LENGTHS of the targets")
    loggers = dict.fromkeys(("logger_cls",), "Limba writes TensorBoard, metrics.jsonl and samples")
    translation.drop(evaluator, {**loggers, "use_memory_cache": "Limba keeps no examples in memory"})
    translation.drop("JSONLogger", {"write_n_results": "MODEL_DIR/evaluations holds the texts"})


def translate_checkpoints(translation: Translation) -> None:
    """Sets what is restored and saved."""
    find = translation.settings.find
    checkpoints = translation.owner("train", "checkpoint_cfg", "utils.CheckpointConfig")
    save = find(checkpoints, "save")
    restore = find(checkpoints, "restore")
    saved = translation.owner(checkpoints, "save", "utils.SaveCheckpointConfig")
    restored = translation.owner(checkpoints, "restore", "utils.RestoreCheckpointConfig")
    period = find(saved, "period")
    keep = find(saved, "keep")
    never = save.value is None or not period.value
    translation.set("CHECKPOINT_PERIOD", save if save.value is None else period, NEVER if never else period.value)
    translation.bindings["CHECKPOINTS_KEPT"] = (keep.value, keep.origin)
    dtype = find(saved, "dtype", default="float32")
    if dtype.value not in ("float32", None):
        translation.differs(
            dtype, "float32", "Limba saves parameters as trained; limba convert --to=t5x writes bfloat16"
        )
    data = find(saved, "save_dataset", default=False)
    if not data.value:
        translation.differs(data, "", "Limba saves the data position with each checkpoint: no text is read twice")
    steps = find(saved, "checkpoint_steps")
    if steps.value:
        raise refuse(steps, "Limba saves every SaveCheckpointConfig.period steps; leave it out")
    translation.drop(saved, {"keep_dataset_checkpoints": "the data position is part of a checkpoint"})
    for owner in (saved, restored):
        translation.drop(
            owner, dict.fromkeys(("checkpointer_cls", "checkpoint_manager_cls", "state_transformation_fns"), _ANY)
        )
    if restore.value is not None:
        _restore(translation, restored)
    else:
        find(restored, "path")


def _restore(translation: Translation, owner: str) -> None:
    find = lambda name, default=None: translation.settings.find(owner, name, default)
    path = find("path")
    mode = find("mode", "latest")
    paths = [path.value] if isinstance(path.value, str | Macro) else list(path.value or [])
    if len(paths) > 1:
        raise refuse(path, "Limba starts from one checkpoint; name one")
    if mode.value not in ("specific", "latest"):
        raise refuse(mode, "Limba starts from one checkpoint; give 'specific', or 'latest' for the newest of a folder")
    dtype = find("dtype")
    if dtype.value not in ("float32", None):
        translation.differs(dtype, "float32", "parameters are float32 in Limba, so nothing is lost")
    translation.drop(owner, {"strict": "all parameters must be there", "restore_dataset": "always"})
    fallback = find("fallback_to_scratch", False)
    if fallback.value:
        raise refuse(
            fallback, "Limba starts from nothing only if you say so; set INITIAL_CHECKPOINT_PATH to None for that"
        )
    mapped = _is_without_state(find("assignment_map"))
    if not paths:
        return
    translation.set("INITIAL_CHECKPOINT_PATH", path, paths[0])
    if mapped:
        translation.set("RESET_STEP", find("assignment_map"), True)


def _is_without_state(setting: Setting) -> bool:
    """Returns whether an assignment_map leaves out the optimizer's state; raises InputError for other changes.

    As in T5X, the first pattern that matches the whole of a name counts.
    """
    why = "Limba renames no parameters; it takes [('state.*', None)], which leaves out the optimizer's state"
    try:
        pairs = [(re.compile(new), old) for new, old in setting.value or ()]
    except (TypeError, ValueError, re.error) as error:
        raise refuse(setting, why) from error
    state = ("state/step", "state/param_states/encoder/x/v")
    is_left_out = False
    for new, old in pairs:
        matched = [new.fullmatch(name) is not None for name in (*state, "target/encoder/x")]
        is_known = matched == [True, True, False] if old is None else old == new.pattern
        if not is_known or (old is not None and any(matched[:2]) and not is_left_out):
            raise refuse(setting, why)
        is_left_out |= old is None
    return is_left_out


def translate_devices(translation: Translation) -> None:
    """Sets the mesh's model axis from num_partitions or the submesh."""
    owner = translation.owner(translation.script, "partitioner", "partitioning.PjitPartitioner")
    find = lambda name, default=None: translation.settings.find(owner, name, default)
    parts = find("num_partitions", 1)
    submesh = find("model_parallel_submesh")
    for name in ("ici_mesh_shape", "dcn_mesh_shape"):
        mesh_shape = find(name)
        if mesh_shape.value is not None:
            raise refuse(mesh_shape, "set config.MeshConfig.model and config.MeshConfig.fsdp instead")
    setting = submesh if submesh.value else parts
    size = math.prod(submesh.value) if submesh.value else parts.value or 1
    differs = "on a CPU T5X ignores it; more devices for the batch are usually faster" if size > 1 else ""
    translation.set("config.MeshConfig.model", setting, size, differs=differs)
    rules = find("logical_axis_rules")
    if rules.value is not None and class_of(rules.value) != "standard_logical_axis_rules":
        translation.differs(
            rules, "limba/sharding/mesh.py", "Limba's own rules: another layout on the devices, the same numbers"
        )
    for name in ("activation_partitioning_dims", "parameter_partitioning_dims", "additional_rules"):
        setting = translation.settings.find(owner_of(rules.value, "standard_logical_axis_rules"), name, default=1)
        if setting.value != 1:
            translation.differs(
                setting, "config.MeshConfig.fsdp", "another layout, the same numbers; set fsdp=N if memory is short"
            )
    translation.drop(owner, dict.fromkeys(("params_on_devices", "backend"), "jax chooses the devices"))


def translate_train_script(translation: Translation) -> None:
    """Sets the length of the run, its seed and its micro-batches."""
    find = lambda name, default=None: translation.settings.find("train", name, default=default)
    translation.set("MODEL_DIR", find("model_dir"))
    relative = find("relative_steps")
    if relative.value is not None:
        raise refuse(relative, "set TRAIN_STEPS to the step of the checkpoint plus these steps")
    translation.set("TRAIN_STEPS", find("total_steps"))
    seed = find("random_seed")
    trainer = translation.owner("train", "trainer_cls", "trainer.Trainer")
    parts = translation.settings.find(trainer, "num_microbatches")
    if seed.value is None:
        translation.differs(
            seed, "RANDOM_SEED = 0", "T5X takes the time; Limba keeps one seed, so that a resumed run repeats"
        )
    else:
        translation.set("RANDOM_SEED", seed)
    translation.set("NUM_MICROBATCHES", parts, parts.value or 1)
    rng = find("use_hardware_rng", False)
    if rng.value:
        translation.set("config.RunConfig.random_bits", rng, "rbg")
    period = find("stats_period")
    if period.value:
        translation.set("LOG_PERIOD", period)
    reasons: dict[str, str] = dict.fromkeys(
        ("summarize_config_fn", "trainer_cls", "partitioner", "model", "checkpoint_cfg", "train_dataset_cfg",
         "inference_evaluator_cls", "get_dataset_fn", "train_eval_get_dataset_fn", "concurrent_metrics", "use_orbax",
         "train_state_initializer_cls", "verify_matching_vocabs_fn", "gc_period"), _ANY,
    )  # fmt: skip
    translation.owner("train", "get_dataset_fn", "utils.get_dataset")
    translation.drop(
        "train", reasons | {"run_eval_before_training": "limba evaluate MODEL_DIR evaluates any checkpoint"}
    )
    translation.drop("get_training_eval_datasets", {"deterministic": "the order of an evaluation is fixed"})
    translation.drop("train", {"actions": "a number that is not finite ends the run; config.GuardConfig does more"})
    translation.drop(
        "TerminateOnNanAction", dict.fromkeys(("task", "metric"), "a number that is not finite ends the run")
    )
    translation.drop(trainer, dict.fromkeys(("weight_metrics_computer", "use_gda"), _ANY))


def translate_use(translation: Translation) -> None:
    """Sets the checkpoint and the output of an evaluation or inference."""
    script = translation.script
    find = lambda name, default=None: translation.settings.find(script, name, default=default)
    translation.set("MODEL_DIR", find("output_dir"))
    restored = translation.owner(script, "restore_checkpoint_cfg", "utils.RestoreCheckpointConfig")
    path = translation.settings.find(restored, "path")
    _restore(translation, restored)
    if "INITIAL_CHECKPOINT_PATH" not in translation.bindings:
        raise refuse(path, "name the checkpoint to use")
    translation.bindings.pop("RESET_STEP", None)
    length = translation.bindings.get("TASK_FEATURE_LENGTHS", ({},))[0].get("targets")
    translation.fix("MAX_TOKENS", length or 512, "TASK_FEATURE_LENGTHS of the targets")
    evaluator = translation.owner(script, "inference_evaluator_cls", "seqio.Evaluator")
    if script == "evaluate":
        examples = translation.settings.find(evaluator, "num_examples")
        translation.set("NUM_EXAMPLES", examples, examples.value or ALL_EXAMPLES)
    translation.drop(evaluator, {"logger_cls": "limba evaluate writes JSON, Markdown and TensorBoard"})
    translation.drop(evaluator, {"use_memory_cache": "Limba keeps no examples in memory"})
    translation.drop("JSONLogger", {"write_n_results": "limba generate writes all texts"})
    names = ("model", "dataset_cfg", "partitioner", "restore_checkpoint_cfg", "inference_evaluator_cls", "mode",
             "summarize_config_fn", "use_orbax", "verify_matching_vocabs_fn", "training_evaluator_cls", "write_fn",
             "merge_fn", "train_state_initializer_cls", "train_eval_get_dataset_fn", "fallback_init_rng",
             "output_vocab_feature_name", "file_extension", "keep_aux_as_numpy")  # fmt: skip
    translation.drop(script, dict.fromkeys(names, _ANY))
    stops = "a stopped limba generate resumes after its last line; --input names the texts"
    translation.drop(
        script,
        dict.fromkeys(
            ("checkpoint_period", "shard_id", "num_shards", "merge_chunked_results", "checkpoint_ds_iter"), stops
        ),
    )
