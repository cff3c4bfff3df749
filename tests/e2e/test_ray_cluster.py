"""The road of the Ray guide, `RAY_ADDRESS=ray://…`, on a cluster of three nodes that have no credentials."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from golden import golden_tokenizer
from preparing import make_documents, picture, write_jsonl
from servers import KEY, SECRET, free_port, s3_server
from tokenfeed import prepare

pytestmark = pytest.mark.filterwarnings("ignore")
OPTIONS = {"slice_bytes": 60_000, "shard_bytes": 100_000}
DRIVER = """
import tokenfeed
source, store = "s3://bucket/in/text.jsonl", "s3://bucket/store"
report = tokenfeed.prepare(source, store, tokenizer="{}", engine="ray", **{})
assert report.is_complete
print(report.made)
"""


@pytest.fixture
def cluster(monkeypatch):
    """Three nodes of one core each, and the address for clients."""
    pytest.importorskip("grpc", reason="NOT TESTED with ray://: pip install 'ray[client]'")
    utilities = pytest.importorskip("ray.cluster_utils")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    port = free_port()
    one = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 << 20}
    found = utilities.Cluster(initialize_head=True, head_node_args={**one, "ray_client_server_port": port})
    one.pop("include_dashboard")
    nodes = [found.add_node(**one) for _ in range(2)]
    try:
        yield found, nodes, f"ray://127.0.0.1:{port}"
    finally:
        found.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_guide_on_three_nodes(cluster, tmp_path):
    """One node is killed on the way. The bytes are those of one machine, and no log has the secret."""
    nodes, (_, last), address = cluster
    write_jsonl(tmp_path / "text.jsonl", make_documents(900))
    golden_tokenizer("tiktoken").save(tmp_path / "tokenizer")
    prepare(tmp_path / "text.jsonl", tmp_path / "expected", tokenizer=tmp_path / "tokenizer", workers=0, **OPTIONS)
    with s3_server() as s3:
        s3.put(tmp_path, under="in")
        kill = threading.Timer(8, nodes.remove_node, [last], {"allow_graceful": False})
        kill.start()
        done = subprocess.run(
            [sys.executable, "-c", DRIVER.format(tmp_path / "tokenizer", OPTIONS)],
            env={**os.environ, **s3.environment(), "RAY_ADDRESS": address},
            capture_output=True,
            timeout=250,
        )
        kill.cancel()
        assert done.returncode == 0, done.stderr[-2000:]
        s3.get("store", tmp_path / "found")
    found, expected = (
        {name: data for name, data in picture(tmp_path / store).items() if not name.startswith(".prepare")}
        for store in ("found", "expected")
    )  # what is noted of inputs has their dates in it
    assert found == expected
    logs = list(Path(nodes.head_node.get_logs_dir_path()).rglob("*"))
    assert len(logs) > 5
    for path in logs:
        if path.is_file():
            text = path.read_bytes()
            assert SECRET.encode() not in text, path
            assert KEY.encode() not in text, path
