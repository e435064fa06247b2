"""The report's page: runs' histories, charts, samples, events and tables, thinned, drawn and put in one HTML file.

Imports what `limba/evaluation/` may, but neither jax nor TensorFlow, so that a report opens in seconds.
"""
