"""`make pictures`: the pictures of README and of the site's first page, from real runs."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from course_lib import sim
from docs import build, session
from grading.authoring import reference

HERE = Path(__file__).resolve().parent
COLOR_COUNT = 64  # of a picture: a third of the bytes, and no difference to see
PICTURES = {  # figures of solved parts: the part, and the cell that draws it
    "zero": ("09_zero3_adam", "draw-the-memory"),
    "ddp": ("14_my_ddp", "draw-the-steps"),
    "gpt": ("28_gpt", "draw-the-losses"),
    "plan": ("29_plan", "draw-the-map"),
}


def figure(part: str, cell_id: str) -> bytes:
    """A figure of a part, solved and run on real ranks, or found in the site's cache."""
    cache = build.OUTPUT_FOLDER / "cache" / build.environment_key()
    cache.mkdir(parents=True, exist_ok=True)
    (cell,) = [cell for cell in build.executed(part, cache).cells if cell.id == cell_id]
    (png,) = [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]
    return base64.b64decode(png)


def timeline() -> bytes:
    """One training step on a pipeline of four simulated ranks, with part 19's solution."""
    result = sim.run(reference.loops()["part3_training_loop"], world_size=4, num_layers=8, global_batch_size=32, batch_size=4)
    return result.draw("One forward, one backward").png()


def smaller(png: bytes) -> bytes:
    """The same picture with few colours."""
    from PIL import Image

    file = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOR_COUNT, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def main() -> None:
    pngs = {name: figure(*where) for name, where in PICTURES.items()} | {"timeline": timeline()}
    files = {f"{name}.png": smaller(png) for name, png in pngs.items()} | {"session.gif": session.gif(session.record())}
    for name, data in files.items():
        (HERE / name).write_bytes(data)
        print(f"docs/{name}: {len(data) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
