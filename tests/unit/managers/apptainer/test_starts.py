"""Starts of one image are bounded, and each running environment has a loopback address of its own."""

from __future__ import annotations

import asyncio
import ipaddress

from managers.cpu.apptainer.starts import LOOPBACK, StartRules


async def test_two_environments_of_an_image_start_at_once_and_others_are_not_delayed():
    rules = StartRules(2)
    running: list[str] = []
    most = 0
    proceed = asyncio.Event()

    async def start(image: str) -> None:
        nonlocal most
        async with rules.gate(image):
            running.append(image)
            most = max(most, running.count("swe"))
            await proceed.wait()
            running.remove(image)

    tasks = [asyncio.create_task(start("swe")) for _ in range(5)]
    tasks.append(asyncio.create_task(start("math")))
    for _ in range(20):
        await asyncio.sleep(0)
    assert sorted(running) == ["math", "swe", "swe"]
    proceed.set()
    await asyncio.gather(*tasks)
    assert most == 2


def test_addresses_are_loopback_distinct_and_stay_while_they_are_held():
    rules = StartRules(2)
    found = {tag: rules.address(tag) for tag in range(3000)}
    assert len(set(found.values())) == 3000
    block = ipaddress.ip_network("127.64.0.0/10")
    assert all(ipaddress.ip_address(each) in block for each in found.values())
    assert not any(each.endswith((".0", ".255")) for each in found.values())
    assert rules.address(7) == found[7]


def test_an_address_that_another_worker_gave_is_not_given_again():
    free = StartRules(2).address(7)
    rules = StartRules(2)
    rules.hold(99, {LOOPBACK: free})
    assert rules.address(7) != free
    rules.release(99)
    rules.release(7)
    assert rules.address(7) == free
