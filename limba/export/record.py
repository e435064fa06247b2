"""The choices of an export, and the record in its folder: what it was made of, and whether that is wanted now.

The record is not in config.json, which transformers writes into the folder of whatever is fine-tuned from this one.
"""

import dataclasses
import json
from dataclasses import dataclass

import google_crc32c
from etils import epath

from limba.config import CardConfig, InputError
from limba.config.model import FREE_FIELDS
from limba.config.waiting import waiting
from limba.data.vocabulary import files
from limba.formats.huggingface import RECORD, head_scale
from limba.formats.names import Json
from limba.formats.open import HUGGING_FACE, LIMBA, T5X
from limba.formats.weights import files_to_download
from limba.inference.source import Source
from limba.storage import manifest

FORMATS = ("pytorch", "flax")
NONE = "none"  # as a vocabulary name: write no tokenizer
# In a record: the checksum of the files that the folder was made from, and what its card was told.
CHECKPOINT = "checkpoint"
CARD = "card"
# What a record leaves out where a folder is as most are.
LEFT_OUT = {"average": True, "encoder_only": False, "transformers": None}
# There, in place of a vocabulary that a command has named: the source's own, or that no vocabulary is known.
OWN = "its own"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Choices:
    """The choices of an export."""

    formats: tuple[str, ...] = FORMATS
    dtype: str = "float32"
    vocabulary: str | None = None  # a SentencePiece model's path, 'byte', 'none', or None: the run's own
    extra_ids: int | None = None  # above the pieces of `vocabulary`; None: as `open_vocabulary` chooses
    checks: bool = True
    card: CardConfig = dataclasses.field(default_factory=CardConfig)  # what it leaves out is as in the run's own
    dropout: float = 0.1  # of config.json, for those who fine-tune; pretraining mostly has none
    average: bool = True  # of a run that evaluates an average of its weights: that average, and not the weights
    transformers: int = 5  # the version that reads the folder: it matters for an untied umT5 alone
    encoder_only: bool = False  # of a T5: its encoder alone, as T5EncoderModel


def made_of(source: Source, step: int, choices: Choices) -> Json:
    """Returns what a folder of a step is made of by these choices, as its record has it.

    Names alone do not tell a run from another seed's, or from one that was trained again in the same directory: the
    checkpoint's checksum does.
    """
    parts: Json = {
        "step": step,
        "source": source.directory.name,
        "kind": source.kind,
        CHECKPOINT: checksum(source, step),
        "network": _network(source),
        "vocabulary": _vocabulary(source, choices),
        "extra_ids": choices.extra_ids,
        "dtype": choices.dtype,
        "formats": choices.formats,
        "dropout": choices.dropout,
        CARD: card_told(source, choices),
        "checked": choices.checks,
    }
    if not choices.average:
        parts["average"] = False
    if choices.encoder_only:
        parts["encoder_only"] = True
    if head_scale(source.model) != 1:
        parts["transformers"] = choices.transformers
    return json.loads(json.dumps(parts))  # as it is read again: lists in place of tuples


def card_of(source: Source, choices: Choices) -> CardConfig:
    """Returns what a folder's card is told: the fields that are chosen, and for the others the run's own card."""
    of_run = CardConfig() if source.run is None else source.run.card
    fields = {name: value or getattr(of_run, name) for name, value in vars(choices.card).items()}
    return CardConfig(**fields)


def card_told(source: Source, choices: Choices) -> Json:
    """Returns what a folder's card is told, as its record has it."""
    told = {name: value for name, value in vars(card_of(source, choices)).items() if value}
    return json.loads(json.dumps(told))


def _network(source: Source) -> Json:
    """Returns the fields of the network that change what an array means, where they are not as by default."""
    return {
        field.name: getattr(source.model, field.name)
        for field in dataclasses.fields(source.model)
        if field.name not in FREE_FIELDS and getattr(source.model, field.name) != field.default
    }


def _vocabulary(source: Source, choices: Choices) -> str:
    """Returns what tells the vocabulary of a folder from another one: of a chosen one the checksum of its content.

    A run's own is fixed when it begins. The one of a T5X checkpoint is named in a gin file, which may be edited.
    """
    chosen = choices.vocabulary
    if chosen in (NONE, "byte"):
        return chosen
    if chosen is not None:
        return f"{google_crc32c.value(_content(chosen)):08x}"
    named = source.vocabulary
    if named is None:
        return UNKNOWN if source.run is None else OWN
    if source.kind == T5X:
        return f"{OWN}, {google_crc32c.value(f'{named.path} {named.extra_ids}'.encode()):08x}"
    return OWN


def _content(address: str) -> bytes:
    """Returns the bytes of a vocabulary's file, or of the files of one that is a folder; InputError without any."""
    if not files.is_folder(address):
        return files.content(address)
    folder = files.folder_at(address)
    there = [folder / name for name in files.OF_FOLDER if (folder / name).exists()]
    return b"".join(path.name.encode() + path.read_bytes() for path in there)


def checksum(source: Source, step: int) -> str | None:
    """Returns the crc32c of a checkpoint's files as 8 hex digits, read now; None for one of Limba's without a manifest.

    Of Limba's checkpoints it is the manifest's, which has the checksums of all files. Configurations do not count: they
    are edited, and copied to where they were missing.
    """
    path = source.steps[step]
    if source.kind == LIMBA:
        return manifest.own_checksum(path)
    with waiting(f"step {step:,}: reading the checkpoint's files for their checksum"):
        if source.kind == HUGGING_FACE:
            weights = files_to_download(child.name for child in epath.Path(path).iterdir())
            entries = {name: manifest.entry(path / name) for name in weights}
        else:
            entries = manifest.step_entries(path, _is_of_t5x_model)
    return f"{google_crc32c.value(manifest.text(entries).encode()):08x}"


def _is_of_t5x_model(name: str) -> bool:
    """Returns whether a file of a T5X checkpoint counts: not the optimizer's state."""
    is_state = any(part.startswith("state.param_states") for part in name.split("/"))
    return not is_state and not name.endswith(".gin")


def differences(record: bytes | None, wanted: Json, folder: object, is_own: bool = False) -> set[str] | None:
    """Returns the parts in which a finished folder is not as `wanted` (`made_of`); None where no folder is finished.

    A folder with more formats than are asked for is good, one that was proved where no proof is asked for, and one
    whose card says more. Where no vocabulary is chosen, a folder with one that was chosen is good too. Raises
    InputError for a folder that was made from another run, or from another checkpoint of this name: only where the
    folder `is_own`, in the directory of the run itself, may it be made again.
    """
    if record is None:
        return None
    try:
        written = {**LEFT_OUT, **json.loads(record)}
        name = written["source"]
        differing = set()
        if not set(written["formats"]) >= set(wanted["formats"]):
            differing.add("formats")
        if wanted["checked"] and not written["checked"]:
            differing.add("checked")
        asked = {**LEFT_OUT, **wanted}
        asked[CARD] = {**written[CARD], **wanted[CARD]}
        compared = set(asked) - {"source", "kind", "formats", "checked"}
        is_unchosen = not chooses_vocabulary(asked)
        missing = compared - set(written)
        if missing:
            raise KeyError(missing)
        if is_unchosen and asked.get("extra_ids") is None:
            compared.discard("extra_ids")
            has_chosen = chooses_vocabulary(written) and written["vocabulary"] != NONE
            if asked.get("vocabulary") == UNKNOWN or has_chosen:
                compared.discard("vocabulary")
        for part in compared:
            if written[part] != asked[part]:
                differing.add(part)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{folder} has a {RECORD} that no export has written; give another directory.") from None
    if name != wanted["source"]:
        raise InputError(f"{folder} was made from another run, {name}; give another directory.")
    is_other = not _may_be_same(written, wanted)
    if is_other and not is_own:
        raise InputError(
            f"{folder} was made from another checkpoint of that name, of another run {name} or of this one before it"
            " was trained again; remove it, or give another directory."
        )
    if not is_other:
        differing.discard(CHECKPOINT)
        if differing - {CARD} and is_unchosen and asked.get("vocabulary") == UNKNOWN:
            check_named(written, folder)
    return differing


def check_named(written: Json, folder: object) -> None:
    """Raises InputError for a folder that cannot be made again as it is: its vocabulary was chosen, and is not now."""
    if chooses_vocabulary(written) and written["vocabulary"] != NONE:
        raise InputError(
            f"{folder} would be made again without its tokenizer, of which the record has no path; give `vocabulary`"
            f" again, or {NONE} for no tokenizer."
        )


def chooses_vocabulary(parts: Json) -> bool:
    """Returns whether a command has named the vocabulary of a folder, or that it has none."""
    vocabulary = parts.get("vocabulary", UNKNOWN)
    return vocabulary != UNKNOWN and not vocabulary.startswith(OWN)


def has_same_source(record: bytes | None, other: bytes | None) -> bool:
    """Returns whether two folders' records name one run, and one checkpoint where both name one."""
    one, two = (_read(content) for content in (record, other))
    return one.get("source") == two.get("source") and _may_be_same(one, two)


def names_checkpoint_of(record: bytes, name: str) -> bool:
    """Returns whether a folder's record names this run, and a checkpoint of it."""
    written = _read(record)
    return written.get("source") == name and written.get(CHECKPOINT) is not None


def _may_be_same(one: Json, other: Json) -> bool:
    """Returns whether two records have one checkpoint's checksum, or one of them has none."""
    checksums = (one.get(CHECKPOINT), other.get(CHECKPOINT))
    return None in checksums or checksums[0] == checksums[1]


def _read(record: bytes | None) -> Json:
    """Returns a record; {} if there is no readable one."""
    try:
        content = json.loads(record or b"")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
