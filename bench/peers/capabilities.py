"""What each system can do: measured in this run, or by a test of ours, or by what its makers say in public."""

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["CAPABILITIES", "SYSTEMS", "capability_table"]

SYSTEMS = {
    "tokenfeed_loader": "tokenfeed",
    "litdata_peer": "litdata",
    "mosaicml_peer": "MosaicML Streaming",
    "datasets_peer": "HF datasets",
    "grain_peer": "grain",
    "megatron_peer": "Megatron-core",
    "olmo_peer": "OLMo-core",
    "lancedb_peer": "LanceDB",
}
_LITDATA = "https://github.com/Lightning-AI/litData"
_LITDATA_FILE = f"{_LITDATA}/blob/main"
_MOSAIC = "https://docs.mosaicml.com/projects/streaming/en/stable"
_MOSAIC_HOME = "https://docs.mosaicml.com/projects/streaming"
_STREAM = "https://huggingface.co/docs/datasets/stream"
_GRAIN = "https://github.com/google/grain/blob/main"
_GRAIN_GUIDE = f"{_GRAIN}/docs/tutorials"
_GRAIN_SOURCE = f"{_GRAIN}/grain/_src/python/dataset"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM"
_MEGATRON_DOCS = (
    "https://docs.nvidia.com/megatron-core/developer-guide/latest/apidocs/core/core.datasets.gpt_dataset.html"
)
_NEMO = "https://docs.nvidia.com/nemo-framework/user-guide/24.07/llms/allmodels/resumingtraining.html"
_OLMO = "https://github.com/allenai/OLMo-core/blob/main"
_OLMO_LOADER = f"{_OLMO}/src/olmo_core/data/data_loader.py"
_LANCE = "https://docs.lancedb.com/training"

Cell = tuple[str, str]  # a word, and the link behind it
CAPABILITIES: tuple[tuple[str, str, dict[str, Cell]], ...] = (
    # what; our test, or the page that says no; what the others' own words say
    (
        "the samples of a step do not depend on the number of ranks",
        "tests/property/test_loader.py::test_any_history_delivers_every_sample_once_per_epoch",
        {
            "mosaicml_peer": ("yes", f"{_MOSAIC}/distributed_training/elastic_determinism.html"),
            "grain_peer": ("partly: not with mix or prefetch", f"{_GRAIN_SOURCE}/elastic_iterator.py"),
            "megatron_peer": ("yes, with one global batch size", _NEMO),
            "olmo_peer": ("yes, with one global batch size", _OLMO_LOADER),
            "lancedb_peer": ("yes, for ranks that divide its splits", f"{_LANCE}/distributed-training"),
        },
    ),
    (
        "a stream of text in random order resumes exactly",
        "tests/property/test_stream.py::test_any_history_delivers_every_token_once_an_epoch",
        {"datasets_peer": ("no: its buffer is lost", _STREAM)},
    ),
    (
        "a mixture keeps its shares within two samples",
        "tests/property/test_shares.py::test_histories",
        {
            "litdata_peer": ("no: drawn at random", f"{_LITDATA_FILE}/src/litdata/streaming/combined.py"),
            "mosaicml_peer": ("yes, each batch, if asked", f"{_MOSAIC}/dataset_configuration/mixing_data_sources.html"),
            "datasets_peer": ("no: drawn at random", f"{_STREAM}#interleave"),
            "grain_peer": ("by a fixed rule", f"{_GRAIN_SOURCE}/transformations/mix.py"),
            "megatron_peer": ("by a fixed rule", f"{_MEGATRON}/blob/main/megatron/core/datasets/helpers.cpp"),
            "olmo_peer": ("over the whole run", f"{_OLMO}/docs/source/guides/data_mixing.rst"),
        },
    ),
    (
        "weights change in mid-run, nothing lost or repeated",
        "tests/property/test_mixture.py::test_weights_changed_on_resume_repeat_nothing",
        {"megatron_peer": ("no", f"{_MEGATRON}/issues/457")},
    ),
    (
        "data is added in mid-epoch, nothing lost or repeated",
        "tests/property/test_amendments.py::test_every_epoch_of_a_source_is_whole",
        {
            "megatron_peer": ("no", f"{_MEGATRON}/pull/725"),
            "olmo_peer": ("no: another order", _OLMO_LOADER),
            "lancedb_peer": ("no: wants the same table", f"{_LANCE}/resuming"),
        },
    ),
    (
        "documents are masked, or steps skipped, after a spike",
        "tests/property/test_masks.py::test_no_target_of_a_masked_document_counts",
        {"olmo_peer": ("steps", f"{_OLMO}/src/olmo_core/train/config.py")},
    ),
    (
        "which documents a step saw, and which steps saw a document",
        "tests/unit/runs/test_tracing.py::test_finding_documents",
        {"olmo_peer": ("steps, with its order file", "https://github.com/allenai/OLMo/issues/763")},
    ),
    (
        "documents are packed whole, with masks and positions",
        "tests/property/test_packed.py::test_every_item_is_in_one_row",
        {
            "grain_peer": ("yes", f"{_GRAIN_SOURCE}/transformations/packing.py"),
            "megatron_peer": ("masks; documents are cut", _MEGATRON_DOCS),
            "olmo_peer": ("yes", f"{_OLMO}/src/olmo_core/data/composable/packing_instance_source.py"),
        },
    ),
    (
        "samples of different length: equal work for every rank",
        "tests/unit/plan/test_dealing.py::test_ranks_of_a_log_normal_corpus_have_equal_work",
        {"megatron_peer": ("asked for", f"{_MEGATRON}/issues/2282")},
    ),
    (
        "values for every token, payloads for every span",
        "tests/property/test_store.py::test_documents_equal_what_was_written",
        {
            "litdata_peer": ("asked for", f"{_LITDATA}/issues/753"),
            "mosaicml_peer": ("columns of a sample", f"{_MOSAIC}/preparing_datasets/dataset_format.html"),
            "datasets_peer": ("columns of a sample", "https://huggingface.co/docs/datasets/about_dataset_features"),
        },
    ),
    (
        "files of other systems are read in place",
        "tests/unit/store/test_foreign_stores.py::test_documents",
        {
            "litdata_peer": ("Parquet, MDS", f"{_LITDATA_FILE}/README.md"),
            "datasets_peer": ("Parquet, JSON, Arrow, WebDataset, …", "https://huggingface.co/docs/datasets/loading"),
            "grain_peer": ("Parquet, ArrayRecord, Bagz, …", f"{_GRAIN_GUIDE}/data_sources/index.rst"),
        },
    ),
    (
        "data lies in S3 or another object store",
        "tests/e2e/storage/test_remote_reading.py::test_reads_are_made_ahead_and_at_once",
        {
            "litdata_peer": ("yes", f"{_LITDATA_FILE}/README.md"),
            "mosaicml_peer": ("yes", _MOSAIC_HOME),
            "datasets_peer": ("yes", _STREAM),
            "grain_peer": ("yes", f"{_GRAIN_GUIDE}/data_sources/load_from_s3_tutorial.md"),
            "megatron_peer": ("yes", _MEGATRON_DOCS),
            "olmo_peer": ("yes", f"{_OLMO}/src/olmo_core/io.py"),
            "lancedb_peer": ("yes", f"{_LANCE}/data-loading"),
        },
    ),
    (
        "a page shows the run, its data and its plan",
        "tests/e2e/ui/test_page.py::test_every_view_is_there_and_reloads_to_itself",
        {"mosaicml_peer": ("a simulator of throughput", "https://github.com/mosaicml/streaming")},
    ),
    (
        "any function of a sample, in parallel processes while training",
        "",
        {
            "litdata_peer": ("yes", f"{_LITDATA}/releases/tag/v0.2.50"),
            "datasets_peer": ("yes", f"{_STREAM}#map"),
            "grain_peer": ("yes", f"{_GRAIN}/docs/transformations.md"),
            "lancedb_peer": ("yes", f"{_LANCE}/data-loading"),
        },
    ),
    (
        "images, audio and video are decoded",
        "",
        {
            "litdata_peer": ("yes", f"{_LITDATA_FILE}/README.md"),
            "mosaicml_peer": ("yes", f"{_MOSAIC}/preparing_datasets/dataset_format.html"),
            "datasets_peer": ("yes", "https://huggingface.co/docs/datasets/about_dataset_features"),
        },
    ),
)
_LIMITS = "../paper.md#8-limits"
_STARTS, _SHUFFLE = "#starting-resuming-other-ranks-memory", "#shuffle"


def capability_table(rows: Mapping[str, Any], orders: Mapping[str, Any]) -> list[str]:
    """Lines of Markdown. Every word but "?" leads to what it rests on."""
    lines = [
        "The first rows were measured above. In the others, our word rests on the test that is named, and that of "
        "another system on the public page behind it; `?`: no page was found that tells.",
        "",
        "| | " + " | ".join(SYSTEMS.values()) + " | our test |",
        "|---|" + "---|" * (len(SYSTEMS) + 1),
    ]
    for what, test, place, judge in _MEASURED:
        source = orders if place == _SHUFFLE else rows
        cells = [_linked(judge(source[name]) if name in source else None, place) for name in SYSTEMS]
        lines.append(f"| {what} | {' | '.join(cells)} | `{test}` |")
    for what, test, theirs in CAPABILITIES:
        ours = "**yes**" if test else f"[**no**]({_LIMITS})"
        others = [_linked(*theirs[name]) if name in theirs else "?" for name in list(SYSTEMS)[1:]]
        lines.append(f"| {what} | {ours} | {' | '.join(others)} | {f'`{test}`' if test else ''} |")
    return lines


def _linked(word: str | None, link: str) -> str:
    return f"[{word}]({link})" if word else "?"


def _resumes(row: Any) -> str | None:
    first = row.get("first") or {}
    return _word(first["equal"]) if "equal" in first else None


def _moves(row: Any) -> str | None:
    ranks = row.get("ranks")
    return _word(ranks["lost"] + ranks["repeated"] < 0.5) if ranks else None


def _ends_whole(row: Any) -> str | None:
    epochs = row.get("epochs")
    if not epochs:
        return None
    runs = [[rows for epoch in rank for rows in epoch] for rank in epochs]
    return _word(len({len(run) for run in runs}) == 1 and len({rows for run in runs for rows in run}) == 1)


def _is_random(row: Any) -> str:
    return _word(all(not found["missed"] and not found["doubtful"] for found in row["statistics"].values()))


def _is_small(row: Any) -> str:
    return _word(row["setup"]["megabytes"] < 1)


def _word(holds: bool) -> str:
    return "yes" if holds else "no"


_MEASURED: tuple[tuple[str, str, str, Callable[[Any], str | None]], ...] = (
    (
        "resumed in mid-epoch, it delivers what it would have",
        "tests/property/test_loader.py::test_resume_at_every_step",
        _STARTS,
        _resumes,
    ),
    (
        "from 2 to 3 ranks in mid-epoch, no sample is lost or repeated",
        "tests/property/test_loader.py::test_any_history_delivers_every_sample_once_per_epoch",
        _STARTS,
        _moves,
    ),
    (
        "every step of two epochs is whole on 2 nodes of 2 ranks",
        "tests/property/test_loader.py::test_finite_iteration",
        _STARTS,
        _ends_whole,
    ),
    (
        "the order is a permutation that no statistic tells from a random one",
        "tests/property/test_permutation_claims.py::test_no_statistic_tells_it_from_a_random_permutation",
        _SHUFFLE,
        _is_random,
    ),
    (
        "the order takes less than 1 MB, however many samples",
        "tests/property/test_permutation_claims.py::test_bijective_for_every_small_n",
        _SHUFFLE,
        _is_small,
    ),
)
