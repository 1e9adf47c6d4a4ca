"""Figures for Prometheus, in its text format: a dozen lines, so no library for them."""

from __future__ import annotations

from collections.abc import Mapping

from basecagg.service.page.view import online
from basecagg.service.server.core import Service


def render(service: Service) -> str:
    """All figures of the service."""
    activity, host, members = (
        service.activity,
        service.epochs.host,
        len(service.epochs.registry.active),
    )
    single = [
        ("received_bytes_total", "counter", "Bytes of bodies received.", activity.bytes_in),
        ("sent_bytes_total", "counter", "Bytes of bodies sent.", activity.bytes_out),
        ("buffers_opened_total", "counter", "Buffers that opened.", activity.opened),
        ("buffers_burned_total", "counter", "Buffers that were given up.", activity.burned),
        ("answers_corrected_total", "counter", "Wrong answers corrected.", activity.corrected),
        ("online", "gauge", "Participants heard of lately.", len(online(service))),
        ("jobs_waiting", "gauge", "Messages before the machine.", service.worker.waiting),
        ("members", "gauge", "Participants who belong to the federation.", members),
        (
            "epoch_open",
            "gauge",
            "1 while an epoch takes updates.",
            int(service.epochs.phase == "open"),
        ),
        ("store_failing", "gauge", "1: waits for its store.", int(bool(service.worker.fault))),
    ]
    if activity.certificate is not None:
        text = "When the TLS certificate expires, in seconds since 1970."
        expires = int(activity.certificate.expires.timestamp())
        single.append(("certificate_expires_timestamp_seconds", "gauge", text, expires))
    lines = _family("requests_total", "HTTP requests by status.", activity.requests, "status")
    if host is not None:
        waiting, ends = len(host.machine.buffer.waiting), host.agreement.epoch.ends
        single += [
            ("model_version", "gauge", "Version t.", host.published.version),
            ("buffer_waiting", "gauge", "Updates that wait.", waiting),
            (
                "trouble",
                "gauge",
                "1 if no sum opens before somebody acts.",
                int(bool(host.trouble)),
            ),
            ("retired", "gauge", "Holders out until the next epoch.", len(host.retired)),
            ("epoch_expires_timestamp_seconds", "gauge", "When no agent answers any more.", ends),
        ]
        lines += _family("refusals_total", "Messages refused, by kind.", host.refusals, "kind")
    for name, kind, text, value in single:
        lines += [*_head(name, kind, text), f"basecagg_{name} {value}"]
    return "\n".join(lines) + "\n"


def _family(name: str, text: str, values: Mapping[str, int], label: str) -> list[str]:
    rows = [f'basecagg_{name}{{{label}="{key}"}} {value}' for key, value in sorted(values.items())]
    return [*_head(name, "counter", text), *rows]


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP basecagg_{name} {text}", f"# TYPE basecagg_{name} {kind}"]
