"""Describes the settings of a study whose variants have equal parameters."""

from collections.abc import Iterator

from qkvary.arch.labels import parse_label
from qkvary.costs.parameters import network_parameters
from qkvary.studies.study import Study


def describe_equal_parameters(study: Study) -> Iterator[str]:
    """State the feed-forward widths of each setting with equal parameters."""
    baseline = parse_label(study.baseline)
    for setting in study.settings:
        if not setting.equal_parameters:
            continue
        labels = study.variants_of(setting)
        networks = {label: setting.network_of(parse_label(label), baseline) for label in labels}
        target = setting.network.with_variant(baseline)
        given = ", ".join(
            f"{label} {network.block.d_ff:,} ({network_parameters(network).total:,} parameters)"
            for label, network in networks.items()
            if network != target
        )
        yield (
            f"In {setting.name} the feed-forward width follows from the parameters of "
            f"{study.baseline}, {network_parameters(target).total:,} with a width of "
            f"{target.block.d_ff:,}: {given}."
        )
