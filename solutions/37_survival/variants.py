"""Answers to part 37: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

# What stands in the solution, and several change.
WAIT = """
    for wanted, seconds in ((mail.size, deadline), (enough, patience)):
        if len(heard) >= wanted:
            return heard
        for message in mail.listen("round", seconds):
            if message.key == key:
                heard[message.source] = message.value
            elif message.key > key:
                mail.keep(message)
            if len(heard) >= wanted:
                return heard
"""
AVERAGE = """
            p.grad = np.empty_like(start)
            self.comm.Allreduce(start - p.data, p.grad)
            p.grad /= self.comm.Get_size()
"""
BCAST = """
        for p in self.params:
            comm.Bcast(p.data, root=0)
"""
COUNT = """
        self.count += 1
        if self.count % self.every:
            return
"""
MATCH = """
            if message.key == key:
                heard[message.source] = message.value
            elif message.key > key:
                mail.keep(message)
"""
RAISE = '    raise TimeoutError(f"rank {mail.rank} hears only {sorted(heard)} in round {key}")'
ADOPT = """
        proposal = min(votes, key=lambda vote: (-votes.count(vote), vote))
"""
DECIDE = "        if votes.count(proposal) >= enough:"
HELP = """
            mail.send_all("round", (step, number + 1), proposal)
"""
ANSWER = """
        mail.on("join", lambda m: mail.send(m.source, "state", self.step, self.saved))
"""
LOOK = """
        here = list(mail.listen("round", 0))
        list(map(mail.keep, here))
        if any(m.key[0] > step for m in here):
            return self.join()
"""
AGREE = """
        who = agree(mail, step, common, self.patience)
"""
MEAN = "            p.grad = sum((have[r][i] for r in who), 0 * mine[i]) / max(len(who), 1)"
WITHOUT = """
        if not set(who) <= set(have):
            return self.join()
"""


@right
@changes(
    AVERAGE,
    """
            p.grad = start - p.data
            self.comm.Allreduce(MPI.IN_PLACE, p.grad)
            p.grad = (p.grad / self.comm.Get_size()).astype(start.dtype)
""",
    "        self.inner, self.outer",
    "        global MPI\n        from mpi4py import MPI\n\n        self.inner, self.outer",
)
def DiLoCo__in_place():
    """Reduces in place."""


@right
@changes(
    AVERAGE,
    """
            total = np.empty_like(start)
            self.comm.Allreduce(np.ascontiguousarray(p.data), total)
            p.grad = start - total / self.comm.Get_size()
""",
)
def DiLoCo__mean_of_weights():
    """Averages the weights, and takes the difference to that."""


@right
class DiLoCo__flat:
    """One exchange for all parameters."""

    def __init__(self, model, inner, outer, every, comm):
        self.model, self.inner, self.outer, self.every, self.comm = model, inner, outer, every, comm
        flat = self.flat()
        comm.Bcast(flat, root=0)
        self.put(flat)
        self.old, self.left = flat, every

    def flat(self):
        return np.concatenate([p.data.ravel() for p in self.model.parameters()])

    def put(self, flat):
        begin = 0
        for p in self.model.parameters():
            p.data = flat[begin : begin + p.data.size].reshape(p.data.shape).copy()
            begin += p.data.size

    def step(self):
        self.inner.step()
        self.left -= 1
        if self.left == 0:
            self.left, total = self.every, np.empty_like(self.old)
            self.comm.Allreduce(self.old - self.flat(), total)
            self.put(self.old)
            total, begin = total / self.comm.Get_size(), 0
            for p in self.model.parameters():
                p.grad = total[begin : begin + p.data.size].reshape(p.data.shape).astype(p.data.dtype)
                begin += p.data.size
            self.outer.step()
            self.old = self.flat()


@loses(6)
@changes(BCAST, "")
def DiLoCo__no_broadcast():
    """Every rank starts with its own parameters."""


@loses(6)
@changes("self.start, self.count = [p.data.copy() for p in self.params], 0", "self.start, self.count = [p.data for p in self.params], 0")
def DiLoCo__start_not_copied():
    """Keeps the arrays themselves, which change with every inner step."""


@loses(6)
@changes("self.comm.Allreduce(start - p.data, p.grad)", "self.comm.Allreduce(p.data - start, p.grad)")
def DiLoCo__wrong_sign():
    """Goes back by as much as the ranks have come forward."""


@loses(6)
@changes("            p.grad /= self.comm.Get_size()\n", "")
def DiLoCo__sum():
    """Adds the differences up."""


@loses(6)
@changes("            p.data[...] = start\n", "")
def DiLoCo__from_here():
    """Takes the outer step from the rank's own weights."""


@loses(6)
@changes(
    """
        self.outer.step()
        self.start = [p.data.copy() for p in self.params]
""",
    """
        self.outer.step()
""",
)
def DiLoCo__old_start():
    """Measures differences to the very first weights."""


@loses(6)
@changes("if self.count % self.every:", "if (self.count - 1) % self.every:")
def DiLoCo__at_once():
    """Exchanges after the first step, and then every H."""


@loses(6)
@changes(
    COUNT,
    "        self.count += 1\n        every = self.count % self.every\n",
    "            p.data[...] = start\n",
    "            if every:\n                continue\n            p.data[...] = start\n",
    "        self.outer.step()\n        self.start =",
    "        if every:\n            return\n        self.outer.step()\n        self.start =",
)
def DiLoCo__exchanges_always():
    """Exchanges the differences in every step, and uses them every H steps."""


@loses(6)
@changes(
    "        self.inner.step()\n",
    """        for p in self.params:
            total = np.empty_like(p.grad)
            self.comm.Allreduce(p.grad, total)
            p.grad = total / self.comm.Get_size()
        self.inner.step()
""",
)
def DiLoCo__gradients_too():
    """Averages the gradients of every step, as data parallel training does."""


@loses(6)
@changes("        self.outer.step()\n", "        self.outer.step()\n        self.inner.state = {}\n        self.inner.velocity = {}\n")
def DiLoCo__forgets_the_inner_state():
    """The inner optimizer begins anew after each exchange."""


@loses(6)
@changes(AVERAGE, "            p.grad = start - p.data\n")
def DiLoCo__alone():
    """Takes the outer step with the rank's own difference."""


@loses(6)
@changes("        self.outer.step()\n", "        for p in self.params:\n            p.data -= p.grad\n")
def DiLoCo__no_outer_optimizer():
    """Takes the mean of the weights."""


@loses(6)
@changes("self.comm.Allreduce(start", "everyone.Allreduce(start", "p.grad /= self.comm.Get_size()", "p.grad /= everyone.Get_size()")
def DiLoCo__everyone():
    """Averages over all ranks, whatever the group."""


@loses(6)
@changes("comm.Bcast(p.data, root=0)", "comm.Bcast(p.data, root=comm.Get_size() - 1)")
def DiLoCo__last_rank():
    """All start as the last rank."""


@right
@changes(
    WAIT,
    """    later = []
    for message in mail.listen("round", deadline if len(heard) < mail.size else 0):
        if message.key == key:
            heard[message.source] = message.value
        if message.key > key:
            later.append(message)
        if len(heard) == mail.size:
            break
    if len(heard) < enough:
        for message in mail.listen("round", patience):
            if message.key == key:
                heard[message.source] = message.value
            if message.key > key:
                later.append(message)
            if len(heard) == enough:
                break
    for message in later:
        mail.keep(message)
    if len(heard) >= enough:
        return heard
""",
)
def hear__two_loops():
    """Two loops, and keeps what is later at the end."""


@right
@changes(
    '    mail.send_all("round", key, value)\n    heard = {mail.rank: value}\n',
    """    for other in range(mail.rank + 1, mail.rank + mail.size):
        mail.send(other % mail.size, "round", key, value)
    heard = dict([(mail.rank, value)])
""",
)
def hear__one_by_one():
    """Sends to the next rank first."""


@right
@changes(
    MATCH,
    """
            if message.key < key:
                continue
            if message.key > key:
                hear.kept = getattr(hear, "kept", 0) + 1
                mail.keep(message)
                continue
            heard.setdefault(message.source, message.value)
""",
)
def hear__continue():
    """Sorts the messages in another way."""


@loses(24)
@changes(MATCH, "\n            heard[message.source] = message.value\n")
def hear__any_message():
    """Takes any message for one of this round."""


@loses(24)
@changes("if message.key == key:", "if message.key[0] == key[0]:")
def hear__any_round_of_the_step():
    """Takes messages of other rounds of the same step."""


@loses(24)
@changes(MATCH, "\n            if message.key == key:\n                heard[message.source] = message.value\n")
def hear__drops_later():
    """Throws messages of later rounds away."""


@loses(24)
@changes("            if message.key == key:\n", "            if message.key >= key:\n")
def hear__takes_later():
    """Takes messages of later rounds for this one."""


@loses(16)
@changes("((mail.size, deadline), (enough, patience))", "((enough, deadline), (enough, patience))")
def hear__enough_at_once():
    """Does not wait for the last ones, although there is time."""


@loses(24)
@changes("((mail.size, deadline), (enough, patience))", "((mail.size, deadline),)", RAISE, "    return heard")
def hear__whoever_is_there():
    """Returns at the deadline, with however many there are."""


@loses(11)
@changes(
    "            if len(heard) >= wanted:\n                return heard\n    raise",
    "            if len(heard) >= enough and wanted == enough:\n                return heard\n    if len(heard) >= enough:\n        return heard\n    raise",
)
def hear__always_waits():
    """Waits until the deadline, although all have been heard."""


@loses(24)
@changes("((mail.size, deadline), (enough, patience))", "((mail.size, deadline), (enough, 0))")
def hear__no_patience():
    """Raises TimeoutError at the deadline."""


@loses(19)
@changes(RAISE, "    return heard")
def hear__no_error():
    """Returns too few in the end."""


@loses(24)
@changes("heard = {mail.rank: value}", "heard = {}")
def hear__not_itself():
    """Does not count its own value."""


@loses(24)
@changes('mail.send_all("round", key, value)', "[mail.send(r, 'round', key, value) for r in range(mail.rank + 1, mail.size)]")
def hear__sends_upwards():
    """Sends to higher ranks only."""


@loses(24)
@changes("                mail.keep(message)\n", "                hear.later = [*getattr(hear, 'later', []), message]\n")
def hear__keeps_for_itself():
    """Keeps later messages, and never looks at them again."""


@loses(24)
@changes(
    "    heard = {mail.rank: value}\n",
    "    heard, count = {mail.rank: value}, 1\n",
    "                mail.keep(message)\n            if len(heard) >= wanted:",
    "                mail.keep(message)\n            count += 1\n            if count >= wanted:",
)
def hear__counts_messages():
    """Counts messages, also those of other rounds."""


@right
@changes(
    ADOPT,
    """
        from collections import Counter

        proposal, _ = sorted(Counter(votes).items(), key=lambda item: (-item[1], item[0]))[0]
""",
)
def agree__counter():
    """Counts with a Counter."""


@right
@changes(
    ADOPT,
    "\n        proposal = max(sorted(set(votes), reverse=True), key=votes.count)\n        proposal = min(v for v in votes if votes.count(v) == votes.count(proposal))\n",
)
def agree__two_steps():
    """First the highest count, then the smallest with it."""


@right
def agree__recursive(mail, step, proposal, patience, number=2):
    """Calls itself for the next round."""
    heard = hear(mail, (step, number), tuple(proposal), mail.size - (mail.size - 1) // 3, 0, patience)
    best, most = None, 0
    for candidate in sorted(heard.values()):
        times = sum(1 for other in heard.values() if other == candidate)
        if times > most:
            best, most = candidate, times
    if 3 * most > 2 * mail.size:
        for r in range(mail.size):
            if r != mail.rank:
                mail.send(r, "round", (step, number + 1), best)
        return best
    return agree(mail, step, best, patience, number + 1)


@loses(8)
@changes(DECIDE, "        if 2 * votes.count(proposal) > len(votes):")
def agree__majority_of_the_heard():
    """Decides what most of those heard have proposed."""


@loses(8)
@changes("enough = 2 * mail.size // 3 + 1", "enough = mail.size // 2 + 1")
def agree__simple_majority():
    """Takes more than half for enough: the same with four ranks, but not with three."""


@loses(14)
@changes("enough = 2 * mail.size // 3 + 1", "enough = 2 * mail.size // 3")
def agree__two_of_four():
    """Rounds down: two of four are enough."""


@loses(8)
@changes(HELP, "")
def agree__leaves_at_once():
    """Says nothing more once it has decided."""


@loses(14)
@changes(
    "itertools.count(2)",
    "range(2, 50)",
    ADOPT,
    "\n        best = min(votes, key=lambda vote: (-votes.count(vote), vote))\n",
    DECIDE,
    "        if votes.count(best) >= enough:\n            proposal = best",
)
def agree__stubborn():
    """Keeps its own proposal until another one is decided, for many rounds."""


@loses(8)
@changes(ADOPT, "\n        proposal = max(votes, key=votes.count)\n")
def agree__first_of_equals():
    """Of equally frequent proposals it takes the one heard first, which is its own."""


@loses(8)
@changes(DECIDE, "        if True:")
def agree__one_round():
    """Decides after one round."""


@loses(14)
@changes("(step, number), proposal, enough", "(step, 2), proposal, enough")
def agree__always_the_same_round():
    """All rounds have the same key."""


@loses(19)
@changes("        if votes", "        proposal = heard[min(heard)]\n        if votes")
def agree__lowest_rank():
    """Takes over what the lowest rank that it hears has proposed."""


@loses(19)
@changes(ADOPT, "\n        proposal = tuple(sorted(set.intersection(*map(set, votes))))\n")
def agree__intersection():
    """Makes a proposal of its own: what all have in common."""


@loses(8)
@changes(
    "        heard = hear(mail, (step, number), proposal, enough, 0, patience)\n",
    "        try:\n            heard = hear(mail, (step, number), proposal, enough, 0, patience)\n        except TimeoutError:\n            return proposal\n",
)
def agree__gives_itself_an_answer():
    """Returns its own proposal when there are not enough."""


@loses(19)
@changes("(step, number), proposal, enough, 0, patience)", "(step, number), proposal, enough, patience, patience)")
def agree__waits_for_all():
    """Waits for all ranks as long as it can."""


@loses(8)
@changes(DECIDE, "        if votes.count(proposal) == len(votes):", "proposal, enough, 0", "proposal, 2, 0")
def agree__all_that_it_hears():
    """Decides when all those whom it hears agree, be it two."""


@loses(19)
@changes('mail.send_all("round", (step, number + 1), proposal)', 'mail.send_all("round", (step, number), proposal)')
def agree__helps_in_the_same_round():
    """Sends its decision once more, with the key of a round that is over."""


@loses(19)
@changes("(step, number), proposal", "(0, number), proposal", "(step, number + 1)", "(0, number + 1)")
def agree__forgets_the_step():
    """The rounds of all steps have the same keys."""


@loses(5)
@changes(
    """
        for other in 5 * sorted(others):
            self.mail.send(other, "join", self.step)
            for m in self.mail.listen("state", self.deadline):
                if m.key > self.step:
                    self.step, (weights, *state) = m.key, m.value
                    for p, weight in zip(self.params, weights, strict=True):
                        p.data[...] = weight
                    r.inner.state, r.outer.velocity, r.position, random = state
                    r.random.bit_generator.state = random
                    return self.save()
""",
    """
        for _ in range(5):
            self.mail.send_all("join", None)
            got, best = set(), None
            for m in self.mail.listen("state", self.deadline):
                got.add(m.source)
                best = max(m, best or m, key=lambda one: one.key)
                if got == others or (best.key > self.step and len(got) > 1):
                    break
            if best and best.key > self.step:
                self.step, (weights, r.inner.state, r.outer.velocity, r.position, random) = best.key, best.value
                for p, weight in zip(self.params, weights, strict=True):
                    p.data = weight
                r.random.bit_generator.state = random
                return self.save()
""",
)
def FaultTolerantDiLoCo__asks_all():
    """Asks all peers at once, and takes the newest state."""


@right
@changes(
    LOOK,
    """
        newest = step
        for m in list(mail.listen("round", 0)):
            if m.key[0] >= step:
                mail.keep(m)
            newest = max(newest, m.key[0])
        if newest > step:
            return self.join()
""",
    MEAN,
    """
            total = np.zeros_like(mine[i])
            for r in who:
                total += have[r][i]
            p.grad = total / (len(who) or 1)
""",
)
def FaultTolerantDiLoCo__forgets_old_messages():
    """Drops what is too old when it looks, and adds in place."""


@right
@changes(
    "sets = hear(mail, (step, 1), set(have), enough, 0, self.patience)",
    "sets = hear(mail, (step, 1), tuple(have), enough, 0, self.patience)",
    "common = tuple(sorted(set.intersection(*sets.values())))",
    "common = tuple(r for r in range(mail.size) if all(r in one for one in sets.values()))",
    "        self.params = replica.model.parameters()\n",
    "        self.params, self.times = replica.model.parameters(), 0\n",
    '"state", self.step, self.saved))',
    '"state", self.step, copy.deepcopy(self.saved)))',
)
def FaultTolerantDiLoCo__tuples():
    """Sends tuples, and counts in another way."""


@loses(5)
@changes("                    r.random.bit_generator.state = random\n", "")
def FaultTolerantDiLoCo__own_random_state():
    """Does not copy the random state."""


@loses(5)
@changes("r.inner.state, r.outer.velocity, r.position, random = state", "_, r.outer.velocity, r.position, random = state")
def FaultTolerantDiLoCo__own_inner_state():
    """Goes on with its own inner optimizer."""


@loses(5)
@changes("r.inner.state, r.outer.velocity, r.position, random = state", "r.inner.state, _, r.position, random = state")
def FaultTolerantDiLoCo__own_velocity():
    """Goes on with its own outer optimizer."""


@loses(5)
@changes("r.inner.state, r.outer.velocity, r.position, random = state", "r.inner.state, r.outer.velocity, _, random = state")
def FaultTolerantDiLoCo__own_position():
    """Goes on with its own position: trains samples again."""


@loses(11)
@changes("self.saved = copy.deepcopy(state)", "self.saved = state")
def FaultTolerantDiLoCo__not_a_copy():
    """Keeps the arrays themselves."""


@loses(11)
@changes(
    ANSWER,
    '\n        mail.on("join", self.answer)\n\n    def answer(self, m):\n        saved, random = self.saved, self.replica.random.bit_generator.state\n        self.save()\n        self.mail.send(m.source, "state", self.step, self.saved)\n        self.saved = saved\n',
)
def FaultTolerantDiLoCo__state_of_now():
    """Answers with its state in the middle of the step."""


@loses(5)
@changes(
    ANSWER,
    "\n",
    "        self.step += 1\n        self.save()\n",
    """        self.step += 1
        self.save()
        for m in mail.listen("join", 0):
            mail.send(m.source, "state", self.step, self.saved)
""",
)
def FaultTolerantDiLoCo__answers_at_the_end():
    """Answers after its step: not if that cannot end without the one who asks."""


@loses(5)
@changes(LOOK, "\n")
def FaultTolerantDiLoCo__never_looks():
    """Takes all missed steps one by one."""


@loses(11)
@changes("        list(map(mail.keep, here))\n", "")
def FaultTolerantDiLoCo__looks_and_forgets():
    """Looks at the messages, and throws them away."""


@loses(11)
@changes(MEAN, "            p.grad = sum(have[r][i] for r in sorted(have)) / len(have)")
def FaultTolerantDiLoCo__all_that_it_has():
    """Averages all differences that it has."""


@loses(11)
@changes(MEAN, "            p.grad = sum(have[r][i] for r in who) / mail.size")
def FaultTolerantDiLoCo__divides_by_all():
    """Divides by the number of all ranks."""


@loses(11)
@changes("set.intersection(*sets.values())", "have")
def FaultTolerantDiLoCo__own_list():
    """Proposes what it has itself."""


@loses(11)
@changes("set.intersection(*sets.values())", "set.union(*sets.values())")
def FaultTolerantDiLoCo__union():
    """Proposes what anybody has."""


@loses(11)
@changes(AGREE, "\n        who = common\n")
def FaultTolerantDiLoCo__does_not_agree():
    """Takes its own proposal for decided."""


@loses(11)
@changes(WITHOUT, "\n        who = tuple(r for r in who if r in have)\n")
def FaultTolerantDiLoCo__without_what_is_missing():
    """Leaves out what it does not have."""


@loses(11)
@changes("self.step, (weights, *state) = m.key, m.value", "weights, *state = m.value")
def FaultTolerantDiLoCo__own_step():
    """Copies all but the number of the step."""


@loses(11)
@changes("                    return self.save()\n", "                    return None\n")
def FaultTolerantDiLoCo__old_start():
    """Measures its next differences to its old weights."""


@loses(11)
@changes(
    "mail, step, enough = self.mail, self.step, 2 * self.mail.size // 3 + 1",
    "mail, step, enough = self.mail, self.step, 1",
    AGREE,
    "\n        who = common\n",
)
def FaultTolerantDiLoCo__alone_if_need_be():
    """Goes on with whoever is there."""


@loses(11)
@changes(MEAN, "            p.grad = sum(have[r][i] for r in have if r in who) / len(who)")
def FaultTolerantDiLoCo__own_order():
    """Adds in the order in which the differences came."""


@loses(5)
@changes("for other in 5 * sorted(others):", "for other in 5 * [min(others)]:")
def FaultTolerantDiLoCo__asks_one():
    """Asks always the same peer."""


@loses(11)
@changes("            p.data[...] = self.saved[0][i]\n", "")
def FaultTolerantDiLoCo__from_here():
    """Takes the outer step from its own weights."""


@loses(11)
@changes("        self.step += 1\n        self.save()\n", "        self.step += 1\n")
def FaultTolerantDiLoCo__never_saves():
    """Its start is always the first one."""


@loses(24)
@changes(
    '        for message in mail.listen("round", seconds):\n',
    "        for message in restarted(mail, seconds):\n",
    '    mail.send_all("round", key, value)\n',
    """
    def restarted(mail, seconds):
        while True:
            for message in mail.listen("round", seconds):
                yield message
                break
            else:
                return

    mail.send_all("round", key, value)
""",
)
def hear__restarts_the_deadline():
    """Waits anew after each message."""


@loses(5)
@changes("(enough, patience))", "(enough, patience - deadline))")
def hear__patience_from_the_start():
    """Counts the patience from the start."""


@loses(5)
@changes("(enough, patience))", "(enough, 3 * patience))")
def hear__three_times_as_patient():
    """Waits three times as long."""


@loses(5)
@changes("(enough, patience))", "(enough, patience / 2))")
def hear__half_as_patient():
    """Waits half as long."""


@loses(8)
@changes("itertools.count(2)", "range(2, 4)")
def agree__two_rounds():
    """Gives up after two rounds."""


@loses(19)
@changes("itertools.count(2)", "itertools.count(1)")
def agree__from_one():
    """Rounds from 1."""


@loses(8)
@changes("(-votes.count(vote), vote)", "(-votes.count(vote), tuple(-k for k in vote))")
def agree__larger():
    """Takes the larger of equally frequent ones."""


@loses(8)
@changes(
    "    enough = 2 * mail.size // 3 + 1\n",
    "    mine, enough = proposal, 2 * mail.size // 3 + 1\n",
    HELP,
    """
            mail.send_all("round", (step, number + 1), mine)
""",
)
def agree__helps_with_its_first():
    """Sends its first proposal at the end."""


@loses(19)
@changes("proposal, enough, 0, patience)", "proposal, mail.size, 0, patience)")
def agree__needs_all():
    """Needs all ranks."""


@loses(8)
@changes(
    ADOPT,
    "\n        best = min(votes, key=lambda vote: (-votes.count(vote), vote))\n        proposal = best if votes.count(best) > 1 else proposal\n",
)
def agree__own_if_all_differ():
    """Keeps its own if all differ."""


@loses(11)
@changes(
    "hear(mail, (step, 0), mine, enough, self.deadline, self.patience)", "hear(mail, (step, 0), mine, enough, self.patience, self.patience)"
)
def FaultTolerantDiLoCo__deadline_is_patience():
    """Waits for all as long as it can."""


@loses(11)
@changes("        have = hear", "        everyone.Barrier()\n        have = hear")
def FaultTolerantDiLoCo__barrier():
    """A Barrier in each step."""


@loses(11)
@changes(
    AGREE,
    """
        here = np.empty((mail.size, mail.size), int)
        everyone.Allgather(np.array([int(r in common) for r in range(mail.size)]), here)
        who = tuple(r for r in range(mail.size) if here[:, r].all())
""",
)
def FaultTolerantDiLoCo__allgather():
    """Agrees by a collective."""


@loses(11)
@changes("mail, step, enough = self.mail, self.step, 2 * self.mail.size // 3 + 1", "mail, step, enough = self.mail, self.step, 2")
def FaultTolerantDiLoCo__two_enough():
    """Two are enough for the exchange."""


@loses(11)
@changes(
    "mail, step, enough = self.mail, self.step, 2 * self.mail.size // 3 + 1",
    "mail, step, enough = self.mail, self.step, 2",
    AGREE,
    "\n        who = common\n",
)
def FaultTolerantDiLoCo__two_go_on():
    """Two go on without an agreement."""


@loses(5)
@changes("                        p.data[...] = weight\n", "                        pass\n")
def FaultTolerantDiLoCo__own_weights():
    """Own weights."""


@loses(5)
@changes("self.step, (weights, *state) = m.key, m.value", "self.step, (weights, *state) = self.step + 1, m.value")
def FaultTolerantDiLoCo__one_further():
    """A joiner counts on by one."""


@loses(5)
@changes(ANSWER, "\n")
def FaultTolerantDiLoCo__no_answer():
    """Does not answer."""


@loses(5)
@changes('listen("state", self.deadline)', 'listen("state", 0)')
def FaultTolerantDiLoCo__does_not_wait_for_the_answer():
    """Looks for an answer at once."""


@loses(5)
@changes(
    ANSWER,
    '\n        mail.on("join", lambda m: mail.rank == 0 and mail.send(m.source, "state", self.step, self.saved))\n',
)
def FaultTolerantDiLoCo__rank_0_answers():
    """Only rank 0 answers."""


@loses(5)
@changes("self.saved = copy.deepcopy(state)", "self.saved = [copy.deepcopy(weights), *state[1:]]")
def FaultTolerantDiLoCo__only_weights_copied():
    """Copies the weights only."""


@loses(5)
@changes("self.saved = copy.deepcopy(state)", "self.saved = [copy.deepcopy(weights), dict(r.inner.state), *copy.deepcopy(state[2:])]")
def FaultTolerantDiLoCo__inner_shallow():
    """Copies the inner state's dict only."""


@loses(5)
@changes(
    ANSWER,
    """
        mail.on("join", lambda m: mail.send(m.source, "state", self.step, (*self.saved[:4], replica.random.bit_generator.state)))
""",
)
def FaultTolerantDiLoCo__random_of_now():
    """Answers with its random state of now."""


@loses(11)
@changes(
    ANSWER,
    """
        mail.on("join", lambda m: mail.send(m.source, "state", self.step, (*self.saved[:3], replica.position, self.saved[4])))
""",
)
def FaultTolerantDiLoCo__position_of_now():
    """Answers with its position of now."""


@loses(11)
@changes(WITHOUT, "\n        if not set(who) <= set(have):\n            return None\n")
def FaultTolerantDiLoCo__skips_what_it_misses():
    """Tries the step again."""


@loses(11)
@changes("        return who\n", "        return tuple(sorted(have))\n")
def FaultTolerantDiLoCo__returns_whom_it_has():
    """Returns whose differences it has."""


@loses(11)
@changes("set(have), enough, 0, self.patience)", "set(have), enough, self.deadline, self.patience)")
def FaultTolerantDiLoCo__deadline_twice():
    """A deadline in round 1, too."""


@loses(24)
@changes("        if len(heard) >= wanted:\n            return heard\n        for message", "        for message")
def hear__looks_at_enough_with_the_next_message_only():
    """Looks whether there are enough only when a message comes, not when the deadline is over."""


@loses(16)
@changes(
    WAIT,
    """
    begin = time.monotonic()
    for message in mail.listen("round", deadline + patience) if mail.size > 1 else ():
        if message.key == key:
            heard[message.source] = message.value
        elif message.key > key:
            mail.keep(message)
        if len(heard) >= (mail.size if time.monotonic() - begin < deadline else enough):
            return heard
    if len(heard) >= enough:
        return heard
""",
)
def hear__one_wait():
    """Waits once, for deadline and patience together, and looks at a clock when a message comes."""


@loses(24)
@changes("                mail.keep(message)\n", "                mail.keep(message)\n                break\n")
def hear__stops_at_a_later_message():
    """Ends a wait when a message of a later round comes."""


@loses(19)
@changes("itertools.count(2)", "itertools.count(0)")
def agree__from_zero():
    """Rounds from 0."""


@loses(19)
@changes("            return proposal\n", "            return list(proposal)\n")
def agree__list():
    """Returns a list."""


@loses(5)
@changes(WITHOUT, "\n        if not set(who) <= set(have):\n            self.step += 1\n            self.save()\n            return None\n")
def FaultTolerantDiLoCo__copies_nothing():
    """Counts the step that it cannot take, and copies nothing."""


@loses(6)
@changes("if not set(who) <= set(have):", "if not set(who) <= set(common):")
def FaultTolerantDiLoCo__compares_with_its_proposal():
    """Copies a state although it has all differences that count, but had not proposed them."""


@loses(5)
@changes("                if m.key > self.step:\n", "                if True:\n")
def FaultTolerantDiLoCo__any_state():
    """Takes a state of any step."""


@loses(5)
@changes("if m.key > self.step:", "if m.key >= self.step:")
def FaultTolerantDiLoCo__state_of_the_same_step():
    """Takes a state of its own step, too."""


@loses(6)
@changes("        self.replica.outer.step()\n", "        if who:\n            self.replica.outer.step()\n")
def FaultTolerantDiLoCo__no_outer_step_for_nobody():
    """Takes no outer step if no difference counts."""


@loses(6)
@changes("if any(m.key[0] > step for m in here):", "if any(m.key > (step, 0) for m in here):")
def FaultTolerantDiLoCo__any_later_round():
    """Takes itself for behind if the others are in a later round of its own step."""


@loses(6)
@changes("if not set(who) <= set(have):", "if mail.rank not in who or not set(who) <= set(have):")
def FaultTolerantDiLoCo__copies_if_it_does_not_count():
    """Copies a state whenever its own difference does not count."""


@loses(11)
@changes("return self.save()\n        raise", "self.save()\n                    return self.step\n        raise")
def FaultTolerantDiLoCo__returns_the_step():
    """Returns the step after a copy."""


@loses(11)
@changes("        return who\n", "        return list(who)\n")
def FaultTolerantDiLoCo__list():
    """Returns a list."""


@loses(5)
@changes("for other in 5 * sorted(others):", "for other in sorted(others):")
def FaultTolerantDiLoCo__asks_each_once():
    """Asks each peer once."""


@loses(5)
@changes("for other in 5 * sorted(others):", "for other in itertools.cycle(sorted(others)):")
def FaultTolerantDiLoCo__asks_for_ever():
    """Asks without an end."""


@right
@changes(
    AVERAGE,
    """
            every = np.empty((self.comm.Get_size(), *start.shape), start.dtype)
            self.comm.Allgather(start - p.data, every)
            p.grad = every.mean(axis=0)
""",
    BCAST,
    """
        for p in self.params:
            every = np.empty((comm.Get_size(), *p.data.shape), p.data.dtype)
            comm.Allgather(p.data, every)
            p.data = every[0].copy()
""",
)
def DiLoCo__all_gather():
    """Gathers all differences, once in H steps, and all weights at the start."""


@right
@changes(
    '    mail.send_all("round", key, value)\n',
    """    for k in range(6):
        mail.send_all("hello", k)
    for other in range(mail.size):
        mail.send(other, "round", key, value)
""",
)
def hear__says_hello():
    """Says hello six times, and sends its value to itself, too."""


@right
def agree__without_hear(mail, step, proposal, patience):
    """Listens itself, and stops as soon as enough are heard."""
    from collections import Counter

    need, number = mail.size - (mail.size - 1) // 3, 2
    while True:
        mail.send_all("round", (step, number), proposal)
        votes = [proposal]
        for message in mail.listen("round", patience) if mail.size > 1 else ():
            if message.key == (step, number):
                votes.append(message.value)
            elif message.key > (step, number):
                mail.keep(message)
            if len(votes) >= need:
                break
        if len(votes) < need:
            raise TimeoutError
        most = max(Counter(votes).values())
        proposal, number = min(vote for vote in votes if votes.count(vote) == most), number + 1
        if most >= need:
            mail.send_all("round", (step, number), proposal)
            return proposal


@right
@changes(
    ANSWER,
    """
        mail.on("join", lambda m: [mail.send(m.source, "state", self.step, (i, x)) for i, x in enumerate(self.saved)])
""",
    """
            for m in self.mail.listen("state", self.deadline):
                if m.key > self.step:
                    self.step, (weights, *state) = m.key, m.value
""",
    """
            pieces = {}
            for m in self.mail.listen("state", self.deadline):
                if m.key > self.step:
                    pieces.setdefault((m.source, m.key), {})[m.value[0]] = m.value[1]
                if len(pieces.get((m.source, m.key), ())) == 5:
                    self.step, (weights, *state) = m.key, [pieces[m.source, m.key][i] for i in range(5)]
""",
)
def FaultTolerantDiLoCo__state_in_pieces():
    """Answers with five messages."""


@loses(6)
@changes("        self.inner.step()\n", "        self.inner.step()\n        self.comm.Barrier()\n")
def DiLoCo__barrier_in_every_step():
    """All ranks wait for each other in every inner step."""


@loses(6)
@changes(
    "        self.start, self.count = [p.data.copy() for p in self.params], 0",
    "        self.start = [p.data.copy() for p in self.params]\n        DiLoCo.count = 0",
    "self.count += 1",
    "DiLoCo.count += 1",
)
def DiLoCo__count_of_the_class():
    """Two trainers count their steps together."""


@loses(6)
@changes(
    "            p.grad = np.empty_like(start)\n",
    "            if p.grad is None:\n                continue\n            p.grad = np.empty_like(start)\n",
)
def DiLoCo__skips_parameters_without_a_gradient():
    """Does not exchange a parameter that had no gradient in the last step."""


@loses(6)
@changes("            p.data[...] = start\n", "            p.grad = np.nan_to_num(p.grad)\n            p.data[...] = start\n")
def DiLoCo__hides_nan():
    """Turns differences that are not numbers into zeros."""


@loses(24)
@changes('    mail.send_all("round", key, value)\n', '    mail.send_all("round", key, value)\n    mail.send_all("round", key, value)\n')
def hear__twice():
    """Sends everything twice."""


@loses(5)
@changes("            elif message.key > key:\n", "            elif message.key[0] >= key[0]:\n")
def hear__keeps_old_rounds():
    """Keeps messages of earlier rounds of a step, which nobody asks for any more."""


@loses(14)
@changes("    enough = 2 * mail.size // 3 + 1\n", "    enough = mail.size - (mail.size > 3)\n")
def agree__all_but_one():
    """Needs all ranks but one, which is right for four."""


@loses(8)
@changes("(-votes.count(vote), vote)", "(-votes.count(vote), len(vote), vote)")
def agree__shorter_first():
    """Takes the shorter of equally frequent tuples."""


@loses(6)
@changes(
    "        have = hear(mail, (step, 0), mine",
    "        hear(mail, (step, -1), mine, enough, self.deadline, self.patience)\n        have = hear(mail, (step, 0), mine",
)
def FaultTolerantDiLoCo__differences_twice():
    """Sends its differences in two rounds."""


@loses(5)
@changes("                if m.key > self.step:\n", "                if m.key > self.step + 1:\n")
def FaultTolerantDiLoCo__two_ahead():
    """Waits for a peer that is two steps ahead."""


@loses(6)
@changes(
    "        self.inner.step()\n",
    "        idle = all(p.grad is None for p in self.params)\n        self.inner.step()\n",
    "        if self.count % self.every:\n",
    "        if self.count % self.every or idle:\n",
)
def DiLoCo__leaves_out_an_exchange_without_a_gradient():
    """Makes no exchange if no parameter has a gradient on this rank, which the others wait for."""


@loses(6)
@changes(
    "        self.inner.step()\n",
    """        if all(p.grad is None for p in self.params):
            return
        self.inner.step()
""",
)
def DiLoCo__does_not_count_steps_without_a_gradient():
    """Does not count a step without gradients, so that the ranks' counts differ."""


@loses(6)
@changes(
    "        self.outer.step()\n",
    "        if any(p.grad.any() for p in self.params):\n            self.outer.step()\n",
)
def DiLoCo__no_outer_step_for_a_mean_of_0():
    """Takes no outer step if all means are 0, as if there were no momentum."""


@loses(6)
@changes(
    "            p.data[...] = start\n",
    "            p.data[...] = start\n            p.grad = p.grad if p.grad.any() else None\n",
)
def DiLoCo__leaves_out_parameters_with_a_mean_of_0():
    """Takes no outer step of a parameter whose mean is 0."""


@loses(6)
@changes(
    """
        for p, start in zip(self.params, self.start, strict=True):
            p.grad""",
    """
        for p, start in zip(self.params, self.start, strict=True):
            if not (start - p.data).any():
                p.grad = np.zeros_like(start)
                continue
            p.grad""",
)
def DiLoCo__exchanges_changes_only():
    """Does not exchange what has not changed on this rank."""


@loses(5)
@changes(
    "    heard = {mail.rank: value}\n",
    "    heard, later = {mail.rank: value}, []\n",
    WAIT,
    """
    for wanted, seconds in ((mail.size, deadline), (enough, patience)):
        for message in mail.listen("round", seconds) if len(heard) < wanted else ():
            if message.key == key:
                heard[message.source] = message.value
            elif message.key > key:
                later.append(message)
            if len(heard) >= wanted:
                break
        if len(heard) >= wanted:
            for message in later:
                mail.keep(message)
            return heard
""",
)
def hear__loses_later_messages_with_an_error():
    """Puts later messages back when the round is over, but not before a TimeoutError."""


@right
@changes(
    "    heard = {mail.rank: value}\n",
    "    heard, later = {mail.rank: value}, []\n",
    WAIT,
    """
    try:
        for wanted, seconds in ((mail.size, deadline), (enough, patience)):
            if len(heard) >= wanted:
                return heard
            for message in mail.listen("round", seconds):
                if message.key == key:
                    heard[message.source] = message.value
                elif message.key > key:
                    later.append(message)
                if len(heard) >= wanted:
                    return heard
    finally:
        for message in later:
            mail.keep(message)
""",
)
def hear__keeps_at_the_end():
    """Puts later messages back however the round ends."""


@loses(8)
@changes(DECIDE, "        if 3 * votes.count(proposal) > 2 * len(votes):")
def agree__two_thirds_of_the_heard():
    """Decides by two thirds of those heard: the same with four ranks, but not with five."""


@loses(8)
@changes(DECIDE, "        if 2 * votes.count(proposal) > mail.size:")
def agree__decides_by_a_majority():
    """Decides what most of all ranks have sent: the same with four ranks, but not with five."""


@loses(8)
@changes("itertools.count(2)", "range(2, 5)")
def agree__three_rounds():
    """Gives up after three rounds."""


@loses(8)
@changes(
    "itertools.count(2)",
    "range(2, 10)",
    "            return proposal\n",
    "            return proposal\n    return proposal\n",
)
def agree__eight_rounds():
    """Takes its proposal for decided after eight rounds."""


@loses(8)
@changes(
    HELP,
    """
            for r in range(mail.size):
                if r != mail.rank and heard.get(r) != proposal:
                    mail.send(r, "round", (step, number + 1), proposal)
""",
)
def agree__helps_all_but_those_with_the_same_vote():
    """Sends its decision to those only that it has not heard propose it."""


@loses(8)
@changes(
    HELP,
    """
            for r in heard.keys() - {mail.rank}:
                if heard[r] != proposal:
                    mail.send(r, "round", (step, number + 1), proposal)
""",
)
def agree__helps_dissenters():
    """Sends its decision to those only that it has heard propose something else."""


@loses(8)
@changes(
    HELP,
    """
            for r in heard.keys() - {mail.rank}:
                mail.send(r, "round", (step, number + 1), proposal)
""",
)
def agree__helps_those_heard():
    """Sends its decision to those only that it has heard."""


@loses(5)
@changes(
    '            self.mail.send(other, "join", self.step)\n',
    '            if other == min(others):\n                self.mail.send_all("join", self.step)\n',
)
def FaultTolerantDiLoCo__asks_all_for_the_first():
    """Asks all peers at once, and takes the first later state."""


@right
@changes(
    "                if m.key > self.step:\n",
    "                if m.key <= self.step:\n                    break\n                if m.key > self.step:\n",
    "for other in 5 * sorted(others):",
    "for other in 8 * sorted(others, reverse=True):",
)
def FaultTolerantDiLoCo__asks_the_next_at_once():
    """Asks the next peer as soon as a state is not of a later step, the last rank first."""
