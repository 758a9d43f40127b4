"""What do the documents say, and is it so? One folder a document, and one for our own questions."""
