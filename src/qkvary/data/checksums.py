"""What the shipped data sets are, as checksums: known without reading or unpacking them."""

TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
"""Of the text, uncompressed."""
