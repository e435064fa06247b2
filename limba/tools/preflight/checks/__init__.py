"""What can be known of a run before it starts: sections of lines that are fine, wasteful or wrong, and their fixes.

Part of `preflight`: imports heavy libraries only inside the check that needs them.
"""
