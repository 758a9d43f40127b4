"""The claims of the documents as data, one JSON file per document."""
