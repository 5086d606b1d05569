"""Login throttle: counts wrong passwords by name and address, so that guessing slows down without keeping anybody else out."""

from __future__ import annotations

import ipaddress
import time
from collections import Counter

MAX_PENDING, MAX_PENDING_PER_ADDRESS, MAX_PENDING_PER_LOGIN = (
    200,
    50,
    2,
)  # passwords being checked or waiting: of all, of an address, of one name there
FREE_FAILURES = 5  # failures of a name at an address after which it shares its places with all others that guess for that name
FAILURE_WINDOW_SECONDS = 600.0  # seconds that failures are remembered
MAX_REMEMBERED_FAILURES = 10_000  # names and addresses with failures that are remembered
MAX_NAME_CHARS = 64  # characters of a name: no account has a longer one

LoginKey = tuple[str, str]


class LoginThrottle:
    """The passwords that are being tried, and recent failures."""

    def __init__(self):
        self._pending: Counter[LoginKey] = Counter()
        self._wrong: dict[LoginKey, tuple[int, float]] = {}  # number of failures, and time of the last; most recent at the end

    def begin(self, name: str, address: str) -> LoginKey | None:
        """Register an attempt; return the key for `end`, or None if there are too many."""
        key = name.strip().casefold()[:MAX_NAME_CHARS], network(address)
        there = sum(n for (_, where), n in self._pending.items() if where == key[1])
        same = self._pending[key]
        if self._guesses(key):
            same = sum(n for other, n in self._pending.items() if other[0] == key[0] and self._guesses(other))
        if self._pending.total() >= MAX_PENDING or there >= MAX_PENDING_PER_ADDRESS or same >= MAX_PENDING_PER_LOGIN:
            return None
        self._pending[key] += 1
        return key

    def end(self, key: LoginKey, right: bool | None) -> None:
        """Register the outcome: right, wrong, or None if unknown."""
        self._pending[key] -= 1
        if not self._pending[key]:
            del self._pending[key]
        if right is None:
            return
        count, _ = self._wrong.pop(key, (0, 0.0))
        if not right:
            self._wrong[key] = count + 1, time.monotonic()
        while self._wrong and (len(self._wrong) > MAX_REMEMBERED_FAILURES or self._is_over(next(iter(self._wrong)))):
            del self._wrong[next(iter(self._wrong))]

    def _guesses(self, key: LoginKey) -> bool:
        return key in self._wrong and self._wrong[key][0] >= FREE_FAILURES and not self._is_over(key)

    def _is_over(self, key: LoginKey) -> bool:
        return time.monotonic() > self._wrong[key][1] + FAILURE_WINDOW_SECONDS


def network(address: str) -> str:
    """Return an address; for IPv6 its first half, since one person has all of the second.

    >>> network("192.0.2.7"), network("2001:db8::7"), network("::ffff:192.0.2.7"), network("")
    ('192.0.2.7', '2001:db8::', '192.0.2.7', '')
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:MAX_NAME_CHARS]
    if found.version == 4:
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((int(found) >> 64 << 64, 64)).network_address)
