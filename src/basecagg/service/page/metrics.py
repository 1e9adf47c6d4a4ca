"""Figures for Prometheus, in its text format: a dozen lines, so no library for them."""

from __future__ import annotations

from basecagg.service.page.view import online
from basecagg.service.server.core import Service


def render(service: Service) -> str:
    """All figures of the service."""
    activity, host = service.activity, service.host
    lines = [
        *_family(
            "requests_total", "counter", "HTTP requests by status.", activity.requests, "status"
        ),
        *_single("received_bytes_total", "counter", "Bytes of bodies received.", activity.bytes_in),
        *_single("sent_bytes_total", "counter", "Bytes of bodies sent.", activity.bytes_out),
        *_single("buffers_opened_total", "counter", "Buffers that opened.", activity.opened),
        *_single("buffers_burned_total", "counter", "Buffers that were given up.", activity.burned),
        *_single(
            "answers_corrected_total",
            "counter",
            "Inconsistent answers corrected.",
            activity.corrected,
        ),
        *_single("online", "gauge", "Participants heard of lately.", len(online(service))),
        *_single("jobs_waiting", "gauge", "Messages before the machine.", service.worker.waiting),
    ]
    if host is not None:
        lines += _single("model_version", "gauge", "Version t.", host.published.version)
        lines += _single(
            "buffer_waiting", "gauge", "Updates that wait.", len(host.machine.buffer.waiting)
        )
        lines += _family(
            "refusals_total", "counter", "Messages refused, by kind.", dict(host.refusals), "kind"
        )
    return "\n".join(lines) + "\n"


def _single(name: str, kind: str, text: str, value: float) -> list[str]:
    return [*_head(name, kind, text), f"basecagg_{name} {value}"]


def _family(name: str, kind: str, text: str, values: dict[str, int], label: str) -> list[str]:
    rows = [f'basecagg_{name}{{{label}="{key}"}} {value}' for key, value in sorted(values.items())]
    return [*_head(name, kind, text), *rows]


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP basecagg_{name} {text}", f"# TYPE basecagg_{name} {kind}"]
