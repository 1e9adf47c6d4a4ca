"""A user's training without torch: a step towards a target, different every time."""

import os
import time

import numpy as np


def train(model, info):
    time.sleep(0.05)
    noise = np.frombuffer(os.urandom(4 * model.size), "<u4").astype(np.float32) / 2**32
    return model + 0.3 * (1 - model) + 0.01 * noise


def score(model, info):
    return [float(model.mean())]
