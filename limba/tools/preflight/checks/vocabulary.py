"""The vocabulary against the model and the objective: rows, special ids, sentinels, normalization."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from limba.api import Mixture, PieceTable, RunData, Task, Vocabulary, flops_per_sequence, unexportable
from limba.config import Fix, RunConfig, nearest
from limba.tools.preflight.checks.findings import gathered
from limba.tools.preflight.checks.verdict import Data, Line, Section

TITLE = "Vocabulary"
UNUSED = 0.02  # share of a step's FLOPs for rows that no piece has, from which on it is called wasteful
SHOWN = 4  # pieces
NUM_SENTINELS = 100  # that T5's own vocabularies have


def vocabulary(config: RunConfig, task: Task | Mixture, lengths: dict[str, int] | None) -> Section:
    """Returns the section about the vocabulary of a task; `lengths` are a row's, None if they are not known."""
    run = RunData(config.data, task)
    pieces = PieceTable(task.output_features["targets"].vocabulary)
    vocab = pieces.vocabulary
    fills = run.fills_gaps and not config.model.is_decoder_only

    def layout(data: Data) -> Iterator[Line]:
        pieces.check(config.model.vocab_size)
        return _ids(vocab, data)

    def build(_: Data) -> Iterator[Line]:
        if lengths:
            run.build(lengths)
        yield from ()

    return gathered(
        TITLE,
        layout,
        lambda data: _rows(config, pieces, lengths, data),
        lambda data: _sentinels(pieces, data) if fills else (),
        build,
        lambda data: _normalization(vocab, data),
        lambda data: _export(config, vocab, data),
    )


def missing(config: RunConfig, line: Line) -> Line:
    """Returns the line about a vocabulary that does not exist, with a similar file as its fix, or one to train."""
    path = Path(config.data.vocabulary or "")
    files: list[str] = []
    for pattern in ("*.model", "*/*.model", "*.json"):
        files += map(str, sorted(path.parent.glob(pattern)))
    near = nearest(str(path), files)
    if near:
        return dataclasses.replace(line, fix=("DataConfig.vocabulary", near))
    return dataclasses.replace(line, fix=("DataConfig.new_vocabulary_size", config.model.vocab_size))


def _ids(vocab: Vocabulary, data: Data) -> Iterator[Line]:
    ids = {"pad": vocab.pad_id, "eos": vocab.eos_id, "unk": vocab.unk_id}
    data |= {"ids": vocab.vocab_size, "special_ids": ids}
    said = ", ".join(f"{name} {number}" for name, number in ids.items())
    yield Line("ok", f"{_where(vocab)}: {vocab.vocab_size:,} ids, sentinels included; {said}.")


def _where(vocab: object) -> str:
    return str(getattr(vocab, "sentencepiece_model_file", getattr(vocab, "path", "bytes")))


def _rows(config: RunConfig, pieces: PieceTable, lengths: dict[str, int] | None, data: Data) -> Iterator[Line]:
    """Yields how many of the model's rows have a piece, and what the others cost."""
    vocab = pieces.vocabulary
    rows = config.model.vocab_size
    fitting = pieces.fitting_rows
    data["rows"] = rows
    if rows < vocab.vocab_size:
        return  # which the check before has refused
    share = unused_share(config, fitting, lengths) if rows > fitting else 0.0
    text = f"The model has {rows:,} rows for {vocab.vocab_size:,} ids"
    if share < UNUSED:
        if rows % 128:
            text += "; a multiple of 128 suits TPUs better"
        yield Line("ok", f"{text}.")
    elif config.initial_checkpoint_path:
        yield Line("ok", f"{text}; those without a piece are as the checkpoint that the run begins from may need them.")
    else:
        text += f": those without a piece take {share:.0%} of a step's FLOPs, and memory"
        yield Line("warning", f"{text}.", ("ModelConfig.vocab_size", fitting), "unused-rows")


def unused_share(config: RunConfig, fitting: int, lengths: dict[str, int] | None) -> float:
    """Returns the share of a step's FLOPs that goes to rows above the first `fitting` ones."""
    all_lengths = lengths or dict(config.data.task_feature_lengths)
    targets = config.data.sequence_length or all_lengths.get("targets", all_lengths.get("inputs", 1) // 4)
    sides = (all_lengths.get("inputs", 0), targets, config.data.num_predicted)
    needed = flops_per_sequence(dataclasses.replace(config.model, vocab_size=fitting), *sides)
    return 1 - needed / flops_per_sequence(config.model, *sides)


def without_sentinels(config: RunConfig, task: Task | Mixture) -> Line | None:
    """Returns the error of a vocabulary without the sentinels that the task's gaps need; None if there is none."""
    pieces = PieceTable(task.output_features["targets"].vocabulary)
    vocab = pieces.vocabulary
    if pieces.num_sentinels or config.model.is_decoder_only or not RunData(config.data, task).fills_gaps:
        return None
    names = [pieces.name(vocab.vocab_size - 1 - number) for number in range(SHOWN)]
    serve = f"real pieces would serve as them ({', '.join(map(repr, names))}, …)"
    if pieces.kind == "tokenizers":  # which gets none from DataConfig.extra_ids
        text = f"The vocabulary {_where(vocab)} has no sentinels, and {serve}, so that this text could not be told from"
        text += " a gap: add <extra_id_0>, … to the file as special tokens, or set DataConfig.objective to prefix_lm."
        return Line("error", text, [], "no-sentinels")
    rows = math.ceil((vocab.vocab_size + NUM_SENTINELS) / 128) * 128
    fixes: list[Fix] = [("DataConfig.extra_ids", NUM_SENTINELS)]
    if rows > config.model.vocab_size:
        fixes.append(("ModelConfig.vocab_size", rows))
    text = f"DataConfig.extra_ids is too low: the vocabulary {_where(vocab)} has no sentinels, and {serve},"
    text += " so that this text could not be told from a gap."
    return Line("error", text, fixes, "no-sentinels")


def _sentinels(pieces: PieceTable, data: Data) -> Iterator[Line]:
    count = pieces.num_sentinels
    data["sentinels"] = count
    first = pieces.sentinels[0] if count else pieces.vocabulary.vocab_size - 1
    step = pieces.sentinels[1] - first if count > 1 else -1
    said = "they count down from there" if step < 0 else "they count up from there"
    yield Line("ok", f"{count} sentinels: <extra_id_0> is id {first}, and {said}.")


def _normalization(vocab: Any, data: Data) -> Iterator[Line]:
    if PieceTable(vocab).kind == "sentencepiece":
        model = sentencepiece_model_pb2.ModelProto.FromString(vocab.tokenizer.serialized_model_proto())  # pyright: ignore[reportAttributeAccessIssue]
        rules = model.normalizer_spec.name or "of its own"
        has_bytes = any(piece.type == piece.BYTE for piece in model.pieces)
        data |= {"normalization": rules, "byte_pieces": has_bytes}
        said = [f"rules {rules}"]
        if model.normalizer_spec.remove_extra_whitespaces:
            said.append("spaces in a row become one")
        if has_bytes:
            said.append("other letters are spelled in bytes")
        else:
            said.append("other letters are lost as <unk>")
        yield Line("ok", f"Normalization: {', '.join(said)}.")
    elif PieceTable(vocab).kind == "tokenizers":  # a tokenizer.json
        kind = (json.loads(vocab.tokenizer.to_str()).get("normalizer") or {}).get("type", "none")
        data["normalization"] = kind
        yield Line("ok", f"Normalization: {kind}.")
    else:
        data["normalization"] = "none"
        yield Line("ok", "Normalization: none; every text can be spelled.")


def _export(config: RunConfig, vocab: Vocabulary, data: Data) -> Iterator[Line]:
    """Yields whether the tokenizer of an exported folder will give the ids of the training."""
    reason = unexportable(config.model, vocab)
    data["exportable"] = reason is None
    if reason is None:
        kind = _kind(vocab)
        yield Line("ok", f"Export: tokenizer.json will give the same ids{kind}.")
        return
    is_exported = config.export_to or config.hub_model_id
    field = "RunConfig.export_to" if config.export_to else "RunConfig.hub_model_id"
    consequence = "" if is_exported else " The run trains, and its model is exported without a tokenizer only."
    fix = (field, None) if is_exported else None
    yield Line("error" if is_exported else "warning", f"{reason}{consequence}", fix, "not-exportable")


def _kind(vocab: Any) -> str:
    if PieceTable(vocab).kind != "sentencepiece":
        return ""
    trainer = sentencepiece_model_pb2.ModelProto.FromString(vocab.tokenizer.serialized_model_proto()).trainer_spec  # pyright: ignore[reportAttributeAccessIssue]
    name = trainer.ModelType.Name(trainer.model_type).lower()
    return "" if name == "unigram" else f" (of SentencePiece's type {name}; T5's own are unigram)"
