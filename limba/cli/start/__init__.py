"""`limba completion`.

Part of `cli`.
"""
