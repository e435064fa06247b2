"""Rows of labeled texts, for heads of encoders."""

import itertools

import numpy as np

from limba.data.dataset import TEXT, Elements
from limba.data.objectives.labels import labeled
from limba.data.registry import Feature
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.special_ids import of_encoder
from limba.data.vocabulary.train import NewVocabulary
from limba.inference.encoded import sentence_ids
from limba.inference.gaps import masked_ids


def test_texts_are_those_of_pretraining_with_cls_before_them(tmp_path, corpus) -> None:
    new = NewVocabulary(str(tmp_path / "masks.model"))
    new.train(corpus.read_bytes().splitlines(), 600, masks=True)
    vocabulary = load_vocabulary(new.path, 0)
    features = dict.fromkeys(("inputs", "targets"), Feature(vocabulary))
    text, tags = "The value of a longer thing", "D N P D A N"

    def row(head: tuple[str, ...], label: str, length: int) -> dict[str, np.ndarray]:
        rows = Elements([{"inputs": text.encode(), "targets": label.encode()}], dict.fromkeys(features, TEXT))
        (found,) = labeled(rows, dict.fromkeys(features, length), features, head=head)
        return found

    whole = masked_ids(text, vocabulary, of_encoder(vocabulary))
    for length in (len(whole), len(whole) - 3):
        classes, vectors = row(("classes", "a", "b"), "b", length), row(("vectors",), text, length)
        assert classes["inputs"].tolist() == [*whole[: length - 1], 1] and classes["targets"].tolist() == [2]
        assert vectors["targets"].tolist() == vectors["inputs"].tolist() == classes["inputs"].tolist()
    names = sorted(set(tags.split()))
    tagged = row(("tags", *names), tags, 60)
    (ids,), (starts,) = sentence_ids([text.split()], vocabulary, of_encoder(vocabulary), 60)
    assert tagged["inputs"].tolist() == ids.tolist() and ids[0] == whole[0] and ids[-1] == 1
    assert len(tagged["targets"]) == len(ids) - 1
    assert [names[tagged["targets"][start] - 1] for start in starts] == tags.split()
    assert not set(np.flatnonzero(tagged["targets"])) - set(starts.tolist())
    assert all(later > before for before, later in itertools.pairwise(starts))
