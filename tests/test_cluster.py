from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from strategies import clusters

from rowtier import Cluster, InvalidError, UserError


def test_groups_of_a_level_are_neighbouring_devices() -> None:
    cluster = Cluster.preset("recshard-16")
    assert cluster.num_devices == 16
    assert cluster.scopes == ("device", "node", "cluster")
    assert cluster.members(1, group=1) == tuple(range(8, 16))
    assert [cluster.group_size(level) for level in range(3)] == [1, 8, 16]


def test_servers_come_after_the_devices_of_their_group() -> None:
    cluster = Cluster.preset("parameter-server")
    assert cluster.num_holders == 20
    assert cluster.members(2) == tuple(range(20))
    assert cluster.members(1, group=1) == tuple(range(8, 16))  # no server inside a node
    assert cluster.holder_name(19) == "server 3"
    assert cluster.server_members(cluster.servers[0]) == (16, 17, 18, 19)
    assert [tier.name for tier in cluster.tiers_of(16)] == ["dram"]


def test_a_server_in_every_node_belongs_to_that_node() -> None:
    base = Cluster.preset("parameter-server").model_dump(by_alias=True)
    base["servers"][0]["level"] = "node"
    cluster = Cluster.model_validate(base)
    assert cluster.num_holders == 16 + 2 * 4
    assert cluster.members(1, group=1) == (*range(8, 16), 20, 21, 22, 23)
    assert cluster.members(2) == tuple(range(24))


@given(clusters())
def test_groups_of_every_level_partition_the_devices(cluster: Cluster) -> None:
    for level in range(len(cluster.levels) + 1):
        groups = [cluster.members(level, g) for g in range(cluster.num_groups(level))]
        assert sorted(np.concatenate(groups)) == list(range(cluster.num_devices))


@pytest.mark.parametrize("ranks", [1, 2, np.int64(5)])
def test_this_machine_is_the_preset_local_with_a_device_for_every_rank(ranks: int) -> None:
    preset, machine = Cluster.preset("local"), Cluster.local(ranks)
    assert machine.num_devices == ranks
    assert (machine.device, machine.work) == (preset.device, preset.work)
    assert Cluster.model_validate(machine.model_dump(by_alias=True)) == machine
    assert Cluster.local(2) == preset


@pytest.mark.parametrize("ranks", [0, -1, 1.0, "2", True, None, 2**16 + 1])
def test_a_number_of_ranks_that_is_none_is_refused(ranks: int) -> None:
    with pytest.raises(UserError, match=f"ranks {ranks!r}: give "):
        Cluster.local(ranks)


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="recshard-16"):
        Cluster.open("recshard-17")


def test_what_runs_side_by_side_is_named_by_words(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    Cluster.preset("local").save(path)
    path.write_text(path.read_text() + "overlap: [[{ram: 1}, ssd]]\n")
    with pytest.raises(InvalidError, match=r"overlap\[0\]\[0\]: .* a word is needed"):
        Cluster.load(path)
