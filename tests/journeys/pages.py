"""The walks, page by page: what is typed instead of what is printed, and what a reader has done before."""

from __future__ import annotations

from adapter_pages import ADAPTERS
from flower_pages import FLOWER
from run_pages import RUNS
from service_pages import SERVICE

WALKS = RUNS | SERVICE | FLOWER | ADAPTERS
