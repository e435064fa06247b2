"""Fine-tunes an encoder that `limba convert` has written to classify texts or to tag words, by transformers alone.

    python examples/classify_with_transformers.py runs/encoder/huggingface/step_1000 train.csv test.csv out
    python examples/classify_with_transformers.py FOLDER train.jsonl test.jsonl out --task=tags

Files are CSV or JSON lines. Texts have the columns text and label. Words have the columns tokens and tags, lists of one
length in JSON lines. Needs: pip install transformers torch accelerate datasets
"""

import argparse

import numpy as np
from datasets import Dataset, DatasetDict, load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)

NO_LABEL = -100  # which the loss leaves out


def parsed() -> argparse.Namespace:
    """Returns what the command line gives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of an exported encoder, or a name on the hub")
    parser.add_argument("train", help="CSV or JSON lines to learn from")
    parser.add_argument("test", help="CSV or JSON lines to be measured on")
    parser.add_argument("output", help="folder that the fine-tuned model is written to")
    parser.add_argument("--task", choices=("texts", "tags"), default="texts", help="what has a label; default: texts")
    parser.add_argument("--epochs", type=float, default=3.0, help="passes over the training file; default: 3")
    parser.add_argument("--batch_size", type=int, default=32, help="rows of a step; default: 32")
    parser.add_argument("--learning_rate", type=float, default=5e-5, help="of AdamW; default: 5e-5")
    parser.add_argument("--max_length", type=int, default=512, help="tokens; longer texts are cut; default: 512")
    parser.add_argument("--seed", type=int, default=0, help="of the new head and of the order; default: 0")
    return parser.parse_args()


def read(train: str, test: str) -> DatasetDict:
    """Returns the rows of both files."""
    layout = "csv" if train.endswith(".csv") else "json"
    return load_dataset(layout, data_files={"train": train, "test": test})


def labels_of(rows: Dataset, column: str) -> list[str]:
    """Returns the labels of the training rows, in the order of their letters."""
    labels = set[str]()
    for value in rows[column]:
        labels.update(map(str, value) if isinstance(value, list) else [str(value)])
    return sorted(labels)


def encode_texts(rows: dict, tokenizer: PreTrainedTokenizerBase, ids: dict[str, int], max_length: int) -> dict:
    """Returns the ids of texts, each with the number of its label."""
    encoded = tokenizer(rows["text"], truncation=True, max_length=max_length)
    return {**encoded, "labels": [ids[str(label)] for label in rows["label"]]}


def encode_words(rows: dict, tokenizer: PreTrainedTokenizerBase, ids: dict[str, int], max_length: int) -> dict:
    """Returns the ids of sentences; the first piece of each word has the word's tag, the others have none."""
    encoded = tokenizer(rows["tokens"], truncation=True, max_length=max_length, is_split_into_words=True)
    all_labels = []
    for number, tags in enumerate(rows["tags"]):
        labels = []
        before = None
        for word in encoded.word_ids(number):
            is_first = word is not None and word != before
            labels.append(ids[str(tags[word])] if is_first else NO_LABEL)
            before = word
        all_labels.append(labels)
    return {**encoded, "labels": all_labels}


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Returns the share of labels that are right."""
    guessed = np.argmax(prediction.predictions, axis=-1)
    counts = prediction.label_ids != NO_LABEL
    return {"accuracy": float((guessed == prediction.label_ids)[counts].mean())}


def main() -> None:
    """Fine-tunes, measures and saves."""
    args = parsed()
    rows = read(args.train, args.test)
    has_texts = args.task == "texts"
    labels = labels_of(rows["train"], "label" if has_texts else "tags")
    ids = {label: number for number, label in enumerate(labels)}

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    kind = AutoModelForSequenceClassification if has_texts else AutoModelForTokenClassification
    model = kind.from_pretrained(args.model, label2id=ids, id2label=dict(enumerate(labels)))
    encoded = rows.map(
        encode_texts if has_texts else encode_words,
        batched=True,
        fn_kwargs={"tokenizer": tokenizer, "ids": ids, "max_length": args.max_length},
        remove_columns=rows["train"].column_names,
    )
    collator = DataCollatorWithPadding(tokenizer) if has_texts else DataCollatorForTokenClassification(tokenizer)
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=args.output,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=args.batch_size,
            learning_rate=args.learning_rate,
            seed=args.seed,
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=encoded["train"],
        eval_dataset=encoded["test"],
        data_collator=collator,
        processing_class=tokenizer,
        compute_metrics=accuracy,
    )
    trainer.train()
    print(f"accuracy on {args.test}: {100 * trainer.evaluate()['eval_accuracy']:.2f} %")
    trainer.save_model(args.output)


if __name__ == "__main__":
    main()
