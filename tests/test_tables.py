import pytest

from rowtier import Table, UserError


def test_bytes_count_weights_and_optimizer_state() -> None:
    def stored(optimizer: str, dtype: str = "fp32") -> int:
        table = Table(
            name="t", num_embeddings=10, embedding_dim=64, features=("f",),
            optimizer=optimizer, dtype=dtype,
        )  # type: ignore[arg-type]  # fmt: skip
        return table.stored_bytes

    assert stored("sgd") == 10 * 256
    assert stored("rowwise_adagrad") == 10 * 260
    assert stored("adagrad") == 10 * 512
    assert stored("momentum") == 10 * 512
    assert stored("adam") == 10 * 768
    assert stored("adamw") == 10 * 768
    assert stored("sgd", "bf16") == 10 * 128


def test_torchrec_configs_convert_without_thought() -> None:
    pytest.importorskip(
        "torchrec", reason="TorchRec is not installed: pip install rowtier[torchrec]"
    )
    from torchrec import EmbeddingBagConfig, EmbeddingConfig
    from torchrec.modules.embedding_configs import DataType, PoolingType

    bag = EmbeddingBagConfig(
        name="user", num_embeddings=100, embedding_dim=16, feature_names=["u", "v"],
        pooling=PoolingType.MEAN, data_type=DataType.FP16,
    )  # fmt: skip
    table = Table.from_torchrec(bag, optimizer="adam")
    assert (table.pooling, table.dtype, table.features) == ("mean", "fp16", ("u", "v"))
    assert table.optimizer == "adam"

    sequence = EmbeddingConfig(name="item", num_embeddings=7, embedding_dim=4, feature_names=["h"])
    assert Table.from_torchrec(sequence).pooling == "none"

    bag.data_type = DataType.INT8
    with pytest.raises(UserError, match="INT8"):
        Table.from_torchrec(bag)
