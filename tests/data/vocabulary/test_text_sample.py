"""A sample is uniform over the corpus, bounded, repeatable, and disjoint from the validation text."""

import gzip
import json

import numpy as np
import pytest
import seqio

from limba.config import InputError
from limba.data.sources import FileSource
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.text_sample import Texts
from limba.tools.corpus.fertility import fertility, fertility_table


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """20,000 documents of some 100 bytes, each beginning with its number."""
    path = tmp_path_factory.mktemp("numbered") / "numbered.txt"
    path.write_text("".join(f"{number} {'x' * (80 + number % 40)}\n" for number in range(20_000)))
    return path


def numbers(documents):
    return np.array([int(document.split()[0]) for document in documents])


@pytest.mark.parametrize("zipped", [False, True])  # many units, and one
def test_a_sample_is_even(numbered, tmp_path, zipped):
    path = numbered
    if zipped:
        path = tmp_path / "numbered.txt.gz"
        path.write_bytes(gzip.compress(numbered.read_bytes()))
    source = FileSource(str(path))
    calls = []
    sample, others = Texts(source).sample(
        "train", 300_000, validation_bytes=20_000, progress=lambda *figures: calls.append(figures)
    )
    size = sum(map(len, sample))
    assert 299_800 < size <= 300_200
    assert 19_800 < sum(map(len, others)) <= 20_200
    assert not set(sample) & set(others)
    kept = numbers(sample)
    assert (np.diff(kept) > 0).all()  # in the corpus's order
    tenths, _ = np.histogram(kept, 10, (0, 20_000))
    assert tenths.min() > 0.8 * tenths.mean() and tenths.max() < 1.2 * tenths.mean()
    assert Texts(source).sample("train", 300_000, validation_bytes=20_000) == (sample, others)
    assert Texts(source).sample("train", 300_000, validation_bytes=20_000, seed=1)[0] != sample
    assert calls[-1][0] == sum(len(text.encode()) for text in source.texts("train"))
    assert calls[-1][1] == len(source.units("train"))


def test_a_small_corpus_is_taken_whole_and_a_large_one_is_not_read_whole(numbered):
    source = FileSource(str(numbered))
    whole, nothing = Texts(source).sample("train", 10**9)
    assert sorted(whole) == sorted(text.encode() for text in source.texts("train"))
    assert nothing == []
    calls = []
    sample, _ = Texts(source).sample("train", 50_000, read_bytes=600_000, progress=lambda read, _: calls.append(read))
    assert 600_000 <= calls[-1] < 700_000
    kept = numbers(sample)
    assert kept.max() - kept.min() > 8_000
    assert len(Texts(source).sample("train", 1)[0]) == 1  # never empty


def test_what_has_no_text_is_refused(numbered):
    feature = seqio.Feature(seqio.ByteVocabulary())
    legacy = seqio.Task("legacy", seqio.TextLineDataSource({"train": str(numbered)}), {"targets": feature})
    with pytest.raises(InputError, match="not one of limba.data.sources.* set DataConfig.data_files"):
        Texts.of_task(legacy)
    source = FileSource(str(numbered), column="tokens")
    with pytest.raises(InputError, match="tokens and no text"):
        Texts.of_task(seqio.Task("ids", source, {"targets": feature}))


def test_fertility_counts_are_right(corpus, vocabulary, tmp_path):
    loaded = load_vocabulary(str(vocabulary))
    text = "a few words ☃☃ and ș"
    counts = fertility([text.encode()] * 2, loaded)
    ids = loaded.encode(text)
    assert (counts.documents, counts.words, counts.bytes) == (2, 12, 2 * len(text.encode()))
    assert counts.tokens == 2 * len(ids)
    assert counts.tokens_per_word == pytest.approx(len(ids) / 6)
    assert counts.bytes_per_token == pytest.approx(len(text.encode()) / len(ids))
    assert counts.unknown == 0
    assert counts.in_bytes == 2 * (3 + 3 + 2)
    assert counts.letters_without_piece == {"☃": 4, "ș": 2}

    from limba.data.vocabulary.train import train_vocabulary

    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()][:100]
    train_vocabulary(texts, 400, str(tmp_path / "lossy.model"), byte_fallback=False)
    lossy = fertility([text.encode()], load_vocabulary(str(tmp_path / "lossy.model")))
    assert lossy.unknown == 2  # neighbours are lost as one
    assert lossy.in_bytes == 0
    assert lossy.letters_without_piece == {"☃": 2, "ș": 1}

    table, figures = fertility_table({"one": [text.encode()]}, {"ours": loaded, "byte": load_vocabulary("byte")})
    assert table.row_count == 2
    assert figures["one", "byte"].bytes_per_token == 1.0
    assert figures["one", "byte"].letters_without_piece == {}
