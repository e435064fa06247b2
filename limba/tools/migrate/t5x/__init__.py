"""Translates T5X's gin files, whose facts `tables` holds, to one gin file of Limba; `convert` prints it.

Part of `migrate`: imports the gin reader and `limba.config`.
"""
