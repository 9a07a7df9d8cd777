"""The network of the published ART agent is one of ours: its weights give its numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch as th

from sb3_ora import ARTIQN
from sb3_ora.risk import tail_variance
from tests.tiny import tiny

# Published layer, and where ours has it
LAYERS = {
    "head": "trunk.0",
    "cos_embedding": "embedding.0",
    "hidden_layer": "shared.0",
    "hidden_layer_2": "shared.1",
    "output_layer": "heads.0",
}


@pytest.fixture(scope="module")
def golden():
    with np.load(Path(__file__).parents[1] / "data" / "art_agent.npz") as arrays:
        return {name: th.tensor(array) for name, array in arrays.items()}


@pytest.fixture(scope="module")
def model(golden):
    kwargs = {"net_arch": [16], "shared_arch": [16, 16], "head_arch": [], "n_cosines": 64}
    model = tiny(ARTIQN, "NanoDrone-v0", policy_kwargs=kwargs, mode="published", bandit_lr=2.0)
    parts = ("weight", "bias")
    weights = {f"{ours}.{part}": golden[f"local0/{theirs}.{part}"] for theirs, ours in LAYERS.items() for part in parts}
    model.quantile_net.load_state_dict(weights)
    return model


@th.no_grad()
def test_quantiles(golden, model):
    quantiles = model.quantile_net(golden["states"][:4], golden["fwd_tau"])[0]
    np.testing.assert_allclose(quantiles, golden["fwd_quantiles"], rtol=0, atol=1e-5)


@th.no_grad()
@pytest.mark.parametrize("level", ["1", "0.3"])
def test_values_under_cvar(golden, model, level):
    """The published agent multiplies its fractions by alpha; this is our CVaR distortion."""
    taus = golden[f"qvals_tau_{level}"]
    values = model.quantile_net(golden["states"][:4], taus)[0].mean(dim=1)
    np.testing.assert_allclose(values, golden[f"qvals_alpha_{level}"], rtol=0, atol=1e-5)
    undistorted = taus / float(level)
    np.testing.assert_allclose(model.policy.risk.distortion(undistorted, float(level)), taus, rtol=1e-6)


@th.no_grad()
def test_tail_variance_at_the_adapters_fractions(golden, model):
    taus = model.adapter.tail_taus
    quantiles = model.quantile_net(golden["states"][:4], taus.expand(4, -1))[0]  # (4, 8, 12)
    variance = tail_variance(quantiles.double().numpy().transpose(0, 2, 1), 1 / 32)
    np.testing.assert_allclose(variance, golden["tcv"], rtol=2e-3, atol=1e-8)  # differences of float32 numbers
