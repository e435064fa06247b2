"""A model with the rows of its vocabulary that a text needs: embedding, output layer, ids and tokenizer together.

A folder for transformers becomes such a folder; its arrays are copied as they are stored, one at a time, except for the
rows of the vocabulary. A run, and a checkpoint of T5X, becomes a checkpoint to start from (`trimming_run`). A text
whose old pieces are all kept is split into the same pieces (`limba.data.vocabulary.pieces` says why), so its hidden
states are the same bits. The softmax runs over fewer rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import sentencepiece
from etils import epath

from limba.config import InputError, untrusted_files
from limba.config.waiting import waiting
from limba.data.vocabulary.addresses import address_of
from limba.data.vocabulary.load import ROWS_MULTIPLE
from limba.data.vocabulary.pieces import Pieces, few
from limba.data.vocabulary.published import PublishedVocabulary
from limba.data.vocabulary.published_files import read_json
from limba.data.vocabulary.sentinels import num_sentinels
from limba.data.vocabulary.tokenizers import TokenizersVocabulary
from limba.data.vocabulary.trimmed_files import MODELS, Json, Kept, with_new_ids, write_tokenizer_files
from limba.data.vocabulary.vocabularies import Vocabulary
from limba.export import trimming_run
from limba.export.card import public_name
from limba.export.huggingface import write_start
from limba.export.trimming_report import Trimmed, coverage_of
from limba.formats import huggingface
from limba.formats.huggingface_files import ENCODER, write_weights
from limba.formats.huggingface_names import NAMES, canonical, is_passed_over
from limba.formats.names import BIN, BIN_INDEX, SAFETENSORS, Arrays, Stored, made_from, taken
from limba.formats.open import HUGGING_FACE, LIMBA, VocabularyName, open_path, vocabulary_beside
from limba.formats.sentence_modules import FILES as MODULE_FILES
from limba.formats.weights import DTYPES, FLAX_FILE, WEIGHT_DTYPES, weights_files, weights_form
from limba.inference import source as sources
from limba.inference.source import Source, published_folder
from limba.storage import lease

COVERAGE = 0.9999  # of a text's tokens: a rarer piece is cut into others
RECORD = "trimmed.json"  # in a trimmed folder: the old id of each row
NUM_COMPARED = 1_000  # documents whose ids are compared before and after
# Ids that a class of transformers 5.23 has where config.json names none: they must be written once they change.
_OF_T5 = {"pad_token_id": 0, "eos_token_id": 1}
DEFAULT_IDS: Mapping[str, Mapping[str, int]] = {
    "t5": _OF_T5,
    "mt5": {**_OF_T5, "decoder_start_token_id": 0},
    "umt5": {**_OF_T5, "decoder_start_token_id": 0},
    "llama": {"bos_token_id": 1, "eos_token_id": 2},
    "gpt2": {"bos_token_id": 50256, "eos_token_id": 50256},
    "eurobert": {
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "pad_token_id": 128001,
        "mask_token_id": 128002,
    },
    "modernbert": {
        "bos_token_id": 50281,
        "eos_token_id": 50282,
        "pad_token_id": 50283,
        "cls_token_id": 50281,
        "sep_token_id": 50282,
    },
}
# Files without ids or rows, which are copied.
COPIED = (
    "special_tokens_map.json",
    "chat_template.jinja",
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
Progress = Callable[[int], object]  # called with the bytes that were tokenized


@dataclass(frozen=True)
class Part:
    """Arrays of a model with the rows of its vocabulary: a checkpoint, or a folder; a hybrid's folder has two parts."""

    path: str  # for messages
    stored: Arrays  # read on access; a folder's as they are stored, by the names in its files
    kind: str | None  # config.json's model_type, which gives the arrays their names; None: they have T5X's
    folder: Path | None = None

    def axis(self, name: str) -> int | None:
        """Returns on which axis an array has a row for each id; None for another array."""
        if self.kind is None:
            return trimming_run.TABLES.get(name)
        names = NAMES[self.kind]
        tables = (*names.embedding, names.output, names.output.replace("weight", "bias"))
        return 0 if canonical(name, self.kind) in tables else None

    @property
    def tables(self) -> dict[str, int]:
        """The rows of each array that has one for each id."""
        rows_of = {}
        for name, array in self.stored.stored.items():
            axis = self.axis(name)
            if axis is not None:
                rows_of[name] = array.shape[axis]
        return rows_of

    @property
    def copies(self) -> list[str]:
        """The other names of an embedding that a folder holds several times."""
        if self.kind is None:
            return []
        embeddings = NAMES[self.kind].embedding
        return [name for name in self.stored if canonical(name, self.kind) in embeddings][1:]

    def num_parameters(self, arrays: Mapping[str, Stored]) -> int:
        """Returns how many numbers some of the arrays have; an embedding with several names is counted once."""
        copies = self.copies
        return sum(math.prod(array.shape) for name, array in arrays.items() if name not in copies)

    @property
    def of_the_model(self) -> dict[str, Stored]:
        """The arrays without those that transformers passes over."""
        if self.kind is None:
            return self.stored.stored
        return {
            name: array
            for name, array in self.stored.stored.items()
            if not is_passed_over(canonical(name, self.kind), self.kind)
        }

    def cut(self, rows: np.ndarray) -> Arrays:
        """Returns the arrays with these rows, read on access."""
        arrays: dict[str, Stored] = {}
        for name, array in self.of_the_model.items():
            axis = self.axis(name)
            if axis is None:
                arrays[name] = array
                continue
            shape = (*array.shape[:axis], len(rows), *array.shape[axis + 1 :])
            arrays[name] = Stored(shape, array.dtype, partial(taken, array, rows, axis))
        return Arrays(arrays)


@dataclass(frozen=True)
class Plan:
    """A model, and the ids of its vocabulary that stay."""

    source: Source
    parts: Sequence[Part]
    checkpoint: epath.Path | None  # of a run
    pieces: Pieces
    kept: Kept
    num_rows: int  # before
    num_needed: int  # ids that the text needs; the other kept ones fill up the rows

    @property
    def rows(self) -> np.ndarray:
        """The old numbers of the rows that stay: an id beyond the rows has none."""
        return np.array([number for number in self.kept.ids if number < self.num_rows])

    @property
    def num_kept(self) -> int:
        return self.kept.num_rows(self.num_rows)


def check_output(out: str) -> Path:
    """Returns the output's path; InputError if something is there, or it is in a bucket.

    >>> check_output("gs://bucket/model")
    Traceback (most recent call last):
    limba.config.errors.InputError: gs://bucket/model is in a bucket, ...; give a local folder.
    """
    if "://" in out:
        raise InputError(f"{out} is in a bucket, and a trimmed model is written to a disk; give a local folder.")
    path = Path(os.path.expanduser(out))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} is not empty; name a new directory.")
    return path


def opened(path: str, vocabulary: VocabularyName | None = None, weights: bool = True) -> Source:
    """Returns the model at a path, with this vocabulary; a folder's for transformers without its weights.

    Without `weights` a hub id's are not downloaded. Raises InputError for a vocabulary other than the one in a
    folder for transformers.

    >>> source = opened("runs/demo")
    >>> vocabulary_of(source).vocab_size, num_tables(source)
    (359, 2)
    """
    at_path = open_path(path, with_weights=weights)
    if at_path.kind != HUGGING_FACE:
        return sources.find(path, vocabulary=vocabulary)
    folder = at_path.directory
    if vocabulary is not None:
        raise InputError(
            f"{path} is a folder for transformers with a tokenizer of its own, and {vocabulary.path} is another"
            " vocabulary; leave that out."
        )
    whole_path = Path(os.path.expanduser(path)).resolve()
    is_part = (folder.parent / "modules.json").exists() and whole_path != Path(folder)
    if is_part:  # the modules beside the part would be lost, and its vectors would be others
        raise InputError(
            f"{path} has its network in the folder {folder.name}, as early versions of sentence-transformers saved it;"
            " open it with sentence-transformers, save it again, and trim that."
        )
    model = huggingface.model_config(Path(folder) / "config.json")
    return Source(**vars(at_path), model=model, vocabulary=at_path.vocabulary_in_folder())


def vocabulary_of(source: Source) -> Vocabulary:
    """Returns a model's vocabulary; InputError for a model without one."""
    name_and_vocabulary = sources.open_vocabulary(source)
    if name_and_vocabulary is not None:
        return name_and_vocabulary[1]
    folder = source.directory
    other = next((name for name in sources.OTHER_VOCABULARIES if (folder / name).exists()), None)
    if other is not None:
        raise InputError(
            f"{source.path} has its vocabulary as {other}, from which transformers makes a tokenizer.json, which Limba"
            f" reads: transformers.AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})."
        )
    raise InputError(f"{source.path} has no vocabulary beside it, so its rows have no names; give its vocabulary too.")


def num_tables(source: Source) -> int:
    """Returns how many matrices a model stores with a row for each id: one if its output layer is the embedding.

    For a folder for transformers its arrays decide, or its configuration if the weights are not here.
    """
    folder = Path(source.directory)
    if source.kind == HUGGING_FACE and weights_form(folder) in ("safetensors", "bin"):
        kind = _kind(folder)
        names = {canonical(name, kind) for name in huggingface.open_pytorch(folder)}
        has_embedding = bool(names & set(NAMES[kind].embedding))
        has_output = NAMES[kind].output in names
        return max(1, has_embedding + has_output)
    has_own_output = source.model.has_logits and not source.model.logits_via_embedding
    return 2 if has_own_output else 1


def trim(
    model: str | Source,
    texts: Sequence[bytes],
    held_out: Sequence[bytes],
    output: str,
    *,
    coverage: float = COVERAGE,
    vocabulary: VocabularyName | None = None,
    step: int | None = None,
    progress: Progress | None = None,
) -> Trimmed:
    """Writes a model with the rows that UTF-8 texts need to a new folder, whole or not at all; returns what it did.

    `model` is what `limba.load` takes. `step` chooses a checkpoint of a run; None is its best one, or else its newest.
    `vocabulary` is for a T5X checkpoint that names none. The pieces kept are the most frequent ones that make up the
    share `coverage` of the texts' tokens, with the pieces they are made of, single bytes and special tokens; others
    stay up to a multiple of 128 rows. `held_out` is text that is not counted, and that the report is about. `progress`
    is called with the bytes that were tokenized. Raises InputError for a vocabulary of bytes, a T5 without sentinels, a
    tokenizer that does not fit the model's rows, and a result that splits a text differently than before.

    >>> trim("runs/demo", [b"a text"], [], "trimmed")
    Traceback (most recent call last):
    limba.config.errors.InputError: The vocabulary is UTF-8's bytes, ...: there is nothing to trim.
    """
    if not 0 < coverage <= 1:
        raise InputError(f"The coverage is {coverage}; give a share of the text's tokens above 0, 1 at most.")
    if not texts:
        raise InputError("There is no text whose pieces could be kept; give documents.")
    out = check_output(output)
    source = opened(model, vocabulary) if isinstance(model, str) else model
    plan = _planned(source, texts, coverage, step, progress)
    sample = [*held_out, *texts[: max(0, NUM_COMPARED - len(held_out))]][:NUM_COMPARED]
    writing = out.with_name(out.name + ".trimming")
    with lease.held(str(out), beside=True), _new_folder(writing):
        if source.kind == HUGGING_FACE:
            return _trim_folder(plan, sample, held_out, writing, out)
        return _trim_run(plan, sample, held_out, writing, out)


def _planned(
    source: Source, texts: Sequence[bytes], coverage: float, step: int | None, progress: Progress | None
) -> Plan:
    """Returns which ids stay; what cannot be trimmed is refused before the text is cut into pieces."""
    if source.kind == HUGGING_FACE:
        _check_weights(Path(source.directory))
    elif published_folder(source, source.vocabulary) is not None:
        raise InputError(
            f"{source.path} is a run with the tokenizer of a published model, which is trimmed with its folder; convert"
            " the run, and trim that folder."
        )
    vocabulary = vocabulary_of(source)
    pieces = Pieces(vocabulary)
    checkpoint = _checkpoint(source, step)
    parts = _parts(source, step)
    num_rows = _num_rows(source, parts)
    _check(source, pieces, num_rows)
    counts = pieces.counted(texts, progress)
    needed = sorted({*pieces.kept(counts, coverage), *_named_ids(parts, num_rows)})
    kept = Kept(pieces.filled(needed, counts, num_rows, ROWS_MULTIPLE), pieces.names)
    return Plan(source, parts, checkpoint, pieces, kept, num_rows, len(needed))


def _trim_folder(plan: Plan, sample: Sequence[bytes], held_out: Sequence[bytes], writing: Path, out: Path) -> Trimmed:
    """Writes a folder for transformers. The tokenizer comes first: the weights take longest."""
    source = plan.source
    folder = Path(source.directory)
    for part in plan.parts:
        _write_folder(part, _directory_for(part, folder, writing), plan)
    written = dataclasses.replace(
        source,
        directory=epath.Path(writing),
        model=dataclasses.replace(source.model, vocab_size=plan.num_kept),
        vocabulary=vocabulary_beside(epath.Path(writing), None),
    )
    before = plan.pieces.vocabulary
    now = vocabulary_of(written)
    same = _check_same(before, now, plan.kept, sample)
    for part in plan.parts:
        assert part.folder is not None
        _check_files(part.folder, _directory_for(part, folder, writing), plan.kept, sample)
    with waiting(f"writing {out}"):
        for part in plan.parts:
            _write_weights(_directory_for(part, folder, writing), part.cut(plan.rows))
    result = _result(plan, now, held_out, same, out)
    _write_card(folder, writing, source.path, result)
    _write_record(writing, plan)
    if out.exists():
        out.rmdir()
    writing.rename(out)
    return result


def _trim_run(plan: Plan, sample: Sequence[bytes], held_out: Sequence[bytes], writing: Path, out: Path) -> Trimmed:
    """Writes a checkpoint to start from, with the optimizer's averages where their rows can be cut."""
    before = plan.pieces.vocabulary
    now = trimming_run.write_vocabulary(before, plan.kept, writing)
    same = _check_same(before, now, plan.kept, sample)
    model = dataclasses.replace(plan.source.model, vocab_size=plan.num_kept)
    state = None if plan.checkpoint is None else trimming_run.open_state(plan.checkpoint)
    with waiting(f"writing {out}"):
        if state is not None and state.has_averages and not state.means:
            note = (
                f"the optimizer's averages are cut with the rows: a run with the same optimizer goes on from step"
                f" {state.step:,}"
            )
            trimming_run.write_cut_state(state, plan.rows, writing, model, out)
        else:
            note = _why_reset(state)
            write_start(writing, plan.parts[0].cut(plan.rows), model, out)
    return _result(plan, now, held_out, same, out, note)


def _why_reset(state: trimming_run.State | None) -> str:
    """Returns why an optimizer begins anew."""
    if state is None:
        return "the optimizer begins anew: of a checkpoint of T5X only the weights are trimmed"
    if not state.has_averages:
        return "the optimizer begins anew: the checkpoint holds no averages of it"
    return (
        f"the optimizer begins anew: {few(state.means, 2)} are means over a whole matrix, and not of the rows that stay"
    )


def _result(plan: Plan, now: Vocabulary, held_out: Sequence[bytes], same: int, out: Path, note: str = "") -> Trimmed:
    """Returns the report; parameters are the first part's: a hybrid's other part has the same weights."""
    part = plan.parts[0]
    return Trimmed(
        output=str(out),
        rows_before=plan.num_rows,
        rows=plan.num_kept,
        needed=plan.num_needed,
        parameters_before=part.num_parameters(part.of_the_model),
        parameters=part.num_parameters(part.cut(plan.rows).stored),
        coverage=coverage_of(plan.pieces, now, plan.kept, held_out),
        same=same,
        note=note,
    )


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Makes an empty folder in place of whatever a killed process has left there; it is deleted at the end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_weights(folder: Path) -> None:
    """Raises InputError for a folder with two sets of weights, and for one whose only set is Flax's."""
    if weights_form(folder) == "flax":
        raise InputError(
            f"{folder} holds its weights as {FLAX_FILE} alone, which is not trimmed; save the model as safetensors, or"
            " make a Limba checkpoint of it and trim that."
        )
    names = [entry.name for entry in folder.iterdir()]
    sets = [file.name for file in weights_files(names)]
    if SAFETENSORS in sets and made_from(folder / SAFETENSORS):  # Limba's own copy of these
        sets = [name for name in sets if name not in (BIN, BIN_INDEX)]
    if len(sets) > 1:
        raise InputError(
            f"{folder} holds {len(sets)} sets of weights, {' and '.join(sets)}, of which one would stay untrimmed;"
            " remove all but the one that you use."
        )


def _checkpoint(source: Source, step: int | None) -> epath.Path | None:
    """Returns which checkpoint of a run is trimmed; None for any other model. InputError for a step without one."""
    number = source.step_of(step)
    if source.kind != LIMBA:
        return None
    if step is None and source.best is not None:
        return source.best
    return source.steps[number]


def _parts(source: Source, step: int | None) -> list[Part]:
    """Returns the arrays of a model; a hybrid's folder has its encoder in a folder of its own."""
    if source.kind != HUGGING_FACE:
        is_best = step is None and source.best is not None
        stored = source.arrays(None if is_best else source.step_of(step))
        return [Part(source.path, stored, None)]
    folder = Path(source.directory)
    parts = [Part(source.path, huggingface.open_pytorch(folder), _kind(folder), folder)]
    encoder = folder / ENCODER
    if (encoder / "config.json").is_file() and weights_form(encoder) is not None:
        _check_weights(encoder)
        parts.append(Part(str(encoder), huggingface.open_pytorch(encoder), _kind(encoder), encoder))
    return parts


def _directory_for(part: Part, folder: Path, out: Path) -> Path:
    """Returns where a part of a model in `folder` is written below `out`."""
    assert part.folder is not None
    return out / part.folder.relative_to(folder)


def _kind(folder: Path) -> str:
    config = read_json(epath.Path(folder), "config.json") or {}
    kind = str(config.get("model_type"))
    if kind not in NAMES:
        raise InputError(f"{folder} is a {kind!r}, which is not trimmed; only {', '.join(NAMES)} are.")
    return kind


def _num_rows(source: Source, parts: Sequence[Part]) -> int:
    """Returns the rows of a model's embedding; InputError where its arrays or its configuration do not agree."""
    sizes: dict[str, int] = {}
    for part in parts:
        tables = part.tables
        if not tables:
            raise InputError(f"{part.path} holds no embedding of a vocabulary; give a whole model.")
        beside = "" if part is parts[0] else f" of {ENCODER}/"
        sizes |= {f"{name}{beside}": size for name, size in tables.items()}
        if beside and part.folder is not None:
            config = huggingface.model_config(part.folder / "config.json")
            sizes[f"vocab_size in {ENCODER}/config.json"] = config.vocab_size
    sizes["vocab_size in its configuration"] = source.model.vocab_size
    first, *others = sizes.items()
    for name, size in others:
        if size != first[1]:
            raise InputError(
                f"{source.path} has {first[1]:,} rows in {first[0]} and {size:,} in {name}; copy the model again, or"
                " resize its embedding in transformers."
            )
    return first[1]


def _check(source: Source, pieces: Pieces, num_rows: int) -> None:
    """Raises InputError for pieces without a row, and for a T5 whose vocabulary has no sentinels."""
    vocabulary = pieces.vocabulary
    model = source.model
    added: set[int] = set()
    if isinstance(vocabulary, TokenizersVocabulary):
        added = set(vocabulary.tokenizer.get_added_tokens_decoder())
    beyond = [name for number, name in sorted(pieces.names.items()) if number >= num_rows and number not in added]
    if beyond:
        raise InputError(
            f"The vocabulary {address_of(vocabulary)} has {pieces.num_ids:,} ids and the model {num_rows:,} rows, so"
            f" {len(beyond):,} pieces have none ({few(beyond, 3)}): it belongs to another model."
        )
    fills_gaps = not (model.is_decoder_only or model.is_t5_encoder)
    if fills_gaps and not num_sentinels(vocabulary):
        raise InputError(
            f"The vocabulary {address_of(vocabulary)} has {pieces.num_ids:,} ids and no sentinel (<extra_id_0>, …),"
            f" with which a T5 fills gaps, so their rows among the model's {num_rows:,} are not known; give the"
            " vocabulary with its sentinels."
        )


def _named_ids(parts: Sequence[Part], num_rows: int) -> set[int]:
    """Returns the ids that the configurations of a folder name, or their class has by itself: they stay."""
    named_ids: set[int] = set()
    for part in parts:
        if part.kind is None or part.folder is None:
            continue
        folder = epath.Path(part.folder)
        config = read_json(folder, "config.json") or {}
        generation = read_json(folder, "generation_config.json") or {}
        for settings in (DEFAULT_IDS.get(part.kind, {}), config, generation):
            for key, value in settings.items():
                if not key.endswith("_token_id"):
                    continue
                ids = value if isinstance(value, list) else [value]
                named_ids |= {number for number in ids if type(number) is int}
    return {number for number in named_ids if 0 <= number < num_rows}


def _write_weights(folder: Path, arrays: Arrays) -> None:
    weights = {DTYPES[letters] for letters in WEIGHT_DTYPES}
    for array in arrays.stored.values():
        if array.dtype.name not in weights:
            array.read()  # raises InputError: it is not a weight
    write_weights(folder, arrays.stored)


def _write_folder(part: Part, out: Path, plan: Plan) -> None:
    """Writes all but the weights of a folder for transformers."""
    folder = part.folder
    assert folder is not None and part.kind is not None
    kept = plan.kept
    out.mkdir(exist_ok=True)
    source = epath.Path(folder)
    config = read_json(source, "config.json") or {}
    made = with_new_ids(config, kept, DEFAULT_IDS.get(part.kind, {}))
    made["vocab_size"] = plan.num_kept
    (out / "config.json").write_text(json.dumps(made, indent=2) + "\n")
    generation = read_json(source, "generation_config.json")
    if generation is not None:
        made = with_new_ids(generation, kept)
        (out / "generation_config.json").write_text(json.dumps(made, indent=2) + "\n")
    written = write_tokenizer_files(folder, out, kept)
    for name in COPIED:
        if name not in written and (folder / name).is_file():
            (out / name).write_bytes(untrusted_files.bytes_of(folder / name))
    # Of sentence-transformers: the poolings, and the layers after them.
    for file in sorted(Path(folder).glob("*_*/*")):
        name = file.relative_to(folder).as_posix()
        if MODULE_FILES.fullmatch(name):
            (out / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, out / name)
    huggingface.copy_learned(sources.json_of(source / huggingface.RECORD), out)  # the proof in it is of the old rows


def _check_same(before: Vocabulary, now: Vocabulary, kept: Kept, texts: Sequence[bytes]) -> int:
    """Returns how many texts have only kept pieces; InputError if one of them has other ids than before.

    The ids around a text, and the ids with a role, are compared too. A word that WordPiece did not know as a whole
    may be cut now, so a text with one is not compared.
    """
    if isinstance(before, PublishedVocabulary) and isinstance(now, PublishedVocabulary):
        sides = [tuple(kept.new[number] for number in side) for side in before.template]
        roles = {role: kept.new[number] for role, number in before.ids.items()}
        if (sides, roles) != ([*now.template], now.ids):
            raise InputError(
                f"{address_of(before)} cannot be trimmed: its special tokens would have other ids, {now.ids} instead of"
                f" {roles}; keep this vocabulary whole."
            )
    comparable = set(kept.new)
    if isinstance(before, TokenizersVocabulary) and type(before.tokenizer.model).__name__ == "WordPiece":
        comparable.discard(before.unk_id)
    same = 0
    for text in texts:
        ids = before.encode(text.decode())
        if not comparable.issuperset(ids):
            continue
        expected = [kept.new[number] for number in ids]
        if list(now.encode(text.decode())) != expected:
            raise _other_pieces(str(address_of(before)), text)
        same += 1
    return same


def _check_files(before: Path, now: Path, kept: Kept, texts: Sequence[bytes]) -> None:
    """Raises InputError if a tokenizer's file, read by its own library, splits a text into other pieces than before.

    AutoTokenizer reads one of a folder's files, and other programs read others: SentencePiece its model, a trainer
    tokenizer.json as it stands. Each is compared by its pieces' names, as ids may differ between the files.
    """
    for name in MODELS:
        if not (before / name).is_file():
            continue
        old = sentencepiece.SentencePieceProcessor(model_file=str(before / name))
        new = sentencepiece.SentencePieceProcessor(model_file=str(now / name))
        for text in texts:
            pieces = old.EncodeAsPieces(text.decode())
            # A letter without a piece stands for itself here, and is unknown to both.
            is_kept = all(piece in kept.pieces or old.PieceToId(piece) == old.unk_id() for piece in pieces)
            if is_kept and new.EncodeAsPieces(text.decode()) != pieces:
                raise _other_pieces(str(before / name), text)
    if (before / "tokenizer.json").is_file():
        _check_same(
            TokenizersVocabulary(str(before / "tokenizer.json")),
            TokenizersVocabulary(str(now / "tokenizer.json")),
            kept,
            texts,
        )


def _other_pieces(path: str, text: bytes) -> InputError:
    return InputError(
        f"{path} cannot be trimmed: {text.decode()[:60]!r} would be split into other pieces than before; keep this"
        " vocabulary whole."
    )


def _write_card(folder: Path, out: Path, name: str, result: Trimmed) -> None:
    """Writes the folder's card with a section about its rows."""
    card = folder / "README.md"
    before = untrusted_files.text_of(card).rstrip("\n") + "\n\n" if card.is_file() else ""
    share = ""
    if result.coverage.tokens:
        share = f" On held-out text {result.coverage.kept_share:.3%} of the tokens are kept pieces."
    section = (
        "## Trimmed vocabulary\n\n"
        f"Made from `{public_name(name)}` by Limba: {result.rows:,} of {result.rows_before:,} rows of the vocabulary"
        f" and {result.parameters:,} of {result.parameters_before:,} parameters remain.{share} Text whose pieces are"
        f" all kept has the same pieces and hidden states as before. `{RECORD}` has the old id of each row.\n"
    )
    (out / "README.md").write_text(before + section)


def _write_record(out: Path, plan: Plan) -> None:
    record: Json = {
        "from": public_name(plan.source.path),
        "rows_before": plan.num_rows,
        "old_ids": plan.rows.tolist(),
    }
    (out / RECORD).write_text(json.dumps(record) + "\n")
