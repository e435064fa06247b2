"""How attention is computed on each platform, and the choice for a call's shapes (`choose.py`).

Part of `model/`: imports its layers, masks and relative bias, and no network.
"""
