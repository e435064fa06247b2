"""Commands about text and vocabularies.

Part of `cli/`.
"""
