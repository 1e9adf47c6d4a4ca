"""The page of the Python interface, written from signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from importlib import import_module
from inspect import Parameter, Signature
from typing import Any

import basecagg
from basecagg import errors
from basecagg.options import groups, settings_of, strings_below

INTRO = """\
Everything that the pages and examples of this documentation use, written from the docstrings. What is not on
this page may change without notice.

The names of the first section are imported from `basecagg` itself. Each is loaded when it is first used, and
one whose optional part is not installed says which one it needs.
"""
ELSEWHERE = {
    "ProtocolParameters": "The arguments, what follows from them, and the rules: [Parameters](parameters.md).",
    "SimulationConfig": "The arguments: [Settings](settings.md) of a run.",
}
"""Classes whose fields have a page of their own."""
ERRORS = [name for name, kind in vars(errors).items() if inspect.isclass(kind)]
DOOR = [name for name in basecagg.__all__ if name not in (*ERRORS, "__version__")]
SECTIONS: dict[str, dict[str, Iterable[str]]] = {
    "The front door": {"basecagg": DOOR},
    "What they give back": {
        "basecagg.planning.planner": ["Wishes", "Plan"],
        "basecagg.auditing.leakage": ["Report", "SumFinding", "Exposure", "Group"],
        "basecagg.auditing.verification": ["Findings", "Finding"],
        "basecagg.protocol.effects": ["Released", "Abandoned", "MaskEnded"],
    },
    "Errors": {"basecagg.errors": ERRORS},
    "Weights by staleness": {
        "basecagg.maths.staleness": ["constant", "polynomial", "hinge", "StalenessFunction"]
    },
    "Privacy": {
        "basecagg.privacy": ["Privacy", "Mechanism"],
        "basecagg.planning.budget": ["Budget"],
    },
    "Statistics": {
        "basecagg.statistics": import_module("basecagg.statistics").__all__,
        "basecagg.statistics.protocol_file": ["StudyProtocol"],
        "basecagg.statistics.remote": ["RemoteStudy"],
    },
    "Tables to add to": {
        "basecagg.maths.staleness": ["SHAPES", "Shape", "of_shape"],
        "basecagg.protocol.step_rule": ["OPTIMISERS", "ServerOptimiser"],
        "basecagg.simulation.protections": ["PROTECTIONS", "Protection"],
        "basecagg.simulation.attacks": ["ATTACKS", "Attack", "Sight"],
        "basecagg.maths.robust_means": ["ROBUST_MEANS", "RobustMean"],
        "basecagg.baselines.local_noise": ["AtUser"],
        "basecagg.simulation.timing": ["SCHEDULES", "Timetable", "CLOCKS", "Timepiece"],
        "basecagg.schedules.schedule": ["Schedule"],
        "basecagg.schedules.buffered": ["Buffered"],
        "basecagg.simulation.event_clock": ["DeviceClock"],
        "basecagg.simulation.clock": ["UniformStaleness"],
        "basecagg.learning.partition": ["PARTITIONS"],
        "basecagg.learning.clients": ["CLIENTS", "LOCAL_OPTIMISERS"],
        "basecagg.parameters": ["RULES", "Rule"],
    },
    "Models, data and local training": {
        "basecagg.learning": import_module("basecagg.learning").__all__
    },
    "On Flower": {"basecagg.flower": import_module("basecagg.flower").__all__},
    "Transcripts and proofs": {
        "basecagg.auditing.recorder": ["Recorder"],
        "basecagg.auditing.transcript": ["Scribe", "read_transcript"],
        "basecagg.protocol.proofs": ["Account"],
        "basecagg.protocol.recomputation": ["recompute"],
        "basecagg.channels.wire": ["pack"],
    },
    "The machines": {
        "basecagg.protocol.epoch": ["Seat", "draft_epoch", "first_link", "accept"],
        "basecagg.protocol.server": ["Server", "ServerSettings"],
        "basecagg.parties.epoch_server": ["EpochServer"],
        "basecagg.parties.member": ["Member", "Pins", "TO_CONTRIBUTORS"],
        "basecagg.protocol.recovery": ["Recovery"],
        "basecagg.protocol.holder": ["Holder"],
        "basecagg.protocol.contributor": ["Contributor"],
        "basecagg.simulation.protections": ["require_compatible"],
        "basecagg.channels.identity": ["Identity", "Ed25519Verifier", "enrol"],
        "basecagg.channels.sealing": ["SealingKeys", "SealingSecret", "make_sealer"],
        "basecagg.storage.in_memory": ["MemoryStore"],
        "basecagg.simulation.loopback": ["Loopback", "Letter"],
    },
    "The arithmetic": {
        "basecagg.maths.mds_code": ["MaskCode"],
        "basecagg.maths.prime_field": ["PrimeField"],
        "basecagg.maths.quantization": ["quantize_and_mask", "dequantize"],
        "basecagg.maths.randomness": ["FieldStream", "WordStream", "derive_seed", "new_seed"],
        "basecagg.maths.ranges": ["REPORT_SIZE", "RangeTally", "fitting", "with_report"],
    },
}
"""Heading → module → names, in the order of the page."""
_WIDTH = 60
"""Characters in a line of code: as many as a phone shows without much scrolling."""


def api_page() -> str:
    """All sections."""
    sections = "\n".join(
        f"## {title}\n\n" + "\n".join(_entry(module, name) for module, name in _names(modules))
        for title, modules in SECTIONS.items()
    )
    return f"# Python\n\n{INTRO}\n{sections}"


def _names(modules: dict[str, Iterable[str]]) -> Iterator[tuple[str, str]]:
    return ((module, name) for module, names in modules.items() for name in names)


def _entry(module: str, name: str) -> str:
    value = getattr(import_module(module), name)
    describe = _class if inspect.isclass(value) else _function if callable(value) else _constant
    return f"### {name} {{ #{module}.{name} }}\n\n{describe(module, name, value)}"


def _constant(module: str, name: str, value: Any) -> str:
    shown = value if isinstance(value, int | str | tuple) else type(value).__name__
    meaning = strings_below(import_module(module)).get(name) or _first_words(value)
    return f"`{module}.{name}`: `{shown}`\n" + (f"\n{meaning}\n" if meaning else "")


def _first_words(value: Any) -> str:
    keys = ", ".join(f"`{key}`" for key in value) if isinstance(value, dict) else ""
    return f"By name: {keys}." if keys else ""


def _function(module: str, name: str, value: Any) -> str:
    return f"{_code(f'{module}.{name}', inspect.signature(value))}\n{_doc(value)}\n"


def _class(module: str, name: str, kind: type) -> str:
    if name in ELSEWHERE:
        return f"`class {module}.{name}`\n\n{_doc(kind)}\n\n{ELSEWHERE[name]}\n{_members(kind, ())}"
    fields = _fields(kind)
    made = vars(kind).get("__init__") if name not in ERRORS and _is_plain(kind) else None
    making = f"\n{_doc(made)}\n" if made else ""
    return f"{_heading(module, name, kind)}\n{_doc(kind)}\n{making}{_members(kind, fields.items())}"


def _is_plain(kind: type) -> bool:
    """Whether somebody wrote its constructor: that of a dataclass has nothing to say."""
    return not vars(kind).get("__annotations__")


def _heading(module: str, name: str, kind: type) -> str:
    bases = [base.__name__ for base in kind.__bases__ if issubclass(base, Exception | Warning)]
    if bases:
        return f"`class {module}.{name}({', '.join(bases)})`\n"
    try:
        return _code(f"class {module}.{name}", inspect.signature(kind))
    except ValueError:
        return f"`class {module}.{name}`\n"


def _fields(kind: type) -> dict[str, str]:
    """Public fields that are explained; the signature has the others."""
    own = strings_below(kind) if vars(kind).get("__annotations__") else {}
    if any(group in kind.__mro__ for group in groups()):
        own = {each.name: f"{each.meaning} {each.why}".strip() for each in settings_of(kind)}
    return {name: doc for name, doc in own.items() if not name.startswith("_")}


def _members(kind: type, fields: Iterable[tuple[str, str]]) -> str:
    lines = [f"- `{name}`: {doc}" for name, doc in fields]
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            lines.append(f"- `{name}`: {_line(member)}")
        elif inspect.isfunction(function := getattr(member, "__func__", member)):
            lines.append(f"- `{name}{_text(_called(function))}`: {_line(function)}")
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def _called(method: Any) -> Signature:
    """As it is called: without `self` or `cls`."""
    signature = inspect.signature(method)
    own = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    return signature.replace(parameters=own)


def _code(name: str, signature: Signature) -> str:
    """A signature as a block of code: on one line where it fits."""
    line = f"{name}{_text(signature)}"
    if len(line) > _WIDTH:
        arguments = "".join(f"    {each},\n" for each in _arguments(signature))
        line = f"{name}(\n{arguments}){_result(signature)}"
    return f"```text\n{line}\n```\n"


def _text(signature: Signature) -> str:
    return f"({', '.join(_arguments(signature))}){_result(signature)}"


def _arguments(signature: Signature) -> Iterator[str]:
    """Each as in the source. A bare * and the arguments after it stay apart."""
    starred = False
    for parameter in signature.parameters.values():
        if parameter.kind is Parameter.KEYWORD_ONLY and not starred:
            yield "*"
        starred |= parameter.kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_POSITIONAL)
        yield _argument(parameter)


def _argument(parameter: Parameter) -> str:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
    annotated = parameter.annotation is not Parameter.empty
    text = f"{stars}{parameter.name}" + (f": {_type(parameter.annotation)}" if annotated else "")
    if parameter.default is Parameter.empty:
        return text
    equals = " = " if annotated else "="
    return f"{text}{equals}{_default(parameter.default)}"


def _default(value: Any) -> str:
    """Numbers, words and what has a short name; anything else would show an address in memory."""
    plain = value is None or isinstance(value, int | float | str | tuple)
    return repr(value) if plain else "…"


def _result(signature: Signature) -> str:
    kept = signature.return_annotation not in (Signature.empty, None, "None")
    return f" -> {_type(signature.return_annotation)}" if kept else ""


def _type(annotation: Any) -> str:
    written = getattr(annotation, "__forward_arg__", annotation)
    return written if isinstance(written, str) else inspect.formatannotation(written)


def _doc(value: Any) -> str:
    return inspect.getdoc(value) or ""


def _line(value: Any) -> str:
    return " ".join(_doc(value).split())
