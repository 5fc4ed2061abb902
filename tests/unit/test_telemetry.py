"""Snapshots over a real ZMQ socket, engine side to gateway side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
import zmq
from request_rows import decision

from proxima_engine.telemetry import SchedulerSnapshot, SnapshotPublisher, SnapshotReceiver


def snapshot(step: int, rank: int = 0) -> SchedulerSnapshot:
    return SchedulerSnapshot(
        rank=rank,
        time_s=1.0,
        step=step,
        running=3,
        waiting={"blocks": {"default": 2}},
        blocks_total=191,
        blocks_used=100,
        blocks_peak=120,
        output_tokens_per_s=50.0,
        finished_per_s=2.0,
        estimated_start_s={"default": 1.0},
        backfills_total=4,
        yields_total={"recompute": 1},
        preemptions_total=1,
        plan_time_s_total=0.1,
        policy_state="ok",
        policy_failures_total=0,
    )


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/snapshots"


@pytest.fixture
async def receiver(endpoint: str) -> AsyncIterator[SnapshotReceiver]:
    receiver = SnapshotReceiver(endpoint)
    task = asyncio.create_task(receiver.run())
    yield receiver
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_the_gateway_sees_the_newest_snapshot_of_each_rank(endpoint: str, receiver: SnapshotReceiver) -> None:
    publishers = [SnapshotPublisher(endpoint, interval_s=0.1) for _ in range(2)]
    for step in range(1, 51):
        for rank, publisher in enumerate(publishers):
            publisher.offer(snapshot(step, rank))
    await until(lambda: [receiver.latest[rank].step for rank in sorted(receiver.latest)] == [50, 50])
    assert receiver.latest[1] == snapshot(50, rank=1)
    for publisher in publishers:
        publisher.close()


async def test_no_more_than_one_message_an_interval_is_sent(endpoint: str) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.PULL)
    socket.bind(endpoint)
    publisher = SnapshotPublisher(endpoint, interval_s=60.0)
    for step in range(1000):
        publisher.offer(snapshot(step))
    await asyncio.to_thread(socket.recv)
    for step in range(1000):
        publisher.offer(snapshot(step))
    publisher.close()
    assert socket.poll(timeout=500) == 0
    context.destroy(linger=0)


async def test_a_publisher_without_a_listener_never_blocks_the_engine(endpoint: str) -> None:
    publisher = SnapshotPublisher(endpoint, interval_s=0.01)
    for step in range(10_000):
        publisher.offer(snapshot(step))
    publisher.close()


async def test_decisions_that_could_not_be_sent_go_with_the_next_snapshot(endpoint: str) -> None:
    publisher = SnapshotPublisher(endpoint, interval_s=0.001)
    for number in range(50):
        publisher.offer(snapshot(number), [decision(float(number))])
        await asyncio.sleep(0.004)
    receiver = SnapshotReceiver(endpoint)
    task = asyncio.create_task(receiver.run())
    await until(lambda: bool(receiver.latest))
    while not receiver.decisions or receiver.decisions[-1][1].time_s < 50:
        publisher.offer(snapshot(50), [decision(50.0)] if not publisher._decisions else [])
        await asyncio.sleep(0.02)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    publisher.close()
    told = [each.time_s for _, each in receiver.decisions]
    assert told[:51] == [float(number) for number in range(51)]


async def test_the_last_word_of_an_engine_is_heard_by_who_listens_late(endpoint: str) -> None:
    """It has fallen idle, and says nothing more."""
    publisher = SnapshotPublisher(endpoint, interval_s=0.1)
    for step in (1, 2, 3):
        publisher.offer(snapshot(step))
        await asyncio.sleep(0.2)
    receiver = SnapshotReceiver(endpoint)
    task = asyncio.create_task(receiver.run())
    await until(lambda: 0 in receiver.latest and receiver.latest[0].step == 3)
    publisher.close()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_messages_of_another_version_are_ignored(endpoint: str, receiver: SnapshotReceiver) -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(endpoint)
        socket.send(msgspec.msgpack.encode(msgspec.structs.replace(snapshot(1), version=99)))
        socket.send(msgspec.msgpack.encode({"version": 1, "surprise": True}))
        socket.send(msgspec.msgpack.encode(snapshot(2)))
        await until(lambda: bool(receiver.latest))
    assert receiver.latest[0].step == 2
