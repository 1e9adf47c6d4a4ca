"""Figures for Prometheus, in its text format: a dozen lines, so no library for them."""

from __future__ import annotations

from collections.abc import Mapping

from basecagg.service.page.view import online
from basecagg.service.server.core import Service


def render(service: Service) -> str:
    """All figures of the service."""
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
