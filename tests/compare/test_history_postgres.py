"""A server for a team: it restarts, stays away, confirms nothing, is upgraded, is not ours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.compare.profiles import profile
from tests.support.postgres import Server

from stepscope.api.history import history_entries
from stepscope.compare.history import History, postgres
from stepscope.compare.history.postgres import PostgresStore
from stepscope.compare.profile import Profile
from stepscope.trace.errors import InputError, StorageError, UsageError

psycopg = pytest.importorskip("psycopg", reason="needs psycopg, which the development lock holds")


def run(ms: float) -> Profile:
    return profile([round(ms * 1e6)] * 6)


@pytest.fixture
def url(server: Server) -> str:
    return server.database()


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(statement)


def test_a_server_that_restarts_is_asked_again(server: Server, url: str) -> None:
    with History(url, create=True) as history:
        history.add(run(10), name="gpt")
        server.stop()
        server.start()
        history.add(run(11), name="gpt")
        server.stop()
        server.start()
        assert [e.figures["step_ms"] for e in history.entries()] == [10, 11]


def test_a_server_that_goes_away_loses_nothing(server: Server, url: str) -> None:
    with History(url, create=True) as history:
        history.add(run(10), name="gpt")
        server.stop()
        try:
            with pytest.raises(StorageError, match="went away or cannot be reached"):
                history.add(run(11), name="gpt")
            with pytest.raises(StorageError, match="try again when it answers"):
                history_entries(url)
        finally:
            server.start()
        assert [e.figures["step_ms"] for e in history.entries()] == [10]


@pytest.mark.parametrize("arrived", [True, False])
def test_a_write_whose_answer_is_lost_is_there_once(
    url: str, arrived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks while the transaction is confirmed: nobody knows whether it was."""
    with History(url, create=True) as history:
        store = history.store
        assert isinstance(store, PostgresStore)
        real = store._db
        breaks = [True]

        class Breaking:
            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

            @contextmanager
            def transaction(self) -> Iterator[None]:
                with real.transaction():
                    yield
                    if not arrived:
                        breaks.clear()
                        real.close()
                        raise psycopg.OperationalError("server closed the connection")
                breaks.clear()
                real.close()
                raise psycopg.OperationalError("server closed the connection")

        store._db = Breaking()
        entry = history.add(run(10), name="gpt")
        assert not breaks
        assert store._db is not real
        assert history.entries() == [entry]
        assert history.profile(entry.id).step_ns == 10e6


def test_a_killed_backend_in_mid_write_leaves_nothing_half(server: Server, url: str) -> None:
    with History(url, create=True) as history:
        store = history.store
        assert isinstance(store, PostgresStore)

        def half(db: Any) -> None:
            with db.transaction():
                db.execute(
                    "INSERT INTO stepscope_entry (key, added_ns, name, revision, label, profile) "
                    "VALUES ('k', 1, 'half', '', '', '')"
                )
                execute(url, f"SELECT pg_terminate_backend({db.info.backend_pid})")
                db.execute("SELECT 1")

        with pytest.raises(StorageError, match="went away"):
            store._ask(half)
        assert history.entries() == []


def test_many_make_the_tables_at_once(url: str) -> None:
    failed: list[Exception] = []

    def add() -> None:
        try:
            with History(url, create=True) as history:
                history.add(run(10), name="gpt")
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=add) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert len(history_entries(url)) == 6


def test_tables_are_upgraded_once_and_keep_what_they_hold(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with History(url, create=True) as history:
        history.add(run(10), name="gpt")
    more = ("ALTER TABLE stepscope_entry ADD COLUMN host text NOT NULL DEFAULT ''",)
    with monkeypatch.context() as patch:
        patch.setattr(postgres, "LAYOUTS", (*postgres.LAYOUTS, more, ("SELECT 1/0",)))
        with pytest.raises(StorageError, match="division by zero"):
            history_entries(url)
    assert len(history_entries(url)) == 1  # the failed upgrade left the first layout
    with monkeypatch.context() as patch:
        patch.setattr(postgres, "LAYOUTS", (*postgres.LAYOUTS, more))
        for _ in range(2):
            with History(url) as history:
                assert len(history.entries()) == 1
    with pytest.raises(InputError, match="later Stepscope"):
        history_entries(url)


def test_a_table_that_stays_locked_is_one_sentence(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "WAIT_S", 1)
    with History(url, create=True) as history, psycopg.connect(url) as other:
        other.execute("LOCK TABLE stepscope_entry IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StorageError, match="another process has been writing"):
            history.add(run(10), name="gpt")
        other.rollback()
        history.add(run(10), name="gpt")
        assert len(history.entries()) == 1


def test_a_server_that_refuses_is_one_sentence(server: Server, url: str) -> None:
    execute(url, "DROP ROLE IF EXISTS reader")
    execute(url, "CREATE ROLE reader LOGIN")
    reader = url.replace("tester@", "reader@")
    with pytest.raises(StorageError, match=r"refuses .*ask for the right"):
        history_entries(reader)
    with History(url, create=True) as history:
        history.add(run(10), name="gpt")
    for table in ("entry", "figure", "layout"):
        execute(url, f"GRANT SELECT ON stepscope_{table} TO reader")
    with History(reader) as history:  # who may only read, reads
        assert len(history.entries()) == 1
        with pytest.raises(StorageError, match="refuses"):
            history.add(run(11), name="gpt")
        with pytest.raises(StorageError, match="refuses"):
            history.keep(1)
    with pytest.raises(StorageError, match="does not exist"):
        history_entries(server.url("nowhere"))
    with pytest.raises(UsageError, match="no PostgreSQL URL"):
        history_entries("postgresql://tester@/x?nonsense=1")


def test_other_tables_of_that_name_are_not_touched(url: str) -> None:
    execute(url, "CREATE TABLE stepscope_entry (mine integer)")
    with pytest.raises(InputError, match="not those of a history"):
        history_entries(url)
    execute(url, "SELECT mine FROM stepscope_entry")
    # another schema of the same database is free
    execute(url, "CREATE SCHEMA team")
    with History(f"{url}&options=-csearch_path%3Dteam", create=True) as history:
        history.add(run(10), name="gpt")
        assert len(history.entries()) == 1
