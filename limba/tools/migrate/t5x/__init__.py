"""Translates T5X's gin files, whose facts `tables` holds, to one of ours; `convert` prints it.

Part of `migrate`: imports the gin reader and `limba.config`.
"""
