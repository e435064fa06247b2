"""Commands that use a trained model: generate, score, evaluate, convert.

Part of `cli/`.
"""
