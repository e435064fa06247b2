"""Reads what other trainers wrote: T5X's gins, Hugging Face's JSON and flags, tasks of the package t5.

Imports the engine, for which it writes a gin file.
"""
