"""The command that looks at a run before it starts.

Part of `cli/`: imports `limba/preflight/`, the other commands' flags and gin's reader.
"""
