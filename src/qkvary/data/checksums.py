"""Lists checksums and other facts about the built-in data sets, known without reading them."""

TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
"""The checksum of the uncompressed text."""
ENGLISH_NOVELS_SHA256 = "d3e9e77b2e45434123266dc6863e64679a500f269e3df6e9f3e91e5c5b41a470"
"""The fingerprint of ``english-novels/bytes``, the novels prepared by the byte."""

FOUR_AUTHORS_SHA256 = "08de2735b3f1c05e65833e22b2c7fa1c5f96bb67ea2e20c70e2be8288e156c6d"
"""The fingerprint of twelve novels by Dickens, Doyle, Gaskell and Haggard, split by book."""

TINY_STORIES_SHA256 = "ab5927fbfbdd521973786bf799b381d5eb5e4cfc3421c0e4918bcb7b508598e6"
"""The fingerprint of ``tinystories/gpt2-4096``, the first 2 MiB of TinyStories prepared with
GPT-2's first 4,096 tokens."""

MULTI30K_FILES = {
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
}
"""The checksums of the files of Multi30k, task 1, as published."""
MULTI30K_SHA256 = "ac93810c18e472ae9eb2897cb347c6e85fa8a804e75406a4eac3050dfff8e9f8"
"""The fingerprint of all files of Multi30k."""

CIFAR100_FEATURES_SHA256 = "b9617e5d82fff3eed0dc42f91fcdd931245ce25c01ebbe2e51885ee75be5689a"
"""The checksum of the packaged features of 50 classes of CIFAR-100."""
FEATURES_MADE_HERE = "cifar100-resnet34"
"""The name of the features that ``qkvary data features`` computes with weights of the user."""
