"""Networks and training of the translation experiments of paper 2. Torch-free."""

from qkvary.arch.attention import AttentionConfig, Initialization, PositionConfig
from qkvary.arch.networks import BlockConfig, EncoderDecoderConfig
from qkvary.data.translations import Language
from qkvary.studies.study import Setting
from qkvary.tasks.config import TranslationProtocol, TranslationTaskConfig
from qkvary.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig

VARIANTS = ("QKV", "Q=K-V", "(Q=K-V)+")
"""The variants in paper 2's translation experiment."""
WORDS: dict[int, dict[Language, int]] = {
    1: {"de": 19_133, "en": 11_200},
    3: {"de": 5_629, "en": 4_778},
}
"""Vocabulary sizes for Multi30k, by ``min_count``. A word gets a token if it occurs at least
``min_count`` times in the training split."""
MAX_TOKENS = 100
"""Maximum length of a translation in the published code, in tokens."""
SACREBLEU = "sacreBLEU (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp)"
"""Name of the score in the clean protocols, with the signature of sacreBLEU."""
EPOCH = 580
"""Number of batches of 50 in the 29,000 training sentences."""
BATCH = 50
WARMUP = 4_000


def translation_network(
    source: Language = "en",
    target: Language = "de",
    *,
    d_model: int,
    num_layers: int,
    num_heads: int,
    cross_sharing: str = "none",
    min_count: int = 1,
    words: tuple[int, int] | None = None,
) -> EncoderDecoderConfig:
    """Return the pre-norm encoder-decoder of the translation experiment.

    A word gets a token if it occurs at least ``min_count`` times. For texts other than Multi30k,
    ``words`` gives the vocabulary sizes of source and target.

    Source: code of paper 2: interleaved sinusoids, scaled embeddings, dropout 0.1 after the
    embedding, on attention probabilities, inside the feed-forward network and after each sublayer,
    ReLU, d_ff = 4 d, m = 10, Xavier-uniform matrices, torch's default biases.
    """
    init = Initialization(scheme="xavier-matrices")
    of_source, of_target = words or (WORDS[min_count][source], WORDS[min_count][target])
    return EncoderDecoderConfig(
        attention=AttentionConfig(
            d_model=d_model,
            num_heads=num_heads,
            causal=True,
            dropout=0.1,
            position=PositionConfig(plus_features=10),
            init=init,
        ),
        block=BlockConfig(d_ff=4 * d_model, activation="relu", dropout=0.1, inner_dropout=0.1),
        num_layers=num_layers,
        vocabulary=of_target,
        source_vocabulary=of_source,
        max_tokens=MAX_TOKENS,
        cross_sharing=cross_sharing,
        embedding_dropout=0.1,
        init=init,
    )


def translation_grid(
    protocol: TranslationProtocol, cross_sharing: str = "none"
) -> tuple[Setting, ...]:
    """Return the published settings: directions x widths x layers {1, 2} x heads {1, 4}.

    The training follows the original Transformer: 20 epochs of Adam with betas 0.9 and 0.98, 4,000
    steps of warm-up.

    Source: code of paper 2.
    """
    directions: tuple[tuple[Language, Language], ...] = (("en", "de"), ("de", "en"))
    return tuple(
        Setting(
            name=f"{source}-{target}-d{width}-L{layers}-H{heads}",
            task=TranslationTaskConfig(source=source, target=target, protocol=protocol),
            network=translation_network(
                source,
                target,
                d_model=width,
                num_layers=layers,
                num_heads=heads,
                cross_sharing=cross_sharing,
            ),
            training=TrainingConfig(
                steps=20 * EPOCH,
                batch_size=BATCH,
                optimizer=OptimizerConfig(
                    name="adam", learning_rate=(width * WARMUP) ** -0.5, betas=(0.9, 0.98), eps=1e-9
                ),
                schedule=ScheduleConfig(name="inverse_sqrt", warmup_steps=WARMUP),
                evaluate_every=EPOCH,
            ),
        )
        for source, target in directions
        for width in (64, 128, 256)
        for layers in (1, 2)
        for heads in (1, 4)
    )
