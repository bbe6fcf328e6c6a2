"""Outputs and gradients go to the device of what was given; there is none here but the host's.

So tensors on the meta device stand for others; fake ones can be copied from there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from plans import plan_for  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from rowtier import Table  # noqa: E402
from rowtier.plan.bags import Bags, origin_of  # noqa: E402
from rowtier.plan.remap import Addressed  # noqa: E402
from rowtier.runtime.module import _on_host  # noqa: E402
from rowtier.torch import ShardedEmbeddings  # noqa: E402

META = torch.device("meta")
IDS = torch.zeros(4, dtype=torch.int64, device=META)
TABLE = Table(name="item", num_embeddings=7, embedding_dim=3, features=("item",))
BATCH = {"item": (torch.tensor([3, 1, 3]), torch.tensor([2, 1]))}


@pytest.mark.parametrize(
    "batch",
    [
        {"item": IDS},
        {"item": (IDS, IDS)},
        {"item": [IDS, IDS]},
        {"item": Bags(IDS, IDS)},
        {"seen": ["a", "b"], "item": IDS},
    ],
)
def test_the_device_of_a_batch_is_that_of_its_first_tensor(batch: Any) -> None:
    assert origin_of(batch).device == META


def test_a_batch_without_tensors_has_no_device() -> None:
    assert origin_of({"item": [1, 2]}).device is None


def elsewhere(found: Addressed) -> Addressed:
    """The same batch as if it had come from another device."""
    assert found.origin.device == torch.device("cpu")
    return Addressed(found, replace(found.origin, device=META))


def test_outputs_of_batches_that_were_remapped_go_to_the_device_of_their_ids() -> None:
    embeddings = ShardedEmbeddings(plan_for(TABLE))
    remapped = elsewhere(embeddings.plan.remapper()(BATCH))
    assert embeddings(remapped)["item"].device == META
    assert embeddings(embeddings.ask_ahead(remapped))["item"].device == META


def test_outputs_of_batches_that_were_asked_ahead_go_to_the_device_of_their_ids() -> None:
    embeddings = ShardedEmbeddings(plan_for(TABLE))
    asked = embeddings.ask_ahead(BATCH)
    asked = replace(asked, batch=elsewhere(asked.batch))
    assert embeddings(asked)["item"].device == META


def test_gradients_of_lookup_weights_go_to_their_device_in_their_type() -> None:
    with FakeTensorMode():
        weights = torch.ones(3, dtype=torch.float64, device=META, requires_grad=True)
        (here,) = _on_host({"item": weights})
        assert (here.device.type, here.dtype) == ("cpu", torch.float32)
        here.backward(torch.ones(3))
        assert (weights.grad.device, weights.grad.dtype) == (META, torch.float64)


def test_weights_that_want_a_gradient_get_one_after_asking_ahead() -> None:
    embeddings, grads = ShardedEmbeddings(plan_for(TABLE)), []
    for ahead in (False, True):
        weights = torch.linspace(0.5, 2, 3, dtype=torch.float64).requires_grad_()
        batch = {"item": (*BATCH["item"], weights)}
        embeddings(embeddings.ask_ahead(batch) if ahead else batch)[
            "item"
        ].square().sum().backward()
        embeddings.optimizer.zero_grad()
        grads.append(weights.grad)
    assert grads[0].dtype == torch.float64
    assert torch.equal(*grads)
