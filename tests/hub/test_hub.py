"""JupyterHub as `make hub` starts it, with accounts made for the test: a class at once, and a student who wants what is not theirs."""

import contextlib
import json
import os
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hub_server import Hub, Person, megabytes, missing, nothing_left, processes_of
from machine import patient

from course_lib.tools import lab

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=f"There is no hub here: {missing()}.")]

CLASS = [f"hubs{i:02}" for i in range(int(os.environ.get("COURSE_TEST_USERS", "20")))]
LIGHT = """%%px
import numpy as np
from course_lib.collectives import Communicator
comm = Communicator()
total = np.zeros(1000)
for _ in range(20):
    comm.Allreduce(np.ones(1000), total)
if comm.Get_rank() == 0:
    print("the sum is", int(total[0]))
"""


@pytest.fixture(scope="module")
def hub():
    """A hub with an instructor and a class; afterwards, nothing of it is left."""
    with nothing_left():
        hub = Hub(["hubteach", *CLASS])
        yield hub
        hub.close()


@pytest.fixture(scope="module")
def people(hub):
    """Everybody of the class, with a kernel that has 8 ranks; all come at the same time."""
    began = time.monotonic()

    def come(name):
        person = Person(hub, name)
        person.start()
        person.notebook = person.kernel()
        said = person.notebook.run("from course_lib import cluster\nranks = cluster.start(8)\nprint(ranks)")
        return person, said, person.notebook.run(LIGHT)

    with ThreadPoolExecutor(len(CLASS)) as pool:
        found = list(pool.map(come, CLASS))
    pids = [pid for name in CLASS for pid in processes_of(name)]
    up, size = time.monotonic() - began, megabytes(pids) / len(CLASS)
    print(f"\n{len(CLASS)} users with 8 ranks: up in {up:.0f} s, {size:.0f} MB a user, {len(pids)} processes")
    assert [(said, sums) for _, said, sums in found if "8 ranks on this machine" not in said or "the sum is 8" not in sums] == []
    return {person.name: person for person, _, _ in found}


def test_a_class_at_once_and_none_sees_another(hub, people):
    look = """
import glob, json, os, psutil
print(json.dumps({
    "users": sorted({p.uids().real for p in psutil.process_iter()}),
    "ranks": sum("course_lib.engine.processes.stub" in " ".join(p.cmdline()) or "ipengine" in p.name() for p in psutil.process_iter()),
    "processes": len(psutil.pids()),
    "homes": [h for h in glob.glob(os.path.dirname(os.path.expanduser("~")) + "/*")],
    "tmp": sorted(set(os.listdir("/tmp")) | set(os.listdir("/dev/shm"))),
    "sockets": [line.split()[-1] for line in open("/proc/net/unix") if "/" in line or "@" in line],
    "tcp": len({line.split()[1] for line in open("/proc/net/tcp").readlines()[1:] if line.split()[3] == "0A"}),
}))
"""
    with ThreadPoolExecutor(4) as pool:
        seen = dict(zip(people, pool.map(lambda p: json.loads(p.notebook.run(look)), people.values()), strict=True))
    for name, facts in seen.items():
        own = hub.home(name)
        assert facts["users"] == [0, own.stat().st_uid], f"{name} sees processes of others: {facts['users']}"
        assert facts["homes"] == [str(own)], name
        assert facts["processes"] < 40, name
        others = [other for other in CLASS if other != name]
        assert not [s for s in facts["sockets"] if any(other in s for other in others)], name
    folders = [folder for facts in seen.values() for folder in facts["tmp"] if folder.startswith("course-ranks-")]
    assert len(folders) == len(set(folders)) == len(CLASS), "each sees the folder of their own ranks, and no other"


def test_what_one_leaves_open_leads_nowhere_for_another(hub, people):
    ada, bob = (people[name] for name in CLASS[:2])
    said = bob.notebook.run("""
import ctypes, os, socket
os.chmod(os.path.expanduser("~"), 0o777)
for place in ("~/open.txt", "/tmp/open.txt", "/dev/shm/open.txt"):
    with open(os.path.expanduser(place), "w") as f: f.write("bob's")
    os.chmod(os.path.expanduser(place), 0o666)
tcp = socket.create_server(("0.0.0.0", 45454))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("0.0.0.0", 45455))
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0bobs"); abstract.listen()
path = socket.socket(socket.AF_UNIX); path.bind("/tmp/bobs.sock"); path.listen(); os.chmod("/tmp/bobs.sock", 0o777)
memory = ctypes.CDLL(None).shmget(4242, 4096, 0o1666)
print(memory >= 0, os.getpid(), os.path.expanduser("~"))
""")
    assert said.startswith("True"), said
    home = said.split()[-1]
    said = ada.notebook.run(f"""
import ctypes, glob, os, socket
def tried(what, *arguments):
    try:
        return repr(what(*arguments))
    except OSError as error:
        return type(error).__name__
print([tried(open, p) for p in ("{home}/open.txt", "/tmp/open.txt", "/dev/shm/open.txt")])
print(tried(os.listdir, "{home}"), tried(os.stat, "{hub.folder}/hub"))
print(tried(socket.create_connection, ("127.0.0.1", 45454), 2), tried(socket.create_connection, ("127.0.0.1", {hub.port}), 2))
print(tried(socket.socket(socket.AF_UNIX).connect, "\\0bobs"), tried(socket.socket(socket.AF_UNIX).connect, "/tmp/bobs.sock"))
print(ctypes.CDLL(None).shmget(4242, 4096, 0o666))
""")
    assert said.split("\n")[:5] == [
        "['FileNotFoundError', 'FileNotFoundError', 'FileNotFoundError']",
        "FileNotFoundError FileNotFoundError",
        "ConnectionRefusedError ConnectionRefusedError",
        "ConnectionRefusedError FileNotFoundError",
        "-1",
    ], said


ATTACKS = {
    "the course's solutions": "os.listdir('{course}/solutions')",
    "the hidden tests": "os.listdir('{course}/grading')",
    "the Hub's secrets": "open('{hub}/cookie.secret').read()",
    "the Hub's sockets": "os.listdir('{hub}/run')",
    "the passwords": "open('/etc/shadow').read()",
    "what others handed in": "os.listdir('{exchange}/inbound')",
    "another's notebook in the drop-box": "open('{exchange}/inbound/another/1.ipynb', 'w')",
    "another's folder in the drop-box": "os.rename('{exchange}/inbound/another', '{exchange}/inbound/mine')",
    "a file in another's folder": "open('{exchange}/inbound/another/2.ipynb', 'w')",
    "the rights of another's folder": "os.chmod('{exchange}/inbound/another', 0o777)",
    "a new release": "open('{exchange}/outbound/mine', 'w')",
    "what was released": "open('{exchange}/outbound/released', 'w')",
    "the place of what was released": "os.rename('{exchange}/outbound/released', '{exchange}/outbound/mine')",
    "the place of all releases": "os.rename('{exchange}/outbound', '{exchange}/mine')",
    "others' feedback": "os.listdir('{exchange}/feedback')",
    "a feedback": "open('{exchange}/feedback/mine.html', 'w')",
    "another's feedback": "open('{exchange}/feedback/another.html', 'w')",
    "the exchange's folder": "os.mkdir('{exchange}/mine')",
    "the drop-box itself": "os.chmod('{exchange}/inbound', 0o777)",
    "the installation": "open('{course}/course_lib/__init__.py', 'a')",
    "its Python": "open(os.__file__, 'a')",
    "the system": "open('/etc/passwd', 'a')",
    "the root of the tree": "os.mkdir('/mine')",
    "a namespace of one's own": "refused(libc.unshare(0x10000000))",
    "a namespace by clone": "refused(libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0))",
    "a namespace by clone3": "refused(libc.syscall(435, 0, 0))",
    "a mount": "refused(libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None))",
    "root": "os.setuid(0)",
    "another user": "os.setuid({other})",
    "root's process": "os.kill(1, 9)",
    "root's memory": "open('/proc/1/mem', 'rb')",
    "root's view": "os.listdir('/proc/1/root')",
    "a socket of virtual machines": "refused(libc.syscall(41, 40, 1, 0))",
    "a socket of virtual machines in one call": "socket.socketpair(40)",
    "a raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "a network": "refused(-1 if [name for _, name in socket.if_nameindex()] == ['lo'] else 0)",
    "a device": "os.mknod('/tmp/disk', 0o60666, os.makedev(254, 0))",
    "the kernel's settings": "open('/proc/sys/kernel/hostname', 'w').write('mine')",
    "more open files": "resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20))",
    "the keys of the kernel": "refused(libc.syscall(250, 0, -3, 1))",
}


@pytest.fixture(scope="module")
def tries(hub, people):
    """The outcome of each attack, all by one student."""
    exchange, teacher, other = hub.folder / "hub/exchange/distributed-training", hub.home("hubteach"), hub.home(CLASS[1])
    (exchange / "inbound" / "another").mkdir()
    for name, owner in {"inbound/another/1.ipynb": other, "outbound/released": teacher, "feedback/another.html": teacher}.items():
        (exchange / name).write_text("{}")
        shutil.chown(exchange / name, owner.owner())
    shutil.chown(exchange / "inbound" / "another", other.owner())
    lines = "\n".join(f"try_({name!r}, lambda: {what})" for name, what in ATTACKS.items())
    lines = (
        lines.replace("{course}", str(lab.PROJECT_ROOT))
        .replace("{hub}", str(hub.folder / "hub"))
        .replace("{other}", str(other.stat().st_uid))
        .replace("{exchange}", "/exchange/distributed-training")
    )
    said = people[CLASS[0]].notebook.run(f"""
import ctypes, json, os, resource, socket
libc, found = ctypes.CDLL(None, use_errno=True), {{}}
def refused(result):
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def try_(name, what):
    try:
        found[name] = "done: " + repr(what())[:200]
    except (OSError, ValueError) as error:
        found[name] = "refused: " + str(error)
{lines}
print(json.dumps(found))
""")
    assert (exchange / "inbound/another/1.ipynb").read_text() == (exchange / "outbound/released").read_text() == "{}"
    return json.loads(said)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_leads_nowhere(tries, attack):
    assert tries[attack].startswith("refused"), f"a student reaches {attack}: {tries[attack]}"
    if "{exchange}" in ATTACKS[attack]:  # it is there, and not to be had
        assert tries[attack].startswith(("refused: [Errno 1]", "refused: [Errno 13]", "refused: [Errno 30]")), tries[attack]


def test_a_programme_of_another_user_gives_no_rights(people):
    said = people[CLASS[0]].notebook.run("""
import subprocess
print(open("/proc/self/status").read().split("CapBnd:")[1].split()[0], "NoNewPrivs:\\t1" in open("/proc/self/status").read())
print(subprocess.run(["su", "-c", "id", "root"], capture_output=True, text=True, input="\\n").returncode)
print(subprocess.run(["bwrap", "--dev-bind", "/", "/", "true"], capture_output=True, text=True).returncode)
""")
    capabilities, rest = said.split(maxsplit=1)
    assert int(capabilities, 16) == 0, said
    assert rest.split()[0] == "True"
    assert all(int(code) != 0 for code in rest.split()[1:]), said


def test_a_token_opens_ones_own_server_only(hub, people):
    ada, bob = (people[name] for name in CLASS[:2])
    said = ada.notebook.run(
        """
import json, os
from jupyterhub.httpclient import fetch
async def ask(path, method="GET"):
    try:
        await fetch(os.environ["JUPYTERHUB_API_URL"] + path, method=method, headers=me)
        return 200
    except Exception as error:
        return getattr(error, "status", type(error).__name__)
me = {"Authorization": "token " + os.environ["JUPYTERHUB_API_TOKEN"]}
asked = [("/user", "GET"), ("/users", "GET"), ("/users/OTHER", "GET"), ("/users/OTHER/server", "POST")]
asked += [("/proxy", "GET"), ("/shutdown", "POST")]
print(json.dumps([await ask(*words) for words in asked]))
""".replace("OTHER", bob.name)
    )
    codes = json.loads(said)
    assert codes[0] == 200, said
    assert all(code in (403, 404) for code in codes[1:]), said
    token = ada.notebook.run("import os; print(os.environ['JUPYTERHUB_API_TOKEN'])").strip()
    assert ada.open(f"/user/{ada.name}/api/status", Authorization=f"token {ada.token}").startswith("{")
    for mine in (ada.token, token):
        assert ada.open(f"/user/{bob.name}/api/contents", Authorization=f"token {mine}").startswith("403"), "a token opens another's server"
    assert ada.open(f"/user/{bob.name}/lab").startswith("403"), "who is logged in may not see another's pages"


def test_a_student_who_opens_a_thousand_connections_holds_nobody_else_up(hub, people):
    greedy, other = people[CLASS[7]], people[CLASS[8]]
    said = greedy.notebook.run("""
import socket
held = []
for _ in range(1200):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(0.01)
    try:
        client.connect("/run/hub.sock")
    except OSError:
        break
    held.append(client)
print(len(held))
""")
    assert 0 < int(said) < 100
    began = time.monotonic()
    assert other.api("api/status").startswith("{")
    assert "Logout" in Person(hub, CLASS[9]).log_in()
    assert time.monotonic() - began < patient(20)
    greedy.notebook.run("for client in held: client.close()")
    deadline = time.monotonic() + patient(30)
    while not (status := greedy.ask("")).startswith("{") or "the sum is 8" not in greedy.notebook.run(LIGHT):
        assert time.monotonic() < deadline, status


def test_who_sends_much_to_anothers_server_without_a_login_does_not_end_it(hub, people):
    ada = people[CLASS[10]]
    before = processes_of(ada.name)
    senders = [socket.create_connection(("127.0.0.1", hub.port)) for _ in range(12)]
    head = f"POST /user/{ada.name}/api/contents HTTP/1.1\r\nHost: x\r\nContent-Length: {30 << 20}\r\n\r\n".encode()

    def send(sender):
        with contextlib.suppress(OSError):
            sender.settimeout(20)
            sender.sendall(head + bytes(29 << 20))

    with ThreadPoolExecutor(len(senders)) as pool:
        list(pool.map(send, senders))
    assert megabytes(processes_of(ada.name)) < 680
    for sender in senders:
        sender.close()
    assert set(before) <= set(processes_of(ada.name))
    assert "the sum is 8" in ada.notebook.run(LIGHT)
    assert ada.api("api/contents/big.txt", "PUT", {"type": "file", "format": "text", "content": "x" * (8 << 20)}).startswith("{")


def test_more_ranks_than_are_allowed_are_refused_in_a_sentence(people):
    notebook = people[CLASS[2]].notebook
    for n in (4, 8):  # fewer than there are, and more, where one's own do not count as another's
        assert f"{n} ranks on this machine" in notebook.run(f"ranks = cluster.start({n})\nprint(ranks)")
    said = notebook.run("cluster.start(9)")
    assert "expected at most 8 ranks, which this server allows each user; got 9. Use cluster.start(8), or fewer." in said
    said = notebook.run("ranks.restart(n=12)")
    assert "expected at most 8 ranks" in said
    assert "the sum is 8" in notebook.run(LIGHT), "the ranks that there are stay"
    second = people[CLASS[2]].kernel()
    said = second.run("from course_lib import cluster\ncluster.start(4)")
    assert "expected at most 0 ranks; got 4. This server allows each user 8, and 8 of yours run in another notebook." in said


def test_ranks_rest_and_come_back(people):
    notebook = people[CLASS[3]].notebook
    assert notebook.run("import os\nprint(os.environ['COURSE_REST'])\nos.environ['COURSE_REST'] = '2'\nranks = cluster.start(8)") == "900\n"
    name, deadline = CLASS[3], time.monotonic() + 30
    before = len(processes_of(name))
    while len(processes_of(name)) > before - 8:
        assert time.monotonic() < deadline, "the ranks do not rest"
        time.sleep(0.2)
    said = notebook.run(LIGHT)
    assert "The ranks were stopped, as no cell had run for 2 s; new ones are starting." in said
    assert "the sum is 8" in said


def test_who_takes_too_much_is_ended_and_the_others_are_not(hub, people):
    greedy, other = people[CLASS[4]], people[CLASS[5]]
    said = greedy.notebook.run('''
import subprocess
code = """
import os, time
n = 0
try:
    while n < 2000:
        if not os.fork():
            time.sleep(60)
        n += 1
except OSError:
    pass
print(n, flush=True)
os.killpg(0, 9)
"""
print(subprocess.run(["python3", "-c", code], capture_output=True, text=True, start_new_session=True).stdout)
''')
    assert 50 < int(said) < 600, f"a fork bomb is not held: {said}"
    said = greedy.notebook.run("""
done = subprocess.run(["python3", "-c", "x = [bytearray(1 << 26) for _ in range(64)]; print('had it')"], capture_output=True, text=True)
print(done.returncode, done.stdout)
""")
    assert "had it" not in said, "more than 2 GB were to be had"
    assert "the sum is 8" in other.notebook.run(LIGHT)


def test_a_server_that_ends_leaves_nothing_and_comes_again(hub, people):
    person = people[CLASS[6]]
    uid = hub.home(person.name).stat().st_uid
    person.notebook.run("import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)")
    person.open(f"/hub/api/users/{person.name}/server", method="DELETE", **person.headers)
    deadline = time.monotonic() + patient(30)
    while processes_of(person.name) or (hub.folder / "hub" / "run" / str(uid)).exists():
        assert time.monotonic() < deadline, processes_of(person.name)
        time.sleep(0.2)
    assert not list(Path("/sys/fs/cgroup").glob(f"**/course-hub-*-{uid}"))
    person.start()
    assert person.kernel().run("print(6 * 7)") == "42\n"
