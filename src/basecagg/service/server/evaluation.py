"""The operator's own test set: every new version is scored, in a process of its own."""

import asyncio

import numpy as np

from basecagg.errors import DataError
from basecagg.service.logs import Log
from basecagg.service.problems import Problem
from basecagg.service.server.core import Service
from basecagg.service.server.host import Published
from basecagg.service.training import RoundInfo, UserFunction

_LOG = Log("basecagg.service")
_REMEMBERED = 10_000


class Evaluator:
    """Scores the newest version, then the newest after that: versions in between are passed over."""

    def __init__(self, service: Service, place: str) -> None:
        """Start at once; `place` is module:function, called as f(vector, RoundInfo) and returning a number."""
        self._service = service
        self._function = UserFunction(place)
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop."""
        self._task.cancel()
        self._function.close()

    async def _run(self) -> None:
        last = -1
        while not self._service.waiting.is_closed:
            try:
                model = await self._service.wait_for_model(last, 3600.0)
            except Problem:  # no epoch yet
                await asyncio.sleep(0.5)
                continue
            if model.version != last:
                last = model.version
                await self._score(model)

    async def _score(self, model: Published) -> None:
        federation, version = self._service.folder.federation, model.version
        info = RoundInfo(federation=federation, name="operator", version=version, round=0, data="")
        try:
            score = float((await self._function(np.frombuffer(model.data, model.dtype), info))[0])
        except (DataError, IndexError) as error:
            _LOG.warning("evaluation", error=str(error))
            return
        scores = self._service.activity.scores
        scores.append((version, score))
        del scores[:-_REMEMBERED]
        _LOG.info("evaluation", version=version, score=round(score, 4))
