"""WebDataset archives: the samples that tarfile and WebDataset itself write, read back; what is no archive, refused."""

import gzip
import io
import json
import subprocess
import sys
import tarfile
from importlib.util import find_spec

import pyarrow as pa
import pytest

import tokenfeed
from golden import golden_tokenizer
from oracle import Leg, run
from servers import s3_server
from tokenfeed.errors import CorruptionError, FormatError, TokenfeedError
from tokenfeed.preparation.prepare import prepare
from tokenfeed.text.sources import webdataset
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.portions import TextRules
from tokenfeed.text.sources.stored import StoredFile
from tokenfeed.text.sources.webdataset import WebDatasetText

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT}


def samples(count=40):
    """As `webdataset.TarWriter` lays them out: the files of a sample one after the other, sorted by their endings."""
    for number in range(count):
        text = f"document {number} é " + "word " * (number % 7)
        fields = {"id": number, "lang": "en"}
        yield (
            f"shard/{number:06d}",
            (
                {"cls": b"3", "txt": text.encode()}
                if number % 2
                else {"jpg": bytes(700), "json": json.dumps({**fields, "text": text}, indent=1).encode()}
            ),
        )


TEXTS = [f"document {number} é " + "word " * (number % 7) for number in range(40)]


def write(path, found=None, kind="ustar", before=(), after=()):
    """An archive; compressed as its name says."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=FORMATS[kind]) as archive:
        for info in before:
            archive.addfile(info)
        for key, files in samples() if found is None else found:
            for ending, data in files.items():
                info = tarfile.TarInfo(f"{key}.{ending}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        for info in after:
            archive.addfile(info)
    data = packed.getvalue()
    if path.name.endswith("gz"):
        data = gzip.compress(data)
    elif path.name.endswith(".zst"):
        data = pa.compress(data, codec="zstd", asbytes=True)
    path.write_bytes(data)
    return path


def documents(path, **options):
    return list(TextFiles.find(path, **options).documents())


def stream(source, **options):
    how = {"batch_size": 2, "length": 16, "buffer_size": 4, "refill_size": 4, "split": "all"}
    return tokenfeed.stream(source, golden_tokenizer("tiktoken"), **{**how, **options})


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "a.tar.zst"])
def test_every_document_is_read(tmp_path, kind, name):
    assert documents(write(tmp_path / name, kind=kind)) == TEXTS


@pytest.mark.parametrize("kind", FORMATS)
def test_long_names_and_what_is_no_file(tmp_path, kind):
    """Names of 150 letters, in other alphabets and over 255; links and folders are passed over, none is followed."""
    folder = tarfile.TarInfo("folder.txt")
    folder.type = tarfile.DIRTYPE
    link = tarfile.TarInfo("secret.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    hard = tarfile.TarInfo("other.txt")
    hard.type, hard.linkname = tarfile.LNKTYPE, "b"
    names = ["d" * 80 + "/" + "f" * 70, *(["é" * 70, "g" * 300] if kind != "ustar" else [])]
    found = [(name, {"txt": name.encode()}) for name in names]
    path = write(tmp_path / "a.tar", found, kind, before=[folder, link], after=[hard])
    assert documents(path) == names


def test_samples_are_those_of_webdataset(tmp_path):
    """Its rule for keys; a sample that is interrupted by another is two."""
    found = [
        ("a.b/c", {"en.txt": b"1", "txt": b"2"}),
        ("__meta__/x", {"txt": b"no"}),
        (".hidden", {"txt": b"no"}),
        ("README", {"": b""}),
        ("d", {"TXT": b"3"}),
        ("e", {"txt": b"4"}),
        ("d", {"txt": b"5"}),
        ("f", {"json": b'{"text": "6", "caption": "C"}'}),
    ]
    path = write(tmp_path / "a.tar", found)
    assert documents(path) == ["2", "3", "4", "5", "6"]
    assert documents(path, text_column="en.txt") == ["1"]
    assert documents(path, text_column="caption") == ["C"]


def test_samples_without_text_are_left_out_and_counted(tmp_path, caplog):
    found = [("a", {"jpg": b"x"}), ("b", {"txt": b"text"}), ("c", {"cls": b"1"}), ("d", {"json": b'{"text": null}'})]
    path = write(tmp_path / "a.tar", found)
    files = TextFiles.find(path)
    for _ in range(2):
        assert list(files.documents()) == ["text"]
    (said,) = [each.getMessage() for each in caplog.records]
    assert said == f"{path}: 2 of 4 samples have no text, and are left out"
    report = prepare(path, tmp_path / "store", tokenizer=golden_tokenizer("tiktoken"), val=None)
    assert (report.total.documents, report.total.null) == (1, 3)
    assert "a.tar, sample 'a' (.jpg): 'text' is null" in report.problems[0]


@pytest.mark.parametrize(
    ("found", "column", "message"),
    [
        ([("a", {"jpg": b"x"})], "text", r"holds no text: 1 sample, and none has a file ending in \.json, .* \.jpg"),
        ([], "text", "holds no text: 0 samples"),
        ([("a", {"txt": b"\xff"})], "text", r"sample 'a': its \.txt is not UTF-8"),
        ([("a", {"json": b"{"})], "text", "sample 'a': the line is not JSON"),
        ([("a", {"json": b'{"body": ""}'})], "text", "there is no 'text'; the keys are body"),
        ([("a", {"json": b'{"text": "1"}', "txt": b"2"})], "text", "differ. text_column='txt' takes the .txt"),
        ([("a", {"txt": b"1"}), ("a", {"txt": b"2"})], "text", r"sample 'a' has two files ending in \.txt"),
    ],
)
def test_what_is_refused(tmp_path, found, column, message):
    path = write(tmp_path / "a.tar", found)
    with pytest.raises(FormatError, match=message):
        documents(path, text_column=column)
    with pytest.raises(FormatError, match=message):
        list(WebDatasetText(StoredFile(str(path)), column).read_slice(0, 1, TextRules()))
    if not any(word in message for word in ("holds no", "two files")):
        (portion,) = WebDatasetText(StoredFile(str(path)), column).read_slice(0, 1, TextRules(on_error="skip"))
        assert portion.num_malformed == 1


def test_archives_that_are_damaged_cut_short_or_joined(tmp_path):
    whole = write(tmp_path / "a.tar").read_bytes()
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    for name, data, message in (
        ("cut", whole[:900], "it was cut short"),
        ("between", whole[:end], "the empty block that ends an archive is missing"),
        ("joined", whole[: end + 1024] + whole, "archives that were joined"),
        ("header", b"\1" + whole[1:], "a wrong checksum"),
        ("empty", b"", "the empty block that ends an archive is missing"),
    ):
        for ending in ("tar", "tar.gz"):
            path = tmp_path / f"{name}.{ending}"
            path.write_bytes(data if ending == "tar" else gzip.compress(data))
            with pytest.raises(CorruptionError, match=message):
                documents(path)


def test_sizes_that_are_only_claimed_take_no_memory(tmp_path):
    """A member of 8 GiB by its header, in an archive of 1 KiB; and pax records without end."""
    info = tarfile.TarInfo("a.txt")
    info.size = (8 << 30) - 1
    header = info.tobuf(tarfile.USTAR_FORMAT)
    long_name = tarfile.TarInfo("././@LongLink")
    long_name.type, long_name.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    for name, data in (("a.tar", header), ("b.tar", long_name.tobuf(tarfile.GNU_FORMAT))):
        for kind in ("", ".gz"):
            path = tmp_path / (name + kind)
            path.write_bytes(gzip.compress(data + bytes(2048)) if kind else data + bytes(2048))
            with pytest.raises(TokenfeedError, match=r"cut short|at most 1,048,576 are read|more than 1,073,741,824"):
                documents(path)


def test_texts_that_a_stream_cannot_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(webdataset, "LARGEST_GROUP", 100)
    path = write(tmp_path / "a.tar", [("a", {"txt": b"x" * 60}), ("b", {"txt": b"x" * 60})])
    with pytest.raises(FormatError, match=r"up to sample 'b', the texts have more than 100 bytes"):
        documents(path)


def test_long_texts_come_in_pieces(tmp_path):
    path = write(tmp_path / "a.tar.gz", [("a", {"txt": "é".encode() * 5000}), ("b", {"txt": b"end"})])
    text = WebDatasetText(StoredFile(str(path)), "text")
    portions = list(text.read_slice(0, *text.cut(1)[1:], TextRules(portion_bytes=999, long_bytes=1000)))
    assert "".join(piece for portion in portions for piece in portion.texts) == "é" * 5000 + "end"
    assert [portion.begins for portion in portions if portion.texts][:2] == [True, False]
    assert portions[-1].input_bytes == path.stat().st_size


@pytest.mark.parametrize("name", ["a.tar", "a.tar.zst"])
def test_groups_in_any_order(tmp_path, monkeypatch, name):
    """Each group by itself, forwards and backwards, from a row on: what the whole archive has there."""
    monkeypatch.setattr(webdataset, "GROUP_ROWS", 7)
    text = WebDatasetText(StoredFile(str(write(tmp_path / name))), "text")
    assert text.has_group(3)
    for group in (5, 0, 3, 3, 1, 5, 2, 4, 0):
        found = [each for _, texts in text.read(group, 2).batches(4) for each in texts]
        assert found == TEXTS[7 * group + 2 : 7 * group + 7]
    assert text.num_groups() == 6
    assert text.read(6) is None
    text.close()


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_resume(tmp_path, name):
    path = write(tmp_path / name)
    whole = run([Leg(1, 2, 40)], lambda **how: stream(path, **how), per_rank=True)
    stopped = run([Leg(1, 2, 13), Leg(1, 2, 27, 2)], lambda **how: stream(path, **how), per_rank=True)
    assert stopped == whole
    assert whole[-1].epoch >= 1


def test_prepare(tmp_path):
    write(tmp_path / "in-0.tar")
    write(tmp_path / "in-1.tar.gz", [("z", {"txt": b"last", "json": b'{"id": 40}'})])
    tokenizer = golden_tokenizer("tiktoken")
    prepare(tmp_path / "in-*", tmp_path / "store", tokenizer=tokenizer, keep=["id", "__key__"], val=None)
    store = tokenfeed.open(tmp_path / "store")
    assert [tokenizer.decode(store.documents()[n].tokens[1:]) for n in range(41)] == [*TEXTS, "last"]
    kept = [store.spans["documents"][number].payload for number in (0, 1, 40)]
    assert kept == [
        {"id": 0, "__key__": "shard/000000"},
        {"id": None, "__key__": "shard/000001"},
        {"id": 40, "__key__": "z"},
    ]


def test_archives_that_lie_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.tar")
    write(tmp_path / "in" / "b.tar.gz")
    with s3_server() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        server.put(tmp_path / "in", under="data")
        assert documents("s3://bucket/data/*.tar*") == TEXTS * 2
        source = "s3://bucket/data/a.tar"
        whole = run([Leg(1, 2, 20)], lambda **how: stream(source, **how), per_rank=True)
        stopped = run([Leg(1, 2, 7), Leg(1, 2, 13, 2)], lambda **how: stream(source, **how), per_rank=True)
        assert stopped == whole


WRITE = """
import sys, webdataset
with webdataset.TarWriter(sys.argv[1]) as writer:
    for number in range(40):
        text = f"document {number} é " + "word " * (number % 7)
        fields = {"txt": text, "cls": 3} if number % 2 else {"json": {"text": text, "id": number}}
        writer.write({"__key__": f"shard/{number:06d}", **fields})
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_what_the_real_package_writes_now(tmp_path, name):
    if find_spec("webdataset") is None:
        pytest.skip("WebDataset is NOT TESTED here: it needs the package webdataset")
    subprocess.run([sys.executable, "-c", WRITE, str(tmp_path / name)], check=True, timeout=200)
    assert documents(tmp_path / name) == TEXTS
