"""Times linear attention and the softmax: a training step at 2,048 tokens, and one decoded token.

The networks have d_model 256, 4 layers, 4 heads, a vocabulary of 256 and random weights; they run
with batch 1 on one thread in float32. In training the softmax uses torch's fused kernel and linear
attention sums up chunks of 64 tokens. A token is decoded after 64 to 65,536 others: the softmax
reads a preallocated cache with the fastest of our kernels, linear attention its state, both in one
native call. Fewer KV heads are measured after few tokens. Each line has the bytes that are held.
"""

from collections.abc import Callable

import torch

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.caches import CacheOptions
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.inference.stepping import Stepper
from qkvary.nn.cache import KVCache
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.linear_attention import State
from timing.interleaved import Effort, print_case, read_effort, take_turns

NAME = "linear_attention"
FULL = Effort(rounds=15, turn_seconds=0.1)
QUICK = Effort(rounds=2, turn_seconds=0.0)
D_MODEL, HEADS, LAYERS, D_FF, VOCABULARY = 256, 4, 4, 1024, 256
TRAINED = (
    "QKV@linear",
    "Q-K=V@linear",
    "Q=K=V@linear",
    "QKV@linear-relu@decay-learned",
    "QKV@linear-identity@decay-fixed",
)
LENGTH, QUICK_LENGTH = 2048, 96
CONTEXTS, QUICK_CONTEXTS = (64, 256, 1024, 4096, 16_384, 65_536), (64, 128)
ROOM = 8192
"""Tokens that all rounds of a context may decode."""
SOFTMAX, LINEAR = "QKV", "QKV@linear"
FEWER_HEADS = {"GQA-2": "GQA-2@linear-relu@decay-learned", "MQA": "MQA@linear-softmax"}
SHORT_CONTEXTS = 2
"""The first contexts, for fewer KV heads too."""
NOT_SLOWER, TIMES_AS_FAST = 1.0, 10.0


def make_network(label: str, max_tokens: int) -> LanguageModel:
    """Return a network with random weights."""
    attention = AttentionConfig(
        d_model=D_MODEL, num_heads=HEADS, variant=parse_variant(label), causal=True, bias=False
    )
    config = LanguageModelConfig(
        attention=attention,
        block=BlockConfig(d_ff=D_FF),
        num_layers=LAYERS,
        vocabulary=VOCABULARY,
        max_tokens=max_tokens,
        positions="none",
    )
    return LanguageModel(config, seed=0)


def make_step(label: str, length: int) -> Callable[[], None]:
    """Return a call that makes a training step on one fixed sequence."""
    model = make_network(label, length).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))

    def call() -> None:
        model(tokens, targets=tokens.flip(1)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return call


def measure_training(labels: tuple[str, ...], length: int, effort: Effort) -> None:
    """Print the time of each linear variant over that of the softmax."""
    timing = take_turns({label: make_step(label, length) for label in (SOFTMAX, *labels)}, effort)
    for label in labels:
        print_case(
            NAME,
            f"training step: {label} over {SOFTMAX}, {length} tokens",
            timing.ratio(label, SOFTMAX),
            goal=NOT_SLOWER,
            better="lower",
            timing=timing,
        )


class Token:
    """Decodes one more token after a context of random entries, or after a random state."""

    def __init__(self, label: str, context: int) -> None:
        """Fill a cache and choose the step."""
        model = make_network(label, context + ROOM).eval()
        options = CacheOptions(layout="rotated", storage="preallocated", kernel="auto")
        self.cache = KVCache(model.config.layers, max_tokens=context + ROOM, options=options)
        generator = torch.Generator().manual_seed(0)
        size = D_MODEL // HEADS
        for layer in self.cache.layers:
            heads = layer.config.num_kv_heads
            shape = (1, heads, context, size)
            layer.append({n: torch.randn(shape, generator=generator) for n in ("key", "value")})
            if layer.state is not None:
                values = torch.randn(1, heads, size, size, generator=generator)
                layer.state.sums = State(values, torch.full((1, heads, size), float(context)))
        self.bytes = self.cache.nbytes * (context if label == SOFTMAX else 1)
        self.bytes //= context + ROOM if label == SOFTMAX else 1
        self.step, self.token = Stepper(model, self.cache), torch.tensor([5])

    def __call__(self) -> None:
        """Decode a token, which stays."""
        self.step(self.token)


def measure_decoding(contexts: tuple[int, ...], effort: Effort) -> None:
    """Print the time of the softmax over that of linear attention after every context."""
    for context in contexts:
        far = context == contexts[-1]
        measure_token(SOFTMAX, LINEAR, context, effort, TIMES_AS_FAST if far else NOT_SLOWER)
    for softmax, linear in FEWER_HEADS.items():
        for context in contexts[:SHORT_CONTEXTS]:
            measure_token(softmax, linear, context, effort, NOT_SLOWER)


def measure_token(softmax: str, linear: str, context: int, effort: Effort, goal: float) -> None:
    """Print the time of a token of the softmax over that of linear attention."""
    tokens = {label: Token(label, context) for label in (softmax, linear)}
    timing = take_turns(tokens, effort)
    print_case(
        NAME,
        f"decoded token: {softmax} over {linear}, after {context}",
        timing.ratio(softmax, linear),
        goal=goal,
        better="higher",
        timing=timing,
        held_bytes={label: token.bytes for label, token in tokens.items()},
    )


def main() -> None:
    """Measure all cases."""
    torch.set_num_threads(1)
    effort = read_effort(full=FULL, quick=QUICK)
    is_quick = effort is QUICK
    if is_quick:
        measure_training(TRAINED[:1], QUICK_LENGTH, effort)
    else:
        measure_training(TRAINED, LENGTH, effort)
    with torch.inference_mode():
        measure_decoding(QUICK_CONTEXTS if is_quick else CONTEXTS, effort)


if __name__ == "__main__":
    main()
