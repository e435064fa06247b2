"""Trains an encoder that `limba convert` has written to give vectors of sentences, by sentence-transformers.

    python examples/vectors_with_sentence_transformers.py runs/encoder/huggingface/step_1000 pairs.jsonl out

The file is CSV or JSON lines with the columns anchor and positive: two texts that mean the same, such as a question and
its answer. In a batch each anchor has to find its own positive among all of them, so a larger batch is a harder task.
Needs: pip install sentence-transformers torch accelerate datasets
"""

import argparse

from datasets import Dataset, load_dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer import modules
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss


def parsed() -> argparse.Namespace:
    """Returns what the command line gives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of an exported encoder, or a name on the hub")
    parser.add_argument("pairs", help="CSV or JSON lines with the columns anchor and positive")
    parser.add_argument("output", help="folder that the model of sentences is written to")
    parser.add_argument("--epochs", type=float, default=1.0, help="passes over the pairs; default: 1")
    parser.add_argument("--batch_size", type=int, default=64, help="pairs of a step; default: 64")
    parser.add_argument("--learning_rate", type=float, default=2e-5, help="of AdamW; default: 2e-5")
    parser.add_argument("--max_length", type=int, default=256, help="tokens; longer texts are cut; default: 256")
    parser.add_argument("--seed", type=int, default=0, help="of the order and of dropout; default: 0")
    return parser.parse_args()


def read(pairs: str) -> Dataset:
    """Returns the pairs, without other columns."""
    layout = "csv" if pairs.endswith(".csv") else "json"
    rows = load_dataset(layout, data_files=pairs, split="train")
    return rows.select_columns(["anchor", "positive"])


def main() -> None:
    """Trains, saves, and opens what was saved."""
    args = parsed()
    encoder = modules.Transformer(args.model, max_seq_length=args.max_length)
    pooling = modules.Pooling(encoder.get_embedding_dimension(), pooling_mode="mean")
    model = SentenceTransformer(modules=[encoder, pooling])
    trainer = SentenceTransformerTrainer(
        model,
        SentenceTransformerTrainingArguments(
            output_dir=args.output,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=args.batch_size,
            learning_rate=args.learning_rate,
            seed=args.seed,
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=read(args.pairs),
        loss=MultipleNegativesRankingLoss(model),
    )
    trainer.train()
    model.save_pretrained(args.output)

    vectors = SentenceTransformer(args.output).encode(["A short text.", "Another text."])
    print(f"{args.output} gives vectors of {vectors.shape[1]} numbers")


if __name__ == "__main__":
    main()
