"""Models that score texts: the same figures by Limba and by transformers, and figures of foreign models by hand."""

import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import huggingface_hub
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import limba
from limba.cli import main
from limba.config import InputError
from limba.data.vocabulary.train import NewVocabulary
from limba.tools.results import foreign_scorer, scoring, scoring_methods
from limba.tools.results.kinds.bits import NAMES, BitsPerByte, with_gaps
from limba.tools.results.kinds.pairs import Pair, gap, likelihoods
from tests import tiny
from tests.export.runs import folder_of, write_run
from tests.results.test_pairs import ENCODERS, LANGUAGE_MODELS, T5

TEXTS = [
    "The module opens the file, and it reads 1948 lines.",
    "a",
    "東京 is a city; 彼が行く。",
    "Who sees him?  It is there",
    "Copiii merg acasă în fiecare zi, iar părinții îi așteaptă.",
]
BOTH = {"t5": T5, **LANGUAGE_MODELS, **ENCODERS}
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def saved_by_transformers(name: str, vocabulary: Path, folder: Path) -> Path:
    """A folder as transformers saves it, with weights of ours and our tokenizer."""
    of_ours = folder_of(BOTH[name], vocabulary, folder / "own")
    kind = {"t5": "Seq2SeqLM", "llama": "CausalLM", "gpt2": "CausalLM"}.get(name, "MaskedLM")
    model: Any = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(of_ours)
    model.save_pretrained(folder / "saved")
    transformers.AutoTokenizer.from_pretrained(of_ours).save_pretrained(folder / "saved")
    return folder / "saved"


@pytest.mark.parametrize(
    "name",
    ["t5", "llama", "eurobert", *(pytest.param(name, marks=pytest.mark.night) for name in ("gpt2", "modernbert"))],
)
@pytest.mark.slow
def test_limba_and_transformers_score_a_folder_alike(name, vocabulary, tmp_path) -> None:
    folder = saved_by_transformers(name, vocabulary, tmp_path)
    ours = scoring.open_scorers(str(folder))[0]
    theirs = foreign_scorer.open_folder(str(folder))
    assert isinstance(ours, scoring.LimbaScorer) and ours.way == theirs.way and ours.how == theirs.how
    if ours.way == scoring_methods.GAPS:
        pairs = [(row.read, row.written) for row in map(with_gaps, TEXTS) if row.hidden_bytes]
        assert len(pairs) == 2
        scores = ours.in_gaps(pairs)
        expected = theirs.in_gaps(pairs)
    else:
        scores = ours.log_likelihoods(TEXTS)
        expected = theirs.log_likelihoods(TEXTS)
    assert scores == pytest.approx(expected, rel=1e-5) and (scores < 0).all()


# Tokenizers as other families have them


def word_pieces() -> Any:
    """BERT's: lower case, words cut at punctuation, pieces that go on with ##."""
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(TEXTS * 3, trainers.WordPieceTrainer(vocab_size=120, special_tokens=special))
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.decoder = decoders.WordPiece()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, mask_token="[MASK]", **names)


def unigrams() -> Any:
    """XLM-R's: SentencePiece's pieces, of which the first of a word begins with its mark of a space."""
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>")
    made.train_from_iterator(TEXTS * 3, trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=False)
    made.decoder = decoders.Metaspace()
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    names |= {"bos_token": "<s>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, mask_token="<mask>", **names)


def byte_pieces(**names: str) -> Any:
    """GPT-2's and Qwen's: bytes and merges, with a start token or without one."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    made.train_from_iterator(TEXTS * 3, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names)


def saved(kind: str, folder: Path) -> Path:
    """A folder of a tiny model of another family with random weights, made by transformers alone."""
    torch.manual_seed(0)
    if kind == "bert":
        tokenizer = word_pieces()
        config: Any = transformers.BertConfig(vocab_size=len(tokenizer), **SHAPE)
        model: Any = transformers.BertForMaskedLM(config)
    elif kind == "xlm-r":
        tokenizer = unigrams()
        config = transformers.XLMRobertaConfig(
            vocab_size=len(tokenizer), pad_token_id=1, max_position_embeddings=130, **SHAPE
        )
        model = transformers.XLMRobertaForMaskedLM(config)
    elif kind == "qwen":
        tokenizer = byte_pieces(eos_token="<|endoftext|>")
        config = transformers.Qwen2Config(
            vocab_size=len(tokenizer), num_key_value_heads=1, bos_token_id=None, eos_token_id=0, **SHAPE
        )
        model = transformers.Qwen2ForCausalLM(config)
    else:
        tokenizer = byte_pieces(bos_token="<|endoftext|>", eos_token="<|endoftext|>")
        config = transformers.GPTNeoXConfig(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, **SHAPE)
        model = transformers.GPTNeoXForCausalLM(config)
    with torch.no_grad():  # logits of about 1, by which a wrong place would be seen
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * (0.3 if weight.ndim > 1 else 0.1))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def words_by_hand(tokenizer: Any, ids: list[int]) -> list[int]:
    """The number of the word of each piece, where spaces alone separate words."""
    names = tokenizer.convert_ids_to_tokens(ids)
    return np.cumsum([name[0] in "▁Ġ" for name in names]).tolist()


@pytest.mark.slow
def test_a_masked_model_of_another_family_is_scored_word_by_word(tmp_path) -> None:
    """XLM-R's shape: its positions begin after the padding, and texts of several lengths stand in one batch."""
    folder = saved("xlm-r", tmp_path / "model")
    scorer = scoring.open_scorers(str(folder))[0]
    assert (
        isinstance(scorer, foreign_scorer.ForeignScorer)
        and scorer.way == scoring_methods.MASKED
        and scorer.longest == 128
    )
    texts = [text for text in TEXTS if text.isascii()]
    scores = scorer.log_likelihoods(texts)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.XLMRobertaForMaskedLM.from_pretrained(folder).eval()
    for text, ours in zip(texts, scores, strict=True):
        ids = tokenizer(text, add_special_tokens=False).input_ids
        words = words_by_hand(tokenizer, ids)
        total = 0.0
        for index, token in enumerate(ids):
            shown = [4 if words[i] == words[index] and i >= index else number for i, number in enumerate(ids)]
            with torch.no_grad():
                logits = model(torch.tensor([[0, *shown, 2]])).logits[0, index + 1]
            total += float(torch.log_softmax(logits.double(), -1)[token])
        assert ours == pytest.approx(total, rel=1e-5), text
    assert max(words.count(word) for word in words) > 2, "words of several pieces"


def test_the_output_layer_is_computed_at_the_scored_place_alone(tmp_path) -> None:
    scorer = foreign_scorer.open_folder(str(saved("bert", tmp_path / "model")))
    assert scorer._is_narrow
    batch = scorer._padded([[2, 7, 8, 9, 3], [2, 7, 3]])
    whole = scorer._logits(**batch)
    assert scorer._logits_at([2, 1], batch).shape == (2, 1, whole.shape[-1])
    assert torch.allclose(scorer._logits_at([2, 1], batch)[:, 0], whole[[0, 1], [2, 1]], atol=1e-6)
    assert scorer._logits(**batch).shape == whole.shape, "the next call has all places again"


def test_words_of_bert_stand_between_spaces(tmp_path) -> None:
    scorer = foreign_scorer.open_folder(str(saved("bert", tmp_path / "model")))
    ids, begins = scorer._words("It reads, 東京 there!")
    names = scorer.tokenizer.convert_ids_to_tokens(ids)
    first = [name for name, is_first in zip(names, begins, strict=True) if is_first]
    assert "," in names and "," not in first and "!" not in first
    assert sum(begins) == len(["It", "reads,", "東", "京", "there!"]), [*zip(names, begins, strict=True)]


@pytest.mark.parametrize("kind", ["gpt-neox", "qwen"])
def test_a_causal_model_of_another_family_counts_a_start_token_once(kind, tmp_path) -> None:
    """Without one, the first token of a text is read and not scored, and its bytes do not count."""
    folder = saved(kind, tmp_path / "model")
    scorer = scoring.open_scorers(str(folder))[0]
    starts = [0] if kind == "gpt-neox" else []
    assert scorer.way == scoring_methods.CAUSAL and ("has no start token" in scorer.how) == (not starts)
    scores = scorer.log_likelihoods(TEXTS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    expected = []
    sizes = []
    for text in TEXTS:
        read = tokenizer(text, return_offsets_mapping=True)
        ids = torch.tensor([[*starts, *read.input_ids]])
        with torch.no_grad():
            rows = torch.log_softmax(model(ids).logits[0, :-1].double(), -1)
        expected.append(float(rows.gather(1, ids[0, 1:, None]).sum()))
        sizes.append(len(text[0 if starts else read.offset_mapping[0][1] :].encode()))
    assert scores == pytest.approx(expected, rel=1e-5)
    outcome = BitsPerByte("text", ("held.txt",)).measure(scorer, {"held.txt": TEXTS})
    bits = -sum(expected) / math.log(2) / sum(sizes)
    assert outcome.figures == {"bits per byte": pytest.approx(bits, rel=1e-5)}


def test_a_t5_of_another_family_fills_gaps(tmp_path, vocabulary) -> None:
    """LongT5, which Limba does not read."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder_of(T5, vocabulary, tmp_path / "t5"))
    config: Any = transformers.LongT5Config(
        vocab_size=1_024,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        local_radius=8,
        decoder_start_token_id=0,
    )
    torch.manual_seed(0)
    transformers.LongT5ForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    scorer = scoring.open_scorers(str(tmp_path / "model"))[0]
    assert isinstance(scorer, foreign_scorer.ForeignScorer) and scorer.way == scoring_methods.GAPS
    pairs = [Pair("Who sees him?", "Who see him?", "a"), Pair("It is there", "It are there", "a")]
    good, bad = likelihoods(scorer, pairs)
    model = transformers.LongT5ForConditionalGeneration.from_pretrained(tmp_path / "model").eval()
    for number, pair in enumerate(pairs):
        read, words = gap(pair.good, pair.bad)
        for word, ours in zip(words, (good[number], bad[number]), strict=True):
            labels = tokenizer(f"<extra_id_0> {word} <extra_id_1>", return_tensors="pt").input_ids
            with torch.no_grad():
                loss = model(input_ids=tokenizer(read, return_tensors="pt").input_ids, labels=labels).loss
            assert ours == pytest.approx(-float(loss) * labels.shape[1], rel=1e-5), word


def test_random_weights_and_checksums_are_the_same_each_time(tmp_path) -> None:
    folder = saved("bert", tmp_path / "model")
    first, second = (foreign_scorer.open_folder(str(folder)) for _ in range(2))
    drawn = [scorer.with_random_weights().log_likelihoods(TEXTS[:2]) for scorer in (first, second)]
    assert (drawn[0] == drawn[1]).all() and (drawn[0] != first.log_likelihoods(TEXTS[:2])).all()
    assert first.checksum(is_random=False) == second.checksum(is_random=False) != first.checksum(is_random=True)
    assert first.with_random_weights().checksum(is_random=True) == first.checksum(is_random=True)
    with torch.no_grad():
        next(second.model.parameters())[3, 3] += 1e-3
    assert first.checksum(is_random=False) != second.checksum(is_random=False)
    assert first.checksum(is_random=True) == second.checksum(is_random=True)


def test_random_weights_begin_as_the_model_does(tmp_path) -> None:
    """generation_config.json may name a start of texts that config.json does not."""
    scorer = foreign_scorer.open_folder(str(saved("qwen", tmp_path / "model")))
    scorer.model.generation_config.bos_token_id = 5
    assert scorer.with_random_weights().starts == scorer.starts == [5]


def test_a_checksum_knows_what_stands_before_a_text(vocabulary, tmp_path) -> None:
    """A start that is named in another file than the weights and the pieces changes each figure of a causal model."""
    folders = (folder_of(BOTH["llama"], vocabulary, tmp_path / "ours"), saved("qwen", tmp_path / "foreign"))
    for folder in folders:
        checksums = []
        for start in (3, 4):
            settings = json.loads((folder / "generation_config.json").read_text())
            (folder / "generation_config.json").write_text(json.dumps(settings | {"bos_token_id": start}))
            (scorer,) = scoring.open_scorers(str(folder))
            checksums.append(scorer.checksum(is_random=False))
        assert checksums[0] != checksums[1], folder


def changed(folder: Path, **entries: object) -> None:
    file = folder / "config.json"
    settings = {**json.loads(file.read_text()), **entries}
    file.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))


def needs_code(folder: Path) -> None:
    changed(folder, model_type="mine", auto_map={"AutoModelForMaskedLM": "modeling.Mine"})
    (folder / "modeling.py").write_text("raise SystemExit('foreign code ran')\n")


def loses_its_head(folder: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(folder)
    transformers.BertModel(config).save_pretrained(folder)


def has_no_mask(folder: Path) -> None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            settings = json.loads((folder / name).read_text())
            settings.pop("mask_token", None)
            (folder / name).write_text(json.dumps(settings))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (needs_code, "model needs code of its own (auto_map in its config.json), which is not run here"),
        (lambda folder: changed(folder, model_type="newest"), "is of the kind 'newest', which transformers"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: changed(folder, model_type="vit"), "is a vit, for which transformers has no language model"),
        (loses_its_head, "so it scores no texts; give a model with its output layer"),
        (has_no_mask, "has no mask token, by which an encoder scores texts"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 99), "model cannot be read ("),
    ],
)
def test_what_cannot_be_scored_is_one_sentence(damage, says, tmp_path) -> None:
    folder = saved("bert", tmp_path / "model")
    damage(folder)
    with pytest.raises(InputError) as caught:
        scoring.open_scorers(str(folder))
    assert says in str(caught.value) and "\n" not in str(caught.value), caught.value


def test_a_text_that_is_too_long_for_learned_positions_is_refused(tmp_path, caplog, monkeypatch) -> None:
    scorer: Any = scoring.open_scorers(str(saved("xlm-r", tmp_path / "model")))[0]
    scorer.tokenizer.model_max_length = 128
    logger = logging.getLogger("transformers")
    caplog.set_level(logging.WARNING, logger="transformers")
    # What other tests have imported decides whether this logger propagates to the root, where caplog listens too.
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(caplog.handler)
    try:
        logger.getChild("tokenization_utils_base").warning("seen")
        assert [record.message for record in caplog.records] == ["seen"]
        caplog.clear()
        with pytest.raises(InputError, match=r"model reads at most 128 tokens, and a text has \d+; give shorter texts"):
            scorer.log_likelihoods(["a" * 2, "It is there " * 60])
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records, "our sentence is the only one"


@pytest.fixture(scope="module")
def hybrid(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a hybrid, with its vocabulary."""
    folder = tmp_path_factory.mktemp("hybrid")
    new = NewVocabulary(str(folder / "pieces.model"))
    new.train(corpus.read_bytes().splitlines(), 512, masks=True)
    write_run(folder / "run", tiny.language_model(attention_mask="hybrid", vocab_size=512, max_length=96))
    (folder / "run" / "spiece.model").write_bytes(Path(new.path).read_bytes())
    return folder / "run"


@pytest.mark.slow
def test_one_command_gives_both_figures_of_a_hybrid(hybrid, tmp_path, monkeypatch, capsys) -> None:
    """As GPT-BERT's authors report them: a causal and a masked one, each in the row of its measure."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "held.txt").write_text("It has a line, and another one.\nWho sees him?\n")
    (tmp_path / "pairs.tsv").write_text("good\tbad\nWho sees him?\tWho see him?\nIt is there.\tIt are there.\n")
    (tmp_path / "suite.gin").write_text("text/BitsPerByte.texts = 'held.txt'\na/MinimalPairs.file = 'pairs.tsv'\n")
    shutil.copytree(hybrid, tmp_path / "run")
    (tmp_path / "run" / "README.md").write_text("---\nlicense: mit\n---\n")
    assert main.main(["results", "run", "--suite=./suite.gin", "--output=out", "--card"]) == 0, capsys.readouterr().err
    card = huggingface_hub.ModelCard((tmp_path / "run" / "README.md").read_text()).data.eval_results
    names = {"pseudo bits per byte (run, masked)", "bits per byte (run, causal)"}
    assert {each.metric_name for each in card} == names | {f"accuracy (run, {way})" for way in ("masked", "causal")}
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (
        "text: 2 test examples or documents are too few to trust their intervals, so no best is marked"
        in (written["notes"])
    )
    assert not any(cell["is_best"] for cell in written["cells"])
    assert [cell["task"] for cell in written["cells"]] == [*["text"] * 4, *["a"] * 5], "a task's figures are together"
    cells = {
        (cell["figure"], cell["model"]): cell["mean"] for cell in written["cells"] if "random" not in cell["model"]
    }
    assert cells.keys() == {
        ("pseudo bits per byte", "run, masked"),
        ("bits per byte", "run, causal"),
        *(("accuracy", column) for column in ("run, masked", "run, causal", "chance")),
    }
    assert any("run, masked: pseudo log likelihood" in note for note in written["notes"])
    assert any("run, causal: log likelihood from left to right" in note for note in written["notes"])
    trained = limba.load(hybrid)
    texts = [("", line) for line in (tmp_path / "held.txt").read_text().splitlines()]
    size = sum(len(text.encode()) for _, text in texts)
    causal = -sum(trained.decoder.log_likelihoods(texts, ends=False)) / math.log(2) / size
    masked = -sum(trained.log_likelihoods(texts)) / math.log(2) / size
    assert cells["bits per byte", "run, causal"] == pytest.approx(causal, rel=1e-6)
    assert cells["pseudo bits per byte", "run, masked"] == pytest.approx(masked, rel=1e-6) != causal
    picture = ElementTree.fromstring((tmp_path / "out" / "results.svg").read_text())
    bars = [bar.get("class") for bar in picture.iter() if bar.tag.endswith("rect")]
    assert bars.count("b") == 4, "both columns are the model's, in each task"


@pytest.mark.slow
def test_models_of_four_families_stand_beside_ours_in_one_table(vocabulary, tmp_path, monkeypatch, capsys) -> None:
    """Each of the three measures has a row of its own, and the notes say how each model was scored."""
    monkeypatch.chdir(tmp_path)
    for kind in ("bert", "xlm-r", "qwen"):
        saved(kind, tmp_path / kind)
    folder_of(T5, vocabulary, tmp_path / "ours")
    (tmp_path / "held.txt").write_text("The module opens the file and reads 12 lines.\n")
    (tmp_path / "pairs.tsv").write_text("good\tbad\nWho sees him?\tWho see him?\nIt is there.\tIt are there.\n")
    (tmp_path / "suite.gin").write_text("text/BitsPerByte.texts = 'held.txt'\na/MinimalPairs.file = 'pairs.tsv'\n")
    command = ["results", "ours", "bert", "xlm-r", "qwen", "--suite=./suite.gin", "--output=out"]
    assert main.main(command) == 0, capsys.readouterr().err
    assert "16 outcomes computed" in capsys.readouterr().out
    cells = json.loads((tmp_path / "out" / "results.json").read_text())["cells"]
    rows = {figure: {cell["model"] for cell in cells if cell["figure"] == figure} for figure in NAMES.values()}
    beside = lambda *names: {column for name in names for column in (name, f"{name}, random weights")}
    assert rows["bits per byte"] == beside("qwen")
    assert rows["pseudo bits per byte"] == beside("bert", "xlm-r")
    assert rows["bits per hidden byte"] == beside("ours")
    assert {cell["model"] for cell in cells if cell["figure"] == "accuracy"} >= {"ours", "bert", "xlm-r", "qwen"}
    assert (
        "text, a, qwen: log likelihood from left to right; the model has no start token"
        in (tmp_path / "out" / "results.txt").read_text()
    )
    assert main.main(command) == 0 and "0 outcomes computed" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "name"), [("AutoModel", "eurobert"), ("T5EncoderModel", "t5")])
def test_a_model_of_ours_without_an_output_layer_scores_no_texts(kind, name, vocabulary, tmp_path) -> None:
    of_ours = folder_of(BOTH[name], vocabulary, tmp_path / "own")
    getattr(transformers, kind).from_pretrained(of_ours).save_pretrained(tmp_path / "model")
    transformers.AutoTokenizer.from_pretrained(of_ours).save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match="model is (an|the) encoder.* scores no text"):
        scoring.ways_of(str(tmp_path / "model"))
        scoring.open_scorers(str(tmp_path / "model"))
