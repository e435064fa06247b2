"""Numbers that decide an allocation are bounded by the model and the memory, and refused before it is tried."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import limba
from limba.config import ConfigError, GenerationConfig, InputError, MeshConfig, ModelConfig
from limba.data.vocabulary.load import load_vocabulary
from limba.inference import limits
from limba.model import Network
from limba.sharding.mesh import make_mesh
from tests import tiny
from tests.export.runs import write_run
from tests.inference.test_load import config_of

FREE = 10**9
T5 = tiny.model()
DECODER = tiny.language_model()


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "free_memory", lambda: FREE)


@pytest.mark.parametrize("network", [T5, DECODER], ids=["T5", "decoder"])
@pytest.mark.parametrize(
    "choices",
    [{"max_tokens": 10**9}, {"num_beams": 10**7}, {"sample": True, "num_samples": 10**7}],
    ids=["tokens", "beams", "samples"],
)
def test_what_cannot_fit_is_refused_with_the_number_and_the_memory(
    network: ModelConfig, choices: dict[str, int]
) -> None:
    mesh = make_mesh(MeshConfig())
    (name, number), *_ = [(name, value) for name, value in choices.items() if value is not True]
    says = rf"GenerationConfig.{name} is {number:,}: 8 texts .* 1.0 GB are free"
    with pytest.raises(ConfigError, match=says) as told:
        limits.check_generation(network, GenerationConfig(**choices), 8, mesh)
    if match := re.search(r"give at most ([\d,]+)\.", str(told.value)):
        fits = GenerationConfig(**{**choices, name: int(match[1].replace(",", ""))})
        limits.check_generation(network, fits, 8, mesh)
    limits.check_generation(network, GenerationConfig(max_tokens=512, num_beams=4), 64, mesh)


@pytest.mark.parametrize("config", [T5, DECODER], ids=["T5", "decoder"])
@pytest.mark.slow
def test_the_bound_of_a_token_is_no_more_than_its_cache(config: ModelConfig) -> None:
    """So nothing is refused that fits."""
    network = Network(config)
    params = tiny.parameters(config)
    sizes = []
    for max_tokens in (32, 64):
        cached = network.cached_language_model if config.is_decoder_only else network.cached_decoder
        _, cache = cached(params, jnp.ones((2, 16), jnp.int32), max_tokens)
        sizes.append(sum(leaf.nbytes for leaf in jax.tree.leaves(cache)))
    of_a_token = (sizes[1] - sizes[0]) / 32 / 2
    assert 0 < limits.bytes_per_token(config) - limits.ID_BYTES <= of_a_token


def test_batches_and_fills_are_bounded(tmp_path: Path) -> None:
    write_run(tmp_path / "run", config_of(), steps=(9,))
    trained = limba.load(str(tmp_path / "run"), vocabulary="byte")
    with pytest.raises(InputError, match=r"`top` is 1,000,000, and the model has 384 ids"):
        trained.fill("A ___ text.", top=10**6)
    with pytest.raises(InputError, match=r"A batch of 1,000,000,000 texts takes 768.0 GB at least, and 1.0 GB"):
        trained.score([("a", "b")], num_rows=10**9)
    with pytest.raises(ConfigError, match=r"max_tokens is 1,000,000,000: .*; give at most [\d,]+\."):
        trained.generate(["a"], max_tokens=10**9)
    wide = dataclasses.replace(T5, vocab_size=250_112, emb_dim=4_096)
    with pytest.raises(InputError, match=r"top is 5,000: so many fills of 8 texts take .* give at most [\d,]+\."):
        limits.check_fills(wide, 8, 512, 5_000, make_mesh(MeshConfig()))


def test_sentinels_are_bounded() -> None:
    with pytest.raises(ConfigError, match="extra_ids is 1,000,000,000, .* give at most 100,000"):
        load_vocabulary("byte", 10**9)
