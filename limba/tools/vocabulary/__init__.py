"""Vocabularies of models that are there: with the rows that a text needs, and side by side.

Imports the engine by `limba.api`.
"""
