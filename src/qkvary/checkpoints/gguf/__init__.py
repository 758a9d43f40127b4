"""GGUF, the file format of llama.cpp: reading and writing files, tensor names and vocabularies."""
