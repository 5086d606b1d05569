# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 37 Training that survives
#
# **You will build** a run that goes on without a silent rank: training with few exchanges, an agreement on who takes part, and a way back.
#
# *{points} points. About 100 minutes.*

# %% Start the ranks tags=["given"]
from course_lib import cluster, plots
from course_lib.check.survival.check import AgreementCheck, DiLoCoCheck, SurvivalCheck

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import copy
import itertools
import time

import numpy as np

from course_lib.collectives import Communicator, Messenger
from course_lib.replica import digits_replica

everyone = Communicator()

# %% [markdown] tags=["slide"]
# In data parallel training, all ranks wait for the slowest in every step. With checkpoints ([part 27](27_checkpoint.ipynb)), a run that has
# lost a rank starts again. Here, the others go on. A rank **falls silent**: it hangs, does not know that, and may be back any moment.

# %% Draw a silent rank tags=["slide"]
ranks.silence(2, seconds=0.5)
with ranks.trace("A barrier, and a silent rank"):
    ranks.run("everyone.Barrier()")

# %% [markdown] tags=["slide-50"]
# ## Your turn: DiLoCo
# First, talk less. In **DiLoCo** (Douillard et al., 2023, "DiLoCo: Distributed low-communication training of language models"), each rank
# takes H steps by itself, with its own `inner` optimizer. With $\theta$ the weights after the previous exchange, and $\theta_r$ those of
# rank r now, $\frac{1}{n} \sum_r (\theta - \theta_r)$ is the gradient of an **outer step** from $\theta$. The `outer` optimizer is gradient
# descent with Nesterov's momentum: set `p.data` and `p.grad`, then `step()`. What is it with H = 1, plain `inner`, and plain `outer` of rate 1?


# %% Exercise: DiLoCo tags=["exercise", "slide-50"]
# %%px
class DiLoCo:
    """Train with an exchange every few steps; all start with rank 0's weights.

    An exchange makes all weights the same, bit for bit. In an exchange, as at the
    start, a rank sends at most what an all-gather of the weights sends, and 1,024 bytes
    besides. It makes at most 4 calls for each parameter, and none between exchanges.
    """

    def __init__(self, model, inner, outer, every, comm):
        self.inner, self.outer, self.every, self.comm = inner, outer, every, comm
        self.params = model.parameters()
        ### BEGIN SOLUTION
        for p in self.params:
            comm.Bcast(p.data, root=0)
        self.start, self.count = [p.data.copy() for p in self.params], 0
        ### END SOLUTION

    def step(self):
        """Take an inner step with the gradients; after `every` ones, an outer step."""
        ### BEGIN SOLUTION
        self.inner.step()
        self.count += 1
        if self.count % self.every:
            return
        for p, start in zip(self.params, self.start, strict=True):
            p.grad = np.empty_like(start)
            self.comm.Allreduce(start - p.data, p.grad)
            p.grad /= self.comm.Get_size()
            p.data[...] = start
        self.outer.step()
        self.start = [p.data.copy() for p in self.params]
        ### END SOLUTION


# %% Check DiLoCo tags=["given"]
DiLoCoCheck("DiLoCo", ranks).as_data_parallel().train(4, every=3).train(2, every=2).costs(4, every=2).missing_gradients(2).passed()

# %% [markdown] tags=["slide"]
# ## Messages that nobody waits for
#
# Collectives need all ranks. `mail = Messenger(everyone)` has others: `mail.send_all(topic, key, value)` sends to all others,
# `mail.send(dest, topic, key, value)` to one rank, and neither waits. `for message in mail.listen(topic, seconds)` yields messages as they
# arrive, until the time is over (0: those already here). Each has `source`, `key` and `value`; `mail.keep(message)` puts it back for the
# next `listen`. **No message is lost, but some are late**: a silent rank gets its messages, and sends its own, once back. Who hears whom?


# %% Send, and listen for a while tags=["experiment", "slide"]
def greet():
    mail = Messenger(everyone)
    mail.send_all("hello", 1)
    return [message.source for message in mail.listen("hello", 0.3)]


ranks.silence(2, seconds=0.6, after=3)  # the Messenger itself sends once
ranks.call(greet)

# %% [markdown] tags=["slide-50"]
# ## Your turn: hear
#
# Everything that follows happens in **rounds**: a rank sends a value to all, and hears the others' values of *the same* round. A key is the
# number of the outer step, and a number within it. Tuples compare as words do: (3, 1) comes before (3, 2) and (4, 0). A message with an
# earlier key comes too late: forget it. One with a later key comes from a rank that is ahead: keep it. The topic is "round".


# %% Exercise: hear tags=["exercise", "slide-50"]
# %%px
def hear(mail, key, value, enough, deadline, patience):
    """Send a value to all others, and return what is heard: {rank: value}.

    The rank's own value is among them, and counts. Ends at once when all are heard.
    After `deadline` seconds, ends at once if `enough` are; if not, as soon as they
    are, or with a TimeoutError after `patience` more. Only `listen` measures time.
    Sends each other rank 1 message, and calls no collective. Other topics do not
    arrive. Messages of later rounds are kept, also with a TimeoutError.
    """
    ### BEGIN SOLUTION
    mail.send_all("round", key, value)
    heard = {mail.rank: value}
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
    raise TimeoutError(f"rank {mail.rank} hears only {sorted(heard)} in round {key}")
    ### END SOLUTION


# %% Check hear tags=["given"]
AgreementCheck("hear", ranks).hear_all().hear_late(1).hear_without(3, late=0).hear_patiently(0, 2).passed()

# %% [markdown] tags=["slide"]
# ## Your turn: agree
#
# Rank 3 sends its update to ranks 0 and 1, and falls silent. Does it count? All must give the same answer: this is **consensus**. It needs
# a majority, as two halves that do not see each other must never both go on. In *OneThirdRule* (Charron-Bost and Schiper, 2009, "The
# Heard-Of model: computing in distributed systems with benign faults"), each rank has a proposal. In each round it
#
# 1. sends its proposal to all, and hears more than $2n/3$ of the n ranks, itself counted: `enough`;
# 2. takes over the most frequent proposal that it has heard; if two are equally frequent, the smaller one;
# 3. if it has heard this one more than $2n/3$ times, it is **decided**.
#
# If v is decided, more than $2n/3$ ranks have sent v. So whoever hears more than $2n/3$ ranks hears v from most of them, and takes it over.
# In the next round, all send v. A rank that has decided sends v once more in the next round, for those that have not, and returns.


# %% Exercise: agree tags=["exercise", "slide-50"]
# %%px
def agree(mail, step, proposal, patience):
    """Agree on one of the ranks' proposals, tuples of int: the same on all ranks.

    Rounds (step, 2), (step, 3), ..., with a deadline of 0: each ends with enough ranks.
    If all propose the same, a rank sends at most 3 messages to each other one.
    """
    ### BEGIN SOLUTION
    enough = 2 * mail.size // 3 + 1
    for number in itertools.count(2):
        heard = hear(mail, (step, number), proposal, enough, 0, patience)
        votes = list(heard.values())
        proposal = min(votes, key=lambda vote: (-votes.count(vote), vote))
        if votes.count(proposal) >= enough:
            mail.send_all("round", (step, number + 1), proposal)
            return proposal
    ### END SOLUTION


# %% Check agree tags=["given"]
AgreementCheck("agree", ranks).agree_on(3).agree_among_three(1).agree_late(3, 2).agree_split(3, 2).agree_without(0).passed()

# %% [markdown] tags=["slide-50"]
# ## Your turn: survive
#
# In an outer step, first look at all messages about "round" that are here, and put them back. If one is of a later step, this step was
# decided without you. If not (in all rounds, `enough` is the smallest number above $2n/3$):
#
# 1. round (step, 0), with the `deadline`: send your differences $\theta - \theta_r$, a list with an array for each parameter;
# 2. round (step, 1), deadline 0: send the ranks whose differences you have. Propose those that are in *every* set you hear, and in yours;
# 3. `agree`: whose differences count. All take the outer step with the mean of exactly these, added in rank order; zero, if there are none.
#
# If you are behind, or lack a difference that counts, throw your work away and **copy** a peer's state: weights, both optimizers, position
# and random state, *as at the start of its present step*, in which you then take part. Ask one peer after the other, `deadline` seconds
# each, until a state is of a later step; after some rounds TimeoutError. `mail.on("join", f)`: f gets each "join" message while you listen.


# %% Exercise: FaultTolerantDiLoCo tags=["exercise", "slide-50"]
# %%px
class FaultTolerantDiLoCo:
    """DiLoCo that goes on without silent ranks, and lets them come back.

    The replica has `model`; `inner`, an Adam with a dict `state`; `outer`, an SGD with
    a dict `velocity`; `position`; `random`, a Generator. `step` counts outer steps.
    A step sends the differences once to each other rank, and at most 10,000 bytes
    besides. A rank that copies nothing sends no "join". Other topics arrive only in
    answer to one. The next peer is asked after an answer, or `deadline` seconds.
    """

    def __init__(self, replica, mail, deadline, patience):
        self.replica, self.mail, self.step = replica, mail, 0
        self.deadline, self.patience = deadline, patience
        ### BEGIN SOLUTION
        self.params = replica.model.parameters()
        self.save()
        mail.on("join", lambda m: mail.send(m.source, "state", self.step, self.saved))

    def save(self):
        r, weights = self.replica, [p.data for p in self.params]
        random = r.random.bit_generator.state
        state = weights, r.inner.state, r.outer.velocity, r.position, random
        self.saved = copy.deepcopy(state)

    def join(self):
        r, others = self.replica, set(range(self.mail.size)) - {self.mail.rank}
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
        raise TimeoutError(f"rank {self.mail.rank} finds nobody who is ahead")
        ### END SOLUTION

    def outer_step(self):
        """Take an outer step after ``replica.inner_steps()``, or copy a peer's state.

        Returns whose differences counted, as a tuple in ascending order; None if it has
        copied a state: `step` is then the peer's. TimeoutError if too few are there.
        """
        ### BEGIN SOLUTION
        mail, step, enough = self.mail, self.step, 2 * self.mail.size // 3 + 1
        here = list(mail.listen("round", 0))
        list(map(mail.keep, here))
        if any(m.key[0] > step for m in here):
            return self.join()
        mine = [old - p.data for old, p in zip(self.saved[0], self.params, strict=True)]
        have = hear(mail, (step, 0), mine, enough, self.deadline, self.patience)
        sets = hear(mail, (step, 1), set(have), enough, 0, self.patience)
        common = tuple(sorted(set.intersection(*sets.values())))
        who = agree(mail, step, common, self.patience)
        if not set(who) <= set(have):
            return self.join()
        for i, p in enumerate(self.params):
            p.data[...] = self.saved[0][i]
            p.grad = sum((have[r][i] for r in who), 0 * mine[i]) / max(len(who), 1)
        self.replica.outer.step()
        self.step += 1
        self.save()
        return who
        ### END SOLUTION


# %% Check FaultTolerantDiLoCo tags=["given"]
SurvivalCheck("FaultTolerantDiLoCo", ranks).undisturbed().silent(2).different_sets(2, 3).half(1, 2).passed()

# %% [markdown] tags=["slide"]
# ## Who took part when, and what it costs
# Rank 2 falls silent in the middle of an exchange, then rank 1, then both at once: what do ranks 0 and 3 do? Change who, when, how long.


# %% Train with silences tags=["given", "skip"]
# %%px
def train(steps, every, deadline):
    replica, mail, found = digits_replica(everyone, every), Messenger(everyone), []
    trainer = FaultTolerantDiLoCo(replica, mail, deadline, patience=10)
    try:
        while trainer.step < steps:
            step, loss = trainer.step, replica.inner_steps()
            found.append((step, trainer.outer_step(), trainer.step, loss, time.monotonic()))
    except TimeoutError as error:
        print(f"Rank {mail.rank} gives up in step {trainer.step}: {error}.")
    list(mail.listen("nothing", 3 * deadline))  # a late rank still gets an answer
    return found


# %% Draw who was in tags=["experiment", "slide"]
for r, sends, seconds in ((2, 62, 0.8), (1, 148, 0.5), (2, 182, 1.5), (1, 208, 0.9)):
    ranks.silence(r, seconds, after=sends)
found = ranks.call("train", dict(steps=30, every=10, deadline=0.15), show=True)
plots.membership(found, "Who was in each outer step, the loss, and the time")

# %% Count the bytes tags=["experiment", "slide"]
runs = {}
for every in (1, 2, 5, 10):
    turns = ranks.call("train", dict(steps=40 // every, every=every, deadline=0.3))
    loss = sum(turn[3] for turn in turns[0][-10 // every :]) * every / 10
    runs[f"H = {every}: loss {loss:.2f}"] = [m for m in ranks.traffic[0] if "Send" in m]
plots.traffic(list(runs.values()), "What rank 0 sends in 40 inner steps", list(runs))

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - torchft (PyTorch): `DiLoCo` in `torchft/local_sgd.py`. A server, the *lighthouse* (`src/lighthouse.rs`), finds the quorum.
# - OpenDiLoCo (`hivemind_diloco.py`) finds peers in a distributed hash table. Raft, as in etcd, has a leader: a majority is enough.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
# 1. How many of seven ranks may be silent? With four, more than $2n/3$ are three, as is a majority. With seven, why is a majority too few?
# 2. The difference of a silent rank is thrown away. Would it help to add it when the rank is back? What if it is ten steps old?

# %% [markdown] tags=["skip"]
# ## Hidden tests
# They run when your notebook is graded. Time stands still there while a rank computes. Ranks fall silent before, in and after an exchange.

# %% Test: outer steps tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = DiLoCoCheck("DiLoCo", ranks, show=False).everything()
### END HIDDEN TESTS

# %% Test: rounds tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = AgreementCheck("hear", ranks, show=False).rounds()
### END HIDDEN TESTS

# %% Test: agreement tags=["test"] points=8
### BEGIN HIDDEN TESTS
check = AgreementCheck("agree", ranks, show=False).agreements()
### END HIDDEN TESTS

# %% Test: the survivors tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = SurvivalCheck("FaultTolerantDiLoCo, the survivors", ranks, show=False).survivors()
### END HIDDEN TESTS

# %% Test: who comes back tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = SurvivalCheck("FaultTolerantDiLoCo, who comes back", ranks, show=False).returns()
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
