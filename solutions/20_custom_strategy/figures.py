"""Figures of part 20's text, computed when the notebook is built."""

from __future__ import annotations

from grading.authoring import reference

LOOPS = {
    "16 data parallel": ("16_training_step", "train_ddp"),
    "17 ZeRO stage 3": ("17_zero_schedule", "part1_training_loop"),
    "19 1F1B, micro-batches of 64": ("19_1f1b", "part3_training_loop"),
}


def earlier_loops() -> str:
    """What the loops of the earlier parts reach on the clusters of `score.GRADED_SETTINGS`, as a table."""
    from course_lib.sim import SimulationError, run
    from course_lib.sim.schedule import score

    heads = [f"{s['world_size']} ranks, {s['num_layers']} layers | " for s in score.SETTINGS]
    rows = ["| | " + "| ".join(heads) + "|", "|---" * (1 + 2 * len(heads)) + "|"]
    for name, (part, loop) in LOOPS.items():
        cells = [name]
        for settings in score.SETTINGS:
            try:
                result = run(reference.loops((part,))[loop], **settings)
                cells += [f"{result.utilisation:.0%}", f"{result.memory / 2**30:.0f} GiB"]
            except SimulationError:
                cells += ["does not run", ""]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)
