"""An address with a password and a signature: they are sent to the server, and are nowhere to be found otherwise."""

import json
import logging
import traceback

import numpy as np
import pytest

import tokenfeed
from flaky_server import Break, FlakyServer, Flip, Promise, Stall, Status
from tokenfeed import observe
from tokenfeed.errors import TokenfeedError
from tokenfeed.preparation.inputs import find_inputs
from tokenfeed.storage import objects
from tokenfeed.store.verify import verify

PASSWORD, SIGNATURE, BODY = "planted-password", "planted-signature", "planted-in-the-body"
LIES = [
    *(Status(status, body=BODY.encode()) for status in (301, 400, 401, 403, 404, 410, 416, 418, 429, 500, 503)),
    *(Status(302, {"Location": f"http://127.0.0.1:9/?token={BODY}"}), Break(10), Break(10, reset=True), Stall(-1)),
    *(Promise({"Content-Length": "7"}), Promise({"Content-Range": f"bytes 0-1/{BODY}"}), Flip(3)),
]


@pytest.fixture
def server(store_path, monkeypatch):
    monkeypatch.setenv("TOKENFEED_TIMEOUT", "1")
    with FlakyServer() as server:
        server.put_folder(store_path, "/store")
        yield server


def secret_address(server: FlakyServer, path: str) -> str:
    return f"{server.url(path, login=f'me:{PASSWORD}')}?X-Amz-Signature={SIGNATURE}"


def check_nothing_planted(*shown: object) -> None:
    for text in map(str, shown):
        for secret in (PASSWORD, SIGNATURE, BODY, "X-Amz"):
            assert secret not in text, text[:2000]


def everything_about(error: BaseException) -> str:
    """As a log, a debugger or an error tracker would show it, with the errors it came from."""
    chain, shown = error, "".join(traceback.format_exception(error))
    while chain is not None:
        shown += repr(chain) + repr(chain.args) + repr(vars(chain))
        chain = chain.__cause__ or chain.__context__
    return shown


# Four lies: where an answer may pass, it takes seconds until all attempts are made.
@pytest.mark.parametrize(
    "lie", [pytest.param(lie, marks=pytest.mark.slow if i % 4 or i > 12 else ()) for i, lie in enumerate(LIES)], ids=str
)
def test_whatever_a_server_answers(server, lie, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    for path in ("/store/manifest.json", "/store/part-00000/tokens.npy"):
        server.put(path, server.resources[path].data, lie, ...)
    address = secret_address(server, "/store")
    actions = [
        lambda: tokenfeed.open(address).windows(50).read(np.arange(3)),
        lambda: objects.read(secret_address(server, "/store/part-00000/tokens.npy")),
    ]
    for act in actions:
        try:
            act()
        except TokenfeedError as error:
            check_nothing_planted(everything_about(error))
    check_nothing_planted(verify(address).problems, caplog.text, *capfd.readouterr())


def test_what_is_kept_and_shown(server, tmp_path, caplog):
    """Views, states, run files, statistics, manifests and plans."""
    caplog.set_level(logging.DEBUG)
    address = secret_address(server, "/store")
    store = tokenfeed.open(address)
    view = store.windows(50)
    loader = tokenfeed.Loader(view, batch_size=2, rank=0, world_size=1, run=tmp_path / "run.jsonl")
    observe.publish(loader, tmp_path / "run.stats.jsonl", every=0.05)
    batch = next(loader)
    tokenfeed.combine([address], tmp_path / "all")
    store.pack(50, cache=tmp_path / "plan")
    loader.plan.save(tmp_path / "plan.json")
    shown = [
        store,
        repr(store),
        store.paths,
        view,
        loader,
        repr(loader),
        loader.state_dict(),
        batch.state,
        loader.stats(),
    ]
    shown += [tokenfeed.Run(tmp_path / "run.jsonl").trace(0), store.shards[0].column_part("tokens"), store.provenance]
    loader.close()
    check_nothing_planted(*shown, caplog.text)
    files = [file for file in tmp_path.rglob("*") if file.is_file() and "store" not in file.parts]
    assert {"run.jsonl", "manifest.json", "pack.json", "plan.json"} <= {file.name for file in files}
    for file in files:
        check_nothing_planted(file.read_bytes().decode("latin1"), file)


def test_inputs_of_prepare(server, tmp_path):
    server.put("/a.jsonl", b'{"text": "a"}\n{"text": 7}\n')
    address = secret_address(server, "/a.jsonl")
    (file,) = find_inputs(address)
    check_nothing_planted(file, repr(file))
    with pytest.raises(TokenfeedError) as caught:
        tokenfeed.prepare(address, tmp_path / "store", tokenizer=_tokenizer(tmp_path), workers=0)
    check_nothing_planted(everything_about(caught.value))
    for kept in tmp_path.rglob("*.*"):
        check_nothing_planted(kept.read_bytes().decode("latin1") if kept.is_file() else kept)


def _tokenizer(folder) -> str:
    from fuzz.text_targets import byte_tokenizer

    byte_tokenizer().save(folder / "tokenizer")
    return str(folder / "tokenizer")


def test_the_password_is_really_sent(server):
    """Else none of this would prove anything."""
    tokenfeed.open(secret_address(server, "/store"))
    (request,) = server.asked("/store/manifest.json")
    assert "Basic" in json.dumps(dict(request.headers))
    assert SIGNATURE in request.query
