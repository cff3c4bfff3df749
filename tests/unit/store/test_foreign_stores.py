"""Files of other systems through `tokenfeed.open`: the same views, the same kernel, combined with each other."""

import struct

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError, CorruptionError
from tokenfeed.store.verify import verify

LENGTHS = [3, 0, 5000, 1, 6000]
TOKENS = np.random.default_rng(0).integers(1, 2**16, sum(LENGTHS)).astype("<u2")
ENDS = np.cumsum(LENGTHS)


def write_megatron(folder):
    TOKENS.tofile(folder / "m.bin")
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(LENGTHS), len(LENGTHS) + 1)
    index += np.array(LENGTHS, "<i4").tobytes()
    index += ((ENDS - LENGTHS) * 2).astype("<i8").tobytes()
    index += np.arange(len(LENGTHS) + 1, dtype="<i8").tobytes()
    (folder / "m.idx").write_bytes(index)
    return folder / "m.idx"


def write_datatrove(folder):
    TOKENS.tofile(folder / "d.ds")
    ENDS.astype("<u8").tofile(folder / "d.ds.index")
    (folder / "d.ds.metadata").write_text("some|tokenizer|2\n11004\n11K")
    (TOKENS % 2 == 0).tofile(folder / "d.ds.loss")
    return folder / "d.ds"


def write_llm_c(folder):
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(TOKENS)
    (folder / "l.bin").write_bytes(header.tobytes() + TOKENS.tobytes())
    return folder / "l.bin"


def write_raw(folder):
    TOKENS.tofile(folder / "r.bin")
    return folder / "r.bin"


@pytest.mark.parametrize("write", [write_megatron, write_datatrove, write_llm_c, write_raw])
@pytest.mark.parametrize("backend", ["pread", "mmap"])
def test_windows(tmp_path, write, backend):
    path = write(tmp_path)
    view = tokenfeed.open(path, backend=backend).windows(100)
    indices = np.random.default_rng(1).integers(0, len(view), 50)
    np.testing.assert_array_equal(view.read(indices).inputs[:, 5], TOKENS[indices * 100 + 5])
    assert verify(path).ok


@pytest.mark.parametrize("write", [write_megatron, write_datatrove])
def test_documents(tmp_path, write):
    store = tokenfeed.open(write(tmp_path))
    documents = store.documents()
    assert len(documents) == len(LENGTHS)
    batch = documents.read(range(len(LENGTHS)))
    for number in range(len(LENGTHS)):
        document = batch[number]
        np.testing.assert_array_equal(document.tokens, TOKENS[ENDS[number] - LENGTHS[number] : ENDS[number]])
        assert document.payload is None
    row = store.windows(4500, extra=0)[1].spans["documents"]
    assert [(span.number, span.start, span.stop) for span in row] == [(2, 0, 503), (3, 503, 504), (4, 504, 4500)]


@pytest.mark.parametrize("kind", ["windows", "documents", "packed"])
def test_the_loss_file_is_the_loss_mask(tmp_path, kind):
    """datatrove writes which tokens are learned: here the even ones."""
    store = tokenfeed.open(write_datatrove(tmp_path))
    if kind == "packed":
        store.pack(50)
    view = store.documents() if kind == "documents" else getattr(store, kind)(50)
    batch = view.read([0, 1])
    mask = batch.loss_mask
    assert mask.any()
    assert not mask[batch.targets % 2 == 1].any()
    if kind == "windows":
        np.testing.assert_array_equal(mask, batch.targets % 2 == 0)
    everything = store.windows(50, loss_mask=None).read([0, 1])
    assert everything.loss_mask is None


def test_documents_by_their_last_token(tmp_path):
    path = write_raw(tmp_path)
    eos = int(TOKENS[700])
    store = tokenfeed.open(path, eos=eos)
    documents = store.documents()
    for number in range(len(documents) - 1):
        document = documents[number]
        assert document.tokens[-1] == eos
        assert (document.tokens == eos).sum() == 1


def test_several_as_one(tmp_path):
    paths = []
    for name, write in (("a", write_megatron), ("b", write_megatron)):
        (tmp_path / name).mkdir()
        paths.append(write(tmp_path / name))
    tokenfeed.combine(paths, tmp_path / "both")
    for store in (tokenfeed.open(paths), tokenfeed.open(tmp_path / "both")):
        assert store.num_items == 2 * len(TOKENS)
        assert len(store.documents()) == 2 * len(LENGTHS)
        window = store.windows(len(TOKENS) + 5, extra=0)[0]
        np.testing.assert_array_equal(window.tokens, np.concatenate([TOKENS, TOKENS[:5]]))
    raw = np.arange(7, dtype="<u4")
    raw.tofile(tmp_path / "x.npy")
    tokenfeed.combine([tmp_path / "x.npy"], tmp_path / "x", dtype="uint32", eos=3)
    store = tokenfeed.open(tmp_path / "x")
    assert [store.documents()[number].tokens.tolist() for number in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6]]
    assert verify(tmp_path / "x").ok
    with pytest.raises(ArgumentError, match="span tables"):
        tokenfeed.open([paths[0], write_raw(tmp_path)])
    raw[3] = 9
    raw.tofile(tmp_path / "x.npy")
    with pytest.raises(CorruptionError, match="Combine again"):
        tokenfeed.open(tmp_path / "x")
