"""The tokenizer of a folder for transformers, opened as transformers 5's AutoTokenizer opens it.

`published_files.py` reads what the folder's files say; `tokenizer_classes.py` has the class that opens it, and makes
its tokenizer. Then the tokens of tokenizer_config.json, special_tokens_map.json and added_tokens.json are added, tokens
with a role included.

In a text the name of a special token becomes that token here, as in transformers. A trainer reads the same file by
`tokenizers.TokenizersVocabulary`, for which that name is plain text: a corpus must not be able to end a document.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etils import epath

from limba.config import InputError, reason_of
from limba.data.vocabulary.files import content, folder_at
from limba.data.vocabulary.published_files import ROLES, Files, Json, name_of
from limba.data.vocabulary.tokenizer_classes import AS_IT_IS, REBUILT, T5_ROLES, class_of, finish, unigram
from limba.data.vocabulary.tokenizers import TokenizersVocabulary, is_of_library
from limba.data.vocabulary.vocabularies import SPECIALS, parse_model

if TYPE_CHECKING:
    import tokenizers

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
_CLEANS_BPE = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
_SENTINEL = re.compile(r"<extra_id_\d+>")
# Types of SentencePiece's pieces.
CONTROL = 3
USER_DEFINED = 4


class PublishedVocabulary(TokenizersVocabulary):
    """The tokenizer that AutoTokenizer opens in a folder; `encode` returns its ids without the template.

    `ids` has the ids of ROLES, of those that the files name; `template` is the ids before and after a text.
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

    def without_roles(self, ids: Sequence[int]) -> Sequence[int]:
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
    except BaseException as error:  # a damaged file may break any rule
        if not is_of_library(error):
            raise
        raise InputError(f"{path} cannot be read as a {name} ({reason_of(error)}); copy the folder again.") from error


def open_address(address: str) -> PublishedVocabulary:
    """Returns the vocabulary of a folder at a path or address, or of a model of the hub.

    Raises InputError as `folder_at` and `open_folder` do, and for a vocabulary of bytes.
    """
    folder = folder_at(address)
    files = Files.of(folder)
    if str(files.tokenizer_config.get("tokenizer_class") or files.config.get("tokenizer_class")).startswith("ByT5"):
        check_bytes(folder)
        raise InputError(
            f"The vocabulary {address} is UTF-8's bytes; set DataConfig.vocabulary to 'byte', and for the published"
            " ByT5 DataConfig.extra_ids to 0.",
            field="DataConfig.vocabulary",
        )
    opened = open_folder(folder)
    opened.address = address
    return opened


def check_bytes(folder: epath.Path) -> None:
    """Raises InputError for a ByT5 with tokens beside its bytes, its sentinels and the special tokens of each ByT5."""
    files = dataclasses.replace(Files.of(folder), tokenizer_json=None)  # which the class does not read
    tokens = [*files.tokens_by_id.values(), *files.roles({}).values(), *(files.extra or ())]
    names = dict.fromkeys(name_of(token) for token in tokens)
    own = [name for name in names if name not in SPECIALS and not _SENTINEL.fullmatch(name)]
    if own:
        some = ", ".join(own[:3]) + (", …" if len(own) > 3 else "")
        raise InputError(
            f"{folder} is a ByT5 with tokens of its own ({some}), which Limba's bytes do not have: their names would be"
            " read letter by letter. Give the vocabulary 'byte' if that is what you want.",
            field="DataConfig.vocabulary",
        )


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
        rebuild, defaults = REBUILT[name]
        roles = files.roles({**padding, **defaults})
        made = rebuild(files, read, {role: name_of(token) for role, token in roles.items()})
    made.no_truncation()
    made.no_padding()
    if made.post_processor is None:
        made.post_processor = tokenizers.processors.TemplateProcessing("$A", "$A $B", [])
    extra = _extra_of(files, name)
    _add_tokens(made, files, roles, extra)
    finish(made, name, {role: name_of(token) for role, token in roles.items()}, [name_of(token) for token in extra])
    return _made(made, files, roles)


def _made(tokenizer: tokenizers.Tokenizer, files: Files, roles: Json) -> Made:
    tokenizer.encode_special_tokens = bool(files.tokenizer_config.get("split_special_tokens", False))
    names = {role: name_of(token) for role, token in roles.items() if role in ROLES}
    names = {role: name for role, name in names.items() if tokenizer.token_to_id(name) is not None}
    cleans = bool(files.tokenizer_config.get("clean_up_tokenization_spaces", False))
    if type(tokenizer.model).__name__ == "BPE":
        cleans = cleans and bool(files.tokenizer_config.get(_CLEANS_BPE, False))
    return Made(tokenizer, names, cleans)


def _extra_of(files: Files, name: str) -> list[Any]:
    """Returns the special tokens without a role; a T5Tokenizer has its sentinels where no file names any."""
    extra = files.extra or []
    if name != "T5Tokenizer" or files.extra_before_class is not None:
        return extra
    # The class adds its sentinels to a list that goes through it, unless the list has some.
    if not any("<extra_id_" in name_of(token) for token in extra):
        sentinels = [f"<extra_id_{number}>" for number in range(int(files.tokenizer_config.get("extra_ids", 100)))]
        return [*extra, *sentinels]
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
    """Returns the token that a file describes; a name alone is a special one."""
    from tokenizers import AddedToken

    if isinstance(token, AddedToken):
        return token
    if isinstance(token, str):
        return AddedToken(token, special=True)
    fields = {key: value for key, value in token.items() if key != "__type"}
    return AddedToken(**fields)


def _template(tokenizer: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids that the post-processor puts before and after a text."""
    for text in _texts_of_pieces(tokenizer):
        try:
            encoding = tokenizer.encode(text)
        except BaseException as error:  # an unknown letter
            if not is_of_library(error):
                raise
            continue
        is_text = [number is not None for number in encoding.sequence_ids]
        if any(is_text):
            num_before = is_text.index(True)
            num_after = is_text[::-1].index(True)
            return tuple(encoding.ids[:num_before]), tuple(encoding.ids[len(is_text) - num_after :])
    raise ValueError("it reads no text")


def _texts_of_pieces(tokenizer: tokenizers.Tokenizer) -> Iterator[str]:
    """Yields texts of which a tokenizer can read one: without an unknown piece it drops or refuses letters."""
    yield "a"
    yield from sorted(tokenizer.get_vocab(with_added_tokens=False))


def _of_spiece(files: Files, path: str) -> Made:
    """Returns the tokenizer that T5Tokenizer makes of a SentencePiece model without a tokenizer.json."""
    model = parse_model(content(path))
    roles = files.roles(T5_ROLES)
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
    made = unigram(pieces, 2, charsmap, "always")
    extra = files.extra or []
    if files.extra_before_class is None:
        extra = [{"content": piece.piece, "normalized": False, "special": piece.type == CONTROL} for piece in special]
        if not any("<extra_id_" in name_of(token) for token in extra):
            extra += sentinels
    _add_tokens(made, files, roles, extra)
    finish(made, "T5Tokenizer", {role: name_of(token) for role, token in roles.items()}, ())
    return _made(made, files, roles)
