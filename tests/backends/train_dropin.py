"""Two gloo processes train a model whose tables are ours; what was found goes to a folder."""

import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchrec
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.train_pipeline.train_pipelines import EvalPipelineSparseDist
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.streamable import Pipelineable

sys.path.insert(0, str(Path(__file__).parents[1]))

from backends import semantics_cases
from backends.torchrec_cases import machine
from strategies import counted

import rowtier.torchrec as rt
from rowtier import Band, Plan, Profile, Table
from rowtier.torch import SGD, RowwiseAdagrad, ShardedEmbeddings

LR, STEPS, SAMPLES, RANKS = 0.5, 3, 6, 2
ROWS, DIM = (23, 40), 4


@dataclass
class Batch(Pipelineable):
    features: Any
    labels: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":  # noqa: ARG002
        return Batch(self.features.to(device), self.labels.to(device))

    def record_stream(self, stream: Any) -> None:
        pass

    def pin_memory(self) -> "Batch":
        return self


class Sparse(torch.nn.Module):
    def __init__(self, bags: Any):
        super().__init__()
        self.bags = bags

    def forward(self, features: Any) -> torch.Tensor:
        return self.bags(features).values()


class Model(torch.nn.Module):
    def __init__(self, bags: Any):
        super().__init__()
        self.sparse = Sparse(bags)
        torch.manual_seed(7)
        self.top = torch.nn.Sequential(
            torch.nn.Linear(2 * DIM, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
        )

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.top(self.sparse(batch.features)).squeeze(1)
        loss = torch.nn.functional.mse_loss(logits, batch.labels)
        return loss, loss.detach()


def bags() -> Any:
    torch.manual_seed(3)
    configs = [
        torchrec.EmbeddingBagConfig(
            name=f"t{i}", num_embeddings=rows, embedding_dim=DIM, feature_names=[f"f{i}"]
        )
        for i, rows in enumerate(ROWS)
    ]
    return torchrec.EmbeddingBagCollection(tables=configs)


def plan(optimizer: str = "sgd") -> Plan:
    """A copy of hot rows everywhere, the others spread."""
    stats, bands = [], {}
    for i, rows in enumerate(ROWS):
        table = Table(
            name=f"t{i}", num_embeddings=rows, embedding_dim=DIM, features=(f"f{i}",),
            optimizer=optimizer,
        )  # fmt: skip
        stats.append(counted(table, torch.arange(rows).numpy()))
        bands[table.name] = (
            Band(start=0, stop=5, scope="device", tier="hbm"),
            Band(start=5, stop=rows, scope="cluster", tier="hbm", coalesced=True),
        )
    return Plan.build("by hand", Profile(SAMPLES, tuple(stats)), machine(1, RANKS), bands)


def batch(step: int, ranks: list[int]) -> Batch:
    """What some ranks read in a step; as many samples on each."""
    lengths, ids, labels = [], [], []
    for feature, rows in enumerate(ROWS):
        for rank in ranks:
            random = torch.Generator().manual_seed(100 * step + 10 * rank + feature)
            lengths.append(torch.randint(0, 4, (SAMPLES,), generator=random))
            ids.append(torch.randint(0, rows, (int(lengths[-1].sum()),), generator=random))
            if not feature:
                labels.append(torch.randn(SAMPLES, generator=random))
    features = torchrec.KeyedJaggedTensor.from_lengths_sync(
        [f"f{i}" for i in range(len(ROWS))], torch.cat(ids), torch.cat(lengths)
    )
    return Batch(features, torch.cat(labels))


def whole(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
        for name, value in state.items()
    }


def alone() -> dict[str, Any]:
    """The model as TorchRec has it unsharded, on the batches of all ranks."""
    model = Model(bags())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    first, losses, grads = whole(model.state_dict()), [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, _ = model(batch(step, list(range(RANKS))))
        loss.backward()
        grads.append([w.grad.clone() for w in model.top.parameters()])
        optimizer.step()
        losses.append(float(loss.detach()))
    return {"first": first, "losses": losses, "grads": grads, "last": whole(model.state_dict())}


def in_parallel(kind: Any, how: ShardingPlan | None) -> tuple[Any, Any]:
    made = kind.from_module(bags(), plan(), SGD(lr=LR))
    model = DistributedModelParallel(Model(made), device=torch.device("cpu"), plan=how)
    return model, torch.optim.SGD(model.parameters(), lr=LR)


def pipelined(rank: int) -> dict[str, Any]:
    """The same steps under TorchRec's pipelines, with its optimizers."""
    model, _ = in_parallel(rt.ShardedEmbeddingBagCollection, ShardingPlan({}))
    both = combined(model)
    pipeline = TrainPipelineSparseDist(model, both, torch.device("cpu"))
    batches = iter([batch(step, [rank]) for step in range(STEPS)])
    found: dict[str, Any] = {"piped": [float(pipeline.progress(batches)) for _ in range(STEPS)]}
    found["pipelined"] = [type(part).__name__ for part in pipeline._pipelined_modules]
    found["combined"] = sorted(both.params)
    found["piped_last"] = whole(model.state_dict())
    pipeline.detach()
    model.eval()
    found["evaluated"] = [float(model(batch(step, [rank]))[1]) for step in range(STEPS)]
    evaluate = EvalPipelineSparseDist(model, both, torch.device("cpu"))
    batches = iter([batch(step, [rank]) for step in range(STEPS)])
    with torch.no_grad():
        found["piped_eval"] = [float(evaluate.progress(batches)) for _ in range(STEPS)]
    return found


def combined(model: Any) -> CombinedOptimizer:
    dense = dict(model.named_parameters())
    wrapped = KeyedOptimizerWrapper(dense, lambda weights: torch.optim.SGD(weights, lr=LR))
    return CombinedOptimizer([model.fused_optimizer, wrapped])


def optimizer_state(rank: int) -> dict[str, Any]:
    """State of rows, out of one combined optimizer and into another."""
    made = []
    for _ in range(2):
        rows = RowwiseAdagrad(lr=LR)
        ours = rt.ShardedEmbeddingBagCollection.from_module(bags(), plan("rowwise_adagrad"), rows)
        made.append((ours, CombinedOptimizer([("bags", ours.fused_optimizer)])))
    (first, saving), (second, loading) = made
    first(batch(0, [rank]).features).values().square().sum().backward()
    saving.step()
    saved = saving.state_dict()
    loading.load_state_dict(saved)
    return {
        "names": sorted(saved["state"]),
        "saved": whole(saved["state"]["bags.embedding_bags.t0.weight"]),
        "loaded": whole(second.optimizer.state_dict()["state"]["embedding_bags.t0.weight"]),
    }


def semantics(rank: int) -> dict[str, Any]:
    """All cases, each with what is found and expected, or what went wrong."""
    found: dict[str, Any] = {}
    for name in semantics_cases.CASES:
        try:
            found[name] = semantics_cases.compare(name, rank, RANKS)
        except Exception:
            found[name] = {"error": traceback.format_exc()}
    return found


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found: dict[str, Any] = {}

    model, optimizer = in_parallel(ShardedEmbeddings, None)  # DMP plans for what it finds
    ours = model.module.sparse.bags
    found["kept"] = type(ours).__name__
    found["trained"] = [name for name, _ in model.named_parameters()]
    found["planned"] = list(model.plan.plan)
    found["losses"], found["grads"] = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, _ = model(batch(step, [rank]))
        loss.backward()
        found["grads"].append([w.grad.clone() for w in model.module.top.parameters()])
        optimizer.step()
        ours.optimizer.step()
        found["losses"].append(float(loss.detach()))
    found["last"] = whole(model.state_dict())

    reference = Model(bags())
    with torch.no_grad():
        for weight in reference.parameters():
            weight.add_(1.0)
    keys = model.load_state_dict(reference.state_dict(), strict=True)
    found["keys"] = (list(keys.missing_keys), list(keys.unexpected_keys))
    found["loaded"] = whole(model.state_dict())
    plain = Model(ShardedEmbeddings(plan(), SGD(lr=LR)))
    plain.load_state_dict(Model(bags()).state_dict(), strict=True)
    found["loaded_plain"] = whole(plain.state_dict())
    other = reference.state_dict()
    other["sparse.bags.embedding_bags.t0.weight"] = torch.zeros(ROWS[0] + 1, DIM)
    try:
        model.load_state_dict(other)
    except RuntimeError as error:
        found["refused"] = str(error)

    found |= pipelined(rank)
    found["state"] = optimizer_state(rank)
    found["semantics"] = semantics(rank)

    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    # DDP before the group: at times it and gloo's threads would wait for each other.
    del model, optimizer, ours
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
