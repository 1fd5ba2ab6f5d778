"""What launchers say in the environment, and what a node makes of it."""

from __future__ import annotations

import pytest

from edl.errors import UsageError
from edl.student.supervisor.launcher import launched, nodes_of
from edl.student.supervisor.places import LOOPBACK, free_endpoints, own_address


def test_nobody_says_anything() -> None:
    start = launched({}, "machine.local")
    assert (start.name, start.number, start.count, start.host) == ("machine.local", None, None, "")
    assert start.cards == ""
    assert nodes_of("", start) == (1, 1)


def test_an_indexed_job_of_kubernetes() -> None:
    told = {"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "digits-3-x7k2p", "POD_IP": "10.1.2.3"}
    start = launched(told, "node")
    assert (start.name, start.number, start.host) == ("digits-3-x7k2p-3", 3, "10.1.2.3")
    assert nodes_of("2:8", start) == (2, 8)


def test_torchrun_gives_each_process_its_card() -> None:
    told = {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    start = launched(told, "host")
    assert (start.number, start.count, start.cards) == (5, 16, "1")
    assert nodes_of("", start) == (16, 16)
    assert launched({**told, "CUDA_VISIBLE_DEVICES": "4,5,6,7"}, "host").cards == "5"
    assert launched({**told, "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}, "host").cards == ""


def test_paddles_launch_and_slurm() -> None:
    paddle = launched({"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"}, "h")
    assert (paddle.number, paddle.count) == (1, 2)
    local = {"PADDLE_TRAINER_ID": "1", "PADDLE_LOCAL_RANK": "1", "PADDLE_LOCAL_SIZE": "2"}
    assert launched(local, "h").cards == "1"
    slurm = launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, "h")
    assert (slurm.number, slurm.count) == (0, 4)
    local = {"SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_NTASKS_PER_NODE": "4"}
    assert launched(local, "h").cards == "3"


def test_ids_are_new_with_each_start_and_can_stand_in_a_key() -> None:
    start = launched({"HOSTNAME": "böse maschine/1"}, "")
    first, second = start.node_id(), start.node_id()
    assert first != second
    assert first.startswith("b-se-maschine-1-")


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError, match="RANK='one'"):
        launched({"RANK": "one"}, "h")
    for wrong in ("a", "1:b", ":", "1:2:3"):
        with pytest.raises(UsageError, match="MIN:MAX"):
            nodes_of(wrong, launched({}, "h"))
    assert nodes_of("3", launched({}, "h")) == (3, 3)


def test_the_address_is_the_one_on_the_way_to_the_coordinator() -> None:
    assert own_address(None) == LOOPBACK
    assert own_address("redis://127.0.0.1:6379") == LOOPBACK
    assert own_address("unix:///run/redis.sock") == LOOPBACK


def test_endpoints_are_free_and_different() -> None:
    found = free_endpoints(LOOPBACK, 20)
    assert len(set(found)) == 20
    assert all(one.startswith("127.0.0.1:") for one in found)
    with pytest.raises(UsageError, match="--host"):
        free_endpoints("203.0.113.7", 1)
