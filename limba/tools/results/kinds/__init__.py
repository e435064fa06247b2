"""The kinds of tasks: those that a model is scored on as it is, and those that it is fine-tuned on.

Part of `limba.tools.results`.
"""
