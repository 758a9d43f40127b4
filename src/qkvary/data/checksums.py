"""What the shipped data sets are, as checksums: known without reading or unpacking them."""

TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
"""Of the text, uncompressed."""
ENGLISH_NOVELS_SHA256 = "d3e9e77b2e45434123266dc6863e64679a500f269e3df6e9f3e91e5c5b41a470"
"""Of the novels prepared by the byte: ``english-novels/bytes``."""

TINY_STORIES_SHA256 = "ab5927fbfbdd521973786bf799b381d5eb5e4cfc3421c0e4918bcb7b508598e6"
"""Of the first 2 MiB of TinyStories prepared with GPT-2's first 4,096 tokens:
``tinystories/gpt2-4096``."""
