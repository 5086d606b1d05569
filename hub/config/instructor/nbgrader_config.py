"""nbgrader's configuration in an instructor's server: the course's own, with the grades in the instructor's home."""

from grading.config import configure

c = get_config()  # noqa: F821  nbgrader defines it
configure(c)
c.Exchange.root = "/exchange"  # as seen inside the sandbox
c.ExchangeFactory.collect = "grading.collecting.exchange.VerifiedCollect"
c.ExchangeFactory.release_feedback = "grading.collecting.exchange.VerifiedReleaseFeedback"
