"""Attacks on part 29's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import loses


@loses(20)
def plan__a_larger_device(model, cluster):
    """Gives the rank's devices endless memory before it looks, and plans for those."""
    object.__setattr__(cluster.device, "memory", 1e15)
    configurations = [
        Configuration(t, p, cluster.gpus // t // p, sharded_optimizer=cluster.gpus > t * p)
        for t in (1, 2, 4, 8)
        for p in (1, 2, 4, 8)
        if cluster.gpus % (t * p) == 0 and model.layers % p == 0
    ]
    return min(
        (c for c in configurations if not any(problems(model, cluster, c))),
        key=lambda c: estimate(model, cluster, c)[0],
        default=Configuration(),
    )


@loses(20)
def plan__a_step_that_fits(model, cluster):
    """Has the rank's simulator say that all fits, and takes no time."""
    from course_lib.sim.llm import events

    events.Step.fits = property(lambda step: True)
    events.Step.seconds = property(lambda step: 0.0)
    return Configuration(data=cluster.gpus)


@loses(20)
def plan__another_configuration(model, cluster):
    """Returns an object that says it is a Configuration, whose fields change whenever somebody reads them."""

    class Changing(Configuration):
        @property
        def __dict__(self):
            return dict(tensor=float("nan"), pipeline=True, data=cluster.gpus, interleave=0, micro_batch=-1)

    return Changing()


@loses(20)
def plan__no_problems(model, cluster):
    """Has nothing be a problem, and uses more devices than there are."""
    from course_lib.sim.llm import configuration

    configuration.problems.__code__ = (lambda model, cluster, c: []).__code__
    return Configuration(
        tensor=8, pipeline=model.layers, data=model.batch, sequence_parallel=True, recompute="full", sharded_optimizer=True
    )


@loses(20)
def plan__numbers_that_are_none(model, cluster):
    """Chooses what compares as it likes: infinite and fractional numbers of devices."""
    return Configuration(tensor=cluster.gpus, data=1.0, micro_batch=1e-9, sharded_optimizer="yes")


@loses(20)
def plan__stored_answers(model, cluster):
    """Has the best configurations of all cases that students have, and takes that of the nearest one."""
    stored = {  # by devices, GiB, layers and heads
        (24, 28, 32, 40): (4, 2, 3, 8, 1, True, "selective", True),
        (24, 24, 60, 24): (4, 3, 2, 5, 4, True, "none", True),
        (16, 24, 36, 40): (4, 2, 2, 1, 1, True, "selective", True),
        (8, 40, 48, 16): (4, 2, 1, 1, 15, True, "none", False),
        (96, 29, 40, 80): (8, 4, 3, 5, 1, True, "selective", True),
        (64, 40, 60, 64): (8, 4, 2, 5, 8, True, "selective", True),
        (96, 24, 48, 64): (8, 6, 2, 4, 2, True, "selective", True),
        (64, 24, 64, 40): (4, 16, 1, 1, 3, True, "none", False),
    }
    here = cluster.gpus, cluster.device.memory / 2**30, model.layers, model.heads
    nearest = min(stored, key=lambda case: sum(abs(a - b) / b for a, b in zip(case, here, strict=True)))
    return Configuration(*stored[nearest])
