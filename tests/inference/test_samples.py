"""The texts that a run writes for its prompts: a T5 fills their gaps."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import limba
from limba.config import EvaluationConfig, GenerationConfig
from limba.evaluation.text import sampler
from limba.inference.generate import Gaps, Plan, ProgramInputs, generate
from tests.export.runs import write_run
from tests.inference.test_load import config_of

PROMPTS = ("A text with <extra_id_0> gap <extra_id_1>.", "שלום <extra_id_0>")


def test_a_t5_fills_the_gaps_of_prompts(tmp_path: Path) -> None:
    write_run(tmp_path / "run", config_of(), steps=(3,))
    model = limba.load(tmp_path / "run", vocabulary="byte")
    config = EvaluationConfig(prompts=PROMPTS, sampling=GenerationConfig(max_tokens=6))
    sample = sampler(model.network, model.mesh, model.vocabulary, config)
    assert sample is not None and sampler(model.network, model.mesh, model.vocabulary, EvaluationConfig()) is None
    samples = sample(model.params)
    assert list(samples) == list(PROMPTS)
    (english,), (hebrew,) = samples.values()
    assert re.fullmatch(r"A text with +\[.*\] +gap +\[.*\] *\.", english, re.DOTALL), english
    assert re.fullmatch(r"שלום +\[.*\]", hebrew, re.DOTALL), hebrew


@pytest.mark.night
def test_what_follows_a_sentinel_is_among_what_may_begin_a_fill(tmp_path: Path) -> None:
    write_run(tmp_path / "run", config_of(), steps=(3,))
    model = limba.load(tmp_path / "run", vocabulary="byte")
    num_rows = model.network.config.vocab_size
    only = ord("a") + 3
    none = np.zeros(num_rows, bool)
    every = np.ones(num_rows, bool)
    may_begin = np.arange(num_rows) == only

    def written(gaps: Gaps | None) -> list[int]:
        inputs = jnp.arange(3, 35, dtype=jnp.int32)[None]
        plan = Plan(model.network, GenerationConfig(max_tokens=6), (int(model.vocabulary.eos_id),))
        tokens = generate(plan, model.params, ProgramInputs(inputs, none, gaps=gaps)).tokens
        return np.asarray(tokens).ravel().tolist()

    plain = written(None)
    assert set(plain) != {only} and written(Gaps(none, may_begin)) == plain
    assert written(Gaps(every, may_begin)) == [only] * 6
    after_first = np.arange(num_rows) == plain[0]  # what follows it alone is another
    assert written(Gaps(after_first, may_begin))[:2] == [plain[0], only]
