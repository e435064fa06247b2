"""Attention's implementations, and the choice among them.

Part of `model/`.
"""
