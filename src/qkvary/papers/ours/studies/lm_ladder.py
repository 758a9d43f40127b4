"""Measures the cost of sharing in four sizes of language models, at 20 bytes per parameter."""

from qkvary.arch.named_networks import modern_network
from qkvary.arch.networks import LanguageModelConfig
from qkvary.costs.parameters import network_parameters
from qkvary.data.checksums import ENGLISH_NOVELS_SHA256
from qkvary.papers.ours.small_language_models import BYTES
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.training.config import ExecutionConfig, ScheduleConfig, TrainingConfig
from qkvary.training.presets import adamw

CONTEXT, HEADS = 512, 4
TRAINING_BYTES = 39_169_315
"""Bytes of the novels that networks are trained on."""
BYTES_PER_PARAMETER = 20
_VOCABULARY = -(-BYTES // 64) * 64


def _network(d_model: int, num_layers: int) -> LanguageModelConfig:
    return modern_network(
        d_model=d_model,
        num_heads=HEADS,
        num_layers=num_layers,
        max_tokens=CONTEXT,
        vocabulary=_VOCABULARY,
    )


def _rung(
    name: str,
    d_model: int,
    num_layers: int,
    *,
    rows: int,
    learning_rate: float,
    compiled: bool = False,
) -> Setting:
    network = _network(d_model, num_layers)
    parameters = network_parameters(network).total
    steps = round(BYTES_PER_PARAMETER * parameters / (rows * CONTEXT))
    seen = steps * rows * CONTEXT
    return Setting(
        name=name,
        task=LanguageTaskConfig(
            data="english-novels/bytes",
            data_sha256=ENGLISH_NOVELS_SHA256,
            context=CONTEXT,
            validation_tokens=2**18,
            test_tokens=2**20,
            evaluation_batch_size=64,
        ),
        network=network,
        training=TrainingConfig(
            steps=steps,
            batch_size=rows,
            optimizer=adamw(learning_rate, decay="matrices"),
            schedule=ScheduleConfig(name="cosine", warmup_steps=steps // 20, floor=0.1),
            evaluate_every=max(1, steps // 4),
            log_every=25,
            execution=ExecutionConfig(precision="bf16", compile=compiled),
        ),
        table=name,
        limits=(
            (
                f"{name}: {parameters:,} parameters, trained on {seen:,} bytes, which is "
                f"{seen / TRAINING_BYTES:.1f} times the {TRAINING_BYTES:,} bytes of the novels."
            ),
        ),
    )


STUDY = Study(
    name="lm-ladder",
    question="Does the cost of sharing grow or shrink with the size of a language model?",
    description=(
        "Modern networks (rotary positions, RMSNorm, SwiGLU) of 1, 3, 10 and 30 million "
        f"parameters with {HEADS} heads are trained on the bytes of English novels in rows of "
        f"{CONTEXT} bytes. Each network is trained on {BYTES_PER_PARAMETER} bytes per parameter. "
        "GQA-2 has a cache of the same size as Q-K=V. Weights are float32, and matmuls are "
        "bfloat16. Run the study on a GPU (`--device cuda`)."
    ),
    settings=(
        _rung("1M", 128, 5, rows=32, learning_rate=3e-3),
        _rung("3M", 224, 5, rows=64, learning_rate=2e-3),
        _rung("10M", 352, 7, rows=128, learning_rate=1.2e-3, compiled=True),
        _rung("30M", 544, 9, rows=256, learning_rate=8e-4, compiled=True),
    ),
    variants=("QKV@rotary", "Q-K=V@rotary", "GQA-2@rotary", "Q-MQA@rotary"),
    baseline="QKV@rotary",
    contrasts=(("Q-K=V@rotary", "GQA-2@rotary"),),
    seeds=(0, 1, 2),
)
