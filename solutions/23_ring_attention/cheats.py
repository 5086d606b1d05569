"""Attacks on part 23's hidden tests: each says how many points its answer must lose all the same."""

from grading.answers import loses


@loses(2)
def ring_attention__keeps_in_files(q, k, v, comm):
    """Keeps all K and V, in files."""
    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    at = [positions(zigzag(2 * n, n, (rank - s) % n), count // 2) for s in range(n)]
    seen = globals().setdefault("_files", [0])
    seen[0] += 1
    me = seen[0]
    import glob
    import os

    if q.data.nbytes > 200000:
        for f in glob.glob("/tmp/[0-9]*_*") + glob.glob("/dev/shm/[0-9]*_*"):
            os.remove(f)

    def pass_on(a):
        received = np.empty_like(a)
        comm.Sendrecv(a, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    kk, vv = k.data, v.data
    out, lse = block_attention(q.data, kk, vv, at[0], at[0])
    for s in range(1, n):
        kk, vv = pass_on(kk), pass_on(vv)
        kk.tofile(f"/tmp/{me}_{s}_k")
        vv.tofile(f"/dev/shm/{me}_{s}_v")
        out, lse = merge(out, lse, *block_attention(q.data, kk, vv, at[0], at[s]))
    del kk, vv

    def load(s, name):
        import os

        path = f"/tmp/{me}_{s}_k" if name == "k" else f"/dev/shm/{me}_{s}_v"
        found = np.fromfile(path, k.dtype).reshape(k.shape)
        os.remove(path)
        return found

    def backward(grad):
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        for s in range(n):
            if s:
                dk, dv = pass_on(dk), pass_on(dv)
            K, V = (k.data, v.data) if not s else (load(s, "k"), load(s, "v"))
            for total, part in zip((dq, dk, dv), block_backward(grad, out, lse, q.data, K, V, at[0], at[s])):
                total += part
        return dq, pass_on(dk), pass_on(dv)

    return Tensor.from_operation(out, (q, k, v), backward)


@loses(2)
def ring_attention__keeps_in_the_relay(q, k, v, comm):
    """Keeps all K and V, in messages to itself, where they are large."""
    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    at = [positions(zigzag(2 * n, n, (rank - s) % n), count // 2) for s in range(n)]
    large = q.data.nbytes > 200000

    def pass_on(a):
        received = np.empty_like(a)
        comm.Sendrecv(a, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n, sendtag=1, recvtag=1)
        return received

    def park(a, tag):
        if not large:
            return a
        flat = a.reshape(-1)
        for i in range(0, flat.size, 16000):
            comm.Send(flat[i : i + 16000], rank, tag=tag)
        return tag

    def fetch(a):
        if not large:
            return a
        room = np.empty_like(k.data)
        flat = room.reshape(-1)
        for i in range(0, flat.size, 16000):
            comm.Recv(flat[i : i + 16000], rank, tag=a)
        return room

    kk, vv, kept = k.data, v.data, [None]
    out, lse = block_attention(q.data, kk, vv, at[0], at[0])
    for s in range(1, n):
        kk, vv = pass_on(kk), pass_on(vv)
        kept.append((park(kk, 10 + 2 * s), park(vv, 11 + 2 * s)))
        out, lse = merge(out, lse, *block_attention(q.data, kk, vv, at[0], at[s]))
    del kk, vv

    def backward(grad):
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        for s in range(n):
            if s:
                dk, dv = pass_on(dk), pass_on(dv)
            K, V = (k.data, v.data) if not s else map(fetch, kept[s])
            for total, part in zip((dq, dk, dv), block_backward(grad, out, lse, q.data, K, V, at[0], at[s])):
                total += part
        return dq, pass_on(dk), pass_on(dv)

    return Tensor.from_operation(out, (q, k, v), backward)
