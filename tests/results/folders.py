"""Folders as transformers saves them, tiny ones of several families, and the data of five tasks that can be learned."""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

NAMES = {"Ion": "PERSON", "Ana Pop": "PERSON", "Cluj": "GPE"}
SUITE = """
kind/Classification:
  train = 'train.jsonl'
  test = 'test.jsonl'
sts/Similarity:
  train = 'train.jsonl'
  test = 'test.jsonl'
  first = 'text'
  second = 'other'
  score = 'score'
tags/PartOfSpeech:
  train = 'train.conllu'
  test = 'test.conllu'
names/NamedEntities:
  train = 'train.conllu'
  test = 'test.conllu'
"""


def write_data(folder: Path, num_train: int = 96, num_test: int = 40) -> None:
    """Sentences of a number and a name, whose labels follow from the name; two sentences are a document."""
    chosen = random.Random(0)
    for part, count in (("train", num_train), ("test", num_test)):
        rows = []
        sentences = []
        for sentence in range(count):
            name = chosen.choice(list(NAMES))
            number = f"{chosen.random():.4f}"
            label = NAMES[name]
            row = {"text": f"{number} {name}", "other": f"{name} {number}", "label": label}
            rows.append(json.dumps(row | {"score": 4.5 if label == "GPE" else 1.0}))
            lines = [] if sentence % 2 else [f"# newdoc id = {part}{sentence}"]
            lines.append(f"1\t{number}\t_\tNUM" + "\t_" * 5 + "\tO")
            for index, word in enumerate(name.split()):
                tag = f"{'I' if index else 'B'}-{label}"
                lines.append(f"{index + 2}\t{word}\t_\tPROPN" + "\t_" * 5 + f"\t{tag}")
            sentences.append("\n".join(lines) + "\n")
        (folder / f"{part}.jsonl").write_text("\n".join(rows) + "\n")
        (folder / f"{part}.conllu").write_text("\n".join(sentences))
    (folder / "suite.gin").write_text(SUITE)


def word_pieces(folder: Path, **special: str) -> None:
    """A tokenizer of BERT's kind, which knows the words of the data; it has no tokens but those that are named."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.train_from_iterator([f"{name} 0123456789." for name in NAMES] * 9, trainer)
    if "sep_token" in special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    elif "eos_token" in special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A [SEP]", pair="$A [SEP] $B [SEP]", special_tokens=[("[SEP]", 3)]
        )
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", model_max_length=32, **special)
    whole.save_pretrained(folder)


ENCODER = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
SIZE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


def bert(folder: Path) -> Path:
    import transformers

    config = transformers.BertConfig(vocab_size=200, max_position_embeddings=32, **SIZE)
    return saved(transformers.BertForMaskedLM(config), folder, ENCODER)


def xlm_roberta(folder: Path) -> Path:
    import transformers

    config = transformers.XLMRobertaConfig(vocab_size=200, max_position_embeddings=18, pad_token_id=0, **SIZE)
    return saved(transformers.XLMRobertaForMaskedLM(config), folder, ENCODER)


def mt5(folder: Path) -> Path:
    import transformers

    config = transformers.MT5Config(
        vocab_size=200, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, pad_token_id=0, eos_token_id=3,
        decoder_start_token_id=0,
    )  # fmt: skip
    return saved(transformers.MT5ForConditionalGeneration(config), folder, {"pad_token": "[PAD]", "eos_token": "[SEP]"})


def llama(folder: Path) -> Path:
    """Its tokenizer has no padding."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=200, max_position_embeddings=32, bos_token_id=2, eos_token_id=3, **SIZE
    )
    return saved(transformers.LlamaForCausalLM(config), folder, {"eos_token": "[SEP]"})


def saved(model, folder: Path, special: dict[str, str]) -> Path:
    model.save_pretrained(folder)
    word_pieces(folder, **special)
    return folder
