"""What is written to a directory or bucket: whole or not at all, with checksums, by one owner at a time.

Floor 1: imports config only; epath and fsspec serve local paths and gs:// alike.
"""
