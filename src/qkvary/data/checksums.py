"""What the shipped data sets are, as checksums: known without reading or unpacking them."""

TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
"""Of the text, uncompressed."""
ENGLISH_NOVELS_SHA256 = "ec0bec3c2598c4d007eef48dcf3780c2ce2b946edf9df17be7e89d7b1f746650"
"""Of the novels prepared with GPT-2's first 4,096 tokens: ``english-novels/gpt2-4096``."""

TINY_STORIES_SHA256 = "ab5927fbfbdd521973786bf799b381d5eb5e4cfc3421c0e4918bcb7b508598e6"
"""Of the first 2 MiB of TinyStories prepared in the same way: ``tinystories/gpt2-4096``."""
