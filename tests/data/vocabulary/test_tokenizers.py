"""A tokenizer.json as a run's vocabulary: no text ends a document, and what it cannot do is one sentence."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from limba.config import InputError
from limba.data.objectives.token_blocks import require_sentinels
from limba.data.vocabulary.around_gaps import encode_parts
from limba.data.vocabulary.load import check_vocabulary, load_vocabulary
from limba.data.vocabulary.sentinels import mask_id, sentinel_table
from limba.data.vocabulary.tokenizers import TokenizersVocabulary
from limba.formats.huggingface_tokenizer import write_tokenizer
from tests import published as folders

SPECIAL = ["<pad>", "</s>", "<unk>"]


def saved(tokenizer: Tokenizer, folder: Path) -> TokenizersVocabulary:
    path = str(folder / "tokenizer.json")
    tokenizer.save(path)
    vocabulary = load_vocabulary(path)
    assert isinstance(vocabulary, TokenizersVocabulary)
    return vocabulary


def of_model(model: object, special: list[str] = SPECIAL) -> Tokenizer:
    """Returns a tokenizer of words between white space."""
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(special)
    return made


def test_a_corpus_cannot_end_a_document_where_the_name_of_the_end_is_a_piece(tmp_path: Path) -> None:
    of_t5 = saved(folders.unigram()[0], tmp_path)
    words = {**{name: number for number, name in enumerate(SPECIAL)}, "it": 3, "has": 4, "<extra_id_0>": 5}
    of_words = saved(of_model(models.WordLevel(words, unk_token="<unk>")), tmp_path)
    for vocabulary in (of_t5, of_words):
        sentinel = sentinel_table(vocabulary)[0]
        ids = list(vocabulary.encode("it has </s> it <pad> it <extra_id_0> has"))
        assert not {0, 1, sentinel} & set(ids) and 2 in ids, "they are read as unknown"
        assert vocabulary.decode(ids).endswith("has")
        for part in encode_parts(vocabulary, ["it has </s> ", " <pad> <extra_id_0> it"]):
            assert {0, 1, sentinel}.isdisjoint(part)
    assert of_words.encode("it </s> has") == [3, 2, 4]


def test_other_special_tokens_stay_text_and_masks_and_starts_do_not(tmp_path: Path) -> None:
    special = [*SPECIAL, "\n", "<cls>", "<mask>"]
    pieces = {name: number for number, name in enumerate([*special, "a", "b"])}
    tokenizer = Tokenizer(models.BPE(pieces, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    tokenizer.add_special_tokens(special)
    assert saved(tokenizer, tmp_path).encode("a\nb") == [pieces["a"], pieces["\n"], pieces["b"]]
    words = saved(of_model(models.WordLevel(pieces, unk_token="<unk>"), special), tmp_path)
    assert words.encode("<cls> a <mask> b") == [2, pieces["a"], 2, pieces["b"]]


def test_the_first_name_of_an_end_counts_also_where_it_is_a_plain_piece(tmp_path: Path) -> None:
    pieces = {"<pad>": 0, "<unk>": 1, "</s>": 2, "<|endoftext|>": 3, "a": 4}
    tokenizer = of_model(models.WordLevel(pieces, unk_token="<unk>"), ["<pad>", "<unk>", "<|endoftext|>"])
    assert saved(tokenizer, tmp_path).eos_id == 2


def test_a_file_without_a_known_end_gives_ids_all_the_same(tmp_path: Path) -> None:
    pieces = {"<|begin_of_text|>": 0, "<|end_of_text|>": 1, "a": 2}
    tokenizer = of_model(models.WordLevel(pieces, unk_token="none"), ["<|begin_of_text|>", "<|end_of_text|>"])
    vocabulary = saved(tokenizer, tmp_path)
    assert vocabulary.encode("a a") == [2, 2], "trimming compares such files"
    with pytest.raises(InputError, match="has no end of sequence"):
        _ = vocabulary.eos_id


def test_bytes_that_are_special_tokens_stay_text(tmp_path: Path) -> None:
    special = ["<pad>", "</s>", "<unk>", *folders.BYTES]
    pieces = {name: number for number, name in enumerate(special)}
    vocabulary = saved(of_model(models.BPE(pieces, [], unk_token="<unk>", byte_fallback=True), special), tmp_path)
    assert vocabulary.encode("é") == [pieces["<0xC3>"], pieces["<0xA9>"]]


def test_without_an_unknown_piece_the_name_of_a_special_token_is_left_out(tmp_path: Path) -> None:
    tokenizer = of_model(models.WordLevel({"<pad>": 0, "</s>": 1, "it": 2}, unk_token="none"), SPECIAL[:2])
    assert saved(tokenizer, tmp_path).encode("it </s> it") == [2, 2]


def test_the_end_is_a_special_token_and_no_tag_of_html(tmp_path: Path) -> None:
    tokenizer, _ = folders.gemma()
    vocabulary = saved(tokenizer, tmp_path)
    check_vocabulary(vocabulary, folders.ROWS, needs_sentinels=False)
    assert (vocabulary.eos_id, vocabulary.unk_id) == (1, 3)
    tag = tokenizer.token_to_id("</s>")
    assert tag in vocabulary.encode("it has </s> a few"), "a tag is text"
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] != "<eos>"]
    del state["model"]["vocab"]["<eos>"]
    state["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(
        InputError, match=r"has its end of sequence, '</s>', among its added tokens with \"special\": f"
    ):
        check_vocabulary(load_vocabulary(str(tmp_path / "tokenizer.json")), folders.ROWS, needs_sentinels=False)


@pytest.mark.parametrize(
    "model",
    [
        models.Unigram([("<pad>", 0.0), ("</s>", 0.0), ("a", -1.0)], None),
        models.WordLevel({"<pad>": 0, "</s>": 1, "a": 2}, unk_token="<unk>"),
        models.WordPiece({"<pad>": 0, "</s>": 1, "a": 2}, unk_token="[UNK]"),
        models.BPE({"<pad>": 0, "</s>": 1, "a": 2}, [], unk_token="<unk>"),
    ],
    ids=["unigram", "words", "wordpiece", "bpe"],
)
def test_a_text_that_a_tokenizer_cannot_read_is_one_sentence(model: object, tmp_path: Path) -> None:
    vocabulary = saved(of_model(model, SPECIAL[:2]), tmp_path)
    assert vocabulary.encode("a") == [2]
    for text, letter in (("a 😀", "'😀'"), ("a \ud83d", "'.ud83d'")):
        with pytest.raises(InputError, match=f"cannot read the letter {letter} of a text .*; give a tokenizer with an"):
            vocabulary.encode(text)
        with pytest.raises(InputError, match="cannot read the"):
            encode_parts(vocabulary, [text, "a"])


def test_a_folder_whose_tokenizer_does_not_know_the_letter_a_is_opened(tmp_path: Path) -> None:
    pieces = {"<pad>": 0, "<s>": 1, "</s>": 2, "C": 3, "G": 4}
    unigram = models.Unigram([(piece, -float(number)) for piece, number in pieces.items()], None)
    for model in (models.BPE(pieces, []), unigram):
        made = of_model(model, ["<pad>", "<s>", "</s>"])
        made.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 1), ("</s>", 2)])
        made.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 8}')
        vocabulary = load_vocabulary(str(tmp_path))
        assert vocabulary.template == ((1,), (2,))  # type: ignore[attr-defined]
        assert list(vocabulary.encode("GC")) == [4, 3]


def test_added_tokens_side_by_side_are_compared_before_an_export(tmp_path: Path) -> None:
    tokenizer = folders.byte_level(("<pad>", "</s>", "<unk>", "<extra_id_1>", "<extra_id_0>"))
    tokenizer.add_tokens([AddedToken("words", normalized=False)])
    tokenizer.save(str(tmp_path / "good.json"))
    write_tokenizer(tmp_path, str(tmp_path / "good.json"), 0)
    tokenizer.add_tokens([AddedToken("new", single_word=True)])
    tokenizer.save(str(tmp_path / "other.json"))
    with pytest.raises(InputError, match=r"cannot be exported: 'words.* has the ids .* in training and"):
        write_tokenizer(tmp_path, str(tmp_path / "other.json"), 0)


def test_a_file_without_sentinels_is_told_what_helps(tmp_path: Path) -> None:
    vocabulary = saved(of_model(models.WordLevel({"<pad>": 0, "</s>": 1, "a": 2})), tmp_path)
    for ask in (
        lambda: check_vocabulary(vocabulary, 128),
        lambda: require_sentinels(vocabulary, 28, "an example", "another objective"),
        lambda: mask_id(vocabulary),
    ):
        with pytest.raises(InputError, match="to the file as (a )?special token") as refused:
            ask()
        assert refused.value.fix is None and "set DataConfig.extra_ids" not in str(refused.value)
