"""What a word is in each script, and BLEU beside sacrebleu's own."""

import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu

from limba.config import CardConfig, ConfigError, EvaluationConfig
from limba.data import metrics, words
from limba.data.registry import Feature, Task
from limba.data.vocabulary import ByteVocabulary
from limba.evaluation.task_metrics import PREDICTION, metrics_of

TARGETS = {
    "ja": ["私は昨日新しい本を三冊買いました。", "彼は東京の大学で日本語を勉強しています。"],
    "zh": ["我昨天买了三本新书。", "他在东京的大学学习日语。"],
    "th": ["ฉันซื้อหนังสือใหม่สามเล่มเมื่อวานนี้", "เขาเรียนภาษาญี่ปุ่นที่มหาวิทยาลัยในโตเกียว"],
    "km": ["ខ្ញុំបានទិញសៀវភៅថ្មីបីក្បាលកាលពីម្សិលមិញ"],
    "my": ["ကျွန်တော် မနေ့က စာအုပ်အသစ် သုံးအုပ် ဝယ်ခဲ့တယ်။"],
    "lo": ["ຂ້ອຍຊື້ປຶ້ມໃໝ່ສາມຫົວມື້ວານນີ້"],
    "hi": ["मैंने कल तीन नई किताबें खरीदीं।"],
    "ar": ["اِشْتَرَيْتُ ثَلَاثَةَ كُتُبٍ جَدِيدَةٍ أَمْسِ."],
    "ko": ["나는 어제 새 책 세 권을 샀다."],
    "ro": ["Ieri am cumpărat trei cărți noi, scrise de-un prieten."],
}
TOKENIZERS = dict.fromkeys(("ja", "th", "km", "my", "lo"), "char") | {"zh": "zh"}


@pytest.mark.parametrize("language", TARGETS)
def test_bleu_is_that_of_sacrebleu_by_the_tokenizer_in_its_name(language: str) -> None:
    targets = TARGETS[language]
    tokenizer = TOKENIZERS.get(language, "13a")
    predictions = [text[:-4] + text[-3:] for text in targets]
    name = "bleu" if tokenizer == "13a" else f"bleu-{tokenizer}"
    theirs = sacrebleu.BLEU(tokenize=tokenizer).corpus_score(predictions, [targets]).score
    assert theirs > 20
    for languages in ((), (language,)):
        assert metrics.bleu(targets, predictions, languages=languages) == {name: pytest.approx(theirs, abs=1e-9)}


def test_what_a_run_says_of_bleu_is_obeyed() -> None:
    targets = TARGETS["ja"]
    predictions = [text.replace("東京", "京都") for text in TARGETS["ja"]]
    metric = metrics.chosen(metrics.bleu, "none", ("ja",))
    theirs = sacrebleu.BLEU(tokenize="none").corpus_score(predictions, [targets]).score
    assert metric(targets, predictions) == {"bleu-none": pytest.approx(theirs, abs=1e-9)}
    assert metrics.chosen(metrics.chrf, "none", ()) is metrics.chrf
    for wanted in ("flores200", "spm"):  # they download a model
        with pytest.raises(ConfigError, match=f"bleu_tokenizer is '{wanted}'; .*ja-mecab"):
            EvaluationConfig(bleu_tokenizer=wanted)


@pytest.mark.skipif(importlib.util.find_spec("MeCab") is not None, reason="MeCab is installed here")
def test_a_tokenizer_that_is_not_installed_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"'ja-mecab', whose packages are not installed; run pip install"):
        metrics.bleu(TARGETS["ja"], TARGETS["ja"], tokenizer="ja-mecab")


def test_the_language_tells_chinese_characters_from_japanese_ones() -> None:
    assert words.bleu_tokenizer(["東京大学"], ["zh-Hant"]) == "zh"
    assert words.bleu_tokenizer(["東京大学"], ["en", "ja"]) == "char"
    assert words.bleu_tokenizer(TARGETS["ja"], ["zh", "ja"]) == "char"
    assert words.bleu_tokenizer(["Use the command ls."], ["ja"]) == "13a"
    assert words.bleu_tokenizer(["コマンド ls -l を使います。README.md も見てください。"]) == "char"
    assert words.bleu_tokenizer(["", "1 2 3"]) == "13a"


def test_marks_belong_to_their_letters() -> None:
    assert metrics.rouge(["मेरी किताब मेज पर है।"], ["मेरे कतब मज पर ह।"])["rouge1"] == pytest.approx(20)
    assert metrics.rouge(["เสื้อใหม่"], ["เสือใหม"])["rouge1"] < 80  # other tones, other words
    assert metrics.word_f1(["کتاب می‌خواهم"], ["کتاب می خواهم"])["word_f1"] == pytest.approx(40)
    assert metrics.word_f1(["है।"], ["है"])["word_f1"] == 100
    assert metrics.rouge(TARGETS["ar"], TARGETS["ar"])["rouge2"] == pytest.approx(100)
    assert words.words_of(TARGETS["ar"][0]) == TARGETS["ar"][0].removesuffix(".").split()


@pytest.mark.parametrize(
    ("text", "characters"),
    [
        ("ကျွန်တော်", "ကျွ န် တော်"),  # Unicode cuts before the vowel sign of the last one
        ("တာ တး", "တာ တး"),
        ("ខ្ញុំទិញ", "ខ្ញុំ ទិ ញ"),
        ("ซื้อน้ำ", "ซื้ อ น้ำ"),
        ("ຊື້ນ້ຳ", "ຊື້ ນ້ຳ"),
        ("コーヒー", "コ ー ヒ ー"),
    ],
)
def test_a_character_of_a_script_without_spaces_keeps_its_marks(text: str, characters: str) -> None:
    assert words.words_of(text) == characters.split()
    assert words.bare_words_of(text) == characters.split()
    assert words.with_spaces(text).split() == characters.split()


def test_burmese_of_another_vowel_is_another_word() -> None:
    assert metrics.rouge(["တာ"], ["တ"])["rouge1"] == 0


def test_japanese_that_is_right_but_for_a_letter_has_high_figures() -> None:
    targets = TARGETS["ja"]
    predictions = [text.replace("東京", "京都") for text in TARGETS["ja"]]
    figures = {**metrics.rouge(targets, predictions), **metrics.word_f1(targets, predictions)}
    assert min(figures.values()) > 80
    assert 0 < metrics.error_rates(targets, predictions)["word_error_rate"] < 20


def test_latin_words_are_those_of_squad() -> None:
    assert metrics.word_f1(["It's a well-known cat."], ["its wellknown cat"])["word_f1"] == pytest.approx(600 / 7)


def test_a_run_gives_its_choices_to_its_tasks_metrics() -> None:
    letters = ByteVocabulary()
    task = Task("words", None, {"targets": Feature(letters)}, metric_fns=[metrics.bleu, metrics.exact_match])
    config = SimpleNamespace(evaluation=EvaluationConfig(bleu_tokenizer="char"), card=CardConfig())
    of_bleu, _ = metrics_of(task, config)
    assert of_bleu.model_output_type == PREDICTION
    text = "one two three four"
    assert set(of_bleu([{"targets": np.array(letters.encode(text))}], [text])) == {"bleu-char"}
