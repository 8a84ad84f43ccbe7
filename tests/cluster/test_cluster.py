"""The machinery itself: that the two nodes are two."""

import subprocess


def test_slurm_has_two_nodes_with_a_dev_shm_of_their_own(slurm):
    mark = "touch /dev/shm/mark.$SLURMD_NODENAME; echo $SLURMD_NODENAME $(hostname) $(ls /dev/shm)"
    said = slurm.ask("srun", "-N2", "-n2", "sh", "-c", mark).splitlines()
    assert sorted(said) == ["n1 n1 mark.n1", "n2 n2 mark.n2"]


def test_ssh_leads_to_two_nodes(sshds):
    for node in ("n1", "n2"):
        got = subprocess.run(
            ["ssh", "-F", sshds.config, "-o", "BatchMode=yes", node, "hostname"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert got.stdout == f"{node}\n", got.stderr + sshds.logs()
