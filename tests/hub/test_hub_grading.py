"""The way of a hand-in on the hub, from the release to the formgrader in a browser; and what a student may try on that way."""

import json
import os
import shutil
import urllib.request
from pathlib import Path

import pytest
from browser import CHROMIUM, FLAGS
from hub_server import Hub, Person, free_port, missing, nothing_left

from course_lib.tools import lab

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=f"There is no hub here: {missing()}.")]

PART = "01_data_split"
SHELL = """
import subprocess
def sh(*lines):
    done = subprocess.run("; ".join(lines), shell=True, capture_output=True, text=True)
    print(done.stdout + done.stderr)
"""
# It says so in the title of the page that shows it.
EVIL = """<img src=x onerror="window.top.document.title='taken'"><script>window.top.document.title='taken'</script>"""
DEFACE = f"""
import json
evil = {EVIL!r}
notebook = json.load(open("{PART}.ipynb"))
for cell in notebook["cells"]:
    if cell["cell_type"] == "markdown":
        cell["source"] = evil
    elif cell["metadata"].get("nbgrader", {{}}).get("solution"):
        cell["source"] = "%%px\\nfrom IPython.display import HTML, display\\n# " + evil + "\\ndisplay(HTML('''" + evil + "'''))"
    else:
        cell["outputs"] = [{{"output_type": "display_data", "data": {{"text/html": evil}}, "metadata": {{}}}}]
notebook["cells"].append({{"cell_type": "markdown", "metadata": {{}}, "source": evil, "id": "evil"}})
json.dump(notebook, open("{PART}.ipynb", "w"))
"""


@pytest.fixture(scope="module")
def hub():
    """A hub with an instructor, a student, and one who cheats."""
    with nothing_left():
        hub = Hub(["hubteach", "hubada", "hubeve"])
        yield hub
        hub.close()


@pytest.fixture(scope="module")
def people(hub):
    """All of them, with a shell in their servers."""
    found = {}
    for name in hub.names:
        person = found[name] = Person(hub, name)
        person.start()
        person.shell = person.kernel()
        person.shell.run(SHELL)
    return found


def sh(person, *lines):
    """Run commands in somebody's server; returns their output."""
    return person.shell.run(f"sh(*{lines!r})")


@pytest.fixture(scope="module")
def graded(hub, people):
    """A part that was released, handed in by both, collected and graded; what was said on the way."""
    import nbformat

    from lectures import talk

    teach, ada, eve = people.values()
    said = {"release": sh(teach, f"nbgrader release_assignment {PART}")}
    mine = hub.home("hubada") / "distributed-training" / f"{PART}.ipynb"
    nbformat.write(talk.solved(PART), mine)
    said["ada"] = sh(ada, f"nbgrader fetch_assignment {PART}", f"nbgrader submit {PART}")
    said["deface"] = eve.shell.run(DEFACE)
    said["eve"] = sh(eve, f"nbgrader fetch_assignment {PART}", f"nbgrader submit {PART}")
    said["forge"] = eve.shell.run(forgeries(hub))
    said["collect"] = sh(teach, f"nbgrader collect {PART}")
    said["grade"] = sh(teach, f"cd {lab.PROJECT_ROOT}", f"make autograde PART={PART}")
    return said


def forgeries(hub):
    """A cell that puts forgeries into the drop-box: for another's place, for the instructor's files, or to stop it all."""
    return f"""
import datetime, os, pathlib
box = pathlib.Path("/exchange/distributed-training/inbound")
def put(name, make=None):
    (box / name).mkdir()
    if make: make(box / name / "{PART}.ipynb")
put("hubada+{PART}+2000-01-01 00:00:00.000000 UTC+later", lambda p: p.write_text("{{}}"))
put("hubada+{PART}+2099-01-01 00:00:00.000000 UTC+future", lambda p: p.write_text("{{}}"))
put("hubeve+{PART}+2099-01-01 00:00:00.000000 UTC+future", lambda p: p.write_text("{{}}"))
put("hubeve+{PART}+no time+x")
put("+{PART}+")
os.symlink("{hub.home("hubteach")}", box / "hubeve+{PART}+2020-01-01 00:00:00.000000 UTC+link")
for i in range(1000):
    put(f"hubada+{PART}+2000-01-01 00:00:00.000000 UTC+{{i}}")
second = datetime.timedelta(seconds=1)
now = datetime.datetime.now(datetime.UTC) + second
good, mine = (f"hubeve+{PART}+{{time:%Y-%m-%d %H:%M:%S.%f}} UTC+" for time in (now, now + second))  # newer than what was handed in
put(good + "spoilt", lambda p: p.write_bytes((pathlib.Path.home() / "distributed-training" / p.name).read_bytes()))
(box / (good + "spoilt") / "submission_secret.txt").write_bytes(b"\\xff" * 64)
put(mine + "closed", lambda p: p.parent.chmod(0))
put(mine + "unreadable", lambda p: (p.write_text("{{}}"), p.chmod(0)))
put(mine + "listed", lambda p: (p.write_text("{{}}"), p.parent.chmod(0o666)))
put(mine + "pipe", os.mkfifo)
put(mine + "folder", lambda p: p.mkdir())
put(mine + "huge", lambda p: (p.touch(), os.truncate(p, 1 << 34)))
put(mine + "deep", lambda p: os.makedirs(p.parent / "/".join("d" * 200)))
put(mine + "link", lambda p: p.symlink_to("{hub.home("hubteach")}/grading/gradebook.db"))
os.mkdir(os.fsencode(box / mine) + b"\\xff")
"""


def test_a_hand_in_goes_all_the_way(hub, people, graded):
    assert "Released as: distributed-training" in graded["release"]
    assert "Submitted as: distributed-training" in graded["ada"], graded["ada"]
    assert "hubada: 10 of 10" in graded["grade"], graded["grade"]
    assert "hubeve: 0 of 10" in graded["grade"]
    assert f"{PART}: 2 graded in" in graded["grade"]
    assert "in a sandbox of its own (bubblewrap)" in graded["grade"]
    fetched = hub.home("hubada") / "distributed-training" / PART / f"{PART}.ipynb"
    assert fetched.readlink() == Path("..") / f"{PART}.ipynb", "the student has two notebooks, and will hand in the wrong one"
    row = next(
        a for a in json.loads(people["hubada"].api("assignments?course_id=distributed-training"))["value"] if a["status"] == "submitted"
    )
    assert len(row["submissions"]) == 1


def test_feedback_comes_back(hub, people, graded):
    said = sh(people["hubteach"], f"cd {lab.PROJECT_ROOT}", f"make feedback PART={PART}", f"nbgrader release_feedback {PART}")
    said += sh(people["hubada"], f"nbgrader fetch_feedback {PART}")
    found = list((hub.home("hubada") / "distributed-training" / PART / "feedback").glob("*/*.html"))
    assert [path.name for path in found] == [f"{PART}.html"], said
    assert "Traceback" not in said


def test_new_text_comes_into_a_notebook_that_was_begun(people):
    said = sh(people["hubada"], "cd ~/distributed-training", "python -m course_lib.tools.update")
    assert "All notebooks in distributed-training/ are up to date." in said


def test_forged_hand_ins_are_not_collected(hub, graded):
    assert graded["forge"] == "", "the drop-box took less than a cheat would put there"
    why = graded["collect"]
    assert "it is hubeve's, but claims to be another student's, and 1001 more like it" in why, why
    assert "its time is in the future" in why
    assert "its name is not student+part+time+letters, as nbgrader writes it, and 2 more like it" in why
    assert "it is not a folder" in why
    for name in ("closed", "listed"):
        assert f"UTC+{name}: it cannot be copied: Permission denied" in why or f"UTC+{name}: {PART}.ipynb cannot be opened: Perm" in why, (
            why
        )
    for name, said in {
        "unreadable": "cannot be opened: Permission denied",
        "pipe": "is not a regular file that is the student's alone",
        "folder": "is not a regular file that is the student's alone",
        "huge": "is larger than",
        "deep": "cannot be opened: No such file",
        "link": "cannot be opened: Too many levels of symbolic links",
    }.items():
        assert f"UTC+{name}: {PART}.ipynb {said}" in why, why
    assert "Collected instead of hubeve's newest: " in why
    assert "hubeve's submission_secret.txt is not one that nbgrader writes" in why
    submitted = hub.home("hubteach") / "grading" / "submitted"
    assert {p.name for p in submitted.iterdir()} == {"hubada", "hubeve"}
    assert (submitted / "hubada" / PART / f"{PART}.ipynb").stat().st_size > 1000


def test_commands_are_found_in_a_terminal(people):
    """Look in a terminal, and not in a kernel: its shell has settings of its own."""
    from websocket import create_connection

    for name in ("hubteach", "hubada"):
        person = people[name]
        number = json.loads(person.api("api/terminals", "POST", {}))["name"]
        where = person.hub.url.replace("http", "ws", 1)
        line = create_connection(
            f"{where}/user/{name}/terminals/websocket/{number}", header=[f"Authorization: token {person.token}"], timeout=60
        )
        line.send(json.dumps(["stdin", "echo found: $(command -v nbgrader python)\r"]))
        said = ""
        while f"found: {lab.PROJECT_ROOT}/.venv/bin/nbgrader {lab.PROJECT_ROOT}/.venv/bin/python" not in said:
            kind, *words = json.loads(line.recv())
            said += words[0] if kind == "stdout" else ""
            assert "found: \r" not in said, said
        line.close()


def test_links_pipes_and_old_times_in_a_hand_in(hub, people, graded):
    secret = hub.home("hubteach") / "secret.ipynb"
    secret.write_text("the instructor's")
    shutil.chown(secret, "hubteach")
    name = f"hubeve+{PART}+2020-01-01 00:00:00.000000 UTC+old"
    # An earlier one does not replace what was collected; so that is taken away.
    shutil.rmtree(hub.home("hubteach") / "grading" / "submitted" / "hubeve")
    for old in (hub.folder / "hub/exchange/distributed-training/inbound").glob("hubeve+*"):
        shutil.rmtree(old) if not old.is_symlink() else old.unlink()
    people["hubeve"].shell.run(f"""
import os, pathlib
folder = pathlib.Path("/exchange/distributed-training/inbound/{name}")
folder.mkdir()
os.symlink("{secret}", folder / "link.ipynb")
os.mkfifo(folder / "pipe.ipynb")
(folder / "{PART}.ipynb").write_text("{{}}")
(folder / "timestamp.txt").write_text("2020-01-01 00:00:00.000000 UTC")
""")
    said = sh(people["hubteach"], f"nbgrader collect {PART} --update")
    collected = hub.home("hubteach") / "grading" / "submitted" / "hubeve" / PART
    assert sorted(p.name for p in collected.iterdir()) == [f"{PART}.ipynb", "timestamp.txt"], said
    assert (collected / "timestamp.txt").read_text()[:4] != "2020", "a hand-in comes as early as its owner says"
    assert "which counts" in said
    shutil.rmtree(collected.parent)


def test_a_student_cannot_take_anothers_hand_in_away(hub, people, graded):
    box = hub.folder / "hub/exchange/distributed-training/inbound"
    name = next(p.name for p in box.iterdir() if p.stat().st_uid == hub.home("hubada").stat().st_uid)
    said = people["hubeve"].shell.run(f"""
import os, shutil
box = "/exchange/distributed-training/inbound"
for what in (lambda: os.rename(f"{{box}}/{name}", f"{{box}}/gone"), lambda: os.rmdir(f"{{box}}/{name}"), lambda: os.listdir(box)):
    try:
        what()
        print("done")
    except OSError as error:
        print(type(error).__name__)
""")
    assert said == "PermissionError\n" * 3


def test_who_may_be_framed_and_who_has_a_formgrader(hub, people):
    headers = {}
    for name in ("hubteach", "hubada"):
        request = urllib.request.Request(f"{hub.url}/user/{name}/api/status", headers={"Authorization": f"token {people[name].token}"})
        with urllib.request.urlopen(request) as page:
            headers[name] = page.headers["Content-Security-Policy"]
    assert "frame-ancestors 'self'" in headers["hubteach"], "the formgrader is a blank frame"
    assert "frame-ancestors 'none'" in headers["hubada"]
    assert people["hubada"].api("formgrader/api/assignments").startswith("404")
    assert people["hubada"].open("/user/hubteach/formgrader/").startswith("403")


def test_an_instructor_reads_the_course_and_writes_at_home(people):
    said = sh(
        people["hubteach"],
        f"ls {lab.PROJECT_ROOT}/solutions",
        f"touch {lab.PROJECT_ROOT}/mine",
        "ls $(dirname ~)",
        "ps -e -o user:20 | sort -u",
    )
    assert PART in said
    assert "Read-only file system" in said
    assert "hubada" not in said


if CHROMIUM:
    from playwright.sync_api import TimeoutError as NotReady

    @pytest.fixture
    def page(hub):
        """A browser's page."""
        from playwright.sync_api import sync_playwright

        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            yield browser.new_page(viewport={"width": 1300, "height": 1000})
            browser.close()

    def log_in(page, hub, name, address=None):
        page.goto(f"{address or hub.url}/hub/login?next=%2Fhub%2Fspawn")
        page.fill("#username_input", name)
        page.fill("#password_input", hub.password)
        page.click("#login_submit")
        if "503" in page.title() or page.locator("text=503 : Service Unavailable").count():  # see Person.log_in
            return log_in(page, hub, name, address)
        try:
            page.wait_for_selector(".jp-Launcher", timeout=180_000)
        except NotReady:
            pytest.fail(
                f"JupyterLab did not come up for {name}; {page.url} shows:\n{page.locator('body').inner_text()[-1500:]}\n{hub.log()}"
            )

    def test_the_formgrader_is_shown_and_what_students_wrote_does_nothing_there(hub, people, graded, page):
        log_in(page, hub, "hubteach")
        page.click(".lm-MenuBar-item:has-text('Nbgrader')")
        page.click(".lm-Menu-item:has-text('Formgrader') >> nth=0")
        page.wait_for_selector("iframe", timeout=90_000)
        frame = page.frame_locator("iframe").first
        frame.locator(f"text={PART}").first.wait_for(timeout=90_000)
        assert "Manage Assignments" in frame.locator("body").inner_text(), "the formgrader is a blank frame"
        if os.environ.get("COURSE_SCREENSHOT"):
            page.screenshot(path=os.environ["COURSE_SCREENSHOT"])
        found = json.loads(people["hubteach"].api(f"formgrader/api/submitted_notebooks/{PART}/{PART}"))
        for student in ("hubada", "hubeve"):
            number = next(row["id"] for row in found if row["student"] == student)
            inside = page.frames[-1]
            inside.goto(f"{hub.url}/user/hubteach/formgrader/submissions/{number}/?index=0")
            inside.wait_for_selector("text=Splitting the data", timeout=90_000)
            page.wait_for_timeout(1000)
            assert "Submission" in inside.locator("body").inner_text()
            assert "taken" not in page.title(), "a hand-in acts in the instructor's name"

    def test_a_student_sees_the_assignments_and_no_formgrader(hub, people, graded, page):
        log_in(page, hub, "hubada")
        page.click(".lm-MenuBar-item:has-text('Nbgrader')")
        entries = page.locator(".lm-Menu-item").all_inner_texts()
        assert [e.split("\t")[0] for e in entries if e] == ["Assignment List"]
        page.click(".lm-Menu-item:has-text('Assignment List')")
        page.locator(f"text={PART}").first.wait_for(timeout=90_000)

    def test_with_a_domain_each_users_pages_are_an_origin_of_their_own(page):
        port = free_port()
        hub = Hub(["hubgrace", "hubalan"], port=port, COURSE_HUB_DOMAIN=f"http://hub.localhost:{port}")
        try:
            log_in(page, hub, "hubalan", f"http://hub.localhost:{port}")
            assert page.url.startswith(f"http://hubalan.hub.localhost:{port}/user/hubalan/lab"), page.url
        finally:
            hub.close()
