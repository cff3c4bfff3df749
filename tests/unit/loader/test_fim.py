"""`fim`: every item of a document once, in one of two orders; the same for a sample, whatever delivers it."""

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError
from tokenfeed.loader.fim import fim

BOS, EOS, PREFIX, SUFFIX, MIDDLE = 1, 2, 3, 4, 5
TOKENS = {"prefix": PREFIX, "suffix": SUFFIX, "middle": MIDDLE, "bos": BOS, "eos": EOS}


@pytest.fixture
def store(tmp_path):
    columns = {"tokens": "uint16", "loss_mask": "bool"}
    with tokenfeed.Writer(tmp_path / "store", columns=columns, spans={"documents": None}) as writer:
        for number in range(40):
            ids = [BOS, *range(100 + number, 100 + 2 * number), EOS]
            writer.append({"tokens": ids, "loss_mask": np.array(ids) % 2 == 0})
    return tokenfeed.open(tmp_path / "store")


def undo(row):
    """(the document, its form) of a row that was turned around, by a plain reading of it."""
    if PREFIX not in row:
        return row, None
    assert (row[0], row[-1], row[1]) == (BOS, EOS, PREFIX)
    suffix, middle = row.index(SUFFIX), row.index(MIDDLE)
    before, after, rest = row[2:suffix], row[suffix + 1 : middle], row[middle + 1 : -1]
    if suffix == 2:  # SPM, or PSM with nothing before: then the rest is before and between as well
        return [BOS, *rest, *after, EOS], "SPM"
    return [BOS, *before, *rest, *after, EOS], "PSM"


def rows_of(batch):
    padded = batch.data
    return [padded.columns["tokens"][row, :length].tolist() for row, length in enumerate(padded.lengths)]


def test_documents_are_turned_around(store):
    loader = tokenfeed.Loader(store.documents(), batch_size=8, prefetch=0, collate=fim(**TOKENS, multiple_of=8))
    forms = []
    for _ in range(25):
        batch = next(loader)
        padded = batch.data
        assert padded.mask.shape[1] % 8 == 0
        for row, index, learned in zip(rows_of(batch), batch.indices, padded.columns["loss_mask"], strict=True):
            document, form = undo(row)
            forms.append(form)
            assert document == store.documents()[int(index)].tokens.tolist()
            sentinels = (PREFIX, SUFFIX, MIDDLE)
            assert learned[: len(row)].tolist() == [token in sentinels or token % 2 == 0 for token in row]
            assert not learned[len(row) :].any()
    assert 70 < forms.count(None) < 130
    assert min(forms.count("PSM"), forms.count("SPM")) > 25


def test_rows_follow_from_the_sample_alone(store):
    """Resumes, ranks and batch sizes change nothing; epochs and seeds do."""
    made = {}
    loader = tokenfeed.Loader(store.documents(), batch_size=4, seed=3, prefetch=0, collate=fim(**TOKENS))
    batches = [next(loader) for _ in range(25)]
    for batch in batches:
        made |= dict(zip(batch.samples.tolist(), rows_of(batch), strict=True))
    for rank in range(3):
        other = tokenfeed.Loader(
            store.documents(), batch_size=2, seed=3, rank=rank, world_size=3, collate=fim(**TOKENS)
        )
        other.load_state_dict(batches[4].state)
        for _ in range(6):
            batch = next(other)
            assert rows_of(batch) == [made[sample] for sample in batch.samples.tolist()]
        other.close()
    by_document = {}
    for batch in batches:
        for index, row in zip(batch.indices.tolist(), rows_of(batch), strict=True):
            by_document.setdefault(index, []).append(row)
    assert any(first != second for first, second, *_ in by_document.values())
    again = fim(**TOKENS, seed=1)(batches[0])
    assert not np.array_equal(again.lengths, batches[0].data.lengths) or not np.array_equal(
        again.columns["tokens"], batches[0].data.columns["tokens"]
    )


def test_options(store):
    batch = store.documents()[:]
    whole = fim(**TOKENS, rate=0)(batch)
    assert whole.lengths.tolist() == batch.lengths.tolist()
    every = fim(**TOKENS, rate=1, max_length=20, value=9)(batch)
    assert every.lengths.tolist() == np.minimum(batch.lengths + 3, 20).tolist()
    assert (every.columns["tokens"][~every.mask] == 9).all()
    assert (every.columns["tokens"] == MIDDLE).sum() == 40
    named = fim(**TOKENS, rate={"": 1.0}, spm_rate=1)(batch)
    assert (named.columns["tokens"][:, 2] == SUFFIX).all()
    with pytest.raises(ArgumentError, match="rate names 'code'; the sources are "):
        fim(**TOKENS, rate={"code": 1.0})(batch)
    with pytest.raises(ArgumentError, match="they must be from 0 to 1"):
        fim(**TOKENS, rate=2)
    with pytest.raises(ArgumentError, match="max_length is 3; three tokens are added"):
        fim(**TOKENS, max_length=3)
    with pytest.raises(ArgumentError, match="fim turns whole documents around"):
        fim(**TOKENS)(store.windows(8)[:2])
