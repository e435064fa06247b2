"""`limba play`: `answers` asks a model, `examples` has texts to try; `play` is the command and the server.

Part of `pages`.
"""
