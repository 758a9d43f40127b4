import dataclasses

import torch
import torch.nn.functional as F

from qkvary.nn.encoder import Encoder
from tests.contracts.variant_cases import make_encoder_config, randomize

TOKENS = torch.tensor([[1, 12, 3, 3, 0, 7, 5], [0, 0, 9, 2, 11, 4, 6]])


def test_a_one_hot_vector_is_its_token() -> None:
    config = make_encoder_config("Q-K=V")
    reader = Encoder(dataclasses.replace(config, reads_vectors=True)).double()
    encoder = Encoder(config).double()
    for network in (reader, encoder):
        randomize(network, seed=3)
    vectors = F.one_hot(TOKENS, config.vocabulary).double()
    torch.testing.assert_close(reader(vectors), encoder(TOKENS), rtol=0, atol=1e-12)
    maps = reader.attention_maps(vectors), encoder.attention_maps(TOKENS)
    torch.testing.assert_close(*maps, rtol=0, atol=1e-12)


def test_padding_that_is_not_finite_is_left_out_of_the_mean() -> None:
    config = dataclasses.replace(make_encoder_config("Q-K=V", pooling="mean"), reads_vectors=True)
    network = Encoder(config).double().eval()
    vectors, real = torch.randn(2, 5, 13).double(), torch.ones(2, 5, dtype=torch.bool)
    real[1, 3:] = False
    with torch.no_grad():
        expected = network(vectors, attention_mask=real)
        vectors[1, 3], vectors[1, 4] = torch.nan, 1e300
        assert torch.equal(network(vectors, attention_mask=real), expected)
