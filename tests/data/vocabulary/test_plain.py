"""Vocabularies without TensorFlow give seqio's ids and texts, on a megabyte of each of six scripts."""

import functools
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import seqio
from sentencepiece import sentencepiece_model_pb2

from limba.data.bridge.seqio_objects import vocabulary_as_seqio
from limba.data.vocabulary.tokenizer_json import tokenizer_json
from limba.data.vocabulary.tokenizers import TokenizersVocabulary
from limba.data.vocabulary.train import train_vocabulary
from limba.data.vocabulary.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary, plain

MEGABYTE = 1_000_000
EXTRA_IDS = 100
WORDS_OF_A_SCRIPT = 3_000
WORDS_OF_A_LINE = 60


class Script(NamedTuple):
    """Where a script's letters and marks stand in Unicode, and what is between its words."""

    blocks: Sequence[tuple[int, int]]
    space: str = " "


SCRIPTS = {
    "Latin": Script([(0x61, 0x7A), (0x61, 0x7A), (0x41, 0x5A), (0xC0, 0x24F), (0x1E00, 0x1EFF)]),
    "Cyrillic": Script([(0x400, 0x52F), (0x430, 0x44F), (0x301, 0x301)]),
    "Arabic": Script([(0x621, 0x64A), (0x64B, 0x652), (0x671, 0x6D3)]),
    "Devanagari": Script([(0x900, 0x97F), (0x915, 0x939), (0x93E, 0x94D)]),
    "Japanese": Script([(0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x4FFF), (0xFF66, 0xFF9F)], ""),
    "Korean": Script([(0xAC00, 0xB3FF), (0x1100, 0x1112), (0x4E00, 0x4E3F)]),
}
BETWEEN = [". ", ", ", "، ", "। ", "。", "? ", " – ", " «", "» ", "  ", "\t", "\u00a0", "\u200b", "\u200d", "\u3000",
           " 1 948", " ½", "①", "😀", "👩\u200d👧", "\ufeff", "\u2581", "<unk>", "<0x41>", "\x07"]  # fmt: skip


@functools.cache
def text_of(script: str) -> list[str]:
    """Returns a megabyte of lines of words that no language has, some of them often, as words are (Zipf's law)."""
    random = np.random.default_rng(list(SCRIPTS).index(script))
    (blocks, space) = SCRIPTS[script]
    signs = np.array([*BETWEEN, *[space] * 6 * len(BETWEEN)], object)
    words = np.array([_word(random, blocks) for _ in range(WORDS_OF_A_SCRIPT)], object)
    made = []
    size = 0
    while size < MEGABYTE:
        ranks = np.minimum(random.zipf(1.2, WORDS_OF_A_LINE), WORDS_OF_A_SCRIPT) - 1
        line = "".join(words[ranks] + signs[random.integers(len(signs), size=WORDS_OF_A_LINE)])
        made.append(unicodedata.normalize("NFC" if len(made) % 2 else "NFD", line))
        size += len(made[-1].encode())
    return made


def _word(random: np.random.Generator, blocks: Sequence[tuple[int, int]]) -> str:
    """Returns up to eight letters and marks of these blocks, the first one no mark."""
    places = [
        random.integers(first, last + 1) for first, last in (blocks[n] for n in random.integers(len(blocks), size=8))
    ]
    known = [chr(code) for code in places if unicodedata.category(chr(code))[0] in "LM"][: random.integers(1, 9)]
    return "".join(known).lstrip("".join(letter for letter in known if unicodedata.category(letter)[0] == "M")) or "x"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A SentencePiece model of all six scripts."""
    path = str(tmp_path_factory.mktemp("six") / "six.model")
    assert train_vocabulary((line for script in SCRIPTS for line in text_of(script)[::25]), 3_000, path) == 3_000
    return path


def assert_same(ours: Vocabulary, theirs: seqio.Vocabulary, lines: Iterable[str]) -> None:
    """Compares numbers, ids and texts, and what becomes of ids that no text has."""
    for name in ("vocab_size", "pad_id", "eos_id", "unk_id", "bos_id", "extra_ids"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for line in lines:
        ids = list(ours.encode(line))
        assert ids == list(theirs.encode(line)), repr(line)
        assert ours.decode(ids) == theirs.decode(ids), repr(line)
    random = np.random.default_rng(0)
    for row in random.integers(0, ours.vocab_size + 40, (300, 30)).tolist():
        assert ours.decode(row) == theirs.decode(row), row
        assert ours.decode(np.array([*row[:9], 1, *row[9:]], np.int32)) == theirs.decode([*row[:9], 1, *row[9:]]), row
    assert ours.decode([]) == theirs.decode([]) == ""


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.slow
def test_sentencepiece_gives_seqio_s_ids(script: str, model: str) -> None:
    lines = text_of(script)
    assert sum(len(line.encode()) for line in lines) >= MEGABYTE and len(set("".join(lines))) > 60
    ours = SentencePieceVocabulary(model, EXTRA_IDS)
    theirs = seqio.SentencePieceVocabulary(model, EXTRA_IDS)
    assert ours.sp_model == theirs.sp_model
    assert_same(ours, theirs, lines)
    some = lines[::40]  # TensorFlow's own operation, which seqio's tasks use
    assert [list(ours.encode(line)) for line in some] == theirs.encode_tf(some).to_list()


@pytest.mark.parametrize("script", SCRIPTS)
def test_bytes_are_seqio_s(script: str) -> None:
    assert_same(ByteVocabulary(EXTRA_IDS), seqio.ByteVocabulary(EXTRA_IDS), text_of(script))
    some = text_of(script)[::100]
    theirs = seqio.ByteVocabulary(EXTRA_IDS)
    assert all(ByteVocabulary(EXTRA_IDS).encode(line) == theirs.encode_tf(line).numpy().tolist() for line in some)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.slow
def test_a_tokenizer_json_gives_the_ids_of_seqio_s_model(script: str, model: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_json(model, EXTRA_IDS))
    ours = TokenizersVocabulary(str(path))
    theirs = seqio.SentencePieceVocabulary(model, EXTRA_IDS)
    assert (ours.vocab_size, ours.eos_id, ours.unk_id) == (theirs.vocab_size, theirs.eos_id, theirs.unk_id)
    # Without the differences that `tokenizer_json` names: a special token's name, and several marks on a letter.
    lines = [unicodedata.normalize("NFC", line.replace("<unk>", "")) for line in text_of(script)]
    for line in lines:
        assert ours.encode(line) == theirs.encode(line), repr(line)
    assert_same(ours, vocabulary_as_seqio(ours), lines[::50])
    for line in lines[::100]:  # seqio's classes in TensorFlow call ours
        assert vocabulary_as_seqio(ours).encode_tf(line).numpy().tolist() == ours.encode(line)


@pytest.mark.parametrize("choices", [{"reverse_extra_ids": False}, {"rules": True}, {"extra_ids": 0}], ids=str)
def test_choices_of_a_model_are_seqio_s_and_stay_so_there_and_back(choices: dict, model: str) -> None:
    rules = sentencepiece_model_pb2.NormalizerSpec(add_dummy_prefix=False, remove_extra_whitespaces=False)
    options = {"extra_ids": EXTRA_IDS, "normalizer_spec_overrides": rules if choices.get("rules") else None, **choices}
    options.pop("rules", None)
    make: Callable[[type], Vocabulary] = lambda kind: kind(model, **options)
    ours = make(SentencePieceVocabulary)
    theirs = make(seqio.SentencePieceVocabulary)
    lines = [line for script in SCRIPTS for line in text_of(script)[:40]]
    assert ours.sp_model == theirs.sp_model
    assert_same(ours, theirs, lines)
    assert plain(theirs) == ours == plain(vocabulary_as_seqio(ours))
    assert_same(ours, vocabulary_as_seqio(ours), lines)
