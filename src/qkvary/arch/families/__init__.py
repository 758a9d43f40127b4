"""Published families of models, read from their Hugging Face configurations into ``Model``."""
