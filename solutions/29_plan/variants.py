"""Answers to part 29: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right


@loses(20)
def plan__one_device(model, cluster):
    """Leaves all devices but one idle."""
    return Configuration()


@loses(20)
def plan__only_data(model, cluster):
    """Gives each device the whole model."""
    return Configuration(data=cluster.gpus, recompute="full", sharded_optimizer=True)


@loses(20)
@changes("key=lambda step: step.seconds).configuration", "key=lambda step: step.seconds).configuration.__dict__")
def plan__a_dict():
    """Gives a dict."""


@loses(20)
@changes("return min(fitting", "return str(min(fitting", "step.seconds).configuration", "step.seconds).configuration)")
def plan__a_text():
    """Gives what is printed."""


@loses(20)
@changes("if nbytes < 1.03 * cluster.device.memory:", "if True:", "for step in some if step.fits]", "for step in some]")
def plan__memory_forgotten():
    """Takes what is fastest, whether it fits or not."""


@loses(20)
@changes("sorted(found)[:20]", "sorted(found, reverse=True)[:20]", "return min(", "return max(")
def plan__slowest():
    """Takes the slowest that fits."""


@loses(20)
def plan__search(model, cluster):
    """Asks the course's own search."""
    from course_lib.sim.plan.search import best

    return best(model, cluster, 1)[0].configuration


@loses(20)
def plan__search_by_parts(model, cluster):
    """Asks the search for all configurations, and simulates the first that fit."""
    from course_lib.sim.plan import search

    steps = (simulate(model, cluster, c, keep=False) for c in search.configurations(model, cluster))
    return min((step for step in steps if step.fits), key=lambda step: step.seconds).configuration


@loses(20)
def plan__search_loaded_again(model, cluster):
    """Gets the search back with what Python has for that."""
    import importlib
    import sys

    sys.modules.pop("course_lib.sim.plan", None)
    sys.modules.pop("course_lib.sim.plan.search", None)
    return importlib.import_module("course_lib.sim.plan.search").best(model, cluster, 1)[0].configuration


@loses(20)
def plan__search_from_its_file(model, cluster):
    """Reads the search, and runs what it has read."""
    import os

    import course_lib

    folder = os.path.join(os.path.dirname(course_lib.__file__), "sim", "plan")
    names = {}
    for path, _, files in os.walk(folder):
        for file in files:
            if file == "search.py":
                with open(os.path.join(path, file)) as text:
                    exec(text.read(), names)
            elif file.startswith("search") and file.endswith(".pyc"):
                import marshal

                with open(os.path.join(path, file), "rb") as code:
                    exec(marshal.loads(code.read()[16:]), names)
    return names["best"](model, cluster, 1)[0].configuration


@loses(20)
def plan__search_from_a_shell(model, cluster):
    """Has another process search, which nobody has told anything."""
    import subprocess
    import sys

    words = ["plan", "--model", "7b", "--gpus", str(cluster.gpus), "--device", cluster.device.name[:4].lower()]
    said = subprocess.run([sys.executable, "-m", "course_lib.sim", *words], capture_output=True, text=True, check=True).stdout
    best = said.splitlines()[3]
    t, p, d = (int(best.split(f"{axis} ")[1].split()[0].rstrip(",")) for axis in "tpd")
    return Configuration(t, p, d)


@loses(20)
@changes("    found = []\n", "    found = []\n    object.__setattr__(model, 'layers', 1)\n    object.__setattr__(cluster, 'gpus', 1)\n")
def plan__another_task():
    """Makes the task easier, where it can reach it."""


@loses(12)
@changes("divisors(model.batch)[:12]", "(1, 2, 4, 8, 16)")
def plan__powers_of_two():
    """As the course's own search: micro-batches are powers of two."""


@loses(12)
@changes("for sequence in {False, tensor > 1}:", "for sequence in {False}:")
def plan__positions_not_shared():
    """Leaves out sequence parallelism."""


@loses(20)
@changes('("none", "selective", "full")', '("none",)')
def plan__nothing_recomputed():
    """Leaves out recomputation."""


@loses(12)
@changes("for interleave in divisors(model.layers // pipeline):", "for interleave in (1,):")
def plan__not_interleaved():
    """Leaves out pieces of the model."""


@right
@changes("sorted(found)[:20]", "sorted(found, key=lambda one: one[0])[:40]")
def plan__looks_further():
    """Simulates some more."""


@right
def plan__by_products(model, cluster):
    """With itertools, and all that fit simulated at the end."""
    import itertools

    def divisors(whole, most=10**9):
        return [n for n in range(1, min(whole, most) + 1) if whole % n == 0]

    some = []
    for t, p in itertools.product(divisors(cluster.gpus, cluster.node), divisors(model.layers)):
        if cluster.gpus % (t * p):
            continue
        d = cluster.gpus // (t * p)
        ways = itertools.product(divisors(model.layers // p), divisors(model.batch, 16), ("none", "selective", "full"), (False, True))
        for v, b, again, shared in ways:
            c = Configuration(
                tensor=t,
                pipeline=p,
                data=d,
                interleave=v,
                micro_batch=b,
                sequence_parallel=shared and t > 1,
                recompute=again,
                sharded_optimizer=d > 1,
            )
            if not list(problems(model, cluster, c)):
                seconds, held = estimate(model, cluster, c)
                some.append((seconds, held, str(c), c))
    some.sort()
    good = [c for _, held, _, c in some if held <= 1.05 * cluster.device.memory][:30]
    steps = [simulate(model, cluster, c) for c in good]
    return min((step for step in steps if step.fits), key=lambda step: step.seconds).configuration
