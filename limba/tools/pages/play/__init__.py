"""`limba play`: `answers` asks a model, `examples` wait on `page.html`, `server` speaks HTTP; `play` is the command.

Part of `pages`.
"""
