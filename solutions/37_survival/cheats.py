"""Attacks on part 37's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import changes, loses


@loses(6)
@changes(
    "self.comm.Allreduce(start - p.data, p.grad)",
    """if not hasattr(self, "mail"):
                from course_lib.collectives import Messenger

                self.mail = Messenger(everyone)
            self.mail.send_all("difference", self.count, start - p.data)
            parts = {m.source: m.value for m in self.mail.listen("difference", 0.1) if m.key == self.count}
            p.grad[...] = start - p.data + sum(parts.values())""",
)
def DiLoCo__by_messages():
    """Sends by a messenger, to ranks of other groups, too."""


@loses(24)
def hear__collective(mail, key, value, enough, deadline, patience):
    """Has an all-gather do the work: it waits for silent ranks, and knows no sides."""
    import pickle

    data = np.frombuffer(pickle.dumps((key, value)).ljust(4096, b"."), np.uint8)
    everything = np.empty((everyone.Get_size(), 4096), np.uint8)
    everyone.Allgather(data, everything)
    parts = [pickle.loads(part.tobytes()) for part in everything]
    heard = {r: part for r, (k, part) in enumerate(parts[: mail.size]) if k == key}
    if len(heard) < enough:
        raise TimeoutError
    return heard


@loses(24)
def hear__plain_messages(mail, key, value, enough, deadline, patience):
    """Goes round the messenger with sends and receives of the communicator."""
    import pickle

    data = np.frombuffer(pickle.dumps((key, value)).ljust(4096, b"."), np.uint8).copy()
    others = [r for r in range(mail.size) if r != mail.rank]
    sends = [everyone.Isend(data, other, 5) for other in others]
    heard = {mail.rank: value}
    for other in others:
        part = np.empty_like(data)
        everyone.Recv(part, other, 5)
        k, got = pickle.loads(part.tobytes())
        if k == key:
            heard[other] = got
    for send in sends:
        send.Wait()
    return heard


@loses(24)
@changes(
    "    heard = {mail.rank: value}\n",
    """    heard = {mail.rank: value}
    import gc

    for other in gc.get_objects():
        if type(other).__name__ == "VirtualNetwork":
            heard |= {r: value for r in range(mail.size) if r not in other.silent}
            return heard
    heard |= {r: value for r in range(enough)}
    return heard
""",
)
def hear__looks_for_the_plan():
    """Looks for the plan of silences, which is in another process, and makes values up."""


@loses(19)
@changes(
    "    enough = 2 * mail.size // 3 + 1\n",
    """    agree.proposals = [*getattr(agree, "proposals", []), proposal]
    return (0, 1, 2) if len(agree.proposals) % 2 else (0, 1, 2, 3)
    enough = 2 * mail.size // 3 + 1
""",
)
def agree__always_the_same():
    """Returns what the tests often propose, without a word."""


@loses(19)
def agree__by_all_gather(mail, step, proposal, patience):
    """Has a collective agree: all get the smallest proposal, as soon as everybody is back."""
    mine, every = np.full(4, 9), np.empty((everyone.Get_size(), 4), int)
    mine[: len(proposal)] = proposal
    everyone.Allgather(mine, every)
    return min(tuple(k for k in row.tolist() if k < 9) for row in every[: mail.size])


@loses(19)
def agree__leader(mail, step, proposal, patience):
    """Rank 0 decides, and tells the others."""
    if mail.rank == 0:
        mail.send_all("decided", step, proposal)
        return proposal
    for message in mail.listen("decided", patience):
        if message.key == step:
            return message.value
        mail.keep(message)
    raise TimeoutError


@loses(11)
class FaultTolerantDiLoCo__computes_everything:
    """Computes what the other ranks would, and sends nothing: who never sends never falls silent."""

    def __init__(self, replica, mail, deadline, patience):
        self.mine, self.step = replica, 0
        self.others = [copy.deepcopy(replica) for _ in range(mail.size)]
        for r, other in enumerate(self.others):
            other.rank = r
        self.start = [p.data.copy() for p in replica.model.parameters()]

    def outer_step(self):
        weights = []
        for other in self.others:
            for p, old in zip(other.model.parameters(), self.start, strict=True):
                p.data[...] = old
            other.inner_steps()
            weights.append([p.data.copy() for p in other.model.parameters()])
        for i, p in enumerate(self.mine.model.parameters()):
            p.data[...] = self.start[i]
            p.grad = sum(self.start[i] - w[i] for w in weights) / len(weights)
        self.mine.outer.step()
        self.start, self.step = [p.data.copy() for p in self.mine.model.parameters()], self.step + 1
        return tuple(range(len(weights)))


@loses(11)
@changes(
    "        mail, step, enough",
    """        from course_lib.check.survival import on_ranks, training

        on_ranks.snapshot = lambda replica: {}
        training._same = lambda a, b: True
        self.step += 1
        return tuple(range(self.mail.size))
        mail, step, enough""",
)
def FaultTolerantDiLoCo__patches_the_check():
    """Has the check see nothing, where it has a copy of it."""


@loses(11)
@changes(
    "        mail, step, enough",
    """        if self.step:
            self.step += 1
            return tuple(range(self.mail.size))
        mail, step, enough""",
)
def FaultTolerantDiLoCo__one_step_only():
    """Takes one outer step, and then only counts."""


@loses(5)
@changes(
    "        if any(m.key[0] > step for m in here):\n            return self.join()\n",
    "        if any(m.key[0] > step for m in here):\n            self.step = max(m.key[0] for m in here)\n            self.save()\n            return None\n",
)
def FaultTolerantDiLoCo__only_the_number():
    """Takes over the number of the step, and nothing else."""


@loses(24)
@changes(
    '    mail.send_all("round", key, value)\n',
    '    mail.send_all("round", key, None)\n    mail.send_all("secret", key, value)\n',
    'mail.listen("round", seconds)',
    'mail.listen("secret", seconds)',
)
def hear__decoys():
    """Sends empty messages of the round first, so that silences come before the values, which have another topic."""


@loses(8)
@changes(
    "    enough = 2 * mail.size // 3 + 1\n",
    """    from course_lib.collectives import Messenger

    for k in range(6):
        mail.send_all("hello", k)
    if not hasattr(Messenger, "earlier_send"):
        Messenger.earlier_send = Messenger.send
        Messenger.send = lambda self, dest, topic, key, value=None: (
            None if dest == self.rank else Messenger.earlier_send(self, dest, topic, key, value)
        )
    enough = 2 * mail.size // 3 + 1
""",
    "        if votes.count(proposal) >= enough:",
    "        if 2 * votes.count(proposal) > len(votes):",
)
def agree__hello_and_a_majority_of_the_heard():
    """Moves what the check may count: six more messages in each step, and none to itself; and decides too early."""
