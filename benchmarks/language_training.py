"""A training step of a language model: ours, a straightforward script of it, and transformers'.

d_model 256, 4 layers, 4 heads, 1,024 channels inside, 256 tokens, batch 8, float32, one thread. A
step is everything: the loss, its gradients, their norm and clipping, fused AdamW. The script is
what one writes down first: scores of all pairs with a mask, all logits, one call of the loss.
Transformers is its ``GPT2LMHeadModel`` with SDPA, and left out where it is not installed. All three
start from the same weights, and have to agree on the loss. Each has a process of its own, and they
take turns; ours keeps freed memory there, as processes that train do.

Beside the default, which computes what float32 says, is the same with torch's own choice of a
library for products; and the ways that round products to bfloat16 or let torch compile the step are
compared with the default.

The peak of memory is that of processes which do nothing else: all of the process, and what was
added to it after everything was imported.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.packages import is_installed
from qkvary.training.config import OptimizerConfig
from qkvary.training.memory import keep_freed_memory
from qkvary.training.optimizers import make_optimizer
from timing.apart import Apart, clock_of, serve
from timing.interleaved import Effort, Ratio, Timing, print_case, read_quick, take_turns
from timing.memory import measure_in_subprocess, tell_peak
from timing.stock_generation import StockModel

NAME = "language_training"
FULL = Effort(rounds=25, turn_seconds=0.3)
FULL_LARGE = Effort(rounds=11, turn_seconds=0.0)
QUICK = Effort(rounds=1, turn_seconds=0.0)
D_MODEL, HEADS, LAYERS, D_FF = 256, 4, 4, 1024
CONTEXT, BATCH = 256, 8
SMALL, LARGE = 512, 50_304
QUICK_BATCH = 1
SHARING = ("Q-K=V", "Q=K-V", "Q=K=V", "GQA-2", "MQA", "Q-MQA", "I-K-V", "I-K=V")
OTHERS = ("script", "transformers")
TORCHS_PRODUCTS = "products as torch takes them"
"""Ours, where ``nn/linear.py`` leaves all products to torch."""
WAYS = ("bf16", "bf16 products", "compiled", "compiled bf16")
"""Autocast; float32 whose products are taken in bfloat16 (``set_float32_matmul_precision``); and
``torch.compile`` with and without autocast."""
LEAST_OF_WAYS = {"bf16": 1.5, "bf16 products": 1.5, "compiled": 1.0, "compiled bf16": 1.5}
"""Most of a step in float32 are products, which compiled code takes by the same library."""
LEAST_OVER_SCRIPT = {SMALL: 1.3, LARGE: 1.1}
NOT_SLOWER = 1.0
MOST_MEMORY = 0.6
OPTIMIZER = OptimizerConfig(name="adamw", learning_rate=1e-4, weight_decay=0.1, gradient_clip=1.0)
MEMORY_STEPS = 3
TURNS, MEMORY = "--turns-of", "--memory-of"
"""What other processes are told to do."""
SEED = 0


# ---- the script


class ScriptBlock(nn.Module):
    """Attention and feed-forward as they stand in a textbook."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(D_MODEL), nn.LayerNorm(D_MODEL)
        self.qkv, self.out = nn.Linear(D_MODEL, 3 * D_MODEL), nn.Linear(D_MODEL, D_MODEL)
        self.up, self.down = nn.Linear(D_MODEL, D_FF), nn.Linear(D_FF, D_MODEL)
        self.register_buffer(
            "mask", torch.tril(torch.ones(CONTEXT, CONTEXT)).view(1, 1, *[CONTEXT] * 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        batch, tokens, _ = x.shape
        parts = self.qkv(self.norm_1(x)).split(D_MODEL, dim=2)
        query, key, value = (part.view(batch, tokens, HEADS, -1).transpose(1, 2) for part in parts)
        scores = (query @ key.transpose(-2, -1)) * (1.0 / math.sqrt(key.shape[-1]))
        scores = scores.masked_fill(self.mask[:, :, :tokens, :tokens] == 0, float("-inf"))
        mixed = F.softmax(scores, dim=-1) @ value
        x = x + self.out(mixed.transpose(1, 2).contiguous().view(batch, tokens, D_MODEL))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Script(nn.Module):
    """A language model with learned positions and a head that is the embedding."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, D_MODEL)
        self.positions = nn.Embedding(CONTEXT, D_MODEL)
        self.blocks = nn.ModuleList(ScriptBlock() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(D_MODEL)
        self.head = nn.Linear(D_MODEL, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss."""
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

    def take(self, model: LanguageModel) -> "Script":
        """Copy the weights of ours."""
        pairs: list[tuple[nn.Parameter | Tensor, Tensor | None]] = [
            (self.embedding.weight, model.embedding),
            (self.positions.weight, model.position_embedding),
        ]
        linear = [(self.norm, model.stack.final_norm)]
        for own, block in zip(self.blocks, model.stack.blocks, strict=True):
            attention, inner = block.attention, block.feed_forward
            joined = [attention.q_proj, attention.k_proj, attention.v_proj]
            pairs.append((own.qkv.weight, torch.cat([part.weight for part in joined])))
            pairs.append((own.qkv.bias, torch.cat([part.bias for part in joined])))
            linear += [(own.norm_1, block.attention_norm), (own.norm_2, block.feed_forward_norm)]
            linear += [(own.out, attention.o_proj), (own.up, inner.up), (own.down, inner.down)]
        for own, other in linear:
            pairs += [(own.weight, other.weight), (own.bias, other.bias)]
        with torch.no_grad():
            for own, other in pairs:
                own.copy_(other)
        return self


# ---- steps


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is not the same in all cases."""

    vocabulary: int
    batch: int

    @property
    def told(self) -> tuple[str, str]:
        """As another process is told."""
        return str(self.vocabulary), str(self.batch)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        source = torch.Generator().manual_seed(SEED)
        text = torch.randint(0, self.vocabulary, (self.batch, CONTEXT + 1), generator=source)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def make_config(self, label: str) -> LanguageModelConfig:
        """Our network."""
        variant = parse_variant(label)
        return LanguageModelConfig(
            attention=AttentionConfig(
                d_model=D_MODEL, num_heads=HEADS, variant=variant, causal=True
            ),
            block=BlockConfig(d_ff=D_FF),
            num_layers=LAYERS,
            vocabulary=self.vocabulary,
            max_tokens=CONTEXT,
        )


Step = Callable[[], float]
"""Makes one step and tells its loss."""


def make_step(
    network: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer
) -> Step:
    """What a loop does with a batch."""
    parameters = list(network.parameters())
    network.train()

    def step() -> float:
        found = loss()
        found.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return found.item()

    return step


def plain_adamw(network: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of everybody else, with our values."""
    return torch.optim.AdamW(
        network.parameters(),
        lr=OPTIMIZER.learning_rate,
        weight_decay=OPTIMIZER.weight_decay,
        fused=True,
    )


def make_ours(label: str, sizes: Sizes, way: str = "") -> Step:
    """Ours: the loss is never asked for all logits."""
    config = sizes.make_config(label)
    model = LanguageModel(config, seed=SEED)
    tokens, targets = sizes.draw()
    optimizer = make_optimizer(model, config, OPTIMIZER)
    if "compiled" in way:
        model.compile()
    autocast = way.endswith("bf16")

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(tokens, targets=targets) / targets.numel()

    step = make_step(model, loss, optimizer)
    return with_bf16_products(step) if way == "bf16 products" else step


def with_bf16_products(step: Step) -> Step:
    """The same step while products of float32 may be taken in bfloat16."""

    def call() -> float:
        torch.set_float32_matmul_precision("medium")
        try:
            return step()
        finally:
            torch.set_float32_matmul_precision("highest")

    return call


def make_script(sizes: Sizes) -> Step:
    """The script."""
    script = Script(sizes.vocabulary).take(LanguageModel(sizes.make_config("QKV"), seed=SEED))
    tokens, targets = sizes.draw()
    return make_step(script, lambda: script(tokens, targets), plain_adamw(script))


def make_transformers(sizes: Sizes) -> Step:
    """The same network of transformers; it shifts the targets itself."""
    stock: Any = StockModel(LanguageModel(sizes.make_config("QKV"), seed=SEED)).model
    tokens, targets = sizes.draw()

    def loss() -> Tensor:
        logits = stock(input_ids=tokens, use_cache=False).logits
        return stock.loss_function(logits, None, vocab_size=sizes.vocabulary, shift_labels=targets)

    return make_step(stock, loss, plain_adamw(stock))


def make_named(name: str, sizes: Sizes) -> Step:
    """One of all."""
    if name == "script":
        return make_script(sizes)
    if name == "transformers":
        return make_transformers(sizes)
    keep_freed_memory()
    if name == TORCHS_PRODUCTS:
        torch.backends.mkldnn.set_flags(False)
        return make_ours("QKV", sizes)
    return make_ours("QKV", sizes, name) if name in WAYS else make_ours(name, sizes)


def take_steps(name: str, sizes: Sizes) -> None:
    """Build a network and take a few steps; the first one makes the optimizer's state."""
    step = make_named(name, sizes)
    for _ in range(MEMORY_STEPS):
        step()


def time_all(sizes: Sizes, names: Sequence[str], effort: Effort) -> Timing:
    """Let all take turns, after those that compute the same have said so."""
    steps = {name: Apart(TURNS, name, *sizes.told) for name in names}
    try:
        losses = {
            name: steps[name]() for name in names if name in ("QKV", TORCHS_PRODUCTS, *OTHERS)
        }
        if max(losses.values()) - min(losses.values()) > 1e-4:
            raise RuntimeError(f"expected the same loss of all, got {losses}")
        return take_turns(steps, effort, clock=clock_of(steps.values()))
    finally:
        for step in steps.values():
            step.close()


# ---- cases


def compare(timing: Timing, sizes: Sizes) -> None:
    """Print what takes how much longer."""
    tokens = sizes.batch * CONTEXT
    speeds = {name: round(tokens / seconds, 1) for name, seconds in timing.medians.items()}
    for name in speeds:
        goal = LEAST_OF_WAYS.get(name, NOT_SLOWER)
        if name == "script":
            goal = LEAST_OVER_SCRIPT[sizes.vocabulary]
        one, other = ("QKV", name) if name in WAYS else (name, "QKV")
        if name != "QKV":
            print_case(
                NAME,
                f"{one} over {other}: vocabulary {sizes.vocabulary}",
                timing.ratio(one, other),
                goal=goal,
                better="lower" if name in SHARING else "higher",
                timing=timing,
                tokens_per_second=speeds,
            )


def compare_memory(sizes: Sizes, others: Sequence[str]) -> None:
    """Print how much memory ours takes of what the others take."""
    found = {name: measure_in_subprocess([MEMORY, name, *sizes.told]) for name in ("QKV", *others)}
    for other in others:
        ratio = found["QKV"].most / found[other].most
        print_case(
            NAME,
            f"peak memory of QKV over {other}: vocabulary {sizes.vocabulary}",
            Ratio(value=ratio, low=ratio, high=ratio),
            goal=MOST_MEMORY if other == "script" else NOT_SLOWER,
            better="lower",
            timing=Timing({name: [peak.seconds] for name, peak in found.items()}),
            process_bytes={name: peak.most for name, peak in found.items()},
            added_bytes={name: peak.added for name, peak in found.items()},
        )


def main() -> None:
    """Measure both vocabularies; in a quick round little of one of them."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    if sys.argv[1:] and sys.argv[1] in {TURNS, MEMORY}:
        what, name, vocabulary, batch = sys.argv[1:]
        sizes = Sizes(int(vocabulary), int(batch))
        if what == TURNS:
            serve(make_named(name, sizes))
        else:
            tell_peak(lambda: take_steps(name, sizes))
        return
    if read_quick():
        quick = Sizes(SMALL, QUICK_BATCH)
        compare(time_all(quick, ("QKV", "script", "Q-K=V"), QUICK), quick)
        compare_memory(quick, ("script",))
        return
    others = tuple(name for name in OTHERS if name == "script" or is_installed("transformers"))
    small, large = Sizes(SMALL, BATCH), Sizes(LARGE, BATCH)
    compare(time_all(small, ("QKV", *others, TORCHS_PRODUCTS, *SHARING, *WAYS), FULL), small)
    compare(time_all(large, ("QKV", *others, TORCHS_PRODUCTS, "bf16"), FULL_LARGE), large)
    compare_memory(large, others)


if __name__ == "__main__":
    main()
