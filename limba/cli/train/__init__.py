"""Commands that train.

Part of `cli/`.
"""
