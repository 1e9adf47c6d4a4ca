"""Every experiment of `basecagg reproduce` by name, imported only when it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reproduction.experiment import Experiment

EXPERIMENTS = {
    "protocols": ("protocols:COSTS", "SecAgg, SecAgg+, LightSecAgg, BASecAgg: CPU, bytes, time."),
    "schedules": ("schedules:SCHEDULES", "Simulated time to an accuracy, in rounds and without."),
    "flower": ("flower:FLOWER", "CPU of an aggregation beside Flower's SecAgg+ (needs flwr)."),
    "incompatibility": ("incompatibility:INCOMPATIBILITY", "SecAgg when a buffer mixes versions."),
    "residues": ("residues:RESIDUES", "What one opened sum tells about a single member."),
    "accuracy-mnist": ("accuracy:MNIST", "FedBuff and BASecAgg on MNIST, both weightings."),
    "accuracy-cifar10": ("accuracy:CIFAR10", "The same on CIFAR-10, small model."),
    "accuracy-cifar10-large": ("accuracy:CIFAR10_LARGE", "The same with the CNN of FedAsync."),
    "levels-mnist": ("levels:MNIST", "Accuracy against c_l on MNIST, wrap-around allowed."),
    "levels-cifar10": ("levels:CIFAR10", "The same on CIFAR-10."),
    "sweep-mnist": ("sweep:MNIST", "The appendix's grid of rates, decay and α on MNIST."),
    "sweep-cifar10": ("sweep:CIFAR10", "The same on CIFAR-10, one value at a time."),
    "told-ages": ("told_ages:TOLD_AGES", "The age that updates tell, and that at the opening."),
    "theorem": ("theorem:THEOREM", "The convergence bound on problems with known constants."),
    "autotune": ("autotune:AUTOTUNE", "c_l found by the federation itself."),
    "optimisers": ("optimisers:OPTIMISERS", "The server's optimisers on uneven data."),
    "privacy-users": ("privacy:PRIVACY_USERS", "Accuracy against ε: local, central, private sums."),
    "bounded-sums": (
        "bounded_sums:BOUNDED_SUMS",
        "One liar of a hundred, with and without a bound.",
    ),
    "attacks": ("attacks:ATTACKS", "Liars among contributors, with and without buckets."),
    "beyond": ("beyond:BEYOND", "Uneven data, dropouts, and K up to N, by simulated time."),
    "privacy-audit": ("canaries:PRIVACY_AUDIT", "What an attacker sees of updates through noise."),
    "privacy-records": ("records:PRIVACY_RECORDS", "What it costs to hide single records."),
}
"""Name: where its `Experiment` stands in this folder, and one line of help."""


def find(name: str) -> Experiment:
    """The experiment of this name."""
    module, _, attribute = EXPERIMENTS[name][0].partition(":")
    experiment: Experiment = getattr(importlib.import_module(f"reproduction.{module}"), attribute)
    return experiment
