from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from s2sbench_callback.isolation import isolated


def model_with_a_frozen_encoder() -> nn.Module:
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.1)), nn.Linear(2, 2))
    model.train()
    model[1].eval()
    return model


def disturb(model: nn.Module) -> None:
    assert not any(module.training for module in model.modules())
    assert not torch.is_grad_enabled()
    model(torch.randn(4, 2))
    random.random()
    np.random.rand()
    torch.rand(3)


@pytest.mark.parametrize("fails", [False, True])
def test_flags_generators_and_buffers_are_put_back(fails: bool) -> None:
    model = model_with_a_frozen_encoder()
    flags = [module.training for module in model.modules()]
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with isolated(model):
            disturb(model)
            if fails:
                raise RuntimeError("in the middle of a probe")
    except RuntimeError:
        assert fails
    assert [module.training for module in model.modules()] == flags
    assert flags.count(True) == 3
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert torch.is_grad_enabled()
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())


def test_gradients_in_flight_are_not_touched() -> None:
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    gradient = model.weight.grad
    assert gradient is not None
    before = gradient.clone()
    with isolated(model):
        model(torch.ones(1, 2))
    assert model.weight.grad is gradient
    assert torch.equal(gradient, before)


class FlashModel(nn.Module):
    """Says of itself what a model of transformers says."""

    def __init__(self) -> None:
        super().__init__()
        self.config = type("Config", (), {"_attn_implementation": "flash_attention_2"})()

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation = name


@pytest.mark.parametrize("fails", [False, True])
def test_flash_attention_gives_way_and_comes_back(fails: bool) -> None:
    model = nn.Sequential(FlashModel())
    try:
        with isolated(model):
            assert model[0].config._attn_implementation == "sdpa"
            if fails:
                raise RuntimeError
    except RuntimeError:
        pass
    assert model[0].config._attn_implementation == "flash_attention_2"


def test_a_compiled_model_is_not_compiled_for_the_probe() -> None:
    compilations: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]):  # type: ignore[no-untyped-def]
        compilations.append(1)
        return graph.forward

    torch.compiler.reset()
    model = nn.Linear(2, 1)
    compiled = torch.compile(model, backend=backend, dynamic=False)
    compiled(torch.ones(3, 2))
    assert len(compilations) == 1
    with isolated(model):
        for rows in (4, 5, 6):
            compiled(torch.ones(rows, 2))
    assert len(compilations) == 1
    compiled(torch.ones(3, 2))
    assert len(compilations) == 1
