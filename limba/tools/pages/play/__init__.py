"""`limba play`: `answers` asks a model, `server` speaks HTTP, `page.html` is the page, `play` the command.

Part of `pages`.
"""
