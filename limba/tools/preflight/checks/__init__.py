"""What can be known of a run before it starts: sections of lines that are fine, wasteful or wrong, and their mends.

Part of `preflight`: imports heavy libraries only inside the check that needs them.
"""
