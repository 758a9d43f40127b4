"""Checksums of the built-in data sets, known without reading them."""

TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
"""The checksum of the uncompressed text."""
ENGLISH_NOVELS_SHA256 = "d3e9e77b2e45434123266dc6863e64679a500f269e3df6e9f3e91e5c5b41a470"
"""The fingerprint of ``english-novels/bytes``, the novels prepared by the byte."""

TINY_STORIES_SHA256 = "ab5927fbfbdd521973786bf799b381d5eb5e4cfc3421c0e4918bcb7b508598e6"
"""The fingerprint of ``tinystories/gpt2-4096``, the first 2 MiB of TinyStories prepared with
GPT-2's first 4,096 tokens."""

CIFAR100_FEATURES_SHA256 = "b9617e5d82fff3eed0dc42f91fcdd931245ce25c01ebbe2e51885ee75be5689a"
"""The packaged features of 50 classes of CIFAR-100."""
