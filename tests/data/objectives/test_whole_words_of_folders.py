"""Whole words of published tokenizers: their own offsets in the text say where a word begins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers

from limba.config import InputError
from limba.data.dataset import TOKENS, Elements
from limba.data.objectives import whole_word_masked_lm, whole_word_span_corruption
from limba.data.objectives.whole_words import LONGEST_WORD, begins_word
from limba.data.packing import PREDICTED
from limba.data.registry import Feature
from limba.data.vocabulary.published import open_folder
from limba.data.vocabulary.sentinels import sentinel_table
from limba.data.vocabulary.shifted import StreamVocabulary
from limba.data.vocabulary.special_ids import as_stream
from limba.data.vocabulary.tokenizers import TokenizersVocabulary
from tests import published as folders

STYLES = {"unigram": "t5", "llama": "llama", "gemma": "llama", "endoftext": "gpt2", "bert": "modernbert"}
TEXTS = [f"Line {n} of a small text, again: it's {n * 7} words or fewer." for n in range(300)]
# Texts that no normalizer changes, so that offsets in them fit the pieces.
TEXTS += ["a few words", "UPPER lower MiXed", "it's don't we've I'm", "two  spaces   three", "Усі люди вільними"]


def stream_of(folder: Path, style: str) -> StreamVocabulary:
    """Saves a folder of a style, and returns its vocabulary as the data stream has it."""
    tokenizer = folders.generic(style)
    if style == "unigram":
        tokenizer.add_tokens([f"<extra_id_{number}>" for number in range(100)], special_tokens=True)
    folders.saved(folder, STYLES[style], tokenizer)
    vocabulary = as_stream(open_folder(folder))
    assert isinstance(vocabulary, StreamVocabulary)
    return vocabulary


def starts_of(folder: Path, style: str, text: str) -> list[bool]:
    """Returns whether each token begins a word: by white space in the text, of WordPiece by transformers' own words."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
    if style == "bert":
        words = encoded.word_ids()
        return [number == 0 or words[number] != words[number - 1] for number in range(len(words))]
    starts = []
    end_before = 0
    for begin, end in encoded["offset_mapping"]:
        # Some tokenizers count the space before a word as part of its piece, and others as nobody's.
        of_piece = text[end_before:end] if begin >= end_before else text[begin:end]
        starts.append(of_piece[:1].isspace())
        end_before = end
    return starts


def rows_of(objective, vocabulary: StreamVocabulary, tokens: np.ndarray, lengths: dict[str, int], **choices):
    vectors = Elements([{"targets": tokens}], {"targets": TOKENS})
    features = dict.fromkeys(("inputs", "targets"), Feature(vocabulary))
    return list(objective(vectors, lengths, features, **choices))


def check_edges(hidden: np.ndarray, begins: np.ndarray, row_starts: np.ndarray) -> None:
    """Raises where a hidden run begins or ends inside of a word; a row may begin inside of one."""
    edges = np.setdiff1d(np.flatnonzero(hidden[1:] != hidden[:-1]) + 1, row_starts)
    last_start = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))
    since = np.arange(len(begins)) - last_start
    assert len(edges) > 300
    assert (begins[edges] | (since[edges] % LONGEST_WORD == 0)).all()


@pytest.mark.parametrize("style", STYLES)
def test_words_begin_where_the_tokenizers_own_offsets_say(style: str, tmp_path: Path) -> None:
    vocabulary = stream_of(tmp_path, style)
    begins = begins_word(vocabulary)
    compared = 0
    for text in TEXTS[290:]:
        ids = vocabulary.encode(text)
        theirs = starts_of(tmp_path, style, text)
        assert len(ids) == len(theirs)
        # What begins a text may have no marker before it; the end of the document before it separates them.
        assert begins[ids][1:].tolist() == theirs[1:], text
        compared += len(ids)
    assert compared > 100
    plain = TokenizersVocabulary(str(tmp_path / "tokenizer.json"))
    same = np.asarray(begins_word(plain))[: vocabulary.published.vocab_size]
    assert (same == begins[vocabulary.offset :]).all(), "the file alone says the same"


def test_published_words_are_hidden_whole(tmp_path: Path) -> None:
    vocabulary = stream_of(tmp_path, "bert")
    begins = begins_word(vocabulary)
    tokens = np.concatenate([[*vocabulary.encode(text)] for text in TEXTS]).astype(np.int32)
    rows = rows_of(whole_word_masked_lm, vocabulary, tokens, {"targets": 64}, mask_share=1.0)
    inputs = np.concatenate([row["inputs"] for row in rows])
    starts = np.cumsum([len(row["inputs"]) for row in rows])
    check_edges(inputs >= PREDICTED, begins[tokens], starts)


def test_published_words_are_corrupted_whole(tmp_path: Path) -> None:
    vocabulary = stream_of(tmp_path, "unigram")
    begins = begins_word(vocabulary)
    tokens = np.concatenate([[*vocabulary.encode(text)] for text in TEXTS]).astype(np.int32)
    rows = rows_of(whole_word_span_corruption, vocabulary, tokens, {"inputs": 64})
    sentinels = set(sentinel_table(vocabulary))
    joined: list[int] = []
    hidden: list[bool] = []
    starts = []
    for row in rows:
        spans: dict[int, list[int]] = {}
        last = -1
        for token in row["targets"][:-1].tolist():
            if token in sentinels:
                last = token
                spans[last] = []
            else:
                spans[last].append(token)
        for token in row["inputs"][:-1].tolist():
            span = spans.get(token)
            joined += [token] if span is None else span
            hidden += [False] if span is None else [True] * len(span)
        starts.append(len(joined))
    assert joined == tokens.tolist(), "no text is lost"
    check_edges(np.asarray(hidden), begins[tokens], np.asarray(starts))


def test_pieces_that_mark_the_end_of_a_word_are_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<unk>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=special, end_of_word_suffix="</w>")
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="mark where words begin, and the vocabulary has none"):
        begins_word(TokenizersVocabulary(str(tmp_path / "tokenizer.json")))
