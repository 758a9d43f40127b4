"""What do the documents say, and is it true? One folder per document, and one for our questions."""
