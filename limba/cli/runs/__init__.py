"""Commands about runs.

Part of `cli/`.
"""
