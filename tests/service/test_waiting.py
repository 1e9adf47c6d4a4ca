"""Who waits for mail is woken when it is ripe, at once when it is urgent, and never forgotten."""

from __future__ import annotations

import asyncio

import pytest

from basecagg.service.server import waiting
from basecagg.service.server.waiting import WaitingRoom


@pytest.fixture(autouse=True)
def never_ripe(monkeypatch):
    """Letters that are not urgent wait for ever, unless a test says otherwise."""
    monkeypatch.setattr(waiting, "_LINGER", 1000.0)


async def asleep(room: WaitingRoom, name: str = "alice") -> asyncio.Task[bool]:
    task = asyncio.create_task(room.mail(name, room.until(1000)))
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def woken_by(room: WaitingRoom, task: asyncio.Task[bool], woken: dict[str, bool]) -> bool:
    room.wake_soon(woken)
    for _ in range(5):
        await asyncio.sleep(0)
    return task.done() and task.result()


async def test_what_is_urgent_wakes_at_once_and_the_rest_ripens():
    room = WaitingRoom()
    task = await asleep(room)
    assert not await woken_by(room, task, {"bob": True})
    assert not await woken_by(room, task, {"alice": False})
    assert room.is_ripening("alice")
    assert await woken_by(room, task, {"alice": True})
    assert not room.is_ripening("alice")


async def test_mail_that_came_while_nobody_waited_is_not_missed():
    room = WaitingRoom()
    room.wake_soon({"alice": True})
    await asyncio.sleep(0.01)
    assert await room.mail("alice", room.until(1000))
    assert not await room.mail("alice", room.until(0.001))


async def test_letters_are_ripe_after_a_while_and_later_for_who_has_just_fetched(monkeypatch):
    monkeypatch.setattr(waiting, "_LINGER", 0.001)
    room = WaitingRoom()
    assert await woken_by(room, await asleep(room), {"alice": True})
    task = await asleep(room)
    room.wake_soon({"alice": False})
    await asyncio.sleep(0.02)
    assert not task.done()
    monkeypatch.setattr(waiting, "_PACE", 0.0)
    room.wake_soon({"bob": False})
    assert await room.mail("bob", room.until(1000))
    task.cancel()


async def test_a_new_model_wakes_those_who_wait_for_it_and_a_change_wakes_everybody():
    room = WaitingRoom()
    mail, news = await asleep(room), asyncio.create_task(room.news(room.until(1000)))
    await asyncio.sleep(0)
    room.renew_soon()
    assert await news
    assert not mail.done()
    room.change()
    assert await mail


async def test_nobody_waits_once_it_is_closed():
    room = WaitingRoom()
    task = await asleep(room)
    room.close()
    assert await task
    assert not await room.news(room.until(1000))
