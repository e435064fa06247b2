"""Commands that use a trained model.

Part of `cli/`.
"""
