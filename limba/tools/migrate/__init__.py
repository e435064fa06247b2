"""Reads what other trainers wrote: T5X's gins, Hugging Face's JSON and flags, tasks that were written for T5X.

Imports the engine, for which it writes a gin file.
"""
