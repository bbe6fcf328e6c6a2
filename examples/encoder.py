"""The dense part of examples/sequence.py, which knows nothing of plans."""

from __future__ import annotations

import torch


class Encoder(torch.nn.Module):  # type: ignore[misc]
    """Causal self-attention over the items of a session: all of the model but the table."""

    def __init__(self, dim: int, longest: int, layers: int = 2):
        super().__init__()
        self.places = torch.nn.Parameter(0.02 * torch.randn(longest, dim))
        block = torch.nn.TransformerEncoderLayer(
            dim, nhead=2, dim_feedforward=2 * dim, dropout=0.0, batch_first=True, norm_first=True
        )
        # Nested tensors do not go with norm_first, and torch warns unless they are off.
        self.blocks = torch.nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm = torch.nn.LayerNorm(dim)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """What comes after each item; `rows` is sessions × places × dim, filled up at the end."""
        length = rows.shape[1]
        # Nobody looks ahead, so nobody sees what sessions are filled up with.
        ahead = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        return self.norm(self.blocks(rows + self.places[:length], mask=ahead))
