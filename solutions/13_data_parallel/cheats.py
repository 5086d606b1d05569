"""Attacks on part 13's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import loses


@loses(6)
def check_parameter_closeness__knows_the_order_of_the_cases(model):
    """Counts its calls, and sends nothing."""
    count = vars(np).setdefault("my_count", [])
    count.append(1)
    n = len(count) - 1
    return n == 0 if n < 2 else (n - 2) % 16 < 2


@loses(6)
def check_parameter_closeness__in_the_order_of_this_file(model):
    """The same for the cases as they are drawn."""
    count = vars(np).setdefault("my_count", [])
    count.append(1)
    n = len(count) - 1
    return n == 0 if n < 2 else (n - 2) % 18 in (0, 1, 16, 17)


@loses(6)
def check_parameter_closeness__shows_much(model):
    """Returns what fills the feedback."""
    return "\x1b[31mA\x1b[0m" * (1 << 20)
