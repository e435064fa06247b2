"""The tokenizer classes of transformers 5: which one opens a folder, and what it makes of tokenizer.json.

Checked with transformers 5.23. Some classes take tokenizer.json as it is. Others take only its pieces and merges, and
bring their own normalizer, pre-tokenizer and decoder (`REBUILT`); transformers' other classes are refused (`REFUSED`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from limba.config import InputError
from limba.data.vocabulary.published_files import Files, Json
from limba.data.vocabulary.tokenizers import SPACE

AS_IT_IS = "TokenizersBackend"  # the class that takes tokenizer.json as it is
_GENERIC = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "PythonBackend", AS_IT_IS)
_OF_MODEL = {  # the class that transformers has for a model's kind
    **dict.fromkeys(("t5", "mt5"), "T5Tokenizer"),
    "gpt2": "GPT2Tokenizer",
    **dict.fromkeys(("umt5", "modernbert"), AS_IT_IS),
}
_ALIASES = {  # other names of classes in REBUILT
    **dict.fromkeys(("BartTokenizer", "LEDTokenizer", "LongformerTokenizer", "MvpTokenizer"), "RobertaTokenizer"),
    **dict.fromkeys(("DistilBertTokenizer", "ElectraTokenizer", "LayoutLMTokenizer"), "BertTokenizer"),
    **dict.fromkeys(("LxmertTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"), "BertTokenizer"),
    "Phi3Tokenizer": "LlamaTokenizer",
}
# Classes of transformers 5.23 whose own rules are not written here. A name that transformers does not know either is
# read as AS_IT_IS, there and here.
_REFUSED = """
AlbertTokenizer BarthezTokenizer BigBirdTokenizer BlenderbotTokenizer CLIPTokenizer CamembertTokenizer
CodeLlamaTokenizer CohereTokenizer DPRQuestionEncoderTokenizer DebertaTokenizer DebertaV2Tokenizer EsmcTokenizer
FunnelTokenizer HerbertTokenizer LasrTokenizer LayoutLMv2Tokenizer LayoutLMv3Tokenizer
LayoutXLMTokenizer LukeTokenizer MBart50Tokenizer MBartTokenizer MLukeTokenizer MPNetTokenizer MarkupLMTokenizer
NllbTokenizer NougatTokenizer OpenAIGPTTokenizer PegasusTokenizer Qwen3_5Tokenizer ReformerTokenizer
RemBertTokenizer RoFormerTokenizer SeamlessM4TTokenizer Siglip2Tokenizer SplinterTokenizer Tipsv2Tokenizer
UdopTokenizer VideoPrismTokenizer WhisperTokenizer XGLMTokenizer XLNetTokenizer BartphoTokenizer
BertGenerationTokenizer BertJapaneseTokenizer BertweetTokenizer BioGptTokenizer BlenderbotSmallTokenizer
CTRLTokenizer CanineTokenizer ClvpTokenizer CpmAntTokenizer CpmTokenizer DiaTokenizer EsmTokenizer FSMTTokenizer
FlaubertTokenizer GPTNeoXJapaneseTokenizer GPTSw3Tokenizer M2M100Tokenizer MarianTokenizer MgpstrTokenizer
MyT5Tokenizer PLBartTokenizer PerceiverTokenizer PhobertTokenizer ProphetNetTokenizer RagTokenizer RoCBertTokenizer
SiglipTokenizer Speech2TextTokenizer SpeechT5Tokenizer TapasTokenizer VitsTokenizer Wav2Vec2CTCTokenizer
Wav2Vec2PhonemeCTCTokenizer XLMTokenizer
BertTokenizerLegacy CodeGenTokenizer ConvBertTokenizer DPRContextEncoderTokenizer DPRReaderTokenizer FNetTokenizer
FastSpeech2ConformerTokenizer MistralCommonBackend ParakeetTokenizer Pop2PianoTokenizer PreTrainedTokenizerBase
SentencePieceBackend
"""
REFUSED = frozenset(_REFUSED.split())
# The tokens that a class gives to roles which no file names.
T5_ROLES = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_XLM = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
_BERT = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_GEMMA = {
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
_ENDOFTEXT: dict[str, str] = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
_QWEN2: dict[str, str] = dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>")
_QWEN2_WORDS = (  # what Qwen2Tokenizer first splits a text into
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
Rebuild = Callable[[Files, Any, Mapping[str, str]], Any]  # (files, tokenizer.json, names of roles) -> tokenizer


def class_of(files: Files) -> str:
    """Returns the class of transformers that opens a folder's tokenizer.

    The file's own class wins over the model's, but umT5 and ModernBERT always take tokenizer.json as it is, and so does
    a LlamaTokenizer whose tokenizer.json names ByteLevel. Neither holds for a folder with code of its own (auto_map),
    which transformers passes over too unless it is trusted.
    """
    own = files.tokenizer_config.get("tokenizer_class")
    declared = own or files.config.get("tokenizer_class")
    of_model = _OF_MODEL.get(str(files.config.get("model_type")))
    names_code = _names_code(files.tokenizer_config)
    if names_code and of_model is None and _named(own) not in {AS_IT_IS, *REBUILT, *REFUSED}:
        raise InputError(
            f"{files.folder}/tokenizer_config.json names code of its own (auto_map), which Limba does not run; open it"
            " in transformers, save it as PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, …), or"
            " give another vocabulary."
        )
    if declared is None:
        return of_model or AS_IT_IS
    name = _named(declared)
    if not names_code:
        if str(declared).removesuffix("Fast") == "LlamaTokenizer" and _has_byte_level(files.tokenizer_json):
            return AS_IT_IS
        if of_model == AS_IT_IS:
            return AS_IT_IS
    if name in REFUSED:
        raise InputError(
            f"{files.folder}/tokenizer_config.json names the tokenizer_class {declared}, whose rules Limba does not"
            " have; open it in transformers, save it as PreTrainedTokenizerFast(tokenizer_object="
            "tokenizer.backend_tokenizer, …), or give another vocabulary."
        )
    return name if name in REBUILT else AS_IT_IS


def _named(declared: object) -> str:
    """Returns the class of a name as files have it, which may be another name of it."""
    name = str(declared).removesuffix("Fast") if str(declared) not in _GENERIC else AS_IT_IS
    return _ALIASES.get(name, name)


def _names_code(tokenizer_config: Json) -> bool:
    """Returns whether a folder has code of its own for its tokenizer."""
    code = tokenizer_config.get("auto_map")
    return bool(code.get("AutoTokenizer")) if isinstance(code, dict) else code is not None


def _has_byte_level(state: Json | None) -> bool:
    """Returns whether this name is anywhere in the file, if only as a token: transformers looks no closer."""
    return '"ByteLevel"' in json.dumps(state)


def finish(tokenizer: Any, name: str, names: Mapping[str, str], extra: Sequence[str]) -> None:
    """Does what the classes do at the end, whatever tokenizer.json has: most set a template of their own.

    `names` are the tokens with a role, `extra` the other special ones.
    """
    from tokenizers import AddedToken, processors

    def number(role: str) -> int:
        return tokenizer.token_to_id(names[role])

    if name == "T5Tokenizer":
        end = ("</s>", number("eos_token"))
        tokenizer.post_processor = processors.TemplateProcessing(["$A", "</s>"], ["$A", "</s>", "$B", "</s>"], [end])
    elif name in ("BertTokenizer", "XLMRobertaTokenizer"):
        roles = ("cls_token", "sep_token") if name == "BertTokenizer" else ("bos_token", "eos_token")
        begin, end = (names[role] for role in roles)
        ids = [(begin, number(roles[0])), (end, number(roles[1]))]
        tokenizer.post_processor = processors.TemplateProcessing([begin, "$A", end], None, ids)
    elif name == "RobertaTokenizer":
        end, begin = [(names[role], number(role)) for role in ("sep_token", "cls_token")]
        tokenizer.post_processor = processors.RobertaProcessing(end, begin)
    elif name == "GPTNeoXTokenizer":
        tokenizer.post_processor = processors.TemplateProcessing("$A", "$A $B", [])
    elif name == "Qwen2Tokenizer":  # adds them again, so that they strip no spaces
        tokenizer.add_tokens([AddedToken(token, special=True) for token in [*names.values(), *extra]])


def _t5(files: Files, read: Any, names: Mapping[str, str]) -> Any:
    state = _require(files, "Unigram", "T5Tokenizer")
    return unigram(state["model"]["vocab"], 2, _charsmap(state), "always")


def _xlm_roberta(files: Files, read: Any, names: Mapping[str, str]) -> Any:
    state = _require(files, "Unigram", "XLMRobertaTokenizer")
    scheme = "always" if files.tokenizer_config.get("add_prefix_space", True) else "never"
    return unigram(state["model"]["vocab"], 3, _charsmap(state), scheme)


def unigram(vocabulary: Sequence[Sequence[Any]], unknown: int, charsmap: Json | None, scheme: str) -> Any:
    """Returns the tokenizer of T5Tokenizer and XLMRobertaTokenizer: words between white space, each after a space.

    `unknown` is the id of the unknown piece, `scheme` says before which words Metaspace puts the space.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = [(piece, score) for piece, score in vocabulary]
    made = Tokenizer(models.Unigram(pieces, unknown, False))
    spaces = pre_tokenizers.Metaspace(SPACE, scheme, split=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    made.decoder = decoders.Metaspace(SPACE, scheme, split=True)
    return made if charsmap is None else _with_state(made, normalizer=charsmap)


def _charsmap(state: Json) -> Json | None:
    """Returns the precompiled rules of a normalizer, which are all that T5Tokenizer takes of it."""
    normalizer = state.get("normalizer") or {}
    steps = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    return next((step for step in steps if step.get("type") == "Precompiled"), None)


def _with_state(tokenizer: Any, **parts: object) -> Any:
    """Returns the tokenizer with parts of its JSON replaced."""
    import tokenizers

    return tokenizers.Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), **parts}))


def _llama(files: Files, read: Any, names: Mapping[str, str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    state = _require(files, "BPE", "LlamaTokenizer")
    pieces = models.BPE(state["model"]["vocab"], _merges(state), fuse_unk=True, byte_fallback=True)
    made = Tokenizer(pieces)
    add_prefix_space = files.tokenizer_config.get("add_prefix_space")
    has_space = add_prefix_space is None or bool(add_prefix_space)
    if not has_space:
        scheme = "never"
    elif files.tokenizer_config.get("legacy", False):
        scheme = "always"
    else:
        scheme = "first"
    made.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=False)
    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if has_space:
        steps.append(decoders.Strip(" ", 1))
    made.decoder = decoders.Sequence(steps)
    made.post_processor = read.post_processor
    return made


def _gpt2(files: Files, read: Any, names: Mapping[str, str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    state = _require(files, "BPE", class_of(files))
    plain = {"continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False}
    made = Tokenizer(models.BPE(state["model"]["vocab"], _merges(state), **plain))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(files.tokenizer_config.get("add_prefix_space", False))
    )
    made.decoder = decoders.ByteLevel()
    made.post_processor = read.post_processor
    return made


def _gpt_neox(files: Files, read: Any, names: Mapping[str, str]) -> Any:
    from tokenizers import normalizers

    made = _gpt2(files, read, names)
    made.normalizer = normalizers.NFC()
    return made


def _qwen2(files: Files, read: Any, names: Mapping[str, str]) -> Any:
    from tokenizers import Regex, pre_tokenizers

    made = _gpt_neox(files, read, names)
    has_space = bool(files.tokenizer_config.get("add_prefix_space", False))
    words = pre_tokenizers.Split(Regex(_QWEN2_WORDS), behavior="isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(has_space, use_regex=False)])
    return made


def _gemma(files: Files, read: Any, names: Mapping[str, str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    state = _require(files, "BPE", "GemmaTokenizer")
    unknown = names["unk_token"]
    pieces = models.BPE(state["model"]["vocab"], _merges(state), fuse_unk=True, byte_fallback=True, unk_token=unknown)
    made = Tokenizer(pieces)
    made.normalizer = normalizers.Replace(" ", SPACE)
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    made.post_processor = read.post_processor
    return made


def _bert(files: Files, read: Any, names: Mapping[str, str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    state = _require(files, "WordPiece", "BertTokenizer")
    made = Tokenizer(models.WordPiece(state["model"]["vocab"], unk_token=names["unk_token"]))
    made.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(files.tokenizer_config.get("tokenize_chinese_chars", True)),
        strip_accents=files.tokenizer_config.get("strip_accents"),
        lowercase=bool(files.tokenizer_config.get("do_lower_case", True)),
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    made.post_processor = read.post_processor
    return made


def _merges(state: Json) -> list[tuple[str, str]]:
    """Returns the merges of a tokenizer.json; older files have them as strings with a space."""
    merges = []
    for merge in state["model"]["merges"]:
        first, second = merge.split(" ") if isinstance(merge, str) else merge
        merges.append((first, second))
    return merges


def _require(files: Files, kind: str, name: str) -> Json:
    """Returns tokenizer.json's content; InputError if its model is not of the kind that a class needs."""
    state = files.tokenizer_json or {}
    if state.get("model", {}).get("type", kind) != kind:
        raise InputError(
            f"transformers reads {files.folder} by {name}, which needs a {kind} model, and tokenizer.json has"
            f" {state['model']['type']}; set tokenizer_class in tokenizer_config.json to PreTrainedTokenizerFast."
        )
    return state


# A class: what makes its tokenizer of tokenizer.json's pieces, and the tokens that its roles have by default.
REBUILT: Mapping[str, tuple[Rebuild, Mapping[str, str]]] = {
    "T5Tokenizer": (_t5, T5_ROLES),
    "LlamaTokenizer": (_llama, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
    "GPT2Tokenizer": (_gpt2, _ENDOFTEXT),
    "GPTNeoXTokenizer": (_gpt_neox, {**_ENDOFTEXT, "pad_token": "<|padding|>"}),
    "Qwen2Tokenizer": (_qwen2, _QWEN2),
    "BertTokenizer": (_bert, _BERT),
    "RobertaTokenizer": (_gpt2, _XLM),
    "GemmaTokenizer": (_gemma, _GEMMA),
    "XLMRobertaTokenizer": (_xlm_roberta, _XLM),
}
