"""Every key of transformers' GenerationConfig is decided, once, and no file of defaults is refused or warned about."""

import collections
import itertools

import pytest
import transformers

from limba.config import GenerationConfig
from limba.data.vocabulary import generation_rules as rules

# What version 4.57 has as defaults, and writes into a generation_config.json with all keys, besides those of 5.23.
OF_VERSION_4 = {
    "max_length": 20, "min_length": 0, "min_new_tokens": None, "early_stopping": False, "do_sample": False,
    "num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0, "penalty_alpha": None, "dola_layers": None,
    "use_cache": True, "cache_config": None, "return_legacy_cache": None, "low_memory": None, "temperature": 1.0,
    "top_k": 50, "top_p": 1.0, "min_p": None, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
    "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "length_penalty": 1.0, "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0, "bad_words_ids": None, "force_words_ids": None, "renormalize_logits": False,
    "constraints": None, "forced_bos_token_id": None, "forced_eos_token_id": None, "forced_decoder_ids": None,
    "remove_invalid_values": False, "exponential_decay_length_penalty": None, "suppress_tokens": None,
    "begin_suppress_tokens": None, "sequence_bias": None, "token_healing": False, "guidance_scale": None,
    "watermarking_config": None, "stop_strings": None, "num_return_sequences": 1, "prompt_lookup_num_tokens": None,
}  # fmt: skip
TABLES = (rules.READ, rules.IRRELEVANT, rules.CALLERS, rules.REFUSED, rules.PASSED_OVER, rules.CHOICES)


def test_every_key_of_transformers_is_decided_once() -> None:
    decided = collections.Counter(itertools.chain(*TABLES))
    # It is read, and a choice too: the caller's value replaces the file's.
    assert [key for key, times in decided.items() if times > 1] == ["no_repeat_ngram_size"]
    assert set(transformers.GenerationConfig().to_dict()) - {*decided} == set()
    assert {*OF_VERSION_4} - {*decided} == set()


@pytest.mark.parametrize(
    "defaults",
    [
        transformers.GenerationConfig().to_dict(),
        transformers.GenerationConfig._get_default_generation_params(),
        OF_VERSION_4,
        {**OF_VERSION_4, "guidance_scale": 1.0, "begin_suppress_tokens": [], "sequence_bias": {}},
    ],
)
def test_defaults_change_nothing(defaults: dict) -> None:
    assert rules.refused(defaults) == ()
    assert rules.differences(rules.of_search(defaults), GenerationConfig()) == ([], [])


@pytest.mark.parametrize(
    "rule",
    [
        {"forced_bos_token_id": 0},
        {"forced_eos_token_id": 0},
        {"forced_eos_token_id": [0, 1]},
        {"begin_suppress_tokens": [0]},
        {"guidance_scale": 3.0},
        {"guidance_scale": 0},
        {"watermarking_config": {"bias": 8.0}},
        {"stop_strings": ["\n"]},
        {"token_healing": True},
    ],
)
def test_a_rule_that_changes_a_text_is_refused(rule: dict) -> None:
    assert rules.refused({**OF_VERSION_4, **rule}) == tuple(rule)


def test_what_a_file_asks_of_a_search_and_the_caller_does_not() -> None:
    def left(config: GenerationConfig, **asked: object) -> tuple[list[str], list[str]]:
        return rules.differences(rules.of_search({**OF_VERSION_4, **asked}), config)

    beams = {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True}
    assert left(GenerationConfig(), **beams)[1] == ["num_beams 4", "length_penalty 2.0", "early_stopping True"]
    assert left(GenerationConfig(num_beams=4, early_stopping=True), **beams)[1] == ["length_penalty 2.0"]
    assert left(GenerationConfig(num_beams=2), length_penalty=2.0)[1] == ["length_penalty 2.0"]
    drawn = rules.differences(rules.of_search(beams), GenerationConfig(sample=True))
    assert drawn == ([], []), "Limba has no beams beside draws"
    # Rules for draws count only where tokens are drawn, by the file or by the caller.
    assert left(GenerationConfig(), temperature=0.6, min_p=0.1) == ([], [])
    draws = left(GenerationConfig(), do_sample=True, top_k=9, min_p=0.1)
    assert draws == (["min_p 0.1"], ["do_sample True", "top_k 9"])
    assert left(GenerationConfig(sample=True, top_k=9), do_sample=True, top_k=9) == ([], [])
    assert left(GenerationConfig(), no_repeat_ngram_size=2)[1] == ["no_repeat_ngram_size 2"]
    assert left(GenerationConfig(no_repeat_ngram_size=2), no_repeat_ngram_size=2) == ([], [])
