"""The configurations of Hugging Face's T5 scripts, as JSON or as their command line: each becomes one gin file.

Part of `migrate`: imports `limba.cli.gin`, and what tells a model's or a corpus's size.
"""
