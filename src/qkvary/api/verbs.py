"""The verbs: functions that Python (``import qkvary as qk``) and the command line both call.

A verb is a function in a separate file, such as ``api/cost.py``. The parameters of the function
are the options of the command, and the docstring of the function is the help. The first line of the
file repeats the first line of the docstring, so that the list of commands can be printed without
importing the file. ``@verb`` converts each argument (``"32k"``, a label, a path) as its annotation
says.
The function returns a ``qkvary.api.results.Result`` and prints nothing. ``qkvary.cli.app`` adds
``--json``, ``--full``, ``--out``, ``--format``, progress and exit codes.

A verb with many parameters collects the rarely used ones in a group. The group is one parameter,
whose default is an object of a dataclass, and ``@verb`` also accepts the fields of that
class as keywords (``qkvary.api.arguments``).

A new verb needs a file, one line in this module, and one import in ``qkvary/__init__.py`` for
editors.
"""

VERBS: dict[str, dict[str, str]] = {
    "Look": {
        "variants": "api.variants:variants",
        "published": "papers.published:published",
        "claims": "papers.claims:claims",
        "figures": "papers.figures:figures",
    },
    "Plan": {
        "cost": "api.cost:cost",
        "plan": "api.plan:plan",
    },
    "Train": {
        "train": "api.train:train",
        "data prepare": "api.data_prepare:prepare_data",
        "data show": "api.data_show:show_data",
        "data features": "api.data_features:prepare_features",
    },
    "Decode": {
        "generate": "api.generate:generate",
        "evaluate": "api.evaluate:evaluate",
        "export": "api.export:export",
        "serve": "api.serve:serve",
        "bench decode": "api.bench_decode:bench_decode",
        "bench quantized": "api.bench_quantized:bench_quantized",
    },
    "Explain": {
        "analyze": "api.analyze:analyze",
        "convert": "api.convert:convert",
    },
    "Study": {
        "studies": "api.list_studies:list_studies",
        "study": "api.study:study",
        "status": "api.status:status",
        "report": "api.report:report",
        "show": "api.show:show",
        "pack": "api.pack:pack",
        "unpack": "api.unpack:unpack",
    },
    "Set up": {
        "doctor": "api.doctor:doctor",
    },
}
"""The module and function of each command, in the order in which the help lists the commands."""

GROUPS = {
    "data": "Prepare documents for training, and show prepared sets.",
    "bench": "Measure on this machine.",
}
"""The help of each group of two-word commands, by the first word of the group."""


TARGETS = {typed: target for verbs in VERBS.values() for typed, target in verbs.items()}
"""The module and function of each command, such as ``data prepare``."""
