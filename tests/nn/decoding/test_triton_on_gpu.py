"""The kernels of Triton where they belong: ``TRITON_INTERPRET=0 pytest -m gpu``."""

import pytest
import torch
from hypothesis import given, settings

from qkvary.arch.caches import CacheOptions, DecodeKernel
from qkvary.nn.cache import KVCache
from qkvary.nn.decoding import decode, triton_attention
from qkvary.nn.decoding.decode import decode_attention
from qkvary.nn.decoding.problem import Decoding
from qkvary.nn.language_model import LanguageModel
from tests.nn.decoding.cases import GATES, distance, draw
from tests.nn.decoding.test_decode import calls, check
from tests.small_networks import small_config

DEVICE = "cuda"
LONG = 32_768

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    """Whoever asks for these tests has a GPU and wants the kernels to be built for it."""
    assert torch.cuda.is_available(), "expected a GPU"
    assert not triton_attention.is_interpreted(), "expected TRITON_INTERPRET=0"


@settings(max_examples=40)  # Each may build a kernel, which takes a second.
@given(call=calls())
def test_all_that_run_there_equal_plain_loops(call: dict[str, object]) -> None:
    check(**call, device=DEVICE)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kv_heads", [16, 4, 1])
@pytest.mark.parametrize("is_shared", [True, False])
def test_a_long_context(dtype: torch.dtype, kv_heads: int, is_shared: bool) -> None:
    """Against float64 on the same device."""
    query = draw(2, 16, 1, 128, seed=1, dtype=dtype, spread=4.0).to(DEVICE)
    key = draw(2, kv_heads, LONG, 128, seed=2, dtype=dtype).to(DEVICE)
    value = key if is_shared else draw(2, kv_heads, LONG, 128, seed=3, dtype=dtype).to(DEVICE)
    valid = torch.ones(2, LONG, dtype=torch.bool, device=DEVICE)
    valid[0, :1001] = False
    scale = 128**-0.5
    wide = (part.double() for part in (query, key, value))
    expected = decode_attention(*wide, scale=scale, valid=valid, kernel="matmul")
    result = decode_attention(query, key, value, scale=scale, valid=valid, kernel="triton")
    assert result.dtype == dtype
    assert distance(result, expected) < GATES[dtype]
    again = decode_attention(query, key, value, scale=scale, valid=valid, kernel="triton")
    assert torch.equal(result, again)


def test_it_is_the_default_where_it_supports_a_call() -> None:
    key = draw(1, 4, 75, 64, seed=6).to(DEVICE)
    query = draw(1, 16, 1, 64, seed=7).to(DEVICE)
    problem = Decoding(query=query, key=key, value=key, scale=0.125)
    assert decode.choose(problem) == "triton"
    wide = Decoding(query=query.double(), key=key.double(), value=key.double(), scale=0.125)
    assert decode.choose(wide) == "folded"


@pytest.mark.parametrize("label", ["Q-K=V", "QKV", "Q-MQA"])
def test_a_network_says_the_same_through_it(label: str) -> None:
    sizes = {"d_model": 64, "num_heads": 4, "d_ff": 128, "vocabulary": 31, "max_tokens": 96}
    config = small_config(label, positions="learned", **sizes)
    network = LanguageModel(config, seed=0).to(DEVICE).eval()
    tokens = torch.randint(31, (3, 80), generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def read(kernel: DecodeKernel) -> torch.Tensor:
        cache = KVCache(config.layers, options=CacheOptions(kernel=kernel))
        network(tokens[:, :70], cache=cache)
        return torch.cat([network(tokens[:, [at]], cache=cache) for at in range(70, 80)], dim=1)

    with torch.inference_mode():
        assert distance(read("triton"), read("layer")) < GATES[torch.float32]
