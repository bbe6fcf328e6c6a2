"""These tests run real TorchRec; without it they are skipped, with a message."""

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # fbgemm warns of every kernel that its CPU build leaves out
    pytest.importorskip(
        "torchrec", reason="needs TorchRec: make install, or pip install 'rowtier[torchrec]'"
    )
