"""What can be known of a run before it starts: sections of lines that are fine, wasteful or wrong, and their mends.

Part of floor 4: imports all but `cli/`, and heavy libraries only inside the check that needs them.
"""
