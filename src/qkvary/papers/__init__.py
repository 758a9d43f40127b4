"""The documents' figures and claims, with verdicts: a folder per document, and one of our own."""
