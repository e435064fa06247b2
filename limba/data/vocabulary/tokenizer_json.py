"""`tokenizer.json` for Hugging Face's `tokenizers`, written from a SentencePiece model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from limba.config import InputError
from limba.data.vocabulary.load import NUM_SENTINELS, SENTINEL, SPACE, read_model
from limba.data.vocabulary.tokenizers import byte_of_letter

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer
    from tokenizers.processors import TemplateProcessing


def tokenizer_json(model_path: str, extra_ids: int = NUM_SENTINELS, starts: bool = False, encodes: bool = False) -> str:
    """Returns the text of a tokenizer.json that gives the ids of the SentencePiece unigram model at `model_path`.

    It appends the end of sequence, as T5 needs it; with `encodes`, for an encoder, it also puts <cls> before a text
    where the model has that; with `starts` it puts padding there, and no end, as Limba's language models need it.
    `extra_ids` sentinels follow the pieces unless the model has its own. Two differences to SentencePiece are
    known: several combining marks on a letter, if they are not in Unicode's canonical order or not composed (NFD),
    and the literal text of a special token (`</s>`, `<extra_id_0>`), which becomes that token. Raises InputError
    for a model that does not exist or is not a unigram model.
    """
    return of_model(model_path, extra_ids, starts, encodes).to_str()


def of_model(model_path: str, extra_ids: int, starts: bool, encodes: bool) -> Tokenizer:
    """Returns what `tokenizer_json` writes."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    model = read_model(model_path)
    kinds = model.SentencePiece
    if model.trainer_spec.model_type != model.trainer_spec.UNIGRAM:
        raise InputError(f"The vocabulary {model_path} is not a unigram model, which tokenizer.json needs; give one.")
    ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
    end = ids.get(model.trainer_spec.eos_piece)
    if end is None:
        raise InputError(f"The vocabulary {model_path} has no end of sequence; train one with eos_id=1.")
    sentinels = [SENTINEL.fullmatch(piece.piece) for piece in model.pieces]
    names = [f"<extra_id_{found[1]}>" if found else piece.piece for piece, found in zip(model.pieces, sentinels)]  # noqa: B905
    types = [kinds.CONTROL if found else piece.type for piece, found in zip(model.pieces, sentinels)]  # noqa: B905
    special = [name for name, kind in zip(names, types, strict=True) if kind in (kinds.CONTROL, kinds.UNKNOWN)]
    more = [] if any(sentinels) else [f"<extra_id_{number}>" for number in reversed(range(extra_ids))]
    scores = [*(piece.score for piece in model.pieces), *[0.0] * len(more)]
    unigram = models.Unigram(
        [*zip([*names, *more], scores, strict=True)], types.index(kinds.UNKNOWN), kinds.BYTE in types
    )
    made = Tokenizer(unigram)
    made.normalizer = normalizers.Sequence(_normalizers(model))
    # The names of byte pieces are plain text where a text has them: cut in two they match no piece.
    scheme = "always" if model.normalizer_spec.add_dummy_prefix else "never"
    spaces = pre_tokenizers.Metaspace(SPACE, scheme, split=False)
    bytes_ = pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "merged_with_previous")
    made.pre_tokenizer = pre_tokenizers.Sequence([spaces, bytes_])
    steps = (decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0))
    made.decoder = decoders.Sequence([*steps])
    made.post_processor = start(names[0]) if starts else around(ids, names[end], encodes)
    add_special(made, [*special, *more])
    return made


def add_special(tokenizer: Tokenizer, names: Iterable[str]) -> None:
    """Makes these pieces special tokens: their literal text becomes that token."""
    from tokenizers import AddedToken

    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])


def _normalizers(model: Any) -> list[Normalizer]:
    import sentencepiece
    from tokenizers import Regex, normalizers

    spec, steps = model.normalizer_spec, list[normalizers.Normalizer]()
    if spec.precompiled_charsmap:
        normalizer = sentencepiece.SentencePieceProcessor()
        normalizer.LoadFromSerializedProto(model.SerializeToString())
        if normalizer.Normalize("\u2460").endswith("1"):  # a circled digit: the rules include NFKC
            # `tokenizers` applies rules to whole graphemes of less than 6 bytes, else to single characters. After
            # NFKC a grapheme is a single character if one exists, and the rules' own NFKC changes nothing more.
            steps.append(normalizers.NFKC())
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        # Only spaces: the library's own Strip would remove line ends too.
        steps += [normalizers.Replace(Regex(each), by) for each, by in ((r"\A +| +\z", ""), (" {2,}", " "))]
    return steps


def around(ids: Mapping[str, int], end: str, encodes: bool) -> TemplateProcessing:
    """Returns the post-processor that appends this token to each text; if it `encodes`, <cls> or [CLS] come before."""
    from tokenizers.processors import TemplateProcessing

    begin = [name for name in ("<cls>", "[CLS]") if encodes and name in ids][:1]
    special = [(name, ids[name]) for name in (*begin, end)]
    return TemplateProcessing([*begin, "$A", end], [*begin, "$A", end, "$B", end], special)


def start(text: str) -> TemplateProcessing:
    """Returns the post-processor that puts padding, id 0, before each text: a decoder's first input."""
    from tokenizers.processors import TemplateProcessing

    return TemplateProcessing([text, "$A"], [text, "$A", "$B"], [(text, 0)])


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
