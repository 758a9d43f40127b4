"""Every variant can learn one batch by heart, which a wrong gradient or a dead part prevents."""

import dataclasses

import torch
import torch.nn.functional as F

from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import LABELS, make_language_model_config, variant_values

STEPS = 40


@variant_values("label", LABELS)
def test_one_batch_is_learned(label: str) -> None:
    config = make_language_model_config(label, positions="learned", tied_head=False)
    config = dataclasses.replace(config, num_layers=1)
    model = LanguageModel(config, seed=149)
    generator = torch.Generator().manual_seed(151)
    tokens = torch.randint(13, (2, 8), generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, fused=True)
    loss = torch.tensor(0.0)
    for _ in range(STEPS):
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.02
    unused = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert not unused
