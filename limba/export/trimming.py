"""A model with the rows of its vocabulary that a text needs; embedding, output layer, ids and tokenizer go together.

A folder for transformers becomes such a folder; its arrays are copied as they are stored, one at a time, but for the
rows of the vocabulary. A run, and a checkpoint of T5X, becomes a checkpoint to start from, whose optimizer begins anew.
A text whose old pieces are all kept is cut into the same pieces (`limba.data.vocabulary.needed` says why), so its
hidden states are the same bits. The softmax runs over fewer rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from etils import epath

from limba.config import InputError, foreign
from limba.data.vocabulary.files import content
from limba.data.vocabulary.load import (
    ROWS_MULTIPLE,
    PieceTable,
    address_of,
    load_vocabulary,
    num_sentinels,
    piece_texts,
)
from limba.data.vocabulary.needed import AT_ONCE, Pieces, few, spells_bytes
from limba.data.vocabulary.published import PublishedVocabulary, read_json
from limba.data.vocabulary.tokenizers import TokenizersVocabulary
from limba.data.vocabulary.trimmed import (
    Json,
    Kept,
    sentencepiece_model,
    tokenizer_state,
    with_new_ids,
    write_tokenizer_files,
)
from limba.data.vocabulary.vocabularies import Vocabulary
from limba.export.huggingface import write_start
from limba.formats import huggingface
from limba.formats.architectures import EMBEDDING, HEAD
from limba.formats.huggingface_files import ENCODER, write_weights
from limba.formats.huggingface_names import NAMES, canonical, is_passed_over
from limba.formats.names import BIN, BIN_INDEX, SAFETENSORS, Arrays, Stored, made_from
from limba.formats.open import HUGGING_FACE, VocabularyName, open_path, vocabulary_beside
from limba.formats.sentence_modules import FILES as MODULE_FILES
from limba.formats.weights import DTYPES, WEIGHT_DTYPES, weights_files, weights_form
from limba.inference import source as sources
from limba.inference.source import Source
from limba.storage import lease

COVERAGE = 0.9999  # of a text's tokens: a rarer piece is cut into others
LOW_COVERAGE = 0.9  # below this share of its tokens a text is probably of another language
RECORD = "trimmed.json"  # in a trimmed folder: the old id of each row
NUM_EXAMPLES = 8
NUM_COMPARED = 1_000  # documents whose ids are compared before and after
# Ids that a class of transformers 5.23 has where config.json names none: they have to be written once they change.
_T5 = {"pad_token_id": 0, "eos_token_id": 1}
DEFAULT_IDS: Mapping[str, Mapping[str, int]] = {
    "t5": _T5,
    "mt5": {**_T5, "decoder_start_token_id": 0},
    "umt5": {**_T5, "decoder_start_token_id": 0},
    "llama": {"bos_token_id": 1, "eos_token_id": 2},
    "gpt2": {"bos_token_id": 50256, "eos_token_id": 50256},
    "eurobert": {
        **{"bos_token_id": 128000, "eos_token_id": 128001, "pad_token_id": 128001},
        "mask_token_id": 128002,
    },
    "modernbert": {
        **{"bos_token_id": 50281, "eos_token_id": 50282, "pad_token_id": 50283},
        **{"cls_token_id": 50281, "sep_token_id": 50282},
    },
}
# Files without ids or rows, which are copied.
COPIED = (
    *("special_tokens_map.json", "chat_template.jinja", "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE"),
    *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
)
Progress = Callable[[int], object]  # called with the bytes that were cut


@dataclass
class Coverage:
    """What is left of some text's tokens: counts under the old vocabulary, and examples of what changes."""

    documents: int = 0
    tokens: int = 0
    tokens_now: int = 0
    kept: int = 0  # tokens whose pieces are kept
    lost: int = 0  # tokens that were single bytes of a letter, or unknown, before anything was trimmed
    fell: int = 0  # the same after it, which were none before
    examples: list[str] = field(default_factory=list)

    @property
    def kept_share(self) -> float:
        return self.kept / max(self.tokens, 1)

    @property
    def covered_share(self) -> float:
        """The share of tokens that are pieces of the vocabulary, and are kept."""
        return (self.kept - self.lost) / max(self.tokens, 1)


@dataclass(frozen=True)
class Trimmed:
    """What has become of a model."""

    output: str
    rows_before: int
    rows: int
    needed: int  # ids that the text needs, those that always stay included
    parameters_before: int
    parameters: int
    coverage: Coverage
    same: int  # documents that were compared and have the same pieces as before
    note: str = ""  # what else there is to know

    @property
    def text(self) -> str:
        """What has become of the model, in lines."""
        found = self.coverage
        lines = [
            f"{self.output}: {self.rows:,} of {self.rows_before:,} rows ({self.needed:,} are needed; the others fill"
            f" up to a multiple of {ROWS_MULTIPLE}), {self.parameters:,} of {self.parameters_before:,} parameters",
            f"{self.same:,} documents with kept pieces alone: cut into the same pieces as before",
        ]
        if found.tokens:
            lines.append(
                f"held-out text: {found.documents:,} documents, {found.kept_share:.3%} of {found.tokens:,} tokens are"
                f" kept pieces; {found.tokens_now:,} now, of which {found.fell:,} fell to single bytes or unknown"
            )
            lines += [f"    {example}" for example in found.examples]
        else:
            lines.append("no text was held out, so nothing is known of other text: give more documents")
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)

    @property
    def warning(self) -> str:
        """A sentence about a text that the model's vocabulary was not made for; "" for another one."""
        found = self.coverage
        if not found.tokens or found.covered_share >= LOW_COVERAGE:
            return ""
        return (
            f"only {found.covered_share:.1%} of the tokens of the text that was held out are pieces of this vocabulary"
            f" that are kept; the others are single bytes, unknown, or gone, so the text may be of another language"
            f" than the model{': ' + '; '.join(found.examples) if found.examples else ''}."
        )


def check_output(out: str) -> Path:
    """Returns the output's path; InputError if something is there, or it is in a bucket."""
    if "://" in out:
        raise InputError(f"{out} is in a bucket, and a trimmed model is written to a disk; give a local folder.")
    place = Path(os.path.expanduser(out))
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InputError(f"{place} is not empty; name a new directory.")
    return place


def opened(path: str, vocabulary: VocabularyName | None = None) -> Source:
    """Returns the model at a path, with this vocabulary; of a folder for transformers no weights are read.

    Raises InputError for another vocabulary than that of a folder for transformers.
    """
    found = open_path(path)
    if found.kind != HUGGING_FACE:
        return sources.find(path, vocabulary=vocabulary)
    folder = found.directory
    if vocabulary is not None:
        raise InputError(
            f"{path} is a folder for transformers with a tokenizer of its own, and {vocabulary.path} is another"
            " vocabulary; leave that out."
        )
    is_part = (folder.parent / "modules.json").exists() and Path(os.path.expanduser(path)).resolve() != Path(folder)
    if is_part:  # what stands beside the part would be lost, and its vectors would be others
        raise InputError(
            f"{path} has its network in the folder {folder.name}, as early versions of sentence-transformers saved it;"
            " open it with sentence-transformers, save it again, and trim that."
        )
    model = huggingface.model_config(Path(folder) / "config.json")
    own = found.vocabulary()
    return Source(path, folder, {0: folder}, HUGGING_FACE, model, None, own)


def vocabulary_of(source: Source) -> Vocabulary:
    """Returns a model's vocabulary; InputError for a model without one."""
    found = sources.open_vocabulary(source)
    if found is None:
        raise InputError(
            f"{source.path} has no vocabulary beside it, so its rows have no names; give its vocabulary too."
        )
    return found[1]


def num_tables(source: Source) -> int:
    """Returns how many matrices a model stores with a row for each id: one if its output layer is the embedding."""
    if source.kind != HUGGING_FACE:
        return 1 if source.model.logits_via_embedding else 2
    kind = _kind(source)
    found = {canonical(name, kind) for name in huggingface.open_pytorch(Path(source.directory))}
    has_embedding = bool(found & set(NAMES[kind].embedding))
    return max(1, has_embedding + (NAMES[kind].output in found))


def _check_one_set(folder: Path) -> None:
    names = [entry.name for entry in folder.iterdir()]
    sets = [file.name for file in weights_files(names)]
    if SAFETENSORS in sets and made_from(folder / SAFETENSORS):  # Limba's own copy of these
        sets = [name for name in sets if name not in (BIN, BIN_INDEX)]
    if len(sets) > 1:
        raise InputError(
            f"{folder} holds {len(sets)} sets of weights, {' and '.join(sets)}, of which one would stay untrimmed;"
            " remove all but the one that you use."
        )


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

    `model` is what `limba.load` takes; of a run `step` chooses a checkpoint, its best or its newest one if it is None.
    `vocabulary` is that of a checkpoint of T5X that names none. The pieces kept are the most frequent ones that make
    up the share `coverage` of the texts' tokens, with what these are made of, single bytes and special tokens; more
    stay up to a multiple of 128 rows. `held_out` is text that is not counted and is reported on. `progress` is called
    with the bytes that were cut. Raises InputError for a vocabulary of bytes, a T5 without sentinels, a tokenizer that
    does not fit the model's rows, and a result that cuts a text otherwise than before.
    """
    if not 0 < coverage <= 1:
        raise InputError(f"The coverage is {coverage}; give a share of the text's tokens above 0, 1 at most.")
    if not texts:
        raise InputError("There is no text whose pieces could be kept; give documents.")
    out = check_output(output)
    source = opened(model, vocabulary) if isinstance(model, str) else model
    if source.kind == HUGGING_FACE:
        _check_one_set(Path(source.directory))
    known = vocabulary_of(source)
    pieces = Pieces(known)
    stored = _stored(source, step)
    num_rows = _num_rows(source, stored)
    _check(source, pieces, num_rows)
    counts = pieces.counted(texts, progress)
    always = _always(source, num_rows)
    needed = sorted({*pieces.kept(counts, coverage), *always})
    kept = Kept(pieces.filled(needed, counts, num_rows, ROWS_MULTIPLE), pieces.names)
    with lease.held(str(out), "trims to", beside=True), _new_folder(out.with_name(out.name + ".trimming")) as writing:
        note = ""
        if source.kind == HUGGING_FACE:
            for folder, place in _folders(source, writing):
                _write_folder(folder, place, kept, num_rows)
            now = sources.open_vocabulary(
                dataclasses.replace(
                    source,
                    directory=epath.Path(writing),
                    model=dataclasses.replace(source.model, vocab_size=kept.num_rows(num_rows)),
                    vocabulary=vocabulary_beside(epath.Path(writing), None),
                )
            )
            assert now is not None, "the tokenizer was written"
            trimmed = now[1]
        else:
            trimmed = _write_vocabulary(known, kept, writing)
            note = "the optimizer begins anew: its averages are those of the rows before"
        sample = [*held_out, *texts[: max(0, NUM_COMPARED - len(held_out))]][:NUM_COMPARED]
        same = _check_same(known, trimmed, kept, sample)
        found = _coverage(pieces, trimmed, kept, held_out)
        arrays, before, after = _cut(stored, source, kept, num_rows)
        result = Trimmed(str(out), num_rows, kept.num_rows(num_rows), len(needed), before, after, found, same, note)
        if source.kind == HUGGING_FACE:
            for folder, place in _folders(source, writing):
                if folder != Path(source.directory):
                    arrays, *_ = _cut(huggingface.open_pytorch(folder), source, kept, num_rows)
                _write_weights(place, arrays)
            _write_card(Path(source.directory), writing, source.path, result)
            _write_record(writing, source.path, kept, num_rows)
            if out.exists():
                out.rmdir()
            writing.rename(out)
            return result
        network = dataclasses.replace(source.model, vocab_size=kept.num_rows(num_rows))
        write_start(writing, arrays, network, out)
    return result


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder in place of what a killed process has left there; what is there at the end goes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _stored(source: Source, step: int | None) -> Arrays:
    """Returns a model's arrays, each read on access: of a folder as they are stored, by their names in its files."""
    if source.kind != HUGGING_FACE:
        is_best = step is None and source.best is not None
        return source.arrays(None if is_best else source.step_of(step))
    source.step_of(step)  # which says that a folder has no steps
    return huggingface.open_pytorch(Path(source.directory))


def _kind(source: Source) -> str:
    return str((read_json(source.directory, "config.json") or {}).get("model_type"))


def _of_vocabulary(name: str, kind: str | None) -> int | None:
    """Returns on which axis an array has a row for each id; None for another array. `kind` None: by T5X's names."""
    if kind is None:
        return {EMBEDDING: 0, HEAD: 1, HEAD.replace("kernel", "bias"): 0}.get(name)
    names = NAMES[kind]
    own = canonical(name, kind)
    places = (*names.embedding, names.output, names.output.replace("weight", "bias"))
    return 0 if own in places else None


def _num_rows(source: Source, stored: Arrays) -> int:
    """Returns the rows of a model's embedding; InputError where its arrays or its configuration do not agree."""
    kind = _kind(source) if source.kind == HUGGING_FACE else None
    axes = {name: _of_vocabulary(name, kind) for name in stored}
    sizes = {name: stored.stored[name].shape[axis] for name, axis in axes.items() if axis is not None}
    if not sizes:
        raise InputError(f"{source.path} holds no embedding of a vocabulary; give a whole model.")
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
    added = set()
    if isinstance(vocabulary, TokenizersVocabulary):
        added = set(vocabulary.tokenizer.get_added_tokens_decoder())
    beyond = [name for number, name in sorted(pieces.names.items()) if number >= num_rows and number not in added]
    if beyond:
        raise InputError(
            f"The vocabulary {address_of(vocabulary)} has {pieces.num_ids:,} ids and the model {num_rows:,} rows, so"
            f" {len(beyond):,} pieces have none ({few(beyond, 3)}): it belongs to another model."
        )
    if not (model.is_decoder_only or model.is_t5_encoder) and not num_sentinels(vocabulary):
        raise InputError(
            f"The vocabulary {address_of(vocabulary)} has {pieces.num_ids:,} ids and no sentinel (<extra_id_0>, …),"
            f" with which a T5 fills gaps, so their rows among the model's {num_rows:,} are not known; give the"
            " vocabulary with its sentinels."
        )


def _always(source: Source, num_rows: int) -> set[int]:
    """Returns the ids that a folder's configuration names, which stay."""
    if source.kind != HUGGING_FACE:
        return set()
    found: set[int] = set()
    about = read_json(source.directory, "config.json") or {}
    generation = read_json(source.directory, "generation_config.json") or {}
    for content_of in (DEFAULT_IDS.get(str(about.get("model_type")), {}), about, generation):
        for key, value in content_of.items():
            if key.endswith("_token_id"):
                found |= {number for number in (value if isinstance(value, list) else [value]) if type(number) is int}
    return {number for number in found if 0 <= number < num_rows}


def _cut(stored: Arrays, source: Source, kept: Kept, num_rows: int) -> tuple[Arrays, int, int]:
    """Returns the arrays with the rows that stay, read on access, and the parameters before and after.

    An embedding that a folder holds under several names is counted once.
    """
    kind = _kind(source) if source.kind == HUGGING_FACE else None
    rows = np.array([number for number in kept.ids if number < num_rows])
    embeddings: list[str] = []
    if kind is not None:
        embeddings = [name for name in stored if canonical(name, kind) in NAMES[kind].embedding]
    copies = embeddings[1:]
    found: dict[str, Stored] = {}
    before = 0
    for name, array in stored.stored.items():
        if kind is not None and is_passed_over(canonical(name, kind), kind):
            continue
        before += 0 if name in copies else math.prod(array.shape)
        axis = _of_vocabulary(name, kind)
        if axis is None:
            found[name] = array
            continue
        shape = (*array.shape[:axis], len(rows), *array.shape[axis + 1 :])
        found[name] = Stored(shape, array.dtype, partial(_taken, array, rows, axis))
    after = sum(math.prod(array.shape) for name, array in found.items() if name not in copies)
    return Arrays(found), before, after


def _taken(array: Stored, rows: np.ndarray, axis: int) -> np.ndarray:
    return array.read().take(rows, axis)


def _folders(source: Source, out: Path) -> list[tuple[Path, Path]]:
    """Returns the folders with rows of this vocabulary and where they are written: a hybrid has two of them."""
    folder = Path(source.directory)
    found = [(folder, out)]
    if (folder / ENCODER / "config.json").is_file() and weights_form(folder / ENCODER) is not None:
        found.append((folder / ENCODER, out / ENCODER))
    return found


def _write_weights(folder: Path, arrays: Arrays) -> None:
    known = {DTYPES[letters] for letters in WEIGHT_DTYPES}
    for array in arrays.stored.values():
        if array.dtype.name not in known:
            array.read()  # which says that it is no weight
    write_weights(folder, arrays.stored)


def _write_folder(folder: Path, out: Path, kept: Kept, num_rows: int) -> None:
    """Writes all but the weights of a folder for transformers."""
    out.mkdir(exist_ok=True)
    source = epath.Path(folder)
    about = read_json(source, "config.json") or {}
    defaults = DEFAULT_IDS.get(str(about.get("model_type")), {})
    config = with_new_ids(about, kept, defaults) | {"vocab_size": kept.num_rows(num_rows)}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = read_json(source, "generation_config.json")
    if generation is not None:
        made = with_new_ids(generation, kept)
        (out / "generation_config.json").write_text(json.dumps(made, indent=2) + "\n")
    written = write_tokenizer_files(folder, out, kept)
    for name in COPIED:
        if name not in written and (folder / name).is_file():
            (out / name).write_bytes(foreign.bytes_of(folder / name))
    # Of sentence-transformers: the poolings, and the layers after them.
    for file in sorted(folder.glob("*_*/*")):
        name = file.relative_to(folder).as_posix()
        if MODULE_FILES.fullmatch(name):
            (out / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, out / name)
    record = read_json(source, huggingface.RECORD) or {}
    if record.get(huggingface.ONLY_FILLS_GAPS) is True:
        kept_of_record = {huggingface.ONLY_FILLS_GAPS: True}  # the proof in it is of the old rows
        (out / huggingface.RECORD).write_text(json.dumps(kept_of_record) + "\n")


def _write_vocabulary(vocabulary: Vocabulary, kept: Kept, folder: Path) -> Vocabulary:
    """Writes a run's vocabulary as a file of its own, with the number of its sentinels; returns it as it is read."""
    path = address_of(vocabulary)
    assert path is not None, "bytes are refused"
    if isinstance(vocabulary, TokenizersVocabulary):
        place = folder / "tokenizer.json"
        made = tokenizer_state(json.loads(content(path)), kept)
        place.write_text(json.dumps(made, ensure_ascii=False, indent=2) + "\n")
        return load_vocabulary(str(place))
    place = folder / "spiece.model"
    place.write_bytes(sentencepiece_model(content(path), kept))
    about = {"extra_ids": vocabulary.extra_ids}
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2) + "\n")
    return load_vocabulary(str(place), vocabulary.extra_ids)


def _check_same(before: Vocabulary, now: Vocabulary, kept: Kept, texts: Sequence[bytes]) -> int:
    """Returns how many texts have only kept pieces; InputError if one of them has other ids than before.

    What stands around a text, and the ids with a role, are compared too. A word that WordPiece did not know as a whole
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
    same = 0
    needed = kept.new.keys()
    if isinstance(before, TokenizersVocabulary) and type(before.tokenizer.model).__name__ == "WordPiece":
        needed = needed - {before.unk_id}
    for text in texts:
        ids = before.encode(text.decode())
        if not needed >= set(ids):
            continue
        wanted = [kept.new[number] for number in ids]
        if list(now.encode(text.decode())) != wanted:
            raise InputError(
                f"{address_of(before)} cannot be trimmed: {text.decode()[:60]!r} would be cut into other pieces than"
                " before; keep this vocabulary whole."
            )
        same += 1
    return same


def _coverage(pieces: Pieces, now: Vocabulary, kept: Kept, texts: Sequence[bytes]) -> Coverage:
    """Returns what is left of some texts."""
    before = pieces.vocabulary
    marks = spells_bytes(before)
    of_bytes = {number for number, is_byte in enumerate(marks) if is_byte}
    if before.unk_id is not None:
        of_bytes.add(before.unk_id)
    found = Coverage()
    gone = Counter[int]()
    lost = Counter[int]()
    new_lost = {kept.new[number] for number in of_bytes if number in kept.new}
    for start in range(0, len(texts), AT_ONCE):
        for text in texts[start : start + AT_ONCE]:
            ids = before.encode(text.decode())
            new_ids = now.encode(text.decode())
            found.documents += 1
            found.tokens += len(ids)
            found.tokens_now += len(new_ids)
            found.kept += sum(number in kept.new for number in ids)
            are_lost = [number for number in ids if number in of_bytes]
            found.lost += len(are_lost)
            found.fell += max(0, sum(number in new_lost for number in new_ids) - len(are_lost))
            gone.update(number for number in ids if number not in kept.new)
            if are_lost:
                lost.update(are_lost)
    found.examples = _examples(before, now, gone, lost)
    return found


def _examples(before: Vocabulary, now: Vocabulary, gone: Counter[int], lost: Counter[int]) -> list[str]:
    """Returns the most frequent pieces that are gone, each with what it is cut into now, and those that say no text."""
    spelled = piece_texts(before, before.vocab_size)
    table = PieceTable(now)
    old = PieceTable(before)
    found = []
    for number, count in gone.most_common(NUM_EXAMPLES):
        text = spelled[number].decode(errors="replace")
        cut = [table.name(int(each)) for each in now.encode(text)] if "\ufffd" not in text else []
        found.append(f"{text!r} ({count} times) is now {few(cut, 6) or 'other pieces'}")
    for number, count in lost.most_common(max(0, NUM_EXAMPLES - len(found))):
        found.append(f"{old.name(number)!r} {count} times")
    return found


def _write_card(folder: Path, out: Path, name: str, result: Trimmed) -> None:
    """Writes the folder's card with a section about its rows."""
    card = folder / "README.md"
    before = foreign.text_of(card).rstrip("\n") + "\n\n" if card.is_file() else ""
    share = f" On text that was held out {result.coverage.kept_share:.3%} of the tokens are kept pieces."
    section = (
        "## Trimmed vocabulary\n\n"
        f"Made from `{Path(name).name if os.path.exists(name) else name}` by Limba: {result.rows:,} of"
        f" {result.rows_before:,} rows of the vocabulary are left, {result.parameters:,} of"
        f" {result.parameters_before:,} parameters.{share if result.coverage.tokens else ''} Text whose pieces are all"
        f" kept has the same pieces and hidden states as before. `{RECORD}` has the old id of each row.\n"
    )
    (out / "README.md").write_text(before + section)


def _write_record(out: Path, name: str, kept: Kept, num_rows: int) -> None:
    record: Json = {"from": Path(name).name if os.path.exists(name) else name, "rows_before": num_rows}
    record["old_ids"] = [number for number in kept.ids if number < num_rows]
    (out / RECORD).write_text(json.dumps(record) + "\n")
