"""`limba new`, `limba doctor` and `limba completion`; `sizes` proposes a model, `templates` holds the files of `new`.

Part of `cli`: imports all floors.
"""
