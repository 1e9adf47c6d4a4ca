"""What the operator's page may show: counts, versions and pseudonyms, never a key, a mask or a name."""

from __future__ import annotations

import hashlib
import time
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
