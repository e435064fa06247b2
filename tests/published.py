"""Folders as transformers saves them: tokenizers of six styles, each by a generic and a real class."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    f"Line {n} of a small text: it has words, signs and a few letters like ærlig or ăâî, told again and again."
    for n in range(60)
]
BYTES = [f"<0x{number:02X}>" for number in range(256)]
SIZE = 420  # ids of a tokenizer at most; the models have ROWS
ROWS = 512
SPACE = "\u2581"

# Six scripts, spaces, line ends, nothing; a style adds the names of its own special tokens.
TEXTS = (
    "a few words", "Line 7 of a small text: signs, again.", " leading", "trailing ", "two  spaces   three",
    "\ttab\tbed", "line\nend", "line\r\nend\n", "\n", " ", "", "a", "ă", "ærlig or ăâî", "e\u0301 and \xe9",
    "ﬁne ① ½ Ⅷ", "１２３ＡＢＣ", "日本語のテキスト。", "中文，没有空格", "한국어 문장입니다.",
    "Усі люди народжуються вільними",
    "हिन्दी में लिखा हुआ", "ภาษาไทยไม่มีช่องว่าง", "العربية من اليمين", "עברית",
    "\U0001f642 smile \U0001f468\u200d\U0001f469\u200d\U0001f467", "UPPER lower MiXed", "it's don't we've I'm",
    "x=1; y[2]={3}", "http://a.b/c?d=e", "zero\u200bwidth", "no\xa0break", "soft\xadhyphen", "\u2028separator",
    "100,000.50", "a,b.c!d?e", "--dash—dash", '\'quoted\' "double"', "<b>tag</b>", "</s>", "<s>", "<pad>",
    "a<unk>b", "<mask>", "[MASK] [CLS]", "<|endoftext|>", "a <eos> b", "<extra_id_0> b", "<nl>", "a <nl>b",
)  # fmt: skip


def byte_level(special: tuple[str, ...]) -> Tokenizer:
    """Returns a byte-level BPE trained on CORPUS."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=SIZE, special_tokens=list(special), initial_alphabet=alphabet)
    )
    return made


def endoftext() -> tuple[Tokenizer, dict[str, str]]:
    """`<|endoftext|>` at 0 is everything, as in Hugging Face's usual recipe."""
    return byte_level(("<|endoftext|>",)), dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")


def roberta() -> tuple[Tokenizer, dict[str, str]]:
    """RoBERTa's: <s> before a text, </s> after it, padding at 1."""
    made = byte_level(("<s>", "<pad>", "</s>", "<unk>", "<mask>"))
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    roles = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>"}
    return made, {**roles, "pad_token": "<pad>", "mask_token": "<mask>"}


def gemma() -> tuple[Tokenizer, dict[str, str]]:
    """Gemma's: <pad> <eos> <bos> <unk>, pieces with byte fallback, HTML tags among them."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    made = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    made.normalizer = normalizers.Replace(" ", SPACE)
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=special)
    made.train_from_iterator(CORPUS, trainer)
    state = json.loads(made.to_str())
    pieces = state["model"]["vocab"]
    for piece in [*BYTES, "</s>", "<b>", "</b>"]:
        pieces.setdefault(piece, len(pieces))
    made = Tokenizer.from_str(json.dumps(state))
    made.add_tokens([AddedToken("</s>", normalized=False), AddedToken("<b>", normalized=False)])
    made.post_processor = processors.TemplateProcessing("<bos> $A", "<bos> $A <bos> $B", [("<bos>", 2)])
    roles = {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    }
    return made, roles


def bert() -> tuple[Tokenizer, dict[str, str]]:
    """BERT's WordPiece."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    made.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=special))
    ids = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", ids)
    roles = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    return made, roles


def unigram() -> tuple[Tokenizer, dict[str, str]]:
    """T5's: padding 0, end 1, unknown 2, ten sentinels at the top."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    spaces = pre_tokenizers.Metaspace(SPACE, "always")
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    made.decoder = decoders.Metaspace(SPACE, "always")
    special = ["<pad>", "</s>", "<unk>"]
    made.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=SIZE - 120, special_tokens=special, unk_token="<unk>")
    )
    state = json.loads(made.to_str())
    state["model"]["vocab"] += [[f"<extra_id_{number}>", 0.0] for number in reversed(range(10))]
    made = Tokenizer.from_str(json.dumps(state))
    made.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    return made, {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def llama() -> tuple[Tokenizer, dict[str, str]]:
    """Llama's: <unk> 0, <s> 1, </s> 2, byte fallback, no padding."""
    made = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1)]
    made.decoder = decoders.Sequence(steps)
    special = ["<unk>", "<s>", "</s>", *BYTES]
    made.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=SIZE, special_tokens=special))
    state = json.loads(made.to_str())
    state["added_tokens"] = state["added_tokens"][:3]  # bytes are ordinary pieces
    made = Tokenizer.from_str(json.dumps(state))
    made.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    return made, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


STYLES: Mapping[str, Callable[[], tuple[Tokenizer, dict[str, str]]]] = {
    "endoftext": endoftext,
    "roberta": roberta,
    "gemma": gemma,
    "bert": bert,
    "unigram": unigram,
    "llama": llama,
}


def generic(style: str, **more: Any) -> Any:
    """Returns a style as PreTrainedTokenizerFast, with a token that a user added; `more` are its roles and choices."""
    from transformers import PreTrainedTokenizerFast

    made, roles = STYLES[style]()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=made, **{**roles, **more})
    wrapped.add_tokens(["<nl>"])
    return wrapped


def real(style: str, **more: Any) -> Any:
    """Returns a style as transformers' own class."""
    import transformers

    made, roles = STYLES[style]()
    model = json.loads(made.to_str())["model"]
    pieces = {"vocab": model["vocab"]}
    if model["type"] == "Unigram":
        pieces["vocab"] = [tuple(piece) for piece in model["vocab"]]
        more = {"extra_ids": 10, **more}
    if "merges" in model:
        pieces["merges"] = [tuple(merge) for merge in model["merges"]]
    names = {"endoftext": "GPT2", "roberta": "Roberta", "gemma": "Gemma", "bert": "Bert", "unigram": "T5"}
    kind = getattr(transformers, f"{names.get(style, 'Llama')}Tokenizer")
    wrapped = kind(**pieces, **roles, **more)
    wrapped.add_tokens(["<nl>"])
    return wrapped


KINDS = ("t5", "mt5", "umt5", "t5_encoder", "llama", "gpt2", "modernbert", "eurobert")
KINDS_OF_4 = tuple(kind for kind in KINDS if kind != "eurobert")  # that transformers 4.57 has
_OF_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
_OF_LLAMA = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_OF_LLAMA |= {"num_key_value_heads": 2, "max_position_embeddings": 128}


def model_of(kind: str, tokenizer: Any, **more: Any) -> Any:
    """Returns a tiny model of transformers with random weights, whose ids with a role are its tokenizer's."""
    import torch
    import transformers as library

    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos")}
    first = ids["bos_token_id"] if ids["pad_token_id"] is None else ids["pad_token_id"]
    of_t5 = {**_OF_T5, **ids, "decoder_start_token_id": first, **more}
    if kind == "t5_encoder":
        config = library.T5Config(vocab_size=ROWS, **of_t5)
        cls = library.T5EncoderModel
    elif kind.endswith("t5"):
        name = kind.upper()
        config = getattr(library, f"{name}Config")(vocab_size=ROWS, **of_t5)
        cls = getattr(library, f"{name}ForConditionalGeneration")
    elif kind == "llama":
        config = library.LlamaConfig(vocab_size=ROWS, **_OF_LLAMA, **ids, **more)
        cls = library.LlamaForCausalLM
    elif kind == "gpt2":
        sizes = {"n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4}
        config = library.GPT2Config(vocab_size=ROWS, **sizes, **ids, **more)
        cls = library.GPT2LMHeadModel
    elif kind == "modernbert":
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
        sizes |= {"max_position_embeddings": 128, "local_attention": 16}
        config = library.ModernBertConfig(vocab_size=ROWS, **sizes, **ids, cls_token_id=None, sep_token_id=None)
        cls = library.ModernBertForMaskedLM
    else:
        mask = ROWS - 1 if tokenizer.mask_token_id is None else tokenizer.mask_token_id  # it must have one
        config = library.EuroBertConfig(vocab_size=ROWS, **_OF_LLAMA, **ids, mask_token_id=mask)
        cls = library.EuroBertForMaskedLM
    torch.manual_seed(1)
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    return model


def saved(folder: Path, kind: str, tokenizer: Any, **more: Any) -> Any:
    """Saves a tiny model with a tokenizer; returns the model."""
    model = model_of(kind, tokenizer, **more)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def ids_of(folder: Path, texts: tuple[str, ...] = TEXTS) -> list[list[int]]:
    """Returns AutoTokenizer's ids of texts."""
    from transformers import AutoTokenizer

    opened = AutoTokenizer.from_pretrained(folder)
    return [opened(text).input_ids for text in texts]
