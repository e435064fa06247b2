"""What becomes of every key of a generation_config.json: read, irrelevant, the caller's choice, passed over or refused.

Plain data, for GenerationConfig of transformers 4.57 and 5.23. A key that is in no table is one that the class does not
know, which transformers passes over too. tests/data/vocabulary/test_generation_rules.py walks the class's keys, so that
a new one fails until it is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limba.config import GenerationConfig

Values = tuple[object, ...]
NOT_SET: Values = (None, [], {})  # 0 is an id as any other, so it is not among these

# Keys that `special_ids` reads.
READ = frozenset({
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "suppress_tokens", "no_repeat_ngram_size",
})  # fmt: skip
# Keys on which no text depends: caches, what is returned, compiling, a helper that proposes tokens.
IRRELEVANT = frozenset({
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "return_legacy_cache", "low_memory",
    "prefill_chunk_size", "compile_config", "disable_compile", "continuous_batching_config", "remove_invalid_values",
    "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
    "use_mtp", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit",
    "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight", "speculation_type",
    "_from_model_config", "transformers_version",
})  # fmt: skip
# The caller says how long a text may be, and how many there are.
CALLERS = frozenset({"max_length", "max_new_tokens", "max_time", "num_return_sequences"})

# Below, each key has the values that change nothing.
# Keys that change which ids are written, and that Limba's search does not have: the model is not used for generation.
REFUSED: Mapping[str, Values] = {
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "forced_decoder_ids"), NOT_SET),
    **dict.fromkeys(("begin_suppress_tokens", "bad_words_ids", "sequence_bias", "stop_strings"), NOT_SET),
    **dict.fromkeys(("exponential_decay_length_penalty", "watermarking_config"), NOT_SET),
    "guidance_scale": (*NOT_SET, 1),
    "token_healing": (*NOT_SET, False),
}
# Keys that make a search choose otherwise, which Limba's does not have either: the user is told. Those of _OF_DRAWS
# only count where tokens are drawn.
PASSED_OVER: Mapping[str, Values] = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), (*NOT_SET, 1)),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"), (*NOT_SET, 0)),
    "renormalize_logits": (*NOT_SET, False),
    "num_beam_groups": (*NOT_SET, 1),
    **dict.fromkeys(("diversity_penalty", "penalty_alpha"), (*NOT_SET, 0)),
    **dict.fromkeys(("dola_layers", "constraints", "force_words_ids"), NOT_SET),
    **dict.fromkeys(("min_p", "epsilon_cutoff", "eta_cutoff"), (*NOT_SET, 0)),
    "typical_p": (*NOT_SET, 1),
    "top_h": NOT_SET,
}
# Keys of a search that Limba has, where the caller chooses it; with the field of GenerationConfig.
CHOICES: Mapping[str, tuple[str, Values]] = {
    "num_beams": ("num_beams", (*NOT_SET, 1)),
    "length_penalty": ("length_penalty", (*NOT_SET, 1)),
    "early_stopping": ("early_stopping", (*NOT_SET, False)),
    "do_sample": ("sample", (*NOT_SET, False)),
    "temperature": ("temperature", (*NOT_SET, 1)),
    "top_k": ("top_k", (*NOT_SET, 0)),
    "top_p": ("top_p", (*NOT_SET, 1)),
    "no_repeat_ngram_size": ("no_repeat_ngram_size", (*NOT_SET, 0)),  # its value in the file is the default
}
RULES = frozenset((*READ, *CALLERS, *REFUSED, *PASSED_OVER, *CHOICES))  # on which a text depends
_OF_BEAMS = ("num_beams", "length_penalty", "early_stopping")
_OF_DRAWS = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")


def refused(rules: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the keys of a file without which Limba would write other ids.

    >>> refused({"forced_eos_token_id": 0, "bad_words_ids": None, "guidance_scale": 1.0})
    ('forced_eos_token_id',)
    """
    return tuple(key for key, same in REFUSED.items() if rules.get(key) not in same)


def of_search(rules: Mapping[str, Any]) -> tuple[tuple[str, object], ...]:
    """Returns the keys that say how a text is searched for, and their values, where they change something."""
    neutral = {**PASSED_OVER, **{key: same for key, (_, same) in CHOICES.items()}}
    return tuple((key, rules[key]) for key, same in neutral.items() if rules.get(key) not in same)


def differences(search: tuple[tuple[str, object], ...], config: GenerationConfig) -> tuple[list[str], list[str]]:
    """Returns what a file asks for and this search does not do: what Limba's has not, and what could be chosen.

    >>> differences((("num_beams", 4), ("top_k", 20), ("min_length", 9)), GenerationConfig())
    (['min_length 9'], ['num_beams 4'])
    """
    asked = dict(search)
    has_beams = not config.sample and (config.num_beams > 1 or "num_beams" in asked)  # there are none beside draws
    draws = config.sample or "do_sample" in asked
    unknown: list[str] = []
    not_chosen: list[str] = []
    for key, value in asked.items():
        if (key in _OF_BEAMS and not has_beams) or (key in _OF_DRAWS and not draws):
            continue
        if key not in CHOICES:
            unknown.append(f"{key} {value}")
        elif getattr(config, CHOICES[key][0]) != value:
            not_chosen.append(f"{key} {value}")
    return unknown, not_chosen
