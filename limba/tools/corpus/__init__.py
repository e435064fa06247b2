"""Commands about text: inspect a corpus, train a vocabulary, write the files of a new run.

Imports the engine.
"""
