"""The service's figures, as JSON for the operator's page and as text for Prometheus.

They are counts, versions and pseudonyms, never a key, a mask or a name. Prometheus' format takes a dozen
lines, so no library writes it.
"""

import hashlib
import time
from collections.abc import Mapping
from typing import Any

from basecagg.service.documents import ONLINE_SECONDS
from basecagg.service.server.buffer_log import BufferEntry
from basecagg.service.server.core import Service
from basecagg.service.server.host import EpochHost

_SHOWN_ENTRIES = 30


def online(service: Service) -> dict[str, float]:
    """Participants heard of lately, and how many seconds ago."""
    now, members = time.time(), service.epochs.registry.members
    ages = {name: now - seen for name, seen in service.activity.last_seen.items()}
    return {name: age for name, age in ages.items() if age < ONLINE_SECONDS and name in members}


def pseudonym(federation: str, key: bytes) -> str:
    """A short name that says nothing about its bearer and stays the same."""
    return hashlib.sha256(b"basecagg/pseudonym/" + federation.encode() + key).hexdigest()[:6]


def view(service: Service) -> dict[str, Any]:
    """Everything the page shows, as JSON."""
    activity, epochs = service.activity, service.epochs
    return {
        "federation": service.folder.federation,
        "phase": epochs.phase,
        "uptime": round(time.time() - activity.started),
        "online": _people(service),
        "members": len(epochs.registry.active),
        "pending": len(epochs.registry.enrolments),
        "traffic": {"in": activity.bytes_in, "out": activity.bytes_out},
        "requests": dict(sorted(activity.requests.items())),
        "opened": activity.opened,
        "burned": activity.burned,
        "corrected": activity.corrected,
        "scores": activity.scores[-200:],
        "recoveries": [_entry(entry) for entry in reversed(activity.buffers[-_SHOWN_ENTRIES:])],
        "epoch": _epoch(epochs.host) if epochs.host else None,
    }


def _people(service: Service) -> list[dict[str, Any]]:
    members = service.epochs.registry.members
    people = [
        {
            "who": pseudonym(service.folder.federation, members[name].signing_key),
            "role": members[name].role,
            "seconds": round(age),
        }
        for name, age in online(service).items()
    ]
    return sorted(people, key=lambda person: str(person["who"]))


def _epoch(host: EpochHost) -> dict[str, Any]:
    p, progress, version = (
        host.agreement.parameters,
        host.buffer_log.progress,
        host.published.version,
    )
    waiting = list(host.machine.buffer.waiting)
    return {
        "number": host.agreement.epoch.number,
        "protection": p.protection,
        "version": version,
        "K": p.buffer_size,
        "N": p.num_holders,
        "U": p.recovery_threshold,
        "T": p.max_colluders,
        "D": p.max_dropouts,
        "d": p.model_size,
        "quorum": p.quorum,
        "consistency": p.consistency,
        "correctness": p.correctness,
        "needed": p.answers_needed,
        "waiting": len(waiting),
        "staleness": [version - update.base_version for update in waiting],
        "refusals": dict(host.refusals),
        "trouble": host.trouble,
        "opening": progress
        and {"endorsed": len(progress.endorsed), "answered": len(progress.answered)},
    }


def _entry(entry: BufferEntry) -> dict[str, Any]:
    return {
        "version": entry.version,
        "outcome": entry.outcome,
        "attempt": entry.attempt,
        "staleness": [entry.version - base for base in entry.base_versions],
        "endorsements": entry.endorsements,
        "answers": entry.answers,
        "corrected": len(entry.inconsistent),
        "seconds": entry.seconds,
        "reason": entry.reason,
    }


# --- for Prometheus -----------------------------------------------------------------------------


def metrics(service: Service) -> str:
    """All figures for Prometheus."""
    activity, epochs = service.activity, service.epochs
    host, certificate = epochs.host, activity.certificate
    counters = [
        ("received_bytes_total", "Bytes of bodies received.", activity.bytes_in),
        ("sent_bytes_total", "Bytes of bodies sent.", activity.bytes_out),
        ("buffers_opened_total", "Buffers that opened.", activity.opened),
        ("buffers_burned_total", "Buffers that were given up.", activity.burned),
        ("answers_corrected_total", "Wrong answers corrected.", activity.corrected),
    ]
    members = len(epochs.registry.active)
    gauges = [
        ("online", "Participants heard of lately.", len(online(service))),
        ("jobs_waiting", "Messages before the machine.", service.worker.waiting),
        ("members", "Participants who belong to the federation.", members),
        ("epoch_open", "1 while an epoch takes updates.", int(epochs.phase == "open")),
        ("store_failing", "1: waits for its store.", int(bool(service.worker.fault))),
    ]
    if certificate is not None:
        text = "When the TLS certificate expires, in seconds since 1970."
        expires = int(certificate.expires.timestamp())
        gauges.append(("certificate_expires_timestamp_seconds", text, expires))
    lines = _family("requests_total", "HTTP requests by status.", activity.requests, "status")
    if host is not None:
        waiting, ends = len(host.machine.buffer.waiting), host.agreement.epoch.ends
        gauges += [
            ("model_version", "Version t.", host.published.version),
            ("buffer_waiting", "Updates that wait.", waiting),
            ("trouble", "1 if no sum opens before somebody acts.", int(bool(host.trouble))),
            ("retired", "Holders out until the next epoch.", len(host.retired)),
            ("epoch_expires_timestamp_seconds", "When no agent answers any more.", ends),
        ]
        lines += _family("refusals_total", "Messages refused, by kind.", host.refusals, "kind")
    for kind, figures in (("counter", counters), ("gauge", gauges)):
        for name, text, value in figures:
            lines += [*_head(name, kind, text), f"basecagg_{name} {value}"]
    return "\n".join(lines) + "\n"


def _family(name: str, text: str, values: Mapping[str, int], label: str) -> list[str]:
    rows = [f'basecagg_{name}{{{label}="{key}"}} {value}' for key, value in sorted(values.items())]
    return [*_head(name, "counter", text), *rows]


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP basecagg_{name} {text}", f"# TYPE basecagg_{name} {kind}"]
