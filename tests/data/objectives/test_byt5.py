"""ByT5's sentinels as published: bytes without extra ids take 258, 257, … as t5 and seqio do."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import seqio
import tensorflow as tf
from t5.data import preprocessors

from limba.config import InputError
from limba.data import objectives
from limba.data.objectives.whole_words import whole_word_span_corruption
from limba.data.vocabulary import Vocabulary, sentinels
from tests.data.t5_draws import vectors_under

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "byt5_spans.json").read_text())
BYTES = seqio.ByteVocabulary()
FEATURES = {name: seqio.Feature(BYTES, dtype=tf.int32) for name in ("inputs", "targets")}


@pytest.fixture(autouse=True)
def warned_anew() -> None:
    sentinels.warn_of_byte_sentinels.cache_clear()


def stream(texts: list[str]) -> tf.data.Dataset:
    ragged = tf.ragged.constant([BYTES.encode(text) for text in texts], tf.int32, row_splits_dtype=tf.int64)
    return tf.data.Dataset.from_tensor_slices(ragged).map(lambda tokens: {"targets": tokens})


def test_eleven_bytes_are_in_no_text() -> None:
    """All that UTF-8 encodes: the ids from 258 down to 248 are in none of it, and 247 begins U+100000."""
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    used = set(np.frombuffer(everything.encode(), np.uint8).astype(int) + 3)
    free = [number for number in range(258, 247, -1) if number not in used]
    assert free == sentinels.sentinel_ids(BYTES, sentinels.num_sentinels(BYTES)) and len(free) == 11 and 247 in used


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"{case['sequence_length']['inputs']}")
@pytest.mark.slow
def test_rows_are_those_of_t5_itself(case: dict, caplog: pytest.LogCaptureFixture) -> None:
    """As recorded of t5, and as t5 makes them now; it draws two pairs of seeds before the seeds of the masks."""
    documents = GOLDEN["docs"]
    lengths = case["sequence_length"]
    choices = {name: case[name] for name in ("noise_density", "mean_noise_span_length")}
    vectors = vectors_under(0, map(BYTES.encode, documents), case["noise_density"])
    with caplog.at_level(logging.WARNING):
        ours = objectives.span_corruption(vectors, lengths, FEATURES, **choices, append_eos=False)
    with seqio.map_seed_manager(0):
        theirs = preprocessors.span_corruption(stream(documents), lengths, FEATURES, **choices)
    made, of_t5 = (
        [{name: row[name][row[name] > 0].tolist() for name in FEATURES} for row in rows]
        for rows in (ours, theirs.as_numpy_iterator())
    )
    assert len(made) == case["num_rows"] and made[:4] == case["rows"]
    assert made == of_t5
    count = len({number for number in made[0]["inputs"] if number in made[0]["targets"]} & set(range(240, 259)))
    warnings = [record.message for record in caplog.records if "in no text" in record.message]
    assert len(warnings) == (count > 11), (count, warnings)
    if count > 11:
        assert count == 14 and "has 14 sentinels in an example" in warnings[0] and "from 247 down to 245" in warnings[0]


def test_whole_words_keep_to_the_eleven() -> None:
    lengths = {"inputs": 1024, "targets": 400}
    with seqio.map_seed_manager(0):
        rows = list(whole_word_span_corruption(stream(4 * GOLDEN["docs"]), lengths, FEATURES).as_numpy_iterator())
    lowest = min(int(row["inputs"][row["inputs"] > 240].min()) for row in rows)
    assert len(rows) > 10 and lowest == 248


def test_ul2_has_no_such_rule() -> None:
    with pytest.raises(InputError, match="needs 131 sentinels and the vocabulary has 11; set DataConfig.extra_ids"):
        objectives.ul2(stream(GOLDEN["docs"]), {"inputs": 512}, FEATURES)


def test_texts_name_sentinels_both_ways(caplog: pytest.LogCaptureFixture) -> None:
    from limba.data.vocabulary.special_ids import SpecialIds
    from limba.inference.token_ids import input_ids

    def ids_of(text: str, vocabulary: Vocabulary) -> np.ndarray:
        return input_ids(text, vocabulary, SpecialIds(after=(1,)))

    assert ids_of("a<extra_id_0>b<extra_id_10>", BYTES).tolist() == [100, 258, 101, 248, 1]
    assert sentinels.decoded(BYTES, [258, *BYTES.encode("ă"), 257, 248]) == "<extra_id_0>ă<extra_id_1><extra_id_10>"
    with_rows = seqio.ByteVocabulary(125)
    assert sentinels.decoded(with_rows, [383, 100, 259]) == "<extra_id_0>a<extra_id_124>"
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert ids_of("a<extra_id_13>", BYTES).tolist() == [100, 245, 1]
    assert "has 14 sentinels" in caplog.text
    with pytest.raises(InputError, match="<extra_id_128>, and the vocabulary has 128"):
        ids_of("<extra_id_128>", BYTES)
