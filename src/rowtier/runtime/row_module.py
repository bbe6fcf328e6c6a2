"""What PyTorch asks of a module whose rows are no parameters: state dicts, moves, copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from rowtier.errors import UserError
from rowtier.runtime.copies import packed, unpacked
from rowtier.runtime.engine import Engine
from rowtier.runtime.logical import every_tensor, load_all


class RowModule(torch.nn.Module):  # type: ignore[misc]
    """A module with an engine that has all rows, and one parameter that stands for them."""

    engine: Engine
    row_handle: torch.nn.Parameter
    # TorchRec's DistributedModelParallel loads state module by module and drops what they
    # report, unless they say that they want to be called as a whole.
    _FORCE_STATE_DICT_LOAD = True

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The handle, for models that list all their parameters.

        Those who ask module by module, as DDP and FSDP do, want to exchange or cut what they find.
        There is nothing to exchange: gradients of rows are summed over all ranks here.
        """
        return super().named_parameters(prefix, recurse, remove_duplicate) if recurse else iter(())

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Take part in what is done to a model; the handle stays fp32, which its gradient needs.

        Rows stay where they are: those of the host's memory serve models on any device.
        """
        side = self.engine.side
        if not side.on_host and fn(self.row_handle.data).device != side.device:
            raise UserError(
                f"rows on {side.device} cannot be moved with the model: the plan's tiers say which "
                "memory each is in; make the embeddings with device= (load_checkpoint reads what "
                "any device saved), and move the other modules one by one"
            )
        super()._apply(fn, recurse)
        self.row_handle.data = self.row_handle.data.float()
        return self

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return unpacked, tuple(packed(self))

    def _save_to_state_dict(self, destination: Any, prefix: str, _keep_vars: bool) -> None:
        found = every_tensor(self.engine)
        destination.update({prefix + name: value for name, value in found.items()})

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, _metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        found = load_all(self.engine, state_dict, prefix)
        missing_keys += found.missing
        error_msgs += found.errors
        if strict:
            unexpected_keys += found.unexpected

    def extra_repr(self) -> str:
        """What is in here, for print(model)."""
        world = self.engine.world
        return f"{len(self.engine.tables)} tables, rank {world.rank} of {world.size}"
