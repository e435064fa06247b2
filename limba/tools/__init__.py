"""The tools above the engine: translators, preflight, pages, corpus commands. A run trains without them.

They import the engine; it finds them by the names in `limba/tool_registry.py` only.
"""
