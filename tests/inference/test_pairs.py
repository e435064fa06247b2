"""A language model that learned pairs: what it reads of an input is what its rows have, in a run and in its export."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import transformers

import limba
from limba.config import DataConfig, EvaluationConfig, GenerationConfig, RunConfig, saved_config
from limba.config.generation import GenerationFields
from limba.data.run_data import RunData
from limba.data.sources.columns import FIELD_SEPARATOR
from limba.evaluation.text import TextEvaluation, sampler
from limba.export.huggingface import export, import_folder
from limba.export.record import Choices
from limba.inference.load import TrainedModel
from tasks import text_to_text  # noqa: F401  registers the task
from tests import tiny
from tests.export.runs import write_run

PAIRS = [(f"Line {n} of a text", f"told {n} times") for n in range(12)]
NETWORK = tiny.language_model(vocab_size=259, num_decoder_layers=1)  # a row for each id


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    """A run on pairs of bytes with a prefix, whose weights are random."""
    directory = tmp_path_factory.mktemp("pairs")
    corpus = directory / "pairs.jsonl"
    corpus.write_text("".join(json.dumps({"inputs": read, "targets": told}) + "\n" for read, told in PAIRS))
    data = DataConfig(
        "text_to_text",
        {"targets": 64, "prefix": 40},
        batch_size=8,
        vocabulary="byte",
        extra_ids=0,
        data_files={"train": str(corpus), "validation": str(corpus)},
        column={"inputs": "inputs", "targets": "targets"},
        prefix="tell: ",
        num_data_shards=1,
        task_modules=("tasks.text_to_text",),
    )
    evaluation = EvaluationConfig(num_examples=len(PAIRS), prompts=("tell: Line 3 of a text",))
    config = RunConfig(
        NETWORK,
        data,
        str(directory / "run"),
        5,
        evaluation=evaluation,
        generation=GenerationConfig(max_tokens=6),
        report_to="none",
    )
    write_run(directory / "run", NETWORK)
    (directory / "run" / saved_config.FILE).write_text(saved_config.to_text(config))
    return limba.load(directory / "run")


def rows_of(run: TrainedModel) -> dict[str, tuple[list[int], list[int]]]:
    """Returns what the network reads before each target, and the target's ids, by the text of the input."""
    config = run.config
    assert isinstance(config, RunConfig)
    data = RunData(config.data)
    texts = [FIELD_SEPARATOR.join(part.encode() for part in pair) for pair in PAIRS]
    examples = data.examples(texts, data.lengths(), "train", 0)
    return {
        read: ([0, *example["inputs"].tolist()], example["targets"].tolist())
        for (read, _), example in zip(PAIRS, examples, strict=True)
    }


def test_a_prompt_is_read_as_the_input_of_a_row(run: TrainedModel) -> None:
    rows = rows_of(run)
    for text, told in PAIRS:
        read, target = rows[text]
        assert read[-1] == 1, "the row has an end after its inputs"
        assert run.tokenize(text).tolist() == read
        scored = run.pair_ids(text, told)
        assert (scored[0].tolist(), scored[1].tolist()) == (read, target)


def test_generate_evaluate_and_prompts_give_the_same_text(run: TrainedModel) -> None:
    config = run.config
    assert isinstance(config, RunConfig)
    of_text = TextEvaluation(config, run.task, run.lengths, run.network, run.mesh)  # pyright: ignore[reportArgumentType]
    of_text(run.params, run.step)
    file = Path(config.model_dir) / "evaluations" / f"text_to_text-{run.step}.jsonl"
    _, *lines = map(json.loads, file.read_text().splitlines())
    predictions = {line["input"].removeprefix("tell: "): line["prediction"] for line in lines}
    generated = run.generate([text for text, _ in PAIRS])
    assert generated == [predictions[text] for text, _ in PAIRS] and any(generated)
    chosen = dataclasses.replace(config.evaluation, sampling=GenerationConfig(max_tokens=6))
    sample = sampler(run.network, run.mesh, run.vocabulary, chosen, run.reads_prefix, run.special_ids.input_end)
    assert sample is not None
    assert sample(run.params)["tell: Line 3 of a text"] == [generated[3]]


def test_a_text_without_an_input_is_scored_as_before(run: TrainedModel) -> None:
    """Minimal pairs and bits per byte are about texts, not about targets."""
    text = "a text"
    ids = np.asarray([*run.vocabulary.encode(text)])
    logits = run.logits_of_ids([(np.asarray([0]), ids)])[0].astype(np.float64)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = logits[range(len(ids)), ids].sum()
    assert run.log_likelihoods([("", text)], ends=False)[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("how", ["exported", "saved", "exported, and made into a checkpoint"])
@pytest.mark.slow
def test_what_is_made_of_a_run_reads_inputs_as_the_run(how: str, run: TrainedModel, tmp_path: Path) -> None:
    """A folder's tokenizer has nothing after a text: the record says it to Limba, and the card to others."""
    causal = dataclasses.replace(run.source.model, prefix_attention="causal")
    source = dataclasses.replace(run.source, model=causal)
    trained = limba.load(source)
    if how == "saved":
        folder = Path(trained.save(tmp_path / "saved"))
    else:
        folder = export(source, tmp_path / "exported", [5], Choices(formats=("pytorch",), checks=False))[5]
    opened = limba.load(folder)
    if how.endswith("checkpoint"):
        import_folder(folder, tmp_path / "checkpoint")
        opened = limba.load(tmp_path / "checkpoint", vocabulary="byte")
    texts = [f"tell: {text}" for text, _ in PAIRS]  # the folder does not know the prefix of the task
    for text, (prompt, told) in zip(texts, PAIRS, strict=True):
        assert opened.tokenize(text).tolist() == trained.tokenize(prompt).tolist()
        of_folder = opened.pair_ids(text, told)
        of_run = trained.pair_ids(prompt, told)
        assert all(np.array_equal(one, other) for one, other in zip(of_folder, of_run, strict=True))
    # Random weights write bytes that no text has, which a folder's tokenizer and ours show otherwise: ids are compared.
    fields = GenerationFields(max_tokens=6, ban_sentinels=False)
    there = [written.ids.tolist() for (written,) in opened.samples(texts, **fields)]
    assert there == [written.ids.tolist() for (written,) in trained.samples([text for text, _ in PAIRS], **fields)]
    if how == "exported":
        assert '"An input" + tokenizer.eos_token' in (folder / "README.md").read_text()
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs(texts[0] + theirs.eos_token).input_ids == opened.tokenize(texts[0]).tolist()
