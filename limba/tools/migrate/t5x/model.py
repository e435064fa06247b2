"""T5X's network, loss, optimizer and decoding as ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from limba.cli.gin.statements import Macro
from limba.config import InputError
from limba.tools.migrate.t5x import tables
from limba.tools.migrate.t5x.settings import Setting, class_of, owner_of, refuse
from limba.tools.migrate.t5x.translation import SCRIPTS, Translation

ACTIVATIONS = {"swish": "silu"}  # T5X's name -> jax.nn's of today
NO_FACTORING = 2**31 - 1  # min_dim_size_to_factor: no dimension is as large
_MODELS = ("EncoderDecoderModel", "DecoderOnlyModel")
_CONVERTERS = ("EncDecFeatureConverter",)
_DECODER_CONVERTERS = ("DecoderFeatureConverter", "PrefixLMFeatureConverter", "LMFeatureConverter")
_OF_ONE_FORM = {  # converter -> the features whose lengths it must be given
    "PrefixLMFeatureConverter": {"inputs", "targets"},
    "LMFeatureConverter": {"targets"},
}
_OPTIMIZER = "config.OptimizerConfig."
_SCHEDULE = "config.ScheduleConfig."


class Model(NamedTuple):
    """T5X's model: its class as `Settings.find` takes it, and its kind."""

    owner: str
    is_decoder: bool


def own_activations(names: Sequence[str]) -> tuple[str, ...]:
    """Returns T5X's `mlp_activations` by the names that they have here.

    >>> own_activations(["swish", "linear"])
    ('silu', 'linear')
    """
    return tuple(ACTIVATIONS.get(name, name) for name in names)


def translate_model(translation: Translation) -> Model:
    """Sets the network; returns the model. Raises InputError for one that Limba has not."""
    model = _or_macro(translation, translation.script, "model", "MODEL")
    if model is None:
        raise InputError(
            "No file sets MODEL, T5X's network; include one such as t5x/examples/t5/t5_1_1/base.gin, or give it before"
            f" the run's file ({tables.PAGE})."
        )
    kind = class_of(model.value)
    if kind not in _MODELS:
        raise refuse(model, f"Limba has T5X's {' and '.join(_MODELS)}; use one of them")
    owner = owner_of(model.value, kind)
    module = translation.settings.find(owner, "module")
    network = module.line.network if module.line else ""
    is_decoder = kind == "DecoderOnlyModel"
    if class_of(module.value) not in ("Transformer", "DecoderWrapper") or network not in tables.PLACES:
        raise refuse(module, f"Limba knows the networks of t5x.examples.{{{', '.join(tables.PLACES)}}} only")
    config = "network.TransformerConfig" if is_decoder else "network.T5Config"
    config = translation.owner(owner_of(module.value, class_of(module.value)), "config", config)
    _network(translation, config, network, is_decoder)
    for name in ("input_vocabulary", "output_vocabulary", "vocabulary"):
        translation.settings.find(owner, name)
    if is_decoder:
        setting = translation.settings.find(owner, "inputs_bidirectional_attention", default=False)
        translation.set("config.ModelConfig.prefix_attention", setting, "full" if setting.value else "causal")
    converter = translation.settings.find(owner, "feature_converter_cls")
    _check_converter(translation, converter, is_decoder)
    return Model(owner, is_decoder)


def _or_macro(translation: Translation, owner: str, name: str, macro: str) -> Setting | None:
    """Returns the value of a field, or of the macro that T5X's files give it; None where neither is set."""
    line = translation.settings.line(owner, name)
    if line is not None and line.value == Macro(macro) and macro not in translation.settings.macros:
        return None
    setting = translation.settings.find(owner, name)
    return translation.settings.macro(macro) if setting.value is None else setting


def _check_converter(translation: Translation, converter: Setting, is_decoder: bool) -> None:
    """Raises InputError for a feature converter of seqio's whose rows Limba does not make."""
    if converter.value is None:
        return
    name = class_of(converter.value)
    if name == "PassThroughFeatureConverter" or name.startswith("PrePacked"):
        raise refuse(converter, "the task gives T5X's model features; Limba makes them, of a task's inputs and targets")
    known = _DECODER_CONVERTERS if is_decoder else _CONVERTERS
    if name not in known:
        raise refuse(converter, f"Limba makes the rows of seqio's {' and '.join(known)}; leave it out")
    if name in _OF_ONE_FORM:
        lengths = translation.settings.macro("TASK_FEATURE_LENGTHS")
        sides = _OF_ONE_FORM[name]
        if lengths and isinstance(lengths.value, Mapping):
            sides = set(lengths.value)
        if sides != _OF_ONE_FORM[name]:
            needed = " and ".join(sorted(_OF_ONE_FORM[name]))
            raise refuse(converter, f"it reads {needed}, and TASK_FEATURE_LENGTHS has {' and '.join(sorted(sides))}")
    name = owner_of(converter.value, name)
    translation.must_be(name, "loss_on_targets_only", [True], "Limba's inputs have no loss; leave it out")
    translation.must_be(name, "bos_id", [0], "Limba's decoder begins with id 0; leave it out")
    translation.drop(
        name, {"apply_length_check": "Limba checks all lengths", "use_custom_packing_ops": "Limba packs by itself"}
    )


def _network(translation: Translation, owner: str, network: str, is_decoder: bool) -> None:
    find = translation.settings.find
    field = "config.ModelConfig."
    same_names = ["vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim", "logits_via_embedding"]
    if not is_decoder:
        same_names += ["num_encoder_layers", "num_decoder_layers"]
    ours = {name: field + name for name in same_names}
    if is_decoder:
        ours["num_layers"] = f"{field}num_decoder_layers"
    translation.copy(owner, ours, {**tables.T5_CONFIG, "num_layers": 6})
    activations = find(owner, "mlp_activations", default=tables.T5_CONFIG["mlp_activations"])
    translation.set(f"{field}mlp_activations", activations, own_activations(activations.value))
    dropout = find(owner, "dropout_rate", default=tables.T5_CONFIG["dropout_rate"])
    translation.set("DROPOUT_RATE", dropout, float(dropout.value))
    translation.fix(f"{field}dropout_rate", _Raw("%DROPOUT_RATE"), "the line above")
    dtype = find(owner, "dtype", default=tables.T5_CONFIG["dtype"])
    kind = class_of(dtype.value) or dtype.value
    if kind not in ("float32", "bfloat16"):
        raise refuse(dtype, "Limba computes in 'float32' or 'bfloat16'; give one of these")
    translation.set(f"{field}dtype", dtype, kind)
    logits = find(owner, "float32_attention_logits", default=False)
    if not logits.value and kind == "bfloat16":
        translation.differs(
            logits, "", "Limba computes the softmax of attention in float32 in any case: nearer to float32"
        )
    remat = find(owner, "remat_policy", default="none")
    if remat.value not in ("none", "minimal", "full"):
        raise refuse(remat, "Limba has 'none', 'minimal' and 'full'; give one of these")
    translation.set(f"{field}remat", remat)
    translation.copy(owner, {"scan_layers": f"{field}scan_layers"}, {"scan_layers": network == "scalable_t5"})
    translation.drop(owner, {"param_scan_axis": "Limba reads T5X's files along any axis and stacks along the first"})
    if network == "scalable_t5":
        translation.fix(
            f"{field}relative_bias_per_layer", True, "t5x.examples.scalable_t5 has a relative bias in every layer"
        )
    if is_decoder:
        translation.fix(f"{field}num_encoder_layers", 0, "t5x.examples.decoder_only")
        translation.fix(f"{field}positions", "relative", "t5x.examples.decoder_only")


class _Raw(str):
    """A value that is written into gin as it is."""

    def __repr__(self) -> str:
        return str(self)


def translate_loss(translation: Translation, model: Model) -> None:
    """Sets the loss; T5X's classes have no z-loss and no smoothing unless a file sets them."""
    owner = model.owner
    translation.copy(
        owner, {"z_loss": "Z_LOSS", "label_smoothing": "LABEL_SMOOTHING"}, {"z_loss": 0.0, "label_smoothing": 0.0}
    )
    setting = translation.settings.find(owner, "loss_normalizing_factor")
    value = setting.value
    if isinstance(value, str):
        if value.upper() not in tables.LOSS_NORMALIZERS:
            raise refuse(setting, f"T5X has {', '.join(tables.LOSS_NORMALIZERS)}, a number, or None")
        value = tables.LOSS_NORMALIZERS[value.upper()]
    translation.set("config.LossConfig.normalize_by", setting, value)


def translate_decoding(translation: Translation, model: Model) -> None:
    """Sets how text is generated: T5X's beam search, or sampling."""
    field = "config.GenerationConfig."
    find = translation.settings.find
    # A method of the model: T5X calls it later, outside of the scope in which the model was made.
    method = f"{model.owner.rpartition('/')[2]}.predict_batch_with_aux"
    beams = find(method, "num_decodes", default=1)
    translation.drop(method, {"return_all_decodes": "limba generate --num=N gives several texts"})
    translation.must_be(method, "prompt_with_targets", [False], "Limba's decoder starts from no prompt; leave it out")
    default = "temperature_sample" if model.is_decoder else "beam_search"
    decode = find(model.owner, "decode_fn")
    name = class_of(decode.value) or default
    if name not in ("beam_search", "temperature_sample"):
        raise refuse(decode, "Limba has T5X's beam_search and temperature_sample; use one of them")
    owner = owner_of(decode.value, name)
    if name == "beam_search":
        beams_of_search = find(owner, "num_decodes", default=1)
        if beams.line is None and beams_of_search.line is not None:
            beams = beams_of_search
        translation.set(f"{field}num_beams", beams)
        alpha = find(owner, "alpha", default=0.6)
        if beams.value > 1:
            why = "T5X divides by ((5 + length) / 6)^alpha, Limba by length^penalty"
            translation.set(f"{field}length_penalty", alpha, float(alpha.value), differs=why)
        translation.drop(
            owner, {"max_decode_len": "the targets' length is the limit", "min_log_prob": "it never matters"}
        )
        return
    temperature = find(owner, "temperature", default=1.0)
    top_k = find(owner, "topk", default=1)
    top_p = find(owner, "topp", default=0.0)
    is_greedy = temperature.value == 0 or (top_k.value == 1 and not top_p.value)
    if is_greedy:
        translation.set(f"{field}sample", temperature if temperature.value == 0 else top_k, False)
    else:
        translation.fix(f"{field}sample", True, temperature.origin)
        translation.set(f"{field}temperature", temperature, float(temperature.value))
        if top_k.value:
            translation.set(f"{field}top_k", top_k)
        if top_p.value:
            translation.set(f"{field}top_p", top_p)
    translation.set(f"{field}num_samples" if not is_greedy else f"{field}num_beams", beams)
    steps = find(owner, "max_decode_steps")
    if steps.value:  # at most these tokens after the prompt
        limit = f"{field}max_tokens" if translation.skeleton == SCRIPTS["train"] else "MAX_TOKENS"
        longest = translation.bindings.get("TASK_FEATURE_LENGTHS", ({},))[0].get("targets", steps.value)
        translation.set(limit, steps, min(steps.value, longest))
    for name in ("state_callback_fn", "logit_callback_fn"):
        translation.must_be(owner, name, [None], "Limba calls no function while it decodes; leave it out")
    translation.drop(
        owner, {"rescale_log_probs": "samples have no scores here", "num_decodes": f"{method}.num_decodes counts"}
    )


def translate_optimizer(translation: Translation, model: Model) -> None:
    """Sets the optimizer and its schedule; raises InputError for those that Limba has not."""
    optimizer = _or_macro(translation, model.owner, "optimizer_def", "OPTIMIZER") or Setting(None, None, "OPTIMIZER")
    kind = class_of(optimizer.value)
    owner = owner_of(optimizer.value, kind)
    trainer = translation.owner("train", "trainer_cls", "trainer.Trainer")
    if kind == "Adafactor":
        _adafactor(translation, owner)
        _factors(translation, trainer)
        return
    steps = {kind: owner} if kind in ("adamw", "adam") else {}
    if kind in ("chain", "OptaxWrapper", "wrap_optax_optimizer"):
        name = "transformations" if kind == "chain" else "optax_optimizer"
        setting = translation.settings.find(owner, name)
        transformations = setting.value if isinstance(setting.value, list | tuple) else [setting.value]
        steps = {class_of(step): owner_of(step, class_of(step)) for step in transformations}
        optimizer = setting
    known = ("adamw", "adam", "clip_by_global_norm")
    unknown = [step for step in steps if step not in known]
    if unknown:
        advice = "use optax.clip_by_global_norm" if unknown[0] == "clip" else "use adafactor.Adafactor or optax.adamw"
        raise refuse(optimizer, f"Limba has no {unknown[0]}; {advice}")
    if not {"adamw", "adam"} & steps.keys():
        raise refuse(optimizer, "Limba has T5X's Adafactor, and optax's adamw and adam; use one of them")
    _adamw(translation, steps.get("adamw") or steps["adam"], trainer)
    if "clip_by_global_norm" in steps:
        translation.copy(steps["clip_by_global_norm"], {"max_norm": f"{_OPTIMIZER}clip_global_norm"}, {})


def _adafactor(translation: Translation, owner: str) -> None:
    fields = ("decay_rate", "clipping_threshold", "min_dim_size_to_factor")
    translation.copy(owner, {name: _OPTIMIZER + name for name in fields}, {})
    threshold = translation.settings.find(owner, "clipping_threshold", default=1.0)
    if threshold.value is None:  # `copy` leaves None out
        translation.bindings[f"{_OPTIMIZER}clipping_threshold"] = (None, threshold.origin)
    translation.copy(
        owner, {"beta1": f"{_OPTIMIZER}momentum", "global_norm_clip_threshold": f"{_OPTIMIZER}clip_global_norm"}, {}
    )
    translation.copy(owner, {"weight_decay_rate": f"{_OPTIMIZER}weight_decay"}, {})
    translation.copy(owner, {"step_offset": f"{_OPTIMIZER}step_offset"}, {"step_offset": 0})
    translation.must_be(owner, "epsilon1", [1e-30], "Limba's Adafactor has 1e-30, as all recipes; leave it out")
    translation.must_be(owner, "epsilon2", [1e-3], "Limba's Adafactor has 1e-3, as all recipes; leave it out")
    if not translation.settings.find(owner, "factored", default=True).value:
        translation.set(
            f"{_OPTIMIZER}min_dim_size_to_factor", translation.settings.find(owner, "factored"), NO_FACTORING
        )
    scale = translation.settings.find(owner, "multiply_by_parameter_scale", default=True)
    if not isinstance(scale.value, bool):
        raise refuse(scale, "Limba scales all parameters or none; give True or False")
    translation.set(f"{_OPTIMIZER}multiply_by_parameter_scale", scale)
    rules = translation.settings.find(owner, "logical_factor_rules")
    if rules.value is not None and class_of(rules.value) != "standard_logical_factor_rules":
        raise refuse(rules, "Limba factors by T5X's standard_logical_factor_rules; use these")
    for name in ("factor_map", "weight_decay_rate_lr_exponent", "max_parameter_scale"):
        translation.must_be(owner, name, [None], "Limba's Adafactor has no such choice; leave it out")
    translation.drop(owner, {"learning_rate": "the schedule gives it", "dtype_momentum": "momentum is float32"})
    translation.drop(owner, {"skip_nan_updates": "config.GuardConfig.action = 'skip' drops such steps"})


def _factors(translation: Translation, trainer: str) -> None:
    """T5X's product of factors, which our schedule 'factors' is."""
    macros = {"factors": "LEARNING_RATE_FACTORS", "base_learning_rate": "LEARNING_RATE", "warmup_steps": "WARMUP_STEPS"}
    macros["min_learning_rate"] = f"{_SCHEDULE}final_learning_rate"
    names = {name: macros.get(name, _SCHEDULE + name) for name in tables.SCHEDULE}
    rate = translation.settings.find(trainer, "learning_rate_fn")
    if rate.value is not None and class_of(rate.value) != "create_learning_rate_scheduler":
        raise refuse(rate, "Limba has T5X's utils.create_learning_rate_scheduler; use it")
    translation.copy(owner_of(rate.value, "create_learning_rate_scheduler"), names, tables.SCHEDULE)
    translation.bindings["LEARNING_RATE"] = (
        float(translation.bindings["LEARNING_RATE"][0]),
        translation.bindings["LEARNING_RATE"][1],
    )


def _adamw(translation: Translation, owner: str, trainer: str) -> None:
    kind = owner.rpartition("/")[2]
    translation.fix(f"{_OPTIMIZER}name", "adamw", f"optax.{kind}")
    defaults = {**tables.ADAMW, **({} if kind == "adamw" else {"weight_decay": 0.0})}
    names = {"b1": "beta1", "b2": "beta2", "eps": "epsilon", "weight_decay": "weight_decay"}
    translation.copy(owner, {name: _OPTIMIZER + ours for name, ours in names.items()}, defaults)
    decay = translation.settings.find(owner, "weight_decay", default=defaults["weight_decay"])
    if decay.value and translation.settings.find(owner, "mask").value is None:
        translation.differs(
            decay, f"{_OPTIMIZER}weight_decay", "Limba does not decay scales and biases; optax decays all"
        )
    translation.must_be(owner, "eps_root", [0.0, 0], "Limba's AdamW has none; leave it out")
    translation.drop(trainer, {"learning_rate_fn": "an optimizer of optax has its own learning rate"})
    # Of whatever class it is: nothing calls it.
    unused = translation.settings.find(trainer, "learning_rate_fn")
    schedule = owner_of(unused.value, "create_learning_rate_scheduler")
    for name in tables.SCHEDULE:
        translation.drop(schedule, {name: "an optimizer of optax has its own learning rate"})
    rate = translation.settings.find(owner, "learning_rate")
    kind = class_of(rate.value)
    if kind == "warmup_cosine_decay_schedule":
        translation.fix(f"{_SCHEDULE}name", "cosine", rate.origin)
        names = {
            "peak_value": "LEARNING_RATE",
            "warmup_steps": "WARMUP_STEPS",
            "decay_steps": f"{_SCHEDULE}decay_steps",
        }
        kind = owner_of(rate.value, kind)
        translation.copy(kind, {**names, "end_value": f"{_SCHEDULE}final_learning_rate"}, {"end_value": 0.0})
        translation.must_be(kind, "init_value", [0.0, 0], "Limba's warm-up begins at 0; give 0.0")
        translation.must_be(kind, "exponent", [1.0, 1], "Limba's cosine has none; leave it out")
    elif isinstance(rate.value, int | float) and not isinstance(rate.value, bool):
        translation.set("LEARNING_RATE", rate, float(rate.value))
        translation.fix("LEARNING_RATE_FACTORS", "constant", rate.origin)
        translation.fix("WARMUP_STEPS", 0, rate.origin)
    else:
        raise refuse(rate, "Limba takes a number or optax.warmup_cosine_decay_schedule here")
