"""Networks and configs small enough that a test trains them in a second."""

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import BlockConfig, EncoderConfig, LanguageModelConfig
from qkvary.tasks.config import CharacterTaskConfig, SequenceTaskConfig, TaskConfig


def tiny_task(name: str, *, length: int = 7) -> TaskConfig:
    if name == "characters":
        return CharacterTaskConfig(context=length, evaluation="sampled", evaluation_batches=2)
    return SequenceTaskConfig(
        name=name,  # type: ignore[arg-type]
        length=length,
        vocabulary=11,
        train_examples=53,
        validation_examples=17,
        test_examples=19,
    )


def tiny_network(name: str, *, length: int = 7) -> EncoderConfig | LanguageModelConfig:
    attention = AttentionConfig(d_model=24, num_heads=3, causal=name == "characters")
    if name == "characters":
        return LanguageModelConfig(
            attention=attention,
            block=BlockConfig(d_ff=29),
            num_layers=2,
            vocabulary=65,
            max_tokens=length,
            tied_head=False,
        )
    return EncoderConfig(
        attention=attention,
        block=BlockConfig(d_ff=29, norm_placement="post"),
        num_layers=2,
        vocabulary=11,
        classes=11,
        max_tokens=length,
    )
