"""Runs that go on from folders of transformers with ids of their own: the batch, its loss and gradient, the export.

Eight classes of models times five styles of tokenizers, and those without padding, or whose padding is their end. Loss
and gradient are computed here again, example by example, in torch by transformers' own class.
"""

import contextlib
import copy
import dataclasses
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers

import limba
from limba.config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    GenerationConfig,
    InputError,
    LossConfig,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
)
from limba.data.objectives import derive_lengths
from limba.data.packing import model_features
from limba.data.stream.streams import TrainStream
from limba.data.tasks import resolve_task
from limba.data.vocabulary.published import open_folder
from limba.data.vocabulary.shifted import StreamVocabulary, row_ids_of
from limba.data.vocabulary.special_ids import as_stream
from limba.export.huggingface import export
from limba.export.record import Choices
from limba.formats import huggingface
from limba.model import Network
from limba.tools.corpus.inspection import inspect_task
from limba.tools.preflight.checks.vocabulary import vocabulary
from limba.training.step import Gradient, gradients
from tasks import t5_mlm, text_to_text  # noqa: F401  register the tasks
from tests import published as folders
from tests.inference.test_published import compare_texts, compare_vectors

SENTINELS = [f"<extra_id_{number}>" for number in range(24)]
KINDS = ("t5", "t5_1_1", "mt5", "umt5", "llama", "gpt2", "eurobert", "modernbert")
STYLES = ("unigram", "padding_last", "bert", "roberta", "gemma")
ODD = ("no_padding", "padding_is_end", "llama")
LANDING = (
    *(("eurobert", "padding_is_end"), ("gpt2", "no_padding"), ("llama", "llama")),
    *(("modernbert", "padding_last"), ("t5", "roberta")),
)
EXPORTED = (("llama", "llama"), ("t5", "roberta"))  # whole runs, before a change lands
OTHERS = sorted({*itertools.product(KINDS, STYLES), *itertools.product(KINDS, ODD)} - set(LANDING))


def tokenizer_of(kind: str, style: str) -> Any:
    """Returns a tokenizer, with sentinels for a T5 and a mask for an encoder."""
    of_style = {"padding_last": "endoftext", "no_padding": "endoftext", "padding_is_end": "roberta"}
    more = {"padding_last": {"pad_token": "<|pad|>"}, "padding_is_end": {"pad_token": "</s>"}}
    roles = folders.STYLES[of_style.get(style, style)]()[1]
    choices = dict(more.get(style, {}))
    if kind in ("eurobert", "modernbert") and "mask_token" not in roles:
        choices["mask_token"] = "<|mask|>"
    if kind not in ("eurobert", "modernbert") and not roles.keys() & {"eos_token", "sep_token"}:
        choices["eos_token"] = "</s>"
    tokenizer = folders.generic(of_style.get(style, style), **choices)
    if kind.endswith("t5") or kind == "t5_1_1":
        tokenizer.add_tokens(SENTINELS, special_tokens=True)
    return tokenizer


def saved(folder: Path, kind: str, style: str) -> Any:
    """Saves a folder; of T5s with half as large weights.

    With the weights of `model_of`, gradients of a T5, whose scores are not divided by sqrt(C), are not determined in
    float32: torch's own differ from those in float64 by 4e-4 of the largest, and by 2e-6 with half as large weights.
    """
    more = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False} if kind == "t5_1_1" else {}
    model = folders.saved(folder, kind.removesuffix("_1_1"), tokenizer_of(kind, style), **more)
    if model.config.is_encoder_decoder:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(0.5)
        model.save_pretrained(folder)
    return model


def run_of(folder: Path, kind: str, directory: Path, **changes: Any) -> RunConfig:
    """Returns a tiny run that goes on from a folder, over texts of several lengths."""
    corpus = directory / "corpus.jsonl"
    directory.mkdir(parents=True, exist_ok=True)
    texts = [folders.CORPUS[n % 60][n % 9 : 20 + 13 * (n % 7)] for n in range(600)]
    texts += ["ends </s> inside <|endoftext|> of <pad> a text"] * 5
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    model = huggingface.model_config(folder, dropout_rate=0.0)
    is_t5 = not model.is_decoder_only
    if is_t5:
        objective = "span_corruption"
        gap = "<extra_id_0>"
    elif model.is_encoder:
        objective = "masked_lm"
        gap = "<mask>"
    else:
        objective = "causal_lm"
        gap = "7"
    data = DataConfig(
        "t5_mlm",
        {"inputs": 128} if is_t5 else {"targets": 60},
        batch_size=8,
        vocabulary=str(folder),
        data_files=str(corpus),
        objective=objective,
        pack=not is_t5,
        num_data_shards=2,
        validation_percent=5.0,
        task_modules=("tasks.t5_mlm",),
    )
    data = dataclasses.replace(data, **changes)
    return RunConfig(
        model,
        data,
        str(directory / "run"),
        20,
        optimizer=optimizer_config("adamw", schedule=ScheduleConfig(base_learning_rate=1e-3, warmup_steps=2)),
        loss=LossConfig(z_loss=0.0),
        checkpoint=CheckpointConfig(every_steps=10),
        evaluation=EvaluationConfig(every_steps=10, num_batches=2, prompts=(f"Line {gap} of a small text",)),
        generation=GenerationConfig(ban_sentinels=False),  # as in transformers
        initial_checkpoint_path=str(folder),
        log_every_steps=5,
        report_to="none",
    )


def first_batch(config: RunConfig) -> dict[str, np.ndarray]:
    """Returns the first batch as the step gets it."""
    return next(batches(config))


def batches(config: RunConfig) -> Iterator[dict[str, np.ndarray]]:
    """Yields the first three batches as the steps get them."""
    data = config.data
    task = resolve_task(data)
    vocabulary = task.output_features["targets"].vocabulary
    stream = TrainStream(task, derive_lengths(task, data.task_feature_lengths), data, range(data.num_shards))
    ids = row_ids_of(vocabulary)
    with contextlib.closing(stream):
        for rows in itertools.islice(stream, 3):
            parts = [model_features(rows[shard], data.sequence_length, data.num_predicted, ids) for shard in rows]
            yield {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def examples_of(batch: Mapping[str, np.ndarray]) -> Iterator[dict[str, list[int]]]:
    """Yields each example of a batch, without padding: one of several in a packed row."""
    targets = batch["decoder_target_tokens"]
    read = batch.get("decoder_is_read", targets != 0)
    segments = {"decoder": batch.get("decoder_segment_ids", read)}
    if "encoder_input_tokens" in batch:
        read = batch.get("encoder_is_read", batch["encoder_input_tokens"] != 0)
        segments["encoder"] = batch.get("encoder_segment_ids", read)
    for row in range(len(targets)):
        for number in range(1, segments["decoder"][row].max() + 1):
            yield {
                name: values[row][segments[name.split("_")[0]][row] == number].tolist()
                for name, values in batch.items()
                if name.endswith(("_tokens", "weights"))
            }


def in_torch(model: Any, batch: Mapping[str, np.ndarray]) -> tuple[float, float, np.ndarray]:
    """Returns the summed loss, the sum of weights, and the gradient of the embedding, by transformers' own class.

    torch leaves out the gradient of the row of padding_idx, which here may be an end: text.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None
    model.zero_grad()
    total = torch.zeros(())
    weight = 0.0
    for example in examples_of(batch):
        inputs = {"input_ids": torch.tensor([example["decoder_input_tokens"]])}
        if "encoder_input_tokens" in example:
            inputs = {"input_ids": torch.tensor([example["encoder_input_tokens"]])} | {
                "decoder_input_ids": inputs["input_ids"]
            }
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        nats = torch.nn.functional.cross_entropy(
            model(**inputs).logits[0], torch.tensor(example["decoder_target_tokens"]), reduction="none"
        )
        weights = torch.tensor(example["decoder_loss_weights"], dtype=torch.float32)
        total = total + (nats * weights).sum()
        weight += float(weights.sum())
    total.backward()
    return float(total.detach()), weight, model.get_input_embeddings().weight.grad.numpy()


def settled_batch(config: RunConfig, model: Any) -> dict[str, np.ndarray]:
    """Returns the first batch whose gradient by transformers is the same in float32 and float64.

    A ReLU whose input is zero but for rounding passes its gradient on or does not: there is nothing to compare with.
    """
    exact = copy.deepcopy(model).double()
    for batch in batches(config):
        gradient = in_torch(model, batch)[2]
        if np.abs(gradient - in_torch(exact, batch)[2]).max() <= 1e-5 * np.abs(gradient).max():
            return batch
    raise AssertionError("no batch of three has a gradient that does not depend on rounding")


def check_first_batch(config: RunConfig, model: Any) -> dict[str, np.ndarray]:
    """Compares loss and gradient of the first batch, for T5 1.0's ReLU of a settled one; returns the batch."""
    has_relu = config.model.mlp_activations == ("relu",)
    batch = settled_batch(config, model) if has_relu else first_batch(config)
    trained = limba.load(str(config.initial_checkpoint_path))
    gradient = Gradient(Network(config.model), config.loss)
    compute = jax.jit(lambda params, batch: gradients(gradient, params, batch, None))
    grads, sums = compute(trained.params, batch)
    total, weight, of_embedding = in_torch(model, batch)
    assert float(sums["weights"]) == weight > 50
    assert float(sums["loss"]) == pytest.approx(total, rel=1e-4)
    ours = np.asarray(grads["token_embedder"]["embedding"])
    is_tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    of_head = grads["decoder"].get("logits_dense", {})  # ModernBERT's, which is tied here too, has a bias alone
    if is_tied and "kernel" in of_head:
        # transformers 5 ties an mT5's output layer without a T5's scale, which is a layer of its own here.
        ours = ours + np.asarray(of_head["kernel"]).T
    assert np.abs(ours - of_embedding).max() <= 1e-4 * np.abs(of_embedding).max()
    return batch


def check_ids(config: RunConfig, folder: Path) -> None:
    """Compares the stream's ids with AutoTokenizer's, and the rows with its ids of the corpus's text."""
    vocabulary = resolve_task(config.data).output_features["targets"].vocabulary
    assert isinstance(vocabulary, StreamVocabulary)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    special = [token.content for token in theirs.added_tokens_decoder.values() if token.special]
    for text in folders.TEXTS:
        ids = theirs(text, add_special_tokens=False).input_ids
        assert list(vocabulary.published.encode(text)) == ids
        if not any(name in text for name in special):
            assert [number - vocabulary.offset for number in vocabulary.encode(text)] == ids
    roles = {theirs.eos_token_id, theirs.bos_token_id, theirs.pad_token_id} - {None}
    read = {number - vocabulary.offset for number in vocabulary.encode(" ".join(special))}
    assert not read & roles, "a corpus must not be able to end a document"


def compare_first_batch(kind: str, style: str, directory: Path) -> tuple[RunConfig, Any]:
    """Saves a folder, and compares the ids, the loss and the gradient of a run that goes on from it."""
    model = saved(directory / "folder", kind, style)
    config = run_of(directory / "folder", kind, directory)
    check_ids(config, directory / "folder")
    check_first_batch(config, model)
    return config, model


def compare_run(config: RunConfig, kind: str, directory: Path) -> None:
    """Trains 20 steps; compares the run, opened by Limba, and its export with transformers, and the export's files."""
    before = directory / "folder"
    result = limba.train(config)
    assert result["step"] == 20 and np.isfinite(result["validation"]["loss"])
    run = limba.load(config.model_dir)
    choices = Choices(formats=("pytorch",))
    folder = export(run.source, directory / "exported", [20], choices)[20]
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        assert (before / name).exists() == (folder / name).exists(), name
        if (before / name).exists():
            assert (before / name).read_bytes() == (folder / name).read_bytes(), name
    published, written = (json.loads((model_folder / "config.json").read_text()) for model_folder in (before, folder))
    assert _ids_of(published) == _ids_of(written)
    for size in ("vocab_size", "max_position_embeddings"):  # the rows of the run are shorter
        assert written.get(size) == published.get(size), size
    assert folders.ids_of(before) == folders.ids_of(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, published["architectures"][0]).from_pretrained(folder).eval()
    if run.network.config.is_encoder:
        compare_vectors(run, model, theirs)
    else:
        compare_texts(run, model, theirs)


def _ids_of(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key.endswith("_token_id")}


@pytest.mark.parametrize(("kind", "style"), LANDING)
@pytest.mark.slow
def test_loss_and_gradient_of_published_ids_are_those_of_transformers(kind: str, style: str, tmp_path: Path) -> None:
    compare_first_batch(kind, style, tmp_path)


@pytest.mark.night
@pytest.mark.parametrize(("kind", "style"), OTHERS)
def test_a_run_from_any_folder_is_exported_with_its_ids(kind: str, style: str, tmp_path: Path) -> None:
    config, _ = compare_first_batch(kind, style, tmp_path)
    compare_run(config, kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "style"), EXPORTED)
def test_a_run_is_exported_with_the_ids_and_files_that_were_published(kind: str, style: str, tmp_path: Path) -> None:
    saved(tmp_path / "folder", kind, style)
    compare_run(run_of(tmp_path / "folder", kind, tmp_path), kind, tmp_path)


@pytest.mark.night
@pytest.mark.parametrize(("kind", "style"), sorted(set(LANDING) - set(EXPORTED)))
def test_the_other_runs_of_a_landing_are_exported_with_their_ids(kind: str, style: str, tmp_path: Path) -> None:
    saved(tmp_path / "folder", kind, style)
    compare_run(run_of(tmp_path / "folder", kind, tmp_path), kind, tmp_path)


@pytest.mark.night
@pytest.mark.parametrize("kind", ["t5", "llama", "eurobert"])
def test_packed_and_unpacked_rows_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    """The other way of packing than `run_of` chooses."""
    model = saved(tmp_path / "folder", kind, "padding_is_end")
    config = run_of(tmp_path / "folder", kind, tmp_path)
    changed = dataclasses.replace(config.data, pack=not config.data.pack)
    check_first_batch(dataclasses.replace(config, data=changed), model)


@pytest.mark.night
@pytest.mark.parametrize(("kind", "style"), [("t5", "roberta"), ("llama", "llama"), ("gpt2", "no_padding")])
def test_pairs_are_those_of_transformers(kind: str, style: str, tmp_path: Path) -> None:
    """Inputs and targets are framed as the tokenizer frames them, and a language model reads them as one text.

    As everywhere, its inputs have an end too.
    """
    folder = tmp_path / "folder"
    model = saved(folder, kind, style)
    is_t5 = kind == "t5"
    config = run_of(
        folder,
        kind,
        tmp_path,
        mixture_or_task_name="text_to_text",
        objective=None,
        column={"inputs": "inputs", "targets": "targets"},
        task_feature_lengths={"inputs": 48, "targets": 32} if is_t5 else {"targets": 80, "prefix": 48},
        pack=False,
    )
    pairs = [{"inputs": f"Line {n} of a small text", "targets": f"told {n} times"} for n in range(200)]
    Path(str(config.data.data_files)).write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    if not is_t5:
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, prefix_attention="causal"))
    batch = check_first_batch(config, model)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    special = limba.load(folder).special_ids
    for example in examples_of(batch):
        read = example.get("encoder_input_tokens")
        written = example["decoder_target_tokens"]
        if read is None:
            text = example["decoder_input_tokens"]
            weights = np.array(example["decoder_loss_weights"])
            first = int(np.flatnonzero(weights)[0])
            read = text[: first + 1]
            written = written[first:]
        input_text, wanted = (theirs.decode(ids, skip_special_tokens=True).strip() for ids in (read, written))
        assert input_text.startswith("Line ") and wanted == f"told {input_text.split()[1]} times"
        framed = theirs(input_text).input_ids
        if not is_t5:
            framed = [*([] if special.before else [special.first]), *framed, special.end]
        assert read == framed
        assert written == special.target(theirs(wanted, add_special_tokens=False).input_ids, follows=not is_t5)


@pytest.mark.night
@pytest.mark.parametrize(("kind", "style"), [("t5", "roberta"), ("llama", "llama")])
def test_a_folder_with_ids_of_its_own_is_fine_tuned_and_its_texts_are_judged(
    kind: str, style: str, tmp_path: Path
) -> None:
    saved(tmp_path / "folder", kind, style)
    pairs = [(f"Line {n} of a small text", f"told {n} times") for n in range(200)]
    tuned = limba.finetune(
        str(tmp_path / "folder"), pairs, steps=4, model_dir=str(tmp_path / "run"), BATCH_SIZE=8, EVAL_PERIOD=4
    )
    assert tuned.special_ids.is_published and len(tuned.generate(["Line 7"], max_tokens=4)) == 1
    (judged,) = (tmp_path / "run" / "evaluations").glob("*-4.jsonl")
    _, *lines = map(json.loads, judged.read_text().splitlines())
    assert lines and {(line["input"], line["target"]) for line in lines} <= set(pairs)
    again = limba.finetune(tuned, pairs, steps=2, model_dir=str(tmp_path / "again"), BATCH_SIZE=8)
    assert again.special_ids == tuned.special_ids


@pytest.mark.parametrize("objective", ["span_corruption", "lm_adaptation"])
def test_rows_of_a_t5_begin_with_its_tokenizers_template(objective: str, tmp_path: Path) -> None:
    """transformers puts <s> before each text that such a T5 reads or writes, and so do pairs and `limba generate`."""
    saved(tmp_path / "folder", "t5", "roberta")
    config = run_of(tmp_path / "folder", "t5", tmp_path, objective=objective)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    begin = theirs.bos_token_id
    end = theirs.eos_token_id
    assert theirs("a text").input_ids[0] == begin
    task = resolve_task(config.data)
    lengths = derive_lengths(task, config.data.task_feature_lengths)
    longest = dict.fromkeys(("inputs", "targets"), 0)
    for example in examples_of(first_batch(config)):
        for name, ids in (("inputs", example["encoder_input_tokens"]), ("targets", example["decoder_target_tokens"])):
            assert (ids[0], ids[-1]) == (begin, end) and begin not in ids[1:]
            longest[name] = max(longest[name], len(ids))
    assert longest == lengths, "the rows are full"


@pytest.mark.slow
def test_an_end_with_the_id_of_padding_has_its_weight(tmp_path: Path) -> None:
    model = saved(tmp_path / "folder", "llama", "padding_is_end")
    config = run_of(tmp_path / "folder", "llama", tmp_path)
    end = model.config.eos_token_id
    assert end == model.config.pad_token_id
    batch = first_batch(config)
    is_end = (batch["decoder_target_tokens"] == end) & (batch["decoder_is_read"] > 0)
    is_padding = (batch["decoder_target_tokens"] == end) & (batch["decoder_is_read"] == 0)
    assert is_end.any() and is_padding.any()
    assert batch["decoder_loss_weights"][is_end].all() and not batch["decoder_loss_weights"][is_padding].any()
    trained = limba.load(tmp_path / "folder")

    of_ends = {**batch, "decoder_loss_weights": batch["decoder_loss_weights"] * is_end}
    compute = jax.jit(lambda batch: gradients(Gradient(trained.network, config.loss), trained.params, batch, None))
    grads, sums = compute(of_ends)
    assert float(sums["weights"]) == is_end.sum()
    assert np.abs(np.asarray(grads["decoder"]["logits_dense"]["kernel"])[:, end]).max() > 1e-3


@pytest.mark.slow
def test_a_run_with_published_ids_resumes_bit_for_bit(tmp_path: Path) -> None:
    saved(tmp_path / "folder", "gpt2", "no_padding")
    config = run_of(tmp_path / "folder", "gpt2", tmp_path)
    whole = dataclasses.replace(config, model_dir=str(tmp_path / "whole"))
    limba.train(whole)
    limba.train(dataclasses.replace(config, train_steps=10))
    shutil.rmtree(tmp_path / "folder")  # its own copy is enough to go on
    limba.train(config)
    first, second = (limba.load(run.model_dir) for run in (whole, config))
    assert first.step == second.step == 20
    for one, other in zip(jax.tree.leaves(first.params), jax.tree.leaves(second.params), strict=True):
        np.testing.assert_array_equal(one, other)
    assert first.generate(["Line 7 of"], max_tokens=5) == second.generate(["Line 7 of"], max_tokens=5)


def test_preflight_and_inspect_show_published_ids(tmp_path: Path) -> None:
    saved(tmp_path / "folder", "llama", "llama")
    config = run_of(tmp_path / "folder", "llama", tmp_path)
    task = resolve_task(config.data)
    section = vocabulary(config, task, derive_lengths(task, config.data.task_feature_lengths))
    assert {line.level for line in section.lines} == {"ok"}
    assert section.data["special_ids"] == {"pad": None, "eos": 2, "unk": 0}
    inspection = inspect_task(task, "train", 60, 4_000, is_sequence=True)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    text = inspection.documents[0].decode()
    ids = theirs(text, add_special_tokens=False).input_ids
    assert inspection.document_tokens[0] == len(ids)
    assert inspection.examples[0]["targets"].tolist() == [*ids, 2][:60]  # after the start that the model reads


def test_what_cannot_be_trained_with_published_ids_is_said_in_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    tokenizer = folders.generic("gemma")
    folders.saved(folder, "t5", tokenizer)
    config = run_of(folder, "t5", tmp_path)
    with pytest.raises(InputError, match=r"has 0 sentinels among its \d+ ids, and the task's objective needs"):
        limba.train(config)
    few = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=128))
    with pytest.raises(InputError, match=r"has \d+ ids, and the model 128 rows"):
        limba.train(few)
    saved(tmp_path / "decoder", "llama", "llama")
    other = dataclasses.replace(config, data=dataclasses.replace(config.data, vocabulary=str(tmp_path / "decoder")))
    with pytest.raises(InputError, match="the folder of a language model, and the run trains an encoder-decoder"):
        limba.train(other)
    with pytest.raises(InputError, match="is 'span_corruption' and .*, without inputs; choose one of prefix_lm"):
        run_of(tmp_path / "decoder", "llama", tmp_path, objective="span_corruption")
    plain = run_of(tmp_path / "decoder", "llama", tmp_path, vocabulary=str(tmp_path / "decoder" / "tokenizer.json"))
    with pytest.raises(InputError, match=r"has ids of its own \(pad_token_id none, eos_token_id 2, bos_token_id 1\)"):
        limba.train(plain)
    (tmp_path / "decoder" / "config.json").unlink()
    with pytest.raises(InputError, match=r"is a folder without config\.json"):
        limba.train(other)


@pytest.mark.parametrize(("kind", "style"), [("llama", "llama"), ("gpt2", "first")])
def test_a_piece_that_is_padding_too_stays_text(kind: str, style: str, tmp_path: Path) -> None:
    """A folder may name any piece as its padding, "!" for one, which is the first of a byte-level vocabulary."""
    padding = "!" if style == "first" else "."
    if style == "first":
        made = transformers.PreTrainedTokenizerFast(
            tokenizer_object=folders.byte_level(()), eos_token="</s>", pad_token=padding
        )
        assert made.pad_token_id == 0
    else:
        made = folders.generic(style, pad_token=padding)
    folders.saved(tmp_path / "folder", kind, made)
    vocabulary = as_stream(open_folder(tmp_path / "folder"))
    assert isinstance(vocabulary, StreamVocabulary) and vocabulary.offset == 1
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    text = "a small text! again!! and signs. so.. on"
    ids = theirs(text, add_special_tokens=False).input_ids
    assert theirs.pad_token_id in ids
    assert [number - 1 for number in vocabulary.encode(text)] == ids
    assert theirs.eos_token_id + 1 not in vocabulary.encode("a </s> text")
