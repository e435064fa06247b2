"""`limba play`: `answers` asks a model, and has examples for `page.html`; `play` is the command and the server.

Part of `pages`.
"""
