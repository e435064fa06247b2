"""The parts of `benchmarks/speedrun.py`: corpora, sizes, recipes, runs and tables.

They may import all of `limba/`; heavy libraries inside functions, so that a wrong argument costs no start of theirs.
"""
