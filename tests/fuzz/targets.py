"""Everything that is read and may come from strangers, by name."""

from collections.abc import Mapping

from fuzz import state_targets, store_targets, text_targets
from fuzz.harness import Target

__all__ = ["TARGETS"]

TARGETS: Mapping[str, Target] = {
    "manifest": store_targets.manifest,
    "remote-manifest": store_targets.remote_manifest,
    "npy": store_targets.npy,
    "spans": store_targets.spans,
    "payloads": store_targets.payloads,
    "packing-plan": store_targets.packing_plan,
    "megatron": store_targets.megatron,
    "datatrove": store_targets.datatrove,
    "headed": store_targets.headed,
    "olmo": store_targets.olmo,
    "nanogpt": store_targets.nanogpt,
    "disk-cache": store_targets.disk_cache,
    "loader-state": state_targets.loader_state,
    "stream-state": state_targets.stream_state,
    "run-file": state_targets.run_file,
    "plan-file": state_targets.plan_file,
    "snapshots": state_targets.snapshots,
    "listing": state_targets.listing,
    "jsonl": text_targets.jsonl,
    "jsonl-compressed": text_targets.jsonl_compressed,
    "arrow-text": text_targets.arrow_text,
    "tokenizer": text_targets.tokenizer,
    "hugging-face": text_targets.hugging_face,
    "any-tokenizer": text_targets.any_tokenizer,
    "rank-file": text_targets.rank_file,
}
