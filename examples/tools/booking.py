"""A tool that must not act twice, and a service that knows calls by their ids: here a database."""

import os
import sqlite3
from contextlib import closing

from verl.tools.function_tool import function_tool

from recipe.async_dapo.calls import call_id, unknown_calls

DATABASE = os.environ.get("BOOKINGS", "bookings.sqlite")


def booked(call: str) -> str:
    """What a call has come to that was under way when the run was killed. LookupError: it never arrived."""
    with closing(_connect()) as connection:
        row = connection.execute("SELECT seat FROM booking WHERE call = ?", (call,)).fetchone()
    if row is None:
        raise LookupError(call)
    return f"seat {row[0]} is booked"


@function_tool
@unknown_calls("fail_trajectory", recover=booked)
def book(seat: int) -> str:
    """Book a seat.

    Args:
        seat: Number of the seat.
    """
    with closing(_connect()) as connection, connection:
        connection.execute("INSERT INTO booking VALUES (?, ?)", (call_id(), seat))
    return f"seat {seat} is booked"


def _connect() -> sqlite3.Connection:
    connection = sqlite3.connect(DATABASE, timeout=60.0)
    connection.execute("CREATE TABLE IF NOT EXISTS booking (call TEXT PRIMARY KEY, seat INTEGER)")
    return connection
