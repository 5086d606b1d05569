"""Nobody can connect without the keys."""

import os
import re
import socket
import time
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge

import pytest
import slurm_cluster
from slurm_jobs import errors, line_of, processes_of

pytestmark = slurm_cluster.NEEDED


@pytest.mark.slow
def test_the_controller_and_the_agents_let_in_nobody_without_the_keys(ranks, slurm):
    plain = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)  # the greeting of ZMTP 3, without encryption
    addresses = listening(processes_of(slurm, "processes.slurm controller"))
    assert len(addresses) >= 4
    for address in addresses:
        with socket.create_connection(address, 5) as stranger:
            stranger.settimeout(20)
            stranger.sendall(plain[:11])
            greeting = exactly(stranger, 64)
            assert greeting[12:32].rstrip(b"\0") == b"CURVE", greeting
            stranger.sendall(plain[11:])
            assert not everything(stranger)
    addresses = listening(processes_of(slurm, "agent.py"))
    assert len(addresses) == 2
    for address in addresses:
        for known in (b"", bytes(32), os.urandom(32)):
            with socket.create_connection(address) as stranger, Connection(os.dup(stranger.fileno())) as connection:
                with pytest.raises((AuthenticationError, EOFError)):
                    answer_challenge(connection, known)
                assert b"n1" not in everything(stranger)
        for nonsense in (b"\xff" * 64, b"\0\0\0\4????"):
            with socket.create_connection(address, 5) as stranger:
                stranger.sendall(nonsense)
                assert len(everything(stranger)) < 100
        with socket.create_connection(address, 5) as stranger:  # nor one who says nothing, for long
            assert len(everything(stranger)) < 100
        silent = [socket.create_connection(address, 5) for _ in range(40)]
        try:
            assert errors(ranks.run("time.sleep(1)\ncomm.Barrier()")) == [None] * 8
        finally:
            for stranger in silent:
                stranger.close()
    assert errors(ranks.run("comm.Barrier()")) == [None] * 8


def listening(processes):
    """The addresses on which these processes listen: on loopback here."""
    addresses = {(c.laddr.ip, c.laddr.port) for p in processes for c in p.net_connections("tcp") if c.status == "LISTEN"}
    assert {ip for ip, _ in addresses} == {"127.0.0.1"}
    return addresses


def exactly(connection, size):
    """So many bytes, or what comes until it is closed."""
    said = b""
    while len(said) < size and (more := connection.recv(size - len(said))):
        said += more
    return said


def everything(connection):
    """Read a connection until the other side closes it, which it must do soon."""
    connection.settimeout(20)
    said, deadline = b"", time.monotonic() + 20
    with suppress(ConnectionError):
        while more := connection.recv(4096):
            said += more
            assert time.monotonic() < deadline, said
    return said


@pytest.mark.slow
def test_no_key_is_left_where_others_could_read_it(ranks, slurm):
    for folder in slurm.folder.glob(".course-ranks-*"):
        assert folder.stat().st_mode & 0o077 == 0
        assert not list(folder.glob("security/*"))
    lines = [" ".join(line_of(p)) for p in processes_of(slurm, "course_lib")]  # nor on a command line
    assert len(lines) > 8
    assert not [line for line in lines if re.search(r"[0-9a-f]{32}", line)]


def test_unknown_connections_to_the_process_that_asked_end_nothing(own, slurm):
    ranks = own(4)
    (asks,) = processes_of(slurm, "course_lib.engine.processes.slurm ask")
    (address,) = [c.laddr for c in asks.net_connections("tcp") if c.status == "LISTEN"]
    strangers = [socket.create_connection(tuple(address), 5) for _ in range(150)]
    for stranger in strangers[:20]:
        with suppress(OSError):  # put out already, for one who came later
            stranger.sendall(b"0" * 64)
    try:
        assert errors(ranks.run("time.sleep(4)\ncomm.Barrier()")) == [None] * 4
    finally:
        for stranger in strangers:
            stranger.close()
