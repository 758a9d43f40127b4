"""GGUF, the file format of llama.cpp: files, tensor names and vocabularies of both directions."""
