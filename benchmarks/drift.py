"""Counts the words of a long document before and after a model restores its diacritics in segments.

    python -m benchmarks.drift MODEL_DIR --language=fr [--words=5000]

The document is made of texts of the corpus that the run keeps for validation, without their diacritics. It prints the
words in and out, the segments, how many words are right and in their place, and the largest number of words that any
segment gained or lost.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, cast

import jiwer

import limba
from limba.data.objectives.diacritics import normalized, stripped


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--language", default="fr")
    parser.add_argument("--words", type=int, default=5_000)
    parser.add_argument("--step", type=int)
    given = parser.parse_args(argv)
    model = limba.load(given.model, step=given.step)
    document = ""
    run = model.source.run
    assert run is not None, "a run names its corpus"
    source = cast(Any, model.task).source
    split = run.data.validation_split
    for each in source.documents(split, shuffle=False, num_epochs=1):
        document += normalized(each["text"].decode(), given.language) + "\n\n"
        if len(document.split()) >= given.words:
            break
    plain = stripped(document, given.language)
    began = time.monotonic()
    writer = model.segment_writer(model.generation, model.batch_size)
    ((_, result),) = writer.results([plain])
    written = result.samples[0].text
    found = jiwer.process_words(document, written)
    changes = [len(samples[0].text.split()) - len(segment.text.split()) for segment, samples in result.parts if samples]
    total = found.hits + found.substitutions + found.deletions
    print(
        json.dumps(
            {
                "words in": len(plain.split()),
                "words out": len(written.split()),
                "lines in": plain.count("\n"),
                "lines out": written.count("\n"),
                "segments": len(result.parts),
                "segments with an output": len(changes),
                "segments with other numbers of words": sum(change != 0 for change in changes),
                "most words lost and gained by a segment": [min(changes), max(changes)],
                "unfinished": result.unfinished,
                "words right, %": round(100 * found.hits / total, 2),
                "words right if copied, %": round(100 * _right(document, plain), 2),
                "seconds": round(time.monotonic() - began),
            },
            indent=1,
        )
    )


def _right(document: str, written: str) -> float:
    found = jiwer.process_words(document, written)
    return found.hits / (found.hits + found.substitutions + found.deletions)


if __name__ == "__main__":
    main(sys.argv[1:])
