"""The texts that a run writes for its prompts: a T5 fills their gaps."""

import re
from pathlib import Path

import limba
from limba.config import EvaluationConfig, GenerationConfig
from limba.inference.samples import sampler
from tests.export.runs import write_run
from tests.inference.test_load import config_of

PROMPTS = ("A text with <extra_id_0> gap <extra_id_1>.", "שלום <extra_id_0>")


def test_a_t5_fills_the_gaps_of_prompts(tmp_path: Path) -> None:
    write_run(tmp_path / "run", config_of(), steps=(3,))
    model = limba.load(tmp_path / "run", vocabulary="byte")
    config = EvaluationConfig(prompts=PROMPTS, sampling=GenerationConfig(max_tokens=6))
    sample = sampler(model.network, model.mesh, model.vocabulary, config)
    assert sample is not None and sampler(model.network, model.mesh, model.vocabulary, EvaluationConfig()) is None
    found = sample(model.params)
    assert list(found) == list(PROMPTS)
    (english,), (hebrew,) = found.values()
    assert re.fullmatch(r"A text with +\[.*\] +gap +\[.*\] *\.", english, re.DOTALL), english
    assert re.fullmatch(r"שלום +\[.*\]", hebrew, re.DOTALL), hebrew
    # What stands in the gaps is what the model writes, sentinels included.
    (written,) = model.samples([PROMPTS[1]], max_tokens=6, ban_sentinels=False)
    assert hebrew.partition("[")[2].removesuffix("]") in written[0].text
