"""What a text may have wrong, document by document, and the command that writes it without.

Part of `preflight`: imports what `checks` does, and none of the other checks.
"""
