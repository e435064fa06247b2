"""Folders that transformers saves: ids are AutoTokenizer's, text, scores and vectors are the model's there.

Eight classes of models times six styles of tokenizers, each by a generic and by a real class of transformers. The ids
of all are compared on every landing, the numbers of a dozen; the others' at night.
"""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from etils import epath
from tokenizers import AddedToken, normalizers

import limba
from limba.config import InputError, MeshConfig, ModelConfig
from limba.data.vocabulary import published, tokenizer_classes
from limba.data.vocabulary.load import check_vocabulary, load_vocabulary
from limba.data.vocabulary.sentinels import sentinel_table
from limba.data.vocabulary.special_ids import SpecialIds
from limba.data.vocabulary.tokenizers import ids_of
from limba.export.huggingface import import_folder
from limba.inference import mask_filling
from limba.inference.gap_pieces import Fill
from limba.inference.source import find, open_vocabulary
from limba.model import Network
from limba.sharding.mesh import make_mesh
from limba.training.checkpoints.initial import check_initial
from tests import published as folders

TEXTS = ("a few words of it", "Line 7: ærlig, again and", "日本 <nl> b")
LANDING = (  # the others are compared at night
    *(("t5", "endoftext"), ("t5", "roberta"), ("mt5", "gemma"), ("umt5", "unigram"), ("t5_encoder", "roberta")),
    *(("llama", "llama"), ("llama", "endoftext"), ("gpt2", "endoftext"), ("gpt2", "roberta")),
    *(("eurobert", "roberta"), ("eurobert", "gemma"), ("modernbert", "bert")),
)
OTHERS = sorted(set(itertools.product(folders.KINDS, folders.STYLES)) - set(LANDING))
MODEL_TYPES = ("t5", "mt5", "umt5", "llama", "gpt2", "modernbert", "eurobert")


def ours_of(folder: Path) -> list[list[int]]:
    opened = published.open_folder(epath.Path(folder))
    before, after = opened.template
    return [[*before, *opened.encode(text), *after] for text in folders.TEXTS]


def write(folder: Path, **files: object) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("style", folders.STYLES)
def test_ids_are_those_of_auto_tokenizer(style: str, tmp_path: Path) -> None:
    seen = set()
    for make in (folders.generic, folders.real):
        tokenizer = make(style)
        for model_type in MODEL_TYPES:
            folder = write(tmp_path / "model", config={"model_type": model_type})
            tokenizer.save_pretrained(folder)
            theirs = folders.ids_of(folder)
            assert ours_of(folder) == theirs, (make.__name__, model_type)
            seen.add(str(theirs))
    assert len(seen) >= 1 + (style in ("gemma", "llama"))  # the real class of these cuts otherwise than its own file


@pytest.mark.parametrize("style", folders.STYLES)
def test_older_files_are_read_by_the_same_rules(style: str, tmp_path: Path) -> None:
    """Files as versions 3 and 4 wrote them: tokenizer.json as trained, roles and tokens beside it."""
    tokenizer, roles = folders.STYLES[style]()
    names = {"endoftext": "GPT2", "roberta": "Roberta", "gemma": "Gemma", "bert": "Bert", "unigram": "T5"}
    decoder = {
        str(number): {
            **{"content": token.content, "lstrip": token.content == "<mask>", "rstrip": False},
            **{"normalized": False, "single_word": False, "special": token.special},
        }
        for number, token in tokenizer.get_added_tokens_decoder().items()
    }
    choices = (
        {},
        {"add_prefix_space": True, "extra_special_tokens": ["again"]},
        {"legacy": True, "add_bos_token": True, "add_eos_token": True, "added_tokens_decoder": decoder},
        {"split_special_tokens": True},
        {"do_lower_case": False, "strip_accents": True, "additional_special_tokens": ["<sp>", "words"]},
    )
    for kind in ("PreTrainedTokenizerFast", f"{names.get(style, 'Llama')}TokenizerFast", "NobodysTokenizer"):
        for model_type, more in zip(itertools.cycle(("t5", "llama", "gpt2")), choices, strict=False):
            settings = {**roles, "tokenizer_class": kind, **more}
            folder = write(
                tmp_path / "model",
                config={"model_type": model_type},
                tokenizer_config=settings,
                special_tokens_map=roles,
                added_tokens={"<nl>": tokenizer.get_vocab_size()},
            )
            tokenizer.save(str(folder / "tokenizer.json"))
            assert ours_of(folder) == folders.ids_of(folder), (kind, model_type, more)


ENDOFTEXT = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
CLEANS = (
    "clean_up_tokenization_spaces",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
)
ODD_FILES = {
    # Without an id yet: they get theirs in the order of transformers' roles, not of the file.
    "roles in the alphabet's order": ("endoftext", {**ENDOFTEXT, "mask_token": "<mask>", "pad_token": "[PAD]"}, {}, {}),
    "an ordinary token with a role": ("endoftext", {**ENDOFTEXT, "pad_token": "again"}, {}, {"tokens": ["again"]}),
    "padding in tokenizer.json alone": ("endoftext", ENDOFTEXT, {}, {"padding": "<pad>", "tokens": ["<pad>"]}),
    "an empty list, and another file's": (
        "endoftext",
        {**ENDOFTEXT, "additional_special_tokens": []},
        {**ENDOFTEXT, "additional_special_tokens": ["words"]},
        {},
    ),
    "tokens with names of their own": (
        "endoftext",
        {**ENDOFTEXT, "image_token": {"__type": "AddedToken", "content": "again", "lstrip": True}},
        {},
        {},
    ),
    "GPT-NeoX's class": ("endoftext", {"tokenizer_class": "GPTNeoXTokenizerFast", "add_prefix_space": True}, {}, {}),
    "Qwen2's class": ("endoftext", {"tokenizer_class": "Qwen2Tokenizer", "pad_token": "again"}, {}, {}),
    "a T5's list in special_tokens_map.json": ("unigram", {}, {"additional_special_tokens": ["again"]}, {}),
    "a T5's empty list": ("unigram", {"additional_special_tokens": []}, {}, {}),
    "a T5's null": ("unigram", {"extra_special_tokens": None, "extra_ids": 10}, {}, {}),
    "a T5's null beside an older list": (
        "unigram",
        {"extra_special_tokens": None, "extra_ids": 10},
        {"additional_special_tokens": ["again"]},
        {},
    ),
    "a T5's tokens with names of their own, and a list": (
        "unigram",
        {"extra_special_tokens": {"image_token": "again"}, "additional_special_tokens": ["words"]},
        {},
        {},
    ),
    "tokens that do not say whether they are special": (
        "endoftext",
        {
            **ENDOFTEXT,
            "added_tokens_decoder": {"420": {"content": "<nl>"}, "421": {"content": "again", "lstrip": True}},
        },
        {},
        {},
    ),
    "such tokens in a list": (
        "endoftext",
        {**ENDOFTEXT, "additional_special_tokens": [{"__type": "AddedToken", "content": "<nl>"}, "again"]},
        {},
        {},
    ),
    "such tokens in special_tokens_map.json, which are special": (
        "endoftext",
        ENDOFTEXT,
        {"pad_token": {"content": "[PAD]"}, "extra_special_tokens": [{"content": "<nl>"}]},
        {},
    ),
    "BPE's text without spaces before signs": ("endoftext", {**ENDOFTEXT, **dict.fromkeys(CLEANS, True)}, {}, {}),
    "spaces around special tokens of Qwen2's class": (
        "endoftext",
        {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<nl>", "extra_special_tokens": ["<mask>"]},
        {},
        {"tokens": [AddedToken(name, lstrip=True, rstrip=True) for name in ("<nl>", "<mask>")]},
    ),
    "a Llama's token of the name ByteLevel": (
        "llama",
        {"tokenizer_class": "LlamaTokenizer"},
        {},
        {"tokens": ["ByteLevel"]},
    ),
    "code that is not run": (
        "endoftext",
        {"tokenizer_class": "LlamaTokenizer", "auto_map": {"AutoTokenizer": ["own.Own", None]}},
        {},
        {},
    ),
    "Longformer's class": ("roberta", {"tokenizer_class": "LongformerTokenizer", "add_prefix_space": True}, {}, {}),
    "Phi-3's class": ("llama", {"tokenizer_class": "Phi3Tokenizer"}, {}, {"tokens": ["ByteLevel"]}),
    **{
        f"{name}'s class": ("bert", {"tokenizer_class": f"{name}Tokenizer", "do_lower_case": False}, {}, {})
        for name in ("DistilBert", "Electra", "LayoutLM", "SqueezeBert")
    },
}


@pytest.mark.parametrize("name", ODD_FILES)
def test_files_that_say_tokens_in_odd_ways_give_the_same_ids_and_text(name: str, tmp_path: Path) -> None:
    style, settings, special, more = ODD_FILES[name]
    tokenizer, _ = folders.STYLES[style]()
    tokenizer.add_tokens(list(more.get("tokens", ())))
    if "padding" in more:
        tokenizer.enable_padding(pad_token=more["padding"], pad_id=tokenizer.token_to_id(more["padding"]))
    folder = write(
        tmp_path / "model",
        config={"model_type": "t5" if style == "unigram" else "llama"},
        tokenizer_config=settings,
        **({"special_tokens_map": special} if special else {}),
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    ours = published.open_folder(epath.Path(folder))
    odd = ("words again words <mask> [PAD] <extra_id_0> <extra_id_1>", "e\u0301 IT'S 123\n\n  a", "x . y ? a <nl> b")
    for text in (*folders.TEXTS, *odd):
        ids = theirs.encode(text, add_special_tokens=False)
        assert list(ours.encode(text)) == ids
        assert ours.text_of(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.ids.get("pad_token") == theirs.pad_token_id
    assert ours.ids.get("eos_token") == theirs.eos_token_id
    before, after = ours.template
    assert [*before, *ours.encode("a"), *after] == theirs.encode("a")


def test_what_only_transformers_can_choose_is_refused(tmp_path: Path) -> None:
    tokenizer, roles = folders.endoftext()
    for settings, sentence in (
        ({"fast_tokenizer_files": ["tokenizer.json", "tokenizer.4.0.0.json"]}, "names fast_tokenizer_files, of which"),
        (
            {"auto_map": {"AutoTokenizer": ["own.Own", None]}, "tokenizer_class": "OwnTokenizer"},
            "names code of its own",
        ),
        ({"tokenizer_class": "CodeGenTokenizerFast"}, "names the tokenizer_class CodeGenTokenizerFast, whose rules"),
    ):
        folder = write(tmp_path / "model", config={"model_type": "llama"}, tokenizer_config={**roles, **settings})
        tokenizer.save(str(folder / "tokenizer.json"))
        with pytest.raises(InputError, match=sentence):
            published.open_folder(epath.Path(folder))
    folder = write(
        tmp_path / "model",
        config={"model_type": "llama"},
        tokenizer_config={**roles, "fast_tokenizer_files": ["tokenizer.json"]},
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    assert ours_of(folder) == folders.ids_of(folder)


def test_a_sentencepiece_model_alone_is_read_as_transformers_converts_it(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(folders.CORPUS * 5))
    for name, choices in {
        "plain": {},
        "bytes": {"byte_fallback": True, "vocab_size": 500},
        "symbols": {"user_defined_symbols": ["<nl>", "<b>"], "control_symbols": ["<mask>"]},
        "identity": {"normalization_rule_name": "identity"},
    }.items():
        train_spm(tmp_path, name, **choices)
        older = "additional_special_tokens"
        for beside in (
            {},
            {"tokenizer_config": {"extra_ids": 3}, "special_tokens_map": {older: ["<extra_id_0>", "<extra_id_9>"]}},
            {"tokenizer_config": {older: None}},
        ):
            folder = write(tmp_path / name, config={"model_type": "t5"}, **beside)
            shutil.copy(tmp_path / f"{name}.model", folder / "spiece.model")
            assert ours_of(folder) == folders.ids_of(folder), (name, beside)
    folder = write(tmp_path / "umt5", config={"model_type": "umt5"})
    shutil.copy(tmp_path / "plain.model", folder / "spiece.model")
    with pytest.raises(InputError, match=r"has no tokenizer.json, .*; write one: transformers.AutoTokenizer"):
        published.open_folder(epath.Path(folder))


def train_spm(folder: Path, name: str, **choices: object) -> None:
    options = {"vocab_size": 300, "hard_vocab_limit": False, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "corpus.txt"), model_prefix=str(folder / name), minloglevel=2, **{**options, **choices}
    )


def test_tokens_that_were_added_to_a_t5_are_ids_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(folders.CORPUS * 5))
    train_spm(tmp_path, "plain")
    size = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "plain.model")).get_piece_size() + 100
    sentinels = {f"<extra_id_{number}>": size - 1 - number for number in range(100)}
    token = {"content": "<nl>", "lstrip": False, "rstrip": False, "normalized": True, "single_word": False}
    settings = {"tokenizer_class": "T5Tokenizer", "added_tokens_decoder": {str(size): {**token, "special": False}}}
    for more in ({"tokenizer_config": settings}, {}):
        folder = write(
            tmp_path / "model", config={"model_type": "t5"}, added_tokens={"<nl>": size, **sentinels}, **more
        )
        shutil.copy(tmp_path / "plain.model", folder / "spiece.model")
        assert ours_of(folder) == folders.ids_of(folder)
        assert size in published.open_folder(epath.Path(folder)).encode("words <nl> words")


def test_a_trainer_that_reads_other_ids_is_told(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(folders.CORPUS * 5))
    train_spm(tmp_path, "plain")
    train_spm(tmp_path, "other", model_type="char")
    folder = write(tmp_path / "model", config={"model_type": "t5"})
    shutil.copy(tmp_path / "plain.model", folder / "spiece.model")
    path = str(folder / "spiece.model")
    assert published.text_read_otherwise(path, load_vocabulary(path).encode) is None
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<nl>"])
    tokenizer.save_pretrained(folder)
    assert published.text_read_otherwise(path, load_vocabulary(path).encode) == "one <nl> two"
    shutil.copy(tmp_path / "other.model", folder / "spiece.model")
    assert published.text_read_otherwise(path, load_vocabulary(path).encode) == published._COMPARED[0]


def test_a_checkpoint_that_is_made_of_a_folder_tells_what_it_reads_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(folders.CORPUS * 5))
    train_spm(tmp_path, "plain")
    source = write(tmp_path / "source", config={"model_type": "t5"})
    shutil.copy(tmp_path / "plain.model", source / "spiece.model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    folder = tmp_path / "model"
    folders.saved(folder, "t5", tokenizer)
    shutil.copy(tmp_path / "plain.model", folder / "spiece.model")
    import_folder(folder, tmp_path / "same")
    assert "reads" not in caplog.text
    tokenizer.add_tokens(["<nl>"])
    tokenizer.save_pretrained(folder)
    import_folder(folder, tmp_path / "other")
    assert f"{folder}/spiece.model, which the checkpoint takes, reads 'one <nl> two' as other ids" in caplog.text


def in_config_alone(folder: Path, name: str | None) -> None:
    """Has config.json name the class of the tokenizer, as older folders do, and no other file."""
    for file, named in (("tokenizer_config", None), ("config", name)):
        path = folder / f"{file}.json"
        content = json.loads(path.read_text())
        content.pop("tokenizer_class", None)
        if named is not None:
            content["tokenizer_class"] = named
        path.write_text(json.dumps(content))


WRITTEN_BACK = (  # kind, style, the class that config.json names
    *(("gpt2", "bert", "BertTokenizer"), ("gpt2", "unigram", "T5Tokenizer"), ("t5", "roberta", "RobertaTokenizer")),
    *(("llama", "llama", "LlamaTokenizer"), ("llama", "llama", "PreTrainedTokenizerFast"), ("umt5", "unigram", None)),
    *(("eurobert", "bert", "BertTokenizer"), ("t5_encoder", "roberta", "PreTrainedTokenizerFast")),
)


@pytest.mark.parametrize(("kind", "style", "name"), WRITTEN_BACK)
def test_a_folder_that_is_written_back_is_read_as_before(
    kind: str, style: str, name: str | None, tmp_path: Path
) -> None:
    before = tmp_path / "before"
    folders.saved(before, kind, folders.generic(style))
    in_config_alone(before, name)
    rules = before / "generation_config.json"
    if rules.exists():
        rules.write_text(json.dumps(json.loads(rules.read_text()) | {"no_repeat_ngram_size": 2, "num_beams": 4}))
    after = Path(limba.load(before).save(tmp_path / "after"))
    assert folders.ids_of(after) == folders.ids_of(before)
    of_both = [type(transformers.AutoTokenizer.from_pretrained(folder)) for folder in (before, after)]
    assert of_both[0] is of_both[1]
    assert (after / rules.name).exists() == rules.exists()
    if rules.exists():
        assert (after / rules.name).read_bytes() == rules.read_bytes()
        rules.unlink()  # config.json has the rules then
        config = before / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"no_repeat_ngram_size": 3}))
        later = Path(limba.load(before).save(tmp_path / "later"))
        assert json.loads((later / "config.json").read_text())["no_repeat_ngram_size"] == 3
        assert not (later / rules.name).exists()


def test_a_panic_of_the_tokenizer_is_a_sentence() -> None:
    """A token of which its normalizer leaves nothing is found inside of a letter; transformers ends in a traceback."""
    tokenizer = folders.generic("roberta").backend_tokenizer
    tokenizer.normalizer = normalizers.Strip()
    tokenizer.add_tokens([AddedToken("\n", normalized=True)])
    with pytest.raises(BaseException, match="bad split"):
        tokenizer.encode("é vs é")
    with pytest.raises(InputError, match=r"cannot read the letter 'é' of a text \(.*bad split"):
        ids_of(tokenizer, "é vs é", "tokenizer.json")


def test_every_tokenizer_class_of_transformers_is_decided() -> None:
    """Each class that transformers knows by a name is rebuilt here, refused, or the one that takes a file as it is."""
    from transformers.convert_slow_tokenizer import SLOW_TO_FAST_CONVERTERS
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    decided = {
        *tokenizer_classes.REBUILT,
        *tokenizer_classes.REFUSED,
        *tokenizer_classes._ALIASES,
        *tokenizer_classes._GENERIC,
        "ByT5Tokenizer",
    }
    names = {
        *filter(None, TOKENIZER_MAPPING_NAMES.values()),
        *SLOW_TO_FAST_CONVERTERS,
    }  # some have other classes' rules
    names |= {name for name in dir(transformers) if name.endswith(("Tokenizer", "TokenizerFast", "TokenizerLegacy"))}
    names |= {"MistralCommonBackend", "PreTrainedTokenizerBase", "SentencePieceBackend"}
    for name in sorted({name.removesuffix("Fast") for name in names} - decided):
        tokenizer_class = tokenizer_class_from_name(name)
        opens_folders = isinstance(tokenizer_class, type) and issubclass(tokenizer_class, PreTrainedTokenizerBase)
        if opens_folders or type(tokenizer_class).__name__ == "DummyObject":  # of a package that is not here
            assert tokenizer_class is TokenizersBackend, f"decide how {name} is read"
    for name, target in tokenizer_classes._ALIASES.items():
        assert issubclass(tokenizer_class_from_name(name), tokenizer_class_from_name(target)), name
    assert set(MODEL_TYPES) <= {"t5", "mt5", "umt5", "llama", "gpt2", "modernbert", "eurobert"}
    for model_type in MODEL_TYPES:
        assert tokenizer_classes._OF_MODEL.get(model_type) == TOKENIZER_MAPPING_NAMES.get(model_type)


def compare(folder: Path, kind: str, style: str) -> None:
    """Compares ids, greedy text, scores and vectors of a folder that is saved here with transformers."""
    compare_saved(folder, kind, folders.saved(folder, kind, folders.generic(style)))


def compare_saved(folder: Path, kind: str, model) -> None:
    """Compares a folder with the model of transformers that it holds."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = limba.load(folder)
    for text in folders.TEXTS:
        if text.strip():
            assert ours.tokenize(text).tolist() == theirs(text).input_ids, text
    if kind in ("t5_encoder", "modernbert", "eurobert"):
        compare_vectors(ours, model, theirs)
    else:
        compare_texts(ours, model, theirs)


def compare_texts(ours, model, theirs) -> None:
    is_t5 = not ours.network.config.is_decoder_only
    texts = ours.generate(TEXTS, max_tokens=10)
    samples = ours.samples(TEXTS, max_tokens=10)
    for text, mine, ((_, _, ids),) in zip(TEXTS, texts, samples, strict=True):
        prompt = torch.tensor([theirs(text).input_ids])
        written = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=10, do_sample=False)[0]
        new = written[1:] if is_t5 else written[prompt.shape[1] :]
        assert ids[: len(new)].tolist() == new.tolist()
        assert mine == theirs.decode(new if is_t5 else written, skip_special_tokens=True)
    read, targets = ours.pair_ids(*TEXTS[:2])
    if is_t5:
        labels = theirs(TEXTS[1]).input_ids
        assert targets.tolist()[: len(labels)] == labels and set(targets.tolist()[len(labels) :]) <= set(
            ours.special_ids.ends
        )
        decoder_ids = [model.config.decoder_start_token_id, *targets.tolist()[:-1]]
        logits = model(
            input_ids=torch.tensor([theirs(TEXTS[0]).input_ids]), decoder_input_ids=torch.tensor([decoder_ids])
        ).logits
        rows = logits[0]
    else:
        rows = model(torch.tensor([[*read.tolist(), *targets.tolist()]])).logits[0, len(read) - 1 : -1]
    wanted = float(
        rows.log_softmax(-1)[torch.arange(len(targets)), torch.tensor(targets.astype(np.int64))].sum().detach()
    )
    (score,) = ours.score([TEXTS[:2]])
    assert score.log_likelihood == pytest.approx(wanted, rel=2e-5)


def compare_vectors(ours, model, theirs) -> None:
    base = getattr(model, "model", model)
    for text, vector in zip(TEXTS, ours.encode(TEXTS), strict=True):
        states = base(torch.tensor([theirs(text).input_ids])).last_hidden_state[0].detach()
        np.testing.assert_allclose(vector, states.mean(0).numpy(), atol=2e-5 * max(1.0, float(states.abs().max())))
    if ours.network.config.is_t5_encoder:
        return
    if theirs.mask_token_id is None:
        for ask in (lambda: ours.fill("a ___"), lambda: ours.log_likelihoods([("", "again")])):
            if ours.special_ids.mask is None:
                with pytest.raises(InputError, match=r"has no mask \(mask_token\)"):
                    ask()
        return
    ids = theirs("again").input_ids  # one word: each of its pieces is predicted while it and the later ones are masks
    before, after = ours.vocabulary.template
    wanted = 0.0
    for index in range(len(before), len(ids) - len(after)):
        masked = [
            *ids[:index],
            *[theirs.mask_token_id] * (len(ids) - len(after) - index),
            *ids[len(ids) - len(after) :],
        ]
        wanted += float(model(torch.tensor([masked])).logits[0, index].log_softmax(-1)[ids[index]].detach())
    assert float(ours.log_likelihoods([("", "again")])[0]) == pytest.approx(wanted, rel=2e-5)
    text = f"a few {theirs.mask_token} of it"
    ids = torch.tensor([theirs(text).input_ids])
    likely = model(ids).logits[0, int((ids[0] == theirs.mask_token_id).nonzero()[0, 0])].softmax(-1).detach().numpy()
    for fill in ours.fill(text)[0]:
        assert fill.probability == pytest.approx(float(likely[fill.ids[0]]), rel=1e-4)


@pytest.mark.parametrize(("kind", "style"), LANDING)
@pytest.mark.slow
def test_a_folder_gives_what_it_gives_in_transformers(kind: str, style: str, tmp_path: Path) -> None:
    compare(tmp_path, kind, style)


@pytest.mark.night
@pytest.mark.parametrize(("kind", "style"), OTHERS)
def test_every_folder_gives_what_it_gives_in_transformers(kind: str, style: str, tmp_path: Path) -> None:
    compare(tmp_path, kind, style)


@pytest.mark.slow
def test_roles_of_generation_are_those_of_its_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The decoder's start, several ends, suppressed ids; config.json counts where targets are given."""
    tokenizer = folders.generic("unigram")
    model = folders.saved(tmp_path, "t5", tokenizer, decoder_start_token_id=5)
    compare_texts(limba.load(tmp_path), model, transformers.AutoTokenizer.from_pretrained(tmp_path))
    prompt = torch.tensor([tokenizer(TEXTS[0]).input_ids])
    first = model.generate(prompt, max_new_tokens=6, do_sample=False)[0].tolist()
    path = tmp_path / "generation_config.json"
    settings = json.loads(path.read_text())
    settings |= {"decoder_start_token_id": 7, "eos_token_id": [1, first[3]], "suppress_tokens": [first[1]]}
    path.write_text(json.dumps(settings))
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    compare_texts(limba.load(tmp_path), again, tokenizer)
    ours = limba.load(tmp_path)
    assert (ours.special_ids.decoder_start, ours.special_ids.generation_start) == (5, 7)
    with pytest.raises(InputError, match=r"has ids of its own .*decoder_start_token_id 5"):
        check_initial(str(tmp_path))
    for forced in (9, 0):
        path.write_text(json.dumps({**settings, "forced_bos_token_id": forced}))
        with pytest.raises(InputError, match="/generation_config.json has forced_bos_token_id, which Limba's search"):
            limba.load(tmp_path).generate(["a"])
    path.write_text(json.dumps({**settings, "repetition_penalty": 1.1, "min_length": 0}))
    assert "asks for" not in caplog.text
    limba.load(tmp_path).generate(["a"], max_tokens=2)
    assert f"{path} asks for repetition_penalty 1.1, which Limba's search does not have" in caplog.text
    path.write_text(json.dumps({**settings, "decoder_start_token_id": 10**6}))
    with pytest.raises(
        InputError, match="generation_config.json has decoder_start_token_id 1000000, and the model has"
    ):
        limba.load(tmp_path).generate(["a"])


@pytest.mark.slow
def test_the_search_that_a_file_asks_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No n-gram twice is the default of its folder; beams are the caller's choice, and the log says so."""
    tokenizer = folders.generic("unigram")
    folders.saved(tmp_path, "t5", tokenizer)
    path = tmp_path / "generation_config.json"
    settings = json.loads(path.read_text())

    def texts() -> list[list[int]]:
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
        ids = torch.tensor([tokenizer(TEXTS[0]).input_ids])
        theirs = model.generate(ids, max_new_tokens=12)[0, 1:].tolist()
        loaded = limba.load(tmp_path)
        assert loaded.generation.no_repeat_ngram_size == settings.get("no_repeat_ngram_size", 0)
        ours = loaded.samples(TEXTS[:1], max_tokens=12)[0][0].ids.tolist()
        return [theirs, ours[: len(theirs)]]

    theirs, ours = texts()
    assert theirs == ours
    free = theirs
    settings["no_repeat_ngram_size"] = 1
    path.write_text(json.dumps(settings))
    theirs, ours = texts()
    assert theirs == ours != free
    assert "asks for" not in caplog.text
    limba.load(tmp_path).generate(["a"], max_tokens=2, no_repeat_ngram_size=0)
    assert f"{path} asks for no_repeat_ngram_size 1, which transformers does" in caplog.text
    caplog.clear()
    path.write_text(json.dumps({**settings, "num_beams": 4, "length_penalty": 2.0}))
    limba.load(tmp_path).generate(["a"], max_tokens=2, num_beams=4, length_penalty=2.0)
    assert "asks for" not in caplog.text
    limba.load(tmp_path).generate(["a"], max_tokens=2)
    assert f"{path} asks for num_beams 4 and length_penalty 2.0, which transformers does" in caplog.text


@pytest.mark.slow
def test_rules_are_those_of_one_file(tmp_path: Path) -> None:
    """config.json's count only where generation_config.json is missing, as in transformers; it is named then."""
    tokenizer = folders.generic("unigram")
    folders.saved(tmp_path, "t5", tokenizer)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "bad_words_ids": [[9]]}))
    generation = tmp_path / "generation_config.json"
    generation.write_text("{}")
    limba.load(tmp_path).generate(["a"], max_tokens=2)
    generation.unlink()
    with pytest.raises(InputError, match="/config.json has bad_words_ids, which Limba's search does not have"):
        limba.load(tmp_path).generate(["a"], max_tokens=2)


@pytest.mark.slow
def test_a_tokenizer_may_have_more_ids_than_the_model_has_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A padding token that was added without resizing: the model is used as long as no text has it."""
    tokenizer = folders.generic("llama")
    monkeypatch.setattr(folders, "ROWS", len(tokenizer))
    model = folders.saved(tmp_path, "llama", tokenizer)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(tmp_path)
    compare_saved(tmp_path, "llama", model)
    with pytest.raises(InputError, match=rf"a text the id {folders.ROWS} \('\[PAD\]'\), and the model has"):
        limba.load(tmp_path).generate(["a [PAD]"])


def test_a_longer_models_tokenizer_gives_no_positions(tmp_path: Path) -> None:
    tokenizer = folders.generic("llama", model_max_length=4096)
    folders.saved(tmp_path / "a", "llama", tokenizer)
    limba.load(tmp_path / "a").save(tmp_path / "b")
    assert json.loads((tmp_path / "b" / "config.json").read_text())["max_position_embeddings"] == 128


def test_a_folder_that_is_refused_is_told_in_its_own_sentence(tmp_path: Path) -> None:
    folders.saved(tmp_path, "gpt2", folders.generic("endoftext"))
    settings = tmp_path / "tokenizer_config.json"
    named = json.loads(settings.read_text()) | {"fast_tokenizer_files": ["tokenizer.4.0.0.json"]}
    settings.write_text(json.dumps(named))
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    state["pre_tokenizer"]["add_prefix_space"] = True
    (tmp_path / "tokenizer.4.0.0.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match=r"names fast_tokenizer_files, .*take fast_tokenizer_files out of .*json\.$"):
        limba.load(tmp_path)
    wanted = folders.ids_of(tmp_path, ("a few words",))[0]
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)  # what it advises
    named = json.loads(settings.read_text())
    del named["fast_tokenizer_files"]
    settings.write_text(json.dumps(named))
    assert limba.load(tmp_path).tokenize("a few words").tolist() == wanted


def test_a_vocabulary_in_another_file_is_made_by_transformers(tmp_path: Path) -> None:
    folders.saved(tmp_path, "gpt2", folders.generic("endoftext"))
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps(state["model"]["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, state["model"]["merges"])]))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match=r"has its vocabulary as vocab.json, .*\.save_pretrained\("):
        limba.load(tmp_path).generate(["a"])
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)  # what it advises
    assert limba.load(tmp_path).tokenize("a few words").tolist() == folders.ids_of(tmp_path, ("a few words",))[0]


def test_a_run_with_another_vocabulary_is_told_of_a_models_own_ids(tmp_path: Path) -> None:
    for kind, style, ids in (
        ("gpt2", "endoftext", "pad_token_id none, eos_token_id 0, bos_token_id 0"),
        ("llama", "llama", "pad_token_id none, eos_token_id 2, bos_token_id 1"),
        ("t5", "roberta", "pad_token_id 1, eos_token_id 2, decoder_start_token_id 1"),
    ):
        folder = tmp_path / f"{kind}-{style}"
        folders.saved(folder, kind, folders.generic(style))
        with pytest.raises(InputError, match=rf"has ids of its own \({ids}\).*; set it to {folder}\.") as refused:
            check_initial(str(folder))
        assert refused.value.fix == ("DataConfig.vocabulary", str(folder))
        check_initial(str(folder), reads_folder=True)
    name, _ = open_vocabulary(find(str(tmp_path / "gpt2-endoftext")))
    trained = load_vocabulary(name.path)
    with pytest.raises(InputError, match=r"has its end of sequence, '<\|endoftext\|>', at id 0, which is padding"):
        check_vocabulary(trained, folders.ROWS, needs_sentinels=False)
    assert trained.encode("<|endoftext|>") != [0], "a corpus must not be able to end a document"
    model = find(str(tmp_path / "gpt2-endoftext")).model
    assert SpecialIds(padding=0, ends=(1,)).has_t5_layout(model)
    assert not SpecialIds(padding=0, ends=(0,)).has_t5_layout(model)


def test_sentinels_are_found_wherever_they_are(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(folders.CORPUS * 5))
    names = [f"<extra_id_{number}>" for number in range(20)]
    train_spm(tmp_path, "middle", user_defined_symbols=names)
    middle = load_vocabulary(str(tmp_path / "middle.model"))
    assert sentinel_table(middle) == list(range(3, 23))
    check_vocabulary(middle, 512)
    tokenizer = folders.generic("unigram")  # <nl> is added above the sentinels
    tokenizer.save_pretrained(tmp_path)
    above = load_vocabulary(str(tmp_path / "tokenizer.json"))
    top = tokenizer.convert_tokens_to_ids("<extra_id_0>")
    assert top < above.vocab_size - 1 and sentinel_table(above) == [top - number for number in range(10)]


def test_a_prompt_with_the_own_mask_has_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So ___ is plain text beside it, as in transformers, and a mask where the own one is missing."""
    folders.generic("bert").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "modernbert", "vocab_size": 512}')
    vocabulary = load_vocabulary(str(tmp_path))
    network = Network(ModelConfig(512, 32, 4, 8, 64, 0, 2, positions="rotary", attention_mask="bidirectional"))
    prompts = ("a [MASK] of ___", "a ___ of <mask>")
    fills = [[[Fill("word", 0.5, (7,))]], [[Fill("word", 0.5, (7,))], []]]
    monkeypatch.setattr(mask_filling, "fills_of_masks", lambda *_: fills)
    texts = mask_filling.mask_sampler(network, make_mesh(MeshConfig()), vocabulary, prompts)({})
    assert texts == {prompts[0]: ["a [word] of ___"], prompts[1]: ["a [word] of []"]}
