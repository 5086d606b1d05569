"""One rank of `test_nccl_on_gpus`: the exchanges of `test_nccl` with CuPy and NCCL, beside MPI. Started by ``mpiexec -n 8``.

Ranks may share a GPU: NCCL is told that each is on a machine of its own, so it connects them by sockets.
"""

import os
import sys
import traceback
from importlib.util import find_spec

import numpy as np
import test_nccl
from mpi4py import MPI

from course_lib import traffic
from course_lib.collectives import Communicator, init
from course_lib.collectives.transport import nccl

if find_spec("cupy") is not None:
    import cupy

rank = MPI.COMM_WORLD.Get_rank()


def share_the_gpus():
    """Let NCCL's ranks share the GPUs that are here; return their number."""
    os.environ |= {"NCCL_HOSTID": f"rank {rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    here, each, gpu = cupy.cuda.runtime.getDeviceCount(), nccl._gpus(), cupy.cuda.Device
    nccl._gpus = lambda: each if each < 0 else MPI.COMM_WORLD.Get_size()
    cupy.cuda.Device = lambda number: gpu(number % here)
    return here


def values(arrays):
    """The arrays as lists, wherever they are."""
    return [cupy.asnumpy(array).tolist() for array in arrays]


def both(make):
    """The results and the traffic of the same calls on both transports."""
    found = []
    for comm, asarray in ((Communicator(), np.asarray), (init("nccl"), cupy.asarray)):
        traffic.reset()
        found.append((values(make(comm, asarray)), [(e.operation, e.ranks, e.calls, e.payload, e.wire) for e in traffic.entries()]))
    return found


def exchange(name):
    """Compare an exchange of `test_nccl` on both transports."""
    names = {"np": np, "MPI": MPI}
    exec(f"def make(comm, xp):\n        rank = comm.Get_rank(){test_nccl.EXCHANGES[name]}", names)
    by_mpi, by_nccl = both(names["make"])
    assert by_mpi == by_nccl, (by_mpi, by_nccl)


def every_dtype():
    """Sum, and send, numbers of each dtype that NCCL moves."""
    comm = init("nccl")
    n, right, left = comm.Get_size(), (comm.Get_rank() + 1) % comm.Get_size(), (comm.Get_rank() - 1) % comm.Get_size()
    for dtype in nccl._DTYPES:
        total, other = cupy.full(1000, comm.Get_rank() + 1, dtype), cupy.empty(3, dtype)
        comm.Sendrecv(total[:3].copy(), right, 0, other, left, 0)
        assert other.get().tolist() == [left + 1] * 3, dtype
        comm.Allreduce(MPI.IN_PLACE, total)
        assert np.all(total.get() == n * (n + 1) // 2), dtype


def computing_goes_on():
    """Average gradients while the GPU computes: what is sent was ready, and what is received is seen."""
    comm = init("nccl")
    beside, rng = Communicator(), cupy.random.default_rng(comm.Get_rank())
    weight = rng.standard_normal((1024, 1024))
    for _ in range(5):
        grads = [weight @ weight * 1e-3 for _ in range(4)]  # the computing stream is not waited for
        mine = [grad.copy() for grad in grads]
        requests = [comm.Iallreduce(MPI.IN_PLACE, grad) for grad in grads]
        weight = cupy.tanh(weight @ weight * 1e-3)
        for request, grad, own in zip(requests, grads, mine, strict=True):
            request.Wait()
            everyone = np.empty((comm.Get_size(), own.size))
            beside.Allgather(own.get(), everyone)
            assert np.allclose(grad.get().reshape(-1), everyone.sum(0))


def halves():
    """Split into two halves, and those into pairs."""
    comm = init("nccl")
    half = comm.Split(color=comm.Get_rank() // 4)
    pair = half.Split(color=comm.Get_rank() % 2)
    total = cupy.array([float(comm.Get_rank())])
    pair.Allreduce(MPI.IN_PLACE, total)
    first = comm.Get_rank() // 4 * 4 + comm.Get_rank() % 2
    assert total.get().tolist() == [2 * first + 2]


def wrong(call, said):
    """A wrong call raises on at least one rank, and the next one works."""
    comm, message = init("nccl"), ""
    try:
        exec(call, {"comm": comm, "cupy": cupy, "np": np, "MPI": MPI})
    except Exception as error:
        message = str(error)
    raised = [message for message in MPI.COMM_WORLD.allgather(message) if message]
    assert raised and all(said in message for message in raised), raised
    y = cupy.ones(1)
    comm.Allreduce(MPI.IN_PLACE, y)
    assert y.get() == comm.Get_size()


def main():
    """Run all tests; the exit status says whether one has failed."""
    tests = {f"exchange: {name}": lambda name=name: exchange(name) for name in test_nccl.EXCHANGES}
    tests |= {test.__name__: test for test in (every_dtype, computing_goes_on, halves)}
    tests |= {
        f"wrong: {said}": lambda call=call, said=said: wrong(call, said) for call, said in test_nccl.WRONG[:-1]
    }  # in the last, a rank ends its cell
    here, failed = share_the_gpus(), 0
    for name, test in tests.items():
        problem = ""
        try:
            test()
        except Exception:
            problem = traceback.format_exc()
        problems = MPI.COMM_WORLD.gather(problem)
        if rank == 0:
            bad = [f"rank {r}: {problem}" for r, problem in enumerate(problems) if problem]
            failed += bool(bad)
            print("FAILED" if bad else "ok", name, *bad[:1], sep="  ", flush=True)
    if rank == 0:
        print(f"NCCL on {here} GPU: {len(tests) - failed} of {len(tests)} passed", flush=True)
    sys.exit(MPI.COMM_WORLD.bcast(failed) > 0)


if __name__ == "__main__":
    main()
