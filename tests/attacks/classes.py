"""Every class of attack, and how many cases the full form has of it: named ones first, then random ones."""

from collections.abc import Mapping
from typing import NamedTuple

from attacks import answers, formats, lies, mixtures, page, plans, texts
from fuzz import targets
from fuzz.harness import Target

__all__ = ["CLASSES", "TARGETS", "AttackClass"]


class AttackClass(NamedTuple):
    """One row of the table."""

    target: Target
    """Makes what is attacked, and gives the function that attacks it and compares."""
    num_cases: int
    """Cases of the full form."""


CLASSES: Mapping[str, AttackClass] = {
    "span-lies": AttackClass(lies.span_lies, 540),
    "plan-lies": AttackClass(plans.plan_lies, 330),
    "vast-documents": AttackClass(lies.vast_documents, 40),
    "manifests": AttackClass(formats.manifests, 420),
    "files": AttackClass(formats.files, 300),
    "combined": AttackClass(formats.combined, 120),
    "server-answers": AttackClass(answers.answers, 165),
    "parquet": AttackClass(texts.parquet, 300),
    "tokenizers": AttackClass(texts.tokenizers, 400),
    "weights": AttackClass(mixtures.weights, 200),
    "mixture-plans": AttackClass(mixtures.plan_files, 200),
    "page": AttackClass(page.page, 10_000),
    **{name: AttackClass(target, 150) for name, target in targets.TARGETS.items()},
}

TARGETS = {name: each.target for name, each in CLASSES.items()}
