"""A training step of the synthetic network against other people's layers, and variants against QKV.

All networks are our encoder; the others have its blocks replaced by ``torch.nn`` layers or by those
of ``x-transformers`` (left out where it is not installed). So embedding, head, loss and optimizer
are the same, and the blocks alone are compared. Dropout is 0, the optimizer is the fused Adam that
our training uses.
"""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, EncoderConfig
from qkvary.nn.encoder import Encoder
from qkvary.nn.layout import Layout
from timing.interleaved import Effort, Timing, print_case, read_effort, take_turns

FULL = Effort(rounds=25, turn_seconds=0.1)
QUICK = Effort(rounds=2, turn_seconds=0.0)
D_MODEL, HEADS, LAYERS, BATCH, SYMBOLS = 64, 2, 2, 128, 10
D_FF = 2 * D_MODEL
LENGTHS = (16, 64)
SHARING = ("Q=K-V", "Q-K=V", "Q=K=V", "MQA", "Q-MQA", "I-K-V", "I-K=V", "Q-I-V", "Q=V")
NOT_SLOWER = 1.0


class ForeignStack(nn.Module):
    """Layers of another library where our encoder has its blocks."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, *, layout: Layout) -> Tensor:
        """Apply them; they know no layout, and there is no padding."""
        del layout
        return self.layers(x)


def make_encoder(label: str, length: int) -> Encoder:
    """Our network."""
    config = EncoderConfig(
        attention=AttentionConfig(d_model=D_MODEL, num_heads=HEADS, variant=parse_variant(label)),
        block=BlockConfig(d_ff=D_FF, activation="relu", norm_placement="post"),
        num_layers=LAYERS,
        vocabulary=SYMBOLS,
        max_tokens=length,
        classes=SYMBOLS,
    )
    return Encoder(config)


def make_foreign(layers: nn.Module, length: int) -> Encoder:
    """Our network around other layers."""
    encoder = make_encoder("QKV", length)
    encoder.stack = ForeignStack(layers)
    return encoder


def torch_layers() -> nn.Module:
    """The same blocks of ``torch.nn.TransformerEncoderLayer``."""
    layer = nn.TransformerEncoderLayer(D_MODEL, HEADS, D_FF, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)


def x_transformers_layers(*, one_kv_head: bool) -> nn.Module:
    """The same blocks of ``x-transformers``, with its fused attention."""
    with warnings.catch_warnings():
        # It compiles with torch.jit, which torch deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        library = import_module("x_transformers")
    return library.Encoder(
        dim=D_MODEL,
        depth=LAYERS,
        heads=HEADS,
        attn_dim_head=D_MODEL // HEADS,
        attn_one_kv_head=one_kv_head,
        attn_flash=True,
        ff_mult=D_FF / D_MODEL,
        ff_custom_activation=nn.ReLU(),
        pre_norm=False,
        verbose=False,
    )


def training_step(network: nn.Module, length: int) -> Callable[[], None]:
    """A call that makes one step on one fixed batch."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, SYMBOLS, (BATCH, length))
    targets = tokens.flip(1).flatten()
    network.train()

    def call() -> None:
        loss = F.cross_entropy(network(tokens).flatten(0, 1), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return call


def make_networks(length: int) -> dict[str, nn.Module]:
    """Every network that is timed, by name."""
    networks: dict[str, nn.Module] = {
        label: make_encoder(label, length) for label in ("QKV", *SHARING, "(Q=K-V)+")
    }
    networks["torch.nn QKV"] = make_foreign(torch_layers(), length)
    if find_spec("x_transformers"):
        for name, one_kv_head in (("QKV", False), ("MQA", True)):
            layers = x_transformers_layers(one_kv_head=one_kv_head)
            networks[f"x-transformers {name}"] = make_foreign(layers, length)
    return networks


def compare(timing: Timing, networks: Mapping[str, nn.Module], length: int) -> None:
    """Print what each pair says."""
    pairs = [("QKV", "torch.nn QKV"), ("QKV", "x-transformers QKV"), ("MQA", "x-transformers MQA")]
    pairs += [(label, "QKV") for label in SHARING]
    for name, other in pairs:
        if other not in networks:
            continue
        print_case(
            "training_step",
            f"{name} over {other}: d_model {D_MODEL}, tokens {length}, batch {BATCH}",
            timing.ratio(name, other),
            goal=NOT_SLOWER,
            better="lower",
            timing=timing,
        )


def main() -> None:
    """Measure both lengths; in a quick round the first."""
    effort = read_effort(full=FULL, quick=QUICK)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for length in LENGTHS[:1] if effort == QUICK else LENGTHS:
        networks = make_networks(length)
        calls = {name: training_step(network, length) for name, network in networks.items()}
        compare(take_turns(calls, effort), networks, length)


if __name__ == "__main__":
    main()
