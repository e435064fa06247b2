"""Errors as data: a field, a fix, and the names of the front end that its user typed."""

import pickle
from typing import Any

import pytest

from limba.config import ConfigError, GenerationConfig, InputError, ModelConfig, RestartError, StorageError
from limba.config.errors import Open, named
from limba.tools.preflight.checks.findings import error_line
from limba.tools.preflight.checks.verdict import Section

MODEL: dict[str, Any] = {
    "vocab_size": 64,
    "emb_dim": 8,
    "num_heads": 6,
    "head_dim": 4,
    "mlp_dim": 8,
    "num_decoder_layers": 1,
}


@pytest.mark.parametrize("kind", [InputError, StorageError, RestartError])
def test_a_sentence_says_the_names_that_were_typed_the_innermost_first(kind: type[InputError]) -> None:
    outer = {"DataConfig.seed": "SEED", "DataConfig.pack": "PACK"}
    inner = {"DataConfig.seed": "--seed"}
    with pytest.raises(kind) as caught, named(outer), named(inner):
        raise kind(
            "DataConfig.seed is 1, DataConfig.pack is x/DataConfig.pack, config.DataConfig.seed and DataConfig.s."
        )
    assert str(caught.value) == "--seed is 1, PACK is x/DataConfig.pack, config.DataConfig.seed and DataConfig.s."


def test_a_fix_is_a_field_and_a_value_and_becomes_a_line_in_the_users_names() -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig(**MODEL, num_encoder_layers=0, num_kv_heads=4)
    assert caught.value.fix == ("ModelConfig.num_kv_heads", 3)
    assert ModelConfig(**MODEL, num_encoder_layers=0, num_kv_heads=3).kv_heads == 3
    section = Section("Config", [error_line(caught.value)])
    assert section.worded({}).lines[0].fix == "config.ModelConfig.num_kv_heads = 3"
    (line,) = section.worded({"ModelConfig.num_kv_heads": "KV", "ModelConfig.num_heads": "HEADS"}).lines
    assert line.fix == "KV = 3" and line.text == "HEADS is 6, which does not divide by KV 4; give a multiple."


def test_a_field_without_a_known_value_is_named_in_the_fix() -> None:
    with pytest.raises(ConfigError) as caught:
        GenerationConfig(max_tokens=0)
    assert caught.value.fix == ("GenerationConfig.max_tokens", Open("a whole number above 0"))
    assert error_line(InputError("It is wrong.")).fixes({}) == ""
    assert error_line(InputError("It is wrong.", field="A.b")).fixes({"A.b": "B"}) == "B = …"


def test_an_error_comes_whole_out_of_another_process() -> None:
    error = ConfigError("DataConfig.seed", "is 1", ("DataConfig.seed", 2), give="2")
    error.names = {"DataConfig.seed": "SEED"}
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.field, back.fix) == ("SEED is 1; give 2.", "DataConfig.seed", ("DataConfig.seed", 2))
