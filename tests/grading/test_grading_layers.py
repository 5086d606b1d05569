"""Layers of grading: its packages import only those below them. It is here, as a student's copy has no grading/."""

from tests.project.test_import_layers import ROOT, graph

# Those of grading, from the top down; the modules outside of them are commands, above, and what all of them use, below.
GRADING_LAYERS = (
    ("report", "autograders", "mutants", "new_part"),
    ("results",),
    ("collecting", "running"),
    ("submission",),
    ("people",),
    ("authoring",),
)


def test_a_package_of_grading_uses_only_those_below_it():
    layer = {package: i for i, packages in enumerate(GRADING_LAYERS) for package in packages}
    assert {path.parent.name for path in (ROOT / "grading").glob("*/__init__.py")} == set(layer), "a package without a layer"
    for name, used in graph().items():
        mine = name.split(".")[1] if name.startswith("grading.") else ""
        for other in used:
            theirs = other.split(".")[1] if other.startswith("grading.") else ""
            if mine in layer and theirs in layer and mine != theirs:
                assert layer[theirs] > layer[mine], f"{name} imports {other}, which is above it"
