"""All published models that have a name here."""

from qkvary.arch.families.published_classic import CLASSIC_CONFIGS
from qkvary.arch.families.published_config import PublishedConfig
from qkvary.arch.families.published_llama import LLAMA_CONFIGS
from qkvary.arch.families.published_mixed import MIXED_CONFIGS

PUBLISHED_CONFIGS: dict[str, PublishedConfig] = {
    **CLASSIC_CONFIGS,
    **LLAMA_CONFIGS,
    **MIXED_CONFIGS,
}
"""By name."""
