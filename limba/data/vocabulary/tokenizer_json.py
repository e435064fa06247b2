"""`tokenizer.json` for Hugging Face's `tokenizers`, written from a SentencePiece model."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from limba.config import InputError
from limba.data.vocabulary.around_gaps import pattern_of, reason_against, with_gaps
from limba.data.vocabulary.character_map import NAMED, rules_of
from limba.data.vocabulary.load import NUM_SENTINELS, read_model
from limba.data.vocabulary.sentinels import SENTINEL
from limba.data.vocabulary.tokenizers import SPACE, byte_of_letter

if TYPE_CHECKING:
    from tokenizers import Tokenizer, decoders, models
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer
    from tokenizers.processors import TemplateProcessing

BEGIN = "\U000f1d00"  # of private use: marks where a text begins while it is cut
GUARD = "\U000f1d01"  # of private use: put before a text that begins with the pieces' character for a space
STAND_IN = 0xF1E00  # of private use: from here on, each stands for a user-defined symbol while the text is normalized
MOST_STEPS = 1_000  # for rules of several characters
TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}  # SentencePiece's numbers


def tokenizer_json(model_path: str, extra_ids: int = NUM_SENTINELS, starts: bool = False, encodes: bool = False) -> str:
    """Returns the text of a tokenizer.json that gives the ids of the SentencePiece model at `model_path`.

    It appends the end of sequence, as T5 needs it; with `encodes`, for an encoder, it also puts <cls> before a text if
    the model has it; with `starts` it puts padding there, and no end, as Limba's language models need it. `extra_ids`
    sentinels follow the pieces unless the model has its own. Two differences from SentencePiece are known: several
    combining marks on a letter, if they are not in Unicode's canonical order or not composed (NFD), or one behind a
    character that NFKC replaces, such as a ligature; and the literal text of a special token (`</s>`, `<extra_id_0>`),
    which becomes that token. Raises InputError for a model that does not exist, is of whole words, or has rules that
    tokenizer.json cannot hold.
    """
    return of_model(model_path, extra_ids, starts, encodes).to_str()


class _Pieces(NamedTuple):
    """A SentencePiece model's pieces as `tokenizers` has them."""

    model: Any  # the ModelProto
    names: list[str]  # sentinels as <extra_id_0>
    types: list[int]  # sentinels are controls
    special: list[str]  # names of controls, the unknown piece, and sentinels, added ones too
    symbols: list[str]  # user-defined: found in a text before it is normalized
    num_added: int  # sentinels above the pieces


def of_model(model_path: str, extra_ids: int, starts: bool, encodes: bool, mask_id: int | None = None) -> Tokenizer:
    """Returns what `tokenizer_json` writes; with `mask_id` this piece, or sentinel, is an encoder's mask."""
    from tokenizers import Regex, Tokenizer, normalizers

    pieces = _pieces_of(model_path, extra_ids)
    model = pieces.model
    end = model.trainer_spec.eos_piece
    if end not in pieces.names:
        raise InputError(f"The vocabulary {model_path} has no end of sequence; train one with eos_id=1.")
    kind = TYPES.get(model.trainer_spec.model_type)
    if kind == "unigram":
        made = Tokenizer(_unigram(pieces))
    elif kind in ("bpe", "char"):
        made = Tokenizer(_merged(pieces, kind))
    else:
        raise InputError(
            f"The vocabulary {model_path} is a SentencePiece model of type {kind}, which tokenizer.json cannot hold"
            " (it is made of unigram, bpe or char); train a vocabulary with model_type=unigram."
        )
    made.normalizer = _normalizer(pieces, model_path)
    made.pre_tokenizer = _pre_tokenizer(pieces)
    made.decoder = _decoder(model)
    ids = {name: number for number, name in enumerate(pieces.names)}
    made.post_processor = start(pieces.names[0]) if starts else around(ids, end, encodes)
    is_suffix = model.trainer_spec.treat_whitespace_as_suffix
    mask = None if mask_id is None else pieces.names[mask_id]
    gaps = [name for name in pieces.special if name == mask or SENTINEL.fullmatch(name)]
    if mask is not None and mask not in gaps:  # an ordinary piece, such as <mask>
        gaps.append(mask)
    add_special(made, [name for name in pieces.special if name not in gaps])
    if is_suffix or not gaps:
        add_special(made, gaps, rstrip=True)
        return made
    # The space before a gap belongs to the removed word, see `around_gaps`. The normalizer removes it; it sees the
    # names of tokens that are looked for in the normalized text.
    names = pattern_of([*gaps, *map(made.normalizer.normalize_str, gaps)])
    space_before_gap = normalizers.Replace(Regex(f"[ {_space(model)}](?={names})"), "")
    made.normalizer = normalizers.Sequence([made.normalizer, space_before_gap])
    add_special(made, gaps, normalized=True)
    return made


def _pieces_of(model_path: str, extra_ids: int) -> _Pieces:
    model = read_model(model_path)
    kinds = model.SentencePiece
    names = []
    types = []
    has_sentinels = False
    for piece in model.pieces:
        sentinel = SENTINEL.fullmatch(piece.piece)
        has_sentinels |= sentinel is not None
        names.append(f"<extra_id_{sentinel[1]}>" if sentinel else piece.piece)
        types.append(kinds.CONTROL if sentinel else piece.type)
    added = [] if has_sentinels else [f"<extra_id_{number}>" for number in reversed(range(extra_ids))]
    pairs = [*zip(names, types, strict=True)]
    special = [name for name, kind in pairs if kind in (kinds.CONTROL, kinds.UNKNOWN)]
    symbols = [name for name, kind in pairs if kind == kinds.USER_DEFINED]
    return _Pieces(model, [*names, *added], types, [*special, *added], symbols, len(added))


def _unigram(pieces: _Pieces) -> models.Unigram:
    from tokenizers import models

    model = pieces.model
    kinds = model.SentencePiece
    scores = [piece.score for piece in model.pieces]
    for number, kind in enumerate(pieces.types):
        if kind == kinds.USER_DEFINED:  # what SentencePiece's unigram model reckons with: the best of all
            scores[number] = -0.1
    rows = [*zip(pieces.names, [*scores, *[0.0] * pieces.num_added], strict=True)]
    return models.Unigram(rows, pieces.types.index(kinds.UNKNOWN), kinds.BYTE in pieces.types)


def _merged(pieces: _Pieces, kind: str) -> models.BPE:
    """Returns a model of type bpe or char: every pair of pieces that is a piece too is a merge, the best piece first.

    Raises InputError for a vocabulary whose pieces are not unique.
    """
    from tokenizers import models

    model = pieces.model
    kinds = model.SentencePiece
    ids = {name: number for number, name in enumerate(pieces.names)}
    merges = []
    if kind == "bpe":
        for piece, of_type in zip(model.pieces, pieces.types, strict=True):
            if of_type != kinds.NORMAL:
                continue
            for cut in range(1, len(piece.piece)):
                left = piece.piece[:cut]
                right = piece.piece[cut:]
                if left in ids and right in ids:
                    merges.append((-piece.score, ids[left], ids[right], left, right))
    pairs = [(left, right) for *_, left, right in sorted(merges)]
    return models.BPE(
        ids,
        pairs,
        unk_token=pieces.names[pieces.types.index(kinds.UNKNOWN)],
        fuse_unk=True,
        byte_fallback=kinds.BYTE in pieces.types,
        ignore_merges=any(len(symbol) > 1 for symbol in pieces.symbols),  # `_pre_tokenizer` isolates the symbols
    )


def add_special(tokenizer: Tokenizer, names: Iterable[str], rstrip: bool = False, normalized: bool = False) -> None:
    """Makes these pieces special tokens: their literal text becomes the token, with `rstrip` also the spaces after it.

    With `normalized` it is looked for in the normalized text.
    """
    from tokenizers import AddedToken

    choices = {"rstrip": rstrip, "normalized": normalized}
    tokenizer.add_special_tokens([AddedToken(name, special=True, **choices) for name in names])


def _normalizer(pieces: _Pieces, model_path: str) -> Normalizer:
    """Returns what SentencePiece's normalizer does to a text, except for the space before it.

    The first character has to stay where it is in the text, see `_pre_tokenizer`: nothing at the start may be replaced
    together with what follows it.
    """
    from tokenizers import Regex, normalizers

    model = pieces.model
    space = _space(model)
    steps = _rules(model, model_path)
    removes_extra = model.normalizer_spec.remove_extra_whitespaces
    if removes_extra:
        steps += _single_spaces(pieces.symbols, space)
    if space != " " and removes_extra and not _has_prefix(model):
        # The pieces' own character for a space stays at the beginning of a text: only a space is removed there.
        steps.append(normalizers.Replace(Regex(rf"\A{space}"), GUARD + space))
    if space != " " and not (removes_extra and _has_prefix(model)):
        steps.append(normalizers.Replace(" ", space))
    rules = normalizers.Sequence(steps)
    # SentencePiece does not normalize its user-defined symbols: each one that would change is replaced by a private-use
    # character meanwhile.
    before = []
    after = []
    for number, symbol in enumerate(_longest_first(pieces.symbols)):
        if not symbol.strip(" ") or rules.normalize_str(symbol) == symbol:
            continue
        stand_in = chr(STAND_IN + number)
        first = re.escape(symbol[0])
        rest = re.escape(symbol[1:])
        before.append(normalizers.Replace(Regex(f"{first}(?={rest})"), stand_in))
        if rest:
            before.append(normalizers.Replace(Regex(f"(?<={stand_in}){rest}"), ""))
        after.append(normalizers.Replace(stand_in, symbol.replace(" ", space)))
    if _is_suffix(model):
        # Each text ends with a space; where extra spaces are removed, it has none there yet.
        after.append(normalizers.Replace(Regex(r"\z"), space))
    return normalizers.Sequence([*before, *steps, *after])


def _single_spaces(symbols: Sequence[str], space: str) -> list[Normalizer]:
    """Returns the steps that remove the spaces at the end, and all but the first of several spaces.

    At the end, SentencePiece also removes the character that stands for a space in pieces. A user-defined symbol of
    several spaces stays where a run of spaces begins with it. The library's own Strip would remove line ends too.
    """
    from tokenizers import Regex, normalizers

    steps: list[Normalizer] = [
        normalizers.Replace(Regex(rf"[ {space}]+\z"), ""),
        normalizers.Replace(Regex(r"\A \K +"), ""),
    ]
    symbols_of_spaces = (symbol for symbol in symbols if symbol and not symbol.strip(" "))
    counts = sorted({1, *map(len, symbols_of_spaces)})
    for count, next_count in itertools.zip_longest(counts, counts[1:]):
        # A run of spaces that is shorter than the next symbol becomes as long as this one.
        if next_count is None:
            more = "+"
        elif next_count - count > 1:
            more = f"{{1,{next_count - count - 1}}}"
        else:
            continue  # no run has a length between the two
        steps.append(normalizers.Replace(Regex(rf"(?<! ) {{{count}}}\K {more}(?! )"), ""))
    return steps


def _has_prefix(model: Any) -> bool:
    """Returns whether a space is put before a text."""
    return model.normalizer_spec.add_dummy_prefix and not _is_suffix(model)


def _is_suffix(model: Any) -> bool:
    return model.trainer_spec.treat_whitespace_as_suffix and model.normalizer_spec.add_dummy_prefix


def _longest_first(symbols: Iterable[str]) -> list[str]:
    return sorted(symbols, key=len, reverse=True)


def _space(model: Any) -> str:
    """Returns the character that the model's pieces have for a space."""
    return SPACE if model.normalizer_spec.escape_whitespaces else " "


def _rules(model: Any, model_path: str) -> list[Normalizer]:
    """Returns the steps for the model's table of characters; InputError for rules that `tokenizers` cannot apply."""
    from tokenizers import normalizers

    charsmap = model.normalizer_spec.precompiled_charsmap
    if not charsmap:
        return []
    # The table alone: no space is put before a text or removed, and user-defined symbols are normalized too.
    only_table = type(model)()
    only_table.CopyFrom(model)
    only_table.normalizer_spec.add_dummy_prefix = False
    only_table.normalizer_spec.remove_extra_whitespaces = False
    only_table.normalizer_spec.escape_whitespaces = False
    kinds = only_table.SentencePiece
    for piece in only_table.pieces:
        if piece.type == kinds.USER_DEFINED:
            piece.type = kinds.NORMAL
    normalize = _processor(only_table).Normalize
    steps = list[normalizers.Normalizer]()
    for letter in ("\r", SPACE):
        # "\r\n" is one grapheme, which `tokenizers` would replace by what "\r" becomes; so is SPACE with an accent.
        replaced = normalize(f"a{letter}b")[1:-1]
        if replaced != letter:
            steps.append(normalizers.Replace(letter, replaced))
    if normalize("\u2460") == "1":  # a circled digit: the rules include NFKC
        # `tokenizers` applies rules to whole graphemes of less than 6 bytes, else to single characters. After
        # NFKC a grapheme is a single character if one exists, and the rules' own NFKC changes nothing more.
        steps.append(normalizers.NFKC())
    steps.append(normalizers.Precompiled(charsmap))
    if model.normalizer_spec.name in NAMED:
        return steps
    rules = {key: value for key, value in rules_of(charsmap).items() if not any(map(_is_joined, key))}
    differing = _differing(rules, normalizers.Sequence(steps), normalize)
    if not differing:
        return steps
    # `tokenizers` looks up only graphemes in the table, so a rule for several of them is a step of its own.
    longer = [key for key in _longest_first(differing) if len(key) > 1][:MOST_STEPS]
    steps = [normalizers.Replace(key, rules[key]) for key in longer] + steps
    differing = _differing(rules, normalizers.Sequence(steps), normalize)
    if differing:
        key = differing[0]
        raise InputError(
            f"The vocabulary {model_path} replaces {key!r} by {rules[key]!r} before it splits a text, by a rule of its"
            " own that tokenizer.json cannot hold; train one with normalization_rule_name nmt_nfkc or identity, and"
            " make the replacement in the corpus."
        )
    return steps


def _is_joined(letter: str) -> bool:
    """Returns whether a character is joined with the one before it, which NFKC does in its own step."""
    return unicodedata.combining(letter) > 0 or 0x1100 <= ord(letter) < 0x1200


def _differing(rules: Mapping[str, str], written: Normalizer, normalize: Callable[[str], str]) -> list[str]:
    """Returns the keys of the rules for which the two normalizers give different texts."""
    return [key for key in rules if written.normalize_str(f"a{key} a") != normalize(f"a{key} a")]


def _processor(model: Any) -> Any:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model.SerializeToString())
    return processor


def _pre_tokenizer(pieces: _Pieces) -> PreTokenizer:
    """Returns what puts the space before a text, and keeps apart what must not be joined.

    It gets a text in parts, between special tokens, and only the first part begins the text. `Metaspace` with "first"
    is the only step of `tokenizers` that can tell.
    """
    from tokenizers import Regex, pre_tokenizers

    model = pieces.model
    spec = model.normalizer_spec
    space = _space(model)
    steps: list[PreTokenizer] = []
    if not _has_prefix(model):
        if spec.remove_extra_whitespaces:
            # No space begins a text: the mark goes, and the space behind it.
            steps.append(pre_tokenizers.Metaspace(BEGIN, "first", split=False))
            steps.append(pre_tokenizers.Split(Regex(f"{BEGIN}{space}?"), "removed"))
            steps.append(pre_tokenizers.Split(GUARD, "removed"))
    elif spec.remove_extra_whitespaces:
        # "first" puts no second space before a text that begins with one. Only then are spaces what the pieces have
        # for them: a text may begin with that character itself.
        steps.append(pre_tokenizers.Metaspace(" ", "first", split=False))
        if space != " ":
            steps.append(pre_tokenizers.Metaspace(space, "never", split=False))
    else:
        # Here a second space is wanted: another character is put before the text, which then becomes the space.
        other = " " if space != " " else BEGIN
        steps.append(pre_tokenizers.Metaspace(other, "first", split=False))
        steps.append(pre_tokenizers.Metaspace(space, "never", split=False))
    is_merged = model.trainer_spec.model_type != model.trainer_spec.UNIGRAM
    has_long_symbols = any(len(symbol) > 1 for symbol in pieces.symbols)
    symbols = [symbol for symbol in _longest_first(pieces.symbols) if symbol and (space == " " or " " not in symbol)]
    if is_merged and symbols:
        pattern = "|".join(map(re.escape, symbols))
        steps.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    has_bytes = model.SentencePiece.BYTE in pieces.types
    if has_bytes and (not is_merged or has_long_symbols):
        # In a text, the names of byte pieces are plain text: split in two they match no piece. Without byte pieces
        # nothing may be split: neighbouring unknown letters are one unknown piece.
        steps.append(pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "merged_with_previous"))
    return pre_tokenizers.Sequence(steps)


def _decoder(model: Any) -> decoders.Decoder:
    from tokenizers import Regex, decoders

    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if _is_suffix(model):
        steps.append(decoders.Replace(Regex(r" \z"), ""))  # Strip panics where no text is left
    elif model.normalizer_spec.add_dummy_prefix and _space(model) != " ":
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


def of_tokenizer(tokenizer: Tokenizer, gaps: Sequence[str]) -> Tokenizer:
    """Returns a copy of another tokenizer.json in which these tokens are gaps; see `around_gaps.with_gaps`.

    Raises InputError for one that cannot tokenize what follows a gap as training does.
    """
    from tokenizers import Tokenizer

    reason = reason_against(tokenizer) if gaps else None
    if reason is not None:
        raise InputError(
            f"The tokenizer {reason}, where a text in training has none; take a vocabulary that puts one before a whole"
            " text alone, or write the weights without a tokenizer."
        )

    made = Tokenizer.from_str(tokenizer.to_str())
    known = {token.content for token in made.get_added_tokens_decoder().values()}
    add_special(made, [name for name in gaps if name not in known])
    return with_gaps(made, gaps)


def around(ids: Mapping[str, int], end: str, encodes: bool) -> TemplateProcessing:
    """Returns the post-processor that appends this token to each text; if it `encodes`, <cls> or [CLS] come before."""
    begin = [name for name in ("<cls>", "[CLS]") if encodes and name in ids][:1]
    return template(ids, begin, [end])


def start(text: str) -> TemplateProcessing:
    """Returns the post-processor that puts padding, id 0, before each text: a decoder's first input."""
    return template({text: 0}, [text], [])


def template(ids: Mapping[str, int], before: Sequence[str], after: Sequence[str]) -> TemplateProcessing:
    """Returns the post-processor that puts these tokens before and after each text."""
    from tokenizers.processors import TemplateProcessing

    special = [(name, ids[name]) for name in dict.fromkeys((*before, *after))]
    return TemplateProcessing([*before, "$A", *after], [*before, "$A", *after, "$B", *after], special)


def of_bytes(special: Mapping[str, int], first: int = 3) -> Tokenizer:
    """Returns a tokenizer of UTF-8's bytes: byte b is id b + `first`, as in ByT5.

    It puts padding before a text and nothing after it; transformers' ByT5Tokenizer appends an end of sequence.
    `special` are the other tokens, with padding at 0; their literal text becomes that token.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = {letter: first + byte for letter, byte in byte_of_letter().items()}
    made = Tokenizer(models.BPE({**special, **letters}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = start(next(text for text, number in special.items() if number == 0))
    add_special(made, sorted(special, key=special.__getitem__))
    return made
