"""Cached decoding writes transformers' own text, greedy and by beams, and gives the whole decoder's logits."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jaxtyping import PyTree

from limba.config import GenerationConfig, MeshConfig, ModelConfig
from limba.inference import generate as infer
from limba.inference import search as decoding
from limba.model import Network
from tests import tiny
from tests.model.test_huggingface import copied_parameters, our_config, reference_model

ROWS = 6
LENGTH = 17
FREE = jnp.asarray(decoding.banned_mask(256, 256))


def inputs_of(seed: int) -> np.ndarray:
    inputs = np.random.default_rng(seed).integers(2, 256, (ROWS, LENGTH)).astype(np.int32)
    inputs[1, 9:] = 0
    inputs[2, 3:] = 0
    return inputs


@pytest.mark.parametrize("family", ["t5_1_0", "t5_1_1", "umt5"])
@pytest.mark.slow
def test_text_equals_transformers(family: str) -> None:
    reference = reference_model(family)
    config = our_config(family)
    with torch.no_grad():  # sharper, so that texts differ, and with some that end
        head = reference.lm_head.weight
        head.mul_(3.0 if family == "t5_1_0" else 6.0)
        head[1] *= 4.0 if family == "t5_1_0" else 1.8
    params = copied_parameters(reference, config)
    model = Network(config)
    inputs = inputs_of(0)
    searches = {
        "umt5": [{"max_tokens": LENGTH}],
        "t5_1_0": [  # by rows
            {"max_tokens": infer.LEAST_TOKENS_BY_ROWS},
            {"max_tokens": infer.LEAST_TOKENS_BY_ROWS, "num_beams": 3, "length_penalty": 0.7, "early_stopping": True},
        ],
        "t5_1_1": [{"max_tokens": 10, "num_beams": 4, "num_samples": 2, "no_repeat_ngram_size": 2}],
    }
    ended = 0
    for search in searches[family]:
        ours = infer.generate(
            infer.Plan(model, GenerationConfig(**search)), params, infer.ProgramInputs(jnp.asarray(inputs), FREE)
        )
        names = {"max_tokens": "max_new_tokens", "num_samples": "num_return_sequences"}
        with torch.no_grad():
            theirs = reference.generate(
                input_ids=torch.tensor(inputs.astype(np.int64)),
                attention_mask=torch.tensor(inputs > 0).long(),
                do_sample=False,
                decoder_start_token_id=0,
                pad_token_id=0,
                eos_token_id=1,
                **{names.get(name, name): value for name, value in search.items()},
            ).numpy()[:, 1:]
        theirs = np.pad(theirs, ((0, 0), (0, search["max_tokens"] - theirs.shape[1])))
        # Behind the end of a beam transformers pads with 1, since it takes 0 for no padding id.
        theirs[np.cumsum(np.cumsum(theirs == 1, axis=1), axis=1) > 1] = 0
        np.testing.assert_array_equal(ours.tokens.reshape(theirs.shape), theirs)
        ended += int((theirs == 1).any(axis=1).sum())
    assert ended


@pytest.mark.parametrize(
    ("family", "platform", "by_rows"),
    [("t5_1_0", "cpu", False), ("t5_1_0", "cpu", True), ("t5_1_1", "cpu", True), ("umt5", "tpu", False)],
)
@pytest.mark.slow
def test_logits_equal_the_whole_decoders(
    family: str, platform: str, by_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scanned as on a TPU and unrolled as on a CPU; two texts per input share its memory."""
    reference = reference_model(family)
    config = our_config(family)
    params = copied_parameters(reference, config)
    inputs = inputs_of(1)
    length = 12
    targets = np.random.default_rng(2).integers(2, 256, (2 * ROWS, length)).astype(np.int32)
    shifted = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    batch = {
        "encoder_input_tokens": np.repeat(inputs, 2, axis=0),
        "decoder_input_tokens": shifted,
        "decoder_target_tokens": targets,
    }
    model = Network(config, tiny.mesh_of(MeshConfig(), 1))  # attention goes by the mesh's platform
    expected = np.asarray(jax.jit(model.apply)(params, batch))

    monkeypatch.setattr("limba.model.t5_cached.jax.default_backend", lambda: platform)

    @jax.jit
    def all_steps(params: dict, inputs: jax.Array) -> jax.Array:
        step, cache = model.cached_decoder(params, inputs, length, by_rows=by_rows)
        cache = jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, axis=0), cache)

        def one(cache, xs):
            logits, cache = step(cache, *xs)
            return cache, logits

        _, logits = jax.lax.scan(one, cache, (jnp.asarray(shifted.T), jnp.arange(length)))
        return jnp.swapaxes(logits, 0, 1)

    np.testing.assert_allclose(np.asarray(all_steps(params, inputs)), expected, atol=2e-5)


@pytest.mark.parametrize("config", [tiny.MODEL, tiny.LANGUAGE_MODEL, tiny.model(logits_via_embedding=True)])
def test_a_decode_step_on_a_cpu_has_its_matrices_on_the_left(config: ModelConfig) -> None:
    """On the right, XLA copies a matrix into blocks for each token; it exchanges the two if nothing keeps it."""
    rows = 3
    model = Network(config)
    params = jax.eval_shape(model.init, jax.random.key(0))
    plan = infer.Plan(model, GenerationConfig(max_tokens=infer.LEAST_TOKENS_BY_ROWS))
    inputs = infer.ProgramInputs(jnp.ones((rows, 7), jnp.int32), FREE)
    products = products_of(plan, params, inputs)
    on_the_left = {left for left, right in products if right == rows}
    assert on_the_left >= {config.emb_dim, config.mlp_dim, config.vocab_size}
    assert not [right for left, right in products if left == rows]


@pytest.mark.parametrize(("rows", "max_tokens"), [(1, infer.LEAST_TOKENS_BY_ROWS), (3, infer.LEAST_TOKENS_BY_ROWS - 1)])
def test_for_one_text_or_few_tokens_no_matrix_is_transposed(rows: int, max_tokens: int) -> None:
    """It would take longer than it saves."""
    model = Network(tiny.MODEL)
    params = jax.eval_shape(model.init, jax.random.key(0))
    plan = infer.Plan(model, GenerationConfig(max_tokens=max_tokens))
    inputs = infer.ProgramInputs(jnp.ones((rows, 7), jnp.int32), FREE)
    assert not [left for left, right in products_of(plan, params, inputs) if right == rows]


def products_of(plan: infer.Plan, params: PyTree, inputs: infer.ProgramInputs) -> list[tuple[int, int]]:
    """Returns the shapes of the matrix products in the compiled program."""
    program = infer.generate.lower(plan, params, inputs).compile().as_text()
    return [(int(left), int(right)) for left, right in re.findall(r"f32\[(\d+),(\d+)\]\S* dot\(", program)]
