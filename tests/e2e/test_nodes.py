"""Jobs over nodes that share no directory."""

import nodes
import pytest

pytestmark = pytest.mark.skipif(bool(nodes.missing()), reason=nodes.missing())


@pytest.fixture
def cluster(request):
    with nodes.Cluster(getattr(request, "param", 2)) as made:
        yield made


def test_nodes_share_a_link_and_no_directory(cluster):
    a, b = cluster
    for node in cluster:
        node.run(["sh", "-c", f"hostname > {cluster.disk}/here; hostname > /dev/shm/here"])
        assert node.run(["cat", f"{cluster.disk}/here", "/dev/shm/here"]).stdout.split() == [
            node.name,
            node.name,
        ]
        assert (node.disk / "here").read_text().strip() == node.name
    listen = (
        "import socket; s = socket.create_server(('{0}', 4000)); print(flush=True); "
        "print(s.accept()[0].recv(9).decode())"
    )
    heard = a.start(["python3", "-c", listen.format(a.name)], stdout=-1, text=True)
    assert heard.stdout.readline() == "\n"
    say = "import socket; socket.create_connection(('n0', 4000), 2).send(b'hello')"
    b.link(False)
    assert b.run(["python3", "-c", say], check=False).returncode != 0
    b.link(True)
    b.run(["python3", "-c", say])
    assert heard.communicate(timeout=30)[0] == "hello\n"
    sleeper = b.start(["sleep", "1000"])
    b.close()
    assert sleeper.wait(timeout=30) < 0
