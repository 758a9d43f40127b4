"""Trains networks on number generation as in the public code of paper 2.

The text and the code of the paper agree, so this study has the same runs as ``numbers-paper``.
"""

from collections.abc import Mapping
from dataclasses import replace

from qkvary.papers.key_value.studies import numbers_paper
from qkvary.studies.study import Study

PROTOCOLS: Mapping[str, Study] = {
    protocol: replace(study, name=study.name.replace("paper", "published"))
    for protocol, study in numbers_paper.PROTOCOLS.items()
}

STUDY = PROTOCOLS["as-published"]
