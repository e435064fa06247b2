"""Texts in six scripts are cut into segments that fit, and joined again to the very text."""

import pytest
import seqio
from hypothesis import given, settings
from hypothesis import strategies as st

from limba.data.objectives.text_segments import Segment, joined, long_inputs_of, segments_of

BYTES = seqio.ByteVocabulary()
SCRIPTS = {
    "latin": "Toate ființele umane se nasc libere. Dr. Ion a zis: „Bine!” Și, fără îndoială, 3.14; da?\n\nAltă linie.",
    "cyrillic": "Все люди рождаются свободными. Они наделены разумом! «Правда?» — спросил он; да, да…\r\nНовая строка.",
    "arabic": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. هل هذا صحيح؟ نعم، بالطبع؛ وقد وهبوا عقلاً وضميراً.",
    "devanagari": "सभी मनुष्यों को गौरव और अधिकारों में समानता प्राप्त है। उन्हें बुद्धि और अन्तरात्मा की देन प्राप्त है॥ क्या यह सच है?",
    "japanese": "すべての人間は、生まれながらにして自由である。「本当ですか？」はい！人間は、理性がある。　次。",
    "thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม ควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ",
}


def count_bytes(text: str) -> int:
    return len(BYTES.encode(text)) + 1


@pytest.mark.parametrize("limit", [7, 24, 64, 1_000])
@pytest.mark.parametrize("script", SCRIPTS)
def test_joined_segments_are_the_text_and_fit(script: str, limit: int) -> None:
    text = f"  {SCRIPTS[script]} \n\t{SCRIPTS[script]}\n"
    segments = segments_of(text, count_bytes, limit)
    assert joined(segments) == text and joined(segments).encode() == text.encode()
    assert all(count_bytes(segment.text) <= limit for segment in segments)
    assert all(segment.text == segment.text.strip() and len(segment.text.splitlines()) < 2 for segment in segments)
    if limit == 24:
        fill = [count_bytes(segment.text) for segment in segments]
        assert sum(fill) / len(fill) > limit / 3, "segments are not much shorter than they may be"


@settings(max_examples=150)
@given(
    st.lists(
        st.sampled_from(
            [*SCRIPTS.values(), " ", "\n", "\u3000", "\u2028", "\x85", "\r\n", ". ", "e\u0301", "👩‍👩‍👧", "\0"]
        )
    ),
    st.text(max_size=30),
    st.integers(2, 90),
)
@pytest.mark.slow
def test_any_text_is_joined_again(parts: list[str], more: str, limit: int) -> None:
    text = "".join([*parts, more, *parts[:1]])
    segments = segments_of(text, len, limit)
    assert joined(segments) == text
    assert all(len(segment.text) <= limit for segment in segments)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_trained_vocabulary_counts(script: str, vocabulary: str) -> None:
    pieces = seqio.SentencePieceVocabulary(str(vocabulary))
    segments = segments_of(SCRIPTS[script] * 3, lambda text: len(pieces.encode(text)) + 1, 40)
    assert joined(segments) == SCRIPTS[script] * 3
    assert len(segments) > 3 and all(len(pieces.encode(segment.text)) < 40 for segment in segments)


def test_sentences_stay_whole_where_they_fit() -> None:
    text = "A first one. A second, longer one! „Third?” And fourth; with a clause, and more of it, to the end."
    assert [segment.text for segment in segments_of(text, len, 35)] == [
        "A first one. A second, longer one!",
        "„Third?”",
        "And fourth; with a clause,",
        "and more of it, to the end.",
    ]
    japanese = "今日は雨です。明日は晴れるでしょう！「本当？」はい。"
    assert [segment.text for segment in segments_of(japanese, len, 12)] == [
        "今日は雨です。",
        "明日は晴れるでしょう！",
        "「本当？」はい。",
    ]
    assert segments_of("", len, 5) == [] and segments_of(" \n", len, 5) == [Segment("", " \n")]
    marked = segments_of("e\u0301" * 4, len, 5)  # never cut before a mark
    assert [segment.text for segment in marked] == ["e\u0301" * 2] * 2


def test_translations_have_spaces_where_their_script_needs_them() -> None:
    segments = segments_of("今日は雨です。明日は晴れます。", len, 8)
    assert joined(segments, ["It rains today.", "It is sunny tomorrow."]) == "It rains today. It is sunny tomorrow."
    assert joined(segments, ["今天下雨。", "明天晴。"]) == "今天下雨。明天晴。"
    assert joined(segments_of("One. Two.", len, 5), ["一。", "二。"]) == "一。 二。"


def test_tasks_say_what_they_do() -> None:
    from tasks import en_ms, ro_diacritics, text_to_text  # noqa: F401

    said = {
        name: long_inputs_of(seqio.get_mixture_or_task(name))
        for name in ("ro_diacritics", "en_ms_both", "text_to_text")
    }
    assert said == {"ro_diacritics": "segments", "en_ms_both": "segments", "text_to_text": "cut"}
    assert long_inputs_of(None) == "cut"
