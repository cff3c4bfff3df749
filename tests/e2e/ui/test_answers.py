"""What a run and a store are told to be, against the run and the store themselves."""

import pytest

import tokenfeed


def test_history(clients, made):
    told, run = clients["run"].ask("run"), tokenfeed.Run(made.run)
    assert [start["step"] for start in told["starts"]] == [0, 30, 50]
    assert [(leg["world_size"], leg["batch_size"]) for leg in told["legs"]] == [(2, "4"), (4, "4"), (3, "2")]
    assert [leg["samples"] for leg in told["legs"]] == [leg.start.samples for leg in run.legs]


@pytest.mark.parametrize("step", [0, 29, 30, 51, 1000])
def test_a_step(clients, made, step):
    told = clients["run"].ask("trace", step=step)["rows"]
    rows = tokenfeed.Run(made.run).trace(step)
    assert [(row["sample"], row["rank"], row["index"]) for row in told] == [
        (row.sample, row.rank, row.index) for row in rows
    ]
    assert [[one["number"] for one in row["documents"]] for row in told] == [
        [span.number for span in row.documents] for row in rows
    ]


def test_a_mixture(clients, made):
    plan = tokenfeed.Run(made.mixture).starts[-1].plan
    for samples in (0, 1, 999):
        told = clients["mixture"].ask("ledger", samples=samples)["sources"]
        assert [(one["name"], one["samples"]) for one in told] == [
            (each.source, each.samples) for each in plan.ledger(samples)
        ]
        assert all(abs(one["samples"] - one["target"]) <= 1 for one in told)


def test_what_is_not_there_is_said(clients):
    assert "not a run file" in clients["store"].ask("run", status=400)["message"]
    assert "does not lead to a store" in clients["stats"].ask("store", status=400)["message"]
