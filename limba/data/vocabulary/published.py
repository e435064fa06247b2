"""The tokenizer of a folder for transformers, opened as transformers 5's AutoTokenizer opens it.

Checked with transformers 5.23. Its rules, in short: `tokenizer_class` chooses a class. Some classes take tokenizer.json
as it is. Others take only the pieces and merges of that file, and bring their own normalizer, pre-tokenizer and decoder
(`_REBUILT`); a class of transformers that is in neither table is refused. Then the tokens of tokenizer_config.json,
special_tokens_map.json and added_tokens.json are added, tokens with a role included.

In a text the name of a special token becomes that token here, as in transformers. A trainer reads the same file by
`tokenizers.TokenizersVocabulary`, for which that name is plain text: a corpus must not be able to end a document.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etils import epath

from limba.config import InputError, reason_of
from limba.data.vocabulary.files import content, folder_at
from limba.data.vocabulary.tokenizers import SPACE, TokenizersVocabulary
from limba.data.vocabulary.vocabularies import parse_model
from limba.storage.files import read_text

if TYPE_CHECKING:
    import tokenizers

logger = logging.getLogger(__name__)

Json = dict[str, Any]
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")  # in their order
AS_IT_IS = "TokenizersBackend"  # the class that takes tokenizer.json as it is
_GENERIC = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "PythonBackend", AS_IT_IS)
_OF_MODEL = {  # the class that transformers has for a model's kind
    **dict.fromkeys(("t5", "mt5"), "T5Tokenizer"),
    "gpt2": "GPT2Tokenizer",
    **dict.fromkeys(("umt5", "modernbert"), AS_IT_IS),
}
_ALIASES = {  # other names of classes in _REBUILT
    **dict.fromkeys(("BartTokenizer", "LEDTokenizer", "MvpTokenizer"), "RobertaTokenizer"),
    **dict.fromkeys(("LxmertTokenizer", "MobileBertTokenizer"), "BertTokenizer"),
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
"""
REFUSED = frozenset(_REFUSED.split())
_COMPARED = (  # texts as a trainer reads them and as transformers does
    "All human beings are born free and equal, in dignity.",
    "Toate ființele umane se nasc libere (1948).",
    "Усі люди народжуються вільними і рівними",
    "two  spaces, a\ttab and a\nline; ½ ﬁne",
)
# What `clean_up_tokenization_spaces` replaces in decoded text.
_CLEANED = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
# Types of SentencePiece's pieces.
CONTROL = 3
USER_DEFINED = 4


# The tokens that a class gives to roles which no file names.
_T5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
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


class PublishedVocabulary(TokenizersVocabulary):
    """The tokenizer that AutoTokenizer opens in a folder; `encode` returns its ids without the template.

    `ids` has the ids of ROLES, of those that the files name; `template` is what stands before and after a text.
    `address` is how a configuration names the folder, by default its path.
    """

    def __init__(self, path: str, made: Made):
        super().__init__(path)
        self.folder = epath.Path(path).parent
        self.address = str(self.folder)
        self.tokenizer = made.tokenizer  # in place of the cached property, which reads the file as a trainer does
        ids = {role: made.tokenizer.token_to_id(name) for role, name in made.names.items()}
        self.ids = {role: number for role, number in ids.items() if number is not None}
        self.template = _template(made.tokenizer)
        self.cleans_spaces = made.cleans_spaces
        self.num_rows: int | None = None  # of the model's embedding, once it is known

    def check_rows(self, num_rows: int) -> None:
        """Raises InputError if the ids around each text have no row in the model's embedding.

        A tokenizer may have more ids than the model has rows: a padding token that was added, sentinels that the class
        adds. transformers uses such a folder as long as no text has them, and so does `encode` from here on.
        """
        self.num_rows = num_rows
        before, after = self.template
        self._check([*before, *after], "each text")

    def encode(self, s: str) -> Sequence[int]:
        ids = super().encode(s)
        self._check(ids, "a text")
        return ids

    def _check(self, ids: Sequence[int], what: str) -> None:
        if self.num_rows is not None and max(ids, default=0) >= self.num_rows:
            number = max(ids)
            raise InputError(
                f"The tokenizer of {self.path} gives {what} the id {number} ({self.tokenizer.id_to_token(number)!r}),"
                f" and the model has {self.num_rows} rows: this token was added and never trained. Take it out of the"
                " text, or resize the model's embedding in transformers."
            )

    def split_at_name_of(self, number: int) -> None:
        """Has text split at the name of this special token, as in transformers; other such names stay plain text."""
        import tokenizers

        state = json.loads(self.tokenizer.to_str())
        for token in state["added_tokens"]:
            if token["id"] == number:
                token["special"] = False
        self.tokenizer = tokenizers.Tokenizer.from_str(json.dumps(state))
        self.tokenizer.encode_special_tokens = True

    @property
    def pad_id(self) -> int | None:  # type: ignore[override]
        return self.ids.get("pad_token")

    @property
    def eos_id(self) -> int | None:  # type: ignore[override]
        return self.ids.get("eos_token")

    @property
    def unk_id(self) -> int | None:  # type: ignore[override]
        return self.ids.get("unk_token")

    @property
    def mask_name(self) -> str | None:
        """The text of the mask."""
        number = self.ids.get("mask_token")
        return None if number is None else self.tokenizer.id_to_token(number)

    def text_of(self, ids: Sequence[int]) -> str:
        """Returns the text of all these ids, also those after an end, without special tokens."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        if self.cleans_spaces:
            for spaced, clean in _CLEANED:  # in transformers' order
                text = text.replace(spaced, clean)
        return text

    def _decode(self, ids: list[int]) -> str:
        return self.text_of(ids)


@dataclass(frozen=True)
class Made:
    """A tokenizer, the names of its roles, and whether decoded text is cleaned of spaces before punctuation."""

    tokenizer: tokenizers.Tokenizer
    names: Mapping[str, str]
    cleans_spaces: bool = False


@dataclass(frozen=True)
class Files:
    """The files beside a model that say how its text is read, each {} where it is missing."""

    folder: epath.Path
    tokenizer_config: Json  # tokenizer_config.json
    special_tokens_map: Json  # special_tokens_map.json
    added_tokens: Json  # added_tokens.json
    config: Json  # config.json
    tokenizer_json: Json | None  # tokenizer.json, None where it is missing

    @classmethod
    def of(cls, folder: epath.Path) -> Files:
        """Reads them; InputError for one that is not a JSON object."""
        return cls(
            folder,
            tokenizer_config=read_json(folder, "tokenizer_config.json") or {},
            special_tokens_map=read_json(folder, "special_tokens_map.json") or {},
            added_tokens=read_json(folder, "added_tokens.json") or {},
            config=read_json(folder, "config.json") or {},
            tokenizer_json=read_json(folder, "tokenizer.json"),
        )

    @property
    def tokens_by_id(self) -> dict[int, Any]:
        """The tokens that are added: {id: what AddedToken takes}."""
        if isinstance(self.tokenizer_config.get("added_tokens_decoder"), dict):
            return {int(number): token for number, token in self.tokenizer_config["added_tokens_decoder"].items()}
        roles = self.roles({})
        special = {name_of(roles[role]) for role in ROLES if roles.get(role)}
        special |= {name_of(token) for token in self.extra or ()}
        tokens: dict[int, Any] = {}
        for name, number in self.added_tokens.items():
            tokens[int(number)] = {"content": name, "special": name in special, "normalized": name not in special}
        for token in (self.tokenizer_json or {}).get("added_tokens", ()):
            tokens[token["id"]] = {key: value for key, value in token.items() if key != "id"}
        return tokens

    def roles(self, defaults: Mapping[str, str]) -> Json:
        """Returns {role: its token}: a class's defaults, tokenizer_config.json, special_tokens_map.json, the last wins.

        They stand in transformers' order, in which those without an id get one. transformers does not look into
        special_tokens_map.json where tokenizer_config.json has added_tokens_decoder.
        """
        tokens: Json = dict(defaults)
        for file_content in self.files_with_roles:
            extra = file_content.get("extra_special_tokens")
            named: Json = extra if isinstance(extra, dict) else {}  # tokens with names of their own
            for key, value in {**file_content, **named}.items():
                is_token = isinstance(value, str) or (isinstance(value, dict) and "content" in value)
                if key in ROLES or key in named or (key.endswith("_token") and is_token):
                    tokens[key] = value
        order = [*(role for role in ROLES if role in tokens), *(role for role in tokens if role not in ROLES)]
        return {role: tokens[role] for role in order if tokens[role] is not None}

    @property
    def files_with_roles(self) -> list[Json]:
        """The files that name the tokens with a role, the last one wins."""
        if "added_tokens_decoder" in self.tokenizer_config:
            return [self.tokenizer_config]
        return [self.tokenizer_config, self.special_tokens_map]

    @property
    def extra(self) -> list[Any] | None:
        """The special tokens without a role; None where no file has a list of them, not even an empty one."""
        older = "additional_special_tokens"
        newer = "extra_special_tokens"
        tokens = self.tokenizer_config.get(newer)
        if older in self.tokenizer_config and (not tokens or isinstance(tokens, dict)):
            tokens = self.tokenizer_config[older] or []
        if isinstance(tokens, dict):
            tokens = None  # tokens with names of their own, see `roles`
        if "added_tokens_decoder" not in self.tokenizer_config:
            later = self.special_tokens_map.get(newer)
            if isinstance(later, list):
                tokens = [*(tokens or ()), *later]
            elif tokens is None:
                tokens = self.special_tokens_map.get(older)
        return None if tokens is None else list(tokens)

    @property
    def has_extra_before_class(self) -> bool:
        """Whether `extra` is known before a class is asked, which then adds none; it may be empty.

        The older list of special_tokens_map.json is not: it goes through the class.
        """
        is_read = "added_tokens_decoder" not in self.tokenizer_config
        is_in_map = is_read and isinstance(self.special_tokens_map.get("extra_special_tokens"), list)
        return is_in_map or bool({"additional_special_tokens", "extra_special_tokens"} & self.tokenizer_config.keys())


def read_json(folder: epath.Path, name: str) -> Json | None:
    """Returns a JSON object of a folder, None if there is no such file; InputError if it holds anything else."""
    file = folder / name
    if not file.exists():
        return None
    try:
        content = json.loads(read_text(file))
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except InputError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{file} cannot be used ({reason_of(error)}); copy the folder again.") from error
    return content


def name_of(token: Any) -> str:
    """Returns the text of a token, which a file holds as a text or as what AddedToken takes."""
    return str(token["content"] if isinstance(token, dict) else token)


def class_of(files: Files) -> str:
    """Returns the class of transformers that opens a folder's tokenizer.

    The file's own class wins over the model's, but umT5 and ModernBERT always take tokenizer.json as it is, and so does
    a LlamaTokenizer whose tokenizer.json has pieces of bytes.
    """
    declared = files.tokenizer_config.get("tokenizer_class") or files.config.get("tokenizer_class")
    of_model = _OF_MODEL.get(str(files.config.get("model_type")))
    if declared is None:
        return of_model or AS_IT_IS
    name = str(declared).removesuffix("Fast") if str(declared) not in _GENERIC else AS_IT_IS
    name = _ALIASES.get(name, name)
    if name == "LlamaTokenizer" and _has_byte_level(files.tokenizer_json):
        return AS_IT_IS
    if of_model == AS_IT_IS:
        return AS_IT_IS
    if name in REFUSED:
        raise InputError(
            f"{files.folder}/tokenizer_config.json names the tokenizer_class {declared}, whose rules Limba does not"
            " have; open it in transformers, save it as PreTrainedTokenizerFast(tokenizer_object="
            "tokenizer.backend_tokenizer, …), or give another vocabulary."
        )
    return name if name in _REBUILT else AS_IT_IS


def _has_byte_level(state: Json | None) -> bool:
    return '"ByteLevel"' in json.dumps([(state or {}).get("pre_tokenizer"), (state or {}).get("decoder")])


def open_folder(folder: epath.Path) -> PublishedVocabulary:
    """Returns the vocabulary of a folder; InputError for files that cannot be read, or not as transformers does."""
    files = Files.of(folder)
    name = class_of(files)
    path = str(folder / "tokenizer.json")
    try:
        if files.tokenizer_json is not None:
            made = _of_state(files, name)
        elif name == "T5Tokenizer" and (folder / "spiece.model").exists():
            path = str(folder / "spiece.model")
            made = _of_spiece(files, path)
        else:
            raise InputError(
                f"{folder} has no tokenizer.json, from which a {name} is read; write one:"
                f" transformers.AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})."
            )
        return PublishedVocabulary(path, made)
    except InputError:
        raise
    except Exception as error:  # `tokenizers` has no error of its own, and a damaged file may break any rule
        raise InputError(f"{path} cannot be read as a {name} ({reason_of(error)}); copy the folder again.") from error


def open_address(address: str) -> PublishedVocabulary:
    """Returns the vocabulary of a folder at a path or address, or of a model of the hub.

    Raises InputError as `folder_at` and `open_folder` do, and for a vocabulary of bytes.
    """
    folder = folder_at(address)
    if str(Files.of(folder).tokenizer_config.get("tokenizer_class")).startswith("ByT5"):
        raise InputError(
            f"The vocabulary {address} is UTF-8's bytes; set DataConfig.vocabulary to 'byte', and for the published"
            " ByT5 DataConfig.extra_ids to 0.",
            field="DataConfig.vocabulary",
        )
    opened = open_folder(folder)
    opened.address = address
    return opened


def text_read_otherwise(path: str, encode: Callable[[str], Sequence[int]]) -> str | None:
    """Returns a text that a trainer, by `encode`, reads as other ids than transformers does in the file's folder.

    None if a few texts, and each added token, have the same ids, and for a file that lies beside no model.
    """
    folder = epath.Path(path).parent
    if "://" in path or not (folder / "config.json").exists():
        return None
    try:
        opened = open_folder(folder)
    except InputError:  # which is raised where the model is opened
        return None
    added = opened.tokenizer.get_added_tokens_decoder().values()
    names = [f"one {token.content} two" for token in added if not token.special]
    for text in (*_COMPARED, *names):
        if list(encode(text)) != list(opened.encode(text)):
            return text
    return None


def _of_state(files: Files, name: str) -> Made:
    """Returns the tokenizer that a class makes of tokenizer.json."""
    import tokenizers

    read = tokenizers.Tokenizer.from_str(json.dumps(files.tokenizer_json))
    padding: Mapping[str, str] = {}
    if read.padding is not None and name != "GPT2Tokenizer":  # whose class says that it has none
        padding = {"pad_token": read.padding["pad_token"]}
    if name == AS_IT_IS:
        made = read
        roles = files.roles(padding)
    else:
        rebuild, defaults = _REBUILT[name]
        roles = files.roles({**padding, **defaults})
        made = rebuild(files, read, {role: name_of(token) for role, token in roles.items()})
    made.no_truncation()
    made.no_padding()
    if made.post_processor is None:
        made.post_processor = tokenizers.processors.TemplateProcessing("$A", "$A $B", [])
    _add_tokens(made, files, roles, _extra_of(files, name))
    _finish(made, name, {role: name_of(token) for role, token in roles.items()})
    return _made(made, files, roles)


def _made(tokenizer: tokenizers.Tokenizer, files: Files, roles: Json) -> Made:
    tokenizer.encode_special_tokens = bool(files.tokenizer_config.get("split_special_tokens", False))
    names = {role: name_of(token) for role, token in roles.items() if role in ROLES}
    names = {role: name for role, name in names.items() if tokenizer.token_to_id(name) is not None}
    is_bpe = type(tokenizer.model).__name__ == "BPE"
    cleans = bool(files.tokenizer_config.get("clean_up_tokenization_spaces", False)) and not is_bpe
    return Made(tokenizer, names, cleans)


def _extra_of(files: Files, name: str) -> list[Any]:
    """Returns the special tokens without a role; a T5Tokenizer has its sentinels where no file names any."""
    extra = files.extra
    if name != "T5Tokenizer":
        return extra or []
    # The class adds its sentinels to a list that goes through it, unless the list has some.
    asks_class = not files.has_extra_before_class
    if extra is None or (asks_class and not any("<extra_id_" in name_of(token) for token in extra)):
        sentinels = [f"<extra_id_{number}>" for number in range(int(files.tokenizer_config.get("extra_ids", 100)))]
        return [*(extra or ()), *sentinels]
    return extra


def _add_tokens(tokenizer: tokenizers.Tokenizer, files: Files, roles: Json, extra: Sequence[Any]) -> None:
    """Adds the files' tokens in transformers' order: by their ids, then tokens with a role, then other special ones.

    A token that is a piece keeps its id; any other token gets the next free one.
    """
    by_id = {number: _added(token) for number, token in sorted(files.tokens_by_id.items())}
    by_name = {str(token.content): token for token in by_id.values()}
    names = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    new = list(by_id.values())  # also tokens that tokenizer.json has: one with a role becomes special
    names |= {token.content for token in new}
    of_roles = [by_name.get(name_of(token), token) for token in roles.values()]
    for token in [*of_roles, *extra]:
        added = _added(token)
        if added.content not in names:
            names.add(added.content)
            new.append(added)
    named = {name_of(token) for token in roles.values()}
    for token in new:
        if token.content in named:
            token.special = True
    tokenizer.add_tokens(new)


def _added(token: Any) -> tokenizers.AddedToken:
    """Returns the token that a file describes; it is special unless the file says otherwise."""
    from tokenizers import AddedToken

    if isinstance(token, AddedToken):
        return token
    if isinstance(token, str):
        return AddedToken(token, special=True)
    fields = {key: value for key, value in token.items() if key != "__type"}
    return AddedToken(**{"special": True, **fields})


def _template(tokenizer: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids that the post-processor puts before and after a text."""
    encoding = tokenizer.encode("a")
    is_text = [number is not None for number in encoding.sequence_ids]
    if not any(is_text):  # the tokenizer has dropped the letter
        raise ValueError("it reads no text")
    num_before = is_text.index(True)
    num_after = is_text[::-1].index(True)
    return tuple(encoding.ids[:num_before]), tuple(encoding.ids[len(is_text) - num_after :])


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


Rebuild = Callable[["Files", Any, Mapping[str, str]], Any]  # (files, tokenizer.json, names of roles) -> tokenizer


def _charsmap(state: Json) -> Json | None:
    """Returns the precompiled rules of a normalizer, which are all that T5Tokenizer takes of it."""
    normalizer = state.get("normalizer") or {}
    steps = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    return next((step for step in steps if step.get("type") == "Precompiled"), None)


def _with_state(tokenizer: Any, **parts: object) -> Any:
    """Returns the tokenizer with parts of its JSON replaced."""
    import tokenizers

    return tokenizers.Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), **parts}))


def _unigram(vocabulary: Sequence[Sequence[Any]], unknown: int, charsmap: Json | None, scheme: str) -> Any:
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


def _t5(files: Files, read: Any, names: Mapping[str, str]) -> Any:
    state = _require(files, "Unigram", "T5Tokenizer")
    return _unigram(state["model"]["vocab"], 2, _charsmap(state), "always")


def _xlm_roberta(files: Files, read: Any, names: Mapping[str, str]) -> Any:
    state = _require(files, "Unigram", "XLMRobertaTokenizer")
    scheme = "always" if files.tokenizer_config.get("add_prefix_space", True) else "never"
    return _unigram(state["model"]["vocab"], 3, _charsmap(state), scheme)


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


def _finish(tokenizer: Any, name: str, names: Mapping[str, str]) -> None:
    """Sets the template of the classes that have their own, whatever tokenizer.json has."""
    from tokenizers import processors

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


# A class: what makes its tokenizer of tokenizer.json's pieces, and the tokens that its roles have by default.
_REBUILT: Mapping[str, tuple[Rebuild, Mapping[str, str]]] = {
    "T5Tokenizer": (_t5, _T5),
    "LlamaTokenizer": (_llama, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
    "GPT2Tokenizer": (_gpt2, _ENDOFTEXT),
    "GPTNeoXTokenizer": (_gpt_neox, {**_ENDOFTEXT, "pad_token": "<|padding|>"}),
    "Qwen2Tokenizer": (_qwen2, _QWEN2),
    "BertTokenizer": (_bert, _BERT),
    "RobertaTokenizer": (_gpt2, _XLM),
    "GemmaTokenizer": (_gemma, _GEMMA),
    "XLMRobertaTokenizer": (_xlm_roberta, _XLM),
}


def _of_spiece(files: Files, path: str) -> Made:
    """Returns the tokenizer that T5Tokenizer makes of a SentencePiece model without a tokenizer.json."""
    import base64

    model = parse_model(content(path))
    roles = files.roles(_T5)
    extra_ids = int(files.tokenizer_config.get("extra_ids", 100))
    special = [piece for piece in model.pieces if piece.type in (CONTROL, USER_DEFINED)]
    num_inside = sum("<extra_id_" in piece.piece for piece in special)
    if num_inside and extra_ids not in (0, num_inside):
        raise InputError(
            f"{path} has {num_inside} sentinels of its own, and tokenizer_config.json says extra_ids {extra_ids}, which"
            f" transformers refuses; set extra_ids to {num_inside} there."
        )
    sentinels = [f"<extra_id_{number}>" for number in range(extra_ids)]
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    pieces += [(name, 0.0) for name in reversed(sentinels)]
    rules = model.normalizer_spec.precompiled_charsmap
    charsmap = None
    if rules:
        charsmap = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(rules).decode()}
    made = _unigram(pieces, 2, charsmap, "always")
    extra = files.extra or []
    if not files.has_extra_before_class:
        extra = [{"content": piece.piece, "normalized": False, "special": piece.type == CONTROL} for piece in special]
        if not any("<extra_id_" in name_of(token) for token in extra):
            extra += sentinels
    _add_tokens(made, files, roles, extra)
    _finish(made, "T5Tokenizer", {role: name_of(token) for role, token in roles.items()})
    return _made(made, files, roles)
