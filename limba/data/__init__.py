"""Text to batches: sources of documents, vocabularies, objectives, and resumable streams of rows."""
